"""Extractive question answering: spans of a context."""

import functools
from typing import ClassVar, NamedTuple

import keras
import numpy as np
import tokenizers
from keras import ops

from keras_transformer.checking import (
    check_bool,
    check_int,
    check_number,
    describe,
    is_int,
    shorten,
)
from keras_transformer.checkpoints.heads import SEPARATOR
from keras_transformer.columns import text_alone
from keras_transformer.data import BucketedDataset, Records
from keras_transformer.data.dataset import check_batch
from keras_transformer.layers.position import sequence_positions
from keras_transformer.models.backbone import Backbone, as_mask
from keras_transformer.models.turns import reads
from keras_transformer.structure import FEED_FORWARD_OF_HEAD, SPAN_HEAD, shapes_of
from keras_transformer.tasks.hidden import OptionalFeedForward, OptionalHidden
from keras_transformer.tasks.labels import check_weights
from keras_transformer.tasks.one_input import one_text
from keras_transformer.tasks.spans import SpanAccuracy, SpanCrossEntropy
from keras_transformer.tasks.task import PER_TOKEN, Task, softmax
from keras_transformer.tasks.text import (
    character_spans,
    pair_rows,
    take_max_length,
    target_rows,
    text_rows,
    tokenizer_of,
    window_batches,
    windows,
)
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.training import FineTuningAdamW


class Answer(NamedTuple):
    """A span `context[start:end]`; its score is that of its first token times its last's."""

    text: str
    score: float
    start: int
    end: int


# The tokens of a question that see all the others.
_LONGEST_QUESTION = 256


@keras.saving.register_keras_serializable(package="keras_transformer")
class QuestionAnswerer(OptionalHidden, OptionalFeedForward, Task):
    """An encoder that marks where in a context the answer to a question starts and ends.

    An encoder-decoder is given question and context on both sides, the decoder's shifted by one,
    and the states of the decoder are read (BART, T5).

    `fit` takes, as `x`, a tuple of questions and contexts and, as `y`, for each pair the
    characters `(start, end)` of the answer in its context, or `(start, text)`, or None if it is
    not there: then the target is the first token. A context too long for the model is split into
    overlapping windows; a window without the whole answer has no answer.

    Compiled with AdamW (5e-5), the mean of the two cross-entropies over the positions, and the
    share of exact matches; `compile` changes that.

    Args:
        backbone, tokenizer, name: as for `Task`.
        dropout: float, rate on the states.
        separator_id: int, the token between question and context. In a model with global
            projections (Longformer) the tokens of the question are global, its first 256.
        hidden_activation: str, the activation of a hidden layer of the states' width, see
            `layers.FeedForward`. Defaults to no such layer.
        hidden_bias: bool, a bias of that layer.
        block_norm: bool, a normalization after it, of the kind of the blocks' (ModernBERT).
        start_id: int, of an encoder-decoder: the token that its decoder starts from. Defaults to
            the last token of each row.
        feed_forward: bool, a feed-forward sub-layer as the blocks have, its sum normalized, in
            front of the output (BigBird).
        mask_question: bool, logits of -1e9 at the question too: at all tokens up to the first
            `separator_id` except the first of the row (BigBird).

    Call arguments:
        inputs: dict of `token_ids`, `padding_mask` and optionally `segment_ids`, as for `Encoder`,
            whatever the backbone.

    Returns:
        Float32 `(batch, length, 2)`: a start and an end logit for each token, -1e9 at padding.

    Raises:
        ValueError: for an unknown activation, a decoder as backbone, `mask_question` without
            `separator_id`, or several texts packed in a row of an encoder-decoder.

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

    backbone_kinds = ("encoder", "seq2seq")
    alias = "question_answering"
    published_as = ("ForQuestionAnswering",)
    task_options = (
        "dropout", "separator_id", *OptionalHidden.hidden_options, "start_id", "feed_forward",
        "mask_question",
    )  # fmt: skip
    published_options = (SEPARATOR,)
    needs_labels = answers = True
    takes_records = False
    predict_options: ClassVar = PER_TOKEN

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
        self.one_input = one_text(backbone, start_id)
        self.start_id = self.one_input and self.one_input.start_id
        most = self.intake.config.vocabulary_size - 1
        self.separator_id = check_int("separator_id", separator_id, 0, most, none=True)
        self.mask_question = check_bool("mask_question", mask_question)
        if self.mask_question and separator_id is None:
            raise ValueError("`mask_question` needs `separator_id`, by which a question ends.")
        self.dropout = check_number("dropout", dropout, at_least=0, below=1)
        self.dropout_layer = self._dropout(self.dropout)
        self.set_hidden(hidden_activation, hidden_bias, block_norm)
        self.set_feed_forward(feed_forward)
        self.output_dense = self._dense(2, "output")
        self.built = True
        self.compile(FineTuningAdamW(), SpanCrossEntropy(), metrics=[SpanAccuracy()])

    def global_positions(self, inputs):
        """The tokens of the question, those before the first separator."""
        if self.separator_id is None:
            return None
        ids, ends = inputs["token_ids"], self._question_ends(inputs)
        longest = ids.shape[1] or _LONGEST_QUESTION
        places = ops.arange(min(longest, _LONGEST_QUESTION), dtype="int32")[None]
        return ops.where(places < ends, places, -1)

    def _question_ends(self, inputs):
        """The place of the first separator of each row, int `(batch, 1)`; 0 where there is none."""
        separators = ops.cast(ops.equal(inputs["token_ids"], self.separator_id), "int32")
        return ops.cast(ops.argmax(separators, axis=1), "int32")[:, None]

    def head_outputs(self, states, inputs, training: bool):
        states = states if self.hidden_dense is None else self.hidden(states)
        dropout = functools.partial(self.dropout_layer, training=training)
        behind = self.fed_forward(states, dropout) if self.feed_forward else dropout(states)
        logits = self.output_dense(behind)
        mask = as_mask(inputs["token_ids"], inputs.get("padding_mask"))
        if self.mask_question:
            places = sequence_positions(logits)
            mask = mask & ((places == 0) | (places > self._question_ends(inputs)))
        return ops.where(ops.expand_dims(mask, -1), ops.cast(logits, "float32"), -1e9)

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Pairs of question and context as batches. See `Task.make_dataset`.

        With `y` a long context gives several rows, without it one row, cut at the end.
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
        """The likeliest answers to questions, each a span of its context.

        The score of a span is the probability of its first token as start times that of its last
        as end, among the tokens of the context and the first of the row, which stands for no
        answer. For a context in several windows it is the best of all windows.

        Args:
            questions: a string, or a list of strings.
            contexts: likewise. One context serves a list of questions, and one question a list of
                contexts.
            top_k: int, number of answers to a question.
            max_answer_tokens: int, the longest answer.
            allow_no_answer: bool, whether no answer, an `Answer` without text, is one of them.
            batch_size: int, pairs or windows computed together. Defaults to 32.

        Returns:
            For each pair an `Answer`; with a `top_k` above 1 a list of at most so many, the
            likeliest first. For two strings their result alone.

        Raises:
            ValueError: for texts that do not pair up, or a context without any token.
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
        chosen = _windows(encodings, self.intake.config.max_sequence_length)
        sizes = {"sizes": self._sizes, **check_batch(batch_size)}
        dataset = window_batches(self, encodings, chosen, **sizes)
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

    @classmethod
    def head_values(cls, config, values):
        return {
            **cls.hidden_values(values),
            "start_id": values.get("start_id") if config.kind == "seq2seq" else None,
            "feed_forward": bool(values.get("feed_forward")),
            "mask_question": bool(values.get("mask_question")),
        }

    @classmethod
    def head_shapes(cls, config, values):
        read = config.sides[-1]  # The side whose states the head reads.
        further = FEED_FORWARD_OF_HEAD if values.get("feed_forward") else ()
        return shapes_of(
            (*cls.hidden_weights(read, values), *further, *SPAN_HEAD), read, num_ends=2
        )


def _pairs(x, names: tuple[str, str] = ("x[0]", "x[1]")) -> tuple[list[str], list[str]]:
    if isinstance(x, Records):
        text_rows(x)  # Says what does take them.
    if not isinstance(x, tuple) or len(x) != 2:
        several = isinstance(x, (list, tuple))
        given = f"{len(x)} texts in a {type(x).__name__}" if several else describe(x)
        raise ValueError(
            f"QuestionAnswerer takes a tuple of two lists, (questions, contexts), received {given}."
        )
    questions, contexts = pair_rows(*x, names, ("questions", "contexts"))
    for i, context in enumerate(contexts):
        if not context.strip():
            raise ValueError(f"`{names[1]}[{i}]` is empty: there is nothing to answer from.")
    return questions, contexts


def _windows(encodings: list[tokenizers.Encoding], max_length: int) -> list[tuple[int, np.ndarray]]:
    """The windows of all pairs, each with the number of its pair."""
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
        chosen += [(i, places) for places in windows(encoding, 1, max_length)]
    return chosen


def _answer_tokens(
    answer, context: str, encoding: tokenizers.Encoding, place: str
) -> tuple[int, int] | None:
    """The first and the last token of an answer, or None if there is none."""
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
                f"`{place}`: the context has {shorten(found)} at {start}, and the answer is "
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
        raise ValueError(f"`{place}` must hold a token, received {shorten(context[start:end])}.")
    return tokens[0], tokens[-1]


def _span_scores(logits, inside, max_answer_tokens: int) -> tuple[float, np.ndarray]:
    """Of no answer, and of spans `(context, max_answer_tokens)`: -1 beyond the context."""
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
    """The characters of the likeliest spans, which differ from each other, and their scores."""
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
    """The spans of a context as answers, and with `no_score` that there is none, best first."""
    answers = [Answer(context[a:b], score, a, b) for (a, b), score in spans.items()]
    if no_score is not None:
        answers.append(Answer("", no_score, 0, 0))
    return sorted(answers, key=lambda answer: -answer.score)
