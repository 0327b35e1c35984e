"""What a task saw: `explain`, which output it is about, and what each token adds to it."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_transformer.checking import check_bool, check_choice, check_int, is_int, shorten
from keras_transformer.columns import text_alone
from keras_transformer.explanations.building import (
    Side,
    check_attention,
    explanation_of,
    sides_of,
)
from keras_transformer.explanations.explainer import Explainer
from keras_transformer.explanations.explanation import Explanation
from keras_transformer.explanations.tokens import readable_tokens
from keras_transformer.models.turns import reads

SALIENCY = ("gradient_x_input", "integrated_gradients")
_MOST_STEPS = 10_000


class Explains:
    """Mixin of a task: `explain`.

    A task whose inputs for one row are not those of `make_dataset` has `explained_inputs`.
    """

    _explainer: Explainer | None = None

    @reads
    def explain(
        self,
        x,
        *,
        saliency: str | None = None,
        target: Any = None,
        position: int | str | None = None,
        steps: int = 50,
        baseline: str | int | None = None,
        top_k: int = 5,
        vectors: bool = True,
        max_attention: int | None = None,
    ) -> Any:
        """What the model saw of an input: attention, states, and what each token adds.

        It is the pass that gives the outputs, and its numbers.

        Args:
            x: what `predict` takes, a list of inputs; or one of them alone, such as a string, a
                tuple of two strings for a pair, or an image.
            saliency: `"gradient_x_input"`, or `"integrated_gradients"`, which is slower, and whose
                numbers sum to the difference of the output and that of a baseline.
            target: which output these are of: a class by number or name, a token by id or itself.
                Of vectors also a text, then it is the similarity to its vector. Defaults to the
                likeliest.
            position: which token's output, of a task with outputs for each: its place, or itself.
                Defaults to that of a mask, the last of a text that goes on, or the surest.
            steps: int, of integrated gradients.
            baseline: where their way begins: `"zeros"`; of texts also `"mean"`, the mean of all
                embeddings, or a token, by id or itself. Defaults to zeros for a model that adds
                positions to its embeddings, and else to the mean, since a norm jumps at zero.
            top_k: int, the likeliest tokens of each layer, of a model with logits of tokens.
            vectors: bool, keep the queries and keys, which the page of `to_html` shows.
            max_attention: int, the most attention weights of an input, over all layers and heads:
                they grow with the square of its length. Defaults to no bound.

        Returns:
            An `explanations.Explanation`; for a list of inputs a list of them.

        Raises:
            ValueError: for inputs that the model cannot take, or an output that it does not have;
                before any pass, for an input of more than `max_attention`.

        Example:
        ```python
        import keras_transformer as kt

        classifier = kt.TextClassifier.from_preset("minilm_l6_en", labels=["bad", "good"])
        explanation = classifier.explain("a warm and funny film", saliency="integrated_gradients")
        assert explanation.tokens[1] == "a" and explanation.attention.shape[:2] == (6, 12)
        assert len(explanation.saliency) == len(explanation.tokens)
        ```

        Source: Shrikumar et al. 2016; Sundararajan et al. 2017, "Axiomatic Attribution for Deep
        Networks".
        """
        how = Asked.of(saliency, target, position, steps, baseline, top_k, vectors, max_attention)
        rows, alone = self.explained_inputs(x)
        self.check_explained(rows, how)
        found = [self.explained(inputs, how) for inputs in rows]
        return found[0] if alone else found

    def check_explained(self, rows: Iterable[Mapping[str, Any]], how: "Asked") -> None:
        """Check the attention of rows of arrays, before anything is computed or written.

        Raises ValueError for a row of more than `how.max_attention` weights.
        """
        if how.max_attention is not None:
            for inputs in rows:
                check_attention(self, inputs, how.max_attention)

    def explained_inputs(self, x: Any) -> tuple[list[dict[str, np.ndarray]], bool]:
        """The arrays of each input, with a batch of one, and whether it is one input alone."""
        if isinstance(x, Mapping):
            arrays = {name: np.asarray(array) for name, array in self._named(x).items()}
            count = max(len(array) for array in arrays.values())
            slices = [slice(i, i + 1) for i in range(count)]
            return [
                {n: a if len(a) == 1 else a[part] for n, a in arrays.items()} for part in slices
            ], False
        x = tuple(map(text_alone, x)) if isinstance(x, tuple) else text_alone(x)
        alone = self._is_one(x)
        if alone and isinstance(x, tuple):
            x = tuple([part] for part in x)
        elif alone:
            x = [x]
        options = {"sizes": self._sizes_of_rows, **self.predict_options, "batch_size": 1}
        dataset = self.make_dataset(x, **options)
        rows = [dataset[place][0] for place in range(len(dataset))]
        return dataset.restore_order(rows), alone

    def _is_one(self, x: Any) -> bool:
        """Whether `x` is one input, and not a list of them."""
        kind = getattr(self.processor_class, "source_class", self.processor_class)
        is_one = getattr(kind, "is_one", lambda each: isinstance(each, str))
        if isinstance(x, tuple) and len(x) == 2 and not is_one(x):
            return (is_one(x[0]) or isinstance(x[0], str)) and isinstance(x[1], str)
        return is_one(x)

    def explained(
        self,
        inputs: dict[str, np.ndarray],
        how: "Asked",
        written: dict[int, int] | None = None,
        **further: Any,
    ) -> Explanation:
        """The explanation of one row of arrays.

        Args:
            inputs: its arrays.
            how: `Asked`.
            written: of a text that was written, the id behind each place.
            **further: fields that are known already.
        """
        self.check_explained([inputs], how)
        if self._explainer is None:
            self._explainer = Explainer(self)
        explainer = self._explainer
        outputs, found = explainer.see(inputs, how.vectors)
        sides = sides_of(self, inputs, found)
        if self.predicts_tokens and "" in sides:
            further["likeliest"] = self._likeliest(inputs, found, sides[""], how.top_k)
        names = self._output_names()
        if names is not None:
            further["labels"] = tuple(names)
        if how.saliency is not None:
            weights, said = self._chosen_output(inputs, outputs[0], sides, how, written or {})
            steps = how.steps if how.saliency == "integrated_gradients" else 0
            baseline = how.baseline
            if isinstance(baseline, str) and baseline not in ("zeros", "mean"):
                baseline = self._token_id(baseline, "baseline")
            elif is_int(baseline):
                self.backbone.check_ids(baseline=np.array([baseline]))
            added, gap = explainer.attributions(inputs, weights, steps, baseline)
            further["gap"] = gap
            further["target"] = said
            further |= {n: x.astype("float32") for n, x in _by_side(self, added, sides)}
        return explanation_of(self, inputs, outputs, found, sides, **further)

    def _likeliest(self, inputs, found, side: Side, count: int) -> tuple:
        """The logit lens: of each layer, of each token, the likeliest `(token, probability)`."""
        count = min(count, self.backbone.config.sides[-1].vocabulary_size)
        shares, ids = self._explainer.lens(found["states"], inputs, count)
        shares, ids = shares[:, side.real], ids[:, side.real]
        names = np.array(readable_tokens(ids.ravel().tolist(), self.tokenizer), dtype=object)
        names = names.reshape(ids.shape)
        return tuple(
            tuple(
                tuple((str(n), float(s)) for n, s in zip(*pair, strict=True))
                for pair in zip(*layer, strict=True)
            )
            for layer in zip(names, shares, strict=True)
        )

    def _output_names(self) -> list[str] | None:
        """The names of the outputs of a row or of a token, if they have some."""
        if self.answers:
            return ["start", "end"]
        return getattr(self, "label_names", None)

    # Which output attributions are of.

    def _chosen_output(self, inputs, outputs, sides, how, written) -> tuple[np.ndarray, str]:
        """Weights of the outputs of a row whose sum is what is explained, and what that is."""
        weights = np.zeros(outputs.shape, "float32")
        side = sides.get("", next(iter(sides.values())))
        if outputs.ndim == 2:
            per_token = len(outputs) == len(side.real)
            places = np.flatnonzero(side.real) if per_token else np.arange(len(outputs))
            tokens = side.tokens if per_token else tuple(map(str, range(len(outputs))))
            if how.position is None:
                number = self._usual_position(inputs, outputs[places], how.target, written)
            else:
                number = place_of(how.position, tokens)
            target = how.target
            if target is None and number in written:
                target = written[number]
            target = self._target(outputs[places[number]], target)
            weights[places[number], target] = 1.0
            return weights, f"{self._named_output(target)} at {number} {tokens[number]!r}"
        if how.position is not None:
            raise ValueError(
                f"{type(self).__name__} has outputs for an input, and not for its tokens: leave "
                f"`position` out, received {shorten(how.position)}."
            )
        if self._is_vector() and isinstance(how.target, str):
            return self._similarity_to(how.target, outputs), f"similarity to {how.target!r}"
        target = self._target(outputs, how.target)
        weights[target] = 1.0
        return weights, self._named_output(target)

    def _is_vector(self) -> bool:
        return hasattr(self, "encode")

    def _similarity_to(self, text: str, outputs: np.ndarray) -> np.ndarray:
        """The vector of a text: its product with that of the input is what is explained."""
        encode = getattr(self, "encode_texts", self.encode)
        return np.asarray(encode(text), "float32").reshape(outputs.shape)

    def _target(self, outputs: np.ndarray, target: Any) -> int:
        """The number of an output among those of a row or a token."""
        names = self._output_names()
        if target is None:
            if self.answers:
                return 0
            return int((np.abs(outputs) if self._is_vector() else outputs).argmax())
        if isinstance(target, str) and names is not None:
            return names.index(check_choice("target", target, names))
        if isinstance(target, str) and self.tokenizer is not None and self.predicts_tokens:
            return self._token_id(target)
        if not is_int(target):
            raise ValueError(
                f"`target` must be the number of an output of {type(self).__name__}, from 0 to "
                f"{len(outputs) - 1}"
                + (f", or one of {shorten(names)}" if names else "")
                + f", received {shorten(target)}."
            )
        return check_int("target", target, at_least=0, at_most=len(outputs) - 1)

    def _token_id(self, token: str, name: str = "target") -> int:
        """The id of a token as it is in the vocabulary, or as people read it."""
        if self.tokenizer is None:
            raise ValueError(f"`{name}` {token!r} needs a tokenizer, and this task has none.")
        for marked in (token, f"\u0120{token}", f"\u2581{token}"):
            found = self.tokenizer.token_to_id(marked)
            if found is not None:
                return found
        ids = self.tokenizer.encode(token, special_tokens=False)
        if len(ids) != 1:
            raise ValueError(f"`{name}` {token!r} is {len(ids)} tokens of the model: give one.")
        return ids[0]

    def _named_output(self, target: int) -> str:
        names = self._output_names()
        if names is not None:
            return f"the logit of {names[target]!r}"
        if self.predicts_tokens:
            return f"the logit of {readable_tokens([target], self.tokenizer)[0]!r}"
        return f"output {target}"

    def _usual_position(self, inputs, outputs, target, written) -> int:
        """The token whose output is explained if nobody says which."""
        ids = np.asarray(inputs.get("token_ids", [[]]))[0]
        if self.predicts_tokens:
            mask = None if self.tokenizer is None else self.tokenizer.mask_id
            masked = np.flatnonzero(ids == mask) if self.backbone.config.kind == "encoder" else []
            words = [i for i, id in written.items() if id not in self.end_ids] if written else []
            return int(masked[0]) if len(masked) else max(words, default=len(outputs) - 1)
        names = self._output_names() or []
        columns = [self._target(outputs[0], target)]
        if target is None and not self.answers:
            nothing = names.index("O") if "O" in names else getattr(self, "blank_id", None)
            columns = [i for i in range(outputs.shape[1]) if i != nothing]
        if not names and getattr(self, "blank_id", None) is None:
            return 0
        return int(outputs[:, columns].max(axis=1).argmax())


class Asked:
    """The checked options of `explain`."""

    names = (
        "saliency", "target", "position", "steps", "baseline", "top_k", "vectors", "max_attention",
    )  # fmt: skip

    def __init__(
        self, saliency, target, position, steps, baseline, top_k, vectors, max_attention
    ):  # fmt: skip
        self.max_attention = max_attention
        self.saliency, self.target, self.position = saliency, target, position
        self.steps, self.baseline, self.top_k, self.vectors = steps, baseline, top_k, vectors

    @classmethod
    def of(
        cls,
        saliency=None,
        target=None,
        position=None,
        steps=50,
        baseline=None,
        top_k=5,
        vectors=True,
        max_attention=None,
    ) -> "Asked":
        """ValueError for options that are wrong, or change nothing."""
        check_choice("saliency", saliency, SALIENCY, none=True)
        if saliency is None and not (target is None and position is None):
            raise ValueError(
                "`target` and `position` are of attributions: give "
                'saliency="integrated_gradients" or "gradient_x_input".'
            )
        if baseline is not None and saliency != "integrated_gradients":
            raise ValueError('`baseline` is of saliency="integrated_gradients".')
        if not isinstance(baseline, str | None):
            baseline = check_int("baseline", baseline, at_least=0)
        return cls(
            saliency,
            target,
            position,
            check_int("steps", steps, 1, _MOST_STEPS),
            baseline,
            check_int("top_k", top_k, at_least=1),
            check_bool("vectors", vectors),
            check_int("max_attention", max_attention, at_least=1, none=True),
        )


def place_of(position: int | str, tokens: tuple[str, ...]) -> int:
    """The place of a token. ValueError for one that is not there, or more than once."""
    if isinstance(position, str):
        places = [i for i, token in enumerate(tokens) if token == position]
        if len(places) != 1:
            raise ValueError(
                f"`position` {position!r} is {len(places)} times among the tokens "
                f"{shorten(list(tokens))}: give its place."
            )
        return places[0]
    most = len(tokens) - 1
    return check_int("position", position, at_least=-len(tokens), at_most=most) % len(tokens)


def _by_side(task, added: Mapping[str, np.ndarray], sides: Mapping[str, Side]):
    """Attributions by the name of their field: a number a token, or one a place of the input."""
    kind = task.backbone.config.kind
    for name, values in added.items():
        of_encoder = name.startswith("encoder_") or task.one_input is not None
        of_encoder = of_encoder or (kind == "dual" and name == "images")
        side = "encoder_" if of_encoder and "encoder_" in sides else ""
        if name.endswith("token_embeddings"):
            values = values.sum(axis=-1)[sides[side].real]
        elif values.ndim == 3:  # of the channels of an image
            values = values.sum(axis=-1)
        yield f"{side}saliency", values
