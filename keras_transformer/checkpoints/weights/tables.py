"""Weight tables, which map a model's variables to the tensors of a checkpoint, in both directions.

In the tables, "ours" are paths of Keras variables of this package, "theirs" are names of tensors in
the published checkpoint. A family lists its `WeightLine`s once. `match` checks the list against a
checkpoint's header before anything is loaded, `export` converts variables to the checkpoint's
tensors.
"""

import dataclasses
import fnmatch
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.checkpoints.weights.computed import is_computed
from keras_transformer.checkpoints.weights.safetensors_io import TensorInfo, to_numpy
from keras_transformer.checkpoints.weights.weight_norm import parts_of
from keras_transformer.config import OPTIONS, TransformerConfig
from keras_transformer.config.structure import sides
from keras_transformer.config.weight import NORMALIZATIONS
from keras_transformer.support.checking import printable


@dataclasses.dataclass(frozen=True)
class WeightLine:
    """One line of a weight table."""

    ours: str  # the variable's path relative to the backbone (or head); `{i}` is the layer
    # The tensor's name in the checkpoint, with the same `{i}`; `*` is the number of an expert if
    # each has a tensor of its own.
    theirs: str
    transpose: bool = False  # the tensor is transposed, as in `torch.nn.Linear`
    # If the tensor holds several variables side by side in their last axis: (index, their number).
    part: tuple[int, int] | None = None
    # Sizes of the parts, in each group: names of config values, or numbers; equal by default.
    sizes: tuple = ()
    per_head: bool = False  # the parts are side by side within each group of heads
    interleaved: bool = False  # the parts' columns alternate, in experts
    # If each row of the tensor is a variable: (index, number of rows).
    rows: tuple[int, int] | None = None
    row: int = 0  # number of leading axes of length 1 in the tensor, or in its row with `rows`
    column: int = 0  # number of axes of length 1 at the end of the tensor
    convolution: bool = (
        False  # theirs is (outputs, inputs, *places), and ours (*places, inputs, outputs)
    )
    # Theirs has a row for each output, and ours is the kernel of the stem's patches;
    # `for_config` sets its shape without the outputs.
    of_patches: bool | tuple[int, ...] = False
    depthwise: bool = False  # theirs is (features, 1, *places), and ours (*places, features)
    norm_axes: tuple[int, ...] = ()  # axes of weight norm's lengths, if stored as two tensors
    also: tuple[str, ...] = ()  # further names that the tensor may have, alone or in addition
    copies: tuple[str, ...] = ()  # further names that are also written
    when: tuple[str, Any] | None = None  # a config value and its required value for this line
    outside: bool = False  # outside of the bare model, so its name has no prefix
    counter: str | None = None  # a step counter beside it, written as 0 and not read
    split_heads: bool = False  # the last axis of theirs, once turned, is two: heads and features
    # The first axis of theirs is two, rows and columns of the stem's grid; `for_config` sets these.
    grid: bool | tuple[int, int] = False
    groups: int = 1  # groups in which the parts are side by side, also set by `for_config`

    def for_config(self, config: TransformerConfig) -> "WeightLine":
        """Return the line with sizes and groups filled in from a config."""
        heads = config.num_key_value_heads if self.per_head else 1
        groups = config.expert_dim if self.interleaved else heads * self.groups
        groups = config.num_heads if self.split_heads else groups
        sizes = tuple(
            size if isinstance(size, int) else getattr(config, size) // heads for size in self.sizes
        )
        grid = self.grid and config.stem.grid(config.stem.image_size)
        of_patches = self.of_patches and config.stem.patch_shape
        return dataclasses.replace(
            self, sizes=sizes, groups=groups, grid=grid, of_patches=of_patches
        )

    def at(self, i: int, each: int = 1) -> "WeightLine":
        """Return the line of block `i`, in groups of `each`."""
        ours, theirs = (name.replace("{i}", str(i)) for name in (self.ours, self.theirs))
        theirs = theirs.replace("{group}", str(i // each)).replace("{inner}", str(i % each))
        also = tuple(name.replace("{i}", str(i)) for name in self.also)
        counter = self.counter and self.counter.replace("{i}", str(i))
        return dataclasses.replace(self, ours=ours, theirs=theirs, also=also, counter=counter)

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the tensor, the usual one first."""
        return (self.theirs, *self.copies, *self.also)

    def shape(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the checkpoint's tensor for a variable's shape."""
        shape = (*ours[:-3:-1], *ours[:-2]) if self.convolution else tuple(ours)
        shape = (ours[-1], math.prod(ours[:-1])) if self.of_patches else shape
        if self.part is not None:
            index, sizes = self._parts()
            shape = (*ours[:-1], ours[-1] // sizes[index] * sum(sizes))
        shape = (shape[-1], 1, *shape[:-1]) if self.depthwise else shape
        shape = (*shape[:-2], *shape[:-3:-1]) if self.transpose else shape
        if self.split_heads:
            shape = (*shape[:-1], self.groups, shape[-1] // self.groups)
        shape = (*self.grid, *shape[1:]) if self.grid else shape
        shape = (*(1,) * self.row, *shape, *(1,) * self.column)
        return shape if self.rows is None else (self.rows[1], *shape[1:])

    def split(self, array: np.ndarray) -> np.ndarray:
        """Extract the variable's array from the checkpoint's tensor."""
        if self.rows is not None:
            array = array[self.rows[0]][None]
        array = array.reshape(array.shape[self.row : array.ndim - self.column])
        array = array.reshape(-1, *array.shape[2:]) if self.grid else array
        array = array.reshape(*array.shape[:-2], -1) if self.split_heads else array
        array = _turned(array) if self.transpose else array
        if self.convolution:
            array = np.moveaxis(array, (0, 1), (-1, -2))
        if self.of_patches:
            array = array.T.reshape(*self.of_patches, -1)
        if self.depthwise:
            array = np.moveaxis(array[:, 0], 0, -1)
        if self.part is None:
            return array
        index, sizes = self._parts()
        groups = array.reshape(*array.shape[:-1], self.groups, sum(sizes), -1)
        first = sum(sizes[:index])
        return groups[..., first : first + sizes[index], :].reshape(*array.shape[:-1], -1)

    def join(self, arrays: list[np.ndarray]) -> np.ndarray:
        """Combine the variables' arrays, in the order of the parts, to the checkpoint's tensor."""
        array = arrays[0]
        if self.rows is not None:
            return np.concatenate([each.reshape(1, *each.shape[-1:]) for each in arrays])
        if self.part is not None:
            parts = [each.reshape(*each.shape[:-1], self.groups, -1) for each in arrays]
            array = np.concatenate(parts, axis=-1).reshape(*array.shape[:-1], -1)
        if self.convolution:
            array = np.moveaxis(array, (-1, -2), (0, 1))
        if self.of_patches:
            array = array.reshape(-1, array.shape[-1]).T
        if self.depthwise:
            array = np.moveaxis(array, -1, 0)[:, None]
        array = _turned(array) if self.transpose else array
        if self.split_heads:
            array = array.reshape(*array.shape[:-1], self.groups, -1)
        array = array.reshape(*self.grid, *array.shape[1:]) if self.grid else array
        return array.reshape((*(1,) * self.row, *array.shape, *(1,) * self.column))

    def _parts(self) -> tuple[int, tuple[int, ...]]:
        """Return the part's index, and the sizes of all parts, in their own units."""
        index, count = self.part
        return index, self.sizes or (1,) * count


def _turned(array: np.ndarray) -> np.ndarray:
    """Transpose the last two axes."""
    return np.swapaxes(array, -1, -2)


def layers(
    table: Mapping[str, str],
    ours: str = "",
    theirs: str = "",
    *,
    line: type[WeightLine] = WeightLine,
    ends: tuple[str, str] = (".weight", ".bias"),
    transpose: bool = True,
    convolution: bool = False,
    **options: Any,
) -> tuple[WeightLine, ...]:
    """Return the lines of whole layers from a table of layer paths and their published names."""
    # `...norm` is a normalization, `..._embedding` and `..._bias` are an embedding, and everything
    # else is a dense layer, in PyTorch a `torch.nn.Linear`.
    lines: list[WeightLine] = []
    for mine, its in table.items():
        path, (first, second) = f"{ours}{mine}", (f"{theirs}{its}{end}" for end in ends)
        averages = [f"{theirs}{its}.running_{name}" for name in ("mean", "var")]
        counter = {"moving_mean": {"counter": f"{theirs}{its}.num_batches_tracked"}}
        kernel = {"convolution": True} if convolution else {"transpose": transpose}
        parts = [("kernel", first, kernel), ("bias", second, {})]
        if path.endswith("norm"):
            parts = [
                (name, tensor, {"when": ("normalization", kind), **counter.get(name, {})})
                for kind, names in NORMALIZATIONS.items()
                for name, tensor in zip(names, (first, second, *averages), strict=False)
            ]
        elif path.endswith(("_embedding", "_bias")):
            parts = [("embeddings", first, {})]
        lines += [line(f"{path}/{name}", tensor, **options | own) for name, tensor, own in parts]
    return tuple(lines)


def attention(theirs: str, *names: str, ours: str = "self_attention") -> dict[str, str]:
    """Return the table of an attention's dense layers; `names` replace `{}` in `theirs`."""
    parts = ("query", "key", "value", "output")
    return {f"{ours}/{part}": theirs.format(name) for part, name in zip(parts, names, strict=True)}


def fused(
    ours: Sequence[str], theirs: str, layers: Callable = layers, **options: Any
) -> tuple[WeightLine, ...]:
    """Return the lines of dense layers that the checkpoint fuses, such as query, key and value."""
    return tuple(
        line
        for index, path in enumerate(ours)
        for line in layers({path: theirs}, part=(index, len(ours)), **options)
    )


def output_matrix(theirs: str, *also: str) -> WeightLine:
    """Return the line of the output matrix, for models that do not tie their embedding."""
    ours = "token_embedding/reverse_embeddings"
    return WeightLine(ours, theirs, transpose=True, outside=True, also=also)


@dataclasses.dataclass(frozen=True)
class Names:
    """Missing and unexpected tensor names of a checkpoint, compared with the table."""

    prefixes: tuple[str, ...] = ()  # may precede every name, e.g. "bert."
    suffixes: Mapping[str, str] = dataclasses.field(default_factory=dict)  # other endings of names
    # Patterns of names without a variable in the model: unsupported heads, and tensors used in
    # training only. A `*` never matches tensors outside the head that is loaded.
    ignored: tuple[str, ...] = ()
    # A folder with a tensor of this name belongs to a part that the model does not have, such as a
    # layer of multi-token prediction; unless it is one of the model's layers, all of it is ignored.
    apart: str | None = None

    def canonical(self, name: str) -> str:
        """Return the table's name for a tensor of a checkpoint."""
        name = name.removeprefix(next((p for p in self.prefixes if name.startswith(p)), ""))
        end = next((s for s in self.suffixes if name.endswith(s)), None)
        return name if end is None else name.removesuffix(end) + self.suffixes[end]

    def ignores(self, name: str) -> bool:
        """Return whether a tensor with this canonical name may be left over."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.ignored)

    def folders_apart(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the beginnings of the canonical names of tensors of parts that are not loaded."""
        if self.apart is None:
            return ()
        end = f".{self.apart}"
        return tuple(name.removesuffix(self.apart) for name in names if name.endswith(end))


def expand(table: Iterable[WeightLine], config: TransformerConfig) -> list[WeightLine]:
    """Return the lines of a config, with `{i}` expanded for every layer of their stack."""
    lines = []
    stacks = {side.name: side for side in sides(config)}
    for weight in table:
        side = stacks.get(weight.ours.split("/")[0])
        flat = config if side is None else side.config
        if weight.when is not None:
            name, value = weight.when
            if getattr(config if OPTIONS[name]["of"] == "model" else flat, name) != value:
                continue
        weight = weight.for_config(flat)
        if "{i}" in weight.ours:
            # The model may not have this side.
            if side is not None:
                each = side.config.layers_per_group
                lines.extend(weight.at(i, each) for i in range(side.groups))
        else:
            lines.append(weight)
    return lines


# Variables whose tensors a model without them may ignore. Most others are ignored only if their
# values change nothing: a copy of the tied output matrix, a zero bias of the logits.
_SPARED = ("pooler/", "pooler_norm/", "token_embedding/reverse_embeddings", "output_bias/")


def match(
    lines: Iterable[WeightLine],
    shapes: Mapping[str, tuple[int, ...]],
    checkpoint: Mapping[str, TensorInfo],
    names: Names = Names(),
    where: str = "the checkpoint",
    around: Iterable[WeightLine] | None = None,
) -> dict[str, tuple[str, WeightLine]]:
    """Return the tensor's name and table line for every variable. Raises ValueError on a mismatch.

    If `around` gives the lines of a backbone, `lines` belong to its head: all tensors of the head
    must be used, and the rest of the checkpoint is not checked.
    """
    actual: dict[str, str] = {}
    twice = []
    for name in checkpoint:
        if actual.setdefault(names.canonical(name), name) != name:
            twice.append(f"{name} and {actual[names.canonical(name)]}")
    lines = {line.ours: line for line in lines}
    plan, missing, differing = {}, [], []
    for path, shape in shapes.items():
        line = lines.get(path)
        found = (actual[name] for name in line.names if name in actual) if line else iter(())
        name = next(found, None)
        if name is None:
            missing.append(f"{line.theirs if line else 'no tensor known'} (for {path})")
            continue
        plan[path] = (name, line)
        theirs, expected = checkpoint[name].shape, line.shape(tuple(shape))
        if theirs != expected:
            problem = f"{name} has shape {theirs}, the config says {expected}"
            if problem not in differing:  # of a tensor that holds several variables
                differing.append(problem)
    has_place = {
        name
        for path, line in lines.items()
        if path in shapes or (around is None and path.startswith(_SPARED))
        for name in (*line.names, line.counter)
    }
    apart = names.folders_apart(actual)
    left = {c: n for c, n in actual.items() if c not in has_place and not c.startswith(apart)}
    if around is None:
        left_over = [
            n
            for c, n in left.items()
            if not names.ignores(c) and not is_computed(c, checkpoint[n].shape)
        ]
    else:
        of_model = {name for line in around for name in (*line.names, line.counter)}
        taken = {c for c, n in actual.items() if c in has_place}
        table = {name for line in lines.values() for name in line.names}
        left = {c: n for c, n in left.items() if c not in of_model}
        left = {c: n for c, n in left.items() if not is_computed(c, checkpoint[n].shape)}
        left_over = [n for c, n in left.items() if c in table or _is_beside(c, taken, names)]
    problems = {
        "missing": missing,
        "of another shape": differing,
        "with no place in the model": left_over,
        "present under two names": twice,
    }
    if any(problems.values()):
        listing = "".join(_list(kind, found) for kind, found in problems.items() if found)
        raise ValueError(
            f"The weights in {where} do not fit the model of this config:{listing}\n"
            "Use the config that belongs to these weights."
        )
    return plan


def _is_beside(name: str, taken: Iterable[str], names: Names) -> bool:
    """Return whether a tensor belongs to a layer of the head, or to an unknown layer beside it."""
    layer, group = _owners(name)
    owners = [_owners(each) for each in taken]
    if layer and any(layer == own for own, _ in owners):
        return True
    by_pattern = name not in names.ignored and names.ignores(name)
    return by_pattern and any(group == own for _, own in owners)


def _owners(name: str) -> tuple[str, str]:
    """Return the layer of a tensor, and the outermost group that contains the layer."""
    parts = re.split(r"[./]", name)
    return ".".join(parts[:-1]), parts[0]


def grouped(
    lines: Iterable[WeightLine], variables: Mapping[str, Any]
) -> dict[str, list[WeightLine]]:
    """Return the lines of each tensor of the checkpoint, in the order of its parts.

    Raises ValueError if the checkpoint has no tensor for one of the variables, by our path.
    """
    lines = {line.ours: line for line in lines}
    unknown = [path for path in variables if path not in lines]
    if any("lora_kernel" in path for path in unknown):
        raise ValueError(
            "The model has adapters, which a checkpoint of its family cannot store. Call "
            "`merge_lora()` first, which adds them to the kernels; "
            "`save_adapter(path)` saves only the adapters."
        )
    if unknown:
        raise ValueError(
            f"The family's checkpoints have no tensor for these variables:{_list('', unknown)}"
        )
    together: dict[str, list[WeightLine]] = {}
    for line in sorted(
        map(lines.get, variables), key=lambda line: line.part or line.rows or (0, 1)
    ):
        together.setdefault(line.theirs, []).append(line)
    return together


def export(
    lines: Iterable[WeightLine], variables: Mapping[str, keras.Variable]
) -> dict[str, np.ndarray]:
    """Convert variables, by our path, to the checkpoint's tensors."""
    tensors: dict[str, np.ndarray] = {}
    variables = dict(variables.items())  # a head collects its variables anew for each path
    for name, parts in grouped(lines, variables).items():
        array = parts[0].join([to_numpy(variables[line.ours]) for line in parts])
        if parts[0].norm_axes:
            tensors |= parts_of(name, array, parts[0].norm_axes)
            continue
        # `*` is the number of an expert.
        each = enumerate(array) if "*" in name else [("", array)]
        tensors |= {name.replace("*", str(number)): own for number, own in each}
        tensors |= dict.fromkeys(parts[0].copies, array)
        if parts[0].counter:
            tensors[parts[0].counter] = np.zeros((), "int64")
    return tensors


def _list(kind: str, found: list[str], most: int = 8) -> str:
    """Return a heading and up to `most` lines below it."""
    found = [printable(each, one_line=True) for each in found]
    shown = [*found[:most], f"and {len(found) - most} more"] if len(found) > most else found
    heading = f"\n{len(found)} {kind}:" if kind else ""
    return heading + "".join(f"\n  {line}" for line in shown)
