"""Tasks that keep a second copy of their weights, in the order in which they are read."""

from weakref import WeakValueDictionary

import keras

from keras_transformer.checking import check_flag


class PacksWeights:
    """A `keras.Model` with the option `pack_weights` of `compile`, for PyTorch on a CPU.

    There `predict` is then traced for each size of a batch into the operations that it is of,
    without the calls of layers around them, and its products read a copy of the weights in oneDNN's
    own order. On other backends and devices the option changes nothing.
    """

    pack_weights: bool = False
    _traced = None

    def compile(self, *args, pack_weights: bool | None = None, **kwargs):
        """As `keras.Model.compile`, and whether the weights are packed.

        Args:
            *args: as in `keras.Model.compile`.
            pack_weights: bool, at first False: on PyTorch and a CPU, keep a second copy of the
                weights, in the order in which they are read. `predict` and `generate` are faster,
                for twice the memory and a second or so at the first batch of each size. What is
                not given does not change.
            **kwargs: as in `keras.Model.compile`.

        Raises:
            ValueError: for a `pack_weights` that is neither True nor False.
        """
        if pack_weights is not None:
            check_flag("pack_weights", pack_weights)
        super().compile(*args, **kwargs)
        if pack_weights is not None:
            self.pack_weights = pack_weights
            self._traced = None

    def make_predict_function(self, force: bool = False):
        if not (self.pack_weights and packs(self)) or self.run_eagerly:
            super().make_predict_function(force)
            return
        import torch

        from keras_transformer.kernels.torch_tracing.traced import TracedFunction

        if self._traced is None:

            def outputs(x):
                return self(x, training=False)

            self._traced = TracedFunction(outputs, self, packed=WeakValueDictionary())
        traced, weights = self._traced, self._traced.weights_key()

        @torch.inference_mode()
        def predict_step(data):
            x, _, _ = keras.utils.unpack_x_y_sample_weight(data[0])
            return traced(weights, keras.tree.map_structure(_tensor, x))

        self.predict_function = predict_step


def packs(model: keras.Model) -> bool:
    """Whether a model is where weights can be packed."""
    on_torch = keras.backend.backend() == "torch"
    return on_torch and model.weights[0].value.device.type == "cpu"


def _tensor(x):
    return x if x is None else keras.ops.convert_to_tensor(x)
