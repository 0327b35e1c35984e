"""States of fixed size that a recurrent mixer keeps between decoding steps."""

import dataclasses
from typing import Any

from keras import ops

from keras_transformer.support.checking import agree, known_shape, show_shape


@dataclasses.dataclass(frozen=True)
class MixerStates:
    """States that one recurrent mixer keeps of all tokens so far, whose size no token changes.

    Each row has one or several branches: continuations of one prompt side by side (beams), each
    with states of its own. As in `KeyValueCache`, Keras sees an opaque object.

    Fields:
        tensors: tuple of float32 `(rows, branches, *shape)`, one for each of the shapes that the
            mixer's part lists, see `config.Mixer.cached`.
        padding: bool `(rows, length)`, the real tokens of the current call, or None if all are.

    Example:
    ```python
    import numpy as np
    from keras_transformer.config import StateSpace
    from keras_transformer.layers.mixers.state_space import SelectiveStateSpace
    from keras_transformer.layers.mixers.states import MixerStates
    from keras import ops

    part = StateSpace(num_heads=4, head_dim=8, state_dim=6)
    *_, shapes = part.cached(16)
    mixer, states = SelectiveStateSpace(part), MixerStates.make(rows=1, shapes=shapes)
    x = np.random.rand(1, 7, 16).astype("float32")
    first, states = mixer(x[:, :6], cache=states)
    last, states = mixer(x[:, 6:], cache=states)
    assert float(ops.max(ops.abs(last - mixer(x)[:, 6:]))) < 1e-5
    ```
    """

    tensors: tuple
    padding: Any = None

    @classmethod
    def make(cls, rows: int, shapes: tuple[tuple[int, ...], ...]) -> "MixerStates":
        """Return the states before the first token, which are zeros."""
        return cls(tuple(ops.zeros((rows, 1, *shape), "float32") for shape in shapes))

    def check_fit(self, states: tuple | None, shapes: tuple[tuple[int, ...], ...]) -> None:
        """Raise ValueError if a mixer's states do not have these shapes.

        Args:
            states: shape of the inputs, `(batch, length, dim)`, or None if it is unknown.
            shapes: shapes of the states of one branch.
        """
        rows = "batch" if states is None else states[0]
        for tensor, shape in zip(self.tensors, shapes, strict=True):
            found, needed = known_shape(tensor), (rows, "branches", *shape)
            if found is not None and not agree(found, needed):
                raise ValueError(
                    f"A state of the `cache` for this mixer must be of shape {show_shape(needed)}, "
                    f"received {show_shape(found)}."
                )

    @property
    def branches(self) -> int:
        return self.tensors[0].shape[1]

    def unfolded(self, x) -> tuple:
        """Return inputs and states with a batch of all branches.

        With several branches the inputs `(rows, branches, dim)` have one token for each of them,
        and become `(rows * branches, 1, dim)`.
        """
        if self.branches > 1:
            x = ops.reshape(x, (-1, 1, x.shape[-1]))
        return x, tuple(ops.reshape(each, (-1, *each.shape[2:])) for each in self.tensors)

    def folded(self, outputs, tensors: tuple) -> tuple:
        """Return outputs by row, and the cache with these states: the reverse of `unfolded`."""
        branches = self.branches
        if branches > 1:
            outputs = ops.reshape(outputs, (-1, branches, outputs.shape[-1]))
        kept = (ops.reshape(ops.cast(x, "float32"), (-1, branches, *x.shape[1:])) for x in tensors)
        return outputs, MixerStates(tuple(kept))
