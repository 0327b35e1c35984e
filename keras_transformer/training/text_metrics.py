"""Metrics that compare generated texts with references: BLEU, ROUGE, edit distance, WER."""

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType

from keras_transformer.support.checking import check_bool, check_choice, check_text, describe


class TextMetric:
    """Base class of metrics that compare texts with references, accumulated over batches.

    It has the methods of a `keras.metrics.Metric`. A subclass implements `score`.
    """

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
        counts = {len(texts) for texts in references}
        if len(counts) > 1:
            raise ValueError(
                f"All texts must have the same number of references, got {sorted(counts)}."
            )
        columns = [list(texts) for texts in zip(*references, strict=True)]
        return self._metric.corpus_score(hypotheses, columns).score

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

    Raises:
        ImportError: if rapidfuzz is not installed.
        ValueError: if `unit` is neither of the two.

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

    def __init__(self, unit: str = "character", normalize: bool = True):
        self.unit = check_choice("unit", unit, ("character", "word"))
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
        return text if self.unit == "character" else text.split()


class WordErrorRate(EditDistance):
    """Words inserted, deleted or changed, as a share of the words in the references.

    The same as `EditDistance(unit="word")`. 0.0 is best; the rate may be above 1. Case and
    punctuation count: normalize both sides first.

    Raises:
        ImportError: if rapidfuzz is not installed.

    Example:
    ```python
    from keras_transformer.training import WordErrorRate

    rate = WordErrorRate()
    rate.update_state(["a man rides a bike"], ["a man ride bike"])  # one changed, one missing
    assert rate.result() == 2 / 5
    ```
    """

    def __init__(self):
        super().__init__(unit="word")


class _Words:
    """A word-splitting function in the form that rouge-score expects."""

    def __init__(self, tokenize: Callable[[str], list[str]]):
        if not callable(tokenize):
            raise ValueError(f"`tokenize` must be a function, received {describe(tokenize)}.")
        self.tokenize = tokenize


def check_translations(names: tuple[str, str], references, texts) -> None:
    """Raise ValueError unless these are lists of references and texts; `names` are for errors."""
    for name, given in zip(names, (references, texts), strict=True):
        if not isinstance(given, (list, tuple)):
            raise ValueError(f"`{name}` must be a list of texts, received {describe(given)}.")
    for place, text in enumerate(texts):
        check_text(f"{names[1]}[{place}]", text)
    for place, reference in enumerate(references):
        name, several = f"{names[0]}[{place}]", reference
        if isinstance(reference, str):
            several = [reference]
        if not isinstance(several, (list, tuple)) or not several:
            raise ValueError(
                f"`{name}` must be a text or a list of texts, received {describe(reference)}."
            )
        for text in several:
            check_text(name, text)


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
