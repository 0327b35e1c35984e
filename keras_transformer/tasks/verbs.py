"""Keras's verbs, of strings too: fit, evaluate, predict, and their steps on one batch."""

from typing import Any

import keras
import numpy as np

from keras_transformer.checking import check_seed
from keras_transformer.data import BucketedDataset
from keras_transformer.distribution import DatasetShard
from keras_transformer.models.turns import changes, reads
from keras_transformer.tasks.inputs import (
    batching,
    check_arrays,
    check_labels_given,
    checked_options,
    is_text,
    naming,
    split_rows,
)
from keras_transformer.tasks.streams import TextBatches, held, held_texts


class Verbs:
    """The verbs of a task, which makes data sets of strings, and hands on what Keras takes."""

    @changes
    def fit(
        self,
        x=None,
        y=None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int | str = "auto",
        callbacks=None,
        validation_split: float = 0.0,
        validation_data=None,
        shuffle: bool = True,
        class_weight: dict[int, float] | None = None,
        sample_weight=None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq=1,
        *,
        batch_tokens: int | None = None,
        seed: int | None = None,
    ) -> keras.callbacks.History:
        """Trains, as `keras.Model.fit`, whose arguments these are; two more are behind them.

        Args:
            x: strings; or what `data.read` makes, with the labels or targets in it; or as in
                Keras.
            y: their labels or target strings; or as in Keras.
            batch_size: int, rows of a batch. Defaults to 32.
            epochs: int, passes over the data.
            verbose: as in Keras.
            callbacks: list of `keras.callbacks.Callback`.
            validation_split: float, this share of the rows, the last ones, is for validation.
            validation_data: `(x, y)` as above, what `data.read` makes, or as in Keras.
            shuffle: bool, new batches every epoch.
            class_weight: dict of the number of a class to its weight.
            sample_weight: one number a row.
            initial_epoch: int, the epoch to go on from.
            steps_per_epoch: int, ends an epoch earlier.
            validation_steps: int, likewise.
            validation_batch_size: int. Defaults to `batch_size`.
            validation_freq: int, or list of ints, after which epochs to validate.
            batch_tokens: int, in place of `batch_size`: about this many tokens a batch.
            seed: int, of the shuffling. Defaults to one drawn from NumPy, which
                `keras.utils.set_random_seed` seeds.

        Returns:
            The `History`.
        """
        options = checked_options(
            {
                "epochs": epochs, "verbose": verbose, "callbacks": callbacks,
                "validation_split": validation_split, "class_weight": class_weight,
                "initial_epoch": initial_epoch, "steps_per_epoch": steps_per_epoch,
                "validation_steps": validation_steps, "validation_freq": validation_freq,
                "validation_batch_size": validation_batch_size,
            }
        )  # fmt: skip
        sizes = batching(batch_size, batch_tokens)
        seed = check_seed("seed", seed, none=True)
        x = held(self, x, sizes["batch_size"], steps_per_epoch, shuffle=shuffle, seed=seed)
        if is_text(x):
            check_labels_given(self, x, y)
            share = options.pop("validation_split")
            if share and validation_data is None:
                (x, y, sample_weight), validation_data = split_rows(x, y, sample_weight, share)
            seed = int(np.random.randint(2**31)) if seed is None else seed
            x = self.make_dataset(x, y, sample_weight, shuffle=shuffle, seed=seed, **sizes)
            y = sample_weight = sizes["batch_size"] = None
        elif batch_tokens is not None:
            raise ValueError("`batch_tokens` needs strings. Arrays and datasets have batches.")
        x, sample_weight = check_arrays(self, x, y, sample_weight)
        self._check_precision()
        with naming("validation_data"):
            validation_data = self._validation(validation_data, options, batch_size)
        if isinstance(x, (BucketedDataset, DatasetShard, TextBatches)):
            shuffle = False  # It shuffles by itself.
        if isinstance(x, BucketedDataset):
            self._check_training_set(x)
        with self._goes_through(x):
            return super().fit(
                x, y, batch_size=sizes["batch_size"], validation_data=validation_data,
                sample_weight=sample_weight, shuffle=shuffle, **options,
            )  # fmt: skip

    @reads
    def evaluate(
        self,
        x=None,
        y=None,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        sample_weight=None,
        steps: int | None = None,
        callbacks=None,
        return_dict: bool = False,
        **kwargs,
    ) -> Any:
        """Loss and metrics, as `keras.Model.evaluate`, on strings too."""
        options = {"verbose": verbose, "steps": steps, "callbacks": callbacks}
        options = checked_options({**options, "return_dict": return_dict, **kwargs})
        sizes = batching(batch_size)
        x = held(self, x, sizes["batch_size"], steps)
        if is_text(x):
            check_labels_given(self, x, y)
            x = self.make_dataset(x, y, sample_weight, **sizes)
            y = sample_weight = sizes["batch_size"] = None
        x, sample_weight = check_arrays(self, x, y, sample_weight)
        with self._goes_through(x):
            return super().evaluate(
                x, y, batch_size=sizes["batch_size"], sample_weight=sample_weight, **options
            )

    @reads
    def predict(
        self,
        x,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        steps: int | None = None,
        callbacks=None,
    ) -> np.ndarray:
        """Outputs in the order of the input, as `keras.Model.predict`, on strings too.

        Those for the batches of `make_dataset` are in the order of its texts, but for `steps`,
        which ends before the last, and for packed texts.
        """
        options = checked_options({"verbose": verbose, "steps": steps, "callbacks": callbacks})
        sizes = batching(batch_size)
        x = held_texts(x, options)
        if is_text(x):
            if isinstance(x, str):
                raise ValueError("Give a list of strings: predict([text]), not predict(text).")
            x = self.make_dataset(x, **{"sizes": self._sizes, **self.predict_options}, **sizes)
        if not isinstance(x, BucketedDataset):
            x, _ = check_arrays(self, x, learns=False)
            return super().predict(x, batch_size=sizes["batch_size"], **options)
        if "max_buckets" in self.predict_options:
            x = x.of_one_length()
        restore = x.restoring()
        return restore(super().predict(x, **options))

    def _validation(self, data, options: dict, batch_size: int | None):
        """`validation_data` with strings made a dataset."""
        given = (options.get("validation_batch_size"), options.get("validation_steps"))
        if isinstance(data, tuple) and data:
            data = (held(self, data[0], *given), *data[1:])
        else:
            data = held(self, data, *given)
        if is_text(data) and not isinstance(data, tuple):
            data = (data,)  # Texts that are their own targets.
        if isinstance(data, tuple) and data and is_text(data[0]):
            x, y, sample_weight = (*data, None, None)[:3]
            check_labels_given(self, x, y)
            size = options.pop("validation_batch_size") or batch_size
            return self.make_dataset(x, y, sample_weight, **batching(size))
        if data is None:
            return None
        parts = data if isinstance(data, tuple) else (data,)
        x, y, sample_weight = (*parts, None, None, None)[:3]
        x, sample_weight = check_arrays(self, x, y, sample_weight)
        return data if x is data else (x, y, sample_weight)

    def _check_precision(self) -> None:
        """ValueError for weights and an optimizer that would not change them."""
        dtype = self.dtype_policy.variable_dtype
        beta = getattr(self.optimizer, "beta_2", None)
        if dtype == "bfloat16" and beta is not None and beta > 1 - 2**-9:
            raise ValueError(
                f"In {dtype}, {beta} (`beta_2` of {type(self.optimizer).__name__}) is 1, and no "
                'weight would change. Load the model with dtype="mixed_bfloat16", which keeps '
                "float32 weights and computes in bfloat16."
            )

    def train_on_batch(
        self, x, y=None, sample_weight=None, class_weight=None, return_dict: bool = False
    ):
        """One step, as `keras.Model.train_on_batch`, on strings too."""
        if is_text(x):
            check_labels_given(self, x, y)
            seed = int(np.random.randint(2**31))  # of what is drawn of the texts, if anything is
            dataset = self._one_batch(x, y, sample_weight, shuffle=True, seed=seed)
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(dataset[0])
        else:
            x, sample_weight = check_arrays(self, x, y, sample_weight)
        return super().train_on_batch(x, y, sample_weight, class_weight, return_dict)

    def test_on_batch(self, x, y=None, sample_weight=None, return_dict: bool = False):
        """Loss and metrics of one batch, as `keras.Model.test_on_batch`, on strings too."""
        if is_text(x):
            check_labels_given(self, x, y)
            dataset = self._one_batch(x, y, sample_weight)
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(dataset[0])
        else:
            x, sample_weight = check_arrays(self, x, y, sample_weight)
        return super().test_on_batch(x, y, sample_weight, return_dict)

    def predict_on_batch(self, x):
        """Outputs for one batch, as `keras.Model.predict_on_batch`, on strings too."""
        if not is_text(x):
            return super().predict_on_batch(x)
        dataset = self._one_batch(x, **self.predict_options)
        restore = dataset.restoring()
        return restore(super().predict_on_batch(dataset[0][0]))

    def _one_batch(self, *data, **options) -> BucketedDataset:
        """Strings as one batch."""
        return self.make_dataset(*data, **{**options, "batch_size": 2**31 - 1, "max_buckets": 1})
