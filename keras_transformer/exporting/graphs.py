"""Graphs of a model: one graph for a single pass, or graphs that generate with a cache.

Names follow optimum. A decoder is one graph, `model`, whose cache may be empty. An encoder-decoder
has three: `encoder_model`; `decoder_model` for the first tokens, which also returns the keys and
values of self- and cross-attention; and `decoder_with_past_model` for the following tokens. A
`PromptedSegmenter` has two: `vision_encoder`, and `prompt_encoder_mask_decoder` for its states.
"""

import keras
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.exporting.graph import PUBLISHED, Array, Graph
from keras_transformer.generation.cache import Cache, CacheGroup, has_states
from keras_transformer.kernels.indexing import columns
from keras_transformer.layers.position import row_lengths
from keras_transformer.layers.stems import Input
from keras_transformer.tasks import (
    DepthEstimator,
    ObjectDetector,
    PromptedSegmenter,
    QuestionAnswerer,
    Task,
    TextEmbedder,
)


def graphs_of(task: keras.Model) -> list[Graph]:
    """Return the graphs of a task or a backbone.

    Raises:
        ValueError: if the model cannot be exported as graphs; the message names a format that
            supports it.
    """
    backbone = getattr(task, "backbone", task)
    kind = backbone.config.kind
    generates = getattr(task, "generates", task is backbone and kind != "encoder")
    if kind == "decoder" and task is backbone and backbone.config.vector_pooling is not None:
        generates = False
    if isinstance(task, PromptedSegmenter):
        return _prompted(task)
    if not generates:
        return [_one_pass(task)]
    if not all(heads for heads, *_ in backbone.cache_layers) and not has_states(backbone):
        raise ValueError(
            "A decoder whose layers share keys and values has no graph with a cache, whose "
            "inputs are those of each layer. Export it with format='huggingface'."
        )
    if has_states(backbone):
        raise ValueError(
            "A decoder with recurrent mixers has no graph with a cache, whose inputs and outputs "
            "are keys and values. Export it with format='huggingface'."
        )
    return [_decoder(backbone)] if kind == "decoder" else _seq2seq(backbone)


def _one_pass(task: keras.Model) -> Graph:
    """Return the graph of a task or a backbone without a cache."""
    input_interface = getattr(task, "input_interface", task)
    config = getattr(task, "backbone", task).config.sides[0]
    arrays = _taken(input_interface.input_arrays, config)
    names = tuple(_array(array, config) for array in arrays)

    def function(*tensors):
        given = zip(arrays, tensors, strict=True)
        outputs = task({array.name: _read(array, tensor) for array, tensor in given})
        if isinstance(task, QuestionAnswerer):
            return outputs[..., 0], outputs[..., 1]
        if isinstance(task, ObjectDetector):
            outputs = ops.cast(outputs, "float32")
            return outputs[..., 4:], outputs[..., :4]
        return (ops.cast(outputs, "float32"),)

    outputs = {
        QuestionAnswerer: ("start_logits", "end_logits"),
        TextEmbedder: ("sentence_embedding",),
        DepthEstimator: ("predicted_depth",),
        ObjectDetector: ("logits", "pred_boxes"),
    }
    found = next((named for kind, named in outputs.items() if isinstance(task, kind)), None)
    if getattr(task, "interaction", None) is not None:
        found = ("token_embeddings",)
    found = found or (("logits",) if isinstance(task, Task) else ("last_hidden_state",))
    return Graph("model", task, function, names, found)


def _prompted(task: PromptedSegmenter) -> list[Graph]:
    """Return the graph of the states of images, and that of the masks of prompts on them."""
    config = task.backbone.config.sides[0]
    arrays = _taken(task.backbone.input_arrays, config)
    inputs = tuple(_array(array, config) for array in arrays)

    def encode(*tensors):
        given = zip(arrays, tensors, strict=True)
        return (task({array.name: _read(array, tensor) for array, tensor in given}),)

    def segment(points, labels, states):
        labels = ops.cast(labels, "int32")
        outputs = task({"points": points, "point_labels": labels, "image_states": states})
        return outputs["iou_scores"], outputs["masks"]

    states = Array("image_embeddings", "float32", ("batch", *task.head.grid, task.head.masks.width))
    prompts = (
        Array("input_points", "float32", ("batch", "prompts", "points", 2)),
        Array("input_labels", "int64", ("batch", "prompts", "points")),
    )
    return [
        Graph("vision_encoder", task, encode, inputs, (states.name,)),
        Graph(
            "prompt_encoder_mask_decoder",
            task,
            segment,
            (*prompts, states),
            ("iou_scores", "pred_masks"),
        ),
    ]


def _decoder(backbone: keras.Model) -> Graph:
    """Return the graph of a decoder, for a prompt or for further tokens with a cache."""
    layers = backbone.cache_layers
    inputs = (
        Array("input_ids", "int64", ("batch", "length")),
        Array("attention_mask", "int64", ("batch", "total")),
        Array("position_ids", "int64", ("batch", "length")),
        *_pairs("past_key_values.{}.{}", layers, "past"),
    )

    def function(ids, mask, positions, *past):
        before, mask = ops.shape(past[0])[2], ops.cast(mask, "bool")
        # Gathered, not sliced, so that their sizes are known to equal those of `past` and `ids`.
        seen = columns(mask, ops.arange(before, dtype="int32"))
        own = columns(mask, before + ops.arange(ops.shape(ids)[1], dtype="int32"))
        # Length of each row up to its last token, without the tokens of this call.
        lengths = row_lengths(ops.cast(positions, "int32"), own)
        lengths = lengths - ops.sum(ops.cast(own, "int32"), axis=1)
        cache = _cache(backbone, past, seen, lengths)
        ids = ops.cast(ids, "int32")
        states, cache = backbone({"token_ids": ids, "padding_mask": own}, cache=cache)
        return ops.cast(backbone.logits(states), "float32"), *_kept(cache)

    outputs = ("logits", *(array.name for array in _pairs("present.{}.{}", layers, "total")))
    return Graph("model", backbone, function, inputs, outputs)


def _seq2seq(backbone: keras.Model) -> list[Graph]:
    """Return the graphs of the encoder, and of the decoder for the first and for later tokens."""
    _refuse_sources(backbone)
    arrays = _taken(backbone.encoder_stem.inputs, backbone.encoder.config)
    masked = any(array.name == "padding_mask" for array in arrays)

    def encode(*tensors):
        given = {a.name: _read(a, x) for a, x in zip(arrays, tensors, strict=True)}
        return (ops.cast(backbone.encode(**given), "float32"),)

    inputs = tuple(_array(array, backbone.encoder.config) for array in arrays)
    encoder = Graph("encoder_model", backbone, encode, inputs, ("last_hidden_state",))
    return [encoder, *_decoders(backbone, masked)]


def _decoders(backbone: keras.Model, masked: bool) -> list[Graph]:
    """Return the decoder's graphs of a seq2seq; `masked` says whether sources can be padded."""
    layers = backbone.cache_layers
    ids = Array("input_ids", "int64", ("batch", "length"))
    mask = (Array("encoder_attention_mask", "int64", ("batch", "source")),) if masked else ()
    states = Array("encoder_hidden_states", "float32", ("batch", "source", backbone.source_dim))
    own = _pairs("past_key_values.{}.decoder.{}", layers, "past")
    of_source = _pairs("past_key_values.{}.encoder.{}", layers, "source")
    given = [array.name.replace("past_key_values", "present") for array in (*own, *of_source)]

    def start(ids, *source):
        *mask, states = source
        inputs = {"decoder_token_ids": ops.cast(ids, "int32"), "encoder_states": states}
        if mask:
            inputs["encoder_padding_mask"] = ops.cast(mask[0], "bool")
        hidden, cache = backbone(inputs, cache=Cache.create(backbone, ops.shape(ids)[0], 0))
        cross = (x for pair in cache.cross for x in pair)
        return ops.cast(backbone.logits(hidden), "float32"), *_kept(cache), *cross

    def go_on(ids, *tensors):
        past, cross = tensors[len(mask) :][: len(own)], tensors[-len(of_source) :]
        rows, _, before, _ = ops.shape(past[0])
        source = ops.cast(tensors[0], "bool") if mask else None
        seen = ops.ones((rows, before), "bool")
        cache = _cache(backbone, past, seen, ops.sum(ops.cast(seen, "int32"), axis=1))
        pairs = list(zip(cross[::2], cross[1::2], strict=True))
        if source is None:
            source = ops.ones((rows, ops.shape(cross[0])[2]), "bool")
        cache = cache._replace(cross=pairs, source=source)
        hidden, cache = backbone({"decoder_token_ids": ops.cast(ids, "int32")}, cache=cache)
        return ops.cast(backbone.logits(hidden), "float32"), *_kept(cache)

    first, then = (ids, *mask, states), (ids, *mask, *own, *of_source)
    kept = ("logits", *given[: len(own)])
    return [
        Graph("decoder_model", backbone, start, first, ("logits", *given)),
        Graph("decoder_with_past_model", backbone, go_on, then, kept),
    ]


def _refuse_sources(backbone: keras.Model) -> None:
    if backbone.source is not None or backbone.placeholder_tokens is not None:
        raise ValueError(
            "A decoder that reads states of an image among its tokens, or attends to an image, has "
            "no graph with a cache. Export it with format='huggingface'."
        )


def _taken(arrays: tuple[Input, ...], config: TransformerConfig) -> list[Input]:
    """Return the input arrays of a side that become inputs of its graph, all of them required.

    The images of a graph have one size, so it takes no mask of pixels.
    """
    taken = ["padding_mask", "observed"] + ["segment_ids"] * bool(config.segment_vocabulary_size)
    return [
        array for array in arrays if array.required or (array.name in taken and array.of_tokens)
    ]


def _array(array: Input, config: TransformerConfig) -> Array:
    dtype = "float32" if array.dtype == "float32" else "int64"
    length: int | str = "length"
    if config.stem is not None and config.stem.kind == "series" and not config.stem.reads_observed:
        length = config.stem.context_length  # the patches always cover the whole context
    sizes = tuple(length if size is None else size for size in array.shape)
    if array.name == "images":
        side = config.stem.image_size
        sizes = (*((side, side) if isinstance(side, int) else side), *sizes[2:])
    if array.name == "videos":
        sizes = (*config.stem.video_size, *sizes[3:])
    return Array(PUBLISHED.get(array.name, array.name), dtype, ("batch", *sizes))


def _read(array: Input, tensor):
    return ops.cast(tensor, array.dtype)


def _pairs(name: str, layers: list[tuple], length: str) -> tuple[Array, ...]:
    """Return the arrays of the keys and values of each layer, as inputs of a graph."""
    return tuple(
        Array(name.format(i, part), "float32", ("batch", heads, length, width))
        for i, (heads, width, *_) in enumerate(layers)
        for part in ("key", "value")
    )


def _cache(backbone: keras.Model, past: tuple, seen, lengths) -> Cache:
    """Return a cache of the keys and values `past`, to which a call appends the next ones."""
    positions = ops.maximum(ops.cumsum(ops.cast(seen, "int32"), axis=1) - 1, 0)
    pairs = list(zip(past[::2], past[1::2], strict=True))
    rows, end = ops.shape(seen)
    empty = Cache.create(backbone, rows, 0)
    groups = {
        key: CacheGroup({i: pairs[i] for i in group.layers}, seen[:, None], positions, end, end)
        for key, group in empty.groups.items()
    }
    return empty._replace(groups=groups, lengths=lengths)


def _kept(cache: Cache) -> tuple:
    """Return the keys and values of self-attention of all layers, in order."""
    return tuple(x for layer in cache.layers for x in layer["self"])
