"""Token classification: named entities and parts of speech."""

from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np
import tokenizers

from keras_transformer.checkpoints.heads import LABELS
from keras_transformer.config.structure import TOKEN_HEAD
from keras_transformer.data import BucketedDataset
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.runtime.read_write_lock import reads
from keras_transformer.support.checking import describe, is_int, nearest, shorten
from keras_transformer.support.columns import text_alone
from keras_transformer.tasks.base.head import PER_TOKEN, softmax
from keras_transformer.tasks.base.task import Task
from keras_transformer.tasks.data.arguments import listed
from keras_transformer.tasks.data.labels import labels_of_words, weights_of_words
from keras_transformer.tasks.data.text import (
    Word,
    best_window_masks,
    character_spans,
    check_said,
    split_windows,
    take_max_length,
    target_rows,
    text_rows,
    tokenizer_of,
    window_batches,
    words_of,
)
from keras_transformer.tasks.heads.class_head import ClassHead
from keras_transformer.tasks.text.tag_schemes import OUTSIDE, TagScheme
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.training import FineTuningAdamW, TokenAccuracy, TokenCrossEntropy


class Entity(NamedTuple):
    """A span `text[start:end]`, its label without `B-`, and its mean score over its words."""

    label: str
    text: str
    start: int
    end: int
    score: float


class TagHead(ClassHead):
    """The head of `TokenClassifier`: a linear layer on every state, with a class per token."""

    output_weights = TOKEN_HEAD
    published_as = ("ForTokenClassification",)
    published_head = (LABELS,)
    predicts_by_tokens = True
    takes_records = False
    learns_tokens = True
    predict_options: ClassVar = PER_TOKEN

    def __init__(self, task, **classes):
        super().__init__(task, **classes)
        self.keep(output_dense=self.make_dense(self.num_classes, "output"))

    def __call__(self, states, inputs, training: bool = False):
        states = states if self.hidden is None else self.hidden(states)
        return self.output_dense(self.dropout_layer(states, training=training))

    def usual(self) -> dict[str, Any]:
        return {
            "optimizer": FineTuningAdamW(),
            "loss": TokenCrossEntropy(),
            "weighted_metrics": [TokenAccuracy()],
        }


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenClassifier(Task):
    """An encoder or a decoder with a linear layer on every state: logits for each token.

    The label of a word belongs to its first token; its other tokens have no weight in `fit`. The
    tokenizer splits a text into words first, and then into tokens. A text too long for the model is
    split into overlapping windows, in `fit` too; each word counts once, in the window where it has
    the most context.

    `fit` takes as `x` lists of words and as `y` lists of their labels; or texts and lists of
    `(start, end, label)`, the character positions and the label of each entity. The latter needs
    `labels` that contain `"O"` and the tags of each entity's label, such as `B-PER` and `I-PER`.

    Entities are read from tags of BIO (IOB2), IOB1, IO, BIOES (IOBES), BILOU, BMES or IOE,
    depending on the labels. For labels without tags, neighbouring words with the same label form an
    entity. `B-` and `I-` tags are read as BIO or IOB1, and entities given by characters are written
    as BIO.

    Compiled with AdamW (5e-5), token cross-entropy and accuracy; `compile` changes this.

    Args:
        backbone, tokenizer, name: as for `Task`.
        num_classes: int. Defaults to the number of `labels`.
        labels: list of class names, in the order of the class numbers; can also be assigned later.
        dropout: float, rate before the last layer. Defaults to the backbone's.
        hidden_activation: str, the activation of a hidden layer as wide as the states, see
            `layers.FeedForward`. Defaults to no hidden layer.
        hidden_bias: bool, whether the hidden layer has a bias.
        block_norm: bool, normalize the output of the hidden layer, with the same kind of
            normalization as the blocks (ModernBERT).

    Call arguments:
        inputs: dict with `token_ids`, `padding_mask` and optionally `segment_ids`, as for
            `Encoder`.

    Returns:
        Float `(batch, length, num_classes)`.

    Raises:
        ValueError: if there are fewer than two classes, labels disagree with `num_classes`, the
            activation is unknown, or the backbone is an encoder-decoder.

    Example:
    ```python
    import keras_transformer as kt

    words = [["Anna", "lives", "in", "New", "York"], ["I", "met", "Anna"]]
    labels = [["B-PER", "O", "O", "B-LOC", "I-LOC"], ["O", "O", "B-PER"]]
    names = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    classifier = kt.TokenClassifier.from_preset("minilm_l6_en", labels=names)
    classifier.fit(words, labels, epochs=1, verbose=0)
    for entity in classifier.recognize("I met Anna in New York"):
        assert entity.text == "I met Anna in New York"[entity.start : entity.end]
    ```

    Source: Devlin et al. 2018, "BERT", section 5.3; tagging schemes: Ramshaw and Marcus 1995, Tjong
    Kim Sang and Veenstra 1999, Ratinov and Roth 2009.
    """

    alias = "token_classification"
    backbone_kinds = ("encoder", "decoder")
    head_class = TagHead
    task_options = TagHead.options

    # Values of the head.
    num_classes: int
    labels: list[str] | None
    dropout: float
    hidden_activation: str | None
    hidden_bias: bool
    block_norm: bool
    adversarial_norm: float

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer | None = None,
        num_classes: int | None = None,
        labels: list[str] | None = None,
        dropout: float | None = None,
        name: str | None = None,
        hidden_activation: str | None = None,
        hidden_bias: bool = True,
        block_norm: bool = False,
    ):
        super().__init__(backbone, tokenizer, name=name)
        self.set_head(
            num_classes=num_classes,
            labels=labels,
            dropout=dropout,
            hidden_activation=hidden_activation,
            hidden_bias=hidden_bias,
            block_norm=block_norm,
        )

    @property
    def label_names(self) -> list[str]:
        """The name of each class; the number as a string if there are no `labels`."""
        return self.head.label_names

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Batch words with labels, or texts with entities. See `Task.make_dataset`.

        With `y` a long text gives several rows; without `y`, one row, truncated at the end.

        Args:
            x: lists of words, or texts, as for `fit`.
            y: for each text the labels of its words, or its entities.
            sample_weight: one number for each text; or, for lists of words, a list with one number
                for each word.
            **options: as for `Task.make_dataset`.
        """
        max_length = take_max_length(self, options)
        texts, words = _texts_and_words(x)
        encodings = tokenizer_of(self).encode_batch_with_offsets(texts)
        own = [[n for n in encoding.word_ids if n is not None] for encoding in encodings]
        check_said(texts, own, [], "`x[{}]`".format)
        parts = [split_windows(e, 0, max_length) for e in encodings]
        parts = [part[:1] for part in parts] if y is None else parts
        chosen = [(i, places) for i, part in enumerate(parts) for places in part]
        if y is None:
            return window_batches(self, encodings, chosen, **options)

        rows = target_rows(y, len(texts), "a list of labels", "texts")
        columns: dict[str, list] = {"labels": [], "counts": []}
        if words is None:
            found = [words_of(*pair) for pair in zip(texts, encodings, strict=True)]
            rows = [
                self._labels_of_spans(text, *pair, f"y[{i}]")
                for i, (text, *pair) in enumerate(zip(texts, found, rows, strict=True))
            ]
        else:
            found = [_first_tokens(*row) for row in zip(words, texts, encodings, strict=True)]
        counts = [len(row) for row in found]
        labels = labels_of_words(rows, counts, self.num_classes, self.labels)
        numbers, weight_of, row_weights = weights_of_words(sample_weight, counts)
        for i, part in enumerate(parts):
            targets = np.full(len(encodings[i]), -1)
            number = np.zeros(len(encodings[i]), "int32")
            if all(word is None for word in found[i]):
                raise ValueError(f"The tokenizer finds no token in a word of `x[{i}]`: remove it.")
            for word, *values in zip(found[i], labels[i], numbers[i], strict=True):
                if word is not None:
                    targets[word.token], number[word.token] = values
            for places, mask in zip(part, best_window_masks(part), strict=True):
                columns["labels"].append(np.maximum(targets, 0)[places].tolist())
                columns["counts"].append((number[places] * mask).tolist())

        def finish(inputs, arrays):
            weights = weight_of[arrays["counts"]] * arrays["row_weights"][:, None]
            return inputs, arrays["labels"], weights.astype("float32")

        options["values"] = {"row_weights": row_weights[[i for i, _ in chosen]]}
        return window_batches(self, encodings, chosen, finish, columns, **options)

    def _labels_of_spans(self, text, words: list[Word], spans, place: str) -> list[str]:
        """Return the label of each word of a text, given the characters of its entities."""
        if self.labels is None:
            raise ValueError(
                "Entities as (start, end, label) need a task with `labels`: 'O', and for each "
                "entity label a tag with 'B-' and one with 'I-' before it."
            )
        if not isinstance(spans, (list, tuple)):
            raise ValueError(
                f"The entities of `{place}` must be a list, received {describe(spans)}."
            )
        names, scheme = [OUTSIDE] * len(words), TagScheme(self.labels)
        for span in spans:
            start, end, label = span if _is_span(span) else (None, None, None)
            label = str(label) if is_int(label) else label  # Class names may be numbers.
            if label is None:
                raise ValueError(
                    f"An entity of `{place}` must be (start, end, label), received "
                    f"{describe(span)}. Labels of words need lists of words as `x`."
                )
            if not 0 <= start < end <= len(text):
                raise ValueError(
                    f"The entity {shorten(span)} of `{place}` is not within its text, which has "
                    f"{len(text)} characters."
                )
            if label not in scheme.kinds:  # even if the span contains no word
                raise ValueError(
                    f"The label {shorten(label)} of `{place}` is not known: there is no "
                    f"{shorten(f'B-{label}')} in {shorten(self.labels)}."
                    f"{nearest(label, scheme.kinds)}"
                )
            inside = [i for i, word in enumerate(words) if word.start < end and start < word.end]
            if any(names[i] != OUTSIDE for i in inside):
                raise ValueError(f"The entity {shorten(span)} of `{place}` overlaps another one.")
            for i, name in zip(inside, scheme.labels(label, len(inside)), strict=False):
                names[i] = name
        return names

    @reads
    def recognize(self, texts, batch_size: int | None = None) -> list:
        """Return the entities of texts: neighbouring words with the same label other than `"O"`.

        A word has the label of its first token. Tags are read by the scheme of the labels (see the
        class): in BIO `B-` starts a new entity and `I-` continues one of the same label, as do
        labels without a prefix. If tags break the rules of their scheme, entities are found as in
        conlleval; in BILOU only complete ones count. Texts longer than the model's maximum are read
        in overlapping windows.

        Args:
            texts: a string or a list of strings.
            batch_size: int, the number of texts or windows computed together. Defaults to 32.

        Returns:
            For each text a list of `Entity`; a single list for a string. See the class for an
            example.
        """
        texts = text_alone(texts)
        rows = text_rows([texts] if isinstance(texts, str) else texts, "texts")
        encodings, found = self._token_probabilities(rows, batch_size)
        results = [
            self._entities(text, words_of(text, encoding), probabilities)
            for text, encoding, probabilities in zip(rows, encodings, found, strict=True)
        ]
        return results[0] if isinstance(texts, str) else results

    def word_probabilities(self, texts: list[str], batch_size: int | None = None) -> list:
        """Return the class probabilities of the words of each text, `(words, num_classes)`."""
        encodings, found = self._token_probabilities(texts, batch_size)
        return [
            probabilities[[word.token for word in words_of(text, encoding)]]
            for text, encoding, probabilities in zip(texts, encodings, found, strict=True)
        ]

    def _token_probabilities(self, rows: list[str], batch_size: int | None) -> tuple[list, list]:
        """Return the encoding of each text, and the class probabilities of its tokens."""
        encodings = tokenizer_of(self).encode_batch_with_offsets(rows)
        limit = self.backbone.config.max_sequence_length
        parts = [split_windows(e, 0, limit) for e in encodings]
        chosen = [(i, places) for i, part in enumerate(parts) for places in part]
        dataset = window_batches(self, encodings, chosen, **self.to_predict(batch_size))
        probabilities = [np.zeros((len(e), self.num_classes)) for e in encodings]
        masks = [mask for part in parts for mask in best_window_masks(part)]
        rows_found = zip(chosen, masks, self._row_outputs(dataset), strict=True)
        for (i, places), mask, logits in rows_found:
            probabilities[i][places[mask]] = softmax(logits[: len(places)][mask])
        return encodings, probabilities

    def _entities(self, text: str, words: list[Word], probabilities) -> list[Entity]:
        rows = probabilities[[word.token for word in words]]
        labels = [self.label_names[number] for number in rows.argmax(axis=-1)]
        found = []
        for kind, first, end in TagScheme(self.label_names).spans(labels):
            start, stop = words[first].start, words[end - 1].end
            score = float(rows[first:end].max(axis=-1).mean())
            found.append(Entity(kind, text[start:stop], start, stop, score))
        return found


def _is_span(span) -> bool:
    """Return True if an entity is given as `(start, end, label)`."""
    if not isinstance(span, (list, tuple)) or len(span) != 3:
        return False
    start, end, label = span
    return is_int(start) and is_int(end) and (isinstance(label, str) or is_int(label))


def _texts_and_words(x) -> tuple[list[str], list[list[tuple[int, int]]] | None]:
    """Return texts, and the character spans of their words (None if texts were given whole)."""
    rows = listed(x, "x")
    several = isinstance(rows, (list, tuple)) and len(rows) > 0
    if not several or not isinstance(rows[0], (list, tuple, np.ndarray)):
        return text_rows(rows), None
    texts, words = [], []
    for i, row in enumerate(rows):
        if not isinstance(row, (list, tuple, np.ndarray)):
            raise ValueError(
                f"`x[0]` is a list of words, but `x[{i}]` is not, received {describe(row)}."
            )
        # Words are joined first, since some tokenizers split a word differently on its own.
        row = text_rows(row, f"x[{i}]")
        starts = np.cumsum([0, *(len(word) + 1 for word in row)]).tolist()
        words.append([(start, start + len(word)) for start, word in zip(starts, row, strict=False)])
        texts.append(" ".join(row))
    return texts, words


def _first_tokens(
    words: list[tuple[int, int]], text: str, encoding: tokenizers.Encoding
) -> list[Word | None]:
    """Return each word with the first token that starts within it, or None without a token."""
    spans = character_spans(text, encoding)
    tokens = [i for i, number in enumerate(encoding.word_ids) if number is not None]
    found: list[Word | None] = []
    next_token = 0
    for start, end in words:
        while next_token < len(tokens) and spans[tokens[next_token]][0] < start:
            next_token += 1
        token = tokens[next_token] if next_token < len(tokens) else None
        inside = token is not None and spans[token][0] < end
        found.append(Word(token, start, end) if inside else None)
    return found
