"""What one pass of a model saw, as arrays by name, and what people make of it."""

import dataclasses
import os
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.checking import check_choice
from keras_transformer.explanations import flow, page, plots
from keras_transformer.explanations.table import as_table
from keras_transformer.files import write_text


class View(NamedTuple):
    """One attention of a model: who attends to whom.

    Fields:
        name: str, the attribute of the explanation.
        title: str, what people call it.
        rows: the tokens that attend.
        columns: the tokens that are attended to.
        attention: float32 `(layers, heads, rows, columns)`.
        queries: float32 `(layers, heads, rows, head_dim)`, or None if not asked for.
        keys: float32 `(layers, key heads, columns, head_dim)`; groups of heads may share one.
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
class Explanation:
    """What a model saw of one input, by the forward pass that gives its outputs.

    Arrays are NumPy's, without batch and padding. Of a model with one side they are that side's. Of
    an encoder-decoder those without a prefix are the decoder's; of a model of images and texts the
    encoder's are of the image.

    `print(explanation)` is a table; a notebook shows the page of `to_html`.

    Args:
        model: str, what was asked.
        tokens: the tokens as people read them; of images and sound, names of the states.
        outputs: float32, what the task gives: logits, a vector, a forecast.
        states: float32 `(layers + 1, tokens, hidden_dim)`: what each block was given, and last what
            the model gives, behind its final normalization.
        attention: float32 `(layers, heads, tokens, tokens)`, the weights of each query, 0 where a
            window or causality hides a key. A head that one layer has and another lacks is NaN
            there. None for attention to sums of tokens (LongT5 with `global_block_size`).
        encoder_tokens, encoder_states, encoder_attention: of the encoder, of a model of two sides.
        cross_attention: float32 `(layers, heads, tokens, encoder tokens)`.
        vectors: dict of `queries`, `keys`, and these with `encoder_` and `cross_` before them.
        likeliest: the logit lens, of a model with logits of tokens: for each layer, from the
            embeddings on, for each token the likeliest `(token, probability)`, best first.
        next_tokens: of a text that was written, the token that was chosen behind each of `tokens`;
            "" behind those of a prompt.
        labels: the names of the classes, of a classifier.
        saliency: float32 `(tokens,)`, what each token adds to the output `target`, where asked for;
            of an input without tokens of its shape, `(height, width)` for an image.
        encoder_saliency: likewise.
        target: str, what `saliency` is of.
        gap: float, by how much integrated gradients miss the output minus that of the baseline.
        text: str, what was written, of a model that writes.

    Example:
    ```python
    import keras_transformer as kt

    embedder = kt.TextEmbedder.from_preset("minilm_l6_en")
    explanation = embedder.explain("The animal was too tired.")
    layers, heads, queries, keys = explanation.attention.shape
    assert (layers, heads) == (6, 12) and queries == keys == len(explanation.tokens)
    assert explanation.entropy().shape == (6, 12)
    assert explanation.rollout().shape == (6, keys, keys)
    ```

    Source: the lens: nostalgebraist 2020, "interpreting GPT: the logit lens".
    """

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
    likeliest: tuple | None = None
    next_tokens: tuple[str, ...] | None = None
    labels: tuple[str, ...] | None = None
    saliency: np.ndarray | None = None
    encoder_saliency: np.ndarray | None = None
    target: str | None = None
    gap: float | None = None
    text: str | None = None

    @property
    def views(self) -> dict[str, View]:
        """The attentions that there are, by name."""
        return {name: self.view(name) for name in _TITLES if getattr(self, name) is not None}

    def view(self, name: str | None = None) -> View:
        """One attention with its tokens.

        Args:
            name: `"attention"`, `"encoder_attention"` or `"cross_attention"`. Defaults to
                cross-attention, and to the first that there is for a model without it.

        Raises:
            ValueError: for one that the model does not have.
        """
        there = [each for each in _TITLES if getattr(self, each) is not None]
        if not there:
            raise ValueError(
                f"{self.model} has no attention of tokens to tokens: its layers attend to sums of "
                "tokens too (`global_block_size`). It has `states`."
            )
        if name is None:
            name = "cross_attention" if "cross_attention" in there else there[0]
        check_choice("view", name, there)
        sides = {"": self.tokens, "encoder": self.encoder_tokens}
        rows, columns = (sides[side] for side in _OF_ENCODER.get(name, ("", "")))
        weights, prefix = getattr(self, name), name.removesuffix("attention")
        if name == "cross_attention":
            rows = self._written(rows)
            if weights.shape[-1] != len(columns):  # A projector makes other states of them.
                columns = tuple(str(i) for i in range(weights.shape[-1]))
        vectors = (self.vectors.get(prefix + which) for which in ("queries", "keys"))
        return View(name, _TITLES[name], rows, columns, weights, *vectors)

    def _written(self, tokens: tuple[str, ...]) -> tuple[str, ...]:
        """For each step of decoding the token that it wrote, if that is known."""
        pairs = zip(tokens, self.next_tokens or [""] * len(tokens), strict=True)
        return tuple(written or read for read, written in pairs)

    def entropy(self, view: str | None = None) -> np.ndarray:
        """How spread each head attends, in nats, float64 `(layers, heads)`; see `entropy`.

        Args:
            view: see `view`.
        """
        return flow.entropy(self.view(view).attention)

    def rollout(self, view: str | None = None, residual: float = 0.5) -> np.ndarray:
        """How much of each token is in each state, float64 `(layers, tokens, tokens)`.

        Args:
            view: `"attention"`, the default where there is one, or `"encoder_attention"`.
            residual: float, the share of what goes past the attention.

        Returns:
            See `rollout`, with its source.

        Raises:
            ValueError: for cross-attention, or a model without attention.
        """
        name = next((n for n in ("attention", "encoder_attention") if n in self.views), None)
        return flow.rollout(self.view(view or name).attention, residual)

    def attended(self, token: str | int, view: str | None = None) -> np.ndarray:
        """What one token attends to, float32 `(layers, heads, columns)`.

        Args:
            token: its place, or itself if it is there once.
            view: see `view`.

        Raises:
            ValueError: for a token that is not there, or more than once.

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
        """The place of a token among those that are attended to; arguments as of `attended`."""
        return _place(token, self.view(view).columns)

    def plot_heads(self, layer: int | None = None, view: str | None = None) -> Any:
        """A small map of each head, all that a model does at a glance.

        Args:
            layer: int, the heads of one layer alone.
            view: see `view`.

        Returns:
            A `matplotlib.figure.Figure`: a notebook shows it, and `savefig("heads.pdf")` keeps it.

        Raises:
            ImportError: without matplotlib.

        Example:
        ```python
        import keras_transformer as kt

        explanation = kt.TextEmbedder.from_preset("minilm_l6_en").explain("The animal was tired.")
        explanation.plot_heads().savefig("heads.png")
        ```
        """
        return plots.heads(self, view, layer)

    def plot_attention(self, layer: int = -1, head: int | None = None, view: str | None = None):
        """The weights of one head, token by token.

        Args:
            layer: int, from 0, or from -1 backwards.
            head: int. Defaults to the mean of the heads.
            view: see `view`.

        Returns:
            As `plot_heads`.
        """
        return plots.attention(self, layer, head, view)

    def plot_layers(self, view: str | None = None) -> Any:
        """How spread the heads of each layer are, and of a language model its logit lens.

        Args:
            view: see `view`.

        Returns:
            As `plot_heads`.
        """
        return plots.layers(self, view)

    def plot_saliency(self) -> Any:
        """What each token, or each place of an image, adds to the output.

        Returns:
            As `plot_heads`.

        Raises:
            ValueError: if `explain` was not asked for it.
        """
        return plots.saliency(self)

    def to_html(
        self, path: str | os.PathLike | None = None, layers: list[int] | None = None
    ) -> str:
        """One page that needs no network: heads, the whole model, queries and keys, attributions.

        What is shown is chosen by mouse, finger or keyboard. Weights are kept to 1/255.

        Args:
            path: the file to write it to. Defaults to none.
            layers: the layers to show, of a model with many. Defaults to all.

        Returns:
            The page as a string.

        Example:
        ```python
        import keras_transformer as kt

        explanation = kt.TextEmbedder.from_preset("minilm_l6_en").explain("The animal was tired.")
        page = explanation.to_html("tired.html")
        assert page.startswith("<!doctype html>") and len(page) < 300_000
        ```

        Source: the views are those of Vig 2019, "A Multiscale Visualization of Attention in the
        Transformer Model".
        """
        text = page.as_page(self, layers)
        if path is not None:
            write_text(path, text)
        return text

    def _repr_html_(self) -> str:
        return page.in_notebook(self)

    def __repr__(self) -> str:
        sizes = {name: view.attention.shape for name, view in self.views.items()}
        said = ", ".join(f"{name} {shape}" for name, shape in sizes.items())
        return f"<Explanation of {self.model}: {len(self.tokens)} tokens, {said or 'states'}>"

    def __str__(self) -> str:
        return as_table(self)


def _place(token: Any, tokens: tuple[str, ...]) -> int:
    if isinstance(token, str):
        places = [i for i, each in enumerate(tokens) if each == token]
        if len(places) == 1:
            return places[0]
        count = f"{len(places)} times, at {places}" if places else "not there"
        raise ValueError(
            f"The token {token!r} is {count}. Give its place: "
            f"{', '.join(f'{i} {each!r}' for i, each in enumerate(tokens))}."
        )
    if not -len(tokens) <= int(token) < len(tokens):
        raise ValueError(f"There are {len(tokens)} tokens, received the place {token}.")
    return int(token) % len(tokens)
