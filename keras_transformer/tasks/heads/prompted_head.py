"""The head of a `PromptedSegmenter`: neck, prompt encoder and mask decoder."""

import math
import warnings
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.config.prompted import PromptedMasks
from keras_transformer.layers.mask_decoder import MaskDecoder
from keras_transformer.layers.neck import Neck
from keras_transformer.layers.prompt_encoder import FIRST_CORNER, PADDING, PromptEncoder
from keras_transformer.support.checking import describe
from keras_transformer.tasks.base.head import Head
from keras_transformer.training import FineTuningAdamW
from keras_transformer.training.losses.mask_losses import PromptedMaskLoss

# Keras would warn of layers without gradients in batches without mask prompts.
UNUSED = r"Gradients do not exist for variables \[('[^']*prompt_encoder/mask_[^']*'(, )?)+\] "
warnings.filterwarnings("ignore", UNUSED)

POINTS, LABELS, MASKS, HAS_MASK = "points", "point_labels", "mask_prompts", "has_mask"
STATES = "image_states"  # the output of the neck, in place of images


class PromptedMaskHead(Head):
    """A neck of the image encoder, an encoder of prompts, and a decoder of masks.

    Args:
        task: as for `Head`.
        decoder: dict of the values of `config.prompted.PromptedMasks`.
    """

    options = ("decoder",)
    needs_labels = True
    takes_records = False
    further_inputs = (POINTS, LABELS, MASKS, HAS_MASK)

    def __init__(self, task, decoder: Mapping[str, Any] | None = None):
        super().__init__(task)
        config = task.backbone.config
        self.masks = PromptedMasks.of(decoder)
        self.decoder = self.masks.values()
        size = tuple(config.stem.image_size)
        self.grid, dtype = config.stem.grid(size), task.dtype_policy
        width = config.hidden_dim
        self.keep(
            neck=Neck(self.masks, width, self.grid, name="neck", dtype=dtype),
            prompt_encoder=PromptEncoder(
                self.masks, size, self.grid, name="prompt_encoder", dtype=dtype
            ),
            mask_decoder=MaskDecoder(self.masks, self.grid, name="mask_decoder", dtype=dtype),
        )
        for layer in (self.neck, self.prompt_encoder, self.mask_decoder):
            layer.build()

    def __call__(self, states, inputs, training: bool = False):
        """Return masks and scores of each prompt, from states `(batch, rows, columns, width)`."""
        rows, prompts, count = ops.shape(inputs[LABELS])
        total, width, places = rows * prompts, self.masks.width, math.prod(self.grid)
        labels = ops.reshape(inputs[LABELS], (total, count))
        points = ops.reshape(inputs[POINTS], (total, count, 2))
        tokens = self.prompt_encoder(points, labels)
        masks = inputs.get(MASKS)
        given = None if masks is None else ops.reshape(inputs[HAS_MASK], (total,))
        if masks is not None:
            masks = ops.reshape(masks, (total, *masks.shape[2:]))
        added = self.prompt_encoder.of_masks(masks, given)
        image = ops.reshape(ops.cast(states, tokens.dtype), (rows, 1, places, width))
        image = ops.broadcast_to(image, (rows, prompts, places, width))
        image = ops.reshape(image, (total, places, width)) + added
        positions = self.prompt_encoder.image_positions()[None]
        logits, scores = self.mask_decoder(image, positions, tokens, labels != PADDING)
        return {
            "masks": ops.reshape(logits, (rows, prompts, *logits.shape[1:])),
            "iou_scores": ops.reshape(scores, (rows, prompts, scores.shape[-1])),
        }

    def usual(self) -> dict[str, Any]:
        return {"optimizer": FineTuningAdamW(), "loss": PromptedMaskLoss()}

    def compute_loss(self, compute, x, y, outputs, sample_weight, training):
        labels = ops.cast(x[LABELS], "int32")
        # A box is one prompt, though it has two corners.
        count = ops.sum(ops.cast((labels >= 0) & (labels <= FIRST_CORNER), "int32"), axis=-1)
        if x.get(HAS_MASK) is not None:
            count = count + ops.cast(x[HAS_MASK], "int32")
        outputs = {**outputs, "ambiguous": count <= 1}
        # Keras would compare the outputs with targets of the same names.
        value = self.task.loss(y, outputs, sample_weight=sample_weight)
        return sum((ops.cast(each, value.dtype) for each in self.task.losses), value)

    def compiled(self):
        if not isinstance(self.task.loss, keras.losses.Loss):
            raise ValueError(
                "`loss` must be a `PromptedMaskLoss` or another `keras.losses.Loss` of a dict with "
                f"'masks', 'iou_scores' and 'ambiguous', received {describe(self.task.loss)}."
            )

    @classmethod
    def weight_values(cls, config: TransformerConfig, values: Mapping[str, Any]) -> dict[str, Any]:
        return {"decoder": PromptedMasks.of(values.get("decoder")).values()}

    @classmethod
    def weight_shapes(
        cls, config: TransformerConfig, values: Mapping[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        return PromptedMasks.of(values.get("decoder")).shapes(config.hidden_dim)
