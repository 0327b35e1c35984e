"""A run of MTEB on a text embedder."""

import json
from collections.abc import Sequence
from typing import Any

import mteb

from keras_transformer.evaluating.embedding_model import EmbeddingModel
from keras_transformer.evaluating.result import Score, Scores
from keras_transformer.support.checking import describe
from keras_transformer.support.progress import shows_bars
from keras_transformer.tasks import TextEmbedder


def score_embedder(
    task: TextEmbedder, wanted: Sequence[Any], batch_size: int, verbose: bool, shown: str
) -> Scores:
    """Return the scores of an embedder on tasks of MTEB; `shown` is the name of the model."""
    found = list(map(_task, wanted))
    results = mteb.evaluate(
        EmbeddingModel(task), found,
        encode_kwargs={"batch_size": batch_size, "show_progress_bar": False},
        cache=None, co2_tracker=False, show_progress_bar=verbose and shows_bars(),
    )  # fmt: skip
    mains = {each.metadata.name: each.metadata.main_score for each in found}
    rows: list[Score] = []
    for result in results.task_results:
        main, version = mains[result.task_name], str(result.dataset_revision)
        parts = [(split, values) for split, many in result.scores.items() for values in many]
        for split, values in parts:
            # A task may have several splits and languages.
            metric = main if len(parts) == 1 else f"{main},{split},{values['hf_subset']}"
            value = float(values["main_score"])
            rows.append(Score(result.task_name, metric, value, None, version, None, True))
    kept = {each.task_name: json.loads(each.model_dump_json()) for each in results.task_results}
    return Scores(shown, f"mteb {mteb.__version__}", tuple(rows), {}, kept)


def _task(wanted: Any) -> Any:
    """Return a task of MTEB by its name; objects are returned as they are."""
    if isinstance(wanted, mteb.AbsTask):
        return wanted
    if not isinstance(wanted, str):
        raise ValueError(f"`tasks` must be names or tasks of MTEB, received {describe(wanted)}.")
    try:
        return mteb.get_task(wanted)
    except KeyError as error:
        raise ValueError(f"MTEB has no task {wanted!r}: {error.args[0]}") from None
