"""Schemes of tags such as `B-PER` and `I-PER`: from tags to spans of words, and back."""

import re
from collections.abc import Sequence
from typing import NamedTuple

OUTSIDE = "O"
# The letters of a scheme: BIO (IOB2), IOB1 and IO; BIOES; BILOU; BMES and BMEWO; IOE.
_SCHEMES = ("BI", "BIES", "BILU", "BMES", "BMEW", "IE")
_FIRST, _INSIDE, _LAST, _ALONE = ("B",), ("I", "M"), ("E", "L"), ("S", "U", "W")
_WHOLE = re.compile("BI*L|U")  # a span of BILOU


class Span(NamedTuple):
    """Words of one entity, from `start` to before `end`, and its kind."""

    kind: str
    start: int
    end: int


class TagScheme:
    """The scheme that the labels of a task are tags of.

    A tag is a letter, a hyphen and a kind. The letters B and I are those of BIO (IOB2), IOB1 and
    IO, which are read alike. Others count if all labels but `"O"` are tags of one scheme: BIOES
    (IOBES), BILOU, BMES, BMEWO or IOE. Any other label is a kind by itself.

    Args:
        labels: sequence of str.
    """

    def __init__(self, labels: Sequence[str]):
        parts = {label: _split(label) for label in labels if label != OUTSIDE}
        letters: dict[str, set[str]] = {}  # of each kind
        for letter, kind in parts.values():
            letters.setdefault(kind, set()).add(letter)
        used = set().union(*letters.values())
        scheme = next((known for known in _SCHEMES if used <= set(known)), "BI")
        if any(found <= set(_LAST) for found in letters.values()):
            scheme = "BI"  # "E-mail" has no beginning: it is a label that has a hyphen.
        self._complete = scheme == "BILU"
        self._tags = {
            label: part if part[0] in set(scheme) else ("I", label) for label, part in parts.items()
        }
        self._labels = {tag: label for label, tag in self._tags.items()}

    @property
    def kinds(self) -> list[str]:
        """The kinds of entities, each once."""
        return list(dict.fromkeys(kind for _, kind in self._tags.values()))

    def spans(self, labels: Sequence[str]) -> list[Span]:
        """Return the entities of a row of labels.

        Where labels break the rules of their scheme, an entity begins with each other kind, as in
        conlleval and seqeval. Of BILOU only complete entities count, as in seqeval.
        """
        found: list[list] = []  # the letters of an entity, its kind, its first word
        letter = kind = None
        for place, label in enumerate(labels):
            last, before = letter, kind
            letter, kind = self._tags.get(label, (None, None))
            if kind is None:
                continue
            if kind != before or letter in (*_FIRST, *_ALONE) or last in (*_LAST, *_ALONE):
                found.append(["", kind, place])
            found[-1][0] += letter
        return [
            Span(kind, start, start + len(letters))
            for letters, kind, start in found
            if not self._complete or _WHOLE.fullmatch(letters)
        ]

    def labels(self, kind: str, length: int) -> list[str]:
        """Return the labels of an entity of `length` words, those of BIO rather than of IOB1."""

        def label(*letters: str) -> str:
            known = (self._labels.get((letter, kind)) for letter in letters)
            return next((name for name in known if name is not None), f"I-{kind}")

        if length == 1:
            return [label(*_ALONE, *_FIRST, *_LAST, *_INSIDE)]
        inside = [label(*_INSIDE)] * (length - 2)
        return [label(*_FIRST, *_INSIDE), *inside, label(*_LAST, *_INSIDE)]


def _split(label: str) -> tuple[str, str]:
    """The letter of a tag and its kind; "" and the label for a label without a letter."""
    letter, hyphen, kind = label.partition("-")
    return (letter, kind) if hyphen and kind and len(letter) == 1 else ("", label)
