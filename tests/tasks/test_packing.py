"""A document has the loss in a packed batch that it has alone."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from tests.generation.common import compiled, on_one

WORDS = [
    "a",
    "man",
    "rides",
    "bike",
    "two",
    "dogs",
    "run",
    "on",
    "the",
    "grass",
    "girl",
    "in",
    "red",
    "dress",
    "plays",
    ".",
    "near",
    "water",
]


def texts(count, seed=0):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(2, 12))) for _ in range(count)]


TOKENIZER = kt.Tokenizer.train(texts(200), "wordpiece", vocabulary_size=120)

DECODERS = {
    "sinusoidal": {},
    "learned": {"position": "learned", "max_sequence_length": 64},
    "rotary, window": {"position": "rotary", "window": 4},
    "alibi": {"position": "alibi"},
    "relative": {"position": "relative"},
}


def backbone(kind, **values):
    config = kt.TransformerConfig(
        kind=kind,
        vocabulary_size=TOKENIZER.vocabulary_size,
        hidden_dim=16,
        num_layers=2,
        num_heads=2,
        intermediate_dim=32,
        **values,
    )
    return kt.models.build_backbone(config)


def log_probabilities(task, dataset):
    """Return log-probabilities of a dataset's target tokens, by document: sets of rows."""
    documents = []
    outputs = compiled(lambda inputs: task(inputs, training=False), task)
    for i in range(len(dataset)):
        inputs, targets, weights = dataset[i]
        logits = ops.convert_to_numpy(outputs(inputs)).astype("float64")
        logits -= logits.max(axis=-1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        found = np.take_along_axis(logits, targets[..., None].astype("int64"), axis=-1)[..., 0]
        packs = next((inputs[n] for n in ("pack_ids", "decoder_pack_ids") if n in inputs), None)
        for row in range(len(targets)):
            of_row = np.zeros(targets.shape[1], int) if packs is None else packs[row]
            for pack in sorted(set(of_row[weights[row] > 0].tolist())):
                chosen = (of_row == pack) & (weights[row] > 0)
                documents.append((targets[row][chosen].tolist(), found[row][chosen]))
    return sorted(documents, key=lambda document: document[0])


def check_packed_equals_alone(task, *data):
    keras.utils.set_random_seed(1)
    alone = log_probabilities(task, task.make_dataset(*data, batch_size=1))
    dataset = task.make_dataset(*data, batch_size=2, pack_length=32)
    packed = log_probabilities(task, dataset)
    assert dataset.padding_share < 0.35 and dataset.num_rows == len(alone)
    assert [ids for ids, _ in packed] == [ids for ids, _ in alone]
    for (_, one), (_, other) in zip(packed, alone, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "name", [on_one("sinusoidal"), "learned", "rotary, window", on_one("alibi"), "relative"]
)
def test_documents_of_a_decoder(name):
    task = kt.CausalLM(backbone("decoder", **DECODERS[name]), TOKENIZER)
    check_packed_equals_alone(task, sorted(set(texts(24))))


def test_pairs_of_an_encoder_and_decoder():
    task = kt.Seq2SeqLM(backbone("seq2seq"), TOKENIZER)
    check_packed_equals_alone(task, texts(24), sorted(set(texts(30, seed=1)))[:24])


def test_states_of_an_encoder():
    rows = texts(12)
    task = kt.MaskedLM(backbone("encoder", position="learned", max_sequence_length=64), TOKENIZER)

    def states(**options):
        found = {}
        dataset = task.make_dataset(rows, masked=False, **options)
        for i in range(len(dataset)):
            (inputs,) = dataset[i]
            of_batch = ops.convert_to_numpy(task.backbone(inputs))
            packs = inputs.get("pack_ids", np.where(inputs["padding_mask"], 0, -1))
            for row, numbers in enumerate(packs):
                for number in set(numbers.tolist()) - {-1}:
                    of_text = inputs["token_ids"][row][numbers == number]
                    found[tuple(of_text.tolist())] = of_batch[row][numbers == number]
        return found

    alone, packed = states(batch_size=1), states(batch_size=2, pack_length=40)
    assert alone.keys() == packed.keys() and len(alone) == len(set(rows))
    for ids, expected in alone.items():
        np.testing.assert_allclose(packed[ids], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["decoder", on_one("encoder"), on_one("seq2seq")])
def test_fit_on_packs(kind):
    if kind == "seq2seq":
        task, data = kt.Seq2SeqLM(backbone(kind), TOKENIZER), (texts(24), texts(24, seed=1))
    else:
        task = (kt.CausalLM if kind == "decoder" else kt.MaskedLM)(backbone(kind), TOKENIZER)
        data = (texts(24),)
    dataset = task.make_dataset(*data, pack_length=32, batch_size=2, shuffle=True)
    task.compile(keras.optimizers.Adam(0.01), task.loss, weighted_metrics=[])
    speed = kt.training.Throughput(dataset)
    history = task.fit(dataset, epochs=3, verbose=0, callbacks=[speed]).history
    assert history["loss"][-1] < history["loss"][0]
    assert history["padding_share"] == [pytest.approx(dataset.padding_share)] * 3


def test_what_cannot_be_packed():
    classifier = kt.TextClassifier(backbone("encoder"), TOKENIZER, num_classes=2)
    with pytest.raises(ValueError, match="cannot be combined with"):
        classifier.make_dataset(["a man"], [1], pack_length=16)
    lm = kt.CausalLM(backbone("decoder"), TOKENIZER)
    with pytest.raises(ValueError, match="more than `pack_length`, 4"):
        lm.make_dataset([" ".join(WORDS)], pack_length=4)
    assert lm.make_dataset([" ".join(WORDS)], pack_length=4, max_length=4).num_rows == 1
