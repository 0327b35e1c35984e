"""Late interaction against sentence-transformers: vectors of tokens, MaxSim, training, files."""

import json
import shutil

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.layers.max_sim import max_sim
from tests.layers.conftest import numpy

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("sentence_transformers", minversion="6.2")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[Q]", "[D]", *".,?"]
WORDS += ["where", "is", "rome", "in", "italy", "faust", "by", "goethe", "the"]
QUERIES = ["where is rome ?", "the faust", "is the rome in the italy in the rome in the italy ?"]
DOCUMENTS = ["rome is in italy .", "faust , by goethe .", "the , the . italy", "rome"]


def published(folder):
    """A small model of sentence-transformers with random weights."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=20, max_position_embeddings=32, initializer_range=0.5,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder / "bert")
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    tokenizer = transformers.BertTokenizer(str(folder / "vocab.txt"))
    tokenizer.add_special_tokens({"additional_special_tokens": ["[Q]", "[D]"]})
    tokenizer.save_pretrained(folder / "bert")
    expansion = {"strategy": "fixed", "attend": False, "length": 9}
    own = Transformer(str(folder / "bert"), document_length=7, query_expansion=expansion)
    dense = Dense(
        16, 8, bias=False, activation_function=torch.nn.Identity(),
        module_input_name="token_embeddings",
    )  # fmt: skip
    last = MultiVectorMask(skiplist_words=[".", ","]), Normalize("token_embeddings")
    prompts = {"query": "[Q] ", "document": "[D] "}
    model = MultiVectorEncoder(modules=[own, dense, *last], prompts=prompts, device="cpu")
    model.save_pretrained(str(folder / "theirs"))
    return model


def as_pylate(folder, attends):
    """Rewrite the files as PyLate writes them."""
    steps = json.loads((folder / "modules.json").read_text())[:2]
    steps[1]["type"] = "pylate.models.Dense.Dense"
    (folder / "modules.json").write_text(json.dumps(steps))
    shutil.rmtree(folder / "2_MultiVectorMask")
    shutil.rmtree(folder / "3_Normalize")
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 30}))
    path = folder / "config_sentence_transformers.json"
    values = {
        "model_type": "ColBERT", "query_prefix": "[Q] ", "document_prefix": "[D] ",
        "query_length": 8, "document_length": 7, "attend_to_expansion_tokens": attends,
        "skiplist_words": ["."],
    }  # fmt: skip
    path.write_text(json.dumps(values))
    path = folder / "1_Dense" / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({n: v for n, v in values.items() if not n.startswith("module_")}))


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("colbert")
    model = published(folder)
    return model, kt.TextEmbedder.from_preset(folder / "theirs"), folder / "theirs"


def assert_same(model, task):
    for texts, name, encode in (
        (QUERIES, "query", model.encode_query),
        (DOCUMENTS, "document", model.encode_document),
    ):
        expected = [x.numpy() for x in encode(texts)]
        found = task.encode(texts, prompt_name=name)
        assert [x.shape for x in found] == [x.shape for x in expected]
        for one, other in zip(found, expected, strict=True):
            assert np.abs(one - other).max() <= 2e-5
        # Batches of other texts change nothing.
        assert np.abs(task.encode(texts[1], prompt_name=name) - expected[1]).max() <= 2e-5
    queries, documents = task.encode(QUERIES, "query"), task.encode(DOCUMENTS)
    theirs = model.similarity(model.encode_query(QUERIES), model.encode_document(DOCUMENTS))
    assert np.abs(task.similarity(queries, documents) - theirs.numpy()).max() <= 1e-4


@pytest.mark.each_backend
def test_vectors_and_scores_are_those_of_sentence_transformers(both):
    assert_same(*both[:2])


@pytest.mark.one_backend
@pytest.mark.parametrize("attends", [False, True])
def test_files_of_pylate(both, tmp_path, attends):
    from sentence_transformers import MultiVectorEncoder

    folder = shutil.copytree(both[2], tmp_path / "pylate")
    as_pylate(folder, attends)
    task = kt.TextEmbedder.from_preset(folder)
    assert task.interaction["expansion"] == ("attended" if attends else "scored")
    assert_same(MultiVectorEncoder(str(folder), device="cpu"), task)


@pytest.mark.one_backend
def test_the_way_back(both, tmp_path):
    from sentence_transformers import MultiVectorEncoder

    _, task, _ = both
    kt.export_to_huggingface(task, tmp_path / "out")
    assert_same(MultiVectorEncoder(str(tmp_path / "out"), device="cpu"), task)
    task.save_to_preset(tmp_path / "preset")
    again = kt.TextEmbedder.from_preset(tmp_path / "preset")
    assert again.task_values() == task.task_values()
    assert np.array_equal(again.encode(QUERIES[0], "query"), task.encode(QUERIES[0], "query"))


def test_the_loss_is_that_of_sentence_transformers():
    from sentence_transformers.multi_vector_encoder.scoring import colbert_scores

    random = np.random.default_rng(0)
    vectors = random.normal(size=(3, 3, 5, 4)).astype("float32")
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    there = np.arange(5) < random.integers(1, 6, (3, 3))[..., None]
    vectors *= there[..., None]
    scores = colbert_scores(
        vectors[:, 0], vectors[:, 1:], torch.tensor(there[:, 0]), torch.tensor(there[:, 1:])
    )
    targets = torch.arange(3) * 2  # of each group of a positive and a negative, the first
    expected = torch.nn.functional.cross_entropy(scores, targets)
    loss = kt.training.MultipleNegativesRankingLoss(scale=1.0)(np.ones(3), vectors)
    assert abs(float(loss) - float(expected)) <= 1e-5
    pairs = numpy(max_sim(vectors[:, 0], vectors[:, 1]))
    assert np.abs(pairs - scores.numpy()[:, ::2]).max() <= 1e-5


def test_training_brings_queries_nearer_to_their_documents(both):
    task = kt.TextEmbedder.from_preset(both[2])
    task.compile(optimizer=kt.training.FineTuningAdamW(5e-3), loss=task.head.usual()["loss"])
    pairs = (QUERIES[:2] * 4, DOCUMENTS[:2] * 4)
    keras.utils.set_random_seed(0)
    before = task.evaluate(pairs, batch_size=2, verbose=0)  # without dropout
    task.fit(pairs, batch_size=2, epochs=3, shuffle=False, verbose=0)
    assert task.evaluate(pairs, batch_size=2, verbose=0) < before


@pytest.mark.one_backend
def test_texts_without_vectors_have_no_score(both):
    task, none = both[1], np.zeros((0, 8), "float32")
    queries = task.encode(QUERIES, "query")
    assert task.similarity(queries, []).shape == (3, 0)
    assert not task.similarity(queries, [none]).any()
    assert not task.similarity([none], task.encode(DOCUMENTS)).any()


@pytest.mark.one_backend
def test_what_is_wrong_is_said(both, tmp_path):
    task = both[1]
    with pytest.raises(ValueError, match="call `encode`"):
        task.encode_ids([[7, 8]])
    with pytest.raises(ValueError, match="takes one vector for each text"):
        task.compile(loss="cosent")
        task.fit((QUERIES, DOCUMENTS[:3]), [1.0, 0.0, 1.0], verbose=0)
    with pytest.raises(ValueError, match="needs a `query_length`"):
        kt.tasks.LateInteraction(expansion="scored")
    with pytest.raises(ValueError, match="a dict of its values"):
        kt.tasks.LateInteraction.given({"length": 3})
    with pytest.raises(ValueError, match="needs pooling='multi_vector'"):
        kt.TextEmbedder(task.backbone, task.tokenizer, interaction={})
    folder = shutil.copytree(both[2], tmp_path / "other")
    path = folder / "sentence_bert_config.json"
    values = json.loads(path.read_text())
    values["query_expansion"]["strategy"] = "min"
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match="only the strategy 'fixed'"):
        kt.TextEmbedder.from_preset(folder)
