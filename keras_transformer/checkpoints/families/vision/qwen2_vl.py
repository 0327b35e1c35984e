"""Qwen2-VL: Wang et al. 2024, https://arxiv.org/abs/2409.12191.

An image tower that reads images of any size as sequences of patches, with rotary positions of rows
and columns. Squares of its states are merged and put among the tokens of a Qwen 2, whose rotary
positions have three axes: time, row and column.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ACTIVATIONS,
    ConfigField,
    Conversion,
    Family,
    PartsWithoutKeywords,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.placed import (
    TEXT_END,
    nested,
    write_text,
)
from keras_transformer.checkpoints.families.base.shared import SWITCHED_WINDOW, flag, number, rotary
from keras_transformer.checkpoints.families.base.towers import with_encoder
from keras_transformer.checkpoints.families.decoders.llama import QWEN2
from keras_transformer.checkpoints.weights.tables import (
    Names,
    WeightLine,
    fused,
    layers,
    output_matrix,
)
from keras_transformer.config import Attention, Rotary, RotaryAxes, TransformerConfig
from keras_transformer.config.stems import PatchSequenceStemConfig
from keras_transformer.support.checking import shorten

# Names of activations that published towers have; others of the same round differently.
_USUAL_ACTIVATIONS = ("quick_gelu", "silu", "gelu_pytorch_tanh")


def of_axes(
    family: Family,
    plain: Conversion,
    *others: Conversion,
    usual: tuple[int, ...],
    order: str,
    **values: Any,
) -> Family:
    """Return a text family whose rotary positions have several axes.

    Args:
        family: the family of the texts alone.
        plain: the conversion of rotary positions without axes.
        *others: its other conversions.
        usual: numbers of pairs of each axis, if the config does not give them.
        order: the `order` of `config.RotaryAxes`.
        **values: further values of the family that differ.
    """

    def read_rotary(values: Values) -> dict[str, Any]:
        options = values.get("rope_parameters") or values.get("rope_scaling") or {}
        if isinstance(options, dict):  # older configs call the plain rotation of three axes so
            kind = options.get("rope_type", options.get("type"))
            options = {**options, "rope_type": "default" if kind == "mrope" else kind or "default"}
        return plain.read({**values, "rope_parameters": options})

    def read_axes(values: Values, config: TransformerConfig) -> TransformerConfig:
        options = values.get("rope_parameters") or values.get("rope_scaling") or {}
        pairs = options.get("mrope_section", usual)
        if not isinstance(pairs, (list, tuple)) or len(pairs) != 3:
            raise ValueError(f"mrope_section must be three numbers, received {shorten(pairs)}.")
        return _with_axes(config, RotaryAxes(pairs=tuple(pairs), order=order))

    def write_axes(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
        positions = (getattr(b.mixer, "position", None) for b in config.decoder.every_block)
        found = (getattr(position, "position_axes", None) for position in positions)
        axes = next((each for each in found if each is not None), None)
        if axes is None or axes.order != order:
            raise ValueError(f"the rotary positions there have axes of the order {order!r}.")
        one = _with_axes(config, None)
        rope = {**plain.write(one)["rope_parameters"], "mrope_section": list(axes.pairs)}
        rope |= {"mrope_interleaved": True} if order == "alternating" else {}
        return one, {"rope_parameters": rope}

    return dataclasses.replace(
        family,
        conversions=(Conversion(read_rotary, plain.write), *others),
        parts=PartsWithoutKeywords(read_axes, write_axes),
        **values,
    )


def _with_axes(config: TransformerConfig, axes: RotaryAxes | None) -> TransformerConfig:
    def changed(block):
        position = getattr(block.mixer, "position", None)
        if position is None:
            return block
        position = position.replace(position_axes=axes)
        return block.replace(mixer=block.mixer.replace(position=position))

    side = config.decoder
    return config.replace(
        decoder=side.replace(
            block=changed(side.block), layers=tuple(changed(block) for block in side.layers)
        )
    )


def tower(values: Values, width: str, **parts: Any) -> TransformerConfig:
    """Return the image tower of a published `vision_config`.

    Args:
        values: the `vision_config`.
        width: name of the width of its states there.
        **parts: further values of the config, by keyword.
    """
    activation = values.get("hidden_act", "quick_gelu")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ValueError(f"hidden_act={activation!r} of the image tower is not supported.")
    hidden, heads = number(values, width, 1280), number(values, "num_heads", 16)
    if heads < 1 or hidden % (4 * heads):
        raise ValueError(
            f"{width}={hidden} must be a multiple of 4 times num_heads={heads}: a head rotates as "
            "many pairs of features by rows as by columns."
        )
    return TransformerConfig(
        **{
            "kind": "encoder",
            "vocabulary_size": 0,
            "hidden_dim": hidden,
            "num_layers": number(values, "depth", 32),
            "num_heads": heads,
            "activation": ACTIVATIONS[activation],
            "position": "none",  # the mixer has the rotation
            "normalize_first": True,
            "normalization_epsilon": 1e-6,
            "final_normalization": False,
            "mixer": tower_mixer(values, hidden, heads),
            **parts,
        }
    )


def tower_mixer(values: Values, hidden: int, heads: int, **parts: Any) -> Attention:
    """Return the attention of an image tower, which rotates by rows and by columns."""
    options = nested(values, "rope_parameters")
    kind, base = options.get("rope_type", "axial"), number(options, "rope_theta", 10000.0, float)
    if kind != "axial":
        raise ValueError(f"rope_type={kind!r} of the image tower is not supported, only 'axial'.")
    axes = RotaryAxes(pairs=(hidden // heads // 4,) * 2, order="separate")
    return Attention(num_heads=heads, position=Rotary(base=base, position_axes=axes), **parts)


def stem_values(values: Values, **further: Any) -> dict[str, Any]:
    """Return the stem of an image tower, by keyword."""
    patch, frames = (
        value[-1] if isinstance(value := values.get(name, usual), (list, tuple)) else value
        for name, usual in (("patch_size", 14), ("temporal_patch_size", 2))
    )
    sizes = {"patch_size": patch, "num_frames": frames}
    return {
        "kind": "patch_sequence",
        **{name: number(sizes, name, None) for name in sizes},
        "num_channels": number(values, "in_channels", values.get("in_chans", 3)),
        **further,
    }


def merged(
    values: Values,
    encoder: TransformerConfig,
    decoder: TransformerConfig,
    image_token: int = 151655,
    **further: Any,
) -> dict[str, Any]:
    """Return the values of a model whose merged image states are put among the tokens.

    `image_token` is the id of the placeholder, if the config has none; `further` are more values.
    """
    vision = nested(values, "vision_config")
    tied = flag(values, "tie_word_embeddings") or decoder.tie_embeddings
    return with_encoder(
        encoder,
        decoder,
        placeholder_id=number(values, "image_token_id", image_token),
        projector="merged",
        projector_pool=number(vision, "spatial_merge_size", 2),
        tie_embeddings=bool(tied),
        **further,
    )


def text_values(values: Values) -> Values:
    """Return the values of the text model, which older configs have beside the others."""
    return nested(values, "text_config") or {
        name: value for name, value in values.items() if name != "vision_config"
    }


def written(config: TransformerConfig, text: Family) -> dict[str, Any]:
    """Return the published values of a model, without its image tower."""
    place = config.placeholder_id
    return {
        "text_config": write_text(config, text),
        "image_token_id": place,
        # The tokens around an image and the tokens of videos are its neighbors in the vocabulary.
        "vision_start_token_id": max(place - 3, 0),
        "vision_end_token_id": max(place - 2, 0),
        "video_token_id": place + 1,
        "tie_word_embeddings": config.tie_embeddings,
    }


def written_tower(config: TransformerConfig, model_type: str, width: str) -> dict[str, Any]:
    """Return the `vision_config` of an image tower, without its feed-forward layers.

    Raises:
        ValueError: if the model has no such tower.
    """
    side = config.side("encoder")
    if config.kind != "seq2seq" or not isinstance(side.stem, PatchSequenceStemConfig):
        raise ValueError("an image tower there reads patches of images of any size.")
    stem, mixer = side.stem, side.encoder.block.mixer
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    names |= {ACTIVATIONS[name]: name for name in _USUAL_ACTIVATIONS}
    return {
        "model_type": model_type,
        width: side.hidden_dim,
        "depth": side.num_layers,
        "num_heads": mixer.num_heads,
        "hidden_act": names[side.activation],
        "in_channels": stem.num_channels,
        "patch_size": stem.patch_size,
        "temporal_patch_size": stem.num_frames,
        "spatial_merge_size": config.projector_pool,
        "rope_parameters": {"rope_type": "axial", "rope_theta": mixer.position.base},
    }


def named(lines: Iterable[WeightLine], name: str, *also: str) -> tuple[WeightLine, ...]:
    """Return lines whose tensors begin with `name`, or with one of `also`."""
    return tuple(
        dataclasses.replace(
            line, theirs=name + line.theirs, also=tuple(each + line.theirs for each in also)
        )
        for line in lines
        if not line.outside
    )


_BLOCK = {
    "self_attention_norm": "norm1",
    "self_attention/output": "attn.proj",
    "feed_forward_norm": "norm2",
}
_OURS, _THEIRS = "encoder/layer_{i}/", "blocks.{i}."
_QKV = [f"{_OURS}self_attention/{name}" for name in ("query", "key", "value")]


def merger_lines(
    ours: str, theirs: str, norm: str, first: str, last: str
) -> tuple[WeightLine, ...]:
    """Return the lines of a merger, by the published names of its norm and of its two layers."""
    weight, bias = f"{theirs}{norm}.weight", f"{theirs}{norm}.bias"
    return (
        *layers({"mlp/intermediate": first, "mlp/output": last}, ours, theirs),
        # The norm is of the tower's kind, which may differ from the decoder's.
        WeightLine(f"{ours}norm/gamma", weight),
        WeightLine(f"{ours}norm/beta", bias),
        WeightLine(f"{ours}norm/scale", weight),
    )


# Names of the two parts of a model in the first checkpoints, in Transformers' later ones, and in
# a model without a head.
_TOWERS = ("visual.", "model.visual.")
_TEXTS = ("model.", "model.language_model.", "language_model.")


def tower_lines(
    feed_forward: dict[str, str],
    merger: tuple[str, str, str],
    *further: WeightLine,
    name: str = _TOWERS[0],
) -> tuple[WeightLine, ...]:
    """Return the lines of an image tower and of its merger.

    Args:
        feed_forward: the layers of a feed-forward layer, by our names.
        merger: names of the merger's norm and of its two layers.
        *further: lines that only some towers have.
        name: the beginning of the tensors' names in published checkpoints.
    """
    inner = {f"feed_forward/{ours}": f"mlp.{theirs}" for ours, theirs in feed_forward.items()}
    lines = (
        *layers({"encoder/input_patches": "patch_embed.proj"}, convolution=True),
        *layers({**_BLOCK, **inner}, _OURS, _THEIRS),
        *fused(_QKV, f"{_THEIRS}attn.qkv"),
        *merger_lines("projector/", "merger.", *merger),
        *further,
    )
    return named(lines, name, *(each for each in _TOWERS if each != name))


def text_lines(family: Family, name: str = _TEXTS[0]) -> tuple[WeightLine, ...]:
    """Return the lines of the text model, whose published tensors begin with `name`."""
    return (*named_texts(family.weights, name), output_matrix("lm_head.weight"))


def named_texts(lines: Iterable[WeightLine], name: str) -> tuple[WeightLine, ...]:
    """Return lines of a text model whose published tensors begin with `name`."""
    return named(lines, name, *(each for each in _TEXTS if each != name))


def _read(values: Values) -> dict[str, Any]:
    vision = nested(values, "vision_config")
    ratio, width = number(vision, "mlp_ratio", 4), number(vision, "embed_dim", 1280)
    encoder = tower(vision, "embed_dim", intermediate_dim=ratio * width, stem=stem_values(vision))
    decoder = QWEN2_VL_TEXT.config(text_values(values))
    if number(vision, "hidden_size", decoder.hidden_dim) != decoder.hidden_dim:
        raise ValueError(
            f"hidden_size={vision['hidden_size']} of the image tower's output must equal the text "
            f"model's, {decoder.hidden_dim}."
        )
    return merged(values, encoder, decoder)


def _write(config: TransformerConfig) -> dict[str, Any]:
    side = config.side("encoder")
    vision = written_tower(config, "qwen2_vl_vision", "embed_dim")
    if side.intermediate_dim % side.hidden_dim:
        raise ValueError(
            f"intermediate_dim={side.intermediate_dim} of the image tower must be a multiple of "
            f"its width {side.hidden_dim} there."
        )
    vision["mlp_ratio"] = side.intermediate_dim // side.hidden_dim
    vision["hidden_size"] = config.side("decoder").hidden_dim
    return {"vision_config": vision, **written(config, QWEN2_VL_TEXT)}


_FIELDS = {name: field for name, field in QWEN2.fields.items() if name != "head_dim"} | {
    "vocab_size": ConfigField("vocabulary_size", 152064),
    "hidden_size": ConfigField("hidden_dim", 8192),
    "num_hidden_layers": ConfigField("num_layers", 80),
    "num_attention_heads": ConfigField("num_heads", 64),
    "num_key_value_heads": ConfigField("num_key_value_heads", 8),
    "intermediate_size": ConfigField("intermediate_dim", 29568),
    "rms_norm_eps": ConfigField("normalization_epsilon", 1e-5),
}
QWEN2_VL_TEXT = of_axes(
    QWEN2,
    rotary(default_base=1e6),
    SWITCHED_WINDOW,
    usual=(16, 24, 24),
    order="consecutive",
    model_type="qwen2_vl_text",
    architecture="Qwen2VLTextModel",
    fields=_FIELDS,
)
# The norm and the two layers of a merger.
MERGER = ("ln_q", "mlp.0", "mlp.2")
TEMPLATE = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
    "<|vision_start|><|image_pad|><|vision_end|>{prompt}<|im_end|>\n<|im_start|>assistant\n"
)

QWEN2_VL = Family(
    model_type="qwen2_vl",
    architecture="Qwen2VLModel",
    fields={},
    constants={"kind": "seq2seq"},
    conversions=(Conversion(_read, _write),),
    weights=(
        *tower_lines({"intermediate": "fc1", "output": "fc2"}, MERGER),
        *text_lines(QWEN2),
    ),
    heads={
        "ImageToText": PublishedHead(
            architectures=("Qwen2VLForConditionalGeneration",),
            values={"template": TEMPLATE},
            options=(TEXT_END,),
        )
    },
    names=Names(),
)
