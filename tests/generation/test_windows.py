"""Layers with other windows than their neighbours: the cache keeps for each what it can see."""

import keras
import numpy as np
import pytest

from keras_transformer.generation import (
    BeamSearch,
    Cache,
    Contrastive,
    Engine,
    Greedy,
    Random,
    Scheduler,
    Settings,
    Speculative,
)
from keras_transformer.layers.attention.key_value_cache import KeyValueCache
from keras_transformer.models import Decoder
from keras_transformer.support.sizes import round_size
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
from tests.thorough import a_part

ALTERNATING = ({"window": 4}, {})
# As Gemma 3, with 2 to 1.
GEMMA = {"num_layers": 3, "layer_pattern": ({"window": 4}, {"window": 4}, {})}
VALUES = {"position": "rotary", "num_key_value_heads": 2, "num_layers": 2}


class KeepsAll(Decoder):
    """Its cache keeps all tokens for all layers."""

    @property
    def cache_layers(self):
        return [layer[:2] for layer in super().cache_layers]


@pytest.fixture(scope="module")
def backbone():
    return make_backbone("decoder", layer_pattern=ALTERNATING, **VALUES)


@pytest.fixture(scope="module")
def engine(backbone):
    return Engine(backbone)


@pytest.fixture(scope="module")
def keeps_all(backbone):
    same = KeepsAll(backbone.config)
    same.set_weights(backbone.get_weights())
    return Engine(same)


def slots(batch):
    """How many slots of how many layers each group has, from the tensors themselves."""
    found = {}
    for key, group in batch.state.cache.groups.items():
        (size,) = {x.shape[2] for tensors in group.layers.values() for x in tensors}
        found[key] = (size, len(group.layers))
    return found


@pytest.mark.parametrize(
    "kind, values",
    [
        ("decoder", {**VALUES, **GEMMA}),
        on_one("decoder", {**VALUES, "layer_pattern": ({"window": 1}, {"window": 9})}),
        ("decoder", {"position": "alibi", "num_layers": 2, "layer_pattern": ({}, {"window": 5})}),
        on_one("seq2seq", {**VALUES, "decoder": {"layer_pattern": ALTERNATING}}),
    ],
    ids=["alternating", "two windows", "alibi", "seq2seq"],
)
def test_tokens_are_those_without_a_cache(kind, values):
    """Rows of very different lengths span many windows; slots that left them are freed twice."""
    backbone = make_backbone(kind, **values)
    engine, prompts, new = Engine(backbone), make_prompts([50, 2, 17]), 80
    settings = Settings(Recording(), None, (), PAD)
    found, batch = decode(engine, engine_inputs(backbone, prompts), settings, [new] * 3, steps=64)
    expected = uncached_logits(backbone, prompts, found.tokens[:, 0])
    np.testing.assert_allclose(found.scores[:, :new], expected, rtol=0, atol=1e-4)
    np.testing.assert_array_equal(found.tokens[:, 0], expected.argmax(axis=-1))
    pattern = backbone.config.side("decoder").layer_pattern
    windows = {layer.get("window", 0) for layer in pattern}
    assert set(batch.state.cache.groups) == windows
    for key, (size, _) in slots(batch).items():
        assert size <= round_size(key - 1 + 64) if key else size >= new


@pytest.mark.one_backend
def test_dilated_windows_reach_further_and_global_tokens_stay():
    pattern = ({"window": 3, "window_dilation": 2}, {"window": 4, "global_tokens": 2})
    backbone = make_backbone("decoder", **VALUES, layer_pattern=pattern)
    engine, prompts, new = Engine(backbone), make_prompts([50, 2, 17]), 80
    settings = Settings(Recording(), None, (), PAD)
    found, batch = decode(engine, engine_inputs(backbone, prompts), settings, [new] * 3, steps=64)
    expected = uncached_logits(backbone, prompts, found.tokens[:, 0])
    np.testing.assert_allclose(found.scores[:, :new], expected, rtol=0, atol=1e-4)
    assert slots(batch)[5][0] <= round_size(4 + 64) < 130 <= slots(batch)[0][0]


def test_the_memory_of_windows_does_not_grow(engine):
    settings, found = Settings(Greedy(), None, (), PAD), []
    for length, new in ((20, 40), (20, 180), (180, 20)):
        inputs = engine_inputs(engine.backbone, make_prompts([length, 1]))
        found.append(slots(decode(engine, inputs, settings, [new] * 2, steps=64)[1]))
    bound = round_size(3 + 64)
    assert [each[4] for each in found] == [(bound, 1)] * 3
    assert found[0][0][0] >= 60 and all(each[0][0] >= 200 for each in found[1:])


def test_beams_keep_a_window_each(engine):
    settings = Settings(BeamSearch(4), None, (), PAD)
    inputs = engine_inputs(engine.backbone, make_prompts([40, 3]))
    _, batch = decode(engine, inputs, settings, [40] * 2, steps=16)
    assert slots(batch)[4][0] <= round_size(4 * (3 + 16)) < slots(batch)[0][0]


def sampler_named(name):
    draft = {"position": "rotary", "window": 6, "seed": 4}
    return {
        "beams": lambda: BeamSearch(3, length_penalty=0.7),
        "sampling": lambda: Random(temperature=0.9),
        "contrastive": lambda: Contrastive(3),
        "looked up": lambda: Speculative(num_draft_tokens=3),
        "drafted": lambda: Speculative(make_backbone("decoder", **draft), num_draft_tokens=3),
    }[name]()


@pytest.mark.parametrize(
    "name, dtype",
    [
        ("beams", None),
        ("sampling", None),
        *a_part([on_one("sampling", "int8"), on_one("sampling", "bfloat16")], 2),
        *a_part([("drafted", None), on_one("looked up", None), on_one("contrastive", None)]),
    ],
)
def test_every_sampler_finds_what_it_finds_in_a_cache_of_everything(name, dtype, engine, keeps_all):
    prompts, new, sampler = make_prompts([30, 2, 11]), 70, sampler_named(name)
    settings = Settings(sampler, None, (), PAD, cache_dtype=dtype)
    uniforms = np.random.default_rng(0).random((3, new * sampler.draws), dtype="float32")
    inputs = engine_inputs(engine.backbone, prompts)
    found, whole = (each.generate(inputs, settings, new, uniforms) for each in (engine, keeps_all))
    assert found_tokens(found) == found_tokens(whole)
    if isinstance(sampler, Speculative):
        greedy = Settings(Greedy(), None, (), PAD)
        assert found_tokens(found) == found_tokens(engine.generate(inputs, greedy, new))


@pytest.mark.parametrize("shared, scale", [(0, 1.0), (32, 1.0), on_one(32, 2.0)])
def test_rows_leave_and_others_come(engine, shared, scale):
    """In a batch of four rows, behind a prefix that is longer than the window; also guided."""
    prompts = make_prompts([3, 9, 1, 30, 2, 14, 5, 6, 21])
    if shared:
        prompts = [[*make_prompts([shared], seed=7)[0], *prompt] for prompt in prompts]
    limits = [4, 90, 20, 7, 60, 3, 33, 80, 12]

    def make_inputs(ids, mask):
        return {"token_ids": ids, "padding_mask": mask}

    negative = make_prompts([1, 12, 5, 2, 40, 3, 7, 20, 1], seed=2) if scale != 1 else None
    settings = Settings(Greedy(), None, (), PAD, guidance_scale=scale)
    made = Scheduler(engine, settings, make_inputs, 4, share_prefix=True)
    found = {each.index: each.tokens[0] for each in made.run(prompts, limits, None, negative)}
    new = [found[row] + [PAD] * (90 - len(found[row])) for row in range(len(prompts))]
    logits = uncached_logits(engine.backbone, prompts, new)
    if negative:
        logits = guided(logits, uncached_logits(engine.backbone, negative, new), scale)
    expected = logits.argmax(axis=-1)
    for row, limit in enumerate(limits):
        assert found[row] == expected[row, :limit].tolist()


def test_a_prompt_never_has_more_slots_of_a_window_than_are_kept(backbone, monkeypatch):
    """While it is read, too; rows of different lengths keep what each of them sees."""
    made, make = [], KeyValueCache.make

    def counted(rows, heads, slots, head_dim, dtype):
        made.append(slots)
        return make(rows, heads, slots, head_dim, dtype)

    monkeypatch.setattr(KeyValueCache, "make", counted)
    engine, prompts = Engine(backbone), make_prompts([300, 2, 217])
    settings = Settings(Recording(), None, (), PAD)
    found, _ = decode(engine, engine_inputs(backbone, prompts), settings, [8] * 3)
    of_all, of_window = max(made), min(made)
    assert set(made) == {of_all, of_window} and of_window == round_size(3 + 64) < 300 <= of_all
    expected = uncached_logits(backbone, prompts, found.tokens[:, 0])
    np.testing.assert_allclose(found.scores[:, :8], expected, rtol=0, atol=1e-4)


@pytest.mark.one_backend
@pytest.mark.parametrize("ends", [(9, 12, 19, 24), (19, 24), (24,)], ids=str)
def test_a_cache_of_ones_own_in_pieces(backbone, ends):
    """Without the engine: slots that are known, compaction of all groups or of some.

    A first piece may have more tokens than a window has slots.
    """
    ids = np.random.default_rng(0).integers(3, 24, (2, 24))
    whole = keras.ops.convert_to_numpy(backbone({"token_ids": ids}))
    cache, found = Cache.create(backbone, rows=2, slots={0: 24, 4: 12}), []
    for start, stop in zip((0, *ends), ends, strict=False):
        states, cache = backbone({"token_ids": ids[:, start:stop]}, cache=cache)
        found.append(keras.ops.convert_to_numpy(states))
        cache = cache.compact({4: 12})
        assert int(cache.groups[4].end) == 3 and int(cache.groups[0].end) == stop
    np.testing.assert_allclose(np.concatenate(found, axis=1), whole, rtol=0, atol=2e-5)
    assert cache.compact({4: 3}).layers[0]["self"][0].shape[2] == 3


@pytest.mark.one_backend
def test_the_bytes_of_windows_are_counted():
    values = {"num_heads": 2, "num_key_value_heads": 1, "layer_pattern": ({"window": 100}, {})}
    config = make_backbone("decoder", num_layers=4, position="rotary", **values).config
    of_a_token = 2 * 8 * 4  # a key and a value of one head of 8
    for length, kept in ((50, 50), (163, 163), (164, 163), (5000, 163)):
        expected = 3 * 2 * of_a_token * (kept + length)
        assert Cache.count_bytes(config, 3, length) == expected
