"""A run of lm-eval on a causal language model."""

import contextlib
import importlib.metadata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_eval.evaluator import simple_evaluate

from keras_transformer.evaluating.language_model import HarnessModel
from keras_transformer.evaluating.result import Score, Scores
from keras_transformer.evaluating.task_folders import sandboxed_templates, task_manager
from keras_transformer.support.checking import (
    check_flag,
    check_int,
    check_seed,
    describe,
    nearest,
    shorten,
)
from keras_transformer.tasks import CausalLM

# The seeds of the harness's own command, of `random`, NumPy and the examples before a question.
_SEEDS = {"random_seed": 0, "numpy_random_seed": 1234, "fewshot_random_seed": 1234}


def score_language_model(
    task: CausalLM,
    names: Sequence[Any],
    given: Mapping[str, Any],
    batch_size: int,
    verbose: bool,
    shown: str,
) -> Scores:
    """Return the scores of a model on tasks of lm-eval.

    `given` are the arguments of `evaluate` by name, and `shown` is the name of the model.
    """
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"`tasks` must be a list of names, received {shorten(name)}.")
    flags = ("trust_tasks", "apply_chat_template", "fewshot_as_multiturn", "log_samples")
    given = {**given, **{name: check_flag(name, given[name]) for name in flags}}
    shots = check_int("num_fewshot", given["num_fewshot"], at_least=0, none=True)
    limit = _checked_limit(given["limit"])
    seed = check_seed("seed", given["seed"], none=True, bits=32)
    if given["apply_chat_template"] and task.tokenizer.chat_template is None:
        raise ValueError("`apply_chat_template` needs a tokenizer with a chat template.")
    if given["gen_kwargs"] is not None and not isinstance(given["gen_kwargs"], Mapping):
        raise ValueError(f"`gen_kwargs` must be a dict, received {describe(given['gen_kwargs'])}.")
    model = HarnessModel(
        task, max_length=given["max_length"], batch_size=batch_size, seed=seed or 0,
        verbose=verbose,
    )  # fmt: skip
    folders, trusted = _folders(given["include_path"]), given["trust_tasks"]
    manager = task_manager(folders, names, trusted)
    for name in names:
        entry = manager.task_index.get(name)
        if entry is not None and (entry.cfg or {}).get("unsafe_code") and not trusted:
            raise ValueError(f"{name!r} runs code that the model writes. Pass trust_tasks=True if "
                             "this may happen on this machine.")  # fmt: skip
        if entry is None:
            hint = nearest(name, list(manager.task_index))
            raise ValueError(f"There is no task {name!r}.{hint} Tasks of your own are found by "
                             "`include_path`, the folder with their YAML files.")  # fmt: skip
    seeds = _SEEDS if seed is None else dict.fromkeys(_SEEDS, seed)
    run = {
        "num_fewshot": shots,
        "limit": limit,
        "apply_chat_template": given["apply_chat_template"],
        "system_instruction": given["system_instruction"],
        "fewshot_as_multiturn": given["fewshot_as_multiturn"],
        "gen_kwargs": None if given["gen_kwargs"] is None else dict(given["gen_kwargs"]),
    }
    options = {
        **run, **seeds, "torch_random_seed": None, "log_samples": given["log_samples"],
        "task_manager": manager, "confirm_run_unsafe_code": trusted,
    }  # fmt: skip
    with sandboxed_templates() if folders and not trusted else contextlib.nullcontext():
        results = simple_evaluate(model, tasks=list(names), **options)
    settings = {**run, "max_length": model.max_length, "seed": seed}
    return Scores(
        shown, f"lm-eval {importlib.metadata.version('lm_eval')}", _rows(results), settings, results
    )


def _rows(results: Mapping[str, Any]) -> tuple[Score, ...]:
    """Return the rows of what lm-eval returned; its metrics have names such as `"acc,none"`."""
    rows = []
    for task, values in {**results["results"], **results.get("groups", {})}.items():
        version = str(results["versions"].get(task, ""))
        shots = results["n-shot"].get(task)
        better = results["higher_is_better"].get(task, {})
        for key, value in values.items():
            metric, comma, filtered = key.partition(",")
            if not comma or metric.endswith("_stderr"):
                continue
            error = values.get(f"{metric}_stderr,{filtered}")
            error = error if isinstance(error, float) else None
            shown = metric if filtered == "none" else key
            value = float(value) if isinstance(value, float) else value  # NumPy's are floats too
            rows.append(
                Score(task, shown, value, error, version, shots, (better or {}).get(metric))
            )
    return tuple(rows)


def _checked_limit(limit: Any) -> float | int | None:
    if limit is None or (isinstance(limit, float) and 0 < limit < 1):
        return limit
    if isinstance(limit, float) and limit.is_integer():
        limit = int(limit)
    return check_int("limit", limit, at_least=1, hint="A share of the questions is below 1.")


def _folders(given: Any) -> list[Path]:
    listed = [] if given is None else given if isinstance(given, (list, tuple)) else [given]
    folders = [Path(folder).expanduser().resolve() for folder in listed]
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"`include_path` has {folder}, which is not a folder.")
    return folders
