"""The weight tables of KerasHub's layers: their paths in HDF5 files as Keras writes them."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from keras_transformer.checkpoints.weights import LAYER_NORM, RMS_NORM, Names, Weight
from keras_transformer.config import TransformerConfig

# Before a tensor of a task's head, which is in another file.
TASK_PREFIX = "task/"

# The projections of an attention layer had private names in older releases of Keras.
NAMES = Names(
    suffixes={
        f"/_{name}_dense/vars/{i}": f"/{name}_dense/vars/{i}"
        for name in ("query", "key", "value", "output")
        for i in (0, 1)
    },
    ignored=(f"{TASK_PREFIX}*",),
)


@dataclasses.dataclass(frozen=True)
class Line(Weight):
    """One line of a weight table of KerasHub.

    Keras numbers the layers of a class in the order of the model, and the first has no number:
    `dense`, `dense_1`. In `theirs`, `{i}` is that ending.

    Args:
        heads: The axis of ours that is two there, heads and the width of a head.
        behind: Whether the decoder's blocks are of the encoder's class, and numbered behind them.
        first: The number of the stack's first layer; `of` sets it.
    """

    heads: int | None = None
    behind: bool = False
    first: int = 0

    def of(self, config: TransformerConfig) -> "Line":
        """The line for a config: with its number of heads, of keys and values their own."""
        shared = self.part is None and self.ours.split("/")[-2] in ("key", "value")
        groups = config.num_key_value_heads if shared else config.num_heads
        first = config.num_layers if self.behind else 0
        line = dataclasses.replace(self, groups=groups, first=first)
        return line if "{i}" in self.ours else line.at(0)

    def at(self, i: int) -> "Line":
        number = self.first + i
        theirs = self.theirs.replace("{i}", f"_{number}" if number else "")
        return dataclasses.replace(self, ours=self.ours.replace("{i}", str(i)), theirs=theirs)

    def shape(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        flat = super().shape(ours)
        if self.heads is None:
            return flat
        before, width, after = flat[: self.heads], flat[self.heads], flat[self.heads + 1 :]
        return (*before, self.groups, width // self.groups, *after)

    def split(self, array: np.ndarray) -> np.ndarray:
        if self.heads is not None:
            before, after = array.shape[: self.heads], array.shape[self.heads + 2 :]
            array = array.reshape(*before, -1, *after)
        return super().split(array)

    def join(self, arrays: list[np.ndarray]) -> np.ndarray:
        return super().join(arrays).reshape(self.shape(arrays[0].shape))


def layers(
    table: Mapping[str, str], ours: str = "", theirs: str = "", *, split: bool = True, **options
) -> tuple[Line, ...]:
    """The lines of whole layers by their paths in KerasHub, as `checkpoints.weights.layers`."""
    lines: list[Line] = []
    for mine, its in table.items():
        path, name = f"{ours}{mine}", f"{theirs}{its}/vars/"
        if path.endswith("_norm"):
            lines += [
                Line(f"{path}/gamma", f"{name}0", **{**options, "when": LAYER_NORM}),
                Line(f"{path}/beta", f"{name}1", **{**options, "when": LAYER_NORM}),
                Line(f"{path}/scale", f"{name}0", **{**options, "when": RMS_NORM}),
            ]
        elif path.endswith(("_embedding", "_bias")):
            lines.append(Line(f"{path}/embeddings", f"{name}0", **options))
        else:
            heads = split and "attention/" in path
            out = path.endswith("/output")
            kernel, bias = ((0, None) if out else (1, 0)) if heads else (None, None)
            lines.append(Line(f"{path}/kernel", f"{name}0", heads=kernel, **options))
            lines.append(Line(f"{path}/bias", f"{name}1", heads=bias, **options))
    return tuple(lines)


def attention(kind: str, dense: str = "{}_dense", norm: str = "_norm") -> dict[str, str]:
    """The layers of a block's `"self"` or `"cross"` attention, and its normalization."""
    parts = ("query", "key", "value", "output")
    layer = f"_{kind}_attention_layer"
    table = {f"{kind}_attention/{part}": f"{layer}/{dense.format(part)}" for part in parts}
    return {**table, f"{kind}_attention_norm": f"{layer}{norm}"}


def feed_forward(*parts: str, norm: str = "_feedforward_layer_norm") -> dict[str, str]:
    """The layers of a block's feed-forward part, and its normalization."""
    table = {f"feed_forward/{part}": f"_feedforward_{part}_dense" for part in parts}
    return {**table, "feed_forward_norm": norm}


def blocks(stack: str, *kinds: str) -> tuple[Line, ...]:
    """The blocks of `TransformerEncoder` or `TransformerDecoder`, by their kinds of attention."""
    table = feed_forward("intermediate", "output")
    for kind in kinds or ("self",):
        table |= attention(kind)
    return layers(table, f"{stack}/layer_{{i}}/", f"layers/transformer_{stack}{{i}}/")


REVERSIBLE = (
    Line("token_embedding/embeddings", "layers/reversible_embedding/vars/0"),
    Line("token_embedding/reverse_embeddings", "layers/reversible_embedding/vars/1"),
)
