"""Keras's verbs, on strings too: fit, evaluate, predict, and their steps on one batch."""

import contextlib
from collections.abc import Iterator, Mapping
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
from keras_transformer.tasks.class_weights import ClassWeights, check_class_weight, weighted
from keras_transformer.tasks.explaining import Explains
from keras_transformer.tasks.inputs import (
    check_arrays,
    check_known,
    check_labels_given,
    checked_options,
    naming,
    parts_of,
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
        class_weight: dict[int | str, float] | None = None,
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
            class_weight: dict of names or numbers of classes to their weights, by which losses are
                multiplied. With `multi_label` it is the loss of that class, in each row; for labels
                or logits of tokens, that of the token; for soft labels, the mean weight of the row.
                Language models have tokens as classes, by id or as strings of the vocabulary.
            sample_weight: one number a row; or for labels of words or tokens one for each. They
                are multiplied by those of `class_weight`.
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
                "validation_split": validation_split, "initial_epoch": initial_epoch,
                "steps_per_epoch": steps_per_epoch, "validation_steps": validation_steps,
                "validation_freq": validation_freq,
                "validation_batch_size": validation_batch_size,
            }
        )  # fmt: skip
        check_known(processing, self.processor_class.options)
        weigh = self.class_weights(class_weight)
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
        options["validation_data"] = validation_data
        with self.weighing(x, y, sample_weight, weigh, steps_per_epoch) as (x, weights):
            options["sample_weight"] = weights
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
        x, y, sample_weight = parts_of(data if isinstance(data, tuple) else (data,), "A tuple")
        if not self._takes(x):
            made, targets, weights = self._batches(x, y, sample_weight, {})
            return data if made is data else (made, targets, weights)
        size = options.pop("validation_batch_size") or batch_size
        return self._batches(x, y, sample_weight, processing, **check_batch(size))[0]

    def class_weights(self, class_weight: Any) -> ClassWeights | None:
        """Return the function that adds weights of classes, None if there are none to add."""
        if class_weight is None:
            return None
        check_class_weight(class_weight)
        return self.weights_of_classes(class_weight) if class_weight else None

    @contextlib.contextmanager
    def weighing(
        self, x, y, sample_weight, weigh: ClassWeights | None, steps: int | None
    ) -> Iterator[tuple]:
        """Give arrays or batches, and the sample weights of arrays, with weights of classes."""
        if weigh is not None and isinstance(x, Mapping):
            sample_weight = weigh(y, sample_weight)
        with weighted(self, x, steps, weigh) as batches:
            yield batches, sample_weight

    def weights_of_classes(self, class_weight: dict) -> ClassWeights:
        """Return the weights of the classes of the task's targets. A task without them refuses."""
        raise ValueError(
            f"`class_weight` gives classes a weight, and {type(self).__name__} does not learn "
            "classes. Leave it out; a weight for each row is `sample_weight`."
        )

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
        weigh = self.class_weights(class_weight)
        x, y, sample_weight = self._one_batch(x, y, sample_weight, learns=True)
        sample_weight = sample_weight if weigh is None else weigh(y, sample_weight)
        self._expect("train", x, is_batch=True)
        return super().train_on_batch(x, y, sample_weight, return_dict=return_dict)

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
