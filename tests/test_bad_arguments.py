"""Wrong arguments of what is not a task: training, data, presets, tokenizers, planning."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import data, training
from keras_transformer.checkpoints import export_to_huggingface, load_backbone
from keras_transformer.planning import flops_per_sequence, make_plan
from tests.tasks.common import config, tokenizer

pytestmark = pytest.mark.backend_independent

NAN, INF = float("nan"), float("inf")
NO_COUNTS = ["x", "8", 1.5, 8.0, NAN, True, [8], b"8", object(), -1]
NO_NUMBERS = ["x", NAN, INF, True, [0.1], b"x", object(), 1e300, 10**400]
NO_PATHS = [None, "", 5, b"x", [], "a\0b", "x" * 10_000, "a\ud800"]
ROWS = {"ids": [[1, 2], [3]]}


def config_of(kind):
    return config(kind, tokenizer(lowercase=True))


def dataset(**options):
    values = {"columns": ROWS, "make_batch": lambda arrays, masks: (arrays["ids"],), **options}
    return data.BucketedDataset(**values)


def refused(name, function, **arguments):
    """Held: the error names the argument, is short, and can be printed."""
    with pytest.raises(ValueError, match=f"`{name}") as error:
        function(**arguments)
    text = str(error.value)
    assert len(text) < 500
    text.encode()


COUNTS = {
    "ResumableRun": ("every", lambda every: training.ResumableRun("a", dataset(), every)),
    "LastCheckpoints.keep": ("keep", lambda keep: training.LastCheckpoints("a", keep)),
    "LastCheckpoints.every": ("every", lambda every: training.LastCheckpoints("a", every=every)),
    "StopAtNaN": ("every", lambda every: training.StopAtNaN(every)),
    "BLEUCallback": ("every", lambda every: training.BLEUCallback(["a"], ["a"], every=every)),
    "InverseSquareRoot": ("warmup_steps", lambda n: training.InverseSquareRoot(1e-3, n)),
    "for_width": ("hidden_dim", lambda n: training.InverseSquareRoot.for_width(n)),
    "LinearDecay": ("total_steps", lambda n: training.LinearDecay(1e-3, n)),
    "warmup": ("warmup_steps", lambda n: training.LinearDecay(1e-3, 100, n)),
    "batch_size": ("batch_size", lambda n: dataset(batch_size=n)),
    "batch_tokens": ("batch_tokens", lambda n: dataset(batch_tokens=n)),
    "pack_length": ("pack_length", lambda n: dataset(pack_length=n)),
    "max_buckets": ("max_buckets", lambda n: dataset(max_buckets=n)),
    "multiple": ("multiple", lambda n: dataset(multiple=n)),
    "seed": ("seed", lambda n: dataset(seed=n)),
    "choose_buckets": ("max_buckets", lambda n: data.choose_buckets([3, 5], n)),
    "capacity": ("capacity", lambda n: data.pack_rows([3, 5], n)),
    "devices": (
        "devices",
        lambda n: make_plan(config_of("decoder"), batch_size=8, length=8, devices=n),
    ),
    "plan": ("batch_size", lambda n: make_plan(config_of("decoder"), batch_size=n, length=8)),
    "length": ("length", lambda n: flops_per_sequence(config_of("decoder"), n)),
    "num_layers": ("num_layers", lambda n: config_of("decoder").replace(num_layers=n)),
    "vocabulary": ("vocabulary_size", lambda n: kt.Tokenizer.train(["a"], vocabulary_size=n)),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name):
    argument, function = COUNTS[name]
    for value in NO_COUNTS:
        with pytest.raises(ValueError, match=f"`{argument}`") as error:
            function(value)
        assert len(str(error.value)) < 300


def test_numbers_of_numpy_count():
    for n in (np.int64(8), np.array(8), np.uint8(8)):
        for name, (_, function) in COUNTS.items():
            if name != "vocabulary":
                function(n)
        assert type(dataset(seed=n).seed) is int
        assert type(training.LastCheckpoints("a", n).keep) is int
    assert training.LinearDecay(np.float32(0.5), np.int64(10)).peak == 0.5
    assert training.FineTuningAdamW(np.float32(0.5), layer_decay=np.float64(0.5)).layer_decay == 0.5
    assert training.TokenCrossEntropy(np.float32(0.5)).get_config()["label_smoothing"] == 0.5


NUMBERS = {
    "peak": lambda x: training.InverseSquareRoot(x, 10),
    "label_smoothing": lambda x: training.TokenCrossEntropy(x),
    "layer_decay": lambda x: training.FineTuningAdamW(layer_decay=x),
    "weight_decay": lambda x: training.FineTuningAdamW(weight_decay=x),
    "learning_rate": lambda x: training.FineTuningAdamW(x),
    "beta_1": lambda x: training.transformer_adam(1e-3, beta_1=x),
    "epsilon": lambda x: training.transformer_adam(1e-3, epsilon=x),
    "clipnorm": lambda x: training.transformer_adam(1e-3, clipnorm=x),
    "rate": lambda x: training.MaskedTokens(x),
    "density": lambda x: training.SpanCorruption(x),
    "mean_span_length": lambda x: training.SpanCorruption(mean_span_length=x),
    "mask_rate": lambda x: training.Denoising(x),
    "peak_flops": lambda x: training.Throughput(dataset(), x),
    "device_memory": lambda x: make_plan(
        config_of("decoder"), batch_size=2, length=8, device_memory=x
    ),
    "dropout": lambda x: config_of("encoder").replace(dropout=x),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name):
    for value in NO_NUMBERS:
        with pytest.raises(ValueError, match=f"`{name}`") as error:
            NUMBERS[name](value)
        assert len(str(error.value)) < 300
    with pytest.raises(ValueError, match=f"`{name}`"):
        NUMBERS[name](-0.5)


def test_numbers_that_float32_does_not_tell_from_0():
    for name in ("peak", "epsilon", "clipnorm", "rate", "mask_rate", "layer_decay"):
        refused(name, NUMBERS[name], x=1e-300)


def test_choices():
    for value in ("x" * 10_000, 5, ["float32"], NAN, object()):
        refused(
            "dtype", make_plan, config=config_of("decoder"), batch_size=1, length=1, dtype=value
        )
        refused("kind", config_of("encoder").replace, kind=value)
        refused("reduction", training.TokenCrossEntropy, reduction=value)
        refused("tokenize", training.BLEU, tokenize=value)
        refused("task", kt.list_presets, task=value)
        refused("kind", kt.Tokenizer.train, texts=["a"], kind=value)
        refused("template", kt.Tokenizer.train, texts=["a"], template=value)
        refused("format", data.read, source="a", format=value)
        refused("encoding", data.read, source=__file__, format="text", encoding=value)


def test_data_sets_of_callbacks():
    for value in ("x", 5, [1], object()):
        refused("dataset", training.ResumableRun, directory="a", dataset=value)
        refused("dataset", training.Throughput, dataset=value)


def test_paths(tmp_path):
    backbone = kt.models.Encoder(config_of("encoder"))
    words = tokenizer(lowercase=True)
    for value in NO_PATHS:
        refused("directory", backbone.save_to_preset, directory=value)
        refused("directory", words.save, directory=value)
        refused("directory", export_to_huggingface, model=backbone, directory=value)
        refused("directory", training.ResumableRun, directory=value)
        refused("directory", training.LastCheckpoints, directory=value)
        refused("preset", kt.Backbone.from_preset, preset=value)
        refused("preset", kt.Tokenizer.from_preset, preset=value)
        refused("preset", kt.TextClassifier.from_preset, preset=value)
        refused("paths", training.average_checkpoints, paths=[value])
        refused("paths", training.average_checkpoints, paths=value)
        if value is not None:
            refused("cache", data.read, source=__file__, format="text", cache=value)
            refused("checkpoints", training.StopAtNaN, checkpoints=value)
    assert not list(tmp_path.iterdir())


def test_names_of_presets():
    for name in ("~nosuchuser/x", "~nosuchuser", "~nosuchuser/a/b"):
        with pytest.raises(ValueError, match="`preset` is '~nosuchuser.*there is no such user"):
            kt.TextClassifier.from_preset(name)
        with pytest.raises(ValueError, match="`directory` is '~nosuchuser"):
            tokenizer(lowercase=True).save_to_preset(name)
    with pytest.raises(ValueError, match=r"There is no preset 'minilm\\nl6_en'. Did you mean"):
        kt.Backbone.from_preset("minilm\nl6_en")
    with pytest.raises(ValueError, match="There is no preset 'x+\\.\\.\\.x+'") as error:
        kt.Backbone.from_preset("x" * 250)
    assert len(str(error.value)) < 600
    with pytest.raises(ValueError, match="`load_weights` must be True or False"):
        load_backbone("minilm_l6_en", load_weights="no")


def test_what_is_saved_beside_weights(tmp_path):
    backbone = kt.models.Encoder(config_of("encoder"))
    for options, name in (
        ({"dtype": "int8"}, "dtype"),
        ({"dtype": 16}, "dtype"),
        ({"card": 5}, "card"),
        ({"card": "a\ud800"}, "card"),
        ({"metadata": "x"}, "metadata"),
    ):
        task = kt.TextClassifier(backbone, num_classes=2)
        refused(name, task.save_to_preset, directory=tmp_path / "new", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("columns", {"columns": None}),
        ("columns", {"columns": [[1]]}),
        ("paired_columns", {"paired_columns": "x"}),
        ("values", {"values": 5}),
        ("values", {"values": {"a": 1}}),
        ("pad_values", {"pad_values": "x"}),
        ("pad_values", {"pad_values": {"ids": NAN}}),
        ("pad_values", {"pad_values": {"ids": 2**64}}),
        ("make_batch", {"make_batch": 5}),
        ("buckets", {"buckets": "x"}),
        ("buckets", {"buckets": [1.5]}),
        ("buckets", {"buckets": [None]}),
        ("buckets", {"buckets": [[4, 4]]}),
        ("buckets", {"buckets": 8}),
        ("shuffle", {"shuffle": "x"}),
        ("batch_size` .8. counts rows", {"batch_size": 8, "batch_tokens": 8}),
    ],
    ids=str,
)
def test_datasets(name, options):
    refused(name, dataset, **options)


def test_lengths():
    for value in (None, "x", NAN, [NAN], [1.5], [None], [0], [[1], [1, 2]], object()):
        refused("lengths", data.choose_buckets, lengths=value)
        refused("lengths", data.pack_rows, lengths=value, capacity=8)


def test_tokenizers():
    words = tokenizer(lowercase=True)
    for value in ("x", 1.5, NAN, True, None, b"x"):
        refused("id", words.id_to_token, id=value)
        refused("ids", words.decode_batch, ids=value)
    for value in (5, None, b"x", ["a"], "a\ud800"):
        refused("token", words.token_to_id, token=value)
    for value in ("x", 0, None, 5):
        refused("special_tokens", words.encode_batch, texts=["a"], special_tokens=value)
    for value in ("x", 2, 1.5, 2**64, True):
        refused("max_length", words.encode_batch, texts=["a"], max_length=value)
    assert words.encode_batch(["a film"], max_length=np.int64(3)) == [
        words.encode_batch(["a film"], max_length=3)[0]
    ]
    refused(r"texts\[1\]` has half", kt.Tokenizer.train, texts=["a", "b\ud800"])
    refused(r"texts\[1\]` has half", words.encode_batch, texts=["a", "b\ud800"])
    refused("texts", kt.Tokenizer.train, texts={"a": 1})
    for value in (None, 5, "<x>", [""], [5], ["a\ud800"]):
        refused("special_tokens", kt.Tokenizer.train, texts=["a"], special_tokens=value)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="meshes are JAX's")
def test_meshes():
    mesh = kt.distribution.device_mesh(data=1, model=1)
    for value in ("x", 5, NAN, object(), {}):
        refused("devices", kt.distribution.device_mesh, devices=value)
        refused("mesh", kt.distribution.layout_map, mesh=value)
        refused("config", kt.distribution.layout_map, mesh=mesh, config=value)
    for value in NO_COUNTS:
        refused("model", kt.distribution.device_mesh, model=value)
        refused("data", kt.distribution.device_mesh, data=value)


def test_bleu():
    bleu = training.BLEU(tokenize="none")
    for value in (None, 5, "a", [5], [b"a"], ["a\ud800"]):
        refused("y_pred", bleu.update_state, y_true=["a"], y_pred=value)
        refused("y_true", bleu.update_state, y_true=value, y_pred=["a"])
        refused("sources", training.BLEUCallback, sources=value, references=["a"])
        refused("references", training.BLEUCallback, sources=["a"], references=value)


def test_no_config():
    for value in (None, "x", 5, {}):
        refused("config", make_plan, config=value, batch_size=1, length=1)
        refused("config", flops_per_sequence, config=value, length=1)


def test_records(tmp_path):
    path = tmp_path / "lines.csv"
    path.write_text("text,label\na,1\n", encoding="utf-8")
    for value in ("x" * 10_000, "a\nb", "a\ud800"):
        with pytest.raises(ValueError, match="has no column") as error:
            data.read(path, x=value)
        assert len(str(error.value)) < 400
        str(error.value).encode()
    with pytest.raises(ValueError, match="`source` is too long for a path"):
        data.read("x" * 10_000)
    rows = [{"text": "a", "label": np.int64(1)}, {"text": "b", "label": np.int64(0)}]
    records = data.read(rows, y="label")
    encoder = kt.models.Encoder(config_of("encoder"))
    classifier = kt.TextClassifier(encoder, tokenizer(lowercase=True), num_classes=2)
    batch = classifier.make_dataset(records, batch_size=2)[0]
    assert sorted(keras.ops.convert_to_numpy(batch[1]).tolist()) == [0, 1]
