"""Conversations by rules: what is right, what is not, and what is held out."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.backend_independent

FILE = Path(__file__).parents[2] / "examples" / "conversations.py"


@pytest.fixture(scope="module")
def conversations():
    spec = importlib.util.spec_from_file_location("conversations_of_examples", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_questions_and_answers(conversations):
    """Answers are right by their own rule, others are not, and what is held out is not trained."""
    parts = conversations.skills(["water", "night", "hands", "house", "world"])
    assert {question.skill for question in parts["train"]} == {"facts", "sums", "repeating"}
    assert not {q.text for q in parts["train"]} & {q.text for q in parts["held_out"]}
    for question in parts["train"] + parts["held_out"]:
        assert question.is_right(question.short) and question.is_right(question.wordy)
        assert not question.is_right("I do not know 777 things.")
        if question.skill == "repeating":
            assert not question.is_right(f"{question.short} {question.answer.split()[0]}")
    rows = conversations.conversations(parts["train"], 20)
    assert all([m["role"] for m in row] == ["user", "assistant"] * (len(row) // 2) for row in rows)
