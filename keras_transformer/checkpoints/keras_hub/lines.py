"""The weight tables of KerasHub's layers: their paths in HDF5 files as Keras writes them."""

import dataclasses

import numpy as np

from keras_transformer.checkpoints.weights import Names, Weight
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
        first: The number of the stack's first layer; `of` sets it.
    """

    heads: int | None = None
    first: int = 0

    def of(self, config: TransformerConfig) -> "Line":
        """The line for a config: the decoder's blocks are numbered behind the encoder's."""
        behind = config.kind == "seq2seq" and self.ours.startswith("decoder/")
        first = config.num_layers if behind else 0
        line = dataclasses.replace(self, groups=config.num_heads, first=first)
        return line if "{i}" in self.ours else line.at(0)

    def at(self, i: int) -> "Line":
        number = self.first + i
        theirs = self.theirs.replace("{i}", f"_{number}" if number else "")
        return dataclasses.replace(self, ours=self.ours.replace("{i}", str(i)), theirs=theirs)

    def shape(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        if self.heads is None:
            return tuple(ours)
        before, width, after = ours[: self.heads], ours[self.heads], ours[self.heads + 1 :]
        return (*before, self.groups, width // self.groups, *after)

    def split(self, array: np.ndarray) -> np.ndarray:
        if self.heads is None:
            return array
        before, after = array.shape[: self.heads], array.shape[self.heads + 2 :]
        return array.reshape(*before, -1, *after)

    def join(self, arrays: list[np.ndarray]) -> np.ndarray:
        return arrays[0].reshape(self.shape(arrays[0].shape))


def dense(
    ours: str, theirs: str, kernel: int | None = None, bias: int | None = None
) -> tuple[Line, ...]:
    """The lines of a dense layer; `kernel` and `bias` are the axes that are split into heads."""
    return (
        Line(f"{ours}/kernel", f"{theirs}/vars/0", heads=kernel),
        Line(f"{ours}/bias", f"{theirs}/vars/1", heads=bias),
    )


def layer_norm(ours: str, theirs: str) -> tuple[Line, ...]:
    """The lines of a layer normalization."""
    return Line(f"{ours}/gamma", f"{theirs}/vars/0"), Line(f"{ours}/beta", f"{theirs}/vars/1")


def blocks(stack: str) -> tuple[Line, ...]:
    """The blocks of `TransformerEncoder` or `TransformerDecoder`."""
    ours, theirs = f"{stack}/layer_{{i}}", f"layers/transformer_{stack}{{i}}"
    attention = f"{theirs}/_self_attention_layer"
    return (
        *(
            line
            for name in ("query", "key", "value")
            for line in dense(f"{ours}/self_attention/{name}", f"{attention}/{name}_dense", 1, 0)
        ),
        *dense(f"{ours}/self_attention/output", f"{attention}/output_dense", 0),
        *layer_norm(f"{ours}/self_attention_norm", f"{theirs}/_self_attention_layer_norm"),
        *(
            line
            for name in ("intermediate", "output")
            for line in dense(f"{ours}/feed_forward/{name}", f"{theirs}/_feedforward_{name}_dense")
        ),
        *layer_norm(f"{ours}/feed_forward_norm", f"{theirs}/_feedforward_layer_norm"),
    )


def two_embeddings(stack: str, token: str, position: str) -> tuple[Line, ...]:
    """The embeddings of tokens and positions, by the paths of their layers."""
    return (
        Line("token_embedding/embeddings", f"layers/{token}/vars/0"),
        Line(f"{stack}/position_embedding/embeddings", f"layers/{position}/vars/0"),
    )


EMBEDDING_NORM = layer_norm("encoder/embedding_norm", "layers/layer_normalization")
PLAIN_ENCODER = (
    *two_embeddings(
        "encoder",
        "token_and_position_embedding/token_embedding",
        "token_and_position_embedding/position_embedding",
    ),
    *EMBEDDING_NORM,
    *blocks("encoder"),
)


def t5_attention(ours: str, theirs: str) -> tuple[Line, ...]:
    """T5's attention and the normalization before it."""
    return (
        *(
            Line(f"{ours}/{name}/kernel", f"{theirs}/{name}_projector/vars/0")
            for name in ("query", "key", "value", "output")
        ),
        Line(f"{ours}_norm/scale", f"{theirs}_layer_norm/vars/0"),
    )


def t5_stack(stack: str, final_norm: str) -> tuple[Line, ...]:
    """T5's encoder, or its decoder without the attention to the encoder."""
    ours, theirs = f"{stack}/layer_{{i}}", "layers/t5_transformer_layer{i}"
    activated, linear = f"{theirs}/input_projector/vars/0", f"{theirs}/gate_projector/vars/0"
    inner = f"{ours}/feed_forward"
    return (
        Line(f"{stack}/relative_bias/embeddings", f"{theirs}/self_attention/vars/0"),
        *t5_attention(f"{ours}/self_attention", f"{theirs}/self_attention"),
        Line(f"{inner}/gate/kernel", activated, when=("gated", True)),
        Line(f"{inner}/intermediate/kernel", linear, when=("gated", True)),
        Line(f"{inner}/intermediate/kernel", activated, when=("gated", False)),
        Line(f"{inner}/output/kernel", f"{theirs}/output_projector/vars/0"),
        Line(f"{inner}_norm/scale", f"{theirs}/layer_norm/vars/0"),
        Line(f"{stack}/final_norm/scale", f"layers/{final_norm}/vars/0"),
    )
