"""The fastest dtype is measured. No test asks which that is: it is another on each machine."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.optimizing.run import _fastest

BACKEND = keras.backend.backend()
SIZES = {
    "vocabulary_size": 60,
    "hidden_dim": 32,
    "num_layers": 1,
    "num_heads": 2,
    "intermediate_dim": 64,
    "max_sequence_length": 32,
}
QUICK = {"batch_size": 2, "length": 8, "rounds": 1, "verbose": False}


def backbone(kind, **options):
    config = kt.TransformerConfig(kind=kind, **SIZES)
    return kt.models.build_backbone(config, **options)


def classifier(**options):
    return kt.TextClassifier(backbone("encoder", **options), num_classes=3)


def learned(kind="encoder"):
    config = kt.TransformerConfig(kind=kind, position="learned", **SIZES)
    made = kt.models.build_backbone(config)
    return kt.CausalLM(made) if kind == "decoder" else kt.TextClassifier(made, num_classes=2)


def modes(result):
    return [row.mode for row in result.table]


def test_a_classifier(capsys):
    task = classifier()
    before = [keras.ops.convert_to_numpy(weight) for weight in task.weights]
    result = kt.optimize(task, **{**QUICK, "verbose": True, "rounds": 2})
    assert modes(result) == list(kt.optimizing.MODES)
    whole, *others = result.table[:4]
    assert (whole.difference, whole.agreement) == (0, 1)
    size = 4 * task.count_params()
    assert whole.memory == size
    shares, moves = (0.5, 0.35, 0.3), (0.05, 0.05, 0.3)
    for row, share, moved in zip(others, shares, moves, strict=True):
        assert row.reason == ""
        assert row.seconds > 0
        assert row.rate == pytest.approx(16 / row.seconds)
        assert 0 < row.difference < moved
        assert 0 <= row.agreement <= 1
        assert row.memory <= share * size
    for row in result.table[4:]:
        reason = "" if BACKEND == "torch" else "packed weights are for PyTorch on a CPU"
        assert row.reason == reason and (row.difference is None or row.difference < 0.05)
    # The task that was given is as it was.
    for weight, value in zip(task.weights, before, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(weight), value)
    assert result.mode in modes(result)
    assert (result.task is task) == (result.mode == "float32")
    printed = capsys.readouterr().out
    assert str(result) in printed
    assert "predict 2 rows of 8 tokens, 2 at a time" in str(result)
    taken = next(line for line in str(result).splitlines() if "<- taken" in line)
    assert taken.split()[0] == result.mode


@pytest.mark.parametrize("mode", ["bfloat16", "int8"])
def test_the_task_in_a_mode(mode, monkeypatch):
    """Given that it is the fastest, it is what is returned, and computes what float32 does."""
    monkeypatch.setattr("keras_transformer.optimizing.run._fastest", lambda *_: mode)
    task = classifier()
    task.backbone.weights[0].assign(task.backbone.weights[0] + 0.1)
    result = kt.optimize(task, modes=[mode], **QUICK)
    assert modes(result) == ["float32", mode]
    dtypes = {keras.backend.standardize_dtype(w.dtype) for w in result.task.weights}
    assert mode in dtypes
    ids = np.random.default_rng(1).integers(4, 60, (3, 9), dtype="int32")
    found, wanted = (t.predict({"token_ids": ids}, verbose=0) for t in (result.task, task))
    assert not np.array_equal(found, wanted)
    np.testing.assert_allclose(found, wanted, atol=0.1)


def test_vectors_agree_by_their_cosine():
    task = kt.TextEmbedder(backbone("encoder"))
    result = kt.optimize(task, modes=["int8"], **QUICK)
    assert 0.95 < result.table[1].agreement < 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: kt.CausalLM(backbone("decoder"), end_ids=[2]),
        lambda: kt.Seq2SeqLM(backbone("seq2seq"), start_id=1, end_ids=[2]),
    ],
    ids=["decoder", "seq2seq"],
)
def test_what_generates(make):
    task = make()
    chosen = ["float32-packed", "bfloat16", "int8", "int8-packed"]
    result = kt.optimize(task, new_tokens=3, modes=chosen, **QUICK)
    assert modes(result) == ["float32", "bfloat16", "int8", "float32-packed", "int8-packed"]
    rows = {row.mode: row for row in result.table}
    assert "generate 3 tokens for 2 prompts of 8 tokens" in str(result)
    for mode in ("bfloat16", "int8"):
        assert rows[mode].rate == pytest.approx(6 / rows[mode].seconds)
        assert 0 < rows[mode].difference < 0.1
    for mode in ("float32", "int8"):
        packed = rows[f"{mode}-packed"]
        if BACKEND == "torch":
            assert packed.memory == 2 * rows[mode].memory
            assert packed.agreement == rows[mode].agreement
        else:
            assert packed.reason == "packed weights are for PyTorch on a CPU"
            assert packed.seconds is None
            assert f"{mode}-packed: packed weights are for PyTorch" in str(result)
    assert not task.pack_weights
    prompt = [[5, 6, 7]]
    assert len(result.task.generate(prompt, max_new_tokens=2)) == 1


def test_what_is_given_is_what_is_measured():
    task = classifier()
    ids = np.random.default_rng(0).integers(4, 60, (5, 6), dtype="int32")
    options = {**QUICK, "length": None}
    result = kt.optimize(task, {"token_ids": ids}, modes=["bfloat16"], **options)
    assert "predict 5 rows, 2 at a time" in str(result)
    row = result.table[1]
    assert row.rate == pytest.approx(5 / row.seconds)
    lm = kt.CausalLM(backbone("decoder"), end_ids=[])
    result = kt.optimize(lm, [[5, 6, 7], [8]], new_tokens=2, modes=[], **options)
    assert "generate 2 tokens for 2 prompts of 3 tokens" in str(result)
    assert result.task is lm


def test_a_mode_that_fails_says_why():
    config = kt.TransformerConfig(kind="decoder", num_experts=2, experts_per_token=1, **SIZES)
    lm = kt.CausalLM(kt.models.Decoder(config), end_ids=[])
    result = kt.optimize(lm, new_tokens=2, modes=["int8"], **QUICK)
    assert result.mode == "float32"
    assert result.table[1].reason.startswith("A model with experts is not quantized")
    assert "  int8: A model with experts is not quantized" in str(result)


def test_the_least_seconds_are_taken_if_they_agree():
    def row(mode, seconds, agreement=1.0):
        return kt.optimizing.Measured(mode, seconds, 1.0, 1, 0.0, agreement)

    rows = [row("float32", 1.0), row("bfloat16", 0.5), row("int8", 0.2, agreement=0.9)]
    missing = kt.optimizing.Measured("int4", reason="there is none")
    assert _fastest([*rows, missing], 0.0) == "int8"
    assert _fastest([*rows, missing], 0.95) == "bfloat16"
    assert _fastest(rows[:1], 0.95) == "float32"
    # What is within the noise is not faster.
    assert _fastest([row("float32", 1.0), row("bfloat16", 0.97)], 0.0) == "float32"


def test_what_cannot_be_measured():
    def refused(message, task, *args, **options):
        with pytest.raises(ValueError, match=message):
            kt.optimize(task, *args, **{**QUICK, **options})

    task = classifier()
    refused("`task` must be a task, received", task.backbone)
    refused("must be in float32, .* received one in bfloat16", classifier(dtype="bfloat16"))
    refused("received one in mixed_bfloat16", classifier(dtype="mixed_bfloat16"))
    refused(r"`modes\[0\]` must be one of .* 'int9'", task, modes=["int9"])
    refused("`modes` must be a list of names, received 'int8'", task, modes="int8")
    refused("`batch_size` must be", task, batch_size=0)
    refused("`least_agreement` must be", task, least_agreement=2)
    refused("the length of random tokens", task, {"token_ids": np.ones((1, 4), "int32")})
    refused("length=33 is too long: the model takes 32 tokens", learned(), length=33)
    refused("takes 32 tokens, 4 of them new", learned("decoder"), length=29, new_tokens=4)
    refused("`x` must be a list of prompts", learned("decoder"), [3, 4], length=None)
    adapted = classifier()
    adapted.enable_lora(2)
    refused("has adapters. Call `merge_lora` before `optimize`", adapted)
