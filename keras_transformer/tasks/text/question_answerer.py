"""Extractive question answering: answers are spans of a context."""

import functools
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np
import tokenizers
from keras import ops

from keras_transformer.checkpoints.heads import SEPARATOR
from keras_transformer.config import TransformerConfig
from keras_transformer.config.structure import SPAN_HEAD, feed_forward_of_head, shapes_of
from keras_transformer.data import BucketedDataset, Records
from keras_transformer.layers.position import sequence_positions
from keras_transformer.models.backbone import Backbone, as_mask
from keras_transformer.models.runtime.read_write_lock import reads
from keras_transformer.support.checking import (
    check_bool,
    check_int,
    check_number,
    describe,
    is_int,
    shorten,
)
from keras_transformer.support.columns import text_alone
from keras_transformer.tasks.base.head import (
    HIDDEN_OPTIONS,
    PER_TOKEN,
    FeedForwardSubLayer,
    Head,
    hidden_values,
    hidden_weights,
    optional_hidden,
    softmax,
)
from keras_transformer.tasks.base.input_adapter import shared_text_adapter
from keras_transformer.tasks.base.task import Task
from keras_transformer.tasks.data.labels import check_weights
from keras_transformer.tasks.data.text import (
    character_spans,
    pair_rows,
    split_windows,
    take_max_length,
    target_rows,
    text_rows,
    tokenizer_of,
    window_batches,
)
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.training import FineTuningAdamW
from keras_transformer.training.losses.losses import token_cross_entropy


class Answer(NamedTuple):
    """A span `context[start:end]`; its score is its start probability times its end probability."""

    text: str
    score: float
    start: int
    end: int


# At most this many question tokens get global attention.
_LONGEST_QUESTION = 256


class SpanHead(Head):
    """A linear layer on every state: the logits of the start and the end of a span.

    Args:
        task: as for `Head`.
        dropout, separator_id, feed_forward, mask_question: as for `QuestionAnswerer`.
        hidden_activation, hidden_bias, block_norm: as for `ClassHead`.
    """

    options = (
        "dropout", "separator_id", *HIDDEN_OPTIONS, "start_id", "feed_forward", "mask_question",
    )  # fmt: skip
    published_as = ("ForQuestionAnswering",)
    published_options = (SEPARATOR,)
    predicts_by_tokens = True
    needs_labels = learns_spans = True
    takes_records = False
    predict_options: ClassVar = PER_TOKEN

    def __init__(
        self,
        task,
        dropout: float,
        separator_id: int | None,
        hidden_activation: str | None,
        hidden_bias: bool,
        block_norm: bool,
        feed_forward: bool,
        mask_question: bool,
    ):
        super().__init__(task)
        self.start_id = None if task.input_adapter is None else task.input_adapter.start_id
        most = task.input_interface.config.vocabulary_size - 1
        self.separator_id = check_int("separator_id", separator_id, 0, most, none=True)
        self.mask_question = check_bool("mask_question", mask_question)
        if self.mask_question and separator_id is None:
            raise ValueError(
                "`mask_question` needs `separator_id`, the token that ends a question."
            )
        self.dropout = check_number("dropout", dropout, at_least=0, below=1)
        self.keep(dropout_layer=self.make_dropout(self.dropout))
        self.hidden = optional_hidden(self, hidden_activation, hidden_bias, block_norm)
        self.feed_forward = check_bool("feed_forward", feed_forward)
        self.sub_layer = FeedForwardSubLayer(self) if self.feed_forward else None
        self.keep(output_dense=self.make_dense(2, "output"))

    def __call__(self, states, inputs, training: bool = False):
        states = states if self.hidden is None else self.hidden(states)
        dropout = functools.partial(self.dropout_layer, training=training)
        states = dropout(states) if self.sub_layer is None else self.sub_layer(states, dropout)
        logits = self.output_dense(states)
        mask = as_mask(inputs["token_ids"], inputs.get("padding_mask"))
        if self.mask_question:
            places = sequence_positions(logits)
            mask = mask & ((places == 0) | (places > self._question_ends(inputs)))
        return ops.where(ops.expand_dims(mask, -1), ops.cast(logits, "float32"), -1e9)

    def usual(self) -> dict[str, Any]:
        return {
            "optimizer": FineTuningAdamW(),
            "loss": SpanCrossEntropy(),
            "metrics": [SpanAccuracy()],
        }

    def global_positions(self, inputs):
        """Return the positions of the question: the tokens before the first separator."""
        if self.separator_id is None:
            return None
        ids, ends = inputs["token_ids"], self._question_ends(inputs)
        longest = ids.shape[1] or _LONGEST_QUESTION
        places = ops.arange(min(longest, _LONGEST_QUESTION), dtype="int32")[None]
        return ops.where(places < ends, places, -1)

    def _question_ends(self, inputs):
        """Return the position of the first separator of each row, int `(batch, 1)`, or 0."""
        separators = ops.cast(ops.equal(inputs["token_ids"], self.separator_id), "int32")
        return ops.cast(ops.argmax(separators, axis=1), "int32")[:, None]

    @classmethod
    def weight_values(cls, config: TransformerConfig, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **hidden_values(values),
            "start_id": values.get("start_id") if config.kind == "seq2seq" else None,
            "feed_forward": bool(values.get("feed_forward")),
            "mask_question": bool(values.get("mask_question")),
        }

    @classmethod
    def weight_shapes(
        cls, config: TransformerConfig, values: Mapping[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        read = config.sides[-1]  # the side whose states the head reads
        further = feed_forward_of_head(read) if values.get("feed_forward") else ()
        weights = (*hidden_weights(read, values), *further, *SPAN_HEAD)
        return shapes_of(weights, read, num_ends=2)


@keras.saving.register_keras_serializable(package="keras_transformer")
class QuestionAnswerer(Task):
    """An encoder that marks where in a context the answer to a question starts and ends.

    An encoder-decoder gets question and context on both sides, shifted by one for the decoder,
    and the head reads the decoder's states (BART, T5).

    `fit` takes as `x` a tuple of questions and contexts. For each pair `y` has the character
    positions `(start, end)` of the answer in its context, or `(start, text)`, or None if there is
    no answer: the target is then the first token. A context too long for the model is split into
    overlapping windows; a window without the whole answer has no answer.

    Compiled with AdamW (5e-5), the mean of the cross-entropies of start and end position, and the
    fraction of exact matches; `compile` changes this.

    Args:
        backbone, tokenizer, name: as for `Task`.
        dropout: float, dropout rate of the states.
        separator_id: int, the token between question and context. In a model with global
            projections (Longformer) the first 256 tokens of the question get global attention.
        hidden_activation: str, the activation of a hidden layer as wide as the states, see
            `layers.FeedForward`. Defaults to no hidden layer.
        hidden_bias: bool, whether the hidden layer has a bias.
        block_norm: bool, normalize the output of the hidden layer, with the same kind of
            normalization as the blocks (ModernBERT).
        start_id: int, for an encoder-decoder: the token that its decoder starts from. Defaults to
            the last token of each row.
        feed_forward: bool, a feed-forward sub-layer like the blocks', with a normalized residual,
            before the output (BigBird).
        mask_question: bool, also set the logits of the question to -1e9: all tokens up to the first
            `separator_id`, except the first of the row (BigBird).

    Call arguments:
        inputs: dict with `token_ids`, `padding_mask` and optionally `segment_ids`, as for
            `Encoder`, for any backbone.

    Returns:
        Float32 `(batch, length, 2)`: a start and an end logit for each token, -1e9 at padding.

    Raises:
        ValueError: if the activation is unknown, the backbone is a decoder, `mask_question` is set
            without `separator_id`, or texts are packed in a row of an encoder-decoder.

    Example:
    ```python
    import keras_transformer as kt

    questions = ["who rides a bike ?", "where do dogs run ?"]
    contexts = ["a man rides a bike .", "two dogs run on the grass ."]
    answerer = kt.QuestionAnswerer.from_preset("minilm_l6_en")
    answerer.fit((questions, contexts), [(0, 5), (13, "on the grass")], epochs=1, verbose=0)
    answer = answerer.answer(questions[0], contexts[0])
    assert answer.text == contexts[0][answer.start : answer.end]
    ```

    Source: Devlin et al. 2018, "BERT", sections 4.2 and 4.3.
    """

    alias = "question_answering"
    backbone_kinds = ("encoder", "seq2seq")
    head_class = SpanHead
    task_options = SpanHead.options

    # Values of the head.
    dropout: float
    separator_id: int | None
    hidden_activation: str | None
    hidden_bias: bool
    block_norm: bool
    start_id: int | None
    feed_forward: bool
    mask_question: bool

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer | None = None,
        dropout: float = 0.0,
        separator_id: int | None = None,
        name: str | None = None,
        hidden_activation: str | None = None,
        hidden_bias: bool = True,
        block_norm: bool = False,
        start_id: int | None = None,
        feed_forward: bool = False,
        mask_question: bool = False,
    ):
        super().__init__(backbone, tokenizer, name=name)
        self.input_adapter = shared_text_adapter(backbone, start_id)
        self.set_head(
            dropout=dropout,
            separator_id=separator_id,
            hidden_activation=hidden_activation,
            hidden_bias=hidden_bias,
            block_norm=block_norm,
            feed_forward=feed_forward,
            mask_question=mask_question,
        )

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Batch pairs of question and context. See `Task.make_dataset`.

        With `y` a long context gives several rows; without `y`, one row, truncated at the end.
        """
        max_length = take_max_length(self, options)
        questions, contexts = _pairs(x)
        encodings = tokenizer_of(self).encode_batch_with_offsets(questions, contexts)
        chosen = _windows(encodings, max_length)
        if y is None:
            firsts = dict(reversed(chosen))
            chosen = [(i, firsts[i]) for i in range(len(encodings))]
            return window_batches(self, encodings, chosen, **options)

        rows = target_rows(y, len(contexts), "an answer, or None,", "pairs")
        answers = [
            _answer_tokens(row, context, encoding, f"y[{i}]")
            for i, (row, context, encoding) in enumerate(
                zip(rows, contexts, encodings, strict=True)
            )
        ]
        targets = np.zeros((len(chosen), 2), "int32")
        for target, (i, places) in zip(targets, chosen, strict=True):
            if answers[i] is not None and np.isin(answers[i], places).all():
                target[:] = np.searchsorted(places, answers[i])
        values = {"targets": targets}
        if sample_weight is not None:
            weights = check_weights("sample_weight", sample_weight, len(contexts), unit="pair")
            values["weights"] = weights[[i for i, _ in chosen]]

        return window_batches(self, encodings, chosen, values=values, **options)

    @reads
    def answer(
        self,
        questions,
        contexts,
        top_k: int = 1,
        max_answer_tokens: int = 15,
        allow_no_answer: bool = False,
        batch_size: int | None = None,
    ):
        """Return the most likely answers to questions, each a span of its context.

        The score of a span is the probability of its first token as start times the probability of
        its last token as end. Probabilities are over the tokens of the context and the first token
        of the row, which stands for "no answer". If a context has several windows, the best score
        counts.

        Args:
            questions: a string, or a list of strings.
            contexts: a string, or a list of strings. One context can serve a list of questions, and
                one question a list of contexts.
            top_k: int, the number of answers to each question.
            max_answer_tokens: int, the longest answer, in tokens.
            allow_no_answer: bool, include "no answer", an `Answer` without text.
            batch_size: int, the number of pairs or windows computed together. Defaults to 32.

        Returns:
            For each pair an `Answer`; if `top_k` is above 1, a list of at most `top_k` answers, the
            most likely first. If both arguments are strings, the result of the only pair.

        Raises:
            ValueError: if the texts do not pair up, or a context has no token.
        """
        top_k = check_int("top_k", top_k, at_least=1)
        max_answer_tokens = check_int("max_answer_tokens", max_answer_tokens, at_least=1)
        allow_no_answer = check_bool("allow_no_answer", allow_no_answer)
        questions, contexts = text_alone(questions), text_alone(contexts)
        alone = isinstance(questions, str) and isinstance(contexts, str)
        if isinstance(questions, str):
            questions = [questions] * (1 if alone else len(text_rows(contexts, "contexts")))
        if isinstance(contexts, str):
            contexts = [contexts] * len(text_rows(questions, "questions"))
        questions, contexts = _pairs((questions, contexts), ("questions", "contexts"))
        encodings = tokenizer_of(self).encode_batch_with_offsets(questions, contexts)
        chosen = _windows(encodings, self.input_interface.config.max_sequence_length)
        dataset = window_batches(self, encodings, chosen, **self.to_predict(batch_size))
        found: list[dict[tuple[int, int], float]] = [{} for _ in encodings]
        no_answer = np.ones(len(encodings))
        for (i, places), logits in zip(chosen, self._row_outputs(dataset), strict=True):
            inside = np.equal(encodings[i].sequence_ids, 1)[places]
            offsets = np.asarray(character_spans(contexts[i], encodings[i]))[places[inside]]
            no_score, scores = _span_scores(logits[: len(places)], inside, max_answer_tokens)
            no_answer[i] = min(no_answer[i], no_score)
            for span, score in _best_spans(scores, offsets, contexts[i], top_k).items():
                found[i][span] = max(score, found[i].get(span, 0.0))
        results = []
        for context, spans, no_score in zip(contexts, found, no_answer, strict=True):
            answers = _answers(context, spans, float(no_score) if allow_no_answer else None)
            results.append(answers[:top_k] if top_k > 1 else answers[0])
        return results[0] if alone else results


def _pairs(x, names: tuple[str, str] = ("x[0]", "x[1]")) -> tuple[list[str], list[str]]:
    if isinstance(x, Records):
        text_rows(x)  # raises an error that names the tasks that take records
    if not isinstance(x, tuple) or len(x) != 2:
        several = isinstance(x, (list, tuple))
        given = f"{len(x)} texts in a {type(x).__name__}" if several else describe(x)
        raise ValueError(
            f"QuestionAnswerer takes a tuple of two lists, (questions, contexts), received {given}."
        )
    questions, contexts = pair_rows(*x, names, ("questions", "contexts"))
    for i, context in enumerate(contexts):
        if not context.strip():
            raise ValueError(f"`{names[1]}[{i}]` is empty: a context needs text. Remove the pair.")
    return questions, contexts


def _windows(encodings: list[tokenizers.Encoding], max_length: int) -> list[tuple[int, np.ndarray]]:
    """Return the windows of all pairs: the index of the pair, and the positions of its tokens."""
    chosen = []
    for i, encoding in enumerate(encodings):
        number = encoding.sequence_ids.count(1)
        if not number:
            raise ValueError(f"The tokenizer finds no token in the context of pair {i}.")
        if len(encoding) - number >= max_length:
            raise ValueError(
                f"The question of pair {i} takes {len(encoding) - number} of {max_length} tokens: "
                "there is no room for its context. Shorten it."
            )
        chosen += [(i, places) for places in split_windows(encoding, 1, max_length)]
    return chosen


def _answer_tokens(
    answer, context: str, encoding: tokenizers.Encoding, place: str
) -> tuple[int, int] | None:
    """Return the first and last token of an answer, or None without an answer."""
    if answer is None:
        return None
    start, end = answer if isinstance(answer, (list, tuple)) and len(answer) == 2 else (None, None)
    if not is_int(start) or not (is_int(end) or isinstance(end, str)):
        raise ValueError(
            f"`{place}` must be None, (start, end) or (start, text), in characters of the context, "
            f"received {describe(answer)}."
        )
    start, end = int(start), end if isinstance(end, str) else int(end)
    if isinstance(end, str):
        found = context[max(start, 0) : max(start, 0) + len(end)]
        if found != end:
            raise ValueError(
                f"`{place}`: the context has {shorten(found)} at {start}, but the answer is "
                f"{shorten(end)}."
            )
        end = start + len(end)
    if not 0 <= start < end <= len(context):
        raise ValueError(
            f"`{place}` must be within the context, which has {len(context)} characters, received "
            f"{shorten(answer)}."
        )
    spans = character_spans(context, encoding)
    tokens = [
        token
        for token, side in enumerate(encoding.sequence_ids)
        if side == 1 and spans[token][0] < end and start < spans[token][1]
    ]
    if not tokens:
        raise ValueError(
            f"`{place}` must include a token of the context, received "
            f"{shorten(context[start:end])}."
        )
    return tokens[0], tokens[-1]


def _span_scores(logits, inside, max_answer_tokens: int) -> tuple[float, np.ndarray]:
    """Return the score of "no answer", and the scores of spans `(tokens, max_answer_tokens)`.

    Scores are by first token and length - 1; a span that ends beyond the context has -1.
    """
    allowed = inside.copy()
    allowed[0] = True
    start, end = softmax(np.where(allowed, logits.T, -np.inf))
    no_score = 0.0 if inside[0] else float(start[0] * end[0])
    start, end = start[inside], end[inside]
    lengths = min(max_answer_tokens, len(end))
    ends = np.pad(end, (0, lengths - 1))
    scores = start[:, None] * np.lib.stride_tricks.sliding_window_view(ends, lengths)
    beyond = np.add.outer(np.arange(len(end)), np.arange(lengths)) >= len(end)
    return no_score, np.where(beyond, -1.0, scores)


def _best_spans(
    scores: np.ndarray, offsets: np.ndarray, context: str, top_k: int
) -> dict[tuple[int, int], float]:
    """Return the characters of the most likely distinct spans, and their scores."""
    best: dict[tuple[int, int], float] = {}
    for place in np.argsort(-scores, axis=None, kind="stable"):
        first, more = np.unravel_index(place, scores.shape)
        score = float(scores[first, more])
        if score < 0 or len(best) == top_k:
            break
        start, end = int(offsets[first, 0]), int(offsets[first + more, 1])
        text = context[start:end]
        if text and not text.isspace():  # A token at either end may be white space.
            start += len(text) - len(text.lstrip())
            best.setdefault((start, start + len(text.strip())), score)
    return best


def _answers(context: str, spans: dict, no_score: float | None) -> list[Answer]:
    """Return spans as answers, the best first; `no_score` adds "no answer"."""
    answers = [Answer(context[a:b], score, a, b) for (a, b), score in spans.items()]
    if no_score is not None:
        answers.append(Answer("", no_score, 0, 0))
    return sorted(answers, key=lambda answer: -answer.score)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SpanCrossEntropy(keras.losses.Loss):
    """The mean of the cross-entropies of the start and the end position of a span.

    Targets are int positions `(batch, 2)`, outputs are logits `(batch, length, 2)`.

    Source: Devlin et al. 2018, "BERT", section 4.2.
    """

    def __init__(self, reduction="sum_over_batch_size", name: str = "span_cross_entropy"):
        super().__init__(name=name, reduction=reduction, dtype="float32")

    def call(self, y_true, y_pred):
        losses = token_cross_entropy(y_true, ops.transpose(y_pred, (0, 2, 1)))
        return ops.mean(losses, axis=-1)


def exact_match(y_true, y_pred):
    """Return 1.0 if both positions `(batch, 2)` are the argmax of logits `(batch, length, 2)`."""
    right = ops.equal(ops.argmax(y_pred, axis=1), ops.cast(y_true, "int32"))
    return ops.cast(ops.all(right, axis=-1), "float32")


@keras.saving.register_keras_serializable(package="keras_transformer")
class SpanAccuracy(keras.metrics.MeanMetricWrapper):
    """The fraction of rows whose start and end position are both right."""

    _direction = "up"

    def __init__(self, name: str = "accuracy", dtype=None):
        super().__init__(exact_match, name=name, dtype=dtype)

    def get_config(self) -> dict:
        return {"name": self.name, "dtype": self.dtype}
