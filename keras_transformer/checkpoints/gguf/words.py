"""How vocabularies of bytes split a text into words, by `tokenizer.ggml.pre` of a GGUF file."""

import functools
import json
from collections.abc import Callable
from typing import Any

import tokenizers
from tokenizers import Regex, pre_tokenizers

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LINES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{_MARKS}{_LINES}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{_MARKS}{_LINES}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING = rf"{_CONTRACTIONS}?"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_LINES}"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_LINES}"
)
_BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
# A vocabulary of these finds a whole word first, before it merges bytes, and puts a start token
# before a text unless the file says otherwise.
_OF_LLAMA3 = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2")
WHOLE_WORDS = (*_OF_LLAMA3, "tekken")


def _bytes(use_regex: bool) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def _by(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, _bytes(False)])


def _with_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _bytes(True)])


def _falcon() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Punctuation("contiguous"),
            _bytes(True),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), behavior="isolated"),
        ]
    )


# Name -> a function that makes the words, as the published tokenizers split them.
WORDS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    **dict.fromkeys(_OF_LLAMA3, functools.partial(_by, _LLAMA3)),
    **dict.fromkeys(("smaug-bpe", "dbrx"), functools.partial(_by, _LLAMA3)),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"), functools.partial(_by, _QWEN2)
    ),
    "tekken": functools.partial(_by, _TEKKEN),
    "gpt-4o": functools.partial(_by, _GPT4O),
    "bloom": functools.partial(_by, _BLOOM),
    "falcon": _falcon,
    **dict.fromkeys(("starcoder", "smollm"), _with_digits),
    "gpt-2": functools.partial(_bytes, True),  # the library's own words
}


def name_of(backend: tokenizers.Tokenizer) -> str | None:
    """Return the name of how a backend splits texts, or None if GGUF has none for it."""
    model = json.loads(backend.to_str())["model"]
    whole = bool(model.get("ignore_merges"))
    steps = _steps(backend.pre_tokenizer)
    names = (name for name in WORDS if (name in WHOLE_WORDS) == whole)
    return next((name for name in names if _steps(WORDS[name]()) == steps), None)


def _steps(part: pre_tokenizers.PreTokenizer | None) -> list[dict[str, Any]]:
    """Return the steps of a pre-tokenizer, without what changes no token."""
    if part is None:
        return []
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = part
    open_steps, found = [json.loads(backend.to_str())["pre_tokenizer"]], []
    while open_steps:
        step = open_steps.pop(0)
        if step["type"] == "Sequence":
            open_steps = step["pretokenizers"] + open_steps
        else:
            found.append({k: v for k, v in step.items() if k != "trim_offsets"})
    return found
