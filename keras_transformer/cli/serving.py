"""The sub-command serve, which serves a web page or an API."""

import argparse
import dataclasses
import gc
import os
import sys
import threading
from pathlib import Path

from keras_transformer.cli.command import ABOUT_PRESET, command, option, positive


def _port(text: str) -> int:
    """Parse a port from the command line; 0 means any free port."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be an integer from 0 to 65535, received {text!r}")
    return int(text)


@command(
    "serve",
    f"""\
serve a web page to try presets in a browser, or an API for programs

Loads presets and serves a page on this machine to try them: talk, translate, classify, fill a
mask, complete, embed and compare, describe images, transcribe recordings, whatever each supports,
with its attention. The same is available as JSON, described by /openapi.json. With --api it serves
OpenAI's API instead (/v1/completions, /v1/chat/completions, /v1/embeddings, /v1/models), for many
clients at once, and /classify, /translate, /health, /ready and /metrics. Needs
pip install "keras_transformer[serve]".

{ABOUT_PRESET}
examples:
  keras-transformer serve transformer_tiny_en_de gpt_tiny_shakespeare
  keras-transformer serve minilm_l6_en --port 8080
  API_KEY=secret keras-transformer serve --api gpt_tiny_shakespeare --api-key API_KEY
  keras-transformer serve --api gpt_tiny_shakespeare --mode int8
  curl -H "Content-Type: application/json" -d '{{"texts": ["A dog runs."]}}' \\
      http://127.0.0.1:8000/api/transformer_tiny_en_de/translate
""",
    option("presets", "the models", nargs="+", metavar="PRESET"),
    option(
        "--host", "the address to listen on; with any but the default, anyone who can reach "
        "this machine can use the models (default %(default)s)",
        default="127.0.0.1", metavar="ADDRESS",
    ),
    option(
        "--port", "the port; 0 takes any free port (default %(default)s)", type=_port,
        default=8000, metavar="N",
    ),
    option("--api", "serve OpenAI's API instead of a page", action="store_true"),
    option(
        "--mode", "dtype of the models: float32, bfloat16, int8, int4, on PyTorch and a CPU also "
        "with the suffix -packed; `keras-transformer optimize PRESET` measures which is fastest "
        "(default %(default)s)",
        default="float32", metavar="MODE",
    ),
    option(
        "--model-parallel", "devices that share the work of each layer; on PyTorch each is a "
        "process: torchrun --nproc_per_node N -m keras_transformer serve --api --model-parallel N "
        "PRESET (default %(default)s)",
        type=positive, default=1, metavar="N",
    ),
    option(
        "--api-key", "environment variable or file with the key that clients of the API must send "
        "(default: no key)",
        metavar="NAME",
    ),
    *(
        option(
            f"--{name.replace('_', '-')}", f"with --api: {text} (default %(default)s)",
            type=positive, default=default, metavar="N",
        )
        for name, text, default in (
            ("batch_size", "most texts that a model generates at a time", 32),
            ("waiting", "queued texts; further requests get status 429", 256),
            ("tokens", "the most tokens of prompt and generated text; beyond: status 413", 4096),
            ("samples", "the most samples of a recording; beyond: status 413", 2**24),
            ("pixels", "the most pixels of the images of a request; beyond: status 413", 2**26),
            ("body_bytes", "the largest request in bytes; beyond: status 413", 16 * 2**20),
            ("connections", "simultaneous connections; fewer if fewer files may be open", 1024),
            ("stop_seconds", "time for running requests to finish when stopped", 60),
        )
    ),
)  # fmt: skip
def _serve(options: argparse.Namespace) -> None:
    try:
        from keras_transformer.serving import serve
    except ImportError as error:
        raise ImportError(
            f"The server needs {error.name}, which is not installed. Run `pip install "
            '"keras_transformer[serve]"`.'
        ) from None
    limits = None
    if options.api:
        from keras_transformer.serving import API_LIMITS

        names = ("batch_size", "waiting", "tokens", "samples", "pixels", "body_bytes")
        names = (*names, "connections", "stop_seconds")
        given = {name: getattr(options, name) for name in names}
        limits = dataclasses.replace(API_LIMITS, **given)
    key = None if options.api_key is None else read_key(options.api_key)
    others = set(threading.enumerate())
    try:
        serve(
            options.presets, options.host, options.port, limits, options.api, key, options.mode,
            options.model_parallel,
        )  # fmt: skip
    finally:
        _end_soon(others)


def _end_soon(others: set[threading.Thread]) -> None:
    """End the process without Python's slow shutdown.

    Python would run several full garbage collections, and wait for threads in which a model still
    computes results that no client waits for. `others` are threads that ran before the server.
    """
    gc.freeze()
    threads = [each for each in threading.enumerate() if each not in others and not each.daemon]
    for thread in threads:
        thread.join(0.2)
    if any(thread.is_alive() for thread in threads):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def read_key(name: str) -> str:
    """Read the API key from an environment variable or a file. Raises ValueError without one."""
    found = os.environ.get(name)
    if found is None and Path(name).is_file():
        found = Path(name).read_text("utf-8")
    if found is None or not found.strip():
        raise ValueError(
            f"--api-key {name}: there is neither an environment variable nor a file of that name, "
            "or it is empty. Do not give the key itself: other users can see the command line."
        )
    return found.strip()


COMMANDS = (_serve,)
