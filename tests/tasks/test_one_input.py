"""Heads of encoder-decoders that read one text on both sides, and of BigBird: their gradients."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import export_to_huggingface
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints import families
from tests.checkpoints.conftest import assert_same_values
from tests.compiled import outputs_of
from tests.tasks.common import ENGLISH, config, randomized, tokenizer

CLASSES = {
    "TextClassifier": "ForSequenceClassification",
    "TokenClassifier": "ForTokenClassification",
    "QuestionAnswerer": "ForQuestionAnswering",
}
CASES = [
    *(("bart", "TextClassifier", i) for i in range(3)),
    *(("bart", "QuestionAnswerer", i) for i in range(3)),
    *(("mbart", "TextClassifier", i) for i in (0, 2)),
    ("plbart", "TextClassifier", 1),
    *(("t5", "TextClassifier", i) for i in range(3)),
    *(("t5", "QuestionAnswerer", i) for i in range(3)),
    *(("t5", "TokenClassifier", i) for i in range(3)),
    ("mt5", "TextClassifier", 1),
    *(("led", "QuestionAnswerer", i) for i in (0, 2)),
    *(("big_bird", "QuestionAnswerer", i) for i in range(3)),
]
LABELS = {0: "O", 1: "B-PER", 2: "I-PER"}
# In the short run one config of each kind of head; `test_heads.py` compares others of each.
ONCE = {
    ("bart", "TextClassifier", 1), ("t5", "QuestionAnswerer", 1), ("t5", "TokenClassifier", 0),
    ("mbart", "TextClassifier", 0), ("big_bird", "QuestionAnswerer", 0),
}  # fmt: skip


def parameters():
    return [
        pytest.param(*case, marks=() if case in ONCE else (pytest.mark.thorough,)) for case in CASES
    ]


def made(model_type, task, number, folder):
    """A checkpoint of Transformers without dropout, its inputs and the targets of a step."""
    values = {"id2label": LABELS} if task.endswith("Classifier") else {}
    if "t5" in model_type:
        values["decoder_start_token_id"] = 0
    model = families.make(model_type, number, CLASSES[task], **values)
    model.save_pretrained(folder)
    ids, mask = families.batch(model.config.pad_token_id, rows=2)
    last = mask.sum(axis=1) - 1
    if model_type == "big_bird":
        ids[:, 2] = model.config.sep_token_id
    else:
        ids[np.arange(2), last - [1, 0]] = model.config.eos_token_id
    targets = {
        "TextClassifier": np.array([2, 0]),
        "TokenClassifier": ids % 3,
        "QuestionAnswerer": np.array([[3, 5], [4, 4]]),
    }[task]
    return model, {"token_ids": ids, "padding_mask": mask}, targets


def expected_of(model, task, inputs, targets):
    """Transformers' logits, loss and gradients."""
    import torch

    ids = torch.tensor(inputs["token_ids"]).long()
    given = {"input_ids": ids, "attention_mask": torch.tensor(inputs["padding_mask"]).long()}
    if model.config.model_type == "big_bird":
        given["token_type_ids"] = torch.zeros_like(ids)
    y = torch.tensor(targets).long()
    if task == "QuestionAnswerer":
        found = model(**given)
        logits = torch.stack([found.start_logits, found.end_logits], dim=-1)
        logits = torch.where(given["attention_mask"][..., None] > 0, logits, -1e9)
        loss = torch.nn.functional.cross_entropy(logits, y)
    else:
        logits = model(**given).logits
        flat = logits.reshape(-1, logits.shape[-1])
        kept = given["attention_mask"].reshape(-1) > 0
        flat, y = (flat[kept], y.reshape(-1)[kept]) if task == "TokenClassifier" else (flat, y)
        loss = torch.nn.functional.cross_entropy(flat, y)
    loss.backward()
    return logits.detach().numpy(), loss.item()


@pytest.mark.parametrize(("model_type", "task", "number"), parameters())
def test_logits_and_a_step_are_those_of_transformers(tmp_path, model_type, task, number):
    """Gradients: of a step of plain descent, by what it changes, in all weights."""
    pytest.importorskip("transformers")
    import torch

    model, inputs, targets = made(model_type, task, number, tmp_path / "before")
    ours = getattr(kt, task).from_preset(tmp_path / "before")
    logits, loss = expected_of(model, task, inputs, targets)
    found = outputs_of(ours, inputs)
    real = logits > -1e5
    real &= inputs["padding_mask"][..., None] if found.ndim == 3 else True
    assert np.abs(found - logits)[real].max() <= 1e-4
    ours.compile(optimizer=keras.optimizers.SGD(1.0), jit_compile=False)
    ours.backbone.trainable = True
    for layer in ours._flatten_layers():
        if hasattr(layer, "rate"):
            layer.rate = 0.0
    weights = (inputs["padding_mask"].astype("float32"),) if task == "TokenClassifier" else ()
    step = ours.train_on_batch(inputs, targets, *weights, return_dict=True)
    assert abs(step["loss"] - loss) <= 1e-4
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= parameter.grad
    model.save_pretrained(tmp_path / "after")
    stepped = getattr(kt, task).from_preset(tmp_path / "after")
    for mine, theirs in zip(ours.weights, stepped.weights, strict=True):
        assert mine.path == theirs.path
        np.testing.assert_allclose(to_numpy(mine), to_numpy(theirs), atol=1e-4, err_msg=mine.path)


def backbone(words, **values):
    sizes = {"position": "relative", "max_sequence_length": 40, **values}
    return kt.models.Seq2Seq(config("seq2seq", words, **sizes))


def words_with_end():
    return tokenizer("bpe", add_prefix_space=True, template="end")


@pytest.mark.one_backend
@pytest.mark.parametrize("start_id", [None, 3])
@pytest.mark.parametrize("task", ["TextClassifier", "QuestionAnswerer"])
def test_padding_on_either_side_changes_nothing(task, start_id):
    words = words_with_end()
    options = {"num_classes": 3, "hidden_activation": "tanh"} if task == "TextClassifier" else {}
    model = getattr(kt, task)(backbone(words), words, start_id=start_id, **options)
    model = randomized(model)
    end = words.end_id
    rows = [[7, 8, end, 9, 10], [11, 12], [13, end, 14, end, 15, 16]]
    for row in rows:
        alone = outputs_of(model, {"token_ids": np.array([row], "int32")})
        for before, after in ((3, 0), (0, 3), (2, 1)):
            ids = np.array([[5] * before + row + [5] * after], "int32")
            places = np.arange(ids.shape[1])
            mask = ((places >= before) & (places < before + len(row)))[None]
            found = outputs_of(model, {"token_ids": ids, "padding_mask": mask})
            found = found if found.ndim == 2 else found[:, mask[0]]
            np.testing.assert_allclose(found, alone, atol=1e-5)


@pytest.mark.one_backend
def test_the_last_end_of_a_text_is_read_and_the_decoder_starts_where_told():
    """By the definition: the states of the backbone for ids that are shifted by hand."""
    words = words_with_end()
    model = randomized(kt.TextClassifier(backbone(words), words, num_classes=2, end_ids=[9, 8]))
    ids = np.array([[7, 8, 6, 9, 10, 11], [12, 13, 14, 15, 16, 17]], "int32")
    shifted = {None: ids[:, -1:], 3: np.full((2, 1), 3, "int32")}
    for start, first in shifted.items():
        values = {**model.task_values(), "start_id": start}
        own = kt.TextClassifier(model.backbone, words, **values)
        own.output_dense.set_weights(model.output_dense.get_weights())
        inputs = {"encoder_token_ids": ids, "decoder_token_ids": np.hstack([first, ids[:, :-1]])}
        states = to_numpy(model.backbone(inputs))
        expected = own.output_dense(np.stack([states[0, 3], states[1, 5]]))
        np.testing.assert_allclose(to_numpy(own({"token_ids": ids})), to_numpy(expected), atol=1e-5)


@pytest.mark.one_backend
def test_texts_are_learned_saved_and_asked(tmp_path):
    words = words_with_end()
    classifier = kt.TextClassifier(
        backbone(words), words, labels=["bad", "good"], hidden_activation="tanh", start_id=3
    )
    assert classifier.end_ids == [words.end_id]
    classifier.compile(adversarial_norm=0.1, optimizer=keras.optimizers.Adam(1e-2))
    history = classifier.fit(ENGLISH, [1, 0, 1, 0], epochs=6, seed=1, verbose=0)
    assert history.history["loss"][-1] < 0.5 * history.history["loss"][0]
    of_no_end = kt.TextClassifier(backbone(words), words, num_classes=2, end_ids=[])
    of_no_end.save_to_preset(tmp_path / "no_end")
    assert kt.TextClassifier.from_preset(tmp_path / "no_end").end_ids == []
    pairs = (["who ?", "where ?"], [ENGLISH[2], ENGLISH[3]])
    answerer = randomized(kt.QuestionAnswerer(backbone(words), words, start_id=3))
    answerer.fit(pairs, [(0, 5), None], verbose=0)
    answer = answerer.answer(pairs[0][0], pairs[1][0])
    assert answer.text == pairs[1][0][answer.start : answer.end]
    for number, (model, x) in enumerate([(classifier, ENGLISH), (answerer, pairs)]):
        before = model.predict(x, verbose=0)
        model.save_to_preset(tmp_path / str(number))
        again = kt.Task.from_preset(tmp_path / str(number))
        assert type(again) is type(model) and again.start_id == 3
        assert_same_values(again, model)
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
        for other in (again, loaded):
            np.testing.assert_allclose(other.predict(x, verbose=0), before, atol=1e-5)


@pytest.mark.one_backend
def test_what_has_no_one_text_is_refused(tmp_path):
    words = words_with_end()
    model = kt.TextClassifier(backbone(words), words, num_classes=2)
    ids = np.array([[7, 8, 9]], "int32")
    with pytest.raises(ValueError, match="takes no `pack_ids` with an encoder-decoder.*a row of"):
        model({"token_ids": ids, "pack_ids": np.zeros_like(ids)})
    with pytest.raises(ValueError, match="TextClassifier needs a dict with 'token_ids'"):
        model({"encoder_token_ids": ids, "decoder_token_ids": ids})
    with pytest.raises(ValueError, match="pack_length"):
        model.fit(ENGLISH, [1, 0, 1, 0], pack_length=32)
    with pytest.raises(ValueError, match="start_id"):
        kt.TextClassifier(backbone(words), words, num_classes=2, start_id=10**6)
    with pytest.raises(ValueError, match=r"end_ids\[0\]"):
        kt.TextClassifier(backbone(words), words, num_classes=2, end_ids=["</s>"])
    with pytest.raises(ValueError, match="mask_question.*separator_id"):
        kt.QuestionAnswerer(backbone(words), words, mask_question=True)
    # A row is as long as both sides take.
    values = {"position": "learned", "decoder": {"max_sequence_length": 6}}
    short = kt.TextClassifier(backbone(words, **values), words, num_classes=2)
    assert short.predict(["a man rides a bike . " * 9], verbose=0).shape == (1, 2)
    with pytest.raises(ValueError, match="learned positions for 6 only"):
        short({"token_ids": np.full((1, 7), 5, "int32")})


@pytest.mark.one_backend
def test_an_encoder_alone_is_no_whole_model(tmp_path):
    pytest.importorskip("transformers")
    families.make("t5", 1, "EncoderModel").save_pretrained(tmp_path / "theirs")
    task = kt.TextClassifier.from_preset(tmp_path / "theirs", num_classes=2)
    with pytest.raises(ValueError, match="TextClassifier cannot express kind='encoder'"):
        export_to_huggingface(task, tmp_path / "head", family="t5")
