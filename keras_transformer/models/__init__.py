"""Backbones: the four kinds of model, each assembled from a `TransformerConfig`."""

from typing import TYPE_CHECKING

from keras_transformer.config import TransformerConfig
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.decoder import Decoder, DecoderBase
from keras_transformer.models.dual_encoder import DualEncoder
from keras_transformer.models.encoder import Encoder
from keras_transformer.models.runtime.runtime import Runtime
from keras_transformer.models.runtime.state import InterruptSafe
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.models.stack import ForwardContext
from keras_transformer.support.former_names import renamed

# The class of a backbone by the kind of its config.
BACKBONES = {"encoder": Encoder, "decoder": Decoder, "seq2seq": Seq2Seq, "dual": DualEncoder}


def build_backbone(
    config: TransformerConfig, dtype=None, name: str | None = None, initializer=None
) -> Backbone:
    """Build a backbone of the class that `config.kind` selects.

    Args:
        config: `TransformerConfig`.
        dtype: dtype or dtype policy.
        name: str.
        initializer: initializer of all kernels and embeddings. Defaults to the config's;
            `layers.arguments.HostZeros()` suits weights that are about to be loaded.

    Returns:
        `Encoder`, `Decoder`, `Seq2Seq` or `DualEncoder`.

    Example:
    ```python
    import keras_transformer as kt

    config = kt.TransformerConfig(
        kind="decoder", vocabulary_size=100, hidden_dim=32, num_layers=2, num_heads=4,
        intermediate_dim=64,
    )
    assert isinstance(kt.models.build_backbone(config), kt.models.Decoder)
    ```
    """
    return BACKBONES[config.kind](config, dtype=dtype, name=name, initializer=initializer)


__all__ = [
    "Backbone",
    "Decoder",
    "DecoderBase",
    "DualEncoder",
    "Encoder",
    "ForwardContext",
    "InterruptSafe",
    "Runtime",
    "Seq2Seq",
    "build_backbone",
]


_FORMER = {"BlockRun": "ForwardContext", "KeepsState": "InterruptSafe"}

if not TYPE_CHECKING:  # so that a type checker reports wrong names

    def __getattr__(name: str):
        return renamed(__name__, name, _FORMER, __all__)


def __dir__() -> list[str]:
    return __all__
