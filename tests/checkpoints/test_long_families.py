"""Families whose tokens see a part of the others, on inputs so long that it matters."""

import copy

import numpy as np
import pytest

from keras_transformer import QuestionAnswerer, Seq2SeqLM, TextClassifier
from keras_transformer.checkpoints import lengthen, load_backbone
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints import families
from tests.checkpoints.test_families import saved

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

LENGTH = 230  # No window and no block divides it, and blocks begin to save something.


def batch(reference, length=LENGTH):
    """Rows of several lengths, as ours and as theirs."""
    pad = reference.config.pad_token_id
    rng = np.random.default_rng(0)
    mask = np.arange(length) < np.array([[length], [length - 40]])
    ids = np.where(mask, rng.integers(5, 61, mask.shape), pad).astype("int32")
    return ids, mask


def theirs_of(reference, ids, mask, **further):
    """Return their states in float64: two roundings in float32 would add up."""
    reference = copy.deepcopy(reference).double()
    given = {"input_ids": ids, "attention_mask": mask, **further}
    with torch.no_grad():
        return reference(**{name: torch.tensor(x).long() for name, x in given.items()})


def assert_same(ours, theirs, mask, atol=2e-5):
    assert np.abs(to_numpy(ours) - theirs.numpy())[mask].max() <= atol


def mask_of(places, shape):
    return np.array([[i in row for i in range(shape[1])] for row in places])


@pytest.mark.parametrize("number", range(3))
def test_longformer(tmp_path, number):
    """Without tokens that see all, and with some that differ from row to row."""
    reference = families.make("longformer", number, "Model", max_position_embeddings=240)
    backbone = load_backbone(saved(reference, tmp_path))
    ids, mask = batch(reference)
    ours = {"token_ids": ids, "padding_mask": mask}
    assert_same(backbone(ours), theirs_of(reference, ids, mask)[0], mask)
    places = np.array([[0, 30, 200], [7, -1, -1]], "int32")
    found = backbone({**ours, "global_positions": places})
    of_all = {"global_attention_mask": mask_of(places, ids.shape)}
    assert_same(found, theirs_of(reference, ids, mask, **of_all)[0], mask)


@pytest.mark.parametrize("number", range(3))
def test_big_bird(tmp_path, number):
    reference = families.make("big_bird", number, "Model", max_position_embeddings=240)
    backbone = load_backbone(saved(reference, tmp_path))
    ids, mask = batch(reference)
    expected = theirs_of(reference, ids, mask)[0]
    assert_same(backbone({"token_ids": ids, "padding_mask": mask}), expected, mask)


def test_led(tmp_path):
    values = {"max_encoder_position_embeddings": 240}
    reference = families.make("led", 2, "ForConditionalGeneration", **values)
    backbone = load_backbone(saved(reference, tmp_path))
    ids, mask = batch(reference)
    places = np.array([[0, 30], [7, -1]], "int32")
    targets = ids[:, :9]
    ours = {"encoder_token_ids": ids, "encoder_padding_mask": mask, "decoder_token_ids": targets}
    for own, further in (
        ({}, {}),
        (
            {"encoder_global_positions": places},
            {"global_attention_mask": mask_of(places, ids.shape)},
        ),
    ):
        expected = theirs_of(reference, ids, mask, decoder_input_ids=targets, **further)[0]
        logits = backbone.logits(backbone(ours | own))
        assert_same(logits, expected, np.ones(targets.shape, bool), atol=1e-4)


@pytest.fixture(scope="module")
def led(tmp_path_factory):
    """A model whose weights are so large that a further global token changes what it says."""
    values = {"max_encoder_position_embeddings": 256}
    reference = families.make("led", 2, "ForConditionalGeneration", **values)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for path, parameter in reference.named_parameters():
            if parameter.ndim == 2:
                scale = 2.0 if "encoder_attn" in path else 4.0 if "embed_pos" in path else 0.7
                scale = 0.3 if "shared" in path else scale
                parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return reference, Seq2SeqLM.from_preset(saved(reference, tmp_path_factory.mktemp("led")))


def test_led_generates_with_tokens_that_see_all(led):
    """Transformers' greedy tokens, of rows of several lengths, each with places of its own."""
    reference, lm = led
    ids, mask = batch(reference)
    prompts = [row[real].tolist() for row, real in zip(ids, mask, strict=True)]

    def theirs(**further):
        given = {"attention_mask": mask, **further}
        given = {name: torch.tensor(x).long() for name, x in given.items()}
        found = reference.generate(
            torch.tensor(ids).long(), **given, max_new_tokens=12, do_sample=False, num_beams=1
        )
        rows = [row[1:] for row in found.tolist()]
        return [row[: row.index(2)] if 2 in row else row for row in rows]

    several = [[0, 30, 77, 150, 228], [0, 7, 100]]
    found = []
    for places in (None, [0], several):
        of_rows = None if places is None else several if places is several else [places] * 2
        own = {} if places is None else {"global_attention_mask": mask_of(of_rows, ids.shape)}
        found.append(lm.generate(prompts, 12, global_positions=places))
        assert found[-1] == theirs(**own)
    assert found[0] != found[1] != found[2] and len({*found[2][0], *found[2][1]}) > 2
    with pytest.raises(ValueError, match="max_new_tokens=18 needs more positions .* has, 17"):
        lm.generate(prompts, 18)
    # In the other order, and one alone.
    assert lm.generate(prompts[::-1], 12, global_positions=several[::-1]) == found[2][::-1]
    assert lm.generate(prompts[1], 12, global_positions=np.array(several[1])) == found[2][1]


def test_scores_with_tokens_that_see_all(led):
    """The log-probabilities of what was generated, and of given targets, are those of a pass."""
    reference, lm = led
    ids, mask = batch(reference)
    prompts = [row[real].tolist() for row, real in zip(ids, mask, strict=True)]
    places, targets = [[0, 30, 150], [7]], [[5, 6, 7, 2], [9, 8, 2]]
    scores = lm.score(prompts, targets, per_token=True, global_positions=places)
    for prompt, of_row, target, found in zip(prompts, places, targets, scores, strict=True):
        inputs = {
            "encoder_token_ids": np.array([prompt]),
            "encoder_global_positions": np.array([of_row]),
            "decoder_token_ids": np.array([[lm.start_id, *target[:-1]]]),
        }
        logits = torch.tensor(np.asarray(lm.predict(inputs, verbose=0))[0]).double()
        expected = logits.log_softmax(-1)[torch.arange(len(target)), torch.tensor(target)]
        np.testing.assert_allclose(found, expected, atol=1e-4)
    details = lm.generate(
        prompts, 9, global_positions=places, return_details=True, sampler="beam", num_samples=2
    )
    for prompt, of_row, several in zip(prompts, places, details, strict=True):
        for completion in several:
            if completion.token_ids:
                again = lm.score(
                    prompt, completion.token_ids, per_token=True, global_positions=of_row
                )
                count = len(completion.token_ids)
                np.testing.assert_allclose(again[:count], completion.log_probabilities, atol=1e-4)


def test_places_that_cannot_be_meant_are_refused(led, tmp_path):
    _, lm = led
    for places, said in (
        (
            [[0], [9]],
            r"`global_positions\[1\]` must be an integer from -1 to 2.*`prompts\[1\]` has 3",
        ),
        ([[0]], "one for each of 2 `prompts`, received 1 list"),
        (0, "`global_positions` must be a list of token positions"),
        ([[0], 1], r"`global_positions\[1\]` must be a list"),
        ([[0.5], [1]], r"`global_positions\[0\]` must be an integer"),
    ):
        with pytest.raises(ValueError, match=said):
            lm.generate([[5, 6], [7, 8, 9]], global_positions=places)
    other = families.make("bart", 0, "ForConditionalGeneration")
    plain = Seq2SeqLM(load_backbone(saved(other, tmp_path)))
    with pytest.raises(ValueError, match="has no such encoder"):
        plain.generate([[5, 6]], global_positions=[0])


@pytest.mark.parametrize("number", range(3))
def test_longt5(tmp_path, number):
    reference = families.make("longt5", number, "ForConditionalGeneration")
    backbone = load_backbone(saved(reference, tmp_path))
    ids, mask = batch(reference)
    targets = ids[:, :9]
    ours = {"encoder_token_ids": ids, "encoder_padding_mask": mask, "decoder_token_ids": targets}
    expected = theirs_of(reference, ids, mask, decoder_input_ids=targets)[0]
    logits = backbone.logits(backbone(ours))
    assert_same(logits, expected, np.ones(targets.shape, bool), atol=1e-4)


@pytest.mark.parametrize("number", range(4))
def test_pegasus_x(tmp_path, number):
    """Chunks that no length is a multiple of, moved in every second layer."""
    values = {"block_size": 50, "num_global_tokens": 7 * number + 1, "max_position_embeddings": 240}
    reference = families.make("pegasus_x", number, "ForConditionalGeneration", **values)
    backbone = load_backbone(saved(reference, tmp_path))
    ids, mask = batch(reference)
    targets = ids[:, :9]
    ours = {"encoder_token_ids": ids, "encoder_padding_mask": mask, "decoder_token_ids": targets}
    expected = theirs_of(reference, ids, mask, decoder_input_ids=targets)
    assert_same(backbone.encode(ids, mask), expected.encoder_last_hidden_state, mask)
    logits = backbone.logits(backbone(ours))
    assert_same(logits, expected.logits, np.ones(targets.shape, bool), atol=1e-4)


@pytest.mark.parametrize("model_type", ["longformer", "big_bird"])
def test_a_classifier_sets_the_tokens_that_see_all(tmp_path, model_type):
    reference = families.make(
        model_type, 0, "ForSequenceClassification", max_position_embeddings=240
    )
    task = TextClassifier.from_preset(saved(reference, tmp_path))
    ids, mask = batch(reference)
    expected = theirs_of(reference, ids, mask)[0]
    found = task({"token_ids": ids, "padding_mask": mask})
    assert_same(found, expected, np.ones(2, bool), atol=1e-4)


def test_a_question_sees_all(tmp_path):
    values = {"max_position_embeddings": 240, "sep_token_id": 2}
    reference = families.make("longformer", 1, "ForQuestionAnswering", **values)
    task = QuestionAnswerer.from_preset(saved(reference, tmp_path))
    assert task.separator_id == 2
    ids, mask = batch(reference)
    for row, place in ((0, 11), (1, 3)):
        ids[row, [place, place + 1, mask[row].sum() - 1]] = 2
    expected = theirs_of(reference, ids, mask)
    found = to_numpy(task({"token_ids": ids, "padding_mask": mask}))
    for column, logits in enumerate((expected.start_logits, expected.end_logits)):
        assert_same(found[..., column], logits, mask, atol=1e-4)


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_lengthened_models_keep_what_they_say_of_short_texts(tmp_path, model_type):
    reference = families.make(model_type, 0, "Model")
    short = load_backbone(saved(reference, tmp_path))
    limit = short.config.max_sequence_length
    ids, mask = families.batch(reference.config.pad_token_id, length=limit)
    inputs = {"token_ids": ids, "padding_mask": mask}
    expected = torch.tensor(to_numpy(short(inputs)))
    long = lengthen(short, 3 * limit + 5, window=limit, global_projection=True)
    assert_same(long(inputs), expected, mask)
    of_all = {"global_positions": np.zeros((1, 1), "int32")}
    assert_same(long(inputs | of_all), expected, mask)
    rows = np.tile(ids, (1, 3))
    assert np.isfinite(to_numpy(long({"token_ids": np.maximum(rows, 2)}))).all()
    table = to_numpy(long.stem.position_embedding.weights[0])
    offset = short.config.position_offset
    np.testing.assert_array_equal(table[offset : offset + limit], table[offset + limit :][:limit])


@pytest.mark.one_backend
def test_what_cannot_be_lengthened(tmp_path):
    short = load_backbone(saved(families.make("bert", 0, "Model"), tmp_path / "bert"))
    with pytest.raises(ValueError, match="must be more than that of the backbone, 24"):
        lengthen(short, 24)
    rotary = load_backbone(saved(families.make("nomic_bert", 0, "Model"), tmp_path / "nomic"))
    with pytest.raises(ValueError, match="learned positions of an encoder"):
        lengthen(rotary, 100)


@pytest.mark.one_backend
def test_places_that_a_row_has_not(tmp_path):
    backbone = load_backbone(saved(families.make("longformer", 0, "Model"), tmp_path))
    ids = np.full((2, 5), 7, "int32")
    with pytest.raises(
        ValueError, match="`global_positions` holds numbers from 0 to 7, but .* places -1 to 4"
    ):
        backbone({"token_ids": ids, "global_positions": np.array([[7], [0]])})
    with pytest.raises(ValueError, match="global_positions.*integers"):
        backbone({"token_ids": ids, "global_positions": np.array([[0.5], [0.0]])})
