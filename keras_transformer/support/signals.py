"""Signal handlers that wait, so that no interrupt comes between two statements."""

import contextlib
import signal
import threading
from collections.abc import Iterator

_SIGNALS = sorted(number for number in signal.valid_signals() if number < 32)


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Defer Python's signal handlers to the end of this context.

    Within it no handler raises `KeyboardInterrupt` or another exception between two statements.
    Python calls handlers in the main thread only; in other threads this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list = []
    handlers = {n: h for n in _SIGNALS if callable(h := signal.getsignal(n))}
    try:
        for number in handlers:
            signal.signal(number, lambda *call: came.append(call))
        yield
    finally:
        _restore(list(handlers.items()), came)


def _restore(handlers: list, came: list) -> None:
    """Restore all handlers, even if one that is already restored raises."""
    try:
        while handlers:
            signal.signal(*handlers[-1])
            handlers.pop()
    finally:
        if handlers:
            _restore(handlers, came)
        elif came:
            number, frame = came.pop(0)
            try:
                signal.getsignal(number)(number, frame)
            finally:
                _restore([], came)
