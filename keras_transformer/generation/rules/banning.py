"""Tensor functions that find the tokens that may not come next."""

import numpy as np
from keras import ops

from keras_transformer.generation.constraints.automaton_tables import FAR, AutomatonTables
from keras_transformer.generation.samplers.samplers import RowLimits
from keras_transformer.kernels.values import constant

# Finite, so that no sum, difference or softmax of scores is NaN. Lower than the score that
# `beam_search` gives to absent open hypotheses.
BANNED = -1e30


def mask_of(ids, size: int):
    """Return a bool mask `(1, 1, size)`, True at the `ids` below `size`."""
    mask = np.zeros((1, 1, size), "bool")
    mask[..., [token for token in ids if token < size]] = True
    return constant(mask)


def marks(tokens, where, size: int):
    """Mark the entries of `tokens`, int `(rows, branches, count)`, that `where` selects.

    The result is bool `(rows, branches, size)`.
    """
    rows, branches, count = tokens.shape
    # Tokens that are not selected mark an additional column after the vocabulary.
    columns = ops.where(where, ops.minimum(tokens, size), size)
    first = ops.arange(rows * branches, dtype="int32") * (size + 1)
    places = ops.reshape(columns, (rows * branches, count)) + first[:, None]
    places = ops.reshape(places, (rows * branches * count, 1))
    marked = ops.zeros((rows * branches * (size + 1),), "int32")
    marked = ops.scatter_update(marked, places, ops.ones((rows * branches * count,), "int32"))
    return ops.reshape(marked, (rows, branches, size + 1))[..., :size] > 0


def repeated_ngrams(history, length, recent, n: int) -> tuple:
    """Find the tokens that would repeat an earlier sequence of `n` tokens."""
    room = history.shape[-1]
    if room < n:
        return history, ops.zeros(history.shape, "bool")
    windows = room - n + 1
    last = ops.arange(n - 1, room, dtype="int32")
    same = ops.broadcast_to((last[None] < length[:, None])[:, None], (*history.shape[:2], windows))
    for i in range(n - 1):
        token = recent[..., recent.shape[-1] - (n - 1) + i]
        same = ops.logical_and(same, history[..., i : i + windows] == token[..., None])
    return history[..., n - 1 :], same


def completed_words(recent, words: list[tuple[int, ...]]) -> tuple:
    """Find the tokens that would complete one of `words`, all of one length above 1."""
    words = constant(np.array(words, "int32"))
    count, before = words.shape[0], words.shape[1] - 1
    same = ops.ones((*recent.shape[:2], count), "bool")
    for i in range(before):
        token = recent[..., recent.shape[-1] - before + i]
        same = ops.logical_and(same, token[..., None] == words[:, i][None, None])
    return ops.broadcast_to(words[:, -1][None, None], same.shape), same


def allowed(automaton, place, size: int, limits: RowLimits, count):
    """Return the tokens that an automaton allows next, bool `(rows, branches, size)`."""
    tables = _tables(automaton, size, limits)
    state = ops.maximum(place, 0)  # state -1 allows no token, see the last line
    following = ops.take(tables.transitions, state, axis=0)
    going = following >= 0
    if limits.max_new_tokens is not None:
        # Ban tokens after which the text could not end in time, if it can end at all.
        room = (ops.cast(limits.max_new_tokens, "int32") - count)[:, None]
        room = ops.where(ops.take(tables.steps, state, axis=0) <= room, room - 1, FAR)
        steps = ops.take(tables.steps, ops.maximum(following, 0), axis=0)
        going = ops.logical_and(going, steps <= room[..., None])
    tokens = ops.logical_and(
        ops.take(going, tables.token_classes, axis=-1), tables.inner[None, None]
    )
    can_end = ops.take(tables.accepting, state, axis=0)[..., None]
    ending = ops.logical_and(can_end, tables.ends[None, None])
    return ops.logical_and(ops.logical_or(tokens, ending), (place >= 0)[..., None])


def follow(automaton, place, tokens):
    """Return the states of an automaton after `tokens`, both int `(rows, branches)`.

    The state is -1 after a token that is not allowed, except that final states without outgoing
    transitions stay as they are.
    """
    tables = _tables(automaton)
    states, classes = tables.transitions.shape
    state = ops.maximum(place, 0)
    count = tables.token_classes.shape[0]
    token_class = ops.take(tables.token_classes, ops.minimum(tokens, count - 1), axis=0)
    flat = ops.reshape(tables.transitions, (states * classes,))
    following = ops.take(flat, state * classes + token_class, axis=0)
    following = ops.where(tokens < count, following, -1)
    following = ops.where(ops.take(tables.last, state, axis=0), state, following)
    return ops.where(place >= 0, following, -1)


def _tables(automaton, size: int | None = None, limits: RowLimits | None = None) -> AutomatonTables:
    """Return the tables: arguments of the compiled function, or else constants made here."""
    if isinstance(automaton, AutomatonTables):
        return automaton
    size = len(automaton.token_classes) if size is None else size
    ends = ((), 0) if limits is None else (limits.end_ids, limits.pad_id)
    return AutomatonTables(*map(constant, AutomatonTables.make(automaton, size, *ends)))
