"""Automata for the patterns of JSON Schemas, which may match anywhere in a string.

Python's `re` takes exponential time for some of them and blocks all threads meanwhile. An
automaton takes one step for each byte.
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from re import _constants as codes
from re import _parser as parser

from keras_transformer.generation.constraints.byte_automaton import (
    Builder,
    ByteAutomaton,
    UnsupportedPattern,
    automaton_of,
    intersection,
    is_anchor,
)
from keras_transformer.generation.constraints.characters import EITHER, JSON_STRING

# Most different patterns of a schema, and most searches for them in names and values.
_MOST_PATTERNS, _MOST_SEARCHES = 1_000, 1_000_000


class _Searches:
    """The patterns of one schema, each compiled once, and the number of searches for them."""

    def __init__(self) -> None:
        self.automata: dict[str, ByteAutomaton] = {}
        self.count = 0

    def automaton(self, pattern: str) -> ByteAutomaton:
        self.count += 1
        if self.count > _MOST_SEARCHES:
            raise UnsupportedPattern(
                f"looks for its patterns more than {_MOST_SEARCHES:,} times in names and values: "
                "give it fewer patterns, or fewer names and values."
            )
        if pattern not in self.automata:
            if len(self.automata) == _MOST_PATTERNS:
                raise UnsupportedPattern(
                    f"has more than {_MOST_PATTERNS:,} patterns: give it fewer."
                )
            self.automata[pattern] = _searching(pattern)
        return self.automata[pattern]


_OF_THIS_SCHEMA: ContextVar[_Searches] = ContextVar("patterns of the schema that is compiled")


@contextlib.contextmanager
def searches() -> Iterator[None]:
    """Cache the patterns passed to `is_found`, and limit the number of its calls."""
    token = _OF_THIS_SCHEMA.set(_Searches())
    try:
        yield
    finally:
        _OF_THIS_SCHEMA.reset(token)


def search(pattern: str, builder: Builder, start: int) -> int:
    """Add the JSON strings in which a pattern is found, and return the node after them."""
    tree = parser.parse(pattern)
    return _found(list(tree), tree.state.flags | JSON_STRING, False, builder, start)


def is_found(pattern: str, text: str) -> bool:
    """Return whether `re.search` would find a pattern in a text; call it within `searches`."""
    automaton, state = _OF_THIS_SCHEMA.get().automaton(pattern), 0
    for byte in text.encode():
        state = automaton.transitions[state, byte]
        if state < 0:
            return False
    return bool(automaton.accepting[state])


def _searching(pattern: str) -> ByteAutomaton:
    tree = parser.parse(pattern)
    found = functools.partial(_found, list(tree), tree.state.flags, False)
    return automaton_of(found)


def _found(items: Sequence, flags: int, is_start: bool, builder: Builder, start: int) -> int:
    """Add the texts in which items of a pattern are found; with `is_start` only at the start."""
    end = builder.node()
    for branch in _branches(list(items)):
        begins, looks = is_start, []
        while branch and (is_anchor(branch[0], 0) or (begins and _looks_ahead(branch[0]))):
            if is_anchor(branch[0], 0):
                begins = True
            else:
                looks.append(branch[0])
            branch = branch[1:]
        part = functools.partial(_branch, branch, flags, begins)
        if looks:
            automaton = automaton_of(part)
            for code, (_, inner) in looks:
                # A negative look-ahead excludes what either of the readings, Python or ECMAScript,
                # excludes.
                is_not = code is codes.ASSERT_NOT
                inner_flags = flags ^ EITHER if is_not and flags & JSON_STRING else flags
                ahead = functools.partial(_found, list(inner), inner_flags, True)
                automaton = intersection(automaton, automaton_of(ahead), without=is_not)
            node = builder.embed(automaton, start)
        else:
            node = part(builder, start)
        builder.free[node].append(end)
    return end


def _branch(items: Sequence, flags: int, begins: bool, builder: Builder, start: int) -> int:
    """Add the texts in which items without a leading anchor are found."""
    in_json = flags & JSON_STRING
    node = start if begins else builder.regex("(?s:.)*", start, in_json)
    last = items[-1] if items and is_anchor(items[-1], -1) else None
    node = builder.sequence(items, node, flags, frozenset({-1}))
    if last is None:
        return builder.regex("(?s:.)*", node, in_json)
    if last[1] is codes.AT_END and (not in_json or flags & EITHER):
        return builder.regex("\n?", node, in_json)  # Python's `$` also matches before a newline
    return node


def _looks_ahead(item: tuple) -> bool:
    code, value = item
    return code in (codes.ASSERT, codes.ASSERT_NOT) and value[0] > 0


def _branches(items: list) -> list[list]:
    """Return the top-level alternatives of a pattern, each possibly with anchors."""
    if len(items) == 1 and items[0][0] is codes.BRANCH:
        return [each for branch in items[0][1][1] for each in _branches(list(branch))]
    if len(items) == 1 and items[0][0] is codes.SUBPATTERN and not any(items[0][1][1:3]):
        return _branches(list(items[0][1][3]))
    return [items]
