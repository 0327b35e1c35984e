"""Metrics that compare generated texts with references: BLEU, chrF, ROUGE, WER, exact match."""

import importlib
import re
import string
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, ClassVar

from keras_transformer.support.checking import (
    check_bool,
    check_choice,
    check_int,
    check_text,
    describe,
)


class TextMetric:
    """Base class of metrics that compare texts with references, accumulated over batches.

    It has the methods of a `keras.metrics.Metric`. A subclass implements `score`.
    """

    higher_is_better: ClassVar[bool] = True
    package: ClassVar[str] = "keras_transformer"  # the installed package that computes it

    def __init__(self):
        self.reset_state()

    def reset_state(self) -> None:
        """Forget all texts."""
        self._hypotheses: list[str] = []
        self._references: list[list[str]] = []

    def update_state(self, y_true: list, y_pred: list[str]) -> None:
        """Add texts.

        Args:
            y_true: references, list of str, or of lists of str if texts have several.
            y_pred: hypotheses, list of str.

        Raises:
            ValueError: unless each hypothesis has a reference or a list of references.
        """
        check_translations(("y_true", "y_pred"), y_true, y_pred)
        if len(y_pred) != len(y_true):
            raise ValueError(
                f"Got {len(y_pred)} hypotheses but {len(y_true)} references; each hypothesis needs "
                "a reference or a list of references."
            )
        self._hypotheses += y_pred
        self._references += [[r] if isinstance(r, str) else list(r) for r in y_true]

    def result(self) -> float:
        """Return the metric of all texts so far; 0 before the first, as Keras's metrics do."""
        return self.score(self._hypotheses, self._references) if self._hypotheses else 0.0

    def score(self, hypotheses: list[str], references: list[list[str]]) -> float:
        """Return the metric of texts and their lists of references."""
        raise NotImplementedError


class BLEU(TextMetric):
    """Corpus BLEU of texts, as sacrebleu computes it, accumulated over batches.

    It has the methods of a `keras.metrics.Metric`; the result is from 0 to 100.

    Args:
        tokenize: sacrebleu's tokenizer: "13a" for plain text, "none" for text that is
            tokenized already.
        lowercase: bool, whether case is ignored.

    Raises:
        ImportError: if sacrebleu is not installed.

    Example:
    ```python
    from keras_transformer.training import BLEU

    bleu = BLEU(tokenize="none")
    bleu.update_state(["a man rides a bike ."], ["a man rides a bike ."])
    assert round(bleu.result()) == 100
    ```

    Source: Papineni et al. 2002; Post 2018, "A Call for Clarity in Reporting BLEU Scores".
    """

    package = "sacrebleu"

    def __init__(self, tokenize: str = "13a", lowercase: bool = False):
        lowercase = check_bool("lowercase", lowercase)
        sacrebleu = _package("sacrebleu", "BLEU")
        check_choice("tokenize", tokenize, sacrebleu.metrics.BLEU.TOKENIZERS, none=True)
        # force: sacrebleu would warn that the text looks tokenized, which tokenize="none" already
        # says.
        self._metric = sacrebleu.metrics.BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
        super().__init__()

    def score(self, hypotheses, references) -> float:
        """Return BLEU. Raises ValueError if texts have different numbers of references."""
        return self._metric.corpus_score(hypotheses, _columns(references)).score

    @property
    def signature(self) -> str:
        """Signature by which sacrebleu describes how the last result was computed."""
        return str(self._metric.get_signature())


class CHRF(TextMetric):
    """Corpus chrF of texts, as sacrebleu computes it: the F-score of their character n-grams.

    It has the methods of a `keras.metrics.Metric`; the result is from 0 to 100. It needs no words,
    and so suits languages with rich morphology or without spaces better than BLEU.

    Args:
        word_order: int, the longest n-grams of words that count too: 0 for chrF, 2 for chrF++.

    Raises:
        ImportError: if sacrebleu is not installed.
        ValueError: if `word_order` is not an integer from 0 to 6.

    Example:
    ```python
    from keras_transformer.training import CHRF

    chrf = CHRF()
    chrf.update_state(["ein hund rennt"], ["ein hund rennt"])
    assert round(chrf.result()) == 100
    ```

    Source: Popović 2015, "chrF: character n-gram F-score for automatic MT evaluation"; Popović
    2017, "chrF++: words helping character n-grams".
    """

    package = "sacrebleu"

    def __init__(self, word_order: int = 0):
        word_order = check_int("word_order", word_order, at_least=0, at_most=6)
        self._metric = _package("sacrebleu", "CHRF").metrics.CHRF(word_order=word_order)
        super().__init__()

    def score(self, hypotheses, references) -> float:
        """Return chrF. Raises ValueError if texts have different numbers of references."""
        return self._metric.corpus_score(hypotheses, _columns(references)).score

    @property
    def signature(self) -> str:
        """Signature by which sacrebleu describes how the last result was computed."""
        return str(self._metric.get_signature())


class ROUGE(TextMetric):
    """Mean F-measure of the words or word sequences that texts share with their references.

    Computed by the package rouge-score. It has the methods of a `keras.metrics.Metric`; the result
    is from 0 to 1. If a text has several references, the best match counts.

    Args:
        kind: "rouge1" to "rouge9", shared n-grams; "rougeL", the longest common subsequence of a
            text; "rougeLsum", the same for each line, the usual score of summaries.
        stemmer: bool, whether endings of English words are removed (Porter's stemmer).
        tokenize: function from a text to a list of words. Defaults to rouge-score's, which makes
            words lowercase and keeps only the characters a-z and 0-9: give another function for
            other languages, such as `str.split`.

    Raises:
        ImportError: if rouge-score is not installed.
        ValueError: if `kind` is not one of these.

    Example:
    ```python
    from keras_transformer.training import ROUGE

    rouge = ROUGE("rouge1")
    rouge.update_state(["the cat sat on the mat"], ["the cat"])  # all of 2 words, 2 of 6
    assert abs(rouge.result() - 0.5) < 1e-6
    ```

    Source: Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries", sections 2 and 3.
    """

    package = "rouge-score"

    def __init__(
        self,
        kind: str = "rougeL",
        stemmer: bool = False,
        tokenize: Callable[[str], list[str]] | None = None,
    ):
        kinds = (*(f"rouge{n}" for n in range(1, 10)), "rougeL", "rougeLsum")
        self.kind = check_choice("kind", kind, kinds)
        check_bool("stemmer", stemmer)
        scorer = _package("rouge_score.rouge_scorer", "ROUGE", "rouge-score", "metrics")
        words = None if tokenize is None else _Words(tokenize)
        self._scorer = scorer.RougeScorer([kind], use_stemmer=stemmer, tokenizer=words)
        super().__init__()

    def score(self, hypotheses, references) -> float:
        found = [
            self._scorer.score_multi(several, text)[self.kind].fmeasure
            for text, several in zip(hypotheses, references, strict=True)
        ]
        return float(sum(found) / len(found))


class EditDistance(TextMetric):
    """Insertions, deletions and substitutions that turn a text into its reference (Levenshtein).

    Computed by the package rapidfuzz. It has the methods of a `keras.metrics.Metric`. If a text has
    several references, the nearest counts.

    Args:
        unit: "character" or "word", where words are separated by white space.
        normalize: bool, divide by the number of characters or words in all references: the
            character or word error rate, which may be above 1. If False, the result is the mean
            distance per text.
        ignore: sequence of what does not count, as for `ExactMatch`. Defaults to nothing.

    Raises:
        ImportError: if rapidfuzz is not installed.
        ValueError: if `unit` is neither of the two, or `ignore` has an unknown name.

    Example:
    ```python
    from keras_transformer.training import EditDistance

    distance = EditDistance(normalize=False)
    distance.update_state(["sitting"], ["kitten"])
    assert distance.result() == 3
    ```

    Source: Levenshtein 1966, "Binary codes capable of correcting deletions, insertions, and
    reversals".
    """

    higher_is_better = False
    package = "rapidfuzz"

    def __init__(self, unit: str = "character", normalize: bool = True, ignore: Sequence[str] = ()):
        self.unit = check_choice("unit", unit, ("character", "word"))
        self._plain = _without(ignore)
        self.normalize = check_bool("normalize", normalize)
        package = _package("rapidfuzz.distance", type(self).__name__, "rapidfuzz", "metrics")
        self._distance = package.Levenshtein.distance
        super().__init__()

    def score(self, hypotheses, references) -> float:
        errors = units = 0
        for text, several in zip(hypotheses, references, strict=True):
            parts = self._parts(text)
            pairs = [(self._distance(parts, x), len(x)) for x in map(self._parts, several)]
            distance, length = min(pairs)
            errors, units = errors + distance, units + length
        total = units if self.normalize else len(hypotheses)
        # If all references are empty, any text gives an infinite error rate.
        return errors / total if total else float("inf") if errors else 0.0

    def _parts(self, text: str) -> Sequence[str]:
        text = self._plain(text)
        return text if self.unit == "character" else text.split()


class WordErrorRate(EditDistance):
    """Words inserted, deleted or changed, as a share of the words in the references.

    The same as `EditDistance(unit="word")`. 0.0 is best; the rate may be above 1.

    Args:
        ignore: sequence of what does not count, as for `ExactMatch`: `("case", "punctuation")` for
            a recognizer that writes both and references that do not. Defaults to nothing.

    Raises:
        ImportError: if rapidfuzz is not installed.
        ValueError: if `ignore` has an unknown name.

    Example:
    ```python
    from keras_transformer.training import WordErrorRate

    rate = WordErrorRate()
    rate.update_state(["a man rides a bike"], ["a man ride bike"])  # one changed, one missing
    assert rate.result() == 2 / 5
    ```
    """

    def __init__(self, ignore: Sequence[str] = ()):
        super().__init__(unit="word", ignore=ignore)


class ExactMatch(TextMetric):
    """Share of texts that equal their reference, or one of several.

    It has the methods of a `keras.metrics.Metric`; the result is from 0 to 1.

    Args:
        ignore: sequence of what does not count: `"case"`, `"punctuation"` (of ASCII), `"articles"`
            (the English words a, an, the) and `"spaces"` (how many there are, and at the ends).
            `("case", "punctuation", "articles", "spaces")` is the exact match of SQuAD. Defaults to
            nothing.

    Raises:
        ValueError: if `ignore` has another name.

    Example:
    ```python
    from keras_transformer.training import ExactMatch

    match = ExactMatch(ignore=("case", "punctuation"))
    match.update_state(["Rome", ["Oslo", "Oslo, Norway"]], ["rome.", "oslo norway"])
    assert match.result() == 1
    ```

    Source: Rajpurkar et al. 2016, "SQuAD: 100,000+ Questions for Machine Comprehension of Text",
    section 6.1.
    """

    def __init__(self, ignore: Sequence[str] = ()):
        self._plain = _without(ignore)
        super().__init__()

    def score(self, hypotheses, references) -> float:
        pairs = zip(map(self._plain, hypotheses), references, strict=True)
        hits = [text in map(self._plain, several) for text, several in pairs]
        return sum(hits) / len(hits)


_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b", re.IGNORECASE)
# In the order in which they change a text.
_IGNORED: dict[str, Callable[[str], str]] = {
    "case": str.lower,
    "punctuation": lambda text: text.translate(_PUNCTUATION),
    "articles": lambda text: _ARTICLES.sub(" ", text),
    "spaces": lambda text: " ".join(text.split()),
}


def _without(ignore: Any) -> Callable[[str], str]:
    """Return a function that leaves out of a text what is named in `ignore`."""
    if isinstance(ignore, str) or not isinstance(ignore, Sequence):
        raise ValueError(f"`ignore` must be a list of names, received {describe(ignore)}.")
    for place, name in enumerate(ignore):
        check_choice(f"ignore[{place}]", name, tuple(_IGNORED))
    changes = [change for name, change in _IGNORED.items() if name in ignore]

    def plain(text: str) -> str:
        for change in changes:
            text = change(text)
        return text

    return plain


def _columns(references: list[list[str]]) -> list[list[str]]:
    """Return the first, the second, ... references of all texts, as sacrebleu takes them."""
    counts = {len(texts) for texts in references}
    if len(counts) > 1:
        raise ValueError(
            f"All texts must have the same number of references, got {sorted(counts)}."
        )
    return [list(texts) for texts in zip(*references, strict=True)]


class _Words:
    """A word-splitting function in the form that rouge-score expects."""

    def __init__(self, tokenize: Callable[[str], list[str]]):
        if not callable(tokenize):
            raise ValueError(f"`tokenize` must be a function, received {describe(tokenize)}.")
        self.tokenize = tokenize


def check_translations(names: tuple[str, str], references, texts) -> None:
    """Raise ValueError unless these are lists of references and texts; `names` are for errors."""
    _check_list(names[0], references)
    _check_list(names[1], texts)
    for place, text in enumerate(texts):
        check_text(f"{names[1]}[{place}]", text)
    check_references(names[0], references)


def check_references(name: str, references) -> None:
    """Raise ValueError unless this is a list of texts, or of lists of texts."""
    _check_list(name, references)
    for place, reference in enumerate(references):
        several = [reference] if isinstance(reference, str) else reference
        if not isinstance(several, (list, tuple)) or not several:
            raise ValueError(
                f"`{name}[{place}]` must be a text or a list of texts, received "
                f"{describe(reference)}."
            )
        for text in several:
            check_text(f"{name}[{place}]", text)


def _check_list(name: str, given: Any) -> None:
    if not isinstance(given, (list, tuple)):
        raise ValueError(f"`{name}` must be a list of texts, received {describe(given)}.")


def _package(module: str, metric: str, name: str = "", extra: str = "bleu") -> ModuleType:
    """Import a module that a metric needs. Raises ImportError that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = name or module
        raise ImportError(
            f"{metric} needs the package {name}, which is not installed. "
            f'Install it with: pip install "keras_transformer[{extra}]"'
        ) from error
