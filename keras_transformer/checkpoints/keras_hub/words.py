"""What KerasHub's WordPiece does to the words of a text, as normalizers of the library."""

import functools
import unicodedata

from tokenizers import Regex, normalizers

# These characters stand for what is done to a text, and do not occur in it: they are control
# characters, which are taken out before.
BREAK, _FILL, _LONG = "\x1f", "\x1e", "\x1d"
SPACES = r"[ \t\n\r\f\p{Cc}\p{Cf}]"
PUNCTUATION = r"!-/:-@\[-`{-~\p{P}"
CJK = "".join(
    rf"\x{{{first}}}-\x{{{last}}}"
    for first, last in (
        ("4E00", "9FFF"),
        ("3400", "4DBF"),
        ("20000", "2A6DF"),
        ("2A700", "2B73F"),
        ("2B740", "2B81F"),
        ("2B820", "2CEAF"),
        ("F900", "FAFF"),
        ("2F800", "2FA1F"),
    )
)
_MOST_BYTES = 100  # of a word, longer ones are unknown


def case_fold(alphabet: set[str]) -> list[normalizers.Normalizer]:
    """Unicode's NFKC_Casefold: beyond lowercase, `ß` becomes `ss`, `ς` becomes `σ`."""
    steps = [normalizers.NFKC(), normalizers.Lowercase()]
    for character in _folded_otherwise():
        folded = unicodedata.normalize("NFKC", character.casefold())
        if character in alphabet or alphabet.issuperset(folded):
            steps.append(normalizers.Replace(character, folded))
    invisible = Regex(r"\p{Default_Ignorable_Code_Point}")
    return [*steps, normalizers.NFKC(), normalizers.Replace(invisible, "")]


@functools.cache
def _folded_otherwise() -> list[str]:
    """The characters that are lowercase, and that case folding changes all the same."""
    return [
        character
        for character in map(chr, (*range(0x80, 0xD800), *range(0xE000, 0x10000)))
        if character.lower() == character != character.casefold()
        and unicodedata.is_normalized("NFKC", character)
        and unicodedata.normalize("NFKC", character.casefold()) != character
    ]


def long_words() -> list[normalizers.Normalizer]:
    """Makes words of too many bytes unknown. The library counts characters."""
    word = f"[^{BREAK}]{{{_MOST_BYTES + 1},}}"
    fills = [
        normalizers.Replace(Regex(rf"(?<=[\x{{{first}}}-\x{{10FFFF}}])"), _FILL)
        for first in ("80", "800", "10000")
    ]
    return [
        *fills,
        normalizers.Replace(Regex(word), _LONG),
        normalizers.Replace(_FILL, ""),
    ]
