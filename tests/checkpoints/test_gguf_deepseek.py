"""GGUF files of DeepSeek-V2 and V3, with latent attention, against the Transformers library."""

import numpy as np
import pytest

import keras_transformer as kt
from tests.checkpoints.test_gguf import assert_same_logits

gguf = pytest.importorskip("gguf")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
gguf_files = pytest.importorskip("tests.checkpoints.gguf_files")

SIZES = {
    "vocab_size": 64,
    "hidden_size": 24,
    "intermediate_size": 24,
    "moe_intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "kv_lora_rank": 8,
    "q_lora_rank": 10,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
    "n_group": None,
    "topk_group": None,
    "topk_method": "greedy",
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.7,
    "mscale_all_dim": 0.7,
}
GROUPS = {"topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1}
CASES = {
    "lite": (2, {"q_lora_rank": None}),
    "whole": (2, {**GROUPS, "rope_parameters": YARN, "tie_word_embeddings": True}),
    "version 3": (3, {"n_group": 2, "topk_group": 1, "topk_method": "noaux_tc"}),
    "version 3, scaled": (3, {"n_group": 1, "topk_group": 1, "rope_parameters": YARN}),
}


def made(version, values):
    config = getattr(transformers, f"DeepseekV{version}Config")(**{**SIZES, **values})
    model = getattr(transformers, f"DeepseekV{version}ForCausalLM")(config).eval()
    random = torch.Generator().manual_seed(0)
    corrections = [x for x in model.named_buffers() if x[0].endswith("e_score_correction_bias")]
    assert bool(corrections) == (version == 3)
    with torch.no_grad():
        for path, parameter in [*model.named_parameters(), *corrections]:
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=random) + ("norm" in path))
    return model


def written(path, model, change=None):
    """Write a model as llama.cpp's converter does."""
    config, writer = model.config, gguf.GGUFWriter(path, "deepseek2")
    rank, rotated = config.kv_lora_rank, config.qk_rope_head_dim
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    if config.q_lora_rank is not None:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(rank)
    writer.add_key_length(rank + rotated)
    writer.add_value_length(rank)
    writer.add_key_length_mla(config.qk_nope_head_dim + rotated)
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    if config.model_type == "deepseek_v3":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_norm(config.norm_topk_prob)
    if config.n_group is not None:
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
    writer.add_rope_dimension_count(rotated)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if change is not None:
        change(writer)
    for name, array in gguf_files.tensors_of(model, "deepseek2").items():
        for theirs, each in parts(name, array, config):
            writer.add_tensor(theirs, np.ascontiguousarray(each))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def parts(name, array, config):
    """The matrices of keys, transposed, and of values of each head."""
    if "attn_kv_b" not in name:
        return [(name, array)]
    nope, wide = config.qk_nope_head_dim, config.v_head_dim
    each = array.reshape(config.num_attention_heads, nope + wide, -1)
    keys, values = each[:, :nope].swapaxes(1, 2), each[:, nope:]
    return [(name.replace("kv_b", "k_b"), keys), (name.replace("kv_b", "v_b"), values)]


@pytest.mark.parametrize("case", CASES)
def test_a_model(tmp_path, case):
    version, values = CASES[case]
    reference = made(version, values)
    lm = assert_same_logits(written(tmp_path / "model.gguf", reference), reference)
    assert lm.backbone.family == f"deepseek_v{version}" and tuple(lm.end_ids) == (2,)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.add_uint32("deepseek2.expert_gating_func", 3), "func=3 is not supported"),
        (lambda w: w.add_tensor("blk.0.attn_kv_b.weight", np.ones((33, 8), "f4")), "older|before"),
        (lambda w: w.add_key_length_mla(4), "4 features of a key, 4 of which are rotated"),
        (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR), "scaled by 'linear'"),
        (lambda w: w.add_float32("deepseek2.logit_scale", 2.0), "logit_scale.* not supported"),
    ],
)
def test_files_that_are_refused(tmp_path, change, message):
    path = written(tmp_path / "model.gguf", made(*CASES["lite"]), change)
    with pytest.raises(ValueError, match=message):
        kt.CausalLM.from_preset(path)


@pytest.mark.one_backend
def test_it_is_not_written(tmp_path):
    lm = kt.CausalLM.from_preset(written(tmp_path / "model.gguf", made(*CASES["lite"])))
    with pytest.raises(ValueError, match="this model, a deepseek_v2, has other parts"):
        kt.export(lm, tmp_path / "out", format="gguf")
