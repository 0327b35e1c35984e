"""Pages and queries by late interaction, against Transformers' ColPali and ColQwen2."""

import copy

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints.test_families import _gradients, assert_gradients
from tests.tasks import retrievers

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

QUERIES = ["which is dark ?", "the first", "a or b : is the second dark ?"]


@pytest.fixture(scope="module", params=list(retrievers.MAKERS))
def both(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    model, processor = retrievers.MAKERS[request.param](folder)
    return model, processor, kt.PageEmbedder.from_preset(folder), folder


def positions(model, given):
    """The positions of patches by row and column, as ColQwen2 was trained with.

    Its class in Transformers counts patches as it counts tokens, unless it is given the positions
    of its `get_rope_index`, as the authors' own code does.
    """
    if "image_grid_thw" not in given:
        return {}
    images = (given["input_ids"] == model.config.vlm_config.image_token_id).int()
    found, _ = model.vlm.get_rope_index(
        given["input_ids"], images, given["image_grid_thw"],
        attention_mask=given["attention_mask"],
    )  # fmt: skip
    return {"position_ids": found}


def theirs(model, processor, **given):
    """Their vectors of each page or query, without padding."""
    given = processor(**given)
    with torch.no_grad():
        found = model(**given, **positions(model, given)).embeddings.numpy()
    return [row[mask > 0] for row, mask in zip(found, given["attention_mask"].numpy(), strict=True)]


def assert_same(found, expected):
    assert [each.shape for each in found] == [each.shape for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert np.abs(one - other).max() <= 1e-4


@pytest.mark.each_backend
def test_vectors_and_scores_are_those_of_transformers(both):
    """Pages of several sizes and modes, and queries of several lengths."""
    model, processor, task, _ = both
    pages, queries = task.encode(retrievers.pages()), task.encode_texts(QUERIES)
    expected = [theirs(model, processor, images=[page])[0] for page in retrievers.pages()]
    assert_same(pages, expected)
    asked = theirs(model, processor, text=QUERIES)
    assert_same(queries, asked)
    scores = processor.score_retrieval(*(list(map(torch.tensor, x)) for x in (asked, expected)))
    assert np.abs(task.similarity(queries, pages) - scores.numpy()).max() <= 1e-4
    # Batches of others change nothing, nor does a size of batches.
    assert_same([task.encode(retrievers.pages()[1])], pages[1:2])
    assert_same(task.encode(retrievers.pages(), batch_size=2), pages)
    assert_same([task.encode_texts(QUERIES[1])], queries[1:2])
    assert np.allclose(np.linalg.norm(pages[0], axis=1), 1, atol=1e-5)


def test_search_returns_the_pages_with_the_highest_scores(both):
    task = both[2]
    pages, queries = task.encode(retrievers.pages()), task.encode_texts(QUERIES)
    scores = task.similarity(queries, pages)
    found = task.search(queries, pages, top_k=2)
    for row, best in zip(scores, found, strict=True):
        assert [page for page, _ in best] == np.argsort(-row)[:2].tolist()
        assert np.allclose([score for _, score in best], np.sort(row)[::-1][:2])
    assert task.search(queries[0], pages, top_k=99) == task.search(queries[:1], pages, 4)[0]
    assert task.similarity(queries, []).shape == (3, 0)


def test_same_gradients(both, tmp_path):
    model, processor, task, _ = both
    model = copy.deepcopy(model)
    (inputs,) = task.make_dataset(retrievers.pages()[:1])[0]
    given = processor(images=retrievers.pages()[:1])
    expected = model(**given, **positions(model, given)).embeddings
    (expected**2 * 3 + expected).mean().backward()

    def loss():
        vectors = task(inputs)[:, : given["input_ids"].shape[1]]
        return keras.ops.mean(keras.ops.square(vectors) * 3 + vectors)

    assert_gradients(_gradients(task.backbone, loss), model, tmp_path / "gradients")


@pytest.mark.one_backend
def test_the_way_back(both, tmp_path):
    model, processor, task, _ = both
    kt.export_to_huggingface(task, tmp_path / "out")
    again, info = type(model).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values()), info
    for given in ({"images": retrievers.pages()[:1]}, {"text": QUERIES}):
        mine, expected = (theirs(each.eval(), processor, **given) for each in (again, model))
        for one, other in zip(mine, expected, strict=True):
            assert np.abs(one - other).max() <= 1e-6
    expected = task.encode(retrievers.pages())
    task.save_to_preset(tmp_path / "preset")
    task.save(tmp_path / "model.keras")
    for again in (
        kt.PageEmbedder.from_preset(tmp_path / "out"),
        kt.Task.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert again.task_values() == task.task_values()
        assert_same(again.encode(retrievers.pages()), expected)


def test_training_brings_queries_nearer_to_their_pages(both):
    task = kt.PageEmbedder.from_preset(both[3])
    task.compile(optimizer=kt.training.FineTuningAdamW(5e-3))
    pairs = (retrievers.pages()[:2], QUERIES[:2])
    keras.utils.set_random_seed(0)
    before = task.evaluate(pairs, batch_size=2, verbose=0)
    # The loss is the cross-entropy of the scores of each batch.
    pages, queries = task.encode(pairs[0]), task.encode_texts(pairs[1])
    scores = torch.tensor(task.similarity(queries, pages))
    expected = torch.nn.functional.cross_entropy(scores, torch.arange(2))
    assert abs(before - float(expected)) <= 1e-4
    task.fit(pairs, batch_size=2, epochs=3, shuffle=False, verbose=0)
    assert task.evaluate(pairs, batch_size=2, verbose=0) < before
    assert to_numpy(task.predict(retrievers.pages(), verbose=0)).shape[-1] == 6


@pytest.mark.each_backend
def test_queries_of_other_lengths_in_turn(tmp_path):
    """Their vectors stand beside those of the pages, of which there may be more or fewer."""
    retrievers.MAKERS["colpali"](tmp_path)
    task, pages = kt.PageEmbedder.from_preset(tmp_path), retrievers.pages()
    losses = [task.evaluate((pages[:2], q), verbose=0) for q in (QUERIES[:2], QUERIES[1:])]
    for queries, before in zip((QUERIES[:2], QUERIES[1:]), losses, strict=True):
        pair = [task.encode(pages[:2]), task.encode_texts(queries)]
        scores = torch.tensor(task.similarity(*pair[::-1]))
        expected = torch.nn.functional.cross_entropy(scores, torch.arange(2))
        assert abs(before - float(expected)) <= 1e-4
    for queries in (QUERIES[:2], QUERIES[1:]):
        history = task.fit((pages[:2], queries), batch_size=2, verbose=0).history
        assert np.isfinite(history["loss"]).all()


@pytest.mark.one_backend
def test_what_is_wrong_is_said(both):
    task, pages = both[2], retrievers.pages()
    with pytest.raises(ValueError, match="there is no file 'which'.*call `encode_texts`"):
        task.encode("which")
    with pytest.raises(ValueError, match=r"\(pages, queries\)"):
        task.fit(pages)
    with pytest.raises(ValueError, match="Received 2 pages and 1 queries"):
        task.fit((pages[:2], QUERIES[:1]))
    with pytest.raises(ValueError, match="takes no `y`"):
        task.fit((pages, QUERIES), [1, 0, 1, 1])
    with pytest.raises(ValueError, match="which stands for an image"):
        task.encode_texts(["what is " + task._image_token])
    with pytest.raises(ValueError, match=r"`queries\[0\]` has .* shorten it"):
        task.fit((pages[:1], QUERIES[:1]), max_length=3)
    with pytest.raises(ValueError, match="CoSENTLoss does not take the vectors"):
        task.compile(loss="cosent")
    with pytest.raises(ValueError, match="`pages` must be a list of arrays"):
        task.similarity(task.encode_texts(QUERIES), task.encode(pages[0]))
    with pytest.raises(ValueError, match="must have '{query}' once"):
        kt.PageEmbedder(task.backbone, query_template="query")
    with pytest.raises(ValueError, match="kind 'encoder' or 'decoder'"):
        kt.TextEmbedder(task.backbone)
