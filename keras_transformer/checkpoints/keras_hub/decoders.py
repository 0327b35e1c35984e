"""KerasHub decoders with rotary positions: GPT-NeoX, and those built like Llama.

Facts are from KerasHub 0.32, `models/*/*_backbone.py`, `*_decoder.py` and `*_attention.py`.
"""

from collections.abc import Mapping
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import FULL, cycle_of_layers, number
from keras_transformer.checkpoints.families.decoders.gated_delta import (
    LINEAR,
    QWEN3_5_TEXT,
    SIZES,
    delta_of,
    kinds_of_layers,
    read_mixer,
    write_mixers,
)
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.checkpoints.keras_hub.family import (
    DROPOUT,
    FIELDS,
    HEAD_WIDTH,
    REVERSIBLE,
    TASK_PREFIX,
    USUAL,
    KerasHubFamily,
    Line,
    attention,
    feed_forward,
    layers,
    make_family,
)
from keras_transformer.checkpoints.weights import tables
from keras_transformer.checkpoints.weights.tables import Names, fused
from keras_transformer.config import TransformerConfig

_MOST_WIDTH = 2**20  # of a head whose share of rotated features is computed
_LLAMA3 = {
    "rope_frequency_adjustment_factor": "rotary_factor",
    "rope_low_freq_factor": "rotary_min_turns",
    "rope_high_freq_factor": "rotary_max_turns",
    "rope_pretraining_sequence_length": "rotary_original_length",
}


def _read_llama3(values: Values) -> dict[str, Any]:
    given = {ours: values[name] for name, ours in _LLAMA3.items() if values.get(name)}
    return {"rotary_scaling": "llama3", **given} if given else {}


def _read_linear(values: Values) -> dict[str, Any]:
    factor = number(values, "rope_scaling_factor", 1.0, float)
    return {} if factor == 1 else {"rotary_scaling": "linear", "rotary_factor": factor}


def _read_share(values: Values) -> dict[str, Any]:
    width = values["hidden_dim"] // values["num_heads"]
    return {"rotary_dim": int(width * number(values, "rotary_percentage", 0.25, float))}


def _read_rotated(values: Values) -> dict[str, Any]:
    share = number(values, "partial_rotary_factor", 0.25, float)
    width = min(number(values, "head_dim", None), _MOST_WIDTH)  # a larger one is refused later
    return {"rotary_dim": int(width * share)}


def _write_rotated(config: TransformerConfig) -> dict[str, Any]:
    return {"partial_rotary_factor": (config.rotary_dim or config.head_dim) / config.head_dim}


def _read_kinds(values: Values) -> dict[str, Any]:
    kinds = kinds_of_layers({"num_hidden_layers": values["num_layers"], **values}, 1)
    own: dict[str, dict[str, Any]] = {FULL: {"mixer": None}}
    if LINEAR in kinds:
        own[LINEAR] = {"mixer": read_mixer(values)}
    return cycle_of_layers(kinds, own)


def _read_window(values: Values) -> dict[str, Any]:
    used = values.get("use_sliding_window_attention", False)
    return {"window": values.get("sliding_window_size", 32768) if used else None}


def _write_window(config: TransformerConfig) -> dict[str, Any]:
    size = {} if config.window is None else {"sliding_window_size": config.window}
    return {"use_sliding_window_attention": bool(size), **size}


_SU = ("rope_scaling_type", "rope_scaling_short_factor", "rope_scaling_long_factor")


def _read_su(values: Values) -> dict[str, Any]:
    longest, trained = (
        number(values, f"{name}_sequence_length", 4096) for name in ("max", "pretraining")
    )
    kind = values.get("rope_scaling_type")
    if kind not in (None, "su"):
        raise ValueError(f"rope_scaling_type={str(kind)[:200]!r} is not supported, only 'su'.")
    ours = {"max_sequence_length": longest}
    if kind is None:
        return ours
    return ours | {
        "rotary_scaling": "longrope",
        "rotary_factor": longest / max(trained, 1),
        "rotary_original_length": trained,
        "rotary_short_factors": values.get("rope_scaling_short_factor"),
        "rotary_long_factors": values.get("rope_scaling_long_factor"),
    }


def _write_su(config: TransformerConfig) -> dict[str, Any]:
    theirs: dict[str, Any] = {"max_sequence_length": config.max_sequence_length}
    if config.rotary_scaling != "longrope":
        return theirs
    factors = (list(config.rotary_short_factors), list(config.rotary_long_factors))
    trained = {"pretraining_sequence_length": config.rotary_original_length}
    return theirs | trained | dict(zip(_SU, ("su", *factors), strict=True))


_STRETCH = Conversion(
    _read_llama3,
    lambda config: {
        name: getattr(config, ours)
        for name, ours in _LLAMA3.items()
        if config.rotary_scaling == "llama3"
    },
)
LINEAR_ROTATION = Conversion(
    _read_linear,
    lambda config: (
        {"rope_scaling_factor": config.rotary_factor} if config.rotary_scaling == "linear" else {}
    ),
)
_SHARE = Conversion(
    _read_share,
    lambda config: {"rotary_percentage": (config.rotary_dim or config.head_dim) / config.head_dim},
)
_WINDOW = Conversion(_read_window, _write_window)
GROUPED_FIELDS = {
    **{name: field for name, field in FIELDS.items() if name != "num_heads"},
    "dropout": ConfigField("dropout", 0.0),
    "num_query_heads": ConfigField("num_heads", None),
    "num_key_value_heads": ConfigField("num_key_value_heads", None),
    "rope_max_wavelength": ConfigField("rotary_base", 10000.0),
    "layer_norm_epsilon": ConfigField("normalization_epsilon", 1e-6),
}
# The projections of these attention layers still have private names.
NAMES = Names(ignored=(f"{TASK_PREFIX}*",))
TIED = {"tie_word_embeddings": ConfigField("tie_embeddings", True)}
DECODER = {
    "kind": "decoder",
    "position": "rotary",
    "normalize_first": True,
    "initializer_range": 0.02,
    # These classes have no maximum length. No output depends on it, and `from_preset` can change
    # it.
    "max_sequence_length": 32768,
}
LLAMA_TABLE = {
    **attention("self", "_{}_dense", norm="norm"),
    "self_attention_norm": "_self_attention_layernorm",
    "self_attention/query_norm": "_self_attention_layer/_query_dense_layer_norm",
    "self_attention/key_norm": "_self_attention_layer/_key_dense_layer_norm",
    **feed_forward("gate", "intermediate", "output", norm="_feedforward_layernorm"),
}
HEADS = {"CausalLM": PublishedHead()}


def like_llama(
    model_type: str,
    name: str,
    layer: str,
    norm: str,
    fields,
    constants=None,
    table: Mapping[str, str] = LLAMA_TABLE,
    further: tuple[Line, ...] = (),
    **values: Any,
) -> KerasHubFamily:
    """Return a decoder family like Llama's, given the paths of a block and of the final norm.

    `table` has the layers of a block, and `further` are lines without a counterpart in Llama.
    """
    usual = {**DECODER, **LLAMA.constants, "activation": "silu", "use_bias": False}
    lines = (
        *REVERSIBLE,
        *layers(table, "decoder/layer_{i}/", f"layers/{layer}{{i}}/"),
        *layers({"decoder/final_norm": f"layers/{norm}"}),
        *further,
    )
    fields, constants = {**GROUPED_FIELDS, **fields}, {**usual, **(constants or {})}
    return make_family(model_type, name, fields, constants, lines, HEADS, names=NAMES, **values)


_PHI3_TABLE = {
    **tables.attention("attention/{}_dense", "query", "key", "value", "output"),
    "self_attention_norm": "pre_attention_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
    **{f"feed_forward/{n}": f"feedforward_{n}_dense" for n in ("gate", "intermediate", "output")},
}
_LLAMA = {
    "layer": "llama_transformer_decoder",
    "norm": "llama_layer_norm",
    "fields": {"tie_word_embeddings": ConfigField("tie_embeddings", False)},
    "conversions": (HEAD_WIDTH, DROPOUT, _STRETCH),
    "more": tuple(_LLAMA3),
    "required": {
        "rope_position_scaling_factor": 1.0
    },  # KerasHub stores this value but does not use it
}
_NEOX = ("decoder/layer_{i}/", "layers/gpt_neo_x_decoder{i}/")
_NEOX_QKV = [f"{_NEOX[0]}self_attention/{name}" for name in ("query", "key", "value")]
_NEOX_LINES = (
    *layers(
        {"token_embedding": "reversible_embedding", "decoder/final_norm": "layer_normalization"},
        theirs="layers/",
    ),
    *fused(_NEOX_QKV, f"{_NEOX[1]}_self_attention_layer/_qkv_dense", layers, per_head=True),
    *layers({"self_attention/output": "_self_attention_layer/_output_dense"}, *_NEOX, apart=False),
    *layers(
        {
            "self_attention_norm": "_self_attention_layer_norm",
            **feed_forward("intermediate", "output"),
        },
        *_NEOX,
    ),
)
_QWEN3_5_TABLE = {
    **attention("self", "_{}_dense", norm="norm"),
    "self_attention/query_norm": "_self_attention_layer/_query_norm",
    "self_attention/key_norm": "_self_attention_layer/_key_norm",
    "self_attention_norm": "_input_layernorm",
    "mixer_norm": "_input_layernorm",
    "mixer/gate": "_linear_attn/in_proj_z",
    "mixer/strength": "_linear_attn/in_proj_b",
    "mixer/step": "_linear_attn/in_proj_a",
    "mixer/output": "_linear_attn/out_proj",
    "feed_forward_norm": "_post_attention_layernorm",
}
_QWEN3_5_TABLE.pop("self_attention/query")  # side by side with the gate
_QWEN3_5_WEIGHTS = {
    "mixer/norm/scale": "_linear_attn/norm/vars/0",
    "mixer/step_bias": "_linear_attn/vars/1",
    "mixer/decay": "_linear_attn/vars/2",
}


def like_qwen3_5(
    model_type: str,
    name: str,
    layer: str,
    table: Mapping[str, str],
    widths: Mapping[str, ConfigField],
    further: tuple[Line, ...] = (),
) -> KerasHubFamily:
    """Return a decoder family like Qwen 3.5's, given the path of a block.

    `table` has the layers of the feed-forward part, `widths` the arguments that give its sizes, and
    `further` are lines of it without a layer.
    """
    ours, theirs = "decoder/layer_{i}/", f"layers/{layer}{{i}}/"

    def of_config(config: TransformerConfig) -> tuple[Line, ...]:
        """Return the lines of the tensors that hold several variables."""
        queries = [f"{ours}self_attention/{name}" for name in ("query", "gate")]
        lines = fused(queries, f"{theirs}_self_attention_layer/_query_dense", layers)
        mixer = delta_of(config)
        if mixer is None:
            return lines
        keys, values = mixer.num_key_heads * mixer.key_dim, mixer.num_value_heads * mixer.value_dim
        options = {"sizes": (keys, keys, values)}
        inputs = [f"{ours}mixer/{name}" for name in ("query", "key", "value")]
        convolutions = [f"{each}_convolution" for each in inputs]
        stored = {"transpose": True, "ends": ("/vars/0", "")}
        return (
            *lines,
            *fused(inputs, f"{theirs}_linear_attn/in_proj_qkv", layers, **options),
            *fused(convolutions, f"{theirs}_linear_attn", layers, **options, **stored),
        )

    weights = _QWEN3_5_WEIGHTS.items()
    return make_family(
        model_type,
        name,
        {
            **{name: field for name, field in GROUPED_FIELDS.items() if name != "intermediate_dim"},
            **widths,
            "tie_word_embeddings": ConfigField("tie_embeddings", False),
            "head_dim": ConfigField("head_dim", None),
            "sliding_window_size": ConfigField("window", 32768),
        },
        {**DECODER, **QWEN3_5_TEXT.constants, "activation": "silu"},
        (
            *REVERSIBLE,
            *layers({**_QWEN3_5_TABLE, **table}, ours, theirs),
            *(Line(f"{ours}{mine}", f"{theirs}{its}") for mine, its in weights),
            *further,
            *layers({"decoder/final_norm": "layers/qwen3_5_layer_norm"}),
        ),
        HEADS,
        conversions=(
            DROPOUT,
            LINEAR_ROTATION,
            Conversion(_read_rotated, _write_rotated),
            Conversion(_read_kinds, write_mixers),
        ),
        more=(
            "rope_scaling_factor",
            "partial_rotary_factor",
            "layer_types",
            "mrope_section",  # of images: no output for text depends on it
            *SIZES,
        ),
        required={"vision_encoder": None},
        of_config=of_config,
        names=NAMES,
    )


DECODERS = (
    make_family(
        "gpt_neox",
        "GPTNeoX",
        {
            **FIELDS,
            "dropout": ConfigField("dropout", 0.0),
            "rotary_max_wavelength": ConfigField("rotary_base", 10000.0),
            "layer_norm_epsilon": ConfigField("normalization_epsilon", 1e-5),
            "max_sequence_length": ConfigField("max_sequence_length", 512),
        },
        {**DECODER, "activation": "gelu_tanh", "parallel_residual": True},
        _NEOX_LINES,
        HEADS,
        conversions=(*USUAL, _SHARE),
        more=("activation", "rotary_percentage"),
        names=NAMES,
    ),
    like_llama("llama", "Llama", **_LLAMA),
    like_llama("llama", "Llama3", **_LLAMA),
    like_llama(
        "mistral",
        "Mistral",
        "mistral_transformer_decoder",
        "mistral_layer_normalization",
        fields={
            "sliding_window": ConfigField("window", 512),
            "head_dim": ConfigField("head_dim", None),
        },
        constants={"tie_embeddings": False},
        conversions=(DROPOUT, LINEAR_ROTATION),
        more=("rope_scaling_factor",),
    ),
    like_llama(
        "qwen2",
        "Qwen",
        "qwen_transformer_decoder",
        "qwen_layer_norm",
        fields=TIED,
        constants={"attention_bias": True, "attention_output_bias": False},
        conversions=(HEAD_WIDTH, DROPOUT, LINEAR_ROTATION, _WINDOW),
        more=("rope_scaling_factor", "use_sliding_window_attention", "sliding_window_size"),
    ),
    like_llama(
        "qwen3",
        "Qwen3",
        "qwen3_transformer_decoder",
        "qwen3_layer_norm",
        fields={
            **TIED,
            "head_dim": ConfigField("head_dim", None),
            "sliding_window_size": ConfigField("window", 32768),
        },
        constants={"query_key_norm": True},
        conversions=(DROPOUT, LINEAR_ROTATION),
        more=("rope_scaling_factor",),
    ),
    like_llama(
        "phi3",
        "Phi3",
        "phi3_decoder",
        "phi3_layer_norm",
        fields={},
        constants={"tie_embeddings": False},
        table=_PHI3_TABLE,
        conversions=(HEAD_WIDTH, DROPOUT, Conversion(_read_su, _write_su)),
        more=("max_sequence_length", "pretraining_sequence_length", *_SU),
    ),
    like_qwen3_5(
        "qwen3_5_text",
        "Qwen3_5",
        "qwen3_5_transformer_decoder",
        {
            f"feed_forward/{name}": f"_feedforward_{name}_dense"
            for name in ("gate", "intermediate", "output")
        },
        {"intermediate_dim": FIELDS["intermediate_dim"]},
    ),
)
