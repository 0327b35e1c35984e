"""Two families in one model: an encoder and a decoder, each with its own config."""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import Family, Values
from keras_transformer.checkpoints.heads import Conversion
from keras_transformer.checkpoints.weights.tables import WeightLine, layers
from keras_transformer.config import OPTIONS, SIDES, TransformerConfig

# Options that may differ between the sides, and options of the whole model.
_OWN = [*(n for n, known in OPTIONS.items() if known["of"] in ("side", "layer")), "layer_pattern"]
_OF_MODEL = [n for n, known in OPTIONS.items() if known["of"] == "model" and n != "kind"]
_WIDTH = "cross_attention_hidden_size"


@dataclasses.dataclass(frozen=True)
class EncoderDecoderFamily:
    """Families from which an encoder and a decoder may be joined to one model.

    If widths differ, encoder states are projected to the decoder's, unless the decoder attends to
    them directly: it may if its `model_type` is in `wide`, and always does if not `projects`.

    Args:
        encoders: families of the encoder. The first is the default.
        decoders: families of the decoder, with the output of their language models. The first is
            the default.
        wide: `model_type`s of decoders that may attend to states of another width.
        configs: keys of the two nested published configs.
        prefixes: prefixes of the tensor names of encoder and decoder.
        projects: whether the published model can have a projection.
    """

    encoders: tuple[Family, ...]
    decoders: tuple[Family, ...]
    wide: tuple[str, ...] = ()
    configs: tuple[str, str] = SIDES
    prefixes: tuple[str, str] = ("encoder.", "decoder.")
    projects: bool = True

    @property
    def conversion(self) -> Conversion:
        """Conversion between the two nested published configs and the sides of our config."""
        return Conversion(self._read, self._write)

    def weights(self, config: TransformerConfig) -> tuple[WeightLine, ...]:
        """Return the weight lines of both sides, each from the first family that fits it."""
        chosen = (self._written(side)[0] for side in config.sides)
        lines = map(side_weights, chosen, config.sides, self.prefixes)
        return (*next(lines), *next(lines), *layers({"projector/output": "enc_to_dec_proj"}))

    def _known(self, side: str) -> dict[str, Family]:
        families = self.encoders if side == "encoder" else self.decoders
        return {family.model_type: family for family in families}

    def _read(self, values: Values) -> dict[str, Any]:
        encoder, decoder = map(self._read_side, SIDES, self.configs, [values] * 2)
        given = values.get(self.configs[1]) or {}
        attended = given.get(_WIDTH)
        allowed = [None, encoder.hidden_dim] if given.get("model_type") in self.wide else [None]
        if attended not in allowed:
            raise ValueError(
                f"{_WIDTH}={attended!r} is not supported, only {' or '.join(map(repr, allowed))}."
            )
        differ = encoder.hidden_dim != decoder.hidden_dim
        projected = self.projects and differ and attended is None
        return {**_joined(encoder, decoder), "projector": "linear" if projected else "none"}

    def _read_side(self, side: str, name: str, values: Values) -> TransformerConfig:
        given, known = values.get(name) or {}, self._known(side)
        if not isinstance(given, dict):
            raise ValueError(f"{name} must be an object, received {given!r}.")
        name = given.get("model_type", next(iter(known)))
        if not isinstance(name, str) or name not in known:
            raise ValueError(
                f"model_type={name!r} is not supported for the {side}, only "
                f"{', '.join(map(repr, known))}."
            )
        return known[name].config(given)

    def _write(self, config: TransformerConfig) -> dict[str, Any]:
        if len(config.sides) != 2:
            raise ValueError(
                "A checkpoint of this family has two sides, but this model has "
                f"{', '.join(config.side_names)}."
            )
        return self.write_sides(*config.sides, config.flat["projector"])

    def write_sides(
        self, encoder: TransformerConfig, decoder: TransformerConfig, projector: str
    ) -> dict[str, Any]:
        """Return the two nested published configs for the configs of the two sides."""
        read, written = (dict(self._written(side)[1]) for side in (encoder, decoder))
        for values in (read, written):
            del values["architectures"]
        attended = encoder.hidden_dim if projector == "none" else None
        if self.projects and attended not in (None, decoder.hidden_dim):
            if written["model_type"] not in self.wide:
                raise ValueError(
                    f"A {written['model_type']} decoder attends to states of its own width, "
                    f"{decoder.hidden_dim}, not of {attended}."
                )
            written[_WIDTH] = attended
        return dict(zip(self.configs, (read, written), strict=True))

    def _written(self, side: TransformerConfig) -> tuple[Family, dict[str, Any]]:
        """Return the first family that can express a side, and its published config."""
        reasons = []
        for family in self._known(side.kind).values():
            try:
                return family, family.published_config(as_model(side))
            except ValueError as error:
                reasons.append(f"\n  {error}")
        raise ValueError(f"No family fits the {side.kind}:{''.join(reasons)}")


def _joined(encoder: TransformerConfig, decoder: TransformerConfig) -> dict[str, Any]:
    """Return the values of the joined model: the decoder's, and what differs in the encoder."""
    flat, stated = decoder.stated(), encoder.stated()
    every = encoder.flat
    own = {
        n: every[n] for n in _OWN if stated.get(n) != flat.get(n) or (n in flat) != (n in stated)
    }
    own.pop("num_layers", None)
    depths = {"num_layers": encoder.num_layers, "num_decoder_layers": decoder.num_layers}
    return {**flat, **depths, "kind": "seq2seq", "share_embeddings": False, "encoder": own or None}


def as_model(side: TransformerConfig) -> TransformerConfig:
    """Return a side as the config of a model, without values that belong to the joined model."""
    if side.kind == "decoder":
        return side
    if side.stem is None and side.embedding_scale != 1:
        raise ValueError(f"The encoder has embedding_scale={side.embedding_scale}, not 1.")
    values = {n: value for n, value in side.stated().items() if n not in _OF_MODEL}
    return TransformerConfig.from_dict(values)


def side_weights(
    family: Family, side: TransformerConfig, prefix: str, name: str = "encoder"
) -> list[WeightLine]:
    """Return the lines of a family for one side, with a prefix before its tensors.

    An encoder may have another `name`, such as `"source"`.
    """
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
            continue  # not part of the joined model: a pooler, a masked language model's output
        elif name == "source":
            ours = ours.replace("encoder/", "source/", 1)
        names = {
            name: tuple(f"{prefix}{inner}{theirs}" for theirs in getattr(line, name))
            for name in ("also", "copies")
        }
        theirs = f"{prefix}{inner}{line.theirs}"
        found.append(
            dataclasses.replace(line, ours=ours, theirs=theirs, when=None, outside=False, **names)
        )
    return found
