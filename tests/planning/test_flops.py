"""Counted operations against those of the programs that JAX traces, and published ones."""

import math

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.config import Block, structure
from keras_transformer.planning import flops_per_sequence, flops_per_token

BATCH, SOURCE, TARGET, MASKED = 2, 12, 8, 3

SMALL = {
    "vocabulary_size": 50,
    "hidden_dim": 16,
    "num_layers": 2,
    "num_heads": 4,
    "intermediate_dim": 24,
}
CONFIGS = {
    "encoder": {"kind": "encoder"},
    "encoder of another width": {"kind": "encoder", "embedding_dim": 6, "num_layer_groups": 1},
    "classifier": {"kind": "encoder"},
    "decoder": {"kind": "decoder", "position": "rotary", "normalize_first": True},
    "grouped and gated": {
        "kind": "decoder", "num_key_value_heads": 2, "head_dim": 6, "gated": True,
        "tie_embeddings": False, "window": 4,
    },
    "one key head": {"kind": "decoder", "num_key_value_heads": 1},
    "bilinear score": {"kind": "decoder", "score": "general"},
    "location score": {"kind": "decoder", "score": "location", "max_sequence_length": TARGET},
    "latent": {
        "kind": "decoder", "position": "none",
        "mixer": {"kind": "latent_attention", "num_heads": 4, "kv_lora_rank": 6, "q_lora_rank": 10,
                  "qk_nope_head_dim": 5, "qk_rope_head_dim": 2, "v_head_dim": 4,
                  "position": {"kind": "rotary"}},
    },
    "seq2seq": {"kind": "seq2seq", "num_decoder_layers": 3, "position": "relative"},
    "projected": {"kind": "seq2seq", "projector": "linear", "output_transform": "relu",
                  "encoder": {"hidden_dim": 20, "num_heads": 4}},
}  # fmt: skip


def products(jaxpr) -> int:
    """Operations of all matrix products of a traced program, those of its loops each time."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            depth = math.prod(left[axis] for axis in contracted)
            total += 2 * depth * math.prod(equation.outvars[0].aval.shape)
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else [value]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    total += times * products(inner)
    return total


def arrays(config):
    if config.kind == "seq2seq":
        source, target = np.ones((BATCH, SOURCE), "int32"), np.ones((BATCH, TARGET), "int32")
        return {"encoder_token_ids": source, "decoder_token_ids": target}, target
    inputs = {"token_ids": np.ones((BATCH, TARGET), "int32")}
    if config.kind == "decoder":
        return inputs, inputs["token_ids"]
    positions = np.zeros((BATCH, MASKED), "int32")
    return {**inputs, "mask_positions": positions}, positions


def traced(task, inputs, targets, training):
    """The program of a step of Keras's trainer, or of the backbone and the logits."""
    import jax

    values = [[v.value for v in task.trainable_variables]]
    values += [[v.value for v in task.non_trainable_variables]]
    if not training:
        call = task.stateless_call
        return jax.make_jaxpr(lambda t, n: call(t, n, inputs))(*values)
    task.optimizer.build(task.trainable_variables)
    further = (task.optimizer.variables, task.metrics_variables)
    state = (*values, *([v.value for v in variables] for variables in further))

    def step(state):
        return task.train_step(state, (inputs, targets, np.ones(targets.shape, "float32")))[1]

    return jax.make_jaxpr(step)(state)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="counts what JAX traces")
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_equal_to_the_products_of_the_traced_program(name, training):
    own = CONFIGS[name]
    sizes = {n: size for n, size in SMALL.items() if n != "num_heads" or "mixer" not in own}
    config = kt.TransformerConfig(**{**sizes, **own})
    backbone = kt.models.build_backbone(config)
    inputs, targets = arrays(config)
    classifies = name == "classifier"
    if classifies:
        task = kt.TextClassifier(backbone, num_classes=2)
        targets = targets[:, 0]
        del inputs["mask_positions"]
    else:
        tasks = {"encoder": kt.MaskedLM, "decoder": kt.CausalLM, "seq2seq": kt.Seq2SeqLM}
        task = tasks[config.kind](backbone)
        task.compile("adam", loss=kt.training.TokenCrossEntropy())
    program = traced(task, inputs, targets, training)

    expected = flops_per_sequence(
        config,
        SOURCE if config.kind == "seq2seq" else TARGET,
        training,
        target_length=TARGET if config.kind == "seq2seq" else None,
        predicted_tokens=MASKED if config.kind == "encoder" and not classifies else None,
        first_only=classifies,
    )
    if classifies:
        expected += (3 if training else 1) * 2 * config.hidden_dim * 2  # the two classes
    elif config.kind == "encoder" and training:
        # The gradient of the output bias, a sum by weights, is written as a product with them.
        expected += 2 * MASKED * config.vocabulary_size
    from jax.interpreters import partial_eval

    needed, _ = partial_eval.dce_jaxpr(program.jaxpr, [True] * len(program.jaxpr.outvars))
    assert products(needed) == BATCH * expected


@pytest.mark.backend_independent
def test_rematerialized_blocks_are_computed_once_more():
    config = kt.TransformerConfig(**SMALL, kind="decoder")
    once = flops_per_sequence(config, TARGET, training=False)
    logits = 2 * TARGET * 16 * 50
    again = flops_per_sequence(config, TARGET, rematerialized=True)
    assert again == 4 * (once - logits) + 3 * logits


@pytest.mark.backend_independent
def test_experts_that_are_not_chosen_are_not_counted():
    values = {**SMALL, "kind": "decoder", "gated": True, "expert_dim": 12, "experts_per_token": 2}
    dense = flops_per_sequence(
        kt.TransformerConfig(**{**values, "intermediate_dim": 24}), TARGET, training=False
    )
    for number in (4, 8):
        config = kt.TransformerConfig(**values, num_experts=number, shared_expert_dim=5)
        layers, shared = config.num_layers * TARGET, 3 * 5 + 1
        routed = 2 * layers * 16 * (number + shared)
        assert flops_per_sequence(config, TARGET, training=False) == dense + routed


@pytest.mark.backend_independent
def test_published_formula_of_palm():
    """Chowdhery et al. 2022, appendix B: 6 N + 12 L H Q T for each token, N without embeddings."""
    config = kt.TransformerConfig(
        kind="decoder", vocabulary_size=50_257, hidden_dim=12_288, num_layers=96, num_heads=96,
        intermediate_dim=49_152, max_sequence_length=2048, normalize_first=True,
    )  # fmt: skip
    kernels = 96 * 12 * 12_288**2 + 12_288 * 50_257
    assert flops_per_token(config, 2048) == 6 * kernels + 12 * 96 * 96 * 128 * 2048
    # Brown et al. 2020, table D.1: 3.14e23 for 300 billion tokens, without the attention's pairs.
    without_pairs = flops_per_token(config, 2048) - 12 * 96 * 12_288 * 2048
    assert 300e9 * without_pairs == pytest.approx(3.14e23, rel=0.01)


@pytest.mark.backend_independent
def test_a_pair_of_tokens():
    config = kt.TransformerConfig(**SMALL, kind="seq2seq")
    assert flops_per_token(config, 8) == flops_per_sequence(config, 8, target_length=8) / 8
    whole = flops_per_sequence(config, 12, target_length=8)
    assert flops_per_token(config, 12, target_length=8) == whole / 8


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("kind", "arguments", "words"),
    [
        ("decoder", {"length": 0}, "`length` must be an integer of at least 1"),
        ("decoder", {"length": 8, "target_length": 8}, "kind 'seq2seq', received kind='decoder'"),
        ("decoder", {"length": 65}, "learned positions for 64 only"),
        (
            "encoder",
            {"length": 8, "predicted_tokens": 9},
            "`predicted_tokens` must be an integer from 0 to 8",
        ),
    ],
)
def test_refused(kind, arguments, words):
    config = kt.TransformerConfig(**SMALL, kind=kind, position="learned", max_sequence_length=64)
    with pytest.raises(ValueError, match=words):
        flops_per_token(config, **arguments)


def test_a_weight_of_the_block_itself_is_no_product(monkeypatch):
    """Such as a factor of each feature, beside the layers of the block."""
    config = kt.TransformerConfig(kind="encoder", **SMALL)
    before = flops_per_sequence(config, SOURCE)
    factor = structure.weight_of("self_attention_scale", "hidden_dim")
    weights = Block.weights
    monkeypatch.setattr(Block, "weights", lambda self, **options: weights(self, **options) + factor)
    assert flops_per_sequence(config, SOURCE) == before
