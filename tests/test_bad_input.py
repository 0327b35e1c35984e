"""Errors for user mistakes. Files and presets: tests/checkpoints; BLEU: tests/training.

Every one of these is refused before anything is computed.
"""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.tasks.common import classifier, config, language_model, tokenizer, translator

pytestmark = pytest.mark.one_backend

GOOD = {"token_ids": np.array([[2, 5, 3]])}


@pytest.fixture(scope="module")
def task():
    return classifier(num_classes=2)


@pytest.fixture(scope="module")
def named():
    return classifier(labels=["bad", "good"])


@pytest.fixture(scope="module")
def mt():
    return translator(position="learned", max_sequence_length=20)


@pytest.fixture(scope="module")
def lm():
    return language_model()


def check(message, function, *args, **kwargs):
    with pytest.raises(ValueError, match=message):
        function(*args, **kwargs)


@pytest.mark.parametrize("verb", ["fit", "evaluate", "predict"])
@pytest.mark.parametrize(
    "x, message",
    [
        ([], "`x` is empty: there must be at least one text"),
        (np.array([], "U1"), "`x` is empty"),
        (["a", b"b"], r"`x\[1\]` must be a string.*of type bytes. Did you forget to decode it\?"),
        (np.array([b"a", b"b"]), r"`x\[0\]` must be a string.*type bytes. Did you forget"),
        (["a", "b", None], r"`x\[2\]` must be a string, received None of type NoneType"),
        ([1.5, 2.5], r"`x\[0\]` must be a string, received 1.5 of type float"),
        ([["a"], ["b"]], r"`x\[0\]` must be a string.*type list"),
        ((["a"], [None]), r"`x\[1\]\[0\]` must be a string"),
        ((["a"], ["b"], ["c"]), "a pair of lists of texts, received 3 parts"),
        (("a", "b"), r"`x\[0\]` must be a list of strings, received one string: put it in \[\]"),
        (np.array("a text"), r"`x` must be a list of strings, received one string"),
        (None, "takes strings, a dict of arrays or a dataset, received None of"),
        (5, "takes strings, a dict of arrays or a dataset, received 5 of type int"),
        (b"a text", "takes strings.*type bytes"),
        ((), "takes strings.*type tuple"),
        (np.array([[2, 5, 3]]), "takes strings, a dict of arrays or a dataset.*type ndarray"),
        ({"ids": np.array([[1]])}, r"needs a dict with 'token_ids', received one with \['ids'\]"),
        ({"token_ids": [[1, 2], [3]]}, "`token_ids` must be an array, received a list. Pad"),
        ({"token_ids": np.array([[1.0]])}, "must hold token ids, which are integers.*float64"),
        ({"token_ids": np.array([[1, 9999]])}, "`token_ids` holds ids from 1 to 9999, but the"),
        ({"token_ids": np.array([[-1, 5]])}, "`token_ids` holds ids from -1 to 5.*another model"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_inputs(task, verb, x, message):
    rows = (
        len(x[0] if isinstance(x, tuple) and x else x)
        if hasattr(x, "__len__") and np.ndim(np.asarray(x, dtype=object))
        else 1
    )
    labels = () if verb == "predict" else (np.zeros(rows, int),)
    check(message, getattr(task, verb), x, *labels, verbose=0)


def test_one_string(task):
    check(r"Give a list of strings: predict\(\[text\]\)", task.predict, "a text")
    check("received one string: put it in", task.fit, "a text", [1])
    check(r"received one string: a file is given as data\.read\('", task.fit, __file__, [1])
    check("received one string: put it in", task.evaluate, "a text", [1])


@pytest.mark.parametrize("verb", ["fit", "evaluate"])
def test_labels(task, named, verb):
    texts = ["a film", "dull", "warm"]
    on_strings, on_names = getattr(task, verb), getattr(named, verb)
    check(r"from 0 to 1, but `y\[2\]` is 2. Give `num_classes`", on_strings, texts, [0, 1, 2])
    check(r"from 0 to 1, but `y\[0\]` is -1", on_strings, texts, [-1, 1, 0])
    check(r"one label a text, 3 in all.*shape \(2,\)", on_strings, texts, [0, 1])
    check(r"`y\[2\]` must be the number of a class.*0.5 of", on_strings, texts, [0.0, 1.0, 0.5])
    check(r"`y\[0\]` is 'good', a name, but", on_strings, texts, ["good", "bad", "bad"])
    check(r"`y\[1\]` must be the number.*received None of", on_strings, texts, [0, None, 1])
    check("learns from labels: give `y`, one for each row", on_strings, texts)
    check(r"`y\[0\]` is 'ugly', which is not among the labels", on_names, texts, ["ugly"] * 3)
    check("one number a text, 3 in all", on_strings, texts, [0, 1, 0], sample_weight=[1.0])
    check("`y` must be from 0 to 1, but holds 7", on_strings, GOOD, np.array([7]))
    on_batch = {"fit": task.train_on_batch, "evaluate": task.test_on_batch}[verb]
    check("`y` must be from 0 to 1, but holds 7", on_batch, GOOD, np.array([7]))


def test_options_of_fit(task):
    texts, labels = ["a film", "dull"], [0, 1]
    check("leaves no text", task.fit, texts[:1], labels[:1], validation_split=0.5)
    check("`batch_size` must be an int", task.fit, texts, labels, batch_size=0)
    check("`batch_tokens` must be an int", task.fit, texts, labels, batch_tokens=-5)
    check("`batch_tokens` needs strings", task.fit, GOOD, np.array([1]), batch_tokens=100)
    check(r"`x\[0\]` must be a string", task.fit, texts, labels, validation_data=([1], [0]))
    check("learns from labels", task.fit, texts, labels, validation_data=(texts,))
    data = ({"token_ids": np.array([[9999]])}, np.array([0]))
    check("holds ids from 9999", task.fit, texts, labels, validation_data=data)


def test_sources_and_targets(mt):
    check("needs sources and targets: give `y`", mt.fit, ["a", "b"])
    check(r"To translate sources, call `generate\(sources\)`", mt.predict, ["a", "b"])
    check("Texts do not go into a dict", mt.fit, {"encoder_text": ["a"], "decoder_text": ["b"]})
    check("Received 2 sources and 1 targets", mt.fit, ["a", "b"], ["c"])
    check(r"`y\[1\]` must be a string, received None", mt.fit, ["a", "b"], ["c", None])
    check("`y` must be a list of strings, received 5 of type int", mt.fit, ["a"], 5)
    check("`sample_weight` must be one number a pair, 1 in all", mt.fit, ["a"], ["b"],
          sample_weight=[1.0, 2.0])  # fmt: skip
    inputs = {"encoder_token_ids": np.array([[5]]), "decoder_token_ids": np.array([[1, 9999]])}
    check("`decoder_token_ids` holds ids from 1 to 9999", mt.predict, inputs)
    inputs["decoder_token_ids"] = np.ones((1, 21), int)
    check("`decoder_token_ids` has 21 tokens a row.*positions for 20", mt.evaluate, inputs)
    inputs["decoder_token_ids"] = np.ones((1, 2), int)
    check("`y` must be from 0 to 329, but holds 330", mt.fit, inputs, np.array([[5, 330]]))
    del inputs["encoder_token_ids"]
    check("needs a dict with 'encoder_token_ids' and 'decoder_token_ids'", mt.predict, inputs)


def test_prompts(lm, mt):
    for task in (lm, mt):
        check("`prompts` is empty: there must be at least one prompt", task.generate, [])
        check(r"`prompts\[1\]` must be a string.*bytes. Did you", task.generate, ["a", b"b"])
        check(r"`prompts\[1\]` must be a string.*NoneType", task.generate, ["a", None])
        check("`prompts` must be a string, a list.*NoneType", task.generate, None)
        check("`prompts` must be a string, a list.*bytes", task.generate, b"a man")
        check(r"`prompts\[0\]` must be a string.*float", task.generate, [1.5])
        check(r"`prompts\[1\]` must hold token ids, received \['a'\]", task.generate, [[1], ["a"]])
        check(r"`prompts\[1\]` holds ids from 9999 to 9999", task.generate, [[1], [9999]])
        check(
            r"`prompts\[1\]` is empty: there must be at least one token", task.generate, [[1], []]
        )
        check(
            "Unknown sampler 'top'. Did you mean 'top_.'. Known", task.generate, "a", sampler="top"
        )
        check("Unknown sampler 5", task.generate, "a", sampler=5)
        check(r"Unknown sampler \['beam'\]", task.generate, "a", sampler=["beam"])
        check("Unknown sampler 'top'", task.compile, "sgd", "mse", sampler="top")
        for value in (0, -1, 2.5, "5", True):
            check("`max_new_tokens` must be an integer of at least 1", task.generate, "a", value)
        check("`batch_size` must be an integer of at least 1", task.generate, "a", batch_size=0)
    check(r"`prompts\[0\]` is empty", lm.generate, "")
    check("max_new_tokens=21 needs more positions than the model has, 20", mt.generate, "a", 21)
    check(r"`prompts\[0\]` has \d+ tokens a row.*for 20 only", mt.generate, "a man " * 30)


def test_parts_that_do_not_belong_together():
    words, bpe = tokenizer(lowercase=True), tokenizer("bpe", add_prefix_space=True)
    encoder = kt.models.Encoder(config("encoder", words))
    decoder = kt.models.Decoder(config("decoder", words))
    seq2seq = kt.models.Seq2Seq(config("seq2seq", words))
    check("CausalLM needs a backbone of kind 'decoder', received 'encoder'", kt.CausalLM, encoder)
    check("Seq2SeqLM needs.*'seq2seq', received 'decoder'", kt.Seq2SeqLM, decoder)
    check(
        "TextEmbedder needs.*'encoder' or 'decoder', received 'seq2seq'", kt.TextEmbedder, seq2seq
    )
    check("`end_ids` must be a list of token ids", kt.CausalLM, decoder, words, end_ids=["</s>"])
    check("`end_ids` holds ids from 500", kt.CausalLM, decoder, words, end_ids=[500])
    check("needs a backbone.*received <class 'str'>", kt.CausalLM, "gpt2")
    check(f"The tokenizer has {bpe.vocabulary_size} tokens.*only", kt.CausalLM, decoder, bpe)
    check("`tokenizer` must be a Tokenizer or None, received 'bert'", kt.CausalLM, decoder, "bert")
    for options in ({}, {"num_classes": 0}, {"num_classes": "2"}, {"num_classes": 2.0}):
        check("`num_classes` must be an integer", kt.TextClassifier, encoder, words, **options)
    check("Give it, or `labels`", kt.TextClassifier, encoder, words)
    check(
        "Received 3 labels for num_classes=2", kt.TextClassifier, encoder, words,
        num_classes=2, labels=["a", "b", "c"],
    )  # fmt: skip
    check("`labels` must be distinct", kt.TextClassifier, encoder, words, labels=["a", "a"])
    check("`labels` must be a list of strings", kt.TextClassifier, encoder, words, labels="ab")
    for wrong in (500, "<s>", -1, 1.0):
        check(
            "`start_id` must be an integer from 0 to 119", kt.Seq2SeqLM, seq2seq, words,
            start_id=wrong,
        )  # fmt: skip


def test_without_a_tokenizer():
    task = kt.TextEmbedder(kt.models.Encoder(config("encoder", tokenizer(lowercase=True))))
    check("This TextEmbedder has no tokenizer and takes ids only", task.predict, ["a"])


@pytest.mark.each_backend
def test_bfloat16_weights_that_no_step_would_change():
    config = kt.TransformerConfig(
        kind="encoder",
        vocabulary_size=9,
        hidden_dim=8,
        num_layers=1,
        num_heads=2,
        intermediate_dim=8,
    )
    inputs = {"token_ids": np.ones((2, 3), "int32")}
    pure, mixed = (
        kt.TextClassifier(kt.models.Encoder(config, dtype=dtype), num_classes=2)
        for dtype in ("bfloat16", "mixed_bfloat16")
    )
    with pytest.raises(ValueError, match=r'0\.999.*AdamW\) rounds to 1.*dtype="mixed_bfloat16"'):
        pure.fit(inputs, np.zeros(2, "int32"), verbose=0)
    mixed.fit(inputs, np.zeros(2, "int32"), verbose=0)
    pure.compile(keras.optimizers.SGD(0.1), pure.loss)
    pure.fit(inputs, np.zeros(2, "int32"), verbose=0)
