"""The families in KerasHub's form: the arguments of its backbones, and its weight tables.

The numbers that its classes have built in (epsilons, activations) are in the table at the end.
Facts are from KerasHub 0.32, `models/*/*_backbone.py` and `models/*/*_classifier.py`.
"""

import os
from collections.abc import Mapping
from typing import Any

from keras_transformer.checkpoints.families.encoders import ENCODER
from keras_transformer.checkpoints.families.family import Conversion, Field, Head, Values
from keras_transformer.checkpoints.files import path_inside, read_json
from keras_transformer.checkpoints.keras_hub.decoders import DECODERS
from keras_transformer.checkpoints.keras_hub.family import (
    ACTIVATION,
    DROPOUT,
    FIELDS,
    HEAD_WIDTH,
    KerasHubFamily,
    family,
)
from keras_transformer.checkpoints.keras_hub.hdf5 import TASK_WEIGHTS_FILE
from keras_transformer.checkpoints.keras_hub.lines import (
    EMBEDDING_NORM,
    PLAIN_ENCODER,
    TASK_PREFIX,
    Line,
    bert_embeddings,
    block_attention,
    blocks,
    dense,
    layer_norm,
    t5_attention,
    t5_stack,
    two_embeddings,
)
from keras_transformer.checkpoints.keras_hub.serialized import (
    check_dtype,
    registered_class,
    serialized_arguments,
)
from keras_transformer.checkpoints.other_formats import FAMILIES_PAGE
from keras_transformer.config import TransformerConfig

TASK_FILE = "task.json"


def find_family(values: Values) -> KerasHubFamily:
    """The family of a KerasHub config.

    Args:
        values: The content of a KerasHub `config.json`, or of `read_config`.

    Returns:
        The family of the backbone that it names.

    Raises:
        ValueError: If there is none of that name. The message lists those that are known.

    Example:
    ```python
    from keras_transformer.checkpoints.keras_hub import find_family

    assert find_family({"registered_name": "keras_hub>BertBackbone"}).model_type == "bert"
    ```
    """
    name = registered_class(values)
    if name not in KERAS_HUB:
        raise ValueError(
            f"The KerasHub class {name!r} is not supported. Supported are: "
            f"{', '.join(sorted(KERAS_HUB))}. {FAMILIES_PAGE}"
        )
    return KERAS_HUB[name]


def read_config(folder: str | os.PathLike, values: Values) -> dict[str, Any]:
    """The arguments of a KerasHub backbone, and what is saved of its task.

    Args:
        folder: The preset's folder, whose `task.json` is read if there is one.
        values: The content of its `config.json`.

    Returns:
        The arguments, with `"registered_name"`, and under `"task"` the class and the arguments of
        the task.

    Raises:
        ValueError: If the class is not one of those known here, an argument is unknown, or the
            weights are quantized. The message names the file.

    Example:
    ```python
    import tempfile
    from keras_transformer.checkpoints.keras_hub import find_family, read_config

    sizes = {"vocabulary_size": 9, "num_layers": 1, "num_heads": 2, "hidden_dim": 8}
    values = {
        "registered_name": "keras_hub>GPT2Backbone",
        "config": {**sizes, "intermediate_dim": 16, "dtype": "float32"},
    }
    arguments = read_config(tempfile.mkdtemp(), values)
    assert find_family(arguments).config(arguments).max_sequence_length == 1024
    ```
    """
    path = path_inside(folder, "config.json")
    try:
        family = find_family(values)
        arguments = dict(serialized_arguments(values))
        check_dtype(arguments.pop("dtype", None))
        for name in ("name", "trainable"):
            arguments.pop(name, None)
        unknown = sorted(set(arguments) - family.arguments)
        missing = [n for n, f in family.fields.items() if f.default is None and n not in arguments]
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
                f"{folder} has {TASK_WEIGHTS_FILE}, the weights of a head, without {TASK_FILE}, "
                "which says of what task. Fetch it too, or remove the weights to load the backbone."
            )
        return arguments
    except ValueError as error:
        raise ValueError(error if str(path) in str(error) else f"{path}: {error}") from error


_ENCODER_FIELDS = {**FIELDS, "max_sequence_length": Field("max_sequence_length", 512)}
_ENCODER = {**ENCODER, "initializer_range": 0.02}
_BERT = {
    **_ENCODER,
    "activation": "gelu_tanh",
    "normalization_epsilon": 1e-12,
    "pooler": True,
}


def _read_t5(values: Values) -> dict[str, Any]:
    ours = {"head_dim": values["key_value_dim"]} if values.get("key_value_dim") else {}
    # Tied or not, the output is as T5's: scaled where it is the embedding.
    return ours | {"scale_logits": values.get("tie_embedding_weights", True)}


def _write_t5(config: TransformerConfig) -> dict[str, Any]:
    return {"key_value_dim": config.head_dim}


# The heads of KerasHub's tasks

_LINEAR = dense("output", f"{TASK_PREFIX}layers/dense")
_HIDDEN = (
    *dense("hidden", f"{TASK_PREFIX}layers/dense"),
    *dense("output", f"{TASK_PREFIX}layers/dense_1"),
)


def _encoder_heads(
    name: str, classifier: tuple[Line, ...], hidden: str | None, masked_activation: str = "gelu"
) -> dict[str, Head]:
    """The tasks of an encoder; `hidden` is the activation of a classifier's hidden layer."""
    masked = f"{TASK_PREFIX}layers/masked_lm_head"
    return {
        "TextClassifier": Head(
            architectures=(f"{name}TextClassifier", f"{name}Classifier"),
            weights=classifier,
            values={"hidden_activation": hidden} if hidden else {},
        ),
        "MaskedLM": Head(
            architectures=(f"{name}MaskedLM",),
            weights=(
                *dense("transform", f"{masked}/_intermediate_dense"),
                *layer_norm("transform_norm", f"{masked}/_intermediate_layer_norm"),
                Line("output_bias/bias", f"{masked}/vars/0"),
            ),
            values={"hidden_activation": masked_activation, "normalization_epsilon": 1e-5},
        ),
        "TextEmbedder": Head(architectures=(f"{name}TextEmbedder",)),
    }


KERAS_HUB: Mapping[str, KerasHubFamily] = {
    family.architecture: family
    for family in (
        family(
            "bert",
            "Bert",
            fields={**_ENCODER_FIELDS, "num_segments": Field("segment_vocabulary_size", 2)},
            constants=_BERT,
            weights=(
                *bert_embeddings(),
                *blocks("encoder"),
                *dense("pooler", "layers/dense"),
            ),
            heads=_encoder_heads("Bert", _LINEAR, None),
        ),
        family(
            "distilbert",
            "DistilBert",
            fields=_ENCODER_FIELDS,
            constants={**_ENCODER, "activation": "gelu", "normalization_epsilon": 1e-12},
            weights=PLAIN_ENCODER,
            heads=_encoder_heads("DistilBert", _HIDDEN, "relu"),
        ),
        family(
            "roberta",
            "Roberta",
            fields=_ENCODER_FIELDS,
            # Positions are counted from 0, other than in RoBERTa's own checkpoints.
            constants={**_ENCODER, "activation": "gelu", "normalization_epsilon": 1e-5},
            weights=PLAIN_ENCODER,
            heads=_encoder_heads("Roberta", _HIDDEN, "tanh"),
        ),
        family(
            "xlm-roberta",
            "XLMRoberta",
            fields=_ENCODER_FIELDS,
            constants={**_ENCODER, "activation": "gelu", "normalization_epsilon": 1e-5},
            weights=PLAIN_ENCODER,
            heads=_encoder_heads("XLMRoberta", _HIDDEN, "tanh"),
        ),
        family(
            "albert",
            "Albert",
            fields={
                **_ENCODER_FIELDS,
                "embedding_dim": Field("embedding_dim", None),
                "num_groups": Field("num_layer_groups", 1),
                "num_segments": Field("segment_vocabulary_size", 2),
            },
            constants={**_BERT, "embedding_projection": True},
            required={"num_inner_repetitions": 1},
            weights=(
                *bert_embeddings(),
                *dense("encoder/embedding_projection", "layers/dense"),
                *blocks("encoder"),
                *dense("pooler", "layers/dense_1"),
            ),
            heads=_encoder_heads("Albert", _LINEAR, None, "gelu_tanh"),
        ),
        family(
            "electra",
            "Electra",
            fields={
                **{n: field for n, field in _ENCODER_FIELDS.items() if n != "vocabulary_size"},
                "vocab_size": Field("vocabulary_size", None),
                "embedding_dim": Field("embedding_dim", None),
                "num_segments": Field("segment_vocabulary_size", 2),
            },
            constants=_BERT,
            weights=(
                *bert_embeddings(),
                *dense("encoder/embedding_projection", "layers/dense"),
                *blocks("encoder"),
                *dense("pooler", "layers/dense_1", when=("embedding_projection", True)),
                *dense("pooler", "layers/dense", when=("embedding_projection", False)),
            ),
        ),
        family(
            "gpt2",
            "GPT2",
            fields={**FIELDS, "max_sequence_length": Field("max_sequence_length", 1024)},
            constants={
                "kind": "decoder",
                "position": "learned",
                "normalize_first": True,
                "activation": "gelu_tanh",
                "normalization_epsilon": 1e-5,
                "initializer_range": 0.02,
            },
            weights=(
                *two_embeddings("decoder", "reversible_embedding", "position_embedding"),
                *blocks("decoder"),
                *layer_norm("decoder/final_norm", "layers/layer_normalization"),
            ),
            heads={"CausalLM": Head(architectures=("GPT2CausalLM",))},
        ),
        family(
            "t5",
            "T5",
            fields={
                **FIELDS,
                "use_gated_activation": Field("gated", True),
                "layer_norm_epsilon": Field("normalization_epsilon", 1e-6),
                "tie_embedding_weights": Field("tie_embeddings", True),
            },
            constants={
                "kind": "seq2seq",
                "position": "relative",
                "score": "dot",
                "use_bias": False,
                "normalization": "rms_norm",
                "normalize_first": True,
                "activation": "relu",
            },
            conversions=(HEAD_WIDTH, DROPOUT, ACTIVATION, Conversion(_read_t5, _write_t5)),
            more=("activation", "key_value_dim"),
            weights=(
                Line("token_embedding/embeddings", "layers/reversible_embedding/vars/0"),
                Line("token_embedding/reverse_embeddings", "layers/reversible_embedding/vars/1"),
                *t5_stack("encoder", "t5_layer_norm"),
                *t5_stack("decoder", "t5_layer_norm_1"),
                *t5_attention(
                    "decoder/layer_{i}/cross_attention",
                    "layers/t5_transformer_layer{i}/cross_attention",
                ),
            ),
            heads={"Seq2SeqLM": Head(architectures=("T5Seq2SeqLM",))},
        ),
        family(
            "bart",
            "Bart",
            fields={**FIELDS, "max_sequence_length": Field("max_sequence_length", 1024)},
            constants={
                "kind": "seq2seq",
                "position": "learned",
                "embedding_normalization": True,
                "activation": "gelu",
                "normalization_epsilon": 1e-5,
                "initializer_range": 0.02,
            },
            weights=(
                *two_embeddings("encoder", "reversible_embedding", "position_embedding"),
                Line("decoder/position_embedding/embeddings", "layers/position_embedding_1/vars/0"),
                *EMBEDDING_NORM,
                *layer_norm("decoder/embedding_norm", "layers/layer_normalization_1"),
                *blocks("encoder"),
                *blocks("decoder"),
                *block_attention("decoder", "cross_attention"),
            ),
            heads={"Seq2SeqLM": Head(architectures=("BartSeq2SeqLM",), values={"start_id": 2})},
        ),
        *DECODERS,
    )
}
