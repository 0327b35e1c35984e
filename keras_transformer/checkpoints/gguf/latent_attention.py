"""Latent attention in GGUF files: DeepSeek-V2 and V3.

llama.cpp has the projections of keys and values apart, and a matrix for each head.
"""

import dataclasses
from typing import Any

import numpy as np

from keras_transformer.checkpoints.families.decoders.deepseek import latent_of
from keras_transformer.checkpoints.gguf.header import Header
from keras_transformer.checkpoints.gguf.metadata import Metadata
from keras_transformer.checkpoints.gguf.rotary import ROTARY_KEYS, read_yarn
from keras_transformer.checkpoints.weights.tables import WeightLine, layers

_OURS, _THEIRS = "decoder/layer_{i}/self_attention/", "blk.{i}."
_LOG = "rope.scaling.yarn_log_multiplier"
# Published name -> key, and the usual value of a key that a file may leave out.
_KEYS = {
    "kv_lora_rank": ("attention.kv_lora_rank", None),
    "qk_rope_head_dim": ("rope.dimension_count", None),
    "v_head_dim": ("attention.value_length_mla", None),
    "n_routed_experts": ("expert_count", None),
    "num_experts_per_tok": ("expert_used_count", None),
    "n_shared_experts": ("expert_shared_count", None),
    "moe_intermediate_size": ("expert_feed_forward_length", None),
    "first_k_dense_replace": ("leading_dense_block_count", 0),
    "n_group": ("expert_group_count", 1),
    "topk_group": ("expert_group_used_count", 1),
}
_QUERIES, _WIDTH = "attention.q_lora_rank", "attention.key_length_mla"
_SCALE, _SUM, _GATE = "expert_weights_scale", "expert_weights_norm", "expert_gating_func"
_NAME, _SOFTMAX, _SIGMOID = "deepseek2", 1, 2
KEYS = (
    *(key for key, _ in _KEYS.values()),
    *ROTARY_KEYS,
    *("attention.head_count", _QUERIES, _WIDTH, _SCALE, _SUM, _GATE, _LOG),
)


def is_version_3(header: Header) -> bool:
    """Return True if experts are chosen by sigmoid, as in DeepSeek-V3 and what is built like it."""
    return header.whole(f"{_NAME}.{_GATE}") == _SIGMOID


def read_latent(metadata: Metadata) -> dict[str, Any]:
    """Return the published values of latent attention, its rotation, and the experts.

    Raises ValueError if the file is of an older form, or chooses experts in another way.
    """
    path = metadata.header.path
    if metadata.has("attn_kv_b.weight"):
        raise ValueError(
            f"{path} has the keys and values of latent attention in one tensor, as files of before "
            "April 2025 have them. Take a newer file of the model, or the one it was made from."
        )
    gate = metadata.whole(_GATE, _SOFTMAX) or _SOFTMAX
    if gate not in (_SOFTMAX, _SIGMOID):
        raise ValueError(f"{path}: {_GATE}={gate} is not supported, only softmax and sigmoid.")
    values: dict[str, Any] = {
        name: metadata.needed(key) if usual is None else metadata.whole(key, usual)
        for name, (key, usual) in _KEYS.items()
    }
    rotated, width = values["qk_rope_head_dim"], metadata.needed(_WIDTH)
    if width <= rotated:
        raise ValueError(f"{path}: {width} features of a key, {rotated} of which are rotated.")
    base = metadata.real("rope.freq_base", 1e4)
    scaling: dict[str, Any] = {"rope_type": "default"}
    kind = metadata.text("rope.scaling.type", "none") or "none"
    if kind == "yarn":
        # The factor of the scores, and none of queries and keys.
        share = round(metadata.real(_LOG, 0.0) * 10, 6)
        shares = {"mscale": share, "mscale_all_dim": share} if share else {}
        scaling = {"rope_type": "yarn", **read_yarn(metadata), **shares}
    elif kind != "none":
        raise ValueError(f"{path}: rotary positions scaled by {kind!r} are not supported.")
    return {
        **values,
        **_choice(gate == _SIGMOID, limited=values["n_group"] > 1),
        "q_lora_rank": metadata.whole(_QUERIES) or None,
        "qk_nope_head_dim": width - rotated,
        "num_attention_heads": metadata.heads,
        "num_key_value_heads": metadata.heads,
        "routed_scaling_factor": metadata.real(_SCALE, 1.0) or 1.0,
        "norm_topk_prob": metadata.header.get(f"{metadata.architecture}.{_SUM}", bool, False),
        "rope_theta": base,
        "rope_scaling": scaling,
    }


def _choice(by_sigmoid: bool, limited: bool) -> dict[str, Any]:
    """Return the published values of how experts are chosen."""
    if by_sigmoid:
        return {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
    return {"topk_method": "group_limited_greedy" if limited else "greedy"}


class _Query(WeightLine):
    """The projection of the queries, which has another name if it is from a latent vector."""

    def for_config(self, config):
        direct = getattr(latent_of(config), "q_lora_rank", None) is None
        return dataclasses.replace(
            self, theirs=self.theirs.replace("*", "attn_q" if direct else "attn_q_b")
        )


@dataclasses.dataclass(frozen=True)
class _OfHeads(WeightLine):
    """The projection of the keys or the values, a matrix for each head."""

    axes: tuple[int, int, int] = (0, 1, 2)  # of theirs: the latent vector, heads, features

    def for_config(self, config):
        heads = getattr(latent_of(config), "num_heads", 1)
        return dataclasses.replace(self, groups=heads)

    def shape(self, ours):
        each = (ours[0], self.groups, ours[1] // self.groups)
        return tuple(each[self.axes.index(axis)] for axis in range(3))

    def split(self, array):
        found = array.transpose(self.axes)
        return found.reshape(found.shape[0], -1)

    def join(self, arrays):
        (array,) = arrays
        each = array.reshape(array.shape[0], self.groups, -1)
        return np.ascontiguousarray(each.transpose(np.argsort(self.axes)))


LATENT_LINES = (
    *layers(
        {
            "query_down": "attn_q_a",
            "query_norm": "attn_q_a_norm",
            "latent": "attn_kv_a_mqa",
            "latent_norm": "attn_kv_a_norm",
            "output": "attn_output",
        },
        _OURS,
        _THEIRS,
    ),
    *layers({"query": "*"}, _OURS, _THEIRS, line=_Query),
    _OfHeads(f"{_OURS}key/kernel", f"{_THEIRS}attn_k_b.weight", axes=(1, 0, 2)),
    _OfHeads(f"{_OURS}value/kernel", f"{_THEIRS}attn_v_b.weight", axes=(2, 0, 1)),
)
CORRECTION = WeightLine(
    "decoder/layer_{i}/feed_forward/correction_bias", f"{_THEIRS}exp_probs_b.bias"
)
