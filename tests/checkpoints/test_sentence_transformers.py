"""Folders of sentence-transformers: pooling and normalization as their files say, both ways."""

import json
import shutil

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import export_to_huggingface
from keras_transformer.checkpoints.families.bert import BERT
from tests.checkpoints.conftest import small_backbone
from tests.tasks.common import ENGLISH, tokenizer

pytestmark = pytest.mark.one_backend

POOLINGS = {
    "mean": "pooling_mode_mean_tokens",
    "first": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "last": "pooling_mode_lasttoken",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
}


def embedder(**options):
    words = tokenizer(lowercase=True)
    backbone = small_backbone(
        **{k: v for k, v in BERT.constants.items() if k != "kind"},
        vocabulary_size=words.vocabulary_size, segment_vocabulary_size=2, activation="gelu",
        max_sequence_length=40, pooler=True,
    )  # fmt: skip
    return kt.TextEmbedder(backbone, words, **options)


def library():
    return pytest.importorskip("sentence_transformers")


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("normalize", [True, False])
def test_what_we_write_computes_the_same_there(tmp_path, pooling, normalize):
    mine = embedder(pooling=pooling, normalize=normalize, max_length=7)
    export_to_huggingface(mine, tmp_path / "out")
    theirs = library().SentenceTransformer(str(tmp_path / "out"), device="cpu")
    found = mine.predict(ENGLISH, verbose=0)
    expected = theirs.encode(ENGLISH, show_progress_bar=False)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    back = kt.Task.from_preset(tmp_path / "out")
    assert type(back) is kt.TextEmbedder
    assert (back.pooling, back.normalize, back.max_length) == (pooling, normalize, 7)
    np.testing.assert_array_equal(back.predict(ENGLISH, verbose=0), found)


def test_minilm_as_its_own_files_say(minilm_folder):
    """The published folder, not the bundled preset; also texts longer than its 256 tokens."""
    theirs = library().SentenceTransformer(str(minilm_folder), device="cpu")
    mine = kt.TextEmbedder.from_preset(minilm_folder)
    assert (mine.pooling, mine.normalize, mine.max_length) == ("mean", True, 256)
    texts = [*ENGLISH, "An ünusual sentence, 東京 🙂!", "a long story " * 200]
    expected = theirs.encode(texts, show_progress_bar=False)
    np.testing.assert_allclose(mine.predict(texts, verbose=0), expected, atol=5e-6)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", "[", "not valid JSON"),
        ("modules.json", "{}", "must hold a list, not a JSON object"),
        ("modules.json", '[{"type": 3, "path": ""}]', "must have 'type' and 'path'"),
        ("modules.json", '[{"type": "os.system", "path": ""}]', "has a step 'system'"),
        (
            "modules.json",
            '[{"type": "a.Transformer", "path": ""}, {"type": "a.Dense", "path": "2_Dense"}]',
            "has a step 'Dense', which TextEmbedder does not take",
        ),
        (
            "modules.json",
            '[{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "../x"}]',
            "inside its folder",
        ),
        ("modules.json", '[{"type": "a.Transformer", "path": "0_T"}]', "must be the model in the"),
        ("1_Pooling/config.json", "{}", "chooses none of them"),
        (
            "1_Pooling/config.json",
            json.dumps({POOLINGS["mean"]: True, POOLINGS["max"]: True}),
            "chooses mean and max",
        ),
        ("sentence_bert_config.json", '{"max_seq_length": "7"}', "max_seq_length must be a number"),
    ],
)
def test_files_that_are_not_usable_are_named(tmp_path, file, content, message):
    export_to_huggingface(embedder(max_length=7), tmp_path / "out")
    (tmp_path / "out" / file).write_text(content)
    with pytest.raises(ValueError, match=message) as info:
        kt.TextEmbedder.from_preset(tmp_path / "out")
    assert str(tmp_path) in str(info.value)


def test_a_plain_encoder_is_pooled_by_its_mean(tmp_path):
    export_to_huggingface(embedder(), tmp_path / "out")
    (tmp_path / "out" / "modules.json").unlink()
    shutil.rmtree(tmp_path / "out" / "1_Pooling")
    mine = kt.TextEmbedder.from_preset(tmp_path / "out")
    assert (mine.pooling, mine.normalize) == ("mean", True)
