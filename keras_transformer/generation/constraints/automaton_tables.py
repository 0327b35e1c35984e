"""Arrays of a constraint, passed to a compiled step: a new constraint needs no compilation."""

from typing import Any, NamedTuple

import numpy as np

# Table sizes are rounded up, to powers of four while small and to powers of two from then on, so
# that few shapes occur.
_SMALLEST, _LARGE = 64, 4096
# More steps than any text has tokens.
FAR = 2**30


class AutomatonTables(NamedTuple):
    """Arrays of a `TokenAutomaton` for decoding steps, for one vocabulary and its end ids."""

    transitions: Any = None  # int32 (states, classes), the next state, -1 without a transition
    # int32 (vocabulary_size,); tokens that the automaton lacks get a class without transitions.
    token_classes: Any = None
    accepting: Any = None  # bool (states,), where a text may end
    inner: Any = None  # bool (vocabulary_size,), the automaton's tokens without end ids
    ends: Any = None  # bool (vocabulary_size,), the tokens that end a text
    last: Any = None  # bool (states,), states without outgoing transitions
    # int32 (states,), tokens to the nearest state where a text may end; 0 without ends
    steps: Any = None

    @classmethod
    def make(cls, automaton, size: int, end_ids, pad_id: int) -> "AutomatonTables":
        """Build the tables of a `TokenAutomaton`, NumPy arrays, for a vocabulary of `size` tokens.

        End ids are allowed in accepting states, and in states without any other allowed token. If
        there are no end ids, the pad id is allowed in the latter.
        """
        table = np.asarray(automaton.transitions, "int32")
        states, dead = table.shape
        count = min(size, len(automaton.token_classes))
        classes, inner = np.full((size,), dead, "int32"), np.zeros((size,), "bool")
        classes[:count], inner[:count] = automaton.token_classes[:count], True
        inner[[token for token in end_ids if token < size]] = False
        # Only classes that occur: all tokens of a class may be end ids.
        ways = table[:, np.unique(classes[inner])]
        stuck = (ways < 0).all(axis=1)
        final = np.logical_or(automaton.accepting, stuck) if end_ids else stuck
        steps = steps_to(ways, final) if end_ids else np.zeros((states,), "int32")
        ends = np.zeros((size,), "bool")
        ends[[token for token in end_ids or (pad_id,) if token < size]] = True
        padded = np.full((_rounded(states), _rounded(dead + 1)), -1, "int32")
        padded[:states, :dead] = table
        more = (0, len(padded) - states)
        return cls(
            padded,
            classes,
            np.pad(final, more),
            inner,
            ends,
            np.pad((table < 0).all(axis=1), more),
            np.pad(steps, more),
        )


def steps_to(transitions: np.ndarray, final: np.ndarray) -> np.ndarray:
    """Return the fewest steps from each state to a final one, int32; `FAR` if none is reachable."""
    count = len(final)
    froms, columns = np.nonzero(transitions >= 0)
    pairs = np.unique(transitions[froms, columns].astype("int64") * count + froms)
    tos, froms = np.divmod(pairs, count)
    begins = np.searchsorted(tos, np.arange(count + 1))
    steps = np.where(final, 0, FAR).astype("int32")
    waiting = np.flatnonzero(final).tolist()
    for state in waiting:  # grows during the loop
        for before in froms[begins[state] : begins[state + 1]].tolist():
            if steps[before] == FAR:
                steps[before] = steps[state] + 1
                waiting.append(before)
    return steps


def _rounded(size: int) -> int:
    bits = max(_SMALLEST - 1, size - 1).bit_length()
    return 1 << (bits + bits % 2 if size <= _LARGE else bits)
