"""`LateInteraction`: how queries and documents are read whose tokens have a vector each."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.layers.max_sim import max_sim
from keras_transformer.support.checking import check_choice, check_int, describe, shorten

MULTI_VECTOR = "multi_vector"  # the pooling of a `TextEmbedder` with a vector for each token
SCORED = "scored_mask"  # the input that tells which tokens have a vector
QUERY, DOCUMENT = "query", "document"
EXPANSIONS = ("none", "scored", "attended")
_MOST_PRODUCTS = 2**26  # products of tokens that `late_scores` computes at once


class ReadTexts(NamedTuple):
    """Texts as token ids, with what the masks of their tokens depend on.

    Fields:
        ids: list of int, for each text; mask tokens that expand a query are among them.
        attended: int `(texts,)`, the number of tokens at the start that are attended to.
        skips: bool `(texts,)`, whether tokens of `skipped_words` have no vector.
    """

    ids: list[list[int]]
    attended: np.ndarray
    skips: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class LateInteraction:
    """How the two kinds of texts are read for late interaction (ColBERT).

    Args:
        query_length: int, longer queries are truncated to this many tokens, and with `expansion`
            shorter ones are filled with mask tokens. Defaults to the `max_length` of the task.
        document_length: int, longer documents are truncated to this many tokens. Defaults to the
            `max_length` of the task.
        expansion: str, how queries are filled with mask tokens: `"none"`, not at all; `"scored"`,
            with tokens that have vectors but are not attended to; `"attended"`, with tokens that
            are attended to as well.
        skipped_words: words of one token, such as punctuation, that have no vector in documents.

    Raises:
        ValueError: if a value is out of range, or an `expansion` lacks `query_length`.

    Example:
    ```python
    import keras_transformer as kt

    reading = kt.tasks.LateInteraction(query_length=32, expansion="scored", skipped_words=(".",))
    trained = kt.TextEmbedder.from_preset("minilm_l6_en")
    embedder = kt.TextEmbedder(
        trained.backbone, trained.tokenizer, pooling="multi_vector", interaction=reading
    )
    query = embedder.encode("where is Rome?", prompt_name="query")
    documents = embedder.encode(["Rome is in Italy.", "Faust is by Goethe."])
    assert len(query) == 32 and documents[0].shape[1] == query.shape[1]
    scores = embedder.similarity([query], documents)  # (1, 2)
    assert scores[0, 0] > scores[0, 1]
    ```

    Source: Khattab and Zaharia 2020, "ColBERT", sections 3.2 and 3.3.
    """

    query_length: int | None = None
    document_length: int | None = None
    expansion: str = "none"
    skipped_words: tuple[str, ...] = ()

    def __post_init__(self):
        for name in ("query_length", "document_length"):
            check_int(name, getattr(self, name), at_least=3, at_most=2**20, none=True)
        check_choice("expansion", self.expansion, EXPANSIONS)
        words = self.skipped_words
        if isinstance(words, str) or not all(isinstance(word, str) for word in words):
            raise ValueError(f"`skipped_words` must be strings, received {shorten(words)}.")
        object.__setattr__(self, "skipped_words", tuple(words))
        if self.expansion != "none" and self.query_length is None:
            raise ValueError(f"expansion={self.expansion!r} needs a `query_length`.")

    @classmethod
    def given(cls, value: Any) -> "LateInteraction":
        """Return an argument, an object or its values, as an object."""
        if isinstance(value, cls):
            return value
        known = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(value, Mapping | None) or not set(value or {}) <= known:
            raise ValueError(
                f"`interaction` must be a LateInteraction, or a dict of its values "
                f"{', '.join(sorted(known))}, received {describe(value)}."
            )
        return cls(**(value or {}))

    def values(self) -> dict[str, Any]:
        """Return the values, as JSON can hold them."""
        return {**dataclasses.asdict(self), "skipped_words": list(self.skipped_words)}

    def read(
        self, tokenizer, texts: Sequence[str], role: str, prompt: str, max_length: int
    ) -> ReadTexts:
        """Tokenize texts, with a prompt before each.

        A prompt that is one token of the vocabulary, as in ColBERT, is inserted as this token.

        Args:
            tokenizer: `Tokenizer`.
            texts: list of str.
            role: `"query"` or `"document"`.
            prompt: str.
            max_length: int, the limit of the task.
        """
        own = self.query_length if role == QUERY else self.document_length
        most = max_length if own is None else min(own, max_length)
        marker = next(
            (i for i in map(tokenizer.token_to_id, (prompt, prompt.strip())) if i is not None), None
        )
        if not prompt or marker is None:
            ids = tokenizer.encode_batch([prompt + text for text in texts], max_length=most)
        else:
            ids = tokenizer.encode_batch(list(texts), max_length=most - 1)
            start = _starts(tokenizer)
            ids = [[*row[:start], marker, *row[start:]] for row in ids]
        lengths = np.array([len(row) for row in ids], "int64")
        skips = np.full(len(ids), role == DOCUMENT and bool(self.skipped_words))
        if role == QUERY and self.expansion != "none":
            if tokenizer.mask_id is None:
                raise ValueError("The expansion of queries needs a tokenizer with a mask token.")
            ids = [row + [tokenizer.mask_id] * (most - len(row)) for row in ids]
            lengths = lengths if self.expansion == "scored" else np.full(len(ids), most)
        return ReadTexts(ids, lengths, skips)

    def masks(self, tokenizer, texts: ReadTexts, rows, ids, mask) -> dict[str, np.ndarray]:
        """Return the masks of a batch by name: which tokens are attended to, and have a vector.

        Args:
            tokenizer: `Tokenizer`.
            texts: `ReadTexts`, all texts.
            rows: int `(batch,)` or `(batch, texts)`, the numbers of the texts.
            ids: int, with one more axis than `rows`, the tokens.
            mask: bool, the shape of `ids`, which of them are real.
        """
        found = (tokenizer.token_to_id(word) for word in self.skipped_words)
        skipped = np.isin(ids, [i for i in found if i is not None])
        scored = mask & ~(skipped & texts.skips[rows][..., None])
        attended = np.arange(ids.shape[-1]) < texts.attended[rows][..., None]
        return {"padding_mask": mask & attended, SCORED: scored}


def joined(parts: Sequence[ReadTexts]) -> ReadTexts:
    """Return the texts of several lists as one list."""
    ids = [row for part in parts for row in part.ids]
    arrays = zip(*(part[1:] for part in parts), strict=True)
    return ReadTexts(ids, *map(np.concatenate, arrays))


def _starts(tokenizer) -> int:
    """Return the number of special tokens that the tokenizer puts before a text."""
    whole, inner = tokenizer.encode("a"), tokenizer.encode("a", special_tokens=False)
    return next(i for i in range(len(whole)) if whole[i : i + len(inner)] == inner)


def late_scores(queries: Sequence[np.ndarray], documents: Sequence[np.ndarray]) -> np.ndarray:
    """Return the MaxSim score of each query with each document, float32 `(queries, documents)`.

    The products of a part of the documents are in memory at once.

    Args:
        queries: a float array `(tokens, width)` for each query.
        documents: the same for each document.
    """
    if not len(queries) or not len(documents):
        return np.zeros((len(queries), len(documents)), "float32")
    asked, scores = padded(queries), []
    longest = max(1, *map(len, documents))
    step = max(1, _MOST_PRODUCTS // (asked.shape[0] * asked.shape[1] * longest))
    for start in range(0, len(documents), step):
        said = padded(documents[start : start + step])
        scores.append(ops.convert_to_numpy(max_sim(asked, said)))
    return np.concatenate(scores, axis=1)


def padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Return vectors of tokens `(tokens, width)` as one array, with zeros behind the tokens."""
    longest = max(1, *map(len, rows))  # no token of a text may have a vector
    made = np.zeros((len(rows), longest, rows[0].shape[-1]), "float32")
    for place, row in zip(made, rows, strict=True):
        place[: len(row)] = row
    return made
