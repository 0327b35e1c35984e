"""Dropout whose random numbers cost next to nothing."""

import keras

from keras_transformer.checking import check_choice, check_number, check_seed
from keras_transformer.kernels import dropout
from keras_transformer.kernels.recomputing import needs_seeds
from keras_transformer.kernels.values import is_traced


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(keras.layers.Dropout):
    """`keras.layers.Dropout` with a quicker source of random numbers.

    Dropout needs one number an element that looks random, and not the guarantees of the
    generators of JAX and TensorFlow, which take some hundred operations for each. Here it is the
    place of the element, hashed with the state of the layer's seed generator: about ten
    operations that are compiled into the multiplication by the mask, on as many devices as hold
    the tensor. With a `seed` the masks are the same on every backend. PyTorch compiles nothing
    here, so without a `seed` its own generator is used; on a CPU one draw of it, 64 bits, is for
    four elements, and the rate is rounded to a multiple of 2 ** -16.

    Args:
        rate: float in [0, 1), the share of the elements that become 0. The others are divided by
            `1 - rate`.
        noise_shape: None, since each element is drawn by itself.
        seed: int from 0 to 2**31 - 1, or None.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor of any shape.
        training: bool, False for the inputs as they are.
        seed: one of `next_seeds`, of this draw. Defaults to the next one of the layer.

    Returns:
        A tensor like `inputs`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import Dropout

    y = Dropout(0.25, seed=1)(np.ones((1000, 100), "float32"), training=True)
    assert abs(float(np.mean(np.asarray(y) == 0)) - 0.25) < 0.01
    ```

    Source: Srivastava et al. 2014, "Dropout", section 4; the hash is the last step of
    MurmurHash3 (Appleby 2011), twice, each time with one half of the seed.
    """

    def __init__(self, rate: float, noise_shape=None, seed: int | None = None, **kwargs):
        rate = check_number("rate", rate, at_least=0, below=1)
        check_choice("noise_shape", noise_shape, [None])
        seed = check_seed("seed", seed, none=True, bits=31)  # as many as all backends keep
        super().__init__(rate, noise_shape, seed, **kwargs)

    @property
    def _drawn_by_backend(self) -> bool:
        return dropout.has_quick_generator() and self.seed is None and not needs_seeds()

    def next_seeds(self, count: int):
        """Those of so many draws, int `(count, 2)`, or None where PyTorch's generator draws."""
        if self._drawn_by_backend and not is_traced():
            return None
        return dropout.random_bits((count, 2), self.seed_generator.next())

    def call(self, inputs, training=False, seed=None):
        if not training or self.rate == 0:
            return super().call(inputs, training=training)
        if self._drawn_by_backend and seed is None:
            return dropout.drop(inputs, self.rate)
        seed = self.seed_generator.next() if seed is None else seed
        return dropout.drop_by_place(inputs, self.rate, seed)
