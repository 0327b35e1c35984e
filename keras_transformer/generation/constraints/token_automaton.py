"""Automata over the tokens of a vocabulary, which accept the texts of a constraint."""

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.generation.constraints.automaton_tables import FAR, steps_to
from keras_transformer.generation.constraints.byte_automaton import (
    ByteAutomaton,
    compile_regex,
    compile_strings,
)
from keras_transformer.generation.constraints.json_schema import compile_json_schema

# Most entries of a table: 256 MB of int32.
_MAX_ENTRIES = 2**26


@dataclasses.dataclass(frozen=True, eq=False)
class TokenAutomaton:
    """An automaton over the tokens of a vocabulary, which accepts the allowed texts.

    The first state is 0. A token `t` leads from state `s` to `transitions[s, token_classes[t]]`; -1
    means that the token is not allowed. Tokens that end a text are not included: they are allowed
    in accepting states. In a state with only -1 the text can only end. From every other state an
    accepting one can be reached.

    Args:
        transitions: int32 `(states, classes)`.
        token_classes: int32 `(vocabulary_size,)`. Tokens of one class have equal transitions in
            every state.
        accepting: bool `(states,)`, where the text may end.

    Example:

    ```python
    from keras_transformer.generation.constraints.constraints import TokenAutomaton

    vocabulary = [b"y", b"yes", b"es", b"no", b" no", None]
    automaton = TokenAutomaton.from_regex("yes|no", vocabulary)
    allowed = automaton.transitions[0, automaton.token_classes] >= 0
    assert allowed.tolist() == [True, True, False, True, False, False]
    ```

    Source: Willard & Louf 2023, section 3.
    """

    transitions: np.ndarray
    token_classes: np.ndarray
    accepting: np.ndarray

    @classmethod
    def from_regex(
        cls, pattern: str, token_bytes: Sequence[bytes | None], optional_space: bool = False
    ) -> "TokenAutomaton":
        r"""Compile a regular expression, which has to match a text as a whole.

        Args:
            pattern: a string in the syntax of Python's `re`, with the same meaning (`\d` matches
                the digits of all scripts; write `[0-9]` or `(?a)` for ASCII). Look-around and
                back-references are not supported.
            token_bytes: list, the bytes that each token adds to the text in UTF-8, or None if the
                token may never be generated.
            optional_space: bool, also allow these texts with a space before them.

        Raises:
            ValueError: if the pattern is invalid, not supported or too large, or if the tokens
                cannot spell any text that matches.
        """
        automaton = compile_regex(pattern, optional_space)
        return _over_tokens(automaton, token_bytes, f"the pattern {pattern!r}")

    @classmethod
    def from_choices(
        cls, choices: Sequence[str], token_bytes: Sequence[bytes | None]
    ) -> "TokenAutomaton":
        """Compile a choice of non-empty strings. For errors and `token_bytes` see `from_regex`."""
        strings = sorted(set(check_choices(choices)))
        try:
            automaton = compile_strings(strings)
        except UnicodeEncodeError as error:
            raise ValueError(f"One of `choices` is not valid Unicode: {error}") from None
        return _over_tokens(automaton, token_bytes, f"any of the {len(strings)} choices")

    @classmethod
    def from_json_schema(
        cls,
        schema: dict | bool,
        token_bytes: Sequence[bytes | None],
        optional_space: bool = False,
    ) -> "TokenAutomaton":
        """Compile a JSON Schema; `docs/generation.md` describes the texts that are accepted.

        Raises ImportError if jsonschema is not installed. See `from_regex` for the other errors and
        arguments.
        """
        automaton = compile_json_schema(schema, optional_space)
        return _over_tokens(automaton, token_bytes, "any text that the JSON Schema allows")

    @functools.cached_property
    def shortest(self) -> int:
        """Number of tokens of the shortest text."""
        return int(steps_to(self.transitions, self.accepting)[0])

    def shortest_behind(self, ids: Sequence[int]) -> int | None:
        """Return the number of tokens of the shortest text that begins with `ids`, or None."""
        if not len(ids):
            return self.shortest
        state = 0
        for token in ids:
            known = token < len(self.token_classes)
            state = self.transitions[state, self.token_classes[token]] if known else -1
            if state < 0:
                return None
        return len(ids) + int(steps_to(self.transitions, self.accepting)[state])

    def without_first(self, ids: Sequence[int]) -> "TokenAutomaton":
        """Return the automaton without the texts that begin with one of the tokens `ids`."""
        # Add a first state, and classes for these tokens.
        states = np.where(self.transitions >= 0, self.transitions + 1, -1)
        banned = np.full_like(states[:1], -1)
        transitions = np.block([[states[:1], banned], [states, states]])
        others = np.delete(self.token_classes, list(ids))
        if not self.accepting[0] and (states[0, others] < 0).all():
            raise ValueError(
                "The tokens of this vocabulary can spell the allowed texts only within a word."
            )
        token_classes = self.token_classes.copy()
        token_classes[list(ids)] += states.shape[1]
        accepting = np.append(self.accepting[:1], self.accepting)
        return TokenAutomaton(transitions, token_classes, accepting)


def compile_constraint(
    kind: str, value: Any, options: Sequence[bool], token_bytes: Sequence[bytes | None],
    never_first: Sequence[int],
) -> TokenAutomaton:  # fmt: skip
    """Compile a constraint with the method `TokenAutomaton.from_KIND`.

    Args:
        kind: "regex", "choices" or "json_schema".
        value: the pattern, the strings, or the schema as JSON text.
        options: further positional arguments of the method.
        token_bytes: see `TokenAutomaton.from_regex`.
        never_first: ids that no text may begin with.
    """
    value = json.loads(value) if kind == "json_schema" else value
    automaton = getattr(TokenAutomaton, f"from_{kind}")(value, token_bytes, *options)
    return automaton.without_first(never_first) if len(never_first) else automaton


def check_choices(choices: Sequence[str]) -> tuple[str, ...]:
    """Check texts to choose from, and return them as a tuple; a set is sorted."""
    if isinstance(choices, np.ndarray) and choices.ndim == 1:
        choices = choices.tolist()
    if not isinstance(choices, (list, tuple, set, frozenset)):
        hint = f" Write [{choices[:40]!r}] for one choice." if isinstance(choices, str) else ""
        raise ValueError(
            f"`choices` must be a list of strings, received {type(choices).__name__}.{hint}"
        )
    if not choices:
        raise ValueError("`choices` is empty: there must be at least one string.")
    for choice in choices:
        if not isinstance(choice, str) or not choice:
            raise ValueError(
                f"Each of `choices` must be a string with at least one character, received "
                f"{choice!r}."
            )
    return tuple(sorted(choices) if isinstance(choices, (set, frozenset)) else choices)


def _over_tokens(
    automaton: ByteAutomaton, token_bytes: Sequence[bytes | None], what: str
) -> TokenAutomaton:
    classes, maps = _walk(automaton, token_bytes)
    transitions = np.array(maps.T, order="C")  # a writable copy
    alive = steps_to(transitions, automaton.accepting) < FAR
    if not alive[0]:
        raise ValueError(
            f"The tokens of this vocabulary cannot spell {what}"
            f"{_missing_first(automaton, token_bytes)}."
        )
    transitions[(transitions >= 0) & ~alive[transitions]] = -1
    # Drop states that bytes lead to but no token does, then merge classes that became equal.
    states = _reached(transitions)
    number = np.full(len(alive) + 1, -1, "int32")
    number[states] = np.arange(len(states))
    transitions = number[transitions[states]]  # -1 stays -1: it is the last of `number`
    columns, same = np.unique(transitions.T, axis=0, return_inverse=True)
    return TokenAutomaton(
        np.ascontiguousarray(columns.T),
        same.reshape(-1)[classes].astype("int32"),
        automaton.accepting[states],
    )


def _walk(
    automaton: ByteAutomaton, token_bytes: Sequence[bytes | None]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the class of each token, and the state that each class leads to from each state."""
    states = len(automaton.accepting)
    byte_columns, byte_classes = np.unique(automaton.transitions, axis=1, return_inverse=True)
    byte_classes = byte_classes.reshape(-1)
    # An additional dead state, from which -1 leads to itself.
    steps = np.vstack([byte_columns, np.full((1, byte_columns.shape[1]), -1)]).astype("int32")
    lengths = np.array([len(token or b"") for token in token_bytes])
    starts = np.cumsum(lengths) - lengths
    letters = byte_classes[np.frombuffer(b"".join(t or b"" for t in token_bytes), "uint8")]

    rows: dict[bytes, int] = {}  # from where a token leads in each state to its class
    found: list[bytes] = []

    def number(leads: np.ndarray) -> int:
        row = leads.tobytes()
        if row not in rows:
            rows[row] = len(found)
            found.append(row)
            if len(found) * states > _MAX_ENTRIES:
                raise ValueError(
                    f"The constraint is too large: {states:,} states and more than "
                    f"{len(found):,} kinds of tokens. Allow fewer or shorter texts."
                )
        return rows[row]

    def leads(numbers) -> np.ndarray:
        data = b"".join([found[each] for each in numbers])
        return np.frombuffer(data, "int32").reshape(-1, states)

    dead = number(np.full(states, -1, "int32"))
    classes, tokens = np.full(len(lengths), dead), np.flatnonzero(lengths)
    at = np.full(len(tokens), number(np.arange(states, dtype="int32")))
    place = 0
    while len(tokens):
        pairs = at * steps.shape[1] + letters[starts[tokens] + place]
        distinct, which = np.unique(pairs, return_inverse=True)
        before, letter = np.divmod(distinct, steps.shape[1])
        chunk, after = max(1, 2**22 // states), []
        for i in range(0, len(distinct), chunk):
            after += map(number, steps[leads(before[i : i + chunk]), letter[i : i + chunk, None]])
        at = np.array(after)[which.reshape(-1)]
        place += 1
        done = lengths[tokens] == place
        classes[tokens[done]] = at[done]
        going = ~done & (at != dead)
        tokens, at = tokens[going], at[going]
    used, classes = np.unique(np.append(classes, dead), return_inverse=True)
    return classes.reshape(-1)[:-1], leads(used)


def _reached(transitions: np.ndarray) -> np.ndarray:
    """Return the states reachable from state 0, which comes first."""
    seen = np.zeros(len(transitions), "bool")
    seen[0] = True
    waiting = np.array([0])
    while len(waiting):
        nexts = np.unique(transitions[waiting])
        nexts = nexts[nexts >= 0]
        waiting = nexts[~seen[nexts]]
        seen[waiting] = True
    return np.flatnonzero(seen)


def _missing_first(automaton: ByteAutomaton, token_bytes: Sequence[bytes | None]) -> str:
    """Explain that no token begins with a possible first byte; return "" if one does."""
    possible = set(np.flatnonzero(automaton.transitions[0] >= 0).tolist())
    if not possible:
        return ": no text matches it"
    if possible & {token[0] for token in token_bytes if token}:
        return ""
    names = [repr(chr(byte)) if byte < 128 else f"the byte {byte:#x}" for byte in sorted(possible)]
    more = ", ..." if len(names) > 4 else ""
    return f": no token begins with {', '.join(names[:4])}{more}"
