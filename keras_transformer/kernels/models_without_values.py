"""Models that have shapes and names of weights, and no values in memory."""

from collections.abc import Callable

import keras

from keras_transformer.kernels.device import on


def made_without_values(make_model: Callable[[], keras.Model]) -> keras.Model:
    """Return the model that a function makes, with variables that have shapes and no values.

    The function cannot read or assign weights.

    Raises:
        ValueError: on TensorFlow, where a variable cannot be without values.
    """
    if on("torch"):
        with keras.device("meta"):
            return make_model()
    if on("jax"):
        import jax

        found: list = []
        jax.eval_shape(lambda: found.append(make_model()))
        return found[0]
    raise ValueError(
        "A model without values needs JAX or PyTorch, and the backend is TensorFlow. Make one with "
        "values: `training.load_run` loads a run into it."
    )
