"""A run that goes on within an epoch reports the metrics of the unbroken one, whatever they are."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.training import Perplexity, ResumableRun, TokenAccuracy, TokenCrossEntropy
from tests.generation.common import on_one
from tests.training.test_resume import make_dataset


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 4:
            raise KeyboardInterrupt


def make_model(metrics):
    keras.utils.set_random_seed(1)
    config = kt.TransformerConfig(
        kind="decoder", vocabulary_size=20, hidden_dim=8, num_layers=1, num_heads=2,
        intermediate_dim=16,
    )  # fmt: skip
    model = kt.CausalLM(kt.models.Decoder(config))
    model.compile(keras.optimizers.Adam(0.05), TokenCrossEntropy(0.1), **metrics())
    return model


# Ours in one pass with the loss, ours from logits, and Keras's own.
METRICS = {
    "ours": lambda: {"weighted_metrics": [Perplexity(), TokenAccuracy()]},
    "others": lambda: {
        "metrics": ["accuracy", keras.metrics.SparseCategoricalCrossentropy(from_logits=True)],
        "weighted_metrics": [
            Perplexity(),
            keras.metrics.SparseTopKCategoricalAccuracy(3),
            keras.metrics.MeanMetricWrapper(keras.losses.sparse_categorical_crossentropy, "mean"),
        ],
    },
}


@pytest.mark.parametrize("metrics", ["ours", on_one("others")])
def test_metrics_of_a_resumed_epoch(tmp_path, metrics):
    expected = make_model(METRICS[metrics]).fit(make_dataset(), verbose=0).history
    data = make_dataset()
    with pytest.raises(KeyboardInterrupt):
        run = ResumableRun(tmp_path, data, every=2)
        make_model(METRICS[metrics]).fit(data, verbose=0, callbacks=[run, Stop()])
    data = make_dataset()
    model = make_model(METRICS[metrics])
    found = model.fit(data, verbose=0, callbacks=[ResumableRun(tmp_path, data, every=2)]).history
    assert set(found) == set(expected) and len(found) > 2
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)


def test_other_metrics_within_an_epoch_are_refused(tmp_path):
    data = make_dataset()
    with pytest.raises(KeyboardInterrupt):
        run = ResumableRun(tmp_path, data, every=2)
        make_model(METRICS["ours"]).fit(data, verbose=0, callbacks=[run, Stop()])
    data = make_dataset()
    with pytest.raises(ValueError, match="with these metrics: .*perplexity.*but the model has"):
        run = ResumableRun(tmp_path, data, every=2)
        make_model(METRICS["others"]).fit(data, verbose=0, callbacks=[run])


def test_a_fit_behind_a_resumed_one_that_was_stopped_begins_anew(tmp_path):
    data = make_dataset()
    model = make_model(METRICS["ours"])
    model.fit(data, epochs=2, verbose=0, callbacks=[ResumableRun(tmp_path, data)])
    data = make_dataset()
    with pytest.raises(KeyboardInterrupt):
        run = ResumableRun(tmp_path, data)
        model.fit(data, epochs=4, verbose=0, callbacks=[Stop(), run])
    assert model.fit(make_dataset(), epochs=1, verbose=0).epoch == [0]
