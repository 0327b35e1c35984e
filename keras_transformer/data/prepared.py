"""A value that a thread makes while the caller does something else."""

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any


class Prepared:
    """Starts a thread that calls `make`.

    Args:
        of: what the value is of, for the caller to compare.
        make: function without arguments.
    """

    def __init__(self, of: Any, make: Callable[[], Any]):
        self.of = of
        self._future = concurrent.futures.Future()
        # A thread of its own costs some 50 microseconds, and a fork of the process loses no pool.
        threading.Thread(target=self._run, args=(make,), daemon=True).start()

    def result(self):
        """The value, or the error that `make` raised."""
        return self._future.result()

    def _run(self, make):
        try:
            self._future.set_result(make())
        except BaseException as error:
            self._future.set_exception(error)
