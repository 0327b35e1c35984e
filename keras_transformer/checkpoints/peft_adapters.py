"""LoRA adapters in PEFT's format: a folder with a config and the matrices of linear layers.

A linear layer with the matrix `W` of shape `(out, in)` becomes `W + scale * B @ A`, with `A` of
shape `(r, in)` and `B` of shape `(out, r)`. The scale is `lora_alpha / r`, or `lora_alpha /
sqrt(r)` with rsLoRA. With DoRA each row of the sum gets the length that a vector says. Heads that
were trained beside the adapters are stored whole.

Source: Hu et al. 2021, "LoRA", section 4.1; Kalajdzievski 2023, "A Rank Stabilization Scaling
Factor for Fine-Tuning with LoRA", https://arxiv.org/abs/2312.03732; Liu et al. 2024, "DoRA:
Weight-Decomposed Low-Rank Adaptation", https://arxiv.org/abs/2402.09353.
"""

import collections
import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_transformer.checkpoints.exporting import (
    backbone_prefix,
    choose_family,
    published_task,
)
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.families.base.family import Family
from keras_transformer.checkpoints.other_formats import ADAPTER_CONFIG, MERGE_WITH_PEFT
from keras_transformer.checkpoints.presets.assignment import backbone_variables
from keras_transformer.checkpoints.presets.hub import SCHEME, HubName
from keras_transformer.checkpoints.weights.safetensors_io import (
    Checkpoint,
    read_header,
    save_tensors,
    to_numpy,
)
from keras_transformer.checkpoints.weights.tables import WeightLine, export
from keras_transformer.layers.dense import LOW_RANK, MAGNITUDE
from keras_transformer.support.checking import check_int, check_number, shorten
from keras_transformer.support.files import path_inside, read_json, write_json

ADAPTER_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_MATRIX = re.compile(r"(.+)\.lora_([AB]\.weight|magnitude_vector)", re.DOTALL)
_A, _B, _LENGTHS = "A.weight", "B.weight", "magnitude_vector"
_KERNEL, _EMBEDDING = "/kernel", "token_embedding/"
# Values of the config that are read, and those that do not change what a stored adapter computes.
_READ = ("r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern")
_WITHOUT_EFFECT = (
    "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision",
    "inference_mode", "target_modules", "exclude_modules", "lora_dropout", "fan_in_fan_out",
    "modules_to_save", "layers_to_transform", "layers_pattern", "megatron_core", "loftq_config",
    "eva_config", "corda_config", "lora_ga_config", "qalora_group_size", "runtime_config",
)  # fmt: skip
# The other values must be empty, or one of these. Further ways to initialize the matrices also
# change the kernels of the model.
_ALLOWED: Mapping[str, tuple] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}
_TASK_TYPES = {
    "CausalLM": "CAUSAL_LM",
    "QuestionAnswerer": "QUESTION_ANS",
    "Seq2SeqLM": "SEQ_2_SEQ_LM",
    "TextClassifier": "SEQ_CLS",
    "TextEmbedder": "FEATURE_EXTRACTION",
    "TokenClassifier": "TOKEN_CLS",
}
# A module's name in a pattern. Other regular expressions may take very long to match.
_PLAIN_PATTERN = re.compile(r"(?:[\w.-]|\\[.d])+")
_MOST_PATTERNS = 10_000


@dataclasses.dataclass(frozen=True)
class LowRank:
    """The adapter of one layer.

    Args:
        a: float `(in, rank)`.
        b: float `(rank, out)`; the kernel changes by `alpha / rank * a @ b`.
        alpha: float, of plain LoRA.
        magnitude: float `(out,)`, the lengths of the columns with DoRA; None without.
    """

    a: np.ndarray
    b: np.ndarray
    alpha: float
    magnitude: np.ndarray | None = None

    @property
    def rank(self) -> int:
        return self.a.shape[1]

    @classmethod
    def of(cls, variables: Mapping[str, Any], alpha: float) -> "LowRank":
        """Return the values of variables by name; those that a layer lacks are None."""
        a, b, magnitude = (
            None if variables[name] is None else to_numpy(variables[name])
            for name in (*LOW_RANK, MAGNITUDE)
        )
        return cls(a, b, alpha, magnitude)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by the names of a layer's variables."""
        found = dict(zip((*LOW_RANK, MAGNITUDE), (self.a, self.b, self.magnitude), strict=True))
        return {name: array for name, array in found.items() if array is not None}


@dataclasses.dataclass(frozen=True)
class Adapter:
    """The content of a folder, for a model.

    Args:
        matrices: `LowRank` of layers by path.
        head: arrays of the head's variables by path; empty if the folder has no head.
        method: `"lora"`, `"rslora"` or `"dora"`. DoRA may have the scale of rsLoRA: the alphas
            are those of plain LoRA in any case.
    """

    matrices: Mapping[str, LowRank]
    head: Mapping[str, np.ndarray]
    method: str = "lora"


def read_adapter(
    path: str | os.PathLike, task: keras.Model, kernels: Mapping[str, tuple[int, ...]]
) -> Adapter:
    """Read a folder of PEFT, or `hf://org/name[@revision]`, for a task.

    Args:
        path: the folder, or its name on the hub.
        task: the task that the adapter is for.
        kernels: shapes of the kernels that may be adapted, by the paths of layers.

    Raises:
        FileNotFoundError: if the folder has no adapter, or the hub no such model.
        ValueError: if the adapter does something that cannot be represented exactly, or belongs to
            another model. The message names it, and says what to do.
    """
    folder = _folder(path)
    values = read_json(path_inside(folder, ADAPTER_CONFIG))
    _check_config(folder, values)
    file = _Matrices(path_inside(folder, ADAPTER_WEIGHTS))
    family, head, lines = _table(task)
    by_name: dict[str, list[WeightLine]] = {}
    for line in lines:
        for name in line.names:
            by_name.setdefault(name, []).append(line)
    pairs, others = _sorted_names(folder, file)
    places = {
        module: _places(folder, module, by_name.get(family.names.canonical(f"{module}.weight")),
                        kernels)
        for module in pairs
    }  # fmt: skip
    arrays = _head_arrays(folder, file, others, family, task, head)
    method = "rslora" if values.get("use_rslora") else "lora"
    method = "dora" if values.get("use_dora") else method
    ranks = _Pattern(folder, values, "rank_pattern", "r")
    alphas = _Pattern(folder, values, "alpha_pattern", "lora_alpha")
    matrices = {}
    for module, found in places.items():
        a, b, lengths = (pairs[module].get(which) for which in (_A, _B, _LENGTHS))
        if a is None or b is None:
            raise ValueError(f"{file.path} has only one of the two matrices of {module!r}.")
        if (lengths is None) is (method == "dora"):
            raise ValueError(
                f"{file.path} has {'no' if lengths is None else 'a'} magnitude vector of "
                f"{module!r}, but its config has use_dora={method == 'dora'}."
            )
        rank = check_int(f"r of {module}", ranks[module], at_least=1, at_most=2**15)
        alpha = check_number(f"lora_alpha of {module}", alphas[module], above=0)
        first = found[0]
        shape = first.shape(kernels[first.ours.removesuffix(_KERNEL)])
        out, inner = shape if first.transpose else shape[::-1]
        expected_shapes = {a: (rank, inner), b: (out, rank), lengths: (out,)}
        for name, expected in expected_shapes.items():
            if name is not None and file[name].shape != expected:
                raise ValueError(
                    f"{file.path} belongs to another model: {name!r} has the shape "
                    f"{file[name].shape}, where this model and the config need {expected}."
                )
        down, up = file.read(a).T, file.read(b)
        scaled = alpha * math.sqrt(rank) if values.get("use_rslora") else alpha
        magnitudes = None if lengths is None else file.read(lengths)[:, None]
        for line in found:
            own, *columns = (
                line.split(array if line.transpose else array.T)
                for array in (up, magnitudes)
                if array is not None
            )
            columns = columns[0][0] if columns else None
            matrices[line.ours.removesuffix(_KERNEL)] = LowRank(down, own, float(scaled), columns)
    return Adapter(matrices, arrays, method)


def write_adapter(
    folder: str | os.PathLike,
    task: keras.Model,
    adapter: Adapter,
    kernels: Mapping[str, tuple[int, ...]],
) -> None:
    """Write a folder that PEFT loads beside the model that `export_to_huggingface` writes.

    Args:
        folder: the folder to write, which may exist.
        task: the task whose head is written too.
        adapter: the adapters; their head is not read.
        kernels: see `read_adapter`.

    Raises ValueError if a layer has no linear layer of its own in the published model.
    """
    matrices, method = adapter.matrices, adapter.method
    family, head, lines = _table(task)
    prefix = backbone_prefix(family, head)
    by_path = {line.ours.removesuffix(_KERNEL): line for line in lines}
    together: dict[str, list[WeightLine]] = {}
    for line in lines:
        together.setdefault(line.theirs, []).append(line)
    tensors, sizes, turned = {}, {}, set()
    for name in dict.fromkeys(by_path[path].theirs for path in matrices if path in by_path):
        parts = sorted(together[name], key=lambda line: line.part or (0, 1))
        module = prefix + name.removesuffix(".weight")
        if not _is_linear(parts, kernels) or not name.endswith(".weight"):
            raise _not_written(family, parts[0].ours.removesuffix(_KERNEL))
        a, b, alpha, lengths = _joined(family, parts, matrices, kernels)
        sizes[module] = (a.shape[0], alpha / math.sqrt(len(a)) if method == "rslora" else alpha)
        turned.add(parts[0].transpose)
        found = {_A: a, _B: b} if lengths is None else {_A: a, _B: b, _LENGTHS: lengths}
        tensors |= {f"{_PREFIX}{module}.lora_{which}": array for which, array in found.items()}
    unknown = next((path for path in matrices if path not in by_path), None)
    if unknown is not None:
        raise _not_written(family, unknown)
    own = export(_head_lines(family, task, head), task.head) if task.head else {}
    # PEFT reads modules whole.
    own |= {name: of() for name, of in _output_matrices(family, task, own).items()}
    tensors |= {_PREFIX + name: array for name, array in own.items()}
    rank, alpha = collections.Counter(sizes.values()).most_common(1)[0][0]
    values = {
        "peft_type": "LORA",
        "task_type": _TASK_TYPES.get(type(task).__name__),
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": _whole(alpha),
        "lora_dropout": 0.0,
        "use_rslora": method == "rslora",
        "use_dora": method == "dora",
        "bias": "none",
        "fan_in_fan_out": turned == {False},
        "target_modules": sorted(sizes),
        "rank_pattern": {module: r for module, (r, _) in sizes.items() if r != rank},
        "alpha_pattern": {module: _whole(n) for module, (_, n) in sizes.items() if n != alpha},
        "modules_to_save": sorted({name.split(".")[0] for name in own}) or None,
    }
    folder = Path(folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(folder / ADAPTER_WEIGHTS, tensors)
    write_json(folder / ADAPTER_CONFIG, values)


class _Matrices(Checkpoint):
    """The tensors of one file."""

    def __init__(self, path: Path):
        self.folder, self.path = path.parent, path
        self._tensors = read_header(path)


class _Pattern:
    """A value of the modules: of the first pattern that matches the module's name, or the usual."""

    def __init__(self, folder: Path, values: Mapping[str, Any], name: str, usual: str):
        self.usual = values.get(usual, 8)
        found = values.get(name) or {}
        if not isinstance(found, dict) or len(found) > _MOST_PATTERNS:
            raise ValueError(f"{folder}: {name} must be an object of module names.")
        odd = next((key for key in found if not _PLAIN_PATTERN.fullmatch(key)), None)
        if odd is not None:
            raise _refused(
                folder, f"the pattern {shorten(odd)} in {name}, which takes names of modules"
            )
        self.found = [(re.compile(rf"(.*\.)?({key})"), value) for key, value in found.items()]

    def __getitem__(self, module: str) -> Any:
        values = (value for pattern, value in self.found if pattern.fullmatch(module))
        return next(values, self.usual)


def _folder(path: str | os.PathLike) -> Path:
    """Return the local folder with both files of an adapter."""
    hub = HubName.parse(str(path)) if str(path).startswith(SCHEME) else None
    files = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
    folder = Path(path).expanduser() if hub is None else hub.download(files)
    missing = next((name for name in files if not path_inside(folder, name).is_file()), None)
    if missing is None:
        return folder
    names = os.listdir(folder) if hub is None else hub.files()
    if missing == ADAPTER_WEIGHTS and "adapter_model.bin" in names:
        raise ValueError(
            f"{path} has its matrices in adapter_model.bin. Only safetensors are read, because "
            "such files can run code when loaded. Load it with PEFT once where you trust the "
            f"source, and save it again with `save_pretrained`, which writes {ADAPTER_WEIGHTS}."
        )
    raise FileNotFoundError(
        f"{path} has no adapter of PEFT: {missing} is missing. A folder of an adapter has "
        f"{ADAPTER_CONFIG} and {ADAPTER_WEIGHTS}; a file is one that `save_adapter` wrote."
    )


def _table(task: keras.Model) -> tuple[Family, dict[str, Any] | None, list[WeightLine]]:
    """Return the family of a task, the published task, and the lines of the backbone's kernels."""
    head, backbone = published_task(task)[1], task.backbone
    family = FAMILIES.get(getattr(backbone, "family", None) or "")
    if family is None:
        family, _ = choose_family(backbone, head, None)
    lines = family.lines(backbone.config)
    return family, head, [line for line in lines if line.ours.endswith(_KERNEL)]


def _head_lines(
    family: Family, task: keras.Model, head: Mapping[str, Any] | None
) -> tuple[WeightLine, ...]:
    """Return the lines of the task's head in the published model."""
    name = published_task(task)[0]["name"]
    if head is None or head["name"] != name or name not in family.heads:
        raise ValueError(
            f"{family.model_type} has no published model with the head of this {name}, which an "
            "adapter of PEFT could hold. Save adapters to a file, without `format`."
        )
    return family.heads[name].weights


def _output_matrices(
    family: Family, task: keras.Model, head: Iterable[str]
) -> dict[str, Callable[[], np.ndarray]]:
    """Return the output matrix `(vocabulary, width)`, by its published name, if a head has it.

    The matrix belongs to the backbone here, and to a module of the head in the published model. It
    is read when it is needed. Raises ValueError then if it is stored as integers.
    """
    modules = {name.split(".")[0] for name in head}
    variables = backbone_variables(task.backbone)

    def matrix() -> np.ndarray:
        ours = f"{_EMBEDDING}reverse_embeddings"
        tied = ours not in variables
        name = f"{_EMBEDDING}embeddings" if tied else ours
        if f"{name}_scale" in variables:
            raise ValueError(
                "PEFT stores the output matrix in the module of this head, and this model has it "
                "as integers. Load the model with dtype='bfloat16' or 'float32'."
            )
        array = to_numpy(variables[name])
        return array if tied else array.T

    return {
        line.theirs: matrix
        for line in family.lines(task.backbone.config)
        if line.ours == f"{_EMBEDDING}reverse_embeddings" and line.theirs.split(".")[0] in modules
    }


def _check_config(folder: Path, values: Mapping[str, Any]) -> None:
    """Raise ValueError if a value of the config asks for anything but LoRA of linear layers."""
    if values.get("peft_type") is None:
        raise ValueError(f"{folder / ADAPTER_CONFIG} has no peft_type: it is not a config of PEFT.")
    for name, value in values.items():
        if name in _READ or name in _WITHOUT_EFFECT:
            continue
        if (value not in _ALLOWED[name]) if name in _ALLOWED else bool(value):
            raise _refused(folder, f"{name}={shorten(value)}")
    for name in ("use_rslora", "use_dora"):
        if not isinstance(values.get(name, False), bool):
            raise ValueError(f"{folder / ADAPTER_CONFIG}: {name} must be true or false.")


def _sorted_names(
    folder: Path, file: Checkpoint
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Return the names of the tensors by module, and the other names without their prefix."""
    pairs: dict[str, dict[str, str]] = {}
    others = {}
    for name in file:
        if not name.startswith(_PREFIX):
            raise _refused(folder, f"the tensor {shorten(name)}, whose name is not from PEFT")
        own = name.removeprefix(_PREFIX)
        match = _MATRIX.fullmatch(own)
        if match:
            pairs.setdefault(match[1], {})[match[2]] = name
        elif ".lora_" in own:
            raise _refused(folder, f"the tensor {shorten(own)}, which is not of a linear layer")
        else:
            others[own] = name
    if not pairs:
        raise ValueError(f"{file.path} holds no matrices of LoRA.")
    return pairs, others


def _places(
    folder: Path,
    module: str,
    lines: Sequence[WeightLine] | None,
    kernels: Mapping[str, tuple[int, ...]],
) -> Sequence[WeightLine]:
    """Return the lines of the kernels that a module's matrix holds."""
    if not lines or not _is_linear(lines, kernels):
        raise _refused(folder, f"an adapter of {shorten(module)}, which is not a linear layer here")
    return lines


def _is_linear(lines: Sequence[WeightLine], kernels: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether the lines are all parts of one matrix `(out, in)` or `(in, out)`."""
    if len(lines) != (lines[0].part or (0, 1))[1]:
        return False
    return all(
        len(kernels.get(line.ours.removesuffix(_KERNEL), ())) == 2
        and not (line.convolution or line.depthwise or line.norm_axes or line.row or line.copies)
        and line.rows is None
        and "*" not in line.theirs
        and type(line).split is WeightLine.split
        for line in lines
    )


def _head_arrays(
    folder: Path,
    file: Checkpoint,
    others: Mapping[str, str],
    family: Family,
    task: keras.Model,
    head: Mapping[str, Any] | None,
) -> dict[str, np.ndarray]:
    """Return the arrays of the head, whose tensors are all of the names that are not of LoRA."""
    variables = task.head
    lines = _head_lines(family, task, head) if others and variables else ()
    known = {name: line for line in lines for name in line.names if line.ours in variables}
    others = dict(others)
    for name, of in _output_matrices(family, task, known).items():
        if name in others and not np.array_equal(file.read(others.pop(name)), of()):
            raise _refused(folder, f"a trained {name!r}, which is of the model here")
    unknown = next((name for name in others if name not in known), None)
    if unknown is not None:
        raise _refused(folder, f"all of {shorten(unknown)}, which is not in this task's head")
    arrays = {}
    for own, name in others.items():
        line = known[own]
        expected = line.shape(tuple(variables[line.ours].shape))
        if file[name].shape != expected:
            raise ValueError(
                f"{folder / ADAPTER_WEIGHTS} belongs to another task: {own!r} has the shape "
                f"{file[name].shape}, and this task's head needs {expected}."
            )
        arrays[line.ours] = line.split(file.read(name))
    missing = sorted(set(variables) - set(arrays)) if arrays else []
    if missing:
        raise ValueError(f"{folder / ADAPTER_WEIGHTS} has a head without {', '.join(missing)}.")
    return arrays


def _joined(
    family: Family,
    lines: Sequence[WeightLine],
    matrices: Mapping[str, LowRank],
    kernels: Mapping[str, tuple[int, ...]],
) -> tuple[np.ndarray, np.ndarray, float, np.ndarray | None]:
    """Return `A`, `B`, alpha and lengths of the matrix that holds one or several kernels."""
    paths = [line.ours.removesuffix(_KERNEL) for line in lines]
    found = [matrices[path] for path in paths if path in matrices]
    first = found[0]
    whole = len(found) == len(paths)
    lengths = None
    if first.magnitude is not None:
        if not whole:
            raise _not_written(family, next(path for path in paths if path not in matrices))
        lengths = lines[0].join([each.magnitude[None] for each in found]).reshape(-1)
    if whole and all(e.alpha == first.alpha and np.array_equal(e.a, first.a) for e in found):
        down, alpha, ups = first.a, first.alpha, [each.b for each in found]
    else:  # each has rows of its own, and its scale in them
        down = np.concatenate([each.a for each in found], axis=1)
        alpha = float(down.shape[1])
        ups, start = [], 0
        for path in paths:
            up = np.zeros((down.shape[1], kernels[path][1]), "float32")
            if path in matrices:
                own = matrices[path]
                up[start : start + own.rank] = own.b * np.float32(own.alpha / own.rank)
                start += own.rank
            ups.append(up)
    up = lines[0].join(ups)
    return down.T, up if lines[0].transpose else up.T, alpha, lengths


def _whole(number: float) -> float | int:
    return int(number) if float(number).is_integer() else float(number)


def _not_written(family: Family, path: str) -> ValueError:
    return ValueError(
        f"The adapter of {path!r} has no linear layer of its own in a published model of "
        f"{family.model_type}. Save it to a file, without `format`."
    )


def _refused(folder: Path, what: str) -> ValueError:
    return ValueError(f"The adapter in {folder} cannot be loaded: it has {what}. {MERGE_WITH_PEFT}")
