"""Conversations of tables: each form, and what a table fills in."""

import numpy as np
import pandas as pd
import pytest

from keras_transformer.data import Conversation, as_conversations, pictured
from keras_transformer.data.conversations import conversation_columns, is_conversations
from keras_transformer.processors import Sound, Video

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.backend_independent

ASKED, SAID = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
SYSTEM = {"role": "system", "content": "s"}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": None, "y": 1}}}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([ASKED, SAID], Conversation([ASKED, SAID])),
        ({"messages": [ASKED, SAID], "id": 3}, Conversation([ASKED, SAID])),
        ({"messages": [ASKED, SAID], "tools": TOOLS}, Conversation([ASKED, SAID], TOOLS)),
        ({"messages": [ASKED, SAID], "tools": '[{"name": "f"}]'},
         Conversation([ASKED, SAID], [{"name": "f"}])),
        ({"messages": [ASKED, {**SAID, "tool_calls": None}], "tools": None},
         Conversation([ASKED, SAID])),
        ({"prompt": "a", "completion": "b"}, Conversation([ASKED, SAID], None, 1, True)),
        ({"prompt": [SYSTEM, ASKED], "completion": "b"},
         Conversation([SYSTEM, ASKED, SAID], None, 2)),
        ({"prompt": [ASKED], "completion": [SAID]}, Conversation([ASKED, SAID], None, 1)),
        ({"instruction": "a", "input": "", "output": "b"}, Conversation([ASKED, SAID], None, 1)),
        ({"instruction": "a", "output": "b", "system": "s"},
         Conversation([SYSTEM, ASKED, SAID], None, 2)),
        ({"instruction": "do", "input": "it", "output": "b"},
         Conversation([{"role": "user", "content": "do\n\nit"}, SAID], None, 1)),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
         Conversation([ASKED, SAID])),
        ({"conversations": [ASKED, SAID], "system": "s"}, Conversation([SYSTEM, ASKED, SAID])),
    ],
)  # fmt: skip
def test_forms_of_a_row(row, expected):
    assert as_conversations([row]) == [expected]
    assert is_conversations([row])
    if isinstance(row, dict):
        table = datasets.Dataset.from_list([row])
        assert as_conversations(table) == as_conversations(table.to_pandas()) == [expected]


def test_what_a_table_fills_in_is_removed():
    """Each message of a table has the keys of all; in a list None is a value."""
    row = {"messages": [ASKED, {"role": "assistant", "content": None, "tool_calls": [CALL]}]}
    (found,) = as_conversations([row])
    assert found.messages[1] == row["messages"][1]
    (found,) = as_conversations(datasets.Dataset.from_list([row]))
    arguments = found.messages[1]["tool_calls"][0]["function"]["arguments"]
    assert arguments == {"y": 1} and found.messages[0] == ASKED
    assert found.messages[1]["content"] is None


def test_images_of_each_form():
    """As a row, and as a row of a table, whose lists pandas reads from Parquet as arrays."""
    held = np.empty(2, object)
    held[:] = ["a.png", {"bytes": b"b"}]
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    for form in (
        {"messages": turns}, {"conversations": turns}, {"prompt": "?", "completion": "!"},
        {"instruction": "?", "output": "!"},
    ):  # fmt: skip
        (row,) = as_conversations([{**form, "images": list(held)}])
        assert row.images == list(held)
        table = {"images": [held, None], "features": [1, 2]}  # datasets have such an attribute
        table |= {name: [value, value] for name, value in form.items()}
        rows = as_conversations(pd.DataFrame(table))
        assert [row.images for row in rows] == [list(held), None]
    for given in ([{"messages": turns, "images": "a.png"}],
                  pd.DataFrame({"messages": [turns], "images": ["a.png"]})):  # fmt: skip
        with pytest.raises(ValueError, match="'images' must be a list, received"):
            as_conversations(given)


def test_videos_and_recordings_of_a_row():
    """Each in a column of its own; parts without content take those of their kind, in order."""
    parts = [{"type": kind} for kind in ("video", "image", "audio", "video")]
    turns = [{"role": "user", "content": parts}, {"role": "assistant", "content": "!"}]
    given = Video("b.mp4", 3.0)
    row = {"messages": turns, "images": ["a.png"], "videos": ["a.mp4", given], "audios": ["a.wav"]}
    expected = ["a.png", Video("a.mp4"), given, Sound("a.wav")]
    table = pd.DataFrame({name: [value, value] for name, value in row.items()})
    table.at[1, "videos"] = None
    for found in (as_conversations([row])[0], as_conversations(table)[0]):
        assert found.images == expected
        assert pictured(found.messages, found.images).images == [
            Video("a.mp4"), "a.png", Sound("a.wav"), given
        ]  # fmt: skip
    assert as_conversations(table)[1].images == ["a.png", Sound("a.wav")]
    for name, kept, message in (
        ("videos", ["a.mp4"], "a column 'videos' with a list .* has only 1 here"),
        ("audios", ["a.wav"] * 2, "1 parts .*'audio'.* without samples, and there are 2 'audios'"),
    ):
        (found,) = as_conversations([{**row, name: kept}])
        with pytest.raises(ValueError, match=message):
            pictured(found.messages, found.images)
    with pytest.raises(ValueError, match="'videos' must be a list, received"):
        as_conversations([{**row, "videos": "a.mp4"}])


def test_columns_that_are_known():
    assert conversation_columns(["id", "tools", "messages", "prompt"]) == ("messages", "tools")
    assert conversation_columns(["completion", "prompt"]) == ("prompt", "completion")
    assert conversation_columns(["instruction", "input", "output", "text"]) == (
        "instruction",
        "output",
        "input",
    )
    assert conversation_columns(["text", "prompt"]) is None
    with pytest.raises(ValueError, match="no known column of conversations.*Rename them"):
        as_conversations(datasets.Dataset.from_list([{"text": "a"}]))


def test_texts_are_no_conversations():
    for data in (["a"], [[1, 2]], (["a"], ["b"]), ["a", [ASKED]], [({"x": 1}, 2)], [], None):
        assert not is_conversations(data)
