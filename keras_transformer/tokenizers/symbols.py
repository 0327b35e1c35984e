"""Tokenizer of an alphabet: a token for each symbol, such as DNA bases, notes or numbers."""

from collections.abc import Iterable, Sequence

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from keras_transformer.support.checking import (
    check_bool,
    check_choice,
    check_text,
    describe,
    shorten,
)
from keras_transformer.tokenizers.backend import MAX_VOCABULARY, InvalidTokenizer
from keras_transformer.tokenizers.training import SEQUENCE_ROLES, TEMPLATES, set_template

_MASK = "<mask>"
# Unknown token of a tokenizer that refuses unknown symbols. (The library needs one.)
_REFUSED = "<refused>"


def of_symbols(
    symbols: Iterable, template: str, unknown: bool
) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    """Build a backend; see `Tokenizer.of_symbols` for the arguments."""
    check_choice("template", template, TEMPLATES)
    unknown = check_bool("unknown", unknown)
    roles = {**SEQUENCE_ROLES, "mask": _MASK}
    if not unknown:
        roles["unknown"] = _REFUSED
    names = _checked(symbols, roles)
    vocabulary = {token: number for number, token in enumerate([*roles.values(), *names])}
    model = models.WordLevel(vocabulary, unk_token=roles["unknown"])
    backend = tokenizers.Tokenizer(model)
    backend.add_special_tokens(list(roles.values()))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if all(len(name) == 1 for name in names):
        each = pre_tokenizers.Split("", "isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([backend.pre_tokenizer, each])
        backend.decoder = decoders.Fuse()
    set_template(backend, TEMPLATES[template], roles["start"], roles["end"])
    if not unknown:
        del roles["unknown"]
    return backend, roles


def _checked(symbols: Iterable, roles: dict[str, str]) -> list[str]:
    if isinstance(symbols, (bytes, dict)) or not isinstance(symbols, Iterable):
        raise ValueError(
            "`symbols` must be a string of characters or a list of strings or numbers, received "
            f"{describe(symbols)}."
        )
    names = [str(symbol) for symbol in symbols]
    if not names:
        raise ValueError("`symbols` is empty: an alphabet needs at least one symbol.")
    if len(names) + len(roles) > MAX_VOCABULARY:
        raise ValueError(
            f"`symbols` has {len(names):,} symbols; the maximum is {MAX_VOCABULARY:,}."
        )
    places: dict[str, int] = {}
    for place, name in enumerate(names):
        check_text(f"symbols[{place}]", name)
        if name in places:
            raise ValueError(
                f"`symbols` has {shorten(name)} twice, at {places[name]} and at {place}. Give "
                "each symbol once."
            )
        if name in roles.values():
            raise ValueError(f"`symbols[{place}]` is {name!r}, the name of a special token.")
        if name.split() != [name]:
            raise ValueError(
                f"`symbols[{place}]` is {name!r}: a symbol must not be empty or have white space."
            )
        places[name] = place
    return names


def check_symbols(
    backend: tokenizers.Tokenizer, rows: Sequence, encodings: list[tokenizers.Encoding]
) -> None:
    """Raise InvalidTokenizer if a row has a symbol outside of an alphabet that must cover it."""
    refused = backend.token_to_id(_REFUSED)
    if refused is None:
        return
    for number, (row, encoding) in enumerate(zip(rows, encodings, strict=True)):
        if refused in encoding.ids:
            _refuse(f"row {number}", row, backend, refused)


def _refuse(name: str, row: str | tuple[str, str], backend: tokenizers.Tokenizer, refused: int):
    """Raise InvalidTokenizer with the first unknown symbol of a row and its position.

    The row is encoded again, since fast encodings have no offsets.
    """
    sides = row if isinstance(row, tuple) else (row,)
    for side, text in enumerate(sides):
        encoding = backend.encode(text, add_special_tokens=False)
        if refused in encoding.ids:
            start, end = encoding.offsets[encoding.ids.index(refused)]
            part = f", text {side} of the pair," if len(sides) == 2 else ""
            raise InvalidTokenizer(
                f"{name}{part} has {shorten(text[start:end])} at {start}, which is not a "
                "symbol. With of_symbols(..., unknown=True) it becomes the token <unk>."
            )
