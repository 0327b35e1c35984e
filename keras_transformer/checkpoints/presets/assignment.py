"""Assignment of a preset's weights to the variables of a model."""

import collections
import dataclasses
import fnmatch
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import keras
import numpy as np

from keras_transformer.checkpoints.heads import TASKS
from keras_transformer.checkpoints.presets import sentence_transformers
from keras_transformer.checkpoints.presets.listing import read_preset
from keras_transformer.checkpoints.presets.overrides import warn_of_contradictions
from keras_transformer.checkpoints.presets.preset import Description, Preset
from keras_transformer.checkpoints.quantized.kept import keep, keeps, layers_by_kernel
from keras_transformer.checkpoints.weights.computed import check_computed, is_computed
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, match
from keras_transformer.config import TransformerConfig
from keras_transformer.config.structure import variable_shapes
from keras_transformer.kernels.process import release_memory
from keras_transformer.kernels.programs import to_tensor, without_copy
from keras_transformer.models.runtime.quantized import LayerByLayer, float_kernels, quickly
from keras_transformer.support.progress import progress

BACKBONE_PREFIX = "backbone/"
HEAD_PREFIX = "head/"

Shapes = Mapping[str, tuple[int, ...]]
Places = dict[str, list[tuple[keras.Variable, WeightLine]]]  # the lines of each tensor
Plan = dict[str, tuple[str, WeightLine]]  # {variable path: (tensor name, table line)}
# Weights that take long enough for a progress bar, and much memory meanwhile.
_MANY = 2**24


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """Paths of the variables that were loaded, and of head variables that stayed `fresh`."""

    loaded: tuple[str, ...]
    fresh: tuple[str, ...]

    @property
    def head_loaded(self) -> bool:
        """Whether every variable of the head was loaded."""
        return not self.fresh


def load_config(source: str | os.PathLike, load_weights: bool = True) -> Description:
    """Read the config, task and metadata of a preset.

    Args:
        source: a preset, or the result of `resolve_preset`.
        load_weights: whether the weights will be loaded too. If so, their header is read as well:
            a Hugging Face config alone does not say, for example, whether BERT has a pooler.
            Defaults to True.

    Returns:
        The backbone's config; the values of the task (`"name"`, and e.g. `"num_classes"`,
        `"labels"`), or `None` without a task; and the metadata (`"family"`, `"license"`, ...).

    Raises:
        ValueError: if the config has unknown or contradictory values, with the file's name.

    Example:
    ```python
    from keras_transformer.checkpoints import load_config

    config, task, metadata = load_config("minilm_l6_en")
    assert config.hidden_dim == 384 and task["pooling"] == "mean"
    assert metadata["license"] == "apache-2.0"
    ```
    """
    return read_preset(source, lambda preset: preset.describe(load_weights))


def check_weights(
    source: str | os.PathLike,
    config: TransformerConfig,
    head: Shapes | None = None,
    task: str | None = None,
) -> None:
    """Check a config against the header of a preset's weights, before anything is built.

    Args:
        source: a preset, or the result of `resolve_preset`.
        config: the config that the backbone is to be built from.
        head: the shapes of the head's variables by path, if there is a head to load.
        task: the name of the head's task class, e.g. `"TextClassifier"`.

    Raises:
        ValueError: if tensors are missing, left over or have other shapes. The message lists them.
        FileNotFoundError: if there are no weights.

    Example:
    ```python
    from keras_transformer.checkpoints import check_weights, load_config

    check_weights("minilm_l6_en", load_config("minilm_l6_en")[0])
    ```
    """
    read_preset(source, lambda preset: check(preset, config, head, task))


def check(
    preset: Preset, config: TransformerConfig, head=None, task=None, fresh: Iterable[str] = ()
) -> None:
    """Check the weights of an open preset, see `check_weights`; `fresh` as in `fill`."""
    layers = sum(getattr(config, name).num_layers for name in config.side_names)
    if layers > len(preset.checkpoint):  # before names for that many layers are made
        raise ValueError(
            f"The config of {preset.name!r} declares {layers:,} layers, but its weights in "
            f"{preset.weights.directory} have only {len(preset.checkpoint):,} tensors."
        )
    _plan(preset, config, variable_shapes(config), head, task, fresh)
    _check_quantized(preset)


def planned(preset: Preset) -> tuple[Shapes, Plan]:
    """Return the shapes of the backbone's variables, and the tensor that each is loaded from."""
    config = preset.describe(True)[0]
    shapes = variable_shapes(config)
    return shapes, _plan(preset, config, shapes, None, None)[0]


def _check_quantized(preset: Preset) -> None:
    """Read the scales of quantized matrices: a wrong one is named before a model is made."""
    for matrix in preset.checkpoint.quantized:
        matrix.check()


def load_weights(
    source: str | os.PathLike,
    backbone: keras.Model,
    head: Mapping[str, keras.Variable] | None = None,
    task: str | None = None,
) -> LoadReport:
    """Load a preset's weights into a backbone, and into a task's head if the preset has it.

    All tensors are first checked against the headers, and then read one at a time into their
    variables. Config values of the model that change its outputs and differ from the checkpoint's,
    such as another `activation`, are logged.

    Args:
        source: a preset, or the result of `resolve_preset`.
        backbone: the model, with its `config`.
        head: the variables of the task's head by path, e.g. `"output/kernel"`.
        task: the name of the head's task class. A head for another task is not loaded.

    Raises:
        ValueError: if the weights do not fit, are damaged, or hold NaN. The backbone must then not
            be used: some of its variables may have been loaded.
        FileNotFoundError: if there are no weights.

    Example:
    ```python
    from keras_transformer.checkpoints import load_config, load_weights
    from keras_transformer.models import build_backbone

    backbone = build_backbone(load_config("minilm_l6_en")[0])
    assert "pooler/kernel" in load_weights("minilm_l6_en", backbone).loaded
    ```
    """

    def read(preset: Preset) -> LoadReport:
        warn_of_contradictions(preset.name, preset.describe(True)[0], backbone.config)
        _check_quantized(preset)
        return fill(preset, backbone, head, task)

    return read_preset(source, read)


def fill(
    preset: Preset,
    backbone: keras.Model,
    head: Mapping[str, keras.Variable] | None = None,
    task: str | None = None,
    quantized: Literal["kept", "unpacked"] = "unpacked",
    layers: LayerByLayer | None = None,
    fresh: Iterable[str] = (),
) -> LoadReport:
    """Load the weights of an open preset into a model of its config, see `load_weights`.

    `quantized` says what becomes of quantized matrices that a layer can compute with as they are
    stored. All others are unpacked to the dtype of the model. `layers` quantizes each layer of the
    backbone as soon as it is loaded. `fresh` are patterns of the head's variables that the preset
    has for other classes, and that `head` leaves out.
    """
    variables = backbone_variables(backbone)
    shapes = {path: variable.shape for path, variable in variables.items()}
    plan, head_plan = _plan(preset, backbone.config, shapes, head, task, fresh)
    # One tensor may hold several variables: it is read once.
    _check_the_rest(preset, backbone.config, [*plan.values(), *head_plan.values()])
    places: Places = {}
    for table, found in ((plan, variables), (head_plan, head or {})):
        for path, (name, line) in table.items():
            places.setdefault(name, []).append((found[path], line))
    del variables, found  # layers that are quantized replace their variables
    if quantized == "kept" and preset.weights.scheme is not None:
        _keep(preset, backbone, places)
    names, many = list(places), sum(map(math.prod, shapes.values())) > _MANY
    if many:
        names = progress(names, f"Loading {preset.name}", "tensor")
    for name in names:
        lines = places.pop(name)
        array = preset.checkpoint.read(name)
        for variable, line in lines:
            variable.assign(to_tensor(without_copy(line.split(array)), variable.dtype))
            if layers is not None:
                layers.assigned(variable)
        del array, lines, variable  # before the next one is read
    if layers is not None:
        layers.release()
    elif many:
        release_memory()
    fresh = (path for path in head or () if path not in head_plan)
    missing = tuple(path for path in fresh if not matches(path, _of_training(task)))
    return LoadReport((*plan, *(HEAD_PREFIX + path for path in head_plan)), missing)


def _keep(preset: Preset, backbone: keras.Model, places: Places) -> None:
    """Give layers the quantized matrices that they can compute with, which leave `places`."""
    layers = layers_by_kernel(backbone)
    with quickly():
        for name in list(places):
            info = preset.checkpoint[name]
            lines = {layers.get(id(variable)): line for variable, line in places[name]}
            if None not in lines and all(keeps(info, line) for line in lines.values()):
                del places[name]
                keep(info, lines)
                backbone.quantized_by = preset.weights.scheme.name


def _check_the_rest(
    preset: Preset, config: TransformerConfig, taken: Iterable[tuple[str, WeightLine]]
) -> None:
    """Check tensors that are not read: copies under other names, and tensors that are computed."""
    weights, checkpoint = preset.weights, preset.checkpoint
    names = weights.family.names if weights.is_published else Names()
    actual = {names.canonical(name): name for name in checkpoint}
    # A name in several lines is not tied to one of them.
    named = collections.Counter(each for _, line in taken for each in set(line.names))
    for name, line in taken:
        own = names.canonical(name)
        others = [each for each in (line.theirs, *line.also) if each != own and named[each] == 1]
        for copy in (actual[each] for each in others if each in actual):
            if not checkpoint.same(name, copy):
                raise ValueError(
                    f"{name} and {copy} of {checkpoint.folder} are the same tensor in a model of "
                    "this config, but have different values here. Use the config that belongs to "
                    "these weights."
                )
    known = {each for _, line in taken for each in line.names}
    for canonical, name in actual.items():
        if canonical not in known and is_computed(canonical, checkpoint[name].shape):
            check_computed(config, canonical, name, checkpoint)


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Return whether a path is that of a variable which one of the patterns names."""
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def backbone_variables(backbone: keras.Model) -> dict[str, keras.Variable]:
    """Return a backbone's weights by path relative to it, as named in the weight tables."""
    prefix = backbone.path + "/"
    return {variable.path.removeprefix(prefix): variable for variable in backbone.weights}


def plain_variables(backbone: keras.Model) -> dict[str, keras.Variable | np.ndarray]:
    """Return a backbone's weights by path, those that stay as a quantized file has them unpacked.

    The variables of scales, zeros and groups are left out.
    """
    plain = float_kernels(backbone)
    found = backbone_variables(backbone)
    beside = {
        path.removesuffix("kernel") + end
        for path, variable in found.items()
        if id(variable) in plain
        for end in ("kernel_scale", "kernel_zero", "g_idx")
    }
    return {
        path: plain.get(id(variable), variable)
        for path, variable in found.items()
        if path not in beside
    }


def _of_two(path: str) -> tuple[str, ...]:
    """Return the other names of one side's weight in a file with both sides."""
    both = path.replace("/vector_norm/", "/final_norm/")
    return () if both == path else (BACKBONE_PREFIX + both,)


def _plan(
    preset: Preset,
    config: TransformerConfig,
    shapes: Shapes,
    head: Mapping[str, Any] | None,
    task: str | None,
    fresh: Iterable[str] = (),
) -> tuple[Plan, Plan]:
    """Return which tensor each variable of backbone and head is loaded from."""
    checkpoint, weights = preset.checkpoint, preset.weights
    where, whole = str(checkpoint.folder), preset.describe(True)[0]
    of_two = whole.kind == "dual" != config.kind  # one side of it as a model
    of_training = _of_training(task)
    if weights.is_published:
        family = weights.family
        lines, names = family.lines(config), family.names
        # Heads of other tasks, and the other one of two sides.
        others = [line for each in family.heads.values() for line in each.weights]
        others += family.lines(whole) if of_two else []
        further = (name for line in others for name in line.names)
        names = dataclasses.replace(names, ignored=(*names.ignored, "[1-9]_Dense/*", *further))
        known = None if task is None else family.heads.get(head_name(task))
        head_lines = [*(known.weights if known is not None else ())]
        required = task == sentence_transformers.TASK
        if required:
            head_lines = [*sentence_transformers.dense_lines(checkpoint)]
    else:
        lines = [WeightLine(path, BACKBONE_PREFIX + path, also=_of_two(path)) for path in shapes]
        others = (BACKBONE_PREFIX + path for path in (variable_shapes(whole) if of_two else ()))
        paths = [n.removeprefix(HEAD_PREFIX) for n in checkpoint if n.startswith(HEAD_PREFIX)]
        in_vain = (HEAD_PREFIX + path for path in paths if matches(path, of_training))
        names = Names(ignored=(HEAD_PREFIX + "*", *others, *in_vain))
        # Written by save_preset, which never leaves out the head of a task.
        saved = (weights.config.get("task") or {}).get("name")
        required = task is not None and saved is not None and head_name(saved) == head_name(task)
        head_lines = [WeightLine(path, HEAD_PREFIX + path) for path in head or () if required]
        head_lines += [WeightLine(n, HEAD_PREFIX + n) for n in paths if matches(n, fresh)]
    plan = match(lines, shapes, checkpoint, names, where)
    theirs = {names.canonical(name) for name in checkpoint}
    seen = any(name in theirs for line in head_lines for name in line.names)
    if not head or not (required or seen):
        return plan, {}
    head_shapes = {path: tuple(getattr(v, "shape", v)) for path, v in head.items()}
    for line in [line for line in head_lines if matches(line.ours, of_training)]:
        if line.ours not in head or theirs.isdisjoint(line.names):
            head_lines.remove(line)
            head_shapes.pop(line.ours, None)
    lines = [*lines, *(line for line in head_lines if matches(line.ours, fresh))]
    head_lines = [line for line in head_lines if not matches(line.ours, fresh)]
    return plan, match(head_lines, head_shapes, checkpoint, names, where, around=lines)


def _of_training(task: str | None) -> tuple[str, ...]:
    """Return the patterns of variables of a task's head that files may lack."""
    known = TASKS.get(task or "")
    return known.head_class.of_training if known is not None else ()


def head_name(task: str) -> str:
    """Return the name of the registered class that a task's head belongs to: its own or a base."""
    known = TASKS.get(task)
    return (known and known.head_class.head_of) or task
