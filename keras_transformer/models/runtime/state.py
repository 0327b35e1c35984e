"""Models that survive an interrupt: a step is done completely or not at all."""

from keras_transformer.kernels import jax_steps, step_functions, tensorflow_steps
from keras_transformer.kernels.accumulation import count_updates
from keras_transformer.kernels.programs import compiles_by_default


class InterruptSafe:
    """A `keras.Model` whose weights, optimizer and metrics always match its last whole step.

    This holds even if an exception is raised within `fit`, `evaluate`, `predict` or one of their
    steps: by a callback, the data, the compiler, or a signal at any moment. Models of this package
    have it from `Runtime`. For a model of your own, put it before `keras.Model`; on TensorFlow such
    a model must be built before `predict`. On TensorFlow an operation that fails within a step
    compiled without XLA may leave the step half done.

    Example:

    ```python
    from keras_transformer.models import InterruptSafe
    import keras
    import numpy as np

    class Model(InterruptSafe, keras.Model):
        pass

    inputs = keras.Input((3,))
    model = Model(inputs, keras.layers.Dense(2)(inputs))

    class Interrupt(keras.callbacks.Callback):
        def on_predict_batch_begin(self, batch, logs=None):
            raise KeyboardInterrupt

    try:
        model.predict(np.ones((4, 3)), verbose=0, callbacks=[Interrupt()])
    except KeyboardInterrupt:
        pass
    assert model.predict(np.ones((4, 3)), verbose=0).shape == (4, 2)
    ```
    """

    def __setattr__(self, name, value):
        # Not in an own `compile`: Keras would not call it for a model loaded from a file.
        if name == "optimizer":
            count_updates(value)
        super().__setattr__(name, value)

    def make_train_function(self, force: bool = False):
        step_functions.make_train_function(self, super().make_train_function, force)

    def make_test_function(self, force: bool = False):
        step_functions.make_test_function(self, super().make_test_function, force)

    def make_predict_function(self, force: bool = False):
        step_functions.make_predict_function(self, super().make_predict_function, force)

    def _resolve_auto_jit_compile(self) -> bool:
        return compiles_by_default(super()._resolve_auto_jit_compile())

    def _make_function(self, step_function, *args, **kwargs):
        step_function = step_functions.atomic_step_function(self, step_function)
        return super()._make_function(step_function, *args, **kwargs)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        tensorflow_steps.symbolic_build(self, super()._maybe_symbolic_build, iterator, data_batch)

    # Keras's loops carry a state from step to step. Here the variables themselves are the state.

    def _get_jax_state(self, **groups) -> tuple:
        return jax_steps.state_groups(self, **groups)

    def jax_state_sync(self):
        self._jax_state_synced = True
