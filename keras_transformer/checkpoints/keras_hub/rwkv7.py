"""RWKV-7 in KerasHub's form: Peng et al. 2025, https://arxiv.org/abs/2503.14456.

A layer there is two blocks here: the generalized delta rule, and a feed-forward layer that reads
the token before. The values of all layers are mixed with those of the first, which has no tensors
for it. Facts are from KerasHub 0.32, `models/rwkv7/rwkv7_layer.py`.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import cycle_of_layers, number
from keras_transformer.checkpoints.keras_hub.family import TASK_PREFIX, Line, layers, make_family
from keras_transformer.checkpoints.weights.tables import Names
from keras_transformer.config import GeneralizedDelta, ShiftedFeedForward, TransformerConfig
from keras_transformer.config.side import MOST_LAYERS

# Each size of the mixer, with its name there and its default.
_SIZES = {
    "head_size": ("head_dim", None),
    "gate_lora": ("gate_rank", 128),
    "aaa_lora": ("rate_rank", 64),
    "decay_lora": ("decay_rank", 64),
    "mv_lora": ("value_rank", 32),
}
_ONCE = {
    "token_embedding": "embedding",
    "decoder/embedding_norm": "rwkv7__block/ln0",
    "decoder/final_norm": "layer_normalization",
}
# In the order of the variables of the mixer; the first layer has no `mixing`.
_VARIABLES = (
    *(f"{name}_share" for name in ("query", "decay", "key", "value", "rate", "gate")),
    *("decay", "decay_down/kernel", "decay_up/kernel"),
    *("rate", "rate_down/kernel", "rate_up/kernel"),
    *("mixing", "mixing_down/kernel", "mixing_up/kernel"),
    *("gate_down/kernel", "gate_up/kernel"),
    *("removal_scale", "rate_scale", "bonus"),
)
_DENSES = {"query": "receptance", "key": "key", "value": "value", "output": "output_layer"}


def _read_layers(values: Values) -> dict[str, Any]:
    """Return two blocks for each layer."""
    count = number(values, "num_layers", None)
    if not 0 < count <= MOST_LAYERS // 2:
        raise ValueError(f"num_layers={count} is not from 1 to {MOST_LAYERS // 2:,}.")
    sizes = {ours: number(values, name, default) for name, (ours, default) in _SIZES.items()}
    later = GeneralizedDelta(**sizes)
    own = {
        "first": {"mixer": later.replace(value_rank=None)},
        "later": {"mixer": later},
        "feed_forward": {"mixer": ShiftedFeedForward(dim=number(values, "intermediate_dim", None))},
    }
    kinds = [kind for i in range(count) for kind in ("later" if i else "first", "feed_forward")]
    return {"num_layers": 2 * count, **cycle_of_layers(kinds, own)}


def _write_layers(config: TransformerConfig) -> dict[str, Any]:
    mixers = [block.mixer for block in config.last_side.blocks]
    rules, forwards = mixers[::2], mixers[1::2]
    if not (
        len(rules) == len(forwards)
        and all(isinstance(each, GeneralizedDelta) for each in rules)
        and all(isinstance(each, ShiftedFeedForward) for each in forwards)
    ):
        raise ValueError(
            "its layers are a `config.GeneralizedDelta` and a `config.ShiftedFeedForward` in turn."
        )
    sizes = {name: getattr(rules[-1], ours) for name, (ours, _) in _SIZES.items()}
    if len(rules) == 1:
        sizes["mv_lora"] = _SIZES["mv_lora"][1]
    return {"num_layers": len(rules), "intermediate_dim": forwards[0].dim, **sizes}


def _lines(config: TransformerConfig) -> tuple[Line, ...]:
    """Return the lines of all layers, whose variables there have numbers that differ."""
    lines: tuple[Line, ...] = ()
    for i in range(config.num_layers // 2):
        rule, forward = (f"decoder/layer_{2 * i + place}/mixer" for place in (0, 1))
        theirs = f"layers/rwkv7__block{f'_{i}' if i else ''}/"
        names = [name for name in _VARIABLES if i or "mixing" not in name]
        lines += (
            *(Line(f"{rule}/{name}", f"{theirs}att/vars/{n}") for n, name in enumerate(names)),
            *layers(_DENSES, f"{rule}/", f"{theirs}att/"),
            Line(f"{rule}/norm/gamma", f"{theirs}att/ln_x/vars/0"),
            Line(f"{rule}/norm/beta", f"{theirs}att/ln_x/vars/1"),
            Line(f"{forward}/share", f"{theirs}ffn/vars/0"),
            *layers({"intermediate": "key", "output": "value"}, f"{forward}/", f"{theirs}ffn/"),
            *layers({f"{rule}_norm": "ln1", f"{forward}_norm": "ln2"}, theirs=theirs),
        )
    return lines


RWKV7 = make_family(
    "rwkv7",
    "RWKV7",
    {
        "vocabulary_size": ConfigField("vocabulary_size", None),
        "hidden_size": ConfigField("hidden_dim", None),
        "dropout_rate": ConfigField("dropout", 0.0),
    },
    {
        "kind": "decoder",
        "position": "none",
        "normalization": "layer_norm",
        "normalization_epsilon": 1e-5,
        "normalize_first": True,
        "embedding_normalization": True,
        "intermediate_dim": 0,
        "tie_embeddings": False,
        "initializer_range": 0.02,
        "max_sequence_length": 32768,  # no output depends on it
    },
    (
        *layers(_ONCE, theirs="layers/"),
        Line("token_embedding/reverse_embeddings", "layers/dense/vars/0"),
    ),
    {"CausalLM": PublishedHead()},
    conversions=(Conversion(_read_layers, _write_layers),),
    more=("num_layers", "intermediate_dim", *_SIZES),
    of_config=_lines,
    names=Names(ignored=(f"{TASK_PREFIX}*",)),
)
