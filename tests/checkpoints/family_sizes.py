"""Sizes that configs of several kinds of families are made of: they differ from each other.

Odd head counts, head sizes that do not divide the width.
"""

LLAMA = {
    "vocab_size": 61,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "intermediate_size": 20,
    "max_position_embeddings": 64,
}
WIDER = {"hidden_size": 40, "num_attention_heads": 5, "intermediate_size": 33}
