"""Preferences of lists and tables, and rows that are refused by their number."""

import pytest

from keras_transformer.data.preferences import read_preferences

pytestmark = pytest.mark.backend_independent

HELLO = [{"role": "user", "content": "Hello"}]


def says(text):
    return [{"role": "assistant", "content": text}]


def test_the_forms_of_pairs():
    expected = ["Hi!", "Bye."], ([" Hello", " See you"], [" Go", " No"])
    lists = (expected[0], *expected[1])
    table = dict(zip(("prompt", "chosen", "rejected"), lists, strict=True))
    rows = [dict(zip(table, row, strict=True)) for row in zip(*lists, strict=True)]
    whole = {
        side: [p + text for p, text in zip(table["prompt"], table[side], strict=True)]
        for side in ("chosen", "rejected")
    }
    for given in (lists, (table,), (rows,), (whole,), (None, whole["chosen"], whole["rejected"])):
        read = read_preferences(*given)
        assert (read.prompts, read.completions) == expected and read.labels is None


def test_conversations():
    whole = {"chosen": [HELLO + says("Hi")], "rejected": [HELLO + says("What?")]}
    explicit = {"prompt": [HELLO], "chosen": [says("Hi")], "rejected": [says("What?")]}
    strings = {"prompt": [HELLO], "chosen": ["Hi"], "rejected": ["What?"]}
    for table in (whole, explicit, strings):
        read = read_preferences(table)
        assert read.prompts == [HELLO]
        assert read.completions == ([says("Hi")], [says("What?")])


def test_labelled_completions():
    read = read_preferences({"prompt": ["a", "b"], "completion": ["c", "d"], "label": [True, 0]})
    assert read.completions == (["c", "d"],) and read.labels == [True, False]


@pytest.mark.parametrize(
    "given, message",
    [
        ((["a"], ["b", "c"], ["d", "e"]), "2 chosen texts and 1 prompts"),
        ((["a", "b"], ["c", "c"], ["d", "c"]), r"chosen\[1\] and rejected\[1\] are the same"),
        ((["a", "b"], ["c", ""], ["d", "e"]), r"chosen\[1\] is empty"),
        (([HELLO], [says("")], [says("b")]), r"chosen\[0\] is empty"),
        ((["a"], ["b"], [float("nan")]), r"rejected\[0\] must be a string .*nan"),
        ((["a", None], ["b", "b"], ["c", "c"]), r"prompts\[1\] must be a string .*None"),
        ((None, ["ab", "xy"], ["ac", "uv"]), "Row 1 has no `prompt`"),
        ((None, ["ab"], ["a"]), r"rejected\[0\] is empty"),
        (({"chosen": ["a"]},), "needs the columns 'chosen' and 'rejected'"),
        ((["a"],), "needs the columns"),
        (([], [], []), "There are no rows"),
        (("a", "b", "c"), "`prompts` must be a list"),
        (
            ({"prompt": ["a", "b"], "completion": ["c", "d"], "label": [True, 2]},),
            r"labels\[1\] must be True or False",
        ),
        (([[{"role": "user"}]], [says("a")], [says("b")]), r"prompts\[0\]\[0\] must be a message"),
        ((["a"], [says("b")], [says("c")]), r"chosen\[0\] is a conversation"),
    ],
)
def test_rows_that_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        read_preferences(*given)
