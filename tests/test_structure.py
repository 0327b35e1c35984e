"""The description of the weights against built models, and where the backend is asked for."""

import ast
import json
import math
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.families.vision.mobilenet import read_network
from keras_transformer.config import (
    NORMALIZATIONS,
    SIDES,
    Attention,
    DecomposedBias,
    GridRotary,
    Parallel,
    RelativeSinusoids,
    Tokens,
    TransformerConfig,
    WindowBias,
    structure,
)
from keras_transformer.planning import count_parameters
from tests.checkpoints import mobilenet_v5
from tests.thorough import a_part

ROOT = Path(__file__).parents[1]
OF_TEXTS = [name for name in NORMALIZATIONS if name != "batch_norm"]  # which needs a stem
POSITIONS_OF_TEXTS = ("none", "sinusoidal", "learned", "rotary", "relative", "alibi")
# Sizes that a preset's config is cut to; all different, so that no two axes are taken for another.
TINY = {
    "vocabulary_size": 11,
    "hidden_dim": 24,
    "num_layers": 2,
    "intermediate_dim": 14,
    "max_sequence_length": 7,
}


def tiny_presets():
    """The configs of all presets, cut down, one of each structure."""
    found = {}
    for path in sorted((ROOT / "presets").glob("*/config.json")):
        values = json.loads(path.read_text(encoding="utf-8"))["backbone"]
        small = cut_down(TransformerConfig.from_dict(values))
        found.setdefault(json.dumps(structure.variable_shapes(small)), (path.parent.name, small))
    return list(found.values())


def cut_down(config):
    """Return the config of a small model of the same structure."""
    changed = dict(TINY)
    if config.stem is not None:
        changed["vocabulary_size"] = 0
        if config.stem.kind == "waveform":
            changed["stem"] = config.stem.replace(position_groups=4)
        if getattr(config.stem, "mid_positions", 0):
            changed["stem"] = config.stem.replace(mid_positions=1)
    if config.last_side.attention is not None:  # else the sizes of another mixer stay
        wide = config.head_dim * config.num_heads != config.hidden_dim
        wide |= isinstance(config.last_side.attention.position, GridRotary)
        grouped = config.num_key_value_heads < config.num_heads
        changed |= {"num_heads": 4, "head_dim": 8 if wide else 6}
        changed["num_key_value_heads"] = 2 if grouped else 4
    if config.kind == "seq2seq":
        changed["num_decoder_layers"] = 2 if config.layer_pattern else 1
    if config.num_layer_groups < config.num_layers:
        changed["num_layer_groups"] = 1
    if config.embedding_dim != config.hidden_dim:
        changed["embedding_dim"] = 10
    if config.vector_dim is not None:
        changed["vector_dim"] = TINY["hidden_dim"]
    if config.rotary_dim is not None:
        changed["rotary_dim"] = 4
    if config.num_experts:
        changed |= {"num_experts": 3, "experts_per_token": 2, "expert_dim": 9}
        router = config.flat.get("router") or {}
        if "groups" in router:
            changed["router"] = {**router, "groups": 1, "group_limit": None}
        changed["shared_expert_dim"] = 5 if config.shared_expert_dim else 0
    if config.layer_pattern:
        changed["layer_pattern"] = config.layer_pattern[-TINY["num_layers"] :]
    changed |= small_sides(config, changed)
    if config.dropped_token_id is not None:
        changed["dropped_token_id"] = 3
    if config.placeholder_id is not None:
        changed |= {"placeholder_id": 3, "num_decoder_layers": TINY["num_layers"]}
        changed["projector_pool"] = 2 if config.projector_pool > 1 else 1
    axes = any(has_axes(getattr(config, each)) for each in config.side_names)
    parts = axes or not config.by_keywords
    return small_parts(config) if parts else config.replace(**changed)


def has_axes(side):
    position = None if side.attention is None else side.attention.position
    return getattr(position, "position_axes", None) is not None


def small_grid(part):
    """Return a part for a grid of 4 x 4 patches if it has a grid, and others as they are."""
    return part.replace(rows=4, columns=4) if getattr(part, "rows", None) else part


def small_parts(config):
    """Return a model of parts that keywords do not describe, cut down part by part."""

    def cut_mixer(mixer):
        if not isinstance(mixer, Attention):
            return mixer
        position = mixer.position
        if getattr(position, "pairs", None):
            position = position.replace(pairs=2)
        rotated = {"dim": 8} if getattr(position, "dim", None) else {}
        axes = getattr(position, "position_axes", None)
        if axes is not None:
            pairs = (2, 2) if len(axes.pairs) == 2 else (2, 1, 1)
            rotated["position_axes"] = axes.replace(pairs=pairs)
        position = position.replace(**rotated) if rotated else position
        own = {"key_source": "own", "position": position}
        own |= {name: small_grid(getattr(mixer, name)) for name in ("score_bias", "pattern")}
        equal = isinstance(mixer.score_bias, RelativeSinusoids | DecomposedBias | WindowBias)
        keys = 4 if equal else 2
        return mixer.replace(num_heads=4, num_key_value_heads=keys, head_dim=8, **own)

    def cut(block):
        mixer = block.mixer
        if isinstance(mixer, Parallel):
            mixer = mixer.replace(members=tuple(map(cut_mixer, mixer.members)))
        mixer = cut_mixer(mixer)
        wide = block.feed_forward.replace(dim=TINY["intermediate_dim"])
        merging = block.merging
        if merging is not None:
            width = TINY["hidden_dim"]
            merging = merging.replace(hidden_dim=width, input_dim=width)
        return block.replace(mixer=mixer, feed_forward=wide, merging=merging)

    def cut_side(side):
        if not side.num_layers:  # a stem alone
            width = dict.fromkeys(("hidden_dim", "embedding_dim"), TINY["hidden_dim"])
            network = read_network({"model_args": mobilenet_v5.small_args()})
            return side.replace(input=network.input, **width)
        number = TINY["num_layers"]
        kept = side.layers[-number:]
        if side.merges:  # the first layers of stages, of which the first has no merging
            kept = [side.layer(i) for i in (0, *side.stage_ends)[:number]]
        sizes = {name: TINY[name] for name in ("hidden_dim", "num_layers", "max_sequence_length")}
        if side.layer_inputs is not None:
            words = TINY["vocabulary_size"]
            sizes["layer_inputs"] = side.layer_inputs.replace(vocabulary_size=words)
        if isinstance(side.input, Tokens):
            sizes["input"] = side.input.replace(vocabulary_size=TINY["vocabulary_size"])
        elif isinstance(getattr(side.attention, "score_bias", None), DecomposedBias):
            patch = side.input.patch_size
            sizes["input"] = side.input.replace(image_size=(4 * patch, 4 * patch))
        elif getattr(side.input, "strides", None) == ():  # frames that are the states themselves
            sizes["input"] = side.input.replace(num_bins=TINY["hidden_dim"])
        return side.replace(
            **sizes,
            embedding_dim=TINY["hidden_dim"],
            num_layer_groups=number,
            block=cut(side.block),
            layers=tuple(map(cut, kept)),
        )

    sides = {name: cut_side(getattr(config, name)) for name in config.side_names}
    if config.placeholders is not None:
        stacked = tuple(range(len(config.placeholders.stacked_layers[:2])))
        sides["placeholders"] = config.placeholders.replace(token_id=3, stacked_layers=stacked)
    for name in ("projector", "sound_projector"):
        projector = getattr(config, name)
        if projector is not None and projector.hard_tokens:
            sides[name] = projector.replace(hard_tokens=2)
    return config.replace(**sides)


def small_sides(config, sizes):
    """Return the options that differ by side in a model of images and texts, of these sizes."""
    if config.kind not in ("dual", "seq2seq") or config.sides[0].stem is None:
        return {}
    given = {name: config.flat[name] for name in SIDES}
    return {name: _small_side(own, sizes) for name, own in given.items() if own}


def _small_side(own, sizes):
    cut = {name: size for name, size in sizes.items() if own.get(name)}
    cut |= {"vector_dim": sizes["hidden_dim"]} if own.get("vector_dim") else {}
    stem = dict(own.get("stem") or {})
    if "image_size" in stem:
        stem["image_size"] = (96, 96)
    if stem.get("projection") is False:
        stem["filters"] = (*stem["filters"][:-1], sizes["hidden_dim"])
    return {**own, **cut, **({"stem": stem} if stem else {})}


def random_config(seed):
    """Draw a config: each option by itself, but for those that contradict each other.

    What is drawn for an option depends on the seed and its name, so a further option changes none
    of the others.
    """

    def one_of(name, *values):
        return values[np.random.default_rng([seed, *name.encode()]).integers(len(values))]

    kind = one_of("kind", "encoder", "decoder", "seq2seq")
    values = {
        "kind": kind,
        "num_heads": 4,
        "head_dim": one_of("head_dim", 6, 8),
        "num_key_value_heads": one_of("num_key_value_heads", 1, 2, 4),
        "gated": one_of("gated", True, False),
        "use_bias": one_of("use_bias", True, False),
        "attention_bias": one_of("attention_bias", True, False, None),
        "attention_output_bias": one_of("attention_output_bias", True, False, None),
        "key_bias": one_of("key_bias", True, False, None),
        "query_key_norm": one_of("query_key_norm", True, False),
        "normalization": one_of("normalization", *OF_TEXTS),
        "normalize_first": one_of("normalize_first", True, False),
        "normalize_output": one_of("normalize_output", True, False),
        "attention_normalization": one_of("attention_normalization", True, False),
        "attention_sinks": one_of("attention_sinks", True, False),
        "num_experts": one_of("num_experts", 0, 3),
        "expert_dim": one_of("expert_dim", 9, None),
        "shared_expert_dim": one_of("shared_expert_dim", 0, 5),
        "router_bias": one_of("router_bias", True, False),
        "final_normalization": one_of("final_normalization", True, False, None),
        "embedding_normalization": one_of("embedding_normalization", True, False),
        "position": one_of("position", *POSITIONS_OF_TEXTS),
        "segment_vocabulary_size": one_of("segment_vocabulary_size", 0, 3),
        "score": one_of("score", "scaled_dot", "dot", "general", "additive", "cosine", "location"),
        "tie_embeddings": one_of("tie_embeddings", True, False),
        "output_bias": one_of("output_bias", True, False),
        **TINY,
    }
    if values["query_key_norm"]:
        name = one_of("normed", "query_key_norm_across_heads", "query_key_norm_per_head")
        of_heads = values["normalization"] in ("layer_norm", "layer_norm_no_bias")
        values[name] = "across" in name or of_heads
    if values["position"] not in ("relative", "alibi"):
        values["relative_bias"] = one_of("relative_bias", True, False, None)
    if kind == "decoder":
        values |= one_of("narrow", {}, {"token_projection": True, "embedding_dim": 10})
    if kind != "encoder":
        values["output_transform"] = one_of("output_transform", None, "gelu")
    if kind == "encoder":
        values["convolution_size"] = one_of("convolution_size", 0, 3)
        values["pooler"] = one_of("pooler", True, False)
        values["embedding_dim"] = one_of("embedding_dim", 10, None)
    if kind == "seq2seq":
        values["num_decoder_layers"] = one_of("num_decoder_layers", 1, 3)
        values["projector"] = one_of("projector", "none", "linear")
        # Heads of an even size, which rotary positions need.
        values |= one_of("encoder", {}, {"encoder": {"hidden_dim": 16, "vocabulary_size": 9}})
    else:
        values |= one_of("groups", {}, {"num_layer_groups": 1}, {"layers_per_group": 2})
    return TransformerConfig(**values)


OWN = {"num_heads": 4, "num_key_value_heads": 2, "disentangled": "own", "relative_num_buckets": 8}
CASES = []
CASES.append(("own", TransformerConfig(kind="encoder", **OWN, **TINY)))
HEADS = {"num_heads": 4, "num_key_value_heads": 2, "query_key_norm": True}
HEADS |= {"query_key_norm_per_head": True}
NARROW = {"token_projection": True, "embedding_dim": 10, "segment_vocabulary_size": 3}
NARROW |= {"position": "learned", "embedding_normalization": True}
CASES.append(("heads", TransformerConfig(kind="encoder", convolution_size=3, **HEADS, **TINY)))
CASES.append(("narrow", TransformerConfig(kind="decoder", num_heads=4, **NARROW, **TINY)))
IMAGES = {"vocabulary_size": 0, "hidden_dim": 8, "normalization": "layer_norm", "num_heads": 2}
IMAGES |= {
    "position": "learned",
    "stem": {"kind": "patches", "image_size": (8, 8), "patch_size": 4},
}
for projector, biased in (("linear", False), ("normalized", True), ("mlp", True)):
    PLACED = {"placeholder_id": 3, "projector": projector, "projector_bias": biased}
    PLACED |= {"num_heads": 4, "normalization": "rms_norm", "encoder": IMAGES}
    CASES.append((projector, TransformerConfig(kind="seq2seq", **PLACED, **TINY)))
for projector in ("shuffled", "shuffled_mlp"):
    PLACED |= {"projector": projector, "projector_pool": 2, "place_class_token": False}
    PLACED |= {"projector_separator": True}
    CASES.append((projector, TransformerConfig(kind="seq2seq", **PLACED, **TINY)))
VECTORS = {"vector_normalization": True, "vector_dim": 5, "num_heads": 4, "position": "learned"}
TOWER = {**TINY, **VECTORS, "vocabulary_size": 0, "stem": IMAGES["stem"]}
for pooling in ("first", "attention"):
    CASES.append((pooling, TransformerConfig(kind="encoder", vector_pooling=pooling, **TOWER)))
CASES.append(("end", TransformerConfig(kind="decoder", vector_pooling="end", **VECTORS, **TINY)))
ASKED = {"source": IMAGES, "share_embeddings": False, "encoder": {"vocabulary_size": 9}}
ASKED |= {"num_heads": 4, "position": "learned", "num_decoder_layers": 1}
CASES.append(("asked", TransformerConfig(kind="seq2seq", **ASKED, **TINY)))


# The layers make the same variables on each backend: there the drawn configs are enough.
@pytest.mark.one_backend
def test_the_description_is_that_of_each_preset(subtests):
    """In one test: to read all configs where tests are collected takes every process seconds."""
    presets = tiny_presets()
    assert len(presets) > 100
    for name, config in a_part(presets):
        with subtests.test(name):
            check_description(config)


# Drawn when they run: a config that is refused fails a test, not the collection of all.
@pytest.mark.parametrize("seed", range(8))
def test_the_description_is_that_of_what_is_drawn(seed):
    check_description(random_config(seed))


@pytest.mark.parametrize("config", [pytest.param(x, id=name) for name, x in CASES])
def test_the_description_is_that_of_the_model(config):
    check_description(config)


@pytest.mark.backend_independent
def test_what_is_drawn_is_valid_and_differs():
    """Each option takes each of its values in some config."""
    drawn = [random_config(seed).flat for seed in range(200)]
    for name, values in {"position": POSITIONS_OF_TEXTS, "normalization": OF_TEXTS}.items():
        assert {config[name] for config in drawn} == set(values)
    assert all(len({config[name] for config in drawn}) > 1 for name in ("gated", "num_experts"))


def check_description(config):
    backbone = kt.models.build_backbone(config)
    real = {v.path.removeprefix(f"{backbone.path}/"): v for v in backbone.variables}
    real = {path: v for path, v in real.items() if "seed_generator" not in path}
    described = {weight.path: weight for weight in structure.backbone(config)}
    assert {p: tuple(v.shape) for p, v in real.items()} == {
        path: weight.shape for path, weight in described.items()
    }
    assert {v.dtype for v in real.values()} == {backbone.variable_dtype}
    assert backbone.count_params() == count_parameters(config)
    # What adapters stand beside in blocks and heads: the kernels but those of scores, of experts,
    # of convolutions over tokens, and of recurrent gates, which multiply groups of numbers.
    dense = (x for x in backbone._flatten_layers() if isinstance(x, keras.layers.Dense))
    kernels = {layer.kernel.path.removeprefix(f"{backbone.path}/") for layer in dense}
    others = ("/score/", "/expert_", "/input_", "_convolution/", "/altup_", "/recurrence_gate/")
    assert {path for path in kernels if "/input_" not in path} == {
        path
        for path, weight in described.items()
        if path.endswith("/kernel")
        and len(weight.shape) == 2  # convolutions over places have more
        and not any(other in path for other in others)
    }
    # What decays: the matrices.
    optimizer = kt.training.FineTuningAdamW()
    optimizer.build(backbone.trainable_variables)
    decays = {p for p, v in real.items() if optimizer._use_weight_decay(v)}
    assert decays == {path for path, weight in described.items() if not weight.is_vector}
    for path, variable in real.items():
        # What devices share is found by the path, wherever a layer stands.
        shared = structure.shared_weight(variable.path, tuple(variable.shape))
        cut = described[path].cut_axis(2)
        assert (shared and shared.cut_axis(2)) == cut, path
        before = path.startswith(("token_embedding/embeddings", "token_embedding/replaced")) or (
            path.split("/")[0] in ("source", "queries", "sound", *SIDES)
            and structure.block_of(path) is None
            and "final_norm" not in path
            and "vector" not in path
            and "altup_mean" not in path
        )
        assert structure.is_before_blocks(variable.path) == before


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
@pytest.mark.parametrize(
    "hidden",
    [
        {},
        {"hidden_activation": "tanh"},
        {"hidden_activation": "tanh", "hidden_bias": False, "block_norm": True},
    ],
)
def test_the_heads_are_those_of_the_tasks(kind, hidden):
    values = {"embedding_dim": 10, "normalization": "rms_norm"} if kind == "encoder" else {}
    config = TransformerConfig(kind=kind, num_heads=4, **TINY, **values)
    options = {"num_classes": 3, **hidden}
    tasks = {kt.TextClassifier: options}
    if kind == "encoder":
        alone = kt.MaskedLM(kt.models.build_backbone(config), projection="linear")
        assert dict(alone.head) == kt.MaskedLM.head_shapes(config, {"projection": "linear"}) == {}
        tasks |= {kt.MaskedLM: hidden, kt.QuestionAnswerer: hidden, kt.TokenClassifier: options}
    else:
        tasks |= {kt.CausalLM: {}}
    for task_class, given in tasks.items():
        task = task_class(kt.models.build_backbone(config), **given)
        real = {path: tuple(variable.shape) for path, variable in task.head.items()}
        described = task_class.head_shapes(config, given)
        assert {path.removeprefix(f"{task.path}/"): s for path, s in real.items()} == described


def test_the_dtype_is_that_of_the_policy():
    config = random_config(3)
    backbone = kt.models.build_backbone(config, dtype="bfloat16")
    kept = [v for v in backbone.variables if "seed_generator" not in v.path]
    assert {v.dtype for v in kept} == {"bfloat16"} and len(kept) == len(structure.backbone(config))


@pytest.mark.backend_independent
def test_axes_are_cut_where_they_can_be():
    weight = structure.Weight("x", ("vocabulary_size", "hidden_dim"), shape=(7, 6))
    assert [weight.cut_axis(parts) for parts in (1, 7, 2, 5)] == [0, 0, 1, None]
    assert structure.Weight("x", ("hidden_dim", "head_dim"), shape=(4, 4)).cut_axis(2) is None


@pytest.mark.backend_independent
def test_a_plan_needs_neither_keras_nor_a_backend():
    """The ground floor by itself: the package's own `__init__` is not run."""
    code = f"""
import sys, types
package = types.ModuleType("keras_transformer")
package.__path__ = [{str(ROOT / "keras_transformer")!r}]
sys.modules["keras_transformer"] = package
from keras_transformer.config import TransformerConfig
from keras_transformer.planning import make_plan
config = TransformerConfig(kind="decoder", num_heads=4, **{TINY!r})
print(make_plan(config, batch_size=2, length=5).parameters)
print(sorted({{"keras", "jax", "tensorflow", "torch"}} & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    config = TransformerConfig(kind="decoder", num_heads=4, **TINY)
    expected = sum(map(math.prod, structure.variable_shapes(config).values()))
    assert run.stdout.split("\n")[:2] == [str(expected), "[]"]


# Files outside `kernels/` that ask which backend it is, and what for.
ASKING = {
    "cli/doctor.py": "what the report says",
    "distribution/engines.py": "what processes and devices do together",
}


def asks(node):
    """Return whether a node of a program asks for the backend, or for a device's."""
    if isinstance(node, ast.Call):
        named = getattr(node.func, "id", getattr(node.func, "attr", None))
        return named == "on" or (named == "backend" and not node.args)
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "device().backend"


@pytest.mark.backend_independent
def test_kernels_alone_choose_by_backend():
    found, package = set(), ROOT / "keras_transformer"
    for path in package.rglob("*.py"):
        if any(map(asks, ast.walk(ast.parse(path.read_text(encoding="utf-8"))))):
            found.add(path.relative_to(package).as_posix())
    assert "kernels/attention.py" in found  # so it is seen
    assert {name for name in found if not name.startswith("kernels/")} == set(ASKING)
