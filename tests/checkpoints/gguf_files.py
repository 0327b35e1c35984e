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
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
MODELS |= {
    "gemma": ("gemma", "GemmaConfig", {"head_dim": 8}),
    "mixtral": (
        "llama",
        "MixtralConfig",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    ),
    "qwen2moe": (
        "qwen2moe", "Qwen2MoeConfig", {**_EXPERTS, "shared_expert_intermediate_size": 24},
    ),
    "qwen3moe": (
        "qwen3moe", "Qwen3MoeConfig", {**_EXPERTS, "head_dim": 16, "norm_topk_prob": True},
    ),
    "gpt_oss": (
        "gpt-oss",
        "GptOssConfig",
        {
            "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 3,
            "rope_parameters": {**_YARN, "truncate": False},
        },
    ),
    "falcon": ("falcon", "FalconConfig", {"multi_query": True}),
    "falcon_grouped": (
        "falcon", "FalconConfig", {"new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "bloom": ("bloom", "BloomConfig", {"seq_length": 64}),
    "gpt2": ("gpt2", "GPT2Config", {"n_inner": 64}),
    "stablelm": ("stablelm", "StableLmConfig", {"rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
    "stablelm_parallel": (
        "stablelm",
        "StableLmConfig",
        {"use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": True},
    ),
    "starcoder2": ("starcoder2", "Starcoder2Config", {"sliding_window": None}),
    "nemotron": ("nemotron", "NemotronConfig", {}),
    "lfm2": ("lfm2", "Lfm2Config", {
        "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}),
    "llama_yarn": ("llama", "LlamaConfig", {"rope_parameters": {
        **_YARN, "beta_fast": 16.0, "attention_factor": 1.0}}),
    "qwen2_yarn": ("qwen2", "Qwen2Config", {"rope_parameters": _YARN}),
    "llama_linear": ("llama", "LlamaConfig", {"rope_parameters": {
        "rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "phi3_longrope": ("phi3", "Phi3Config", {
        "original_max_position_embeddings": 2,
        "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 1.0,
            "factor": 32.0, "original_max_position_embeddings": 2,
            "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 1.5, 2.0, 4.0],
        },
    }),
}  # fmt: skip
_DELTA = {
    "head_dim": 16, "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 4,
    "linear_value_head_dim": 8, "linear_conv_kernel_dim": 3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25,
                        "mrope_section": [1, 1, 0]},
}  # fmt: skip
MODELS |= {
    "qwen35": ("qwen35", "Qwen3_5TextConfig", {**_DELTA, "tie_word_embeddings": True}),
    "qwen35moe": ("qwen35moe", "Qwen3_5MoeTextConfig", {
        **_DELTA, **_EXPERTS, "shared_expert_intermediate_size": 24}),
}  # fmt: skip
# Names that the package's table does not have.
_RENAMED = {
    "block_sparse_moe.": "mlp.",
    "mlp.router": "mlp.gate",
    "linear_attn.dt_bias": "linear_attn.dt_proj.bias",
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
    """The model's tensors by their names in a GGUF file, named by the package's table."""
    config, found = model.config, {}
    kind = next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    table = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    for path, tensor in _split(model.state_dict(), config):
        if path == "lm_head.weight" and config.tie_word_embeddings:
            continue
        end = ".bias" if path.endswith((".bias", "_bias")) else ".weight"
        end = "" if path.endswith("A_log") else end
        for theirs, known in _RENAMED.items():
            path = path.replace(theirs, known)
        path = path.removesuffix(end).removesuffix("_bias")
        name = table.get_name(path) or table.get_name(path.removeprefix("transformer."))
        found[name + end] = _as_stored(tensor.numpy(), name + end, config, architecture)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "llama3":
        rotary = model.model.rotary_emb.inv_freq.numpy()
        plain = 1 / rope["rope_theta"] ** (np.arange(0, 2 * len(rotary), 2) / (2 * len(rotary)))
        found["rope_freqs.weight"] = (plain / rotary).astype("float32")
    for name in ("long", "short") if rope.get("rope_type") == "longrope" else ():
        found[f"rope_factors_{name}.weight"] = np.array(rope[f"{name}_factor"], "float32")
    return found


def _split(state, config):
    """Pairs of name and tensor, each as llama.cpp names them: experts' branches, heads' norms."""
    heads = {}
    for path, tensor in state.items():
        start, _, end = path.rpartition("experts.")
        if end.startswith("gate_up_proj"):
            bias = "_bias" if end.endswith("_bias") else ""
            if config.model_type == "gpt_oss":  # in columns that alternate
                parts = tensor[..., ::2], tensor[..., 1::2]
                parts = parts if bias else [part.swapaxes(-1, -2) for part in parts]
            else:
                parts = tensor.chunk(2, dim=1)
            for name, part in zip(("gate_proj", "up_proj"), parts, strict=True):
                yield f"{start}experts.{name}{bias}", part
        elif end == "down_proj" and config.model_type == "gpt_oss":
            yield path, tensor.swapaxes(-1, -2)
        elif "_layernorm.norms." in path:
            heads.setdefault(path.split(".norms.")[0] + ".weight", []).append(tensor)
        else:
            yield path, tensor
    for path, tensors in heads.items():
        yield path, torch.stack(tensors)


def _as_stored(array, name, config, architecture):
    """An array as llama.cpp's converter changes it for an architecture."""
    if architecture.startswith("qwen35"):
        return _as_stored_in_qwen35(array, name, config)
    part, end = name.split(".")[-2:]
    heads = config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    if architecture == "llama" and part in ("attn_q", "attn_k"):
        return _permuted(array, heads if part == "attn_q" else groups)
    if (architecture.startswith("gemma") or architecture == "nemotron") and part.endswith("norm"):
        return array + np.float32(1) if end == "weight" else array
    if architecture == "gpt2" and end == "weight" and array.ndim == 2 and "embd" not in name:
        return array if name == "output.weight" else array.T  # a Conv1D
    if architecture == "falcon" and part == "attn_qkv":
        groups = config.num_kv_heads if config.new_decoder_architecture else 1
        each = array.reshape(groups, heads // groups + 2, -1, array.shape[-1])
        parts = (each[:, :-2], each[:, -2:-1], each[:, -1:])
        return np.concatenate([part.reshape(-1, array.shape[-1]) for part in parts])
    if architecture == "bloom" and part == "attn_qkv":
        each = array.reshape(heads, 3, -1, *array.shape[1:])
        return each.swapaxes(0, 1).reshape(array.shape)
    if part == "conv":
        return array[:, 0]
    return array[0] if part == "ffn_gate_inp_shexp" else array


def _as_stored_in_qwen35(array, name, config):
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads

    def tiled(array, axis=0):  # from the heads of values of each key to those of all keys in turn
        moved = np.moveaxis(array, axis, 0)
        each = moved.reshape(keys, values // keys, -1, *moved.shape[1:])
        return np.moveaxis(each.swapaxes(0, 1).reshape(moved.shape), 0, axis)

    part = name.split(".")[2] if name.startswith("blk") else name.split(".")[0]
    if part == "ssm_a":
        return tiled(-np.exp(array))
    if part == "ssm_out":
        return tiled(array, 1)
    if part in ("attn_qkv", "ssm_conv1d"):
        array = array[:, 0] if part == "ssm_conv1d" else array
        first = 2 * keys * config.linear_key_head_dim
        return np.concatenate([array[:first], tiled(array[first:])])
    if part in ("attn_gate", "ssm_beta", "ssm_alpha", "ssm_dt"):
        return tiled(array)
    if part.endswith("norm") and part != "ssm_norm":
        return array + np.float32(1)
    return array[0] if part == "ffn_gate_inp_shexp" else array


def describe(writer, config, architecture):
    """Write the metadata of a model."""
    heads, width = config.num_attention_heads, config.hidden_size
    head_dim = getattr(config, "head_dim", None) or width // heads
    writer.add_context_length(getattr(config, "seq_length", None) or config.max_position_embeddings)
    writer.add_embedding_length(width)
    writer.add_block_count(config.num_hidden_layers)
    widths = ("ffn_hidden_size", "n_inner", "intermediate_size")
    found = (getattr(config, name, None) for name in widths)
    if architecture != "qwen35moe":
        writer.add_feed_forward_length(
            4 * width if architecture == "bloom" else next(each for each in found if each)
        )
    writer.add_head_count(heads)
    groups = getattr(config, "num_key_value_heads", None) or heads
    if architecture in ("bloom", "gpt2"):
        groups = heads
    if architecture == "falcon":
        groups = config.num_kv_heads if config.new_decoder_architecture else 1
    if architecture == "lfm2":
        groups = [0 if kind == "conv" else groups for kind in config.layer_types]
        writer.add_shortconv_l_cache(config.conv_L_cache)
    writer.add_head_count_kv(groups)
    if getattr(config, "rms_norm_eps", None) or architecture == "lfm2":
        writer.add_layer_norm_rms_eps(getattr(config, "rms_norm_eps", None) or config.norm_eps)
    else:
        names = ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps")
        writer.add_layer_norm_eps(next(getattr(config, n) for n in names if hasattr(config, n)))
    writer.add_vocab_size(config.vocab_size)
    _describe_experts(writer, config, architecture)
    if architecture not in ("bloom", "gpt2"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        _describe_rotary(writer, config, head_dim)
    if architecture.startswith("qwen35"):
        writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
        writer.add_ssm_state_size(config.linear_key_head_dim)
        writer.add_ssm_group_count(config.linear_num_key_heads)
        writer.add_ssm_time_step_rank(config.linear_num_value_heads)
        writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
        writer.add_full_attention_interval(2)
    if architecture.startswith("gemma") and architecture != "gemma":
        writer.add_sliding_window(config.sliding_window)
    if architecture == "gpt-oss" or (architecture == "phi3" and config.sliding_window):
        writer.add_sliding_window(config.sliding_window)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if architecture == "stablelm":
        writer.add_parallel_residual(True)  # as in files whose model does not say
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)


def _describe_experts(writer, config, architecture):
    count = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if not count:
        return
    writer.add_expert_count(count)
    writer.add_expert_used_count(config.num_experts_per_tok)
    if architecture.startswith("qwen"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if architecture in ("qwen2moe", "qwen35moe"):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def _describe_rotary(writer, config, head_dim):
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1)))
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "attention_factor" in rope:  # of the factor that llama.cpp computes
            own = rope["attention_factor"] / (0.1 * np.log(rope["factor"]) + 1)
            writer.add_rope_scaling_attn_factors(float(own))
        if rope.get("beta_fast", 32.0) != 32.0:
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
    if rope["rope_type"] == "longrope":
        original = config.original_max_position_embeddings
        stretch = config.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(stretch) / np.log(original))))


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


def write(path, model, architecture, kind="F32", vocabulary=None, change=None, tensors=0):
    """Write a model, its matrices in a type of tensors, and return the path.

    With `tensors`, the largest number in a file, the model is written in several parts.
    """
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=tensors)
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
    paths = writer.format_shard_names(path)
    writer.close()
    return paths[0]
