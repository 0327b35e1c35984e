"""Languages that a tokenizer has tokens for, and where a translation model reads them."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

import tokenizers

from keras_transformer.support.checking import shorten
from keras_transformer.tokenizers.training import set_template

_OF_25 = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT "
    "lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
)
_OF_50 = (
    f"{_OF_25} af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL "
    "ps_AF pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)
CODES_25, CODES_50 = tuple(_OF_25.split()), tuple(_OF_50.split())
# M2M100's languages, and those of its models for WMT 21, in the order of their ids.
_OF_M2M100 = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu "
    "ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms "
    "my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur "
    "uz vi wo xh yi yo zh zu"
)
_OF_WMT21 = ["en", "ha", "is", "ja", "cs", "ru", "zh", "de"]
M2M100_CODES = {"m2m100": _OF_M2M100.split(), "wmt21": _OF_WMT21}

# Templates of texts and of pairs, with the language in front (mBART-50, M2M100, NLLB) or at the end
# (mBART).
_FIRST = ("{start} $A {end}", "{start} $A $B {end}")
_LAST = ("$A {end} {start}", "$A $B {end} {start}")
# Most languages that an error message lists.
_MOST = 60


@dataclasses.dataclass(frozen=True)
class _Kind:
    """How one kind of model spells its languages, and where it reads them."""

    spelling: str  # the token of a language, with `{}` for its name
    name: str  # regular expression of the names
    in_source: bool  # whether sources name their language
    target: str  # where the target's is: "forced", "start" or "source", see `Languages`

    @property
    def token(self) -> re.Pattern:
        before, after = map(re.escape, self.spelling.split("{}"))
        return re.compile(f"{before}({self.name}){after}")


_NLLB = _Kind("{}", "[a-z]{3}_[A-Z][a-z]{3}", True, "forced")
_MBART = _Kind("{}", "[a-z]{2}_[A-Z]{2}", True, "forced")
_MBART_25 = dataclasses.replace(_MBART, target="start")  # the language at the end of sources
_M2M100 = _Kind("__{}__", "[a-z]{2,3}", True, "forced")
_MARIAN = _Kind(">>{}<<", ".+", False, "source")
_MADLAD = _Kind("<2{}>", "[a-z]{2,3}(?:_[A-Za-z0-9]+)*", False, "source")


@dataclasses.dataclass(frozen=True)
class Languages:
    """The languages that a tokenizer has tokens for.

    Args:
        ids: the id of each language's token, by the name of the language.
        spelling: the token of a language, with `{}` for its name: `"{}"`, `"__{}__"`.
        in_source: bool, whether each source names its own language.
        first: bool, whether a source begins with a language, or else ends with it.
        target: where the target's language is: `"forced"`, it is the first token of the target;
            `"start"`, the decoder starts from it; `"source"`, it is a word before the source.
    """

    ids: Mapping[str, int]
    spelling: str
    in_source: bool
    first: bool
    target: str

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the languages, in the order of their ids."""
        return tuple(sorted(self.ids, key=self.ids.__getitem__))

    def name_of(self, index: int) -> str | None:
        """Return the name of the language whose token has this id; None if no language has it."""
        return next((name for name, own in self.ids.items() if own == index), None)

    def check(self, source: str | None, target: str | None) -> None:
        """Raise ValueError if the model cannot be told one of these languages."""
        if source is not None and not self.in_source:
            raise ValueError(
                "This model reads only the language of the target, and finds out that of the "
                f"source: leave out `source`, received {shorten(source)}."
            )
        for name, given in (("source", source), ("target", target)):
            if given is not None and (not isinstance(given, str) or given not in self.ids):
                raise ValueError(
                    f"`{name}` is {shorten(given)}, which is not a language of this model."
                    f"{_hint(given, self.names)}"
                )

    def encode(self, tokenizer, texts: Sequence[str], source: str | None, target: str | None):
        """Return the ids of sources, one list for each text, that name these languages.

        Args:
            tokenizer: the `Tokenizer`.
            texts: sources, strings.
            source: language of the texts. Defaults to the tokenizer's.
            target: language to translate to.
        """
        if target is not None and self.target == "source":
            return tokenizer.encode_batch([f"{self.spelling.format(target)} {x}" for x in texts])
        if source is None:
            return tokenizer.encode_batch(texts)
        rows, own = tokenizer.encode_batch(texts, special_tokens=False), [self.ids[source]]
        end = [tokenizer.end_id]
        return [[*own, *row, *end] if self.first else [*row, *end, *own] for row in rows]


def languages_of(tokenizer) -> Languages | None:
    """Return what a tokenizer knows of languages; None if it has no tokens for them."""
    around, end = tokenizer.encode(""), tokenizer.end_id
    if len(around) == 2 and end in around:
        first = around[0] != end
        kinds = (_NLLB, _M2M100, _MBART if first else _MBART_25)
        own = tokenizer.id_to_token(around[0 if first else 1])
        for kind in kinds:
            if kind.token.fullmatch(own):
                special = ((tokenizer.id_to_token(i), i) for i in tokenizer.special_ids)
                return _languages(kind, special, first)
    for kind in (_MARIAN, _MADLAD):
        found = _languages(kind, tokenizer.get_vocabulary().items(), first=True)
        # A token that texts cannot spell is not one for a source.
        if (
            found.ids
            and found.ids[found.names[0]] in found.encode(tokenizer, [""], None, found.names[0])[0]
        ):
            return found
    return None


def _languages(kind: _Kind, tokens: Iterable[tuple[str, int]], first: bool) -> Languages:
    matches = ((kind.token.fullmatch(token), index) for token, index in tokens)
    ids = {match[1]: index for match, index in matches if match}
    return Languages(ids, kind.spelling, kind.in_source, first, kind.target)


def check_languages(tokenizer, source: str | None, target: str | None) -> None:
    """Raise ValueError if a model with this tokenizer cannot be told one of these languages."""
    if source is None and target is None:
        return
    found = None if tokenizer is None else tokenizer.languages
    if found is None:
        raise ValueError(
            "This model has no tokens for languages, so it cannot be told any: leave out `source` "
            "and `target`."
        )
    found.check(source, target)


def _hint(given, known: Sequence[str]) -> str:
    """Return sentences with the languages that may be meant, and those that are known."""
    word = str(given)[:50].casefold()
    head = re.split("[-_]", word)[0]
    near: list[str] = []
    for start in filter(None, (head, head[:2])):
        near = near or [name for name in known if name.casefold().startswith(start)][:5]
    near = near or get_close_matches(word, known, n=1)
    meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    if len(known) <= _MOST:
        return f"{meant} It knows {', '.join(known)}."
    return f"{meant} It knows {len(known)}: the task's `languages` are their names."


def set_language(backend: tokenizers.Tokenizer, token: str, end: str, first: bool) -> None:
    """Make the backend add a language and the end token; with `first` the language is in front."""
    set_template(backend, _FIRST if first else _LAST, token, end)


def set_source_language(tokenizer, code: str) -> None:
    """Change the language that a tokenizer of mBART, M2M100 or NLLB adds to source texts.

    `generate` takes languages as its arguments. This is for `fit`, whose targets start with the
    `forced_bos_token_id` of the backbone's `generation_config`. The first mBART has no such token;
    there the target's language is the `start_id` of `Seq2SeqLM`.

    Args:
        tokenizer: `Tokenizer`, which already adds a language to texts.
        code: str, such as `"de_DE"`.

    Raises:
        ValueError: if the tokenizer adds no language to texts, or does not know this one.

    Example:
    ```python
    import keras_transformer as kt
    from keras_transformer.tokenizers import set_source_language

    words = ["en_XX", "de_DE"]
    tokenizer = kt.Tokenizer.train(["a dog", "ein hund"], vocabulary_size=300, special_tokens=words)
    try:
        set_source_language(tokenizer, "de_DE")
    except ValueError as error:
        assert "adds no language to a text" in str(error)
    ```

    Source: Liu et al. 2020, "Multilingual Denoising Pre-training", section 2; Tang et al. 2020.
    """
    found = tokenizer.languages
    if found is None or not found.in_source:
        raise ValueError(
            "This tokenizer adds no language to a text: it does not belong to an mBART, M2M100 or "
            "NLLB."
        )
    found.check(code, None)
    end = tokenizer.id_to_token(tokenizer.end_id)
    set_language(tokenizer._backend, found.spelling.format(code), end, found.first)
