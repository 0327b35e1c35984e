"""Shared code of tests of interrupted steps: models with known states after each step."""

import keras
import numpy as np

import keras_transformer as kt
from keras_transformer.kernels.device import device

BACKEND = keras.backend.backend()
ROWS, BATCH = 8, 2
STEPS = ROWS // BATCH
RNG = np.random.default_rng(0)
X = {"token_ids": RNG.integers(1, 20, (ROWS, 6)), "padding_mask": np.ones((ROWS, 6), bool)}
LABELS = RNG.integers(0, 2, ROWS).astype("int32")
TARGETS = RNG.normal(size=(ROWS, 6, 8)).astype("float32")


# Sums of gradients on a GPU are in no fixed order, and Adam divides by their size.
SAME = {"rtol": 0, "atol": 0} if device().is_cpu else {"rtol": 1e-5, "atol": 1e-5}
CLOSE = {"rtol": 1e-5, "atol": 1e-6 if device().is_cpu else 1e-5}


class Run:
    """A model, the data that it takes, and its state after each step of an undisturbed run."""

    def __init__(self, model, y):
        self.model, self.y = model, y
        self.model.optimizer.build(self.model.trainable_variables)
        self.first = self.state()
        self.after = [self.first]
        watch = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: self.after.append(self.state())
        )
        self.fit(0, callbacks=[watch])
        self.predictions = self.model.predict(X, batch_size=BATCH, verbose=0)

    def variables(self):
        return [*self.model.variables, *self.model.optimizer.variables]

    def state(self):
        return [np.array(keras.ops.convert_to_numpy(v)) for v in self.variables()]

    def begin(self):
        for variable, value in zip(self.variables(), self.first, strict=True):
            variable.assign(value)

    def fit(self, first, x=None, y=None, **options):
        rows = {name: array[first * BATCH :] for name, array in X.items()} if x is None else x
        y = self.y[first * BATCH :] if x is None else y
        options = {"batch_size": BATCH, "shuffle": False, "verbose": 0, **options}
        return self.model.fit(rows, y, **options)

    def assert_whole(self, done):
        for found, expected in zip(self.state(), self.after[done], strict=True):
            np.testing.assert_allclose(found, expected, **SAME)

    def assert_goes_on(self, done):
        """The rest of the epoch gives what an undisturbed run has, and so does `predict`."""
        self.assert_whole(done)
        if done < STEPS:
            self.fit(done)
        for found, expected in zip(self.state(), self.after[-1], strict=True):
            np.testing.assert_allclose(found, expected, **CLOSE)
        found = self.model.predict(X, batch_size=BATCH, verbose=0)
        np.testing.assert_allclose(found, self.predictions, rtol=1e-4, atol=1e-5)

    @property
    def done(self):
        return int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))


def make_backbone(dropout=0.0 if BACKEND == "torch" else 0.1):
    # PyTorch's dropout draws from a generator outside the model.
    keras.utils.set_random_seed(1)
    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=20, hidden_dim=8, num_layers=1, num_heads=2,
        intermediate_dim=8, dropout=dropout,
    )  # fmt: skip
    return kt.models.Encoder(config)


def make_task(dropout=None, **options):
    backbone = make_backbone() if dropout is None else make_backbone(dropout)
    task = kt.TextClassifier(backbone, num_classes=2)
    task.compile(keras.optimizers.Adam(0.01), task.loss, metrics=["accuracy"], **options)
    return task


class Raise(keras.callbacks.Callback):
    """Raises in a hook, when it is called for the second batch, or for another one."""

    def __init__(self, hook, kind, batch=1):
        super().__init__()

        def raise_it(number=None, logs=None):
            if "batch" not in hook or number == batch:
                raise kind("on purpose")

        setattr(self, hook, raise_it)
