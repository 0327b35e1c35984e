"""Models of KerasHub presets, against KerasHub itself."""

import re

import h5py
import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import backbone_variables, load_backbone
from keras_transformer.checkpoints.keras_hub import KerasHubCheckpoint
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy

pytestmark = [
    pytest.mark.one_backend,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Layer '(self|cross)_attention':UserWarning"),
]

EVEN = {
    "vocabulary_size": 30,
    "num_layers": 2,
    "num_heads": 3,
    "hidden_dim": 12,
    "intermediate_dim": 20,
}
# Five heads of 3 of 17 features: KerasHub leaves the rest out.
UNEVEN = {
    "vocabulary_size": 17,
    "num_layers": 1,
    "num_heads": 5,
    "hidden_dim": 17,
    "intermediate_dim": 7,
}


@pytest.fixture(scope="session")
def hub():
    return pytest.importorskip("keras_hub")


@pytest.mark.parametrize(
    ("kind", "options", "ours"),
    [
        ("GreedySampler", {}, "Greedy()"),
        ("BeamSampler", {"num_beams": 4}, "BeamSearch(num_beams=4)"),
        ("RandomSampler", {"temperature": 0.5}, "Random(temperature=0.5)"),
        ("TopKSampler", {"k": 7}, "Random(top_k=7)"),
        ("TopPSampler", {"p": 0.8, "k": 20, "seed": 1}, "Random(top_k=20, top_p=0.8)"),
        ("ContrastiveSampler", {"alpha": 0.2}, "Contrastive(top_k=5, penalty_alpha=0.2)"),
    ],
)
@pytest.mark.backend_independent
def test_a_sampler_is_answered_with_ours_of_its_values(kind, options, ours, hub):
    sizes = {"hidden_dim": 8, "num_layers": 1, "num_heads": 1, "intermediate_dim": 8}
    config = kt.TransformerConfig(kind="decoder", vocabulary_size=9, **sizes)
    lm = kt.CausalLM(kt.models.Decoder(config))
    theirs = getattr(hub.samplers, kind)(**options)
    for take in (lambda: lm.compile(sampler=theirs), lambda: lm.generate([3], sampler=theirs)):
        with pytest.raises(ValueError, match=re.escape(f"It is `kt.generation.{ours}` here, ")):
            take()
    assert eval(ours, dict(vars(kt.generation)))


DRAWING = ("GlorotUniform", "RandomNormal", "RandomUniform", "TruncatedNormal")


@pytest.fixture(autouse=True)
def _no_drawing(monkeypatch):
    """Models start with zeros: to draw values for every shape, and replace them, takes long."""
    for name in DRAWING:
        initializer = getattr(keras.initializers, name)
        monkeypatch.setattr(initializer, "__call__", lambda self, s, dtype: np.zeros(s, dtype))


def randomize(model, seed=0):
    """Gives every weight values of its own, so that a mix-up of two shows."""
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        if variable.path.endswith("/inv_freq"):  # which the config determines
            continue
        is_scale = variable.path.split("/")[-1] in ("gamma", "weight", "moving_variance")
        variable.assign(is_scale + 0.2 * rng.normal(size=variable.shape))
    return model


def make_backbone(hub, name, sizes, **values):
    if name != "T5":
        values = {"max_sequence_length": 14, **values}
    return randomize(getattr(hub.models, f"{name}Backbone")(**sizes, **values))


def make_batch(vocabulary_size, lengths=(9, 6, 1), length=9, prefix=""):
    rng = np.random.default_rng(1)
    mask = np.arange(length) < np.array(lengths)[:, None]
    ids = np.where(mask, rng.integers(1, vocabulary_size, mask.shape), 0).astype("int32")
    return {f"{prefix}token_ids": ids, f"{prefix}padding_mask": mask}


def inputs_for(name, vocabulary_size):
    batch = make_batch(vocabulary_size)
    if name == "Bert":
        batch["segment_ids"] = (batch["token_ids"] % 2).astype("int32")
    if name == "T5":
        encoder = make_batch(vocabulary_size, prefix="encoder_")
        decoder = make_batch(vocabulary_size, (4, 5, 2), 5, prefix="decoder_")
        return {**encoder, **decoder}, decoder["decoder_padding_mask"]
    return batch, batch["padding_mask"]


def run(model, batch):
    """The output of a model. JAX compiles it as one, which is quicker than every operation."""
    if keras.backend.backend() == "jax":
        return model.predict_on_batch(batch)
    return model(batch)


def call(model, batch):
    """Their model's output, from masks of integers as their preprocessors make them."""
    return run(model, {name: array.astype("int32") for name, array in batch.items()})


def difference(mine, theirs, mask=slice(None)):
    return np.abs(to_numpy(mine) - to_numpy(theirs))[mask].max()


@pytest.mark.parametrize(
    "name, sizes, values",
    [
        ("Bert", EVEN, {}),
        ("Bert", UNEVEN, {"num_segments": 3}),
        ("DistilBert", UNEVEN, {}),
        ("Roberta", UNEVEN, {}),
        ("GPT2", EVEN, {}),
        ("T5", UNEVEN, {"activation": "gelu"}),
    ],
)
def test_states_of_a_backbone(tmp_path, hub, name, sizes, values):
    reference = make_backbone(hub, name, sizes, **values)
    reference.save_to_preset(tmp_path)
    backbone = kt.Backbone.from_preset(tmp_path)
    batch, real = inputs_for(name, sizes["vocabulary_size"])
    expected, states = call(reference, batch), run(backbone, batch)
    if name == "Bert":
        assert difference(backbone.pool(states), expected["pooled_output"]) <= 2e-5
        expected = expected["sequence_output"]
    if name == "T5":
        expected = expected["decoder_sequence_output"]
    assert difference(states, expected, real) <= 2e-5
    assert backbone.count_params() == reference.count_params()
    assert backbone.family == name.lower()


@pytest.mark.parametrize("tied", [True, False])
def test_logits_of_t5(tmp_path, hub, tied):
    # What published presets have, and what is saved as an object.
    approximate = keras.saving.get_registered_object("keras_hub>gelu_approximate")
    sizes, values = EVEN, {"activation": approximate, "layer_norm_epsilon": 1e-3}
    if not tied:
        sizes, values = UNEVEN, {"use_gated_activation": False, "key_value_dim": 6}
    backbone = make_backbone(hub, "T5", sizes, tie_embedding_weights=tied, **values)
    reference = hub.models.T5Seq2SeqLM(backbone)
    reference.save_to_preset(tmp_path)
    lm = kt.Seq2SeqLM.from_preset(tmp_path)
    batch, real = inputs_for("T5", sizes["vocabulary_size"])
    assert difference(run(lm, batch), call(reference, batch), real) <= 1e-4
    assert lm.start_id == 0


@pytest.mark.parametrize("name", ["Bert", "DistilBert", "Roberta"])
def test_a_classifier_with_its_head(tmp_path, hub, name):
    backbone = make_backbone(hub, name, EVEN)
    task = getattr(hub.models, f"{name}TextClassifier")(backbone, num_classes=3, dropout=0.3)
    randomize(task).save_to_preset(tmp_path)
    classifier = kt.TextClassifier.from_preset(tmp_path)
    assert (classifier.num_classes, classifier.dropout) == (3, 0.3)
    batch, _ = inputs_for(name, 30)
    assert difference(run(classifier, batch), call(task, batch)) <= 1e-4


@pytest.mark.parametrize("name", ["Bert", "DistilBert", "Roberta"])
def test_further_tasks(tmp_path, hub, caplog, name):
    backbone = make_backbone(hub, name, EVEN)
    task = randomize(getattr(hub.models, f"{name}MaskedLM")(backbone))
    task.save_to_preset(tmp_path / "masked")
    masked = kt.MaskedLM.from_preset(tmp_path / "masked")
    batch, _ = inputs_for(name, 30)
    batch["mask_positions"] = np.array([[1, 2], [5, 0], [0, 0]], "int32")
    assert difference(run(masked, batch), call(task, batch)) <= 1e-4
    assert not caplog.records  # nothing was made fresh
    kt.TextClassifier.from_preset(tmp_path / "masked", num_classes=2)
    assert "newly initialized" in caplog.text


def test_a_published_embedder(tmp_path, hub):
    backbone = make_backbone(hub, "Bert", EVEN)
    task = hub.models.BertTextEmbedder(backbone, pooling_mode="max", normalize=False)
    task.save_to_preset(tmp_path / "embedder")
    embedder = kt.TextEmbedder.from_preset(tmp_path / "embedder")
    batch, _ = inputs_for("Bert", 30)
    assert difference(run(embedder, batch), call(task, batch)) <= 2e-5


def test_weights_in_shards_and_in_bfloat16(tmp_path, hub):
    reference = make_backbone(hub, "GPT2", EVEN)
    reference.save_to_preset(tmp_path / "sharded", max_shard_size=5e-6)
    assert len(list((tmp_path / "sharded").glob("model_*.weights.h5"))) > 2
    assert not (tmp_path / "sharded" / "model.weights.h5").exists()
    whole = backbone_variables(load_backbone(tmp_path / "sharded"))
    half = make_backbone(hub, "GPT2", EVEN, dtype="bfloat16")
    half.save_to_preset(tmp_path / "half")
    assert {info.dtype for info in KerasHubCheckpoint(tmp_path / "half").values()} == {"BF16"}
    rounded = backbone_variables(load_backbone(tmp_path / "half"))
    for path, variable in whole.items():
        close = np.abs(to_numpy(variable)) * 2**-8
        assert (np.abs(to_numpy(rounded[path]) - to_numpy(variable)) <= close).all(), path


def test_names_of_older_releases(tmp_path, hub):
    """Keras had other names for the projections of an attention layer, which it still reads."""
    reference = make_backbone(hub, "DistilBert", EVEN)
    reference.save_to_preset(tmp_path)
    with h5py.File(tmp_path / "model.weights.h5", "a") as file:
        for layer in ("transformer_encoder", "transformer_encoder_1"):
            attention = file[f"layers/{layer}/_self_attention_layer"]
            for name in ("query", "key", "value", "output"):
                attention.move(f"{name}_dense", f"_{name}_dense")
    theirs = hub.models.Backbone.from_preset(str(tmp_path))
    batch, real = inputs_for("DistilBert", 30)
    assert difference(run(load_backbone(tmp_path), batch), call(theirs, batch), real) <= 2e-5


def test_an_argument_of_their_heads_is_refused(tmp_path, hub):
    """Refuse arguments of their `TextClassifier.from_preset` that change no weight's shape."""
    make_backbone(hub, "Bert", EVEN).save_to_preset(tmp_path)
    with pytest.raises(ValueError, match=r"activation='gelu_tanh', received 'sigmoid'.*the head"):
        kt.TextClassifier.from_preset(tmp_path, num_classes=2, activation="sigmoid")
    with pytest.raises(ValueError, match=r"num_heads=3, received 6: they would give other outputs"):
        kt.Backbone.from_preset(tmp_path, num_heads=6)
    assert kt.TextClassifier.from_preset(tmp_path, num_classes=2, dropout=0.3).dropout == 0.3
