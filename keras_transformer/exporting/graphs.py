"""The graphs of a model: one of one pass, or those that generate with a cache.

Names are those of optimum. A decoder is one graph, `model`, whose cache may be empty; an
encoder-decoder is `encoder_model`, `decoder_model` for the first tokens, whose outputs are the
keys and values of both sides, and `decoder_with_past_model` for what follows.
"""

import keras
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.exporting.graph import PUBLISHED, Array, Graph
from keras_transformer.generation.cache import Cache
from keras_transformer.generation.slot_space import SlotSpace
from keras_transformer.kernels.indexing import columns
from keras_transformer.layers.position import row_lengths
from keras_transformer.layers.stems import Input
from keras_transformer.tasks import QuestionAnswerer, Task, TextEmbedder


def graphs_of(task: keras.Model) -> list[Graph]:
    """The graphs of a task or a backbone.

    Raises:
        ValueError: for a model of which none can be made; the message says what can.
    """
    backbone = getattr(task, "backbone", task)
    kind = backbone.config.kind
    generates = getattr(task, "generates", task is backbone and kind != "encoder")
    if kind == "decoder" and task is backbone and backbone.config.vector_pooling is not None:
        generates = False
    if not generates:
        return [_one_pass(task)]
    return [_decoder(backbone)] if kind == "decoder" else _seq2seq(backbone)


def _one_pass(task: keras.Model) -> Graph:
    """All of a task without a cache, or of a backbone."""
    intake = getattr(task, "intake", task)
    config = getattr(task, "backbone", task).config.sides[0]
    arrays = _taken(intake.input_arrays, config)
    names = tuple(_array(array, config) for array in arrays)

    def function(*tensors):
        given = zip(arrays, tensors, strict=True)
        outputs = task({array.name: _read(array, tensor) for array, tensor in given})
        if isinstance(task, QuestionAnswerer):
            return outputs[..., 0], outputs[..., 1]
        return (ops.cast(outputs, "float32"),)

    outputs = {
        QuestionAnswerer: ("start_logits", "end_logits"),
        TextEmbedder: ("sentence_embedding",),
    }
    found = next((named for kind, named in outputs.items() if isinstance(task, kind)), None)
    found = found or (("logits",) if isinstance(task, Task) else ("last_hidden_state",))
    return Graph("model", task, function, names, found)


def _decoder(backbone: keras.Model) -> Graph:
    """Prompts, and what follows them, with the cache of what was before."""
    layers = backbone.cache_layers
    inputs = (
        Array("input_ids", "int64", ("batch", "length")),
        Array("attention_mask", "int64", ("batch", "total")),
        Array("position_ids", "int64", ("batch", "length")),
        *_pairs("past_key_values.{}.{}", layers, "past"),
    )

    def function(ids, mask, positions, *past):
        before, mask = ops.shape(past[0])[2], ops.cast(mask, "bool")
        # Looked up, not sliced: so the sizes of both are known to be those of past and ids.
        seen = columns(mask, ops.arange(before, dtype="int32"))
        own = columns(mask, before + ops.arange(ops.shape(ids)[1], dtype="int32"))
        # Of each row: up to its last token, less those of this call.
        lengths = row_lengths(ops.cast(positions, "int32"), own)
        lengths = lengths - ops.sum(ops.cast(own, "int32"), axis=1)
        cache = _cache(backbone, past, seen, lengths)
        ids = ops.cast(ids, "int32")
        states, cache = backbone({"token_ids": ids, "padding_mask": own}, cache=cache)
        return ops.cast(backbone.logits(states), "float32"), *_kept(cache)

    outputs = ("logits", *(array.name for array in _pairs("present.{}.{}", layers, "total")))
    return Graph("model", backbone, function, inputs, outputs)


def _seq2seq(backbone: keras.Model) -> list[Graph]:
    """The encoder, the decoder's first tokens, and those that follow."""
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
    """The decoder of an encoder-decoder; `masked`, whether a source may have padding."""
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
    if backbone.source is not None or backbone.places is not None:
        raise ValueError(
            "A decoder whose tokens stand beside states of an image, or whose encoder attends to "
            "one, has no graph with a cache. Export it with format='huggingface'."
        )


def _taken(arrays: tuple[Input, ...], config: TransformerConfig) -> list[Input]:
    """Of the arrays that a side may be given those that a graph takes: they are all to be given."""
    taken = ["padding_mask", "observed"] + ["segment_ids"] * bool(config.segment_vocabulary_size)
    return [array for array in arrays if array.required or array.name in taken]


def _array(array: Input, config: TransformerConfig) -> Array:
    dtype = "float32" if array.dtype == "float32" else "int64"
    length: int | str = "length"
    if config.stem is not None and config.stem.kind == "series" and not config.stem.reads_observed:
        length = config.stem.context_length  # The pieces are those of a whole context.
    sizes = tuple(length if size is None else size for size in array.shape)
    if array.name == "images":
        side = config.stem.image_size
        sizes = (*((side, side) if isinstance(side, int) else side), *sizes[2:])
    return Array(PUBLISHED.get(array.name, array.name), dtype, ("batch", *sizes))


def _read(array: Input, tensor):
    return ops.cast(tensor, array.dtype)


def _pairs(name: str, layers: list[tuple], length: str) -> tuple[Array, ...]:
    """Keys and values of each layer."""
    return tuple(
        Array(name.format(i, part), "float32", ("batch", heads, length, width))
        for i, (heads, width, *_) in enumerate(layers)
        for part in ("key", "value")
    )


def _cache(backbone: keras.Model, past: tuple, seen, lengths) -> Cache:
    """The cache of keys and values that were seen, behind which the next ones are joined."""
    positions = ops.maximum(ops.cumsum(ops.cast(seen, "int32"), axis=1) - 1, 0)
    pairs = list(zip(past[::2], past[1::2], strict=True))
    rows, end = ops.shape(seen)
    empty = Cache.create(backbone, rows, 0)
    spaces = {
        key: SlotSpace({i: pairs[i] for i in space.layers}, seen[:, None], positions, end, end)
        for key, space in empty.spaces.items()
    }
    return empty._replace(spaces=spaces, lengths=lengths)


def _kept(cache: Cache) -> tuple:
    """Keys and values of each layer, in order."""
    return tuple(x for layer in cache.layers for x in layer["self"])
