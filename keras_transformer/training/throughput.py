"""Training speed, absolute and relative to the device's peak."""

import time

import keras
from keras import ops

from keras_transformer.planning.flops import flops_per_sequence
from keras_transformer.support.checking import check_int, check_number, describe


class Throughput(keras.callbacks.Callback):
    """Adds the speed of training to the logs of each epoch.

    `tokens_per_second` and `texts_per_second` count real tokens, of both source and target in
    translation. `padding_share` is the share of padding among the positions of the batches. The
    measured time includes training steps and their compilation, but not validation. With
    `peak_flops`, `model_flop_utilization` is the share of the peak that the matrix products of one
    forward and one backward pass over the real tokens use at this speed, whatever else is computed.

    Args:
        dataset: the `BucketedDataset` that is trained on.
        peak_flops: float, operations per second of all devices of the run together; `"measured"`
            runs `matmul_flops_per_second` when training begins. None disables the utilization.

    Raises:
        ValueError: if `peak_flops` is invalid; from `fit`, if the model has no
            `TransformerConfig` to compute a utilization from.

    Example:
    ```python
    import keras_transformer as kt

    classifier = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
    dataset = classifier.make_dataset(["a warm film", "dull"] * 4, [1, 0] * 4, shuffle=True)
    speed = kt.training.Throughput(dataset, peak_flops=1e14)
    logs = classifier.fit(dataset, verbose=0, callbacks=[speed]).history
    assert logs["tokens_per_second"][0] > 0 and 0 < logs["model_flop_utilization"][0] < 1
    assert 0 < logs["padding_share"][0] < 1
    ```

    Source: Chowdhery et al. 2022, "PaLM", section 4.1 and appendix B.
    """

    def __init__(self, dataset, peak_flops: float | str | None = None):
        super().__init__()
        if not isinstance(peak_flops, str) or peak_flops != "measured":
            peak_flops = check_number(
                "peak_flops", peak_flops, above=0, none=True,
                hint='Or give "measured", to measure the operations per second.',
            )  # fmt: skip
        if not hasattr(dataset, "tokens_per_epoch"):
            raise ValueError(
                f"`dataset` must be the BucketedDataset that is trained on, received "
                f"{describe(dataset)}."
            )
        self.dataset = dataset
        self.peak_flops = peak_flops

    def on_train_begin(self, logs=None):
        if self.peak_flops is None:
            return
        config = getattr(getattr(self.model, "backbone", None), "config", None)
        if config is None:
            raise ValueError("`peak_flops` needs a task whose backbone has a config. Leave it out.")
        if self.peak_flops == "measured":
            self.peak_flops = matmul_flops_per_second(self.model.compute_dtype)
        # Uses mean lengths: terms with the square of a length are a few percent.
        source, *target = (max(1, round(length)) for length in self.dataset.mean_lengths)
        hidden = getattr(self.model, "mask_rate", None)
        self._flops = self.dataset.num_rows * flops_per_sequence(
            config,
            source,
            target_length=target[0] if target else None,
            predicted_tokens=None if hidden is None else max(1, round(hidden * source)),
            first_only=getattr(self.model, "first_only", False),
        )

    def on_epoch_begin(self, epoch, logs=None):
        self._begin = self._end = time.perf_counter()
        self._steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self._end = time.perf_counter()
        self._steps = batch + 1

    def on_epoch_end(self, epoch, logs=None):
        seconds = self._end - self._begin
        if logs is None or seconds <= 0:
            return
        # A run resumed within an epoch has only the rest of it.
        share = self._steps / self.dataset.batches_per_epoch
        logs["tokens_per_second"] = share * self.dataset.tokens_per_epoch / seconds
        logs["texts_per_second"] = share * self.dataset.num_rows / seconds
        logs["padding_share"] = self.dataset.padding_share
        if self.peak_flops is not None:
            logs["model_flop_utilization"] = share * self._flops / seconds / self.peak_flops


def matmul_flops_per_second(dtype: str = "float32", size: int = 2048, rounds: int = 5) -> float:
    """Measure operations per second of a large matrix product: the most that a model can reach.

    Args:
        dtype: str, dtype of the matrices.
        size: int, number of rows and columns of both matrices.
        rounds: int, number of timed products, the fastest of which counts.

    Returns:
        Operations per second, counting a multiplication and an addition as two.

    Example:
    ```python
    from keras_transformer.training import matmul_flops_per_second

    assert matmul_flops_per_second(size=256) > 1e8
    ```
    """
    if not isinstance(dtype, str):
        raise ValueError(f"`dtype` must be the name of a dtype, received {describe(dtype)}.")
    size = check_int("size", size, at_least=1, at_most=2**16)
    rounds = check_int("rounds", rounds, at_least=1, at_most=1000)
    x = ops.cast(keras.random.normal((size, size), seed=0), dtype)

    def seconds():
        begin = time.perf_counter()
        # Fetch one number that depends on the whole product.
        float(ops.sum(ops.matmul(x, x)))
        return time.perf_counter() - begin

    seconds()
    return 2 * size**3 / min(seconds() for _ in range(rounds))
