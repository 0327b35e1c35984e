"""The vectors of a backbone of one side, as a `vector_pooling` in its config says."""

from collections.abc import Mapping

import keras

from keras_transformer.layers.vector import SideVector


class HasVector:
    """A backbone of one side, with a method `pool` that makes one vector of the states of a row."""

    def make_vector(self) -> SideVector | None:
        """The layer of the vectors, under the name of the side. None for a config without."""
        if self.config.vector_pooling is None:
            return None
        options = {"name": self.config.kind, "dtype": self.dtype_policy}
        return SideVector(self.config, self.initializer, **options)

    def pool(self, hidden_states, token_ids=None):
        """The vector of each row, `(batch, vector_width)`, as the config's `vector_pooling` says.

        Args:
            hidden_states: float `(batch, length, hidden_dim)`, the states of the backbone.
            token_ids: int `(batch, length)`, for the pooling `"end"`.

        Raises:
            ValueError: for a backbone without vectors, or `"end"` without ids.
        """
        if isinstance(hidden_states, keras.KerasTensor):
            both = {"hidden_states": hidden_states, "token_ids": token_ids}
            return self(hidden_states if token_ids is None else both, part="pool")
        if self.vector is None:
            raise ValueError(
                f"This {type(self).__name__} has no vectors: its config has no `vector_pooling`."
            )
        if token_ids is None and self.config.vector_pooling == "end":
            raise ValueError("vector_pooling='end' needs the `token_ids` of the states.")
        return self.vector(hidden_states, token_ids=token_ids)

    def _pool_part(self, inputs):
        """`pool` as a part of `call`."""
        return self.pool(**inputs) if isinstance(inputs, Mapping) else self.pool(inputs)
