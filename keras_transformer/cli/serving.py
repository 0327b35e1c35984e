"""The sub-command that serves a page, or an API."""

import argparse
import dataclasses
import gc
import os
import sys
import threading
from pathlib import Path

from keras_transformer.cli.command import ABOUT_PRESET, command, option, positive


def _port(text: str) -> int:
    """A port of the command line, 0 for one that is free."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be an integer from 0 to 65535, received {text!r}")
    return int(text)


@command(
    "serve",
    f"""\
open a page to try presets in a browser, or an API for programs

Loads presets and serves a page on this machine to try them: translate, classify, fill a mask,
complete, embed and compare, describe images, transcribe recordings, whatever each can, with the
attention beside it. The same is there as JSON: /openapi.json describes it. With --api it serves
OpenAI's API instead (/v1/completions, /v1/chat/completions, /v1/embeddings, /v1/models), for many
clients at once, with /classify, /translate, /health, /ready and /metrics beside it. It needs
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
        "--host", "the address to listen on; on another than the default whoever reaches this "
        "machine can ask the models (default %(default)s)",
        default="127.0.0.1", metavar="ADDRESS",
    ),
    option(
        "--port", "the port, 0 for one that is free (default %(default)s)", type=_port,
        default=8000, metavar="N",
    ),
    option("--api", "serve OpenAI's API and no page", action="store_true"),
    option(
        "--mode", "how the models are held: float32, bfloat16, int8, int4, or on PyTorch and a CPU "
        "with -packed behind it; `keras-transformer optimize PRESET` measures which is fastest "
        "(default %(default)s)",
        default="float32", metavar="MODE",
    ),
    option(
        "--api-key", "the environment variable, or the file, that has the key which clients of the "
        "API must send (default: no key)",
        metavar="NAME",
    ),
    *(
        option(
            f"--{name.replace('_', '-')}", f"of the API: {text} (default %(default)s)",
            type=positive, default=default, metavar="N",
        )
        for name, text, default in (
            ("batch_size", "texts of a model that are written together", 32),
            ("waiting", "texts that wait for that; others get the status 429", 256),
            ("tokens", "the most tokens of a prompt and its text; status 413 beyond", 4096),
            ("samples", "the most samples of a recording; status 413 beyond", 2**24),
            ("body_bytes", "the largest request in bytes; status 413 beyond", 16 * 2**20),
            ("connections", "connections at a time, or fewer if no more files may be open", 1024),
            ("stop_seconds", "when stopped, what runs has so long to be finished", 60),
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

        names = ("batch_size", "waiting", "tokens", "samples", "body_bytes", "connections")
        given = {name: getattr(options, name) for name in (*names, "stop_seconds")}
        limits = dataclasses.replace(API_LIMITS, **given)
    key = None if options.api_key is None else read_key(options.api_key)
    others = set(threading.enumerate())
    try:
        serve(options.presets, options.host, options.port, limits, options.api, key, options.mode)
    finally:
        _end_soon(others)


def _end_soon(others: set[threading.Thread]) -> None:
    """Has the process end without what Python does in its last seconds.

    It would look through all that was loaded for garbage, several times, and wait for threads in
    which a model computes what nobody waits for any more: those that are not of `others`.
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
    """The key in an environment variable, or in a file. ValueError where there is none."""
    found = os.environ.get(name)
    if found is None and Path(name).is_file():
        found = Path(name).read_text("utf-8")
    if found is None or not found.strip():
        raise ValueError(
            f"--api-key {name}: there is no environment variable and no file of that name with a "
            "key in it. The key itself is not given here: the command line is seen by others."
        )
    return found.strip()


COMMANDS = (_serve,)
