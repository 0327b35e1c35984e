"""Tables of the weights of every model, grouped by the layer that creates them.

Each axis is named after a config size, or a product of sizes. The names determine the shapes, which
weights devices share (`PARALLEL`), and which weights are vectors or matrices. Checks of files,
layouts, plans, optimizers and the command read these tables, without a model and without Keras.
Flax and T5X call such names logical axes.

Source: Roberts et al. 2022, "Scaling Up Models and Data with t5x and seqio", section 2.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Mapping

from keras_transformer.config import (
    Attention,
    Block,
    Bottleneck,
    ConcatenatedMerging,
    Conformer,
    ContinuousWindowBias,
    Convolution,
    DecomposedBias,
    Dense,
    Disentangled,
    Experts,
    GridBias,
    LatentAttention,
    Learned,
    LocalAttention,
    MixFeedForward,
    OverlappingMerging,
    Projector,
    RelativeBias,
    RelativeKeys,
    RelativeSinusoids,
    Residual,
    Router,
    ShortConvolution,
    Side,
    Similarity,
    StateSpace,
    TimePositions,
    Tokens,
    TransformerConfig,
    Vector,
    Window,
    WindowBias,
)
from keras_transformer.config.outputs import STANDARD
from keras_transformer.config.stems import WHOLE
from keras_transformer.config.weight import (
    BOUNDS,
    NORMALIZATIONS,
    PARALLEL,
    Shapes,
    Weight,
    dense_of,
    norm_of,
    weight_of,
)

# `layers.TokenEmbedding` of a backbone.
TABLE = weight_of("token_embedding/embeddings", "vocabulary_size", "embedding_dim")
_REVERSE = weight_of("token_embedding/reverse_embeddings", "embedding_dim", "vocabulary_size")

_REPLACED = weight_of("token_embedding/replaced", "embedding_dim")


def tokens(config: TransformerConfig) -> tuple[Weight, ...]:
    """Return the weights of a backbone's `layers.TokenEmbedding`, and of its logits."""
    weights: tuple[Weight, ...] = ()
    size = getattr(config.only_side.input, "vocabulary_size", 0)
    if size and config.logits.left_out:
        return TABLE + dense_of("written_logits", "embedding_dim", "written", config.logits.bias)
    if size:
        weights += TABLE + (() if config.logits.tie else _REVERSE)
        replaced = getattr(config.only_side.input, "replaced_id", None) is not None
        weights += _REPLACED if replaced else ()
    return weights + (OUTPUT_BIAS if config.logits.bias else ())


def before_blocks(side: Side) -> tuple[Weight, ...]:
    """Return the weights of a side before and beside its blocks, without the weights of a stem.

    These belong to segments and positions, to the norm and the projection of the embeddings, and to
    the position bias of the scores, which the blocks share.
    """
    kind, bias = side.block.norm.type, side.score_bias
    weights = side.input.weights if isinstance(side.input, Tokens) else ()
    weights += () if side.position is None else side.position.weights
    weights += () if bias is None else bias.weights(kind)
    weights += () if side.layer_inputs is None else side.layer_inputs.weights(kind)
    weights += () if side.altup is None else side.altup.weights_around()
    if side.global_states:
        weights += weight_of("global_states/embeddings", "global_states", "hidden_dim")
    pattern = getattr(side.block.mixer, "pattern", None)
    if isinstance(bias, RelativeBias) and getattr(pattern, "group_size", None) is not None:
        weights += weight_of("group_relative_bias/embeddings", "num_buckets", "num_heads")
    if side.embedding_norm:
        weights += norm_of("embedding_norm", kind, "embedded")
    if side.embedding_projection == "tokens":
        weights += weight_of("token_projection/kernel", "embedding_dim", "hidden_dim")
    elif side.embedding_projection == "sum":
        weights += dense_of("embedding_projection", "embedding_dim", "hidden_dim")
    return weights


def after_blocks(config: TransformerConfig) -> tuple[Weight, ...]:
    """Return the weights that follow the states of the last side, such as the pooler's."""
    side = config.last_side
    kind = side.block.norm.type
    weights: tuple[Weight, ...] = ()
    if side.pooler == "tanh":
        weights += dense_of("pooler", "hidden_dim", "hidden_dim")
    elif side.pooler == "mean":
        weights += norm_of("pooler_norm", kind)
    if side.embedding_projection == "tokens":
        weights += weight_of("state_projection/kernel", "hidden_dim", "embedding_dim")
    return weights + transform(config)


def transform(config: TransformerConfig) -> tuple[Weight, ...]:
    """Return the weights of the `output_transform` of the last side, if there is one."""
    if config.logits.transform is None:
        return ()
    kind = config.last_side.block.norm.type
    bias = config.logits.transform_bias
    dense = dense_of("output_transform", "hidden_dim", "hidden_dim", bias)
    return dense + norm_of("output_transform_norm", kind)


def hidden_of_head(
    name: str, width: str = "hidden_dim", bias: bool = True, norm: str | None = None
) -> tuple[Weight, ...]:
    """Return the weights of a head's hidden layer and of its normalization, of the kind `norm`."""
    vectors = [f"{name}/bias"] * bias + [f"{name}_norm/{p}" for p in NORMALIZATIONS.get(norm, ())]
    return (
        Weight(f"{name}/kernel", ("hidden_dim", width)),
        *(Weight(v, (width,)) for v in vectors),
    )


# Task heads, named after the model they belong to.
OUTPUT_BIAS = weight_of("output_bias/bias", "vocabulary_size")
MASKED_LM_HEAD = (*hidden_of_head("transform", "embedding_dim", norm="layer_norm"), *OUTPUT_BIAS)
OWN_OUTPUT = weight_of("output/kernel", "output_dim", "vocabulary_size")
SPAN_HEAD = dense_of("output", "hidden_dim", "num_ends")
# The classification layer on a decoder's last state has no bias, unless the model has an encoder
# too.
CLASSIFIER_HEAD = (
    *weight_of("output/kernel", "hidden_dim", "num_classes"),
    *weight_of("output/bias", "num_classes", kinds=("encoder", "seq2seq")),
)
TOKEN_HEAD = dense_of("output", "hidden_dim", "num_classes")


def feed_forward_of_head(config: TransformerConfig) -> tuple[Weight, ...]:
    """Return the weights of a head's feed-forward sub-layer and of the norm after its residual."""
    block = config.only_side.block
    own = block.feed_forward
    if own is None:
        raise ValueError("A head with a feed-forward layer needs blocks that have one.")
    dense = Dense(dim=own.dense_dim, gated=own.gated, bias=own.bias)
    return dense.weights("feed_forward") + norm_of("feed_forward_norm", block.norm.type)


def _every_weight() -> tuple[Weight, ...]:
    """Return all weights that the models of this library can have."""
    attentions = [
        Attention(
            num_heads=1,
            query_key_norm=norm,
            score=score,
            sinks=True,
            output_gate=True,
            score_bias=bias,
        )
        for norm, score, bias in (
            ("head", "scaled_dot", Disentangled(projections="own")),
            ("across", "general", RelativeBias()),
            ("per_head", "cosine", GridBias()),
        )
    ]
    window = Window(size=1, global_projection=True, group_size=1)
    router = Router(correction_bias=True)
    experts = Experts(number=2, dim=1, gated=True, shared_dim=1, router_bias=True, router=router)
    layers = (Dense(dim=1, gated=True), experts, experts)
    found: tuple[Weight, ...] = (*TABLE, *_REVERSE, *_REPLACED, *OUTPUT_BIAS)
    for attention, feed_forward in zip(attentions, layers, strict=True):
        block = Block(
            mixer=attention.replace(pattern=window),
            feed_forward=feed_forward,
            residual=Residual(order="sandwich", trained_scale=True),
            convolution=Convolution(size=1),
        )
        side = Side(
            input=Tokens(vocabulary_size=1, segments=1),
            hidden_dim=1,
            num_layers=1,
            block=block.replace(mixer=attention.replace(score_bias=RelativeBias(), pattern=window)),
            position=Learned(),
            embedding_norm=True,
        )
        found += block.weights(cross_attention=True) + before_blocks(side)
        found += attention.score_bias.weights("layer_norm")
    for mixer in (ShortConvolution(bias=True), StateSpace(num_heads=1, head_dim=1, bias=True)):
        found += mixer.weights(mixer.name, "layer_norm")
    found += RelativeSinusoids().of_mixer("self_attention")
    found += RelativeKeys().of_mixer("self_attention")
    for norm in ("block", "batch"):
        conformer = Conformer(use_bias=True, norm=norm)
        found += conformer.weights("layer_norm", Dense(dim=1))
    conformer = Conformer(causal=True)
    found += conformer.weights("rms_norm", Dense(dim=1, clipped=True), norms_outputs=True)
    local = LocalAttention(num_heads=1, clipped=True)
    found += local.weights(local.name, "rms_norm")
    found += DecomposedBias(rows=1, columns=1).of_mixer("self_attention")
    found += experts.weights("sparse")
    for bias in (WindowBias(), ContinuousWindowBias()):
        found += bias.of_mixer("self_attention")
    found += Attention(num_heads=1, score="scaled_cosine").weights("self_attention", "layer_norm")
    found += MixFeedForward(dim=1).weights()
    mergings = (OverlappingMerging, ConcatenatedMerging, functools.partial(TimePositions, steps=1))
    for merging in mergings:
        found += merging(hidden_dim=1, input_dim=1).weights("layer_norm")
    found += Bottleneck(dim=1).weights("layer_norm")
    reduced = Attention(num_heads=1, sequence_reduction=2)
    found += reduced.weights(reduced.name, "layer_norm")
    latent = LatentAttention(num_heads=1, kv_lora_rank=2, q_lora_rank=1, bias=True)
    found += latent.weights(latent.name, "layer_norm")
    found += dense_of("embedding_projection", "embedding_dim", "hidden_dim")
    found += weight_of("token_projection/kernel", "embedding_dim", "hidden_dim")
    for kind in NORMALIZATIONS:
        found += norm_of("final_norm", kind)
    found += dense_of("pooler", "hidden_dim", "hidden_dim") + MASKED_LM_HEAD + CLASSIFIER_HEAD
    found += Vector(pooling="attention", normalize=True, dim=1, bias=True).weights("layer_norm")
    found += Similarity(bias=True).weights
    found += dense_of("output_transform", "hidden_dim", "hidden_dim")
    found += Attention(num_heads=1, clipped=True).weights("self_attention", "layer_norm")
    found += Dense(dim=1, gated=True, clipped=True).weights()
    for projector in ("mlp", "normalized", "merged", "merged_mlp"):
        found += Projector(type=projector, separator=True).weights("layer_norm", "rms_norm")
    found += Projector(type="merged_mean", standardized=True).weights("rms_norm", "rms_norm")
    found += Projector(type="norm_between", inner_dim=1).weights("rms_norm", "rms_norm")
    return found + tuple(weight for stem in WHOLE for weight in stem.weights)


_ALL = _every_weight()
# Names of vectors, that is of biases and normalizations, which have no weight decay.
VECTORS = tuple(sorted({each.path.split("/")[-1] for each in _ALL if each.is_vector}))
# Weights that devices share, by the end of their path.
SHARED = {each.path: each for each in _ALL if PARALLEL.intersection(each.axes)}
SHARED[f"encoder_{TABLE[0].path}"] = TABLE[0]  # an encoder-decoder with two token embeddings
# Layers before the first block. Of their weights, only `_BEHIND` is used after the last block.
_BEFORE = frozenset({
    "token_embedding", "segment_embedding", "position_embedding", "relative_bias",
    "group_relative_bias", "relative_embedding", "grid_bias", "embedding_norm",
    "token_projection", "embedding_projection", "layer_inputs", "altup_copies",
    "global_states",
})  # fmt: skip
_BEHIND = "reverse_embeddings"
_INPUT = "input_"  # the beginning of the names of a stem's weights
_BLOCK = re.compile(r"(.*)/layer_(\d+)/")
_NUMBERED = re.compile(r"(.+)_(\d{1,9})")


@dataclasses.dataclass(frozen=True)
class ModelSide:
    """A side within its model, with the number and width of the states that it attends to."""

    name: str
    config: TransformerConfig  # of the side alone
    groups: int  # number of layers with weights of their own
    source_dim: int | None = None  # width of the encoder states that it attends to
    is_target: bool = False  # whether it reads the target rather than the source
    fixed: int | None = None  # states of a row, if the stem determines them
    attended: int | None = None  # states attended to, if fixed

    @property
    def side(self) -> Side:
        """Parts of the side."""
        return self.config.only_side

    @property
    def depth(self) -> int:
        """Number of layers computed."""
        return self.side.num_layers

    def layer(self, i: int) -> TransformerConfig:
        """Return the config of one layer: the same object for all layers with equal blocks."""
        own = self.side.layer(i), self.side.width(i)
        if own not in self._layers:
            self._layers[own] = self.config.layer(i)
        return self._layers[own]

    @functools.cached_property
    def _layers(self) -> dict[tuple[Block, int], TransformerConfig]:
        return {}

    def states(self, i: int, length: int) -> int:
        """Return the number of states of layer `i`, for `length` states of the stem."""
        grids = self._grids
        return length * math.prod(grids[i]) // math.prod(grids[0]) if grids else length

    @functools.cached_property
    def _grids(self) -> tuple[tuple[int, int], ...]:
        return self.side.grids()

    def lengths(self, source: int, target: int) -> tuple[int, int | None]:
        """Return the number of states per row of a block, and of the states that they attend to.

        Args:
            source: int, length of the source.
            target: int, length of the target.
        """
        attended = None if self.source_dim is None else self.attended or source
        own = self.fixed or (target if self.is_target else source)
        return own + self.side.global_states, attended


def sides(config: TransformerConfig) -> list[ModelSide]:
    """Return the sides of a model, in the order of the forward pass."""
    found: list[ModelSide] = []
    placed = config.placeholders and config.placeholders.side
    for name, side in zip(config.side_names, config.sides, strict=True):
        reads = found[-1] if config.kind == "seq2seq" and found else None
        reads = None if name in (placed, "sound") else reads
        target = name == "decoder" and config.kind == "seq2seq"
        projected = target and config.projector is not None and placed is None
        width = (side if projected else reads.config).hidden_dim if reads else None
        groups = max(block_order(side), default=-1) + 1
        own = side.only_side.input
        fixed = own.num_states if name in ("source", "sound") or own.is_set else None
        attended = reads and reads.fixed
        found.append(ModelSide(name, side, groups, width, target, fixed, attended))
    return found


def block_order(config: TransformerConfig) -> list[int]:
    """Return the block number of each layer of a side: layers of a group share blocks."""
    side = config.only_side
    each = side.layers_per_group
    rounds = side.num_layers // each
    groups = [i * side.num_layer_groups // rounds for i in range(rounds)]
    return [group * each + i for group in groups for i in range(each)]


def block(config: TransformerConfig, source_dim: int | None = None) -> list[Weight]:
    """Return the weights of one block, given the config of its layer."""
    one = config.only_side.block
    sizes = {} if source_dim is None else {"source_dim": source_dim}
    return shaped_weights(one.weights(cross_attention=source_dim is not None), config, **sizes)


def shaped_weights(
    weights: Iterable[Weight], config: TransformerConfig, folder: str = "", **sizes: int
) -> list[Weight]:
    """Return the weights that a model of this config has, with shapes.

    `sizes` gives the axes whose sizes do not follow from the config.
    """
    known = {**_sizes(config.last_side), **sizes}
    kind = config.kind
    return [
        each.with_shape(known, folder) for each in weights if not each.kinds or kind in each.kinds
    ]


def _sizes(side: Side) -> Mapping[str, int]:
    """Return the sizes of the axes of a side's weights, by name."""
    block, stem, bias = side.block, side.input, side.score_bias
    sizes = {
        "one": 1,
        "embedding_dim": side.embedding_dim,
        "embedded": side.added_dim,
        "num_layers": side.num_layers,
        "global_states": side.global_states,
        "max_sequence_length": side.max_sequence_length,
        "vocabulary_size": getattr(stem, "vocabulary_size", 0),
        "intermediate_dim": block.dense_dim,
        "vector_dim": side.vector_dim,
        **stem.sizes(side.embedding_dim),
        **block.sizes(side.hidden_dim),
    }
    if side.layer_inputs is not None:
        sizes |= side.layer_inputs.sizes(side.num_layers)
    if side.vector is not None:
        sizes |= side.vector.sizes
    if side.position is not None:
        sizes |= side.position.sizes(side.num_positions, side.added_dim)
    if isinstance(bias, GridBias):
        sizes |= bias.sizes_of(stem.grid(stem.image_size))
    elif bias is not None:
        sizes |= bias.sizes
    return sizes


def numbers_of_a_token(weight: Weight, block: Block) -> int:
    """Return how many numbers of a block's weight one token uses: only its chosen experts'."""
    numbers = math.prod(weight.shape)
    experts = block.sparse or block.feed_forward
    if "num_experts" in weight.axes and isinstance(experts, Experts):
        return numbers // experts.number * experts.per_token
    return numbers


def backbone(config: TransformerConfig) -> list[Weight]:
    """Return all weights of a backbone, with their paths and shapes."""
    last = config.sides[-1]
    size = getattr(last.only_side.input, "vocabulary_size", 0)
    written = size - config.logits.left_out
    found = shaped_weights(tokens(last), last, written=written)
    if config.share_embeddings is False and config.side("encoder").vocabulary_size:
        found += shaped_weights(TABLE, config.side("encoder"), "encoder_")
    for each in sides(config):
        flat, folder = each.config, f"{each.name}/"
        found += [
            *input_weights(flat, folder),
            *shaped_weights(before_blocks(each.side), flat, folder),
        ]
        described: dict[int, list[Weight]] = {}  # by the config of a layer, which `each` keeps
        for i in range(each.groups):
            layer = each.layer(i)
            if id(layer) not in described:
                described[id(layer)] = block(layer, each.source_dim)
            found += [weight.within(f"{folder}layer_{i}/") for weight in described[id(layer)]]
        if each.side.final_norm:
            found += shaped_weights(norm_of("final_norm", each.side.block.norm.type), flat, folder)
        if each.side.vector is not None:
            found += shaped_weights(
                each.side.vector.weights(each.side.block.norm.type), flat, folder
            )
    found += projector_weights(config)
    if config.sound is not None:
        found += [
            dataclasses.replace(each, path=f"sound_{each.path}")
            for each in projector_weights(config.of_sound)
        ]
    if config.similarity is not None:
        found += shaped_weights(config.similarity.weights, config)
    return found + shaped_weights(after_blocks(config), last)


def projector_weights(config: TransformerConfig) -> list[Weight]:
    """Return the weights that project encoder states to decoder states, if there are any."""
    if config.projector is None:
        return []
    encoder, decoder = (getattr(config, name) for name in config.projected_sides)
    sizes = {"source_dim": encoder.hidden_dim, "target_dim": decoder.hidden_dim}
    sizes["joined_dim"] = encoder.hidden_dim * config.projector.pool**2
    sizes["inner_dim"] = config.projector.inner_dim or 0
    sizes["hard_tokens"] = config.projector.hard_tokens
    norms = (side.block.norm.type for side in (encoder, decoder))
    found = [*config.projector.weights(*norms)]
    if config.placeholders is not None:
        norm = encoder.block.norm.type
        for i in range(len(config.placeholders.stacked_layers)):
            found += config.projector.stacked_weights(norm, i)
    return [each.with_shape(sizes) for each in found]


def input_weights(config: TransformerConfig, folder: str = "") -> list[Weight]:
    """Return the weights of a side's stem, if it has one."""
    stem = config.only_side.input
    return [] if isinstance(stem, Tokens) else shaped_weights(stem.weights, config, folder)


def divided(config: TransformerConfig) -> dict[str, int]:
    """Return the sizes of a layer that the number of devices must divide (whole heads each)."""
    block = config.only_side.block
    own = block.feed_forward
    inner = {"intermediate_dim": block.dense_dim}
    if isinstance(own, Experts):
        inner = {"num_experts": own.number, "shared_expert_dim": own.shared_dim}
    if block.sparse is not None:
        inner |= {"num_experts": block.sparse.number}
    return {**block.mixer.divided, **inner}


def variable_shapes(config: TransformerConfig) -> Shapes:
    """Return the names and shapes of all variables of a backbone with this config.

    A preset's weights are compared with them before the model is built, so that a config with
    absurd sizes costs an error message instead of memory.

    Args:
        config: the backbone's config.

    Returns:
        A dict from path, relative to the backbone, to shape.

    Example:
    ```python
    import math
    from keras_transformer import TransformerConfig
    from keras_transformer.config.structure import variable_shapes

    gpt2 = TransformerConfig(
        kind="decoder", vocabulary_size=50_257, hidden_dim=768, num_layers=12, num_heads=12,
        intermediate_dim=3072, position="learned", max_sequence_length=1024, normalize_first=True,
    )
    assert sum(map(math.prod, variable_shapes(gpt2).values())) == 124_439_808
    ```
    """
    return {each.path: each.shape for each in backbone(config)}


def shapes_of(weights: Iterable[Weight], config: TransformerConfig, **sizes: int) -> Shapes:
    """Return the names and shapes of a table's weights, such as a head's, for this config."""
    return {each.path: each.shape for each in shaped_weights(weights, config, **sizes)}


_FROZEN = frozenset({"correction_bias", "output_scale", *BOUNDS, *STANDARD})


def is_average(path: str) -> bool:
    """Return whether a variable is a moving average over batches, which is never trained."""
    return path.split("/")[-1] in ("moving_mean", "moving_variance")


def is_frozen(path: str) -> bool:
    """Return whether gradients never train a variable: an average, a choice's bias, a scale."""
    *folders, name = path.split("/")
    frozen = bool(folders) and folders[-1].endswith("frozen_norm")
    return is_average(path) or frozen or name in _FROZEN


def is_before_blocks(path: str) -> bool:
    """Return whether a variable belongs to a layer before the blocks, such as an embedding."""
    outside, *within = re.split(r"/layer_\d+/", path, maxsplit=1)  # of a block, its own names
    *folders, name = outside.split("/")
    if any(each.startswith(_INPUT) for each in (*folders, name)):
        return True
    return not within and name != _BEHIND and not _BEFORE.isdisjoint(folders)


def is_hidden_matrix(path: str, axes: int) -> bool:
    """Return whether a variable maps states to states within a block: a kernel of a dense layer.

    A variable with an axis before, for experts or heads, holds one such matrix for each. Tables of
    embeddings, filters of convolutions, and adapters are no such matrices.

    Args:
        path: the path of the variable.
        axes: its number of axes.
    """
    *folders, name = path.split("/")
    filters = bool(folders) and folders[-1].endswith("convolution")
    return name == "kernel" and axes in (2, 3) and not filters and block_of(path) is not None


def block_of(path: str) -> tuple[str, int] | None:
    """Return the stack path and block number of a variable, or None if it is not in a block."""
    found = _BLOCK.match(path)
    return found and (found[1], int(found[2]))


def without_numbers(paths: Iterable[str]) -> dict[str, str]:
    """Map the path of each variable to a path that is the same in every process.

    Keras numbers layers without a name of their own within a process, as in `dense_4/kernel`. This
    replaces the number by the rank among paths that differ only in it: `dense/kernel` for the
    first, `dense_1/kernel` for the next. Numbers in names from 0, which Keras never assigns, stay.

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
    # If names such as `dense_1_2` would become ambiguous, all paths stay as they are.
    return stable if len(set(stable.values())) == len(stable) else {path: path for path in stable}


def _numbered(name: str) -> tuple[str, int]:
    """Return the name and the number of `name_4`; -1 if there is no number."""
    found = _NUMBERED.fullmatch(name)
    return (found[1], int(found[2])) if found else (name, -1)


def shared_weight(path: str, shape: tuple[int, ...]) -> Weight | None:
    """Return the entry of `SHARED` that describes a variable, by the end of its path, or None."""
    names = path.split("/")
    for start in range(len(names)):
        found = SHARED.get("/".join(names[start:]))
        if found is not None and len(found.axes) == len(shape):
            return dataclasses.replace(found, shape=tuple(shape))
    return None
