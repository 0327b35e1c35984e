"""Perplexity of long texts, against the loop that Transformers' documentation has."""

import json
import math

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import export_to_huggingface, presets_folder

TEXT = "".join(
    json.loads(line)["text"]
    for line in (
        (presets_folder().parent / "examples/evaluation_tasks/sonnets.jsonl")
        .read_text()
        .splitlines()
    )
)


@pytest.fixture(scope="module")
def task():
    keras.utils.set_random_seed(1)
    tokenizer = kt.Tokenizer.from_preset("gpt_tiny_shakespeare")
    config = kt.TransformerConfig(
        kind="decoder", vocabulary_size=tokenizer.vocabulary_size, hidden_dim=16, num_layers=2,
        num_heads=2, intermediate_dim=32, max_sequence_length=48, position="learned",
        normalize_first=True, final_normalization=True,
    )  # fmt: skip
    return kt.CausalLM(kt.models.Decoder(config), tokenizer)


def in_windows(model, ids, stride, max_length):
    """The loop; it yields the mean loss of each window, and how many tokens the mean is of."""
    import torch

    before, ids = 0, torch.tensor([ids])
    for begin in range(0, ids.shape[1], stride):
        end = min(begin + max_length, ids.shape[1])
        targets = ids[:, begin:end].clone()
        targets[:, : before - end] = -100
        with torch.no_grad():
            loss = model(ids[:, begin:end], labels=targets).loss
        # The labels are shifted within the model: the first of a window is not predicted.
        yield float(loss), int((targets[:, 1:] != -100).sum()), int((targets != -100).sum())
        before = end
        if end == ids.shape[1]:
            break


@pytest.mark.parametrize(("stride", "max_length"), [(16, 48), (48, 48), (7, 20)])
def test_windows_as_transformers_documents_them(task, tmp_path, stride, max_length):
    import transformers

    export_to_huggingface(task, tmp_path, family="gpt2")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = task.tokenizer.encode(TEXT, special_tokens=False)
    windows = list(in_windows(model, ids, stride, max_length))
    total = sum(loss * count for loss, count, _ in windows)
    found = task.perplexity(TEXT, stride, max_length)
    assert found == pytest.approx(math.exp(total / sum(n for _, n, _ in windows)), rel=1e-5)
    # The documentation weighs each window by one token less than it has, wherever it begins.
    weights = [count - 1 for _, _, count in windows]
    documented = math.exp(np.average([loss for loss, _, _ in windows], weights=weights))
    assert found == pytest.approx(documented, rel=1e-5 if stride == max_length else 0.01)


@pytest.mark.one_backend
def test_texts_files_and_ids(task, tmp_path):
    texts = [TEXT, TEXT[:200]]
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    whole = task.perplexity(TEXT)
    assert whole == task.perplexity(TEXT, stride=24, max_length=48)
    assert task.perplexity(tmp_path / "text.txt") == pytest.approx(whole)
    rows = [task.tokenizer.encode(text, special_tokens=False) for text in texts]
    both = task.perplexity(texts)
    assert both == pytest.approx(task.perplexity(rows))
    counts = [len(row) - 1 for row in rows]
    each = [math.log(task.perplexity(text)) for text in texts]
    assert math.log(both) == pytest.approx(np.average(each, weights=counts), rel=1e-6)
    short = "My mistress' eyes"
    scores = task.score(short, per_token=True)
    assert task.perplexity(short) == pytest.approx(math.exp(-scores.mean()), rel=1e-5)


@pytest.mark.one_backend
def test_errors(task, tmp_path):
    for options, told in (
        ({"max_length": 49}, "`max_length`"),
        ({"stride": 0}, "`stride`"),
        ({"stride": 21, "max_length": 20}, "`stride`"),
        ({"texts": [[5]]}, "no token to score"),
        ({"texts": [[5, 10**6]]}, "texts"),
    ):
        with pytest.raises(ValueError, match=told):
            task.perplexity(**{"texts": TEXT, **options})
    with pytest.raises(FileNotFoundError):
        task.perplexity(tmp_path / "nothing.txt")
