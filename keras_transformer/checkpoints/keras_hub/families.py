"""Families in KerasHub's form: the arguments of its backbones, and their weight tables.

Constants of KerasHub's classes (epsilons, activations) are in the table at the end. Facts are from
KerasHub 0.32, `models/*/*_backbone.py` and `models/*/*_classifier.py`.
"""

import os
from collections.abc import Mapping
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import ENCODER
from keras_transformer.checkpoints.families.seq2seq.t5 import T5
from keras_transformer.checkpoints.keras_hub.alibi import ALIBI
from keras_transformer.checkpoints.keras_hub.decoders import DECODERS
from keras_transformer.checkpoints.keras_hub.dino import DINO
from keras_transformer.checkpoints.keras_hub.experts import EXPERTS
from keras_transformer.checkpoints.keras_hub.family import (
    ACTIVATION,
    DROPOUT,
    FIELDS,
    REVERSIBLE,
    TASK_PREFIX,
    USUAL,
    KerasHubFamily,
    Line,
    blocks,
    check_dtype,
    layers,
    make_family,
    registered_class,
    serialized_arguments,
)
from keras_transformer.checkpoints.keras_hub.gemma import GEMMA
from keras_transformer.checkpoints.keras_hub.hdf5 import TASK_WEIGHTS_FILE
from keras_transformer.checkpoints.keras_hub.mit import MIT
from keras_transformer.checkpoints.keras_hub.others import what_else
from keras_transformer.checkpoints.keras_hub.parseq import PARSEQ
from keras_transformer.checkpoints.keras_hub.rwkv7 import RWKV7
from keras_transformer.checkpoints.keras_hub.smollm3 import SMOLLM3
from keras_transformer.checkpoints.keras_hub.swin import SWIN
from keras_transformer.checkpoints.keras_hub.t5gemma import T5GEMMA
from keras_transformer.checkpoints.keras_hub.t5gemma2 import T5GEMMA2
from keras_transformer.checkpoints.keras_hub.towers import TOWERS
from keras_transformer.checkpoints.keras_hub.video_prism import VIDEO_PRISM
from keras_transformer.checkpoints.keras_hub.vision import VISION
from keras_transformer.checkpoints.keras_hub.whisper import WHISPER
from keras_transformer.checkpoints.other_formats import FAMILIES_PAGE
from keras_transformer.checkpoints.weights.tables import Names, attention
from keras_transformer.config import Fourier
from keras_transformer.support.files import path_inside, read_json

TASK_FILE = "task.json"


def find_family(values: Values) -> KerasHubFamily:
    """Return the family of a KerasHub config, read from its file or by `read_config`."""
    name = registered_class(values)
    if name not in KERAS_HUB:
        raise ValueError(
            f"The KerasHub class {name!r} is not supported. Supported are: "
            f"{', '.join(sorted(KERAS_HUB))}. {what_else(name) or FAMILIES_PAGE}"
        )
    arguments = values.get("config", values)
    return KERAS_HUB[name].of(arguments if isinstance(arguments, dict) else {})


def read_config(folder: str | os.PathLike, values: Values) -> dict[str, Any]:
    """Return the arguments of a KerasHub backbone, and the saved values of its task."""
    path = path_inside(folder, "config.json")
    try:
        family = find_family(values)
        arguments = dict(serialized_arguments(values))
        check_dtype(arguments.pop("dtype", None))
        for name in ("name", "trainable"):
            arguments.pop(name, None)
        unknown = sorted(set(arguments) - family.arguments)
        needed = [n for n, f in family.fields.items() if f.default is None] + [*family.needed]
        missing = [name for name in needed if name not in arguments]
        if unknown or missing:
            raise ValueError(
                f"The arguments of {registered_class(values)} do not fit: unknown {unknown}, "
                f"missing {missing}."
            )
        arguments["registered_name"] = values["registered_name"]
        path = path_inside(folder, TASK_FILE)
        if path.is_file():
            task = read_json(path)
            name = registered_class(task)
            arguments["task"] = {"class_name": name, "config": serialized_arguments(task)}
        elif path_inside(folder, TASK_WEIGHTS_FILE).is_file():
            raise ValueError(
                f"{folder} has {TASK_WEIGHTS_FILE}, the weights of a head, but not {TASK_FILE}, "
                "which names the task. Fetch it too, or remove the weights to load the backbone."
            )
        return arguments
    except ValueError as error:
        raise ValueError(error if str(path) in str(error) else f"{path}: {error}") from error


_GELU = {"activation": "gelu", "normalization_epsilon": 1e-5, "initializer_range": 0.02}
_ENCODER = {**ENCODER, **_GELU}
_BERT = {**_ENCODER, "activation": "gelu_tanh", "normalization_epsilon": 1e-12, "pooler": True}
_SEQ2SEQ = {"kind": "seq2seq", "position": "learned", "embedding_normalization": True, **_GELU}
_GPT2 = {**_GELU, "kind": "decoder", "position": "learned", "normalize_first": True}
_ENCODER_FIELDS = {**FIELDS, "max_sequence_length": ConfigField("max_sequence_length", 512)}
_DECODER_FIELDS = {**FIELDS, "max_sequence_length": ConfigField("max_sequence_length", 1024)}
_BERT_FIELDS = {**_ENCODER_FIELDS, "num_segments": ConfigField("segment_vocabulary_size", 2)}
_NARROW_FIELDS = {**_BERT_FIELDS, "embedding_dim": ConfigField("embedding_dim", None)}
_ELECTRA_FIELDS = {n: f for n, f in _NARROW_FIELDS.items() if n != "vocabulary_size"}

_NORM = {"encoder/embedding_norm": "layer_normalization"}
_TOKENS = {"token_embedding": "reversible_embedding"}
_TWO_EMBEDDINGS = {
    "token_embedding": "token_and_position_embedding/token_embedding",
    "encoder/position_embedding": "token_and_position_embedding/position_embedding",
    **_NORM,
}
_THREE_EMBEDDINGS = {
    **_TOKENS,
    "encoder/position_embedding": "position_embedding",
    "encoder/segment_embedding": "embedding",
    **_NORM,
}
_FNET_TABLE = {
    "mixer_norm": "_mixing_layer_norm",
    "feed_forward/intermediate": "_intermediate_dense",
    "feed_forward/output": "_output_dense",
    "feed_forward_norm": "_output_layer_norm",
}
_ROFORMER_TABLE = {
    **attention("attention_layer/{}_dense", "q", "k", "v", "o"),
    "self_attention_norm": "attention_norm",
    "feed_forward/intermediate": "feedforward_intermediate_dense",
    "feed_forward/output": "feedforward_output_dense",
    "feed_forward_norm": "feedforward_norm",
}
_GPT2_TABLE = {
    **_TOKENS,
    "decoder/position_embedding": "position_embedding",
    "decoder/final_norm": "layer_normalization",
}
_OPT_TABLE = {
    "token_embedding": "token_and_position_embedding/token_embedding",
    "decoder/position_embedding": "token_and_position_embedding/position_embedding",
    "decoder/final_norm": "layer_normalization",
}
_BART_TABLE = {
    **_TOKENS,
    "encoder/position_embedding": "position_embedding",
    "decoder/position_embedding": "position_embedding_1",
    **_NORM,
    "decoder/embedding_norm": "layer_normalization_1",
}


def _once(table: Mapping[str, str], **options) -> tuple[Line, ...]:
    return layers(table, theirs="layers/", **options)


_ENCODER_LINES = (*_once(_TWO_EMBEDDINGS), *blocks("encoder"))
_BERT_LINES = (*_once(_THREE_EMBEDDINGS | {"pooler": "dense"}), *blocks("encoder"))
_PROJECTED_LINES = (
    *_once(_THREE_EMBEDDINGS | {"encoder/embedding_projection": "dense"}),
    *blocks("encoder"),
    *_once({"pooler": "dense_1"}, when=("embedding_projection", True)),
)
_ROFORMER_ONCE = {
    **_TOKENS,
    "encoder/segment_embedding": "embedding",
    "encoder/embedding_norm": "roformer_norm",
}
_ROFORMER_LINES = (
    *_once(_ROFORMER_ONCE),
    *layers(_ROFORMER_TABLE, "encoder/layer_{i}/", "layers/roformer_v2_encoder{i}/", apart=False),
)


def _t5_attention(ours: str, theirs: str, **options) -> tuple[Line, ...]:
    """Return the lines of T5's attention and the normalization before it."""
    parts = ("query", "key", "value", "output")
    table = attention("attention/{}_projector", *parts, ours="attention")
    table |= {"attention_norm": "attention_layer_norm"}
    return layers(table, ours, theirs, apart=False, **options)


def _t5_stack(stack: str, final_norm: str) -> tuple[Line, ...]:
    """Return the lines of T5's encoder, or of its decoder without cross-attention."""
    ours, theirs = f"{stack}/layer_{{i}}/", "layers/t5_transformer_layer{i}/"
    behind = {"behind": stack == "decoder"}
    inner = {"feed_forward/output": "output_projector", "feed_forward_norm": "layer_norm"}
    gate = {"feed_forward/gate": "input_projector", "feed_forward/intermediate": "gate_projector"}
    plain = {"feed_forward/intermediate": "input_projector"}
    return (
        *layers({f"{stack}/relative_bias": f"{theirs}self_attention"}, **behind),
        *_t5_attention(f"{ours}self_", f"{theirs}self_", **behind),
        *layers(gate, ours, theirs, when=("gated", True), **behind),
        *layers(plain, ours, theirs, when=("gated", False), **behind),
        *layers(inner, ours, theirs, **behind),
        *layers({f"{stack}/final_norm": f"layers/{final_norm}"}, **behind),
    )


def _read_t5(values: Values) -> dict[str, Any]:
    ours = {"head_dim": values["key_value_dim"]} if values.get("key_value_dim") else {}
    # As in T5, the states before the output are scaled if the output matrix is the embedding.
    return ours | {"scale_logits": values.get("tie_embedding_weights", True)}


def _encoder_heads(hidden: str | None = None, masked: str = "gelu") -> dict[str, PublishedHead]:
    """Return an encoder's task heads, with the activations of classifier and masked model."""
    classifier = {"hidden": "dense", "output": "dense_1"} if hidden else {"output": "dense"}
    transform = {
        "transform": "masked_lm_head/_intermediate_dense",
        "transform_norm": "masked_lm_head/_intermediate_layer_norm",
    }
    place = f"{TASK_PREFIX}layers/"
    bias = Line("output_bias/bias", f"{place}masked_lm_head/vars/0")
    return {
        "TextClassifier": PublishedHead(
            weights=layers(classifier, theirs=place),
            values={"hidden_activation": hidden} if hidden else {},
        ),
        "MaskedLM": PublishedHead(
            weights=(*layers(transform, theirs=place), bias),
            values={"hidden_activation": masked, "normalization_epsilon": 1e-5},
        ),
        "TextEmbedder": PublishedHead(),
    }


KERAS_HUB: Mapping[str, KerasHubFamily] = {
    family.architecture: family
    for family in (
        make_family("bert", "Bert", _BERT_FIELDS, _BERT, _BERT_LINES, _encoder_heads()),
        make_family(
            "distilbert",
            "DistilBert",
            _ENCODER_FIELDS,
            {**_ENCODER, "normalization_epsilon": 1e-12},
            _ENCODER_LINES,
            _encoder_heads("relu"),
        ),
        # Positions are counted from 0, unlike in RoBERTa's own checkpoints.
        *(
            make_family(
                model_type, name, _ENCODER_FIELDS, _ENCODER, _ENCODER_LINES, _encoder_heads("tanh")
            )
            for model_type, name in (("roberta", "Roberta"), ("xlm-roberta", "XLMRoberta"))
        ),
        make_family(
            "albert",
            "Albert",
            {**_NARROW_FIELDS, "num_groups": ConfigField("num_layer_groups", 1)},
            {**_BERT, "embedding_projection": True},
            _PROJECTED_LINES,
            _encoder_heads(masked="gelu_tanh"),
            required={"num_inner_repetitions": 1},
        ),
        make_family(
            "electra",
            "Electra",
            {"vocab_size": ConfigField("vocabulary_size", None), **_ELECTRA_FIELDS},
            _BERT,
            (*_PROJECTED_LINES, *_once({"pooler": "dense"}, when=("embedding_projection", False))),
            {},
        ),
        make_family(
            "fnet",
            "FNet",
            {
                **{name: field for name, field in _ENCODER_FIELDS.items() if name != "num_heads"},
                "num_segments": ConfigField("segment_vocabulary_size", 4),
            },
            {**_BERT, "mixer": Fourier(), "embedding_projection": True},
            (
                *_once(_THREE_EMBEDDINGS | {"encoder/embedding_projection": "dense"}),
                *_once({"pooler": "dense_1"}),
                *layers(_FNET_TABLE, "encoder/layer_{i}/", "layers/f_net_encoder{i}/"),
            ),
            _encoder_heads(),
            conversions=(),
            more=(),
            names=Names(ignored=(f"{TASK_PREFIX}*",)),  # `_output_dense` is no older name here
        ),
        make_family(
            "roformer_v2",
            "RoformerV2",
            {
                **FIELDS,
                "head_size": ConfigField("head_dim", None),
                "use_bias": ConfigField("use_bias", False),
                "num_segments": ConfigField("segment_vocabulary_size", 2),
                "max_wavelength": ConfigField("rotary_base", 10000),
            },
            {
                **ENCODER,
                "activation": "relu",
                "position": "rotary",
                "rotary_interleaved": True,
                "normalization": "rms_norm",
                "normalization_epsilon": 1e-7,  # of Keras; the class has no argument for it
                "initializer_range": 0.02,
                "max_sequence_length": 512,  # no output depends on it
            },
            _ROFORMER_LINES,
            {"TextClassifier": _encoder_heads("tanh")["TextClassifier"]},
            conversions=(DROPOUT, ACTIVATION),
        ),
        make_family(
            "gpt2",
            "GPT2",
            _DECODER_FIELDS,
            {**_GPT2, "activation": "gelu_tanh"},
            (*_once(_GPT2_TABLE), *blocks("decoder")),
            {"CausalLM": PublishedHead()},
        ),
        make_family(
            "opt",
            "OPT",
            {**_DECODER_FIELDS, "max_sequence_length": ConfigField("max_sequence_length", 2048)},
            {**_GPT2, "activation": "relu"},
            (*_once(_OPT_TABLE), *blocks("decoder")),
            {"CausalLM": PublishedHead()},
        ),
        make_family(
            "t5",
            "T5",
            {
                **FIELDS,
                "use_gated_activation": ConfigField("gated", True),
                "layer_norm_epsilon": ConfigField("normalization_epsilon", 1e-6),
                "tie_embedding_weights": ConfigField("tie_embeddings", True),
            },
            {**T5.constants, "activation": "relu"},
            (
                *REVERSIBLE,
                *_t5_stack("encoder", "t5_layer_norm"),
                *_t5_stack("decoder", "t5_layer_norm_1"),
                *_t5_attention(
                    "decoder/layer_{i}/cross_", "layers/t5_transformer_layer{i}/cross_", behind=True
                ),
            ),
            {"Seq2SeqLM": PublishedHead()},
            conversions=(
                *USUAL,
                Conversion(_read_t5, lambda config: {"key_value_dim": config.head_dim}),
            ),
            more=("activation", "key_value_dim"),
        ),
        make_family(
            "bart",
            "Bart",
            _DECODER_FIELDS,
            _SEQ2SEQ,
            (*_once(_BART_TABLE), *blocks("encoder"), *blocks("decoder", "self", "cross")),
            {"Seq2SeqLM": PublishedHead(values={"start_id": 2})},
        ),
        *DECODERS,
        *ALIBI,
        *EXPERTS,
        *GEMMA,
        PARSEQ,
        RWKV7,
        SMOLLM3,
        T5GEMMA,
        T5GEMMA2,
        *VISION,
        *DINO,
        *MIT,
        SWIN,
        *TOWERS,
        VIDEO_PRISM,
        WHISPER,
    )
}
