"""Loads presets and serves them until it is stopped."""

import concurrent.futures
import dataclasses
import gc
import ipaddress
import signal
import socket
from collections.abc import Sequence
from typing import Any

import keras_transformer as kt
from keras_transformer.checking import printable
from keras_transformer.optimizing.modes import load
from keras_transformer.serving.api import error_body as api_error_body
from keras_transformer.serving.api import make_api
from keras_transformer.serving.app import error_body, make_app
from keras_transformer.serving.limits import API_LIMITS, Limits
from keras_transformer.serving.observing import log_config
from keras_transformer.serving.verbs import Served, task_names

# Seconds in which requests of a page are finished when it is stopped.
_PAGE_STOPS = 5


def load_served(presets: Sequence[str], mode: str = "float32") -> dict[str, Served]:
    """The tasks of presets by their names, in a mode of `kt.optimizing.MODES`.

    ValueError for a preset of which nothing can be asked, or that does not have the mode.
    """
    opened = {name: kt.checkpoints.resolve_preset(name) for name in presets}
    for name, preset in opened.items():
        saved = preset.description[1]
        if saved is None or saved["name"] not in task_names():
            what = f"a {saved['name']}" if saved else "a backbone alone"
            raise ValueError(
                f"The preset {name!r} is {what}, of which nothing can be asked on a page. "
                f"Presets of these can be served: {', '.join(sorted(task_names()))}."
            )
    return {
        name.rpartition("/")[2]: Served(
            load(getattr(kt, preset.description[1]["name"]), preset, mode),
            preset.description[2].get("text"),
        )
        for name, preset in opened.items()
    }


def serve(
    presets: Sequence[str],
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits | None = None,
    api: bool = False,
    key: str | None = None,
    mode: str = "float32",
) -> None:
    """Serves presets until it is interrupted or terminated: a page to try them, or an API.

    When it is told to stop, the API finishes what runs, for at most `limits.stop_seconds`, and the
    page for at most 5 seconds. What still runs then ends with an error that its client reads.

    Args:
        presets: names of presets, folders or `hf://` addresses, as in `from_preset`.
        host: the address to listen on. On another than the loopback whoever reaches it can ask.
        port: 0 for one that is free.
        limits: `Limits`. Defaults to `Limits()` for the page and `API_LIMITS` for the API.
        api: bool, serve OpenAI's API (`make_api`) and not the page.
        key: of the API, see `make_api`.
        mode: a name in `kt.optimizing.MODES`, how the models are held: `"int8"`, `"int8-packed"`.

    Raises:
        ValueError: for a preset of which nothing can be asked, or that does not have the mode, or a
            key without `api`.
        OSError: if the port is in use.
    """
    from keras_transformer.serving.connections import Server  # needs uvicorn, which others do not

    if key is not None and not api:
        raise ValueError("A key is for the API: the page has none. Give `--api` too.")
    limits = limits or (API_LIMITS if api else Limits())
    # In a thread that ends: for each one that computed OpenMP, of PyTorch, keeps threads, and once
    # these are more than the processors they sleep between operations. A token of GPT-2 took 30
    # milliseconds in place of 23.
    with concurrent.futures.ThreadPoolExecutor(1) as loader:
        served = loader.submit(load_served, presets, mode).result()
    # All that is loaded stays. To look through it for garbage takes up to a second, in which nobody
    # is answered.
    gc.collect()
    gc.freeze()
    listener, named, hosts = listen(host, port)
    port = listener.getsockname()[1]
    options: dict[str, Any] = {"log_level": "warning"}
    if api:
        app, shape = make_api(served, limits, key, hosts), api_error_body
        options = {"log_config": log_config(), "access_log": False}
        # uvicorn raises the signal again when all is finished: then the end is no failure.
        signal.signal(signal.SIGTERM, lambda *_: None)
    else:
        limits = dataclasses.replace(limits, stop_seconds=min(_PAGE_STOPS, limits.stop_seconds))
        app, shape = make_app(served, limits, hosts), error_body
    names = printable(", ".join(served))
    print(f"Serving {names} on http://{named}:{port} (Ctrl-C stops it)", flush=True)
    Server(app, limits, shape, **options).run(sockets=[listener])


def listen(host: str, port: int) -> tuple[socket.socket, str, tuple[str, ...]]:
    """A socket that listens, its host as in addresses, and the names that requests may call it by.

    On the loopback these are the host and its address, elsewhere whatever clients call it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=1024)
    found = ipaddress.ip_address(listener.getsockname()[0].partition("%")[0])
    named, of_it = (f"[{name}]" if ":" in name else name for name in (host, str(found)))
    return listener, named, (named, of_it, host, str(found)) if found.is_loopback else ("*",)
