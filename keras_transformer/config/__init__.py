"""Configs of models, made of parts that hold values, check them and list their weights."""

from keras_transformer.config import (
    altup,
    block,
    bottleneck,
    conformer,
    feed_forward,
    inputs,
    laurel,
    layer_inputs,
    local_attention,
    merging,
    mixers,
    model,
    norm,
    outputs,
    parallel,
    pattern,
    positions,
    score_bias,
    side,
    stems,
    waveform,
)
from keras_transformer.config.altup import *  # noqa: F403
from keras_transformer.config.block import *  # noqa: F403
from keras_transformer.config.bottleneck import *  # noqa: F403
from keras_transformer.config.conformer import *  # noqa: F403
from keras_transformer.config.feed_forward import *  # noqa: F403
from keras_transformer.config.feed_forward import ACTIVATIONS as ACTIVATIONS
from keras_transformer.config.flat import CHANGEABLE as CHANGEABLE
from keras_transformer.config.flat import KINDS as KINDS
from keras_transformer.config.flat import OPTIONS as OPTIONS
from keras_transformer.config.flat import POSITIONS as POSITIONS
from keras_transformer.config.flat import SIDES as SIDES
from keras_transformer.config.inputs import *  # noqa: F403
from keras_transformer.config.laurel import *  # noqa: F403
from keras_transformer.config.layer_inputs import *  # noqa: F403
from keras_transformer.config.local_attention import *  # noqa: F403
from keras_transformer.config.merging import *  # noqa: F403
from keras_transformer.config.mixers import *  # noqa: F403
from keras_transformer.config.mixers import SCORES as SCORES
from keras_transformer.config.model import *  # noqa: F403
from keras_transformer.config.model import TWO_SIDED as TWO_SIDED
from keras_transformer.config.norm import *  # noqa: F403
from keras_transformer.config.outputs import *  # noqa: F403
from keras_transformer.config.parallel import *  # noqa: F403
from keras_transformer.config.pattern import *  # noqa: F403
from keras_transformer.config.positions import *  # noqa: F403
from keras_transformer.config.positions import ROTARY_SCALINGS as ROTARY_SCALINGS
from keras_transformer.config.score_bias import *  # noqa: F403
from keras_transformer.config.side import *  # noqa: F403
from keras_transformer.config.side import MOST_LAYERS as MOST_LAYERS
from keras_transformer.config.stems import *  # noqa: F403
from keras_transformer.config.stems import STEMS as STEMS
from keras_transformer.config.waveform import *  # noqa: F403
from keras_transformer.config.weight import NORMALIZATIONS as NORMALIZATIONS

__all__ = [
    *altup.__all__,
    *block.__all__,
    *bottleneck.__all__,
    *conformer.__all__,
    *feed_forward.__all__,
    *inputs.__all__,
    *laurel.__all__,
    *layer_inputs.__all__,
    *local_attention.__all__,
    *merging.__all__,
    *mixers.__all__,
    *model.__all__,
    *norm.__all__,
    *outputs.__all__,
    *parallel.__all__,
    *pattern.__all__,
    *positions.__all__,
    *score_bias.__all__,
    *side.__all__,
    *stems.__all__,
    *waveform.__all__,
]
