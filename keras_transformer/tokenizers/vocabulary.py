"""Vocabulary of a tokenizer: its tokens, their roles and ids, and the text of ids."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import tokenizers

from keras_transformer.support.checking import check_int, check_text, describe, shorten
from keras_transformer.support.foreign_names import hint_on_foreign_arguments
from keras_transformer.support.notebook import html_table
from keras_transformer.tokenizers.backend import copy_backend, refusing, segment_count
from keras_transformer.tokenizers.languages import Languages, languages_of
from keras_transformer.tokenizers.symbols import of_symbols


def _role(role: str, what: str) -> Any:
    """Return a property for the id of a role's token."""
    doc = f"Id of {what}, or `None` without one."
    return property(lambda self: self._role_id(role), doc=doc)


class Vocabulary:
    """Base class of `Tokenizer` for tokens and ids. `Tokenizer` documents the arguments."""

    # Name of the tokenizer in error messages.
    _name = "The tokenizer"

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        pad: str | None = None,
        start: str | None = None,
        end: str | None = None,
        mask: str | None = None,
        unknown: str | None = None,
        chat_template: str | None = None,
    ):
        if not isinstance(backend, tokenizers.Tokenizer):
            raise ValueError(
                "`backend` must be a `tokenizers.Tokenizer`. Received: "
                f"{type(backend).__name__}. To load files use `Tokenizer.from_files(directory)`."
            )
        if chat_template is not None and not isinstance(chat_template, str):
            raise ValueError(
                f"`chat_template` must be a string, received {type(chat_template).__name__}."
            )
        self.chat_template = chat_template
        self._backend = copy_backend(backend)
        self._roles = {"pad": pad, "start": start, "end": end, "mask": mask, "unknown": unknown}
        for role, token in self._roles.items():
            if token is not None and self.token_to_id(token) is None:
                raise ValueError(
                    f"The vocabulary has no token {token!r}, which was given as `{role}`."
                )

    @classmethod
    def of_symbols(
        cls,
        symbols: str | Iterable[str | int],
        template: str = "start_end",
        unknown: bool = False,
    ):
        """Return a tokenizer with a token for each symbol: DNA bases, notes, or values of a series.

        If all symbols are single characters, each character of a text is a symbol, as in `"ACGT"`,
        and white space is ignored; otherwise symbols are separated by spaces, as in `"60 64 67"`.
        Numbers are spelled by their digits. Tasks on texts work as usual: `TokenClassifier` labels
        each symbol of a list.

        Args:
            symbols: the alphabet, in the order of the ids: a string, or a list of strings or
                numbers. Their ids start at 5, after the special tokens.
            template: the special tokens that encoding adds to a text, see `train`.
            unknown: bool, whether symbols outside of the alphabet become the token `<unk>`.

        Returns:
            A `Tokenizer`. Without `unknown`, encoding raises ValueError if a text has another
            symbol; the message gives its row and position.

        Raises:
            ValueError: if there are no symbols; if a symbol occurs twice, is empty, has white
                space, or has the name of a special token; or if the template is unknown.

        Example:
        ```python
        from keras_transformer.tokenizers import Tokenizer

        bases = Tokenizer.of_symbols("ACGT", template="none")
        assert bases.decode(bases.encode("GATTACA")) == "GATTACA"
        notes = Tokenizer.of_symbols(range(36, 82))
        assert notes.decode(notes.encode("60 64 67")) == "60 64 67"
        ```
        """
        backend, roles = of_symbols(symbols, template, unknown)
        return cls(backend, **roles)

    def _refusing(self, what: str):
        """Turn the library's failures, even Rust panics, into errors that name the tokenizer."""
        return refusing(f"{self._name} cannot {what} this")

    # Ids to text

    @hint_on_foreign_arguments
    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the text of ids, without special tokens.

        Args:
            ids: a list or 1-D array of integers.

        Returns:
            A string. Bytes that do not form a character, as in a sequence that was cut off, become
            U+FFFD.

        Raises:
            ValueError: if the ids are not integers or an id is outside the vocabulary.
        """
        ids = self._check_ids(ids, "ids", hint=" For many rows use `decode_batch`.")
        with self._refusing("decode"):
            return self._backend.decode(ids)

    def decode_whole(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the text of ids with special tokens written out; otherwise as `decode`."""
        ids = self._check_ids(ids, "ids")
        with self._refusing("decode"):
            return self._backend.decode(ids, skip_special_tokens=False)

    @hint_on_foreign_arguments
    def decode_batch(self, ids: Sequence[Sequence[int]] | np.ndarray) -> list[str]:
        """Return the texts of many rows of ids, computed in parallel; see `decode`.

        Args:
            ids: a list of lists or 1-D arrays of integers, or a 2-D array.

        Returns:
            One string for each row.

        Raises:
            ValueError: as `decode`; the message gives the row.
        """
        if not isinstance(ids, (list, tuple, np.ndarray)) or getattr(ids, "ndim", 1) == 0:
            raise ValueError(f"`ids` must be a list of rows of integers, received {describe(ids)}.")
        rows = [self._check_ids(row, f"ids[{index}]") for index, row in enumerate(ids)]
        with self._refusing("decode"):
            return self._backend.decode_batch(rows)

    def _check_ids(self, ids, name: str, hint: str = "") -> list[int]:
        try:
            array = np.asarray(ids)
        except ValueError:
            array = np.asarray(None)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise ValueError(
                f"`{name}` must be a list or 1-D array of integers. "
                f"Received: {shorten(ids)} (dtype {array.dtype}, shape {array.shape}).{hint}"
            )
        wrong = array[(array < 0) | (array >= self.vocabulary_size)]
        if wrong.size:
            raise ValueError(
                f"`{name}` holds the id {wrong[0]}, but the vocabulary has the ids 0 to "
                f"{self.vocabulary_size - 1}."
            )
        return array.astype(int).tolist()

    # Vocabulary

    @cached_property
    def vocabulary_size(self) -> int:
        """The highest id plus one, which is the number of rows that an embedding needs."""
        return max(self.get_vocabulary().values(), default=-1) + 1

    @cached_property
    def segment_count(self) -> int:
        """Number of segments: the highest segment id plus one, and at least 2."""
        return segment_count(self._backend)

    @cached_property
    def languages(self) -> Languages | None:
        """The languages that the vocabulary has tokens for; `None` without any."""
        return languages_of(self)

    def get_vocabulary(self) -> dict[str, int]:
        """Return all tokens, including special ones, with their ids."""
        return self._backend.get_vocab(with_added_tokens=True)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token, `None` if the vocabulary lacks it."""
        return self._backend.token_to_id(check_text("token", token))

    def id_to_token(self, id: int) -> str | None:
        """Return the token of an id, `None` if the vocabulary lacks it."""
        id = check_int("id", id)
        return self._backend.id_to_token(id) if 0 <= id < self.vocabulary_size else None

    @cached_property
    def special_ids(self) -> tuple[int, ...]:
        """Ids of all special tokens, in ascending order."""
        added = self._backend.get_added_tokens_decoder().items()
        ids = {id for id, token in added if token.special}
        return tuple(sorted((ids | {self._role_id(role) for role in self._roles}) - {None}))

    def _role_id(self, role: str) -> int | None:
        token = self._roles[role]
        return None if token is None else self.token_to_id(token)

    pad_id: int | None = _role("pad", "the padding token")
    start_id: int | None = _role("start", "the token that starts a sequence")
    end_id: int | None = _role("end", "the token that ends a sequence")
    mask_id: int | None = _role("mask", "the mask token")
    unknown_id: int | None = _role("unknown", "the unknown token")

    def _repr_html_(self) -> str:
        tokens = {
            role: f"{token}  (id {self.token_to_id(token)})"
            for role, token in self._roles.items()
            if token
        }
        rows = {"kind": type(self._backend.model).__name__, "vocabulary": self.vocabulary_size}
        rows |= {**tokens, "chat template": "yes" if self.chat_template else "no"}
        return html_table(type(self).__name__, rows)

    def __repr__(self) -> str:
        model = type(self._backend.model).__name__
        roles = ", ".join(f"{role}={token!r}" for role, token in self._roles.items() if token)
        return f"Tokenizer({model}, vocabulary_size={self.vocabulary_size}, {roles})"
