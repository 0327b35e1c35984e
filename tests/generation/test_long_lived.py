"""A process that lives long: programs are few, room grows with what is written, threads share."""

import concurrent.futures
import gc
import itertools
import weakref

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.generation import (
    BeamSearch,
    Contrastive,
    Engine,
    Greedy,
    Random,
    Rules,
    Settings,
    Speculative,
)
from keras_transformer.generation.constraints.constraints import TokenAutomaton
from keras_transformer.generation.scheduler import Scheduler
from keras_transformer.kernels.programs import PROGRAMS
from tests.generation.common import (
    PAD,
    make_backbone,
    make_prompts,
    on_cpu,
    on_one,
    uncached_greedy,
)
from tests.generation.tables import TableModel

PROMPTS = make_prompts(np.random.default_rng(0).integers(1, 40, 12).tolist())


@pytest.fixture(scope="module")
def backbone():
    return make_backbone("decoder", position="rotary", num_key_value_heads=2, seed=3)


@pytest.fixture(scope="module")
def table():
    return TableModel(seed=3)


@pytest.fixture(scope="module")
def greedy(backbone):
    return uncached_greedy(backbone, PROMPTS, 12)


class Watched(Engine):
    """An engine that remembers the room for tokens, the slots, and the random numbers."""

    def __init__(self, backbone):
        super().__init__(backbone)
        self.sizes, self.slots, self.widths = [], [], []

    def make_room(self, batch, steps):
        super().make_room(batch, steps)
        self.sizes.append(batch.size)
        self.slots.append(batch.state.cache.slots)
        self.widths.append(batch.uniforms.shape[1])


def run(engine, settings, prompts, limits, batch_size=4, steps=None):
    def make_inputs(ids, mask):
        return {"token_ids": ids, "padding_mask": mask}

    made = Scheduler(engine, settings, make_inputs, batch_size, seed=5)
    found = {x.index: x for x in made.run(prompts, limits, steps) if hasattr(x, "scores")}
    return [found[i].tokens for i in range(len(prompts))]


def live():
    """All programs that the process has."""
    if keras.backend.backend() != "jax":
        return len(PROGRAMS)
    import jax

    gc.collect()
    return len(jax.devices()[0].client.live_executables())


def test_programs_are_bounded_and_what_comes_back_is_the_same(backbone, greedy, monkeypatch):
    monkeypatch.setattr(PROGRAMS, "most", PROGRAMS.unevictable + 2)
    engine, random = Engine(backbone), np.random.default_rng(1)
    settings = Settings(Greedy(), None, (), PAD)
    before, made = live(), PROGRAMS.made
    for call in range(8):
        chosen = random.choice(len(PROMPTS), random.integers(1, 7), replace=False).tolist()
        limits = random.integers(1, 13, len(chosen)).tolist()
        found = run(engine, settings, [PROMPTS[i] for i in chosen], limits, [4, 2, 1, 16][call % 4])
        expected = [[greedy[i][:limit]] for i, limit in zip(chosen, limits, strict=True)]
        assert found == expected
        assert len(PROGRAMS) <= PROGRAMS.most
        # Nothing is compiled beside them: no operation on its own for each new shape.
        assert live() <= before + 2 + 4
    assert PROGRAMS.made > made + 2


@on_cpu
def test_another_constraint_is_no_other_program(table):
    engine, vocabulary = Engine(table), [None, None, None, *(b"%c" % x for x in range(97, 118))]
    texts, made = [], []
    for pattern in ("abc", "[d-f]{3,5}", "(ab|ba)+"):
        automaton = TokenAutomaton.from_regex(pattern, vocabulary)
        settings = Settings(Greedy(), Rules(automaton=automaton), (2,), PAD)
        found = run(engine, settings, PROMPTS[:3], [9] * 3)
        texts.append({"".join(chr(94 + token) for token in row[0] if token != 2) for row in found})
        made.append(PROGRAMS.made)
    assert texts[0] == {"abc"}
    assert all(set(text) <= set("def") and 3 <= len(text) <= 5 for text in texts[1])
    assert all(set(text) <= set("ab") for text in texts[2])
    assert made[0] == made[1] == made[2]


def test_a_dropped_model_is_gone():
    engine = Engine(make_backbone("decoder", position="rotary"))
    before = len(PROGRAMS)
    run(engine, Settings(Greedy(), None, (), PAD), PROMPTS[:2], [3, 3])
    backbone = weakref.ref(engine.backbone)
    assert len(PROGRAMS) > before
    unevictable = PROGRAMS.unevictable
    del engine
    gc.collect()
    assert backbone() is None
    assert len(PROGRAMS) <= max(before, unevictable) + 1


def test_a_dropped_task_that_was_fitted_is_gone():
    texts = ["to be or not", "the rest is silence"] * 4
    tokenizer = kt.Tokenizer.train(texts, "wordpiece", vocabulary_size=30)
    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=tokenizer.vocabulary_size, hidden_dim=8, num_layers=1,
        num_heads=2, intermediate_dim=8,
    )  # fmt: skip
    task = kt.TextClassifier(kt.models.Encoder(config), tokenizer, num_classes=2)
    task.fit(texts, [0, 1] * 4, verbose=0)
    task.predict(texts[:2], verbose=0)
    this = weakref.ref(task)
    del task
    gc.collect()
    assert this() is None


def test_steps_of_keras_are_bounded_and_right(monkeypatch):
    monkeypatch.setattr(PROGRAMS, "most", PROGRAMS.unevictable + 3)
    monkeypatch.setattr(PROGRAMS, "most_unevictable", PROGRAMS.unevictable + 3)
    texts = ["never dull " * count for count in range(1, 9)]
    tokenizer = kt.Tokenizer.train(texts, "wordpiece", vocabulary_size=30)
    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=tokenizer.vocabulary_size, hidden_dim=8, num_layers=1,
        num_heads=2, intermediate_dim=8,
    )  # fmt: skip
    task = kt.TextClassifier(kt.models.Encoder(config), tokenizer, num_classes=2)
    expected = task.predict(texts, verbose=0)
    for count in (1, 3, 4, 8):
        found = task.predict(texts[:count], verbose=0)
        np.testing.assert_allclose(found, expected[:count], rtol=0, atol=1e-5)
        assert len(PROGRAMS) <= PROGRAMS.most
    for count in (2, 3):
        task.fit(texts[:count], [0] * count, verbose=0)
        assert len(PROGRAMS) <= PROGRAMS.most
    assert PROGRAMS.unevictable <= PROGRAMS.most_unevictable


@pytest.mark.one_backend("tensorflow")
def test_sizes_are_compiled_without_a_warning_of_tensorflow(forks):
    script = """
import keras
from keras_transformer.kernels.programs import compile_function
double = compile_function(lambda x: x * 2, loops=True)
for length in range(1, 8):
    assert double(keras.ops.ones((length,))).shape == (length,)
"""
    done = forks.run("-c", script)
    assert done.returncode == 0, done.stderr
    assert "retracing" not in done.stderr


SAMPLERS = [
    (Greedy(), None),
    on_one(Random(temperature=0.8), None),
    (BeamSearch(3), None),
    on_one(Contrastive(2), None),
    (Speculative(num_draft_tokens=2), None),
    on_one(Greedy(), Rules(no_repeat_ngram_size=2)),
]


@pytest.mark.parametrize("sampler, rules", SAMPLERS, ids=lambda value: type(value).__name__)
def test_room_grows_with_what_is_written(table, sampler, rules):
    """A limit that nobody reaches takes no more than a small one, alone and among others."""
    ends = tuple(range(3, 24, 3))
    settings, engine = Settings(sampler, rules, ends, PAD), Watched(table)
    small = run(engine, settings, PROMPTS[:3], [60, 60, 5])
    assert all(row[0][-1] in ends for row in small[:2])  # so that the next call comes to an end
    seen = [engine.sizes, engine.slots, engine.widths]
    engine.sizes, engine.slots, engine.widths = [], [], []
    large = run(engine, settings, PROMPTS[:3], [10**9, 2**30, 5])
    assert large == small
    assert [engine.sizes, engine.slots, engine.widths] == seen
    assert max(itertools.chain(*seen), default=0) <= 256


@on_cpu
def test_more_tokens_than_there_was_room_for(table):
    """Random numbers too go on where they were."""
    settings = Settings(Random(), Rules(frequency_penalty=0.1), (), PAD)
    engine, prompts = Watched(table), PROMPTS[:2]
    grown = run(engine, settings, prompts, [110, 10])
    assert len(set(engine.sizes)) > 1 and [len(row[0]) for row in grown] == [110, 10]
    short = run(engine, settings, prompts, [40, 10])
    assert [row[0][:40] for row in grown] == [row[0] for row in short]


@pytest.mark.one_backend
def test_a_stream_without_a_limit_is_closed():
    lm = kt.CausalLM.from_preset("gpt_tiny_shakespeare")
    whole = lm.generate("to be", max_new_tokens=12)
    stream = lm.generate("to be", max_new_tokens=10**9, stream=True)
    text = "".join(itertools.islice(stream, 3))
    stream.close()
    assert text and (whole.startswith(text) or text.startswith(whole))


@pytest.mark.parametrize("sampler", [Greedy(), on_one(BeamSearch(2))], ids=["greedy", "beam"])
def test_threads_share_an_engine(backbone, sampler, monkeypatch):
    """Also where what one runs is dropped because another needs the place."""
    monkeypatch.setattr(PROGRAMS, "most", PROGRAMS.unevictable + 3)
    engine, settings = Engine(backbone), Settings(sampler, None, (5,), PAD)
    jobs = [(PROMPTS[i : i + n], [6 + n] * n) for i, n in enumerate([1, 2, 4, 1, 3, 2, 4, 1])]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(run, engine, settings, *job) for job in jobs]
        together = [future.result(timeout=300) for future in futures]
    monkeypatch.undo()
    assert together == [run(engine, settings, *job) for job in jobs]


@on_cpu
def test_predictions_are_the_same_at_sizes_at_hand():
    """Few programs for texts of any length and number, one at a time and many."""
    texts = ["never dull " * count for count in range(1, 41)]
    tokenizer = kt.Tokenizer.train(texts, "wordpiece", vocabulary_size=30)
    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=tokenizer.vocabulary_size, hidden_dim=8, num_layers=1,
        num_heads=2, intermediate_dim=8, position="learned", max_sequence_length=50,
    )  # fmt: skip
    task = kt.TextClassifier(kt.models.Encoder(config), tokenizer, num_classes=2)
    expected = np.concatenate(
        [task.predict_on_batch(task.make_dataset([text])[0][0]) for text in texts]
    )
    made = PROGRAMS.made
    for count in (40, 1, 2, 3, 7, 33, 34, 35):
        chosen = np.random.default_rng(count).permutation(40)[:count]
        found = task.predict([texts[i] for i in chosen], batch_size=8, verbose=0)
        np.testing.assert_allclose(found, expected[chosen], rtol=0, atol=1e-5)
    for i in range(40):
        found = task.classify([texts[i]])
        assert abs(found[0][1] - max(_softmax(expected[i]))) < 1e-5
    assert PROGRAMS.made <= made + 10


def _softmax(logits):
    exponentials = np.exp(logits - logits.max())
    return exponentials / exponentials.sum()
