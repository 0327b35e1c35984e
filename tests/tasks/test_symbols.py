"""Rows of symbols through the tasks on texts: fit, ask, save, adapters, mixed precision."""

import keras
import numpy as np
import pytest

import keras_transformer as kt

ROWS = ["".join(np.random.default_rng(i).choice(list("ACGT"), size=12)) for i in range(16)]
STRONG, WEAK = str.maketrans("AT", "CG"), str.maketrans("CG", "AT")  # pairs of three bonds, of two


def backbone(tokenizer, kind="encoder", dtype=None):
    keras.utils.set_random_seed(0)
    config = kt.TransformerConfig(
        kind=kind,
        vocabulary_size=tokenizer.vocabulary_size,
        hidden_dim=16,
        num_layers=1,
        num_heads=2,
        intermediate_dim=32,
        max_sequence_length=64,
        position="learned",
    )
    return kt.models.build_backbone(config, dtype=dtype)


def reloaded(task, folder):
    task.save_to_preset(folder / "preset")
    task.save(folder / "model.keras")
    return [kt.Task.from_preset(folder / "preset"), keras.models.load_model(folder / "model.keras")]


@pytest.mark.parametrize("dtype", [None, "mixed_bfloat16"])
def test_a_class_of_each_row(dtype, tmp_path):
    rows = [row.translate(WEAK if i % 2 else STRONG) for i, row in enumerate(ROWS)]
    labels = ["strong", "weak"] * 8
    tokenizer = kt.Tokenizer.of_symbols("ACGT")
    encoder = backbone(tokenizer, dtype=dtype)
    task = kt.TextClassifier(encoder, tokenizer, labels=["strong", "weak"])
    task.compile(keras.optimizers.Adam(2e-2))
    task.fit(rows, labels, epochs=15, batch_size=8, verbose=0)
    assert task.evaluate(rows, labels, verbose=0, return_dict=True)["accuracy"] == 1
    assert [label for label, _ in task.classify(rows)] == labels
    expected = task.predict(rows, verbose=0)
    for again in reloaded(task, tmp_path):
        np.testing.assert_allclose(
            again.predict(rows, verbose=0), expected, atol=5e-2 if dtype else 1e-5
        )
    with pytest.raises(ValueError, match="row 1 has 'N' at 3"):
        task.classify(["ACGT", "ACGN"])


def test_adapters():
    tokenizer = kt.Tokenizer.of_symbols("ACGT")
    task = kt.TextClassifier(backbone(tokenizer), tokenizer, num_classes=2)
    task.enable_lora(rank=2)
    before = task.predict(ROWS[:2], verbose=0)
    task.compile(keras.optimizers.Adam(1e-2))
    task.fit(ROWS, [0, 1] * 8, verbose=0)
    after = task.predict(ROWS[:2], verbose=0)
    assert np.abs(after - before).max() > 1e-4
    task.merge_lora()
    np.testing.assert_allclose(task.predict(ROWS[:2], verbose=0), after, atol=1e-5)


def test_a_label_of_each_symbol(tmp_path):
    labels = [["O" if base in "AT" else "B-strong" for base in row] for row in ROWS]
    tokenizer = kt.Tokenizer.of_symbols("ACGT", template="none")
    task = kt.TokenClassifier(backbone(tokenizer), tokenizer, labels=["O", "B-strong", "I-strong"])
    task.compile(keras.optimizers.Adam(2e-2), task.loss, weighted_metrics=["accuracy"])
    task.fit([list(row) for row in ROWS], labels, epochs=12, batch_size=4, verbose=0)
    logits = task.predict(ROWS, verbose=0)[:, :12]  # of 16, where rows are padded
    assert logits.shape == (16, 12, 3)
    assert [[task.labels[i] for i in row] for row in logits.argmax(-1)] == labels
    found = task.recognize("ATGAC")
    assert [(x.text, x.start, x.label) for x in found] == [("G", 2, "strong"), ("C", 4, "strong")]
    for again in reloaded(task, tmp_path):
        np.testing.assert_allclose(again.predict(ROWS, verbose=0)[:, :12], logits, atol=1e-5)


def test_the_next_symbol():
    tokenizer = kt.Tokenizer.of_symbols(range(60, 64), template="start_end")
    task = kt.CausalLM(backbone(tokenizer, "decoder"), tokenizer)
    task.compile(keras.optimizers.Adam(2e-2), task.loss)
    task.fit(["60 61 62 63 60 61 62 63"] * 16, epochs=20, batch_size=4, verbose=0)
    assert task.generate("60 61", max_new_tokens=4).split() == ["62", "63", "60", "61"]
