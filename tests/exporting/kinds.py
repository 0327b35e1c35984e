"""A small model of each kind, and which formats refuse it: docs/make_exports.py prints it."""

import keras
import numpy as np

import keras_transformer as kt
from keras_transformer.exporting.graph import PUBLISHED
from keras_transformer.exporting.graphs import graphs_of
from tests.tasks import audio, images, series

SMALL = {
    "vocabulary_size": 61,
    "hidden_dim": 16,
    "num_layers": 1,
    "num_heads": 2,
    "intermediate_dim": 24,
    "max_sequence_length": 64,
    "initializer_range": 0.2,
}


def _encoder():
    values = {"position": "relative", "segment_vocabulary_size": 2}
    return kt.models.Encoder(kt.TransformerConfig(kind="encoder", **SMALL | values))


def _decoder():
    values = {"position": "rotary", "num_key_value_heads": 1, "normalization": "rms_norm"}
    return kt.models.Decoder(kt.TransformerConfig(kind="decoder", **SMALL | values))


def _seq2seq():
    config = kt.TransformerConfig(kind="seq2seq", position="learned", **SMALL)
    return kt.Seq2SeqLM(kt.models.Seq2Seq(config), start_id=2, end_ids=[3])


def _learned():
    return kt.models.Encoder(kt.TransformerConfig(kind="encoder", position="learned", **SMALL))


# By the heading of the column. Those that write text are run by a loop, the others at once.
KINDS = {
    "encoder": _learned,
    "classifier": lambda: kt.TextClassifier(_encoder(), labels=["bad", "good"]),
    "embedder": lambda: kt.TextEmbedder(_learned()),
    "decoder": lambda: kt.CausalLM(_decoder(), end_ids=[3]),
    "seq2seq": _seq2seq,
    "image": images.classifier,
    "audio": audio.classifier,
    "series": series.forecaster,
}
GRAPHS = ("onnx", "openvino", "pt2", "saved_model", "litert")
IN_TABLE = (*GRAPHS, "ctranslate2")
WRITERS = ("decoder", "seq2seq")
# What a format does not take, and a part of what the error says.
REFUSED = {
    ("ctranslate2", "classifier"): "Export its backbone alone: task.backbone",
    ("ctranslate2", "image"): "Export its backbone alone: task.backbone",
    ("ctranslate2", "audio"): "Export its backbone alone: task.backbone",
    ("ctranslate2", "series"): "Export its backbone alone: task.backbone",
}


def made(kind: str, seed: int = 4) -> keras.Model:
    """The model of a kind."""
    keras.utils.set_random_seed(seed)
    return KINDS[kind]()


def arrays_of(task: keras.Model, batch: int, length: int) -> tuple[dict, dict]:
    """Arrays for the one graph of a task, by their names there, and by those of the task.

    Rows of ids end in padding, one more each.
    """
    (graph,) = graphs_of(task)
    random, ours = np.random.default_rng(batch), {name: n for n, name in PUBLISHED.items()}
    given, own = {}, {}
    for array in graph.inputs:
        shape = array.shape({"batch": batch, "length": length})
        if array.dtype == "float32":
            x = random.normal(size=shape).astype("float32")
        elif array.name == "input_ids":
            x = random.integers(4, 60, shape)
        else:  # masks; segments, of which the first is 1, as masks are
            x = (np.arange(shape[1]) < shape[1] - np.arange(batch)[:, None]).astype("int64")
        name = ours.get(array.name, array.name)
        given[array.name] = x
        own[name] = x.astype("bool" if "mask" in name else "int32") if x.dtype == "int64" else x
    return given, own
