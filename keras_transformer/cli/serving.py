"""The sub-command that serves a page."""

import argparse

from keras_transformer.cli.command import ABOUT_PRESET, command, option


def _port(text: str) -> int:
    """A port of the command line, 0 for one that is free."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be an integer from 0 to 65535, received {text!r}")
    return int(text)


@command(
    "serve",
    f"""\
open a page to try presets in a browser

Loads presets and serves a page on this machine to try them: translate, classify, fill a mask,
complete, embed and compare, describe images, transcribe recordings, whatever each can, with the
attention beside it. The same is there as JSON: /openapi.json describes it. It needs Starlette and
uvicorn: pip install "keras_transformer[serve]".

{ABOUT_PRESET}
examples:
  keras-transformer serve transformer_tiny_en_de gpt_tiny_shakespeare
  keras-transformer serve minilm_l6_en --port 8080
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
)  # fmt: skip
def _serve(options: argparse.Namespace) -> None:
    try:
        from keras_transformer.serving import serve
    except ImportError as error:
        raise ImportError(
            f"The page needs {error.name}, which is not installed. Run `pip install "
            '"keras_transformer[serve]"`.'
        ) from None
    serve(options.presets, options.host, options.port)


COMMANDS = (_serve,)
