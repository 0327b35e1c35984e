"""PyTorch: a loop whose steps are captured, with a recorder that runs what it recorded again."""

import gc

import keras
import numpy as np
import pytest

from keras_transformer.generation import (
    BeamSearch,
    Contrastive,
    Engine,
    Greedy,
    Random,
    Scheduler,
    Settings,
    Speculative,
)
from keras_transformer.kernels import compiling
from tests.generation.common import END, PAD, engine_inputs, make_backbone, make_prompts

pytestmark = pytest.mark.one_backend("torch")
PROMPTS, LIMIT = make_prompts([5, 2, 8, 1]), 24


class Recorder:
    """Stands for a CUDA graph: what was recorded runs again at each replay, in the same buffers."""

    def __init__(self):
        self.recorded = self.replays = 0

    def __call__(self, function):
        self.recorded += 1

        def replay():
            self.replays += 1
            function()

        return replay


@pytest.fixture
def recorder(monkeypatch):
    from keras_transformer.kernels.torch_tracing import captured

    made = Recorder()
    monkeypatch.setattr(captured, "record", made)
    monkeypatch.setattr(compiling, "_is_captured", lambda state: True)
    return made


@pytest.fixture(scope="module")
def backbone():
    return make_backbone("decoder", position="rotary", num_key_value_heads=2, seed=3)


@pytest.fixture(scope="module")
def translator():
    return make_backbone("seq2seq", seed=1)


def generate(engine, sampler, end_ids=(END,), prompts=PROMPTS, seed=0):
    inputs = engine_inputs(engine.backbone, prompts)
    uniforms = np.random.default_rng(seed).random((len(prompts), LIMIT * sampler.draws), "float32")
    settings = Settings(sampler, None, end_ids, PAD)
    return engine.generate(inputs, settings, LIMIT, uniforms)


@pytest.mark.parametrize(
    "name, sampler",
    [
        ("backbone", Greedy()),
        ("backbone", Random(temperature=2.0)),
        ("translator", Greedy()),
        ("translator", BeamSearch(3)),
        ("backbone", Contrastive()),
        ("backbone", Speculative(num_draft_tokens=3)),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_captured_steps_give_what_plain_ones_do(name, sampler, request, monkeypatch):
    model = request.getfixturevalue(name)
    expected = generate(Engine(model), sampler)
    recorder, engine = request.getfixturevalue("recorder"), Engine(model)
    for _ in range(2):
        found = generate(engine, sampler)
        np.testing.assert_array_equal(found.tokens, expected.tokens)
        np.testing.assert_array_equal(found.counts, expected.counts)
        recorded, recorder.recorded = recorder.recorded, 0
    assert recorded == 0 < recorder.replays  # what the first call captured, the second one had


def test_the_host_looks_at_finished_rows_seldom(backbone, recorder, monkeypatch):
    looks, finished = [], Greedy.finished

    def counted(self, state, limits):
        looks.append(1)
        return finished(self, state, limits)

    monkeypatch.setattr(Greedy, "finished", counted)
    generate(Engine(backbone), Greedy(), end_ids=())
    # Replays of the traced operations, and of the report of a prefill and an end.
    steps, others = LIMIT - 1, 10
    assert recorder.replays == steps - 1
    assert len(looks) <= steps / compiling.STEPS_BETWEEN_LOOKS + others


def test_two_batches_in_turns_have_buffers_of_their_own(backbone, recorder):
    engine, settings = Engine(backbone), Settings(Greedy(), None, (), PAD)
    groups = [PROMPTS, make_prompts([3, 7, 8, 2], seed=5)]
    expected = [generate(engine, Greedy(), (), prompts).tokens for prompts in groups]
    recorder.recorded = 0
    batches = [
        engine.prefill(engine_inputs(backbone, prompts), settings, np.full((4,), LIMIT, "int32"))
        for prompts in groups
    ]
    while not all(engine.finished(batch).all() for batch in batches):
        for batch in batches:
            engine.extend(batch, 5)
    for batch, tokens in zip(batches, expected, strict=True):
        np.testing.assert_array_equal(engine.outputs(batch).tokens[..., :LIMIT], tokens)
    assert recorder.recorded == 1  # the one that there was held the first batch


def test_rows_that_leave_and_join(backbone, recorder):
    def run():
        settings = Settings(Greedy(), None, (END, 7), PAD)
        made = Scheduler(
            Engine(backbone),
            settings,
            lambda ids, mask: {"token_ids": ids, "padding_mask": mask},
            batch_size=4,
        )
        prompts = make_prompts(np.random.default_rng(0).integers(1, 9, 20).tolist())
        limits = np.random.default_rng(1).integers(1, 40, 20).tolist()
        return {x.index: x.tokens for x in made.run(prompts, limits)}

    found, replays = run(), recorder.replays
    assert replays > 20
    with pytest.MonkeyPatch.context() as plain:
        plain.setattr(compiling, "_is_captured", lambda state: False)
        assert run() == found


def test_other_numbers_in_the_weights(recorder):
    model = make_backbone("decoder", seed=6)
    engine = Engine(model)
    before = generate(engine, Greedy()).tokens
    kernel = next(x for x in model.weights if x.name == "reverse_embeddings")
    kernel.assign(-kernel.value)
    after = generate(engine, Greedy()).tokens
    assert (before != after).any()
    np.testing.assert_array_equal(after, generate(Engine(model), Greedy()).tokens)


def test_steps_that_cannot_be_captured_run_as_they_are(backbone, recorder, monkeypatch, caplog):
    from keras_transformer.kernels.torch_tracing import captured

    expected = generate(Engine(backbone), Greedy()).tokens

    def refused(function):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(captured, "record", refused)
    np.testing.assert_array_equal(generate(Engine(backbone), Greedy()).tokens, expected)
    assert "not permitted" in caplog.text


@pytest.mark.thorough
def test_steps_compiled_by_inductor(recorder):
    import torch

    model, compiled = make_backbone("decoder", seed=6, position="rotary"), []
    expected = generate(Engine(model), Greedy()).tokens
    engine, inductor = Engine(model), torch._inductor.compile

    def counted(*args, **kwargs):
        compiled.append(inductor(*args, **kwargs))
        return compiled[-1]

    def tokens():
        settings = Settings(Greedy(), None, (END,), PAD, compile_steps=True)
        return engine.generate(engine_inputs(model, PROMPTS), settings, LIMIT).tokens

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch._inductor, "compile", counted)
        np.testing.assert_array_equal(tokens(), expected)
        sizes = len(compiled)
        assert sizes > 0
        for weight in model.weights:  # small ones too, which a compiler takes for constants
            weight.assign(0.5 * weight.value)
        np.testing.assert_array_equal(tokens(), generate(Engine(model), Greedy()).tokens)
        assert len(compiled) == sizes


def test_captures_that_wait_keep_a_bounded_part_of_the_memory(backbone, recorder, monkeypatch):
    """The bound holds for all engines together: one for each would grow with their number."""
    from keras_transformer.kernels.device import Device
    from keras_transformer.kernels.torch_tracing import captured

    engines = [Engine(backbone), Engine(backbone)]
    for engine in engines:
        generate(engine, Greedy())
    monkeypatch.setattr(captured, "device", lambda: Device("torch", "cuda", memory=8))
    for engine, rows in zip((*engines, engines[0]), (2, 3, 2), strict=True):
        recorder.recorded = 0
        generate(engine, Greedy(), prompts=PROMPTS[:rows])
        assert recorder.recorded == 1  # the capture of other rows was dropped
        gc.collect()
        assert sum(len(loop._captures) for loop in captured._LOOPS) == 1


def test_a_step_is_on_the_device_alone(forks):
    """A decoding step copies nothing to the device and asks for no number: it can be captured."""
    import json
    from pathlib import Path

    done = forks.run(Path(__file__).parents[1] / "pretend_gpu.py", "--decode")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name: step["copies"] for name, step in found.items()} == dict.fromkeys(found, 0)
    assert found["greedy"]["operations"] < 200, keras.backend.backend()
