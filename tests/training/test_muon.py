"""Muon: which weights it updates, and that each update is Keras's."""

import contextlib

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.config.structure import is_hidden_matrix
from keras_transformer.models import build_backbone
from keras_transformer.training import Muon

RANDOM = np.random.default_rng(0)
SIZES = {"vocabulary_size": 20, "hidden_dim": 8, "num_layers": 1, "num_heads": 2}
PROJECTIONS = [f"self_attention/{name}/kernel" for name in ("query", "key", "value", "output")]
DENSE = ["feed_forward/intermediate/kernel", "feed_forward/output/kernel"]
EXPERTS = [f"feed_forward/expert_{name}/kernel" for name in ("gate", "intermediate", "output")]
CASES = {
    "encoder": (
        {"kind": "encoder", "intermediate_dim": 16, "pooler": True},
        {f"encoder/layer_0/{name}" for name in (*PROJECTIONS, *DENSE)},
    ),
    "decoder with an untied output": (
        {"kind": "decoder", "intermediate_dim": 16, "tie_embeddings": False, "gated": True},
        {
            f"decoder/layer_0/{name}"
            for name in (*PROJECTIONS, *DENSE, "feed_forward/gate/kernel")
        },
    ),
    "experts": (
        {
            "kind": "decoder", "intermediate_dim": 16, "num_experts": 2, "experts_per_token": 1,
            "expert_dim": 8, "gated": True,
        },
        {
            f"decoder/layer_0/{name}"
            for name in (*PROJECTIONS, *EXPERTS, "feed_forward/router/kernel")
        },
    ),
    "relative positions": (
        {"kind": "seq2seq", "intermediate_dim": 16, "position": "relative"},
        {
            *(f"encoder/layer_0/{name}" for name in (*PROJECTIONS, *DENSE)),
            *(f"decoder/layer_0/{name}" for name in (*PROJECTIONS, *DENSE)),
            *(f"decoder/layer_0/cross_{n.removeprefix('self_')}" for n in PROJECTIONS),
        },
    ),
}  # fmt: skip


@pytest.mark.one_backend
@pytest.mark.parametrize("case", CASES)
def test_matrices_of_blocks_are_muons(case):
    options, expected = CASES[case]
    backbone = build_backbone(kt.TransformerConfig(**SIZES, **options))
    prefix = backbone.path + "/"
    found = {
        variable.path.removeprefix(prefix)
        for variable in backbone.trainable_variables
        if is_hidden_matrix(variable.path, len(variable.shape))
    }
    assert found == expected


@pytest.mark.one_backend
def test_adapters_and_heads_are_adamws():
    config = kt.TransformerConfig(kind="encoder", intermediate_dim=16, **SIZES)
    classifier = kt.TextClassifier(kt.models.Encoder(config), num_classes=2)
    classifier.enable_lora(rank=2, method="dora")
    optimizer = Muon()
    assert len(classifier.trainable_variables) == 2 * 3 + 2
    assert all(optimizer._should_use_adamw(v) for v in classifier.trainable_variables)


def variable(path, shape):
    *scopes, name = path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(RANDOM.normal(size=shape).astype("float32"), name=name)


@pytest.mark.each_backend
def test_a_step_is_that_of_keras():
    """Muon on a matrix and on each expert's matrix, AdamW on the rest, for three steps."""
    shapes = {
        "decoder/layer_0/query/kernel": (4, 6),
        "decoder/layer_0/feed_forward/expert_gate/kernel": (2, 3, 5),
        "decoder/token_embedding/embeddings": (7, 4),
        "decoder/layer_0/norm/gamma": (4,),
    }
    mine = [variable(path, shape) for path, shape in shapes.items()]
    matrix, experts, table, gamma = mine
    values = [np.array(ops.convert_to_numpy(v)) for v in mine]
    for_muon = [keras.Variable(x) for x in (values[0], *values[1])]
    for_adamw = [keras.Variable(x, name=n) for x, n in ((values[2], "table"), (values[3], "gamma"))]
    muon = keras.optimizers.Muon(0.02, weight_decay=0.1)
    adamw = keras.optimizers.AdamW(0.02, weight_decay=0.1)
    adamw.exclude_from_weight_decay(var_names=["gamma"])
    optimizer = Muon(0.02, weight_decay=0.1)
    for _ in range(3):
        gradients = [RANDOM.normal(size=v.shape).astype("float32") for v in mine]
        optimizer.apply([ops.convert_to_tensor(g) for g in gradients], mine)
        parts = [gradients[0], *gradients[1]]
        muon.apply([ops.convert_to_tensor(g) for g in parts], for_muon)
        adamw.apply([ops.convert_to_tensor(g) for g in gradients[2:]], for_adamw)
    expected = [ops.convert_to_numpy(v) for v in (*for_muon, *for_adamw)]
    found = [ops.convert_to_numpy(v) for v in (matrix, table, gamma)]
    found[1:1] = list(ops.convert_to_numpy(experts))
    for own, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, theirs, rtol=0, atol=2e-6)


@pytest.mark.one_backend
def test_a_copy_is_the_same():
    config = Muon(0.02, weight_decay=0.1, momentum=0.9, ns_steps=3).get_config()
    copy = Muon.from_config(config)
    assert copy.get_config() == config and copy.momentum == 0.9


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("options", "name"),
    [({"learning_rate": -1}, "learning_rate"), ({"momentum": 1.0}, "momentum")],
)
def test_values_out_of_range_are_refused(options, name):
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        Muon(**options)
