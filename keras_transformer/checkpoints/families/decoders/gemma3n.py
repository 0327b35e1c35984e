"""Gemma3n: Google DeepMind 2025, https://ai.google.dev/gemma/docs/gemma-3n.

A Gemma 3 with normalized values and scores that are not scaled, whose last layers share the keys
and values of earlier ones, and whose layers read vectors of the token. A block computes one of
several copies of the states and predicts the others (AltUp), has a narrow residual beside its
attention (LAuReL), and in the first layers only the largest values of a gate count.
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
    layer_kinds,
    number,
    number_of_layers,
    rotary,
    rotary_of_kinds,
)
from keras_transformer.checkpoints.families.decoders.gemma4 import (
    GEMMA4_TEXT,
    number_of_shared,
)
from keras_transformer.checkpoints.weights.tables import WeightLine, layers
from keras_transformer.config import (
    AltUp,
    Attention,
    Dense,
    Laurel,
    LayerInput,
    LayerInputs,
    Norm,
    Rotary,
    TransformerConfig,
    Window,
)
from keras_transformer.config.flat import DEFAULTS, rotary_values
from keras_transformer.config.flat import rotary as rotary_part
from keras_transformer.support.checking import shorten

_ROTARY = rotary()
_LAYERS = 35


def _of_layers(values: Values, name: str, default: Any, kind: type) -> list:
    """Return a published value of each layer, which may be one number for all."""
    count = number_of_layers(values, _LAYERS)
    given = values.get(name)
    given = default(count) if given is None else given
    if not isinstance(given, (list, tuple)):
        given = [given] * count
    if len(given) != count:
        raise ValueError(f"{name} must be a list of {count} numbers, received {shorten(given)}.")
    return [kind(number({name: each}, name, None, kind)) for each in given]


def _sparsities(values: Values) -> list[float]:
    """Return the share of the gate's values that become zero in each layer."""

    def usual(count: int) -> list[float]:
        sparse = 10 if count > 10 else 0
        return [0.95] * sparse + [0.0] * (count - sparse)

    return _of_layers(values, "activation_sparsity_pattern", usual, float)


def _kinds(values: Values) -> list[str]:
    return layer_kinds(values, _LAYERS, lambda i: (i + 1) % 5 != 0)


def _read_layers(values: Values) -> dict[str, Any]:
    kinds = _kinds(values)
    first = len(kinds) - number_of_shared(values, kinds, 15)
    local = {"rope_theta": values.get("rope_local_base_freq", 1e4), "rope_scaling": None}
    older = {FULL: {"rope_theta": 1e6, **values}, SLIDING: {**values, **local}}
    rotations = rotary_of_kinds(values, older)
    window = Window(size=number(values, "sliding_window", 512))
    norm = Norm(type="rms_norm_no_weight", epsilon=number(values, "rms_norm_eps", 1e-6, float))

    def mixer(kind: str, shares: bool) -> Attention:
        return Attention(
            num_heads=number(values, "num_attention_heads", 8),
            num_key_value_heads=number(values, "num_key_value_heads", 2),
            head_dim=number(values, "head_dim", 256),
            bias=values.get("attention_bias", False),
            query_key_norm="head",
            scale=1.0,
            dropout=values.get("attention_dropout") or 0.0,
            position=rotary_part({**rotations[kind], "position": "rotary"}),
            pattern=window if kind == SLIDING else None,
            **({"key_source": "earlier"} if shares else {"value_norm": norm}),
        )

    widths = _of_layers(values, "intermediate_size", lambda count: [16384] * count, int)
    shares = [i >= first for i in range(len(kinds))]
    each = list(zip(kinds, shares, widths, strict=True))
    own = {
        key: {"mixer": mixer(*key[:2]), "intermediate_dim": key[2]} for key in dict.fromkeys(each)
    }
    return cycle_of_layers(each, own)


def _write_layers(config: TransformerConfig) -> dict[str, Any]:
    blocks = list(config.last_side.blocks)
    mixers = [block.mixer for block in blocks]
    if not all(isinstance(mixer, Attention) for mixer in mixers):
        raise ValueError("each layer there has attention.")
    if not all(isinstance(mixer.position, Rotary) for mixer in mixers):
        raise ValueError("each layer there has rotary positions.")
    if not all(isinstance(block.feed_forward, Dense) for block in blocks):
        raise ValueError("each layer there has a dense feed-forward layer.")
    kinds = [SLIDING if isinstance(mixer.pattern, Window) else FULL for mixer in mixers]
    of_kinds = dict(zip(reversed(kinds), reversed(mixers), strict=True))  # the first of each kind
    usual = of_kinds.get(SLIDING, mixers[0])

    def rotation(mixer: Attention) -> dict[str, Any]:
        options = {**DEFAULTS, **rotary_values(mixer.position), "head_dim": mixer.head_dim}
        return _ROTARY.write(SimpleNamespace(**options))["rope_parameters"]

    return {
        "layer_types": kinds,
        "num_attention_heads": usual.num_heads,
        "num_key_value_heads": usual.num_key_value_heads,
        "head_dim": usual.head_dim,
        "attention_bias": usual.bias,
        "attention_dropout": usual.dropout,
        "num_kv_shared_layers": sum(not mixer.has_keys for mixer in mixers),
        "intermediate_size": [block.dense_dim for block in blocks],
        "sliding_window": usual.pattern.size if isinstance(usual.pattern, Window) else 512,
        "rope_parameters": {kind: rotation(mixer) for kind, mixer in of_kinds.items()},
    }


def _read_parts(values: Values, config: TransformerConfig) -> TransformerConfig:
    """Add the copies of the states, the narrow residuals, the vectors of tokens, the sparsities."""
    side = config.decoder
    dim = number(values, "hidden_size_per_layer_input", 256)
    own = {
        "laurel": Laurel(rank=number(values, "laurel_rank", 64)),
        "altup": AltUp(
            copies=number(values, "altup_num_inputs", 4), limit=values.get("altup_coef_clip", 120.0)
        ),
        "layer_input": LayerInput(dim=dim, activation=config.activation),
    }
    sparsities = _sparsities(values)
    blocks = [
        block.replace(**own, feed_forward=block.feed_forward.replace(sparsity=share))
        for block, share in zip(side.blocks, sparsities, strict=True)
    ]
    changed = {
        "block": blocks[0],
        "layers": tuple(blocks) if len({*blocks}) > 1 else (),
        "layer_inputs": LayerInputs(
            vocabulary_size=number(values, "vocab_size_per_layer_input", 262144), dim=dim
        ),
    }
    return config.replace(decoder=side.replace(**changed))


def _write_parts(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    side = config.decoder if config.kind == "decoder" else None
    first = None if side is None else side.block
    parts = () if side is None else (side.layer_inputs, first.laurel, first.altup)
    if side is None or any(part is None for part in parts):
        return config, {}
    vectors, laurel, altup = parts

    def plain(block):
        own = block.feed_forward
        own = own.replace(sparsity=0.0) if isinstance(own, Dense) else own
        return block.replace(laurel=None, altup=None, layer_input=None, feed_forward=own)

    theirs = {
        "hidden_size_per_layer_input": vectors.dim,
        "vocab_size_per_layer_input": vectors.vocabulary_size,
        "laurel_rank": laurel.rank,
        "altup_num_inputs": altup.copies,
        "altup_coef_clip": altup.limit,
        "activation_sparsity_pattern": [
            getattr(block.feed_forward, "sparsity", 0.0) for block in side.blocks
        ],
    }
    changed = {
        "block": plain(first),
        "layers": tuple(map(plain, side.layers)),
        "layer_inputs": None,
    }
    return config.replace(decoder=side.replace(**changed)), theirs


_OURS, _THEIRS = "decoder/layer_{i}/", "layers.{i}."
_FURTHER = {
    "laurel/down": "laurel.linear_left",
    "laurel/up": "laurel.linear_right",
    "laurel/norm": "laurel.post_laurel_norm",
    "altup/router": "altup.modality_router",
    "altup/router_norm": "altup.router_norm",
}
_ALTUP = {
    f"{_OURS}altup/prediction": f"{_THEIRS}altup.prediction_coefs",
    f"{_OURS}altup/correction": f"{_THEIRS}altup.correction_coefs",
    "decoder/altup_copies/kernel": "altup_projections.*",
    "decoder/altup_mean/kernel": "altup_unembed_projections.*",
}
_ABSENT = ("sparse", "dense_output_norm", "output_scale")

GEMMA3N_TEXT = dataclasses.replace(
    GEMMA4_TEXT,
    model_type="gemma3n_text",
    architecture="Gemma3nTextModel",
    fields={
        **GEMMA4_TEXT.fields,
        "vocab_size": ConfigField("vocabulary_size", 262400),
        "hidden_size": ConfigField("hidden_dim", 2048),
        "num_hidden_layers": ConfigField("num_layers", _LAYERS),
        "max_position_embeddings": ConfigField("max_sequence_length", 32768),
        "final_logit_softcapping": ConfigField("logit_soft_cap", 30.0),
    },
    conversions=(Conversion(_read_layers, _write_layers),),
    parts=PartsWithoutKeywords(_read_parts, _write_parts),
    required={"altup_active_idx": 0, "altup_correct_scale": True},
    weights=(
        *(line for line in GEMMA4_TEXT.weights if not any(x in line.ours for x in _ABSENT)),
        *layers(_FURTHER, _OURS, _THEIRS),
        WeightLine(f"{_OURS}altup/scale", f"{_THEIRS}altup.correct_output_scale"),
        *(WeightLine(ours, f"{theirs}.weight", transpose=True) for ours, theirs in _ALTUP.items()),
    ),
    heads={"CausalLM": PublishedHead(architectures=("Gemma3nForCausalLM",))},
)
