"""Tagging schemes such as BIO (`B-PER`, `I-PER`): conversion of tags to spans, and back."""

import re
from collections.abc import Sequence
from typing import NamedTuple

OUTSIDE = "O"
# The letters of a scheme: BIO (IOB2), IOB1 and IO; BIOES; BILOU; BMES and BMEWO; IOE.
_SCHEMES = ("BI", "BIES", "BILU", "BMES", "BMEW", "IE")
_FIRST, _INSIDE, _LAST, _ALONE = ("B",), ("I", "M"), ("E", "L"), ("S", "U", "W")
_WHOLE = re.compile("BI*L|U")  # a span of BILOU


class Span(NamedTuple):
    """The kind and the words of an entity, from `start` up to but excluding `end`."""

    kind: str
    start: int
    end: int


class TagScheme:
    """The tagging scheme of a task's labels.

    A tag is a letter, a hyphen and a kind. The letters B and I are used by BIO (IOB2), IOB1 and
    IO, which are read in the same way. Other letters only have a meaning if all labels except
    `"O"` are tags of one scheme: BIOES (IOBES), BILOU, BMES, BMEWO or IOE. Any other label is a
    kind of its own.

    Args:
        labels: sequence of str.
    """

    def __init__(self, labels: Sequence[str]):
        parts = {label: _split(label) for label in labels if label != OUTSIDE}
        letters: dict[str, set[str]] = {}  # by kind
        for letter, kind in parts.values():
            letters.setdefault(kind, set()).add(letter)
        used = set().union(*letters.values())
        scheme = next((known for known in _SCHEMES if used <= set(known)), "BI")
        if any(found <= set(_LAST) for found in letters.values()):
            scheme = "BI"  # Without a first tag, "E-mail" is just a label with a hyphen.
        self._complete = scheme == "BILU"
        self._tags = {
            label: part if part[0] in set(scheme) else ("I", label) for label, part in parts.items()
        }
        self._labels = {tag: label for label, tag in self._tags.items()}

    @property
    def kinds(self) -> list[str]:
        """The distinct kinds of entities."""
        return list(dict.fromkeys(kind for _, kind in self._tags.values()))

    def spans(self, labels: Sequence[str]) -> list[Span]:
        """Return the entities of a row of labels.

        If labels break the rules of their scheme, each change of kind begins a new entity, as in
        conlleval and seqeval. In BILOU only complete entities count, as in seqeval.
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
        """Return the labels of an entity of `length` words; with B and I tags, as in BIO."""

        def label(*letters: str) -> str:
            known = (self._labels.get((letter, kind)) for letter in letters)
            return next((name for name in known if name is not None), f"I-{kind}")

        if length == 1:
            return [label(*_ALONE, *_FIRST, *_LAST, *_INSIDE)]
        inside = [label(*_INSIDE)] * (length - 2)
        return [label(*_FIRST, *_INSIDE), *inside, label(*_LAST, *_INSIDE)]


def _split(label: str) -> tuple[str, str]:
    """Split a tag into letter and kind; the letter is "" if the label is not a tag."""
    letter, hyphen, kind = label.partition("-")
    return (letter, kind) if hyphen and kind and len(letter) == 1 else ("", label)
