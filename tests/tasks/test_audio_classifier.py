"""Classification of sound: the verbs on what users have, saving, wrong input."""

import io

import keras
import numpy as np
import pytest
import soundfile

import keras_transformer as kt
from tests.tasks import audio, images
from tests.tasks.audio import LABELS, RATE, classifier, recordings

KINDS = {
    "frames": {},
    "attention": {"pooling": "attention", "output_norm": True},
    "hidden": {"hidden_activation": "tanh"},
    "spectrogram": {
        "backbone_config": audio.spectrogram(),
        "pooling": "tokens",
        "output_norm": True,
    },
}
each_kind = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)


@each_kind
def test_learns_predicts_and_is_saved(options, tmp_path):
    task = classifier(**options)
    task.compile(keras.optimizers.Adam(1e-2))
    x, y = recordings()
    task.fit(x, y, epochs=8, batch_size=8, seed=1, verbose=0)
    assert task.evaluate(x, y, verbose=0, return_dict=True)["accuracy"] == 1
    logits = task.predict(x, batch_size=5, verbose=0)
    assert logits.shape == (16, 2)
    named = task.classify(x)
    assert [label for label, _ in named] == y and all(0.5 <= p <= 1 for _, p in named)
    assert task.classify((x[3], RATE))[0] == y[3]

    task.save_to_preset(tmp_path / "preset")
    task.save(tmp_path / "model.keras")
    for again in (
        kt.Task.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert again.task_values() == task.task_values()
        assert again.processor.values() == task.processor.values()
        assert np.abs(again.predict(x, verbose=0) - logits).max() <= 1e-5


def test_adapters_mixed_precision_and_augmentation():
    x, y = recordings()
    task = classifier(dtype="mixed_bfloat16")
    task.compile(keras.optimizers.Adam(1e-3), augmentation=[keras.layers.GaussianNoise(0.1)])
    task.enable_lora(rank=2)
    before = [np.array(v) for v in task.backbone.non_trainable_weights]
    task.fit(x, y, verbose=0)
    for old, new in zip(before, task.backbone.non_trainable_weights, strict=True):
        assert (old == np.array(new)).all()
    assert np.isfinite(task.predict(x, verbose=0)).all()


@pytest.mark.parametrize("pooling", ["mean", "attention"])
def test_waveforms_of_any_length(pooling, tmp_path):
    """Each gives what it gives alone, with the linear layer of wav2vec 2.0 too."""
    backbone = kt.models.Encoder(audio.waveform(norm="layer"))
    processor = kt.AudioProcessor("waveform", sampling_rate=RATE)
    options = {"labels": LABELS, "pooling": pooling, "projection_dim": 5}
    task = kt.AudioClassifier(backbone, processor, **options)
    x, y = recordings(5)
    task.fit(x, y, epochs=1, verbose=0)
    logits = task.predict(x, batch_size=3, verbose=0)
    for found, row in zip(logits, x, strict=True):
        (samples,) = processor.features_of([row], len(row))  # without padding, and so no mask
        (alone,) = task.predict({"samples": samples[None]}, verbose=0)
        assert np.abs(found - alone).max() <= 1e-5
    task.save_to_preset(tmp_path)
    again = kt.Task.from_preset(tmp_path)
    assert again.task_values() == task.task_values() and again.projection_dim == 5
    assert np.abs(again.predict(x, verbose=0) - logits).max() <= 1e-5


def test_a_row_is_what_it_is_alone():
    task = classifier()
    x, _ = recordings(5)
    alone = np.concatenate([task.predict([each], verbose=0) for each in x])
    assert np.abs(task.predict(x, batch_size=3, verbose=0) - alone).max() <= 1e-5


@pytest.mark.one_backend
def test_what_a_user_has(tmp_path):
    """Paths, bytes, arrays with their rate, a column of a data frame, rows of `datasets`."""
    pandas = pytest.importorskip("pandas")
    task = classifier()
    x, y = recordings(4)
    contents = []
    for i, samples in enumerate(x):
        soundfile.write(tmp_path / f"{i}.wav", samples, RATE, subtype="FLOAT")
        file = io.BytesIO()
        soundfile.write(file, samples, RATE, format="WAV", subtype="FLOAT")
        contents.append(file.getvalue())
    expected = task.predict(x, verbose=0)
    given = [
        contents,
        [str(tmp_path / f"{i}.wav") for i in range(4)],
        [(samples, RATE) for samples in x],
        pandas.DataFrame({"audio": [{"bytes": each} for each in contents]})["audio"],
        [{"array": samples, "sampling_rate": RATE} for samples in x],
    ]
    for each in given:
        assert np.abs(task.predict(each, verbose=0) - expected).max() <= 1e-6
    task.fit(given[1], y, validation_data=(x, y), verbose=0)
    assert task.classify(tmp_path / "0.wav")[0] in LABELS
    stereo = np.stack([x[0], x[0]], axis=1)
    assert task.classify(stereo) == task.classify(x[0])


@pytest.mark.one_backend
def test_wrong_input():
    task = classifier()
    x, y = recordings(4)
    with pytest.raises(ValueError, match=r"`x\[2\]` must be a recording"):
        task.predict([*x[:2], 7], verbose=0)
    with pytest.raises(ValueError, match="`y` must be one label a recording, 4 in all"):
        task.fit(x, y[:2], verbose=0)
    with pytest.raises(ValueError, match="needs a backbone that reads recordings: give the config"):
        kt.AudioClassifier(_text(), num_classes=2)
    with pytest.raises(ValueError, match="reads frames of 12 bands, but the processor has 9"):
        kt.AudioClassifier(
            kt.models.Encoder(audio.frames()), audio.processor(num_bins=9), num_classes=2
        )
    with pytest.raises(ValueError, match="reads frames, but the processor has .*'waveform'"):
        kt.AudioClassifier(
            kt.models.Encoder(audio.frames()), audio.processor(features="waveform"), num_classes=2
        )
    with pytest.raises(ValueError, match="whose config has a `stem` for audio"):
        kt.AudioClassifier(kt.models.Encoder(images.patches()), audio.processor(), num_classes=2)
    with pytest.raises(ValueError, match="`projection_dim` projects one state.* a hidden layer"):
        classifier(hidden_activation="tanh", projection_dim=5)
    with pytest.raises(ValueError, match="`output_norm` normalizes one state"):
        classifier(audio.spectrogram(), pooling="first_and_mean", output_norm=True)
    message = "has no audio processor and takes arrays only. Give recordings to a task made with"
    with pytest.raises(ValueError, match=message):
        kt.AudioClassifier(kt.models.Encoder(audio.frames()), num_classes=2).predict(x)


def _text():
    return kt.models.Encoder(
        kt.TransformerConfig(
            kind="encoder", vocabulary_size=9, hidden_dim=4, num_layers=1, num_heads=1,
            intermediate_dim=4,
        )
    )  # fmt: skip
