"""Classification and regression of texts or pairs of texts."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.data import BucketedDataset, Records
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.runtime.read_write_lock import changes, reads
from keras_transformer.support.checking import check_choice, check_ids
from keras_transformer.support.columns import text_alone
from keras_transformer.tasks.base.input_adapter import shared_text_adapter
from keras_transformer.tasks.base.pooling import POOLINGS, mask_of_ids, pool
from keras_transformer.tasks.base.task import Task
from keras_transformer.tasks.data.labels import by_name, check_weights
from keras_transformer.tasks.data.text import (
    encode_rows,
    segmented_rows,
    take_max_length,
    text_rows,
    token_batches,
)
from keras_transformer.tasks.heads.class_head import RowHead
from keras_transformer.tasks.text.preferring import fit_preferences, preference_dataset
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.training import BradleyTerry

# Mean of the outputs of the hidden layer, which then reads the state of each token.
MEAN_HIDDEN = "mean_hidden"


class TextClassHead(RowHead):
    """The head of `TextClassifier`: a linear layer on one state of each text.

    Args:
        task: as for `Head`.
        pooling, end_ids: as for `TextClassifier`.
        **classes: as for `RowHead`.
    """

    options = (*RowHead.options, "pooling", "start_id", "end_ids")
    published_as = ("ForSequenceClassification",)
    reads_pooler = True
    reads_padding = False
    predicts_by_tokens = True

    def __init__(self, task, pooling: str | None = None, end_ids=None, **classes):
        super().__init__(task, **classes)
        config = task.backbone.config
        self.start_id = None if task.input_adapter is None else task.input_adapter.start_id
        self.end_ids = _end_ids(task, end_ids)
        pooling = self.weight_values(config, {"pooling": pooling})["pooling"]
        self.pooling = check_choice("pooling", pooling, (*POOLINGS, MEAN_HIDDEN))
        if self.pooling == MEAN_HIDDEN and self.hidden is None:
            raise ValueError(
                "pooling='mean_hidden' needs a hidden layer: give `hidden_activation`."
            )
        self.first_only = config.kind == "encoder" and self.pooling == "first"
        use_bias = config.kind != "decoder"
        self.keep(output_dense=self.make_dense(self.num_classes, "output", use_bias=use_bias))

    def __call__(self, states, inputs, training: bool = False):
        if self.first_only:
            state = self.task.backbone.pool(states) if self.hidden is None else states[:, 0]
        else:
            mask = inputs.get("padding_mask")
            if self.end_ids and self.pooling == "last":
                mask = mask_of_ids(inputs["token_ids"], mask, self.end_ids)
            if self.pooling == MEAN_HIDDEN:
                states = self.hidden(self.dropout_layer(states, training=training))
                state = pool(states, mask, "mean")
            else:
                state = pool(states, mask, self.pooling)
        if self.hidden is not None and self.pooling != MEAN_HIDDEN:
            state = self.hidden(self.dropout_layer(state, training=training))
        return self.output_dense(self.dropout_layer(state, training=training))

    def global_positions(self, inputs):
        """Return the position of the first token if it is pooled.

        Source: Beltagy et al. 2020, "Longformer", section 3.1.
        """
        return ops.zeros((1, 1), "int32") if self.first_only else None

    @classmethod
    def weight_values(cls, config: TransformerConfig, values: Mapping[str, Any]) -> dict[str, Any]:
        usual = "first" if config.kind == "encoder" else "last"
        both = config.kind == "seq2seq"
        return {
            **super().weight_values(config, values),
            "pooling": values.get("pooling") or usual,
            "start_id": values.get("start_id") if both else None,
            "end_ids": tuple(values.get("end_ids") or ()) if both else (),
        }


def _end_ids(task: Task, end_ids) -> list[int] | None:
    """Return the end ids of an encoder-decoder, or None if the backbone has a single side."""
    if task.input_adapter is None:
        if end_ids:
            raise ValueError(
                "`end_ids` are the tokens whose states are pooled in an encoder-decoder, but the "
                f"backbone is of kind {task.backbone.config.kind!r}: leave them out."
            )
        return None
    if end_ids is None:
        end = None if task.tokenizer is None else task.tokenizer.end_id
        return [] if end is None else [end]
    return list(check_ids("end_ids", end_ids))


@keras.saving.register_keras_serializable(package="keras_transformer")
class TextClassifier(Task):
    """A backbone with a linear layer on one state of each text, which gives the logits of classes.

    The state of an encoder is that of the first token, passed through the backbone's pooler if it
    has one. The state of a decoder is that of the last token, and the linear layer has no bias, as
    in published decoders. An encoder-decoder gets the text on both sides, shifted by one for the
    decoder, and the state is the decoder's at the last end token (BART, T5).

    With `hidden_activation` the head has a hidden layer, and the pooler is not used (RoBERTa,
    DistilBERT, ELECTRA). With `pooling="mean"`, which suits sentence encoders, the state is the
    mean over the tokens, and the pooler is not used either.

    Labels are class names (with `labels`) or numbers, or for each text a row of class
    probabilities: one-hot or soft labels. A label is looked up as a name first: with
    `labels=["1", "2"]` the label 1 is the first class. With `multi_label` a text can have any
    number of classes: its label is a list of names or numbers, or a row of 0 and 1; a task with a
    single class then decides whether it applies. With `num_classes=1` and no `multi_label` the task
    is a regression: labels are numbers, and `predict` returns numbers.

    Compiled with AdamW (5e-5), cross-entropy (with `multi_label` binary cross-entropy of each
    class) and accuracy; as a regression with the mean squared error; `compile` changes this.

    Args:
        backbone, tokenizer, name: as for `Task`.
        num_classes: int, 1 for a regression. Defaults to the number of `labels`.
        labels: list of class names, in the order of the class numbers.
        dropout: float, rate before the last layer. Defaults to the backbone's.
        hidden_activation: str, the activation of a hidden layer as wide as the state, see
            `layers.FeedForward`. Defaults to no hidden layer.
        pooling: str, how the states of tokens are pooled, see `TextEmbedder`; or `"mean_hidden"`:
            the hidden layer reads the state of each token, and the mean of its outputs is taken
            (EuroBERT). Defaults to `"first"` for an encoder and `"last"` for a decoder or
            encoder-decoder.
        multi_label: bool, whether a text can have several classes.
        hidden_bias: bool, whether the hidden layer has a bias.
        block_norm: bool, normalize the output of the hidden layer, with the same kind of
            normalization as the blocks (ModernBERT).
        start_id: int, for an encoder-decoder: the token that its decoder starts from. Defaults to
            the last token of each row.
        end_ids: list of int, for an encoder-decoder with `pooling="last"`: the state is taken at
            the last of these tokens in a row, or at the last token of a row without any of them.
            Defaults to the tokenizer's end id.

    Call arguments:
        inputs: dict with `token_ids`, `padding_mask` and optionally `segment_ids`, as for
            `Encoder`, for any backbone.

    Returns:
        Float `(batch, num_classes)`.

    Raises:
        ValueError: if the number of classes is missing, labels disagree with `num_classes`, an
            activation or pooling is unknown, or texts are packed in a row of an encoder-decoder.

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

    alias = "text_classification"
    backbone_kinds = ("encoder", "decoder", "seq2seq")
    head_class = TextClassHead
    task_options = TextClassHead.options

    # Values of the head.
    num_classes: int
    labels: list[str] | None
    dropout: float
    hidden_activation: str | None
    hidden_bias: bool
    block_norm: bool
    multi_label: bool
    pooling: str
    start_id: int | None
    end_ids: list[int] | None
    adversarial_norm: float

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
        super().__init__(backbone, tokenizer, name=name)
        self.input_adapter = None
        if backbone.config.kind == "seq2seq" or start_id is not None:
            self.input_adapter = shared_text_adapter(backbone, start_id)
        self.set_head(
            num_classes=num_classes,
            labels=labels,
            dropout=dropout,
            multi_label=multi_label,
            hidden_activation=hidden_activation,
            hidden_bias=hidden_bias,
            block_norm=block_norm,
            pooling=pooling,
            end_ids=end_ids,
        )

    @property
    def label_names(self) -> list[str]:
        """The name of each class; the number as a string if there are no `labels`."""
        return self.head.label_names

    @property
    def is_regression(self) -> bool:
        """True if targets are numbers: one output, which is not a class."""
        return self.head.is_regression

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Batch texts, or a tuple of two lists for pairs. See `Task.make_dataset`."""
        max_length = take_max_length(self, options)
        texts = x
        if not isinstance(x, Records):
            texts = x if isinstance(x, tuple) else (x,)
            if len(texts) > 2:
                raise ValueError(
                    f"A tuple must be a pair of lists of texts, received {len(texts)} parts. Put "
                    "single texts in a list."
                )
            names = ("x",) if len(texts) == 1 else ("x[0]", "x[1]")
            texts = tuple(text_rows(p, n) for p, n in zip(texts, names, strict=True))

        of_file = getattr(x, "class_names", None)
        columns, names, labels = encode_rows(
            self,
            texts,
            segmented_rows(self, max_length),
            with_labels=isinstance(x, Records) and x.y is not None,
            check_label=lambda label: self.head.targets(
                by_name([label], of_file, self.labels), 1, of_file=True
            ),
            max_length=max_length,
        )
        values = {}
        if names is not None:
            names = by_name(names, of_file, self.labels)
            values["labels"] = self.head.targets(names, len(names), of_file=True)[labels]
        elif y is not None:
            values["labels"] = self.head.targets(y, len(columns["token_ids"]))
        weights = check_weights("sample_weight", sample_weight, len(columns["token_ids"]))
        if weights is not None and values:
            values["sample_weight"] = weights
        return token_batches(self, columns, values=values, **options)

    @changes
    def fit_preferences(
        self,
        prompts,
        chosen=None,
        rejected=None,
        *,
        loss: BradleyTerry | None = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int | str = "auto",
        callbacks=None,
        validation_data=None,
        shuffle: bool = True,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_freq=1,
        max_length: int | None = None,
        seed: int | None = None,
    ) -> keras.callbacks.History:
        """Train a reward model: a text's number is larger, the better the text.

        The task needs `num_classes=1`. `predict` returns the rewards of texts, which for these are
        the prompt and its completion joined. Dropout is off.

        Args:
            prompts: as for `CausalLM.fit_preferences`.
            chosen: list of the better completions, strings or lists of messages.
            rejected: list of the worse completions.
            loss: `training.BradleyTerry`. Defaults to `BradleyTerry()`.
            batch_size: int, the number of pairs in a batch. Defaults to 32.
            epochs: as for `fit`.
            verbose: as for `fit`.
            callbacks: as for `fit`.
            validation_data: as for `CausalLM.fit_preferences`.
            shuffle: as for `fit`.
            initial_epoch: as for `fit`.
            steps_per_epoch: as for `fit`.
            validation_steps: as for `fit`.
            validation_freq: as for `fit`.
            max_length: int, the number of tokens that longer texts are truncated to, as for `fit`.
            seed: as for `fit`.

        Returns:
            A `keras.callbacks.History` with `loss`; `accuracy`, the share of pairs whose chosen
            text has the larger number; `chosen_reward` and `rejected_reward`, their means; and
            `margin`, the difference.

        Raises:
            ValueError: if the task has several classes or is quantized, or rows are invalid.

        Example:
        ```python
        import keras_transformer as kt

        reward_model = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=1)
        history = reward_model.fit_preferences(
            ["How was it? "] * 2, ["Good.", "Fine."], ["Go away.", "No."], verbose=0
        )
        rewards = reward_model.predict(["How was it? Good.", "How was it? No."], verbose=0)
        assert rewards.shape == (2, 1) and "accuracy" in history.history
        ```

        Source: Ouyang et al. 2022, "InstructGPT", section 3.5.
        """
        return fit_preferences(
            self, prompts, chosen, rejected, loss, "auto", validation_data,
            batch_size=batch_size, max_length=max_length, shuffle=shuffle, seed=seed,
            epochs=epochs, verbose=verbose, callbacks=callbacks, initial_epoch=initial_epoch,
            steps_per_epoch=steps_per_epoch, validation_steps=validation_steps,
            validation_freq=validation_freq,
        )  # fmt: skip

    def make_preference_dataset(
        self, prompts, chosen=None, rejected=None, *, loss: BradleyTerry | None = None, **options
    ) -> BucketedDataset:
        """Convert preferences to batches, see `CausalLM.make_preference_dataset`."""
        return preference_dataset(self, prompts, chosen, rejected, loss, **options)

    @reads
    def classify(
        self,
        texts,
        batch_size: int | None = None,
        top_k: int | None = None,
        threshold: float | None = None,
    ) -> list:
        """Return the most likely class of each text with its probability, or several.

        Args:
            texts: as for `predict`; or a string, or a tuple of two strings for a pair.
            batch_size: int, the number of texts computed together, as for `predict`.
            top_k: int, the number of most likely classes to return for each text; `num_classes` or
                more returns all.
            threshold: float, drop classes with a lower probability. Defaults to 0.5 with
                `multi_label` and without `top_k`.

        Returns:
            A `(label, probability)` for each text, or, with `top_k`, `threshold` or `multi_label`,
            a list of them, the most likely first. For a string, or a tuple of two, only its result.

        Raises:
            ValueError: if the task is a regression, which has no classes.
        """
        texts = tuple(map(text_alone, texts)) if isinstance(texts, tuple) else text_alone(texts)
        sides = texts if isinstance(texts, tuple) and texts else (texts,)
        alone = all(isinstance(side, str) for side in sides)
        if alone:
            texts = tuple([side] for side in sides) if isinstance(texts, tuple) else [texts]
        return self.head.top_classes(texts, batch_size, top_k, threshold, alone)
