"""Text classification and regression, of texts or pairs of texts."""

from typing import Any

import keras
from keras import ops

from keras_transformer.checking import check_choice, check_ids
from keras_transformer.columns import text_alone
from keras_transformer.config import TransformerConfig
from keras_transformer.data import BucketedDataset, Records
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.turns import reads
from keras_transformer.tasks.class_labels import by_name
from keras_transformer.tasks.labels import check_weights
from keras_transformer.tasks.one_input import one_text
from keras_transformer.tasks.pooling import POOLINGS, mask_of_ids, pool
from keras_transformer.tasks.row_classifier import RowClassifier
from keras_transformer.tasks.text import (
    encode_rows,
    segmented_rows,
    take_max_length,
    text_rows,
    token_batches,
)
from keras_transformer.tokenizers import Tokenizer


@keras.saving.register_keras_serializable(package="keras_transformer")
class TextClassifier(RowClassifier):
    """A backbone with a linear layer on one state of a text. Returns logits.

    The state is that of an encoder's first token, through the backbone's pooler if it has one;
    of a decoder's last token, and then the linear layer has no bias, as published decoders have
    it. An encoder-decoder is given the text on both sides, the decoder's shifted by one, and the
    state is the decoder's at the last end of the text (BART, T5).

    With `hidden_activation` the head has a hidden layer, and the pooler is not used (RoBERTa,
    DistilBERT, ELECTRA). With `pooling="mean"` the state is the mean over the tokens, for which
    sentence encoders are trained, and the pooler is not used either.

    Labels are names (with `labels`) or numbers of classes, or a row for each text with the
    probability of each class: one-hot and soft labels. A column of them is read by name first: of
    `labels=["1", "2"]` the label 1 is the first. With `multi_label` several classes of a text may
    be right, or none: its labels are a list of names or numbers, or a row of 0 and 1; one class is
    then right or not. With `num_classes=1` alone the task is a regression: labels are numbers, and
    `predict` gives them.

    Compiled with AdamW (5e-5), cross-entropy (with `multi_label` the binary one of each class) and
    accuracy, as a regression with the mean squared error; `compile` changes that.

    Args:
        backbone, tokenizer, name: as for `Task`.
        num_classes: int, 1 for a regression. Defaults to the number of `labels`.
        labels: list of class names, in the order of the class numbers.
        dropout: float, rate before the last layer. Defaults to the backbone's.
        hidden_activation: str, the activation of a hidden layer of the state's width, see
            `layers.FeedForward`. Defaults to no such layer.
        pooling: str, how the states of tokens become that of a text, see `TextEmbedder`. Defaults
            to `"first"` for an encoder and `"last"` for a decoder and an encoder-decoder.
        multi_label: bool, whether several classes of a text may be right.
        hidden_bias: bool, a bias of the hidden layer.
        block_norm: bool, a normalization after it, of the kind of the blocks' (ModernBERT).
        start_id: int, of an encoder-decoder: the token that its decoder starts from. Defaults to
            the last token of each row.
        end_ids: list of int, of an encoder-decoder with `pooling="last"`: the state is that of
            the last of these tokens in a row, or of the last token of a row without any. Defaults
            to the tokenizer's end.

    Call arguments:
        inputs: dict of `token_ids`, `padding_mask` and optionally `segment_ids`, as for `Encoder`,
            whatever the backbone.

    Returns:
        Float `(batch, num_classes)`.

    Raises:
        ValueError: for no classes, labels that disagree with `num_classes`, an unknown activation
            or pooling, or several texts packed in a row of an encoder-decoder.

    Example:
    ```python
    import keras_transformer as kt

    classifier = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
    texts, labels = ["a warm and funny film", "dull from start to end"], [1, 0]
    classifier.fit(texts, labels, epochs=1, verbose=0)
    assert classifier.predict(["what a film"], verbose=0).shape == (1, 2)

    topics = kt.TextClassifier.from_preset(
        "minilm_l6_en", labels=["food", "film", "travel"], multi_label=True
    )
    topics.fit(["a film about soup", "nothing"], [["food", "film"], []], verbose=0)
    assert len(topics.classify("soup in Rome", top_k=3)) == 3
    ```

    Source: Devlin et al. 2018, "BERT", section 4.1; for decoders Radford et al. 2018, section 3.2.
    """

    backbone_kinds = ("encoder", "decoder", "seq2seq")
    reads_padding = False
    alias = "text_classification"
    published_as = ("ForSequenceClassification",)
    reads_pooler = True
    task_options = (*RowClassifier.task_options, "pooling", "start_id", "end_ids")

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
        multi_label: bool = False,
        hidden_bias: bool = True,
        block_norm: bool = False,
        start_id: int | None = None,
        end_ids: list[int] | None = None,
    ):
        hidden = (hidden_activation, hidden_bias, block_norm)
        num_classes = self.count_of(num_classes, labels, multi_label)
        super().__init__(backbone, tokenizer, num_classes, labels, dropout, name, *hidden)
        self.one_input = one_text(backbone, start_id)
        self.start_id = self.one_input and self.one_input.start_id
        self.end_ids = self._ends(end_ids)
        is_encoder = backbone.config.kind == "encoder"
        pooling = self.head_values(backbone.config, {"pooling": pooling})["pooling"]
        self.pooling = check_choice("pooling", pooling, POOLINGS)
        self.first_only = is_encoder and self.pooling == "first"
        self.output_dense = self._dense(
            self.num_classes, "output", use_bias=backbone.config.kind != "decoder"
        )
        self.built = True
        self.compile_usual(multi_label)

    def _ends(self, end_ids) -> list[int] | None:
        """The ids that end a text of an encoder-decoder; None of a model of one side."""
        if self.one_input is None:
            if end_ids:
                raise ValueError(
                    "`end_ids` are where an encoder-decoder is read, and the backbone is of kind "
                    f"{self.backbone.config.kind!r}: leave them out."
                )
            return None
        if end_ids is None:
            end = None if self.tokenizer is None else self.tokenizer.end_id
            return [] if end is None else [end]
        return list(check_ids("end_ids", end_ids))

    def global_positions(self, inputs):
        """The first token, whose state is read (Beltagy et al. 2020, "Longformer", section 3.1)."""
        return ops.zeros((1, 1), "int32") if self.first_only else None

    def head_outputs(self, states, inputs, training: bool):
        if self.first_only:
            state = self.backbone.pool(states) if self.hidden_dense is None else states[:, 0]
        else:
            mask = inputs.get("padding_mask")
            if self.end_ids and self.pooling == "last":
                mask = mask_of_ids(inputs["token_ids"], mask, self.end_ids)
            state = pool(states, mask, self.pooling)
        if self.hidden_dense is not None:
            state = self.hidden(self.dropout_layer(state, training=training))
        return self.output_dense(self.dropout_layer(state, training=training))

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Texts, or a tuple of two lists for pairs, as batches. See `Task.make_dataset`."""
        max_length = take_max_length(self, options)
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

        of_file = getattr(x, "class_names", None)
        columns, names, labels = encode_rows(
            self,
            texts,
            segmented_rows(self, max_length),
            with_labels=isinstance(x, Records) and x.y is not None,
            check_label=lambda label: self._targets(
                by_name([label], of_file, self.labels), 1, of_file=True
            ),
            max_length=max_length,
        )
        values = {}
        if names is not None:
            names = by_name(names, of_file, self.labels)
            values["labels"] = self._targets(names, len(names), of_file=True)[labels]
        elif y is not None:
            values["labels"] = self._targets(y, len(columns["token_ids"]))
        weights = check_weights("sample_weight", sample_weight, len(columns["token_ids"]))
        if weights is not None and values:
            values["sample_weight"] = weights
        return token_batches(self, columns, values=values, **options)

    @reads
    def classify(
        self,
        texts,
        batch_size: int | None = None,
        top_k: int | None = None,
        threshold: float | None = None,
    ) -> list:
        """The likeliest class of each text and its probability; or several.

        Args:
            texts: as for `predict`; or a string, or for a pair a tuple of two.
            batch_size: int.
            top_k: int, the likeliest classes of each text; `num_classes` or more for all.
            threshold: float, classes below this probability are left out. Defaults, with
                `multi_label` and without `top_k`, to 0.5.

        Returns:
            One `(label, probability)` a text, or, with `top_k`, `threshold` or `multi_label`, a
            list of them, the likeliest first; for a string its result alone.

        Raises:
            ValueError: for a regression, which has no classes.
        """
        texts = tuple(map(text_alone, texts)) if isinstance(texts, tuple) else text_alone(texts)
        sides = texts if isinstance(texts, tuple) and texts else (texts,)
        alone = all(isinstance(side, str) for side in sides)
        if alone:
            texts = tuple([side] for side in sides) if isinstance(texts, tuple) else [texts]
        return self.likeliest(texts, batch_size, top_k, threshold, alone)

    @classmethod
    def head_values(cls, config: TransformerConfig, values: dict[str, Any]) -> dict[str, Any]:
        usual = "first" if config.kind == "encoder" else "last"
        both = config.kind == "seq2seq"
        return {
            **super().head_values(config, values),
            "pooling": values.get("pooling") or usual,
            "start_id": values.get("start_id") if both else None,
            "end_ids": tuple(values.get("end_ids") or ()) if both else (),
        }
