"""The files that sentence-transformers puts beside a model: what to do with its states.

Format: `modules.json` lists the steps, each with a folder of its own and the name of its class,
which is looked up here and never imported.
"""

import json
from pathlib import Path
from typing import Any

from keras_transformer.checkpoints.untrusted import path_inside, read_json, write_json
from keras_transformer.files import write_text

MODULES_FILE = "modules.json"
_LENGTH_FILE = "sentence_bert_config.json"
_POOLING_FOLDER = "1_Pooling"
# Their switch for each of our poolings, and their newer name for it.
_POOLINGS = {
    "mean": ("pooling_mode_mean_tokens", "mean"),
    "first": ("pooling_mode_cls_token", "cls"),
    "max": ("pooling_mode_max_tokens", "max"),
    "last": ("pooling_mode_lasttoken", "lasttoken"),
    "mean_sqrt_len": ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
}
_LIMIT = 64  # steps of a model


def read_embedder(folder: Path, longest: int) -> dict[str, Any] | None:
    """The task that the files describe: `TextEmbedder` and its values."""
    path = path_inside(folder, MODULES_FILE)
    if not path.is_file():
        return None
    task: dict[str, Any] = {"name": "TextEmbedder", "pooling": "mean", "normalize": False}
    for step in _steps(path):
        kind = step["type"].rsplit(".", 1)[-1]
        if kind == "Pooling":
            task["pooling"] = _read_pooling(path_inside(folder, f"{step['path']}/config.json"))
        elif kind == "Normalize":
            task["normalize"] = True
        elif kind != "Transformer":
            raise ValueError(
                f"{path} has a step {kind!r}, which TextEmbedder does not take: only Transformer, "
                "Pooling and Normalize."
            )
    length = path_inside(folder, _LENGTH_FILE)
    if length.is_file():
        said = read_json(length).get("max_seq_length")
        if said is not None and (not isinstance(said, int) or said < 1):
            raise ValueError(f"{length}: max_seq_length must be a number, received {said!r}.")
        task["max_length"] = None if said is None else min(said, longest)
    return task


def write_embedder(folder: Path, hidden_dim: int, task: dict[str, Any]) -> None:
    """Writes the files, so that sentence-transformers computes what a `TextEmbedder` does."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if task["normalize"] else [])]
    steps = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    write_text(folder / MODULES_FILE, json.dumps(steps, indent=2) + "\n")
    (folder / _POOLING_FOLDER).mkdir()
    switches = {names[0]: pooling == task["pooling"] for pooling, names in _POOLINGS.items()}
    write_json(
        folder / _POOLING_FOLDER / "config.json",
        {"word_embedding_dimension": hidden_dim, **switches},
    )
    if task.get("max_length") is not None:
        values = {"max_seq_length": task["max_length"], "do_lower_case": False}
        write_json(folder / _LENGTH_FILE, values)


def _steps(path: Path) -> list[dict[str, str]]:
    steps = read_json(path, limit=2**16, kind=list)
    if len(steps) > _LIMIT:
        raise ValueError(f"{path} has more than {_LIMIT} steps.")
    for step in steps:
        if not isinstance(step, dict) or not all(
            isinstance(step.get(key), str) for key in ("type", "path")
        ):
            raise ValueError(f"{path}: a step must have 'type' and 'path', received {step!r}.")
    if not steps or steps[0]["path"]:
        raise ValueError(
            f"{path}: the first step must be the model in the folder itself, with the path ''."
        )
    return steps


def _read_pooling(path: Path) -> str:
    values = read_json(path)
    newer = values.get("pooling_mode")
    chosen = [
        ours
        for ours, (switch, name) in _POOLINGS.items()
        if values.get(switch) is True or newer == name
    ]
    if len(chosen) != 1:
        raise ValueError(
            f"{path} must choose one pooling of {', '.join(_POOLINGS)}, and chooses "
            f"{' and '.join(chosen) or 'none of them'}."
        )
    return chosen[0]
