"""Keras's verbs, on strings too: fit, evaluate, predict, and their steps on one batch."""

from typing import Any

import keras
import numpy as np

from keras_transformer.checking import check_seed
from keras_transformer.data import BucketedDataset
from keras_transformer.data.dataset import check_batch
from keras_transformer.distribution import DatasetShard
from keras_transformer.models.packed import PacksWeights
from keras_transformer.models.quantized import refuse_training
from keras_transformer.models.turns import changes, reads
from keras_transformer.tasks.explaining import Explains
from keras_transformer.tasks.inputs import (
    check_arrays,
    check_known,
    check_labels_given,
    checked_options,
    naming,
    split_rows,
)
from keras_transformer.tasks.streams import TextBatches

_WHOLE = {"batch_size": 2**31 - 1, "max_buckets": 1}  # all rows in one batch


class Verbs(Explains, PacksWeights):
    """Mixin of a task: Keras's verbs, which make data sets of strings, and `explain`."""

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
        **processing,
    ) -> keras.callbacks.History:
        """Trains, as `keras.Model.fit`, on strings too.

        What differs from Keras's arguments:
            x: strings, or what `data.read` makes, with `y` in it; a dict of arrays; or a dataset.
            y: labels, or target strings.
            validation_data: likewise, as `x` or `(x, y)`.
            sample_weight: one number a row.
            batch_tokens: int, about this many tokens a batch, in place of `batch_size`.
            seed: int, of the shuffling. Defaults to one drawn from NumPy, which
                `keras.utils.set_random_seed` seeds.
            processing: options of the task's processor: for texts `max_length`, the tokens that
                longer ones are cut to, and `pack_length`, as in `data.BucketedDataset`.
        """
        refuse_training(self)  # before texts are made arrays
        options = checked_options(
            {
                "epochs": epochs, "verbose": verbose, "callbacks": callbacks,
                "validation_split": validation_split, "class_weight": class_weight,
                "initial_epoch": initial_epoch, "steps_per_epoch": steps_per_epoch,
                "validation_steps": validation_steps, "validation_freq": validation_freq,
                "validation_batch_size": validation_batch_size,
            }
        )  # fmt: skip
        check_known(processing, self.processor_class.options)
        sizes = check_batch(batch_size, batch_tokens)
        drawn = {"shuffle": shuffle, "seed": check_seed("seed", seed, none=True)}
        x = self.processor_class.stream(self, x, batch_size, steps_per_epoch, **drawn, **processing)
        if self._takes(x):
            share = options.pop("validation_split")
            if share and validation_data is None:
                check_labels_given(self, x, y)
                (x, y, sample_weight), validation_data = split_rows(x, y, sample_weight, share)
            drawn["seed"] = int(np.random.randint(2**31)) if seed is None else drawn["seed"]
        elif batch_tokens is not None:
            raw = self.processor_class.raw
            raise ValueError(f"`batch_tokens` needs {raw}. Arrays and datasets have batches.")
        x, y, sample_weight = self._batches(x, y, sample_weight, processing, **sizes, **drawn)
        with naming("validation_data"):
            validation_data = self._validation(validation_data, options, batch_size, processing)
        options |= {"validation_data": validation_data, "sample_weight": sample_weight}
        return self._fit_batches(x, y, sizes["batch_size"], shuffle, **options)

    def _fit_batches(self, x, y, batch_size: int | None, shuffle: bool, **options):
        self._check_precision()
        if isinstance(x, BucketedDataset):
            self._check_training_set(x)
            batch_size = None
        if isinstance(x, (BucketedDataset, DatasetShard, TextBatches)):
            shuffle = False  # It shuffles by itself.
        self._expect("train", x)
        return super().fit(x, y, batch_size=batch_size, shuffle=shuffle, **options)

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
        """Loss and metrics, as `keras.Model.evaluate`, with the options of the processor too."""
        processing = {n: kwargs.pop(n) for n in self.processor_class.options if n in kwargs}
        options = {"verbose": verbose, "steps": steps, "callbacks": callbacks}
        options = checked_options({**options, "return_dict": return_dict, **kwargs})
        sizes = check_batch(batch_size)
        x = self.processor_class.stream(self, x, sizes["batch_size"], steps, **processing)
        x, y, sample_weight = self._batches(x, y, sample_weight, processing, **sizes)
        batch_size = None if isinstance(x, BucketedDataset) else sizes["batch_size"]
        self._expect("test", x)
        return super().evaluate(x, y, batch_size, sample_weight=sample_weight, **options)

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

        Those for the batches of `make_dataset` are in the order of its texts, except for `steps`,
        which ends before the last, and for packed texts.
        """
        options = checked_options({"verbose": verbose, "steps": steps, "callbacks": callbacks})
        sizes = check_batch(batch_size)
        x = self.processor_class.whole(self, x, options)
        if self._takes(x):
            if isinstance(x, str):
                raw = self.processor_class.raw
                raise ValueError(f"Give a list of {raw}: predict([text]), not predict(text).")
            x = self.make_dataset(x, **{"sizes": self._sizes, **self.predict_options}, **sizes)
        if not isinstance(x, BucketedDataset):
            x, _ = check_arrays(self, x, learns=False)
            self._expect("predict", x)
            return super().predict(x, batch_size=sizes["batch_size"], **options)
        if "max_buckets" in self.predict_options:
            x = x.of_one_length()
        restore = x.restoring()
        self._expect("predict", x)
        return restore(super().predict(x, **options))

    def _takes(self, x) -> bool:
        """Whether `x` is for the processor."""
        return self.processor_class.takes(x)

    def _batches(self, x, y, sample_weight, processing: dict, **options) -> tuple:
        """What Keras is given: batches of what the processor takes, anything else checked."""
        if self._takes(x):
            check_labels_given(self, x, y)
            return self.make_dataset(x, y, sample_weight, **options, **processing), None, None
        given = [name for name, value in processing.items() if value is not None]
        if given and not isinstance(x, TextBatches):
            raw = self.processor_class.raw
            raise ValueError(f"`{given[0]}` needs {raw}. Arrays and datasets have batches.")
        x, sample_weight = check_arrays(self, x, y, sample_weight)
        return x, y, sample_weight

    def _validation(self, data, options: dict, batch_size: int | None, processing: dict):
        """`validation_data` with strings made a dataset."""
        given = (options.get("validation_batch_size"), options.get("validation_steps"))
        if isinstance(data, tuple) and data:
            data = (self.processor_class.stream(self, data[0], *given, **processing), *data[1:])
        else:
            data = self.processor_class.stream(self, data, *given, **processing)
        if self._takes(data) and not isinstance(data, tuple):
            data = (data,)  # Texts that are their own targets.
        if data is None:
            return None
        parts = data if isinstance(data, tuple) else (data,)
        x, y, sample_weight = (*parts, None, None, None)[:3]
        if not self._takes(x):
            made, targets, weights = self._batches(x, y, sample_weight, {})
            return data if made is data else (made, targets, weights)
        size = options.pop("validation_batch_size") or batch_size
        return self._batches(x, y, sample_weight, processing, **check_batch(size))[0]

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
        x, y, sample_weight = self._one_batch(x, y, sample_weight, learns=True)
        self._expect("train", x, is_batch=True)
        return super().train_on_batch(x, y, sample_weight, class_weight, return_dict)

    def test_on_batch(self, x, y=None, sample_weight=None, return_dict: bool = False):
        """Loss and metrics of one batch, as `keras.Model.test_on_batch`, on strings too."""
        x, y, sample_weight = self._one_batch(x, y, sample_weight)
        self._expect("test", x, is_batch=True)
        return super().test_on_batch(x, y, sample_weight, return_dict)

    def predict_on_batch(self, x):
        """Outputs for one batch, as `keras.Model.predict_on_batch`, on strings too."""
        if not self._takes(x):
            self._expect("predict", x, is_batch=True)
            return super().predict_on_batch(x)
        dataset = self.make_dataset(x, **{**self.predict_options, **_WHOLE})
        batch = dataset[0][0]
        self._expect("predict", batch, is_batch=True)
        return dataset.restoring()(super().predict_on_batch(batch))

    def _one_batch(self, x, y, sample_weight, learns: bool = False) -> tuple:
        """Inputs, targets and weights of a batch, checked; of strings made here."""
        # The seed is of what is drawn of the rows, if anything is.
        drawn = {"shuffle": True, "seed": int(np.random.randint(2**31))} if learns else {}
        made = self._batches(x, y, sample_weight, {}, **drawn, **_WHOLE)
        return keras.utils.unpack_x_y_sample_weight(made[0][0]) if self._takes(x) else made
