"""The weight table, and the shapes it is held against."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_transformer import TransformerConfig
from keras_transformer.checkpoints import backbone_variables, variable_shapes
from keras_transformer.checkpoints.weights.safetensors_io import TensorInfo, to_numpy
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, expand, export, match
from keras_transformer.models import build_backbone

BASE = {
    "vocabulary_size": 11,
    "hidden_dim": 8,
    "num_layers": 2,
    "num_heads": 4,
    "intermediate_dim": 12,
    "max_sequence_length": 6,
}


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "encoder"},
        {"kind": "encoder", "pooler": True, "segment_vocabulary_size": 3, "position": "learned"},
        {"kind": "encoder", "embedding_normalization": True, "final_normalization": True},
        {"kind": "encoder", "position": "relative", "use_bias": False},
        {"kind": "encoder", "score": "general"},
        {"kind": "encoder", "score": "additive"},
        {"kind": "encoder", "score": "cosine"},
        {"kind": "encoder", "score": "location"},
        {"kind": "decoder", "position": "learned", "normalize_first": True},
        {"kind": "decoder", "position": "rotary", "gated": True, "normalization": "rms_norm"},
        {"kind": "decoder", "num_key_value_heads": 2, "head_dim": 6, "tie_embeddings": False},
        {"kind": "decoder", "position": "alibi"},
        {"kind": "seq2seq", "num_decoder_layers": 3},
        {"kind": "seq2seq", "position": "learned", "segment_vocabulary_size": 2},
        {"kind": "seq2seq", "position": "relative", "embedding_normalization": True},
        {"kind": "seq2seq", "tie_embeddings": False, "normalize_first": True},
    ],
    ids=lambda values: "-".join(map(str, values.values())),
)
def test_shapes_are_those_of_the_model(values):
    config = TransformerConfig(**BASE, **values)
    variables = backbone_variables(build_backbone(config))
    assert variable_shapes(config) == {path: tuple(v.shape) for path, v in variables.items()}


def header(shapes):
    return {name: TensorInfo(shape, "F32", Path(), 0) for name, shape in shapes.items()}


TABLE = (
    WeightLine("encoder/layer_{i}/dense/kernel", "layer.{i}.weight", transpose=True),
    WeightLine("encoder/layer_{i}/dense/bias", "layer.{i}.bias"),
    WeightLine("pooler/kernel", "pooler.weight", transpose=True),
)
SHAPES = {
    "encoder/layer_0/dense/kernel": (2, 3),
    "encoder/layer_0/dense/bias": (3,),
    "encoder/layer_1/dense/kernel": (2, 3),
    "encoder/layer_1/dense/bias": (3,),
}
THEIRS = {
    "layer.0.weight": (3, 2),
    "layer.0.bias": (3,),
    "layer.1.weight": (3, 2),
    "layer.1.bias": (3,),
}
LINES = expand(TABLE, TransformerConfig(kind="encoder", **BASE))
NAMES = Names(prefixes=("bert.",), suffixes={".beta": ".bias"}, ignored=("cls.*",))


def test_expand_counts_the_layers_of_each_stack():
    config = TransformerConfig(kind="seq2seq", num_decoder_layers=3, **BASE)
    table = [WeightLine("encoder/layer_{i}/a", "e.{i}"), WeightLine("decoder/layer_{i}/a", "d.{i}")]
    lines = [line.theirs for line in expand(table, config)]
    assert lines == ["e.0", "e.1", "d.0", "d.1", "d.2"]


def test_match_finds_names_with_and_without_prefix():
    for prefix, bias in (("", "bias"), ("bert.", "beta")):
        theirs = {prefix + name.replace("bias", bias): shape for name, shape in THEIRS.items()}
        plan = match(LINES, SHAPES, header(theirs), NAMES)
        assert set(plan) == set(SHAPES)
        assert plan["encoder/layer_1/dense/bias"][0] == f"{prefix}layer.1.{bias}"


def test_what_the_model_does_without_and_what_is_ignored_may_be_left_over():
    more = THEIRS | {"pooler.weight": (2, 2), "bert.cls.bias": (4,)}
    assert set(match(LINES, SHAPES, header(more), NAMES)) == set(SHAPES)


def test_match_lists_all_problems_at_once():
    theirs = THEIRS | {"layer.0.weight": (2, 3), "strange": (1,), "bert.layer.1.weight": (3, 2)}
    del theirs["layer.1.bias"]
    with pytest.raises(ValueError) as info:
        match(LINES, SHAPES, header(theirs), NAMES, where="folder/model.safetensors")
    message = str(info.value)
    for part in (
        "folder/model.safetensors",
        "layer.1.bias (for encoder/layer_1/dense/bias)",
        "layer.0.weight has shape (2, 3), the config says (3, 2)",
        "1 with no place in the model:\n  strange",
        "bert.layer.1.weight and layer.1.weight",
    ):
        assert part in message


def test_long_lists_are_cut():
    theirs = THEIRS | {f"extra.{i}": (1,) for i in range(30)}
    with pytest.raises(ValueError, match=re.compile("30 with no place.*and 22 more", re.DOTALL)):
        match(LINES, SHAPES, header(theirs), NAMES)


def test_export_is_the_reverse_of_match():
    random = np.random.default_rng(0)
    variables = {path: keras.Variable(random.normal(size=s)) for path, s in SHAPES.items()}
    tensors = export(LINES, variables)
    assert {name: array.shape for name, array in tensors.items()} == THEIRS
    for path, (name, line) in match(LINES, SHAPES, header(THEIRS), NAMES).items():
        back = line.split(tensors[name])
        np.testing.assert_array_equal(back, to_numpy(variables[path]))


def test_export_names_variables_without_a_tensor():
    with pytest.raises(ValueError, match="no tensor for these variables:\n  odd/kernel"):
        export(LINES, {"odd/kernel": keras.Variable([1.0])})
