"""A side of a model, an encoder or a decoder: its input, its blocks and its outputs."""

import functools
from collections.abc import Iterator, Mapping

from keras_transformer.config.altup import AltUp
from keras_transformer.config.block import Block
from keras_transformer.config.inputs import StemConfig, Tokens
from keras_transformer.config.layer_inputs import LayerInputs
from keras_transformer.config.merging import TimePositions
from keras_transformer.config.mixers import Attention
from keras_transformer.config.options import Part, merged, option, part
from keras_transformer.config.outputs import Vector
from keras_transformer.config.pattern import Chunks, GridWindows, VideoAxis
from keras_transformer.config.positions import GridRotary, Learned, Position
from keras_transformer.config.score_bias import (
    ALiBi,
    DecomposedBias,
    Disentangled,
    GridBias,
    RelativeBias,
    RelativeKeys,
    RelativeSinusoids,
    ScoreBias,
    WindowBias,
)
from keras_transformer.config.stems import PatchStemConfig, TubeStemConfig
from keras_transformer.support.checking import shorten

__all__ = ["Side"]

# DeepNet (Wang et al. 2022) has 1,000 layers. A file that asks for more layers than this limit
# describes no real model and would only use up the memory.
MOST_LAYERS = 10_000
EMBEDDING_PROJECTIONS = (None, "sum", "tokens")
POOLERS = (None, "tanh", "mean")


@part
class Side(Part):
    """An encoder or a decoder: its input, its blocks and its outputs.

    Example:
    ```python
    from keras_transformer.config import Attention, Block, Dense, Side, Tokens

    block = Block(mixer=Attention(num_heads=4), feed_forward=Dense(dim=64))
    side = Side(input=Tokens(vocabulary_size=100), hidden_dim=32, num_layers=2, block=block)
    assert side.block.mixer.head_dim == 8 and len(list(side.blocks)) == 2
    ```
    """

    input: StemConfig = option(
        "the input of the side: `Tokens`, or a stem that reads images, audio or series."
    )
    hidden_dim: int = option(
        "width of the hidden states, d_model in the paper.", of="side", least=1
    )
    num_layers: int = option(
        "number of layers. 0 only behind an input that is a whole network (MobileNetV5).",
        of="side",
        least=0,
        most=MOST_LAYERS,
    )
    block: Block = option("the block of its layers.")
    layers: tuple[Block, ...] = option(
        "blocks of the layers, if they differ, repeated over the depth. The norms before the first "
        "and after the last block still follow `block`.",
        (),
    )
    layer_inputs: LayerInputs | None = option(
        "vectors that each token has for each layer, for blocks with a `layer_input`.", None
    )
    global_states: int = option(
        "number of trained states that precede the input in every block and are dropped after the "
        "last. The pattern of each attention has as many `global_tokens` "
        "(Pegasus-X).",
        0,
        of="side",
        least=0,
    )
    position: Position | None = option("positions added to the states before the blocks.", None)
    embedding_dim: int | None = option(
        'width of the embeddings, for `"encoder"` only, or with `token_projection`. Defaults to '
        "`hidden_dim`.",
        None,
        of="side",
        least=1,
    )
    embedding_projection: str | None = option(
        'a dense layer from `embedding_dim` to `hidden_dim`: after the `"sum"` of the embeddings '
        '(ALBERT, ELECTRA), or of the `"tokens"` alone, without bias, and another one back before '
        'the logits (OPT-350m). Defaults to `"sum"` if the widths differ.',
        None,
        of="side",
        choices=EMBEDDING_PROJECTIONS,
    )
    embedding_norm: bool = option("normalize the sum of the embeddings.", False, of="side")
    final_norm: bool | None = option(
        "normalize after the last block. Defaults to True with pre-norm.", None, of="side"
    )
    num_layer_groups: int | None = option(
        "number of groups of layers that share one block (ALBERT has one group). Defaults to "
        "`num_layers`: no sharing.",
        None,
        of="side",
        least=1,
    )
    layers_per_group: int = option(
        "number of blocks in a group, used in turn (ALBERT's inner groups).",
        1,
        of="side",
        least=1,
        most=MOST_LAYERS,
    )
    max_sequence_length: int = option(
        "longest sequence; a hard limit for learned positions.",
        512,
        of="side",
        least=1,
        changeable=True,
    )
    bidirectional: bool = option(
        'for the texts of a `"dual"`: a token also sees later tokens (SigLIP).', False, of="side"
    )
    causal: bool = option(
        "for an encoder with a stem: a state attends only to itself and to those before it "
        "(TimesFM).",
        False,
        of="side",
    )
    pooler: str | None = option(
        'for a single encoder: a dense `"tanh"` layer on the first state (BERT), or the '
        'normalized `"mean"` of the states (BEiT).',
        None,
        of="model",
        choices=POOLERS,
    )
    vector: Vector | None = option("the vector of the side.", None)
    initializer_range: float | None = option(
        "standard deviation of the initial weights. Defaults to Glorot uniform kernels, and "
        "embeddings with deviation `hidden_dim ** -0.5`.",
        None,
        of="side",
        positive=True,
        changeable=True,
    )

    def check(self):
        self._derive()
        self._check_widths()
        self._check_layers()
        self._check_on_grid()
        self._check_score_bias()
        self._check_layer_inputs()
        self._check_global_states()
        self._check_attention_positions()
        self._check_query_stream()
        if self.layers:  # not the config of one of several layers
            self.sources()
        for block in self.every_block:
            _refuse_functions(block)
        norms = {block.norm.type for block in self.every_block}
        if isinstance(self.input, Tokens) and "batch_norm" in norms:
            raise ValueError(
                "normalization='batch_norm' needs a `stem`: batch statistics would include the "
                "padding of texts, and later tokens."
            )
        pooling = None if self.vector is None else self.vector.pooling
        if getattr(self.input, "class_token", False) and isinstance(self.input, Tokens):
            further = (self.embedding_projection, self.layer_inputs, self.score_bias)
            if pooling != "last" or self.has_query_stream or any(further):
                raise ValueError(
                    "A `class_token` behind texts needs vector_pooling='last', and neither a "
                    "projection of the embeddings, `layer_inputs`, a position bias nor a "
                    f"`query_stream`, received {shorten(self)}."
                )
        if pooling in ("end", "last") and not isinstance(self.input, Tokens):
            raise ValueError(f"vector_pooling={pooling!r} is for texts, not for the image encoder.")

    def _derive(self):
        """Replace the values that follow from others."""

        def fitted(block: Block, before: int | None = None) -> Block:
            merging = block.merging
            width = self.hidden_dim if before is None else before
            if merging is not None:
                width = merging.hidden_dim
                if merging.input_dim is None and before is not None:
                    block = block.replace(merging=merging.replace(input_dim=before))
            mixer = block.mixer.for_side(width, self.max_sequence_length)
            return block if mixer is block.mixer else block.replace(mixer=mixer)

        width = self.hidden_dim if self.embedding_dim is None else self.embedding_dim
        projection = self.embedding_projection
        befores = [None] * len(self.layers)
        if self.merges:
            befores = [width, *(self.width(i) for i in range(len(self.layers) - 1))]
        projected = width != self.hidden_dim and not self.merges
        values = {
            "block": fitted(self.block),
            "layers": tuple(map(fitted, self.layers, befores)),
            "embedding_dim": width,
            "embedding_projection": projection or ("sum" if projected else None),
            "final_norm": (
                self.block.residual.is_first if self.final_norm is None else self.final_norm
            ),
            "num_layer_groups": (
                max(self.num_layers // self.layers_per_group, 1)
                if self.num_layer_groups is None
                else self.num_layer_groups
            ),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check_widths(self):
        self.input.check_width(self.embedding_dim)
        if self.position is not None:
            self.position.check_side(self.added_dim, "encoder")
        on_grid = self.attention is not None and isinstance(self.attention.position, GridRotary)
        if on_grid and not isinstance(self.input, PatchStemConfig):
            raise ValueError("A rotation over a grid needs a stem of patches.")
        detects = getattr(self.input, "num_detection_tokens", 0)
        if detects and (on_grid or self.pooler == "mean" or self.vector is not None):
            raise ValueError(
                "`num_detection_tokens` cannot be combined with a rotation over a grid, the mean "
                "of the states or a vector: these are for states of patches alone."
            )
        mid = getattr(self.input, "mid_positions", 0)
        if mid > self.num_layers or (mid and self.embedding_dim != self.hidden_dim):
            raise ValueError(
                f"`mid_positions` must be at most num_layers={self.num_layers}, and needs "
                f"`embedding_dim` equal to `hidden_dim`, received {mid}."
            )

    def _check_layers(self):
        if not self.num_layers and not self.input.is_whole:
            raise ValueError(
                "`num_layers` must be at least 1, except behind a stem that is a whole network, "
                f"such as one of the kind 'mobilenet_v5', received {self.input.kind!r}."
            )
        if len(self.layers) > self.num_layers:
            raise ValueError(
                f"`layer_pattern` has {len(self.layers):,} layers, the model only "
                f"{self.num_layers:,}. Leave out the surplus ones."
            )
        groups, each = self.num_layer_groups, self.layers_per_group
        if groups > max(self.num_layers, 1):
            raise ValueError(
                f"num_layer_groups={groups} is more than num_layers={self.num_layers}."
            )
        if not self.num_layers:
            return
        if self.num_layers % each or groups * each > self.num_layers:
            raise ValueError(
                f"num_layers={self.num_layers} cannot be num_layer_groups={groups} groups of "
                f"layers_per_group={each} shared blocks: it must be a multiple of {each}, and at "
                f"least {groups * each}."
            )
        if self.layers and groups * each != self.num_layers:
            raise ValueError("`layer_pattern` and `num_layer_groups` cannot be combined.")

    def _check_on_grid(self):
        """Raise ValueError if blocks need a grid of patches, or widths, that the side lacks."""
        stem = self.input
        others = getattr(stem, "num_tokens", 0) or getattr(stem, "num_detection_tokens", 0)
        alone = isinstance(stem, PatchStemConfig) and not others
        if self.of_videos:
            self._check_on_video(alone=isinstance(stem, TubeStemConfig) and not others)
        elif self.on_grid and (not alone or self.causal or self._positions_hinder()):
            raise ValueError(
                "`merging`, `sequence_reduction`, `MixFeedForward`, `bottleneck` and `GridWindows` "
                "of any grid need a stem of patches without other tokens, and no positions, except "
                "for `bottleneck`, which may have them: an encoder of the images' patches alone, "
                f"received {stem}."
            )
        if not self.merges or not self.layers:  # the config of one of several layers
            return
        if len(self.layers) != self.num_layers or self.embedding_projection is not None:
            raise ValueError(
                "With `merging`, `layers` are the blocks of all layers, and the states of the stem "
                f"have no projection, received {len(self.layers)} blocks for {self.num_layers} "
                "layers."
            )
        vector = None if self.vector is None else self.vector.pooling
        known = (None, "mean", "attention") if self.of_videos else (None, "mean")
        if self.pooler is not None or vector not in known:
            raise ValueError(
                "`merging` cannot be combined with a pooler or a vector, except for the "
                "vector_pooling 'mean', and of videos 'attention', received "
                f"{self.pooler!r} and {vector!r}."
            )
        before = self.embedding_dim
        for i, block in enumerate(self.layers):
            if block.merging is not None and (not i or block.merging.input_dim != before):
                raise ValueError(
                    f"`merging` of layer {i} reads states of width {block.merging.input_dim}, but "
                    f"those before it have {before}."
                    if i
                    else "The first layer has no `merging`: the stem makes its patches."
                )
            before = self.width(i)
        if before != self.hidden_dim:
            raise ValueError(
                f"`hidden_dim` is {self.hidden_dim}, but the last `merging` makes states of width "
                f"{before}."
            )

    def _positions_hinder(self) -> bool:
        """Return whether there are positions beside parts that go without them."""
        plain = self.position is None
        parts = (each for block in self.every_block for each in (block.mixer, block.feed_forward))
        return not plain and (self.merges or any(getattr(p, "on_grid", False) for p in parts))

    def _check_on_video(self, alone: bool):
        """Raise ValueError if blocks over the axes of videos lack videos, or read images."""
        of_grid = [block for block in self.every_block if block.on_grid]
        others = [block for block in of_grid if not _is_of_videos(block)]
        if not alone or self.causal or others:
            raise ValueError(
                "`VideoAxis` and `TimePositions` need a stem of tubes without a `class_token`, and "
                "no parts for the patches of images in any layer, received "
                f"{shorten(others[0] if others else self.input)}."
            )
        steps = self.input.tube_grid(self.input.video_size)[0]
        for block in of_grid:
            for part_ in (getattr(block.mixer, "pattern", None), block.merging):
                own = getattr(part_, "steps", 0)
                if own not in (0, steps):
                    raise ValueError(
                        f"`steps` must be those of the videos, {steps}, received {part_}."
                    )

    def _check_layer_inputs(self):
        width = None if self.layer_inputs is None else self.layer_inputs.dim
        for block in self.blocks:
            read = None if block.layer_input is None else block.layer_input.dim
            if read != width:
                raise ValueError(
                    "The blocks need a `layer_input` of the width of the side's `layer_inputs`, "
                    f"{width}, received {read}."
                )
        if len({block.altup for block in self.every_block}) > 1:
            raise ValueError("The blocks of a side share one `altup`, or have none.")
        if width is not None and (self.groups_share or not isinstance(self.input, Tokens)):
            raise ValueError("`layer_inputs` need `Tokens`, and layers that share no blocks.")

    def _check_global_states(self):
        if not self.global_states:
            return
        for block in self.every_block:
            mixer = block.mixer
            plain = isinstance(mixer, Attention) and isinstance(mixer.pattern, Chunks)
            plain = plain and mixer.pattern.global_tokens == self.global_states
            if not plain or mixer.position is not None or mixer.score_bias is not None:
                raise ValueError(
                    f"{self.global_states} `global_states` need attention with the pattern "
                    "`Chunks` with as many `global_tokens`, without rotations and position biases, "
                    f"in all layers, received {mixer}."
                )
        if not isinstance(self.input, Tokens):
            raise ValueError(f"`global_states` need `Tokens` as input, received {self.input}.")

    def _check_attention_positions(self):
        if not self.input.attention_positions:
            return
        mixers = [block.mixer for block in self.every_block]
        plain = (
            isinstance(mixer, Attention)
            and (mixer.position, mixer.score_bias, mixer.pattern) == (None, None, None)
            for mixer in mixers
        )
        if self.position is not None or not all(plain):
            raise ValueError(
                f"A stem of kind {self.input.kind!r} has positions that each attention adds to its "
                "queries and keys: it needs position='none', and attention to all states without "
                f"other positions, received {shorten(self.position)} and {shorten(mixers[0])}."
            )

    @property
    def groups_share(self) -> bool:
        """Whether layers share their blocks."""
        return self.num_layer_groups * self.layers_per_group != max(self.num_layers, 1)

    @property
    def has_query_stream(self) -> bool:
        """Whether the queries of the blocks are positions, see `Block.query_stream`."""
        return self.block.query_stream

    def _check_query_stream(self):
        if len({block.query_stream for block in self.every_block}) > 1:
            raise ValueError("The blocks of a side all have a `query_stream`, or none has.")
        if not self.has_query_stream:
            return
        learned = isinstance(self.position, Learned) and self.position == Learned()
        alone = not (self.embedding_norm or self.embedding_projection or self.global_states)
        if not (isinstance(self.input, Tokens) and learned and alone):
            raise ValueError(
                "`query_stream` needs `Tokens` with position=Learned() without offset, whose "
                "positions are the queries, and neither `embedding_norm`, a projection of the "
                "embeddings nor `global_states`."
            )

    def sources(self) -> tuple[int | None, ...]:
        """Return for each layer the earlier layer whose results its mixer takes, or None.

        Raises ValueError if no earlier layer has what it takes.
        """
        found: list[int | None] = []
        mixers = [block.mixer for block in self.blocks]
        for i, mixer in enumerate(mixers):
            if not mixer.takes_earlier:
                found.append(None)
                continue
            fitting = [j for j in range(i) if mixer.takes_from(mixers[j])]
            if not fitting:
                raise ValueError(
                    f"Layer {i} takes results of an earlier layer, but none before it has what its "
                    "mixer takes: keys and values of the same pattern, heads and width, or the "
                    f"values of a first GeneralizedDelta. Received {mixer}."
                )
            found.append(fitting[-1])
        if any(each is not None for each in found) and self.groups_share:
            raise ValueError("Layers that take results of earlier ones must share no blocks.")
        return tuple(found)

    def _check_score_bias(self):
        attentions = [b.mixer for b in self.every_block if isinstance(b.mixer, Attention)]
        biases = {mixer.score_bias for mixer in attentions}
        own = all(isinstance(bias, WindowBias) for bias in biases)  # of each layer
        if len(biases) > 1 and not own:
            raise ValueError(
                f"The blocks of a side share one position bias of the scores, received {biases}."
            )
        bias = self.score_bias
        heads = {mixer.num_heads for mixer in attentions}
        if isinstance(bias, (RelativeBias, ALiBi, GridBias)) and len(heads) > 1:
            raise ValueError(
                f"The layers have num_heads={sorted(heads)}, but the bias {bias} is shared by all "
                "layers."
            )
        groups = any(getattr(mixer.pattern, "group_size", None) for mixer in attentions)
        if isinstance(bias, RelativeBias) and bias.tables == "own" and groups:
            raise ValueError(
                "relative_tables='own' cannot be combined with `global_block_size`, whose groups "
                "have one table of their own."
            )
        sinusoids = isinstance(bias, RelativeSinusoids)
        compared = getattr(self.input, "segment_use", "added") == "compared"
        if compared and not (sinusoids and bias.compares_segments):
            raise ValueError(
                "segment_use='compared' needs the score bias `RelativeSinusoids` that "
                "`compares_segments`."
            )
        if sinusoids and self.hidden_dim % 2:
            raise ValueError(
                f"`RelativeSinusoids` need an even `hidden_dim`, received {self.hidden_dim}."
            )
        stem = self.input
        for part_ in (each for mixer in attentions for each in (mixer.pattern, mixer.score_bias)):
            if not isinstance(part_, (GridWindows, DecomposedBias)) or part_.grid is None:
                continue
            alone = isinstance(stem, PatchStemConfig) and not stem.num_tokens
            grid = stem.grid(stem.image_size) if alone else None
            if grid != part_.grid:
                found = "no such stem" if grid is None else f"a stem with {grid[0]} x {grid[1]}"
                raise ValueError(
                    f"{type(part_).__name__} of {part_.rows} x {part_.columns} patches needs a "
                    f"stem of as many patches, without other tokens, received {found}."
                )
        of_patches = (
            isinstance(stem, PatchStemConfig)
            and stem.num_tokens == 1
            and not stem.num_detection_tokens
        )
        if isinstance(bias, GridBias) and not of_patches:
            raise ValueError(
                "`grid_bias` needs a stem of patches with a class token and no other token."
            )

    def check_kind(self, kind: str) -> None:
        """Raise ValueError if a part does not fit a side of this kind, encoder or decoder."""
        encoder = kind == "encoder"
        if self.input.is_set and encoder:
            raise ValueError(
                f"A stem of kind {self.input.kind!r} is for the decoder of kind='seq2seq', which "
                "finds objects in the states of the encoder."
            )
        if not isinstance(self.input, Tokens) and not (encoder or self.input.is_set):
            raise ValueError(
                "`stem` needs an encoder with vocabulary_size=0, also as a side of kind='seq2seq' "
                f"or 'dual': `encoder={{'stem': ...}}`. Received kind={kind!r}."
            )
        if self.causal and (isinstance(self.input, Tokens) or not encoder):
            raise ValueError(f"`causal` is for an encoder with a `stem`, received kind={kind!r}.")
        if getattr(self.input, "dropped_id", None) is not None and not encoder:
            raise ValueError(
                "`dropped_token_id` needs kind='encoder', which reads whole texts, received "
                f"kind={kind!r}."
            )
        if self.position is not None:
            self.position.check_side(self.added_dim, "encoder" if self.bidirectional else kind)
        projection = {"encoder": "sum", "decoder": "tokens"}
        if self.embedding_projection not in (None, projection[kind]):
            names = {"sum": "`embedding_dim` and `embedding_projection` need kind='encoder'"}
            name = names.get(self.embedding_projection, "`token_projection` needs kind='decoder'")
            raise ValueError(f"{name}, received kind={kind!r}.")
        if self.pooler is not None and not encoder:
            name = {"tanh": "`pooler`", "mean": "`mean_pooler`"}[self.pooler]
            raise ValueError(f"{name} needs kind='encoder', received kind={kind!r}.")
        if self.layer_inputs is not None and encoder:
            raise ValueError(f"`layer_inputs` need kind='decoder', received kind={kind!r}.")
        if self.global_states and not encoder:
            raise ValueError(f"`global_states` need kind='encoder', received kind={kind!r}.")
        if self.has_query_stream and encoder:
            raise ValueError(f"`query_stream` needs kind='decoder', received kind={kind!r}.")
        if self.altup is not None and encoder:
            raise ValueError(f"`altup` needs kind='decoder', received kind={kind!r}.")
        if self.on_grid and not encoder:
            raise ValueError(f"Blocks on a grid of patches need kind='encoder', received {kind!r}.")
        for block in self.every_block:
            if not getattr(block.mixer, "has_keys", True) and encoder:
                raise ValueError(f"key_source='earlier' needs kind='decoder', received {kind!r}.")
            if block.convolution is not None and not encoder:
                raise ValueError(
                    f"`convolution_size` needs kind='encoder', received kind={kind!r}."
                )
            if isinstance(self.score_bias, Disentangled) and not encoder:
                raise ValueError(f"`disentangled` needs kind='encoder', received kind={kind!r}.")
            if isinstance(self.score_bias, RelativeSinusoids) and not encoder:
                raise ValueError(f"`RelativeSinusoids` need kind='encoder', received {kind!r}.")
            if isinstance(self.score_bias, RelativeKeys) and not encoder:
                raise ValueError(f"`RelativeKeys` need kind='encoder', received kind={kind!r}.")
            if block.conformer is not None and (self.causal or not encoder):
                raise ValueError(
                    "`conformer` needs kind='encoder' without `causal`, received "
                    f"kind={kind!r}, causal={self.causal}."
                )
            if block.mixer.bidirectional and (self.causal or not encoder):
                raise ValueError(
                    f"A mixer of kind {block.mixer.kind!r} reads whole texts, so it needs an "
                    f"encoder that is not `causal`, received kind={kind!r}."
                )
            pattern = getattr(block.mixer, "pattern", None)
            axes = getattr(getattr(block.mixer, "position", None), "position_axes", None)
            if pattern is not None and axes is not None and not encoder:
                raise ValueError(
                    f"{pattern} counts the tokens of a decoder, which have one position each: it "
                    "cannot be combined with `position_axes`."
                )
            if pattern is not None and pattern.bidirectional and (self.causal or not encoder):
                raise ValueError(
                    f"{pattern} needs an encoder, in which tokens also see later tokens, received "
                    f"kind={kind!r}, causal={self.causal}."
                )

    def to_dict(self):
        """Return the values like `Part.to_dict`, each layer as its difference from `block`."""
        values = super().to_dict()
        if self.layers:
            values["layers"] = [layer.difference(self.block) for layer in self.layers]
        return values

    @classmethod
    def from_dict(cls, values):
        """Return the side that a dict made by `to_dict` describes."""
        if isinstance(values, Mapping) and values.get("layers"):
            block, layers = values.get("block"), values["layers"]
            if isinstance(layers, (list, tuple)) and len(layers) > MOST_LAYERS:
                raise ValueError(
                    f"`layers` must be at most {MOST_LAYERS:,}, received {len(layers):,}."
                )
            if isinstance(block, Mapping) and isinstance(layers, (list, tuple)):
                values = {**values, "layers": [merged(block, layer) for layer in layers]}
        return super().from_dict(values)

    @property
    def every_block(self) -> tuple[Block, ...]:
        """`block`, and the blocks of layers that differ from it."""
        return (self.block, *self.layers)

    def layer(self, i: int) -> Block:
        """Return the block of layer `i`."""
        return self.layers[i % len(self.layers)] if self.layers else self.block

    @functools.cached_property
    def merges(self) -> bool:
        """Whether patches are merged between layers: the model has stages."""
        return any(block.merging is not None for block in self.every_block)

    @functools.cached_property
    def on_grid(self) -> bool:
        """Whether blocks need the grid that the states form."""
        return any(block.on_grid for block in self.every_block)

    @functools.cached_property
    def of_videos(self) -> bool:
        """Whether blocks need the axes of a video: steps in time, rows and columns."""
        return any(map(_is_of_videos, self.every_block))

    def width(self, i: int) -> int:
        """Return the width of the states in the stage of layer `i`."""
        if not self.merges:
            return self.hidden_dim
        merged = (self.layers[j].merging for j in range(min(i, len(self.layers) - 1), -1, -1))
        first = self.hidden_dim if self.embedding_dim is None else self.embedding_dim
        return next((each.hidden_dim for each in merged if each is not None), first)

    def grids(self, image_size: tuple[int, int] | None = None) -> tuple[tuple[int, int], ...]:
        """Return the rows and columns of each layer's states of an image.

        Empty if no layer needs them.

        Args:
            image_size: ints, height and width. Defaults to the sizes of the stem.
        """
        if not self.on_grid or self.of_videos:
            return ()
        found, grid = [], self.input.grid(image_size or self.input.image_size)
        for block in self.blocks:
            grid = grid if block.merging is None else block.merging.grid(grid)
            found.append(grid)
        return tuple(found)

    @property
    def stage_ends(self) -> tuple[int, ...]:
        """Numbers of layers up to the end of each stage."""
        starts = [i for i, block in enumerate(self.blocks) if block.merging is not None]
        return (*starts, self.num_layers)

    @property
    def stage_widths(self) -> tuple[int, ...]:
        """Widths of the states of each stage."""
        return tuple(self.width(end - 1) for end in self.stage_ends)

    @property
    def blocks(self) -> Iterator[Block]:
        """The blocks of all layers."""
        return map(self.layer, range(self.num_layers))

    @property
    def attention(self) -> Attention | None:
        """Attention of the first block that has one."""
        mixers = (mixer for block in self.every_block for mixer in block.mixer.every_mixer)
        return next((mixer for mixer in mixers if isinstance(mixer, Attention)), None)

    @property
    def altup(self) -> AltUp | None:
        """Copies of the states in all blocks."""
        return self.block.altup

    @property
    def num_heads(self) -> int:
        """Number of query heads of the attention."""
        return self.attention.num_heads

    @property
    def score_bias(self) -> ScoreBias | None:
        """The position bias that the blocks share."""
        return None if self.attention is None else self.attention.score_bias

    @property
    def added_dim(self) -> int:
        """Width of the positions and segments that are added to the states."""
        tokens = self.embedding_projection == "tokens"
        return self.hidden_dim if tokens else self.embedding_dim

    @property
    def num_positions(self) -> int:
        """Number of positions, the size of a table of learned positions."""
        positions = self.input.num_positions
        return self.max_sequence_length if positions is None else positions

    @property
    def vector_dim(self) -> int:
        """Width of the side's vector."""
        return (self.vector and self.vector.dim) or self.hidden_dim


def _is_of_videos(block: Block) -> bool:
    """Return whether a block needs the axes of a video."""
    pattern = getattr(block.mixer, "pattern", None)
    return isinstance(pattern, VideoAxis) or isinstance(block.merging, TimePositions)


def _refuse_functions(block: Block) -> None:
    """Raise ValueError if a part of a block holds a function, which JSON cannot store."""
    for each in (*block.mixer.every_mixer, block.feed_forward, block.convolution):
        for name in ("activation", "score"):
            value = getattr(each, name, "")
            if not isinstance(value, str):
                raise ValueError(
                    f"`{name}` must be of type str, received {value!r}. Functions are for the "
                    "layers, see `models.DecoderBase`."
                )
