"""Token classification: named entities, parts of speech."""

from typing import ClassVar, NamedTuple

import keras
import numpy as np
import tokenizers

from keras_transformer.checking import describe, is_int, nearest, shorten
from keras_transformer.checkpoints.heads import LABELS
from keras_transformer.columns import text_alone
from keras_transformer.data import BucketedDataset
from keras_transformer.data.dataset import check_batch
from keras_transformer.models.turns import reads
from keras_transformer.structure import TOKEN_HEAD
from keras_transformer.tasks.classifier import Classifier
from keras_transformer.tasks.inputs import listed
from keras_transformer.tasks.labels import labels_of_words, weights_of_words
from keras_transformer.tasks.tag_schemes import OUTSIDE, TagScheme
from keras_transformer.tasks.task import PER_TOKEN, softmax
from keras_transformer.tasks.text import (
    Word,
    character_spans,
    check_said,
    counted,
    take_max_length,
    target_rows,
    text_rows,
    tokenizer_of,
    window_batches,
    windows,
    words_of,
)
from keras_transformer.training import FineTuningAdamW, TokenAccuracy, TokenCrossEntropy


class Entity(NamedTuple):
    """A span `text[start:end]`; its label has no `B-`, its score is the mean over its words."""

    label: str
    text: str
    start: int
    end: int
    score: float


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenClassifier(Classifier):
    """An encoder or a decoder with a linear layer on every state: logits for each token.

    A word has the label of its first token; the others have no weight in `fit`. Words are what the
    tokenizer splits a text into before it splits each of them into tokens. A text too long for the
    model is split into overlapping windows, in `fit` too; each word counts once, in the window with
    most text around it.

    `fit` takes, as `x`, lists of words with, as `y`, lists of their labels; or texts with lists of
    `(start, end, label)`, the characters of each entity. The latter needs `labels` with `"O"` and
    the tags of each entity's label, such as `B-` and `I-` before it.

    Entities are told by tags of BIO (IOB2), IOB1, IO, BIOES (IOBES), BILOU, BMES or IOE, whichever
    the labels are; labels without such a prefix are entities where they follow each other. Labels
    with `B-` and `I-` are read right in BIO and in IOB1, and made of characters as in BIO.

    Compiled with AdamW (5e-5), token cross-entropy and accuracy; `compile` changes that.

    Args:
        backbone, tokenizer, name: as for `Task`.
        num_classes: int. Defaults to the number of `labels`, which may be assigned later too.
        labels: list of class names, in the order of the class numbers.
        dropout: float, rate before the last layer. Defaults to the backbone's.
        hidden_activation: str, the activation of a hidden layer of the states' width, see
            `layers.FeedForward`. Defaults to no such layer.
        hidden_bias: bool, a bias of that layer.
        block_norm: bool, a normalization after it, of the kind of the blocks' (ModernBERT).

    Call arguments:
        inputs: dict of `token_ids`, `padding_mask` and optionally `segment_ids`, as for `Encoder`.

    Returns:
        Float `(batch, length, num_classes)`.

    Raises:
        ValueError: for fewer than two classes, labels that disagree with `num_classes`, an
            unknown activation, a seq2seq backbone.

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

    Source: Devlin et al. 2018, "BERT", section 5.3; for the schemes of tags Ramshaw and Marcus
    1995, Tjong Kim Sang and Veenstra 1999, and Ratinov and Roth 2009.
    """

    backbone_kinds = ("encoder", "decoder")
    output_weights = TOKEN_HEAD
    alias = "token_classification"
    published_as = ("ForTokenClassification",)
    published_head = (LABELS,)
    takes_records = False
    learns_tokens = True
    predict_options: ClassVar = PER_TOKEN

    def _make_head(self) -> None:
        self.output_dense = self._dense(self.num_classes, "output")
        self.built = True
        self.compile(FineTuningAdamW(), TokenCrossEntropy(), weighted_metrics=[TokenAccuracy()])

    def head_outputs(self, states, inputs, training: bool):
        states = states if self.hidden_dense is None else self.hidden(states)
        return self.output_dense(self.dropout_layer(states, training=training))

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Words with labels, or texts with entities, as batches. See `Task.make_dataset`.

        With `y` a long text gives several rows, without it one row, cut at the end.

        Args:
            x: lists of words, or texts, as for `fit`.
            y: for each the labels of its words, or the entities of a text.
            sample_weight: one number a text; or, for lists of words, for each a list of one number
                a word.
            **options: as in `Task.make_dataset`.
        """
        max_length = take_max_length(self, options)
        texts, words = _texts_and_words(x)
        encodings = tokenizer_of(self).encode_batch_with_offsets(texts)
        own = [[n for n in encoding.word_ids if n is not None] for encoding in encodings]
        check_said(texts, own, [], "`x[{}]`".format)
        parts = [windows(e, 0, max_length) for e in encodings]
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
            for places, mask in zip(part, counted(part), strict=True):
                columns["labels"].append(np.maximum(targets, 0)[places].tolist())
                columns["counts"].append((number[places] * mask).tolist())

        def finish(inputs, arrays):
            weights = weight_of[arrays["counts"]] * arrays["row_weights"][:, None]
            return inputs, arrays["labels"], weights.astype("float32")

        options["values"] = {"row_weights": row_weights[[i for i, _ in chosen]]}
        return window_batches(self, encodings, chosen, finish, columns, **options)

    def _labels_of_spans(self, text, words: list[Word], spans, place: str) -> list[str]:
        """The label of each word of a text, given the entities' characters."""
        if self.labels is None:
            raise ValueError(
                "Entities as (start, end, label) need a task with `labels`: 'O', and each label "
                "with 'B-' and with 'I-' before it."
            )
        if not isinstance(spans, (list, tuple)):
            raise ValueError(
                f"The entities of `{place}` must be a list, received {describe(spans)}."
            )
        names, scheme = [OUTSIDE] * len(words), TagScheme(self.labels)
        for span in spans:
            start, end, label = span if _is_span(span) else (None, None, None)
            label = str(label) if is_int(label) else label  # a name that is a number
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
            if label not in scheme.kinds:  # whether or not it has a word
                raise ValueError(
                    f"The label {shorten(label)} of `{place}` is not known: there is none "
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
        """The entities of texts: neighbouring words of one label that is not `"O"`.

        A word has the label of its first token. Tags are read as the scheme of the labels has it,
        see the class: in BIO `B-` starts a new entity and `I-` continues one of the same label, as
        do labels without a prefix. Where tags break the rules of their scheme, entities are those
        of conlleval; of BILOU only complete ones count. Texts longer than the model takes are read
        in overlapping windows.

        Args:
            texts: a string or a list of strings.
            batch_size: int, texts or windows computed together. Defaults to 32.

        Returns:
            For each text a list of `Entity`; for a string its list alone. Example: see the class.
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
        """Of each text the probabilities of its words, float `(words, num_classes)`."""
        encodings, found = self._token_probabilities(texts, batch_size)
        return [
            probabilities[[word.token for word in words_of(text, encoding)]]
            for text, encoding, probabilities in zip(texts, encodings, found, strict=True)
        ]

    def _token_probabilities(self, rows: list[str], batch_size: int | None) -> tuple[list, list]:
        """Each text as it is encoded, and the probabilities of its tokens."""
        encodings = tokenizer_of(self).encode_batch_with_offsets(rows)
        limit = self.backbone.config.max_sequence_length
        parts = [windows(e, 0, limit) for e in encodings]
        chosen = [(i, places) for i, part in enumerate(parts) for places in part]
        sizes = {"sizes": self._sizes, **check_batch(batch_size)}
        dataset = window_batches(self, encodings, chosen, **sizes)
        probabilities = [np.zeros((len(e), self.num_classes)) for e in encodings]
        masks = [mask for part in parts for mask in counted(part)]
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
    """Whether it is (start, end, label)."""
    if not isinstance(span, (list, tuple)) or len(span) != 3:
        return False
    start, end, label = span
    return is_int(start) and is_int(end) and (isinstance(label, str) or is_int(label))


def _texts_and_words(x) -> tuple[list[str], list[list[tuple[int, int]]] | None]:
    """Texts, and the characters of each given word, None where texts were given whole."""
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
        # Joined, words are spelled as in a text; alone, some tokenizers spell them otherwise.
        row = text_rows(row, f"x[{i}]")
        starts = np.cumsum([0, *(len(word) + 1 for word in row)]).tolist()
        words.append([(start, start + len(word)) for start, word in zip(starts, row, strict=False)])
        texts.append(" ".join(row))
    return texts, words


def _first_tokens(
    words: list[tuple[int, int]], text: str, encoding: tokenizers.Encoding
) -> list[Word | None]:
    """For each given word of a text the first token that starts in it, None if no token does."""
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
