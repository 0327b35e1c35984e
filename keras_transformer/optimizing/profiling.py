"""Profiling of a task: a few steps on random data, under the profiler of the backend."""

import functools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.generation.rules.rules import Rules
from keras_transformer.kernels.device import device
from keras_transformer.kernels.profiling import Operation, finish, traced
from keras_transformer.optimizing.work import random_tokens
from keras_transformer.support.checking import check_choice, check_int
from keras_transformer.tasks import (
    CausalLM,
    ImageClassifier,
    MaskedLM,
    QuestionAnswerer,
    Seq2SeqLM,
    Task,
    TextClassifier,
    TextEmbedder,
    TokenClassifier,
)

WORK = ("fit", "predict", "encode", "generate")
# Warm-up steps of `fit` by kind of device. On a GPU, PyTorch runs compiled steps from the 13th on,
# see `kernels.torch_tracing.step`; otherwise the first steps compile.
_WARMING = {"cuda": 16, "cpu": 2}
_DEAREST = 10


class Profile(NamedTuple):
    """Speed of a few steps, and the operations that take most of their time.

    Fields:
        what: str, one of `WORK`.
        device: str, backend and kind of device, such as `"torch on cpu"`.
        steps: int, number of traced steps.
        seconds: float, seconds per step without the profiler.
        rows: int, rows per step.
        operations: list of `kernels.profiling.Operation`, the most expensive first.
        launches: float, kernels and graphs of kernels launched on the device per step; None if the
            profiler does not report them.
        waits: float, how often the host waited for the device per step; None if the profiler does
            not report it.
        file: path of the trace, which https://ui.perfetto.dev or TensorBoard opens.
    """

    what: str
    device: str
    steps: int
    seconds: float
    rows: int
    operations: list[Operation]
    launches: float | None
    waits: float | None
    file: Path

    def __str__(self) -> str:
        step = {"generate": "token"}.get(self.what, "step")
        known = [
            f"{count:.4g} {name} a {step}"
            for count, name in ((self.launches, "launches"), (self.waits, "waits of the host"))
            if count is not None
        ]
        total = sum(each.seconds for each in self.operations)
        lines = [
            f"{self.what}: {self.device}, {self.rows} rows",
            f"{1 / self.seconds:.4g} {step}s/s, {1e3 * self.seconds:.4g} ms a {step}"
            + "".join(f", {each}" for each in known),
            "",
            f"{'ms a ' + step:>10}  {'share':>6}  {'calls':>8}  operation",
        ]
        for each in self.operations[:_DEAREST]:
            share = each.seconds / total if total else 0.0
            milliseconds = 1e3 * each.seconds / self.steps
            count = each.count / self.steps
            lines.append(f"{milliseconds:10.3f}  {share:6.1%}  {count:8.4g}  {each.name[:70]}")
        return "\n".join([*lines, "", f"trace: {self.file}"])


def profile(
    task: Task,
    folder: str | os.PathLike,
    what: str = "fit",
    batch_size: int = 8,
    length: int | None = None,
    steps: int = 10,
) -> Profile:
    """Profile a few steps of a task on random data: their speed, and the operations in them.

    The steps run three times: to compile, to be timed, and under the profiler.

    Args:
        task: a task of texts or images.
        folder: str or path, the folder for the trace, made if missing.
        what: str, the work of a step: `"fit"`, which changes the weights of the task, `"predict"`,
            `"encode"` (for a TextEmbedder with a tokenizer), or `"generate"` (greedy; a step
            generates one token of each row).
        batch_size: int, rows per step.
        length: int, tokens of a row or of a prompt. Defaults to 64, or to the model's limit if that
            is less.
        steps: int, number of steps that are timed, and then traced.

    Returns:
        `Profile`, which prints as a table.

    Raises:
        ValueError: if the task does not do this work, or the model does not take as many tokens.
        OSError: if the folder cannot be written to.

    Example:
    ```python
    import tempfile
    import keras_transformer as kt
    from keras_transformer.optimizing.profiling import profile

    embedder = kt.TextEmbedder.from_preset("minilm_l6_en")
    with tempfile.TemporaryDirectory() as folder:
        seen = profile(embedder, folder, "encode", batch_size=2, length=8, steps=2)
    assert seen.operations[0].seconds >= seen.operations[1].seconds
    ```
    """
    check_choice("what", what, WORK)
    batch_size = check_int("batch_size", batch_size, at_least=1)
    steps = check_int("steps", steps, at_least=1)
    run = steps_of(task, what, batch_size, length, steps)
    folder = writable(folder)
    run(_WARMING.get(device().kind, 2) if what == "fit" else steps)
    begin = time.perf_counter()
    run(steps)
    seconds = (time.perf_counter() - begin) / steps
    trace = traced(lambda: run(steps), folder)
    launches, waits = (None if n is None else n / steps for n in (trace.launches, trace.waits))
    found = (trace.operations, launches, waits, trace.file)
    return Profile(what, str(device()), steps, seconds, batch_size, *found)


def writable(folder: str | os.PathLike) -> Path:
    """Return a folder, made if missing. Raises OSError if it cannot be written to."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(f"{str(folder)!r} is a file: name a folder.") from error
    except OSError as error:
        raise type(error)(f"The folder {str(folder)!r} could not be made: {error}.") from error
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"Nothing can be written to the folder {str(folder)!r}.")
    return folder


def steps_of(
    task: Task, what: str, rows: int, length: int | None, most: int
) -> Callable[[int], None]:
    """Return a function that runs a number of steps; for `"generate"` it can run up to `most`."""
    if what == "generate":
        return _generates(task, rows, length, most)
    if what == "encode":
        return _encodes(task, rows, length)
    x, y = _arrays(task, rows, length)

    @functools.cache
    def several(steps: int) -> tuple[dict, np.ndarray]:
        many = {name: np.concatenate([array] * steps) for name, array in x.items()}
        return many, np.concatenate([y] * steps)

    def run(steps: int) -> None:
        inputs, targets = several(steps)
        if what == "predict":
            task.predict(inputs, batch_size=rows, verbose=0)
        else:
            task.fit(inputs, targets, batch_size=rows, shuffle=False, verbose=0)
            finish(task.optimizer.iterations.value)

    return run


def _generates(task: Task, rows: int, length: int | None, most: int) -> Callable[[int], None]:
    if not isinstance(task, CausalLM | Seq2SeqLM):
        raise ValueError(
            f"A {type(task).__name__} does not generate from tokens: give a CausalLM or a "
            "Seq2SeqLM, or other work."
        )
    prompts = random_tokens(task, rows, length, most).tolist()

    def run(steps: int) -> None:
        rules = Rules(min_new_tokens=steps)
        task.generate(prompts, max_new_tokens=steps, sampler="greedy", rules=rules, batch_size=rows)

    return run


def _encodes(task: Task, rows: int, length: int | None) -> Callable[[int], None]:
    if not isinstance(task, TextEmbedder) or task.tokenizer is None:
        raise ValueError(
            "`encode` needs a TextEmbedder with a tokenizer, received a "
            f"{type(task).__name__}{' without one' if isinstance(task, TextEmbedder) else ''}. "
            'Use "predict", which takes random tokens.'
        )
    ids = random_tokens(task, rows, length, 0)
    texts = [task.tokenizer.decode(row.tolist()) or "a" for row in ids]

    def run(steps: int) -> None:
        task.encode(texts * steps, batch_size=rows)

    return run


def _arrays(task: Task, rows: int, length: int | None) -> tuple[dict[str, Any], np.ndarray]:
    """Return random inputs and targets of one batch, as `fit` takes them."""
    maker = next((make for kind, make in _MAKERS.items() if isinstance(task, kind)), None)
    if maker is None or task.input_adapter is not None:
        known = ", ".join(kind.__name__ for kind in _MAKERS)
        raise ValueError(
            f"`profile` has data for {known}, received a {type(task).__name__}: use "
            "kernels.profiling.traced around your own steps."
        )
    return maker(task, rows, length)


def _tokens(task: Task, rows: int, length: int | None) -> dict[str, np.ndarray]:
    ids = random_tokens(task, rows, length, 0)
    found: dict[str, np.ndarray] = {}
    for name in task.backbone.id_inputs:
        found[name] = ids
        found[name.replace("token_ids", "padding_mask")] = np.ones(ids.shape, "bool")
    return found


def _pairs_of_texts(task: TextEmbedder, rows: int, length: int | None):
    x = {n: np.stack([array, array], axis=1) for n, array in _tokens(task, rows, length).items()}
    return x, np.ones(rows, "float32")


def _masked(task: MaskedLM, rows: int, length: int | None):
    x = _tokens(task, rows, length)
    size = x["token_ids"].shape[1]
    places = np.arange(0, size, max(1, size // max(1, round(0.15 * size))))
    x["mask_positions"] = np.tile(places, (rows, 1)).astype("int32")
    return x, x["token_ids"][:, places]


def _of_language(task: CausalLM | Seq2SeqLM, rows: int, length: int | None):
    x = _tokens(task, rows, length)
    return x, x[task.backbone.id_inputs[-1]]


def _of_tokens(task: TokenClassifier, rows: int, length: int | None):
    x = _tokens(task, rows, length)
    return x, np.zeros(x["token_ids"].shape, "int32")


def _spans(task: QuestionAnswerer, rows: int, length: int | None):
    return _tokens(task, rows, length), np.zeros((rows, 2), "int32")


def _of_rows(task: TextClassifier | ImageClassifier, rows: int) -> np.ndarray:
    if task.is_regression:
        return np.zeros(rows, "float32")
    if task.multi_label:
        return np.zeros((rows, task.num_classes), "float32")
    return np.arange(rows, dtype="int32") % task.num_classes


def _classified_texts(task: TextClassifier, rows: int, length: int | None):
    return _tokens(task, rows, length), _of_rows(task, rows)


def _pictures(task: Task, rows: int, length: int | None) -> dict[str, np.ndarray]:
    stem = task.backbone.config.stem
    shape: Sequence[int] = (rows, *stem.image_size, stem.num_channels)
    return {"images": np.random.default_rng(0).random(shape, dtype="float32")}


def _classified_images(task: ImageClassifier, rows: int, length: int | None):
    return _pictures(task, rows, length), _of_rows(task, rows)


_MAKERS: dict[type[Task], Callable] = {
    TextClassifier: _classified_texts,
    TextEmbedder: _pairs_of_texts,
    TokenClassifier: _of_tokens,
    QuestionAnswerer: _spans,
    MaskedLM: _masked,
    CausalLM: _of_language,
    Seq2SeqLM: _of_language,
    ImageClassifier: _classified_images,
}
