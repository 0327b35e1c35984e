"""Configs of families: their defaults, older forms, and errors."""

import json
import random

import pytest

from keras_transformer import CausalLM, Tokenizer, TransformerConfig, export_to_huggingface
from keras_transformer.checkpoints import load_backbone
from keras_transformer.checkpoints.families import FAMILIES, get_family
from keras_transformer.models import Decoder
from tests.checkpoints import families
from tests.checkpoints.test_families import saved, whole

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.backend_independent

_RELATIVE = {
    "model_type": "deberta-v2",
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "norm_rel_ebd": "layer_norm",
}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "mamba"}, "'mamba' are not supported"),
        ({"model_type": "mamba"}, "docs/add_a_family.md says how to add a family"),
        ({"model_type": "mamba"}, "The nearest of them is 'mamba2'. docs"),
        (
            {"model_type": "jamba", "mamba_d_state": 16, "attn_layer_period": 8},
            "nearest of them is 'bamba', whose config has no attn_layer_period: a part is needed",
        ),
        ({"model_type": "x", "clip_qkv": None}, "yolos. docs"),  # none is near
        (
            {"model_type": "llama", "rope_scaling": {"type": "dynamics", "factor": 2.0}},
            "'dynamics'",
        ),
        ({"model_type": "llama", "rope_parameters": [1]}, "rope_parameters must be an object"),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "layer_types": ["chunked"] * 32},
            "layer_types has 'chunked', which is not supported",
        ),
        ({"model_type": "gemma2", "layer_types": []}, "layer_types must be a list of 26 names"),
        ({"model_type": "gemma2", "num_hidden_layers": 10**9}, "num_hidden_layers=1000000000"),
        ({"model_type": "gemma2", "query_pre_attn_scalar": 0}, "query_pre_attn_scalar must be pos"),
        ({"model_type": "gemma", "use_bidirectional_attention": True}, "use_bidirectional_att"),
        ({"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 5.0}}, "must have 'full_"),
        ({"model_type": "gemma3_text", "attn_logit_softcapping": 9.0}, "attn_logit_softcapping=9"),
        (
            {"model_type": "phi3", "rope_scaling": {"type": "longrope"}},
            "rotary_short_factors. must",
        ),
        (
            {"model_type": "phi3", "rope_scaling": {"type": "su"}},
            "rotary_short_factors. must be 48",
        ),
        ({"model_type": "phi3", "rope_scaling": {"type": "linear"}}, "rope_type='linear'"),
        (
            {"model_type": "llama", "rope_scaling": {"type": "longrope", "attention_factor": 2.0}},
            "attention_factor=2.0 of rope_parameters",
        ),
        ({"model_type": "smollm3", "no_rope_layers": [1, 0]}, "has 2 values for 36 layers"),
        ({"model_type": "opt", "word_embed_proj_dim": 0}, "`embedding_dim` must be at least 1"),
        ({"model_type": "opt", "layer_norm_elementwise_affine": False}, "elementwise_affine=False"),
        ({"model_type": "bloom", "n_embed": "64"}, "n_embed must be a number"),
        ({"model_type": "gptj", "rotary_dim": None}, "rotary_dim must be a number"),
        ({"model_type": "falcon", "num_ln_in_parallel_attn": 2}, "needs new_decoder_architecture"),
        ({"model_type": "granite", "logits_scaling": 0}, "logits_scaling must be positive"),
        ({**_RELATIVE, "conv_kernel_size": 4}, "`convolution_size` must be odd"),
        ({**_RELATIVE, "conv_kernel_size": 3, "conv_groups": 2}, "conv_groups=2 for the conv"),
        ({**_RELATIVE, "conv_kernel_size": 3, "conv_act": "x"}, "conv_act='x' for the convolution"),
        ({**_RELATIVE, "pos_att_type": "c2p"}, "pos_att_type='c2p' is not supported with relative"),
        ({**_RELATIVE, "relative_attention": False}, "with relative_attention=False, only"),
        ({**_RELATIVE, "norm_rel_ebd": "none"}, "norm_rel_ebd='none' is not supported"),
        ({**_RELATIVE, "position_buckets": 512}, "position_buckets=512 must be below 512"),
        ({"model_type": "deepseek_v2", "topk_method": "noaux_tc"}, "topk_method='noaux_tc' is not"),
        ({"model_type": "deepseek_v2", "norm_topk_prob": True}, "norm_topk_prob=True is not"),
        ({"model_type": "deepseek_v3", "n_shared_experts": 0}, "n_shared_experts must be at least"),
        ({"model_type": "glm4_moe_lite", "mlp_layer_types": ["x"]}, "mlp_layer_types must be a"),
        ({"model_type": "deepseek_v3", "scoring_func": "softmax"}, "scoring_func='softmax' is not"),
        (
            {"model_type": "deepseek_v3", "num_attention_heads": 8, "num_key_value_heads": 4},
            "num_key_value_heads=4 is not supported with num_attention_heads=8",
        ),
        (
            {
                "model_type": "deepseek_v2",
                "rope_scaling": {"type": "linear", "factor": 2.0, "mscale_all_dim": 1.0},
            },
            "mscale_all_dim=1.0 of rope_parameters is supported only for rope_type='yarn'",
        ),
        ({"model_type": "albert", "inner_group_num": "2"}, "inner_group_num must be a number"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "add_cross_attention=True"),
        ({"model_type": "t5", "feed_forward_proj": "gated-gated-gelu"}, "feed_forward_proj"),
        (
            {"model_type": "marian", "vocab_size": 9, "decoder_vocab_size": 8},
            "`share_embeddings` needs sides of one `vocabulary_size`",
        ),
        ({"model_type": "xglm", "pad_token_id": 2}, "pad_token_id=2 is not supported"),
        ({"model_type": "xglm", "add_cross_attention": True}, "add_cross_attention=True"),
        ({"model_type": "gpt_neo", "num_layers": 3}, "describes 24 layers, num_layers is 3"),
        ({"model_type": "gpt_neo", "attention_types": "local"}, "attention_types has 'local'"),
        ({"model_type": "gpt_neo", "attention_types": [[["x"], 24]]}, "attention_types has .*'x'"),
        ({"model_type": "gpt_neo", "attention_types": [[["local"], 10**12]]}, "describes 1"),
        ({"model_type": "codegen", "n_head": 6}, "n_head=6 is not supported, only multiples of 4"),
        ({"model_type": "mpt", "no_bias": False}, "no_bias=False is not supported"),
        ({"model_type": "mpt", "norm_type": "rmsnorm"}, "norm_type='rmsnorm' is not supported"),
        ({"model_type": "mpt", "attn_config": {"clip_qkv": 6.0}}, "clip_qkv=6.0 of attn_config"),
        ({"model_type": "mpt", "attn_config": {"alibi": False}}, "alibi=False of attn_config"),
        ({"model_type": "mpt", "attn_config": [1]}, "attn_config must be an object"),
        (
            {"model_type": "m2m_100", "pad_token_id": 2},
            "decoder_start_token_id=2 is the padding token",
        ),
        ({"model_type": "roberta", "pad_token_id": "<pad>"}, "pad_token_id must be a number"),
        (
            {"model_type": "ministral3", "rope_parameters": {"llama_4_scaling_beta": 0.1}},
            "llama_4_scaling_beta=0.1 is not supported with rope_type='default'",
        ),
        ({"model_type": "llama4_text", "no_rope_layers": [1, 0]}, "must be a list of 48 numbers"),
        ({"model_type": "gemma4_text", "enable_moe_block": True}, "num_experts must be a number"),
        (
            {"model_type": "gemma4_text", "use_bidirectional_attention": "all"},
            "attention='all' is n",
        ),
        (
            {"model_type": "gemma4_text", "num_kv_shared_layers": 29},
            "num_kv_shared_layers=29 is not",
        ),
        (
            {"model_type": "gemma4_text", "per_layer_config": {"0": {"head_dim": 8}}},
            "differ only be",
        ),
        ({"model_type": "gemma4_text", "rope_parameters": {"rope_theta": 5.0}}, "must have 'full_"),
        ({"model_type": "gemma3n_text", "intermediate_size": [8]}, "must be a list of 35 numbers"),
        ({"model_type": "gemma3n_text", "altup_active_idx": 1}, "altup_active_idx=1 is not supp"),
        ({"model_type": "gemma3n_text", "hidden_size_per_layer_input": 0}, "must be at least 1"),
        ({"model_type": "falcon_h1", "ssm_multipliers": [1.0]}, "must be a list of 5 numbers"),
        ({"model_type": "falcon_h1", "projectors_bias": True}, "only two equal values"),
        ({"model_type": "falcon_h1", "mamba_d_ssm": 1000}, "as wide together as the expanded"),
        ({"model_type": "falcon_h1", "key_multiplier": -1.0}, "`scale` must be a positive number"),
        ({"model_type": "llama4_text", "moe_layers": 3}, "moe_layers must be a list of whole"),
        (
            {"model_type": "llama4_text", "layer_types": ["full"] * 48},
            "each 'chunked_attention' or",
        ),
        ({"model_type": "llama4_text", "interleave_moe_layer_step": 0}, "layer_step must be at l"),
        ({"model_type": "llama4_text", "attention_chunk_size": None}, "chunk_size must be a num"),
        ({"model_type": "olmo3", "rope_parameters": {"rope_theta": 5.0}}, "must have 'full_att"),
        ({"model_type": "lfm2", "layer_types": ["conv"] * 32}, "only 'full_attention', for one"),
        ({"model_type": "lfm2", "layer_types": ["conv"]}, "must be a list of 32 names"),
        (
            {"model_type": "nemotron_h", "layers_block_type": ["mlp", "mamba"]},
            "each 'mlp' and 'moe' must be behind a layer of another kind",
        ),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "MX"}, "must be a list of names"),
        ({"model_type": "nemotron_h", "moe_latent_size": 8}, "moe_latent_size=8 is not supported"),
        ({"model_type": "granitemoehybrid", "layer_types": ["conv"]}, "must be a list of 32 names"),
        ({"model_type": "granitemoehybrid", "layer_types": [{}] * 32}, "must be a list of 32"),
        ({"model_type": "nemotron_h", "layers_block_type": [["mamba"]]}, "must be a list of names"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": 5}, "must be a list of names"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": ""}, "must be a list of names"),
        ({"model_type": "lfm2", "full_attn_idxs": 5}, "full_attn_idxs must be a list of whole"),
        ({"model_type": "bamba", "attn_layer_indices": ["1"]}, "attn_layer_indices must be a list"),
        ({"model_type": "bamba", "num_hidden_layers": 10**9}, "is not from 1 to 10,000"),
        (
            {"model_type": "kimi_linear", "linear_attn_config": {"full_attn_layers": "4"}},
            "full_attn_layers must be a list",
        ),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [[]]}, "mlp_only_layers must be a list"),
        ({"model_type": "qwen3_next", "mlp_only_layers": {}}, "mlp_only_layers must be a list"),
        ({"model_type": "llama", "rope_theta": "10"}, "rope_theta must be a number"),
    ],
)
def test_values_that_are_not_computed_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        get_family(values).config(values)


# Values in place of defaults that give no model: an image with fewer patches than tokens, towers of
# another width than their texts.
_POSSIBLE = {
    name: {"vision_config": None}
    for name in (
        "gemma3",
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen3_vl",
        "qwen3_vl_moe",
        "qwen3_5",
        "qwen3_5_moe",
    )
}
_POSSIBLE["t5gemma2_images"] = {"encoder": {"mm_tokens_per_image": 256}}
_POSSIBLE["colqwen2"] = {"vlm_config": _POSSIBLE["qwen2_vl"]}
# By default their image token is beyond the vocabulary of the text model, and the 7 x 7 patches of
# an image do not form squares of 2 x 2.
_POSSIBLE |= {
    name: {
        "text_config": {"model_type": "llama", "vocab_size": 128259},
        "vision_config": {"image_size": 256},
    }
    for name in ("idefics3", "smolvlm")
}
_WITH_A_HEAD = {
    "dpt": "DPT",
    "depth_anything": "DepthAnything",
    "sam": "Sam",
    "detr": "Detr",
    "table-transformer": "TableTransformer",
    "d_fine": "DFine",
    "rt_detr": "RTDetr",
    "rt_detr_v2": "RTDetrV2",
    "segformer": "Segformer",
}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_published_defaults(model_type):
    """A config that says nothing is that of the library's own class."""
    name = _WITH_A_HEAD.get(model_type) or families.CONFIGS[model_type][0]
    published, possible = getattr(transformers, f"{name}Config")(), _POSSIBLE.get(model_type, {})
    said = FAMILIES[model_type].config({**published.to_dict(), **possible})
    assert isinstance(said, TransformerConfig)
    assert FAMILIES[model_type].config(possible) == said


def _config(model_type: str, values: dict):
    try:
        return FAMILIES[model_type].config(values)
    except ValueError:
        return "refused"


@pytest.mark.parametrize("model_type", FAMILIES)
def test_texts_are_no_flags(model_type):
    """The text "false" is true in Python: where it would be read as a flag, it is refused."""
    name = _WITH_A_HEAD.get(model_type) or families.CONFIGS[model_type][0]
    published = getattr(transformers, f"{name}Config")().to_dict()
    values = {**published, **_POSSIBLE.get(model_type, {})}
    for flag in [name for name, value in values.items() if isinstance(value, bool)]:
        said = [_config(model_type, {**values, flag: value}) for value in (True, False)]
        if said[0] != said[1]:
            assert _config(model_type, {**values, flag: "false"}) == "refused"


# As configs were written before release 5.
OLDER = {
    "qwen2": {"use_sliding_window": True, "max_window_layers": 3, "rope_theta": 1e6},
    "gemma": {"rope_theta": 2e4, "hidden_act": "gelu", "hidden_activation": None},
    "gemma2": {"rope_theta": 2e4, "hidden_act": "gelu", "query_pre_attn_scalar": 224},
    "gemma3_text": {
        "sliding_window_pattern": 4,
        "rope_theta": 5e5,
        "rope_local_base_freq": 2e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "phi3": {"rope_theta": 2e4, "rope_scaling": None, "partial_rotary_factor": 0.5},
    "olmo2": {"rope_theta": 5e5, "rope_scaling": None},
    "olmo3": {
        "rope_theta": 5e5,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 24,
            "attention_factor": 1.2079441541679836,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
        },
    },
    "exaone4": {"sliding_window_pattern": 3, "rope_theta": 2e4},
    "glm": {"rope_theta": 2e4, "partial_rotary_factor": 0.25},
    "glm4": {"rope_theta": 2e4},
    "ernie4_5": {"rope_theta": 1e4},
    "hunyuan_v1_dense": {
        "head_dim": 128,
        "rope_theta": 2e4,
        "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0},
    },
    "nanochat": {"rope_theta": 5e4},
    "lfm2": {
        "rope_theta": 2e6,
        "block_ff_dim": 6912,
        "block_ffn_dim_multiplier": 1.2,
        "full_attn_idxs": [2, 5, 8],
        "tie_embedding": False,
    },
    "granitemoehybrid": {
        "num_hidden_layers": 3,
        "layer_types": ["mamba", "attention", "mamba"],
        "position_embedding_type": "nope",
    },
    "nemotron_h": {"hybrid_override_pattern": "M-M*EM", "num_hidden_layers": 6},
    "recurrent_gemma": {"partial_rotary_factor": 0.5, "rope_theta": 5e4},
    "kimi_linear": {
        "num_hidden_layers": 4,
        "first_k_dense_replace": 2,
        "linear_attn_config": {
            "full_attn_layers": [4],
            "kda_layers": [1, 2, 3],
            "head_dim": 64,
            "num_heads": 16,
            "short_conv_kernel_size": 3,
        },
    },
    "phimoe": {
        "rope_theta": 2e4,
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "rope_scaling": {
            "rope_type": "longrope",
            "short_factor": [1.0] * 64,
            "long_factor": [2.0] * 64,
            "short_mscale": 1.25,
            "long_mscale": 1.25,
            "original_max_position_embeddings": 4096,
        },
    },
    "smollm3": {"no_rope_layer_interval": 3, "use_sliding_window": True, "sliding_window": 9},
    "bloom": {"n_embed": 96, "num_hidden_layers": 3, "num_attention_heads": 6},
    "falcon": {"rope_theta": 5e5, "num_attention_heads": 64, "hidden_size": 128},
    "phi": {"rope_theta": 5e5, "partial_rotary_factor": 0.25},
    "stablelm": {"rope_theta": 5e5, "partial_rotary_factor": 0.5},
    "cohere": {"rope_theta": 5e4},
    "cohere2": {"sliding_window_pattern": 5, "rope_theta": 5e4},
    "granite": {
        "rope_theta": 5e5,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 2.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 24,
        },
        "original_max_position_embeddings": 16,  # counts before the other
    },
    "starcoder2": {"rope_theta": 1e5, "sliding_window": 4096},
    "gpt_neo": {
        "num_layers": 3,
        "attention_types": [[["global", "local"], 1], [["global"], 1]],
        "attention_layers": ["global", "local", "global"],
    },
    "helium": {"rope_theta": 2e4},
    "nemotron": {"rope_theta": 5e5, "partial_rotary_factor": 0.25, "num_key_value_heads": 8},
    "persimmon": {"rope_theta": 25000.0, "partial_rotary_factor": 0.25},
    "modernbert": {
        "global_attn_every_n_layers": 4,
        "local_attention": 64,
        "global_rope_theta": 1e5,
        "local_rope_theta": 2e4,
    },
}


@pytest.mark.parametrize("model_type", OLDER)
def test_older_configs(model_type):
    """They are read as the library reads them, whose own form is that of release 5."""
    older = OLDER[model_type]
    published = getattr(transformers, f"{families.CONFIGS[model_type][0]}Config")(**older)
    read = FAMILIES[model_type].config(older)
    assert read == FAMILIES[model_type].config(published.to_dict())
    assert read != FAMILIES[model_type].config({})


def test_configs_of_nomic_bert_from_before_the_library_had_it():
    older = {
        "n_embd": 96, "n_layer": 2, "n_head": 6, "n_inner": 40, "n_positions": 99,
        "layer_norm_epsilon": 1e-3, "activation_function": "geglu", "rotary_emb_base": 500,
    }  # fmt: skip
    now = {
        "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6,
        "intermediate_size": 40, "max_position_embeddings": 99, "layer_norm_eps": 1e-3,
        "hidden_act": "gelu", "rope_parameters": {"rope_theta": 500},
    }  # fmt: skip
    family = FAMILIES["nomic_bert"]
    assert family.config(older) == family.config(now)
    for wrong in ({"prenorm": True}, {"rotary_emb_fraction": 0.5}, {"activation_function": "relu"}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}=.* is not supported"):
            family.config({**older, **wrong})


def test_heads_of_narrower_states_are_not_exported():
    family = FAMILIES["opt"]
    config = family.config(families.CONFIGS["opt"][1][3])
    assert family.published_config(config, {"name": "CausalLM"})["word_embed_proj_dim"] == 7
    with pytest.raises(ValueError, match="with 7 features, but the TextClassifier has one for 12"):
        family.published_config(config, {"name": "TextClassifier", "num_classes": 2})


def test_ids_that_change_what_is_computed_are_not_exported(tmp_path):
    """XGLM has zeros for the position that the id of the padding names."""
    backbone = load_backbone(saved(whole("xglm", 0), tmp_path / "theirs"))
    for number in (1, 2):
        words = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
        words.insert(number, "[PAD]")
        (tmp_path / "vocab.txt").write_text("\n".join(words))
        lm = CausalLM(backbone, tokenizer=Tokenizer.from_files(tmp_path))
        assert lm.tokenizer.pad_id == number
        if number == 1:
            export_to_huggingface(lm, tmp_path / "ours")
            assert json.loads((tmp_path / "ours/config.json").read_text())["pad_token_id"] == 1
    with pytest.raises(ValueError, match="pad_token_id=2 is not supported"):
        export_to_huggingface(lm, tmp_path / "no")


def test_mixers_of_layers():
    """A family that states some of them refuses others."""
    family = FAMILIES["lfm2"]
    config = family.config(families.CONFIGS["lfm2"][1][0])
    assert config.by_keywords
    values = family.published_config(config)
    assert values["layer_types"] == ["conv", "conv", "full_attention"] and values["conv_bias"]
    first, *others = config.decoder.layers
    wider = first.replace(mixer=first.mixer.replace(size=5))
    for changed in (
        {"layers": (wider, *others)},
        {"layers": (first.replace(norm=first.norm.replace(epsilon=0.1)), *others)},
        {"layers": (first,)},
    ):
        with pytest.raises(ValueError, match="A lfm2 checkpoint cannot express"):
            family.published_config(config.replace(decoder=config.decoder.replace(**changed)))


def test_export_to_a_named_family(tmp_path):
    backbone = load_backbone(saved(whole("xlm-roberta", 0), tmp_path / "theirs"))
    export_to_huggingface(backbone, tmp_path / "ours", family="roberta")
    assert load_backbone(tmp_path / "ours").family == "roberta"
    with pytest.raises(ValueError, match="cannot express position_offset=2, only 0"):
        export_to_huggingface(backbone, tmp_path / "no", family="bert")
    with pytest.raises(ValueError, match="no family 'robberta'"):
        export_to_huggingface(backbone, tmp_path / "no", family="robberta")
    assert not (tmp_path / "no").exists()


def test_the_nearest_families_of_a_model_that_none_fits(tmp_path):
    """A Llama with LayerNorm is a value away from some; each of the three says all its reasons."""
    config = FAMILIES["llama"].config(families.CONFIGS["llama"][1][0])
    backbone = Decoder(config.replace(normalization="layer_norm", query_key_norm=True))
    with pytest.raises(ValueError, match="No published architecture fits this model:") as raised:
        export_to_huggingface(backbone, tmp_path / "no")
    _, *nearest, rest = str(raised.value).splitlines()
    assert len(nearest) == 3
    assert rest.startswith(f"and {len(FAMILIES) - 3} that differ as much or more")
    assert all("cannot express" in line and "kind=" not in line for line in nearest)
    counts = [line.count(", only ") for line in nearest]
    assert counts == sorted(counts) and counts[0] >= 1
    with pytest.raises(ValueError, match=r"A llama checkpoint cannot express .*; .*, only 'rms_no"):
        export_to_huggingface(backbone, tmp_path / "no", family="llama")
    assert not (tmp_path / "no").exists()


def test_deepseeks_factor_of_scores_is_written_back():
    """The published share of a rounded factor is found again, so that each config is exported."""
    shares = random.Random(0)
    for _ in range(60):
        options = {"rope_type": "yarn", "original_max_position_embeddings": 16}
        options |= {"factor": shares.uniform(1.1, 64.0), "mscale_all_dim": shares.uniform(0.05, 3)}
        values = {"model_type": "deepseek_v3", "num_hidden_layers": 2}
        values["rope_parameters"] = {"rope_theta": 1e4, **options}
        config = FAMILIES["deepseek_v3"].config(values)
        written = FAMILIES["deepseek_v3"].published_config(config)
        assert FAMILIES["deepseek_v3"].config(written) == config
