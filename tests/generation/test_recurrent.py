"""Recurrent mixers in the cache: states of fixed size, for each row and each branch."""

import keras
import numpy as np
import pytest

from keras_transformer import planning
from keras_transformer.generation import (
    BeamSearch,
    Cache,
    Contrastive,
    Engine,
    Greedy,
    Scheduler,
    Settings,
    Speculative,
)
from tests.generation.common import (
    PAD,
    Recording,
    decode,
    engine_inputs,
    found_tokens,
    guided,
    make_backbone,
    make_prompts,
    on_one,
    uncached_logits,
)

STATES = {
    "kind": "state_space", "num_heads": 4, "head_dim": 3, "state_dim": 5, "num_groups": 2,
    "chunk_size": 4,
}  # fmt: skip
DELTA = {
    "kind": "gated_delta", "num_key_heads": 2, "num_value_heads": 4, "key_dim": 5, "value_dim": 3,
    "chunk_size": 4,
}  # fmt: skip
LINEAR = {"kind": "linear_recurrence", "state_dim": 12, "num_heads": 3, "chunk_size": 4}
NORMS = {"normalization": "rms_norm", "normalize_first": True}
MODELS = {
    "states": {
        **NORMS, "mixer": STATES, "intermediate_dim": 0, "position": "none",
    },
    "delta": {**NORMS, "mixer": DELTA, "position": "none"},
    "hybrid": {
        **NORMS, "position": "rotary", "num_layers": 3, "attention_gate": True,
        "layer_pattern": ({"mixer": LINEAR}, {}, {"mixer": STATES}),
    },
}  # fmt: skip


def made(name, seed=0):
    return make_backbone("decoder", seed=seed, **MODELS[name])


@pytest.fixture(scope="module")
def engines():
    return {name: Engine(made(name)) for name in MODELS}


@pytest.mark.parametrize("name", ["states", on_one("delta"), "hybrid"])
def test_tokens_are_those_without_a_cache(name, engines):
    """Rows of very different lengths; the states do not grow, nor do slots that nobody reads."""
    engine, prompts, new = engines[name], make_prompts([70, 2, 17]), 80
    settings = Settings(Recording(), None, (), PAD)
    inputs = engine_inputs(engine.backbone, prompts)
    found, batch = decode(engine, inputs, settings, [new] * 3, steps=64)
    expected = uncached_logits(engine.backbone, prompts, found.tokens[:, 0])
    np.testing.assert_allclose(found.scores[:, :new], expected, rtol=0, atol=5e-4)
    np.testing.assert_array_equal(found.tokens[:, 0], expected.argmax(axis=-1))
    cache = batch.state.cache
    assert set(cache.groups) == ({0, 1} if name == "hybrid" else {1})
    assert cache.groups[1].slots == 64
    for layer, tensors in zip(engine.backbone.cache_layers, cache.states, strict=True):
        shapes = layer[3] if len(layer) > 3 else ()
        assert [tuple(x.shape) for x in tensors] == [(3, 1, *shape) for shape in shapes]


@pytest.mark.parametrize("name", [on_one("states"), "delta", on_one("hybrid")])
def test_beams_have_states_each(name, engines):
    """Each hypothesis scores what the model says of it in one pass."""
    engine, prompts = engines[name], make_prompts([9, 2])
    sampler = BeamSearch(3, length_penalty=0.0)
    inputs = engine_inputs(engine.backbone, prompts)
    found = engine.generate(inputs, Settings(sampler, None, (), PAD), 12)
    for i in range(3):
        tokens = found.tokens[:, i, :12]
        logits = uncached_logits(engine.backbone, prompts, tokens).astype("float64")
        scores = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        expected = np.take_along_axis(scores, tokens[..., None], axis=-1).sum(axis=(1, 2))
        np.testing.assert_allclose(found.scores[:, i], expected, rtol=0, atol=1e-3)


@pytest.mark.one_backend
def test_branches_of_contrastive_search(engines):
    """With an alpha of 0 it finds what greedy search finds, whichever branch it follows."""
    engine, prompts = engines["hybrid"], make_prompts([9, 2])
    inputs = engine_inputs(engine.backbone, prompts)
    samplers = Contrastive(3, penalty_alpha=0.0), Greedy()
    found = [engine.generate(inputs, Settings(each, None, (), PAD), 10) for each in samplers]
    assert found_tokens(found[0]) == found_tokens(found[1])


@pytest.mark.parametrize(
    "name, shared, scale",
    [("states", 0, 1.0), on_one("delta", 32, 1.0), ("hybrid", 32, 1.0), on_one("hybrid", 32, 2.0)],
)
def test_rows_leave_and_others_come(name, shared, scale, engines):
    """In a batch of four rows, behind a common prefix; also guided."""
    engine, prompts = engines[name], make_prompts([3, 9, 1, 30, 2, 14, 5])
    if shared:
        prompts = [[*make_prompts([shared], seed=7)[0], *prompt] for prompt in prompts]
    limits = [4, 40, 20, 7, 30, 3, 33]

    def make_inputs(ids, mask):
        return {"token_ids": ids, "padding_mask": mask}

    negative = make_prompts([1, 12, 5, 2, 40, 3, 7], seed=2) if scale != 1 else None
    settings = Settings(Greedy(), None, (), PAD, guidance_scale=scale)
    scheduler = Scheduler(engine, settings, make_inputs, 4, share_prefix=True)
    found = {each.index: each.tokens[0] for each in scheduler.run(prompts, limits, None, negative)}
    new = [found[row] + [PAD] * (40 - len(found[row])) for row in range(len(prompts))]
    logits = uncached_logits(engine.backbone, prompts, new)
    if negative:
        logits = guided(logits, uncached_logits(engine.backbone, negative, new), scale)
    expected = logits.argmax(axis=-1)
    for row, limit in enumerate(limits):
        assert found[row] == expected[row, :limit].tolist()


@pytest.mark.one_backend
@pytest.mark.parametrize("name", MODELS)
def test_pieces_of_a_text(name):
    """A text in pieces, with padding behind each row's piece, gives what it gives as a whole."""
    backbone = made(name)
    ids = np.random.default_rng(0).integers(3, 24, (2, 20))
    whole = keras.ops.convert_to_numpy(backbone({"token_ids": ids}))
    cache, done, found = Cache.create(backbone, 2, 40), np.array([0, 0]), [[], []]
    for counts in ((5, 9), (1, 0), (8, 2), (6, 9)):
        counts = np.array(counts)
        length = counts.max() + 1
        piece = np.full((2, length), PAD)
        for row in range(2):
            piece[row, : counts[row]] = ids[row, done[row] : done[row] + counts[row]]
        mask = np.arange(length) < counts[:, None]
        states, cache = backbone({"token_ids": piece, "padding_mask": mask}, cache=cache)
        for row in range(2):
            found[row].append(keras.ops.convert_to_numpy(states)[row, : counts[row]])
        done = done + counts
    np.testing.assert_allclose(np.stack([np.concatenate(x) for x in found]), whole, atol=2e-5)


@pytest.mark.one_backend
def test_drafts_are_refused(engines):
    engine, prompts = engines["hybrid"], make_prompts([5])
    inputs = engine_inputs(engine.backbone, prompts)
    with pytest.raises(ValueError, match="The model has recurrent mixers, whose states cannot"):
        engine.generate(inputs, Settings(Speculative(), None, (), PAD), 4)
    attention = Engine(make_backbone("decoder", position="rotary"))
    drafted = Settings(Speculative(engine.backbone), None, (), PAD)
    with pytest.raises(ValueError, match="`draft` has recurrent mixers, whose states cannot"):
        attention.generate(inputs, drafted, 4)
    _, cache = engine.backbone(inputs, cache=Cache.create(engine.backbone, 1, 8))
    with pytest.raises(ValueError, match="no token can be removed"):
        cache.accept(np.array([1]), 2)


@pytest.mark.one_backend
def test_states_that_do_not_fit_are_refused():
    inputs = engine_inputs(made("states"), make_prompts([5]))
    cache = Cache.create(made("delta"), 1, 8)
    with pytest.raises(ValueError, match=r"must be of shape \(1, branches, 4, 3, 5\)"):
        made("states")(inputs, cache=cache)


@pytest.mark.one_backend
@pytest.mark.parametrize("name", MODELS)
def test_the_bytes_of_states_are_counted(name):
    backbone = made(name)
    cache = Cache.create(backbone, rows=3, slots=50)
    tensors = [x for tensors in cache.states for x in tensors]
    tensors += [
        x for group in cache.groups.values() for layer in group.layers.values() for x in layer
    ]
    expected = sum(4 * int(np.prod(x.shape)) for x in tensors)
    assert Cache.count_bytes(backbone.config, 3, 50) == expected
    if name != "hybrid":
        assert Cache.count_bytes(backbone.config, 3, 5000) == expected
    plan = planning.make_plan(backbone.config, batch_size=3, length=50, generating=True)
    assert "states" in str(plan)
