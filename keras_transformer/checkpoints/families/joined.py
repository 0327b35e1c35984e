"""Two families as one model: that of an encoder and that of a decoder, with a config each."""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.family import Family, Values
from keras_transformer.checkpoints.heads import Conversion
from keras_transformer.checkpoints.weights import Weight, layers
from keras_transformer.config import OPTIONS, SIDES, TransformerConfig

# What each side may have of its own, and what is of the whole model, as the decoder has it.
_OWN = [*(n for n, known in OPTIONS.items() if known["of"] in ("side", "layer")), "layer_pattern"]
_OF_MODEL = [n for n, known in OPTIONS.items() if known["of"] == "model" and n != "kind"]
_WIDTH = "cross_attention_hidden_size"


@dataclasses.dataclass(frozen=True)
class Joined:
    """The families that a side may be of; the first is the one that a config may leave out.

    Their tensors stand behind `encoder.` and `decoder.`, those of a decoder with what a language
    model has around it. Of another width than the decoder's, states of the encoder are projected;
    a decoder that is named in `wide` may attend to them as they are.
    """

    encoders: tuple[Family, ...]
    decoders: tuple[Family, ...]
    wide: tuple[str, ...] = ()

    @property
    def conversion(self) -> Conversion:
        """Between the two configs in theirs and the sides of ours."""
        return Conversion(self._read, self._write)

    def weights(self, config: TransformerConfig) -> tuple[Weight, ...]:
        """The lines of the families that the sides of a config are of."""
        chosen = (self._written(side)[0] for side in config.sides)
        lines = map(_lines, chosen, config.sides)
        return (*next(lines), *next(lines), *layers({"encoder_projection": "enc_to_dec_proj"}))

    def _known(self, side: str) -> dict[str, Family]:
        families = self.encoders if side == "encoder" else self.decoders
        return {family.model_type: family for family in families}

    def _read(self, values: Values) -> dict[str, Any]:
        encoder, decoder = (self._read_side(values, side) for side in SIDES)
        given = values.get("decoder") or {}
        attended = given.get(_WIDTH)
        allowed = [None, encoder.hidden_dim] if given.get("model_type") in self.wide else [None]
        if attended not in allowed:
            raise ValueError(
                f"{_WIDTH}={attended!r} is not supported, only {' or '.join(map(repr, allowed))}."
            )
        differ = encoder.hidden_dim != decoder.hidden_dim
        return {**_joined(encoder, decoder), "encoder_projection": differ and attended is None}

    def _read_side(self, values: Values, side: str) -> TransformerConfig:
        given, known = values.get(side) or {}, self._known(side)
        if not isinstance(given, dict):
            raise ValueError(f"{side} must be an object, received {given!r}.")
        name = given.get("model_type", next(iter(known)))
        if not isinstance(name, str) or name not in known:
            raise ValueError(
                f"model_type={name!r} is not supported for the {side}, only "
                f"{', '.join(map(repr, known))}."
            )
        return known[name].config(given)

    def _write(self, config: TransformerConfig) -> dict[str, Any]:
        encoder, decoder = config.sides
        theirs = {side.kind: dict(self._written(side)[1]) for side in config.sides}
        for values in theirs.values():
            del values["architectures"]
        if encoder.hidden_dim != decoder.hidden_dim and not config.encoder_projection:
            name = theirs["decoder"]["model_type"]
            if name not in self.wide:
                raise ValueError(
                    f"A {name} attends to states of its own width, {decoder.hidden_dim}, not of "
                    f"{encoder.hidden_dim}."
                )
            theirs["decoder"][_WIDTH] = encoder.hidden_dim
        return {**theirs, "is_encoder_decoder": True, "tie_word_embeddings": False}

    def _written(self, side: TransformerConfig) -> tuple[Family, dict[str, Any]]:
        """The first family that a side can be of, and its config of it."""
        reasons = []
        for family in self._known(side.kind).values():
            try:
                return family, family.published_config(_alone(side))
            except ValueError as error:
                reasons.append(f"\n  {error}")
        raise ValueError(f"No family fits the {side.kind}:{''.join(reasons)}")


def _joined(encoder: TransformerConfig, decoder: TransformerConfig) -> dict[str, Any]:
    """The values of a model of two sides: those of the decoder, and what the encoder has else."""
    flat, stated = decoder.stated(), encoder.stated()
    every = encoder.to_dict()
    own = {
        n: every[n] for n in _OWN if stated.get(n) != flat.get(n) or (n in flat) != (n in stated)
    }
    own.pop("num_layers", None)
    depths = {"num_layers": encoder.num_layers, "num_decoder_layers": decoder.num_layers}
    return {**flat, **depths, "kind": "seq2seq", "share_embeddings": False, "encoder": own or None}


def _alone(side: TransformerConfig) -> TransformerConfig:
    """A side as a model: an encoder has nothing of what the decoder says for both."""
    if side.kind == "decoder":
        return side
    if side.stem is None and side.embedding_scale != 1:
        raise ValueError(f"The encoder has embedding_scale={side.embedding_scale}, not 1.")
    values = {n: value for n, value in side.stated().items() if n not in _OF_MODEL}
    return TransformerConfig.from_dict(values)


def _lines(family: Family, side: TransformerConfig) -> list[Weight]:
    """The lines of a family as those of a side."""
    found = []
    for line in family.weights:
        ours, inner = line.ours, ""
        if line.when is not None and getattr(side, line.when[0]) != line.when[1]:
            continue
        if side.kind == "decoder":
            inner = "" if line.outside else next(iter(family.names.prefixes), "")
        elif ours.startswith("token_embedding/embeddings"):
            ours = f"encoder_{ours}"
        elif not ours.startswith("encoder/"):
            continue  # A pooler, which nothing reads; the output of a masked language model.
        names = {
            name: tuple(f"{side.kind}.{inner}{theirs}" for theirs in getattr(line, name))
            for name in ("also", "copies")
        }
        theirs = f"{side.kind}.{inner}{line.theirs}"
        found.append(
            dataclasses.replace(line, ours=ours, theirs=theirs, when=None, outside=False, **names)
        )
    return found
