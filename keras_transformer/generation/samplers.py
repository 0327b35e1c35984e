"""Samplers: from the logits of a step to the next tokens."""

import abc
import dataclasses
from typing import Any, NamedTuple

from keras import ops


class Limits(NamedTuple):
    """What bounds a generation.

    Fields:
        end_ids: tuple of ints, a row ends with any of them.
        pad_id: int, fills rows after their end.
        max_new_tokens: int scalar tensor.
    """

    end_ids: tuple[int, ...]
    pad_id: int
    max_new_tokens: Any


class Sampler(abc.ABC):
    """Chooses tokens. The engine calls it within a compiled loop: all state is in tensors.

    Subclasses are frozen dataclasses: equal ones share their compiled functions.
    """

    @property
    def rows_per_prompt(self) -> int:
        """How many rows a prompt takes in a batch."""
        return 1

    @abc.abstractmethod
    def start(self, prompts: int, size: int, limits: Limits):
        """The state before the first token: a NamedTuple of tensors.

        Args:
            prompts: int, number of prompts.
            size: int, room for new tokens in a row.
            limits: `Limits`.
        """

    @abc.abstractmethod
    def advance(self, state, logits, step, limits: Limits):
        """Chooses the tokens of one step.

        Args:
            state: the state.
            logits: float `(rows, vocabulary_size)`.
            step: int scalar, number of tokens before this one.
            limits: `Limits`.

        Returns:
            The new state, and which row each row continues, int `(rows,)`, or None for itself.
        """

    @abc.abstractmethod
    def last_tokens(self, state, step):
        """The tokens chosen at `step`, int `(rows,)`."""

    @abc.abstractmethod
    def finished(self, state):
        """Bool `(prompts,)`, the prompts that need no further step."""

    @abc.abstractmethod
    def result(self, state):
        """The best row of every prompt, int `(prompts, size)`, ended by an end id or pads."""


class RowState(NamedTuple):
    """The new tokens of every row."""

    tokens: Any  # int (rows, size)
    ended: Any  # bool (rows,)


@dataclasses.dataclass(frozen=True)
class Greedy(Sampler):
    """The likeliest token at every step.

    Example:
    ```python
    import keras_transformer as kt

    translator = kt.Seq2SeqLM.from_preset("transformer_tiny_en_de")
    translator.generate("a man rides a bike .", sampler=kt.generation.Greedy())
    ```
    """

    def start(self, prompts: int, size: int, limits: Limits) -> RowState:
        return RowState(
            ops.full((prompts, size), limits.pad_id, "int32"), ops.zeros((prompts,), "bool")
        )

    def advance(self, state: RowState, logits, step, limits: Limits):
        chosen = ops.cast(ops.argmax(logits, axis=-1), "int32")
        chosen = ops.where(state.ended, limits.pad_id, chosen)
        tokens = ops.slice_update(state.tokens, (0, step), chosen[:, None])
        return RowState(tokens, ops.logical_or(state.ended, is_end(chosen, limits))), None

    def last_tokens(self, state: RowState, step):
        rows = state.tokens.shape[0]
        return ops.reshape(ops.slice(state.tokens, (0, step), (rows, 1)), (rows,))

    def finished(self, state: RowState):
        return state.ended

    def result(self, state: RowState):
        return state.tokens


def is_end(tokens, limits: Limits):
    """Bool, which tokens are end ids."""
    ended = ops.zeros_like(tokens, dtype="bool")
    for end_id in limits.end_ids:
        ended = ops.logical_or(ended, ops.equal(tokens, end_id))
    return ended


def get(sampler: "str | Sampler") -> Sampler:
    """The sampler of a name, or the sampler itself."""
    from keras_transformer.generation.beam_search import BeamSearch

    names = {"greedy": Greedy, "beam": BeamSearch}
    if isinstance(sampler, Sampler):
        return sampler
    if not isinstance(sampler, str) or sampler not in names:
        raise ValueError(
            f"Unknown sampler {sampler!r}. Known names are: {', '.join(map(repr, names))}; or "
            "give a sampler object, such as keras_transformer.generation.BeamSearch(num_beams=5)."
        )
    return names[sampler]()
