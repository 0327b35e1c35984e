"""Tasks of inputs other than text, processor options in `fit`, and declarations of tasks."""

import copy
import json
import pathlib
import tempfile

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.heads import TASKS
from tests.tasks import duals, images
from tests.tasks.common import ENGLISH, classifier, config, language_model, tokenizer, translator

TUNES = [[60, 64, 67], [60, 63], [67, 64, 60, 60], [62]]
LABELS = [1, 0, 1, 0]


class Pitches(kt.tasks.Processor):
    """Tunes, lists of pitches."""

    options = ("transpose",)

    def __init__(self, lowest):
        self.lowest = lowest

    @classmethod
    def takes(cls, x):
        return isinstance(x, list)

    def check(self, config):
        if self.lowest < 0:
            raise ValueError("There are no pitches below 0.")

    def save(self, directory):
        pathlib.Path(directory, "processor.json").write_text(json.dumps(self.lowest))

    @classmethod
    def from_files(cls, directory):
        return cls(json.loads(pathlib.Path(directory, "processor.json").read_text()))


@keras.saving.register_keras_serializable(package="tests")
class TuneClassifier(kt.TextClassifier):
    processor_class = Pitches

    def make_dataset(self, x, y=None, sample_weight=None, transpose=0, **options):
        lowest = self._require_processor().lowest
        rows = [[pitch - lowest + transpose for pitch in tune] for tune in x]
        values = {} if y is None else {"y": self.head.class_numbers(y, len(x))}

        def make_batch(arrays, masks):
            inputs = {"token_ids": arrays["rows"], "padding_mask": masks["rows"]}
            return inputs, *(arrays[name] for name in values)

        return self._bucketed({"rows": rows}, make_batch, values=values, **options)


def tune_classifier(processor=None):
    keras.utils.set_random_seed(0)
    values = kt.TransformerConfig(
        kind="encoder", vocabulary_size=12, hidden_dim=8, num_layers=1, num_heads=2,
        intermediate_dim=8,
    )  # fmt: skip
    return TuneClassifier(kt.models.Encoder(values), processor, num_classes=2)


@pytest.mark.one_backend
def test_a_failed_save_names_the_file_and_no_temporary_one(tmp_path, monkeypatch):
    """A processor is packed through the temporary folder, which has no room or is not there."""
    task, file = tune_classifier(Pitches(60)), tmp_path / "m.keras"
    task.save(file)
    content = file.read_bytes()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(OSError, match=r"m\.keras could not.* temporary folder: No such") as info:
        task.save(file)
    assert "nowhere" not in str(info.value) and file.read_bytes() == content
    for use in (task.get_config, lambda: copy.deepcopy(task)):
        with pytest.raises(OSError, match="processor could not be written to the temporary folder"):
            use()


def test_a_task_of_no_text(tmp_path):
    task = tune_classifier(Pitches(60))
    assert task.tokenizer is None
    task.fit(TUNES, LABELS, verbose=0, validation_data=(TUNES, LABELS), transpose=1)
    expected = task.predict(TUNES, verbose=0)
    arrays = {"token_ids": np.array([[0, 4, 7]])}
    np.testing.assert_allclose(task.predict(arrays, verbose=0), expected[:1], atol=1e-5)
    moved = task.evaluate(TUNES, LABELS, verbose=0, transpose=2)
    higher = [[pitch + 2 for pitch in tune] for tune in TUNES]
    np.testing.assert_allclose(moved, task.evaluate(higher, LABELS, verbose=0), rtol=1e-4)

    task.save_to_preset(tmp_path / "preset")
    task.save_to_preset(tmp_path / "preset")  # in place of itself
    task.save(tmp_path / "m.keras")
    for again in (
        TuneClassifier.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "m.keras"),
        copy.deepcopy(task),
    ):
        assert again.processor.lowest == 60
        np.testing.assert_allclose(again.predict(TUNES, verbose=0), expected, atol=1e-5)


@pytest.mark.backend_independent
def test_what_is_no_processor():
    with pytest.raises(ValueError, match="`processor` must be a Pitches or None, received str"):
        tune_classifier("pitches")
    with pytest.raises(ValueError, match="no pitches below 0"):
        tune_classifier(Pitches(-1))
    with pytest.raises(ValueError, match="has no processor"):
        tune_classifier().fit(TUNES, LABELS)


@pytest.mark.one_backend
def test_options_of_the_tokenizer_in_fit():
    long = [text * 3 for text in ENGLISH]
    found = []
    for in_fit in (True, False):
        keras.utils.set_random_seed(1)
        task = classifier(labels=["bad", "good"])
        if in_fit:
            history = task.fit(
                long, LABELS, seed=1, verbose=0, max_length=5, validation_data=(long, LABELS)
            )
            found.append(history.history["val_loss"])
        else:
            data = task.make_dataset(long, LABELS, shuffle=True, seed=1, max_length=5)
            task.fit(data, verbose=0)
        found.append(task.evaluate(long, LABELS, verbose=0, max_length=5))
    np.testing.assert_allclose(found[1], found[2], rtol=1e-5)
    assert found[0] == pytest.approx([found[1][0]], rel=1e-5)


@pytest.mark.one_backend
def test_packed_texts_in_fit():
    losses = []
    for options in ({"pack_length": 64}, {}):
        task = language_model(position="rotary")
        task.optimizer.learning_rate = 0.0
        losses += task.fit(ENGLISH, verbose=0, seed=1, **options).history["loss"]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


@pytest.mark.backend_independent
def test_options_that_there_are_not():
    task = classifier(labels=["bad", "good"])
    with pytest.raises(ValueError, match="'max_lenght'.*max_length, pack_length"):
        task.fit(ENGLISH, LABELS, max_lenght=5)
    arrays = {"token_ids": np.ones((2, 3), "int32")}
    with pytest.raises(ValueError, match="`max_length` needs strings"):
        task.fit(arrays, np.ones(2, "int32"), max_length=5)


def tasks():
    words = tokenizer(lowercase=True)
    encoder = config("encoder", words, segment_vocabulary_size=2, max_sequence_length=64)
    yield classifier(labels=["bad", "good"])
    yield classifier(num_classes=3, hidden_activation="tanh")
    yield kt.TextClassifier(language_model().backbone, num_classes=2)
    for task_class, options in (
        (kt.TokenClassifier, {"num_classes": 3}),
        (kt.QuestionAnswerer, {}),
        (kt.MaskedLM, {}),
        (kt.TextEmbedder, {}),
        (kt.SequenceClassifier, {"num_classes": 3}),
        (kt.SequenceLabeler, {"num_classes": 3}),
    ):
        yield task_class(kt.models.Encoder(encoder), words, **options)
    for options in ({}, {"distilled": True}, {"pooling": "first_and_mean"}):
        yield images.classifier(images.patches(distillation_token=True), **options)
    yield images.classifier(images.convolutions(), pooling="attention", hidden_activation="tanh")
    decoder = {"readout": "project", "batch_norm": True}
    yield kt.ImageSegmenter(kt.models.Encoder(images.patches()), num_classes=3, decoder=decoder)
    yield kt.DepthEstimator(kt.models.Encoder(images.patches()), depth_features=5)
    detecting = images.patches(num_detection_tokens=3, mid_positions=1)
    yield kt.ObjectDetector(kt.models.Encoder(detecting), num_classes=3)
    yield duals.embedder()
    yield kt.ImageEmbedder(kt.models.Encoder(images.patches()))
    yield language_model()
    yield translator()


def test_a_task_declares_its_head():
    for task in tasks():
        shapes = {path: tuple(variable.shape) for path, variable in task.head.items()}
        assert task.head_shapes(task.backbone.config, task.task_values()) == shapes
        assert set(task.task_values()) == set(task.task_options)
        assert TASKS[type(task).__name__] is type(task) and task.alias
        assert task.generates == hasattr(task, "generate")


@pytest.mark.one_backend
def test_an_end_at_the_limit():
    """As BART and Marian have it: the last token of a text that comes to its limit."""
    task = translator()
    end = task.end_ids[0]
    task.end_ids = ()
    free = task.generate([[5, 6], [7]], max_new_tokens=5)
    task.backbone.generation_config = {"forced_eos_token_id": end}
    assert task.generate([[5, 6], [7]], max_new_tokens=5) == [[*row[:4], end] for row in free]
    task.end_ids = (end,)
    (details,) = task.generate([[5, 6]], max_new_tokens=5, return_details=True, sampler="beam")
    assert details.finish_reason == "end" and len(details.token_ids) < 5
