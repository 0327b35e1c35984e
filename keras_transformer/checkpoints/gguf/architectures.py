"""Architectures of GGUF files, one row each: the published family, its values and its tensors."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.families.base.family import Family
from keras_transformer.checkpoints.gguf import gated_delta, latent_attention
from keras_transformer.checkpoints.gguf.header import Header
from keras_transformer.checkpoints.gguf.metadata import Metadata
from keras_transformer.checkpoints.weights.tables import (
    Names,
    WeightLine,
    attention,
    fused,
    layers,
    output_matrix,
)
from keras_transformer.config import ShortConvolution, TransformerConfig

_OURS, _THEIRS = "decoder/layer_{i}/", "blk.{i}."
_QKV = [f"{_OURS}self_attention/{name}" for name in ("query", "key", "value")]
_BRANCHES = [f"{_OURS}feed_forward/{name}" for name in ("gate", "intermediate")]
_HEADS = ("num_heads", "num_key_value_heads", "num_key_value_heads")
_ONCE = {
    "token_embedding": "token_embd",
    "decoder/position_embedding": "position_embd",
    "decoder/embedding_norm": "token_embd_norm",
    "decoder/final_norm": "output_norm",
}
_LAYER = {
    **attention("attn_{}", "q", "k", "v", "output"),
    "self_attention/query_norm": "attn_q_norm",
    "self_attention/key_norm": "attn_k_norm",
    "self_attention_norm": "attn_norm",
    "self_attention_output_norm": "post_attention_norm",
    "feed_forward_norm": "ffn_norm",
    "feed_forward_output_norm": "post_ffw_norm",
    "feed_forward/gate": "ffn_gate",
    "feed_forward/intermediate": "ffn_up",
    "feed_forward/output": "ffn_down",
    "feed_forward/router": "ffn_gate_inp",
    "feed_forward/shared/gate": "ffn_gate_shexp",
    "feed_forward/shared/intermediate": "ffn_up_shexp",
    "feed_forward/shared/output": "ffn_down_shexp",
    "feed_forward/shared_score": "ffn_gate_inp_shexp",
    "mixer/input": "shortconv.in_proj",
    "mixer/output": "shortconv.out_proj",
    "mixer_norm": "attn_norm",
}
# The matrices of all experts in one tensor; in files of before April 2024 in one for each expert,
# which `tensors.py` gathers.
_EXPERTS = {"gate": "ffn_gate", "intermediate": "ffn_up", "output": "ffn_down"}
_DECODER = (
    *layers(_ONCE),
    output_matrix("output.weight"),
    *layers(_LAYER, _OURS, _THEIRS),
    *(
        line
        for ours, theirs in _EXPERTS.items()
        for line in layers(
            {f"{_OURS}feed_forward/expert_{ours}": f"{_THEIRS}{theirs}_exps"},
            also=(f"{_THEIRS}{theirs}.experts.*.weight",),
        )
    ),
    WeightLine(f"{_OURS}self_attention/sinks", f"{_THEIRS}attn_sinks.weight"),
    WeightLine(
        f"{_OURS}mixer/short_convolution/kernel",
        f"{_THEIRS}shortconv.conv.weight",
        transpose=True,
    ),
    WeightLine(f"{_OURS}mixer/short_convolution/bias", f"{_THEIRS}shortconv.conv.bias"),
)


def _with(*lines: WeightLine) -> tuple[WeightLine, ...]:
    """Return the lines of a decoder, some of them replaced."""
    places = {line.ours for line in lines}
    return (*(line for line in _DECODER if line.ours not in places), *lines)


_FUSED = fused(_QKV, f"{_THEIRS}attn_qkv", sizes=_HEADS)
_FALCON_NORMS = tuple(
    WeightLine(f"{_OURS}{norm}/{mine}", f"{_THEIRS}{its}.{end}", when=("share_normalization", one))
    for norm, its, one in (
        ("self_attention_norm", "attn_norm", True),
        ("self_attention_norm", "attn_norm_2", False),
        ("feed_forward_norm", "attn_norm", False),
    )
    for mine, end in (("gamma", "weight"), ("beta", "bias"))
)

# Keys of the metadata, without the architecture before them, and our values.
_SIZES = {
    "context_length": "max_sequence_length",
    "embedding_length": "hidden_dim",
    "block_count": "num_layers",
    "feed_forward_length": "intermediate_dim",
    "attention.head_count": "num_heads",
    "attention.head_count_kv": "num_key_value_heads",
}
_RMS = {**_SIZES, "attention.layer_norm_rms_epsilon": "normalization_epsilon"}
_LAYER_NORM = {**_SIZES, "attention.layer_norm_epsilon": "normalization_epsilon"}
_OF_EXPERTS = {"expert_count": "num_experts", "expert_used_count": "experts_per_token"}
_WIDTH = {"expert_feed_forward_length": "expert_dim"}

Values = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Further:
    """Values that are not a key each: `read` returns published ones, `write` keys."""

    read: Callable[[Metadata], Values] = lambda metadata: {}
    write: Callable[[TransformerConfig], Values] = lambda config: {}
    keys: tuple[str, ...] = ()  # that `read` reads


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """One `general.architecture`, and the published family that it stands for.

    `keys` lists the metadata with a value of ours each; `names` the published names of these values
    where the family's fields do not say, None where others imply it; `flags` the published switches
    that a tensor shows, by the end of its name; `said` the published values that every model of the
    architecture has; `takes` says of a file whether it is of this family, where several families
    share a name.
    """

    name: str
    model_type: str
    language_model: str
    takes: Callable[[Header], bool] = lambda header: True
    also: tuple[str, ...] = ()  # further families whose models are written as this architecture
    keys: Mapping[str, str]
    names: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    flags: Mapping[str, str] = dataclasses.field(default_factory=dict)
    said: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    further: tuple[Further, ...] = ()
    weights: tuple[WeightLine, ...] = _DECODER
    of_config: Callable[[TransformerConfig], tuple[WeightLine, ...]] | None = None
    unread: tuple[str, ...] = ()  # tensors that no model uses
    rotary: Mapping[str, Any] | None = dataclasses.field(default_factory=dict)  # what is not stated
    partial: bool = False  # whether rotary positions may be on a part of a head
    turned: bool = False  # whether the rows of a head's rotary halves alternate
    plus_one: bool = False  # whether norms have the 1 that the published ones add to their weight

    @property
    def has_experts(self) -> bool:
        """Whether its models are mixtures of experts."""
        return "expert_count" in self.keys

    @property
    def family(self) -> Family:
        """The published family, with the names of the tensors in GGUF files."""
        return dataclasses.replace(
            FAMILIES[self.model_type],
            weights=self.weights,
            of_config=self.of_config or FAMILIES[self.model_type].of_config,
            names=Names(ignored=self.unread),
            computed=None,
        )

    @functools.cached_property
    def published_names(self) -> Mapping[str, str | None]:
        """The published name of each value of ours."""
        fields = FAMILIES[self.model_type].fields
        return {field.ours: name for name, field in fields.items()} | dict(self.names)


# Layers of the models of 27 billion parameters, by which llama.cpp recognizes them. Their scale of
# scores is another one, which no key states.
_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}


def _read_gemma_scale(metadata: Metadata) -> Values:
    wide = _LAYERS_OF_27B[metadata.architecture] == metadata.needed("block_count")
    usual = metadata.head_dim
    scale = metadata.needed("embedding_length") // metadata.heads if wide else usual
    return {"query_pre_attn_scalar": scale}


def _window(usual: int | None = None) -> Further:
    """Return the window of the layers that have one; a missing one is the usual one."""
    return Further(
        read=lambda metadata: {"sliding_window": metadata.whole(_WINDOW, usual) or None},
        write=_write_window,
        keys=(_WINDOW,),
    )


def _write_window(config: TransformerConfig) -> Values:
    found = [layer.window for layer in config.layers if layer.window is not None]
    return {_WINDOW: found[0]} if found else {}


_GEMMA_SCALE = Further(read=_read_gemma_scale)
_WINDOW = "attention.sliding_window"
_CAPS = {
    "attn_logit_softcapping": ("attention_soft_cap", 50.0),
    "final_logit_softcapping": ("logit_soft_cap", 30.0),
}


def _caps(**usual: float) -> Further:
    """Return the metadata of caps of scores and logits, with the values of caps that are missing.

    A cap of 0 stands for none.
    """
    names = {name: _CAPS[name][0] for name in usual}
    return Further(
        read=lambda metadata: {
            name: metadata.real(name, value) or None for name, value in usual.items()
        },
        write=lambda config: {n: float(getattr(config, ours) or 0) for n, ours in names.items()},
        keys=tuple(usual),
    )


def _read_gemma3(metadata: Metadata) -> Values:
    return {
        "sliding_window_pattern": metadata.whole("attention.sliding_window_pattern", 6),
        "rope_local_base_freq": metadata.real("rope.freq_base_swa", 10_000.0),
    }


def _write_gemma3(config: TransformerConfig) -> Values:
    local = [layer.window is not None for layer in config.layers]
    periods = (6, *range(1, len(local) + 2))
    fits = (n for n in periods if local == [(i + 1) % n != 0 for i in range(len(local))])
    period = next(fits, 6)
    base = next((layer.rotary_base for layer in config.layers if layer.window is not None), None)
    values: Values = {} if period == 6 else {"attention.sliding_window_pattern": period}
    return values if base is None else {**values, "rope.freq_base_swa": float(base)}


_GEMMA3 = Further(
    read=_read_gemma3,
    write=_write_gemma3,
    keys=("attention.sliding_window_pattern", "rope.freq_base_swa"),
)


def _read_falcon(metadata: Metadata) -> Values:
    grouped, heads = metadata.whole("attention.head_count_kv") or metadata.heads, metadata.heads
    two = metadata.has("attn_norm_2.weight")
    return {
        "num_kv_heads": grouped,
        "multi_query": grouped == 1,
        "new_decoder_architecture": two or grouped not in (1, heads),
        "num_ln_in_parallel_attn": 2 if two else 1,
    }


def _read_stablelm(metadata: Metadata) -> Values:
    # A key says so too, but wrongly in some files; llama.cpp goes by the tensor.
    return {"use_parallel_residual": not metadata.has("ffn_norm.weight")}


_STABLELM = Further(
    read=_read_stablelm,
    write=lambda config: {"use_parallel_residual": config.parallel_residual},
    keys=("use_parallel_residual",),
)


def _read_lfm2(metadata: Metadata) -> Values:
    groups = metadata.each("attention.head_count_kv", metadata.needed("block_count"))
    return {
        "num_key_value_heads": max(groups),
        "layer_types": ["full_attention" if each else "conv" for each in groups],
        "conv_L_cache": metadata.needed("shortconv.l_cache"),
    }


def _write_lfm2(config: TransformerConfig) -> Values:
    mixers = [block.mixer for block in config.last_side.blocks]
    convolutions = [mixer for mixer in mixers if isinstance(mixer, ShortConvolution)]
    groups = [0 if m in convolutions else config.num_key_value_heads for m in mixers]
    size = convolutions[0].size if convolutions else 3
    return {"attention.head_count_kv": groups, "shortconv.l_cache": size}


_LFM2 = Further(
    read=_read_lfm2, write=_write_lfm2, keys=("attention.head_count_kv", "shortconv.l_cache")
)
_OF_T5 = {
    **attention("attn_{}", "q", "k", "v", "o"),
    **attention("cross_attn_{}", "q", "k", "v", "o", ours="cross_attention"),
    "self_attention_norm": "attn_norm",
    "cross_attention_norm": "cross_attn_norm",
    "feed_forward/gate": "ffn_gate",
    "feed_forward/intermediate": "ffn_up",
    "feed_forward/output": "ffn_down",
    "feed_forward_norm": "ffn_norm",
}
_T5 = (
    *layers({"token_embedding": "token_embd"}),
    output_matrix("output.weight"),
    *(
        line
        for side, its in (("encoder", "enc"), ("decoder", "dec"))
        for line in (
            *layers({f"{side}/relative_bias": f"{its}.blk.0.attn_rel_b"}),
            *layers({f"{side}/final_norm": f"{its}.output_norm"}),
            *layers(_OF_T5, f"{side}/layer_{{i}}/", f"{its}.blk.{{i}}."),
        )
    ),
)
_T5_KEYS = {
    **{key: ours for key, ours in _RMS.items() if key != "attention.head_count_kv"},
    "attention.key_length": "head_dim",
    "attention.relative_buckets_count": "relative_num_buckets",
}


def _read_t5(metadata: Metadata) -> Values:
    # What llama.cpp computes, as no key names the activation.
    gated = metadata.has("ffn_gate.weight")
    return {
        "feed_forward_proj": "gated-gelu" if gated else "relu",
        "num_decoder_layers": metadata.whole("decoder_block_count"),
        "decoder_start_token_id": metadata.whole("decoder_start_token_id", 0),
    }


def _not_written(config: TransformerConfig) -> Values:
    raise ValueError("models of this architecture are read, and not written.")


_FURTHER_OF_T5 = Further(
    read=_read_t5,
    write=_not_written,
    keys=("attention.layer_norm_epsilon", "decoder_block_count", "decoder_start_token_id"),
)
_DELTA = Further(read=gated_delta.read_delta, write=gated_delta.write_delta, keys=gated_delta.KEYS)
_LATENT = Further(
    read=latent_attention.read_latent,
    write=_not_written,
    keys=latent_attention.KEYS,
)
_AFTER_ATTENTION = layers({"feed_forward_norm": "post_attention_norm"}, _OURS, _THEIRS)


def _without(names: tuple[str, ...], lines: tuple[WeightLine, ...]) -> tuple[WeightLine, ...]:
    """Return the lines of other variables than these of a layer."""
    return tuple(
        line for line in lines if not line.ours.startswith(tuple(_OURS + n for n in names))
    )


_HYBRID = _without(("mixer/", "self_attention/query/"), _with(*_AFTER_ATTENTION))
_BIASES = {"attention_bias": "attn_q.bias"}
_IMPLIED = {"num_key_value_heads": None}
_NAMES_OF_BLOOM = {
    **_IMPLIED,
    "intermediate_dim": None,
    "hidden_dim": "hidden_size",
    "num_layers": "n_layer",
    "num_heads": "n_head",
}

ARCHITECTURES = (
    Architecture(
        name="llama",
        model_type="llama",
        language_model="LlamaForCausalLM",
        also=("mistral",),
        keys=_RMS,
        flags={**_BIASES, "mlp_bias": "ffn_gate.bias"},
        turned=True,
    ),
    Architecture(
        name="llama",
        model_type="mixtral",
        language_model="MixtralForCausalLM",
        keys=_RMS | _OF_EXPERTS,
        turned=True,
    ),
    Architecture(
        name="qwen2", model_type="qwen2", language_model="Qwen2ForCausalLM", keys=_RMS
    ),
    Architecture(
        name="qwen2moe",
        model_type="qwen2_moe",
        language_model="Qwen2MoeForCausalLM",
        keys={
            **_RMS, **_OF_EXPERTS, **_WIDTH,
            "expert_shared_feed_forward_length": "shared_expert_dim",
        },
        names={"num_experts": "num_experts"},
        flags={"qkv_bias": "attn_q.bias"},
        said={"norm_topk_prob": False},
    ),
    Architecture(
        name="qwen3",
        model_type="qwen3",
        language_model="Qwen3ForCausalLM",
        keys=_RMS,
        flags=_BIASES,
    ),
    Architecture(
        name="qwen3moe",
        model_type="qwen3_moe",
        language_model="Qwen3MoeForCausalLM",
        keys=_RMS | _OF_EXPERTS | _WIDTH,
        names={"num_experts": "num_experts"},
        flags=_BIASES,
        said={"norm_topk_prob": True},
    ),
    Architecture(
        name="gpt-oss",
        model_type="gpt_oss",
        language_model="GptOssForCausalLM",
        keys=_RMS | _OF_EXPERTS,
        flags=_BIASES,
        further=(_window(), Further(
            write=lambda config: {"expert_feed_forward_length": config.intermediate_dim},
            keys=("expert_feed_forward_length",),
        ),),
        weights=_with(
            *layers({"feed_forward_norm": "post_attention_norm"}, _OURS, _THEIRS)
        ),
        rotary={"truncate": False},
    ),
    Architecture(
        name="gemma",
        model_type="gemma",
        language_model="GemmaForCausalLM",
        keys=_RMS,
        plus_one=True,
    ),
    Architecture(
        name="gemma2",
        model_type="gemma2",
        language_model="Gemma2ForCausalLM",
        keys=_RMS,
        further=(
            _GEMMA_SCALE,
            _window(4096),
            _caps(attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
        ),
        plus_one=True,
    ),
    Architecture(
        name="gemma3",
        model_type="gemma3_text",
        language_model="Gemma3ForCausalLM",
        keys=_RMS,
        further=(_GEMMA_SCALE, _window(4096), _GEMMA3, _caps(final_logit_softcapping=0.0)),
        plus_one=True,
    ),
    Architecture(
        name="phi3",
        model_type="phi3",
        language_model="Phi3ForCausalLM",
        keys=_RMS,
        further=(_window(),),
        weights=_with(*_FUSED, *fused(_BRANCHES, f"{_THEIRS}ffn_up")),
        partial=True,
    ),
    Architecture(
        name="falcon",
        model_type="falcon",
        language_model="FalconForCausalLM",
        keys=_LAYER_NORM,
        names={"intermediate_dim": "ffn_hidden_size", "num_key_value_heads": "num_kv_heads"},
        said={"alibi": False, "parallel_attn": True, "bias": False},
        further=(Further(read=_read_falcon),),
        weights=_with(*_FUSED, *_FALCON_NORMS),
    ),
    Architecture(
        name="bloom",
        model_type="bloom",
        language_model="BloomForCausalLM",
        keys=_LAYER_NORM,
        names=_NAMES_OF_BLOOM,
        weights=_with(*_FUSED),
        rotary=None,
    ),
    Architecture(
        name="gpt2",
        model_type="gpt2",
        language_model="GPT2LMHeadModel",
        keys=_LAYER_NORM,
        names={"intermediate_dim": "n_inner", **_IMPLIED},
        weights=_with(*_FUSED),
        rotary=None,
    ),
    Architecture(
        name="stablelm",
        model_type="stablelm",
        language_model="StableLmForCausalLM",
        keys=_LAYER_NORM,
        flags={"use_qkv_bias": "attn_q.bias", "qk_layernorm": "attn_q_norm.weight"},
        further=(_STABLELM,),
        partial=True,
    ),
    Architecture(
        name="starcoder2",
        model_type="starcoder2",
        language_model="Starcoder2ForCausalLM",
        keys=_LAYER_NORM,
        flags={"use_bias": "attn_q.bias"},
    ),
    Architecture(
        name="nemotron",
        model_type="nemotron",
        language_model="NemotronForCausalLM",
        keys=_LAYER_NORM,
        flags={**_BIASES, "mlp_bias": "ffn_up.bias"},
        partial=True,
        plus_one=True,
    ),
    Architecture(
        name="lfm2",
        model_type="lfm2",
        language_model="Lfm2ForCausalLM",
        keys={k: v for k, v in _RMS.items() if k != "attention.head_count_kv"},
        names={"intermediate_dim": "intermediate_size"},
        flags={"conv_bias": "shortconv.in_proj.bias"},
        said={"block_auto_adjust_ff_dim": False},
        further=(_LFM2,),
        weights=_with(*layers({"decoder/final_norm": "token_embd_norm"})),
    ),
    *(
        Architecture(
            name="deepseek2",
            model_type=model_type,
            language_model=published,
            takes=takes,
            keys={k: v for k, v in _RMS.items() if not k.startswith("attention.head_count")},
            further=(_LATENT,),
            weights=(*_without(("self_attention/",), _DECODER), *lines),
            rotary=None,
        )
        for model_type, published, takes, lines in (
            (
                "deepseek_v2",
                "DeepseekV2ForCausalLM",
                lambda header: not latent_attention.is_version_3(header),
                latent_attention.LATENT_LINES,
            ),
            (
                "deepseek_v3",
                "DeepseekV3ForCausalLM",
                latent_attention.is_version_3,
                (*latent_attention.LATENT_LINES, latent_attention.CORRECTION),
            ),
        )
    ),
    Architecture(
        name="qwen35",
        model_type="qwen3_5_text",
        language_model="Qwen3_5ForCausalLM",
        keys=_RMS,
        flags=_BIASES,
        further=(_DELTA,),
        weights=_HYBRID,
        of_config=gated_delta.delta_lines,
        partial=True,
        plus_one=True,
    ),
    Architecture(
        name="qwen35moe",
        model_type="qwen3_5_moe_text",
        language_model="Qwen3_5MoeForCausalLM",
        keys={
            **{key: ours for key, ours in _RMS.items() if key != "feed_forward_length"},
            **_OF_EXPERTS,
            "expert_feed_forward_length": "intermediate_dim",
            "expert_shared_feed_forward_length": "shared_expert_dim",
        },
        names={"num_experts": "num_experts"},
        flags=_BIASES,
        further=(_DELTA,),
        weights=_HYBRID,
        of_config=gated_delta.delta_lines,
        partial=True,
        plus_one=True,
    ),
    *(
        Architecture(
            name=name,
            model_type="t5",
            language_model=published,
            keys=_T5_KEYS,
            further=(_FURTHER_OF_T5,),
            weights=_T5,
            # A bias in early checkpoints that was never used.
            unread=("dec.blk.0.cross_attn_rel_b.weight",),
            rotary=None,
        )
        for name, published in (
            ("t5", "T5ForConditionalGeneration"), ("t5encoder", "T5EncoderModel"),
        )
    ),
)  # fmt: skip
NAMES = tuple(dict.fromkeys(each.name for each in ARCHITECTURES))
