"""SavedModels: texts in, labels, vectors or text out, where this package is not imported."""

import json
import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.exporting.kinds import made
from tests.tasks.common import ENGLISH, classifier, config, language_model, tokenizer, translator
from tests.thorough import THOROUGH

pytestmark = pytest.mark.one_backend("tensorflow")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")  # which has the operations of tokenizers

TEXTS = [
    "A man rides a bike .",
    "dogs",
    "on",
    "two warm men, from start to end , on the grass . " * 9,
]
PROMPTS = ["a man", "two dogs run on the", "never"]
# Another process, which has TensorFlow alone.
PROGRAM = """
import json, sys
import tensorflow as tf
import tensorflow_text
asked = json.load(sys.stdin)
said = {}
for folder, texts in asked.items():
    model = tf.saved_model.load(folder)  # whose functions need it
    found = model.serve(tf.constant(texts))
    said[folder] = {name: x.numpy().tolist() for name, x in found.items()}
assert not any(name.split(".")[0] in ("keras_transformer", "tokenizers") for name in sys.modules)
decode = lambda x: x.decode() if isinstance(x, bytes) else x
print("\\n" + json.dumps(said, default=decode))
"""


def served(folder, texts):
    """Return the outputs of a folder for texts, in this process."""
    model = tf.saved_model.load(str(folder))  # whose functions need it
    found = model.serve(tf.constant(texts))
    return {name: x.numpy() for name, x in found.items()}


def embedder():
    words = tokenizer(lowercase=True)
    backbone = kt.models.Encoder(config("encoder", words, max_sequence_length=64))
    prompts = {"query": "a man "}
    return kt.TextEmbedder(backbone, words, prompts=prompts, default_prompt_name="query")


def test_a_process_without_this_package(tmp_path):
    """Labels, vectors and text, of any number of texts of any length."""
    tasks = {
        "labels": classifier(labels=["bad", "good", "so so"]),
        "vectors": embedder(),
        "prompts": language_model(position="rotary"),
    }
    if THOROUGH:  # half of the time; test_kinds.py has a translator too
        tasks["translations"] = translator()
    asked = {}
    for name, task in tasks.items():
        kt.export(task, tmp_path / name, format="saved_model", **options(task))
        asked[str(tmp_path / name)] = PROMPTS if name == "prompts" else TEXTS
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(asked), capture_output=True, text=True,
        cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    model = tf.saved_model.load(str(tmp_path / "labels"))
    others = TEXTS[::-1]
    pairs = model.signatures["pairs"](texts=tf.constant(TEXTS), others=tf.constant(others))
    expected = tasks["labels"].classify((TEXTS, others), top_k=3)
    shares = [[share for _, share in row] for row in expected]
    np.testing.assert_allclose(pairs["probabilities"], shares, atol=1e-5)
    found = {name.rpartition("/")[2]: x for name, x in said.items()}
    expected = tasks["labels"].classify(TEXTS, top_k=3)
    assert found["labels"]["labels"] == [[name for name, _ in row] for row in expected]
    shares = [[share for _, share in row] for row in expected]
    np.testing.assert_allclose(found["labels"]["probabilities"], shares, atol=1e-5)
    vectors = tasks["vectors"].encode(TEXTS)
    np.testing.assert_allclose(found["vectors"]["sentence_embedding"], vectors, atol=1e-5)
    for name in tasks.keys() & {"prompts", "translations"}:
        texts = asked[str(tmp_path / name)]
        ours = tasks[name].generate(texts, max_new_tokens=12, sampler="greedy")
        assert len({*ours}) > 1 and found[name]["text"] == ours


def options(task):
    return {"max_new_tokens": 12} if task.generates else {}


@pytest.mark.thorough
def test_real_sentences_in_german(tmp_path):
    task = kt.Seq2SeqLM.from_preset("transformer_tiny_en_de")
    task.export(tmp_path / "mt", max_new_tokens=30)  # Keras's name of the same
    sentences = ["Two dogs.", "A group of people stand in front of an old building and wait."]
    ours = task.generate(sentences, max_new_tokens=30, sampler="greedy")
    assert [text.decode() for text in served(tmp_path / "mt", sentences)["text"]] == ours


def test_several_labels_and_numbers(tmp_path):
    task = classifier(labels=["film", "dog", "man"], multi_label=True)
    kt.export(task, tmp_path / "several", format="saved_model")
    found, ours = served(tmp_path / "several", ENGLISH), task.classify(ENGLISH, top_k=3)
    names = [[name.decode() for name in row] for row in found["labels"]]
    assert names == [[name for name, _ in row] for row in ours]
    shares = [[share for _, share in row] for row in ours]
    np.testing.assert_allclose(found["probabilities"], shares, atol=1e-5)
    if not THOROUGH:  # the second export takes as long
        return
    task = classifier(num_classes=1)
    kt.export(task, tmp_path / "number", format="saved_model")
    found = served(tmp_path / "number", ENGLISH)["logits"]
    np.testing.assert_allclose(found, task.predict(ENGLISH, verbose=0), atol=1e-5)


def test_a_text_that_is_too_long_or_empty(tmp_path):
    task = language_model(position="learned", max_sequence_length=16)
    kt.export(task, tmp_path / "lm", format="saved_model", max_new_tokens=12)
    with pytest.raises(tf.errors.InvalidArgumentError, match="takes 16 tokens, new ones included"):
        served(tmp_path / "lm", ["a man rides a bike and two dogs run on the grass " * 3])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="no tokens: there is nothing to continue"
    ):
        served(tmp_path / "lm", ["a man", ""])
    # Where there is room for fewer than it may write it writes fewer.
    prompt = "a man rides a bike ."
    room = 16 - len(task.tokenizer.encode(prompt)) + 1
    ours = task.generate(prompt, max_new_tokens=room, sampler="greedy")
    assert 0 < room < 12 and served(tmp_path / "lm", [prompt])["text"][0].decode() == ours


def test_ids_where_a_graph_cannot_read_texts(tmp_path):
    """The converting process reports it, even if it is a separate one."""
    symbols = kt.Tokenizer.of_symbols("ACGT")
    backbone = kt.models.Decoder(config("decoder", symbols, position="rotary"))
    lm = kt.CausalLM(backbone, symbols)
    with pytest.warns(UserWarning, match="takes arrays of ids and not texts. .* does not support"):
        kt.export(lm, tmp_path / "dna", format="saved_model", max_new_tokens=5)
    model = tf.saved_model.load(str(tmp_path / "dna"))
    found = model.serve(
        tf.constant([[0, 5, 6, 7], [8, 5, 5, 5]], "int64"),
        tf.constant([[0, 1, 1, 1], [1, 1, 1, 1]], "int64"),
    )
    ours = lm.generate([[5, 6, 7], [8, 5, 5, 5]], max_new_tokens=5, sampler="greedy")
    rows = zip(found["output_ids"].numpy(), found["output_mask"].numpy(), strict=True)
    assert [row[mask == 1].tolist() for row, mask in rows] == [list(row) for row in ours]


def test_rules_of_a_checkpoint_are_told_of(tmp_path):
    task = language_model()
    task.backbone.generation_config = {"no_repeat_ngram_size": 2}
    with pytest.warns(UserWarning, match="ignores the rules of the checkpoint"):
        kt.export(task, tmp_path / "lm", format="saved_model")


def test_labels_of_an_image(tmp_path):
    task = made("image")
    with warnings.catch_warnings(action="error"):
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)  # Keras's
        kt.export(task, tmp_path / "image", format="saved_model")
    images = np.random.default_rng(0).random((3, 12, 16, 3), "float32")
    found = served(tmp_path / "image", images)
    ours = keras.ops.convert_to_numpy(task({"images": images}))
    assert found["labels"].shape == (3, 2)
    np.testing.assert_array_equal(found["labels"][:, 0] == b"bright", ours.argmax(axis=1) == 1)


def test_what_export_of_keras_is_given(tmp_path):
    with pytest.raises(ValueError, match="`input_signature` must be None"):
        classifier(num_classes=2).export(tmp_path / "out", input_signature=[])
    with pytest.raises(ValueError, match="`max_new_tokens` must be"):
        language_model().export(tmp_path / "out", "tf_saved_model", max_new_tokens=0)
    assert not (tmp_path / "out").exists()
