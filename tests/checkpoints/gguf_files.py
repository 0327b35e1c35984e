"""GGUF files of small random models, written as llama.cpp's converter writes them."""

import gguf
import numpy as np
import torch
import transformers

_SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
_GEMMA = {"query_pre_attn_scalar": 8, "head_dim": 8, "sliding_window": 3}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# Name -> `general.architecture`, class of the config, values.
MODELS = {
    "llama": ("llama", "LlamaConfig", {"tie_word_embeddings": False}),
    "llama_biases": (
        "llama",
        "LlamaConfig",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "llama3": ("llama", "LlamaConfig", {"rope_parameters": _LLAMA3, "head_dim": 16}),
    "mistral": ("llama", "MistralConfig", {"sliding_window": None, "head_dim": 16}),
    "qwen2": ("qwen2", "Qwen2Config", {"rope_theta": 1e6}),
    "qwen3": ("qwen3", "Qwen3Config", {"head_dim": 16, "tie_word_embeddings": True}),
    "gemma2": ("gemma2", "Gemma2Config", _GEMMA),
    "gemma3": (
        "gemma3",
        "Gemma3TextConfig",
        {**_GEMMA, "num_hidden_layers": 7, "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }},
    ),
    "phi3": ("phi3", "Phi3Config", {"sliding_window": 3, "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
}  # fmt: skip
_OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA_LAYER = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def made(name, **values):
    """A model of random weights, and its architecture in GGUF files."""
    architecture, config_class, own = MODELS[name]
    config = getattr(transformers, config_class)(**{**_SIZES, **own, **values})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            noise = 0.2 * torch.randn(parameter.shape, generator=random)
            parameter.copy_(noise + ("norm" in path and not architecture.startswith("gemma")))
    return model, architecture


def _permuted(array, heads):
    """Put the two halves of each head's rotary features next to each other, feature by feature."""
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


def tensors_of(model, architecture):
    """The model's tensors by their names in a GGUF file."""
    config, found = model.config, {}
    names = _LAYER | (_GEMMA_LAYER if architecture.startswith("gemma") else {})
    for path, tensor in model.state_dict().items():
        if path == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array, (path, end) = tensor.numpy(), path.rsplit(".", 1)
        if path in _OUTER:
            name = _OUTER[path]
        else:
            _, _, number, path = path.split(".", 3)
            name = f"blk.{number}.{names[path]}"
        heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
        if architecture == "llama" and name.endswith(("attn_q", "attn_k")):
            array = _permuted(array, heads[name[-1]])
        if architecture.startswith("gemma") and name.endswith("norm"):
            array = array + np.float32(1)
        found[f"{name}.{end}"] = array
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "llama3":
        rotary = model.model.rotary_emb.inv_freq.numpy()
        plain = 1 / rope["rope_theta"] ** (np.arange(0, 2 * len(rotary), 2) / (2 * len(rotary)))
        found["rope_freqs.weight"] = (plain / rotary).astype("float32")
    return found


def describe(writer, config, architecture):
    """Write the metadata of a model."""
    head_dim = getattr(config, "head_dim", None)
    head_dim = head_dim or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_vocab_size(config.vocab_size)
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1)))
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if architecture.startswith("gemma") or architecture == "phi3":
        writer.add_sliding_window(config.sliding_window)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)


def quantized(array, kind, seed=0):
    """An array as a type of blocks: rounded by the library, or random blocks where it cannot."""
    try:
        return gguf.quantize(array, kind)
    except NotImplementedError:
        pass
    size, stored = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (*array.shape[:-1], array.shape[-1] // size, stored), "u1")
    scale = np.array([0.0001], "f2").view("u1")
    # Where a block has its scales, in half precision.
    for place in {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}[kind.name]:
        blocks[..., place : place + 2] = scale
    return blocks.reshape(*array.shape[:-1], -1)


def write(path, model, architecture, kind="F32", vocabulary=None, change=None):
    """Write a model, its matrices in a type of tensors, and return the path."""
    writer = gguf.GGUFWriter(path, architecture)
    describe(writer, model.config, architecture)
    if vocabulary is not None:
        vocabulary(writer)
    if change is not None:
        change(writer)
    kind = gguf.GGMLQuantizationType[kind]
    for seed, (name, array) in enumerate(tensors_of(model, architecture).items()):
        array = np.ascontiguousarray(array)
        if array.ndim == 1 or kind.name == "F32":
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, quantized(array, kind, seed), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
