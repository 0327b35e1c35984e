"""GGUF files, the format of llama.cpp: config, tensors and tokenizer of one file.

Facts are from llama.cpp's `convert_hf_to_gguf.py`, `gguf-py/gguf/constants.py` and
`src/llama-model.cpp`.
"""
