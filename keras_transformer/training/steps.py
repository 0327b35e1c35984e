"""Models that do in `fit` and `evaluate` what they do not do in `predict`."""

import contextlib
import contextvars

# The models whose step runs. Not on the model: another thread may be in its `call` meanwhile.
_models = contextvars.ContextVar("models", default=())


class KnowsItsSteps:
    """Tells `call` and the loss whether they are within `train_step` or `test_step`."""

    @property
    def _in_step(self) -> bool:
        return any(model is self for model in _models.get())

    def train_step(self, *args):
        with self._step():
            return super().train_step(*args)

    def test_step(self, *args):
        with self._step():
            return super().test_step(*args)

    @contextlib.contextmanager
    def _step(self):
        token = _models.set((*_models.get(), self))
        try:
            yield
        finally:
            _models.reset(token)
