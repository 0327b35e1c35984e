"""The values that make a transformer: one frozen dataclass, checked, JSON in and out."""

import dataclasses
import json
from typing import Any

from keras_transformer.checking import load_json
from keras_transformer.config_checks import (
    check_agreement,
    check_given,
    check_overrides,
    check_values,
    derived_values,
    documented,
    option,
)
from keras_transformer.config_feed_forward import ACTIVATIONS as ACTIVATIONS
from keras_transformer.config_feed_forward import FeedForwardOptions
from keras_transformer.config_pattern import PatternOptions
from keras_transformer.config_placed import PLACED, PlacedOptions, check_placed
from keras_transformer.config_positions import POSITIONS as POSITIONS
from keras_transformer.config_positions import ROTARY_SCALINGS as ROTARY_SCALINGS
from keras_transformer.config_positions import PositionOptions, check_positions
from keras_transformer.config_source import SourceOptions, check_source
from keras_transformer.config_states import StateOptions, check_states
from keras_transformer.config_stem import StemConfig, stem_config
from keras_transformer.config_vectors import VectorOptions, check_vectors
from keras_transformer.kerashub_names import check_options
from keras_transformer.weight import NORMALIZATIONS as NORMALIZATIONS

SIDES = ("encoder", "decoder")
KINDS = ("encoder", "decoder", "seq2seq", "dual")
TWO_SIDED = ("seq2seq", "dual")
SCORES = ("scaled_dot", "dot", "general", "additive", "cosine", "location")
# A file that says more asks for memory and not for a model: DeepNet (Wang et al. 2022) has 1,000.
MOST_LAYERS = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig(
    PatternOptions,
    PositionOptions,
    FeedForwardOptions,
    VectorOptions,
    StateOptions,
    PlacedOptions,
    SourceOptions,
):
    """The complete description of a backbone: values only, no code.

    The defaults are those of the original Transformer (post-norm, sinusoidal positions, relu).

    The values are flat. What differs between two sides, or from layer to layer, is given as
    overrides of them; `side` and `layer` give the flat config that holds there.

    {options}

    Raises:
        ValueError: for values that are unknown, out of range or contradict each other.

    Example:
    ```python
    from keras_transformer import TransformerConfig

    base = TransformerConfig(
        kind="seq2seq", vocabulary_size=37_000, hidden_dim=512, num_layers=6,
        num_heads=8, intermediate_dim=2048, dropout=0.1, scale_embedding=True,
        decoder={{"num_layers": 2, "num_heads": 4}},
    )
    assert base.head_dim == 64 and base.side("decoder").head_dim == 128
    assert TransformerConfig.from_json(base.to_json()) == base
    ```

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3 and table 3.
    """

    kind: str = option(
        '`"encoder"` (BERT-like), `"decoder"` (GPT-like), `"seq2seq"`, or `"dual"` (CLIP-like: an '
        "encoder of images and a decoder of texts side by side).",
        of="model",
        choices=KINDS,
    )
    vocabulary_size: int = option(
        "number of token ids, 0 for a model of other inputs.", of="side", least=0
    )
    hidden_dim: int = option(
        "width of the hidden states, d_model in the paper.", of="side", least=1
    )
    num_layers: int = option(
        'number of blocks (of encoder blocks for `"seq2seq"`).',
        of="side",
        least=1,
        most=MOST_LAYERS,
    )
    num_heads: int = option("number of query heads.", least=1)
    intermediate_dim: int = option("width of the feed-forward layer, d_ff in the paper.", least=1)
    num_decoder_layers: int | None = option(
        '`"seq2seq"` only. Defaults to `num_layers`.', None, of="model", least=1, most=MOST_LAYERS
    )
    num_key_value_heads: int | None = option(
        "fewer than `num_heads` for grouped-query attention. Defaults to `num_heads`.",
        None,
        least=1,
    )
    head_dim: int | None = option(
        "width of one head. Defaults to `hidden_dim // num_heads`.", None, least=1
    )
    embedding_dim: int | None = option(
        'width of the embeddings, for `"encoder"` only, or with `token_projection`. Defaults to '
        "`hidden_dim`.",
        None,
        of="side",
        least=1,
    )
    embedding_projection: bool | None = option(
        "a dense layer between embeddings and blocks. Defaults to whether their widths differ.",
        None,
        of="side",
    )
    token_projection: bool = option(
        '`"decoder"` only. `embedding_dim` is of tokens alone: a dense layer without bias makes '
        "them as wide as positions and blocks, another one makes states as narrow before the "
        "logits (OPT-350m).",
        False,
        of="model",
    )
    share_embeddings: bool | None = option(
        '`"seq2seq"` only: both sides read one token embedding. Defaults to whether its sizes '
        "are equal.",
        None,
        of="model",
    )
    num_layer_groups: int | None = option(
        "layers in a group are one block, used again (ALBERT has one group). Defaults to "
        "`num_layers`: each layer is its own.",
        None,
        of="side",
        least=1,
    )
    layers_per_group: int = option(
        "a group is so many blocks, used again in turn (ALBERT's inner groups).",
        1,
        of="side",
        least=1,
        most=MOST_LAYERS,
    )
    use_bias: bool = option(
        "biases in the projections, those of the feed-forward layer and all below.", True
    )
    attention_bias: bool | None = option(
        "biases of query, key and value. Defaults to `use_bias`.", None
    )
    key_bias: bool | None = option(
        "bias of the key, without which no weight differs (Whisper has none). Defaults to "
        "`attention_bias`.",
        None,
    )
    attention_output_bias: bool | None = option(
        "bias of the attention's output. Defaults to `attention_bias`.", None
    )
    query_key_norm: bool = option("normalize each head's queries and keys.", False)
    query_key_norm_across_heads: bool = option(
        "`query_key_norm` normalizes the queries and the keys of all heads together.", False
    )
    query_key_norm_per_head: bool = option(
        "`query_key_norm` has a weight for each head, and no bias (Cohere).", False
    )
    parallel_residual: bool = option(
        "feed-forward beside the attention and not behind it. With `normalize_first` only.", False
    )
    share_normalization: bool = option(
        "one norm for both sub-layers of a `parallel_residual` (GPT-J).", False
    )
    residual_scale: float = option(
        "factor of what a sub-layer gives, before it is added (Granite).", 1.0, positive=True
    )
    trained_residual_scale: bool = option(
        "a trained factor of each feature of what a sub-layer gives, besides (CaiT, DINOv2).", False
    )
    convolution_size: int = option(
        '`"encoder"` only. A convolution over so many neighbouring tokens, an odd number, of what '
        "a block is given, added to what it gives (DeBERTa v2). 0 for none.",
        0,
        least=0,
    )
    convolution_activation: str = option(
        "what is applied to it, of `config.ACTIVATIONS`.", "gelu", choices=ACTIVATIONS
    )
    normalization: str = option(
        '`"layer_norm"`, `"layer_norm_no_bias"`, `"rms_norm"`, `"rms_norm_plus_one"`, which '
        'multiplies by one more than its weight (Gemma), or `"batch_norm"`, with a `stem` only: '
        "over all places of a batch, by their moving averages outside of training (PatchTST).",
        "layer_norm",
        choices=tuple(NORMALIZATIONS),
    )
    normalization_epsilon: float = option("added to the variance.", 1e-6, positive=True)
    normalize_first: bool = option("pre-norm when True, post-norm when False.", False)
    normalize_output: bool = option(
        "normalize what a sub-layer gives before it is added: beside the pre-norm (Gemma 2), or in "
        "place of the post-norm (OLMo 2).",
        False,
    )
    attention_normalization: bool = option(
        "False for a self-attention without pre-norm or post-norm (ModernBERT's first).", True
    )
    embedding_normalization: bool = option("normalize the sum of the embeddings.", False, of="side")
    final_normalization: bool | None = option(
        "normalize after the last block. Defaults to `normalize_first`.", None, of="side"
    )
    max_sequence_length: int = option(
        "longest sequence. A hard limit for learned positions.",
        512,
        of="side",
        least=1,
        changeable=True,
    )
    segment_vocabulary_size: int = option(
        "number of token types, 0 for none.", 0, of="side", least=0
    )
    dropout: float = option(
        "rate on every sub-layer's output and on the sum of the embeddings.",
        0.0,
        rate=True,
        changeable=True,
    )
    attention_dropout: float = option(
        "rate on the attention weights.", 0.0, rate=True, changeable=True
    )
    score: str = option(
        "score function of the attention, see `layers.MultiHeadAttention`.",
        "scaled_dot",
        choices=SCORES,
    )
    score_scale: float | None = option(
        'factor of `"scaled_dot"`. None for `head_dim ** -0.5`.', None, positive=True
    )
    attention_soft_cap: float | None = option(
        "scores stay below it: they become `cap * tanh(scores / cap)` (Gemma 2). None for no cap.",
        None,
        positive=True,
    )
    tie_embeddings: bool = option(
        "the output projection is the token embedding, transposed.", True, of="model"
    )
    scale_embedding: bool = option(
        "multiply the token embedding by `sqrt(hidden_dim)`.", False, of="model"
    )
    embedding_scale: float | None = option(
        "factor of the token embedding (Granite). Defaults to that of `scale_embedding`, or 1.",
        None,
        of="model",
        positive=True,
    )
    initializer_range: float | None = option(
        "standard deviation of the initial weights. None for Glorot uniform kernels and "
        "embeddings of deviation `hidden_dim ** -0.5`.",
        None,
        of="side",
        positive=True,
        changeable=True,
    )
    stem: StemConfig | dict | None = option(
        "what makes the states of other inputs than token ids: a dict with the `kind` of a stem, "
        "of `config_stem.STEMS`, and its values. Of an encoder, whose `vocabulary_size` is then 0. "
        "Kept as a `StemConfig`.",
        None,
        of="side",
    )
    encoder: dict | None = option(
        "with two sides only: the values that differ in the encoder, by name.",
        None,
        of="overrides",
    )
    decoder: dict | None = option(
        "with two sides only: the values that differ in the decoder, by name.",
        None,
        of="overrides",
    )
    layer_pattern: tuple | list | None = option(
        "what differs from layer to layer: a dict of values for each layer, cycled over the "
        'depth, such as `[{"window": 512}, {"window": 512}, {}]`. Kept as a tuple.',
        None,
        of="overrides",
    )

    def __new__(cls, *args, **kwargs):
        check_options(cls.__name__, kwargs.keys() - cls.__dataclass_fields__.keys(), ())
        return super().__new__(cls)

    def __post_init__(self):
        if self.stem is not None:
            object.__setattr__(self, "stem", stem_config(self.stem))
        check_values(self)
        for name, value in derived_values(self).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        check_agreement(self)
        check_positions(self)
        check_overrides(self)
        check_vectors(self)
        check_states(self)
        check_placed(self)
        check_source(self)

    def side(self, name: str) -> "TransformerConfig":
        """The flat config of one side, of kind `name`; that of a `source` is of an encoder.

        Args:
            name: `"encoder"` or `"decoder"`, or `"source"`. A config of one of these kinds is its
                only side.
        """
        if self.kind == name:
            return self
        if name not in self.side_names:
            raise ValueError(f"A config of kind={self.kind!r} has no side {name!r}.")
        both = self.stated()
        for none in ("num_decoder_layers", "share_embeddings", *PLACED):
            both.pop(none, None)
        both |= {"similarity_bias": False}
        both |= {} if name == "decoder" else {"output_transform": None}
        of_decoder = name == "decoder" and self.kind == "seq2seq"
        layers = {"num_layers": self.num_decoder_layers} if of_decoder else {}
        kind = "decoder" if name == "decoder" else "encoder"
        own = {"kind": kind, **dict.fromkeys(("source", *SIDES))}
        return self.from_dict({**both, **layers, **(getattr(self, name) or {}), **own})

    @property
    def side_names(self) -> tuple[str, ...]:
        """The names of all sides, in the order of the forward pass."""
        if self.kind not in TWO_SIDED:
            return (self.kind,)
        return SIDES if self.source is None else ("source", *SIDES)

    @property
    def sides(self) -> tuple["TransformerConfig", ...]:
        """The flat configs of all sides, in the order of the forward pass."""
        return tuple(map(self.side, self.side_names))

    def layer(self, i: int) -> "TransformerConfig":
        """The flat config of layer `i` of a side."""
        if self.kind in TWO_SIDED:
            raise ValueError(
                f"The layers of a {self.kind} belong to a side: `config.side(name).layer(i)`."
            )
        if self.layer_pattern is None:
            return self
        own = self.layer_pattern[i % len(self.layer_pattern)]
        return self.from_dict({**self.stated(), **own, "layer_pattern": None})

    @property
    def layers(self) -> tuple["TransformerConfig", ...]:
        """The flat configs of all layers of a side."""
        return tuple(self.layer(i) for i in range(self.num_layers))

    @property
    def num_positions(self) -> int:
        """The positions of a side that has a vector for each."""
        states = None if self.stem is None else self.stem.num_states
        return self.max_sequence_length if states is None else states

    def to_dict(self) -> dict[str, Any]:
        """All values as a JSON-ready dictionary."""
        values = dataclasses.asdict(self)
        return {name: values[name] for name in OPTIONS}

    def stated(self) -> dict[str, Any]:
        """The values except those that follow from others: `from_dict` gives the config back."""
        derived = derived_values(self)
        return {
            name: value
            for name, value in self.to_dict().items()
            if name not in derived or value != derived[name]
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TransformerConfig":
        """The config of a dictionary, as `to_dict` made it. Unknown or missing names raise."""
        check_given(values, dataclasses.fields(cls))
        return cls(**values)

    def to_json(self) -> str:
        """All values as a JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> "TransformerConfig":
        """The config of a JSON text, as `to_json` made it."""
        return cls.from_dict(load_json(text))

    def replace(self, **values) -> "TransformerConfig":
        """A copy with some values changed. Values that followed from others follow again."""
        return self.from_dict({**self.stated(), **values})


_FIELDS = {field.name: field.metadata for field in dataclasses.fields(TransformerConfig)}
OPTIONS = {name: _FIELDS[name] for name in (*TransformerConfig.__annotations__, *_FIELDS)}
CHANGEABLE = frozenset(name for name, known in OPTIONS.items() if known["changeable"])
TransformerConfig.__doc__ = TransformerConfig.__doc__.format(options=documented(OPTIONS))
