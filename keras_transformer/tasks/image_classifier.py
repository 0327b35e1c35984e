"""Image classification."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.checking import check_choice, describe
from keras_transformer.config import TransformerConfig
from keras_transformer.data import BucketedDataset
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.turns import reads
from keras_transformer.processors import ImageProcessor
from keras_transformer.structure import dense_of, shapes_of
from keras_transformer.tasks.labels import check_weights
from keras_transformer.tasks.row_classifier import RowClassifier

IMAGE_POOLINGS = ("first", "mean", "first_and_mean", "attention")


@keras.saving.register_keras_serializable(package="keras_transformer")
class ImageClassifier(RowClassifier):
    """A backbone of images with a linear layer on one state of an image. Returns logits.

    With `pooling="first"` that is the state of the class token; with `"mean"` the mean over the
    patches; with `"first_and_mean"` both side by side (DINOv2); with `"attention"` a mean whose
    weights are a softmax over a linear layer of the states (CCT).

    Images are paths, bytes, PIL images, arrays `(height, width, channels)` of 0 to 255, or what
    else `processors.ImageProcessor` takes, of any sizes. They are read when a batch is made.

    Labels are as for `TextClassifier`: names or numbers of classes, or a row for each image with
    the probability of each class; with `multi_label` several; with `num_classes=1` numbers.

    Compiled with AdamW (5e-5), cross-entropy and accuracy; `compile` changes that, and takes an
    `augmentation`.

    Args:
        backbone: an `Encoder` whose config has a `stem` of images.
        processor: `processors.ImageProcessor`; None for a task that takes arrays only.
        num_classes: int, 1 for a regression. Defaults to the number of `labels`.
        labels: list of class names, in the order of the class numbers.
        dropout: float, rate before the last layer. Defaults to the backbone's.
        pooling: str, see above. Defaults to `"first"` for a backbone with a class token and to
            `"mean"` for others.
        name: str.
        multi_label: bool, whether several classes of an image may be right.
        distilled: bool, for a backbone with a distillation token: two linear layers, on the states
            of both tokens, whose mean the logits are (DeiT).
        hidden_activation, hidden_bias, block_norm: a hidden layer, as for `TextClassifier`.

    Call arguments:
        inputs: dict of `images`, float `(batch, height, width, channels)`, as the processor makes
            them.

    Returns:
        Float `(batch, num_classes)`.

    Raises:
        ValueError: for a backbone without images, no classes, labels that disagree with
            `num_classes`, or an unknown pooling.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=0, hidden_dim=32, num_layers=2, num_heads=4,
        intermediate_dim=64, position="learned", normalize_first=True,
        stem={"kind": "patches", "image_size": [32, 32], "patch_size": 8},
    )
    processor = kt.ImageProcessor(size=32)
    classifier = kt.ImageClassifier(
        kt.models.Encoder(config), processor, labels=["dark", "bright"]
    )
    images = [np.full((40, 50, 3), value, "uint8") for value in (10, 240)]
    classifier.fit(images, ["dark", "bright"], epochs=1, verbose=0)
    label, probability = classifier.classify(images[0])
    assert label in ("dark", "bright") and 0.5 <= probability <= 1
    ```

    Source: Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words", section 3.1; the pooling by
    attention: Hassani et al. 2021, section 3.3.
    """

    backbone_kinds = ("encoder",)
    processor_class = ImageProcessor
    alias = "image_classification"
    published_as = ("ForImageClassification",)
    takes_records = False
    row_unit = "image"
    task_options = (*RowClassifier.task_options, "pooling", "distilled")

    def __init__(
        self,
        backbone: Backbone,
        processor: ImageProcessor | None = None,
        num_classes: int | None = None,
        labels: list[str] | None = None,
        dropout: float | None = None,
        pooling: str | None = None,
        name: str | None = None,
        multi_label: bool = False,
        distilled: bool = False,
        hidden_activation: str | None = None,
        hidden_bias: bool = True,
        block_norm: bool = False,
    ):
        hidden = (hidden_activation, hidden_bias, block_norm)
        super().__init__(backbone, processor, num_classes, labels, dropout, name, *hidden)
        if "images" not in backbone.id_inputs:
            raise ValueError(
                "ImageClassifier needs a backbone that reads images: give the config a `stem`, "
                "such as {'kind': 'patches', 'image_size': [224, 224], 'patch_size': 16}."
            )
        values = self.head_values(backbone.config, {"pooling": pooling, "distilled": distilled})
        self.pooling = check_choice("pooling", values["pooling"], IMAGE_POOLINGS)
        self.distilled = values["distilled"]
        has_token = getattr(backbone.config.stem, "distillation_token", False)
        if self.distilled and not (has_token and self.pooling == "first"):
            raise ValueError(
                "`distilled` needs a backbone whose stem has a `distillation_token`, and "
                f"pooling='first', received {self.pooling!r}."
            )
        self.first_only = self.pooling == "first" and not self.distilled
        if self.hidden_dense is not None and (self.distilled or self.pooling == "first_and_mean"):
            raise ValueError("A hidden layer is of one state: it needs another `pooling`.")
        self.augmentation = self.pooling_dense = None
        if self.pooling == "attention":
            self.pooling_dense = self._dense(1, "pooling")
        width = backbone.config.hidden_dim * (2 if self.pooling == "first_and_mean" else 1)
        names = ("class_output", "distillation_output") if self.distilled else ("output",)
        self.outputs_dense = [self._dense(self.num_classes, name, width=width) for name in names]
        self.built = True
        self.compile_usual(multi_label)

    def compile(self, *args, augmentation=None, **kwargs):
        """As `keras.Model.compile`, and how images of a training step are changed at random.

        Args:
            *args: as in `keras.Model.compile`.
            augmentation: list of `keras.layers`, such as `[keras.layers.RandomFlip("horizontal")]`,
                which a training step applies to its images, in their order. Defaults to what it
                was; `[]` for none.
            **kwargs: as in `keras.Model.compile`.
        """
        if kwargs.get("adversarial_norm"):
            raise ValueError(
                "`adversarial_norm` moves the embeddings of tokens, which images do not have."
            )
        if augmentation is not None:
            wrong = [x for x in augmentation if not isinstance(x, keras.layers.Layer)]
            if wrong:
                raise ValueError(
                    f"`augmentation` must be a list of Keras layers, received {describe(wrong[0])}."
                )
            self.augmentation = keras.Sequential(augmentation) if augmentation else None
        super().compile(*args, **kwargs)

    def compile_values(self) -> dict:
        layers = [] if self.augmentation is None else self.augmentation.layers
        return {**super().compile_values(), "augmentation": list(layers)}

    def call(self, inputs, collect: tuple[str, ...] = (), training: bool = False):
        if training and self.augmentation is not None:
            inputs = {**inputs, "images": self.augmentation(inputs["images"], training=True)}
        return super().call(inputs, collect=collect, training=training)

    def head_outputs(self, states, inputs, training: bool):
        if self.distilled:
            both = zip(self.outputs_dense, (states[:, 0], states[:, 1]), strict=True)
            first, second = (
                layer(self.dropout_layer(state, training=training)) for layer, state in both
            )
            return (first + second) / 2
        state = self._pooled(states)
        if self.hidden_dense is not None:
            state = self.hidden(self.dropout_layer(state, training=training))
        return self.outputs_dense[0](self.dropout_layer(state, training=training))

    def _pooled(self, states):
        if self.pooling == "first":
            return states[:, 0]
        if self.pooling == "attention":
            weights = ops.softmax(ops.cast(self.pooling_dense(states), "float32"), axis=1)
            return ops.sum(states * ops.cast(weights, states.dtype), axis=1)
        tokens = getattr(self.backbone.config.stem, "num_tokens", 0)
        mean = ops.mean(states[:, tokens:], axis=1)
        if self.pooling == "mean":
            return mean
        return ops.concatenate([states[:, 0], mean], axis=-1)

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Images as batches, which are read when they are asked for. See `Task.make_dataset`."""
        processor = self._require_processor()
        images = processor.rows(x)
        values = {}
        if y is not None:
            values["labels"] = self._targets(y, len(images))
            weights = check_weights("sample_weight", sample_weight, len(images), unit="image")
            if weights is not None:
                values["sample_weight"] = weights

        def make_batch(arrays, masks):
            rows = arrays["row"]
            inputs = {"images": processor([images[i] for i in rows], places=rows)}
            return inputs, *(arrays[name] for name in values)

        columns = {"place": np.zeros((len(images), 1), "int32")}
        options["max_buckets"] = 1
        return self._bucketed(columns, make_batch, values=values, **options)

    @reads
    def classify(
        self,
        images,
        batch_size: int | None = None,
        top_k: int | None = None,
        threshold: float | None = None,
    ) -> list:
        """The likeliest class of each image and its probability; or several.

        Args:
            images: as for `predict`; or one image.
            batch_size: int.
            top_k: int, the likeliest classes of each image; `num_classes` or more for all.
            threshold: float, classes below this probability are left out. Defaults, with
                `multi_label` and without `top_k`, to 0.5.

        Returns:
            One `(label, probability)` an image, or, with `top_k`, `threshold` or `multi_label`, a
            list of them, the likeliest first; for one image its result alone.

        Raises:
            ValueError: for a regression, and for what is no image, with its place.
        """
        alone = self.processor_class.is_one(images)
        return self.likeliest([images] if alone else images, batch_size, top_k, threshold, alone)

    @classmethod
    def head_values(cls, config: TransformerConfig, values: dict[str, Any]) -> dict[str, Any]:
        usual = "first" if getattr(config.stem, "num_tokens", 0) else "mean"
        return {
            **super().head_values(config, values),
            "pooling": values.get("pooling") or usual,
            "distilled": bool(values.get("distilled")),
        }

    @classmethod
    def head_shapes(
        cls, config: TransformerConfig, values: dict[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        shapes = super().head_shapes(config, values)
        head = cls.head_values(config, values)
        pooling = head["pooling"]
        if head["distilled"]:
            parts = {name: shapes.pop(f"output/{name}") for name in ("kernel", "bias")}
            outputs = ("class_output", "distillation_output")
            shapes |= {f"{output}/{name}": parts[name] for output in outputs for name in parts}
        if pooling == "first_and_mean" and not head["distilled"]:
            rows, classes = shapes["output/kernel"]
            shapes["output/kernel"] = (2 * rows, classes)
        if pooling == "attention":
            shapes |= shapes_of(dense_of("pooling", "hidden_dim", "one"), config)
        return shapes
