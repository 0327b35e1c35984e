"""Regular expressions and lists of strings as automata over the bytes of UTF-8.

The syntax is that of Python's `re`, which also parses it: a text is accepted exactly if
`re.fullmatch` matches it. The automata are built here because the libraries for it (outlines-core,
interegular) have no limits, and a short pattern can need more states than fit into memory.

Source: Thompson 1968 (from an expression to an automaton); Rabin & Scott 1959 (determinism).
"""

import dataclasses
import functools
import itertools
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from re import _constants as codes
from re import _parser as parser

import numpy as np

from keras_transformer.generation.constraints.characters import spelling
from keras_transformer.support.checking import shorten

# Limits of an automaton: its states, and the nodes and steps spent on building it.
MAX_STATES = 20_000
_MAX_NODES = 200_000
_MAX_STEPS = 5_000_000
_UNSUPPORTED = {
    codes.ASSERT: "look-ahead or look-behind, `(?=...)` or `(?<=...)`",
    codes.ASSERT_NOT: "negative look-ahead or look-behind, `(?!...)` or `(?<!...)`",
    codes.GROUPREF: "a back-reference such as `\\1`",
    codes.GROUPREF_EXISTS: "a condition, `(?(1)...)`",
    codes.POSSESSIVE_REPEAT: "a possessive repeat such as `a++`",
    codes.ATOMIC_GROUP: "an atomic group, `(?>...)`",
    codes.AT: "`^`, `$` or `\\b` inside of the pattern (the whole text is matched anyway)",
}
# Anchors allowed at the beginning (0) and at the end (-1) of a pattern.
_ANCHORS = {
    0: (codes.AT_BEGINNING, codes.AT_BEGINNING_STRING),
    -1: (codes.AT_END, codes.AT_END_STRING),
}
_BOTH = frozenset(_ANCHORS)


@dataclasses.dataclass(frozen=True)
class ByteAutomaton:
    """A deterministic automaton over bytes; it starts in state 0."""

    transitions: np.ndarray  # int32 (states, 256), the next state per byte, -1 if it is not allowed
    accepting: np.ndarray  # bool (states,)


def compile_regex(pattern: str, optional_space: bool = False) -> ByteAutomaton:
    """Compile a regular expression to an automaton that accepts the texts it fully matches."""
    if not isinstance(pattern, str):
        raise ValueError(f"A pattern must be a string, received {type(pattern).__name__}.")
    where = f"The regular expression {shorten(pattern, 100)}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            tree = parser.parse(pattern)
        if optional_space:  # not prepended to the pattern, which may begin with flags
            space = parser.SubPattern(tree.state, [(codes.LITERAL, ord(" "))])
            tree.insert(0, (codes.MAX_REPEAT, (0, 1, space)))
        return automaton_of(lambda builder, start: builder.tree(tree, start))
    except re.error as error:
        place = "" if error.pos is None else f" at position {error.pos}"
        raise ValueError(f"{where} is invalid{place}: {error.msg}.") from None
    except (RecursionError, OverflowError) as error:
        reason = "it nests too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"{where} is too large: {reason}.") from None
    except UnsupportedPattern as error:
        raise ValueError(f"{where} {error}") from None


def compile_strings(strings: Iterable[str]) -> ByteAutomaton:
    """Compile strings to an automaton that accepts each of them."""
    rows: list[dict[int, int]] = [{}]
    ends = set()
    for string in strings:
        state = 0
        for byte in string.encode():
            if byte not in rows[state]:
                rows[state][byte] = len(rows)
                rows.append({})
            state = rows[state][byte]
        ends.add(state)
        if len(rows) > 5 * _MAX_NODES:
            raise ValueError(f"The choices have more than {5 * _MAX_NODES:,} bytes together.")
    # A tree has many equal branches, which are merged before states are counted.
    try:
        return _table([[(b, b, to) for b, to in row.items()] for row in rows], ends)
    except UnsupportedPattern as error:
        raise ValueError(f"The list of choices {error}") from None


def intersection(one: ByteAutomaton, other: ByteAutomaton, without: bool = False) -> ByteAutomaton:
    """Return the automaton of texts that both accept, or with `without`, that only `one` accepts.

    From some of its states an accepting state may be unreachable.
    """
    # The last row stands for the state -1, which does not accept.
    nexts_of = np.vstack([other.transitions, np.full((1, 256), -1, "int32")])
    accepted = np.append(other.accepting, False) != without
    numbers, pairs, rows = {(0, 0): 0}, [(0, 0)], []
    for first, second in pairs:  # grows during the loop
        nexts = np.stack([one.transitions[first], nexts_of[second]], axis=1)
        possible = nexts[:, 0] >= 0 if without else (nexts >= 0).all(axis=1)
        cuts = np.flatnonzero((nexts[1:] != nexts[:-1]).any(axis=1)) + 1
        row = []
        for low, after in itertools.pairwise([0, *cuts.tolist(), 256]):
            if possible[low]:
                pair = tuple(nexts[low].tolist())
                if pair not in numbers:
                    numbers[pair] = len(pairs)
                    pairs.append(pair)
                row.append((low, after - 1, numbers[pair]))
        rows.append(row)
        if len(pairs) > 4 * MAX_STATES:
            raise UnsupportedPattern(f"needs more than {MAX_STATES:,} states.")
    return _table(rows, {n for n, (a, b) in enumerate(pairs) if one.accepting[a] and accepted[b]})


def automaton_of(write: Callable[["Builder", int], int]) -> ByteAutomaton:
    """Return the automaton of the texts that `write` adds after a builder's first node."""
    builder = Builder()
    start = builder.node()
    return builder.deterministic(start, write(builder, start))


def is_anchor(item: tuple, place: int) -> bool:
    """Return whether an item is an anchor without effect at this place (0 first, -1 last)."""
    code, value = item
    return code is codes.AT and value in _ANCHORS[place]


@functools.lru_cache(maxsize=1024)
def _parsed(pattern: str) -> parser.SubPattern:
    return parser.parse(pattern)


class UnsupportedPattern(Exception):
    """An error of an invalid or too large expression or schema; `place` is its path there."""

    def __init__(self, reason: str, place: tuple[str | int, ...] | None = None):
        super().__init__(reason)
        self.place = place


class Builder:
    """Builds a nondeterministic automaton and then makes it deterministic.

    Methods with an argument `start`, a node, add a part behind it and return the part's last node.
    """

    def __init__(self):
        self.edges: list[list[tuple[int, int, int]]] = []
        self.free: list[list[int]] = []
        self.steps = 0

    def tree(self, tree: parser.SubPattern, start: int, flags: int = 0) -> int:
        return self.sequence(tree, start, tree.state.flags | flags, _BOTH)

    def regex(self, pattern: str, start: int, flags: int = 0) -> int:
        return self.tree(_parsed(pattern), start, flags)

    def literal(self, text: str, start: int) -> int:
        for byte in text.encode():
            end = self.node()
            self.edges[start].append((byte, byte, end))
            start = end
        return start

    def literals(self, texts: Iterable[str], start: int) -> int:
        """Add a choice of texts as a tree, in which common prefixes occur once."""
        end = self.node()
        places: dict[tuple[int, int], int] = {}
        for text in texts:
            node = start
            for byte in text.encode():
                if (node, byte) not in places:
                    places[node, byte] = self.node()
                    self.edges[node].append((byte, byte, places[node, byte]))
                node = places[node, byte]
            self.free[node].append(end)
        return end

    def embed(self, automaton: ByteAutomaton, start: int) -> int:
        nodes = [self.node() for _ in automaton.accepting]
        end = self.node()
        self.free[start].append(nodes[0])
        for state, node in enumerate(nodes):
            if automaton.accepting[state]:
                self.free[node].append(end)
            row = automaton.transitions[state]
            cuts = [0, *(np.flatnonzero(np.diff(row)) + 1).tolist(), 256]
            self.edges[node] += [
                (low, after - 1, nodes[row[low]])
                for low, after in itertools.pairwise(cuts)
                if row[low] >= 0
            ]
        return end

    def node(self) -> int:
        if len(self.free) >= _MAX_NODES:
            raise UnsupportedPattern(
                f"has more than {_MAX_NODES:,} parts, repeats written out: repeat less.", ()
            )
        self.edges.append([])
        self.free.append([])
        return len(self.free) - 1

    def sequence(self, items: Sequence, start: int, flags: int, edge: frozenset[int]) -> int:
        items = list(items)
        for place in edge:
            while items and is_anchor(items[place], place):
                items.pop(place)
        node = start
        for place, (code, value) in enumerate(items):
            outer = {0} if place == 0 else set()
            outer |= {-1} if place == len(items) - 1 else set()
            node = self.item(code, value, node, flags, edge & outer)
        return node

    def item(self, code, value, start: int, flags: int, edge: frozenset[int]) -> int:
        if code in (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN):
            end = self.node()
            self.spell(spelling(code, value, flags), start, end)
            return end
        if code is codes.SUBPATTERN:
            _, added, removed, items = value
            return self.sequence(items, start, (flags | added) & ~removed, edge)
        if code is codes.BRANCH:
            end = self.node()
            for items in value[1]:
                self.free[self.sequence(items, start, flags, edge)].append(end)
            return end
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            return self.repeat(*value, start, flags)
        raise UnsupportedPattern(
            f"uses {_UNSUPPORTED.get(code, str(code))}, which is not supported."
        )

    def repeat(self, least: int, most: int, items, start: int, flags: int) -> int:
        node, none = start, frozenset()
        for _ in range(least):
            node = self.sequence(items, node, flags, none)
        if most is codes.MAXREPEAT:
            # A new node: the part before the loop must not be entered again.
            loop = self.node()
            self.free[node].append(loop)
            self.free[self.sequence(items, loop, flags, none)].append(loop)
            node = loop
        else:
            # Each copy can jump to the end, so that few paths are open at a time.
            end = self.node()
            for _ in range(most - least):
                self.free[node].append(end)
                node = self.sequence(items, node, flags, none)
            self.free[node].append(end)
            node = end
        # A new end: the part that follows must not lead back into the repeat.
        after = self.node()
        self.free[node].append(after)
        return after

    def spell(self, tree: tuple, start: int, end: int) -> None:
        """Add the bytes of characters between two nodes; equal branches are added once."""
        nodes = {(): end, tree: start}
        waiting = [tree]
        while waiting:
            branch = waiting.pop()
            for low, high, rest in branch:
                if rest not in nodes:
                    nodes[rest] = self.node()
                    waiting.append(rest)
                self.edges[nodes[branch]].append((low, high, nodes[rest]))

    def deterministic(self, start: int, end: int) -> ByteAutomaton:
        """Return the automaton whose states are sets of nodes."""
        reach = functools.cache(lambda node: self.reachable(node, end))
        numbers = {reach(start): 0}
        sets, rows = [reach(start)], []
        states: dict[frozenset[int], int] = {}  # by the nodes that edges lead to
        while len(rows) < len(sets):
            nodes = sets[len(rows)]
            row = []
            for low, high, nexts in self._ranges(nodes):
                if nexts not in states:
                    reached = [reach(node) for node in nexts]
                    # Uniting sets takes a fraction of the time of a Python step.
                    self.spend(1 + sum(map(len, reached)) // 8)
                    key = frozenset().union(*reached)
                    if key not in numbers:
                        numbers[key] = len(sets)
                        sets.append(key)
                    states[nexts] = numbers[key]
                row.append((low, high, states[nexts]))
            rows.append(row)
            # Some of these states will be merged.
            if len(sets) > 4 * MAX_STATES:
                self.spend(_MAX_STEPS)
        return _table(rows, {number for number, nodes in enumerate(sets) if end in nodes})

    def _ranges(self, nodes: frozenset[int]) -> list[tuple[int, int, frozenset[int]]]:
        """Return the byte ranges of the edges of some nodes, with the nodes they lead to."""
        edges = [edge for node in nodes for edge in self.edges[node]]
        cuts = sorted({low for low, _, _ in edges} | {high + 1 for _, high, _ in edges})
        places = {cut: place for place, cut in enumerate(cuts)}
        leads: list[list[int]] = [[] for _ in cuts]
        for low, high, to in edges:
            for place in range(places[low], places[high + 1]):
                leads[place].append(to)
        self.spend(len(nodes) + sum(map(len, leads)))
        return [
            (cuts[place], cuts[place + 1] - 1, frozenset(to))
            for place, to in enumerate(leads)
            if to
        ]

    def spend(self, steps: int) -> None:
        self.steps += steps
        if self.steps > _MAX_STEPS:
            raise UnsupportedPattern(
                f"needs more than {MAX_STATES:,} states, or too long to find them: repeat less "
                "in it, or make what is repeated easier to tell from what follows."
            )

    def reachable(self, node: int, end: int) -> frozenset[int]:
        """Return the nodes reachable without reading a byte, if they have edges or are the end."""
        seen, waiting = {node}, [node]
        while waiting:
            for other in self.free[waiting.pop()]:
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
        self.spend(len(seen))
        return frozenset(each for each in seen if self.edges[each] or each == end)


def _table(rows: list[list[tuple[int, int, int]]], ends: set[int]) -> ByteAutomaton:
    """Return the transition table of states given as byte ranges, with equal states merged."""
    first = _merged(rows, ends)
    kept = sorted(set(first))
    if len(kept) > MAX_STATES:
        raise UnsupportedPattern(f"needs {len(kept):,} states, more than {MAX_STATES:,}.")
    place = {state: index for index, state in enumerate(kept)}
    transitions = np.full((len(kept), 256), -1, "int32")
    for index, state in enumerate(kept):
        for low, high, to in rows[state]:
            transitions[index, low : high + 1] = place[first[to]]
    return ByteAutomaton(transitions, np.isin(kept, list(ends)))


def _merged(rows: list[list[tuple[int, int, int]]], ends: set[int]) -> list[int]:
    """Return for each state the first state equal to it.

    A state is compared again only when one of its successors was merged (congruence closure,
    Downey et al. 1980), so that the time does not grow with the length of the texts.
    """
    parents = list(range(len(rows)))

    def find(state: int) -> int:
        while parents[state] != state:
            parents[state] = state = parents[parents[state]]
        return state

    users: list[list[int]] = [[] for _ in rows]  # the states that lead to each
    for state, row in enumerate(rows):
        for to in {to for _, _, to in row}:
            users[to].append(state)
    known: dict[tuple, int] = {}
    # Last states first: most states lead to later ones, which are then merged already.
    waiting, is_waiting = list(range(len(rows))), [True] * len(rows)
    while waiting:
        state = waiting.pop()
        is_waiting[state] = False
        state = find(state)
        does = (state in ends, tuple([(low, high, find(to)) for low, high, to in rows[state]]))
        same = find(known.setdefault(does, state))
        if same == state:
            continue
        # Drop the state with fewer users, since its users are compared again.
        if len(users[same]) < len(users[state]):
            same, state = state, same
        parents[state] = same
        for user in users[state]:
            if not is_waiting[user]:
                is_waiting[user] = True
                waiting.append(user)
        users[same] += users[state]
        users[state] = []
    firsts: dict[int, int] = {}
    return [firsts.setdefault(find(state), state) for state in range(len(rows))]
