"""The fastest of the modes of a task, as it is measured here."""

import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

import keras

from keras_transformer.checking import (
    check_choice,
    check_flag,
    check_int,
    check_number,
    describe,
    shorten,
)
from keras_transformer.models.quantized import refuse_quantized
from keras_transformer.optimizing.modes import MODES, PACKED, make
from keras_transformer.optimizing.result import Measured, Optimized
from keras_transformer.optimizing.work import Work, work_of
from keras_transformer.tasks import Task
from keras_transformer.training import lora

# What takes less time than this share of another's is faster. The rest is noise.
_FASTER = 0.95


def optimize(
    task: Task,
    x: Any = None,
    *,
    batch_size: int = 8,
    length: int | None = None,
    new_tokens: int = 32,
    modes: Sequence[str] | None = None,
    least_agreement: float = 0.0,
    rounds: int = 5,
    verbose: bool = True,
) -> Optimized:
    """The task in the dtype that is fastest on this machine and backend, measured.

    Each mode is run once to compile, and then in turns with the others, `rounds` times: a machine
    that others use slows all of them. A task that generates is timed while it does, greedily;
    another by `predict`. The mode of the least median is taken, but a later one of `MODES` only if
    it takes 5 % less time than those before it.

    The task that is given stays as it is. While it measures, there are copies of it in memory,
    three quarters of its own size for bfloat16 and int8.

    Args:
        task: a task in float32, before `quantize`. One that generates reads tokens.
        x: what is measured, as `predict` or `generate` takes it: texts, ids or arrays. Defaults to
            one batch of random tokens. How far outputs move is worth what `x` is worth.
        batch_size: int, rows of a batch.
        length: int, tokens of a random row, or of a prompt. Defaults to 64, or to what the model
            takes if that is less.
        new_tokens: int, tokens that a task that generates adds to each row.
        modes: names of `MODES` to choose among; float32, which the others are compared with, is
            always measured. Defaults to all.
        least_agreement: float from 0 to 1: no mode is taken that agrees less with float32, see
            `Measured`.
        rounds: int, how often each mode is measured.
        verbose: bool, show a progress bar, and print the result.

    Returns:
        `Optimized`: the task in its fastest mode, the mode's name, and all that was measured.

    Raises:
        ValueError: for a task that is not in float32, is quantized or has adapters; for unknown
            modes or sizes; for a task without tokens and no `x`.

    Example:
    ```python
    import keras_transformer as kt

    classifier = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
    result = kt.optimize(
        classifier, batch_size=2, length=8, modes=["bfloat16"], rounds=1, verbose=False
    )
    assert [row.mode for row in result.table] == ["float32", "bfloat16"]
    assert result.task.predict(["what a film"], verbose=0).shape == (1, 2)
    ```
    """
    check_task(task)
    sizes = {"batch_size": batch_size, "new_tokens": new_tokens, "rounds": rounds}
    sizes = {name: check_int(name, value, at_least=1) for name, value in sizes.items()}
    least = check_number("least_agreement", least_agreement, at_least=0, at_most=1)
    verbose = check_flag("verbose", verbose)
    names = _checked_modes(task, modes)
    work = work_of(task, x, sizes["batch_size"], length, sizes["new_tokens"])
    made, reasons = _made(task, names, work)
    times = _times(made, work, sizes["rounds"], verbose)
    table = tuple(
        _measured(work, name, made[name], made["float32"], times[name])
        if name in made
        else Measured(name, reason=reasons[name])
        for name in names
    )
    mode = _fastest(table, least)
    result = Optimized(made[mode], mode, table, work.described())
    if verbose:
        print(result)
    return result


def check_task(task: Any) -> None:
    """ValueError for what is no task, or one that is not in float32 alone."""
    if not isinstance(task, Task):
        raise ValueError(f"`task` must be a task, received {describe(task)}.")
    refuse_quantized(task, "give `optimize` the task before `quantize`")
    if lora.is_adapted(task.backbone):
        raise ValueError("The task has adapters. Call `merge_lora` before `optimize`.")
    policy = task.dtype_policy
    if (policy.compute_dtype, policy.variable_dtype) != ("float32", "float32"):
        raise ValueError(
            f"`task` must be in float32, which the other modes are compared with, received one of "
            f"{policy.name}: load it without `dtype`."
        )


def _checked_modes(task: Task, modes: Sequence[str] | None) -> tuple[str, ...]:
    if modes is None:
        return MODES
    if isinstance(modes, str) or not isinstance(modes, Sequence):
        raise ValueError(f"`modes` must be a list of names, received {shorten(modes)}.")
    for place, mode in enumerate(modes):
        check_choice(f"modes[{place}]", mode, MODES)
    return tuple(mode for mode in MODES if mode == "float32" or mode in modes)


def _made(task: Task, names: Sequence[str], work: Work) -> tuple[dict[str, Task], dict[str, str]]:
    """The task in those modes that work, each run once, and why others do not."""
    made, reasons = {"float32": task}, {}
    work.run(task)
    for name in names[1:]:
        try:
            candidate = make(task, name, made)
            work.run(candidate)
        except (ValueError, NotImplementedError, RuntimeError, TypeError) as error:
            # Of a backend's own errors the first line says what is missing; more is a trace.
            reasons[name] = str(error).strip().splitlines()[0] if str(error) else repr(error)
        else:
            made[name] = candidate
    return made, reasons


def _times(made: dict[str, Task], work: Work, rounds: int, verbose: bool) -> dict[str, list]:
    """The seconds of each round of each mode."""
    bar = keras.utils.Progbar(rounds * len(made), unit_name="run") if verbose else None
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(rounds):
        for name, candidate in made.items():
            start = time.perf_counter()
            work.run(candidate)
            times[name].append(time.perf_counter() - start)
            if bar is not None:
                bar.add(1)
    return times


def _measured(work: Work, name: str, candidate: Task, whole: Task, times: list[float]) -> Measured:
    seconds = statistics.median(times)
    difference, agreement = work.compare(candidate, whole)
    memory = sum(_bytes(weight) for weight in candidate.weights)
    copies = 2 if name.endswith(PACKED) else 1
    return Measured(name, seconds, work.count / seconds, copies * memory, difference, agreement)


def _bytes(weight: keras.Variable) -> int:
    """Keras packs two numbers of int4 in an int8 itself."""
    dtype = keras.backend.standardize_dtype(weight.dtype)
    bits = 8 if dtype == "bool" else int("".join(filter(str.isdigit, dtype)))
    return math.prod(weight.shape) * bits // 8


def _fastest(table: Sequence[Measured], least: float) -> str:
    best = table[0]
    for row in table[1:]:
        if row.seconds is None or row.agreement < least:
            continue
        if row.seconds < _FASTER * best.seconds:
            best = row
    return best.mode
