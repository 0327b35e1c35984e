"""T5Gemma in KerasHub's form: Zhang et al. 2025, https://arxiv.org/abs/2504.06225.

Its encoder has no windows there, whatever `encoder_layer_types` says, so that published models,
which have some, have no counterpart; the windows of its decoder contain one more token than the
published ones. Facts are from KerasHub 0.32, `models/t5gemma/*.py`.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import FULL, SLIDING, number
from keras_transformer.checkpoints.families.seq2seq.t5gemma import T5GEMMA as PUBLISHED
from keras_transformer.checkpoints.keras_hub.family import (
    REVERSIBLE,
    TASK_PREFIX,
    Line,
    make_family,
)
from keras_transformer.checkpoints.keras_hub.t5gemma2 import OF_BOTH, OF_SIDE, blocks_of_side
from keras_transformer.checkpoints.weights.tables import Names
from keras_transformer.config import SIDES, TransformerConfig

(_SIDES,) = PUBLISHED.conversions
_BASE = "rope_max_wavelength"
_WINDOW = "sliding_window"
_OTHERS = ("attention_bias", _WINDOW)
_SHARED = tuple(name for name in OF_BOTH if name not in _OTHERS)


def _side(values: Values, name: str) -> dict[str, Any]:
    """Return the published config of one side."""
    given = {theirs: values[f"{name}_{own}"] for own, theirs in OF_SIDE.items()}
    given |= {each: values.get(each, OF_BOTH[each]) for each in _SHARED}
    kinds = given["layer_types"]
    if not isinstance(kinds, list) or any(kind not in (FULL, SLIDING) for kind in kinds):
        raise ValueError(
            f"{name}_layer_types must be a list of {FULL!r} and {SLIDING!r}, not "
            f"{str(kinds)[:200]}."
        )
    if name == "encoder":
        given["layer_types"] = [FULL] * len(kinds)
    elif SLIDING in kinds:
        given[_WINDOW] = number(values, _WINDOW, None) + 1
    return {
        **given,
        "vocab_size": values["vocabulary_size"],
        "max_position_embeddings": 32768,  # no output depends on it
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_theta": values.get(_BASE, 10000.0),
    }


def _read(values: Values) -> dict[str, Any]:
    source, width = values.get("cross_attention_hidden_size"), values["encoder_hidden_dim"]
    if source not in (None, width):
        raise ValueError(
            f"cross_attention_hidden_size={str(source)[:200]} must be encoder_hidden_dim={width}."
        )
    sides = {name: _side(values, name) for name in SIDES}
    return _SIDES.read({**sides, "attention_dropout": values.get("attention_dropout", 0.0)})


def _write(config: TransformerConfig) -> dict[str, Any]:
    sides = _SIDES.write(config)
    decoder = sides["decoder"]
    theirs: dict[str, Any] = {name: decoder.get(name, OF_BOTH[name]) for name in _SHARED}
    for name in SIDES:
        theirs |= {f"{name}_{own}": sides[name][its] for own, its in OF_SIDE.items()}
    theirs[_WINDOW] = decoder[_WINDOW] - 1 if SLIDING in decoder["layer_types"] else None
    theirs[_BASE] = config.side("decoder").rotary_base
    return theirs


T5GEMMA = make_family(
    "t5gemma",
    "T5Gemma",
    {
        "vocabulary_size": ConfigField("vocabulary_size", None),
        "dropout_rate": ConfigField("dropout", 0.0),
        "attention_dropout": ConfigField("attention_dropout", 0.0),
        "tie_word_embeddings": ConfigField("tie_embeddings", True),
    },
    PUBLISHED.constants,
    (
        Line("encoder_token_embedding/embeddings", "layers/embedding/vars/0"),
        *REVERSIBLE,
        *blocks_of_side("encoder", "t5_gemma", {"self": "self_attn"}, "rms_normalization"),
        *blocks_of_side(
            "decoder",
            "t5_gemma",
            {"self": "self_attn", "cross": "cross_attn"},
            "rms_normalization_1",
        ),
    ),
    {"Seq2SeqLM": PublishedHead(values={"start_id": 2})},
    conversions=(Conversion(_read, _write),),
    needed=tuple(f"{side}_{name}" for side in SIDES for name in OF_SIDE),
    more=(*_SHARED, _WINDOW, _BASE, "cross_attention_hidden_size"),
    required={"hidden_activation": "gelu_approximate", "attention_bias": False},
    names=Names(ignored=(f"{TASK_PREFIX}*",)),
)
