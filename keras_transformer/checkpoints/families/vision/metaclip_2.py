"""MetaClip2: Chuang et al. 2025, https://arxiv.org/abs/2507.22062.

CLIP trained on texts of all languages, with the tokenizer of XLM-RoBERTa.
"""

from keras_transformer.checkpoints.families.base.family import Conversion
from keras_transformer.checkpoints.families.vision.clip import clip_families

_END = Conversion(
    lambda values: {"vector_end_id": values.get("eos_token_id", 49407)},
    lambda config: {"eos_token_id": config.vector_end_id},
)

METACLIP_2, METACLIP_2_VISION, METACLIP_2_TEXT = clip_families("metaclip_2", "MetaClip2", _END)
