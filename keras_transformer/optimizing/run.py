"""Measure the modes of a task and choose the fastest."""

import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

import keras

from keras_transformer.models.runtime.quantized import refuse_quantized
from keras_transformer.optimizing.modes import MODES, PACKED, make
from keras_transformer.optimizing.result import Measured, Optimized
from keras_transformer.optimizing.work import Work, work_of
from keras_transformer.support.checking import (
    check_choice,
    check_flag,
    check_int,
    check_number,
    describe,
    shorten,
)
from keras_transformer.tasks import Task
from keras_transformer.training import lora

# A mode counts as faster if it takes less than this share of another's time, to ignore noise.
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
    """Return the task in the dtype that is measured to be fastest on this machine and backend.

    Each mode is run once to compile, and then `rounds` times in turn with the others, so that load
    from other programs affects all modes equally. A task that generates is timed in greedy
    generation, any other task in `predict`. The mode with the smallest median time is chosen, but a
    later mode in `MODES` only if it takes 5 % less time than the modes before it.

    The given task is not changed. Copies of the task are in memory meanwhile: together three
    quarters of its own size for bfloat16 and int8.

    Args:
        task: a task in float32, before `quantize`. If it generates, it must read tokens.
        x: input to measure, as for `predict` or `generate`: texts, ids or arrays. Defaults to one
            batch of random tokens. The measured changes of outputs are meaningful only if `x` is
            realistic.
        batch_size: int, rows in a batch.
        length: int, tokens in a random row, or in a prompt. Defaults to 64, or to the model's limit
            if that is less.
        new_tokens: int, tokens to generate for each row, if the task generates.
        modes: list of names in `MODES` to choose among; float32 is always measured, as the
            reference. Defaults to all.
        least_agreement: float from 0 to 1. Modes that agree less with float32 are not chosen, see
            `agreement` of `Measured`.
        rounds: int, how often each mode is measured.
        verbose: bool, whether to show a progress bar and print the result.

    Returns:
        `Optimized`: the task in its fastest mode, the mode's name, and all measurements.

    Raises:
        ValueError: if the task is not in float32, is quantized or has adapters; if a mode is
            unknown or a size invalid; or if the task does not read tokens and `x` is not given.

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
    """Raise ValueError if `task` is not a task in float32 without quantization and adapters."""
    if not isinstance(task, Task):
        raise ValueError(f"`task` must be a task, received {describe(task)}.")
    refuse_quantized(task, "give `optimize` the task before `quantize`")
    if lora.is_adapted(task.backbone):
        raise ValueError("The task has adapters. Call `merge_lora` before `optimize`.")
    policy = task.dtype_policy
    if (policy.compute_dtype, policy.variable_dtype) != ("float32", "float32"):
        raise ValueError(
            f"`task` must be in float32, with which the other modes are compared, received one in "
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
    """Return a task for each mode that works, run once, and reasons why other modes do not work."""
    made, reasons = {"float32": task}, {}
    work.run(task)
    for name in names[1:]:
        try:
            candidate = make(task, name, made)
            work.run(candidate)
        except (ValueError, NotImplementedError, RuntimeError, TypeError) as error:
            # The first line of a backend's error says what is missing; the rest is a stack trace.
            reasons[name] = str(error).strip().splitlines()[0] if str(error) else repr(error)
        else:
            made[name] = candidate
    return made, reasons


def _times(made: dict[str, Task], work: Work, rounds: int, verbose: bool) -> dict[str, list]:
    """Return the seconds of each round of each mode."""
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
    """Return the bytes of a weight. Quantized int4 weights are int8 variables of half the size."""
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
