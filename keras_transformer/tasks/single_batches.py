"""Keras's steps on one batch, of strings too."""

import keras
import numpy as np

from keras_transformer.data import BucketedDataset
from keras_transformer.tasks.inputs import check_labels_given, is_text


class TakesSingleBatches:
    """`train_on_batch`, `test_on_batch` and `predict_on_batch` of a task."""

    def train_on_batch(
        self, x, y=None, sample_weight=None, class_weight=None, return_dict: bool = False
    ):
        """One step, as `keras.Model.train_on_batch`, on strings too."""
        if is_text(x):
            check_labels_given(self, x, y)
            seed = int(np.random.randint(2**31))  # of what is drawn of the texts, if anything is
            dataset = self._one_batch(x, y, sample_weight, shuffle=True, seed=seed)
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(dataset[0])
        return super().train_on_batch(x, y, sample_weight, class_weight, return_dict)

    def test_on_batch(self, x, y=None, sample_weight=None, return_dict: bool = False):
        """Loss and metrics of one batch, as `keras.Model.test_on_batch`, on strings too."""
        if is_text(x):
            check_labels_given(self, x, y)
            dataset = self._one_batch(x, y, sample_weight)
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(dataset[0])
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
