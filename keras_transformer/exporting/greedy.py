"""Greedy decoding as a TensorFlow function: a loop around the graphs with a cache."""

from collections.abc import Callable

import keras
import tensorflow as tf

from keras_transformer.exporting.graph import Graph

# Logits of the next tokens `(rows, vocabulary_size)`, and the inputs of the next step.
_Step = tuple[tf.Tensor, list[tf.Tensor]]


def continuations(task: keras.Model, graphs: list[Graph], most: int) -> Callable:
    """Return a function that continues prompts greedily.

    The function takes ids and their mask, int64 `(rows, length)`. It returns the generated ids,
    int64 `(rows, new)`, padded after the end of each row, and the number of generated tokens of
    each row, int64 `(rows,)`, without the end token. Prompts may be padded on either side, sources
    of an encoder on the right.

    Args:
        task: a task that generates.
        graphs: list of `Graph`s, the result of `graphs_of`.
        most: int, most new tokens.
    """
    begin = _decoder(task, graphs[0]) if len(graphs) == 1 else _seq2seq(task, *graphs)
    reads, writes = task.backbone.config.sides[0], task.backbone.config.sides[-1]
    room = writes.max_sequence_length if writes.position == "learned" else None
    if (
        len(graphs) > 1 and room is not None
    ):  # the decoder begins with one token, so that no prompt takes room
        most = min(most, room)

    def write(ids, mask):
        if reads.position != "learned":
            return _loop(task, *begin(ids, mask), most)
        longest, length, continues = reads.max_sequence_length, tf.shape(ids)[1], len(graphs) == 1
        said = f"The model takes {longest} tokens, new ones included: shorten the text."
        fits = tf.debugging.assert_less_equal(length + int(continues), longest, said)
        with tf.control_dependencies([fits]):
            limit = tf.minimum(most, longest - length) if continues else most
            return _loop(task, *begin(ids, mask), limit)

    return write


def _loop(task: keras.Model, logits, state: list, step: Callable, limit: int | tf.Tensor) -> tuple:
    """Append the likeliest token until all rows have ended or have `limit` tokens."""
    rows = tf.shape(logits)[0]
    ends, pad = tf.constant(list(task.end_ids), "int64"), tf.constant(task.pad_id, "int64")

    def go_on(written, counts, done, logits, *state):
        tokens = tf.argmax(logits, axis=-1)
        done |= tf.reduce_any(tokens[:, None] == ends, axis=1)
        tokens = tf.where(done, pad, tokens)
        counts += tf.cast(~done, "int64")
        written = tf.concat([written, tokens[:, None]], axis=1)
        return written, counts, done, *_flat(step(tokens[:, None], list(state)))

    def should_continue(written, counts, done, *_):
        return (tf.shape(written)[1] < limit) & ~tf.reduce_all(done)

    first = (
        tf.zeros((rows, 0), "int64"),
        tf.zeros((rows,), "int64"),
        tf.zeros((rows,), "bool"),
        *_flat((logits, state)),
    )
    shapes = (tf.TensorShape([None, None]), *(x.shape for x in first[1:4]), *map(_growing, state))
    written, counts, *_ = tf.while_loop(should_continue, go_on, first, shape_invariants=shapes)
    # If all rows have ended, the last column holds only end tokens.
    return written[:, : tf.cast(tf.reduce_max(counts, axis=0), "int32")], counts


def _growing(tensor: tf.Tensor) -> tf.TensorShape:
    """Return the shape of a mask, keys or values, with any length."""
    sizes = list(tensor.shape)
    sizes[len(sizes) // 2] = None
    return tf.TensorShape(sizes)


def _flat(step: _Step) -> tuple:
    return step[0], *step[1]


def _decoder(task: keras.Model, graph: Graph) -> Callable:
    layers = task.backbone.cache_layers

    def step(tokens, state):
        mask, *past = state
        mask = tf.concat([mask, tf.ones_like(tokens)], axis=1)
        positions = tf.reduce_sum(mask, axis=1, keepdims=True) - 1
        logits, *kept = graph.function(tokens, mask, positions, *past)
        return logits[:, -1], [mask, *kept]

    def begin(ids, mask):
        rows, length = tf.unstack(tf.shape(ids))
        past = [tf.zeros((rows, n, 0, width)) for n, width, *_ in layers for _ in range(2)]
        positions = tf.maximum(tf.cumsum(mask, axis=1) - 1, 0)
        logits, *kept = graph.function(ids, mask, positions, *past)
        last = length - 1 - tf.argmax(mask[:, ::-1], axis=1, output_type="int32")
        return tf.gather(logits, last, batch_dims=1), [mask, *kept], step

    return begin


def _seq2seq(task: keras.Model, encoder: Graph, first: Graph, then: Graph) -> Callable:
    kept = 2 * len(task.backbone.cache_layers)

    def begin(ids, mask):
        (states,) = encoder.function(ids, mask)
        start = tf.fill((tf.shape(ids)[0], 1), tf.constant(task.start_id, "int64"))
        logits, *given = first.function(start, mask, states)
        own, of_source = given[:kept], given[kept:]

        def step(tokens, state):
            logits, *state = then.function(tokens, mask, *state, *of_source)
            return logits[:, -1], state

        return logits[:, -1], own, step

    return begin
