"""Folders of sentence-transformers: pooling and normalization as their files say, both ways."""

import json
import shutil

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import export_to_huggingface
from keras_transformer.checkpoints.families.encoders.bert import BERT
from tests.checkpoints.conftest import assert_same_values, small_backbone
from tests.tasks.common import ENGLISH, tokenizer

pytestmark = pytest.mark.one_backend

POOLINGS = {
    "mean": "pooling_mode_mean_tokens",
    "first": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "last": "pooling_mode_lasttoken",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
    "weighted_mean": "pooling_mode_weightedmean_tokens",
}
DENSE = [{"units": 24, "activation": "tanh"}, {"units": 6, "use_bias": False}]


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


def test_linear_layers_go_both_ways(tmp_path):
    """Two of them, as EmbeddingGemma has them; and the folder is no worse for other tasks."""
    mine = embedder(dense=DENSE)
    for number, variable in enumerate(mine.head.values()):
        shape = variable.shape
        variable.assign(np.random.default_rng(number).normal(size=shape).astype("float32"))
    export_to_huggingface(mine, tmp_path / "out")
    theirs = library().SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert [type(step).__name__ for step in theirs][2:] == ["Dense", "Dense", "Normalize"]
    found = mine.predict(ENGLISH, verbose=0)
    assert found.shape == (len(ENGLISH), 6)
    expected = theirs.encode(ENGLISH, show_progress_bar=False)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    theirs.save(str(tmp_path / "theirs"))
    for folder in ("out", "theirs"):
        back = kt.Task.from_preset(tmp_path / folder)
        assert back.dense == mine.dense
        np.testing.assert_allclose(back.predict(ENGLISH, verbose=0), found, atol=1e-6)
    mine.save_to_preset(tmp_path / "own")
    own = kt.TextEmbedder.from_preset(tmp_path / "own")
    np.testing.assert_array_equal(own.predict(ENGLISH, verbose=0), found)
    assert_same_values(kt.Backbone.from_preset(tmp_path / "out"), mine.backbone)
    with pytest.raises(ValueError, match="trained as TextEmbedder with dense=.*'units': 6"):
        kt.TextEmbedder.from_preset(tmp_path / "out", dense=[{"units": 5}])


@pytest.mark.parametrize("pooling", ["mean", "first", "weighted_mean"])
@pytest.mark.parametrize("include_prompt", [True, False])
def test_prompts_go_both_ways(tmp_path, pooling, include_prompt):
    prompts = {"query": "a man : ", "document": "two dogs "}
    mine = embedder(
        prompts=prompts, default_prompt_name="document", include_prompt=include_prompt,
        pooling=pooling,
    )  # fmt: skip
    export_to_huggingface(mine, tmp_path / "out")
    theirs = library().SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert theirs.default_prompt_name == "document"
    back = kt.Task.from_preset(tmp_path / "out")
    assert (back.prompts, back.include_prompt) == (prompts, include_prompt)
    found = mine.predict(ENGLISH, verbose=0)  # with the prompt by default
    expected = theirs.encode(ENGLISH, show_progress_bar=False)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    pairs = back.predict((ENGLISH, ENGLISH[::-1]), verbose=0)
    np.testing.assert_allclose(pairs[:, 1], expected[::-1], atol=2e-5)
    query = back.encode(ENGLISH[0], prompt_name="query")
    np.testing.assert_allclose(query, theirs.encode_query(ENGLISH[0]), atol=2e-5)
    with pytest.raises(ValueError, match="no prompt 'quary', it has 'query', 'document'"):
        back.encode(ENGLISH, prompt_name="quary")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", "[", "not valid JSON"),
        ("modules.json", "{}", "must hold a list, not a JSON object"),
        ("modules.json", '[{"type": 3, "path": ""}]', "must have 'type' and 'path'"),
        ("modules.json", '[{"type": "os.system", "path": ""}]', "has a step 'system'"),
        (
            "modules.json",
            '[{"type": "a.Transformer", "path": ""}, {"type": "a.CNN", "path": "2_CNN"}]',
            "has a step 'CNN', which TextEmbedder does not support",
        ),
        (
            "modules.json",
            '[{"type": "a.Transformer", "path": ""}, {"type": "a.Dense", "path": "dense"}]',
            "must have a name such as '2_Dense', received 'dense'",
        ),
        ("2_Dense/config.json", '{"activation_function": "os.system"}', "'os.system' is not supp"),
        ("2_Dense/config.json", '{"out_features": "6"}', "out_features must be a number"),
        ("2_Dense/config.json", '{"use_residual": true}', "use_residual=True is not supported"),
        ("2_Dense/config.json", '{"out_features": 6}', r"linear.weight has shape \(5, 8\)"),
        ("1_Pooling/config.json", '{"pooling_mode": "cls", "include_prompt": 1}', "true or false"),
        ("config_sentence_transformers.json", '{"prompts": {"a": 1}}', "prompt 'a' must be a str"),
        (
            "config_sentence_transformers.json",
            '{"default_prompt_name": "a"}',
            "not one of its prompt",
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
    export_to_huggingface(embedder(max_length=7, dense=[{"units": 5}]), tmp_path / "out")
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
