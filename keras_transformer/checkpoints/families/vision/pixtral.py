"""Pixtral: Agrawal et al. 2024, https://arxiv.org/abs/2410.07073.

Its image tower reads images of any size as sequences of patches, with rotary positions of rows
and columns, in the blocks of a Llama. Mistral 3 and a kind of LLaVA have it; it is no family of its
own.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import ACTIVATIONS, Values
from keras_transformer.checkpoints.families.base.placed import nested, prefixed
from keras_transformer.checkpoints.families.base.shared import number, number_of_layers
from keras_transformer.checkpoints.weights.tables import WeightLine, attention, layers
from keras_transformer.config import Attention, Rotary, RotaryAxes, TransformerConfig
from keras_transformer.config.stems import PatchSequenceStemConfig
from keras_transformer.support.checking import shorten

MODEL_TYPE = "pixtral"
# Of the prompts of instruction-tuned models; the tokenizer adds the start token.
TEMPLATE = "[INST][IMG]{prompt}[/INST]"
_EPSILON = 1e-5  # of all norms, which no published config changes


def read_tower(values: Values) -> TransformerConfig:
    """Return the image tower of a published `vision_config`. Raises ValueError if it is invalid."""
    activation = values.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ValueError(f"hidden_act={activation!r} of the image tower is not supported.")
    hidden = number(values, "hidden_size", 1024)
    heads = number(values, "num_attention_heads", 16)
    if heads < 1 or hidden % (4 * heads):
        raise ValueError(
            f"hidden_size={hidden} must be a multiple of 4 times num_attention_heads={heads}: a "
            "head rotates as many pairs of features by rows as by columns."
        )
    options = {"rope_theta": values.get("rope_theta", 10000.0), **nested(values, "rope_parameters")}
    kind = options.get("rope_type", "axial")
    if kind != "axial":
        raise ValueError(f"rope_type={kind!r} of the image tower is not supported, only 'axial'.")
    axes = RotaryAxes(pairs=(hidden // heads // 4,) * 2, order="grouped")
    rotation = Rotary(base=number(options, "rope_theta", None, float), position_axes=axes)
    patch = values.get("patch_size", 16)
    sides = list(patch) if isinstance(patch, (list, tuple)) else [patch]
    if not sides or any(side != sides[0] for side in sides):
        raise ValueError(f"patch_size={shorten(patch)} of the image tower must be a square.")
    return TransformerConfig(
        kind="encoder",
        vocabulary_size=0,
        hidden_dim=hidden,
        num_layers=number_of_layers(values, 24),
        num_heads=heads,
        intermediate_dim=number(values, "intermediate_size", 4096),
        activation=ACTIVATIONS[activation],
        gated=True,
        use_bias=False,
        position="none",  # the mixer has the rotation
        normalization="rms_norm",
        normalize_first=True,
        normalization_epsilon=_EPSILON,
        embedding_normalization=True,
        final_normalization=False,
        mixer=Attention(num_heads=heads, bias=False, position=rotation),
        stem={
            "kind": "patch_sequence",
            "patch_size": number({"patch_size": sides[0]}, "patch_size", None),
            "num_frames": 1,
            "num_channels": number(values, "num_channels", 3),
        },
    )


def write_tower(config: TransformerConfig) -> dict[str, Any]:
    """Return the published `vision_config` of the image tower of a model.

    Raises:
        ValueError: if the model has no such tower.
    """
    side = config.side("encoder")
    if config.kind != "seq2seq" or not isinstance(side.stem, PatchSequenceStemConfig):
        raise ValueError("an image tower there reads patches of images of any size.")
    mixer = side.encoder.block.mixer
    rotation = getattr(mixer, "position", None)
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    values = {
        "model_type": MODEL_TYPE,
        "hidden_size": side.hidden_dim,
        "intermediate_size": side.intermediate_dim,
        "num_hidden_layers": side.num_layers,
        "num_attention_heads": side.num_heads,
        "num_channels": side.stem.num_channels,
        "patch_size": side.stem.patch_size,
        "hidden_act": "gelu" if side.activation == "gelu" else names[side.activation],
        "rope_parameters": {"rope_type": "axial", "rope_theta": getattr(rotation, "base", 0.0)},
    }
    if read_tower(values).encoder.replace(max_sequence_length=side.encoder.max_sequence_length) != (
        side.encoder
    ):
        raise ValueError("Its image tower cannot express these layers of images.")
    return values


@dataclasses.dataclass(frozen=True)
class _WithoutFrames(WeightLine):
    """The line of a convolution over images, which is one over frames here."""

    def shape(self, ours):
        outputs, inputs, _, *places = super().shape(ours)
        return (outputs, inputs, *places)

    def split(self, array):
        return super().split(array[:, :, None])

    def join(self, arrays):
        return super().join(arrays)[:, :, 0]


_LAYER = {
    **attention("attention.{}_proj", "q", "k", "v", "o"),
    "self_attention_norm": "attention_norm",
    "feed_forward/gate": "feed_forward.gate_proj",
    "feed_forward/intermediate": "feed_forward.up_proj",
    "feed_forward/output": "feed_forward.down_proj",
    "feed_forward_norm": "ffn_norm",
}
_BLOCKS = layers(_LAYER, "encoder/layer_{i}/", "transformer.layers.{i}.")
LINES = prefixed(
    (
        *layers({"encoder/input_patches": "patch_conv"}, convolution=True, line=_WithoutFrames),
        *layers({"encoder/embedding_norm": "ln_pre"}),
        *_BLOCKS,
    ),
    "vision_tower.",
)
# Tensors of layers that are not read.
BEHIND = tuple(f"vision_tower.{line.theirs}".replace("{i}", "*") for line in _BLOCKS)
