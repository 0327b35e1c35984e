"""ColQwen2: Faysse et al. 2024, https://arxiv.org/abs/2407.01449.

ColPali's vectors of pages and queries, made by a Qwen2-VL: pages have any size.
"""

import dataclasses

from keras_transformer.checkpoints.families.decoders.llama import QWEN2
from keras_transformer.checkpoints.families.vision.colpali import retriever
from keras_transformer.checkpoints.families.vision.qwen2_vl import (
    MERGER,
    QWEN2_VL,
    text_lines,
    tower_lines,
)

# The same tensors, by the names that a model inside another writes.
_WEIGHTS = (
    *tower_lines({"intermediate": "fc1", "output": "fc2"}, MERGER),
    *text_lines(QWEN2, "language_model."),
)

COLQWEN2 = retriever(
    dataclasses.replace(QWEN2_VL, weights=_WEIGHTS),
    "colqwen2",
    "ColQwen2ForRetrieval",
    page_template=(
        "<|im_start|>user\n<|vision_start|>{image}<|vision_end|>Describe the image."
        "<|im_end|><|endoftext|>"
    ),
    query_template="Query: {query}" + "<|endoftext|>" * 10 + "\n",
)
