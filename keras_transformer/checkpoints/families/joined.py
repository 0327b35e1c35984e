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

    Their tensors stand behind `prefixes`, those of a decoder with what a language model has around
    it, and their configs are values of theirs named `configs`. Of another width than the decoder's,
    states of the encoder are projected; a decoder that is named in `wide` may attend to them as
    they are, and each does where nothing `projects`.
    """

    encoders: tuple[Family, ...]
    decoders: tuple[Family, ...]
    wide: tuple[str, ...] = ()
    configs: tuple[str, str] = SIDES
    prefixes: tuple[str, str] = ("encoder.", "decoder.")
    projects: bool = True

    @property
    def conversion(self) -> Conversion:
        """Between the two configs in theirs and the sides of ours."""
        return Conversion(self._read, self._write)

    def weights(self, config: TransformerConfig) -> tuple[Weight, ...]:
        """The lines of the families that the sides of a config are of."""
        chosen = (self._written(side)[0] for side in config.sides)
        lines = map(lines_of_side, chosen, config.sides, self.prefixes)
        return (*next(lines), *next(lines), *layers({"projector/output": "enc_to_dec_proj"}))

    def _known(self, side: str) -> dict[str, Family]:
        families = self.encoders if side == "encoder" else self.decoders
        return {family.model_type: family for family in families}

    def _read(self, values: Values) -> dict[str, Any]:
        # Which config says whether the output is tied differs; the weights show it.
        tied = values.get("tie_word_embeddings")
        if not isinstance(tied, bool | None):
            raise ValueError(f"tie_word_embeddings must be true or false, received {tied!r}.")
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
                f"Such a checkpoint has two sides, and this model {', '.join(config.side_names)}."
            )
        return self.write_sides(*config.sides, config.projector)

    def write_sides(
        self, encoder: TransformerConfig, decoder: TransformerConfig, projector: str
    ) -> dict[str, Any]:
        """The two configs within theirs, of flat ones of ours."""
        read, written = (dict(self._written(side)[1]) for side in (encoder, decoder))
        for values in (read, written):
            del values["architectures"]
        attended = encoder.hidden_dim if projector == "none" else None
        if self.projects and attended not in (None, decoder.hidden_dim):
            if written["model_type"] not in self.wide:
                raise ValueError(
                    f"A decoder of {written['model_type']} attends to states of its own width, "
                    f"{decoder.hidden_dim}, not of {attended}."
                )
            written[_WIDTH] = attended
        return dict(zip(self.configs, (read, written), strict=True))

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


def lines_of_side(
    family: Family, side: TransformerConfig, prefix: str, name: str = "encoder"
) -> list[Weight]:
    """The lines of a family as those of a side, its tensors behind a prefix.

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
            continue  # A pooler, which nothing reads; the output of a masked language model.
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
