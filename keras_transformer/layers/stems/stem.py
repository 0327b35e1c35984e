"""What every stem is: named inputs to states."""

from typing import Any, NamedTuple

import keras

from keras_transformer.layers.arguments import SavesArguments


class Input(NamedTuple):
    """One array that a stem takes.

    Fields:
        name: str, its name in the dict of inputs.
        dtype: str, `"int32"`, `"bool"` or `"float32"`.
        shape: its sizes behind the batch, None where any is taken.
        required: bool.
        of_tokens: bool, whether it has as many columns as the array that is required.
        below: int, integers are from 0 to one less. None for no such bound.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    required: bool = False
    of_tokens: bool = True
    below: int | None = None


class Embedded(NamedTuple):
    """What a stem makes of its inputs, for the blocks.

    Fields:
        states: float `(batch, length, hidden_dim)`.
        padding_mask: bool `(batch, length)`, True for what is real, or None if all is.
        position_ids: int `(batch, length)`, or None for 0, 1, 2, ...
        pack_ids: int `(batch, length)`, which packed document a state is of, or None.
        global_positions: int `(batch, count)`, the places of states that see all others and are
            seen by all, whatever the window; -1 for none. None for those of the config.
        grid: ints, the rows and columns of the grid that the last states are of, row by row. None
            where a config needs none.
    """

    states: Any
    padding_mask: Any = None
    position_ids: Any = None
    pack_ids: Any = None
    global_positions: Any = None
    grid: tuple[int, int] | None = None


class Stem(SavesArguments, keras.layers.Layer):
    """The base of stems: `call` of a dict of arrays gives `Embedded`.

    A subclass says in `inputs` which arrays it takes, makes its layers in `__init__` and their
    weights in `build`, and has `call(inputs, training=False)`. It is saved as what its constructor
    was given. See docs/add_an_input.md.

    Args:
        **kwargs: as in `keras.layers.Layer`.
    """

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The arrays that it takes."""
        raise NotImplementedError

    def mask_of_states(self, padding_mask, length):
        """The mask of the `length` states, bool `(batch, length)`, of the input `padding_mask`."""
        return padding_mask

    def states_shape(self, inputs) -> tuple[int | None, ...] | None:
        """The shape of the states of symbolic inputs. None for Keras to find it by a call.

        Keras calls with lengths of its own, which may be too short for a state.
        """

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call  # Recomputing an embedding saves nothing.
