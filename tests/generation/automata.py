"""Automata over tokens for the tests of rules, and what they allow, one token at a time."""

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Automaton:
    """The fields of `constraints.TokenAutomaton`."""

    transitions: Any
    token_classes: Any
    accepting: Any


def random_automaton(vocabulary, states=6, classes=5, seed=0):
    """One with ways on from most states, an end in some, and a state that none leads out of."""
    random = np.random.default_rng(seed)
    transitions = random.integers(0, states, (states, classes))
    transitions[random.random((states, classes)) < 0.5] = -1
    transitions[:-1, 0] = np.arange(1, states)
    transitions[-1] = -1
    token_classes = random.integers(0, classes, vocabulary)
    accepting = np.arange(states) % 3 == 2
    return Automaton(transitions.astype("int32"), token_classes.astype("int32"), accepting)


def follow(automaton, tokens):
    """The state after `tokens`, -1 if they are not allowed."""
    state = 0
    for token in tokens:
        if token >= len(automaton.token_classes) or state < 0:
            return -1
        state = int(automaton.transitions[state, automaton.token_classes[token]])
    return state


def is_way_on(automaton, state, end_ids):
    classes = [x for i, x in enumerate(automaton.token_classes) if i not in end_ids]
    return bool((automaton.transitions[state, classes] >= 0).any())
