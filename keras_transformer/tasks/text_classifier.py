"""Classes of texts or of pairs of texts."""

import keras
import numpy as np

from keras_transformer.data import BucketedDataset
from keras_transformer.layers.remat import one_piece
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.stack import kernel_initializer
from keras_transformer.tasks.task import Task, text_rows
from keras_transformer.tokenizers import Tokenizer


@keras.saving.register_keras_serializable(package="keras_transformer")
class TextClassifier(Task):
    """An encoder with a linear layer on its pooled state. Returns logits.

    Compiled with AdamW (5e-5), cross-entropy and accuracy; `compile` changes that.

    Args:
        backbone: an encoder.
        tokenizer: `Tokenizer`, or None to take ids only.
        num_classes: int. Defaults to the number of `labels`.
        labels: list of class names, in the order of the class numbers. Labels may then be
            given by name too.
        dropout: float, rate on the pooled state. Defaults to the backbone's.
        name: str.

    Call arguments:
        inputs: dict of `token_ids`, `padding_mask` and optionally `segment_ids`, as for `Encoder`.

    Returns:
        Float `(batch, num_classes)`.

    Raises:
        ValueError: for fewer than two classes, labels that disagree with `num_classes`, a
            backbone that is no encoder.

    Example:
    ```python
    import keras_transformer as kt

    classifier = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
    texts, labels = ["a warm and funny film", "dull from start to end"], [1, 0]
    classifier.fit(texts, labels, epochs=1, verbose=0)
    assert classifier.predict(["what a film"], verbose=0).shape == (1, 2)
    ```

    Source: Devlin et al. 2018, "BERT", section 4.1.
    """

    backbone_kinds = ("encoder",)
    needs_labels = True

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer | None = None,
        num_classes: int | None = None,
        labels: list[str] | None = None,
        dropout: float | None = None,
        name: str | None = None,
    ):
        if labels is not None:
            labels = _checked_labels(labels)
            num_classes = len(labels) if num_classes is None else num_classes
        if not isinstance(num_classes, int) or num_classes < 2:
            raise ValueError(
                f"`num_classes` must be an integer of at least 2, received {num_classes!r}."
            )
        if labels is not None and len(labels) != num_classes:
            raise ValueError(f"Received {len(labels)} labels for num_classes={num_classes}.")
        super().__init__(backbone, tokenizer, name=name)
        self.num_classes = num_classes
        self.labels = labels
        self.dropout = backbone.config.dropout if dropout is None else dropout
        with one_piece():
            self.dropout_layer = keras.layers.Dropout(self.dropout, dtype=self.dtype_policy)
            self.output_dense = keras.layers.Dense(
                num_classes,
                kernel_initializer=kernel_initializer(backbone.config),
                name="output",
                dtype=self.dtype_policy,
            )
        self.output_dense.build((None, backbone.config.hidden_dim))
        self.built = True
        optimizer = keras.optimizers.AdamW(5e-5, weight_decay=0.01)
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta", "scale"])
        self.compile(
            optimizer=optimizer,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )

    @property
    def number_of_targets(self) -> int:
        return self.num_classes

    def call(self, inputs, training: bool = False):
        pooled = self.backbone.pool(self.backbone(inputs, training=training))
        return self.output_dense(self.dropout_layer(pooled, training=training))

    def make_dataset(
        self, x, y=None, sample_weight=None, shuffle: bool = False, seed: int = 0, **options
    ) -> BucketedDataset:
        """Texts, or a tuple of two lists for pairs, as batches. See `Task.make_dataset`."""
        tokenizer = self._require_tokenizer()
        max_length = options.pop("max_length", self.backbone.config.max_sequence_length)
        texts = x if isinstance(x, tuple) else (x,)
        if len(texts) > 2:
            raise ValueError(
                f"A tuple is a pair of lists of texts, received {len(texts)} parts. Put the "
                "texts in a list."
            )
        texts = [text_rows(part, name) for part, name in zip(texts, ("x", "x[1]"), strict=False)]
        ids, segments = tokenizer.encode_batch_with_segments(*texts, max_length=max_length)
        columns = {"token_ids": ids}
        if self.backbone.config.segment_vocabulary_size:
            columns["segment_ids"] = segments
        values = {}
        if y is not None:
            values["labels"] = self._class_numbers(y, len(ids))
        if sample_weight is not None:
            values["sample_weight"] = np.asarray(sample_weight, "float32")

        def make_batch(arrays, masks):
            batch = {name: arrays[name] for name in columns}
            batch["padding_mask"] = masks["token_ids"]
            if y is None:
                return (batch,)
            weight = (arrays["sample_weight"],) if sample_weight is not None else ()
            return (batch, arrays["labels"], *weight)

        return BucketedDataset(
            columns,
            make_batch,
            values=values,
            pad_values={"token_ids": tokenizer.pad_id or 0},
            shuffle=shuffle,
            seed=seed,
            **options,
        )

    def _class_numbers(self, y, rows: int) -> np.ndarray:
        labels = np.asarray(y)
        if labels.dtype.kind == "O":  # such as a column of a data frame
            labels = np.asarray(labels.tolist())
        if labels.dtype.kind == "U" and self.labels is not None:
            unknown = sorted(set(labels.tolist()) - set(self.labels))
            if unknown:
                raise ValueError(f"Unknown labels {unknown}, known are {self.labels}.")
            labels = np.asarray([self.labels.index(label) for label in labels.tolist()])
        if labels.shape != (rows,) or labels.dtype.kind not in "iub":
            raise ValueError(
                f"The labels must be one class number a text, {rows} in all, received "
                f"{labels.dtype} of shape {labels.shape}."
            )
        outside = np.flatnonzero((labels < 0) | (labels >= self.num_classes))
        if outside.size:
            raise ValueError(
                f"Labels must be from 0 to {self.num_classes - 1}, but label {outside[0]} is "
                f"{labels[outside[0]]}. Give `num_classes` to match the data."
            )
        return labels.astype("int32")

    def classify(self, texts, batch_size: int | None = None) -> list[tuple[str, float]]:
        """The likeliest class of each text and its probability.

        Args:
            texts: as for `predict`.
            batch_size: int.

        Returns:
            One `(label, probability)` a text. Without `labels` the label is the class number
            as a string.
        """
        logits = self.predict(texts, batch_size=batch_size, verbose=0).astype("float64")
        probabilities = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probabilities /= probabilities.sum(axis=-1, keepdims=True)
        best = probabilities.argmax(axis=-1)
        names = self.labels or [str(number) for number in range(self.num_classes)]
        return [(names[i], float(row[i])) for i, row in zip(best, probabilities, strict=True)]

    def task_values(self) -> dict:
        return {"num_classes": self.num_classes, "labels": self.labels, "dropout": self.dropout}


def _checked_labels(labels) -> list[str]:
    names = None if isinstance(labels, str) else list(labels)
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"`labels` must be a list of strings, received {labels!r}.")
    if len(set(names)) < len(names):
        raise ValueError(f"`labels` must differ from each other, received {names}.")
    return names
