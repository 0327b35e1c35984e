"""Moses tokenization, which separates words from punctuation, and its inverse.

Corpora of machine translation, such as Multi30k, are distributed in this form. A model that was
trained on it needs its input in this form, whatever its own tokenizer does afterwards.
"""

import re
from collections.abc import Callable

# Abbreviations whose final period does not end a sentence.
_ABBREVIATIONS = frozenset(
    ("mr", "mrs", "ms", "dr", "prof", "st", "jr", "sr", "vs", "etc", "inc", "ltd", "co")
)
_ESCAPES = {
    "&": "&amp;", "|": "&#124;", "<": "&lt;", ">": "&gt;", "'": "&apos;", '"': "&quot;",
    "[": "&#91;", "]": "&#93;",
}  # fmt: skip
_ENTITY = re.compile("|".join(map(re.escape, _ESCAPES.values())))
_TYPOGRAPHIC = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "…": "..."})


def moses_tokenize(text: str) -> str:
    """Put spaces between words and punctuation, and escape characters as Moses does.

    Follows the rules of Moses's English tokenizer, with few abbreviations: it separates a period at
    the end of a word, a comma outside of numbers, any other sign except the hyphen, and an
    apostrophe together with the letters after it. Text that already has this form does not change.

    Args:
        text: a string. Its case is kept.

    Returns:
        The words and signs, separated by single spaces.

    Example:
    ```python
    from keras_transformer.tokenizers import moses_tokenize

    assert moses_tokenize("A man's bike, isn't it?") == "A man &apos;s bike , isn &apos;t it ?"
    ```

    Source: Koehn et al. 2007, "Moses", `tokenizer.perl`.
    """
    text = _unescape(text).translate(_TYPOGRAPHIC)
    text = re.sub(r"([^\w\s.'`,-]|_)", r" \1 ", text)
    text = re.sub(r"(\.{2,})", r" \1 ", text)
    text = re.sub(r"(?<!\d),|,(?!\d)", " , ", text)
    text = re.sub(r"(?<![^\W_])'|'(?![^\W_])", " ' ", text)  # at the edge of a word
    text = re.sub(r"(?<=[^\W_])'(?=[^\W_])", " '", text)  # inside a word
    text = re.sub(r"(?<!\S)' (?=(?:s|re|ve|ll|d|m|t)(?!\S))", "'", text)  # already separated
    words = text.split()
    for place, word in enumerate(words):
        stem, last = word[:-1], place == len(words) - 1
        if word.endswith(".") and stem.strip("."):
            initials = "." in stem and any(map(str.isalpha, stem))
            goes_on = not last and words[place + 1][0].islower()
            abbreviated = stem.lower() in _ABBREVIATIONS or (len(stem) == 1 and stem.isalpha())
            if not (initials or goes_on or (abbreviated and not last)):
                words[place] = f"{stem} ."
    return re.sub(r"[&|<>'\"\[\]]", lambda sign: _ESCAPES[sign[0]], " ".join(words))


def moses_detokenize(text: str) -> str:
    """Attach punctuation to its words again, to show a translation.

    Args:
        text: words and signs with spaces between them, as from `moses_tokenize`.

    Returns:
        The text in ordinary spelling. Its case is not restored.

    Example:
    ```python
    from keras_transformer.tokenizers import moses_detokenize

    words = "ein mann , der &quot; hallo &quot; sagt ."
    assert moses_detokenize(words) == 'ein mann, der "hallo" sagt.'
    ```

    Source: Koehn et al. 2007, "Moses", `detokenizer.perl`.
    """
    text = _unescape(text)
    text = re.sub(r'"\s*([^"]*?)\s*"', r'"\1"', text)
    text = re.sub(r"\s+([.,!?;:%)\]}]|\.{2,})(?=\s|\"|$)", r"\1", text)
    text = re.sub(r"([(\[{])\s+", r"\1", text)
    return re.sub(r"(?<=\w)\s+'(?=\w)", "'", text)


def text_forms(text: str | None) -> tuple[Callable[[list[str]], list[str]], Callable[[str], str]]:
    """Return functions from ordinary texts to the form a preset was trained on, and back.

    Args:
        text: the form as in a preset's metadata, `"moses"`, or None if texts are ordinary.

    Returns:
        A function from a list of ordinary texts to that form, and one from a text in that form back
        to an ordinary one.

    Example:
    ```python
    from keras_transformer.tokenizers.moses import text_forms

    split, join = text_forms("moses")
    assert split(["A dog, a cat."]) == ["A dog , a cat ."]
    assert join("a dog , a cat .") == "a dog, a cat."
    ```
    """
    if text != "moses":
        return list, str
    return lambda texts: [moses_tokenize(text) for text in texts], moses_detokenize


def _unescape(text: str) -> str:
    signs = {entity: sign for sign, entity in _ESCAPES.items()}
    return _ENTITY.sub(lambda entity: signs[entity[0]], text)
