"""A row of training data as text that shows which of its tokens the loss counts."""

import itertools
import sys
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from keras_transformer.support.checking import printable
from keras_transformer.tokenizers import Tokenizer

_BEGIN, _END = "«", "»"
_GREEN, _DIM, _PLAIN = "\x1b[1;32m", "\x1b[2m", "\x1b[0m"
_STYLE = "background:#cdeccd;color:#000;font-weight:bold"


class ShownExample(NamedTuple):
    """The text of a row in parts, each with whether the loss counts its tokens.

    Args:
        parts: list of `(text, counted)`.
        tokens: int, the number of tokens.
        counted: int, the number of tokens that count.
    """

    parts: list[tuple[str, bool]]
    tokens: int
    counted: int

    @classmethod
    def of_tokens(
        cls,
        tokenizer: Tokenizer,
        ids: Sequence[int],
        counted: Sequence[bool],
        images: Mapping[int, str] | None = None,
    ) -> "ShownExample":
        """Make it from the ids of a row, and whether the loss counts each.

        `images` has the texts that are shown for images, by the places of their placeholders.
        """
        parts, done, before = [], [], ""
        shown = [(images or {}).get(place) for place in range(len(ids))]
        rows = zip(ids, counted, shown, strict=True)
        for (counts, label), some in itertools.groupby(rows, lambda row: row[1:]):
            done += [id for id, *_ in some]
            whole = tokenizer.decode_whole(done)
            parts.append((whole.removeprefix(before) if label is None else label, bool(counts)))
            before = whole
        return cls(parts, len(ids), sum(map(bool, counted)))

    def text(self, colored: bool = False) -> str:
        """Return the row for a terminal, in colours, or between `«` and `»` what counts."""
        begin, end = (_GREEN, _PLAIN) if colored else (_BEGIN, _END)
        rest = (_DIM, _PLAIN) if colored else ("", "")
        shown = (
            f"{begin}{printable(text)}{end}" if counts else f"{rest[0]}{printable(text)}{rest[1]}"
            for text, counts in self.parts
        )
        how = "in green" if colored else f"between {_BEGIN} and {_END}"
        return f"{self._summary}, {how}:\n{''.join(shown)}"

    def _repr_html_(self) -> str:
        shown = (
            f'<span style="{_STYLE}">{escape(text)}</span>' if counts else escape(text)
            for text, counts in self.parts
        )
        return f"<p>{self._summary}, in green:</p><pre>{''.join(shown)}</pre>"

    @property
    def _summary(self) -> str:
        return f"{self.tokens} tokens, of which the loss counts {self.counted}"

    def show(self) -> None:
        """Print the row; a notebook shows it as HTML."""
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if hasattr(shell, "kernel"):
            from IPython.display import display

            display(self)
        else:
            print(self.text(colored=sys.stdout.isatty()))
