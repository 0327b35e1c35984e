"""Adapters that feed one input to both sides of an encoder-decoder, for heads on its decoder."""

from typing import Any

from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.layers.position import sequence_positions
from keras_transformer.layers.stems import Input
from keras_transformer.models import Seq2Seq
from keras_transformer.models.backbone import Backbone, as_mask, check_inputs, named_inputs
from keras_transformer.support.checking import check_int
from keras_transformer.tasks.base.pooling import last_of

# Inputs of a text that the decoder gets unchanged, and the one that is refused: packed rows have no
# single start and end.
_OF_BOTH = ("padding_mask", "position_ids")
_OF_NEITHER = "pack_ids"


class InputAdapter:
    """Maps the inputs of an encoder to the inputs of both sides of an encoder-decoder.

    Args:
        backbone: a `Seq2Seq`.
        sides: the configs of the sides; inputs must be within the limits of each.
    """

    def __init__(self, backbone: Seq2Seq, sides: tuple[TransformerConfig, ...]):
        self.sides = sides
        # The side with the smallest maximum length.
        self.config = min(sides, key=lambda side: side.max_sequence_length)
        arrays = backbone.encoder_stem.inputs
        self.input_arrays: tuple[Input, ...] = tuple(a for a in arrays if a.name != _OF_NEITHER)
        self.id_inputs = tuple(a.name for a in self.input_arrays if a.required)

    def checked_inputs(self, inputs, further: tuple[str, ...] = (), taker: str = "") -> dict:
        """Check inputs as `Backbone.checked_inputs` does."""
        names = (*(each.name for each in self.input_arrays), *further)
        inputs = named_inputs(inputs, names, self.id_inputs, taker)
        for config in self.sides:
            check_inputs(inputs, self.input_arrays, "", config.only_side)
        return inputs

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs of both sides, with the prefixes `encoder_` and `decoder_`."""
        source = {f"encoder_{name}": array for name, array in inputs.items()}
        return {**source, **self.target(inputs)}

    def target(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs of the decoder, with the prefix `decoder_`."""
        raise NotImplementedError


class SeriesAdapter(InputAdapter):
    """Adapter for a series: the decoder gets a single token, which attends to the whole series."""

    def __init__(self, backbone: Seq2Seq):
        super().__init__(backbone, backbone.config.sides[:1])

    def target(self, inputs):
        values = inputs[self.id_inputs[0]]
        return {"decoder_token_ids": ops.zeros((ops.shape(values)[0], 1), "int32")}


class QueryAdapter(InputAdapter):
    """Adapter for images whose objects a decoder finds, which reads nothing but its own queries."""

    def __init__(self, backbone: Seq2Seq):
        super().__init__(backbone, backbone.config.sides[:1])

    def target(self, inputs):
        return {}


class SharedTextAdapter(InputAdapter):
    """Adapter for a text that both sides read.

    The decoder gets the text shifted by one: each decoder state attends to the preceding tokens
    itself, and to all tokens through the encoder. `start_id` is the first token of the decoder; if
    None, it is the last token of each row.

    Source: Lewis et al. 2019, "BART", section 3.
    """

    def __init__(self, backbone: Seq2Seq, start_id: int | None):
        super().__init__(backbone, backbone.config.sides)
        most = min(side.vocabulary_size for side in self.sides) - 1
        self.start_id = check_int("start_id", start_id, at_least=0, at_most=most, none=True)

    def checked_inputs(self, inputs, further: tuple[str, ...] = (), taker: str = "") -> dict:
        if isinstance(inputs, dict) and inputs.get(_OF_NEITHER) is not None:
            raise ValueError(
                f"{taker} takes no `{_OF_NEITHER}` with an encoder-decoder, whose decoder starts "
                "and ends with its text: give each text a row of its own."
            )
        return super().checked_inputs(inputs, further, taker)

    def target(self, inputs):
        both = {f"decoder_{name}": inputs[name] for name in _OF_BOTH if name in inputs}
        ids, mask = inputs["token_ids"], inputs.get("padding_mask")
        return {**both, "decoder_token_ids": self._shifted(ids, mask)}

    def _shifted(self, ids, mask):
        ids, mask = ops.cast(ids, "int32"), as_mask(ids, mask)
        first = ops.argmax(ops.cast(mask, "int32"), axis=1, keepdims=True)
        start = self.start_id
        if start is None:
            start = ops.take_along_axis(ids, last_of(mask), axis=1)
        places = sequence_positions(ids[..., None])
        is_first = ops.equal(places, ops.cast(first, places.dtype))
        return ops.where(is_first, start, ops.roll(ids, 1, axis=1))


def shared_text_adapter(backbone: Backbone, start_id: int | None) -> SharedTextAdapter | None:
    """Return the `SharedTextAdapter` of an encoder-decoder; other backbones need no adapter."""
    if backbone.config.kind == "seq2seq":
        return SharedTextAdapter(backbone, start_id)
    if start_id is not None:
        raise ValueError(
            "`start_id` is the first token of the decoder of an encoder-decoder, but the backbone "
            f"is of kind {backbone.config.kind!r}: leave it out."
        )
    return None
