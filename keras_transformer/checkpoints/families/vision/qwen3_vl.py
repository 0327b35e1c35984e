"""Qwen3-VL: Bai et al. 2025, https://arxiv.org/abs/2511.21631, and Qwen3.5 with images.

A Qwen2-VL whose image tower also adds trained positions, interpolated to the patches of an image.
The states of some of its layers are merged too, and added behind the first layers of a Qwen 3. The
axes of the rotary positions take turns. Qwen3.5 has no such states, and another text model. Both
also exist with experts.
"""

import dataclasses
import functools
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.placed import TEXT_END, nested
from keras_transformer.checkpoints.families.base.shared import number, rotary, square_side
from keras_transformer.checkpoints.families.decoders.gated_delta import (
    QWEN3_5_MOE_TEXT,
    QWEN3_5_TEXT,
    delta_layers,
)
from keras_transformer.checkpoints.families.decoders.llama import QWEN3
from keras_transformer.checkpoints.families.decoders.qwen_moe import (
    QWEN3_MOE,
    layers_alike,
    layers_with_experts,
)
from keras_transformer.checkpoints.families.vision.qwen2_vl import (
    merged,
    merger_lines,
    named_texts,
    of_axes,
    stem_values,
    text_lines,
    text_values,
    tower,
    tower_lines,
    written,
    written_tower,
)
from keras_transformer.checkpoints.weights.expert_tensors import inputs_first
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, fused, layers
from keras_transformer.config import TransformerConfig
from keras_transformer.support.checking import shorten

_DEFAULTS = {
    "hidden_size": 1152,
    "hidden_act": "gelu_pytorch_tanh",
    "depth": 27,
    "patch_size": 16,
}
# More than any published tower has.
_MOST_STACKED = 16


def _stacked(vision: Values) -> tuple[int, ...]:
    found = vision.get("deepstack_visual_indexes", (8, 16, 24))
    if not isinstance(found, (list, tuple)) or len(found) > _MOST_STACKED:
        raise ValueError(
            f"deepstack_visual_indexes must be a list of at most {_MOST_STACKED} layers, received "
            f"{shorten(found)}."
        )
    return tuple(found)


def _read(values: Values, text: Family, **further: Any) -> dict[str, Any]:
    vision = {**_DEFAULTS, **nested(values, "vision_config")}
    grid = square_side(vision, "num_position_embeddings", 2304)
    encoder = tower(
        vision,
        "hidden_size",
        intermediate_dim=number(vision, "intermediate_size", 4304),
        stem={**stem_values(vision), "use_bias": True, "position_grid": grid},
    )
    decoder = text.config(text_values(values))
    if number(vision, "out_hidden_size", decoder.hidden_dim) != decoder.hidden_dim:
        raise ValueError(
            f"out_hidden_size={vision['out_hidden_size']} must be the width of the text model, "
            f"{decoder.hidden_dim}."
        )
    return merged(values, encoder, decoder, **further)


def _write(config: TransformerConfig, text: Family, **further: Any) -> dict[str, Any]:
    side = config.side("encoder")
    vision = written_tower(config, text.model_type.replace("_text", "_vision"), "hidden_size")
    vision |= {
        "intermediate_size": side.intermediate_dim,
        "out_hidden_size": config.side("decoder").hidden_dim,
        "num_position_embeddings": (side.stem.position_grid or 0) ** 2,
    }
    return {"vision_config": vision | further, **written(config, text)}


def _read_stacked(values: Values, text: Family) -> dict[str, Any]:
    stacked = _stacked(nested(values, "vision_config"))
    return _read(values, text, stacked_layers=stacked)


def _write_stacked(config: TransformerConfig, text: Family) -> dict[str, Any]:
    return _write(config, text, deepstack_visual_indexes=list(config.stacked_layers))


# One tensor holds all experts of a layer: first the columns of the gates, then the linear branches.
_OURS, _THEIRS = "decoder/layer_{i}/feed_forward/", "layers.{i}.mlp."
_TENSOR = {"ends": ("", "_bias"), "transpose": False}
_OF_EXPERTS = (
    *layers({"router": "gate"}, _OURS, _THEIRS),
    *fused(
        (f"{_OURS}expert_gate", f"{_OURS}expert_intermediate"),
        f"{_THEIRS}experts.gate_up_proj",
        **_TENSOR,
    ),
    *layers({"expert_output": "experts.down_proj"}, _OURS, _THEIRS, **_TENSOR),
)
# The outer config says whether embeddings are tied.
_NOT_READ = ("norm_topk_prob", "tie_word_embeddings")
_WITH_EXPERTS = dataclasses.replace(
    QWEN3_MOE,
    fields={
        **{name: field for name, field in QWEN3_MOE.fields.items() if name not in _NOT_READ},
        "num_key_value_heads": ConfigField("num_key_value_heads", 16),
        "intermediate_size": ConfigField("intermediate_dim", 5632),
        "num_experts_per_tok": ConfigField("experts_per_token", 4),
        "moe_intermediate_size": ConfigField("expert_dim", 1408),
        "num_attention_heads": ConfigField("num_heads", 16),
    },
    constants={**QWEN3_MOE.constants, "normalize_expert_weights": True, "tie_embeddings": False},
    weights=(*QWEN3.weights, *_OF_EXPERTS),
)
_MERGER = ("norm", "linear_fc1", "linear_fc2")
_POSITIONS = WeightLine("encoder/input_positions", "pos_embed.weight")
_STACKED = tuple(
    line
    for i in range(_MOST_STACKED)
    for line in merger_lines(f"stacked_projector_{i}/", f"deepstack_merger_list.{i}.", *_MERGER)
)
_TOWER = {"intermediate": "linear_fc1", "output": "linear_fc2"}
_NAMES = ("model.visual.", "model.language_model.")
_ASKED = (
    "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>{prompt}<|im_end|>\n"
    "<|im_start|>assistant\n"
)


def _with_images(model_type: str, prefix: str, template: str, **values: Any) -> Family:
    """Return a family of images and texts whose published classes begin with `prefix`."""
    head = PublishedHead(
        architectures=(f"{prefix}ForConditionalGeneration",),
        values={"template": template},
        options=(TEXT_END,),
    )
    return Family(
        model_type=model_type,
        architecture=f"{prefix}Model",
        fields={},
        constants={"kind": "seq2seq"},
        heads={"ImageToText": head},
        **values,
    )


def _qwen3_vl(model_type: str, prefix: str, plain: Family, *conversions, **values) -> Family:
    """Return a Qwen3-VL.

    Args:
        model_type: str, its published type.
        prefix: str, with which its published classes begin.
        plain: the family of its texts alone.
        *conversions: conversions of the texts, beside the rotary positions.
        **values: further values of the family.
    """
    text = of_axes(
        plain,
        rotary(default_base=5e5),
        *conversions,
        usual=(24, 20, 20),
        order="alternating",
        model_type=f"{model_type}_text",
        architecture=f"{prefix}TextModel",
        fields={
            **plain.fields,
            "max_position_embeddings": ConfigField("max_sequence_length", 128000),
        },
    )
    return _with_images(
        model_type,
        prefix,
        _ASKED,
        conversions=(
            Conversion(
                functools.partial(_read_stacked, text=text),
                functools.partial(_write_stacked, text=text),
            ),
        ),
        weights=(
            *tower_lines(_TOWER, _MERGER, _POSITIONS, *_STACKED, name=_NAMES[0]),
            *text_lines(plain, _NAMES[1]),
        ),
        names=Names(),
        **values,
    )


QWEN3_VL = _qwen3_vl("qwen3_vl", "Qwen3VL", QWEN3)
QWEN3_VL_MOE = _qwen3_vl(
    "qwen3_vl_moe",
    "Qwen3VLMoe",
    _WITH_EXPERTS,
    layers_with_experts(60, layers_alike),
    arrange=inputs_first,
)


def _qwen3_5(model_type: str, prefix: str, plain: Family, num_layers: int) -> Family:
    """Return a Qwen3.5 with images.

    Args:
        model_type: str, its published type.
        prefix: str, with which its published classes begin.
        plain: the family of its texts alone.
        num_layers: int, their number if the config does not give it.
    """
    text = of_axes(
        plain, rotary(0.25, 256), delta_layers(num_layers), usual=(11, 11, 10), order="alternating"
    )
    return _with_images(
        model_type,
        prefix,
        f"{_ASKED}<think>\n\n</think>\n\n",
        conversions=(
            Conversion(
                functools.partial(_read, text=text, image_token=248056),
                functools.partial(_write, text=text),
            ),
        ),
        weights=(
            *tower_lines(_TOWER, _MERGER, _POSITIONS, name=_NAMES[0]),
            *text_lines(plain, _NAMES[1]),
        ),
        of_config=lambda config: named_texts(plain.of_config(config.side("decoder")), _NAMES[1]),
        names=Names(ignored=("mtp.*",)),  # layers that predict further tokens
    )


QWEN3_5 = _qwen3_5("qwen3_5", "Qwen3_5", QWEN3_5_TEXT, 32)
QWEN3_5_MOE = _qwen3_5("qwen3_5_moe", "Qwen3_5Moe", QWEN3_5_MOE_TEXT, 40)
