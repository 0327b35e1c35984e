"""Many devices give the losses of one: virtual CPU devices, and processes on the loopback."""

import json
import math
import os
import re
import socket
from pathlib import Path

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.config.structure import variable_shapes
from keras_transformer.distribution.layout import axes_of
from tests.distribution.workers import MESHES

pytestmark = pytest.mark.each_backend
ROOT = Path(__file__).parents[2]
RUNS = [(kind, f"{data}x{model}") for kind, meshes in MESHES.items() for data, model in meshes]


on_jax = pytest.mark.parametrize("only", ["jax"], indirect=True)


@pytest.fixture(scope="module")
def eight(only, results, tmp_path_factory):
    return results(["eight_devices", tmp_path_factory.mktemp("eight")], devices=8)[0]


def close(one):
    return pytest.approx(one, rel=1e-5)


@on_jax
@pytest.mark.parametrize("kind, mesh", RUNS)
def test_losses_are_those_of_one_device(eight, kind, mesh):
    losses = eight["losses"][kind]
    assert len(losses["1x1"]) == 20 and losses["1x1"][-1] < losses["1x1"][0] - 0.1
    assert losses[mesh] == close(losses["1x1"])


@on_jax
@pytest.mark.parametrize("kind, mesh", RUNS)
def test_each_device_holds_its_share(eight, kind, mesh):
    data, model = map(int, mesh.split("x"))
    whole = re.compile(
        r"norm_|position_embedding|relative_bias|pooler|transform|iteration|learning_rate"
        r"|(attention|feed_forward|shared)_output_bias|router|shared_score|query_down"
        r"|latent_(kernel|bias)|_mixer_"
    )
    states, weights = 0, 0
    for path, shape, shard_bytes in eight[f"shards of {kind} on {mesh}"]:
        path = path.replace("/", "_")  # as the paths of optimizer states have it
        states += path.endswith(("_momentum", "_velocity"))
        weights += not path.startswith("adam")
        parts = 1 if whole.search(path) else model
        assert shard_bytes == [4 * math.prod(shape) / parts] * data * model, path
    assert states == 2 * weights > 0


@on_jax
def test_any_number_of_rows_and_words(eight):
    assert eight["odd"] == close(eight["odd of one"])
    assert eight["at once"] == [1, 3, 64]
    # Of 62 words: cut along the width.
    assert eight["axes"] == [[None, "model"], ["model", None]]


@on_jax
def test_adversarial_training(eight):
    assert eight["adversarial"] == close(eight["adversarial of one"])
    assert len(eight["adversarial"]) == 3


@on_jax
def test_saved_and_loaded_on_another_mesh(eight):
    for mesh in ("4x2", "1x1"):
        data, model = map(int, mesh.split("x"))
        assert eight["outputs"][mesh] == pytest.approx(eight["outputs"]["2x4"], abs=1e-5)
        rows = eight[f"shards of loaded on {mesh}"]
        embedding = next(row for row in rows if row[0].endswith("token_embedding/embeddings"))
        assert embedding[2] == [64 * 16 * 4 / model] * data * model


@on_jax
def test_loss_of_a_vocabulary_over_devices(eight):
    """Right numbers, and no device makes the logits of others."""
    one, many = eight["loss"]["1x1"], eight["loss"]["2x4"]
    assert many["value"] == pytest.approx(one["value"], rel=1e-6)
    for ours, theirs in zip(many["gradients"], one["gradients"], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert many["bytes"] < one["bytes"] / 4


@on_jax
def test_errors_name_the_number(eight):
    errors = eight["errors"]
    assert "needs 16 devices, but there are 8: cpu:0, cpu:1" in errors["devices"]
    assert "device_count=16" in errors["devices"]
    assert "`data` must be an integer of at least 1 or None, received 0" in errors["zero"]
    assert "`model` must be an integer of at least 1, received 2.0" in errors["float"]
    assert "model=8 parts, which does not divide num_key_value_heads=4" in errors["key heads"]
    assert "can be cut into 1, 2, 4 parts" in errors["key heads"]
    assert "model=4 parts, which does not divide num_heads=2" in errors["heads"]
    assert "model=4 parts, which does not divide intermediate_dim=30" in errors["width"]
    for name, size in (("vocabulary", 62), ("keras_own", 61)):
        assert f"does not divide vocabulary_size={size}" in errors[name]
        assert "distribution.ModelParallel, which then cuts the embedding" in errors[name]
    assert (
        "has the axes ['batch'], but the layout needs one named 'model'" in errors["no_model_axis"]
    )


@on_jax
def test_two_processes(only, results, tmp_path, eight):
    """A process with half of the rows, and a process with half of the weights."""
    even = eight["losses"]["decoder"]["1x1"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    first, second = results(*(["jax_processes", rank, port, tmp_path] for rank in range(2)))
    runs = ((2, 1, [4, 3], eight["odd of one"]), (1, 2, [8, 8], even))
    for data, model, rows, one in runs:
        mesh = f"{data}x{model}"
        for rank, found in enumerate((first[mesh], second[mesh])):
            assert found["losses"] == close(one)
            assert found["rows read"] == rows
            assert found["share"] == ([rank, 2] if data == 2 else [0, 1])
        assert first[mesh]["saved"] == second[mesh]["saved"]


@pytest.mark.parametrize("only", ["torch"], indirect=True)
def test_two_processes_of_pytorch(only, results, tmp_path):
    both = [["torch_process", rank, tmp_path / "store"] for rank in range(2)]
    one, *two = results(["torch_one"], *both)
    for found in two:
        assert found["losses"] == close(one["losses"])
    assert two[0]["weights"] == two[1]["weights"]


# Not run until now: no machine with two GPUs was at hand.
on_two_gpus = pytest.mark.skipif(
    int(os.environ.get("TEST_GPUS", 0)) < 2, reason="make test-gpu DEVICES=2"
)


@on_two_gpus
@pytest.mark.parametrize("only", ["torch"], indirect=True)
def test_two_gpus_of_pytorch(only, results, tmp_path):
    """By NCCL, a process for each GPU."""
    both = [["torch_process", rank, tmp_path / "store"] for rank in range(2)]
    one, *two = results(["torch_one"], *both, ON_GPUS="1")
    for found in two:
        assert found["losses"] == pytest.approx(one["losses"], rel=1e-4)
    assert two[0]["weights"] == two[1]["weights"]


@on_two_gpus
@on_jax
def test_two_gpus_of_jax(only, results):
    """By NCCL, one process: the batch over both, or the weights."""
    (found,) = results(["two_gpus"], ON_GPUS="1")
    for losses in found.values():
        for mesh in ("2x1", "1x2"):
            assert losses[mesh] == pytest.approx(losses["1x1"], rel=1e-4)


@pytest.mark.parametrize("only", ["tensorflow"], indirect=True)
def test_mirrored_strategy(only, results):
    (found,) = results(["mirrored"])
    assert found["two"] == close(found["one"])
    # Losses that layers add: each replica has its own, though the replicas share the layers.
    assert found["two, experts"] == close(found["one, experts"])
    assert found["epochs"] == 1


@pytest.mark.backend_independent
def test_the_table_knows_every_model():
    """Each bundled preset has all block matrices sharded, and the embedding if possible."""
    seen = set()
    for path in sorted((ROOT / "presets").glob("*/config.json")):
        values = json.loads(path.read_text(encoding="utf-8"))["backbone"]
        config = kt.TransformerConfig.from_dict(values)
        seen.add(config.kind)
        for name, shape in variable_shapes(config).items():
            axes = axes_of(f"{config.kind}/{name}", shape, 2)
            assert len(axes) == len(shape)
            # Small ones, norms of each head, mixers other than attention, projections into latent
            # vectors, and what Gemma 4 has of a token for each layer, Gemma 3n of its copies.
            names = ("/score/", "/router/", "/shared_score/", "/query_norm/", "/key_norm/")
            names += ("/mixer/", "/latent/", "/query_down/", "/layer_input/", "/layer_inputs/")
            names += ("/altup/", "/laurel/")
            # A Conformer's convolution, and the vectors of distances, which all heads share.
            names += ("/conformer/expansion/", "/conformer/output/", "/depthwise_convolution/")
            names += ("/relative/distances",)
            # SegFormer's convolutions between stages, and before keys and values.
            names += ("/merging/", "/reduction/")
            # The gate of WavLM's biases, which all heads share, and XLNet's vectors of the heads.
            names += (
                "/bias_gate/",
                "/content_bias",
                "/position_bias",
                "/segment_bias",
                "/segments",
                "/relative/rows",  # SAM's vectors of distances, which all heads share
                "/relative/columns",
                "/relative/embeddings",  # Swin's tables, small ones
                "/relative/hidden/",  # Swin V2's networks for them
                "/relative/output/",
            )
            whole = any(part in name for part in names)
            block = "/layer_" in name and len(shape) >= 2 and not whole
            table = name.startswith("token_embedding/") and len(shape) == 2  # T5Gemma 2: a vector
            if block or table:
                assert axes.count("model") == 1, (path.parent.name, name)
    assert seen == {"encoder", "decoder", "seq2seq", "dual"}
