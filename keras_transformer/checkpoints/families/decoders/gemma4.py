"""Gemma4: Google DeepMind 2026, https://ai.google.dev/gemma/docs/core/model_card_4.

A Gemma 3 with normalized values and scores that are not scaled. Layers that see all tokens have
heads of another width, of which the first pairs are rotated, and may use their keys as values. The
last layers may share the keys and values of earlier ones, and each layer may read a vector of the
token for this layer.
"""

import dataclasses
from types import SimpleNamespace
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    PartsWithoutKeywords,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import (
    FULL,
    SLIDING,
    cycle_of_layers,
    flag,
    layer_kinds,
    number,
    rotary,
)
from keras_transformer.checkpoints.families.decoders.gemma import GEMMA3
from keras_transformer.checkpoints.weights.tables import (
    Names,
    WeightLine,
    fused,
    layers,
    output_matrix,
)
from keras_transformer.config import (
    Attention,
    Experts,
    LayerInput,
    LayerInputs,
    Norm,
    Rotary,
    Router,
    TransformerConfig,
    Window,
)
from keras_transformer.config.flat import DEFAULTS, rotary_values
from keras_transformer.config.flat import rotary as rotary_part
from keras_transformer.support.checking import shorten

_ROTARY = rotary()
_PROPORTIONAL = "proportional"
_ROPE = {
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
    FULL: {"rope_type": _PROPORTIONAL, "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
}


_EXPERTS = {"num_experts": "number", "top_k_experts": "per_token", "moe_intermediate_size": "dim"}


def _kinds(values: Values) -> list[str]:
    """Return the kind of each layer; the last one always sees all tokens."""
    kinds = layer_kinds(values, 30, lambda i: (i + 1) % 6 != 0)
    return [*kinds[:-1], FULL]


def number_of_shared(values: Values, kinds: list[str], default: int = 0) -> int:
    """Return how many of the last layers share the keys and values of earlier ones."""
    count = number(values, "num_kv_shared_layers", default)
    own = kinds[: len(kinds) - count]
    if not 0 <= count < len(kinds) or {*own} != {*kinds}:
        raise ValueError(
            f"num_kv_shared_layers={count} is not supported with layer_types={shorten(kinds)}: "
            "each kind of layers needs one with keys and values of its own."
        )
    return count


def _sizes(values: Values, kinds: list[str]) -> dict[str, tuple[int, int]]:
    """Return the number of key and value heads, and the width of a head, of each kind of layer."""
    heads = number(values, "num_key_value_heads", 4)
    found = {SLIDING: (heads, number(values, "head_dim", 256))}
    width = number(values, "global_head_dim", 512)
    of_all = values.get("num_global_key_value_heads") if values.get("attention_k_eq_v") else None
    of_all = heads if of_all is None else number(values, "num_global_key_value_heads", heads)
    own = values.get("per_layer_config")
    if own is None:
        return {**found, FULL: (of_all, width)}
    if not isinstance(own, dict) or not all(isinstance(each, dict) for each in own.values()):
        raise ValueError(f"per_layer_config must be an object of objects, received {shorten(own)}.")
    own = {str(name).lstrip("0") or "0": layer for name, layer in own.items()}  # "05" is layer 5
    usual = {"head_dim": found[SLIDING][1], "num_key_value_heads": heads}
    said = {kind: [] for kind in kinds}
    for i, kind in enumerate(kinds):
        layer = own.get(str(i), {})
        if not {*layer} <= {*usual}:
            raise ValueError(
                f"per_layer_config={shorten(own)} is not supported, only with head_dim and "
                "num_key_value_heads."
            )
        layer = {**usual, **layer}
        said[kind].append(
            tuple(number(layer, n, None) for n in ("num_key_value_heads", "head_dim"))
        )
    for kind, each in said.items():
        if len(set(each)) > 1 or (kind == SLIDING and each[0] != found[SLIDING]):
            raise ValueError(
                f"per_layer_config={shorten(own)} is not supported: it may differ only between "
                f"{SLIDING!r} and {FULL!r}."
            )
    return {**found, **{kind: each[0] for kind, each in said.items()}}


def _rotation(values: Values, kind: str, width: int) -> Rotary:
    given = values.get("rope_parameters") or _ROPE
    if not isinstance(given, dict) or not isinstance(given.get(kind), dict):
        raise ValueError(f"rope_parameters must have {FULL!r} and {SLIDING!r}, received {given!r}.")
    options, pairs = dict(given[kind]), None
    if options.get("rope_type") == _PROPORTIONAL:
        share = number(options, "partial_rotary_factor", 1.0, float)
        pairs, factor = int(share * width // 2), number(options, "factor", 1.0, float)
        if not 0 < pairs <= width // 2:
            raise ValueError(f"partial_rotary_factor={share!r} leaves nothing to be rotated.")
        pairs = None if pairs == width // 2 else pairs
        options = {**options, "partial_rotary_factor": 1.0, "factor": factor}
        options["rope_type"] = "default" if factor == 1 else "linear"
    # A share of the default rotation has no effect there.
    options["partial_rotary_factor"] = 1.0
    ours = _ROTARY.read({"head_dim": width, "rope_parameters": options})
    return rotary_part({**ours, "position": "rotary"}).replace(pairs=pairs)


def _write_rotation(rotation: Rotary, width: int) -> dict[str, Any]:
    options = {**DEFAULTS, **rotary_values(rotation), "head_dim": width}
    theirs = _ROTARY.write(SimpleNamespace(**options))["rope_parameters"]
    if rotation.pairs is None:
        return theirs
    share = 2 * rotation.pairs / width
    return {**theirs, "rope_type": _PROPORTIONAL, "partial_rotary_factor": share}


def _read_layers(values: Values) -> dict[str, Any]:
    seen = values.get("use_bidirectional_attention")
    if seen not in (None, "vision"):  # images alone, of which a text has none
        raise ValueError(
            f"use_bidirectional_attention={seen!r} is not supported, only None and 'vision'."
        )
    kinds = _kinds(values)
    shared = number_of_shared(values, kinds)
    norm = Norm(type="rms_norm", epsilon=number(values, "rms_norm_eps", 1e-6, float))
    window = Window(size=number(values, "sliding_window", 512))
    sizes = _sizes(values, kinds)
    width = number(values, "intermediate_size", 9216)
    wider = 2 * width if values.get("use_double_wide_mlp") else width

    def layer(kind: str, shares: bool) -> dict[str, Any]:
        heads, dim = sizes[kind]
        equal = flag(values, "attention_k_eq_v") and kind == FULL
        own = {
            "value_norm": norm.replace(type="rms_norm_no_weight"),
            "value_source": "keys" if equal else "own",
        }
        mixer = Attention(
            num_heads=number(values, "num_attention_heads", 8),
            num_key_value_heads=heads,
            head_dim=dim,
            bias=values.get("attention_bias", False),
            query_key_norm="head",
            scale=1.0,
            dropout=values.get("attention_dropout") or 0.0,
            position=_rotation(values, kind, dim),
            pattern=window if kind == SLIDING else None,
            **({"key_source": "earlier"} if shares else own),
        )
        return {"mixer": mixer, "intermediate_dim": wider if shares else width}

    first = len(kinds) - shared
    pairs = [(kind, i >= first) for i, kind in enumerate(kinds)]
    own = {pair: layer(*pair) for pair in dict.fromkeys(pairs)}
    return cycle_of_layers(pairs, own)


def _write_layers(config: TransformerConfig) -> dict[str, Any]:
    blocks = list(config.last_side.blocks)
    mixers = [block.mixer for block in blocks]
    if not all(isinstance(mixer, Attention) for mixer in mixers):
        raise ValueError("each layer there has attention.")
    kinds = [SLIDING if isinstance(mixer.pattern, Window) else FULL for mixer in mixers]
    first = dict(zip(reversed(kinds), reversed(mixers), strict=True))  # the first of each kind
    shares = [not mixer.has_keys for mixer in mixers]
    widths = [block.dense_dim for block in blocks]
    usual = first.get(SLIDING, mixers[0])
    rotations = {
        kind: _write_rotation(mixer.position, mixer.head_dim)
        for kind, mixer in first.items()
        if isinstance(mixer.position, Rotary)
    }
    return {
        "layer_types": kinds,
        "num_attention_heads": usual.num_heads,
        "num_key_value_heads": usual.num_key_value_heads,
        "head_dim": usual.head_dim,
        "per_layer_config": {
            str(i): {"head_dim": m.head_dim, "num_key_value_heads": m.num_key_value_heads}
            for i, m in enumerate(mixers)
            if kinds[i] == FULL
        },
        "attention_bias": usual.bias,
        "attention_dropout": usual.dropout,
        "attention_k_eq_v": any(mixer.value_source == "keys" for mixer in mixers),
        "num_kv_shared_layers": sum(shares),
        "intermediate_size": widths[0],
        "use_double_wide_mlp": shares[-1] and widths[-1] != widths[0],
        "sliding_window": usual.pattern.size if isinstance(usual.pattern, Window) else 512,
        "rope_parameters": {**_ROPE, **rotations},
    }


def _experts(values: Values, config: TransformerConfig) -> Experts | None:
    """Return the experts beside each feed-forward layer, if the config has them."""
    if not values.get("enable_moe_block"):
        return None
    sizes = {ours: number(values, name, None) for name, ours in _EXPERTS.items()}
    router = Router(
        norm=Norm(type=config.normalization, epsilon=config.normalization_epsilon),
        score_scale=config.hidden_dim**-0.5,
        expert_scales=True,
    )
    return Experts(**sizes, activation=config.activation, gated=True, bias=False, router=router)


def _read_parts(values: Values, config: TransformerConfig) -> TransformerConfig:
    """Add the scale of each layer's output, and the vectors of each token for each layer."""
    side, dim = config.decoder, number(values, "hidden_size_per_layer_input", 256)
    read = vectors = None
    if dim:
        read = LayerInput(dim=dim, activation=config.activation)
        size = number(values, "vocab_size_per_layer_input", 262144)
        vectors = LayerInputs(vocabulary_size=size, dim=dim)
    own = {"output_scale": True, "layer_input": read, "sparse": _experts(values, config)}
    changed = {
        "block": side.block.replace(**own),
        "layers": tuple(block.replace(**own) for block in side.layers),
        "layer_inputs": vectors,
    }
    return config.replace(decoder=side.replace(**changed))


def _write_parts(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    if config.kind != "decoder":
        return config, {}
    side, own = config.decoder, {"output_scale": False, "layer_input": None, "sparse": None}
    plain = {
        "block": side.block.replace(**own),
        "layers": tuple(block.replace(**own) for block in side.layers),
        "layer_inputs": None,
    }
    vectors = side.layer_inputs
    experts = side.block.sparse
    theirs = {"hidden_size_per_layer_input": 0, "enable_moe_block": experts is not None}
    if experts is not None:
        theirs |= {name: getattr(experts, ours) for name, ours in _EXPERTS.items()}
    if vectors is not None:
        theirs["hidden_size_per_layer_input"] = vectors.dim
        theirs["vocab_size_per_layer_input"] = vectors.vocabulary_size
    return config.replace(decoder=side.replace(**plain)), theirs


_OURS, _THEIRS = "decoder/layer_{i}/", "layers.{i}."
_FURTHER = {
    "layer_input/gate": "per_layer_input_gate",
    "layer_input/output": "per_layer_projection",
    "layer_input/norm": "post_per_layer_input_norm",
}
_SPARSE = {
    "sparse/router": "router.proj",
    "dense_output_norm": "post_feedforward_layernorm_1",
    "sparse_norm": "pre_feedforward_layernorm_2",
    "sparse_output_norm": "post_feedforward_layernorm_2",
}
_OF_DECODER = tuple(
    line if line.when is None else dataclasses.replace(line, when=None)
    for line in GEMMA3.weights
    if line.when in (None, ("kind", "decoder"))
)
_IN_LAYERS = {
    "num_attention_heads", "num_key_value_heads", "head_dim", "attention_bias", "attention_dropout",
    "intermediate_size",
}  # fmt: skip

# Published checkpoints hold these of layers with the keys and values of earlier ones too.
SHARED_KEYS = tuple(f"layers.*.self_attn.{name}.weight" for name in ("k_proj", "v_proj", "k_norm"))

GEMMA4_TEXT = dataclasses.replace(
    GEMMA3,
    model_type="gemma4_text",
    architecture="Gemma4TextModel",
    fields={name: field for name, field in GEMMA3.fields.items() if name not in _IN_LAYERS}
    | {
        "vocab_size": ConfigField("vocabulary_size", 262144),
        "hidden_size": ConfigField("hidden_dim", 2304),
        "num_hidden_layers": ConfigField("num_layers", 30),
        "rms_norm_eps": ConfigField("normalization_epsilon", 1e-6),
    },
    constants={
        **{n: v for n, v in GEMMA3.constants.items() if n != "query_key_norm"},
        "position": "none",  # the mixers have the rotations
        "normalization": "rms_norm",
    },
    conversions=(Conversion(_read_layers, _write_layers),),
    parts=PartsWithoutKeywords(_read_parts, _write_parts),
    required={},
    weights=(
        *layers({"token_embedding": "embed_tokens", "decoder/final_norm": "norm"}),
        output_matrix("lm_head.weight"),
        *(line for line in _OF_DECODER if "layer_{i}" in line.ours),
        WeightLine(f"{_OURS}output_scale", f"{_THEIRS}layer_scalar"),
        *layers(_FURTHER, _OURS, _THEIRS),
        *layers(_SPARSE, _OURS, _THEIRS),
        WeightLine(f"{_OURS}sparse/router_norm/scale", f"{_THEIRS}router.scale"),
        WeightLine(f"{_OURS}sparse/expert_scales", f"{_THEIRS}router.per_expert_scale"),
        *fused(
            (f"{_OURS}sparse/expert_gate", f"{_OURS}sparse/expert_intermediate"),
            f"{_THEIRS}experts.gate_up_proj",
            ends=("", "_bias"),
        ),
        *layers({"sparse/expert_output": "experts.down_proj"}, _OURS, _THEIRS, ends=("", "_bias")),
        WeightLine("decoder/layer_inputs/embeddings", "embed_tokens_per_layer.weight"),
        *layers(
            {
                "layer_inputs/projection": "per_layer_model_projection",
                "layer_inputs/norm": "per_layer_projection_norm",
            },
            "decoder/",
        ),
    ),
    heads={"CausalLM": PublishedHead(architectures=("Gemma4ForCausalLM",))},
    names=Names(prefixes=("model.",), ignored=SHARED_KEYS),
)
