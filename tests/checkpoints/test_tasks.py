"""Whole tasks: head, tokenizer and values, in our format and in the published one."""

import json
import logging

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import export_to_huggingface, load_task
from keras_transformer.checkpoints.families.encoders.bert import BERT
from tests.checkpoints.conftest import small_backbone

pytestmark = pytest.mark.one_backend

TEXTS = ["a warm and funny film", "dull from start to end", "funny, but far too long"]


@pytest.fixture(scope="module")
def tokenizer():
    return kt.Tokenizer.train(TEXTS * 4, kind="wordpiece", vocabulary_size=80, lowercase=True)


def classifier(tokenizer, **options):
    values = {k: v for k, v in BERT.constants.items() if k != "kind"}
    backbone = small_backbone(
        **values, vocabulary_size=tokenizer.vocabulary_size, segment_vocabulary_size=2,
        activation="gelu", max_sequence_length=40, pooler=True,
    )  # fmt: skip
    for variable in backbone.weights:
        variable.assign(variable * 0.3)
    return kt.TextClassifier(backbone, tokenizer, **options)


def logits(task):
    return task.predict(TEXTS, verbose=0)


@pytest.mark.each_backend
def test_a_task_is_saved_and_loaded_whole(tmp_path, tokenizer, caplog):
    task = classifier(tokenizer, labels=["bad", "good", "mixed"], dropout=0.25)
    task.save_to_preset(tmp_path / "preset")
    loaded = kt.TextClassifier.from_preset(tmp_path / "preset")
    assert (loaded.labels, loaded.dropout) == (task.labels, 0.25)
    assert loaded.tokenizer.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])
    np.testing.assert_array_equal(logits(loaded), logits(task))
    assert not [r for r in caplog.records if r.name == "keras_transformer"]
    assert 'TextClassifier.from_preset("preset")' in (tmp_path / "preset/README.md").read_text()


def test_another_number_of_classes_makes_a_fresh_head(tmp_path, tokenizer, caplog):
    classifier(tokenizer, labels=["bad", "good"]).save_to_preset(tmp_path)
    with caplog.at_level(logging.WARNING, "keras_transformer"):
        loaded = load_task(kt.TextClassifier, tmp_path, num_classes=5)
    assert loaded.num_classes == 5 and loaded.labels is None
    assert "no weights for this head of TextClassifier" in caplog.text
    other = load_task(kt.TextClassifier, tmp_path, labels=["-", "+"])
    assert other.labels == ["-", "+"]
    assert len([r for r in caplog.records if r.name == "keras_transformer"]) == 2


def test_options_go_where_they_belong(tmp_path, tokenizer):
    classifier(tokenizer, num_classes=2).save_to_preset(tmp_path)
    task = load_task(kt.TextClassifier, tmp_path, dropout=0.5, attention_dropout=0.125)
    assert task.dropout == task.backbone.config.dropout == 0.5
    assert task.backbone.config.attention_dropout == 0.125
    with pytest.raises(ValueError, match=r"Unknown options \['nonsense'\]. TextClassifier takes"):
        load_task(kt.TextClassifier, tmp_path, nonsense=1)


def test_the_wrong_task(tmp_path, tokenizer):
    classifier(tokenizer, num_classes=2).save_to_preset(tmp_path)
    with pytest.raises(ValueError, match="of kind 'encoder', but CausalLM needs 'decoder'"):
        kt.CausalLM.from_preset(tmp_path)
    kt.Backbone.from_preset(tmp_path).save_to_preset(tmp_path / "backbone")
    with pytest.raises(
        ValueError,
        match="names the task None.*one of AudioClassifier, .*CausalLM, .*from_preset on",
    ):
        kt.Task.from_preset(tmp_path / "backbone")
    assert kt.TextEmbedder.from_preset(tmp_path).predict(TEXTS, verbose=0).shape == (3, 8)


def test_a_task_of_another_input(tmp_path):
    for task, preset, message in (
        (kt.TextClassifier, "cct_tiny_cifar10", "ImageClassifier, which reads images, but Text"),
        (kt.TextEmbedder, "spoken_digits", "AudioClassifier, which reads recordings, but Text"),
        (kt.ImageClassifier, "spoken_digits", "AudioClassifier, which reads recordings, but Im"),
        (kt.VideoClassifier, "splice_sites", "TextClassifier, which reads strings, but Video"),
        (kt.QuestionAnswerer, "patchtst_etth1_96", "Forecaster, which reads series, but Quest"),
        (kt.Seq2SeqLM, "vqa_shapes", "reads 'encoder_images', but Seq2SeqLM reads strings"),
    ):
        with pytest.raises(ValueError, match=message):
            task.from_preset(preset)
    stem = {"kind": "patches", "image_size": (8, 8), "patch_size": 4}
    sizes = {"hidden_dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 8}
    config = kt.TransformerConfig(kind="encoder", vocabulary_size=0, stem=stem, **sizes)
    kt.models.Encoder(config).save_to_preset(tmp_path)
    with pytest.raises(ValueError, match="reads 'images', but TextClassifier reads strings"):
        kt.TextClassifier.from_preset(tmp_path, num_classes=2)
    assert kt.ImageClassifier.from_preset(tmp_path, num_classes=2).num_classes == 2


def test_without_tokenizer_files(tmp_path, tokenizer):
    classifier(tokenizer, num_classes=2).save_to_preset(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    task = kt.TextClassifier.from_preset(tmp_path)
    assert task.tokenizer is None
    assert task.predict({"token_ids": np.array([[2, 5, 3]])}, verbose=0).shape == (1, 2)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"num_classes": 10**12}, "the config says"),
        ({"num_classes": "2"}, "must be an integer"),
        ({"num_classes": 1}, "the config says"),
        ({"num_classes": None, "labels": None}, "num_classes"),
        ({"labels": 3}, "'labels' must be null or a list of strings"),
        ({"labels": ["a"]}, "labels"),
        ({"dropout": "high"}, "`dropout` must be a number"),
        ({"class": "os.system"}, r"unknown values \['class'\]"),
    ],
)
def test_task_values_that_do_not_fit(tmp_path, tokenizer, values, message):
    classifier(tokenizer, num_classes=2).save_to_preset(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["task"].update(values)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        kt.TextClassifier.from_preset(tmp_path)


def test_missing_head_tensors(tmp_path, tokenizer):
    task = classifier(tokenizer, num_classes=2)
    task.save_to_preset(tmp_path)
    config = (tmp_path / "config.json").read_text()
    task.backbone.save_to_preset(tmp_path)
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ValueError, match="2 missing:\n  head/output/kernel"):
        kt.TextClassifier.from_preset(tmp_path)


def test_a_published_classifier_and_back(tmp_path, tokenizer):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    task = classifier(tokenizer, labels=["bad", "good", "mixed"], dropout=0.25)
    export_to_huggingface(task, tmp_path)
    reference, info = transformers.BertForSequenceClassification.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert reference.config.id2label == {0: "bad", 1: "good", 2: "mixed"}
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path)
    batch = fast(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        mask = batch["attention_mask"]
        expected = reference.eval()(input_ids=batch["input_ids"], attention_mask=mask).logits
    assert np.abs(logits(task) - expected.numpy()).max() <= 2e-5
    loaded = kt.TextClassifier.from_preset(tmp_path)
    assert (loaded.labels, loaded.dropout) == (task.labels, 0.25)
    np.testing.assert_array_equal(logits(loaded), logits(task))


def test_a_classifier_without_pooler_is_no_bert(tmp_path, tokenizer):
    task = classifier(tokenizer, labels=["bad", "good"])
    backbone = small_backbone(**{**task.backbone.config.flat, "pooler": False})
    task = kt.TextClassifier(backbone, tokenizer, labels=["bad", "good"])
    with pytest.raises(ValueError, match="TextClassifier has a pooler, but this model does not"):
        export_to_huggingface(task, tmp_path / "out")


def test_export_of_what_no_architecture_computes(tmp_path, tokenizer):
    backbone = small_backbone("decoder")
    with pytest.raises(ValueError, match=r"fits.*\n  A gpt2 (.*\n){3}and .* or more"):
        export_to_huggingface(backbone, tmp_path / "out")
    with pytest.raises(ValueError, match="A bert checkpoint cannot express kind='seq2seq'"):
        export_to_huggingface(small_backbone("seq2seq"), tmp_path / "out", family="bert")
    assert not (tmp_path / "out").exists()
