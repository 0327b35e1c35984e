"""XLNet's segments and classes against the Transformers library, whose texts end at the right."""

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints import families
from tests.checkpoints.test_families import saved

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

IDS = np.random.default_rng(0).integers(5, 61, (3, 9))
LENGTHS = (9, 5, 2)
MASK = np.arange(9) < np.array(LENGTHS)[:, None]
SEGMENTS = np.where(np.arange(9) < np.array([[4], [2], [1]]), 0, 1)
SEGMENTS[np.arange(3), np.array(LENGTHS) - 1] = 2  # the token of the class


def at_the_right(rows):
    """The same texts with their padding at the left."""
    return torch.tensor(
        np.stack([np.roll(row, 9 - n) for row, n in zip(rows, LENGTHS, strict=True)])
    ).long()


def theirs(with_segments=True):
    segments = {"token_type_ids": at_the_right(SEGMENTS)} if with_segments else {}
    return {"input_ids": at_the_right(IDS), "attention_mask": at_the_right(MASK), **segments}


def ours(with_segments=True):
    segments = {"segment_ids": SEGMENTS} if with_segments else {}
    return {"token_ids": IDS, "padding_mask": MASK, **segments}


@pytest.mark.parametrize("with_segments", [True, False])
def test_classes_of_pairs(tmp_path, with_segments):
    reference = families.make("xlnet", 0, "ForSequenceClassification", num_labels=3)
    classifier = kt.TextClassifier.from_preset(saved(reference, tmp_path / "theirs"))
    with torch.no_grad():
        expected = reference(**theirs(with_segments)).logits.numpy()
    found = classifier.predict(ours(with_segments), verbose=0)
    assert np.abs(found - expected).max() <= 2e-5
    kt.export_to_huggingface(classifier, tmp_path / "ours")
    again, info = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        difference = again.eval()(**theirs()).logits - reference(**theirs()).logits
    assert difference.abs().max() <= 1e-6


def test_states_of_pairs_and_gradients_of_segments(tmp_path):
    reference = families.make("xlnet", 1, "Model")
    backbone = kt.Backbone.from_preset(saved(reference, tmp_path))
    with torch.no_grad():
        expected = reference(**theirs())[0].numpy()
    states = to_numpy(backbone(ours()))
    for row, length in enumerate(LENGTHS):
        assert np.abs(states[row, :length] - expected[row, 9 - length :]).max() <= 2e-5
        alone = {name: value[row : row + 1, :length] for name, value in ours().items()}
        assert np.abs(to_numpy(backbone(alone)) - states[row : row + 1, :length]).max() <= 2e-5
    first = to_numpy(backbone(ours(), first_only=True))
    assert np.abs(first[:, 0] - states[:, 0]).max() <= 2e-5
    assert np.abs(to_numpy(backbone(ours(False))) - states)[MASK].max() > 0.01


@pytest.mark.one_backend
def test_training_and_files(tmp_path):
    reference = families.make("xlnet", 0, "Model")
    backbone = kt.Backbone.from_preset(saved(reference, tmp_path / "theirs"))
    classifier = kt.TextClassifier(backbone, num_classes=2, pooling="last")
    before = classifier.predict(ours(), verbose=0)
    classifier.save_to_preset(tmp_path / "preset")
    again = kt.TextClassifier.from_preset(tmp_path / "preset")
    assert np.abs(again.predict(ours(), verbose=0) - before).max() <= 1e-6
    paths = ("segments", "content_bias", "position_bias", "segment_bias", "position_key/kernel")
    trained = {v.path: v for v in backbone.trainable_variables if v.path.endswith(paths)}
    old = {path: to_numpy(v) for path, v in trained.items()}
    classifier.fit(ours(), np.array([0, 1, 0]), epochs=2, verbose=0)
    assert len(trained) == 5 * backbone.config.num_layers
    assert all(np.any(to_numpy(v) != old[path]) for path, v in trained.items())


@pytest.mark.backend_independent
def test_what_is_refused():
    from keras_transformer import config as parts

    attention = parts.Attention(num_heads=2, score_bias=parts.RelativeSinusoids())
    block = parts.Block(mixer=attention, feed_forward=parts.Dense(dim=8))
    tokens = parts.Tokens(vocabulary_size=9)
    values = {"input": tokens, "hidden_dim": 8, "num_layers": 1, "block": block}
    with pytest.raises(ValueError, match="need kind='encoder'"):
        kt.TransformerConfig(decoder=parts.Side(**values))
    plain = block.replace(mixer=attention.replace(score_bias=None))
    compared = tokens.replace(segments=3, segment_use="compared")
    with pytest.raises(ValueError, match="segment_use='compared' needs"):
        parts.Side(**{**values, "block": plain, "input": compared})
    with pytest.raises(ValueError, match="as many heads of keys"):
        attention.replace(num_key_value_heads=1)
