"""Dropout with random numbers that are cheap to compute."""

import keras

from keras_transformer.kernels import dropout
from keras_transformer.kernels.recomputing import needs_seeds
from keras_transformer.kernels.values import is_traced
from keras_transformer.support.checking import check_choice, check_number, check_seed


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(keras.layers.Dropout):
    """`keras.layers.Dropout` with a faster source of random numbers.

    Dropout needs one random-looking number per element, not the guarantees of the generators of
    JAX and TensorFlow, which take about a hundred operations each. Here the number is the index of
    the element, hashed with the state of the layer's seed generator: about ten operations, fused
    by the compiler into the multiplication by the mask, on all devices that hold the tensor. With
    a `seed` the masks are the same on every backend. PyTorch does not compile here, so without a
    `seed` its own generator is used; on a CPU each of its 64-bit draws serves four elements, and
    the rate is rounded to a multiple of 2 ** -16.

    Args:
        rate: float in [0, 1), the share of the elements that become 0. The others are divided by
            `1 - rate`.
        noise_shape: must be None, since each element is drawn independently.
        seed: int from 0 to 2**31 - 1, or None.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor of any shape.
        training: bool, whether to drop. False returns the inputs unchanged.
        seed: seed of this draw, from `next_seeds`. Defaults to the next seed of the layer.

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
        seed = check_seed("seed", seed, none=True, bits=31)  # the most that every backend keeps
        super().__init__(rate, noise_shape, seed, **kwargs)

    @property
    def _drawn_by_backend(self) -> bool:
        return dropout.has_quick_generator() and self.seed is None and not needs_seeds()

    def next_seeds(self, count: int):
        """Return seeds of `count` draws, int `(count, 2)`, or None if PyTorch itself draws."""
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
