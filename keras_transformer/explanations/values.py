"""Values of an explanation: named arrays of one pass, and statistics of them."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.explanations import flow
from keras_transformer.support.checking import check_choice, is_int
from keras_transformer.support.former_names import FormerName


class View(NamedTuple):
    """One attention of a model, such as self-attention or cross-attention, with its tokens.

    Fields:
        name: str, the attribute of the explanation.
        title: str, a name to display.
        rows: the tokens that attend.
        columns: the tokens that are attended to.
        attention: float32 `(layers, heads, rows, columns)`.
        queries: float32 `(layers, heads, rows, head_dim)`, or None if they were not requested.
        keys: float32 `(layers, key heads, columns, head_dim)`, or None; a group of heads may share
            one key head.
    """

    name: str
    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    attention: np.ndarray
    queries: np.ndarray | None = None
    keys: np.ndarray | None = None


_TITLES = {
    "attention": "Self-attention",
    "encoder_attention": "Self-attention of the encoder",
    "cross_attention": "Cross-attention, decoder to encoder",
}
_OF_ENCODER = {"encoder_attention": ("encoder", "encoder"), "cross_attention": ("", "encoder")}


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Values:
    """Base class of `Explanation`, which documents the fields."""

    model: str
    tokens: tuple[str, ...]
    outputs: np.ndarray
    states: np.ndarray
    attention: np.ndarray | None = None
    encoder_tokens: tuple[str, ...] | None = None
    encoder_states: np.ndarray | None = None
    encoder_attention: np.ndarray | None = None
    cross_attention: np.ndarray | None = None
    vectors: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    logit_lens: tuple | None = None
    next_tokens: tuple[str, ...] | None = None
    labels: tuple[str, ...] | None = None
    saliency: np.ndarray | None = None
    encoder_saliency: np.ndarray | None = None
    target: str | None = None
    gap: float | None = None
    text: str | None = None

    likeliest = FormerName("likeliest", "logit_lens")

    @property
    def views(self) -> dict[str, View]:
        """The attentions that the model has, by name."""
        return {name: self.view(name) for name in _TITLES if getattr(self, name) is not None}

    def view(self, name: str | None = None) -> View:
        """Return one attention with its tokens.

        Args:
            name: `"attention"`, `"encoder_attention"` or `"cross_attention"`. Defaults to
                cross-attention, or to the first that a model without it has.

        Raises:
            ValueError: if the model does not have this attention.
        """
        there = [each for each in _TITLES if getattr(self, each) is not None]
        if not there:
            raise ValueError(
                f"{self.model} has no attention weights between tokens alone: its layers also "
                "attend to sums of tokens (`global_block_size`). Its `states` can be used."
            )
        if name is None:
            name = "cross_attention" if "cross_attention" in there else there[0]
        check_choice("view", name, there)
        sides = {"": self.tokens, "encoder": self.encoder_tokens}
        rows, columns = (sides[side] for side in _OF_ENCODER.get(name, ("", "")))
        weights, prefix = getattr(self, name), name.removesuffix("attention")
        if name == "cross_attention":
            rows = self._written(rows)
            if weights.shape[-1] != len(columns):  # a projector changed the number of states
                columns = tuple(str(i) for i in range(weights.shape[-1]))
        vectors = (self.vectors.get(prefix + which) for which in ("queries", "keys"))
        return View(name, _TITLES[name], rows, columns, weights, *vectors)

    def _written(self, tokens: tuple[str, ...]) -> tuple[str, ...]:
        """Return the token generated at each decoding step, or else the step's input token."""
        pairs = zip(tokens, self.next_tokens or [""] * len(tokens), strict=True)
        return tuple(written or read for read, written in pairs)

    def entropy(self, view: str | None = None) -> np.ndarray:
        """Return how spread the attention of each head is, in nats, float64 `(layers, heads)`.

        See `keras_transformer.explanations.entropy`.

        Args:
            view: see `view`.
        """
        return flow.entropy(self.view(view).attention)

    def rollout(self, view: str | None = None, residual: float = 0.5) -> np.ndarray:
        """Return how much of each token is in each state, float64 `(layers, tokens, tokens)`.

        Args:
            view: `"attention"` or `"encoder_attention"`. Defaults to the first that the model has.
            residual: float, the share of the residual connection that bypasses attention.

        Returns:
            See `keras_transformer.explanations.rollout`, which names the source.

        Raises:
            ValueError: if the view is cross-attention, or the model has no attention.
        """
        name = next((n for n in ("attention", "encoder_attention") if n in self.views), None)
        return flow.rollout(self.view(view or name).attention, residual)

    def attended(self, token: str | int, view: str | None = None) -> np.ndarray:
        """Return the weights with which one token attends, float32 `(layers, heads, columns)`.

        Args:
            token: the index of the token, or the token itself if it occurs once.
            view: see `view`.

        Raises:
            ValueError: if the token does not occur, or more than once.

        Example:
        ```python
        import keras_transformer as kt

        embedder = kt.TextEmbedder.from_preset("minilm_l6_en")
        seen = embedder.explain("The animal was tired, it slept.")
        from_it = seen.attended("it")[:, :, seen.place("animal")]
        assert from_it.shape == (6, 12)
        ```
        """
        found = self.view(view)
        return found.attention[:, :, _place(token, found.rows)]

    def place(self, token: str | int, view: str | None = None) -> int:
        """Return the index of a token among the attended tokens.

        Args:
            token: see `attended`.
            view: see `view`.
        """
        return _place(token, self.view(view).columns)


def _place(token: Any, tokens: tuple[str, ...]) -> int:
    if isinstance(token, str):
        places = [i for i, each in enumerate(tokens) if each == token]
        if len(places) == 1:
            return places[0]
        count = f"{len(places)} times, at {places}" if places else "not there"
        raise ValueError(
            f"The token {token!r} is {count}. Give the index of one of: "
            f"{', '.join(f'{i} {each!r}' for i, each in enumerate(tokens))}."
        )
    if not is_int(token) or not -len(tokens) <= token < len(tokens):
        raise ValueError(
            f"There are {len(tokens)} tokens: give a token or its index, received {token!r}."
        )
    return int(token) % len(tokens)
