"""Method `explain` of tasks: attention, states, and what each token adds to an output."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_transformer.explanations.building import (
    ExplainedSide,
    check_attention,
    explanation_of,
    sides_of,
)
from keras_transformer.explanations.explainer import Explainer
from keras_transformer.explanations.explanation import Explanation
from keras_transformer.explanations.tokens import readable_tokens
from keras_transformer.support.checking import check_bool, check_choice, check_int, is_int, shorten
from keras_transformer.support.columns import text_alone

SALIENCY = ("gradient_x_input", "integrated_gradients")
_MOST_STEPS = 10_000


def explain(
    task,
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
    """Explain the output of a task for inputs, see `Task.explain`."""
    how = ExplainOptions.checked(
        saliency, target, position, steps, baseline, top_k, vectors, max_attention
    )
    rows, alone = task.explained_inputs(x)
    check_explained(task, rows, how)
    found = [explained(task, inputs, how) for inputs in rows]
    return found[0] if alone else found


def check_explained(task, rows: Iterable[Mapping[str, Any]], how: "ExplainOptions") -> None:
    """Check the number of attention weights of rows, before anything is computed or generated.

    Raises ValueError if a row has more than `how.max_attention` weights.
    """
    if how.max_attention is not None:
        for inputs in rows:
            check_attention(task, inputs, how.max_attention)


def rows_to_explain(task, x: Any) -> tuple[list[dict[str, np.ndarray]], bool]:
    """Return the arrays of each input, as batches of one, and whether `x` is a single input."""
    if isinstance(x, Mapping):
        arrays = {name: np.asarray(array) for name, array in task._named(x).items()}
        count = max(len(array) for array in arrays.values())
        slices = [slice(i, i + 1) for i in range(count)]
        return [
            {n: a if len(a) == 1 else a[part] for n, a in arrays.items()} for part in slices
        ], False
    x = tuple(map(text_alone, x)) if isinstance(x, tuple) else text_alone(x)
    alone = _is_one(task, x)
    if alone and isinstance(x, tuple):
        x = tuple([part] for part in x)
    elif alone:
        x = [x]
    options = {"sizes": task._sizes_of_rows, **task.head.predict_options, "batch_size": 1}
    dataset = task.make_dataset(x, **options)
    rows = [dataset[place][0] for place in range(len(dataset))]
    return dataset.restore_order(rows), alone


def _is_one(task, x: Any) -> bool:
    """Return True if `x` is a single input rather than a list of inputs."""
    kind = getattr(task.processor_class, "source_class", task.processor_class)
    is_one = getattr(kind, "is_one", lambda each: isinstance(each, str))
    if isinstance(x, tuple) and len(x) == 2 and not is_one(x):
        return (is_one(x[0]) or isinstance(x[0], str)) and isinstance(x[1], str)
    return is_one(x)


def explained(
    task,
    inputs: dict[str, np.ndarray],
    how: "ExplainOptions",
    written: dict[int, int] | None = None,
    **further: Any,
) -> Explanation:
    """Explain one row of arrays.

    Args:
        task: the task.
        inputs: the arrays of the row.
        how: `ExplainOptions`.
        written: for a generated text, the id of the token generated after each position.
        **further: fields of the explanation that are already known.
    """
    check_explained(task, [inputs], how)
    if task._explainer is None:
        task._explainer = Explainer(task)
    explainer = task._explainer
    outputs, found = explainer.see(inputs, how.vectors)
    sides = sides_of(task, inputs, found)
    if task.head.predicts_tokens and "" in sides:
        further["logit_lens"] = _logit_lens(task, inputs, found, sides[""], how.top_k)
    names = _output_names(task)
    if names is not None:
        further["labels"] = tuple(names)
    if how.saliency is not None:
        weights, said = _chosen_output(task, inputs, outputs[0], sides, how, written or {})
        steps = how.steps if how.saliency == "integrated_gradients" else 0
        baseline = how.baseline
        if isinstance(baseline, str) and baseline not in ("zeros", "mean"):
            baseline = _token_id(task, baseline, "baseline")
        elif is_int(baseline):
            task.backbone.check_ids(baseline=np.array([baseline]))
        added, gap = explainer.attributions(inputs, weights, steps, baseline)
        further["gap"] = gap
        further["target"] = said
        further |= {n: x.astype("float32") for n, x in _by_side(task, added, sides)}
    return explanation_of(task, inputs, outputs, found, sides, **further)


def _logit_lens(task, inputs, found, side: ExplainedSide, count: int) -> tuple:
    """Return the logit lens: the most likely `(token, probability)` pairs by layer and token."""
    count = min(count, task.backbone.config.sides[-1].vocabulary_size)
    shares, ids = task._explainer.lens(found["states"], inputs, count)
    shares, ids = shares[:, side.real], ids[:, side.real]
    names = np.array(readable_tokens(ids.ravel().tolist(), task.tokenizer), dtype=object)
    names = names.reshape(ids.shape)
    return tuple(
        tuple(
            tuple((str(n), float(s)) for n, s in zip(*pair, strict=True))
            for pair in zip(*layer, strict=True)
        )
        for layer in zip(names, shares, strict=True)
    )


def _output_names(task) -> list[str] | None:
    """Return the names of the outputs of a row or token; None if they have no names."""
    if task.head.learns_spans:
        return ["start", "end"]
    return getattr(task, "label_names", None)


# The choice of the output to explain.


def _chosen_output(task, inputs, outputs, sides, how, written) -> tuple[np.ndarray, str]:
    """Return the weights of the sum of outputs that is explained, and a description of it."""
    weights = np.zeros(outputs.shape, "float32")
    side = sides.get("", next(iter(sides.values())))
    if outputs.ndim == 2:
        per_token = len(outputs) == len(side.real)
        places = np.flatnonzero(side.real) if per_token else np.arange(len(outputs))
        tokens = side.tokens if per_token else tuple(map(str, range(len(outputs))))
        if how.position is None:
            number = _usual_position(task, inputs, outputs[places], how.target, written)
        else:
            number = place_of(how.position, tokens)
        target = how.target
        if target is None and number in written:
            target = written[number]
        target = _target(task, outputs[places[number]], target)
        weights[places[number], target] = 1.0
        return weights, f"{_named_output(task, target)} at {number} {tokens[number]!r}"
    if how.position is not None:
        raise ValueError(
            f"{type(task).__name__} has outputs for each input, not for its tokens: leave out "
            f"`position`, received {shorten(how.position)}."
        )
    if _is_vector(task) and isinstance(how.target, str):
        return _similarity_to(task, how.target, outputs), f"similarity to {how.target!r}"
    target = _target(task, outputs, how.target)
    weights[target] = 1.0
    return weights, _named_output(task, target)


def _is_vector(task) -> bool:
    return hasattr(task, "encode")


def _similarity_to(task, text: str, outputs: np.ndarray) -> np.ndarray:
    """Return the vector of a text; its dot product with the output is explained."""
    encode = getattr(task, "encode_texts", task.encode)
    return np.asarray(encode(text), "float32").reshape(outputs.shape)


def _target(task, outputs: np.ndarray, target: Any) -> int:
    """Return the index of an output of a row or token."""
    names = _output_names(task)
    if target is None:
        if task.head.learns_spans:
            return 0
        return int((np.abs(outputs) if _is_vector(task) else outputs).argmax())
    if isinstance(target, str) and names is not None:
        return names.index(check_choice("target", target, names))
    if isinstance(target, str) and task.tokenizer is not None and task.head.predicts_tokens:
        return _token_id(task, target)
    if not is_int(target):
        raise ValueError(
            f"`target` must be the number of an output of {type(task).__name__}, from 0 to "
            f"{len(outputs) - 1}"
            + (f", or one of {shorten(names)}" if names else "")
            + f", received {shorten(target)}."
        )
    return check_int("target", target, at_least=0, at_most=len(outputs) - 1)


def _token_id(task, token: str, name: str = "target") -> int:
    """Return the id of a token given as in the vocabulary or as displayed."""
    if task.tokenizer is None:
        raise ValueError(f"`{name}` {token!r} needs a tokenizer, which this task does not have.")
    for marked in (token, f"\u0120{token}", f"\u2581{token}"):
        found = task.tokenizer.token_to_id(marked)
        if found is not None:
            return found
    ids = task.tokenizer.encode(token, special_tokens=False)
    if len(ids) != 1:
        raise ValueError(
            f"`{name}` {token!r} is {len(ids)} tokens of the model: give a single token."
        )
    return ids[0]


def _named_output(task, target: int) -> str:
    names = _output_names(task)
    if names is not None:
        return f"the logit of {names[target]!r}"
    if task.head.predicts_tokens:
        return f"the logit of {readable_tokens([target], task.tokenizer)[0]!r}"
    return f"output {target}"


def _usual_position(task, inputs, outputs, target, written) -> int:
    """Return the default position: the token whose output is explained."""
    ids = np.asarray(inputs.get("token_ids", [[]]))[0]
    if task.head.predicts_tokens:
        mask = None if task.tokenizer is None else task.tokenizer.mask_id
        masked = np.flatnonzero(ids == mask) if task.backbone.config.kind == "encoder" else []
        words = [i for i, id in written.items() if id not in task.end_ids] if written else []
        return int(masked[0]) if len(masked) else max(words, default=len(outputs) - 1)
    names = _output_names(task) or []
    columns = [_target(task, outputs[0], target)]
    if target is None and not task.head.learns_spans:
        nothing = names.index("O") if "O" in names else getattr(task, "blank_id", None)
        columns = [i for i in range(outputs.shape[1]) if i != nothing]
    if not names and getattr(task, "blank_id", None) is None:
        return 0
    return int(outputs[:, columns].max(axis=1).argmax())


class ExplainOptions:
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
    def checked(
        cls,
        saliency=None,
        target=None,
        position=None,
        steps=50,
        baseline=None,
        top_k=5,
        vectors=True,
        max_attention=None,
    ) -> "ExplainOptions":
        """Check the options. Raises ValueError if one is wrong or has no effect."""
        check_choice("saliency", saliency, SALIENCY, none=True)
        if saliency is None and not (target is None and position is None):
            raise ValueError(
                "`target` and `position` are for attributions: also give "
                'saliency="integrated_gradients" or "gradient_x_input".'
            )
        if baseline is not None and saliency != "integrated_gradients":
            raise ValueError('`baseline` is for saliency="integrated_gradients" only.')
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
    """Return the index of a token. Raises ValueError if it is missing or occurs more than once."""
    if isinstance(position, str):
        places = [i for i, token in enumerate(tokens) if token == position]
        if len(places) != 1:
            raise ValueError(
                f"`position` {position!r} occurs {len(places)} times among the tokens "
                f"{shorten(list(tokens))}: give its index."
            )
        return places[0]
    most = len(tokens) - 1
    return check_int("position", position, at_least=-len(tokens), at_most=most) % len(tokens)


def _by_side(task, added: Mapping[str, np.ndarray], sides: Mapping[str, ExplainedSide]):
    """Yield the attributions with their field names: one number per token or input position."""
    kind = task.backbone.config.kind
    for name, values in added.items():
        of_encoder = name.startswith("encoder_") or task.input_adapter is not None
        of_encoder = of_encoder or (kind == "dual" and not name.endswith("token_embeddings"))
        side = "encoder_" if of_encoder and "encoder_" in sides else ""
        if name.endswith("token_embeddings"):
            values = values.sum(axis=-1)[sides[side].real]
        elif values.ndim == 3:  # channels of an image
            values = values.sum(axis=-1)
        yield f"{side}saliency", values
