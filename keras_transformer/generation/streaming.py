"""Streams of generated text: which part of it is certain so far, and where it stops."""

from collections.abc import Sequence

import numpy as np

from keras_transformer.checking import check_text, describe
from keras_transformer.tokenizers.pieces import decoder_steps
from keras_transformer.tokenizers.tokenizer import Tokenizer

# A window of tokens is decoded at a time. It is cut down when it has grown to the first length,
# to the second if that shows the same text.
_LONGEST, _KEPT = 64, 16
# How many tokens of single bytes in a row are waited for: a wrong one spoils the whole row. In a
# longer row, which may go on for ever, whole characters are given.
_BYTES = 32


class TextStream:
    """Turns ids that arrive one by one into text that arrives in pieces.

    The pieces together are what `CausalLM.generate` gives as a whole: the continuation as it
    is decoded behind its prompt, with the space between the two, up to the first stop string.
    A piece never ends within a character, nor within what may become a stop string. The work for
    a token does not grow with the text.

    Args:
        tokenizer: `Tokenizer`.
        prompt_ids: the ids that the text continues.
        stop: a string or strings; the text ends before the first.

    Raises:
        ValueError: for ids outside the vocabulary or a stop that is not a string.

    Example:

    ```python
    from keras_transformer.generation.streaming import TextStream
    from keras_transformer.tokenizers import Tokenizer

    tokenizer = Tokenizer.train(["one two three"] * 2, vocabulary_size=300)
    stream = TextStream(tokenizer, tokenizer.encode("one", special_tokens=False), stop="three")
    for token in tokenizer.encode("two three four", special_tokens=False):
        stream.push([token])
    assert stream.stopped
    assert stream.text == " two "
    ```
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        stop: str | Sequence[str] = (),
    ):
        strings, ids = ((), ()) if stop in ((), []) else check_stop(stop)
        if ids:
            raise ValueError(f"`stop` must be strings here, received the ids {ids}.")
        self._tokenizer = tokenizer
        self._stop = strings
        # A role alone does not make decoding leave a token out.
        added = tokenizer._backend.get_added_tokens_decoder()
        self._skipped = {index for index, token in added.items() if token.special}
        steps = decoder_steps(tokenizer)
        replaced = [x.get("pattern", {}).get("String") for x in steps if x["type"] == "Replace"]
        # Text that a later token may change: a decoder takes away the space in " ,".
        self._changing = tuple(text for text in replaced if text is not None and len(text) > 1)
        self._bytes: dict[int | None, int] = {}
        if any(step["type"] == "ByteFallback" for step in steps):
            self._bytes = {tokenizer.token_to_id(f"<0x{byte:02X}>"): byte for byte in range(256)}
        self._row = 0
        self._window: list[int] = []
        self._append(self._shown(prompt_ids))
        self._sent = len(self._decode(self._window))
        self._prompt = self._decode(self._window)
        # The new ids as long as nothing came of them, `None` from then on.
        self._new: list[int] | None = []
        self._limit = 0
        self._shorten()
        self._held = ""
        self._pieces: list[str] = []
        self._finished = False
        self.stopped_by: str | None = None

    @property
    def text(self) -> str:
        """All text that was given so far."""
        return "".join(self._pieces)

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; `stopped_by` is the string."""
        return self.stopped_by is not None

    def push(self, ids: Sequence[int] | int) -> str:
        """Adds an id or a list of ids, and returns the text that is certain only now; often none.

        Raises:
            ValueError: for ids outside the vocabulary, or behind `finish`.
        """
        if self._finished:
            raise ValueError("The stream is finished: make a new `TextStream`.")
        shown = self._shown([ids] if isinstance(ids, (int, np.integer)) else ids)
        if self.stopped:
            return ""
        pieces = []
        # In small parts, so that a long list costs as much as its ids one by one.
        for first in range(0, len(shown), _KEPT):
            part = shown[first : first + _KEPT]
            self._append(part)
            if self._new is not None:
                self._new += part
            pieces.append(self._give(self._certain(), last=False))
            if self.stopped:
                break
            if len(self._window) >= self._limit:
                self._shorten()
        return "".join(pieces)

    def finish(self) -> str:
        """Ends the stream, and returns what was held back. Half a character is U+FFFD now."""
        before, self._finished = self._finished, True
        if before or self.stopped:
            return ""
        if self._contradicts(self._decode(self._window)):
            self._restart()
        end = self._end()
        if self._row <= _BYTES:
            end = len(self._window)
        # Of a long row what was given stays: half a character behind it is decoded alone.
        text = self._decode(self._window[:end]) + self._decode(self._window[end:])
        return self._give(text, last=True)

    def _shown(self, ids) -> list[int]:
        checked = self._tokenizer._check_ids(ids, "ids") if len(ids) else []
        return [token for token in checked if token not in self._skipped]

    def _append(self, ids: list[int]) -> None:
        """Adds to the window, and counts the bytes in a row at the end of all."""
        self._window += ids
        for token in ids:
            self._row = self._row + 1 if token in self._bytes else 0

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids) if ids else ""

    def _certain(self) -> str:
        """The text of the window that no further token can change."""
        text = self._decode(self._window[: self._end()])
        if self._contradicts(text):
            self._restart()
            return self._certain()
        text = text.removesuffix("\ufffd")
        return text[: len(text) - _beginning(text, self._changing)]

    def _end(self) -> int:
        """The number of tokens of the window that are not single bytes still waited for."""
        size = len(self._window)
        if self._row <= _BYTES:
            return size - self._row
        tail = bytes(self._bytes[token] for token in self._window[-min(self._row, size) :])
        for missing in range(4):
            try:
                tail[: len(tail) - missing].decode()
            except UnicodeDecodeError:
                continue
            return size - missing
        return size

    def _contradicts(self, text: str) -> bool:
        """Whether the text is not the prompt's, continued: its end was a half character, say."""
        return self._new is not None and not text.startswith(self._prompt[: len(text)])

    def _restart(self) -> None:
        """Decodes the new ids alone from now on."""
        self._window, self._row, self._sent, self._prompt = [], 0, 0, ""
        self._append(self._new)

    def _give(self, text: str, last: bool) -> str:
        """The text behind what was sent, except for what may be the beginning of a stop string."""
        new = self._held + text[self._sent :]
        if len(text) > self._sent:
            self._sent, self._new = len(text), None
        found = _first_stop(new, self._stop)
        if found is not None:
            place, self.stopped_by = found
            self._held, new = "", new[:place]
        else:
            held = 0 if last else _beginning(new, self._stop)
            new, self._held = new[: len(new) - held], new[len(new) - held :]
        if new:
            self._pieces.append(new)
        return new

    def _shorten(self) -> None:
        """Cuts the window down, if a part of it shows the same text at its end."""
        # Between the prompt and the first text behind it the two must stay apart.
        if not self._new:
            end = self._end()
            whole = self._decode(self._window[:end])
            unsent = len(whole) - self._sent
            for first in range(end - _KEPT, 0, -1):
                text = self._decode(self._window[first:end])
                # Something that was sent is in it: the first space may be another.
                if len(text) > max(unsent, 0) + 1 and whole.endswith(text):
                    self._window, self._sent = self._window[first:], len(text) - unsent
                    self._prompt = self._decode(self._window)
                    break
        self._limit = max(_LONGEST, 2 * len(self._window))


def without_stop(text: str, stop: Sequence[str]) -> str:
    """A text up to the first stop string, which is the one that ends first."""
    found = _first_stop(text, stop)
    return text if found is None else text[: found[0]]


def check_stop(stop) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """What ends a text: strings and ids of tokens."""
    items = list(stop) if isinstance(stop, (list, tuple)) else [stop]
    if not items:
        raise ValueError("`stop` is empty: give a string or a token id, or leave it out.")
    for item in items:
        is_id = isinstance(item, (int, np.integer)) and not isinstance(item, bool)
        if not (is_id and item >= 0) and not (isinstance(item, str) and item):
            raise ValueError(
                "`stop` must be a string, a token id or a list of these, none of them empty or "
                f"negative. Received: {describe(item)}"
            )
    strings = dict.fromkeys(check_text("stop", x) for x in items if isinstance(x, str))
    ids = dict.fromkeys(int(item) for item in items if not isinstance(item, str))
    return tuple(strings), tuple(ids)


def _first_stop(text: str, stop: Sequence[str]) -> tuple[int, str] | None:
    """Return the place and the string of the stop string that ends first, None without one."""
    found = [(text.find(string), string) for string in stop]
    # At the same end the longer one: it begins first.
    ends = [(place + len(string), place, string) for place, string in found if place >= 0]
    return min(ends)[1:] if ends else None


def _beginning(text: str, wholes: Sequence[str]) -> int:
    """The length of the longest end of a text that is the beginning of one of some strings."""
    longest = max((len(whole) for whole in wholes), default=1)
    for length in range(min(longest - 1, len(text)), 0, -1):
        end = text[len(text) - length :]
        if any(len(whole) > length and whole.startswith(end) for whole in wholes):
            return length
    return 0
