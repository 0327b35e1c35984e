"""Rewards of functions that are right, wrong, slow, or return something else."""

import fractions
import sys
import time

import numpy as np
import pytest

from keras_transformer.training import Rewards

pytestmark = pytest.mark.backend_independent

ROWS = [("1+1=", "2", {"answer": "2"}), ("2+2=", "five", {"answer": "4"})]


@pytest.mark.parametrize(
    "value, expected",
    [
        (True, 1.0),
        (3, 3.0),
        (np.float32(0.5), 0.5),
        (np.bool_(False), 0.0),
        (np.array(2), 2.0),
        (fractions.Fraction(1, 4), 0.25),
    ],
)
def test_numbers_and_bools_are_rewards(value, expected):
    assert Rewards(lambda *row: value)(ROWS).tolist() == [[expected]] * 2


@pytest.mark.parametrize(
    "value",
    [
        "1.0",
        None,
        np.ones(2),
        np.ones((1, 1)),
        [1.0],
        1j,
        float("nan"),
        float("-inf"),
        1e300,
        10**400,
    ],
)
def test_other_values_are_refused_with_their_row(value):
    def wrong(prompt, completion, row):
        return value if completion == "five" else 1.0

    with pytest.raises(
        ValueError, match=r"'wrong' must return one finite number or a bool"
    ) as info:
        Rewards([lambda *row: 1, wrong])(ROWS)
    said = str(info.value)
    assert "completion 1 of the step" in said
    assert "prompt: '2+2='" in said and "completion: 'five'" in said and "'answer': '4'" in said


def test_what_a_function_changes_reaches_no_other():
    def forges(prompt, completion, row):
        row["answers"].append(completion)
        prompt[0]["content"] = completion
        return 0

    def right(prompt, completion, row):
        return prompt[0]["content"] == "1+1=" and completion in row["answers"]

    prompt, row = [{"role": "user", "content": "1+1="}], {"answers": ["2"]}
    found = Rewards([forges, right])([(prompt, "2", row), (prompt, "3", row)])
    assert found.tolist() == [[0, 1], [0, 0]]
    assert row == {"answers": ["2"]} and prompt[0]["content"] == "1+1="


def test_an_error_of_a_function_is_the_cause():
    def number(prompt, completion, row):
        return int(completion)

    with pytest.raises(RuntimeError, match="'number' raised ValueError: invalid literal") as info:
        Rewards(number)(ROWS)
    assert isinstance(info.value.__cause__, ValueError) and "'five'" in str(info.value)


def test_a_call_that_takes_too_long():
    calls = []

    def slow(prompt, completion, row):
        calls.append(completion)
        time.sleep(5 if completion == "five" else 0)
        return 1.0

    begin = time.perf_counter()
    with pytest.raises(TimeoutError, match=r"'slow' took longer than 0\.2 seconds.*completion 1"):
        Rewards(slow, seconds=0.2)(ROWS)
    assert time.perf_counter() - begin < 3 and calls == ["2", "five"]
    # An error within the time is the function's own.
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        Rewards(lambda *row: 1 / 0, seconds=5)(ROWS)
    # As without a limit, a function may end the program.
    with pytest.raises(SystemExit):
        Rewards(lambda *row: sys.exit(), seconds=60)(ROWS)


def test_weights_and_names():
    rewards = Rewards([lambda *row: 1, lambda *row: 2, len_of], weights=[1, 0.5, 0])
    assert rewards.weights == [1, 0.5, 0] and rewards.names == ["lambda_1", "lambda_2", "len_of"]
    for wrong, said in (
        ({"functions": []}, "empty list"),
        ({"functions": "exact"}, "must be a function"),
        ({"functions": [len_of, 3]}, "at place 1"),
        ({"functions": len_of, "weights": [1, 2]}, "one weight for each"),
        ({"functions": len_of, "seconds": 0}, "reward_seconds"),
    ):
        with pytest.raises(ValueError, match=said):
            Rewards(**wrong)


def len_of(prompt, completion, row):
    return len(completion)
