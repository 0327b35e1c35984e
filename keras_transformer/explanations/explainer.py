"""Passes that explain a task: intermediate values, logit lens, and gradients by the inputs."""

import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.config import GridWindows, VideoAxis
from keras_transformer.explanations.building import BEFORE
from keras_transformer.kernels.gradients import values_and_gradients
from keras_transformer.kernels.programs import compile_function, compile_gradients, to_tensor
from keras_transformer.layers.stems import TokenStem

# Patterns that cut the states, and what attention is within.
_CUT = {GridWindows: "in windows of a grid", VideoAxis: "over one axis of a video"}
_SEEN = ("states", "attention")
_VECTORS = ("queries", "keys")
# Maximum tokens and rows in a pass over several points between baseline and input.
_MOST_TOKENS, _MOST_ROWS = 4096, 16


class _Weights:
    """Weights of a task for compiled programs, which must not keep the task alive."""

    def __init__(self, task: Callable):
        self._task = task

    @property
    def weights(self) -> list:
        return self._task().weights


class Explainer:
    """Passes of a task that explanations are made from.

    Args:
        task: a `Task`. It is not kept alive.
    """

    def __init__(self, task: keras.Model):
        self._task = reference = weakref.ref(task)
        weights = _Weights(reference)

        def see(inputs, collect):
            return reference()(inputs, collect=collect)

        def lens(states, inputs, normalized, count):
            task = reference()
            norm = getattr(task.backbone.stacks[-1], "final_norm", None)
            states = states if normalized or norm is None else norm(states)
            logits = task.head_outputs(states, inputs, training=False)
            return ops.top_k(ops.softmax(ops.cast(logits, "float32")), count)

        def slopes(inputs, moved, weights):
            def values(moved):
                outputs = ops.cast(reference()({**inputs, **moved}), "float32")
                axes = tuple(range(1, len(outputs.shape)))
                return ops.sum(outputs * weights, axis=axes)

            return values_and_gradients(values, moved)

        def embed(ids, prefix):
            stem = _stem(reference(), prefix)
            most = stem.config.vocabulary_size - 1  # placeholders may be outside the vocabulary
            return stem.token_embedding(ops.minimum(ids, most))

        self._see = compile_function(see, weights)
        self._lens = compile_function(lens, weights)
        self._embed = compile_function(embed, weights)
        self._slopes = compile_gradients(slopes, weights)

    def see(self, inputs: Mapping[str, Any], vectors: bool) -> tuple[Any, dict[str, list]]:
        """Return the outputs of a batch and the collected values of each layer, as NumPy arrays.

        Args:
            inputs: the arrays of the task.
            vectors: bool, whether queries and keys are collected too.

        Raises:
            ValueError: if the backbone is a user's own, and its `call` has no argument `collect`,
                or if its attention is in windows of a grid or over one axis of a video.
        """
        task = self._task()
        if "collect" not in inspect.signature(task.backbone.call).parameters:
            raise ValueError(
                f"{type(task.backbone).__name__} cannot be explained: its `call` takes "
                "no `collect`. Add this argument, and pass it to `models.ForwardContext`."
            )
        sides = (side.only_side for side in task.backbone.config.sides)
        mixers = (block.mixer for side in sides for block in side.every_block)
        patterns = (getattr(each, "pattern", None) for each in mixers)
        cut = next((each for each in patterns if isinstance(each, tuple(_CUT))), None)
        if cut is not None:
            raise ValueError(
                f"{type(task).__name__} cannot be explained with this backbone: the attention of "
                f"its layers is {_CUT[type(cut)]} (`config.{type(cut).__name__}`), which gives no "
                "weights of all pairs of patches."
            )
        collect = (*_SEEN, *(_VECTORS if vectors else ()))
        tensors = _tensors(inputs)
        layers = [layer for side in task.backbone.config.sides for layer in side.layers]
        if not any(layer.global_block_size for layer in layers):
            outputs, found = self._see(tensors, collect=collect)
            return _arrays(outputs), _arrays(_of_shown(found))
        # An encoder that also attends to sums of tokens has no weights of tokens alone. The weights
        # of the decoder and of cross-attention are computed from its states.
        outputs, found = self._see(tensors, collect=("states",))
        if task.backbone.config.kind == "seq2seq" and task.input_adapter is None:
            given = {n: x for n, x in tensors.items() if n != "encoder_token_ids"}
            given["encoder_states"] = found["encoder_states"][-1]
            _, further = self._see(given, collect=collect)
            found = {**found, **further}
        return _arrays(outputs), _arrays(found)

    def lens(self, states: list[np.ndarray], inputs: Mapping[str, Any], count: int) -> tuple:
        """Return the probabilities and ids of the most likely tokens by layer and position.

        Both have the shape `(layers + 1, length, count)`.
        """
        tensors, found = _tensors(inputs), []
        for layer, each in enumerate(states):
            last = layer == len(states) - 1  # the last states are already normalized
            best = self._lens(to_tensor(each), tensors, normalized=last, count=count)
            found.append(_arrays(tuple(best)))
        return tuple(np.stack([each[part][0] for each in found]) for part in (0, 1))

    def differentiable(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the inputs that gradients are taken by: token embeddings, or inputs of a stem.

        Sides before the encoder have none.
        """
        task, found = self._task(), {}
        sides = task.backbone.sides or {"": (None, None)}
        for side, (stem, _) in sides.items():
            if side in BEFORE:
                continue
            prefix = (
                ""
                if task.input_adapter is not None or task.backbone.config.kind == "dual"
                else side
            )
            if stem is None or isinstance(stem, TokenStem):
                name = f"{prefix}token_ids"
                made = f"{prefix}token_embeddings"
                if name in inputs and made not in found:
                    found[made] = _arrays(self._embed(to_tensor(inputs[name]), prefix=side))
                continue
            name = next(each.name for each in stem.inputs if each.required)
            name = prefix + name
            if name in inputs:
                found[name] = np.asarray(inputs[name], "float32")
        return found

    def baselines(
        self, given: Mapping[str, np.ndarray], baseline: str | int | None
    ) -> dict[str, np.ndarray]:
        """Return the baseline of each input, where the path to the input starts, by name.

        Args:
            given: the inputs, see `differentiable`.
            baseline: `"zeros"`; for embeddings also `"mean"`, the mean of all tokens, or the id of
                a token. Defaults to zeros if other embeddings are added to those of tokens, and
                otherwise to the mean: if the first layer normalizes token embeddings, gradients
                near zero are meaningless.
        """
        task, found = self._task(), {}
        of_tokens = any(name.endswith("token_embeddings") for name in given)
        if baseline not in (None, "zeros") and not of_tokens:
            raise ValueError(
                f"`baseline` {baseline!r} is only for tokens; for other inputs use 'zeros'."
            )
        for name, x in given.items():
            found[name] = np.zeros_like(x)
            if not name.endswith("token_embeddings") or baseline == "zeros":
                continue
            side = name.removesuffix("token_embeddings")
            sides = task.backbone.sides
            if sides and side not in sides:  # one text for both sides, or images and texts
                side = "texts" if "texts" in sides else next(iter(sides))
            config = sides[side][1].config if sides else task.backbone.config
            added = config.only_side.position is not None or config.segment_vocabulary_size
            if baseline is None and added:
                continue
            count = config.vocabulary_size
            ids = np.arange(count) if baseline in (None, "mean") else np.array([baseline])
            total = np.zeros(x.shape[-1])
            for first in range(0, len(ids), _MOST_TOKENS):
                part = ids[None, first : first + _MOST_TOKENS].astype("int32")
                total += _arrays(self._embed(to_tensor(part), prefix=side))[0].sum(axis=0)
            found[name] += (total / len(ids)).astype("float32")
        return found

    def attributions(
        self,
        inputs: Mapping[str, Any],
        weights: np.ndarray,
        steps: int,
        baseline: str | int | None = None,
    ) -> tuple[dict[str, np.ndarray], float | None]:
        """Return how much each number of the inputs adds to an output, float64 arrays by name.

        Args:
            inputs: the arrays of one row.
            weights: float, of the shape of a row's outputs: their sum with these weights is
                explained.
            steps: int, number of points between baseline and input at which the gradient is taken.
                With 0 it is taken at the input alone, and multiplied by the input.
            baseline: see `baselines`.

        Returns:
            The attributions by name, and with `steps` the error of their sum, otherwise None. The
            sum should be the output for the input minus the output for the baseline.

        Source: gradient times input: Shrikumar et al. 2016, "Not Just a Black Box"; integrated:
        Sundararajan et al. 2017, "Axiomatic Attribution for Deep Networks", section 3.
        """
        given = self.differentiable(inputs)
        starts = self.baselines(given, baseline if steps else "zeros")
        ways = {name: x - starts[name] for name, x in given.items()}
        points, shares = np.array([1.0]), np.array([1.0])
        if steps:
            # Fewer Gauss-Legendre points are needed than equal steps.
            places, widths = np.polynomial.legendre.leggauss(steps)
            points = np.concatenate([[0.0, 1.0], (places + 1) / 2])
            shares = np.concatenate([[0.0, 0.0], widths / 2])
        length = max(x.shape[1] if x.ndim == 3 else 1 for x in given.values())
        rows = max(1, min(len(points), _MOST_ROWS, _MOST_TOKENS // max(length, 1)))
        missing = -len(points) % rows
        points, shares = np.pad(points, (0, missing), mode="edge"), np.pad(shares, (0, missing))
        repeated = {n: np.repeat(x, rows, axis=0) for n, x in inputs.items() if n not in given}
        repeated, weights = _tensors(repeated), to_tensor(weights[None], "float32")
        totals = {name: np.zeros(x.shape[1:]) for name, x in given.items()}
        values: list[float] = []
        for first in range(0, len(points), rows):
            part = slice(first, first + rows)
            moved = {n: starts[n] + x * _beside(points[part], x) for n, x in ways.items()}
            found, slopes = self._slopes(repeated, _tensors(moved), weights)
            values += _arrays(found).tolist()
            for name, each in slopes.items():
                totals[name] += np.tensordot(shares[part], _arrays(each).astype("float64"), 1)
        added = {name: total * ways[name][0] for name, total in totals.items()}
        if not steps:
            return added, None
        return added, float(sum(x.sum() for x in added.values()) - (values[1] - values[0]))


def _of_shown(found: Mapping[str, list]) -> dict[str, list]:
    """Return what is collected of the encoder and the decoder, and not of sides before them."""
    hidden = (*BEFORE, "encoder_cross_")
    return {n: each for n, each in found.items() if not n.startswith(hidden)}


def _stem(task, side: str):
    """Return the stem of a side, or a user's own backbone, which has the embedding itself."""
    return task.backbone.sides[side][0] if task.backbone.sides else task.backbone


def _beside(numbers: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Reshape numbers, one for each row of `x`, to multiply `x`."""
    return numbers.reshape(-1, *[1] * (x.ndim - 1)).astype("float32")


def _tensors(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: to_tensor(np.asarray(x)) for name, x in arrays.items()}


def _arrays(tensors: Any) -> Any:
    """Convert a structure of tensors to NumPy arrays; smaller float dtypes become float32."""

    def array(x):
        if str(keras.backend.standardize_dtype(x.dtype)) in ("bfloat16", "float16"):
            x = ops.cast(x, "float32")
        return ops.convert_to_numpy(x)

    return keras.tree.map_structure(array, tensors)
