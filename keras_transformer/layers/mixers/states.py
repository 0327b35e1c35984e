"""States of fixed size that a recurrent mixer keeps between decoding steps, alone or with keys."""

import dataclasses
from typing import Any

from keras import ops

from keras_transformer.layers.arguments import agree, known_shape, show_shape


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


@dataclasses.dataclass(frozen=True)
class JointCache:
    """Cache of the members of `config.Parallel`: the slots of one, and the states of the others.

    Fields:
        keys: `KeyValueCache`, or None.
        states: `MixerStates`, or None: the states of all recurrent members, in their order.
        done: int, number of states that the members before have updated in this call.
    """

    keys: Any = None
    states: MixerStates | None = None
    done: int = 0

    @classmethod
    def of(cls, cache) -> "JointCache":
        """Return a layer's cache as a `JointCache`."""
        if isinstance(cache, cls) or cache is None:
            return cache or cls()
        return cls(states=cache) if isinstance(cache, MixerStates) else cls(keys=cache)

    @property
    def single(self):
        """The cache of a layer: the slots or the states alone, if there are no others."""
        if self.states is None:
            return self.keys
        both = dataclasses.replace(self, done=0)
        return self.states if self.keys is None else both

    def check_fit(self, shape, heads: int, width: int, shapes: tuple) -> None:
        """Raise ValueError if the slots or the states do not fit, see their own `check_fit`."""
        self.keys.check_fit(shape, heads, width)
        self.states.check_fit(shape, shapes)

    def for_member(self, sizes: tuple):
        """Return the cache of the next member, which keeps what its `Mixer.cached` says."""
        if sizes[0]:
            return self.keys
        end = self.done + len(sizes[3])
        return dataclasses.replace(self.states, tensors=self.states.tensors[self.done : end])

    def updated(self, own, sizes: tuple) -> "JointCache":
        """Return the cache with what the member returned."""
        if sizes[0]:
            return dataclasses.replace(self, keys=own)
        end = self.done + len(sizes[3])
        before, after = self.states.tensors[: self.done], self.states.tensors[end:]
        states = MixerStates((*before, *own.tensors, *after), self.states.padding)
        return dataclasses.replace(self, states=states, done=end)
