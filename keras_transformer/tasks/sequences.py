"""Tasks on sequences that are no text: DNA, notes, any rows of symbols of an alphabet."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import keras
import numpy as np

from keras_transformer.checking import describe, is_int, shorten
from keras_transformer.config import TransformerConfig
from keras_transformer.data import BucketedDataset
from keras_transformer.models import build_backbone
from keras_transformer.models.turns import reads
from keras_transformer.tasks.text_classifier import TextClassifier
from keras_transformer.tasks.token_classifier import TokenClassifier
from keras_transformer.tokenizers import Tokenizer

_SIZES = {"hidden_dim": 64, "num_layers": 2, "num_heads": 4, "intermediate_dim": 256}


class OfSymbols:
    """Mixin of a task on texts whose rows are sequences of symbols.

    A row is a string of characters, such as `"ACGT"`; a string of symbols with spaces between
    them; or a list of symbols, which are strings or integers.
    """

    template: ClassVar[str]

    @classmethod
    def for_rows(
        cls,
        rows: Iterable,
        *,
        config: Mapping[str, Any] | None = None,
        unknown: bool = False,
        dtype=None,
        **options,
    ) -> Self:
        """A fresh, small model for some rows: its alphabet is that of their symbols.

        Args:
            rows: those to learn from, as of `fit`. What they do not have is refused later on.
            config: values of `TransformerConfig` in place of the usual ones: an encoder of two
                blocks of width 64 with rotary positions.
            unknown: bool, let other symbols be one token `<unk>`, in place of an error.
            dtype: dtype or dtype policy of the model.
            **options: of the constructor, such as `labels` or `num_classes`.

        Raises:
            ValueError: for no rows, or a row that is no sequence of symbols.
        """
        texts = symbol_texts(list(rows), "rows")
        words = [row.split() for row in texts]
        symbols = {symbol for row in words for symbol in row}
        by_character = all(len(row) <= 1 for row in words)
        if by_character:
            symbols = {character for row in texts for character in row if not character.isspace()}
        tokenizer = Tokenizer.of_symbols(
            sorted(symbols, key=_order), template=cls.template, unknown=unknown
        )
        longest = max(len(row) for row in (texts if by_character else words))
        values = {
            "kind": "encoder",
            "position": "rotary",
            "max_sequence_length": max(512, longest + 2),
            "vocabulary_size": tokenizer.vocabulary_size,
            **_SIZES,
            **(config or {}),
        }
        backbone = build_backbone(TransformerConfig.from_dict(values), dtype=dtype)
        return cls(backbone, tokenizer, **options)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SequenceClassifier(OfSymbols, TextClassifier):
    """A class of each sequence of symbols, such as DNA, a protein or a tune.

    It is `TextClassifier` with a token for each symbol: everything is as there, and a preset of
    the one is loaded as the other. `for_rows` makes a fresh model whose alphabet is that of the
    data; `Tokenizer.of_symbols` makes the tokenizer for a backbone of your own.

    A sequence is a string of characters, such as `"ACGT"`, a string of symbols with spaces between
    them, or a list of symbols, strings or integers. A symbol that is not of the alphabet is an
    error that names its row and place.

    Args:
        backbone, tokenizer, num_classes, labels, dropout, hidden_activation: as for
            `TextClassifier`.
        pooling, name, multi_label, hidden_bias, block_norm, start_id, end_ids: likewise.

    Call arguments:
        inputs: dict of `token_ids` and `padding_mask`, as for `Encoder`.

    Returns:
        Float `(batch, num_classes)`.

    Raises:
        ValueError: as `TextClassifier`.

    Example:
    ```python
    import keras_transformer as kt

    rows, labels = ["ACGGT", "GGCCA", "ATTAT", "TTACA"], ["strong", "strong", "weak", "weak"]
    classifier = kt.SequenceClassifier.for_rows(rows, labels=["strong", "weak"])
    classifier.fit(rows, labels, epochs=1, verbose=0)
    label, probability = classifier.classify("ACGT")
    assert label in ("strong", "weak")

    tunes = [[60, 64, 67], [60, 63, 67, 72]]
    moods = kt.SequenceClassifier.for_rows(tunes, labels=["major", "minor"])
    assert moods.predict(tunes, verbose=0).shape == (2, 2)

    splice_sites = kt.SequenceClassifier.from_preset("splice_sites")
    assert splice_sites.classify("ACGT" * 15)[0] in splice_sites.labels
    ```

    Source: as `TextClassifier`.
    """

    alias = "sequence_classification"
    head_of = "TextClassifier"
    row_unit = "sequence"
    template = "start_end"

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Sequences as batches. See `Task.make_dataset`."""
        return super().make_dataset(_rows_as_texts(x), y, sample_weight, **options)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SequenceLabeler(OfSymbols, TokenClassifier):
    """A label of each symbol of a sequence, such as what each base of DNA is part of.

    It is `TokenClassifier` with a token for each symbol: everything is as there, and a preset of
    the one is loaded as the other. `fit` takes sequences, as of `SequenceClassifier`, and for each
    the labels of its symbols, a list, or a string of labels that are one character each. `label`
    gives them back, `recognize` the spans of labels other than `"O"`.

    Args:
        backbone, tokenizer, num_classes, labels, dropout, hidden_activation: as for
            `TokenClassifier`. The tokenizer has the template `"none"`, or else special tokens have
            outputs of their own in what `predict` gives.
        hidden_bias, block_norm, name: likewise.

    Call arguments:
        inputs: dict of `token_ids` and `padding_mask`, as for `Encoder`.

    Returns:
        Float `(batch, length, num_classes)`.

    Raises:
        ValueError: as `TokenClassifier`.

    Example:
    ```python
    import keras_transformer as kt

    rows = ["ACGGT", "TTACA"]
    labels = [["weak", "strong", "strong", "strong", "weak"], ["weak"] * 3 + ["strong", "weak"]]
    labeler = kt.SequenceLabeler.for_rows(rows, labels=["strong", "weak"])
    labeler.fit(rows, labels, epochs=1, verbose=0)
    assert len(labeler.label("ACG")) == 3
    ```

    Source: as `TokenClassifier`.
    """

    alias = "sequence_labeling"
    head_of = "TokenClassifier"
    template = "none"

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Sequences and the labels of their symbols as batches. See `Task.make_dataset`."""
        texts = symbol_texts(x)
        if y is None:
            return super().make_dataset(texts, None, sample_weight, **options)
        rows = [list(row) if isinstance(row, str) else row for row in y]
        if any(_is_spans(row) for row in rows):  # (start, end, label), by characters
            return super().make_dataset(texts, rows, sample_weight, **options)
        return super().make_dataset(self._symbols(texts), rows, sample_weight, **options)

    def _symbols(self, texts: list[str]) -> list[list[str]]:
        encodings = self._require_processor().tokenizer.encode_batch_with_offsets(texts)
        return [
            [text[start:end] for start, end in encoding.offsets if start < end]
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    @reads
    def recognize(self, texts, batch_size: int | None = None) -> list:
        """The spans of labels other than `"O"`. See `TokenClassifier.recognize`.

        Args:
            texts: sequences as of `fit`, or one string. Of a list of symbols the places are those
                in the text of them with spaces between.
            batch_size: int.

        Returns:
            For each sequence a list of `Entity`; for a string its list alone.
        """
        return super().recognize(
            texts if isinstance(texts, str) else symbol_texts(texts), batch_size
        )

    @reads
    def label(self, rows, batch_size: int | None = None) -> list:
        """The label of each symbol.

        Args:
            rows: sequences as of `fit`, or one string.
            batch_size: int.

        Returns:
            For each sequence a list of labels; for a string its list alone.
        """
        alone = isinstance(rows, str)
        texts = symbol_texts([rows] if alone else rows)
        names = self.label_names
        found = [
            [names[i] for i in probabilities.argmax(-1)]
            for probabilities in self.word_probabilities(texts, batch_size)
        ]
        return found[0] if alone else found


def symbol_texts(rows: Any, name: str = "x") -> list[str]:
    """Sequences of symbols as texts: symbols of a list have a space between them."""
    if isinstance(rows, (str, bytes)) or not isinstance(rows, (list, tuple, np.ndarray)):
        if not hasattr(rows, "__iter__") or isinstance(rows, (str, bytes)):
            raise ValueError(
                f"`{name}` must be a list of sequences, received {describe(rows)}: put it in []."
            )
        rows = list(rows)
    if len(rows) == 0:
        raise ValueError(f"`{name}` is empty: there must be at least one sequence.")
    return [_text_of(row, f"{name}[{i}]") for i, row in enumerate(rows)]


def _text_of(row: Any, place: str) -> str:
    if isinstance(row, str):
        text = row
    elif isinstance(row, (list, tuple, np.ndarray)):
        for symbol in row:
            if not (isinstance(symbol, str) and symbol.split() == [symbol]) and not is_int(symbol):
                raise ValueError(
                    f"A symbol of `{place}` must be a string without spaces or an integer, "
                    f"received {shorten(symbol)}."
                )
        text = " ".join(str(symbol) for symbol in row)
    else:
        raise ValueError(
            f"`{place}` must be a string or a list of symbols, received {describe(row)}."
        )
    if not text.strip():
        raise ValueError(f"`{place}` has no symbols: remove it.")
    return text


def _rows_as_texts(x: Any) -> Any:
    """Rows of lists of symbols as texts; texts, pairs of them, files and others as they are."""
    if isinstance(x, (list, np.ndarray)) and len(x) and not isinstance(x[0], str):
        return symbol_texts(x)
    return x


def _order(symbol: str) -> tuple:
    """Numbers by their size, then the others."""
    number = symbol.removeprefix("-").isdecimal()
    return (not number, int(symbol) if number else 0, symbol)


def _is_spans(row: Any) -> bool:
    return isinstance(row, Sequence) and len(row) > 0 and isinstance(row[0], (tuple, list))
