"""Tasks on sequences of symbols other than text: DNA, musical notes, any finite alphabet."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import keras
import numpy as np

from keras_transformer.config import TransformerConfig
from keras_transformer.data import BucketedDataset
from keras_transformer.models import build_backbone
from keras_transformer.models.runtime.read_write_lock import reads
from keras_transformer.support.checking import describe, is_int, shorten
from keras_transformer.tasks.text.text_classifier import TextClassHead, TextClassifier
from keras_transformer.tasks.text.token_classifier import TagHead, TokenClassifier
from keras_transformer.tokenizers import Tokenizer

_SIZES = {"hidden_dim": 64, "num_layers": 2, "num_heads": 4, "intermediate_dim": 256}


def task_for_rows(
    task_class: type,
    template: str,
    rows: Iterable,
    *,
    config: Mapping[str, Any] | None = None,
    unknown: bool = False,
    dtype=None,
    **options,
):
    """Make a small untrained task of sequences, see `SequenceClassifier.for_rows`."""
    texts = symbol_texts(list(rows), "rows")
    words = [row.split() for row in texts]
    symbols = {symbol for row in words for symbol in row}
    by_character = all(len(row) <= 1 for row in words)
    if by_character:
        symbols = {character for row in texts for character in row if not character.isspace()}
    tokenizer = Tokenizer.of_symbols(
        sorted(symbols, key=_order), template=template, unknown=unknown
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
    return task_class(backbone, tokenizer, **options)


class SequenceClassHead(TextClassHead):
    """The head of a `SequenceClassifier`, the same as of a `TextClassifier`."""

    head_of = "TextClassifier"
    row_unit = "sequence"


class SymbolTagHead(TagHead):
    """The head of a `SequenceLabeler`, the same as of a `TokenClassifier`."""

    head_of = "TokenClassifier"


@keras.saving.register_keras_serializable(package="keras_transformer")
class SequenceClassifier(TextClassifier):
    """A classifier of sequences of symbols, such as DNA, proteins or tunes.

    It is a `TextClassifier` with a token for each symbol: all arguments are the same, and each can
    load the other's presets. `for_rows` makes an untrained model with the alphabet of the data;
    `Tokenizer.of_symbols` makes the tokenizer for your own backbone.

    A sequence is a string of characters, such as `"ACGT"`, a string of symbols with spaces between
    them, or a list of symbols, strings or integers. A symbol outside the alphabet raises an error
    that names its row and position.

    Args:
        backbone, tokenizer, num_classes, labels, dropout, hidden_activation: as for
            `TextClassifier`.
        pooling, name, multi_label, hidden_bias, block_norm, start_id, end_ids: as for
            `TextClassifier`.

    Call arguments:
        inputs: dict with `token_ids` and `padding_mask`, as for `Encoder`.

    Returns:
        Float `(batch, num_classes)`.

    Raises:
        ValueError: as for `TextClassifier`.

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
    head_class = SequenceClassHead

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
        """Make a small untrained model with an alphabet of the symbols in some rows.

        Args:
            rows: the training rows, as for `fit`. The model later refuses symbols that do not occur
                in them.
            config: values of `TransformerConfig` that replace the defaults: an encoder of two
                blocks of width 64 with rotary positions.
            unknown: bool, map other symbols to a token `<unk>` instead of refusing them.
            dtype: dtype or dtype policy of the model.
            **options: arguments of the constructor, such as `labels` or `num_classes`.

        Raises:
            ValueError: if there are no rows, or a row is not a sequence of symbols.
        """
        how = {"config": config, "unknown": unknown, "dtype": dtype}
        return task_for_rows(cls, "start_end", rows, **how, **options)

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Batch sequences. See `Task.make_dataset`."""
        return super().make_dataset(_rows_as_texts(x), y, sample_weight, **options)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SequenceLabeler(TokenClassifier):
    """A labeler of the symbols of a sequence, such as the role of each base in DNA.

    It is a `TokenClassifier` with a token for each symbol: all arguments are the same, and each can
    load the other's presets. `fit` takes sequences, as for `SequenceClassifier`, and for each the
    labels of its symbols: a list, or a string if labels are single characters. `label` predicts
    them, `recognize` returns the spans of labels other than `"O"`.

    Args:
        backbone, tokenizer, num_classes, labels, dropout, hidden_activation: as for
            `TokenClassifier`. The tokenizer should have the template `"none"`; otherwise `predict`
            returns outputs for special tokens too.
        hidden_bias, block_norm, name: as for `TokenClassifier`.

    Call arguments:
        inputs: dict with `token_ids` and `padding_mask`, as for `Encoder`.

    Returns:
        Float `(batch, length, num_classes)`.

    Raises:
        ValueError: as for `TokenClassifier`.

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
    head_class = SymbolTagHead

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
        """Make a small untrained model with an alphabet of the symbols in some rows.

        Arguments are as for `SequenceClassifier.for_rows`.
        """
        how = {"config": config, "unknown": unknown, "dtype": dtype}
        return task_for_rows(cls, "none", rows, **how, **options)

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Batch sequences with the labels of their symbols. See `Task.make_dataset`."""
        texts = symbol_texts(x)
        if y is None:
            return super().make_dataset(texts, None, sample_weight, **options)
        rows = [list(row) if isinstance(row, str) else row for row in y]
        if any(_is_spans(row) for row in rows):  # (start, end, label), in characters
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
        """Return the spans of labels other than `"O"`. See `TokenClassifier.recognize`.

        Args:
            texts: sequences as for `fit`, or one string. For a list of symbols, positions refer to
                the text that joins them with spaces.
            batch_size: int, the number of sequences computed together. Defaults to 32.

        Returns:
            For each sequence a list of `Entity`; for a string a single list.
        """
        return super().recognize(
            texts if isinstance(texts, str) else symbol_texts(texts), batch_size
        )

    @reads
    def label(self, rows, batch_size: int | None = None) -> list:
        """Predict the label of each symbol.

        Args:
            rows: sequences as for `fit`, or one string.
            batch_size: int, the number of sequences computed together. Defaults to 32.

        Returns:
            For each sequence a list of labels; for a string a single list.
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
    """Convert sequences of symbols to texts; the symbols of a list are joined with spaces."""
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
    """Convert lists of symbols to texts; return texts, pairs, files and other data as they are."""
    if isinstance(x, (list, np.ndarray)) and len(x) and not isinstance(x[0], str):
        return symbol_texts(x)
    return x


def _order(symbol: str) -> tuple:
    """Return the sort key of a symbol: integers come first, by value, then other symbols."""
    number = symbol.removeprefix("-").isdecimal()
    return (not number, int(symbol) if number else 0, symbol)


def _is_spans(row: Any) -> bool:
    return isinstance(row, Sequence) and len(row) > 0 and isinstance(row[0], (tuple, list))
