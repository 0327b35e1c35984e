"""The console command: it lists presets and runs them."""

import os
import pathlib
import sys
from collections.abc import Sequence

# Nothing that needs another package is imported here: it is what tells of errors in importing it.
from keras_transformer.checking import printable

_FAILURE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: what follows the command's name. Defaults to those of the process.

    Returns:
        The exit code: 0, or 2 after an error, which is one line on stderr.

    Example:
    ```python
    from keras_transformer import cli

    assert cli.main(["presets"]) == 0
    ```
    """
    try:
        try:
            options = _parsed(arguments)
            _keep_compiled_programs()
            if hasattr(sys.stdout, "reconfigure"):
                sys.stdout.reconfigure(encoding="utf-8")  # As standard input, whatever the locale.
            options.run(options)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        code = _tell(error)
        if code is None:
            raise
        return code
    return 0


def tell_errors_of_import() -> None:
    """Where the process is this command, errors in importing the package are one line too."""
    if _is_the_process():
        sys.excepthook = _hook
        # Before TensorFlow is imported, which reads it then: what it found on the machine need
        # not stand between the answers. Its errors do.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def parse_before_keras() -> None:
    """Where the process is this command, its help and wrong options need no import of Keras."""
    if _is_the_process():
        try:
            _parsed(None)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()


def _is_the_process() -> bool:
    name = pathlib.Path(*getattr(sys, "argv", [])[:1]).name
    as_module = name == "-m" and "keras_transformer" in sys.orig_argv
    return as_module or name.removesuffix(".exe").removesuffix("-script.py") == "keras-transformer"


def _parsed(arguments: Sequence[str] | None):
    from keras_transformer.cli.parser import make_parser

    return make_parser().parse_args(arguments)


def _hook(kind, error, trace):
    code = _tell(error)
    if code is None:
        sys.__excepthook__(kind, error, trace)
    else:
        sys.exit(code)


def _tell(error: BaseException) -> int | None:
    """Tells of an error in one line and gives the exit code; None for a mistake of this package."""
    closed = isinstance(error, BrokenPipeError)  # the reader, such as `head`, has seen enough
    if isinstance(error, KeyboardInterrupt):
        print("keras-transformer: interrupted", file=sys.stderr)
    elif not isinstance(error, (ValueError, OSError, ImportError, FloatingPointError)):
        return None
    elif not closed:
        said = printable(" ".join(str(error).split()))
        print(f"keras-transformer: error: {said}", file=sys.stderr)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:  # what is left cannot be written, and Python would try again at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, KeyboardInterrupt):
        return 130
    return 0 if closed else _FAILURE


def _keep_compiled_programs() -> None:
    """A command lives shortly: JAX is to find what it compiled for an earlier one."""
    jax = sys.modules.get("jax")  # there already if it is the backend
    if jax is None or jax.config.jax_compilation_cache_dir is not None:
        return
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    jax.config.update("jax_compilation_cache_dir", str(cache / "keras_transformer" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
