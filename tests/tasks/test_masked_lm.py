"""MaskedLM: the logits and the fillings of Transformers, and what `fit` hides."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.tasks.common import ENGLISH, config, randomized
from tests.tasks.common import tokenizer as common_tokenizer
from tests.tasks.published import (
    assign_head,
    backbone_of,
    fast_tokenizer,
    largest_difference,
    logits_of,
    reference,
    tokenizer,
)

pytestmark = pytest.mark.one_backend

MASKED = [
    "Angela Merkel met [MASK] Macron .",
    "wind and [MASK] , winding",
    "The café José opened in [MASK] Paulo was playing (unbelievably) good jazz .",
]

IDS = np.array([[2, 9, 3, 7]])


@pytest.fixture(scope="module")
def pair():
    """A model of Transformers and ours with its weights."""
    words = tokenizer()
    model = reference("BertForMaskedLM", words)
    task = kt.MaskedLM(backbone_of(model), words)
    predictions = model.cls.predictions
    assign_head(
        task,
        transform=predictions.transform.dense,
        transform_norm=predictions.transform.LayerNorm,
        output_bias=predictions.decoder,
    )
    return task, model


def small(**options):
    words = tokenizer()
    return randomized(kt.MaskedLM(kt.models.Encoder(config("encoder", words)), words, **options))


@pytest.mark.each_backend
def test_logits_of_bert(pair, tmp_path):
    task, model = pair
    outputs, mask = logits_of(model, fast_tokenizer(tmp_path), MASKED)
    found = task.predict(MASKED, batch_size=2, verbose=0)
    assert largest_difference(found, outputs.logits.numpy(), mask) <= 1e-4
    assert set(task.head) == {
        "transform/kernel", "transform/bias", "transform_norm/gamma", "transform_norm/beta",
        "output_bias/bias",
    }  # fmt: skip
    alone = task.predict(MASKED[1:2], verbose=0)[0]
    length = mask[1].sum()
    np.testing.assert_allclose(found[1, :length], alone[:length], atol=1e-4)


def test_other_widths_and_activations():
    """The transform leads to the embeddings' width, as ALBERT's and ELECTRA's do."""
    words = tokenizer()
    backbone = kt.models.Encoder(config("encoder", words, embedding_dim=6))
    task = randomized(kt.MaskedLM(backbone, words, hidden_activation="tanh"))
    assert task.head["transform/kernel"].shape == (16, 6)
    assert task.task_values() == {
        "block_norm": False,
        "hidden_activation": "tanh",
        "hidden_bias": True,
        "mask_rate": 0.15,
        "normalization_epsilon": None,
        "output_dim": None,
        "projection": "transformed",
    }
    states = np.asarray(keras.ops.convert_to_numpy(backbone({"token_ids": np.array([[2, 9, 3]])})))
    head = {name: np.asarray(keras.ops.convert_to_numpy(v)) for name, v in task.head.items()}
    hidden = np.tanh(states @ head["transform/kernel"] + head["transform/bias"])
    hidden = (hidden - hidden.mean(-1, keepdims=True)) / np.sqrt(
        hidden.var(-1, keepdims=True) + backbone.config.normalization_epsilon
    )
    hidden = hidden * head["transform_norm/gamma"] + head["transform_norm/beta"]
    table = np.asarray(keras.ops.convert_to_numpy(backbone.token_embedding.embeddings))
    expected = hidden @ table.T + head["output_bias/bias"]
    found = task.predict({"token_ids": np.array([[2, 9, 3]])}, verbose=0)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.each_backend
def test_a_projection_without_a_transform(tmp_path):
    """The logits are the backbone's, for `predict`, `fit` and in a preset."""
    words = tokenizer()
    values = {"tie_embeddings": False, "output_bias": True}
    backbone = kt.models.Encoder(config("encoder", words, **values))
    task = randomized(kt.MaskedLM(backbone, words, projection="linear"))
    assert not task.head and task.head_shapes(backbone.config, {"projection": "linear"}) == {}
    expected = keras.ops.convert_to_numpy(backbone.logits(backbone({"token_ids": IDS})))
    np.testing.assert_allclose(task.predict({"token_ids": IDS}, verbose=0), expected, atol=1e-5)
    task.save_to_preset(tmp_path)
    again = kt.MaskedLM.from_preset(tmp_path)
    assert again.projection == "linear"
    np.testing.assert_allclose(again.predict({"token_ids": IDS}, verbose=0), expected, atol=1e-5)
    task.compile(keras.optimizers.Adam(1e-2), task.loss)
    history = task.fit(MASKED, epochs=4, shuffle=False, verbose=0).history["loss"]
    assert history[-1] < history[0]


@pytest.mark.each_backend
def test_an_output_matrix_of_the_head(tmp_path):
    """RemBERT: `fit` and `predict` do not read the token embedding behind the blocks."""
    words = tokenizer()
    backbone = kt.models.Encoder(config("encoder", words, embedding_dim=6))
    options = {"output_dim": 10, "hidden_activation": "tanh"}
    task = randomized(kt.MaskedLM(backbone, words, **options))
    head = {name: keras.ops.convert_to_numpy(weight) for name, weight in task.head.items()}
    shapes = {name: weight.shape for name, weight in head.items()}
    assert shapes == task.head_shapes(backbone.config, options)
    assert shapes["transform/kernel"] == (16, 10)
    assert shapes["output/kernel"] == (10, words.vocabulary_size)
    states = keras.ops.convert_to_numpy(backbone({"token_ids": IDS}))
    hidden = np.tanh(states @ head["transform/kernel"] + head["transform/bias"])
    hidden = (hidden - hidden.mean(-1, keepdims=True)) / np.sqrt(
        hidden.var(-1, keepdims=True) + backbone.config.normalization_epsilon
    )
    hidden = hidden * head["transform_norm/gamma"] + head["transform_norm/beta"]
    expected = hidden @ head["output/kernel"] + head["output_bias/bias"]
    np.testing.assert_allclose(task.predict({"token_ids": IDS}, verbose=0), expected, atol=1e-4)
    task.save_to_preset(tmp_path)
    again = kt.MaskedLM.from_preset(tmp_path)
    np.testing.assert_allclose(again.predict({"token_ids": IDS}, verbose=0), expected, atol=1e-4)
    # The loss of the states is that of the logits.
    losses = []
    for metrics in (None, ["accuracy"]):
        task.compile(keras.optimizers.SGD(0.0), task.loss, metrics=metrics)
        losses.append(task.evaluate(MASKED, verbose=0, return_dict=True)["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    before = {path: keras.ops.convert_to_numpy(weight) for path, weight in task.head.items()}
    task.compile(keras.optimizers.Adam(1e-2), task.loss)
    task.fit(MASKED, verbose=0)
    for path, weight in task.head.items():
        assert np.abs(keras.ops.convert_to_numpy(weight) - before[path]).max() > 1e-3, path


def test_a_projection_has_no_options_of_a_transform():
    words = tokenizer()
    backbone = kt.models.Encoder(config("encoder", words))
    for option in ({"hidden_activation": "tanh"}, {"block_norm": True}, {"output_dim": 4}):
        with pytest.raises(ValueError, match="are for projection='transformed'"):
            kt.MaskedLM(backbone, projection="linear", **option)
    with pytest.raises(ValueError, match="`projection` must be one of 'transformed', 'linear'"):
        kt.MaskedLM(backbone, projection="dense")


def test_fillings_of_bert(pair, tmp_path):
    """Tokens, numbers and scores of Transformers' fill-mask."""
    transformers = pytest.importorskip("transformers")
    task, model = pair
    fast = fast_tokenizer(tmp_path)
    fill = transformers.pipeline("fill-mask", model=model, tokenizer=fast, device="cpu")
    found = task.fill_mask(MASKED, top_k=3, batch_size=2)
    for text, fillings in zip(MASKED, found, strict=True):
        expected = fill(text, top_k=3)
        assert [f.token_id for f in fillings] == [e["token"] for e in expected]
        assert [f.token for f in fillings] == [e["token_str"] for e in expected]
        for filling, other in zip(fillings, expected, strict=True):
            assert filling.score == pytest.approx(other["score"], abs=1e-5)
            if filling.token_id not in task.tokenizer.special_ids:  # which Transformers leaves out
                assert fast(filling.text)["input_ids"] == fast(other["sequence"])["input_ids"]
    alone = task.fill_mask(MASKED[0], top_k=3)
    assert [(f.token_id, f.text) for f in alone] == [(f.token_id, f.text) for f in found[0]]
    assert [f.score for f in alone] == pytest.approx([f.score for f in found[0]], abs=1e-6)
    several = "Angela [MASK] met [MASK] ."
    two = task.fill_mask([several], top_k=2)[0]
    assert [[f.token_id for f in one] for one in two] == [
        [e["token"] for e in one] for one in fill(several, top_k=2)
    ]
    assert two[1][0].text.startswith("Angela [MASK] met ")
    assert len(task.fill_mask(MASKED[1], top_k=10**6)) == task.tokenizer.vocabulary_size


def test_the_text_of_a_filling(pair):
    task, _ = pair
    encode, ids = task.tokenizer.encode_batch_with_offsets, task.tokenizer.get_vocabulary()
    text = "The  Café [MASK], Wind [MASK]!"
    (encoding,) = encode([text])
    first, second = np.flatnonzero(np.equal(encoding.ids, task.tokenizer.mask_id))

    def texts(place, *tokens):
        chosen = [ids[token] for token in tokens]
        return [f.text for f in task._fillings(text, encoding, place, chosen, [0.5] * len(chosen))]

    assert texts(first, "paris", "##ing", "[SEP]") == [
        "The  Café paris, Wind [MASK]!",
        "The  Caféing, Wind [MASK]!",
        "The  Café [SEP], Wind [MASK]!",
    ]
    assert texts(second, "play") == ["The  Café [MASK], Wind play!"]


def test_the_text_of_a_filling_in_bytes():
    words = kt.Tokenizer.train(
        ENGLISH * 4, vocabulary_size=340, special_tokens=["<mask>"], add_prefix_space=False
    )
    task = randomized(kt.MaskedLM(kt.models.Encoder(config("encoder", words)), words))
    fillings = task.fill_mask("🙂 two  dogs <mask> on <mask>.", top_k=3)
    assert len(fillings) == 2
    for filling in fillings[0]:
        assert filling.text.startswith("🙂 two  dogs ") and filling.text.endswith(" on <mask>.")
        assert filling.token.strip() in filling.text
    ids = words.get_vocabulary()
    (encoding,) = words.encode_batch_with_offsets(["a film<mask>"])
    place = encoding.ids.index(words.mask_id)
    found = task._fillings("a film<mask>", encoding, place, [ids["Ġfilm"], ids["s"]], [0.5, 0.5])
    assert [(f.token, f.text) for f in found] == [(" film", "a filmfilm"), ("s", "a films")]


def test_what_is_hidden():
    task = small()
    words = task.tokenizer
    texts = [" ".join(ENGLISH)] * 200 + ["dull", ""]
    dataset = task.make_dataset(texts, seed=5)
    fates = {"mask": 0, "other": 0, "same": 0}
    random_ids = []
    for place in range(len(dataset)):
        inputs, targets, weights = dataset[place]
        ids, mask, positions = (
            inputs["token_ids"], inputs["padding_mask"], inputs["mask_positions"]
        )  # fmt: skip
        original = words.encode_batch([texts[row] for row in dataset._batches()[place][1]])
        for row, whole in enumerate(original):
            real = np.flatnonzero(~np.isin(whole, words.special_ids))
            counted = weights[row] == 1
            assert set(np.unique(weights[row])) <= {0, 1}
            assert counted.sum() == (max(round(0.15 * len(real)), 1) if len(real) else 0)
            chosen = positions[row][counted]
            assert len(set(chosen)) == len(chosen) and set(chosen) <= set(real)
            np.testing.assert_array_equal(targets[row][counted], np.take(whole, chosen))
            untouched = np.setdiff1d(np.arange(len(whole)), chosen)
            np.testing.assert_array_equal(ids[row][untouched], np.take(whole, untouched))
            assert (ids[row][~mask[row]] == words.pad_id).all()
            for target, found in zip(targets[row][counted], ids[row][chosen], strict=True):
                kind = "mask" if found == words.mask_id else "same" if found == target else "other"
                fates[kind] += 1
                random_ids += [found] if kind == "other" else []
    total = sum(fates.values())
    assert total > 800
    assert abs(fates["mask"] / total - 0.8) < 0.05
    assert abs(fates["other"] / total - 0.1) < 0.04 and abs(fates["same"] / total - 0.1) < 0.04
    assert not set(random_ids) & set(words.special_ids) and len(set(random_ids)) > 20


@pytest.mark.each_backend
def test_masks_are_drawn_anew_and_repeat_with_the_seed():
    task = small(mask_rate=0.5)

    def hidden(seed, epoch, shuffle=True):
        dataset = task.make_dataset(ENGLISH, shuffle=shuffle, seed=seed)
        dataset.epoch = epoch
        inputs, *_ = dataset[0]
        return inputs["token_ids"].tolist()

    assert hidden(1, 0) == hidden(1, 0)
    assert hidden(1, 0) != hidden(1, 1) and hidden(1, 0) != hidden(2, 0)
    assert hidden(1, 0, shuffle=False) == hidden(1, 1, shuffle=False)
    dataset = task.make_dataset(ENGLISH, objective=kt.training.MaskedTokens(0.01), batch_size=4)
    assert dataset[0][2].sum() == 4
    with pytest.raises(
        ValueError, match="`objective` must be a training.MaskedTokens, received Span"
    ):
        task.make_dataset(ENGLISH, objective=kt.training.SpanCorruption())


@pytest.mark.each_backend
def test_logits_at_positions():
    task = small()
    inputs, _, _ = task.make_dataset(ENGLISH, batch_size=4)[0]
    some = keras.ops.convert_to_numpy(task(inputs))
    positions = inputs.pop("mask_positions")
    every = keras.ops.convert_to_numpy(task(inputs))
    assert every.shape[1] == inputs["token_ids"].shape[1] and some.shape[1] == positions.shape[1]
    expected = np.take_along_axis(every, positions[..., None], axis=1)
    np.testing.assert_allclose(some, expected, atol=1e-5)
    inputs["token_ids"] = np.where(inputs["padding_mask"], inputs["token_ids"], 7)
    changed = keras.ops.convert_to_numpy(task(inputs))
    mask = inputs["padding_mask"]
    np.testing.assert_allclose(every[mask], changed[mask], atol=1e-5)


@pytest.mark.each_backend
def test_fit_learns():
    task = small()
    texts = ENGLISH * 4
    before = task.evaluate(texts, verbose=0, return_dict=True)
    assert before == task.evaluate(texts, verbose=0, return_dict=True)
    assert before["perplexity"] == pytest.approx(np.exp(before["loss"]), rel=1e-4)
    task.compile(
        keras.optimizers.Adam(1e-2), task.loss, weighted_metrics=[kt.training.Perplexity()]
    )
    history = task.fit(
        texts, batch_size=8, epochs=15, verbose=0, seed=1, validation_data=texts
    ).history
    assert np.mean(history["loss"][-3:]) < 0.65 * history["loss"][0]
    assert history["val_loss"][-1] < 0.8 * history["val_loss"][0]
    again = small()
    again.fit({"token_ids": np.array([[2, 9, 4, 3]])}, np.array([[2, 9, 8, 3]]), verbose=0)


def test_bad_input():
    task = small()

    def check(message, function, *args, **kwargs):
        with pytest.raises(ValueError, match=message):
            function(*args, **kwargs)

    check(r"`texts\[1\]` has no '\[MASK\]', the mask token", task.fill_mask, [MASKED[0], "dull"])
    for value in (0, -1, 2.5, "3", None, True):
        check("`top_k` must be an integer of at least 1", task.fill_mask, MASKED, top_k=value)
    check(r"`texts\[0\]` must be a string", task.fill_mask, [None])
    check("`texts` is empty", task.fill_mask, [])
    check("has 515 tokens, and the model takes 512 at", task.fill_mask, "wind " * 512 + "[MASK]")
    check("MaskedLM makes its targets from the texts: give `x` alone", task.fit, ENGLISH, [0] * 4)
    for rate in (0, 1.0, -0.1, "0.1", True):
        check("`mask_rate` must be a number between 0 and 1", small, mask_rate=rate)
    check("Unknown activation 'swish2'", small, hidden_activation="swish2")
    bpe = common_tokenizer("bpe", add_prefix_space=True)
    other = kt.MaskedLM(kt.models.Encoder(config("encoder", bpe)), bpe)
    check("The tokenizer has no mask token", other.fill_mask, "a [MASK]")
    check("The tokenizer has no mask token", other.fit, ENGLISH)
    decoder = kt.models.Decoder(config("decoder", bpe))
    check("MaskedLM needs a backbone of kind 'encoder', received 'decoder'", kt.MaskedLM, decoder)
