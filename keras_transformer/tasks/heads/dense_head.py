"""Heads that predict a map: numbers for each pixel of an image, from states of several blocks."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_transformer.checkpoints.heads import LABELS
from keras_transformer.config import TransformerConfig
from keras_transformer.config.fusion import Fusion, batch_norm, convolution
from keras_transformer.config.stage_fusion import StageFusion
from keras_transformer.layers.fusion import FusionDecoder, batch_norm_layer, conv, interpolate
from keras_transformer.layers.stage_fusion import StageFusionDecoder
from keras_transformer.support.checking import check_int, check_number
from keras_transformer.tasks.base.head import Head
from keras_transformer.tasks.heads.class_head import ClassHead
from keras_transformer.training import FineTuningAdamW
from keras_transformer.training.losses.depth_losses import (
    AbsoluteRelativeError,
    AffineInvariantLoss,
    ScaleInvariantLogLoss,
)

IGNORED = 255  # the class of pixels that do not count, as in published masks


def fusion_of(config: TransformerConfig, values: Mapping[str, Any]) -> Fusion | StageFusion:
    """Return the decoder's values for the values of a task."""
    side = config.sides[0]
    if side.only_side.merges:
        return StageFusion.of(values.get("decoder"))
    norm = bool(config.final_normalization)
    return Fusion.of(values.get("decoder"), side.num_layers, side.hidden_dim, norm)


def map_features(config: TransformerConfig, values: Mapping[str, Any]) -> int:
    """Return the features of the map that the decoder makes."""
    side, features = config.only_side, fusion_of(config, values).features
    return features * len(side.stage_ends) if side.merges else features


class DenseHead(Head):
    """A decoder of the states of several blocks, followed by convolutions of a subclass.

    It is a `FusionDecoder` on four blocks, or for a backbone with stages a `StageFusionDecoder`.

    Args:
        task: as for `Head`.
        decoder: dict of the values of `layers.Fusion` or `layers.StageFusion`.
    """

    options = ("decoder",)
    needs_labels = True
    takes_records = False

    def add_decoder(self, decoder: Mapping[str, Any] | None) -> None:
        """Make the decoder from its values."""
        backbone = self.task.backbone
        config = backbone.config
        self.fusion = fusion_of(config, {"decoder": decoder})
        self.decoder = self.fusion.values()
        side = config.only_side
        self.layers = side.stage_ends if side.merges else self.fusion.layers
        self.kept = "edges" if side.merges else "corners"
        self.map_features = map_features(config, {"decoder": decoder})
        tokens = getattr(config.stem, "num_tokens", 0)
        if getattr(config.stem, "num_detection_tokens", 0):
            raise ValueError(
                f"{type(self.task).__name__} reads the states of patches: give the config a `stem` "
                "without `num_detection_tokens`."
            )
        options = {"name": "decoder", "dtype": self.task.dtype_policy}
        if side.merges:
            layer = StageFusionDecoder(self.fusion, side.stage_widths, **options)
        else:
            layer = FusionDecoder(self.fusion, config.hidden_dim, tokens, **options)
        layer.build()
        self.keep(decoder_layer=layer)

    def fused(self, states, inputs, training: bool):
        """Return the fused map of the states of these blocks, and the size of the images."""
        backbone = self.task.backbone
        side = backbone.config.only_side
        if side.merges:
            norms = backbone.encoder.stage_norms()
            states = [x if f is None else f(x) for x, f in zip(states, norms, strict=True)]
            size = backbone.stem.image_size(inputs["images"])
            grids = side.grids(size)
            grids = [grids[end - 1] for end in side.stage_ends]
            return self.decoder_layer(states, grids=grids, training=training), size
        norm = backbone.encoder.final_norm if self.fusion.final_norm else None
        states = states if norm is None else [norm(each) for each in states]
        size = backbone.stem.image_size(inputs["images"])
        grid = backbone.config.stem.grid(size)
        return self.decoder_layer(states, grid=grid, training=training), size

    @classmethod
    def weight_values(cls, config: TransformerConfig, values: Mapping[str, Any]) -> dict[str, Any]:
        return {"decoder": fusion_of(config, values).values()}

    @classmethod
    def weight_shapes(
        cls, config: TransformerConfig, values: Mapping[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        fusion, side = fusion_of(config, values), config.only_side
        shapes = fusion.shapes(side.stage_widths if side.merges else config.hidden_dim)
        return {f"decoder/{path}": shape for path, shape in shapes.items()}


class DepthHead(DenseHead):
    """Three convolutions on the fused map: a depth for each pixel.

    Args:
        task, decoder: as for `DenseHead`.
        max_depth: float, the largest depth in metres. None: relative depths, without a unit.
        depth_features: int, the features before the last convolution.
    """

    options = (*DenseHead.options, "max_depth", "depth_features")
    published_as = ("ForDepthEstimation",)
    learned = ("depth", "depth_map", "label", "labels")

    def __init__(
        self,
        task,
        decoder: Mapping[str, Any] | None = None,
        max_depth: float | None = None,
        depth_features: int = 32,
    ):
        super().__init__(task)
        self.max_depth = check_number("max_depth", max_depth, above=0, none=True)
        self.depth_features = check_int("depth_features", depth_features, 1, 2**16)
        self.add_decoder(decoder)
        width, dtype = self.map_features, task.dtype_policy
        self.keep(
            half_convolution=conv(width // 2, 3, "half", dtype),
            hidden_convolution=conv(depth_features, 3, "hidden", dtype),
            # A new head begins above 0, where the ReLU behind it has a gradient.
            output_convolution=conv(1, 1, "output", dtype, bias_initializer="ones"),
        )
        layers = (self.half_convolution, self.hidden_convolution, self.output_convolution)
        for layer, features in zip(layers, (width, width // 2, depth_features), strict=True):
            layer.build((None, None, None, features))

    def __call__(self, states, inputs, training: bool = False):
        x, size = self.fused(states, inputs, training)
        x = interpolate(self.half_convolution(x), size, self.kept)
        x = self.output_convolution(ops.relu(self.hidden_convolution(x)))[..., 0]
        return ops.relu(x) if self.max_depth is None else ops.sigmoid(x) * self.max_depth

    def usual(self) -> dict[str, Any]:
        relative = self.max_depth is None
        return {
            "optimizer": FineTuningAdamW(),
            "loss": AffineInvariantLoss() if relative else ScaleInvariantLogLoss(),
            "metrics": [AbsoluteRelativeError(aligned=relative)],
        }

    @classmethod
    def weight_values(cls, config: TransformerConfig, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **super().weight_values(config, values),
            "depth_features": values.get("depth_features", 32),
        }

    @classmethod
    def weight_shapes(
        cls, config: TransformerConfig, values: Mapping[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        width, last = map_features(config, values), values.get("depth_features", 32)
        return {
            **super().weight_shapes(config, values),
            **convolution("half", 3, width, width // 2),
            **convolution("hidden", 3, width // 2, last),
            **convolution("output", 1, last, 1),
        }


def kernel_size(config: TransformerConfig) -> int:
    """Return the size of the convolution on the map: one pixel of a map of stages (SegFormer)."""
    return 1 if config.only_side.merges else 3


class SegmentHead(DenseHead, ClassHead):
    """A convolution with batch norm on the fused map, and a linear layer: classes of pixels.

    Args:
        task, decoder: as for `DenseHead`.
        num_classes, labels, dropout: as for `ClassHead`.
    """

    options = ("num_classes", "labels", "dropout", *DenseHead.options)
    compile_options = ()
    published_as = ("ForSemanticSegmentation",)
    published_head = (LABELS,)
    learned = ("mask", "annotation", "segmentation_mask", "label", "labels")

    def __init__(
        self,
        task,
        num_classes: int | None = None,
        labels: list[str] | None = None,
        dropout: float | None = None,
        decoder: Mapping[str, Any] | None = None,
    ):
        super().__init__(task, num_classes, labels, dropout)
        check_int(
            "num_classes", self.num_classes, 2, IGNORED,
            hint=f"In masks, {IGNORED} means that a pixel does not count.",
        )  # fmt: skip
        self.add_decoder(decoder)
        width, dtype = self.fusion.features, task.dtype_policy
        size = kernel_size(task.backbone.config)
        self.keep(
            hidden_convolution=conv(width, size, "hidden", dtype, bias=False),
            hidden_norm=batch_norm_layer("hidden_norm", dtype),
            output_convolution=conv(self.num_classes, 1, "output", dtype),
        )
        self.hidden_convolution.build((None, None, None, self.map_features))
        for layer in (self.hidden_norm, self.output_convolution):
            layer.build((None, None, None, width))

    def weights_of_classes(self, class_weight: dict):
        raise ValueError(
            "`class_weight` is not for masks, whose pixels have several classes. Leave it out, or "
            "compile a loss that weights classes."
        )

    def __call__(self, states, inputs, training: bool = False):
        x, size = self.fused(states, inputs, training)
        x = self.hidden_norm(self.hidden_convolution(x), training=training)
        x = self.dropout_layer(ops.relu(x), training=training)
        return interpolate(self.output_convolution(x), size, self.kept)

    def usual(self) -> dict[str, Any]:
        return {
            "optimizer": FineTuningAdamW(),
            "loss": keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, ignore_class=IGNORED
            ),
            "metrics": [
                keras.metrics.MeanIoU(
                    self.num_classes, sparse_y_pred=False, ignore_class=IGNORED, name="mean_iou"
                )
            ],
        }

    @classmethod
    def weight_shapes(
        cls, config: TransformerConfig, values: Mapping[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        width, classes = fusion_of(config, values).features, values.get("num_classes")
        if not isinstance(classes, int):
            raise ValueError(f"`num_classes` must be an integer, received {classes!r}.")
        return {
            **super().weight_shapes(config, values),
            **convolution(
                "hidden", kernel_size(config), map_features(config, values), width, bias=False
            ),
            **batch_norm("hidden_norm", width),
            **convolution("output", 1, width, classes),
        }
