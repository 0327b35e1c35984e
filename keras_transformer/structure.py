"""The weights of every model, described once: a line for each, by the layer that makes it.

An axis is named by what it runs over: a size of the config, or a product of sizes. From the names
follow the shapes, what devices share (`PARALLEL`), what is a vector and what a matrix. Checks of
files, layouts, plans, optimizers and the command read these tables; no model is made for it, and
Keras is not needed. Called logical axes in Flax and T5X.

Source: Roberts et al. 2022, "Scaling Up Models and Data with t5x and seqio", section 2.
"""

import dataclasses
import re
from collections.abc import Iterable

from keras_transformer.config import TransformerConfig
from keras_transformer.config_placed import PROJECTOR, PROJECTOR_NORM
from keras_transformer.config_stem import WHOLE
from keras_transformer.config_vectors import SIMILARITY, VECTOR
from keras_transformer.weight import (
    NORMALIZATIONS,
    PARALLEL,
    Shapes,
    Weight,
    dense_of,
    norm_of,
    norms_of,
    weight_of,
)

# The projections of the tokens that see all.
_GLOBAL = tuple(
    weight
    for part, outputs in (("query", "query_heads"), ("key", "key_heads"), ("value", "key_heads"))
    for weight in dense_of(
        f"self_attention/{part}_global", "hidden_dim", outputs, "attention_bias",
        global_projection=True,
    )
) + weight_of("self_attention/group_norm/scale", "hidden_dim", global_block_size=True)  # fmt: skip


def _attention(name: str, source: str) -> tuple[Weight, ...]:
    """`layers.MultiHeadAttention`, its keys made of states of width `source`, and its norms."""
    norms = {"query_key_norm": True, "query_key_norm_per_head": False}
    of_heads, across = ({**norms, "query_key_norm_across_heads": each} for each in (False, True))
    per_head = {"query_key_norm": True, "query_key_norm_per_head": True}
    positions = {"disentangled": "own"}
    return (
        *dense_of(f"{name}/query", "hidden_dim", "query_heads", "attention_bias"),
        *dense_of(f"{name}/key", source, "key_heads", "key_bias"),
        *dense_of(f"{name}/value", source, "key_heads", "attention_bias"),
        *dense_of(f"{name}/output", "query_heads", "hidden_dim", "attention_output_bias"),
        *(_GLOBAL if name == "self_attention" else ()),
        *dense_of(
            f"{name}/position_query", "hidden_dim", "query_heads", "attention_bias", **positions
        ),
        *dense_of(f"{name}/position_key", "hidden_dim", "key_heads", "attention_bias", **positions),
        *norm_of(f"{name}/query_norm", "head_dim", **of_heads),
        *norm_of(f"{name}/key_norm", "head_dim", **of_heads),
        *norm_of(f"{name}/query_norm", "all_queries", **across),
        *norm_of(f"{name}/key_norm", "all_keys", **across),
        *weight_of(f"{name}/query_norm/gamma", "each_head", "head_dim", **per_head),
        *weight_of(f"{name}/key_norm/gamma", "each_key_head", "head_dim", **per_head),
        *weight_of(f"{name}/score/kernel", "num_heads", "head_dim", "head_dim", score="general"),
        *weight_of(f"{name}/score/kernel", "num_heads", "head_dim", score="additive"),
        *weight_of(f"{name}/score/strength", "num_heads", score="cosine"),
        *weight_of(
            f"{name}/score/kernel", "num_heads", "head_dim", "max_sequence_length", score="location"
        ),
        *weight_of(f"{name}/sinks", "num_heads", attention_sinks=True),
        *weight_of(f"{name}_scale", "hidden_dim", trained_residual_scale=True),
        *norms_of(name, **({"attention_normalization": True} if name == "self_attention" else {})),
    )


def _feed_forward(name: str, width: str, **when) -> tuple[Weight, ...]:
    """`layers.FeedForward`."""
    return (
        *dense_of(f"{name}/intermediate", "hidden_dim", width, "use_bias", **when),
        *dense_of(f"{name}/gate", "hidden_dim", width, "use_bias", gated=True, **when),
        *dense_of(f"{name}/output", width, "hidden_dim", "use_bias", **when),
    )


def _of_experts(name: str, inputs: str, outputs: str, **when) -> tuple[Weight, ...]:
    path, when = f"feed_forward/expert_{name}", {"num_experts": True, **when}
    return (
        *weight_of(f"{path}/kernel", "num_experts", inputs, outputs, **when),
        *weight_of(f"{path}/bias", "num_experts", outputs, use_bias=True, **when),
    )


# `layers.MixtureOfExperts`.
_SHARED = {"num_experts": True, "shared_expert_dim": True}
_EXPERTS = (
    *weight_of("feed_forward/router/kernel", "hidden_dim", "all_experts", num_experts=True),
    *weight_of("feed_forward/router/bias", "all_experts", num_experts=True, router_bias=True),
    *_of_experts("intermediate", "hidden_dim", "expert_dim"),
    *_of_experts("gate", "hidden_dim", "expert_dim", gated=True),
    *_of_experts("output", "expert_dim", "hidden_dim"),
    *_feed_forward("feed_forward/shared", "shared_expert_dim", **_SHARED),
    *weight_of("feed_forward/shared_score/kernel", "hidden_dim", "one", **_SHARED),
)
# Either, and the normalizations of the sub-layer.
_FEED_FORWARD = (
    *_feed_forward("feed_forward", "intermediate_dim", num_experts=False),
    *_EXPERTS,
    *norms_of("feed_forward", share_normalization=False),
    *weight_of("feed_forward_scale", "hidden_dim", trained_residual_scale=True),
)
# What an encoder's block may have beside its attention.
_CONVOLUTION = (
    *dense_of("convolution", "neighbours", "hidden_dim", convolution_size=True),
    *norms_of("convolution", {"convolution_size": True}, convolution_size=True),
    *weight_of(
        "convolution_scale", "hidden_dim", trained_residual_scale=True, convolution_size=True
    ),
)

# `layers.EncoderBlock`, and `layers.DecoderBlock` without and with the states of an encoder.
BLOCK = (*_attention("self_attention", "hidden_dim"), *_FEED_FORWARD, *_CONVOLUTION)
CROSS_BLOCK = (
    *_attention("self_attention", "hidden_dim"),
    *_attention("cross_attention", "source_dim"),
    *_FEED_FORWARD,
)

# What a stack has before its blocks, and behind them.
STEM = (
    *weight_of(
        "segment_embedding/embeddings", "segment_vocabulary_size", "embedded",
        segment_vocabulary_size=True,
    ),
    *weight_of("position_embedding/embeddings", "positions", "embedded", position="learned"),
    *weight_of(
        "relative_bias/embeddings", "relative_num_buckets", "num_heads", relative_bias=True
    ),
    *weight_of(
        "group_relative_bias/embeddings", "relative_num_buckets", "num_heads", relative_bias=True,
        global_block_size=True,
    ),
    *weight_of(
        "relative_embedding/embeddings", "relative_num_buckets", "hidden_dim", disentangled=True
    ),
    *norm_of("relative_embedding/norm", disentangled=True),
    *weight_of(
        "grid_bias/embeddings", "num_layers", "grid_distances", "num_heads", grid_bias="own"
    ),
    *weight_of("grid_bias/embeddings", "grid_distances", "num_heads", grid_bias="shared"),
    *norm_of("embedding_norm", "embedded", embedding_normalization=True),
    *weight_of("token_projection/kernel", "embedding_dim", "hidden_dim", token_projection=True),
    *dense_of(
        "embedding_projection", "embedding_dim", "hidden_dim", embedding_projection=True
    ),
)  # fmt: skip
FINAL = norm_of("final_norm", final_normalization=True)

# `layers.TokenEmbedding` and `layers.VocabularyBias` of a backbone.
TOKENS = (
    *weight_of(
        "token_embedding/embeddings", "vocabulary_size", "embedding_dim", vocabulary_size=True
    ),
    *weight_of(
        "token_embedding/reverse_embeddings", "embedding_dim", "vocabulary_size",
        tie_embeddings=False, vocabulary_size=True,
    ),
    *weight_of("output_bias/bias", "vocabulary_size", output_bias=True),
)  # fmt: skip
POOLER = (
    *dense_of("pooler", "hidden_dim", "hidden_dim", pooler=True),
    *norm_of("pooler_norm", mean_pooler=True),
)
# Of the states, in front of the logits.
_STATES = weight_of("state_projection/kernel", "hidden_dim", "embedding_dim", token_projection=True)
TRANSFORM = (
    *dense_of("output_transform", "hidden_dim", "hidden_dim", output_transform=True),
    *norm_of("output_transform_norm", output_transform=True),
)


def hidden_of_head(
    name: str, width: str = "hidden_dim", bias: bool = True, norm: str | None = None
) -> tuple[Weight, ...]:
    """A hidden layer of a head, and a normalization of the kind `norm` behind it."""
    vectors = [f"{name}/bias"] * bias + [f"{name}_norm/{p}" for p in NORMALIZATIONS.get(norm, ())]
    return (
        Weight(f"{name}/kernel", ("hidden_dim", width)),
        *(Weight(v, (width,)) for v in vectors),
    )


# The heads of tasks, by what is in the model for them.
OUTPUT_BIAS = weight_of("output_bias/bias", "vocabulary_size")
MASKED_LM_HEAD = (*hidden_of_head("transform", "embedding_dim", norm="layer_norm"), *OUTPUT_BIAS)
SPAN_HEAD = dense_of("output", "hidden_dim", "num_ends")
# A feed-forward sub-layer of a head, with the normalization behind its sum.
FEED_FORWARD_OF_HEAD = (
    *_feed_forward("feed_forward", "intermediate_dim"),
    *norm_of("feed_forward_norm"),
)
# The score of a decoder's last state has no bias, except where an encoder stands before it.
CLASSIFIER_HEAD = (
    *weight_of("output/kernel", "hidden_dim", "num_classes"),
    *weight_of("output/bias", "num_classes", kind="encoder"),
    *weight_of("output/bias", "num_classes", kind="seq2seq"),
)
TOKEN_HEAD = dense_of("output", "hidden_dim", "num_classes")

_BLOCKS = (*BLOCK, *CROSS_BLOCK)
_INPUTS = tuple(weight for stem in WHOLE for weight in stem.weights)
_ALL = (
    *TOKENS, *_INPUTS, *STEM, *_BLOCKS, *FINAL, *POOLER, *MASKED_LM_HEAD, *CLASSIFIER_HEAD,
    *VECTOR, *SIMILARITY, *TRANSFORM, *PROJECTOR, *PROJECTOR_NORM,
)  # fmt: skip
# Of biases and normalizations, which weight decay spares: the names of vectors.
VECTORS = tuple(sorted({each.path.split("/")[-1] for each in _ALL if each.is_vector}))
# Weights that devices share, by the end of their path.
SHARED = {each.path: each for each in _ALL if PARALLEL.intersection(each.axes)}
SHARED[f"encoder_{TOKENS[0].path}"] = TOKENS[0]  # of an encoder-decoder that has two
# Layers of which all stands before the first block; and of them what stands behind the last.
_BEFORE = frozenset(each.path.split("/")[0] for each in (*TOKENS[:1], *STEM))
_BEHIND = "reverse_embeddings"
_INPUT = "input_"  # what the names of a stem's weights begin with
_BLOCK = re.compile(r"(.*)/layer_(\d+)/")
_NUMBERED = re.compile(r"(.+)_(\d{1,9})")


@dataclasses.dataclass(frozen=True)
class Side:
    """The stack of an encoder or of a decoder, and the flat config that holds on it."""

    name: str
    config: TransformerConfig
    depth: int  # how many layers are computed
    groups: int  # how many have weights of their own
    source_dim: int | None = None  # width of the encoder states that it attends to
    is_target: bool = False  # whether it has rows of their own, beside those of a source
    fixed: int | None = None  # the states of a row, where the stem says how many
    attended: int | None = None  # those that it attends to, likewise

    def layer(self, i: int) -> TransformerConfig:
        """The flat config of one layer."""
        return self.config.layer(i)

    def lengths(self, source: int, target: int) -> tuple[int, int | None]:
        """Its states of a row, by those that are read and written, and those it attends to."""
        attended = None if self.source_dim is None else self.attended or source
        return self.fixed or (target if self.is_target else source), attended


def sides(config: TransformerConfig) -> list[Side]:
    """The stacks of a model, in the order of the forward pass."""
    found: list[Side] = []
    for name, side in zip(config.side_names, config.sides, strict=True):
        reads = found[-1] if config.kind == "seq2seq" and found else None
        reads = None if config.placeholder_id is not None else reads
        target = name == "decoder" and config.kind == "seq2seq"
        projected = target and config.projector != "none"
        width = (side if projected else reads.config).hidden_dim if reads else None
        groups, fixed = max(block_order(side)) + 1, side.num_positions if name == "source" else None
        attended = reads and reads.fixed
        found.append(Side(name, side, side.num_layers, groups, width, target, fixed, attended))
    return found


def block_order(config: TransformerConfig) -> list[int]:
    """Of each layer of a side which block it is: those of a group are used again."""
    each = config.layers_per_group
    rounds = config.num_layers // each
    groups = [i * config.num_layer_groups // rounds for i in range(rounds)]
    return [group * each + i for group in groups for i in range(each)]


def block(
    config: TransformerConfig, source_dim: int | None = None, folder: str = ""
) -> list[Weight]:
    """The weights of one block, of the flat config of its layer."""
    weights = BLOCK if source_dim is None else CROSS_BLOCK
    return of(weights, config, folder, **({} if source_dim is None else {"source_dim": source_dim}))


def of(
    weights: Iterable[Weight], config: TransformerConfig, folder: str = "", **sizes: int
) -> list[Weight]:
    """Those of the weights that a model of this flat config has, with shapes."""
    return [each.of(config, folder, **sizes) for each in weights if each.is_in(config)]


def backbone(config: TransformerConfig) -> list[Weight]:
    """All weights of a backbone, with the paths and shapes that they have there."""
    found = of(TOKENS, config.sides[-1])
    if config.share_embeddings is False:
        found += of(TOKENS[:1], config.side("encoder"), "encoder_")
    for side in sides(config):
        found += [
            *input_weights(side.config, f"{side.name}/"),
            *of(STEM, side.config, f"{side.name}/"),
        ]
        for i in range(side.groups):
            found += block(side.layer(i), side.source_dim, f"{side.name}/layer_{i}/")
        found += of(FINAL, side.config, f"{side.name}/")
        if side.config.vector_pooling is not None:
            found += of(VECTOR, side.config, f"{side.name}/")
    found += [*projector_weights(config), *of(SIMILARITY, config)]
    return found + of((*POOLER, *_STATES, *TRANSFORM), config.sides[-1])


def projector_weights(config: TransformerConfig) -> list[Weight]:
    """Those that make states of a decoder of an encoder's, if there are any."""
    if config.projector == "none":
        return []
    encoder, decoder = config.sides[-2:]
    sizes = {"source_dim": encoder.hidden_dim, "target_dim": decoder.hidden_dim}
    norm = of(PROJECTOR_NORM, encoder, **sizes) if config.projector == "normalized" else []
    return of(PROJECTOR, config, **sizes) + norm


def input_weights(config: TransformerConfig, folder: str = "") -> list[Weight]:
    """Those that make states of the inputs of a side, if its config has a stem."""
    if config.stem is None:
        return []
    return of(config.stem.weights, config, folder, **config.stem.sizes)


def divided(config: TransformerConfig) -> tuple[str, ...]:
    """Sizes of a layer that the number of its devices must divide: a device holds whole heads."""
    inner = ("num_experts", "shared_expert_dim") if config.num_experts else ("intermediate_dim",)
    return ("num_heads", "num_key_value_heads", *inner)


def variable_shapes(config: TransformerConfig) -> Shapes:
    """Names and shapes of all variables that a backbone of this config has.

    A preset is held against its weights with these before the model is built, so that a config
    that declares absurd sizes costs an error message and not the memory.

    Args:
        config: the backbone's config.

    Returns:
        A dict from path, relative to the backbone, to shape.

    Example:
    ```python
    import math
    from keras_transformer import TransformerConfig
    from keras_transformer.structure import variable_shapes

    gpt2 = TransformerConfig(
        kind="decoder", vocabulary_size=50_257, hidden_dim=768, num_layers=12, num_heads=12,
        intermediate_dim=3072, position="learned", max_sequence_length=1024, normalize_first=True,
    )
    assert sum(map(math.prod, variable_shapes(gpt2).values())) == 124_439_808
    ```
    """
    return {each.path: each.shape for each in backbone(config)}


def shapes_of(weights: Iterable[Weight], config: TransformerConfig, **sizes: int) -> Shapes:
    """Names and shapes of weights of a table, such as a head's, in a model of this config."""
    return {each.path: each.shape for each in of(weights, config, **sizes)}


def is_average(path: str) -> bool:
    """Whether a variable is a moving average, which follows the batches and is never trained."""
    return path.split("/")[-1] in ("moving_mean", "moving_variance")


def is_before_blocks(path: str) -> bool:
    """Whether a variable is of the embeddings, or of what else stands before the blocks."""
    *folders, name = path.split("/")
    if any(each.startswith(_INPUT) for each in (*folders, name)):
        return True
    return name != _BEHIND and not _BEFORE.isdisjoint(folders)


def block_of(path: str) -> tuple[str, int] | None:
    """The path of the stack and the number of the block that a variable is in, None for others."""
    found = _BLOCK.match(path)
    return found and (found[1], int(found[2]))


def without_numbers(paths: Iterable[str]) -> dict[str, str]:
    """Return for each path of a variable one that is the same in another process.

    Keras numbers layers without a name of their own within a process, `dense_4/kernel`. Here the
    number is the rank among those that differ from it in the number alone: `dense/kernel` for the
    first, `dense_1/kernel` for the next. Numbers from 0 on, which Keras does not give, stay.

    Args:
        paths: the paths of all variables of a model.
    """
    numbers: dict[tuple[str, str], set[int]] = {}
    parted = {path: path.split("/") for path in paths}
    for parts in parted.values():
        for place, part in enumerate(parts):
            base, number = _numbered(part)
            numbers.setdefault(("/".join(parts[:place]), base), set()).add(number)
    ranks = {key: sorted(found) for key, found in numbers.items()}
    stable = {}
    for path, parts in parted.items():
        made = []
        for place, part in enumerate(parts):
            base, number = _numbered(part)
            known = ranks["/".join(parts[:place]), base]
            rank = known.index(number)
            made.append(part if 0 in known else f"{base}_{rank}" if rank else base)
        stable[path] = "/".join(made)
    # Of names such as `dense_1_2` none is taken for another.
    return stable if len(set(stable.values())) == len(stable) else {path: path for path in stable}


def _numbered(name: str) -> tuple[str, int]:
    """The name and the number of `name_4`; -1 where it has none."""
    found = _NUMBERED.fullmatch(name)
    return (found[1], int(found[2])) if found else (name, -1)


def shared_weight(path: str, shape: tuple[int, ...]) -> Weight | None:
    """The weight that a variable of any model is, if devices share it: told by its path's end."""
    names = path.split("/")
    for start in range(len(names)):
        found = SHARED.get("/".join(names[start:]))
        if found is not None and len(found.axes) == len(shape):
            return dataclasses.replace(found, shape=tuple(shape))
    return None
