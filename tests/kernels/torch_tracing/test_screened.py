"""Products of which the largest number of each row is exact, whatever the numbers are."""

import keras
import numpy as np
import pytest

from keras_transformer.generation import BeamSearch, Engine, Greedy, Rules, Settings
from keras_transformer.kernels.programs import PROGRAMS
from tests.generation.common import (
    PAD,
    engine_inputs,
    make_backbone,
    make_prompts,
    uncached_greedy,
)
from tests.kernels.torch_tracing.test_traced import generate, operations
from tests.thorough import seeds

if keras.backend.backend() != "torch":
    pytest.skip("PyTorch alone has them", allow_module_level=True)

import torch

from keras_transformer.kernels.torch_tracing import float16_prefilter
from keras_transformer.kernels.torch_tracing.float16_prefilter import Float16Prefilter, multiply

pytestmark = pytest.mark.each_backend

SCREENED = "quantized::linear_dynamic_fp16"


def matrix_and_rows(case, rows, seed):
    draw = np.random.default_rng(seed).normal
    matrix, states = draw(size=(900, 64)), draw(size=(rows, 64))
    if case == "common":  # as of language models: all products are far from 0, and near each other
        states[:, :3] += 200
        matrix[:, :3] = 1 + 0.01 * draw(size=(900, 3))
    elif case == "equal":
        matrix[450:] = matrix[:450]
    elif case == "nearly":  # nearer to each other than float16 tells apart
        matrix[100:130] = matrix[100] * (1 + 2e-5 * draw(size=(30, 1)))
        states += 3 * matrix[100]
    elif case == "small":
        matrix *= 1e-7  # below what float16 has in full
    elif case == "outliers":
        matrix[::50] *= 100
    as_tensor = lambda x: torch.tensor(x, dtype=torch.float32)  # noqa: E731
    return as_tensor(matrix), as_tensor(states)


CASES = ["normal", "common", "equal", "nearly", "small", "outliers"]


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("case", CASES)
def test_the_largest_is_that_of_the_whole_product(case, rows):
    for seed in seeds(5):
        matrix, states = matrix_and_rows(case, rows, seed)
        exact = states.double() @ matrix.double().T
        prefilter = Float16Prefilter.from_matrix(matrix)
        found = multiply(states, prefilter)
        assert torch.equal(found, multiply(states, prefilter, torch.zeros(900)))
        places = found.argmax(1)
        rounding = 64 * 2**-23 * states.norm(dim=1) * matrix.norm(dim=1).max()
        each = torch.arange(rows)
        assert (exact[each, places] >= exact.max(1).values - rounding).all()
        if case in ("equal", "normal", "common"):
            assert (places == exact.argmax(1)).all()
        assert ((found - exact).abs() <= states.norm(dim=1, keepdim=True) * prefilter.error).all()
        # What is largest is multiplied in float32.
        assert ((found.max(1).values - exact[each, places]).abs() <= rounding).all()


def test_a_bias_decides_too():
    matrix, states = matrix_and_rows("nearly", 40, 0)
    prefilter, random, wrong = Float16Prefilter.from_matrix(matrix), np.random.default_rng(0), 0
    for row in states[:, None]:
        # The sums are this noise: some are nearer to the largest than float16 is to the product.
        noise = torch.tensor(0.1 * random.normal(size=900), dtype=torch.float32)
        bias = noise - (row @ matrix.T)[0]
        largest = (row.double() @ matrix.double().T + bias)[0].argmax()
        assert multiply(row, prefilter, bias)[0].argmax() == largest
        wrong += int((multiply(row, prefilter) + bias)[0].argmax() != largest)
    assert wrong  # where the bias comes behind


def test_float16_alone_would_take_another():
    """So the cases above show something."""
    wrong = 0
    for seed in seeds(5):
        matrix, states = matrix_and_rows("nearly", 5, seed)
        rounded = states @ matrix.half().float().T
        wrong += int((rounded.argmax(1) != (states @ matrix.T).argmax(1)).sum())
    assert wrong


def test_where_all_may_be_the_largest_all_are_multiplied():
    matrix, states = torch.ones(900, 64), torch.ones(2, 64)
    assert torch.equal(
        multiply(states, Float16Prefilter.from_matrix(matrix)), torch.full((2, 900), 64.0)
    )


def test_numbers_that_are_none():
    matrix, states = matrix_and_rows("normal", 2, 0)
    states[1, 3] = float("nan")
    found = multiply(states, Float16Prefilter.from_matrix(matrix))
    assert found[0].isfinite().all() and found[1].isnan().all()
    for number in (float("nan"), float("inf"), -1e6):  # the last is beyond float16
        matrix[7, 3] = number
        before = matrix.clone()
        assert Float16Prefilter.from_matrix(matrix) is None
        assert torch.equal(matrix.nan_to_num(), before.nan_to_num())


@pytest.fixture
def small(monkeypatch):
    """Matrices of any size are screened."""
    monkeypatch.setattr(float16_prefilter, "LEAST_NUMBERS", 0)


@pytest.mark.cpu
@pytest.mark.parametrize(
    "kind, values",
    [
        ("decoder", {}),
        ("decoder", {"tie_embeddings": True, "logit_scale": 0.5}),
        ("seq2seq", {"output_bias": True}),
    ],
)
def test_greedy_search_with_packed_weights(kind, values, small):
    backbone = make_backbone(kind, **values)
    packed = Engine(backbone)
    for lengths in ([4, 2], [7]):
        prompts = make_prompts(lengths)
        found = generate(packed, prompts, pack_weights=True)
        np.testing.assert_array_equal(found, uncached_greedy(backbone, prompts, 6))
    made = PROGRAMS.made
    ran = operations(lambda: generate(packed, prompts, pack_weights=True))
    assert PROGRAMS.made == made and ran[SCREENED] == 6  # once a token


def test_weights_that_change(small):
    backbone, others = make_backbone("decoder"), make_backbone("decoder", seed=5)
    engine, prompts = Engine(backbone), make_prompts([4, 3])
    generate(engine, prompts, pack_weights=True)
    for variable, other in zip(backbone.weights, others.weights, strict=True):
        variable.assign(other)
    found = generate(engine, prompts, pack_weights=True)
    np.testing.assert_array_equal(found, uncached_greedy(others, prompts, 6))


class OtherGreedy(Greedy):
    """It may look at all logits."""


def test_what_looks_at_other_logits_gets_them_whole(small):
    engine, prompts = Engine(make_backbone("decoder")), make_prompts([4, 3])
    for sampler in (BeamSearch(2), OtherGreedy()):
        ran = operations(lambda s=sampler: generate(engine, prompts, s, pack_weights=True))
        assert SCREENED not in ran
    many = make_prompts([4] * (float16_prefilter.MOST_ROWS + 1))
    assert SCREENED not in operations(lambda: generate(engine, many, pack_weights=True))
    capped = Engine(make_backbone("decoder", logit_soft_cap=5.0))
    assert SCREENED not in operations(lambda: generate(capped, prompts, pack_weights=True))
    assert SCREENED not in operations(lambda: generate(engine, prompts))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("beyond", [False, True])
def test_matrices_that_are_read_whole(bias, beyond, monkeypatch):
    """Small ones, and those with numbers beyond float16."""
    backbone = make_backbone("decoder", output_bias=bias)
    if beyond:
        monkeypatch.setattr(float16_prefilter, "LEAST_NUMBERS", 0)
        kernel = backbone.token_embedding.reverse_embeddings
        kernel.assign(1e5 * np.array(keras.ops.convert_to_numpy(kernel)))
    engine, prompts, found = Engine(backbone), make_prompts([4, 3]), []
    ran = operations(lambda: found.append(generate(engine, prompts, pack_weights=True)))
    assert SCREENED not in ran
    np.testing.assert_array_equal(found[0], uncached_greedy(backbone, prompts, 6))


def test_rules_see_all_logits(small):
    engine, prompts = Engine(make_backbone("decoder")), make_prompts([4])
    free = generate(engine, prompts, pack_weights=True)
    first = int(free[0, 0])
    settings = Settings(Greedy(), Rules(bad_words=((first,),)), (), PAD, pack_weights=True)
    inputs = engine_inputs(engine.backbone, prompts)
    found = []
    ran = operations(lambda: found.append(engine.generate(inputs, settings, 6).tokens))
    assert SCREENED not in ran and first not in found[0]
