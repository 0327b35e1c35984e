"""Config of a whole model: its sides, and the parts that belong to all of them."""

import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keras_transformer.config import flat
from keras_transformer.config.inputs import StemConfig, Tokens
from keras_transformer.config.mixers import Attention
from keras_transformer.config.options import Part, documented, option, part
from keras_transformer.config.outputs import (
    OF_SEQUENCES,
    POOLINGS,
    Logits,
    Placeholders,
    Projector,
    Similarity,
)
from keras_transformer.config.score_bias import Disentangled
from keras_transformer.config.side import Side
from keras_transformer.support.checking import load_json, nearest, shorten
from keras_transformer.support.foreign_names import check_options
from keras_transformer.support.former_names import FormerName

__all__ = ["TransformerConfig"]

TWO_SIDED = ("seq2seq", "dual")


@part
class TransformerConfig(Part):
    """Complete description of a backbone: values only, no code.

    A model has one or two sides, an encoder and a decoder, each with an input, blocks and outputs.
    All of these are parts: frozen dataclasses that check themselves, see `config.Side` and
    `config.Block`. A config is made of parts,

    ```python
    from keras_transformer import TransformerConfig
    from keras_transformer.config import Attention, Block, Dense, Residual, Rotary, Side, Tokens

    block = Block(
        mixer=Attention(num_heads=8, num_key_value_heads=2, position=Rotary(base=5e5)),
        feed_forward=Dense(dim=1024, activation="silu", gated=True),
        residual=Residual(order="pre"),
    )
    side = Side(input=Tokens(vocabulary_size=32_000), hidden_dim=256, num_layers=4, block=block)
    config = TransformerConfig(decoder=side)
    assert config.kind == "decoder" and config.num_heads == 8
    ```

    or by keywords, in one line for models of the usual parts; every keyword is also an attribute.
    The defaults describe the original Transformer (post-norm, sinusoidal positions, relu). Values
    that differ between two sides, or from layer to layer, are given as overrides; `side` and
    `layer` return the config of one side or layer with its overrides applied.

    {options}

    Raises:
        ValueError: if values are unknown, out of range or contradict each other.

    Example:
    ```python
    from keras_transformer import TransformerConfig

    base = TransformerConfig(
        kind="seq2seq", vocabulary_size=37_000, hidden_dim=512, num_layers=6,
        num_heads=8, intermediate_dim=2048, dropout=0.1, scale_embedding=True,
        decoder={{"num_layers": 2, "num_heads": 4}},
    )
    assert base.side("encoder").head_dim == 64 and base.side("decoder").head_dim == 128
    assert TransformerConfig.from_json(base.to_json()) == base
    ```

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3 and table 3.
    """

    source: Side | None = option(
        "an additional encoder of images or sound that the encoder attends to (BLIP).", None
    )
    queries: Side | None = option(
        "a query transformer between a side of images and the side of the placeholders: its "
        "trained states attend to the images' states, and replace placeholders in their stead "
        "(BLIP-2).",
        None,
    )
    encoder: Side | None = option("the encoder.", None)
    sound: Side | None = option(
        "an encoder of sound beside one of images: its states replace placeholders of the decoder "
        "as well, and are counted after the states of all images (Gemma 3n, Gemma 4).",
        None,
    )
    sound_projector: Projector | None = option("layers between `sound` and the decoder.", None)
    decoder: Side | None = option("the decoder.", None)
    logits: Logits = option("how states become vocabulary logits.", Logits())
    share_embeddings: bool | None = option(
        "both sides use one token embedding. Defaults to True if both sides need the same size.",
        None,
    )
    placeholders: Placeholders | None = option(
        "encoder states that replace placeholder tokens of the decoder.", None
    )
    projector: Projector | None = option("layers between encoder and decoder.", None)
    similarity: Similarity | None = option(
        'similarities between the vectors of both sides; makes the model a `"dual"`.', None
    )

    if TYPE_CHECKING:  # the keywords that programs read most
        vocabulary_size: int
        hidden_dim: int
        num_layers: int
        num_decoder_layers: int | None
        num_heads: int
        num_key_value_heads: int
        head_dim: int
        intermediate_dim: int
        embedding_dim: int
        max_sequence_length: int
        dropout: float
        position: str
        activation: str
        normalization: str
        normalization_epsilon: float

    def __init__(self, **values: Any):
        if not _are_parts(values):
            check_options(type(self).__name__, values.keys() - flat.OPTIONS.keys(), ())
            unknown = sorted(values.keys() - flat.OPTIONS.keys())
            if unknown:
                raise TypeError(
                    f"TransformerConfig has no option {unknown[0]!r}."
                    f"{nearest(unknown[0], flat.OPTIONS)}"
                )
            flat.check_names(values)
            values = flat.parts(values)
        keywords = sorted(values.keys() - self.__dataclass_fields__.keys())
        if keywords:
            raise ValueError(
                f"A config is made either of parts or by keywords, received parts and the keyword "
                f"{keywords[0]!r}. Change the part that has the value: "
                "`config.replace(decoder=config.decoder.replace(...))`."
            )
        for name, field in self.__dataclass_fields__.items():
            object.__setattr__(self, name, values.get(name, field.default))
        self.__post_init__()

    def check(self):
        if self.encoder is None and self.decoder is None:
            raise ValueError(
                "A model needs an `encoder`, a `decoder`, or both, received neither. Give a `Side`."
            )
        if self.kind != "decoder" and self.decoder is not None:
            mixers = [block.mixer for block in self.decoder.every_block]
            shared = not all(getattr(mixer, "has_keys", True) for mixer in mixers)
            parts = (self.decoder.layer_inputs, self.decoder.altup)
            placed = self.placeholders is not None and self.placeholders.side == "decoder"
            if placed and self.decoder.altup is not None and self.placeholders.stacked_layers:
                raise ValueError("`altup` cannot be combined with `stacked_layers`.")
            if (shared or any(part is not None for part in parts)) and not placed:
                raise ValueError(
                    "`layer_inputs`, `altup` and key_source='earlier' need kind='decoder', or "
                    "kind='seq2seq' with a `placeholder_id` of the decoder, received "
                    f"kind={self.kind!r}."
                )
        for name in self.side_names:
            getattr(self, name).check_kind(self._kind_of(name))
        self._check_merged()
        queried = self.decoder is not None and self.decoder.has_query_stream
        if queried and (self.kind == "dual" or self.placeholders is not None):
            raise ValueError(
                "`query_stream` needs kind='decoder' or 'seq2seq' without placeholders, received "
                f"kind={self.kind!r}."
            )
        written = getattr((self.decoder or self.encoder).input, "vocabulary_size", 0)
        if self.logits.left_out >= max(written, 1):
            raise ValueError(
                f"`left_out` must be below the size of the vocabulary, {written}, received "
                f"{self.logits.left_out}."
            )
        if self.logits.transform and self.decoder is None:
            raise ValueError(
                f"`output_transform` needs kind='decoder' or 'seq2seq', received {self.kind!r}."
            )
        pooled = [name for name in self.side_names if getattr(self, name).pooler is not None]
        if len(self.side_names) > 1 and pooled:
            raise ValueError(f"`pooler` needs kind='encoder', received kind={self.kind!r}.")
        if self.kind == "dual":
            self._check_dual()
        elif self.kind == "seq2seq":
            self._check_seq2seq()
        else:
            names = ("placeholders", "projector", "source", "queries", "sound", "sound_projector")
            given = [n for n in names if getattr(self, n)]
            if given or self.share_embeddings is not None:
                name = given[0] if given else "share_embeddings"
                raise ValueError(f"`{name}` needs kind='seq2seq', received kind={self.kind!r}.")

    def _check_merged(self):
        merges = {
            name
            for name in self.side_names
            if any(block.merged_attention for block in getattr(self, name).every_block)
        }
        if not merges:
            return
        placed = self.placeholders is not None and self.placeholders.side == "decoder"
        attends = self.kind in ("seq2seq", "decoder") and not placed
        if merges != {"decoder"} or not attends:
            raise ValueError(
                "`merged_attention` is for the decoder of kind='seq2seq', which attends to the "
                f"encoder's states, received it in {sorted(merges)} of kind={self.kind!r}."
            )
        if self.kind == "decoder":  # a side alone
            return
        projected = self.projector is not None and self.placeholders is None
        width = self.decoder.hidden_dim if projected else self.encoder.hidden_dim
        if width != self.decoder.hidden_dim:
            raise ValueError(
                "`merged_attention` projects the states of both sides with the same weights: they "
                f"need one `hidden_dim`, received {width} and {self.decoder.hidden_dim}."
            )

    def _check_dual(self):
        images, texts = self.encoder, self.decoder
        if images is None or texts is None:
            raise ValueError("A `similarity` needs an encoder and a decoder.")
        for name in flat.SIDES:
            if getattr(self, name).vector is None:
                raise ValueError(
                    f"The {name} of kind='dual' needs a `vector_pooling`, one of "
                    f"{', '.join(map(repr, POOLINGS))}."
                )
        if isinstance(images.input, Tokens):
            raise ValueError(
                "The encoder of kind='dual' reads images, videos or sound: give it a stem, "
                "`encoder={'stem': ...}`."
            )
        if getattr(images.input, "masked", images.input.kind == "waveform"):
            raise ValueError(
                "The encoder of kind='dual' reads recordings of one length, such as those of a "
                "stem of the kind 'folded_frames': a mask of frames would be that of the texts. "
                f"Received {shorten(images.input)}."
            )
        if images.vector_dim != texts.vector_dim:
            raise ValueError(
                f"The vectors of the encoder have {images.vector_dim} numbers, and text vectors "
                f"{texts.vector_dim}: give one of them a `vector_dim`."
            )

    def _check_seq2seq(self):
        encoder, decoder = self.encoder, self.decoder
        sizes = [
            (getattr(s.input, "vocabulary_size", 0), s.embedding_dim) for s in (encoder, decoder)
        ]
        if self.share_embeddings is None:
            object.__setattr__(self, "share_embeddings", sizes[0] == sizes[1])
        elif self.share_embeddings and sizes[0] != sizes[1]:
            raise ValueError(
                "`share_embeddings` needs sides of one `vocabulary_size` and one width, received "
                f"{sizes[0]} and {sizes[1]}."
            )
        replaced = [getattr(s.input, "replaced_id", None) for s in (encoder, decoder)]
        if replaced[0] != replaced[1] or (replaced[1] is not None and not self.share_embeddings):
            raise ValueError(
                "A `replaced_id` needs sides that share their embeddings and name the same token, "
                f"received {replaced[0]} and {replaced[1]}."
            )
        if decoder.input.is_set and (self.placeholders or self.projector or self.source):
            raise ValueError(
                f"A decoder with a stem of kind {decoder.input.kind!r} cannot be combined with "
                "`placeholder_id`, a `projector` or a `source`."
            )
        self._check_queries()
        self._check_sound()
        if self.placeholders is not None:
            self._check_placeholders()
        in_decoder = self.placeholders is not None and self.placeholders.side == "decoder"
        if not in_decoder and any(block.residual.is_parallel for block in decoder.every_block):
            raise ValueError(
                "`parallel_residual` cannot be combined with the cross-attention of kind='seq2seq'."
            )
        if self.source is not None and self.placeholders is None:
            self._check_source(encoder)

    def _check_queries(self):
        for name in self.side_names:
            blocks = getattr(self, name).every_block
            if name != "queries" and not all(block.attends_to_source for block in blocks):
                raise ValueError(
                    f"`attends_to_source`=False is for blocks of `queries`, received it in {name}."
                )
        if self.queries is None:
            return
        one = self.projector is not None and self.projector.type in ("linear", "mlp")
        one = one and not self.projector.separator and self.placeholders is not None
        if not one or not self.placeholders.class_token:
            raise ValueError(
                "`queries` need a `placeholder_id`, whose tokens their states replace, and a "
                "`projector` of single states, 'linear' or 'mlp', without a separator and with "
                f"`place_class_token`, received {self.projector} and {self.placeholders}."
            )
        if not self.queries.input.is_set:
            raise ValueError(
                "The input of `queries` is a set of trained states, `QueryStemConfig`, received "
                f"{shorten(self.queries.input)}."
            )

    def _check_sound(self):
        """Raise ValueError if the model cannot place states of both sound and images."""
        if self.sound is None:
            if self.sound_projector is not None:
                raise ValueError("A `sound_projector` needs `sound`, the side that it projects.")
            return
        places, separator = self.placeholders, self.projector and self.projector.separator
        beside = places is not None and (places.side, places.visibility) == ("decoder", "causal")
        if not beside or self.decoder.position or self.queries or separator:
            raise ValueError(
                "`sound` stands beside images, whose states replace placeholders of the decoder: "
                "it needs a `placeholder_id` with placeholder_side='decoder' and "
                "placeholder_visibility='causal', a decoder without positions that are added, and "
                f"neither `queries` nor a separator, received {places} and "
                f"{shorten(self.decoder.position)}."
            )
        if not getattr(self.sound.input, "masked", False):
            raise ValueError(
                "`sound` reads recordings of any length: give it a stem of frames with a mask, "
                f"such as `ConvolvedFrameStemConfig`, received {shorten(self.sound.input)}."
            )
        self.of_sound  # noqa: B018  # which checks itself

    @property
    def hearing_side(self) -> str | None:
        """Name of the side whose states of recordings replace placeholders of the decoder, if any.

        It is `"sound"`, beside an encoder of images, or the `"encoder"` of a model without images.
        """
        if self.sound is not None:
            return "sound"
        placed = self.placeholders is not None and self.placeholders.side == "decoder"
        masked = self.encoder is not None and getattr(self.encoder.input, "masked", False)
        return "encoder" if placed and masked else None

    @functools.cached_property
    def of_sound(self) -> "TransformerConfig":
        """The config of the model that has the states of recordings alone, without images."""
        if self.hearing_side == "encoder":
            return self
        return type(self)(
            encoder=self.sound,
            decoder=self.decoder,
            logits=self.logits,
            placeholders=Placeholders(token_id=self.placeholders.token_id),
            projector=self.sound_projector,
        )

    def _check_placeholders(self):
        """Raise ValueError unless states of images fit the side of the placeholders."""
        of_encoder = self.placeholders.side == "encoder"
        if of_encoder != (self.source is not None):
            raise ValueError(
                "placeholder_side='encoder' needs a `source`, which reads the images."
                if of_encoder
                else "`source` and `placeholder_id` cannot be combined, unless "
                "placeholder_side='encoder'."
            )
        encoder, decoder = getattr(self, self.placed_side), getattr(self, self.placeholders.side)
        if of_encoder:
            self._check_placed_in_encoder()
        if isinstance(encoder.input, Tokens):
            raise ValueError(
                "`placeholder_id` needs an encoder of images or sound: give it a stem, "
                "`encoder={'vocabulary_size': 0, 'stem': ...}`."
            )
        size = decoder.input.vocabulary_size
        if self.placeholders.token_id > size:
            raise ValueError(
                f"`placeholder_id` must be the id of a token or the next id, at most {size}, "
                f"received {self.placeholders.token_id}."
            )
        if self.placeholders.counted and decoder.embedding_projection is not None:
            raise ValueError(
                "`placeholders_counted` cannot be combined with `token_projection` or "
                "`embedding_projection`: the states are put among the embeddings."
            )
        if not self.placeholders.class_token and not _tokens_of(encoder):
            raise ValueError("`place_class_token`=False needs a stem that has a `class_token`.")
        pool = 1 if self.projector is None else self.projector.pool
        kind = None if self.projector is None else self.projector.type
        if self.queries is not None and encoder.input.num_states is None:
            raise ValueError(
                "`queries` read images of one size: give the encoder another stem, received "
                f"{encoder.input.kind!r}."
            )
        of_any_size, merged = encoder.input.num_states is None, str(kind).startswith("merged")
        if (merged and not of_any_size) or (of_any_size and kind not in OF_SEQUENCES):
            raise ValueError(
                "projector='merged', 'merged_mlp' or 'merged_mean' needs a stem of the kind "
                "'patch_sequence', and this stem needs one of them or 'mlp' with `placeholder_id`, "
                f"received projector={kind or 'none'!r} and {encoder.input.kind!r}."
            )
        if of_any_size and kind == "merged":
            self._check_stacked(encoder, decoder)
        elif self.placeholders.stacked_layers:
            raise ValueError("`stacked_layers` need projector='merged'.")
        if of_any_size:
            self._check_sequences(encoder, decoder)
            return
        if self.hearing_side == "encoder":
            self._check_recordings(decoder)
        elif self.projector is not None and self.projector.stride > 1:
            raise ValueError(
                "The `stride` of a projector needs an encoder of sound whose stem has a mask, "
                f"received {encoder.input.kind!r}."
            )
        self._check_hard_tokens(decoder)
        grid = getattr(encoder.input, "grid", lambda size: (1, 1))
        sides = grid(getattr(encoder.input, "image_size", None))
        tokens = self.placeholders.class_token and _tokens_of(encoder)
        if pool > 1 and (tokens or any(side % pool for side in sides)):
            raise ValueError(
                f"`projector_pool`={pool} needs an encoder of images whose patches form squares of "
                "that size, and no class token among them, received a grid of "
                f"{sides[0]} x {sides[1]}."
            )
        if self.projector is None and encoder.hidden_dim != decoder.hidden_dim:
            raise ValueError(
                f"The encoder's states have width {encoder.hidden_dim}, the decoder's "
                f"{decoder.hidden_dim}: give a `projector`."
            )

    def _check_recordings(self, decoder: Side):
        if decoder.position is not None or self.placeholders.visibility != "causal":
            raise ValueError(
                "Recordings of any length need a decoder without positions that are added, and "
                "placeholder_visibility='causal', received "
                f"{shorten(decoder.position)} and {self.placeholders.visibility!r}."
            )

    def _check_hard_tokens(self, decoder: Side):
        projectors = (self.projector, self.sound_projector)
        hard = sum(each.hard_tokens for each in projectors if each is not None)
        if hard > decoder.input.vocabulary_size:
            raise ValueError(
                f"`hard_tokens` are the last of the vocabulary, which has "
                f"{decoder.input.vocabulary_size:,} tokens, received {hard:,}."
            )
        if hard and decoder.embedding_projection is not None:
            raise ValueError(
                "`hard_tokens` cannot be combined with an `embedding_projection`: their embeddings "
                "have the width of the states."
            )

    def _check_placed_in_encoder(self):
        if not isinstance(self.encoder.input, Tokens) or not isinstance(self.decoder.input, Tokens):
            raise ValueError(
                "With placeholder_side='encoder' the encoder and the decoder read tokens: only the "
                "`source` has a stem."
            )
        if self.placeholders.visibility != "causal" or self.source.input.num_states is None:
            raise ValueError(
                "placeholder_side='encoder' needs images of one size, and every token sees them: "
                "leave out `placeholder_visibility`, received "
                f"{self.placeholders.visibility!r} and {self.source.input.kind!r}."
            )

    def _check_stacked(self, encoder: Side, decoder: Side):
        stacked, count = tuple(self.placeholders.stacked_layers), encoder.num_layers
        known = all(type(i) is int and 0 <= i < count for i in stacked)
        if not known or len(set(stacked)) < len(stacked) or len(stacked) > decoder.num_layers:
            raise ValueError(
                f"`stacked_layers` must be different layers from 0 to {count - 1}, and no more "
                f"than the {decoder.num_layers} of the decoder, received {shorten(stacked)}."
            )

    def _check_sequences(self, encoder: Side, decoder: Side):
        window = encoder.input.window
        if window is not None and window % self.projector.pool:
            raise ValueError(
                f"`projector_pool`={self.projector.pool} must divide the `window` of the stem, "
                f"{window}."
            )
        positions = (getattr(b.mixer, "position", None) for b in decoder.every_block)
        axes = {getattr(position, "position_axes", None) for position in positions} - {None}
        if any(len(each.pairs) != 3 for each in axes):
            raise ValueError(
                "`position_axes` of a decoder with images are three, time, row and column, "
                f"received {shorten(axes)}."
            )
        kinds = ("causal", "windows")
        if decoder.position is not None or self.placeholders.visibility not in kinds:
            raise ValueError(
                "Images of any size need a decoder without positions that are added, and "
                "placeholder_visibility='causal' or 'windows', received "
                f"{shorten(decoder.position)} and {self.placeholders.visibility!r}."
            )

    def _check_source(self, encoder: Side):
        if isinstance(self.source.input, Tokens):
            raise ValueError("A `source` reads images or sound: give it a stem, `{'stem': ...}`.")
        for block in encoder.every_block:
            pattern = getattr(block.mixer, "pattern", None)
            found = {
                "stem": None if isinstance(encoder.input, Tokens) else encoder.input,
                "parallel_residual": block.residual.is_parallel,
                "convolution_size": block.convolution,
                "conformer": block.conformer,
                "disentangled": isinstance(encoder.score_bias, Disentangled),
                "window": pattern,
            }
            for name, value in found.items():
                if value:
                    raise ValueError(
                        f"An encoder that attends to a `source` cannot have `{name}`, received "
                        f"{shorten(value)}."
                    )

    @staticmethod
    def _kind_of(name: str) -> str:
        """Return the kind of a side as a model of its own."""
        return "decoder" if name in ("decoder", "queries") else "encoder"

    @property
    def kind(self) -> str:
        """`"encoder"`, `"decoder"`, `"seq2seq"` or `"dual"`."""
        if self.similarity is not None:
            return "dual"
        return (
            "decoder" if self.encoder is None else "encoder" if self.decoder is None else "seq2seq"
        )

    def __getattr__(self, name: str) -> Any:
        if name in flat.OPTIONS:
            if name in self.flat:
                return self.flat[name]
            raise AttributeError(f"This model has no attention, and so no `{name}`.")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @functools.cached_property
    def flat(self) -> Mapping[str, Any]:
        """All values by their keywords, including those that follow from others."""
        return flat.values_of(self)

    def stated(self) -> dict[str, Any]:
        """Return the values by their keywords, except those that follow from others."""
        return flat.without_derived(self.flat)

    @functools.cached_property
    def by_keywords(self) -> bool:
        """Whether keywords describe the model: `TransformerConfig(**config.stated())` is equal."""
        try:
            return type(self)(**self.stated()) == self
        except (KeyError, ValueError):
            return False

    def changed(self, **values: Any) -> "TransformerConfig":
        """Return a copy with some values changed by keyword, in all parts that have them.

        Unlike in `replace`, values that follow from others stay as they are. It also changes models
        that keywords do not describe.
        """
        return flat.changed(self, values)

    @property
    def side_names(self) -> tuple[str, ...]:
        """Names of all sides, in the order of the forward pass."""
        places = self.__dict__.get("placeholders")
        names = ["source", "encoder", "sound", "decoder"]
        names.insert(names.index("decoder" if places is None else places.side), "queries")
        return tuple(name for name in names if self.__dict__.get(name) is not None)

    @property
    def projected_sides(self) -> tuple[str, str]:
        """Names of the side whose states the `projector` reads, and of the one that gets them."""
        names = [name for name in self.side_names if name != "sound"]
        target = "decoder" if self.placeholders is None else self.placeholders.side
        return names[names.index(target) - 1], target

    @property
    def placed_side(self) -> str | None:
        """Name of the side of images or sound whose states replace placeholders, if any do."""
        if self.placeholders is None:
            return None
        return "source" if self.placeholders.side == "encoder" else "encoder"

    @property
    def sides(self) -> tuple["TransformerConfig", ...]:
        """Configs of all sides, in the order of the forward pass."""
        return tuple(map(self.side, self.side_names))

    def side(self, name: str) -> "TransformerConfig":
        """Return the config of one side as a model of its own.

        Args:
            name: `"encoder"` or `"decoder"`; `"source"` or `"sound"`, which are configs of kind
                `"encoder"`; or `"queries"`, of kind `"decoder"`. A config with this kind already
                returns itself.

        Raises:
            ValueError: if the model has no such side.
        """
        if self.kind == name:
            return self
        if name not in self.side_names:
            raise ValueError(f"A config of kind={self.kind!r} has no side {name!r}.")
        plain = self.logits.replace(transform=None, transform_bias=True, left_out=0)
        logits = self.logits if name == "decoder" else plain
        return type(self)(**{self._kind_of(name): getattr(self, name), "logits": logits})

    def tower(self, name: str) -> "TransformerConfig":
        """Return the config of one side of a `"dual"` as a model of its own, with its weights.

        The model lacks the layer that projects vectors to the common space. If the vector is the
        first state, only that state goes through the final norm, as in Transformers' towers.
        """
        side = getattr(self, name)
        vector = side.vector.replace(dim=None, bias=False, activation=None)
        if vector.pooling == "first" and side.final_norm:
            side, vector = side.replace(final_norm=False), vector.replace(normalize=True)
        if not isinstance(side.input, Tokens):  # texts determine the maximum length
            default = Side.__dataclass_fields__["max_sequence_length"].default
            side = side.replace(max_sequence_length=default)
        return type(self)(**{name: side.replace(vector=vector), "logits": self.logits})

    @property
    def last_side(self) -> Side:
        """The side that makes the model's output states: the decoder, if there is one."""
        return getattr(self, self.side_names[-1])

    @property
    def only_side(self) -> Side:
        """The side of a config that has only one."""
        if len(self.side_names) > 1:
            raise ValueError(
                f"The layers of a {self.kind} belong to its sides: use "
                "`config.side(name).layer(i)`."
            )
        return self.decoder if self.encoder is None else self.encoder

    def layer(self, i: int) -> "TransformerConfig":
        """Return the config of layer `i`: the same side, with all layers like this one."""
        side = self.only_side
        if not side.layers:
            return self
        own: dict[str, Any] = {"block": side.layer(i), "layers": ()}
        if side.merges:  # a layer of a stage has its width
            width = side.width(i)
            own |= {"hidden_dim": width, "embedding_dim": width}
        return super().replace(**{self.kind: side.replace(**own)})

    @property
    def layers(self) -> tuple["TransformerConfig", ...]:
        """Configs of all layers of a side."""
        return tuple(self.layer(i) for i in range(self.only_side.num_layers))

    @property
    def stem(self) -> StemConfig | None:
        """The input of a side, if it does not read token ids."""
        stem = self.last_side.input
        return None if isinstance(stem, Tokens) else stem

    @property
    def num_positions(self) -> int:
        """Number of positions of the last side, the size of a table of learned positions."""
        return self.last_side.num_positions

    @property
    def vector_width(self) -> int:
        """Width of the vector of the last side."""
        return self.last_side.vector_dim

    reach = FormerName("reach", "receptive_field")

    @property
    def receptive_field(self) -> int | None:
        """Number of tokens, including itself, that a decoder token sees; None if not limited."""
        mixer = self.last_side.block.mixer
        pattern = mixer.pattern if isinstance(mixer, Attention) else None
        return None if pattern is None else pattern.receptive_field

    @property
    def reads_padding(self) -> bool:
        """Whether a text's vector is the state of the last place, padding or not (SigLIP)."""
        side = self.last_side
        last = side.vector is not None and side.vector.pooling == "last"
        return last and not side.input.class_token

    @property
    def num_placeholders(self) -> int | None:
        """Number of placeholder tokens in a row for one input of the encoder.

        None if it depends on the size of the input.
        """
        if self.placeholders is None:
            return 0
        if self.queries is not None:
            return self.queries.input.num_states
        encoder = getattr(self, self.placed_side)
        states = encoder.input.num_states
        if states is None or getattr(encoder.input, "masked", False):
            return None
        states -= 0 if self.placeholders.class_token else _tokens_of(encoder)
        return states if self.projector is None else states // self.projector.pool**2

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TransformerConfig":
        """Return the config of a dictionary made by `to_dict`, or of values by keywords.

        Raises:
            ValueError: if values are unknown, missing, out of range or contradict each other.
        """
        if isinstance(values, Mapping) and _are_parts(values):
            kind = values.get("kind")
            config = super().from_dict({n: v for n, v in values.items() if n != "kind"})
            if kind not in (None, config.kind):
                raise ValueError(
                    f"The config is of kind={config.kind!r}, received {shorten(kind)}."
                )
            return config
        flat.check_names(values)
        return cls(**values)

    def to_json(self) -> str:
        """Return the parts as a JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> "TransformerConfig":
        """Return the config of a JSON text made by `to_json`."""
        return cls.from_dict(load_json(text))

    def replace(self, **values) -> "TransformerConfig":
        """Return a copy with some values changed by keyword, or with parts replaced.

        Values that follow from others are derived again.
        """
        # Some parts are also the values of keywords, and do not count.
        of_keywords = ("stem", "mixer", "router")
        parts = any(_is_part(each) for name, each in values.items() if name not in of_keywords)
        if parts or _PARTS_ALONE & values.keys():
            return super().replace(**values)
        if not self.by_keywords:
            own = self.flat
            return self.changed(**{n: v for n, v in values.items() if n not in own or own[n] != v})
        stated = any(each in values for each in ("mixer", "layer_pattern"))
        of_parts = {} if stated else flat.within_mixers(self, values)
        rest = {name: each for name, each in values.items() if name not in of_parts}
        # Heads first: a width that is given beside them may have to be a multiple of theirs.
        config = self.changed(**of_parts) if of_parts else self
        return self.from_dict({**config.stated(), **rest}) if rest else config


# Names of parts without a keyword.
_PARTS_ALONE = TransformerConfig.__dataclass_fields__.keys() - flat.OPTIONS.keys()


def _is_part(value: Any) -> bool:
    return isinstance(value, Part) or (isinstance(value, Mapping) and "input" in value)


def _are_parts(values: Mapping[str, Any]) -> bool:
    """Return whether the values of a config are parts, and not keywords."""
    return any(_is_part(values.get(name)) for name in flat.SIDES)


def _tokens_of(side: Side) -> int:
    """Return the number of states of a stem that do not belong to a patch."""
    return getattr(side.input, "num_tokens", 0)


TransformerConfig.__doc__ = TransformerConfig.__doc__.format(options=documented(flat.OPTIONS))
