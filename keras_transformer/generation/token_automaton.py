"""The texts that a constraint allows, as an automaton over the tokens of a vocabulary."""

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.generation.automaton_tables import FAR, steps_to
from keras_transformer.generation.byte_automaton import (
    ByteAutomaton,
    compile_regex,
    compile_strings,
)
from keras_transformer.generation.json_schema import compile_json_schema

# The entries of a table, 256 MB of them.
_MAX_ENTRIES = 2**26


@dataclasses.dataclass(frozen=True, eq=False)
class TokenAutomaton:
    """The texts that are allowed, as an automaton over the tokens of a vocabulary.

    It starts in state 0. After a token `t` state `s` becomes
    `transitions[s, token_classes[t]]`; -1 says that the token is not allowed. Tokens that end a
    text are not in it: they are allowed in accepting states. In a state with nothing but -1 only
    the end is possible. From every other state an accepting one can be reached.

    Args:
        transitions: int32 `(states, classes)`.
        token_classes: int32 `(vocabulary_size,)`. Tokens of a class do the same in every state.
        accepting: bool `(states,)`, where the text may end.

    Example:

    ```python
    from keras_transformer.generation.constraints import TokenAutomaton

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
        r"""The texts that a regular expression matches as a whole.

        Args:
            pattern: a string in the syntax of Python's `re`, with its meaning (`\d` has the
                digits of all scripts; write `[0-9]` or `(?a)` for ASCII). Not supported is what
                needs to look around or back.
            token_bytes: what each token adds to the text in UTF-8, `None` for one that is never
                to be produced.
            optional_space: bool, and these texts behind a space.

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
        """Some texts to choose from, strings that are not empty. For the rest see `from_regex`."""
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
        """Texts of JSON that validate against a schema; see `docs/generation.md` for which.

        ImportError if jsonschema is not installed. For the rest see `from_regex`.
        """
        automaton = compile_json_schema(schema, optional_space)
        return _over_tokens(automaton, token_bytes, "any text that the JSON Schema allows")

    @functools.cached_property
    def shortest(self) -> int:
        """The number of tokens of the shortest text."""
        return int(steps_to(self.transitions, self.accepting)[0])

    def shortest_behind(self, ids: Sequence[int]) -> int | None:
        """The number of tokens of the shortest text that begins with `ids`, None if none does."""
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
        """The same texts, except those that begin with one of the tokens `ids`."""
        # A state of its own to begin with, and classes of their own for these tokens.
        states = np.where(self.transitions >= 0, self.transitions + 1, -1)
        banned = np.full_like(states[:1], -1)
        transitions = np.block([[states[:1], banned], [states, states]])
        others = np.delete(self.token_classes, list(ids))
        if not self.accepting[0] and (states[0, others] < 0).all():
            raise ValueError("The tokens of this vocabulary can only spell it within a word.")
        token_classes = self.token_classes.copy()
        token_classes[list(ids)] += states.shape[1]
        accepting = np.append(self.accepting[:1], self.accepting)
        return TokenAutomaton(transitions, token_classes, accepting)


def compile_constraint(
    kind: str, value: Any, options: Sequence[bool], token_bytes: Sequence[bytes | None],
    never_first: Sequence[int],
) -> TokenAutomaton:  # fmt: skip
    """Return the automaton that `TokenAutomaton.from_KIND` makes of a value and options.

    Args:
        kind: "regex", "choices" or "json_schema".
        value: the pattern, the strings, or the schema as text of JSON.
        options: further arguments.
        token_bytes: as in `TokenAutomaton.from_regex`.
        never_first: ids that no text may begin with.
    """
    value = json.loads(value) if kind == "json_schema" else value
    automaton = getattr(TokenAutomaton, f"from_{kind}")(value, token_bytes, *options)
    return automaton.without_first(never_first) if len(never_first) else automaton


def check_choices(choices: Sequence[str]) -> tuple[str, ...]:
    """`choices`, texts to choose from, those of a set in the order of the alphabet."""
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
    transitions = np.array(maps.T, order="C")  # a copy, to be written to
    alive = steps_to(transitions, automaton.accepting) < FAR
    if not alive[0]:
        raise ValueError(
            f"The tokens of this vocabulary cannot spell {what}"
            f"{_missing_first(automaton, token_bytes)}."
        )
    transitions[(transitions >= 0) & ~alive[transitions]] = -1
    # States that only bytes, but no tokens lead to, and then classes that no longer differ.
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
    """The class of each token, and where each class leads from each state."""
    states = len(automaton.accepting)
    byte_columns, byte_classes = np.unique(automaton.transitions, axis=1, return_inverse=True)
    byte_classes = byte_classes.reshape(-1)
    # One more state, the dead one, from which -1 leads to itself.
    steps = np.vstack([byte_columns, np.full((1, byte_columns.shape[1]), -1)]).astype("int32")
    lengths = np.array([len(token or b"") for token in token_bytes])
    starts = np.cumsum(lengths) - lengths
    letters = byte_classes[np.frombuffer(b"".join(t or b"" for t in token_bytes), "uint8")]

    rows: dict[bytes, int] = {}  # where bytes lead from each state, and the number of that
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
    """The states that can be reached from state 0, which comes first."""
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
    """Why, if it is that no token has a byte that must come first."""
    possible = set(np.flatnonzero(automaton.transitions[0] >= 0).tolist())
    if not possible:
        return ": no text matches it"
    if possible & {token[0] for token in token_bytes if token}:
        return ""
    names = [repr(chr(byte)) if byte < 128 else f"the byte {byte:#x}" for byte in sorted(possible)]
    more = ", ..." if len(names) > 4 else ""
    return f": no token begins with {', '.join(names[:4])}{more}"
