"""The console command `keras-transformer`."""

import os
import pathlib
import sys
from collections.abc import Sequence

# Import nothing that needs another package: this module reports errors of such imports.
from keras_transformer.support.checking import printable

_FAILURE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: the arguments after the command's name. Defaults to the process's own.

    Returns:
        The exit code: 0, 2 after an error, which is printed as one line on stderr, or 130 after
        Ctrl-C.

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
                sys.stdout.reconfigure(encoding="utf-8")  # Like standard input, in any locale.
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
    """Report import errors of the package as one line, if this process is the command."""
    if _is_the_process():
        sys.excepthook = _hook
        # TensorFlow reads this when it is imported. Its notes about the machine would mix with the
        # output; its errors are still shown.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def parse_before_keras() -> None:
    """Parse options before Keras is imported, so that help and errors in options appear at once."""
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
    """Print an error as one line and return the exit code; None if it is a bug of this package."""
    closed = isinstance(error, BrokenPipeError)  # the reader, such as `head`, stopped reading
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
    except OSError:  # Python would try again at exit to write the rest, and fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, KeyboardInterrupt):
        return 130
    return 0 if closed else _FAILURE


def _keep_compiled_programs() -> None:
    """Set JAX's compilation cache, so that a command reuses programs of earlier commands."""
    jax = sys.modules.get("jax")  # already imported if it is the backend
    if jax is None or jax.config.jax_compilation_cache_dir is not None:
        return
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    jax.config.update("jax_compilation_cache_dir", str(cache / "keras_transformer" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
