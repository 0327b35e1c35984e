"""Shared parts of the workloads of `training.py`: timed passes over batches; operation counts."""

import dataclasses
import pathlib
import time
from collections.abc import Callable

import numpy as np
from harness import backend_of, has_bfloat16, has_gpu, median_seconds, use_threads_of_torch
from peak import gflops

# Weights and optimizer in float32, products in bfloat16. Not all of it in "bfloat16": Adam's 0.999
# is 1 there, and Keras's optimizers then change no weight at all.
MIXED = "mixed_bfloat16"


@dataclasses.dataclass(frozen=True)
class Setting:
    """Settings for the process of one contender."""

    name: str  # of the contender: the library, MIXED unless float32, a backend if any
    short: bool = False  # tiny sizes
    gpu: bool = False
    texts: int | None = None  # number of texts of SST-2; None means all
    folder: pathlib.Path | None = None  # where the batches of the translator are

    @property
    def precision(self) -> str:
        return precision_of(self.name)

    @property
    def device(self) -> str:
        """PyTorch's name for it. A short run of the GPU's workload takes what there is."""
        return "cuda" if self.gpu and has_gpu("torch") else "cpu"


def precision_of(name: str) -> str:
    return MIXED if MIXED in name.split("-") else "float32"


def prepare(setting: Setting) -> None:
    """Threads, random numbers, and on a GPU that the library does have it."""
    backend = backend_of(setting.name) or "torch"
    if backend == "torch":
        import torch

        use_threads_of_torch()
        torch.manual_seed(0)
    if setting.gpu and not setting.short and not has_gpu(backend):
        raise SystemExit(f"{backend} finds no GPU: install it with CUDA, or leave {setting.name}.")
    if backend_of(setting.name) is not None:
        import keras

        keras.utils.set_random_seed(0)


def keras_pass(model, batches: list) -> Callable:
    """Return a pass over the batches by `fit`, for `measure_passes`."""
    import keras

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return len(batches)

        def __getitem__(self, index):
            return batches[index]

    dataset = Batches()

    def run(note: list | None = None) -> float:
        callbacks = []
        if note is not None:
            # Keras gives the mean so far, so the first one is the loss of the first batch.
            callback = keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda _, logs: note.append(float(logs["loss"]))
            )
            callbacks.append(callback)
        fitted = model.fit(dataset, epochs=1, shuffle=False, verbose=0, callbacks=callbacks)
        return fitted.history["loss"][0]

    return run


def torch_pass(loss_of: Callable, model, optimizer, batches: list) -> Callable:
    """Return a pass over the batches by a plain loop, which fetches the losses at its end."""
    import torch

    def run(note: list | None = None) -> float:
        losses = []
        for batch in batches:
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        losses = torch.stack(losses).tolist()
        if note is not None:
            note += losses
        return float(np.mean(losses))

    return run


def measure_passes(run: Callable, amount: float, measure: str, runs: int = 3) -> list:
    """Units a second of a pass, compiled before; the losses, and the seconds of the first pass.

    Args:
        run: makes a pass and returns the mean loss; notes losses in a list that it is given.
        amount: units in a pass.
        measure: what it is called.
        runs: passes of which the median counts.
    """
    first, last, start = [], [], time.perf_counter()
    run(first)
    compiling = time.perf_counter() - start
    seconds = median_seconds(lambda: last.append(run()), runs=runs, warmup=0)
    return [
        (measure, amount / seconds),
        (f"first loss, {measure}", first[0]),
        (f"last loss, {measure}", last[-1]),
        (f"s of the first pass, {measure}", compiling),
    ]


def measure_peak(setting: Setting) -> float:
    """Return GFLOP/s of a large product in this process, in the contender's precision."""
    size = 256 if setting.short else 8192 if setting.gpu else 2048
    reduced = setting.precision == MIXED and (setting.gpu or has_bfloat16())
    return gflops(size, "bfloat16" if reduced else "float32")


# Floating-point operations of matrix products, two for each multiplication with its addition, as
# the papers count: nothing else of a model counts, and of a causal attention all. Padding does not
# count either: it is waste. `lengths` are those of the rows.


def encoder_flops(lengths, layers: int, width: int, inner: int) -> float:
    """Operations of a forward pass: query, key, value, output, two of feed-forward; attention."""
    lengths = np.asarray(lengths, "float64")
    of_tokens = 2 * (4 * width**2 + 2 * width * inner) * lengths
    return layers * float((of_tokens + 4 * width * lengths**2).sum())


def cross_attention_flops(lengths, sources, layers: int, width: int) -> float:
    """Operations of a decoder's forward pass: query, output of targets, key, value of sources."""
    lengths, sources = np.asarray(lengths, "float64"), np.asarray(sources, "float64")
    of_tokens = 2 * 2 * width**2 * (lengths + sources)
    return layers * float((of_tokens + 4 * width * lengths * sources).sum())


def projection_flops(lengths, width: int, vocabulary: int) -> float:
    """Operations of a forward pass: the logits."""
    return 2.0 * width * vocabulary * float(np.sum(lengths))


def training_flops(forward: float) -> float:
    """Backward each product is two: for its inputs, and for its weights."""
    return 3 * forward
