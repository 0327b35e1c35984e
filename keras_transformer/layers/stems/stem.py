"""Base class of stems, which turn named inputs into states."""

from typing import Any, NamedTuple

import keras

from keras_transformer.layers.arguments import SavesArguments


class Input(NamedTuple):
    """Description of one array that a stem takes.

    Fields:
        name: str, its name in the dict of inputs.
        dtype: str, `"int32"`, `"bool"` or `"float32"`.
        shape: sizes of its axes after the batch. None allows any size.
        required: bool, whether it must be given.
        of_tokens: bool, whether it has as many columns as the required array.
        below: int, integers must be from 0 to `below - 1`. None means no bound.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    required: bool = False
    of_tokens: bool = True
    below: int | None = None


class Embedded(NamedTuple):
    """Output of a stem, the input of the blocks.

    Fields:
        states: float `(batch, length, hidden_dim)`.
        padding_mask: bool `(batch, length)`, True for real states, or None if all are real.
        position_ids: int `(batch, length)`, for positions with several axes `(batch, length,
            axes)`, or None, which means 0, 1, 2, ...
        pack_ids: int `(batch, length)`, the packed document of each state, or None.
        global_positions: int `(batch, count)`, the places of states that see all others and are
            seen by all, regardless of the window; -1 for unused entries. None uses the config's.
        grid: ints, the rows and columns of the grid that the last states form, row by row. None
            if the config does not need a grid.
        layer_inputs: float `(batch, length, num_layers, dim)`, what each token has for each layer,
            or None if the layers take nothing but states.
        segment_ids: int `(batch, length)`, token types for layers that compare them, or None.
        added: tuple of float `(1, length, hidden_dim)`, positions that are added to the states
            behind the first blocks.
        attention_positions: float `(batch or 1, length, hidden_dim)`, positions that each attention
            adds to its queries and keys, but not to its values; or None.
        queries: float `(batch, length, hidden_dim)`, positions of the tokens that come next, for
            blocks with a `query_stream`; or None.
        maps: tuple of float `(batch, rows, columns, features)`, the maps of the stages of a
            convolutional network before the one that the states are made of, for a head.
    """

    states: Any
    padding_mask: Any = None
    position_ids: Any = None
    pack_ids: Any = None
    global_positions: Any = None
    grid: tuple[int, int] | None = None
    layer_inputs: Any = None
    segment_ids: Any = None
    added: tuple = ()
    attention_positions: Any = None
    queries: Any = None
    maps: tuple = ()


class Stem(SavesArguments, keras.layers.Layer):
    """Base class of stems: `call` turns a dict of arrays into `Embedded`.

    A subclass declares in `inputs` the arrays it takes, makes its layers in `__init__` and their
    weights in `build`, and defines `call(inputs, training=False)`. Its constructor arguments are
    saved. See docs/add_an_input.md.

    Args:
        **kwargs: as in `keras.layers.Layer`.
    """

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Arrays that the stem takes."""
        raise NotImplementedError

    def mask_of_states(self, padding_mask, length):
        """Turn the input `padding_mask` into the mask of the states, bool `(batch, length)`."""
        return padding_mask

    def mask_of(self, inputs, length):
        """Return the mask of the states of inputs, bool `(batch, length)`; None if all are real."""
        mask = inputs.get("padding_mask")
        return None if mask is None else self.mask_of_states(mask, length)

    def states_shape(self, inputs) -> tuple[int | None, ...] | None:
        """Return the shape of the states of symbolic inputs. None lets Keras find it by a call.

        Keras calls with lengths of its own choice, which may be too short for one state.
        """

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call  # Recomputing an embedding saves nothing.
