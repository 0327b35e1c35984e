"""Cohere: Cohere 2024, "Command R".

Like Cohere2, but all layers have rotary positions and full attention. In Command R+ each head has
norms of its own for its queries and keys.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.shared import head_norms, rotary
from keras_transformer.checkpoints.families.decoders.cohere2 import COHERE2

COHERE = dataclasses.replace(
    COHERE2,
    model_type="cohere",
    architecture="CohereModel",
    conversions=(rotary(default_base=500000.0), head_norms("use_qk_norm")),
)
