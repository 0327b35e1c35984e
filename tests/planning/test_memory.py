"""Plans against real steps of training, compiled by XLA."""

import json
from pathlib import Path

import keras
import pytest

import keras_transformer as kt
from keras_transformer.planning import make_plan
from tests.thorough import THOROUGH

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="JAX alone says what a compiled step takes"
)

SIZES = {
    "vocabulary_size": 800,
    "hidden_dim": 128,
    "num_layers": 2,
    "num_heads": 4,
    "intermediate_dim": 384,
}
GPT = {
    **SIZES, "kind": "decoder", "activation": "gelu_tanh", "position": "learned",
    "normalize_first": True, "dropout": 0.1, "attention_dropout": 0.1,
}  # fmt: skip
LLAMA = {
    **SIZES, "kind": "decoder", "activation": "silu", "gated": True, "position": "rotary",
    "normalization": "rms_norm", "normalize_first": True, "num_key_value_heads": 2,
    "use_bias": False, "tie_embeddings": False, "vocabulary_size": 6000,
}  # fmt: skip
BERT = {
    **SIZES, "kind": "encoder", "activation": "gelu", "position": "learned", "dropout": 0.1,
    "attention_dropout": 0.1, "embedding_normalization": True, "segment_vocabulary_size": 2,
}  # fmt: skip
VASWANI = {**SIZES, "kind": "seq2seq", "num_decoder_layers": 3, "dropout": 0.1}
MOE = {**LLAMA, "vocabulary_size": 800, "num_experts": 8, "experts_per_token": 2, "expert_dim": 192}
_LATENT_ATTENTION = {
    "kind": "latent_attention", "num_heads": 4, "kv_lora_rank": 48, "q_lora_rank": 64,
    "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 24,
    "position": {"kind": "rotary"},
}  # fmt: skip
LATENT = {
    **{name: value for name, value in LLAMA.items() if "heads" not in name},
    "vocabulary_size": 800, "mixer": _LATENT_ATTENTION, "position": "none",
}  # fmt: skip
# As in a model of a billion parameters, most of a step with adapters is the vocabulary's matrix.
WIDE = {**LLAMA, "num_layers": 4, "tie_embeddings": True, "vocabulary_size": 24000}
STEP = {"batch_size": 8, "length": 128}
CASES = {
    "decoder": {"config": GPT, **STEP},
    "decoder, rematerialized": {"config": GPT, **STEP, "rematerialize": True},
    "encoder": {"config": BERT, **STEP},
    "encoder, rematerialized": {"config": BERT, **STEP, "rematerialize": True},
    "seq2seq": {"config": VASWANI, **STEP, "target_length": 96, "optimizer": "sgd"},
    "seq2seq, rematerialized": {"config": VASWANI, **STEP, "rematerialize": True},
    "latent": {"config": LATENT, **STEP},
    "experts": {"config": MOE, **STEP},
    "experts, rematerialized": {"config": MOE, **STEP, "rematerialize": True},
    "data and model axes": {"config": LLAMA, **STEP, "mesh": (4, 2, 1)},
    "data axis, few tokens": {"config": LLAMA, "batch_size": 8, "length": 16, "mesh": (8, 1, 1)},
    "fsdp axis": {"config": {**LLAMA, "num_layers": 4}, **STEP, "mesh": (1, 1, 8)},
    "fsdp axis, rematerialized": {
        "config": {**GPT, "num_layers": 6},
        **STEP,
        "mesh": (1, 1, 4),
        "rematerialize": True,
    },
    "adapters": {"config": WIDE, **STEP, "dtype": "int4", "lora_rank": 4, "rematerialize": True},
    "all axes": {"config": LLAMA, "batch_size": 8, "length": 16, "mesh": (2, 2, 2)},
}


if not THOROUGH:  # compiling each takes ten seconds, and others hold the same terms
    others = ("latent", "experts, rematerialized", "fsdp axis, rematerialized", "all axes")
    plain = ("decoder, rematerialized", "seq2seq", "seq2seq, rematerialized", "experts")
    for name in (*others, *plain, "data axis, few tokens"):
        del CASES[name]


@pytest.fixture(scope="module")
def real(forks):
    """Return XLA's numbers for all cases, from one process without this one's flags."""
    program = Path(__file__).with_name("real_steps.py")
    done = forks.run(program, json.dumps(list(CASES.values())))
    assert done.returncode == 0, done.stderr
    return dict(zip(CASES, json.loads(done.stdout.splitlines()[-1]), strict=True))


def planned(case):
    data, model, fsdp = case.get("mesh", (1, 1, 1))
    return make_plan(
        kt.TransformerConfig(**case["config"]),
        batch_size=case["batch_size"],
        length=case["length"],
        target_length=case.get("target_length"),
        optimizer=case.get("optimizer", "adamw"),
        dtype=case.get("dtype", "float32"),
        lora_rank=case.get("lora_rank"),
        devices=data * model * fsdp,
        fsdp=fsdp,
        model_parallel=model,
    )


@pytest.mark.parametrize("name", [name for name in CASES if name != "adapters"])
def test_what_a_device_is_given_is_exact(real, name):
    plan, found = planned(CASES[name]), real[name]
    assert plan.parameters == found["parameters"]
    assert plan.memory.weights == found["weights"]
    assert plan.memory.optimizer == found["optimizer"]
    # What the program closes over, such as wavelengths of positions, is given to it as well.
    constants = found["arguments"] - found["others"] - plan.memory.weights - plan.memory.optimizer
    assert 0 <= constants < 1024


def test_what_adapters_are_given_is_exact(real):
    memory, found = planned(CASES["adapters"]).memory, real["adapters"]
    assert (memory.adapters, memory.optimizer) == (found["weights"], found["optimizer"])
    assert 0 <= found["frozen"] - memory.weights < 1024  # the states of random numbers too


@pytest.mark.parametrize("name", CASES)
def test_the_peak_is_within_a_tenth(real, name):
    rematerialize = CASES[name].get("rematerialize", False)
    peak = planned(CASES[name]).memory.peak(rematerialize)
    assert peak == pytest.approx(real[name]["total"], rel=0.1)


def test_rematerialization_saves_what_the_plan_says(real):
    kinds = [kind for kind in CASES if f"{kind}, rematerialized" in CASES]
    assert "encoder" in kinds
    for kind in kinds:
        whole, less = real[kind]["total"], real[f"{kind}, rematerialized"]["total"]
        assert less < 0.8 * whole
