"""Loading of presets, and serving them until interrupted."""

import concurrent.futures
import dataclasses
import gc
import ipaddress
import signal
import socket
from collections.abc import Sequence
from typing import Any

import keras_transformer as kt
from keras_transformer.optimizing.modes import load
from keras_transformer.serving.api import error_body as api_error_body
from keras_transformer.serving.api import make_api
from keras_transformer.serving.app import error_body, make_app
from keras_transformer.serving.limits import API_LIMITS, Limits
from keras_transformer.serving.observing import log_config
from keras_transformer.serving.verbs import ServedTask, task_names
from keras_transformer.support.checking import printable

# Seconds for the page's requests to finish when the server stops.
_PAGE_STOPS = 5


def load_served(presets: Sequence[str], mode: str = "float32") -> dict[str, ServedTask]:
    """Load the tasks of presets in a mode of `kt.optimizing.MODES`, keyed by name.

    Raises ValueError if a preset cannot be served or does not support the mode.
    """
    opened = {name: kt.checkpoints.resolve_preset(name) for name in presets}
    for name, preset in opened.items():
        saved = preset.description[1]
        if saved is None or saved["name"] not in task_names():
            what = f"a {saved['name']}" if saved else "a backbone alone"
            raise ValueError(
                f"The preset {name!r} is {what}, which cannot be served. "
                f"Presets of these tasks can be served: {', '.join(sorted(task_names()))}."
            )
    return {
        name.rpartition("/")[2]: ServedTask(
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
    """Serve presets until interrupted or terminated: a page to try them, or an API.

    When the server stops, running requests may finish: in at most `limits.stop_seconds` for the
    API, and at most 5 seconds for the page. After that they end with an error.

    Args:
        presets: list of names of presets, folders or `hf://` addresses, see `from_preset`.
        host: str, the address to listen on. Anyone who can reach the address can use the server;
            the default is reached from this machine alone.
        port: int, port number; 0 chooses a free one.
        limits: `Limits`. Defaults to `Limits()` for the page and `API_LIMITS` for the API.
        api: bool, whether to serve OpenAI's API (`make_api`) instead of the page.
        key: str, API key, see `make_api`.
        mode: str, a name in `kt.optimizing.MODES`, such as `"int8"`: how weights are stored.

    Raises:
        ValueError: if a preset cannot be served or does not support the mode, or a key is given
            without `api`.
        OSError: if the port is in use.
    """
    from keras_transformer.serving.connections import Server  # needs uvicorn, unlike the rest

    if key is not None and not api:
        raise ValueError("A key is for the API, not for the page. Give `--api` too.")
    limits = limits or (API_LIMITS if api else Limits())
    # Load in a thread that ends: PyTorch's OpenMP keeps a pool of threads for each thread that has
    # computed. If these outnumber the processors, they sleep between operations: a token of GPT-2
    # took 30 milliseconds instead of 23.
    with concurrent.futures.ThreadPoolExecutor(1) as loader:
        served = loader.submit(load_served, presets, mode).result()
    # Loaded objects stay: exempt them from garbage collection, which would take up to a second in
    # which no request is answered.
    gc.collect()
    gc.freeze()
    listener, named, hosts = listen(host, port)
    port = listener.getsockname()[1]
    options: dict[str, Any] = {"log_level": "warning"}
    if api:
        app, shape = make_api(served, limits, key, hosts), api_error_body
        options = {"log_config": log_config(), "access_log": False}
        # uvicorn raises the signal again after a clean stop, which is not a failure.
        signal.signal(signal.SIGTERM, lambda *_: None)
    else:
        limits = dataclasses.replace(limits, stop_seconds=min(_PAGE_STOPS, limits.stop_seconds))
        app, shape = make_app(served, limits, hosts), error_body
    names = printable(", ".join(served))
    print(f"Serving {names} on http://{named}:{port} (Ctrl-C stops it)", flush=True)
    Server(app, limits, shape, **options).run(sockets=[listener])


def listen(host: str, port: int) -> tuple[socket.socket, str, tuple[str, ...]]:
    """Open a listening socket; return it, its host for URLs, and the host names for requests.

    On the loopback, the names for requests are the host and its address; elsewhere, any name.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=1024)
    found = ipaddress.ip_address(listener.getsockname()[0].partition("%")[0])
    named, of_it = (f"[{name}]" if ":" in name else name for name in (host, str(found)))
    return listener, named, (named, of_it, host, str(found)) if found.is_loopback else ("*",)
