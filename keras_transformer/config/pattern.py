"""Attention patterns: which tokens see which, beyond causality and padding."""

from keras_transformer.config.options import Part, option, part
from keras_transformer.config.weight import Weight, dense_of, weight_of

__all__ = ["Blocks", "Chunks", "GridWindows", "Pattern", "VideoAxis", "Window"]


@part
class Pattern(Part):
    """Base class of attention patterns."""

    bidirectional = False  # whether the pattern needs tokens that see later ones

    @property
    def receptive_field(self) -> int | None:
        """Number of tokens, including itself, that a decoder token sees; None if not limited."""
        return None

    @property
    def takes_global_positions(self) -> bool:
        """Whether a caller may name tokens that see all others and are seen by all."""
        return False

    def weights(self, name: str, bias: bool, key_bias: bool) -> tuple[Weight, ...]:
        """Return the weights that the pattern adds to its attention."""
        return ()


@part
class Window(Pattern, kind="window"):
    """A window of neighbouring tokens, with global tokens (Longformer, Beltagy et al. 2020)."""

    layer = "keras_transformer.layers.attention.sparse:WindowPattern"

    size: int = option("attend to at most this many neighbouring tokens.", least=1)
    behind: int | None = option(
        "number of neighbouring tokens behind a token that it sees, in an encoder. Defaults to "
        "`size - 1`, as many as before it.",
        None,
        least=0,
    )
    dilation: int = option(
        "distance between the tokens of a window; their number stays the same.", 1, least=1
    )
    global_tokens: int = option(
        "number of first tokens that see all others and are seen by all, whatever the window.",
        0,
        least=0,
    )
    global_projection: bool = option(
        "global tokens have queries, keys and values of their own (Longformer).", False
    )
    group_size: int | None = option(
        "in addition to the window, attend to the normalized sum of each block of this many "
        "tokens (LongT5). With a relative bias these have a bias of their own.",
        None,
        least=1,
    )

    def check(self):
        if self.behind is not None and (self.dilation > 1 or self.group_size is not None):
            raise ValueError(
                f"`behind` cannot be combined with `dilation` or `group_size`, received {self}."
            )

    @property
    def bidirectional(self):
        own = (self.behind, self.group_size)
        return self.global_projection or any(each is not None for each in own)

    @property
    def receptive_field(self):
        return None if self.global_tokens else (self.size - 1) * self.dilation + 1

    @property
    def takes_global_positions(self):
        return True

    def weights(self, name, bias, key_bias):
        weights: tuple[Weight, ...] = ()
        if self.global_projection:
            for part_, outputs in (
                ("query", "query_heads"),
                ("key", "key_heads"),
                ("value", "key_heads"),
            ):
                weights += dense_of(f"{name}/{part_}_global", "hidden_dim", outputs, bias)
        if self.group_size is not None:
            weights += weight_of(f"{name}/group_norm/scale", "hidden_dim")
        return weights


@part
class Blocks(Pattern, kind="blocks"):
    """Neighbouring, first, last and random blocks (BigBird, Zaheer et al. 2020, section 2)."""

    layer = "keras_transformer.layers.attention.sparse:BlocksPattern"

    size: int = option(
        "attend to the token's own block of this many tokens, to its neighbours, and to the first "
        "and last blocks, which attend to all (BigBird). For encoders.",
        least=1,
    )
    random: int = option("number of additional random blocks to attend to.", 0, least=0)

    bidirectional = True

    @property
    def full_length(self) -> int:
        """Length of the longest sequence in which all tokens see all."""
        return (5 + 2 * self.random) * self.size


@part
class Chunks(Pattern, kind="chunks"):
    """Chunks of the sequence, within which tokens see each other (Llama 4's local attention).

    With `global_tokens`: Phang et al. 2022, "Investigating Efficiently Extending Transformers for
    Long Input Summarization", section 3.2 (Pegasus-X).
    """

    layer = "keras_transformer.layers.attention.sparse:ChunksPattern"

    size: int = option("number of tokens of a chunk; the first begins at position 0.", least=1)
    shift: int = option(
        "number of tokens by which the first chunk is shorter than the others.", 0, least=0
    )
    global_tokens: int = option(
        "number of first tokens that see all others and are seen by all. The first chunk begins "
        "behind them. For encoders.",
        0,
        least=0,
    )

    def check(self):
        if self.shift >= self.size:
            raise ValueError(f"`shift` must be less than size={self.size}, received {self.shift}.")

    @property
    def bidirectional(self):
        return self.global_tokens > 0

    @property
    def receptive_field(self):
        return None if self.global_tokens else self.size


@part
class GridWindows(Pattern, kind="grid_windows"):
    """Square windows of an image's grid of patches, within which patches see each other (ViTDet).

    A grid whose sides are no multiples of `size` is padded with zeros below and on the right. The
    keys and values of this padding, which are the biases of their projections, are attended to.

    With a `shift`, windows that go beyond the lower or the right edge continue at the opposite
    edge, without seeing across it (Swin). Where the smaller side of a grid is at most `size`,
    windows are not shifted, unless `always_shifted` says so.

    Source: Li et al. 2022, "Exploring Plain Vision Transformer Backbones for Object Detection",
    section 3; shifted windows: Liu et al. 2021, "Swin Transformer", section 3.2,
    https://arxiv.org/abs/2103.14030.
    """

    layer = "keras_transformer.layers.attention.grid_windows:GridWindowsPattern"
    bidirectional = True

    size: int = option("rows and columns of a window.", least=1, most=2**10)
    shift: int = option(
        "rows and columns by which the windows are moved down and to the right.", 0, least=0
    )
    always_shifted: bool = option(
        "windows are shifted on every grid, even a smaller one than a window (Swin V2).", False
    )
    rows: int | None = option(
        "rows of the grid. Defaults to the rows of the image in each call.",
        None,
        least=1,
        most=2**15,
    )
    columns: int | None = option(
        "columns of the grid. Defaults to the columns of the image in each call.",
        None,
        least=1,
        most=2**15,
    )

    def check(self):
        if self.shift >= self.size:
            raise ValueError(f"`shift` must be less than size={self.size}, received {self.shift}.")
        if (self.rows is None) != (self.columns is None):
            raise ValueError(f"Give `rows` and `columns`, or neither, received {self}.")

    @property
    def grid(self) -> tuple[int, int] | None:
        """Rows and columns of the grid; None if each call gives its own."""
        if self.rows is None or self.columns is None:
            return None
        return self.rows, self.columns

    def shift_of(self, grid: tuple[int, int]) -> int:
        """Return the rows and columns by which the windows of a grid are moved."""
        small = min(grid) <= self.size and not self.always_shifted
        return 0 if small else self.shift


@part
class VideoAxis(Pattern, kind="video_axis"):
    """Attention in space or in time alone: one axis of a video (ViViT's factorised encoder).

    Source: Arnab et al. 2021, "ViViT: A Video Vision Transformer", section 3.3, model 2,
    https://arxiv.org/abs/2103.15691; in turns in each block: Bertasius et al. 2021, "Is Space-Time
    Attention All You Need for Video Understanding?", section 3.3.
    """

    layer = "keras_transformer.layers.attention.video_axes:VideoAxisPattern"
    bidirectional = True

    over: str = option(
        'what sees each other: in `"space"` the tubes of the same frames, in `"time"` those of the '
        "same place in all frames.",
        choices=("space", "time"),
    )
    steps: int = option(
        "steps in time of the usual video, for plans. In a call they are those of its videos.",
        least=1,
        most=2**15,
    )

    def num_seen(self, states: int) -> int:
        """Return the number of states that one of `states` sees, in the usual video."""
        return self.steps if self.over == "time" else states // self.steps
