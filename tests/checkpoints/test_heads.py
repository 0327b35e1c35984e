"""The heads of every family: loaded, equal to the Transformers library's, and written back."""

import logging

import numpy as np
import pytest
import safetensors.numpy

import keras_transformer as kt
from keras_transformer import export_to_huggingface, tasks
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints import families
from tests.checkpoints.conftest import assert_same_values
from tests.thorough import a_part

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.one_backend

SUFFIXES = {
    "MaskedLM": "ForMaskedLM",
    "TextClassifier": "ForSequenceClassification",
    "TokenClassifier": "ForTokenClassification",
    "QuestionAnswerer": "ForQuestionAnswering",
}
# GPT's classifier scores the state of the last token, like the others, through a class that
# refuses to be made without a padding id.
CASES = [
    (model_type, task)
    for model_type, family in FAMILIES.items()
    for task in SUFFIXES
    if task in family.heads
]
# Options of heads that only one of a family's configs has.
FURTHER = [(*case, 1) for case in CASES if case[0] in ("modernbert", "deberta-v2", "eurobert")]
# Without ties a masked language model has two biases, of which one is added.
_UNTIED = (
    "bert",
    "roberta",
    "distilbert",
    "albert",
    "electra",
    "nomic_bert",
    "big_bird",
    "eurobert",
    "roformer",
)
OF_ONE = [
    *((name, "MaskedLM", 2) for name in _UNTIED),
    *((name, "TextClassifier", 2) for name in ("big_bird", "eurobert")),
]
LABELS = {0: "O", 1: "B-PER", 2: "I-PER"}


def made(model_type, task, folder, number=0):
    """A checkpoint with a head, and the ids that it is asked about."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    values = {"id2label": LABELS} if task.endswith("Classifier") else {}
    if FAMILIES[model_type].constants["kind"] == "decoder":
        values["pad_token_id"] = 3
    if model_type in ("t5", "mt5"):
        values["decoder_start_token_id"] = 0  # as published configs say, and the class does not
    suffix = SUFFIXES[task]
    if model_type == "xlnet" and task == "QuestionAnswerer":
        suffix += "Simple"  # the other one searches for the ends of likely starts
    model = families.make(model_type, number, suffix, **values)
    model.save_pretrained(folder)
    if model_type in ("longformer", "big_bird") and task == "QuestionAnswerer":
        ids, mask = families.batch(model.config.pad_token_id, rows=2)
        for row in (0, 1):  # a question, two separators, a context and one more
            ids[row, [1, 2, mask[row].sum() - 1]] = model.config.sep_token_id
        return model, (ids, mask)
    ids, mask = families.batch(model.config.pad_token_id)
    if model_type in families.WITHOUT_MASK:
        return model, (ids[:1], mask[:1])
    if FAMILIES[model_type].constants["kind"] == "seq2seq":  # and what else behind it
        ids[np.arange(3), mask.sum(axis=1) - [2, 2, 1]] = model.config.eos_token_id
    return model, (ids, mask)


def logits_of(model, ids, mask):
    """Their logits, `(rows, length, 2)` of a question answerer."""
    if model.config.model_type == "xlnet" and len(ids) > 1:
        # Its classifier takes the last column, padding or not: each row by itself.
        rows = [logits_of(model, i[m][None], m[m][None])[0] for i, m in zip(ids, mask, strict=True)]
        if rows[0].ndim == 1:
            return np.stack(rows)
    with torch.no_grad():
        inputs = {
            "input_ids": torch.tensor(ids).long(),
            "attention_mask": torch.tensor(mask).long(),
        }
        if model.config.model_type in families.WITHOUT_MASK:
            del inputs["attention_mask"]
        if model.config.model_type == "big_bird":  # which makes segments where none are given
            inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
        outputs = model(**inputs)
    if "start_logits" in outputs:
        return torch.stack([outputs.start_logits, outputs.end_logits], dim=-1).numpy()
    return outputs.logits.numpy()


@pytest.mark.parametrize(
    ("model_type", "task", "number"),
    a_part([*((*case, 0) for case in CASES), *FURTHER, *OF_ONE], 2),
)
def test_same_logits(tmp_path, model_type, task, number, caplog):
    reference, (ids, mask) = made(model_type, task, tmp_path, number)
    with caplog.at_level(logging.WARNING, "keras_transformer"):
        model = kt.Task.from_preset(tmp_path)
    assert type(model) is getattr(tasks, task)
    assert not [r for r in caplog.records if r.name == "keras_transformer"]
    if task.endswith("Classifier"):
        assert model.labels == list(LABELS.values())
    outputs = to_numpy(model({"token_ids": ids, "padding_mask": mask}))
    expected = logits_of(reference, ids, mask)
    # Where no answer can start, theirs are a large number less, and ours another one.
    compared = (mask[..., None] if outputs.ndim == 3 else True) & (expected > -1e5)
    assert (outputs[expected <= -1e5] < -1e5).all()
    assert np.abs(outputs - expected)[compared].max() <= 1e-4


@pytest.mark.parametrize(
    ("model_type", "task", "number"), a_part([*((*case, 1) for case in CASES), *OF_ONE])
)
def test_heads_are_written_back(tmp_path, model_type, task, number):
    reference, (ids, mask) = made(model_type, task, tmp_path / "theirs", number)
    model = kt.Task.from_preset(tmp_path / "theirs")
    export_to_huggingface(model, tmp_path / "ours")
    again, info = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    # The head of contacts of ESM has no place here.
    missing = [name for name in info["missing_keys"] if "contact_head." not in name]
    assert not missing and not info["mismatched_keys"], info
    assert again.config.model_type == model_type
    if task.endswith("Classifier"):
        assert again.config.id2label == LABELS
    again.config.pad_token_id = reference.config.pad_token_id
    np.testing.assert_allclose(
        logits_of(again.eval(), ids, mask), logits_of(reference, ids, mask), atol=1e-6
    )
    back = kt.Task.from_preset(tmp_path / "ours")
    assert type(back) is type(model) and back.backbone.config == model.backbone.config
    assert_same_values(back, model)


def test_values_of_heads_that_are_not_computed_are_refused(tmp_path):
    values = {"decoder_bias": False}
    families.make("modernbert", 0, "ForMaskedLM", **values).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="decoder_bias=False is not supported for a MaskedLM"):
        kt.Task.from_preset(tmp_path)


def test_a_decoder_without_the_layers_before_its_logits(tmp_path):
    """A classifier of a ModernBERT decoder has others in their place, and writes no text."""
    made("modernbert-decoder", "TextClassifier", tmp_path / "theirs")
    backbone = kt.Backbone.from_preset(tmp_path / "theirs")
    assert backbone.config.output_transform is None and not backbone.config.output_bias
    with pytest.raises(ValueError, match="of a CausalLM cannot express output_transform=None"):
        export_to_huggingface(backbone, tmp_path / "ours", family="modernbert-decoder")
    values = {"classifier_bias": True, "pad_token_id": 3, "id2label": LABELS}
    model = families.make("modernbert-decoder", 0, "ForSequenceClassification", **values)
    model.save_pretrained(tmp_path / "biased")
    with pytest.raises(ValueError, match="classifier_bias=True is not supported"):
        kt.Task.from_preset(tmp_path / "biased")


def test_one_activation_of_blocks_and_classifier(tmp_path):
    """Where one value is that of both, a model with two is not written as one with one."""
    made("big_bird", "TextClassifier", tmp_path / "theirs", number=2)
    model = kt.Task.from_preset(tmp_path / "theirs")
    other = kt.TextClassifier(model.backbone, num_classes=3, hidden_activation="tanh")
    with pytest.raises(ValueError, match="cannot express activation='relu', only 'tanh'"):
        export_to_huggingface(other, tmp_path / "ours", family="big_bird")


@pytest.mark.parametrize("model_type", ["bert", "roberta", "electra"])
def test_a_head_that_is_not_there_is_fresh_and_said(tmp_path, model_type, caplog):
    made(model_type, "MaskedLM", tmp_path)
    with caplog.at_level(logging.WARNING, "keras_transformer"):
        model = kt.TextClassifier.from_preset(tmp_path, num_classes=4)
    assert "no weights for this head of TextClassifier" in caplog.text
    # What the family's classifiers have before their output.
    expected = {"bert": None, "roberta": "tanh", "electra": "gelu"}[model_type]
    assert model.hidden_activation == expected


@pytest.mark.parametrize(("model_type", "output"), [("bert", "decoder"), ("llama", "lm_head")])
def test_an_output_matrix_that_is_missing_is_not_replaced(tmp_path, model_type, output):
    """Untied by its config, and without the matrix: the token embedding must not stand in."""
    suffix = "ForMaskedLM" if model_type == "bert" else "ForCausalLM"
    number = 2 if model_type == "bert" else 0  # untied
    families.make(model_type, number, suffix).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    kept = {name: array for name, array in tensors.items() if f"{output}.weight" not in name}
    assert len(kept) == len(tensors) - 1
    safetensors.numpy.save_file(kept, path)
    with pytest.raises(ValueError, match=rf"1 missing:\n.*{output}\.weight"):
        kt.Backbone.from_preset(tmp_path)


@pytest.mark.parametrize(
    "layer", ["", "encoder.layer.*.attention.self.", "encoder.layer.1.attention.self."]
)
def test_angles_of_esm_are_rounded_as_in_its_file(tmp_path, layer):
    """The published models were trained in float16: they rotate by the angles of their files."""
    reference = families.make("esm", 0, "ForMaskedLM", hidden_size=24, num_attention_heads=2)
    with torch.no_grad():
        reference.esm.rotary_embeddings.inv_freq.copy_(
            reference.esm.rotary_embeddings.inv_freq.half()
        )
    reference.save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    angles = tensors.pop(next(name for name in tensors if name.endswith("inv_freq")))
    name = f"esm.{layer}rotary_embeddings.inv_freq"
    safetensors.numpy.save_file({**tensors, name: angles}, path)
    model = kt.Task.from_preset(tmp_path / "theirs")
    assert model.backbone.config.rotary_precision == "float16"
    ids, mask = families.batch(1, rows=1)
    expected = logits_of(reference, ids, mask)
    found = to_numpy(model({"token_ids": ids, "padding_mask": mask}))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    model.save_to_preset(tmp_path / "ours")
    assert kt.Task.from_preset(tmp_path / "ours").backbone.config == model.backbone.config
    export_to_huggingface(model, tmp_path / "back")
    again = type(reference).from_pretrained(tmp_path / "back").eval()
    np.testing.assert_array_equal(
        again.esm.rotary_embeddings.inv_freq, reference.esm.rotary_embeddings.inv_freq
    )
    export_to_huggingface(model.backbone, tmp_path / "bare")
    assert kt.Backbone.from_preset(tmp_path / "bare").config.rotary_precision == "float16"
    tensors[name] = angles * np.float32(1.01)
    safetensors.numpy.save_file(tensors, path)
    with pytest.raises(ValueError, match="inv_freq.*is computed from the config.*values differ"):
        kt.Task.from_preset(tmp_path / "theirs")


def test_a_masked_token_changes_the_other_embeddings_of_esm(tmp_path):
    """A text in a batch, and packed behind another one, is scaled by its own masks."""
    families.make("esm", 0, "Model").save_pretrained(tmp_path)
    backbone = kt.Backbone.from_preset(tmp_path)
    texts = [[5, 28, 7, 9], [11, 28, 28, 13, 14]]
    alone = [to_numpy(backbone({"token_ids": np.array([text])}))[0] for text in texts]
    without = to_numpy(backbone({"token_ids": np.array([[5, 6, 7, 9]])}))[0]
    assert np.abs(without[0] - alone[0][0]).max() > 1e-2
    packed = {
        "token_ids": np.array([texts[0] + texts[1] + [1]]),
        "padding_mask": np.array([[True] * 9 + [False]]),
        "position_ids": np.array([[0, 1, 2, 3, 0, 1, 2, 3, 4, 0]]),
        "pack_ids": np.array([[0] * 4 + [1] * 6]),
    }
    found = to_numpy(backbone(packed))[0, :9]
    np.testing.assert_allclose(found, np.concatenate(alone), atol=2e-5)


@pytest.mark.parametrize("model_type", ["modernbert", "deberta-v2"])
def test_every_weight_learns(tmp_path, model_type):
    _, (ids, mask) = made(model_type, "TextClassifier", tmp_path, number=1)
    model = kt.Task.from_preset(tmp_path)
    before = {v.path: to_numpy(v) for v in model.trainable_variables}
    model.fit({"token_ids": ids, "padding_mask": mask}, np.array([0, 1, 2]), verbose=0)
    same = [v.path for v in model.trainable_variables if (before[v.path] == to_numpy(v)).all()]
    assert not [path for path in same if not path.endswith("key/bias")]


def test_own_format_keeps_every_head(tmp_path):
    for task in SUFFIXES:
        made("roberta", task, tmp_path / task)
        model = kt.Task.from_preset(tmp_path / task)
        model.save_to_preset(tmp_path / f"{task}-saved")
        back = kt.Task.from_preset(tmp_path / f"{task}-saved")
        assert type(back) is type(model) and back.backbone.family == "roberta"
        assert_same_values(back, model)
