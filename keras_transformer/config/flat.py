"""Configs by keyword: translation between the flat names of all options and parts.

`TransformerConfig(num_heads=8, ...)`, `from_preset(..., dropout=0.1)`, the keywords of the block
layers, and files of format 1 use these names. A new part does not need a flat name.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from keras_transformer.config.block import Block, Convolution, Residual
from keras_transformer.config.feed_forward import Dense, Experts, FeedForward
from keras_transformer.config.inputs import StemConfig, Tokens
from keras_transformer.config.mixers import SCORES, Attention, Mixer
from keras_transformer.config.norm import Norm
from keras_transformer.config.options import Part, check_option, option, part, refuse_unknown
from keras_transformer.config.outputs import (
    PROJECTORS,
    Logits,
    Placeholders,
    Projector,
    Similarity,
    Vector,
)
from keras_transformer.config.pattern import Blocks, Pattern, Window
from keras_transformer.config.positions import (
    ROTARY_SCALINGS,
    Learned,
    Position,
    Rotary,
    RotaryScaling,
    Sinusoidal,
)
from keras_transformer.config.score_bias import (
    ALiBi,
    Disentangled,
    GatedRelativeBias,
    GridBias,
    RelativeBias,
    ScoreBias,
)
from keras_transformer.config.side import MOST_LAYERS, Side
from keras_transformer.config.stems import STEMS
from keras_transformer.config.weight import NORMALIZATIONS
from keras_transformer.support.checking import describe, nearest, printable, shorten
from keras_transformer.support.foreign_names import check_options

KINDS = ("encoder", "decoder", "seq2seq", "dual")
SIDES = ("encoder", "decoder")
POSITIONS = ("none", "sinusoidal", "learned", "rotary", "relative", "alibi")

# Flat name of each value of a part -> its name within the part.
_TOKENS = {
    "vocabulary_size": "vocabulary_size",
    "segment_vocabulary_size": "segments",
    "dropped_token_id": "dropped_id",
}
_SIDE = {
    "hidden_dim": "hidden_dim",
    "num_layers": "num_layers",
    "embedding_dim": "embedding_dim",
    "num_layer_groups": "num_layer_groups",
    "layers_per_group": "layers_per_group",
    "embedding_normalization": "embedding_norm",
    "final_normalization": "final_norm",
    "max_sequence_length": "max_sequence_length",
    "initializer_range": "initializer_range",
    "bidirectional": "bidirectional",
    "causal": "causal",
}
_ATTENTION = {
    "num_heads": "num_heads",
    "num_key_value_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "key_bias": "key_bias",
    "attention_output_bias": "output_bias",
    "attention_soft_cap": "soft_cap",
    "attention_sinks": "sinks",
    "attention_gate": "output_gate",
    "attention_dropout": "dropout",
}
_FEED_FORWARD = {
    "activation": "activation", "gated": "gated", "gate_limit": "gate_limit", "use_bias": "bias",
}  # fmt: skip
_DENSE = {"feed_forward_output_bias": "output_bias", "softmax_gate": "softmax_gate"}
_EXPERTS = {
    "num_experts": "number",
    "experts_per_token": "per_token",
    "expert_dim": "dim",
    "shared_expert_dim": "shared_dim",
    "shared_expert_gate": "shared_gate",
    "normalize_expert_weights": "normalize_weights",
    "router_bias": "router_bias",
    "router": "router",
    "expert_capacity_factor": "capacity_factor",
    "load_balancing_factor": "load_balancing",
    "router_z_loss_factor": "z_loss",
}
_NORM = {"normalization": "type", "normalization_epsilon": "epsilon"}
_RESIDUAL = {
    "attention_normalization": "mixer_norm",
    "residual_scale": "scale",
    "trained_residual_scale": "trained_scale",
}
_CONVOLUTION = {"convolution_size": "size", "convolution_activation": "activation"}
_LEARNED = {"position_offset": "offset", "position_padding_id": "padding_id"}
_SINUSOIDAL = {
    "position_offset": "offset",
    "sinusoidal_interleaved": "interleaved",
    "sinusoidal_inclusive": "inclusive",
}
_ROTARY = {
    "rotary_base": "base", "rotary_dim": "dim", "rotary_interleaved": "interleaved",
    "rotary_direction": "direction", "rotary_precision": "precision",
}  # fmt: skip
_SCALING = {
    "rotary_scaling": "method",
    "rotary_factor": "factor",
    "rotary_min_turns": "low_freq_factor",
    "rotary_max_turns": "high_freq_factor",
    "rotary_original_length": "original_length",
    "rotary_truncate": "truncate",
    "rotary_short_factors": "short_factors",
    "rotary_long_factors": "long_factors",
    "rotary_attention_factor": "attention_factor",
    "rotary_query_growth": "query_growth",
}
_BUCKETS = {"relative_num_buckets": "num_buckets", "relative_max_distance": "max_distance"}
_RELATIVE = {**_BUCKETS, "relative_tables": "tables"}
_ALIBI = {"alibi_scale": "scale", "alibi_rounded": "rounded"}
_WINDOW = {
    "window": "size",
    "window_dilation": "dilation",
    "global_tokens": "global_tokens",
    "global_projection": "global_projection",
    "global_block_size": "group_size",
}
_BLOCKS = {"block_size": "size", "random_blocks": "random"}
_LOGITS = {
    "tie_embeddings": "tie",
    "output_bias": "bias",
    "logit_soft_cap": "soft_cap",
    "output_transform": "transform",
    "output_transform_bias": "transform_bias",
}
_VECTOR = {
    "vector_pooling": "pooling",
    "vector_end_id": "end_id",
    "vector_normalization": "normalize",
    "vector_dim": "dim",
    "vector_bias": "bias",
    "vector_activation": "activation",
    "vector_pooler": "pooler",
}
_SIMILARITY = {"similarity_bias": "bias", "similarity_text_scale": "text_scale"}
_PLACEHOLDERS = {
    "placeholder_id": "token_id",
    "placeholder_side": "side",
    "placeholders_counted": "counted",
    "placeholder_visibility": "visibility",
    "place_class_token": "class_token",
    "stacked_layers": "stacked_layers",
}
_PROJECTOR = {
    "projector": "type", "projector_activation": "activation", "projector_bias": "bias",
    "projector_pool": "pool", "projector_separator": "separator",
}  # fmt: skip
# Options that choose an attention pattern.
PATTERN = (*_WINDOW, *_BLOCKS)
ROTARY = (*_ROTARY, *_SCALING)
# Options of attention, which models of other mixers alone do not have.
_OF_ATTENTION = (
    *_ATTENTION, "attention_bias", "query_key_norm", "query_key_norm_across_heads",
    "query_key_norm_per_head", "score", "score_scale", "relative_bias", "grid_bias",
    "disentangled", *_RELATIVE, *_ALIBI, *PATTERN, *ROTARY,
)  # fmt: skip

_TABLES: tuple[tuple[type[Part], dict[str, str]], ...] = (
    (Tokens, _TOKENS), (Side, _SIDE), (Attention, _ATTENTION), (FeedForward, _FEED_FORWARD),
    (Dense, _DENSE),
    (Experts, _EXPERTS), (Norm, _NORM), (Residual, _RESIDUAL), (Convolution, _CONVOLUTION),
    (Learned, _LEARNED), (Sinusoidal, _SINUSOIDAL), (Rotary, _ROTARY), (RotaryScaling, _SCALING),
    (RelativeBias, _RELATIVE), (ALiBi, _ALIBI), (Window, _WINDOW), (Blocks, _BLOCKS),
    (Logits, _LOGITS), (Vector, _VECTOR), (Placeholders, _PLACEHOLDERS), (Projector, _PROJECTOR),
    (Block, {"dropout": "dropout"}), (Similarity, _SIMILARITY),
)  # fmt: skip


@part
class _Keywords:
    """Options that exist only as keywords: choices of a part, and values derived from others."""

    kind: str = option(
        '`"encoder"` (BERT-like), `"decoder"` (GPT-like), `"seq2seq"`, or `"dual"` '
        "(CLIP-like: an image encoder and a text decoder side by side).",
        of="model",
        choices=KINDS,
    )
    num_layers: int = option(
        'number of blocks (of encoder blocks for `"seq2seq"`).',
        of="side",
        least=1,
        most=MOST_LAYERS,
    )
    intermediate_dim: int = option(
        "width of the feed-forward layer, d_ff in the paper. 0 for blocks without one (Mamba).",
        least=0,
    )
    mixer: Mixer | None = option(
        "a mixer in place of attention: a dict with the `kind` of a `config.Mixer` and its values, "
        'such as `{"kind": "short_convolution", "size": 3}`; or an attention with values that have '
        'no keyword, `{"kind": "attention", ...}`.',
        None,
    )
    num_decoder_layers: int | None = option(
        '`"seq2seq"` only: number of decoder blocks. Defaults to `num_layers`.',
        None,
        of="model",
        least=1,
        most=MOST_LAYERS,
    )
    embedding_projection: bool | None = option(
        "a dense layer between embeddings and blocks. Defaults to True if their widths differ.",
        None,
        of="side",
    )
    token_projection: bool = option(
        '`"decoder"` only. `embedding_dim` applies to tokens alone: a dense layer without '
        "bias widens them for positions and blocks, and a second one narrows the states before the "
        "logits (OPT-350m).",
        False,
        of="model",
    )
    share_embeddings: bool | None = option(
        '`"seq2seq"` only: both sides use one token embedding. Defaults to True if both sides '
        "need the same size.",
        None,
        of="model",
    )
    use_bias: bool = option(
        "biases in the projections: of the feed-forward layer, and default of the attention "
        "biases below.",
        True,
    )
    attention_bias: bool | None = option(
        "biases of query, key and value. Defaults to `use_bias`.", None
    )
    query_key_norm: bool = option("normalize each head's queries and keys.", False)
    query_key_norm_across_heads: bool = option(
        "`query_key_norm` normalizes the queries and the keys of all heads together.", False
    )
    query_key_norm_per_head: bool = option(
        "`query_key_norm` has a weight for each head, and no bias (Cohere).", False
    )
    query_key_norm_after_rotation: bool = option(
        "`query_key_norm` normalizes the rotated queries and keys (Hunyuan).", False
    )
    normalize_first: bool = option("pre-norm when True, post-norm when False.", False)
    normalize_output: bool = option(
        "normalize a sub-layer's output before it is added to the residual: in addition to "
        "pre-norm (Gemma 2), or instead of post-norm (OLMo 2).",
        False,
    )
    parallel_residual: bool = option(
        "the feed-forward layer is parallel to the attention instead of after it. Needs "
        "`normalize_first`.",
        False,
    )
    share_normalization: bool = option(
        "one norm for both sub-layers of a `parallel_residual` (GPT-J).", False
    )
    convolution_size: int = option(
        '`"encoder"` only. A convolution over this many neighbouring tokens, an odd number, '
        "of a block's input, added to its output (DeBERTa v2). 0 disables it.",
        0,
        least=0,
    )
    score: str = option(
        "score function of the attention, see `layers.MultiHeadAttention`.",
        "scaled_dot",
        choices=SCORES,
    )
    score_scale: float | None = option(
        'factor of `"scaled_dot"`. Defaults to `head_dim ** -0.5`.', None, positive=True
    )
    position: str = option(
        '`"none"`, `"sinusoidal"`, `"learned"`, `"rotary"`, `"relative"` or `"alibi"`. Layers '
        'of one stack may only differ in `"rotary"` and `"none"`.',
        "sinusoidal",
        choices=POSITIONS,
    )
    rotary_scaling: str | None = option(
        'method to stretch the wavelengths for sequences longer than in training: `"linear"`, '
        '`"llama3"`, `"yarn"`, `"dynamic"` or `"longrope"`, see `layers.RotaryEmbedding`.',
        None,
        choices=(None, *ROTARY_SCALINGS),
    )
    relative_bias: bool | None = option(
        "T5's bias on the scores, which can be combined with other positions (MPNet). "
        'Defaults to True if `position` is `"relative"`.',
        None,
        of="side",
    )
    grid_bias: str | None = option(
        "a trained bias on the scores for each distance on the grid of a stem of patches: "
        '`"own"` to each layer, or `"shared"` by all (BEiT).',
        None,
        of="side",
        choices=(None, "own", "shared"),
    )
    disentangled: str | None = option(
        "score contents with relative positions (DeBERTa), see `layers.MultiHeadAttention`.",
        None,
        of="model",
        choices=(None, "shared", "own"),
    )
    window: int | None = option(
        "attend to at most this many neighbouring tokens. None disables it.", None, least=1
    )
    block_size: int | None = option(
        '`"encoder"` only, instead of a `window`: attend to the token\'s own block of this '
        "many tokens, to its neighbours, and to the first and last blocks, which attend to "
        "all (BigBird).",
        None,
        least=1,
    )
    num_experts: int = option(
        "number of experts, see `layers.MixtureOfExperts`. 0 for a dense feed-forward layer.",
        0,
        least=0,
    )
    expert_dim: int | None = option(
        "width of an expert. Defaults to `intermediate_dim`.", None, least=1
    )
    scale_embedding: bool = option(
        "multiply the token embedding by `sqrt(hidden_dim)`.", False, of="model"
    )
    embedding_scale: float | None = option(
        "factor of the token embedding (Granite). Defaults to the factor of "
        "`scale_embedding`, or 1.",
        None,
        of="model",
        positive=True,
    )
    scale_logits: bool = option(
        "divide the states by `sqrt(hidden_dim)` before the output projection (T5).",
        False,
        of="model",
    )
    logit_scale: float | None = option(
        "factor of the states before the output projection (Cohere). Defaults to the factor "
        "of `scale_logits`, or 1.",
        None,
        of="model",
        positive=True,
    )
    pooler: bool = option(
        '`"encoder"` only. A dense tanh layer on the first state (BERT).', False, of="model"
    )
    mean_pooler: bool = option(
        '`"encoder"` only. `pool` returns the normalized mean of the states, without the '
        "special tokens of the stem (BEiT).",
        False,
        of="model",
    )
    vector_pooling: str | None = option(
        'how the vector of a side is pooled from its states, for a `"dual"` or a single side: '
        'the state at the `"first"` position, at the first `"end"` token, at the `"last"` '
        "position, padding or not (SigLIP's texts), or a trained query's `\"attention\"`, with "
        "a feed-forward layer (SigLIP's images), or the `\"mean\"` of the states (CLAP's sound). "
        "None for a model without vectors.",
        None,
        of="side",
        choices=(None, *Vector.__dataclass_fields__["pooling"].metadata["choices"]),
    )
    placeholder_id: int | None = option(
        Placeholders.__dataclass_fields__["token_id"].metadata["doc"], None, of="model", least=0
    )
    projector: str = option(
        "`\"seq2seq\"` only. Layers that map the encoder's states to the decoder's width: "
        '`"none"`, one `"linear"` layer (PaliGemma, and models with cross-attention), a '
        '`"normalized"` one (GIT), one on a norm of the means of squares of patches, `"pooled"` '
        '(Gemma 3), one on the joined states of such squares, `"shuffled"` (Idefics 3), two, '
        '`"mlp"` (LLaVA), two on a norm of joined states, `"shuffled_mlp"` (InternVL), or on '
        'joined states that are normalized before, `"merged"` (Qwen2-VL), or three on these, of '
        'which the first joins them to one of the same width, `"merged_mlp"` (Mistral 3), or one '
        'on a norm without weights of the means of such states, `"merged_mean"` (Gemma 4).',
        "none",
        of="model",
        choices=PROJECTORS,
    )
    stem: StemConfig | None = option(
        "embedding of inputs other than token ids: a dict with the `kind` of a stem, one of "
        "`config.STEMS`, and its values. For an encoder, whose `vocabulary_size` is then "
        "0. Stored as a `StemConfig`.",
        None,
        of="side",
    )
    source: dict | None = option(
        '`"seq2seq"` only: an additional encoder that the encoder attends to, given by the '
        "values that differ in it; for example an image encoder for questions about the image "
        "(BLIP). None disables it.",
        None,
        of="overrides",
    )
    encoder: dict | None = option(
        "two-sided models only: values that differ in the encoder, by name.", None, of="overrides"
    )
    decoder: dict | None = option(
        "two-sided models only: values that differ in the decoder, by name.", None, of="overrides"
    )
    layer_pattern: tuple | list | None = option(
        "values that differ from layer to layer: a dict for each layer, repeated over the "
        'depth, such as `[{"window": 512}, {"window": 512}, {}]`.',
        None,
        of="overrides",
    )


def _options() -> dict[str, SimpleNamespace]:
    """Return all options by their flat names, each like a dataclass field."""
    found = {}
    for known, table in _TABLES:
        fields = known.__dataclass_fields__
        own = {ours: f"`{flat}`" for flat, ours in table.items() if flat != ours}
        for flat, ours in table.items():
            field = fields[ours]

            def named(match, own=own):
                return own.get(match[1], match[0])

            doc = re.sub(r"`(\w+)`", named, field.metadata["doc"])
            found.setdefault(flat, _option(flat, field, {**field.metadata, "doc": doc}))
    fields = _Keywords.__dataclass_fields__
    found |= {name: _option(name, field, field.metadata) for name, field in fields.items()}
    first = ("kind", "vocabulary_size", "hidden_dim", "num_layers", "num_heads", "intermediate_dim")
    return {name: found[name] for name in (*first, *fields, *found)}


def _option(name: str, field: Any, known: Mapping[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(name=name, type=field.type, default=field.default, metadata=known)


FIELDS = _options()
OPTIONS = {name: field.metadata for name, field in FIELDS.items()}
CHANGEABLE = frozenset(name for name, known in OPTIONS.items() if known["changeable"])
DEFAULTS = {name: field.default for name, field in FIELDS.items()}
_REQUIRED = [name for name, default in DEFAULTS.items() if default is dataclasses.MISSING]
_BELOW = {
    "side": tuple(n for n, known in OPTIONS.items() if known["of"] in ("side", "layer")),
    "layer": tuple(n for n, known in OPTIONS.items() if known["of"] == "layer"),
}


def check_names(values: Any) -> None:
    """Raise ValueError if the values for a config have missing or unknown names."""
    if not isinstance(values, dict):
        raise ValueError(f"A config must be a dictionary, received {type(values).__name__}.")
    unknown = sorted(map(str, set(values) - set(OPTIONS)))
    if unknown:
        check_options("TransformerConfig", unknown, OPTIONS)
        unknown = [printable(name, one_line=True) for name in unknown]
        raise ValueError(
            f"Unknown config values: {', '.join(unknown)}. Known are: "
            f"{', '.join(sorted(OPTIONS))}.{nearest(unknown[0], OPTIONS)}"
        )
    no_attention = values.get("mixer") is not None
    missing = [
        name
        for name in _REQUIRED
        if name not in values and not (name == "num_heads" and no_attention)
    ]
    if missing:
        raise ValueError(f"The config lacks the values: {', '.join(missing)}.")


def parts(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a `TransformerConfig` for values by flat names.

    Raises:
        ValueError: if values are unknown, out of range or contradict each other.
    """
    given = _checked(values)
    kind = given["kind"]
    _check_kind(given, kind)
    stated = without_derived(given)
    # Parts of the whole model.
    model: dict[str, Any] = {"logits": _logits(stated)}
    if kind == "dual":
        model["similarity"] = Similarity(**_taken(given, _SIMILARITY))
    if kind == "seq2seq":
        model["share_embeddings"] = given.get("share_embeddings")
        if given.get("placeholder_id") is not None:
            model["placeholders"] = Placeholders(**_taken(given, _PLACEHOLDERS))
        if given.get("projector", "none") != "none":
            model["projector"] = Projector(**_taken(given, _PROJECTOR))
    if kind in SIDES:
        return {**model, kind: side(stated, kind)}
    names = SIDES if given.get("source") is None else ("source", *SIDES)
    for name in names:
        own = given.get(name) or {}
        _check_own(name, own, (*_BELOW["side"], "layer_pattern"))
        if name == "decoder" and kind == "seq2seq":
            depth = own.get("num_layers", given.get("num_decoder_layers"))
            depth = given["num_layers"] if depth is None else depth
            if given.get("num_decoder_layers") not in (None, depth):
                raise ValueError(
                    f"num_decoder_layers={given['num_decoder_layers']} and decoder="
                    f"{{'num_layers': {depth}}} contradict each other. Give one of them."
                )
            own = {**own, "num_layers": depth}
        own = _checked({**stated, **own}, base=False)
        model[name] = side(own, "decoder" if name == "decoder" else "encoder")
    return model


def _checked(values: Mapping[str, Any], base: bool = True) -> dict[str, Any]:
    """Check the type and range of each value; leave out each None that is the default."""
    found = {}
    for name, value in values.items():
        if value is None and DEFAULTS[name] is None:
            continue
        if value is not DEFAULTS[name]:
            value = _stem(value) if name == "stem" else check_option(name, value, FIELDS[name])
        found[name] = value
    if base:
        for name in ("source", *SIDES):
            if name in found:
                _check_overrides(name, found[name], found["kind"])
    return found


def _stem(values: Any) -> StemConfig:
    """Return the stem config that a dict of values describes."""
    if isinstance(values, StemConfig):
        return values
    kind = values.get("kind") if isinstance(values, Mapping) else None
    if not isinstance(kind, str) or kind not in STEMS:
        raise ValueError(
            "`stem` must be a dict of values with the 'kind' of the stem, one of "
            f"{', '.join(map(repr, STEMS))}, received {shorten(values)}."
        )
    return StemConfig.from_dict(values)


def _check_overrides(name: str, own: Any, kind: str) -> None:
    kinds = ("seq2seq", "dual")[: 1 if name == "source" else 2]
    if kind not in kinds:
        raise ValueError(
            f"`{name}` needs kind={' or '.join(map(repr, kinds))}, received kind={kind!r}. Give "
            "the values themselves."
        )
    _check_own(name, own, (*_BELOW["side"], "layer_pattern"))
    if not own:
        raise ValueError(
            f"`{name}` must hold values by name, such as {{'num_heads': 4}}, received "
            f"{describe(own)}."
        )


def _check_own(name: str, own: Any, allowed: Iterable[str]) -> None:
    if not isinstance(own, dict):
        raise ValueError(
            f"`{name}` must hold values by name, such as {{'num_heads': 4}}, received "
            f"{describe(own)}."
        )
    allowed = tuple(allowed)
    wrong = [each for each in own if each not in allowed]
    if wrong:
        raise ValueError(
            f"`{name}` cannot have its own {shorten(wrong[0])}, only: {', '.join(allowed)}."
        )


# Flat names of options -> the kinds of models that have them. Sides check their own options.
_OF_KINDS = {
    "num_decoder_layers": ("seq2seq",), "share_embeddings": ("seq2seq",),
    **dict.fromkeys((*_PLACEHOLDERS, *_PROJECTOR), ("seq2seq",)),
    "pooler": ("encoder",), "mean_pooler": ("encoder",), "convolution_size": ("encoder",),
    "disentangled": ("encoder",), "token_projection": ("decoder",),
    "output_transform": ("decoder", "seq2seq"),
    "output_transform_bias": ("decoder", "seq2seq"), "bidirectional": ("dual",),
    **dict.fromkeys(_SIMILARITY, ("dual",)),
}  # fmt: skip


def _check_kind(given: Mapping[str, Any], kind: str) -> None:
    """Raise ValueError if an option is for another kind of model, or lacks the one it needs."""
    for name, kinds in _OF_KINDS.items():
        value = given.get(name)
        if value is not None and value != DEFAULTS[name] and kind not in kinds:
            raise ValueError(
                f"`{name}` needs kind={' or '.join(map(repr, kinds))}, received kind={kind!r}."
            )
    if given.get("embedding_projection") and kind != "encoder":
        raise ValueError(
            "`embedding_dim` and `embedding_projection` need kind='encoder', received "
            f"kind={kind!r}."
        )
    if kind == "seq2seq" and given.get("vector_pooling") is not None:
        raise ValueError(f"`vector_pooling` needs kind='dual', received kind={kind!r}.")
    for table, choice in ((_PLACEHOLDERS, "placeholder_id"), (_PROJECTOR, "projector")):
        if given.get(choice, DEFAULTS[choice]) == DEFAULTS[choice]:
            further = [n for n in table if given.get(n, DEFAULTS[n]) != DEFAULTS[n]]
            if further:
                raise ValueError(f"`{further[0]}` needs a `{choice}`.")


def _needs(values: Mapping[str, Any], table: Iterable[str], choice: str) -> None:
    """Raise ValueError if an option of a part is given, and the part is not chosen."""
    given = [n for n in table if n != choice and values.get(n, DEFAULTS[n]) != DEFAULTS[n]]
    if given:
        raise ValueError(f"`{given[0]}`={shorten(values[given[0]])} needs a `{choice}`.")


def _taken(values: Mapping[str, Any], table: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a part, by its own names."""
    return {ours: values[flat] for flat, ours in table.items() if flat in values}


def _logits(values: Mapping[str, Any]) -> Logits:
    scale = values.get("logit_scale")
    if scale is None:
        scale = "rsqrt" if values.get("scale_logits") else 1.0
    return Logits(scale=scale, **_taken(values, _LOGITS))


def side(values: Mapping[str, Any], kind: str) -> Side:
    """Return a side of this kind, `"encoder"` or `"decoder"`, for values by flat names."""
    block_of = block(values)
    pattern = values.get("layer_pattern")
    layers = []
    if pattern is not None and not pattern:
        raise ValueError("`layer_pattern` must have a dict for each layer, received ().")
    for i, own in enumerate(pattern or ()):
        _check_own(f"layer_pattern[{i}]", own, _BELOW["layer"])
        merged = _checked({**values, **own}, base=False)
        kinds = {values.get("position", "sinusoidal"), merged.get("position", "sinusoidal")}
        if len(kinds) > 1 and not kinds <= {"rotary", "none"}:
            raise ValueError(
                f"layer_pattern[{i}] has position={merged['position']!r}, and the stack "
                f"{values.get('position', 'sinusoidal')!r}: only 'rotary' and 'none' may differ "
                "between layers."
            )
        layers.append(block(merged))
    mixers = [mixer for each in (block_of, *layers) for mixer in each.mixer.every_mixer]
    if not any(isinstance(mixer, Attention) for mixer in mixers):
        _refuse_attention(values)
    if values.get("token_projection"):
        projection = "tokens"
    else:
        wanted = values.get("embedding_projection")
        width = values.get("embedding_dim") or values["hidden_dim"]
        if wanted is False and width != values["hidden_dim"]:
            raise ValueError(
                f"embedding_dim={width} and hidden_dim={values['hidden_dim']} differ, which needs "
                "`embedding_projection`: leave it out, or give True."
            )
        projection = "sum" if wanted else None
    if values.get("pooler") and values.get("mean_pooler"):
        raise ValueError("`pooler` and `mean_pooler` are two poolers. Give one of them.")
    pooler = "tanh" if values.get("pooler") else "mean" if values.get("mean_pooler") else None
    if values.get("vector_pooling") is None:
        vector = None
        if values["kind"] in SIDES:
            _needs(values, [each for each in _VECTOR if each != "vector_end_id"], "vector_pooling")
    else:
        vector = Vector(**_taken(values, _VECTOR))
    return Side(
        input=_input(values),
        block=block_of,
        layers=tuple(layers),
        position=_added_position(values, kind),
        embedding_projection=projection,
        pooler=pooler,
        vector=vector,
        **_taken(values, _SIDE),
    )


def _refuse_attention(values: Mapping[str, Any]) -> None:
    """Raise ValueError if there are values of an attention, and no layer has one."""
    given = [name for name in _OF_ATTENTION if values.get(name, DEFAULTS[name]) != DEFAULTS[name]]
    if values.get("position") in ("rotary", "relative", "alibi"):
        given.append("position")
    if given:
        raise ValueError(
            f"`{given[0]}`={shorten(values[given[0]])} needs attention, but the `mixer` of every "
            "layer is another one. Leave it out."
        )


def _input(values: Mapping[str, Any]) -> StemConfig:
    stem = values.get("stem")
    if stem is not None:
        if isinstance(stem, Tokens) or values["vocabulary_size"]:
            raise ValueError(
                "`stem` needs an encoder with vocabulary_size=0, also as a side of kind='seq2seq' "
                "or 'dual': `encoder={'stem': ...}`. Received vocabulary_size="
                f"{values['vocabulary_size']}."
            )
        return stem
    scale = values.get("embedding_scale")
    if scale is None:
        scale = "sqrt" if values.get("scale_embedding") else 1.0
    return Tokens(scale=scale, **_taken(values, _TOKENS))


def _added_position(values: Mapping[str, Any], kind: str) -> Position | None:
    name = values.get("position", "sinusoidal")
    whole = kind == "encoder" or values.get("bidirectional")
    counted = whole and name == "learned" and values.get("position_offset")
    if values.get("position_padding_id") is not None and not counted:
        raise ValueError(
            "`position_padding_id` needs kind='encoder', or a `bidirectional` side of texts, "
            "position='learned' and a `position_offset` of at least 1."
        )
    if name == "learned":
        return Learned(**_taken(values, _LEARNED))
    return Sinusoidal(**_taken(values, _SINUSOIDAL)) if name == "sinusoidal" else None


def block(values: Mapping[str, Any]) -> Block:
    """Return the block for values by flat names."""
    convolution = None
    if values.get("convolution_size"):
        convolution = Convolution(**_taken(values, _CONVOLUTION))
    mixer = values.get("mixer")
    return Block(
        mixer=attention(values) if mixer is None else mixer,
        feed_forward=feed_forward(values),
        norm=Norm(**_taken(values, _NORM)),
        residual=Residual(order=_order(values), **_taken(values, _RESIDUAL)),
        convolution=convolution,
        **_taken(values, {"dropout": "dropout"}),
    )


# Values of the flat options normalize_first, normalize_output, parallel_residual and
# share_normalization -> the order of a residual that they select.
_ORDERS = {
    (False, False, False, False): "post",
    (True, False, False, False): "pre",
    (True, True, False, False): "sandwich",
    (False, True, False, False): "output",
    (True, False, True, False): "parallel",
    (True, False, True, True): "parallel_shared",
}
_ORDER_NAMES = (
    "normalize_first", "normalize_output", "parallel_residual", "share_normalization",
)  # fmt: skip


def _order(values: Mapping[str, Any]) -> str:
    chosen = tuple(bool(values.get(name, False)) for name in _ORDER_NAMES)
    first, _, parallel, shared = chosen
    if parallel and not first:
        raise ValueError("`parallel_residual` needs `normalize_first`.")
    if shared and not (parallel and values.get("attention_normalization", True)):
        raise ValueError(
            "`share_normalization` needs `parallel_residual` and `attention_normalization`."
        )
    if chosen not in _ORDERS:
        raise ValueError("`parallel_residual` and `normalize_output` cannot be combined.")
    return _ORDERS[chosen]


def attention(values: Mapping[str, Any]) -> Attention:
    """Return the attention for values by flat names."""
    score, scale = values.get("score", "scaled_dot"), values.get("score_scale")
    if scale is not None and score != "scaled_dot":
        raise ValueError(f"`score_scale` needs score='scaled_dot', received score={score!r}.")
    if values.get("disentangled") and score != "scaled_dot":
        raise ValueError(f"`disentangled` needs score='scaled_dot', received {score!r}.")
    if isinstance(score, str) and score == "dot":
        score, scale = "scaled_dot", 1.0
    bias = values.get("attention_bias")
    slots = values.get("max_sequence_length") if score == "location" else None
    return Attention(
        slots=slots,
        bias=values.get("use_bias", True) if bias is None else bias,
        query_key_norm=_query_key_norm(values),
        score=score,
        scale=scale,
        position=rotary(values),
        score_bias=score_bias(values),
        pattern=pattern(values),
        **_taken(values, _ATTENTION),
    )


# Keywords of `layers.MultiHeadAttention` that have another name in `Attention` -> that name.
_OF_LAYER = {
    "use_bias": "bias",
    "score_scale": "scale",
    "attention_soft_cap": "soft_cap",
    "attention_sinks": "sinks",
    "attention_gate": "output_gate",
    "max_sequence_length": "slots",
}
_NORMS_OF_HEADS = (
    "query_key_norm_across_heads", "query_key_norm_per_head", "query_key_norm_after_rotation",
    "normalization_epsilon",
)  # fmt: skip
ATTENTION_KEYWORDS = frozenset({
    *(field.name for field in dataclasses.fields(Attention)), *_OF_LAYER, *_NORMS_OF_HEADS,
    *PATTERN, "rotary", "disentangled",
})  # fmt: skip


def attention_by_keywords(values: Mapping[str, Any]) -> tuple[Attention, Norm]:
    """Return the attention, and the norm of its heads, for keywords of `MultiHeadAttention`."""
    given = {name: value for name, value in values.items() if value is not None}
    kind = given.pop("query_key_norm", None)
    norms = {name: given.pop(name) for name in _NORMS_OF_HEADS if name in given}
    norm = Norm(epsilon=norms.pop("normalization_epsilon", 1e-6))
    if kind in NORMALIZATIONS:  # the keyword was the kind of the norm
        norm, kind = norm.replace(type=kind), _query_key_norm({**norms, "query_key_norm": True})
        if kind == "per_head":
            Block.check_head_norm(norm)
    elif norms:
        kind = _query_key_norm({**norms, "query_key_norm": kind is not None})
    parts_ = {"pattern": pattern({name: given.pop(name) for name in PATTERN if name in given})}
    if "rotary" in given:
        parts_["position"] = rotary(_with_rotary(given.pop("rotary")))
    if "disentangled" in given:
        parts_["score_bias"] = Disentangled(projections=given.pop("disentangled"))
    if isinstance(given.get("score"), str) and given["score"] == "dot":
        if "score_scale" in given:
            raise ValueError("`score_scale` needs score='scaled_dot', received score='dot'.")
        given |= {"score": "scaled_dot", "scale": 1.0}
    for flat, ours in _OF_LAYER.items():
        if flat in given:
            given[ours] = given.pop(flat)
    parts_ = {name: each for name, each in parts_.items() if each is not None}
    return Attention(query_key_norm=kind, **given, **parts_), norm


def _with_rotary(values: Any) -> dict[str, Any]:
    """Return flat values for the options of `layers.RotaryEmbedding`."""
    if not isinstance(values, Mapping):
        raise ValueError(f"`rotary` must be a dict of options, received {describe(values)}.")
    named = {f"rotary_{name}": value for name, value in values.items()}
    unknown = [name for name in named if name not in ROTARY]
    if unknown:
        known = [name.removeprefix("rotary_") for name in ROTARY]
        refuse_unknown("`rotary`", values, known)
    return {"position": "rotary", **{n: v for n, v in named.items() if v is not None}}


# Keywords of the block layers: the options of a layer, and options that only the layers take.
BLOCK_KEYWORDS = (
    frozenset(_BELOW["layer"]) - {"position", "mixer", *ROTARY}
    | {"rotary", "disentangled", "max_sequence_length"}
)  # fmt: skip


def block_by_keywords(values: Mapping[str, Any]) -> Block:
    """Return the block for keywords of `layers.EncoderBlock`."""
    given = {name: value for name, value in values.items() if value is not None}
    turned = given.pop("rotary", None)
    return block({**given, **({"position": "none"} if turned is None else _with_rotary(turned))})


def _query_key_norm(values: Mapping[str, Any]) -> str | None:
    across, each, rotated = (
        values.get(f"query_key_norm_{end}", False)
        for end in ("across_heads", "per_head", "after_rotation")
    )
    wanted = values.get("query_key_norm", False)
    if across and not wanted:
        raise ValueError("`query_key_norm_across_heads` needs `query_key_norm`.")
    if each and not wanted:
        raise ValueError(
            "`query_key_norm_per_head` needs `query_key_norm` and a LayerNorm, 'layer_norm' or "
            "'layer_norm_no_bias'."
        )
    if across and each:
        raise ValueError(
            "`query_key_norm_per_head` and `query_key_norm_across_heads` are two norms. Give "
            "one of them."
        )
    if rotated and (across or each or not wanted):
        raise ValueError(
            "`query_key_norm_after_rotation` needs `query_key_norm`, and is a third norm beside "
            "`query_key_norm_per_head` and `query_key_norm_across_heads`."
        )
    if rotated:
        return "rotated"
    return "per_head" if each else "across" if across else "head" if wanted else None


def rotary(values: Mapping[str, Any]) -> Rotary | None:
    """Return the rotation for values by flat names, or None."""
    scaling = None
    if values.get("rotary_scaling") is not None:
        scaling = RotaryScaling(**_taken(values, _SCALING))
    else:
        turns = [values.get(f"rotary_{end}_turns", n) for end, n in (("min", 1.0), ("max", 32.0))]
        RotaryScaling(method="yarn", low_freq_factor=turns[0], high_freq_factor=turns[1])
        for name in ("rotary_short_factors", "rotary_long_factors"):
            if values.get(name):
                raise ValueError(
                    f"`{name}` needs rotary_scaling='longrope', received {shorten(values[name])} "
                    "with rotary_scaling=None."
                )
        for name in ("rotary_attention_factor", "rotary_query_growth"):
            if values.get(name) is not None:
                raise ValueError(
                    f"`{name}` needs a `rotary_scaling`, received {values[name]} with "
                    "rotary_scaling=None."
                )
    if values.get("position", "sinusoidal") != "rotary":
        return None
    return Rotary(scaling=scaling, **_taken(values, _ROTARY))


def score_bias(values: Mapping[str, Any]) -> ScoreBias | None:
    """Return the position bias of the scores for values by flat names, or None."""
    position, relative = values.get("position", "sinusoidal"), values.get("relative_bias")
    if position != "alibi" and any(values.get(n, DEFAULTS[n]) != DEFAULTS[n] for n in _ALIBI):
        raise ValueError(
            f"`alibi_scale` and `alibi_rounded` need position='alibi', received {position!r}."
        )
    contradicted = "alibi" if relative else "relative"
    if relative is not None and position == contradicted:
        raise ValueError(
            f"relative_bias={relative} and position={position!r} contradict each other."
        )
    found: list[ScoreBias] = []
    if relative or position == "relative":
        found.append(RelativeBias(**_taken(values, _RELATIVE)))
    if position == "alibi":
        found.append(ALiBi(**_taken(values, _ALIBI)))
    if values.get("grid_bias"):
        if found:
            raise ValueError(
                "`grid_bias` cannot be combined with another position bias on the scores."
            )
        found.append(GridBias(tables=values["grid_bias"]))
    if values.get("disentangled"):
        if found:
            raise ValueError(
                "`disentangled` cannot be combined with another position bias on the scores."
            )
        own = _taken(values, _BUCKETS)
        found.append(Disentangled(projections=values["disentangled"], **own))
    return found[0] if found else None


def pattern(values: Mapping[str, Any]) -> Pattern | None:
    """Return the attention pattern for values by flat names, or None."""
    if values.get("window") is None:
        _needs(values, _WINDOW, "window")
    if values.get("block_size") is None:
        _needs(values, _BLOCKS, "block_size")
    if values.get("window") is not None:
        if values.get("block_size") is not None:
            raise ValueError(
                f"window={values['window']} and block_size={values['block_size']} are two "
                "patterns. Give one of them."
            )
        return Window(**_taken(values, _WINDOW))
    return None if values.get("block_size") is None else Blocks(**_taken(values, _BLOCKS))


def feed_forward(values: Mapping[str, Any]) -> FeedForward | None:
    """Return the feed-forward layer for values by flat names, or None."""
    own = _taken(values, _FEED_FORWARD)
    width = values["intermediate_dim"]
    if not values.get("num_experts"):
        if width == 0:
            return None
        return Dense(dim=width, **own, **_taken(values, _DENSE))
    if values.get("feed_forward_output_bias") is not None:
        raise ValueError("`feed_forward_output_bias` and `num_experts` cannot be combined.")
    experts = {"dim": width, **_taken(values, _EXPERTS)}
    return Experts(intermediate_dim=None if experts["dim"] == width else width, **experts, **own)


# Parts back to flat names.


def values_of(config: Any) -> dict[str, Any]:
    """Return all values of a config by flat names, including those that follow from others.

    The values of a two-sided model are its decoder's; `encoder` holds the values that differ in its
    encoder. A model without attention has no values of an attention.
    """
    kind, names = config.kind, config.side_names
    main = getattr(config, names[-1])
    values = {**DEFAULTS, "kind": kind, **_side_values(main), **_logit_values(config, main)}
    if kind == "dual":
        values |= _given(config.similarity, _SIMILARITY)
    if kind == "seq2seq":
        values["share_embeddings"] = config.share_embeddings
        values["num_decoder_layers"] = main.num_layers
        depth = ("num_layers", "num_layer_groups")  # the keywords mean the encoder
        own = dict(values)
        values |= {name: getattr(config.encoder, name) for name in depth}
        values["decoder"] = _differing(own, values, depth[1:]) or None
        values |= _given(config.placeholders, _PLACEHOLDERS) | _given(config.projector, _PROJECTOR)
    values = {name: each for name, each in values.items() if each is not dataclasses.MISSING}
    if len(names) == 1:
        return values
    for name in names[:-1]:
        if name in ("queries", "sound"):  # which no keyword describes
            continue
        own = {**values, **DEFAULTS, **_side_values(getattr(config, name))}
        shared = {**values, "encoder": None, "decoder": None}
        found = _differing(own, shared, (*_BELOW["side"], "layer_pattern"))
        known = {n: each for n, each in found.items() if each is not dataclasses.MISSING}
        values[name] = known or None
    return values


def _differing(own: Mapping, shared: Mapping, names: Iterable[str]) -> dict[str, Any]:
    """Return the values of `own` that differ from `shared`, whether stated or derived."""
    stated, base = without_derived(own), without_derived(shared)
    found = {}
    for name in names:
        if (name in stated and (name not in base or stated[name] != base[name])) or (
            name not in stated and name in base
        ):
            found[name] = own[name]
    return found


def _given(one: Part | None, table: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a part by their keywords, or an empty dict without a part."""
    return {} if one is None else {flat: getattr(one, ours) for flat, ours in table.items()}


def _logit_values(config: Any, main: Side) -> dict[str, Any]:
    logits = config.logits
    return {
        **_given(logits, _LOGITS),
        "scale_logits": logits.scale == "rsqrt",
        "logit_scale": logits.factor(main.hidden_dim),
    }


def _side_values(one: Side) -> dict[str, Any]:
    tokens = isinstance(one.input, Tokens)
    values = {
        **_given(one, _SIDE),
        **_given(one.vector, _VECTOR),
        "vocabulary_size": 0,
        "stem": None if tokens else {"kind": one.input.kind, **one.input.values()},
        "scale_embedding": False,
        "embedding_scale": 1.0,
        "embedding_projection": one.embedding_projection == "sum",
        "token_projection": one.embedding_projection == "tokens",
        "pooler": one.pooler == "tanh",
        "mean_pooler": one.pooler == "mean",
        "position": "none",
        **({} if one.attention is None else _attention_values(one.attention)),
        **block_values(one.block),
    }
    if tokens:
        values |= _given(one.input, _TOKENS)
        values["scale_embedding"] = one.input.scale == "sqrt"
        values["embedding_scale"] = one.input.factor(one.embedding_dim)
    if isinstance(one.position, Learned):
        values |= {"position": "learned", **_given(one.position, _LEARNED)}
    elif isinstance(one.position, Sinusoidal):
        values |= {"position": "sinusoidal", **_given(one.position, _SINUSOIDAL)}
    base = values
    if one.layers:
        values["layer_pattern"] = tuple(_layer_values(each, base) for each in one.layers)
    return values


def _layer_values(one: Block, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a layer that differ from those of its side."""
    own = block_values(one)
    if own.get("position") != "rotary" and base["position"] in ("learned", "sinusoidal"):
        own["position"] = base["position"]  # added to the states of all layers
    side_values = {**DEFAULTS, **base}
    return _differing({**side_values, **own}, side_values, own)


def block_values(one: Block) -> dict[str, Any]:
    """Return the values of a block by flat names, for the parts that it has."""
    order = next(chosen for chosen, name in _ORDERS.items() if name == one.residual.order)
    convolution = _given(one.convolution, _CONVOLUTION) or {"convolution_size": 0}
    return {
        **_mixer_values(one.mixer),
        **_feed_forward_values(one.feed_forward),
        **_given(one.norm, _NORM),
        **_given(one.residual, _RESIDUAL),
        **dict(zip(_ORDER_NAMES, order, strict=True)),
        **convolution,
        "dropout": one.dropout,
    }


def _mixer_values(one: Mixer) -> dict[str, Any]:
    if isinstance(one, Attention) and _has_keywords(one):
        return {**_attention_values(one), "mixer": None}
    return {"mixer": one.to_dict()}


# Values of an attention that only the part itself can say.
_OF_PART = frozenset(field.name for field in dataclasses.fields(Attention)) - {
    *_ATTENTION.values(), "bias", "query_key_norm", "scale", "score", "slots", "position",
    "score_bias", "pattern",
}  # fmt: skip


def _has_keywords(one: Attention) -> bool:
    """Return whether keywords describe an attention: all of its values and its parts."""
    usual = all(
        getattr(one, field.name) == field.default
        for field in dataclasses.fields(one)
        if field.name in _OF_PART
    )
    own = [getattr(one.position, name, None) for name in ("pairs", "position_axes")]
    own.append(getattr(one.pattern, "behind", None))
    known = isinstance(one.position, Rotary | None) and all(value is None for value in own)
    known = known and not isinstance(one.score_bias, GatedRelativeBias)
    return usual and known and isinstance(one.pattern, Window | Blocks | None)


def _stated_mixers(one: Mixer) -> tuple[Mixer, ...]:
    """Return the mixers that the keyword `mixer` states."""
    by_keywords = isinstance(one, Attention) and _has_keywords(one)
    return () if by_keywords else one.every_mixer


def within_mixers(config: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the new values of attention, if some layer states its attention as a `mixer`."""
    blocks = (block for name in config.side_names for block in getattr(config, name).every_block)
    stated = (mixer for block in blocks for mixer in _stated_mixers(block.mixer))
    if not any(isinstance(each, Attention) for each in stated):
        return {}
    present = config.flat
    named = (name for name in values if name in _OF_ATTENTION)
    return {name: values[name] for name in named if values[name] != present.get(name)}


def _feed_forward_values(one: FeedForward | None) -> dict[str, Any]:
    if one is None:
        return {"intermediate_dim": 0, "num_experts": 0}
    values = {**_given(one, _FEED_FORWARD), "intermediate_dim": one.dense_dim}
    if isinstance(one, Experts):
        router = None if one.router is None else one.router.to_dict()
        return {**values, **_given(one, _EXPERTS), "router": router}
    dense = _given(one, _DENSE) if isinstance(one, Dense) else {}
    return {**values, **dense, "num_experts": 0, "expert_dim": one.dense_dim}


def _attention_values(one: Attention) -> dict[str, Any]:
    """Return the values of an attention by flat names, for the parts that it has."""
    bias, norm = one.score_bias, one.query_key_norm
    values = {
        **_given(one, _ATTENTION),
        "attention_bias": one.bias,
        "query_key_norm": norm is not None,
        "query_key_norm_across_heads": norm == "across",
        "query_key_norm_per_head": norm == "per_head",
        "query_key_norm_after_rotation": norm == "rotated",
        "score": one.score,
        "score_scale": one.scale,
        "position": "none",
        "relative_bias": isinstance(bias, RelativeBias),
        "grid_bias": bias.tables if isinstance(bias, GridBias) else None,
        "disentangled": bias.projections if isinstance(bias, Disentangled) else None,
        "window": None,
        "block_size": None,
    }
    if isinstance(bias, RelativeBias):
        values |= {"position": "relative", **_given(bias, _RELATIVE)}
    elif isinstance(bias, Disentangled):
        values |= _given(bias, _BUCKETS)
    elif isinstance(bias, ALiBi):
        values |= {"position": "alibi", **_given(bias, _ALIBI)}
    if isinstance(one.position, Rotary):
        values |= {"position": "rotary", **rotary_values(one.position)}
    if isinstance(one.pattern, Window):
        values |= _given(one.pattern, _WINDOW)
    elif isinstance(one.pattern, Blocks):
        values |= _given(one.pattern, _BLOCKS)
    return values


def rotary_values(one: Rotary) -> dict[str, Any]:
    """Return the values of a rotation by flat names."""
    scaling = _given(one.scaling, _SCALING) or {"rotary_scaling": None}
    return {**_given(one, _ROTARY), **scaling}


def without_derived(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values except those that follow from others, which `parts` derives again."""
    derived = derived_values({**DEFAULTS, **values})
    return {
        name: value
        for name, value in values.items()
        if name not in derived or (value is not None and value != derived[name])
    }


def derived_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that follow from others, for options that are not given."""
    seq2seq = values["kind"] == "seq2seq"
    encoder, decoder = values["encoder"] or {}, values["decoder"] or {}
    hidden_dim, heads = values["hidden_dim"], values["num_heads"]
    if heads is dataclasses.MISSING:  # a side without attention
        heads = None
    width = values["embedding_dim"] or hidden_dim

    def embedding(own):
        dim = own.get("hidden_dim", hidden_dim)
        dim = own.get("embedding_dim", values["embedding_dim"] or dim)
        return own.get("vocabulary_size", values["vocabulary_size"]), dim

    bias = values["use_bias"] if values["attention_bias"] is None else values["attention_bias"]
    return {
        "head_dim": None if heads is None or hidden_dim % heads else hidden_dim // heads,
        "num_key_value_heads": heads,
        "num_decoder_layers": (
            decoder.get("num_layers", values["num_layers"]) if seq2seq else None
        ),
        "num_layer_groups": max(values["num_layers"] // values["layers_per_group"], 1),
        "embedding_dim": hidden_dim,
        "embedding_projection": not values["token_projection"] and width != hidden_dim,
        "share_embeddings": embedding(encoder) == embedding(decoder) if seq2seq else None,
        "attention_bias": values["use_bias"],
        "feed_forward_output_bias": values["use_bias"],
        "key_bias": bias,
        "attention_output_bias": bias,
        "embedding_scale": math.sqrt(width) if values["scale_embedding"] else 1.0,
        "logit_scale": hidden_dim**-0.5 if values["scale_logits"] else 1.0,
        "expert_dim": values["intermediate_dim"],
        "final_normalization": values["normalize_first"],
        "relative_bias": values["position"] == "relative",
        "rotary_original_length": (
            None if values["rotary_scaling"] in (None, "linear") else values["max_sequence_length"]
        ),
    }


# Keyword -> the type of the part that has the value, and the value's name there. (A keyword that
# chooses a part, such as `window`, is not a value.)
_VALUES = {
    flat: (known, ours)
    for known, table in _TABLES
    for flat, ours in table.items()
    if flat not in _Keywords.__dataclass_fields__
}


def changed(part_: Any, values: Mapping[str, Any]) -> Any:
    """Return a part with some values changed by flat names, in all parts within it.

    Raises:
        ValueError: if a name stands for a choice of parts, or none of the parts has the value.
    """
    wanted: dict[type[Part], dict[str, Any]] = {}
    for name, value in values.items():
        if name not in _VALUES:
            raise ValueError(
                f"`{name}` cannot be changed by keyword, since keywords do not describe this "
                "model. Replace the part: `config.replace(decoder=config.decoder.replace(...))`."
            )
        known, ours = _VALUES[name]
        if value is not None:
            check_option(name, value, FIELDS[name])
        wanted.setdefault(known, {})[ours] = value
    found: set[type[Part]] = set()
    part_ = _changed(part_, wanted, found)
    for name, value in values.items():
        if _VALUES[name][0] not in found and value != DEFAULTS[name]:
            raise ValueError(f"The model has no part with the value `{name}`.")
    return part_


def _changed(one: Any, wanted: Mapping[type[Part], Mapping], found: set[type[Part]]) -> Any:
    """Return a part with all values changed at once, in all parts of a type.

    Args:
        one: a part, a tuple of parts, or another value.
        wanted: the new values by the type of the part that has them.
        found: set of types, to which those are added of which there is a part.
    """
    if isinstance(one, tuple):
        return tuple(_changed(each, wanted, found) for each in one)
    if not isinstance(one, Part):
        return one
    own = {}
    for field in dataclasses.fields(one):
        before = getattr(one, field.name)
        after = _changed(before, wanted, found)
        if after is not before and after != before:
            own[field.name] = after
    for known, values in wanted.items():
        if isinstance(one, known):
            found.add(known)
            own |= values
    return one.replace(**own) if own else one
