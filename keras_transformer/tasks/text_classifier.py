"""Classes of texts or of pairs of texts."""

import warnings
from typing import Any

import keras
import numpy as np

from keras_transformer.config import TransformerConfig
from keras_transformer.data import BucketedDataset, Records
from keras_transformer.data.weights import check_weights
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.turns import reads
from keras_transformer.tasks.classifier import Classifier
from keras_transformer.tasks.encoding import encode_rows
from keras_transformer.tasks.inputs import check_max_length, text_rows
from keras_transformer.tasks.pooling import check_pooling, pool
from keras_transformer.tasks.task import softmax
from keras_transformer.tokenizers import Tokenizer


@keras.saving.register_keras_serializable(package="keras_transformer")
class TextClassifier(Classifier):
    """An encoder or a decoder with a linear layer on one state of a text. Returns logits.

    The state is that of an encoder's first token, through the backbone's pooler if it has one;
    of a decoder's last token, and then the linear layer has no bias, as published decoders have
    it. With `hidden_activation` one more layer stands between, and the pooler is not used
    (RoBERTa, DistilBERT, ELECTRA). With `pooling="mean"` the state is the mean over the tokens,
    what a model of sentence vectors was trained for, and the pooler is not used either.

    Compiled with AdamW (5e-5), cross-entropy and accuracy; `compile` changes that.

    Args:
        backbone: an encoder or a decoder.
        tokenizer: `Tokenizer`, or None to take ids only.
        num_classes: int. Defaults to the number of `labels`.
        labels: list of class names, in the order of the class numbers. Labels may then be
            given by name too.
        dropout: float, rate on the state. Defaults to the backbone's.
        hidden_activation: str, the activation of a hidden layer of the state's width, see
            `layers.FeedForward`. None for no such layer.
        pooling: str, the state of a text by those of its tokens: `"first"`, `"last"`, `"mean"`,
            `"max"` or `"mean_sqrt_len"`, see `TextEmbedder`. Defaults to `"first"` for an encoder
            and `"last"` for a decoder.
        name: str.

    Call arguments:
        inputs: dict of `token_ids`, `padding_mask` and optionally `segment_ids`, as for `Encoder`.

    Returns:
        Float `(batch, num_classes)`.

    Raises:
        ValueError: for fewer than two classes, labels that disagree with `num_classes`, an
            unknown activation or pooling, a seq2seq backbone.

    Example:
    ```python
    import keras_transformer as kt

    classifier = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
    texts, labels = ["a warm and funny film", "dull from start to end"], [1, 0]
    classifier.fit(texts, labels, epochs=1, verbose=0)
    assert classifier.predict(["what a film"], verbose=0).shape == (1, 2)
    ```

    Source: Devlin et al. 2018, "BERT", section 4.1; for decoders Radford et al. 2018, section 3.2.
    """

    backbone_kinds = ("encoder", "decoder")

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer | None = None,
        num_classes: int | None = None,
        labels: list[str] | None = None,
        dropout: float | None = None,
        hidden_activation: str | None = None,
        pooling: str | None = None,
        name: str | None = None,
    ):
        super().__init__(backbone, tokenizer, num_classes, labels, dropout, name)
        is_encoder = backbone.config.kind == "encoder"
        given = {"hidden_activation": hidden_activation, "pooling": pooling}
        self.pooling = check_pooling(self.head_values(backbone.config, given)["pooling"])
        self.first_only = is_encoder and self.pooling == "first"
        self.hidden_activation = hidden_activation
        self.hidden_dense = None
        if hidden_activation is not None:
            get_activation(hidden_activation)
            self.hidden_dense = self._dense(backbone.config.hidden_dim, "hidden")
        self.output_dense = self._dense(self.num_classes, "output", use_bias=is_encoder)
        self.built = True
        self._compile_for_fine_tuning(
            keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
        )

    def call(self, inputs, training: bool = False):
        if self.first_only:
            states = self.backbone(inputs, first_only=True, training=training)
            state = self.backbone.pool(states) if self.hidden_dense is None else states[:, 0]
        else:
            states = self.backbone(inputs, training=training)
            state = pool(states, inputs.get("padding_mask"), self.pooling)
        if self.hidden_dense is not None:
            state = self.hidden_dense(self.dropout_layer(state, training=training))
            state = get_activation(self.hidden_activation)(state)
        return self.output_dense(self.dropout_layer(state, training=training))

    def make_dataset(
        self, x, y=None, sample_weight=None, shuffle: bool = False, seed: int = 0, **options
    ) -> BucketedDataset:
        """Texts, or a tuple of two lists for pairs, as batches. See `Task.make_dataset`."""
        tokenizer = self._require_tokenizer()
        max_length = check_max_length(self, options.pop("max_length", None))
        texts = x
        if not isinstance(x, Records):
            texts = x if isinstance(x, tuple) else (x,)
            if len(texts) > 2:
                raise ValueError(
                    f"A tuple is a pair of lists of texts, received {len(texts)} parts. Put the "
                    "texts in a list."
                )
            names = ("x",) if len(texts) == 1 else ("x[0]", "x[1]")
            texts = tuple(text_rows(p, n) for p, n in zip(texts, names, strict=True))

        def encode(texts, place):
            return self._columns(
                *tokenizer.encode_batch_with_segments(*texts, max_length=max_length)
            )

        columns, names, labels = encode_rows(
            self,
            texts,
            encode,
            with_labels=isinstance(x, Records) and x.y is not None,
            check_label=self._class_number,
            max_length=max_length,
        )
        values = {}
        if names is not None:
            values["labels"] = np.asarray([self._class_number(n) for n in names], "int32")[labels]
        elif y is not None:
            values["labels"] = self._class_numbers(y, len(columns["token_ids"]))
        has_labels = "labels" in values
        if sample_weight is not None:
            rows = len(columns["token_ids"])
            values["sample_weight"] = check_weights("sample_weight", sample_weight, rows)

        def finish(inputs, arrays):
            return (inputs, *(arrays[name] for name in values)) if has_labels else (inputs,)

        return self._dataset(
            columns,
            finish,
            values=values,
            shuffle=shuffle,
            seed=seed,
            **options,
        )

    def _check_training_set(self, dataset):
        if "labels" not in dataset.values:
            return
        present = set(dataset.values["labels"].tolist())
        missing = [name for number, name in enumerate(self.label_names) if number not in present]
        if missing:
            shown = ", ".join(map(repr, missing[:9])) + (", ..." if len(missing) > 9 else "")
            warnings.warn(
                f"The training data has no example of {len(missing)} of the {self.num_classes} "
                f"classes: {shown}. The model will not learn to give them.",
                stacklevel=3,
            )

    @reads
    def classify(self, texts, batch_size: int | None = None) -> list[tuple[str, float]]:
        """The likeliest class of each text and its probability.

        Args:
            texts: as for `predict`.
            batch_size: int.

        Returns:
            One `(label, probability)` a text. Without `labels` the label is the class number
            as a string.
        """
        probabilities = softmax(self.predict(texts, batch_size=batch_size, verbose=0))
        best = probabilities.argmax(axis=-1)
        names = self.label_names
        return [(names[i], float(row[i])) for i, row in zip(best, probabilities, strict=True)]

    @classmethod
    def head_values(cls, config: TransformerConfig, values: dict[str, Any]) -> dict[str, Any]:
        usual = "first" if config.kind == "encoder" else "last"
        return {
            "hidden_activation": values.get("hidden_activation"),
            "pooling": values.get("pooling") or usual,
        }

    def task_values(self) -> dict:
        names = ("hidden_activation", "pooling")
        return {**super().task_values(), **{name: getattr(self, name) for name in names}}
