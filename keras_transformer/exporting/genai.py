"""The file `genai_config.json`, which onnxruntime-genai reads next to a decoder's graph."""

from typing import Any

import keras


def genai_config(task: keras.Model) -> dict[str, Any] | None:
    """Return the values of `genai_config.json`; None if layers differ in the shape of the cache.

    Args:
        task: a task or a backbone of kind `"decoder"`, whose graph is `model.onnx`.

    Source: https://onnxruntime.ai/docs/genai/reference/config.html
    """
    backbone = getattr(task, "backbone", task)
    config, layers = backbone.config, [layer[:2] for layer in backbone.cache_layers]
    if len({*layers}) > 1:
        return None
    (heads, width), tokenizer = layers[0], getattr(task, "tokenizer", None)
    start = None if tokenizer is None else tokenizer.start_id
    mixers = [block.mixer for block in config.last_side.every_block]
    of_queries = max((mixer.num_heads for mixer in mixers if mixer.attends), default=heads)
    names = {f"past_{part}_names": f"past_key_values.%d.{part}" for part in ("key", "value")}
    given = {f"present_{part}_names": f"present.%d.{part}" for part in ("key", "value")}
    ids = ("input_ids", "attention_mask", "position_ids")
    return {
        "model": {
            "type": "llama",  # for all decoders: only the inputs described below matter
            "vocab_size": config.vocabulary_size,
            "context_length": config.max_sequence_length,
            "bos_token_id": start or 0,
            "eos_token_id": list(getattr(task, "end_ids", ())),
            "pad_token_id": getattr(task, "pad_id", 0),
            "decoder": {
                "filename": "model.onnx",
                "session_options": {"provider_options": []},
                "head_size": width,
                "hidden_size": config.hidden_dim,
                "num_attention_heads": of_queries,
                "num_hidden_layers": len(layers),
                "num_key_value_heads": heads,
                "inputs": {name: name for name in ids} | names,
                "outputs": {"logits": "logits"} | given,
            },
        },
        "search": {
            "do_sample": False,
            "max_length": config.max_sequence_length,
            "past_present_share_buffer": False,  # the cache grows
        },
    }
