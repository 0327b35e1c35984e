"""The values that make a transformer: one frozen dataclass, checked, JSON in and out."""

import dataclasses
import json
from typing import Any

from keras_transformer.checking import describe, is_int, is_number, shorten

KINDS = ("encoder", "decoder", "seq2seq")
POSITIONS = ("none", "sinusoidal", "learned", "rotary", "relative", "alibi")
NORMALIZATIONS = ("layer_norm", "rms_norm")
ACTIVATIONS = (
    "relu",
    "gelu",
    "gelu_tanh",
    "silu",
    "tanh",
    "sigmoid",
    "mish",
    "quick_gelu",
    "relu_squared",
)
ROTARY_SCALINGS = ("linear", "llama3", "yarn")
SCORES = ("scaled_dot", "dot", "general", "additive", "cosine", "location")

_AT_LEAST_ONE = (
    "vocabulary_size",
    "hidden_dim",
    "num_layers",
    "num_heads",
    "intermediate_dim",
    "max_sequence_length",
    "num_decoder_layers",
    "num_key_value_heads",
    "head_dim",
    "embedding_dim",
    "num_layer_groups",
    "rotary_dim",
    "rotary_original_length",
    "window",
    "relative_num_buckets",
    "relative_max_distance",
)
_AT_LEAST_ZERO = ("segment_vocabulary_size", "position_offset", "position_padding_id")
# What is compared with ids and positions, and unlike sizes is not held against the weights.
_RATES = ("dropout", "attention_dropout")
# What may be changed of a model whose weights are loaded, since no number that they give depends on
# it but for dropout in training. Every other value is a part of the weights, even where it changes
# no shape. (The rows of learned positions do: a wrong `max_sequence_length` does not fit them.)
CHANGEABLE = frozenset({"max_sequence_length", "dropout", "attention_dropout", "initializer_range"})
_CHOICES = {
    "kind": KINDS,
    "position": POSITIONS,
    "normalization": NORMALIZATIONS,
    "activation": ACTIVATIONS,
    "score": SCORES,
    "rotary_scaling": (None, *ROTARY_SCALINGS),
}
_POSITIVE = (
    "normalization_epsilon",
    "rotary_base",
    "rotary_factor",
    "rotary_min_turns",
    "rotary_max_turns",
    "initializer_range",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The complete description of a backbone: values only, no code.

    The defaults are those of the original Transformer (post-norm, sinusoidal positions, relu).

    Args:
        kind: `"encoder"` (BERT-like), `"decoder"` (GPT-like) or `"seq2seq"`.
        vocabulary_size: number of token ids.
        hidden_dim: width of the hidden states, d_model in the paper.
        num_layers: number of blocks (of encoder blocks for `"seq2seq"`).
        num_heads: number of query heads.
        intermediate_dim: width of the feed-forward layer, d_ff in the paper.
        num_decoder_layers: `"seq2seq"` only. Defaults to `num_layers`.
        num_key_value_heads: fewer than `num_heads` for grouped-query attention.
            Defaults to `num_heads`.
        head_dim: width of one head. Defaults to `hidden_dim // num_heads`.
        embedding_dim: width of the embeddings, for `"encoder"` only. Defaults to `hidden_dim`.
        embedding_projection: a dense layer between embeddings and blocks. Defaults to whether
            their widths differ.
        num_layer_groups: layers in a group are one block, used again (ALBERT has one group).
            Defaults to `num_layers`: each layer is its own.
        activation: `"relu"`, `"gelu"` (exact), `"gelu_tanh"`, `"silu"`, `"tanh"`, `"sigmoid"`,
            `"mish"`, `"quick_gelu"` or `"relu_squared"`.
        gated: multiply the activation with a linear gate (GLU variants).
        use_bias: biases in the projections, those of the feed-forward layer and all below.
        attention_bias: biases of query, key and value. Defaults to `use_bias`.
        attention_output_bias: bias of the attention's output. Defaults to `attention_bias`.
        query_key_norm: normalize each head's queries and keys.
        parallel_residual: feed-forward beside the attention and not behind it. With
            `normalize_first` only.
        normalization: `"layer_norm"` or `"rms_norm"`.
        normalization_epsilon: added to the variance.
        normalize_first: pre-norm when True, post-norm when False.
        embedding_normalization: normalize the sum of the embeddings.
        final_normalization: normalize after the last block. Defaults to `normalize_first`.
        position: `"none"`, `"sinusoidal"`, `"learned"`, `"rotary"`, `"relative"` or `"alibi"`.
        max_sequence_length: longest sequence. A hard limit for learned positions.
        position_offset: learned position `p` is row `p + position_offset` of the table.
        position_padding_id: tokens of this id are not counted in learned positions, and stand at
            row `position_offset - 1` (RoBERTa). None to count every token.
        sinusoidal_interleaved: sines and cosines in turn; False for all sines first (Marian).
        segment_vocabulary_size: number of token types, 0 for none.
        dropout: rate on every sub-layer's output and on the sum of the embeddings.
        attention_dropout: rate on the attention weights.
        score: score function of the attention, see `layers.MultiHeadAttention`.
        window: attend at most to this many neighbouring tokens. None for all.
        tie_embeddings: the output projection is the token embedding, transposed.
        scale_embedding: multiply the token embedding by `sqrt(hidden_dim)`.
        scale_logits: divide the states by `sqrt(hidden_dim)` before the output projection (T5).
        output_bias: a bias for each token of the output.
        pooler: `"encoder"` only. A dense tanh layer on the first state (BERT).
        initializer_range: standard deviation of the initial weights. None for Glorot uniform
            kernels and embeddings of deviation `hidden_dim ** -0.5`.
        rotary_base: wavelength base of the rotary embedding.
        rotary_dim: number of features of a head that are rotated. None for all. An odd number
            is rounded up.
        rotary_scaling: stretches the wavelengths for sequences longer than in training:
            `"linear"`, `"llama3"` or `"yarn"`, see `layers.RotaryEmbedding`. None for not.
        rotary_factor, rotary_min_turns, rotary_max_turns, rotary_original_length: its values.
            The original length defaults to `max_sequence_length`.
        relative_num_buckets: T5 relative bias, number of distance buckets.
        relative_max_distance: T5 relative bias, distance at which the buckets end.

    Raises:
        ValueError: for values that are unknown, out of range or contradict each other.

    Example:
    ```python
    from keras_transformer import TransformerConfig

    base = TransformerConfig(
        kind="seq2seq", vocabulary_size=37_000, hidden_dim=512, num_layers=6,
        num_heads=8, intermediate_dim=2048, dropout=0.1, scale_embedding=True,
    )
    assert base.head_dim == 64
    assert TransformerConfig.from_json(base.to_json()) == base
    ```

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3 and table 3.
    """

    kind: str
    vocabulary_size: int
    hidden_dim: int
    num_layers: int
    num_heads: int
    intermediate_dim: int
    num_decoder_layers: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    embedding_dim: int | None = None
    embedding_projection: bool | None = None
    num_layer_groups: int | None = None
    activation: str = "relu"
    gated: bool = False
    use_bias: bool = True
    attention_bias: bool | None = None
    attention_output_bias: bool | None = None
    query_key_norm: bool = False
    parallel_residual: bool = False
    normalization: str = "layer_norm"
    normalization_epsilon: float = 1e-6
    normalize_first: bool = False
    embedding_normalization: bool = False
    final_normalization: bool | None = None
    position: str = "sinusoidal"
    max_sequence_length: int = 512
    position_offset: int = 0
    position_padding_id: int | None = None
    sinusoidal_interleaved: bool = True
    segment_vocabulary_size: int = 0
    dropout: float = 0.0
    attention_dropout: float = 0.0
    score: str = "scaled_dot"
    window: int | None = None
    tie_embeddings: bool = True
    scale_embedding: bool = False
    scale_logits: bool = False
    output_bias: bool = False
    pooler: bool = False
    initializer_range: float | None = None
    rotary_base: float = 10000.0
    rotary_dim: int | None = None
    rotary_scaling: str | None = None
    rotary_factor: float = 1.0
    rotary_min_turns: float = 1.0
    rotary_max_turns: float = 32.0
    rotary_original_length: int | None = None
    relative_num_buckets: int = 32
    relative_max_distance: int = 128

    def __post_init__(self):
        self._check_types()
        self._check_ranges()
        if self.head_dim is None and self.hidden_dim % self.num_heads:
            raise ValueError(
                f"`hidden_dim` must be divisible by `num_heads`, received hidden_dim="
                f"{self.hidden_dim} and num_heads={self.num_heads}. Change one of them, or give "
                "`head_dim`."
            )
        for name, value in self._derived().items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        self._check_agreement()

    def _derived(self) -> dict[str, Any]:
        """The values that follow from others when they are not given."""
        return {
            "head_dim": (
                None if self.hidden_dim % self.num_heads else self.hidden_dim // self.num_heads
            ),
            "num_key_value_heads": self.num_heads,
            "num_decoder_layers": self.num_layers if self.kind == "seq2seq" else None,
            "num_layer_groups": self.num_layers,
            "embedding_dim": self.hidden_dim,
            "embedding_projection": self.embedding_dim not in (None, self.hidden_dim),
            "attention_bias": self.use_bias,
            "attention_output_bias": (
                self.use_bias if self.attention_bias is None else self.attention_bias
            ),
            "final_normalization": self.normalize_first,
            "rotary_original_length": (
                self.max_sequence_length if self.rotary_scaling in ("llama3", "yarn") else None
            ),
        }

    def _check_types(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            if is_number(value) and type(value) not in (int, float):  # of NumPy
                value = value.item()
                object.__setattr__(self, field.name, value)
            expected = {int: int, float: (int, float), bool: bool, str: str}[_base_type(field)]
            wrong = not isinstance(value, expected)
            if wrong or (isinstance(value, bool) and expected is not bool):
                hint = " Functions are for the layers, see `models.DecoderBase`."
                raise ValueError(
                    f"`{field.name}` must be of type {_base_type(field).__name__}, received "
                    f"{describe(value)}.{hint if callable(value) else ''}"
                )

    def _check_ranges(self):
        for name, value in dataclasses.asdict(self).items():
            if is_int(value) and not abs(value) < 2**31:
                raise ValueError(f"`{name}` must be below 2**31, received {shorten(value)}.")
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"`{name}` must be at least 1, received {value}.")
        for name in _RATES:
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"`{name}` is a rate and must be in [0, 1), received {getattr(self, name)}."
                )
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not 1e-30 <= value <= 1e30:  # float32 counts no further
                raise ValueError(
                    f"`{name}` must be a positive number, received {value}. It may be from 1e-30 "
                    "to 1e30."
                )
        for name in _AT_LEAST_ZERO:
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"`{name}` must be at least 0, received {value}.")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"`{name}` must be one of {', '.join(map(repr, choices))}, received "
                    f"{shorten(getattr(self, name))}."
                )

    def _check_agreement(self):
        if self.num_heads % self.num_key_value_heads:
            raise ValueError(
                "`num_heads` must be a multiple of `num_key_value_heads`, received "
                f"{self.num_heads} and {self.num_key_value_heads}."
            )
        if self.pooler and self.kind != "encoder":
            raise ValueError(f"`pooler` needs kind='encoder', received kind={self.kind!r}.")
        if self.num_decoder_layers is not None and self.kind != "seq2seq":
            raise ValueError(
                f"`num_decoder_layers` needs kind='seq2seq', received kind={self.kind!r}."
            )
        if self.embedding_projection and self.kind != "encoder":
            raise ValueError(
                "`embedding_dim` and `embedding_projection` need kind='encoder', received "
                f"kind={self.kind!r}."
            )
        if self.embedding_dim != self.hidden_dim and not self.embedding_projection:
            raise ValueError(
                f"embedding_dim={self.embedding_dim} and hidden_dim={self.hidden_dim} need the "
                "`embedding_projection` between them."
            )
        if self.parallel_residual and (not self.normalize_first or self.kind == "seq2seq"):
            raise ValueError(
                "`parallel_residual` needs `normalize_first`, and a kind other than 'seq2seq'."
            )
        if self.num_layer_groups > self.num_layers:
            raise ValueError(
                f"num_layer_groups={self.num_layer_groups} is more than num_layers="
                f"{self.num_layers}."
            )
        if self.num_layer_groups < self.num_layers and self.kind == "seq2seq":
            raise ValueError("`num_layer_groups` needs kind 'encoder' or 'decoder'.")
        counted = self.kind == "encoder" and self.position == "learned" and self.position_offset
        if self.position_padding_id is not None and not counted:
            raise ValueError(
                "`position_padding_id` needs kind='encoder', position='learned' and a "
                "`position_offset` of at least 1."
            )
        rotated = self.head_dim if self.rotary_dim is None else self.rotary_dim
        if self.position == "rotary" and rotated + rotated % 2 > self.head_dim:
            raise ValueError(
                "position='rotary' needs an even `head_dim`, or a smaller `rotary_dim`, received "
                f"rotary_dim={self.rotary_dim} and head_dim={self.head_dim}."
            )
        if self.rotary_min_turns >= self.rotary_max_turns:
            raise ValueError(
                "`rotary_min_turns` must be below `rotary_max_turns`, received "
                f"{self.rotary_min_turns} and {self.rotary_max_turns}."
            )
        if self.position == "sinusoidal" and self.embedding_dim % 2:
            raise ValueError(
                f"position='sinusoidal' needs an even `hidden_dim`, received {self.embedding_dim}."
            )
        small = self.relative_num_buckets // 2  # of one direction
        if self.position == "relative" and not 2 <= small < self.relative_max_distance:
            raise ValueError(
                "position='relative' needs 4 or more `relative_num_buckets` and a "
                "`relative_max_distance` above half their number, received "
                f"{self.relative_num_buckets} and {self.relative_max_distance}."
            )

    def to_dict(self) -> dict[str, Any]:
        """All values as a JSON-ready dictionary."""
        return dataclasses.asdict(self)

    def stated(self) -> dict[str, Any]:
        """The values but for those that follow from others: `from_dict` gives the config back."""
        derived = self._derived()
        return {
            name: value
            for name, value in self.to_dict().items()
            if name not in derived or value != derived[name]
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TransformerConfig":
        """The config of a dictionary, as `to_dict` made it. Unknown or missing names raise."""
        if not isinstance(values, dict):
            raise ValueError(f"A config must be a dictionary, received {type(values).__name__}.")
        fields = {field.name: field for field in dataclasses.fields(cls)}
        unknown = sorted(map(str, set(values) - set(fields)))
        if unknown:
            raise ValueError(
                f"Unknown config values: {', '.join(unknown)}. Known are: "
                f"{', '.join(sorted(fields))}."
            )
        required = [n for n, f in fields.items() if f.default is dataclasses.MISSING]
        missing = [name for name in required if name not in values]
        if missing:
            raise ValueError(f"The config lacks the values: {', '.join(missing)}.")
        return cls(**values)

    def to_json(self) -> str:
        """All values as a JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> "TransformerConfig":
        """The config of a JSON text, as `to_json` made it."""
        return cls.from_dict(json.loads(text))

    def replace(self, **values) -> "TransformerConfig":
        """A copy with some values changed. Values that followed from others follow again."""
        return self.from_dict({**self.stated(), **values})


def _base_type(field: dataclasses.Field) -> type:
    kinds = (int, float, bool, str)
    return next(kind for kind in kinds if field.type in (kind, kind | None))
