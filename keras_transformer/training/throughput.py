"""How fast a run is, absolutely and as a share of what the device can do."""

import time

import keras
from keras import ops

from keras_transformer.checking import check_int, check_number, describe
from keras_transformer.planning.flops import flops_per_sequence


class Throughput(keras.callbacks.Callback):
    """Adds the speed of training to the logs of each epoch.

    `tokens_per_second` and `texts_per_second` count real tokens, of translations source and target.
    `padding_share` is the share of padding among the positions of the batches. The time is that of
    the training steps: compilation counts, validation does not. With `peak_flops`,
    `model_flop_utilization` is the share of it that the matrix products of one forward and one
    backward pass over the real tokens take at this speed, whatever else is computed.

    Args:
        dataset: the `BucketedDataset` that is trained on.
        peak_flops: float, operations a second that all devices of the run can do; `"measured"`
            for `matmul_flops_per_second` as the training begins; None for no utilization.

    Raises:
        ValueError: for another `peak_flops`; from `fit` for a utilization of a model that has no
            `TransformerConfig`.

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
                hint='It is operations a second; "measured" measures them.',
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
            raise ValueError("The utilization is counted for a task with a backbone of a config.")
        if self.peak_flops == "measured":
            self.peak_flops = matmul_flops_per_second(self.model.compute_dtype)
        # The mean over rows: what grows with the square of a length is a few percent.
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
        # A run that was resumed within an epoch has the rest of it.
        share = self._steps / self.dataset.batches_per_epoch
        logs["tokens_per_second"] = share * self.dataset.tokens_per_epoch / seconds
        logs["texts_per_second"] = share * self.dataset.num_rows / seconds
        logs["padding_share"] = self.dataset.padding_share
        if self.peak_flops is not None:
            logs["model_flop_utilization"] = share * self._flops / seconds / self.peak_flops


def matmul_flops_per_second(dtype: str = "float32", size: int = 2048, rounds: int = 5) -> float:
    """The operations a second of a device in a large matrix product: the most a model can reach.

    Args:
        dtype: str, of the matrices.
        size: int, rows and columns of both.
        rounds: int, products that are timed, the quickest of which counts.

    Returns:
        Operations a second, a multiplication and an addition being two.

    Example:
    ```python
    from keras_transformer.training import matmul_flops_per_second

    assert matmul_flops_per_second(size=256) > 1e8
    ```
    """
    if not isinstance(dtype, str):
        raise ValueError(f"`dtype` must be the name of one, received {describe(dtype)}.")
    size = check_int("size", size, at_least=1, at_most=2**16)
    rounds = check_int("rounds", rounds, at_least=1, at_most=1000)
    x = ops.cast(keras.random.normal((size, size), seed=0), dtype)

    def seconds():
        begin = time.perf_counter()
        # One number comes back, for which the whole product is needed.
        float(ops.sum(ops.matmul(x, x)))
        return time.perf_counter() - begin

    seconds()
    return 2 * size**3 / min(seconds() for _ in range(rounds))
