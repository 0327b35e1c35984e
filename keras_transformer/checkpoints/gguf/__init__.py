"""GGUF files, the format of llama.cpp: config, tensors and tokenizer of one file.

Facts are from llama.cpp's `convert_hf_to_gguf.py`, `gguf-py/gguf/constants.py` and
`src/llama-model.cpp`.
"""

from keras_transformer.checkpoints.gguf.config import published_config
from keras_transformer.checkpoints.gguf.header import Header, read_header
from keras_transformer.checkpoints.gguf.tensors import GGUFCheckpoint
from keras_transformer.checkpoints.gguf.tokenizers import has_tokenizer, read_tokenizer

__all__ = [
    "GGUFCheckpoint",
    "Header",
    "has_tokenizer",
    "published_config",
    "read_header",
    "read_tokenizer",
]
