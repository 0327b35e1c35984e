"""Config of the HGNet that makes the states of an image."""

from keras_transformer.config.network import NetworkConvolution, NetworkStemConfig, halved
from keras_transformer.config.options import option, part
from keras_transformer.support.checking import shorten

__all__ = ["HGNetStemConfig"]

# More convolutions of a network than any published one has.
_MOST_CONVOLUTIONS = 2**12


@part
class HGNetStemConfig(NetworkStemConfig, kind="hgnet"):
    """`layers.stems.HGNetStem`: an HGNetV2 with frozen batch norms (D-FINE).

    Each block joins its input and the outputs of all of its convolutions.
    """

    filters: tuple | list = option(
        "features of the first convolution, an even number, and of the last one before the stages.",
        (32, 48),
    )
    widths: tuple | list = option(
        "features of the output of each stage, even numbers.", (128, 512, 1024, 2048)
    )
    inner_widths: tuple | list = option(
        "features of the convolutions in the blocks of each stage.", (48, 96, 192, 384)
    )
    depths: tuple | list = option("number of blocks of each stage.", (1, 1, 3, 1))
    block_layers: tuple | list = option(
        "number of convolutions that each block of a stage joins.", (6, 6, 6, 6)
    )
    kernel_sizes: tuple | list = option(
        "height and width of their kernels in each stage, odd numbers.", (3, 3, 5, 5)
    )
    light: tuple | list = option(
        "whether each of them is one of a place alone, and one of each feature by itself, in each "
        "stage.",
        (False, False, True, True),
    )
    affine: bool = option(
        "the output of each activation is multiplied by a trained number, and one is added "
        "(learnable affine blocks).",
        False,
    )

    def check(self):
        super().check()
        self.check_stages(widths=2, inner_widths=1, depths=1, block_layers=1, kernel_sizes=1)
        lists = ("inner_widths", "block_layers", "kernel_sizes", "light")
        for name in lists:
            if len(getattr(self, name)) != len(self.widths):
                raise ValueError(
                    f"`{name}` of the stem must have a value for each of {len(self.widths)} "
                    f"stages, received {shorten(getattr(self, name))}."
                )
        if not all(size % 2 and size < 2**5 for size in self.kernel_sizes):
            raise ValueError(
                "`kernel_sizes` of the stem must be odd numbers below 32, received "
                f"{shorten(self.kernel_sizes)}."
            )
        if not all(type(each) is bool for each in self.light):
            raise ValueError(
                f"`light` of the stem must be True or False for each stage, received "
                f"{shorten(self.light)}."
            )
        fits = all(type(n) is int and 1 <= n <= 2**15 for n in self.filters)
        if not fits or len(self.filters) != 2 or self.filters[0] % 2:
            raise ValueError(
                "`filters` of the stem must be two integers from 1 to 32,768, an even one first, "
                f"received {shorten(self.filters)}."
            )
        stages = zip(self.depths, self.block_layers, strict=True)
        if sum(depth * layers for depth, layers in stages) > _MOST_CONVOLUTIONS:
            raise ValueError(
                f"`depths` and `block_layers` of the stem make more than {_MOST_CONVOLUTIONS:,} "
                f"convolutions: {shorten(self.depths)} and {shorten(self.block_layers)}."
            )

    @property
    def first_convolutions(self) -> tuple[NetworkConvolution, ...]:
        """The convolutions before the first stage."""
        first, last = self.filters
        large = halved(self.image_size)
        small = halved(large)
        sizes = (
            (3, self.num_channels, first, 2, large),
            (2, first, first // 2, 1, large),
            (2, first // 2, first, 1, large),
            (3, 2 * first, first, 2, small),
            (1, first, last, 1, small),
        )
        return tuple(
            NetworkConvolution(f"input_convolution_{i}", *each, affine=self.affine)
            for i, each in enumerate(sizes, 1)
        )

    def narrowing(self, stage: int, grid: tuple[int, int]) -> NetworkConvolution:
        """Return the convolution that halves the map before a stage; `grid` is its output's."""
        width = self.widths[stage - 1]
        return NetworkConvolution(
            f"input_stage_{stage}_narrowing", 3, width, width, 2, grid, groups=width
        )

    def layers_of_block(
        self, stage: int, block: int, grid: tuple[int, int]
    ) -> tuple[tuple[NetworkConvolution, ...], ...]:
        """Return the convolutions of each layer of a block, then the two that join their outputs.

        Args:
            stage: int, number of the stage.
            block: int, number of the block in the stage.
            grid: ints, rows and columns of the stage.
        """
        name = f"input_stage_{stage}_block_{block}"
        inner, width = self.inner_widths[stage], self.widths[stage]
        before = width if block else (self.filters[1], *self.widths)[stage]
        size, count = self.kernel_sizes[stage], self.block_layers[stage]
        found: list[tuple[NetworkConvolution, ...]] = []
        for i in range(count):
            inputs, own = inner if i else before, f"{name}_convolution_{i}"
            options = {"affine": self.affine}
            if self.light[stage]:
                narrow = NetworkConvolution(f"{own}_place", 1, inputs, inner, 1, grid)
                wide = NetworkConvolution(own, size, inner, inner, 1, grid, inner, **options)
                found.append((narrow, wide))
            else:
                found.append((NetworkConvolution(own, size, inputs, inner, 1, grid, **options),))
        total = before + count * inner
        squeeze = (1, total, width // 2, 1, grid)
        excite = (1, width // 2, width, 1, grid)
        joins = (("squeeze", squeeze), ("excitation", excite))
        found.append(
            tuple(
                NetworkConvolution(f"{name}_{each}", *sizes, affine=self.affine)
                for each, sizes in joins
            )
        )
        return tuple(found)

    @property
    def convolutions(self):
        found = list(self.first_convolutions)
        grid = found[-1].grid
        for stage, depth in enumerate(self.depths):
            if stage:
                grid = halved(grid)
                found.append(self.narrowing(stage, grid))
            for block in range(depth):
                for layer in self.layers_of_block(stage, block, grid):
                    found += layer
        return tuple(found)
