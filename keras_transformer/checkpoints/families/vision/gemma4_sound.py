"""The tower of sound of a Gemma 4: Zhang et al. 2023, https://arxiv.org/abs/2303.01037.

Conformer blocks, whose attention sees the last few states, read a log-mel spectrogram that two
convolutions have halved. All of their projections may be clipped. It is a part of `gemma4`.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import Values
from keras_transformer.checkpoints.families.base.shared import flag, number, number_of_layers
from keras_transformer.checkpoints.weights.tables import WeightLine, layers
from keras_transformer.config import (
    Block,
    Conformer,
    ConvolvedFrameStemConfig,
    Dense,
    LocalAttention,
    Norm,
    Projector,
    Residual,
    Side,
    TransformerConfig,
)
from keras_transformer.config.weight import BOUNDS
from keras_transformer.support.checking import shorten

_KIND, _EPSILON = "gemma4_audio", 1e-6
# What every published tower has. The cap of gradients also limits states, which are far below it.
_CONSTANTS = {
    "hidden_act": "silu",
    "residual_weight": 0.5,
    "attention_context_right": 0,
    "rms_norm_eps": _EPSILON,
    "gradient_clipping": 1e10,
}


def read_sound(values: Values) -> tuple[Side, Projector]:
    """Return the side and the projector of a published `audio_config`.

    Raises:
        ValueError: if a value is out of range, or not supported.
    """
    check_sound(values, _KIND, _CONSTANTS)
    filters = two_filters(values, "subsampling_conv_channels")
    if filters[0] < 4 or filters[0] % 4:
        raise ValueError(
            "The first of subsampling_conv_channels is also the number of frequency bands, a "
            f"multiple of 4, received {shorten(filters)}."
        )
    size = number(values, "attention_context_left", 13) - 1
    chunk = number(values, "attention_chunk_size", 12)
    if size < 1 or chunk not in (size, size + 1):  # others shift the distances
        raise ValueError(
            "attention_chunk_size must be attention_context_left or one less, received "
            f"{chunk} and {size + 1}."
        )
    width, clipped = number(values, "hidden_size", 1024), flag(values, "use_clipped_linears", True)
    mixer = LocalAttention(
        num_heads=number(values, "num_attention_heads", 8),
        size=size,
        soft_cap=number(values, "attention_logit_cap", 50.0, float),
        clipped=clipped,
    )
    block = sound_block(mixer, width, number(values, "conv_kernel_size", 5))
    side = Side(
        input=ConvolvedFrameStemConfig(num_bins=filters[0], filters=tuple(filters)),
        hidden_dim=width,
        num_layers=number_of_layers(values, 12),
        block=block,
        final_norm=False,
    )
    inner = number(values, "output_proj_dims", 1536)
    return side, Projector(type="norm_between", inner_dim=inner)


def check_sound(values: Values, kind: str, supported: Values) -> None:
    """Raise ValueError unless an `audio_config` is of a kind, and has these values or none."""
    given = values.get("model_type", kind)
    if given != kind:
        raise ValueError(f"The tower of sound {given!r} is not supported, only {kind!r}.")
    for name, value in supported.items():
        if values.get(name, value) != value:
            raise ValueError(
                f"{name}={shorten(values[name])} of the tower of sound is not supported, only "
                f"{value!r}."
            )


def two_filters(values: Values, name: str) -> tuple[int, int]:
    """Return the features of two convolutions. Raises ValueError if they are not two numbers."""
    filters = values.get(name, (128, 32))
    known = isinstance(filters, (list, tuple)) and all(type(n) is int and n > 0 for n in filters)
    if not known or len(filters) != 2:
        raise ValueError(f"{name} must be two positive integers, received {shorten(filters)}.")
    return tuple(filters)


def sound_block(mixer: LocalAttention, width: int, size: int) -> Block:
    """Return the block of a tower of sound.

    Args:
        mixer: its attention; clipped if its other projections are.
        width: int, of the states.
        size: int, number of states that the convolution sees.
    """
    return Block(
        mixer=mixer,
        feed_forward=Dense(dim=4 * width, activation="silu", bias=False, clipped=mixer.clipped),
        norm=Norm(type="rms_norm", epsilon=_EPSILON),
        residual=Residual(order="sandwich"),
        conformer=Conformer(size=size, causal=True),
    )


def write_sound(config: TransformerConfig) -> dict[str, Any]:
    """Return the published `audio_config`. Raises ValueError if the model has no such tower."""
    side, projector = config.sound, config.sound_projector
    stem, block = side.input, side.block
    mixer, conformer = block.mixer, block.conformer
    theirs: dict[str, Any] = {}
    if isinstance(stem, ConvolvedFrameStemConfig) and isinstance(mixer, LocalAttention):
        theirs = {
            "model_type": _KIND,
            "hidden_size": side.hidden_dim,
            "num_hidden_layers": side.num_layers,
            "num_attention_heads": mixer.num_heads,
            "subsampling_conv_channels": list(stem.filters),
            "conv_kernel_size": 5 if conformer is None else conformer.size,
            "attention_chunk_size": mixer.size,
            "attention_context_left": mixer.size + 1,
            "attention_logit_cap": mixer.soft_cap,
            "use_clipped_linears": mixer.clipped,
            "output_proj_dims": getattr(projector, "inner_dim", None) or side.hidden_dim,
            **_CONSTANTS,
        }
    if not theirs or read_sound(theirs) != (side, projector):
        raise ValueError("a tower of sound there is one of Gemma 4.")
    return theirs


_CLIPPED = {
    **{
        f"{ours}/{inner}": f"feed_forward{i}.ffw_layer_{j}"
        for i, ours in ((1, "conformer/first"), (2, "feed_forward"))
        for j, inner in ((1, "intermediate"), (2, "output"))
    },
    **{f"mixer/{name}": f"self_attn.{name[0]}_proj" for name in ("query", "key", "value")},
    "mixer/output": "self_attn.post",
    "conformer/expansion": "lconv1d.linear_start",
    "conformer/output": "lconv1d.linear_end",
}
_OTHERS = {
    "mixer/position_key": "self_attn.relative_k_proj",
    "mixer_norm": "norm_pre_attn",
    "mixer_output_norm": "norm_post_attn",
    "conformer/first_norm": "feed_forward1.pre_layer_norm",
    "conformer/first_output_norm": "feed_forward1.post_layer_norm",
    "feed_forward_norm": "feed_forward2.pre_layer_norm",
    "feed_forward_output_norm": "feed_forward2.post_layer_norm",
    "conformer/convolution_norm": "lconv1d.pre_layer_norm",
    "conformer/depthwise_norm": "lconv1d.conv_norm",
    "conformer/final_norm": "norm_out",
}
_OURS, _THEIRS = "sound/layer_{i}/", "audio_tower.layers.{i}."
_INPUT, _SUBSAMPLING = "sound/input_", "audio_tower.subsample_conv_projection."
SOUND_WEIGHTS = (
    *(
        line
        for i in (0, 1)
        for line in (
            *layers({f"{_INPUT}convolution_{i}": f"{_SUBSAMPLING}layer{i}.conv"}, convolution=True),
            WeightLine(f"{_INPUT}norm_{i}/gamma", f"{_SUBSAMPLING}layer{i}.norm.weight"),
        )
    ),
    *layers({f"{_INPUT}projection": f"{_SUBSAMPLING}input_proj_linear"}),
    *layers({ours: f"{theirs}.linear" for ours, theirs in _CLIPPED.items()}, _OURS, _THEIRS),
    *(
        WeightLine(f"{_OURS}{ours}/{bound}", f"{_THEIRS}{theirs}.{bound}")
        for ours, theirs in _CLIPPED.items()
        for bound in BOUNDS
    ),
    *layers(_OTHERS, _OURS, _THEIRS),
    WeightLine(f"{_OURS}mixer/query_scale", f"{_THEIRS}self_attn.per_dim_scale"),
    WeightLine(
        f"{_OURS}conformer/depthwise_convolution/kernel",
        f"{_THEIRS}lconv1d.depthwise_conv1d.weight",
        depthwise=True,
    ),
    *layers({"sound_projector/inner": "audio_tower.output_proj"}),
    *layers({"sound_projector/output": "embed_audio.embedding_projection"}),
)
