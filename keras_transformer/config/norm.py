"""The kind of a normalization."""

from keras_transformer.config.options import Part, option, part
from keras_transformer.config.weight import NORMALIZATIONS

__all__ = ["Norm"]


@part
class Norm(Part):
    """Normalization of a block, of a side or of heads: its type and its epsilon."""

    type: str = option(
        '`"layer_norm"`, `"layer_norm_no_bias"`, `"rms_norm"`, `"layer_norm_plus_one"` and '
        '`"rms_norm_plus_one"`, which multiply by their weight plus one (Nemotron, Gemma), '
        '`"rms_norm_no_weight"`, which has no weight (nanochat), or `"batch_norm"`, with a `stem` '
        "only: over all positions of a batch, with moving averages outside of training (PatchTST).",
        "layer_norm",
        choices=tuple(NORMALIZATIONS),
    )
    epsilon: float = option("added to the variance.", 1e-6, positive=True)
