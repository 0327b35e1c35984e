"""Position biases of the attention scores. The blocks of a side share one."""

from typing import ClassVar

from keras_transformer.config.options import Part, option, part
from keras_transformer.config.weight import Weight, dense_of, grid_distances, norm_of, weight_of

__all__ = [
    "ALiBi", "ContinuousWindowBias", "DecomposedBias", "Disentangled", "GatedRelativeBias",
    "GridBias", "RelativeBias", "RelativeKeys", "RelativeSinusoids", "ScoreBias", "WindowBias",
]  # fmt: skip


@part
class ScoreBias(Part):
    """Base class of position biases that are added to the scores of attention.

    The layer has a class method `from_part(part, side, causal, **options)`, and is called with the
    positions of queries and keys, see `layers.ALiBi`.

    Attributes:
        slot: name of the layer in a `models.stack.Stack`.
        in_stack: whether a `Stack` has a layer of it, which its blocks share.
    """

    slot: ClassVar[str] = "position_bias"
    in_stack: ClassVar[bool] = True

    def weights(self, norm: str) -> tuple[Weight, ...]:
        """Return the weights that the blocks of a side share; `norm` is the kind of its norms."""
        return ()

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the weight axes that the side does not define, by name."""
        return {}


@part
class RelativeBias(ScoreBias, kind="relative"):
    """A trained bias for each head and bucket of distances (T5, Raffel et al. 2019)."""

    layer = "keras_transformer.layers.attention.score_bias:RelativePositionBias"

    num_buckets: int = option("number of buckets of relative distances.", 32, of="side", least=1)
    max_distance: int = option(
        "distance from which the last bucket is used.", 128, of="side", least=1
    )
    tables: str = option(
        'a table of the biases for each layer, `"own"` (UMT5), or one `"shared"` by all.',
        "shared",
        of="side",
        choices=("own", "shared"),
    )

    def check(self):
        if not 2 <= self.num_buckets // 2 < self.max_distance:
            raise ValueError(
                "position='relative' needs 4 or more `relative_num_buckets` and a "
                "`relative_max_distance` above half their number, received "
                f"{self.num_buckets} and {self.max_distance}."
            )

    def weights(self, norm):
        layers = ("num_layers",) if self.tables == "own" else ()
        return weight_of("relative_bias/embeddings", *layers, "num_buckets", "num_heads")

    @property
    def sizes(self):
        return {"num_buckets": self.num_buckets}


@part
class GatedRelativeBias(RelativeBias, kind="gated_relative"):
    """A relative bias that each head multiplies by a gate of the query's states (WavLM).

    The gate is `a (b s - 1) + 2`, where `a` and `b` are sigmoids of a projection of the features
    that the head has in the states, and `s` is a trained number of the head.
    """

    def check(self):
        super().check()
        if self.tables == "own":
            raise ValueError("A gated relative bias has one table for all layers: leave `tables`.")


@part
class Disentangled(ScoreBias, kind="disentangled"):
    """Scores between contents and relative positions (DeBERTa, He et al. 2020, section 3.1)."""

    layer = "keras_transformer.layers.attention.disentangled:RelativeEmbedding"
    slot = "relative_embedding"

    projections: str = option(
        'the states of positions are projected by the `"shared"` projections of queries and keys, '
        'or by their `"own"`.',
        "shared",
        of="model",
        choices=("shared", "own"),
    )
    num_buckets: int = option("number of buckets of relative distances.", 32, of="side", least=1)
    max_distance: int = option(
        "distance from which the last bucket is used.", 128, of="side", least=1
    )

    def check(self):
        if not 2 <= self.num_buckets // 2 <= self.max_distance:
            raise ValueError(
                "`disentangled` needs 4 or more `relative_num_buckets` and a "
                "`relative_max_distance` of at least half their number, received "
                f"{self.num_buckets} and {self.max_distance}."
            )

    def weights(self, norm):
        table = weight_of("relative_embedding/embeddings", "num_buckets", "hidden_dim")
        return table + norm_of("relative_embedding/norm", norm)

    @property
    def sizes(self):
        return {"num_buckets": self.num_buckets}


@part
class RelativeSinusoids(ScoreBias, kind="relative_sinusoids"):
    """Scores of contents with sinusoids of distances (Transformer-XL, Dai et al. 2019).

    If the side's `Tokens` are of segments that are `"compared"`, a score says also whether two
    tokens are of the same segment (XLNet, Yang et al. 2019).
    """

    layer = "keras_transformer.layers.attention.relative_sinusoids:SinusoidStates"
    slot = "relative_embedding"

    max_distance: int | None = option(
        "greater distances count as this one. None for no limit.", None, least=1
    )
    interleaved: bool = option(
        "the sine and the cosine of a wave are neighbours (Parakeet), rather than all sines before "
        "all cosines.",
        False,
    )
    compares_segments: bool = option(
        "each attention layer has vectors by which segments are compared (XLNet).", True
    )

    def of_mixer(self, name: str) -> tuple[Weight, ...]:
        """Return the weights of each attention layer, whose path is `name`."""
        found = dense_of(f"{name}/relative/position_key", "hidden_dim", "query_heads", bias=False)
        for each in ("content_bias", "position_bias", *["segment_bias"] * self.compares_segments):
            found += weight_of(f"{name}/relative/{each}", "each_head", "head_dim")
        if self.compares_segments:
            found += weight_of(f"{name}/relative/segments", "both", "each_head", "head_dim")
        return found


@part
class RelativeKeys(ScoreBias, kind="relative_keys"):
    """Products of queries with a trained vector of the distance to each key (Shaw et al. 2018).

    Each attention layer has its own vectors, which all its heads share. For encoders.

    Source: Shaw et al. 2018, "Self-Attention with Relative Position Representations", section 3.2,
    https://arxiv.org/abs/1803.02155.
    """

    layer = "keras_transformer.layers.attention.relative_keys:DistanceScores"
    in_stack = False

    before: int = option(
        "keys further before the query count as this distance.", 64, least=0, most=2**15
    )
    behind: int = option(
        "keys further behind the query count as this distance.", 8, least=0, most=2**15
    )

    @property
    def number(self) -> int:
        """Number of distances that have a vector."""
        return self.before + self.behind + 1

    def of_mixer(self, name: str) -> tuple[Weight, ...]:
        """Return the weights of each attention layer, whose path is `name`."""
        return weight_of(f"{name}/relative/distances", "key_distances", "head_dim")


@part
class ALiBi(ScoreBias, kind="alibi"):
    """A fixed penalty for each head, linear in the distance (Press et al. 2021)."""

    layer = "keras_transformer.layers.attention.score_bias:ALiBi"

    scale: float = option("factor of the bias.", 1.0, of="side", positive=True)
    rounded: bool = option(
        "compute the bias in bfloat16, from the position of the key (Falcon-RW).", False, of="side"
    )


@part
class GridBias(ScoreBias, kind="grid"):
    """A trained bias for each distance on the grid of a stem of patches (BEiT)."""

    layer = "keras_transformer.layers.attention.grid:GridBias"
    slot = "grid_bias"

    tables: str = option(
        'a table of the biases for each layer, `"own"`, or one `"shared"` by all.',
        "own",
        of="side",
        choices=("own", "shared"),
    )

    def weights(self, norm):
        layers = ("num_layers",) if self.tables == "own" else ()
        return weight_of("grid_bias/embeddings", *layers, "grid_distances", "num_heads")

    def sizes_of(self, grid: tuple[int, int]) -> dict[str, int]:
        """Return the sizes of axes for the grid of a stem."""
        return {"grid_distances": grid_distances(grid)}


@part
class DecomposedBias(ScoreBias, kind="decomposed"):
    """Products of queries with distances in rows, and in columns, of a grid of patches (MViTv2).

    Each attention layer has a trained vector for each distance in rows, and one for each distance
    in columns; all its heads share them. Within `GridWindows` the distances are those of a window.

    Source: Li et al. 2021, "MViTv2: Improved Multiscale Vision Transformers for Classification and
    Detection", section 4.1.
    """

    layer = "keras_transformer.layers.attention.grid_windows:DecomposedScores"
    in_stack = False

    rows: int = option("rows of the grid.", of="side", least=1, most=2**15)
    columns: int = option("columns of the grid.", of="side", least=1, most=2**15)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the grid."""
        return self.rows, self.columns

    def of_mixer(self, name: str) -> tuple[Weight, ...]:
        """Return the weights of each attention layer, whose path is `name`."""
        rows = weight_of(f"{name}/relative/rows", "row_distances", "head_dim")
        return rows + weight_of(f"{name}/relative/columns", "column_distances", "head_dim")


@part
class WindowBias(ScoreBias, kind="window"):
    """A trained bias for each head and each distance in rows and columns in `GridWindows` (Swin).

    Each attention layer has its own table, whatever its number of heads.

    Source: Liu et al. 2021, "Swin Transformer", section 3.2, https://arxiv.org/abs/2103.14030.
    """

    layer = "keras_transformer.layers.attention.grid_windows:WindowBias"
    in_stack = False

    def of_mixer(self, name: str) -> tuple[Weight, ...]:
        """Return the weights of each attention layer, whose path is `name`."""
        return weight_of(f"{name}/relative/embeddings", "window_distances", "num_heads")


@part
class ContinuousWindowBias(WindowBias, kind="continuous_window"):
    """A bias for each head and distance in `GridWindows`, computed by a small network (Swin V2).

    The network reads the logarithms of the distance in rows and in columns, so windows of another
    size than in training have biases too. It has one hidden layer with ReLU, and `16 * sigmoid` of
    its outputs are the biases.

    Source: Liu et al. 2021, "Swin Transformer V2", section 3.3, https://arxiv.org/abs/2111.09883.
    """

    layer = "keras_transformer.layers.attention.grid_windows:ContinuousWindowBias"

    inner_dim: int = option("width of the hidden layer.", 512, least=1, most=2**16)
    trained_size: int | None = option(
        "rows and columns of the windows that the network was first trained for, whose distances "
        "it reads as -1 to 1 before the logarithm. Defaults to those of the windows themselves.",
        None,
        least=2,
        most=2**10,
    )

    def of_mixer(self, name: str) -> tuple[Weight, ...]:
        """Return the weights of each attention layer, whose path is `name`."""
        hidden = dense_of(f"{name}/relative/hidden", "both", "bias_dim")
        return hidden + dense_of(f"{name}/relative/output", "bias_dim", "num_heads", bias=False)
