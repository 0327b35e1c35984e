"""Result of `explain`: named arrays of one pass, and ways to show them."""

import dataclasses
import os
from typing import Any

from keras_transformer.explanations import page, plots
from keras_transformer.explanations.table import as_table
from keras_transformer.explanations.values import Values
from keras_transformer.support.files import write_text


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Explanation(Values):
    """Intermediate values of a model for one input, from the pass that computes its outputs.

    Arrays are NumPy's, without a batch axis and padding. In an encoder-decoder the fields without a
    prefix belong to the decoder; in a model of images and texts, the prefix `encoder_` means the
    image.

    `print(explanation)` shows a table; a notebook shows the page of `to_html`.

    Args:
        model: str, the class of the task.
        tokens: the tokens in readable form; for images and sound, names of the states.
        outputs: float32, the outputs of the task: logits, a vector, a forecast.
        states: float32 `(layers + 1, tokens, hidden_dim)`: the input of each block, and last the
            output of the model, after its final normalization.
        attention: float32 `(layers, heads, tokens, tokens)`, the weights of each query, 0 where a
            window or causality hides a key. A head that only some layers have is NaN in the others.
            None with attention to sums of tokens (LongT5 with `global_block_size`).
        encoder_tokens, encoder_states, encoder_attention: the same fields of the encoder, in a
            model of two sides.
        cross_attention: float32 `(layers, heads, tokens, encoder tokens)`.
        vectors: dict of the arrays `queries` and `keys`, `(layers, heads, tokens, head_dim)`, whose
            names have the prefixes `encoder_` and `cross_` in other attentions.
        logit_lens: for a model with logits of tokens, the most likely `(token, probability)`, best
            first, for each layer, starting with the embeddings, and each token.
        next_tokens: for a generated text, the token that was chosen after each of `tokens`;
            "" within the prompt.
        labels: the names of a classifier's classes.
        saliency: float32 `(tokens,)`, how much each token adds to the output `target`, if
            requested. For other inputs it has their shape, such as `(height, width)` for an image.
        encoder_saliency: the saliency of the encoder's inputs.
        target: str, the output that `saliency` explains.
        gap: float, the error of integrated gradients: their sum, minus the output for the input,
            plus the output for the baseline.
        text: str, the text that a model generated.

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

    Source: nostalgebraist 2020, "interpreting GPT: the logit lens".
    """

    def plot_heads(self, layer: int | None = None, view: str | None = None) -> Any:
        """Plot a small map of each head, as an overview of the model.

        Args:
            layer: int, the only layer to plot. Defaults to all.
            view: see `view`.

        Returns:
            A `matplotlib.figure.Figure`: a notebook shows it, and `savefig("heads.pdf")` saves it.

        Raises:
            ImportError: if matplotlib is not installed.

        Example:
        ```python
        import keras_transformer as kt

        explanation = kt.TextEmbedder.from_preset("minilm_l6_en").explain("The animal was tired.")
        explanation.plot_heads().savefig("heads.png")
        ```
        """
        return plots.heads(self, view, layer)

    def plot_attention(self, layer: int = -1, head: int | None = None, view: str | None = None):
        """Plot the weights of one head, token by token.

        Args:
            layer: int, from 0, or from -1 backwards. Defaults to the last layer.
            head: int, a head from 0. Defaults to the mean of the heads.
            view: see `view`.

        Returns:
            A `matplotlib.figure.Figure`, see `plot_heads`.
        """
        return plots.attention(self, layer, head, view)

    def plot_layers(self, view: str | None = None) -> Any:
        """Plot how spread the heads of each layer are, and a language model's logit lens.

        Args:
            view: see `view`.

        Returns:
            A `matplotlib.figure.Figure`, see `plot_heads`.
        """
        return plots.layers(self, view)

    def plot_saliency(self) -> Any:
        """Plot how much each token, or each place of an image, adds to the output.

        Returns:
            A `matplotlib.figure.Figure`, see `plot_heads`.

        Raises:
            ValueError: if `explain` was not asked for attributions.
        """
        return plots.saliency(self)

    def to_html(
        self, path: str | os.PathLike | None = None, layers: list[int] | None = None
    ) -> str:
        """Return an interactive page: heads, the whole model, queries and keys, attributions.

        It works offline, by mouse, touch and keyboard. Weights are rounded to 1/255.

        Args:
            path: the file that the page is also written to, or None.
            layers: the layers to show, useful if there are many. Defaults to all.

        Returns:
            The page as a string.

        Example:
        ```python
        import keras_transformer as kt

        explanation = kt.TextEmbedder.from_preset("minilm_l6_en").explain("The animal was tired.")
        page = explanation.to_html("tired.html")
        assert page.startswith("<!doctype html>") and len(page) < 300_000
        ```

        Source: views as in Vig 2019, "A Multiscale Visualization of Attention in the Transformer
        Model".
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
