"""Config of the ResNet that makes the states of an image."""

from keras_transformer.config.network import NetworkConvolution, NetworkStemConfig, halved
from keras_transformer.config.options import option, part

__all__ = ["ResNetStemConfig"]

# A bottleneck is narrower than its output by this factor.
NARROWING = 4
VARIANTS = ("b", "d")
BLOCKS = ("bottleneck", "basic")


@part
class ResNetStemConfig(NetworkStemConfig, kind="resnet"):
    """`layers.stems.ResNetStem`: a ResNet with frozen batch norms (DETR, RT-DETR)."""

    filters: int = option("features of the first convolution.", 64, least=1, most=2**15)
    block: str = option(
        'the convolutions of a block: a `"bottleneck"` of three, whose `widths` are multiples of '
        '4, or `"basic"`, two of 3 x 3 (ResNet-18 and ResNet-34).',
        "bottleneck",
        choices=BLOCKS,
    )
    variant: str = option(
        'how the network becomes narrower: `"b"`, a first convolution of 7 x 7, and shortcuts with '
        'a stride; or `"d"`, three of 3 x 3, and shortcuts behind an average pooling (RT-DETR).',
        "b",
        choices=VARIANTS,
    )

    def check(self):
        super().check()
        self.check_stages(widths=NARROWING if self.block == "bottleneck" else 1, depths=1)
        if self.variant == "d" and self.filters % 2:
            raise ValueError(
                f"`filters` of the stem must be even for variant='d', received {self.filters}."
            )

    def convolutions_of_block(
        self, stage: int, block: int, grid: tuple[int, int]
    ) -> tuple[NetworkConvolution, ...]:
        """Return the convolutions of a block, and its shortcut's if it has one as the last.

        Args:
            stage: int, number of the stage.
            block: int, number of the block in the stage.
            grid: ints, rows and columns of the input of the block.
        """
        name, width = f"input_stage_{stage}_block_{block}", self.widths[stage]
        before = width if block else (self.filters, *self.widths)[stage]
        step = 2 if stage and not block else 1
        after = halved(grid) if step == 2 else grid
        sizes = [(3, before, width, step, after), (3, width, width, 1, after)]
        if self.block == "bottleneck":
            inner = width // NARROWING
            sizes = [
                (1, before, inner, 1, grid),
                (3, inner, inner, step, after),
                (1, inner, width, 1, after),
            ]
        found = [
            NetworkConvolution(f"{name}_convolution_{i}", *each) for i, each in enumerate(sizes)
        ]
        first = self.variant == "d" and self.block == "basic" and not block
        if before != width or step != 1 or first:
            own = 1 if self.variant == "d" else step  # behind a pooling
            found.append(NetworkConvolution(f"{name}_shortcut", 1, before, width, own, after))
        return tuple(found)

    @property
    def first_convolutions(self) -> tuple[NetworkConvolution, ...]:
        """The convolutions before the first stage."""
        grid, channels, name = halved(self.image_size), self.num_channels, "input_convolution"
        if self.variant == "b":
            return (NetworkConvolution(name, 7, channels, self.filters, 2, grid),)
        half = self.filters // 2
        return (
            NetworkConvolution(name, 3, channels, half, 2, grid),
            NetworkConvolution(f"{name}_1", 3, half, half, 1, grid),
            NetworkConvolution(f"{name}_2", 3, half, self.filters, 1, grid),
        )

    @property
    def convolutions(self) -> tuple[NetworkConvolution, ...]:
        """All convolutions but the projection to the states, block by block."""
        found = list(self.first_convolutions)
        grid = halved(found[-1].grid)
        for stage, depth in enumerate(self.depths):
            for block in range(depth):
                found += self.convolutions_of_block(stage, block, grid)
                grid = found[-1].grid
        return tuple(found)
