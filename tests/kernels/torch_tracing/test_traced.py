"""PyTorch: functions of layers as flat lists of operations, with products by oneDNN."""

from weakref import WeakValueDictionary

import keras
import numpy as np
import pytest

from keras_transformer.generation import BeamSearch, Engine, Greedy, Settings
from keras_transformer.kernels.programs import PROGRAMS
from keras_transformer.layers.dense import Dense
from tests.generation.common import PAD, engine_inputs, make_backbone, make_prompts, uncached_greedy

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="PyTorch alone is traced so"
)


# The operations that multiply, by what has the matrix.
OF_INT8 = {
    "_OfOneDNN": "onednn::qlinear_pointwise",
    "_OfFBGEMM": "quantized::linear_with_input_q_dq_qweight_dq_output_fp32",
}


def of_int8():
    """The operation of this processor."""
    from keras_transformer.kernels import torch_int8

    return OF_INT8[torch_int8._KIND.__name__]


def traced(function, *models, pack=False):
    """Return a function that calls another one traced."""
    import torch

    from keras_transformer.kernels.torch_tracing.traced import TracedFunction

    made = TracedFunction(function, *models, packed=WeakValueDictionary() if pack else None)
    return torch.inference_mode()(lambda *args, **sizes: made(made.weights_key(), *args, **sizes))


def operations(run):
    """The names of the operations that a call is of, each as often as it comes."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    return {event.key: event.count for event in profile.key_averages()}


def tensor(*shape, seed=0, dtype="float32"):
    array = np.random.default_rng(seed).normal(size=shape)
    return keras.ops.convert_to_tensor(array, dtype)


def generate(engine, prompts, sampler=None, count=6, **options):
    inputs = engine_inputs(engine.backbone, prompts)
    settings = Settings(sampler or Greedy(), None, (), PAD, **options)
    return engine.generate(inputs, settings, count).tokens[:, 0]


def test_a_trace_makes_no_mode_for_each_operation(monkeypatch):
    """A mode keeps the stack of Python where it is made, which takes long."""
    from torch._subclasses import FakeTensorMode

    made, plain = [], FakeTensorMode.__init__
    monkeypatch.setattr(
        FakeTensorMode, "__init__", lambda self, **options: made.append(1) or plain(self, **options)
    )
    before = PROGRAMS.made
    generate(Engine(make_backbone("decoder")), make_prompts([4]))
    assert 0 < len(made) <= PROGRAMS.made - before


def test_a_trace_computes_nothing_and_writes_nothing():
    """A cache is as large as what is traced is to save."""
    from torch._subclasses import FakeTensor

    seen, given, other = [], tensor(3, 4), tensor(4, 4)

    def function(x):
        seen.append((type(x), type(other)))
        x[:, 1] = 7.0
        return keras.ops.matmul(x, other)

    expected, run = keras.ops.copy(given), traced(function)
    expected[:, 1] = 7.0
    assert keras.ops.max(keras.ops.abs(run(given) - expected @ other)) < 1e-5
    assert seen == [(FakeTensor, type(other))]
    assert bool(keras.ops.all(given == expected))  # The program writes, as the function does.


@pytest.mark.cpu
@pytest.mark.parametrize("use_bias", [True, False])
def test_products_with_weights_are_onednns_in_each_step(use_bias):
    engine, prompts = Engine(make_backbone("decoder", use_bias=use_bias)), make_prompts([4])
    generate(engine, prompts)
    found = set(operations(lambda: generate(engine, prompts)))
    assert "mkldnn::_linear_pointwise" in found and not found & {"aten::mm", "aten::addmm"}


@pytest.mark.cpu
@pytest.mark.parametrize("kind", ["decoder", "seq2seq"])
@pytest.mark.parametrize("sampler", [Greedy(), BeamSearch(3)])
def test_with_packed_weights_prompts_are_traced_too(kind, sampler):
    backbone = make_backbone(kind, num_layers=2)
    plain, packed = Engine(backbone), Engine(backbone)
    for lengths in ([4, 2], [7], [4, 2]):
        prompts = make_prompts(lengths)
        wanted = generate(plain, prompts, sampler)
        found = generate(packed, prompts, sampler, pack_weights=True)
        np.testing.assert_array_equal(found, wanted)
    made = PROGRAMS.made
    found = set(operations(lambda: generate(packed, prompts, sampler, pack_weights=True)))
    assert PROGRAMS.made == made and not found & {"aten::mm", "aten::addmm", "aten::linear"}


def test_packed_weights_that_change_are_packed_anew():
    backbone = make_backbone("decoder")
    engine, prompts = Engine(backbone), make_prompts([4, 3])
    before = generate(engine, prompts, pack_weights=True)
    others = make_backbone("decoder", seed=5)
    for variable, other in zip(backbone.weights, others.weights, strict=True):
        variable.assign(other)
    after = generate(engine, prompts, pack_weights=True)
    assert (before != after).any()
    np.testing.assert_array_equal(after, uncached_greedy(others, prompts, 6))


@pytest.mark.cpu
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("library", list(OF_INT8))
def test_int8_products(rows, pack, dtype, library, monkeypatch):
    from keras_transformer.kernels import torch_int8

    monkeypatch.setattr(torch_int8, "_KIND", getattr(torch_int8, library))
    model = keras.Sequential([keras.Input((16,), dtype=dtype), Dense(7, dtype=dtype)])
    model.layers[-1].quantize("int8")
    states = tensor(rows, 16, dtype=dtype)
    run = traced(model, model, pack=pack)
    found = run(states)
    ran = set(operations(lambda: run(states))) & {"aten::_int_mm", *OF_INT8.values()}
    assert ran == {OF_INT8[library]}
    # One place of bfloat16 at most.
    check(found, model(states), atol=1e-6, rtol=0 if dtype == "float32" else 2**-7)


@pytest.mark.cpu
@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_products_of_the_same_rows_are_one(use_bias, dtype):
    from keras_transformer.kernels.torch_products import takes_bfloat16

    computed = "float32" if dtype == "int8" else dtype
    inputs = keras.Input((16,), dtype=computed)
    sizes = (5, 7, 7)  # fewer key heads
    layers = [Dense(n, dtype=computed, use_bias=use_bias, bias_initializer="normal") for n in sizes]
    model = keras.Model(inputs, [layer(inputs) for layer in layers])
    if dtype == "int8":
        for layer in layers:
            layer.quantize("int8")
    name = of_int8() if dtype == "int8" else "mkldnn::_linear_pointwise"
    for rows in (1, 3):
        states = tensor(rows, 16, dtype=computed)
        for pack in (False, True):
            run = traced(model, model, pack=pack)
            found = run(states)
            if dtype != "bfloat16" or takes_bfloat16():
                count = operations(lambda run=run, x=states: run(x))[name]
                assert count == (1 if pack else 3)
            tolerance = {"atol": 0.02} if dtype == "bfloat16" else {"atol": 1e-5}
            for one, other in zip(found, model(states), strict=True):
                check(one, other, **tolerance)


@pytest.mark.cpu
@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("library", ["oneDNN", "MKL"])
def test_large_packed_matrices_are_those_of_the_library_that_was_faster(
    use_bias, library, monkeypatch
):
    import torch

    from keras_transformer.kernels.torch_tracing import float32

    asked = []

    def choose(what, ways):
        asked.append(what)
        for one, other in zip(*(prepare() for prepare in ways().values()), strict=True):
            torch.testing.assert_close(one(), other(), rtol=1e-4, atol=1e-4)
        return library

    monkeypatch.setattr(float32, "choose", choose)
    inputs = keras.Input((200,))
    layers = [Dense(size, use_bias=use_bias, bias_initializer="normal") for size in (300, 70)]
    model = keras.Model(inputs, [layer(inputs) for layer in layers])
    run = traced(model, model, pack=True)
    for rows in (1, 3, 40):
        states = tensor(rows, 200)
        for one, other in zip(run(states), model(states), strict=True):
            check(one, other, atol=1e-4)
        found = operations(lambda states=states: run(states))
        names = {"oneDNN": "mkldnn::_linear_pointwise", "MKL": "mkl::_mkl_linear"}
        assert {name for name in names if names[name] in found} == {library}
    assert asked == [("packed float32", 200, 370)]  # packed once, as one matrix


@pytest.mark.cpu
@pytest.mark.parametrize("chosen", ["oneDNN", "matmul"])
def test_large_matrices_that_are_not_packed(chosen, monkeypatch):
    from keras_transformer.kernels import torch_products

    monkeypatch.setattr(torch_products, "choose", lambda what, ways: chosen)
    model = keras.Sequential([keras.Input((200,)), Dense(400, bias_initializer="normal")])
    run = traced(model, model)
    check(run(tensor(3, 200)), model(tensor(3, 200)), atol=1e-4)
    found = operations(lambda: run(tensor(3, 200)))
    names = {"oneDNN": "mkldnn::_linear_pointwise", "matmul": "aten::addmm"}
    assert {name for name in names if names[name] in found} == {chosen}


@pytest.mark.cpu
@pytest.mark.parametrize("pack", [False, True])
def test_a_product_of_a_product(pack):
    inputs = keras.Input((16,))
    model = keras.Model(inputs, Dense(3, use_bias=False)(Dense(5, use_bias=False)(inputs)))
    run = traced(model, model, pack=pack)
    check(run(tensor(2, 16)), model(tensor(2, 16)), atol=1e-6)
    assert operations(lambda: run(tensor(2, 16)))["mkldnn::_linear_pointwise"] == 2


def check(found, wanted, **tolerance):
    found, wanted = (keras.ops.convert_to_numpy(x).astype("float32") for x in (found, wanted))
    np.testing.assert_allclose(found, wanted, **{"rtol": 0, **tolerance})


def test_what_is_the_same_in_each_call_is_computed_once():
    from keras import ops

    def shifted(x):
        return x + ops.sin(ops.cast(ops.arange(8), "float32") * 0.5)

    run = traced(shifted)
    check(run(tensor(2, 8)), shifted(tensor(2, 8)), atol=1e-6)
    assert not set(operations(lambda: run(tensor(2, 8)))) & {"aten::sin", "aten::arange"}


def test_what_is_written_to_or_returned_is_made_in_each_call():
    import torch
    from keras import ops

    def written(x):
        made = ops.zeros((2, 8))
        rows = ops.reshape(made, (16,))
        rows.add_(ops.reshape(x, (16,)))
        return made, ops.reshape(ops.ones((4, 4)), (2, 8))

    run = traced(written)
    for seed in (1, 2):
        x = tensor(2, 8, seed=seed)
        total, ones = run(x)
        check(total, x)
        check(ones, np.ones((2, 8)))
        with torch.inference_mode():
            ones.mul_(5)


def test_what_is_done_in_place_keeps_its_dtype():
    import torch

    def halved(x, y):
        return torch.neg(x.bfloat16()).mul_(y), (x + 1).mul_(y)

    given = (tensor(4), tensor(4, seed=1))
    for one, other in zip(traced(halved)(*given), halved(*given), strict=True):
        assert one.dtype == other.dtype
        check(one, other)


def test_drawn_numbers_are_drawn_in_each_call():
    import torch

    run = traced(lambda x: x + torch.rand_like(x))
    assert (run(tensor(8)) != run(tensor(8))).any()


def test_views_of_views():
    from keras import ops

    def turned(x):
        # A view of one that is not in order in memory stays two.
        y = ops.transpose(ops.reshape(x, (2, 3, 4)), (1, 0, 2))
        z = ops.reshape(ops.reshape(y, (3, 8)), (3, 2, 4))
        return ops.reshape(ops.reshape(ops.reshape(x, (24,)), (4, 6)), (2, 12)), z

    for one, other in zip(traced(turned)(tensor(2, 12)), turned(tensor(2, 12)), strict=True):
        check(one, other)


def test_what_is_given_by_keyword_is_traced_anew():
    run = traced(lambda x, other, *, times: (x * times, other))
    for times in (2, 3, 2):
        found, other = run(tensor(3), None, times=times)
        check(found, tensor(3) * times)
        assert other is None
