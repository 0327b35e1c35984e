"""The weight table: which variable of ours is which tensor of a checkpoint, for both directions.

A family lists its `Weight`s once. `match` holds the list against a checkpoint's header before
anything is loaded, `export` turns variables into the checkpoint's tensors.
"""

import dataclasses
import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.checking import printable
from keras_transformer.checkpoints.computed import is_computed
from keras_transformer.checkpoints.safetensors_io import TensorInfo, to_numpy
from keras_transformer.checkpoints.weight_norm import parts_of
from keras_transformer.config import OPTIONS, TransformerConfig
from keras_transformer.structure import sides
from keras_transformer.weight import NORMALIZATIONS


@dataclasses.dataclass(frozen=True)
class Weight:
    """One line of a weight table."""

    ours: str  # the variable's path relative to the backbone (or head); `{i}` is the layer
    # The tensor's name in the checkpoint, with the same `{i}`; `*` is the number of an expert,
    # where each has a tensor of its own.
    theirs: str
    transpose: bool = False  # theirs is ours transposed, as `torch.nn.Linear` stores its matrix
    # Theirs holds several of ours, side by side in the last axis of ours: which one, and how many.
    part: tuple[int, int] | None = None
    sizes: tuple = ()  # of the parts: config values, the numbers once it is `of` one; else alike
    per_head: bool = False  # the parts stand side by side within each group of heads
    by_turns: bool = False  # the parts' columns stand by turns, in experts
    # Theirs holds rows of several of ours, one each: which one, and how many.
    rows: tuple[int, int] | None = None
    row: int = 0  # theirs has so many leading axes of length 1; with `rows` its row has
    convolution: bool = (
        False  # theirs is (outputs, inputs, *places), and ours (*places, inputs, outputs)
    )
    norm_axes: tuple[int, ...] = ()  # theirs is two, with a length over these axes: weight norm
    also: tuple[str, ...] = ()  # further names that the tensor may have, or have too
    copies: tuple[str, ...] = ()  # likewise, and it is written under these too
    when: tuple[str, Any] | None = None  # a config value and what it must be for this line to hold
    outside: bool = False  # beside the bare model: its name has no prefix
    counter: str | None = None  # a count of steps of theirs beside it, written as 0 and not read
    groups: int = 1  # in how many the parts stand side by side; `of` sets it

    def of(self, config: TransformerConfig) -> "Weight":
        """The line for a config."""
        heads = config.num_key_value_heads if self.per_head else 1
        groups = config.expert_dim if self.by_turns else heads
        sizes = tuple(getattr(config, name) // heads for name in self.sizes)
        return dataclasses.replace(self, sizes=sizes, groups=groups)

    def at(self, i: int, each: int = 1) -> "Weight":
        """The line of block `i`, of groups of `each`."""
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
        """The shape of their tensor for a variable's shape."""
        shape = (*ours[:-3:-1], *ours[:-2]) if self.convolution else tuple(ours)
        if self.part is not None:
            index, sizes = self._parts()
            shape = (*ours[:-1], ours[-1] // sizes[index] * sum(sizes))
        shape = (*shape[:-2], *shape[:-3:-1]) if self.transpose else shape
        shape = (*(1,) * self.row, *shape)
        return shape if self.rows is None else (self.rows[1], *shape[1:])

    def split(self, array: np.ndarray) -> np.ndarray:
        """Our array, of theirs."""
        if self.rows is not None:
            array = array[self.rows[0]][None]
        array = array.reshape(array.shape[self.row :])
        array = _turned(array) if self.transpose else array
        if self.convolution:
            array = np.moveaxis(array, (0, 1), (-1, -2))
        if self.part is None:
            return array
        index, sizes = self._parts()
        groups = array.reshape(*array.shape[:-1], self.groups, sum(sizes), -1)
        first = sum(sizes[:index])
        return groups[..., first : first + sizes[index], :].reshape(*array.shape[:-1], -1)

    def join(self, arrays: list[np.ndarray]) -> np.ndarray:
        """Their array, of ours: of all parts in their order."""
        array = arrays[0]
        if self.rows is not None:
            return np.concatenate([each.reshape(1, *each.shape[-1:]) for each in arrays])
        if self.part is not None:
            parts = [each.reshape(*each.shape[:-1], self.groups, -1) for each in arrays]
            array = np.concatenate(parts, axis=-1).reshape(*array.shape[:-1], -1)
        array = _turned(array) if self.transpose else array
        if self.convolution:
            array = np.moveaxis(array, (-1, -2), (0, 1))
        return array.reshape((*(1,) * self.row, *array.shape))

    def _parts(self) -> tuple[int, tuple[int, ...]]:
        """Which part it is, and how large all are, in units of their own."""
        index, count = self.part
        return index, self.sizes or (1,) * count


def _turned(array: np.ndarray) -> np.ndarray:
    """A matrix transposed, or each of several."""
    return np.swapaxes(array, -1, -2)


def layers(
    table: Mapping[str, str],
    ours: str = "",
    theirs: str = "",
    *,
    line: type[Weight] = Weight,
    ends: tuple[str, str] = (".weight", ".bias"),
    transpose: bool = True,
    convolution: bool = False,
    **options: Any,
) -> tuple[Weight, ...]:
    """The lines of whole layers, by our path of each and theirs, and further values of a line."""
    # `...norm` is a normalization, `..._embedding` and `..._bias` are an embedding, all else is a
    # dense layer, a `torch.nn.Linear` there.
    lines: list[Weight] = []
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
    """The dense layers of an attention, by their names in place of `{}` in `theirs`."""
    parts = ("query", "key", "value", "output")
    return {f"{ours}/{part}": theirs.format(name) for part, name in zip(parts, names, strict=True)}


def fused(
    ours: Sequence[str], theirs: str, layers: Callable = layers, **options: Any
) -> tuple[Weight, ...]:
    """The lines of several dense layers that are one there, such as query, key and value."""
    return tuple(
        line
        for index, path in enumerate(ours)
        for line in layers({path: theirs}, part=(index, len(ours)), **options)
    )


def output_matrix(theirs: str, *also: str) -> Weight:
    """The line of the matrix of the output, for models that do not share their embedding."""
    ours = "token_embedding/reverse_embeddings"
    return Weight(ours, theirs, transpose=True, outside=True, also=also)


@dataclasses.dataclass(frozen=True)
class Names:
    """How a checkpoint's tensor names may differ from those of the table."""

    prefixes: tuple[str, ...] = ()  # may stand before every name, e.g. "bert."
    suffixes: Mapping[str, str] = dataclasses.field(default_factory=dict)  # other ends of names
    # Names that need no place in the model: heads that no task here has, what training alone reads.
    # A `*` of a pattern never covers what stands beside the tensors of a head that is loaded.
    ignored: tuple[str, ...] = ()

    def canonical(self, name: str) -> str:
        """The table's name for a tensor of a checkpoint."""
        name = name.removeprefix(next((p for p in self.prefixes if name.startswith(p)), ""))
        end = next((s for s in self.suffixes if name.endswith(s)), None)
        return name if end is None else name.removesuffix(end) + self.suffixes[end]

    def ignores(self, name: str) -> bool:
        """Whether a tensor of this canonical name may be left over."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.ignored)


def expand(table: Iterable[Weight], config: TransformerConfig) -> list[Weight]:
    """The lines of a config, those with `{i}` written out for every layer of their stack."""
    lines = []
    stacks = {side.name: side for side in sides(config)}
    for weight in table:
        side = stacks.get(weight.ours.split("/")[0])
        flat = config if side is None else side.config
        if weight.when is not None:
            name, value = weight.when
            if getattr(config if OPTIONS[name]["of"] == "model" else flat, name) != value:
                continue
        weight = weight.of(flat)
        if "{i}" in weight.ours:
            # A model may lack the side of the line.
            if side is not None:
                each = side.config.layers_per_group
                lines.extend(weight.at(i, each) for i in range(side.groups))
        else:
            lines.append(weight)
    return lines


# What a model may do without although a file has it. What the others of these are is compared
# with the model before: an output matrix that is tied, a bias of the logits that is zero.
_SPARED = ("pooler/", "pooler_norm/", "token_embedding/reverse_embeddings", "output_bias/")


def match(
    lines: Iterable[Weight],
    shapes: Mapping[str, tuple[int, ...]],
    checkpoint: Mapping[str, TensorInfo],
    names: Names = Names(),
    where: str = "the checkpoint",
    around: Iterable[Weight] | None = None,
) -> dict[str, tuple[str, Weight]]:
    """The actual name and the line of every variable's tensor; refuses all that does not fit.

    With the lines of the model `around` it, it is a head: all that belongs to it must be taken,
    and the rest of the checkpoint is not looked at.
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
    left = {c: n for c, n in actual.items() if c not in has_place}
    if around is None:
        left_over = [
            n
            for c, n in left.items()
            if not names.ignores(c) and not is_computed(c, checkpoint[n].shape)
        ]
    else:
        of_model = {name for line in around for name in line.names}
        taken = {c for c, n in actual.items() if c in has_place}
        table = {name for line in lines.values() for name in line.names}
        left = {c: n for c, n in left.items() if c not in of_model}
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
    """Whether a tensor is of a layer of a head, or of one beside it that nobody named."""
    layer, group = _owners(name)
    owners = [_owners(each) for each in taken]
    if layer and any(layer == own for own, _ in owners):
        return True
    by_pattern = name not in names.ignored and names.ignores(name)
    return by_pattern and any(group == own for _, own in owners)


def _owners(name: str) -> tuple[str, str]:
    """The layer that a tensor is of, and the outermost group that this stands in."""
    parts = re.split(r"[./]", name)
    return ".".join(parts[:-1]), parts[0]


def export(
    lines: Iterable[Weight], variables: Mapping[str, keras.Variable]
) -> dict[str, np.ndarray]:
    """Variables, by our path, as the checkpoint's tensors: the table in the other direction."""
    lines = {line.ours: line for line in lines}
    unknown = [path for path in variables if path not in lines]
    if any("lora_kernel" in path for path in unknown):
        raise ValueError(
            "The model has adapters, which a checkpoint of its family has no place for. Call "
            "`merge_lora()` first, which adds what they learned to the kernels; "
            "`save_adapter(path)` keeps them alone."
        )
    if unknown:
        raise ValueError(
            f"The family's checkpoints have no tensor for these variables:{_list('', unknown)}"
        )
    together: dict[str, list[Weight]] = {}
    for line in sorted(
        map(lines.get, variables), key=lambda line: line.part or line.rows or (0, 1)
    ):
        together.setdefault(line.theirs, []).append(line)
    tensors: dict[str, np.ndarray] = {}
    for name, parts in together.items():
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
    """A heading and up to `most` lines below it."""
    found = [printable(each, one_line=True) for each in found]
    shown = [*found[:most], f"and {len(found) - most} more"] if len(found) > most else found
    heading = f"\n{len(found)} {kind}:" if kind else ""
    return heading + "".join(f"\n  {line}" for line in shown)
