"""Scores of the texts that a task writes, by metrics that compare them with references."""

import functools
import importlib.metadata
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_transformer.checkpoints import load_task, resolve_preset
from keras_transformer.data import Records
from keras_transformer.evaluating.result import Score, Scores
from keras_transformer.kernels.device import with_backend
from keras_transformer.support.checking import (
    check_choice,
    check_flag,
    check_int,
    describe,
    printable,
    shorten,
)
from keras_transformer.support.columns import listed_column
from keras_transformer.support.progress import shows_bars
from keras_transformer.tasks import Task
from keras_transformer.tasks.data.text import check_equal, text_rows
from keras_transformer.tasks.media.sources import SourceProcessor
from keras_transformer.training.text_metrics import (
    BLEU,
    CHRF,
    ROUGE,
    EditDistance,
    ExactMatch,
    TextMetric,
    WordErrorRate,
    check_references,
)

_METRICS: dict[str, Callable[[], TextMetric]] = {
    "bleu": BLEU,
    "chrf": CHRF,
    "chrf++": functools.partial(CHRF, word_order=2),
    **{
        kind: functools.partial(ROUGE, kind) for kind in ("rouge1", "rouge2", "rougeL", "rougeLsum")
    },
}
_THAT_IGNORE = {"wer": WordErrorRate, "cer": EditDistance, "exact_match": ExactMatch}
_ROWS = 256  # sources whose texts are generated between two updates of the progress bar


def evaluate_texts(
    model: "Task | str | os.PathLike",
    sources: Any,
    references: Sequence | None = None,
    *,
    metrics: Sequence[str] | Mapping[str, TextMetric],
    ignore: Sequence[str] = (),
    batch_size: int = 8,
    verbose: bool = True,
    **options: Any,
) -> Scores:
    """Generate texts from sources and compare them with references: ROUGE, BLEU, chrF, WER.

    The metrics are computed by the packages that others use: sacrebleu, rouge-score, rapidfuzz.

    Args:
        model: a task that writes texts: a `Seq2SeqLM` (summaries, translations), a `CausalLM`
            (continuations of prompts), a `SpeechToText` or `CTCSpeechToText` (transcripts of
            recordings of any length) or an `ImageToText`; or a preset: a name, a folder, or
            `"hf://org/name"`.
        sources: a list of what the task's `generate` or `transcribe` takes: texts, recordings or
            images, such as the paths of their files; for images with questions a tuple of two
            lists. Or the result of `data.read` with the columns `x`, the sources, and `y`, the
            references.
        references: a text for each source, or a list of texts where several are right.
        metrics: list of names: `"rouge1"`, `"rouge2"`, `"rougeL"` and `"rougeLsum"` of summaries,
            from 0 to 1; `"bleu"`, `"chrf"` and `"chrf++"` of translations, from 0 to 100; `"wer"`
            and `"cer"`, error rates of words and characters; `"exact_match"`, a share. Or a dict
            from names of your own to metrics with options, such as
            `{"stems": training.ROUGE("rouge1", stemmer=True)}`.
        ignore: sequence of what `"wer"`, `"cer"` and `"exact_match"` leave out of both texts, such
            as `("case", "punctuation")`; see `training.ExactMatch`. Defaults to nothing.
        batch_size: int, the number of texts that are generated together.
        verbose: bool, show a progress bar and print the result.
        **options: of the task's `generate`, such as `max_new_tokens` and `sampler`, or of its
            `transcribe`, such as `language`.

    Returns:
        `Scores`: a row for each metric. `results` has the `texts` that were generated and their
        `references`, in the order of the sources.

    Raises:
        ValueError: if the model does not write texts, a metric is unknown, or the numbers of
            sources and references differ.
        ImportError: if the package of a metric is not installed.

    Example:
    ```python
    import keras_transformer as kt

    sources = ["a man rides a bike .", "two dogs run in the snow ."]
    german = ["ein mann fährt fahrrad .", ["zwei hunde laufen im schnee .", "zwei hunde rennen ."]]
    scores = kt.evaluating.evaluate_texts(
        "transformer_tiny_en_de", sources, german, metrics=["rouge1", "wer"], verbose=False
    )
    assert scores.numbers["texts"]["wer"] < 1 and len(scores.results["texts"]) == 2
    ```

    Source: Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries"; Papineni et al.
    2002, "BLEU"; Popović 2015, "chrF"; Morris et al. 2004, "From WER and RIL to MER and WIL".
    """
    batch_size = check_int("batch_size", batch_size, at_least=1)
    verbose = check_flag("verbose", verbose)
    made = _made(metrics, ignore)
    name = str(model) if isinstance(model, (str, os.PathLike)) else type(model).__name__
    if isinstance(model, (str, os.PathLike)):
        model = load_task(None, resolve_preset(model))
    write = getattr(model, "transcribe", None) or getattr(model, "generate", None)
    if not isinstance(model, Task) or write is None:
        raise ValueError(
            "`evaluate_texts` is for tasks that write texts, such as a Seq2SeqLM or a "
            f"SpeechToText, received {describe(model)}."
        )
    about = _name_of(sources)
    rows, beside, references = _pairs(model, sources, references)
    check_references("references", references)
    counts = {1 if isinstance(each, str) else len(each) for each in references}
    if len(counts) > 1 and any(isinstance(metric, (BLEU, CHRF)) for metric in made.values()):
        raise ValueError(
            "BLEU and chrF need the same number of references for each source, received "
            f"{sorted(counts)}."
        )
    texts: list[str] = []
    from tqdm.auto import tqdm

    bar = tqdm(total=len(rows), desc="Generating", disable=not (verbose and shows_bars()))
    for first in range(0, len(rows), _ROWS):
        chosen = range(first, min(first + _ROWS, len(rows)))
        given = {} if beside is None else {"prompts": [beside[i] for i in chosen]}
        texts += write([rows[i] for i in chosen], batch_size=batch_size, **given, **options)
        bar.update(len(chosen))
    bar.close()
    found = []
    for key, metric in made.items():
        metric.update_state(references, texts)
        found.append(
            Score(about, key, float(metric.result()), higher_is_better=metric.higher_is_better)
        )
    signed = {key: getattr(metric, "signature", None) for key, metric in made.items()}
    settings = {"texts": len(texts), "ignore": tuple(ignore) or None, **options}
    settings |= {key: signature for key, signature in signed.items() if signature}
    scores = Scores(
        with_backend(name), _packages(made.values()), tuple(found), settings,
        {"texts": texts, "references": references},
    )  # fmt: skip
    if verbose:
        print(printable(str(scores)))  # the name comes from a file
    return scores


def _made(metrics: Any, ignore: Sequence[str]) -> dict[str, TextMetric]:
    """Return metrics without texts, by name."""
    if isinstance(metrics, Mapping):
        made = dict(metrics)
        for name, metric in made.items():
            if not isinstance(metric, TextMetric):
                raise ValueError(
                    f"`metrics[{name!r}]` must be a metric of texts, such as training.ROUGE(), "
                    f"received {describe(metric)}."
                )
            metric.reset_state()
    else:
        if isinstance(metrics, str) or not isinstance(metrics, Sequence):
            raise ValueError(f"`metrics` must be a list of names, received {shorten(metrics)}.")
        for place, name in enumerate(metrics):
            check_choice(f"metrics[{place}]", name, (*_METRICS, *_THAT_IGNORE))
        made = {
            name: _THAT_IGNORE[name](ignore=ignore) if name in _THAT_IGNORE else _METRICS[name]()
            for name in metrics
        }
    if not made:
        raise ValueError("`metrics` is empty: name at least one.")
    if ignore and (isinstance(metrics, Mapping) or not set(made) & set(_THAT_IGNORE)):
        raise ValueError(f"`ignore` only applies to the metrics {', '.join(_THAT_IGNORE)}.")
    return made


def _pairs(model: Task, sources: Any, references: Any) -> tuple[Sequence, list | None, list]:
    """Return sources, the prompts beside them or None, and references, as many of each."""
    of_media = issubclass(model.processor_class, SourceProcessor)
    if isinstance(sources, Records):
        if references is not None or sources.y is None:
            raise ValueError(
                "Name both columns in `data.read`: x the sources, y the references. Then leave "
                "out `references`."
            )
        if len(sources.x) > (2 if of_media else 1):
            raise ValueError(f"{type(model).__name__} reads one column `x`, received {sources}.")
        *inputs, references = sources.held() if of_media else _columns(sources)
        sources = tuple(inputs) if len(inputs) > 1 else inputs[0]
    if references is None:
        raise ValueError("Give `references`, a text for each source.")
    beside = None
    if of_media:
        processor = model.processor
        if processor is None:
            raise ValueError("The task has no processor, which is needed to read the sources.")
        rows, beside = processor.parts(sources)
    else:
        rows = text_rows(sources, "sources")
    references = listed_column(references)
    check_equal(rows, references, ("sources", "references"))
    if beside is not None:
        beside = text_rows(beside, "sources[1]")
        check_equal(rows, beside, ("sources", "prompts"))
    return rows, beside, references


def _columns(records: Records) -> list[list]:
    """Return each column of texts as a list."""
    columns: list[list] = [[] for _ in records.columns]
    for chunk in records.chunks():
        for column, values in zip(columns, chunk.columns, strict=True):
            column += values
    return columns


def _name_of(sources: Any) -> str:
    """Return the name of the file that sources are read from, or "texts"."""
    path = getattr(sources.sources[0], "path", None) if isinstance(sources, Records) else None
    return "texts" if path is None else path.name


def _packages(metrics: Any) -> str:
    """Return the names and versions of the packages that compute metrics."""
    names = dict.fromkeys(metric.package for metric in metrics)
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
