"""Loads presets and serves them until it is stopped."""

import ipaddress
import socket
from collections.abc import Sequence

import keras_transformer as kt
from keras_transformer.serving.app import make_app
from keras_transformer.serving.limits import Limits
from keras_transformer.serving.verbs import Served, task_names


def load_served(presets: Sequence[str]) -> dict[str, Served]:
    """The tasks of presets by their names. ValueError for one of which nothing can be asked."""
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
            getattr(kt, preset.description[1]["name"]).from_preset(preset),
            preset.description[2].get("text"),
        )
        for name, preset in opened.items()
    }


def serve(
    presets: Sequence[str],
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits | None = None,
) -> None:
    """Serves a page to try presets, until it is interrupted.

    Args:
        presets: names of presets, folders or `hf://` addresses, as in `from_preset`.
        host: the address to listen on. On another than the loopback whoever reaches it can ask.
        port: 0 for one that is free.
        limits: `Limits`.

    Raises:
        ValueError: for a preset of which nothing can be asked.
        OSError: if the port is in use.
    """
    import uvicorn

    served = load_served(presets)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
    port = listener.getsockname()[1]
    named = f"[{host}]" if ":" in host else host
    app = make_app(served, limits, hosts=() if _is_loopback(host) else ("*",))
    print(f"Serving {', '.join(served)} on http://{named}:{port} (Ctrl-C stops it)", flush=True)
    options = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)
    uvicorn.Server(options).run(sockets=[listener])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
