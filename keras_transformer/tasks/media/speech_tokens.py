"""Whisper's special tokens: languages, tasks and timestamps."""

import dataclasses
import re
from collections.abc import Sequence
from typing import NamedTuple

from keras import ops

from keras_transformer.generation.rules.banning import BANNED
from keras_transformer.tokenizers import Tokenizer

START, TRANSCRIBE, TRANSLATE = "<|startoftranscript|>", "<|transcribe|>", "<|translate|>"
NO_TIMES = "<|notimestamps|>"
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
# Seconds from one timestamp to the next.
STEP = 0.02


class Segment(NamedTuple):
    """A segment of a transcript.

    Fields:
        start: float, seconds from the beginning of the recording.
        end: float, seconds from the beginning of the recording.
        text: str.
    """

    start: float
    end: float
    text: str


@dataclasses.dataclass(frozen=True)
class SpeechTokens:
    """The ids of Whisper's special tokens in a vocabulary.

    Fields:
        languages: token id by language code; empty if the model knows one language.
        tasks: token id of `"transcribe"` and of `"translate"`; empty if it has no such tokens.
        no_times: int, the id of `<|notimestamps|>`, after which the ids of timestamps follow.
        end: int, the end id of a text.

    Source: Radford et al. 2022, section 2.3.
    """

    languages: dict[str, int]
    tasks: dict[str, int]
    no_times: int
    end: int

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> "SpeechTokens | None":
        """Return the special tokens of a tokenizer, or None if its vocabulary is not Whisper's."""
        vocabulary = tokenizer.get_vocabulary()
        if not {START, NO_TIMES} <= vocabulary.keys() or tokenizer.end_id is None:
            return None
        start, no_times = vocabulary[START], vocabulary[NO_TIMES]
        between = {name: i for name, i in sorted(vocabulary.items()) if start < i < no_times}
        named = ((_LANGUAGE.fullmatch(name), i) for name, i in between.items())
        languages = {found[1]: i for found, i in named if found}
        tasks = {"transcribe": TRANSCRIBE, "translate": TRANSLATE}
        tasks = {name: vocabulary[token] for name, token in tasks.items() if token in vocabulary}
        return cls(languages, tasks, no_times, tokenizer.end_id)

    @property
    def first_time(self) -> int:
        """The id of `<|0.00|>`."""
        return self.no_times + 1


@dataclasses.dataclass(frozen=True)
class TimeRules:
    """A `function` of `Rules` that makes timestamps come in pairs and never go back.

    Fields:
        no_times: int, the id of `<|notimestamps|>`, which is banned; timestamps have larger ids.
        end: int, the end id of a text; words have smaller ids.
        latest_first: int, the latest first timestamp, in steps. None disables the limit.

    Source: the code published with Radford et al. 2022, `ApplyTimestampRules`.
    """

    no_times: int
    end: int
    latest_first: int | None = 50

    def __call__(self, logits, tokens, counts):
        ids = ops.arange(logits.shape[-1], dtype="int32")[None, None]
        first_time = self.no_times + 1
        is_time = ids >= first_time
        places = ops.arange(tokens.shape[-1], dtype="int32")[None, None]
        counts = counts[:, None, None]
        written = places < counts
        times = ops.logical_and(written, tokens >= first_time)

        def was_time(back: int):
            return ops.any(ops.logical_and(times, places == counts - back), axis=-1)[..., None]

        last, before = was_time(1), ops.logical_or(was_time(2), counts < 2)
        paired, open_pair = ops.logical_and(last, before), ops.logical_and(last, ~before)
        latest = ops.max(ops.where(times, tokens, -1), axis=-1, keepdims=True)
        # The start of a pair may equal the end of the last pair; otherwise time must advance.
        least = ops.where(open_pair, latest, latest + 1)
        banned = ops.logical_or(ids == self.no_times, ops.logical_and(paired, is_time))
        banned = ops.logical_or(banned, ops.logical_and(open_pair, ids < self.end))
        banned = ops.logical_or(
            banned, ops.logical_and(ops.logical_and(is_time, latest >= 0), ids < least)
        )
        at_first = counts == 0
        banned = ops.logical_or(banned, ops.logical_and(at_first, ~is_time))
        if self.latest_first is not None:
            late = ids > first_time + self.latest_first
            banned = ops.logical_or(banned, ops.logical_and(at_first, late))
        logits = ops.where(banned, BANNED, logits)
        # If timestamps together are likelier than any single word, force a timestamp.
        likelihood = ops.log_softmax(logits, axis=-1)
        of_times = ops.logsumexp(ops.where(is_time, likelihood, BANNED), axis=-1, keepdims=True)
        of_words = ops.max(ops.where(is_time, BANNED, likelihood), axis=-1, keepdims=True)
        only_times = ops.logical_and(of_times > of_words, ~is_time)
        return ops.where(only_times, BANNED, logits)


def segments_of(
    ids: Sequence[int], tokens: SpeechTokens, tokenizer: Tokenizer, offset: float, seconds: float
) -> tuple[list[Segment], float]:
    """Split the ids of a window into segments, and find the number of seconds that they cover.

    Args:
        ids: the generated ids, including timestamps.
        tokens: the special tokens, which tell timestamps from words.
        tokenizer: the tokenizer of the text.
        offset: float, the start of the window in the recording, in seconds.
        seconds: float, the length of the window.

    Returns:
        A list of `Segment`, and the start of the next window relative to this one.

    Source: the code published with Radford et al. 2022, `transcribe`.
    """
    first = tokens.first_time
    times = [i >= first for i in ids]
    cuts = [i for i in range(1, len(ids)) if times[i] and times[i - 1]]
    ends_open = times[-2:] == [False, True]
    slices = [*cuts, len(ids)] if cuts and ends_open else cuts
    if not cuts:
        last = next((i - first for i in reversed(ids) if i > first), None)
        end = seconds if last is None else min(last * STEP, seconds)
        pieces, done = [(0.0, end, ids)], seconds
    else:
        pairs = zip([0, *slices], slices, strict=False)
        pieces = [
            ((ids[a] - first) * STEP, (ids[b - 1] - first) * STEP, ids[a:b]) for a, b in pairs
        ]
        done = seconds if ends_open else (ids[slices[-1] - 1] - first) * STEP
    found = []
    for start, end, piece in pieces:
        text = tokenizer.decode_batch([[i for i in piece if i < tokens.end]])[0].strip()
        if text:
            found.append(Segment(round(offset + start, 2), round(offset + end, 2), text))
    return found, done if done > 0 else seconds
