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
from keras_transformer.distribution.processes import process_index
from keras_transformer.distribution.reading import weights_for_reading
from keras_transformer.distribution.spread import shared_by
from keras_transformer.optimizing.modes import load
from keras_transformer.serving.api import error_body as api_error_body
from keras_transformer.serving.api import make_api
from keras_transformer.serving.app import error_body, make_app
from keras_transformer.serving.following import follow
from keras_transformer.serving.limits import API_LIMITS, Limits
from keras_transformer.serving.observing import log_config
from keras_transformer.serving.verbs import ServedTask, task_names
from keras_transformer.serving.worker import STEPS, row_counts
from keras_transformer.support.checking import check_int, printable

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
    model_parallel: int = 1,
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
        model_parallel: int, devices that share the work of each layer. On PyTorch each is a
            process, started by `torchrun`: the first one serves, and the others compute with it.

    Raises:
        ValueError: if a preset cannot be served or does not support the mode, a key is given
            without `api`, or the devices cannot share the work of the presets.
        OSError: if the port is in use.
    """
    from keras_transformer.serving.connections import Server  # needs uvicorn, unlike the rest

    if key is not None and not api:
        raise ValueError("A key is for the API, not for the page. Give `--api` too.")
    limits = limits or (API_LIMITS if api else Limits())
    if check_int("model_parallel", model_parallel, at_least=1) > 1:
        kt.distribution.setup(model=model_parallel)
    # Load in a thread that ends: PyTorch's OpenMP keeps a pool of threads for each thread that has
    # computed. If these outnumber the processors, they sleep between operations: a token of GPT-2
    # took 30 milliseconds instead of 23.
    with concurrent.futures.ThreadPoolExecutor(1) as loader:
        served = loader.submit(load_served, presets, mode).result()
    if shared_by() > 1:
        task = _shared(served, api)
        if process_index() > 0:
            # The first process ends them, once it has finished its requests.
            for each in (signal.SIGTERM, signal.SIGINT):
                signal.signal(each, lambda *_: None)
            follow(task, limits.batch_size, row_counts(limits.batch_size), STEPS)
            return
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


def _shared(served: dict[str, ServedTask], api: bool) -> Any:
    """Cut the weights of the one task that processes serve together, and return it.

    Raises ValueError if it is not one `CausalLM` with the API.
    """
    (first, *others) = served.values()
    verbs = {verb.name for verb in first.verbs}
    if others or not api or not {"complete"} <= verbs <= {"complete", "chat"}:
        raise ValueError(
            "Processes of PyTorch that share the work of a model serve one CausalLM, and the API "
            f"(`--api`), received {printable(', '.join(served))}. Start another server for "
            "more, or one process."
        )
    with weights_for_reading(first.task):  # cut now: what cannot be shared ends the server
        return first.task


def listen(host: str, port: int) -> tuple[socket.socket, str, tuple[str, ...]]:
    """Open a listening socket; return it, its host for URLs, and the host names for requests.

    On the loopback, the names for requests are the host and its address; elsewhere, any name.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=1024)
    found = ipaddress.ip_address(listener.getsockname()[0].partition("%")[0])
    named, of_it = (f"[{name}]" if ":" in name else name for name in (host, str(found)))
    return listener, named, (named, of_it, host, str(found)) if found.is_loopback else ("*",)
