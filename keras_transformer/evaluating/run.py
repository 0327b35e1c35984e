"""Evaluation of a task by the harness that others use for models of its kind."""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any

from keras_transformer.checkpoints import load_task, resolve_preset
from keras_transformer.evaluating.result import Scores
from keras_transformer.kernels.device import with_backend
from keras_transformer.support.checking import check_flag, check_int, describe, printable, shorten
from keras_transformer.tasks import CausalLM, Task, TextEmbedder

# The module, package and extra by which a task is scored.
_HARNESSES = {CausalLM: ("lm_eval", "lm-eval", "scores"), TextEmbedder: ("mteb", "mteb", "mteb")}
# The defaults of the arguments that only a CausalLM takes.
_DEFAULTS = {
    "num_fewshot": None, "limit": None, "include_path": None, "trust_tasks": False,
    "apply_chat_template": False, "system_instruction": None, "fewshot_as_multiturn": False,
    "gen_kwargs": None, "max_length": None, "log_samples": False, "seed": None,
}  # fmt: skip


def evaluate(
    model: "Task | str | os.PathLike",
    tasks: Sequence[Any] | str,
    *,
    num_fewshot: int | None = None,
    limit: float | None = None,
    include_path: str | os.PathLike | Sequence[str | os.PathLike] | None = None,
    trust_tasks: bool = False,
    apply_chat_template: bool = False,
    system_instruction: str | None = None,
    fewshot_as_multiturn: bool = False,
    gen_kwargs: Mapping[str, Any] | None = None,
    max_length: int | None = None,
    batch_size: int = 32,
    seed: int | None = None,
    log_samples: bool = False,
    verbose: bool = True,
) -> Scores:
    """Score a model on benchmarks, by the program that others use: numbers that can be compared.

    A `CausalLM` is asked by EleutherAI's lm-eval, a `TextEmbedder` by MTEB. Both run in this
    process, and make prompts, answers and metrics as they do for every other model.

    Args:
        model: a `CausalLM` or `TextEmbedder` with a tokenizer; or a preset: a name, a folder, or
            `"hf://org/name"`.
        tasks: names of tasks, such as `["hellaswag", "arc_easy"]` or `["STSBenchmark"]`; for MTEB
            also its task objects. Most are downloaded from the hub.
        num_fewshot: int, the number of examples before each question. Defaults to the task's. This
            argument and those below it except `batch_size` and `verbose` are for a `CausalLM`.
        limit: int, the most questions of each task; or a share of them, a float below 1. For trying
            out: the scores of a part are not comparable.
        include_path: a folder with tasks as YAML files, or a list of them. A relative path of
            a data file starts at the folder of its YAML file; if nothing is there and the task is
            trusted, at the current folder.
        trust_tasks: bool, allow tasks of `include_path` to run code, and tasks that run what the
            model writes. Without it only values are read from the folders, and templates run in a
            sandbox.
        apply_chat_template: bool, ask in the form of a chat, by the template of the tokenizer.
        system_instruction: str, a text at the beginning of each prompt.
        fewshot_as_multiturn: bool, examples are earlier turns of the chat.
        gen_kwargs: dict of options for tasks that generate, such as `{"max_gen_toks": 64}`, in
            place of the task's.
        max_length: int, the most tokens that the model reads. Defaults to the model's.
        batch_size: int, the number of texts that are generated or embedded together.
        seed: int, of examples and sampling. Defaults to the harness's seeds.
        log_samples: bool, keep each question and answer in `results["samples"]`.
        verbose: bool, show progress bars and print the result.

    Returns:
        `Scores`: a row for each metric, the versions of the harness and the tasks, and all that the
        harness returned.

    Raises:
        ValueError: if the model is of another kind, a task is unknown, an argument does not apply
            or is invalid, or a task of `include_path` could run code and is not trusted.
        ImportError: if the harness is not installed.

    Example:
    ```python
    import json
    from pathlib import Path

    import keras_transformer as kt

    row = {"line": "Come hither, good my", "next": [" lord", " drol"]}
    Path("rows.jsonl").write_text(json.dumps(row))
    task = {
        "task": "next_word", "output_type": "multiple_choice", "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}}, "test_split": "test",
        "doc_to_text": "{{line}}", "doc_to_choice": "{{next}}", "doc_to_target": 0,
        "target_delimiter": "", "metric_list": [{"metric": "acc"}],
    }
    Path("next_word.yaml").write_text(json.dumps(task))  # JSON is YAML too

    lm = kt.CausalLM.from_preset("gpt_tiny_shakespeare")
    scores = kt.evaluate(lm, "next_word", include_path=".", verbose=False)
    assert scores.numbers["next_word"]["acc"] == 1
    ```

    Source: Gao et al. 2024, "The Language Model Evaluation Harness"; Muennighoff et al. 2023,
    "MTEB: Massive Text Embedding Benchmark".
    """
    given = {
        "num_fewshot": num_fewshot, "limit": limit, "include_path": include_path,
        "trust_tasks": trust_tasks, "apply_chat_template": apply_chat_template,
        "system_instruction": system_instruction, "fewshot_as_multiturn": fewshot_as_multiturn,
        "gen_kwargs": gen_kwargs, "max_length": max_length, "log_samples": log_samples,
        "seed": seed,
    }  # fmt: skip
    tasks = [tasks] if isinstance(tasks, str) else tasks
    if not isinstance(tasks, (list, tuple)) or not tasks:
        raise ValueError(f"`tasks` must be a list of names, received {shorten(tasks)}.")
    batch_size = check_int("batch_size", batch_size, at_least=1)
    verbose = check_flag("verbose", verbose)
    name = str(model) if isinstance(model, (str, os.PathLike)) else type(model).__name__
    if isinstance(model, (str, os.PathLike)):
        model = _loaded(model)
    shown = with_backend(name)
    if isinstance(model, CausalLM):
        _check_installed(CausalLM)
        from keras_transformer.evaluating.language_run import score_language_model

        scores = score_language_model(model, tasks, given, batch_size, verbose, shown)
    elif isinstance(model, TextEmbedder):
        _check_installed(TextEmbedder)
        _refuse({n: x for n, x in given.items() if x != _DEFAULTS[n]})
        from keras_transformer.evaluating.embedding_run import score_embedder

        scores = score_embedder(model, tasks, batch_size, verbose, shown)
    else:
        raise ValueError(
            "`evaluate` scores a CausalLM with lm-eval and a TextEmbedder with MTEB, received "
            f"{describe(model)}. For tasks that write texts see `evaluating.evaluate_texts`, for "
            "classes `evaluating.ClassificationReport`."
        )
    if verbose:
        print(printable(str(scores)))  # names of tasks come from files
    return scores


def _loaded(preset: str | os.PathLike) -> Task:
    """Load the task of a preset; an encoder without one makes vectors.

    What is missing to score it is said before the weights are read.
    """
    opened = resolve_preset(preset)
    config, saved, _ = opened.description
    if saved is None and config.kind == "encoder":
        _check_installed(TextEmbedder)
        return TextEmbedder.from_preset(opened)
    if saved is not None and saved["name"] == CausalLM.__name__:
        _check_installed(CausalLM)
    return load_task(None, opened)


def _refuse(given: Mapping[str, Any]) -> None:
    if given:
        names = ", ".join(f"`{name}`" for name in given)
        raise ValueError(f"{names} only apply to a CausalLM: leave them out for a TextEmbedder.")


def _check_installed(kind: type[Task]) -> None:
    module, package, extra = _HARNESSES[kind]
    if importlib.util.find_spec(module) is None:
        raise ImportError(
            f"`evaluate` needs the package {package}, which is not installed. Install it with: "
            f'pip install "keras_transformer[{extra}]"'
        )
