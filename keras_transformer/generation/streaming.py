"""Streaming of generated text: the part that is final, and stop strings."""

from collections.abc import Sequence

import numpy as np

from keras_transformer.support.checking import check_text, describe
from keras_transformer.tokenizers.pieces import decoder_steps
from keras_transformer.tokenizers.tokenizer import Tokenizer

# The last tokens, a window, are decoded together. When the window reaches the first length, it is
# cut to the second if its end still decodes to the same text.
_LONGEST, _KEPT = 64, 16
# Longest run of single-byte tokens that is held back, since one wrong byte spoils the whole run.
# Whole characters of a longer run, which may never end, are released.
_BYTES = 32


class TextStream:
    """Converts ids that arrive one by one to text in pieces.

    Joined, the pieces equal the result of `CausalLM.generate`: the continuation decoded after its
    prompt, with the space between the two, up to the first stop string. A piece never ends within a
    character, nor within a possible stop string. The work per token does not grow with the text.

    Args:
        tokenizer: `Tokenizer`.
        prompt_ids: list of int, the ids that the text continues.
        stop: a string or list of strings; the text ends before the first that occurs.

    Raises:
        ValueError: if an id is outside the vocabulary or a stop is not a string.

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
            raise ValueError(f"`stop` of a TextStream must be strings, received the ids {ids}.")
        self._tokenizer = tokenizer
        self._stop = strings
        # Decoding skips only special tokens, not every token with a role.
        added = tokenizer._backend.get_added_tokens_decoder()
        self._skipped = {index for index, token in added.items() if token.special}
        steps = decoder_steps(tokenizer)
        replaced = [x.get("pattern", {}).get("String") for x in steps if x["type"] == "Replace"]
        # Text that a later token may change: a decoder removes the space in " ,".
        self._changing = tuple(text for text in replaced if text is not None and len(text) > 1)
        self._bytes: dict[int | None, int] = {}
        if any(step["type"] == "ByteFallback" for step in steps):
            self._bytes = {tokenizer.token_to_id(f"<0x{byte:02X}>"): byte for byte in range(256)}
        self._row = 0
        self._window: list[int] = []
        self._append(self._shown(prompt_ids))
        self._sent = len(self._decode(self._window))
        self._prompt = self._decode(self._window)
        # The new ids until they give text, then None.
        self._new: list[int] | None = []
        self._limit = 0
        self._shorten()
        self._held = ""
        self._pieces: list[str] = []
        self._finished = False
        self.stopped_by: str | None = None

    @property
    def text(self) -> str:
        """All text returned so far."""
        return "".join(self._pieces)

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; `stopped_by` is that string."""
        return self.stopped_by is not None

    def push(self, ids: Sequence[int] | int) -> str:
        """Add an id or a list of ids, and return the text that became final, often empty.

        Raises:
            ValueError: if an id is outside the vocabulary, or the stream is finished.
        """
        if self._finished:
            raise ValueError("The stream is finished: make a new `TextStream`.")
        shown = self._shown([ids] if isinstance(ids, (int, np.integer)) else ids)
        if self.stopped:
            return ""
        pieces = []
        # In small parts, so that a long list does not cost more than its ids one by one.
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
        """End the stream and return the text held back; an incomplete character becomes U+FFFD."""
        before, self._finished = self._finished, True
        if before or self.stopped:
            return ""
        if self._contradicts(self._decode(self._window)):
            self._restart()
        end = self._end()
        if self._row <= _BYTES:
            end = len(self._window)
        # Returned text of a long run must not change: an incomplete character after it is decoded
        # alone.
        text = self._decode(self._window[:end]) + self._decode(self._window[end:])
        return self._give(text, last=True)

    def _shown(self, ids) -> list[int]:
        checked = self._tokenizer._check_ids(ids, "ids") if len(ids) else []
        return [token for token in checked if token not in self._skipped]

    def _append(self, ids: list[int]) -> None:
        """Add ids to the window, and count the single-byte tokens at its end."""
        self._window += ids
        for token in ids:
            self._row = self._row + 1 if token in self._bytes else 0

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids) if ids else ""

    def _certain(self) -> str:
        """Return the text of the window that later tokens cannot change."""
        text = self._decode(self._window[: self._end()])
        if self._contradicts(text):
            self._restart()
            return self._certain()
        text = text.removesuffix("\ufffd")
        return text[: len(text) - _beginning(text, self._changing)]

    def _end(self) -> int:
        """Count the tokens of the window before the single-byte tokens that are held back."""
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
        """Return whether the text contradicts the prompt, such as after an incomplete character."""
        return self._new is not None and not text.startswith(self._prompt[: len(text)])

    def _restart(self) -> None:
        """Decode the new ids alone from now on."""
        self._window, self._row, self._sent, self._prompt = [], 0, 0, ""
        self._append(self._new)

    def _give(self, text: str, last: bool) -> str:
        """Return the text that was not sent yet, without a possible beginning of a stop string."""
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
        """Shorten the window if its last tokens alone decode to the same text at the end."""
        # Until the first new text, prompt and new tokens must stay distinguishable.
        if not self._new:
            end = self._end()
            whole = self._decode(self._window[:end])
            unsent = len(whole) - self._sent
            for first in range(end - _KEPT, 0, -1):
                text = self._decode(self._window[first:end])
                # The shorter window includes some sent text, since its first space may differ.
                if len(text) > max(unsent, 0) + 1 and whole.endswith(text):
                    self._window, self._sent = self._window[first:], len(text) - unsent
                    self._prompt = self._decode(self._window)
                    break
        self._limit = max(_LONGEST, 2 * len(self._window))


def without_stop(text: str, stop: Sequence[str]) -> str:
    """Cut a text before the stop string that ends first."""
    found = _first_stop(text, stop)
    return text if found is None else text[: found[0]]


def check_stop(stop) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the strings and the token ids that end a text."""
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
    """Return place and text of the stop string that ends first, or None if none occurs."""
    found = [(text.find(string), string) for string in stop]
    # If two end at the same place, the longer one wins: it begins first.
    ends = [(place + len(string), place, string) for place, string in found if place >= 0]
    return min(ends)[1:] if ends else None


def _beginning(text: str, wholes: Sequence[str]) -> int:
    """Return the length of the longest suffix of a text that is a proper prefix of a string."""
    longest = max((len(whole) for whole in wholes), default=1)
    for length in range(min(longest - 1, len(text)), 0, -1):
        end = text[len(text) - length :]
        if any(len(whole) > length and whole.startswith(end) for whole in wholes):
            return length
    return 0
