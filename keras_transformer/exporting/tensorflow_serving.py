"""Serving functions of a SavedModel, which take texts and return labels, vectors or texts."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_transformer.exporting.graph import Graph
from keras_transformer.exporting.greedy import continuations
from keras_transformer.exporting.tensorflow_functions import specs_of
from keras_transformer.generation.rules.rules import Rules
from keras_transformer.tasks import CausalLM, Seq2SeqLM, TextClassifier, TextEmbedder
from keras_transformer.tasks.data.text import take_max_length
from keras_transformer.tasks.heads.class_head import RowHead
from keras_transformer.tokenizers.tensorflow_text import IdsToText

_TEXTS = tf.TensorSpec([None], tf.string, name="texts")
_OTHERS = tf.TensorSpec([None], tf.string, name="others")


def serve_from(module: tf.Module, task: keras.Model, graphs: list[Graph], most: int) -> None:
    """Add the function `serve` to a module.

    It takes texts if TensorFlow can tokenize them, else arrays of ids. A `TextClassifier` also gets
    the function `pairs`, which takes two texts per row.

    Args:
        module: the `tf.Module` of the graphs.
        task: a task or a backbone.
        graphs: list of `Graph`s, the result of `graphs_of`.
        most: int, most new tokens of a generating task.
    """
    texts = _texts(task)
    run = _generation(task, graphs, most) if _writes(task) else _pass(task, graphs[0])
    if texts is None:
        taken = graphs[0].inputs[:2] if _writes(task) else graphs[0].inputs
        module.serve = tf.function(lambda *x: run(*x), specs_of(taken), autograph=False)
        return
    module.tokenizer = texts.tokenizer  # an attribute, so that the tokenizer's resources are saved

    def serve(strings):
        return texts.outputs(run(*texts.arrays(strings)))

    module.serve = tf.function(serve, [_TEXTS], autograph=False)
    if isinstance(task, TextClassifier):
        read = _pair_reader(task, texts.tokenizer)
        pairs = tf.function(lambda x, y: run(*read(x, y)), [_TEXTS, _OTHERS], autograph=False)
        module.pairs = pairs


class _Texts(NamedTuple):
    """Functions that turn texts into inputs of a graph, and its outputs into results.

    Fields:
        tokenizer: `tf.Module` that tokenizes.
        arrays: function from strings to the input arrays of the first graph.
        outputs: function from the dict of computed tensors to the dict of results.
    """

    tokenizer: tf.Module
    arrays: Callable
    outputs: Callable


def _writes(task: keras.Model) -> bool:
    return isinstance(task, (CausalLM, Seq2SeqLM))


def _pass(task: keras.Model, graph: Graph) -> Callable:
    """Return a function from a graph's arrays to its outputs, or to a classifier's labels."""
    head = getattr(task, "head", None)  # a backbone has none
    labels = isinstance(head, RowHead) and not head.is_regression

    def run(*arrays):
        outputs = graph.function(*arrays)
        if not labels:
            return dict(zip(graph.outputs, outputs, strict=True))
        shares = (tf.sigmoid if task.multi_label else tf.nn.softmax)(outputs[0])
        shares, order = tf.math.top_k(shares, task.num_classes)
        return {"labels": tf.gather(tf.constant(task.label_names), order), "probabilities": shares}

    return run


def _generation(task: keras.Model, graphs: list[Graph], most: int) -> Callable:
    """Return a function from ids and mask to the generated ids and their mask."""
    rules = task.published_rules()
    if rules != Rules():
        warnings.warn(
            f"The SavedModel decodes greedily, and ignores the rules of the checkpoint: {rules}.",
            stacklevel=2,
        )
    go_on = continuations(task, graphs, most)

    def run(ids, mask):
        written, counts = go_on(ids, mask)
        mask = tf.sequence_mask(counts, tf.shape(written)[1], "int64")
        return {"output_ids": written, "output_mask": mask}

    return run


def _texts(task: keras.Model) -> _Texts | None:
    """Return the text functions of a task, or None if its SavedModel must take arrays of ids."""
    known = isinstance(task, (CausalLM, Seq2SeqLM, TextClassifier, TextEmbedder))
    if not known or task.tokenizer is None:
        return None
    try:
        layer = task.tokenizer.to_tensorflow()
        outputs = _to_text(task, layer.tokenizer_json) if _writes(task) else lambda found: found
        return _Texts(layer.graph, _reader(task, layer.graph), outputs)
    except ValueError as error:
        warnings.warn(
            f"The SavedModel takes arrays of ids and not texts. {error}",
            stacklevel=2,
        )
        return None


def _to_text(task: keras.Model, tokenizer_json: str) -> Callable:
    to_text = IdsToText(tokenizer_json, continues=task.generator.continues_prompts)

    def outputs(found: dict[str, Any]) -> dict[str, Any]:
        counts = tf.reduce_sum(found["output_mask"], axis=1)
        return {"text": to_text(tf.RaggedTensor.from_tensor(found["output_ids"], counts))}

    return outputs


def _reader(task: keras.Model, tokenizer: tf.Module) -> Callable:
    """Return a function from texts to the int64 arrays of a task's first graph."""
    prompt, longest = "", None
    if isinstance(task, TextEmbedder):
        prompt, longest = task.default_prompt, task.max_length
        if task.interaction is not None:
            raise ValueError("The embedder reads queries and documents in different ways.")
        if prompt and not task.include_prompt:
            raise ValueError("The embedder leaves out the prompt's tokens, which no graph can do.")
    longest = None if _writes(task) else take_max_length(task, {}, default=longest)
    pad, end = task.tokenizer.pad_id or 0, task.tokenizer.end_id
    segmented = not _writes(task) and task.backbone.config.segment_vocabulary_size > 0

    def read(texts):
        rows = tokenizer(prompt + texts, max_length=longest)
        ids, lengths = tf.cast(rows.to_tensor(pad), "int64"), tf.cast(rows.row_lengths(), "int32")
        if isinstance(task, CausalLM) and end is not None:  # a prompt ends without an end token
            last = tf.gather(ids, tf.maximum(lengths - 1, 0), batch_dims=1)
            lengths -= tf.cast((lengths > 0) & (last == end), "int32")
            ids = ids[:, : tf.reduce_max(lengths)]
        if _writes(task):
            tf.debugging.assert_positive(
                lengths, "A text has no tokens: there is nothing to continue."
            )
        mask = tf.sequence_mask(lengths, tf.shape(ids)[1])
        ids = tf.where(mask, ids, tf.constant(pad, "int64"))
        return ids, tf.cast(mask, "int64"), *([tf.zeros_like(ids)] if segmented else [])

    return read


def _pair_reader(task: TextClassifier, tokenizer: tf.Module) -> Callable:
    """Return a function from two texts per row to the int64 arrays of a task's graph."""
    longest, pad = take_max_length(task, {}), task.tokenizer.pad_id or 0
    segmented = task.backbone.config.segment_vocabulary_size > 0

    def read(texts, others):
        rows, segments = tokenizer.pairs(texts, others, max_length=longest)
        mask = tf.sequence_mask(rows.row_lengths(), dtype="int64")
        ids, segments = tf.cast(rows.to_tensor(pad), "int64"), segments.to_tensor(0)
        return ids, mask, *([tf.cast(segments, "int64")] if segmented else [])

    return read
