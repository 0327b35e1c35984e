"""Rewards of generated texts by plain Python functions, which are not trusted."""

import copy
import numbers
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.support.checking import check_number, describe, shorten

_SHOWN = 500  # characters of a prompt or a completion that an error quotes
_LARGEST = float(np.finfo("float32").max)  # squares of larger ones may overflow


class Rewards:
    """One or several functions that reward a completion, and their weights.

    Args:
        functions: a function of `(prompt, completion, row)` that returns a number or a bool, or a
            list of them. `row` is a dict of the further columns of the prompts' table. Each call
            gets a copy, so that a function may change what it gets.
        weights: a float for each function. Defaults to 1 each.
        seconds: float, the most time that one call may take. Defaults to None, without a limit. A
            call that takes longer is an error; its thread cannot be stopped and is left behind.

    Raises:
        ValueError: if there is no function, one is not callable, or the weights do not fit.

    Example:
    ```python
    from keras_transformer.training import Rewards

    def short(prompt, completion, row):
        return -len(completion) / 100

    def right(prompt, completion, row):
        return completion.strip() == row["answer"]

    rewards = Rewards([right, short], weights=[1.0, 0.5])
    found = rewards([("1+1=", "2", {"answer": "2"}), ("2+2=", "5", {"answer": "4"})])
    assert found.tolist() == [[1.0, -0.01], [0.0, -0.01]]
    assert rewards.names == ["right", "short"]
    ```
    """

    def __init__(
        self,
        functions: Callable | Sequence[Callable],
        weights: Sequence[float] | None = None,
        seconds: float | None = None,
    ):
        several = list(functions) if isinstance(functions, (list, tuple)) else [functions]
        for place, function in enumerate(several):
            if not callable(function) or isinstance(function, type):
                raise ValueError(
                    "`rewards` must be a function of (prompt, completion, row) or a list of them, "
                    f"received {describe(function)} at place {place}."
                )
        if not several:
            raise ValueError("`rewards` is an empty list: give at least one function.")
        weights = [1.0] * len(several) if weights is None else list(weights)
        if len(weights) != len(several):
            raise ValueError(
                f"Received {len(several)} rewards and {len(weights)} `reward_weights`: give one "
                "weight for each."
            )
        self.functions = several
        self.weights = [check_number("reward_weights", weight) for weight in weights]
        self.seconds = check_number("reward_seconds", seconds, above=0, none=True)
        self.names = _names(several)

    def __call__(self, rows: Sequence[tuple[Any, Any, Mapping[str, Any]]]) -> np.ndarray:
        """Return the rewards of `(prompt, completion, row)`, float64 `(rows, functions)`.

        Raises:
            RuntimeError: if a function raises; the cause is its error.
            ValueError: if a function returns something other than a finite number or a bool.
            TimeoutError: if a call takes longer than `seconds`.
        """
        found = np.zeros((len(rows), len(self.functions)))
        caller = _call if self.seconds is None else _Caller(self.seconds)
        for i, row in enumerate(rows):
            for j, function in enumerate(self.functions):
                found[i, j] = self._one(caller, function, self.names[j], i, row)
        return found

    def _one(self, caller, function, name: str, place: int, row) -> float:
        prompt, completion, columns = row
        where = (
            f"\n  prompt: {shorten(prompt, _SHOWN)}\n  completion: {shorten(completion, _SHOWN)}"
            f"\n  row: {shorten(dict(columns), _SHOWN)}\n"
            "The model is as it was before this step."
        )
        try:
            # Copies: what a function changes would reach other completions and later steps.
            value = caller(function, *copy.deepcopy((prompt, completion, columns)))
        except _TookTooLongError as error:
            raise TimeoutError(
                f"The reward {name!r} took longer than {self.seconds} seconds for completion "
                f"{place} of the step.{where}"
            ) from error
        except Exception as error:
            raise RuntimeError(
                f"The reward {name!r} raised {type(error).__name__}: {error}, for completion "
                f"{place} of the step.{where}"
            ) from error
        number = _number(value)
        if number is None:
            raise ValueError(
                f"The reward {name!r} must return one finite number or a bool, received "
                f"{describe(value)} for completion {place} of the step.{where}"
            )
        return number


def _number(value: Any) -> float | None:
    """Return a reward as a float, or None if it is not one number that is finite in float32."""
    if isinstance(value, np.ndarray) and value.shape == ():
        value = value[()]
    if not isinstance(value, (numbers.Real, np.bool_)):
        return None
    try:
        number = float(value)
    except OverflowError:  # an int beyond the largest float
        return None
    return number if abs(number) <= _LARGEST else None  # NaN is not


def _names(functions: Sequence[Callable]) -> list[str]:
    """Return a name for each function; equal names are numbered."""
    names = [getattr(f, "__name__", type(f).__name__).strip("<>") for f in functions]
    return [
        name if names.count(name) == 1 else f"{name}_{names[:i].count(name) + 1}"
        for i, name in enumerate(names)
    ]


def _call(function: Callable, *arguments) -> Any:
    return function(*arguments)


class _TookTooLongError(Exception):
    """A call that did not return in time."""


class _Caller:
    """Calls functions in one thread of its own, and waits for each call for a limited time."""

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._asked: queue.SimpleQueue = queue.SimpleQueue()
        self._answered: queue.SimpleQueue = queue.SimpleQueue()
        # A daemon: it does not keep the program from ending while a function hangs.
        threading.Thread(target=_answer, args=(self._asked, self._answered), daemon=True).start()

    def __del__(self):
        self._asked.put(None)

    def __call__(self, function: Callable, *arguments) -> Any:
        self._asked.put((function, arguments))
        try:
            value, error = self._answered.get(timeout=self._seconds)
        except queue.Empty:
            raise _TookTooLongError from None
        if error is not None:
            raise error
        return value


def _answer(asked: queue.SimpleQueue, answered: queue.SimpleQueue) -> None:
    while (call := asked.get()) is not None:
        function, arguments = call
        try:
            answered.put((function(*arguments), None))
        except BaseException as error:  # SystemExit too: nobody would answer from then on
            answered.put((None, error))
