"""Random sampling: frequencies against the softmax, and the cuts against Transformers'."""

import itertools

import numpy as np
import pytest
from keras import ops

from keras_transformer.generation import Engine, Random
from keras_transformer.generation.samplers.samplers import draw
from tests.generation.common import make_prompts
from tests.generation.tables import TableModel
from tests.generation.test_speculative import chances_of_all, chi_squared, decode, tokens_of

LOGITS = np.random.default_rng(0).normal(size=(6, 300), scale=2.0).astype("float32")


def kept(sampler):
    """Which tokens are left of `LOGITS`, and their logits."""
    filtered = ops.convert_to_numpy(sampler.filtered(ops.convert_to_tensor(LOGITS)))
    return filtered > -1e29, filtered


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_frequencies_are_the_probabilities(temperature):
    """All sequences of two tokens, 4,096 rows; another temperature would not pass."""
    backbone = TableModel(vocabulary_size=6, seed=4)
    prompt = make_prompts([3], 6)[0]
    found = decode(
        Engine(backbone), Random(temperature), [prompt] * 4096, [2] * 4096, batch_size=4096
    )
    rows = tokens_of(found)
    statistic, bound = chi_squared(rows, chances_of_all(backbone, prompt, 2, temperature))
    assert statistic < bound
    statistic, bound = chi_squared(rows, chances_of_all(backbone, prompt, 2, 1.6 * temperature))
    assert statistic > 2 * bound


def test_a_draw_is_the_place_where_the_sum_passes_the_number():
    chances = np.array([[0.2, 0.0, 0.5, 0.3, 0.0]], "float32")
    numbers = np.array([0.0, 0.19, 0.21, 0.69, 0.71, 0.9999999], "float32")
    drawn = draw(
        ops.convert_to_tensor(chances.repeat(len(numbers), 0)), ops.convert_to_tensor(numbers)
    )
    assert ops.convert_to_numpy(drawn).tolist() == [0, 0, 2, 2, 3, 3]


@pytest.mark.parametrize(
    "values, name, theirs",
    [
        ({"top_k": 7}, "TopKLogitsWarper", {"top_k": 7}),
        ({"top_p": 0.8}, "TopPLogitsWarper", {"top_p": 0.8}),
        ({"top_p": 0.05}, "TopPLogitsWarper", {"top_p": 0.05}),
        ({"min_p": 0.1}, "MinPLogitsWarper", {"min_p": 0.1}),
        ({"typical_p": 0.7}, "TypicalLogitsWarper", {"mass": 0.7}),
        ({"epsilon_cutoff": 3e-3}, "EpsilonLogitsWarper", {"epsilon": 3e-3}),
        ({"epsilon_cutoff": 0.9}, "EpsilonLogitsWarper", {"epsilon": 0.9}),
        ({"eta_cutoff": 4e-3}, "EtaLogitsWarper", {"epsilon": 4e-3}),
        ({"eta_cutoff": 0.5}, "EtaLogitsWarper", {"epsilon": 0.5}),
        ({"temperature": 0.5}, "TemperatureLogitsWarper", {"temperature": 0.5}),
    ],
    ids=str,
)
def test_cuts_equal_those_of_transformers(values, name, theirs):
    process = pytest.importorskip("transformers.generation.logits_process")
    torch = pytest.importorskip("torch")
    expected = getattr(process, name)(**theirs)(None, torch.tensor(LOGITS)).numpy()
    left, logits = kept(Random(**values))
    np.testing.assert_array_equal(left, np.isfinite(expected))
    np.testing.assert_allclose(logits[left], expected[left], atol=1e-5)


def cut_exactly(tenths, option, share):
    """The tokens that a cut keeps of chances in tenths, by whole numbers."""
    if option == "min_p":
        return [10 * tenth >= share * max(tenths) for tenth in tenths]
    ordered = sorted(tenths, reverse=True)
    if option == "top_k":
        return [tenth >= ordered[share - 1] for tenth in tenths]
    count = next(n for n in range(1, len(tenths) + 1) if sum(ordered[:n]) >= share)
    return [tenth >= ordered[count - 1] for tenth in tenths]


def test_a_mass_that_is_reached_to_the_last_digit_is_reached():
    """Chances and shares in tenths, whose sums in float32 are a digit above or below them."""
    rows = [r for r in itertools.product(range(1, 8), repeat=4) if sum(r) == 10]
    logits = ops.log(ops.convert_to_tensor(np.array(rows) / 10, "float32"))
    shares = [("top_p", n) for n in range(1, 10)] + [("min_p", n) for n in range(1, 11)]
    for option, share in [*shares, ("top_k", 1), ("top_k", 2), ("top_k", 3)]:
        sampler = Random(**{option: share if option == "top_k" else share / 10})
        found = ops.convert_to_numpy(sampler.filtered(logits)) > -1e29
        expected = [cut_exactly(row, option, share) for row in rows]
        np.testing.assert_array_equal(found, expected, f"{option} {share}")
    typical = Random(typical_p=0.8)  # both of 0.4 have the least distance to the entropy, 1.19
    chances = np.array([[0.4, 0.1, 0.4, 0.1], [0.1, 0.4, 0.1, 0.4]], "float32")
    found = ops.convert_to_numpy(typical.filtered(ops.log(chances))) > -1e29
    np.testing.assert_array_equal(found, chances > 0.2)


def test_cuts_one_after_the_other():
    process = pytest.importorskip("transformers.generation.logits_process")
    torch = pytest.importorskip("torch")
    expected = torch.tensor(LOGITS)
    for warper in (
        process.TemperatureLogitsWarper(0.7),
        process.TopKLogitsWarper(40),
        process.TopPLogitsWarper(0.9),
        process.MinPLogitsWarper(0.02),
        process.TypicalLogitsWarper(0.9),
        process.EpsilonLogitsWarper(0.03),
        process.EtaLogitsWarper(0.05),
    ):
        expected = warper(None, expected)
    cuts = {"top_k": 40, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.9}
    left, _ = kept(Random(0.7, **cuts, epsilon_cutoff=0.03, eta_cutoff=0.05))
    np.testing.assert_array_equal(left, np.isfinite(expected.numpy()))


def test_a_row_draws_the_same_in_any_batch():
    engine = Engine(TableModel(seed=2))
    prompts, limits = make_prompts([4, 2, 6, 3, 3, 5]), [9, 3, 12, 1, 7, 9]
    together = decode(engine, Random(1.3), prompts, limits, (2,), seed=9, batch_size=4)
    assert decode(engine, Random(1.3), prompts, limits, (2,), seed=9, batch_size=1) == together
    others = decode(engine, Random(1.3), prompts, limits, (2,), seed=10, batch_size=4)
    assert tokens_of(others) != tokens_of(together)
    few = decode(engine, Random(top_k=1), prompts, limits, (2,), seed=9)
    assert tokens_of(few) == tokens_of(decode(engine, Random(1e-3), prompts, limits, (2,)))


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    "values, message",
    [
        ({"temperature": 0}, "`temperature` must be a number above 0, received 0. .*Greedy"),
        ({"temperature": "hot"}, "received 'hot'"),
        ({"top_k": 0}, "`top_k` must be an integer of at least 1 or None, received 0"),
        ({"top_k": True}, "received True"),
        ({"top_p": 0.0}, "`top_p` must be a number above 0 and at most 1, received 0.0"),
        ({"top_p": 1.5}, "received 1.5"),
        ({"min_p": -0.1}, "`min_p` must be a number from 0 to 1, received -0.1"),
        ({"typical_p": float("nan")}, "received nan"),
        ({"epsilon_cutoff": 1.0}, "`epsilon_cutoff` must be a number of at least 0 and below 1"),
        ({"eta_cutoff": -1}, "`eta_cutoff` must be"),
    ],
)
def test_bad_values(values, message):
    with pytest.raises(ValueError, match=message):
        Random(**values)
