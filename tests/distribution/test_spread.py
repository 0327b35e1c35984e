"""Weights, gradients and optimizer spread over devices that see different rows give the same."""

import json
import math
import re

import pytest

from tests.distribution.workers import SETUPS, SHARED, SPREAD
from tests.thorough import THOROUGH

pytestmark = pytest.mark.each_backend
on_torch = pytest.mark.parametrize("only", ["torch"], indirect=True)


@pytest.fixture(scope="module")
def spread(only, results, tmp_path_factory):
    """Return what one process finds, and all of two and of four that share the weights."""
    folder = tmp_path_factory.mktemp("spread")
    found = {}
    for count in SPREAD:
        store = folder / f"store {count}"
        calls = [["torch_spread", rank, count, store, folder] for rank in range(count)]
        found[count] = results(*calls)
    found["alone"], found["read"] = results(["torch_alone"], ["torch_read", folder / "0"])
    return found


@on_torch
@pytest.mark.parametrize("count, name", [(n, name) for n in SPREAD for name in SPREAD[n]])
def test_losses_of_processes_are_those_of_one(spread, count, name):
    one = spread["alone"][name]
    # Another order of sums rounds to other bfloat16.
    closeness = {"mixed precision": 2e-3}.get(name, 1e-5)
    for found in spread[count]:
        assert len(found[name]) == 20
        assert found[name] == pytest.approx(one, rel=closeness)


@on_torch
@pytest.mark.parametrize("count, name", [(n, name) for n in SPREAD for name in SPREAD[n]])
def test_each_process_holds_its_share(spread, count, name):
    processes = [found[f"bytes of {name}"] for found in spread[count]]
    states = 0
    for path, shape, itemsize, _ in processes[0]:
        held = [bytes for each in processes for at, *_, bytes in each if at == path]
        whole = itemsize * math.prod(shape)
        counter = not shape or "seed" in path
        states += path.endswith(("_momentum", "_velocity"))
        assert sum(held) == whole * (count if counter else count // 2), path
        if not counter and shape[0] % 2 == 0:
            assert held == [whole / 2] * count, path
    assert states > 0


@on_torch
def test_calls_that_read_find_the_weights(spread):
    for found in spread[2]:
        reading = found["reading"]
        assert reading["evaluate"] == pytest.approx(spread["read"]["evaluate"], rel=1e-5)
        assert reading["predict"] == pytest.approx(spread["read"]["predict"], rel=1e-5)
        assert reading["generate"] == spread["read"]["generate"]


@on_torch
def test_collectives_of_processes_are_those_of_the_plan(spread):
    """The weights of a block are gathered twice, and its gradients scattered once."""
    for found in spread[2]:
        gathered, scattered = (
            sorted(found["sent"][name]) for name in ("_allgather_base_", "_reduce_scatter_base_")
        )
        outside, *blocks = scattered
        assert blocks == [blocks[0]] * 2 and gathered == [outside, *blocks * 2]
        # Each of two processes sends half of what it gathers or scatters.
        assert 3 * blocks[0] * 4 / 2 == pytest.approx(found["plan"], rel=1e-3)


@on_torch
def test_methods_of_keras_find_whole_weights(spread):
    for found in spread[2]:
        by_keras = found["by keras"]
        assert by_keras["shapes"] and by_keras["same"] and by_keras["still spread"]
        assert by_keras["zeros"] == 0.0
        assert by_keras["sums"] == pytest.approx(spread["read"]["sums"], rel=1e-6)


@on_torch
def test_closed_checkpoints_leave_no_group(spread):
    for found in spread[2]:
        assert found["groups"][0] == found["groups"][1]


@on_torch
def test_setup_says_what_does_not_fit(spread):
    first, second = spread[2]
    assert first["setup"] == [1, 2, 0, 2] and second["setup"] == [1, 2, 1, 2]
    if THOROUGH:  # four processes, which hold copies, are started there alone
        assert [found["setup"] for found in spread[4]] == [[2, 2, rank, 4] for rank in range(4)]
    errors = first["errors"]
    assert "before the first `fit`" in errors["new weights"] and "lora" in errors["new weights"]
    assert "data=3 times fsdp=2 times model=1 times sequence=1 must be" in errors["world"]
    assert "received fsdp=2, model=2, sequence=None" in errors["both"]
    assert "received fsdp=None, model=2, sequence=2" in errors["both works"]
    versions = r"versions.keras: '3.*' in process 0 \(.*\), '3.0.0' in process 1 \("
    assert all(re.search(versions, found["errors"]["versions"]) for found in (first, second))


@on_torch
def test_processes_share_the_work_of_layers(spread):
    """They train, generate, predict and serve as one process does, with a part of the weights."""
    one = spread["alone"]["shared"]
    first, second = (found["shared"] for found in spread[2])
    for name in SHARED:
        for found in (first, second):
            assert found[name]["losses"] == pytest.approx(one[name]["losses"], rel=1e-5)
            assert found[name]["generate"] == one[name]["generate"]
            assert found[name]["predict"] == pytest.approx(one[name]["predict"], rel=1e-5)
            for (path, shape, held), (*_, whole) in zip(
                found[name]["bytes"], one[name]["bytes"], strict=True
            ):
                sub_layer = "|".join(("norm", "router", "score", "/output/bias"))
                halved = not re.search(sub_layer, path) and 63 not in shape
                assert held == whole / (2 if halved else 1), path
    held = sum(held for *_, held in first["decoder"]["bytes"])
    assert first["plan"] == [held, 2 * held]
    for found in (first, second):
        assert found["classifier"]["losses"] == pytest.approx(one["classifier"]["losses"], rel=1e-5)
        assert found["classifier"]["weights"] == first["classifier"]["weights"]
    assert first["streamed"] == second["streamed"] == one["streamed"]
    assert first["served"] == one["served"] and [end for _, end in one["served"]] == ["stop"] * 2
    assert first["saved"] == second["saved"]


@on_torch
@pytest.mark.thorough
def test_copies_of_processes_that_share_the_work(spread):
    for found in spread[4]:
        for name in SHARED:
            one = spread["alone"]["shared"][name]["losses"]
            assert found["shared"][name] == pytest.approx(one, rel=1e-5)
        for name, one in spread["alone"]["tokens"].items():
            assert found["tokens"][name] == pytest.approx(one, rel=1e-5)


@on_torch
def test_processes_share_the_tokens_of_rows(spread):
    for found in spread[2]:
        tokens, errors = found["tokens"], found["tokens"]["errors"]
        assert tokens["setup"] == [1, 2]
        for name, one in spread["alone"]["tokens"].items():
            assert tokens[name] == pytest.approx(one, rel=1e-5)
        assert "and not a TextClassifier" in errors["task"]
        assert "do not divide mask_positions of shape (8, 3)" in errors["places"]
        assert "num_heads=8, num_key_value_heads=1" in errors["heads"]
        assert "with attention sinks" in errors["sinks"]
        assert "expert_capacity_factor=None" in errors["capacity"]
        assert "the mixer 'latent_attention'" in errors["mixer"]


@on_torch
def test_what_processes_cannot_share(spread):
    errors = spread[2][0]["shared"]["errors"]
    assert "seed: 0 in process 0" in errors["seed"] and "1 in process 1" in errors["seed"]
    assert "have other rows in their batches" in errors["rows"] and "`shard_of`" in errors["rows"]
    assert "some of its heads" in errors["attention"]
    assert "this model has score_bias=RelativeBias()" in errors["kind"]
    assert "the mixer 'latent_attention'" in errors["mixer"]
    assert "model=2 parts, which does not divide num_heads=3" in errors["heads"]
    assert "has an adapter" in errors["adapter"] and "merge_lora" in errors["adapter"]


on_jax = pytest.mark.parametrize("only", ["jax"], indirect=True)
FEW = ("decoder",)  # compiling is nearly all of the time
ARRANGED = [
    pytest.param(name, sizes, marks=() if name in FEW else pytest.mark.thorough)
    for name, setups in SETUPS.items()
    for sizes in setups
]


@pytest.fixture(scope="module")
def arranged(only, results, tmp_path_factory):
    """Return what eight devices find in one process."""
    names = SETUPS if THOROUGH else FEW
    return results(["jax_spread", tmp_path_factory.mktemp("jax_spread"), *names], devices=8)[0]


@on_jax
@pytest.mark.parametrize("name, sizes", ARRANGED, ids=str)
def test_losses_are_those_of_one_device(arranged, name, sizes):
    assert len(arranged[name]["one"]) == 20
    assert arranged[name][json.dumps(sizes)] == pytest.approx(arranged[name]["one"], rel=1e-5)


@on_jax
@pytest.mark.parametrize("name, sizes", ARRANGED, ids=str)
def test_each_device_holds_its_share(arranged, name, sizes):
    """Matrices that the devices divide are cut, with both states of the optimizer."""
    order = [axis for axis in ("fsdp", "sequence") if axis in sizes]
    assert arranged[f"axes of {name}, {json.dumps(sizes)}"] == ["batch", *order, "model"]
    matrices = 0
    for path, shape, held in arranged[f"shards of {name}, {json.dumps(sizes)}"]:
        devices, whole = math.prod(sizes.values()), 4 * math.prod(shape)
        assert len(held) == devices and len(set(held)) == 1, path
        if len(shape) == 2 and max(shape) % (sizes["fsdp"] * sizes.get("model", 1)) == 0:
            matrices += 1
            assert held[0] <= whole / sizes["fsdp"], path
        elif len(shape) < 2 and "model" not in sizes:
            assert held[0] == whole, path
    assert matrices >= 12


@on_jax
def test_traffic_is_what_the_plan_says(arranged):
    """Each matrix of a block is gathered twice, and its gradient is summed once."""
    gathered, summed = (
        sorted(sorted(shape) for shape in arranged["collectives"][kind] if len(shape) == 2)
        for kind in ("all-gather", "all-reduce")
    )
    of_block = [[16, 16]] * 2 + [[16, 32]] * 5
    assert [shape for shape in gathered if shape != [16, 64]] == sorted(of_block * 2)
    assert [shape for shape in summed if shape != [16, 64]] == of_block
    numbers = 3 * sum(map(math.prod, of_block))
    # Eight devices around a ring. The plan counts vectors too.
    assert 7 / 8 * 4 * numbers == pytest.approx(arranged["plan"], rel=0.1)


@on_jax
def test_generates_over_devices(arranged):
    assert arranged["generated"] == arranged["by one"]


@on_jax
def test_what_setup_refuses(arranged):
    errors = arranged["errors"]
    assert (
        "data=4 times fsdp=4 times model=1 needs 16 devices, but there are 8" in errors["devices"]
    )
    assert "sequence=3 does not divide num_heads=8" in errors["heads"]
    assert "give `config`, a TransformerConfig" in errors["no config"]
