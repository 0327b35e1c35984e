"""SAM: Kirillov et al. 2023, https://arxiv.org/abs/2304.02643.

A ViT whose attention is within windows of the grid of patches in most layers, with distances in
rows and columns in its scores. The neck of the encoder belongs to the head, as do the encoder of
prompts and the decoder of masks.
"""

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
from keras_transformer.checkpoints.families.base.images import IMAGE_ENCODER, patches
from keras_transformer.checkpoints.families.base.placed import nested
from keras_transformer.checkpoints.families.base.shared import flag, listed_layers, number
from keras_transformer.checkpoints.weights.tables import (
    Names,
    WeightLine,
    attention,
    fused,
    layers,
)
from keras_transformer.config import DecomposedBias, GridWindows, TransformerConfig
from keras_transformer.config.prompted import POINT_KINDS, PromptedMasks
from keras_transformer.support.checking import shorten

_VISION, _PROMPTS, _DECODER = "vision_config", "prompt_encoder_config", "mask_decoder_config"
_GLOBAL = (2, 5, 8, 11)
# Most layers, masks and layers of a score whose tensors have lines here.
_MOST = 16


def _square(name: str, given: Any) -> int:
    """Return the side of a square size. Raises ValueError if it is not one."""
    sides = list(given) if isinstance(given, (list, tuple)) else [given]
    if len(set(map(str, sides))) != 1:
        raise ValueError(f"{name}={shorten(given)} is not supported, only squares.")
    return number({name: sides[0]}, name, None)


def _read_vision(values: Values) -> dict[str, Any]:
    vision = nested(values, _VISION)
    width = number(vision, "hidden_size", 768)
    inner = vision.get("mlp_dim")
    if inner is None:
        inner = int(width * number(vision, "mlp_ratio", 4.0, float))
    _square("image_size", vision.get("image_size", 1024))
    return dict(_TOWER.config({**vision, "mlp_dim": inner}).stated())


def _read_parts(values: Values, config: TransformerConfig) -> TransformerConfig:
    vision, side = nested(values, _VISION), config.encoder
    rows, columns = side.input.grid(side.input.image_size)
    size = number(vision, "window_size", 14)
    bias = None
    if vision.get("use_rel_pos", True):
        bias = DecomposedBias(rows=rows, columns=columns)
    whole = side.block.replace(mixer=side.block.mixer.replace(score_bias=bias))
    windows = GridWindows(size=size, rows=rows, columns=columns) if size else None
    within = whole.replace(mixer=whole.mixer.replace(pattern=windows))
    chosen = listed_layers({"global_attn_indexes": _GLOBAL, **vision}, "global_attn_indexes")
    blocks = tuple(whole if i in (chosen or ()) else within for i in range(side.num_layers))
    layers_ = () if len(set(blocks)) == 1 else blocks
    return config.replace(encoder=side.replace(block=blocks[0], layers=layers_))


def _write_parts(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    side = config.encoder if config.kind == "encoder" else None
    mixers = [] if side is None else [getattr(block, "mixer", None) for block in side.blocks]
    patterns = [getattr(mixer, "pattern", None) for mixer in mixers]
    sizes = {each.size for each in patterns if isinstance(each, GridWindows)}
    if side is None or len(sizes) > 1 or not hasattr(side.input, "patch_size"):
        return config, {}
    attention_ = side.block.mixer.replace(score_bias=None, pattern=None)
    plain = config.replace(
        encoder=side.replace(block=side.block.replace(mixer=attention_), layers=())
    )
    theirs = _TOWER.published_config(plain)
    del theirs["architectures"]
    theirs |= {
        "window_size": next(iter(sizes), 0),
        "global_attn_indexes": [i for i, each in enumerate(patterns) if each is None],
        "use_rel_pos": side.score_bias is not None,
    }
    image = {name: theirs[name] for name in ("image_size", "patch_size")}
    return plain, {_VISION: theirs, _PROMPTS: image}


def _activation(values: Values, usual: str) -> str:
    given = values.get("hidden_act", usual)
    if not isinstance(given, str) or given not in ACTIVATIONS:
        raise ValueError(f"hidden_act={shorten(given)} is not supported.")
    return ACTIVATIONS[given]


def _read_task(values: Values) -> dict[str, Any]:
    vision, prompts, decoder = (nested(values, name) for name in (_VISION, _PROMPTS, _DECODER))
    width = number(decoder, "hidden_size", 256)
    image, patch = (
        _square(name, vision.get(name, usual))
        for name, usual in (("image_size", 1024), ("patch_size", 16))
    )
    same = {
        "prompt_encoder_config.hidden_size": (number(prompts, "hidden_size", 256), width),
        "vision_config.output_channels": (number(vision, "output_channels", 256), width),
        "vision_config.num_pos_feats": (number(vision, "num_pos_feats", 128), width // 2),
        "prompt_encoder_config.image_size": (
            _square("image_size", prompts.get("image_size", 1024)),
            image,
        ),
        "prompt_encoder_config.patch_size": (
            _square("patch_size", prompts.get("patch_size", 16)),
            patch,
        ),
        "prompt_encoder_config.num_point_embeddings": (
            number(prompts, "num_point_embeddings", POINT_KINDS),
            POINT_KINDS,
        ),
        "prompt_encoder_config.layer_norm_eps": (
            number(prompts, "layer_norm_eps", 1e-6, float),
            number(decoder, "layer_norm_eps", 1e-6, float),
        ),
    }
    for name, (given, supported) in same.items():
        if given != supported:
            raise ValueError(
                f"{name}={given} is not supported with the other configs, only {supported}."
            )
    made = {
        "width": width,
        "mask_channels": number(prompts, "mask_input_channels", 16),
        "num_layers": number(decoder, "num_hidden_layers", 2),
        "num_heads": number(decoder, "num_attention_heads", 8),
        "intermediate_dim": number(decoder, "mlp_dim", 2048),
        "downsampling": number(decoder, "attention_downsample_rate", 2),
        "num_masks": number(decoder, "num_multimask_outputs", 3),
        "score_dim": number(decoder, "iou_head_hidden_dim", 256),
        "score_layers": number(decoder, "iou_head_depth", 3),
        "activation": _activation(decoder, "relu"),
        "prompt_activation": _activation(prompts, "gelu"),
        "epsilon": number(decoder, "layer_norm_eps", 1e-6, float),
    }
    if max(made["num_layers"], made["num_masks"], made["score_layers"]) >= _MOST:
        raise ValueError(
            f"A mask decoder with {_MOST} or more layers, masks or layers of a score is not "
            "supported."
        )
    return {"decoder": made}


def _write_task(task: Values) -> dict[str, Any]:
    values = PromptedMasks(**task["decoder"])
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    return {
        _VISION: {"output_channels": values.width, "num_pos_feats": values.width // 2},
        _PROMPTS: {
            "hidden_size": values.width,
            "mask_input_channels": values.mask_channels,
            "num_point_embeddings": POINT_KINDS,
            "hidden_act": names[values.prompt_activation],
            "layer_norm_eps": values.epsilon,
        },
        _DECODER: {
            "hidden_size": values.width,
            "hidden_act": names[values.activation],
            "mlp_dim": values.intermediate_dim,
            "num_hidden_layers": values.num_layers,
            "num_attention_heads": values.num_heads,
            "attention_downsample_rate": values.downsampling,
            "num_multimask_outputs": values.num_masks,
            "iou_head_depth": values.score_layers,
            "iou_head_hidden_dim": values.score_dim,
            "layer_norm_eps": values.epsilon,
        },
    }


_POSITION = Conversion(
    lambda values: {"position": "learned" if flag(values, "use_abs_pos", True) else "none"},
    lambda config: {"use_abs_pos": config.position == "learned"},
)
# The encoder alone, without the parts that no keyword describes.
_TOWER = Family(
    model_type="sam_vision_model",
    architecture="SamVisionModel",
    fields={
        "hidden_size": ConfigField("hidden_dim", 768),
        "num_hidden_layers": ConfigField("num_layers", 12),
        "num_attention_heads": ConfigField("num_heads", 12),
        "mlp_dim": ConfigField("intermediate_dim", 3072),
        "hidden_act": ConfigField("activation", "gelu"),
        "attention_dropout": ConfigField("attention_dropout", 0.0),
        "qkv_bias": ConfigField("attention_bias", True),
        "layer_norm_eps": ConfigField("normalization_epsilon", 1e-6),
        "initializer_range": ConfigField("initializer_range", 1e-10),
    },
    constants={**IMAGE_ENCODER, "final_normalization": False},
    conversions=(patches(1024, 16, class_token=False), _POSITION),
    weights=(),
    names=Names(),
)

_OURS, _THEIRS = "encoder/layer_{i}/", "vision_encoder.layers.{i}."
_QKV = tuple(f"{_OURS}self_attention/{part}" for part in ("query", "key", "value"))
_ENCODER = (
    *layers({"encoder/input_patches": "vision_encoder.patch_embed.projection"}, convolution=True),
    WeightLine(
        "encoder/position_embedding/embeddings", "vision_encoder.pos_embed", row=1, grid=True
    ),
    *fused(_QKV, f"{_THEIRS}attn.qkv"),
    WeightLine(f"{_OURS}self_attention/relative/rows", f"{_THEIRS}attn.rel_pos_h"),
    WeightLine(f"{_OURS}self_attention/relative/columns", f"{_THEIRS}attn.rel_pos_w"),
    *layers(
        {
            "self_attention/output": "attn.proj",
            "self_attention_norm": "layer_norm1",
            "feed_forward/intermediate": "mlp.lin1",
            "feed_forward/output": "mlp.lin2",
            "feed_forward_norm": "layer_norm2",
        },
        _OURS,
        _THEIRS,
    ),
)


def _norms(table: dict[str, str]) -> tuple[WeightLine, ...]:
    """Return the lines of LayerNorms outside of the backbone."""
    return tuple(
        WeightLine(f"{ours}/{mine}", f"{theirs}.{its}", outside=True)
        for ours, theirs in table.items()
        for mine, its in (("gamma", "weight"), ("beta", "bias"))
    )


def _attentions(ours: str, theirs: str) -> tuple[WeightLine, ...]:
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    return layers(attention(f"{theirs}.{{}}", *names, ours=ours), outside=True)


def _linear(ours: str, theirs: str) -> tuple[WeightLine, ...]:
    names = {"input": "proj_in", "output": "proj_out"}
    names |= {f"hidden_{i}": f"layers.{i}" for i in range(_MOST - 2)}
    return layers(
        {f"{ours}/{mine}": f"{theirs}.{its}" for mine, its in names.items()}, outside=True
    )


def _decoder_lines() -> tuple[WeightLine, ...]:
    ours, theirs = "mask_decoder", "mask_decoder.transformer"
    lines: tuple[WeightLine, ...] = ()
    for i in range(_MOST):
        own, its = f"{ours}/layer_{i}", f"{theirs}.layers.{i}"
        lines += (
            *_attentions(f"{own}/self_attention", f"{its}.self_attn"),
            *_attentions(f"{own}/tokens_to_image", f"{its}.cross_attn_token_to_image"),
            *_attentions(f"{own}/image_to_tokens", f"{its}.cross_attn_image_to_token"),
            *layers(
                {f"{own}/intermediate": f"{its}.mlp.lin1", f"{own}/output": f"{its}.mlp.lin2"},
                outside=True,
            ),
            *_norms(
                {
                    f"{own}/self_attention_norm": f"{its}.layer_norm1",
                    f"{own}/tokens_to_image_norm": f"{its}.layer_norm2",
                    f"{own}/feed_forward_norm": f"{its}.layer_norm3",
                    f"{own}/image_to_tokens_norm": f"{its}.layer_norm4",
                }
            ),
            *_linear(f"{ours}/mask_{i}", f"mask_decoder.output_hypernetworks_mlps.{i}"),
        )
    return (
        *lines,
        *_attentions(f"{ours}/tokens_to_image", f"{theirs}.final_attn_token_to_image"),
        *_norms(
            {
                f"{ours}/tokens_to_image_norm": f"{theirs}.layer_norm_final_attn",
                f"{ours}/upscale_norm": "mask_decoder.upscale_layer_norm",
            }
        ),
        *layers(
            {f"{ours}/upscale_{i}": f"mask_decoder.upscale_conv{i}" for i in (1, 2)},
            convolution=True,
            outside=True,
        ),
        *_linear(f"{ours}/scores", "mask_decoder.iou_prediction_head"),
        WeightLine(f"{ours}/score_token", "mask_decoder.iou_token.weight", outside=True),
        WeightLine(f"{ours}/tokens", "mask_decoder.mask_tokens.weight", outside=True),
    )


_NECK = {i: f"vision_encoder.neck.conv{i}" for i in (1, 2)}
_MASKS = {i: f"prompt_encoder.mask_embed.conv{i}" for i in (1, 2, 3)}
_HEAD = (
    *layers(
        {f"neck/convolution_{i}": theirs for i, theirs in _NECK.items()},
        convolution=True,
        outside=True,
    ),
    *_norms({f"neck/norm_{i}": f"vision_encoder.neck.layer_norm{i}" for i in (1, 2)}),
    WeightLine(
        "prompt_encoder/frequencies",
        "shared_image_embedding.positional_embedding",
        also=("prompt_encoder.shared_embedding.positional_embedding",),
        outside=True,
    ),
    *(
        WeightLine(f"prompt_encoder/{ours}", f"prompt_encoder.{theirs}.weight", outside=True)
        for ours, theirs in {
            **{f"point_{i}": f"point_embed.{i}" for i in range(POINT_KINDS)},
            "no_point": "not_a_point_embed",
            "no_mask": "no_mask_embed",
        }.items()
    ),
    *layers(
        {f"prompt_encoder/mask_{i}": theirs for i, theirs in _MASKS.items()},
        convolution=True,
        outside=True,
    ),
    *_norms(
        {
            f"prompt_encoder/mask_norm_{i}": f"prompt_encoder.mask_embed.layer_norm{i}"
            for i in (1, 2)
        }
    ),
    *_decoder_lines(),
)

SAM = Family(
    model_type="sam",
    architecture="SamVisionModel",
    fields={},
    constants=_TOWER.constants,
    conversions=(Conversion(_read_vision, lambda config: {}),),
    parts=PartsWithoutKeywords(_read_parts, _write_parts),
    weights=_ENCODER,
    heads={
        "PromptedSegmenter": PublishedHead(
            architectures=("SamModel",),
            weights=_HEAD,
            options=(Conversion(_read_task, _write_task),),
        )
    },
    names=Names(
        ignored=(
            "shared_image_embedding.*",
            "prompt_encoder.*",
            "mask_decoder.*",
            "vision_encoder.neck.*",
        )
    ),
)
