"""T5Gemma 2 for texts in KerasHub's form: Zhang et al. 2025, https://arxiv.org/abs/2512.14856.

Each side has a table of its own there, and without an image tower no token has a vector beside it.
Facts are from KerasHub 0.32, `models/t5gemma2/t5gemma2_backbone.py`.
"""

from collections.abc import Mapping
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    PartsWithoutKeywords,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import FULL, SLIDING, number
from keras_transformer.checkpoints.families.decoders.gemma import GEMMA3
from keras_transformer.checkpoints.families.seq2seq.t5gemma2 import (
    merged,
    read_sides,
    written_sides,
)
from keras_transformer.checkpoints.keras_hub.family import (
    REVERSIBLE,
    TASK_PREFIX,
    Line,
    layers,
    make_family,
)
from keras_transformer.checkpoints.weights.tables import Names, attention
from keras_transformer.config import SIDES, Tokens, TransformerConfig

# Values of a side, by their names in the published configs.
OF_SIDE = {
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "layer_types": "layer_types",
}
# Values that both sides have, with their defaults.
OF_BOTH = {
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 1.0,
    "attention_bias": False,
    "initializer_range": 0.02,
    "sliding_window": None,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}
_ROTATIONS = {"rope_max_wavelength": 10000.0, "global_rope_scaling_factor": 1.0}
_FULL_BASE = 1e6  # rotary base of layers without a window: KerasHub has no argument for it


def _side(values: Values, name: str) -> dict[str, Any]:
    """Return the published config of one side."""
    given = {theirs: values[f"{name}_{own}"] for own, theirs in OF_SIDE.items()}
    given |= {each: values.get(each, usual) for each, usual in OF_BOTH.items()}
    rotations = dict(_ROTATIONS)
    for each in rotations:
        found = values.get(f"encoder_{each}") if name == "encoder" else None
        found = values.get(each, rotations[each]) if found is None else found
        rotations[each] = number({each: found}, each, 1.0, float)
    base, factor = rotations.values()
    stretched = {"rope_type": "default"} if factor == 1 else {"rope_type": "linear"}
    stretched |= {} if factor == 1 else {"factor": factor}
    return {
        **given,
        "vocab_size": values["vocabulary_size"],
        "max_position_embeddings": 32768,  # no output depends on it
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": base},
            FULL: {**stretched, "rope_theta": _FULL_BASE},
        },
    }


def _published(values: Values) -> dict[str, Any]:
    width, source = values["decoder_hidden_dim"], values.get("cross_attention_hidden_size")
    if values["encoder_hidden_dim"] != width or source not in (None, width):
        raise ValueError(
            f"encoder_hidden_dim={values['encoder_hidden_dim']!r} and "
            f"cross_attention_hidden_size={source!r} must be decoder_hidden_dim={width!r}: the "
            "decoder has the same projections for its own states and the encoder's."
        )
    return {
        "encoder": {"text_config": _side(values, "encoder")},
        "decoder": _side(values, "decoder"),
        "attention_dropout": values.get("attention_dropout", 0.0),
    }


def _read_parts(values: Values, config: TransformerConfig) -> TransformerConfig:
    window = values.get("sliding_window")
    return merged(config, 1 if window is None else number(values, "sliding_window", 1), None)


def _write_parts(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    if not all(isinstance(side.only_side.input, Tokens) for side in config.sides):
        raise ValueError("both its sides read tokens.")
    plain, sides = written_sides(config)
    theirs: dict[str, Any] = {name: sides[1][name] for name in OF_BOTH}
    with_windows = [side for side in sides if SLIDING in side["layer_types"]]
    theirs["sliding_window"] = with_windows[0]["sliding_window"] if with_windows else None
    for name, side in zip(SIDES, sides, strict=True):
        theirs |= {f"{name}_{own}": side[its] for own, its in OF_SIDE.items()}
        prefix = "encoder_" if name == "encoder" else ""
        turned = side["rope_parameters"]
        theirs[f"{prefix}rope_max_wavelength"] = turned[SLIDING]["rope_theta"]
        theirs[f"{prefix}global_rope_scaling_factor"] = turned[FULL].get("factor", 1.0)
    return plain, theirs


def blocks_of_side(
    side: str, layer: str, attentions: Mapping[str, str], norms: str
) -> tuple[Line, ...]:
    """Return the lines of the blocks of one side, and of the norm behind them.

    Args:
        side: our name of the side.
        layer: the beginning of the name of a block.
        attentions: the name of each kind of attention.
        norms: the name of the norm behind the blocks.
    """
    parts, table = ("query", "key", "value", "output"), {}
    for kind, its in attentions.items():
        table |= attention(f"{its}/{{}}_dense", *parts, ours=f"{kind}_attention")
        table |= {f"{kind}_attention/{n}_norm": f"{its}/{n}_norm" for n in parts[:2]}
    for ours, theirs in {"gate": "gate", "intermediate": "up", "output": "down"}.items():
        table[f"feed_forward/{ours}"] = f"mlp/{theirs}_proj"
    named = {f"{kind}_attention": f"{kind}_attn" for kind in attentions}
    for ours, theirs in {**named, "feed_forward": "feedforward"}.items():
        table[f"{ours}_norm"] = f"pre_{theirs}_layernorm"
        table[f"{ours}_output_norm"] = f"post_{theirs}_layernorm"
    return (
        *layers(table, f"{side}/layer_{{i}}/", f"layers/{layer}_{side}_layer{{i}}/"),
        *layers({f"{side}/final_norm": f"layers/{norms}"}),
    )


T5GEMMA2 = make_family(
    "t5gemma2",
    "T5Gemma2",
    {
        "vocabulary_size": ConfigField("vocabulary_size", None),
        "dropout_rate": ConfigField("dropout", 0.0),
        "attention_dropout": ConfigField("attention_dropout", 0.0),
        "tie_word_embeddings": ConfigField("tie_embeddings", True),
    },
    {**GEMMA3.constants, "kind": "seq2seq", "share_embeddings": False},
    (
        Line("encoder_token_embedding/embeddings", "layers/embedding/vars/0"),
        *REVERSIBLE,
        *blocks_of_side("encoder", "t5_gemma2", {"self": "self_attn"}, "rms_normalization"),
        *blocks_of_side("decoder", "t5_gemma2", {"self": "merged_attn"}, "rms_normalization_1"),
    ),
    {"Seq2SeqLM": PublishedHead(values={"start_id": 2})},
    conversions=(Conversion(lambda values: read_sides(_published(values)), lambda config: {}),),
    parts=PartsWithoutKeywords(_read_parts, _write_parts),
    more=(
        *(f"{side}_{name}" for side in SIDES for name in OF_SIDE),
        *OF_BOTH,
        *(prefix + name for prefix in ("", "encoder_") for name in _ROTATIONS),
        "cross_attention_hidden_size",
        "eoi_token_index",  # of images
    ),
    required={
        "hidden_activation": "gelu_approximate",
        "use_query_key_norm": True,
        "vision_encoder": None,
    },
    names=Names(ignored=(f"{TASK_PREFIX}*",)),
)
