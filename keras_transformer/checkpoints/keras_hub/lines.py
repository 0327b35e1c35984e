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


def dense(
    ours: str, theirs: str, kernel: int | None = None, bias: int | None = None, **options
) -> tuple[Line, ...]:
    """The lines of a dense layer; `kernel` and `bias` are the axes that are split into heads."""
    return (
        Line(f"{ours}/kernel", f"{theirs}/vars/0", heads=kernel, **options),
        Line(f"{ours}/bias", f"{theirs}/vars/1", heads=bias, **options),
    )


def layer_norm(ours: str, theirs: str) -> tuple[Line, ...]:
    """The lines of a layer normalization."""
    return Line(f"{ours}/gamma", f"{theirs}/vars/0"), Line(f"{ours}/beta", f"{theirs}/vars/1")


def block_attention(stack: str, name: str) -> tuple[Line, ...]:
    """An attention of the blocks of `TransformerEncoder` or `TransformerDecoder`, and its norm."""
    ours, theirs = f"{stack}/layer_{{i}}/{name}", f"layers/transformer_{stack}{{i}}/_{name}_layer"
    return (
        *(
            line
            for part in ("query", "key", "value")
            for line in dense(f"{ours}/{part}", f"{theirs}/{part}_dense", 1, 0)
        ),
        *dense(f"{ours}/output", f"{theirs}/output_dense", 0),
        *layer_norm(f"{ours}_norm", f"{theirs}_norm"),
    )


def blocks(stack: str) -> tuple[Line, ...]:
    """The blocks of `TransformerEncoder` or `TransformerDecoder`."""
    ours, theirs = f"{stack}/layer_{{i}}", f"layers/transformer_{stack}{{i}}"
    return (
        *block_attention(stack, "self_attention"),
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


def bert_embeddings() -> tuple[Line, ...]:
    """The embeddings of BERT, ALBERT and ELECTRA."""
    return (
        *two_embeddings("encoder", "reversible_embedding", "position_embedding"),
        Line("encoder/segment_embedding/embeddings", "layers/embedding/vars/0"),
        *EMBEDDING_NORM,
    )


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
    behind = ours.startswith("decoder/")
    return (
        *(
            Line(f"{ours}/{name}/kernel", f"{theirs}/{name}_projector/vars/0", behind=behind)
            for name in ("query", "key", "value", "output")
        ),
        Line(f"{ours}_norm/scale", f"{theirs}_layer_norm/vars/0", behind=behind),
    )


def t5_stack(stack: str, final_norm: str) -> tuple[Line, ...]:
    """T5's encoder, or its decoder without the attention to the encoder."""
    ours, theirs = f"{stack}/layer_{{i}}", "layers/t5_transformer_layer{i}"
    activated, linear = f"{theirs}/input_projector/vars/0", f"{theirs}/gate_projector/vars/0"
    inner, behind = f"{ours}/feed_forward", stack == "decoder"
    lines = (
        Line(f"{stack}/relative_bias/embeddings", f"{theirs}/self_attention/vars/0"),
        Line(f"{inner}/gate/kernel", activated, when=("gated", True)),
        Line(f"{inner}/intermediate/kernel", linear, when=("gated", True)),
        Line(f"{inner}/intermediate/kernel", activated, when=("gated", False)),
        Line(f"{inner}/output/kernel", f"{theirs}/output_projector/vars/0"),
        Line(f"{inner}_norm/scale", f"{theirs}/layer_norm/vars/0"),
        Line(f"{stack}/final_norm/scale", f"layers/{final_norm}/vars/0"),
    )
    attention = t5_attention(f"{ours}/self_attention", f"{theirs}/self_attention")
    return *attention, *(dataclasses.replace(line, behind=behind) for line in lines)
