"""Files of sentence-transformers: pooling, dense layers, normalization and prompts of an embedder.

`modules.json` lists the steps, each with its own folder and the name of its class. Class names are
looked up in a table here and never imported.
"""

import json
import re
import string
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import keras

from keras_transformer.checkpoints.weights.safetensors_io import WEIGHTS_FILE, save_tensors
from keras_transformer.checkpoints.weights.tables import WeightLine, export
from keras_transformer.support.checking import check_flag
from keras_transformer.support.files import path_inside, read_json, write_json, write_text

TASK = "TextEmbedder"
_MULTI_VECTOR = "multi_vector"  # the pooling with a vector for each token
_QUERY, _DOCUMENT = "query", "document"
_USUAL_QUERY = 32  # tokens of an expanded query, if the files do not say

MODULES_FILE = "modules.json"
_LENGTH_FILE = "sentence_bert_config.json"
_PROMPTS_FILE = "config_sentence_transformers.json"
_POOLING_FOLDER = "1_Pooling"
_DENSE_FOLDER = re.compile(r"[1-9]_Dense")
# Keys for each of our poolings: sentence-transformers' switch, and its newer name.
_POOLINGS = {
    "mean": ("pooling_mode_mean_tokens", "mean"),
    "first": ("pooling_mode_cls_token", "cls"),
    "max": ("pooling_mode_max_tokens", "max"),
    "last": ("pooling_mode_lasttoken", "lasttoken"),
    "mean_sqrt_len": ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
    "weighted_mean": ("pooling_mode_weightedmean_tokens", "weightedmean"),
}
# Activation classes of PyTorch, and our names for them.
_ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": None,
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.SiLU": "silu",
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.activation.Mish": "mish",
}
_LIMIT = 64  # steps of a model
# What files of both libraries for late interaction call their models.
_PYLATE, _MULTI = "ColBERT", "MultiVectorEncoder"
# Modules of the classes of steps, for models with a vector for each token.
_CLASSES = {
    "Transformer": "sentence_transformers.base.modules.transformer",
    "Dense": "sentence_transformers.base.modules.dense",
    "Normalize": "sentence_transformers.base.modules.normalize",
    "MultiVectorMask": "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask",
}


def read_embedder(folder: Path, longest: int) -> dict[str, Any] | None:
    """Return the name and options of the `TextEmbedder` that the files describe, or None."""
    path = path_inside(folder, MODULES_FILE)
    if not path.is_file():
        return None
    task: dict[str, Any] = {"name": TASK, "pooling": "mean", "normalize": False}
    steps = _steps(path)
    kinds = [step["type"].rsplit(".", 1)[-1] for step in steps]
    prompts = _read_values(path_inside(folder, _PROMPTS_FILE))
    if "MultiVectorMask" in kinds or prompts.get("model_type") == _PYLATE:
        task |= _read_interaction(folder, steps, prompts)
    for step, kind in zip(steps, kinds, strict=True):
        if task["normalize"] and kind != "Normalize":
            raise ValueError(f"{path} has a step {kind!r} after Normalize, which must be the last.")
        if kind == "Pooling":
            task |= _read_pooling(path_inside(folder, f"{step['path']}/config.json"))
        elif kind == "Dense":
            place = path_inside(folder, f"{step['path']}/config.json")
            dense = _read_dense(path, place, step, task["pooling"] == _MULTI_VECTOR)
            task["dense"] = [*task.get("dense", ()), dense]
        elif kind == "Normalize":
            task["normalize"] = True
        elif kind not in ("Transformer", "MultiVectorMask"):
            raise ValueError(
                f"{path} has a step {kind!r}, which TextEmbedder does not support: only "
                "Transformer, Pooling, Dense and Normalize."
            )
    if prompts.get("model_type") == _PYLATE:
        task["normalize"] = True  # in the model itself, without a step
    task |= _read_prompts(path_inside(folder, _PROMPTS_FILE), prompts)
    length = path_inside(folder, _LENGTH_FILE)
    if length.is_file():
        said = read_json(length).get("max_seq_length")
        if said is not None and (not isinstance(said, int) or said < 1):
            raise ValueError(f"{length}: max_seq_length must be a number, received {said!r}.")
        task["max_length"] = None if said is None else min(said, longest)
    return task


def _read_values(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _read_interaction(
    folder: Path, steps: list[dict[str, str]], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of late interaction, from files of sentence-transformers or of PyLate."""
    path = path_inside(folder, _PROMPTS_FILE)
    if values.get("model_type") == _PYLATE:
        words = values.get("skiplist_words")
        expands = values.get("do_query_expansion") is not False
        name = "attend_to_expansion_tokens"
        expansion = {"attend": check_flag(name, values.get(name, False))} if expands else None
        found = {**values, "query_length": values.get("query_length") or _USUAL_QUERY}
        words = list(string.punctuation) if words is None else words
    else:
        place = next(each["path"] for each in steps if each["type"].endswith("MultiVectorMask"))
        path = path_inside(folder, f"{place}/config.json")
        mask = read_json(path)
        for name, supported in (("skiplist_tasks", [_DOCUMENT]), ("keep_only_token_ids", None)):
            if mask.get(name) not in (None, supported):
                raise ValueError(
                    f"{path}: {name}={mask[name]!r} is not supported, only {supported!r}."
                )
        words = mask.get("skiplist_words") or []
        path = path_inside(folder, _LENGTH_FILE)
        found = _read_values(path)
        expansion = found.get("query_expansion")
        if expansion is not None:
            known = isinstance(expansion, dict) and expansion.get("strategy") == "fixed"
            if not known or expansion.get("token") is not None:
                raise ValueError(
                    f"{path}: query_expansion={expansion!r} is not supported, only the strategy "
                    "'fixed' with the tokenizer's mask token."
                )
            found = {**found, "query_length": expansion.get("length")}
    does = "none" if expansion is None else "attended" if expansion.get("attend") else "scored"
    lengths = {
        name: _checked(path, name, found[name], int)
        for name in ("query_length", "document_length")
        if found.get(name) is not None
    }
    for word in _checked(path, "skiplist_words", words, list):
        _checked(path, "a word of skiplist_words", word, str)
    interaction = {**lengths, "expansion": does, "skipped_words": words}
    return {"pooling": _MULTI_VECTOR, "interaction": interaction}


def dense_lines(tensors: Iterable[str]) -> list[WeightLine]:
    """Return the weight table of the Dense steps whose tensors a checkpoint has."""
    folders = sorted({name.split("/")[0] for name in tensors if _DENSE_FOLDER.match(name)})
    return [
        line
        for number, folder in enumerate(folders)
        for line in (
            WeightLine(f"dense_{number}/kernel", f"{folder}/linear.weight", transpose=True),
            WeightLine(f"dense_{number}/bias", f"{folder}/linear.bias"),
        )
    ]


def write_embedder(
    folder: Path, model: keras.Model, task: dict[str, Any], dtype: str | None = None
) -> None:
    """Write the files from which sentence-transformers builds an equivalent of a `TextEmbedder`."""
    hidden_dim = model.backbone.config.hidden_dim
    several = task["pooling"] == _MULTI_VECTOR
    if task["pooling"] not in _POOLINGS and not several:
        raise ValueError(
            f"sentence-transformers has no pooling={task['pooling']!r}, only "
            f"{', '.join(map(repr, _POOLINGS))}. Export the backbone alone, or a TextEmbedder with "
            "one of these."
        )
    dense = task["dense"]
    normalize = ["Normalize"] if task["normalize"] else []
    kinds = ["Transformer", "Pooling", *["Dense"] * len(dense), *normalize]
    if several:
        kinds = ["Transformer", *["Dense"] * len(dense), "MultiVectorMask", *normalize]
    steps = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else "",
            "type": _CLASSES.get(kind, "sentence_transformers.models") + f".{kind}"
            if several
            else f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    write_text(folder / MODULES_FILE, json.dumps(steps, indent=2) + "\n")
    if several:
        _write_interaction(folder, steps, task)
    else:
        (folder / _POOLING_FOLDER).mkdir()
        switches = {names[0]: pooling == task["pooling"] for pooling, names in _POOLINGS.items()}
        pooling = {"word_embedding_dimension": hidden_dim, **switches}
        pooling["include_prompt"] = task["include_prompt"]
        write_json(folder / _POOLING_FOLDER / "config.json", pooling)
    places = [step["path"] for step in steps if step["path"].endswith("_Dense")]
    names = dict.fromkeys(("module_input_name", "module_output_name"), "token_embeddings")
    chosen = dict(zip(places, dense, strict=True))
    _write_dense(folder, hidden_dim, chosen, model.head, dtype, names if several else {})
    if task["prompts"]:
        values = {name: task[name] for name in ("prompts", "default_prompt_name")}
        kind = {"model_type": "MultiVectorEncoder"} if several else {}
        write_json(folder / _PROMPTS_FILE, {**values, **kind})
    values = {}
    if task.get("max_length") is not None:
        values = {"max_seq_length": task["max_length"], "do_lower_case": False}
    if several:
        values |= _lengths(task["interaction"])
    if values:
        write_json(folder / _LENGTH_FILE, values)


def _write_interaction(folder: Path, steps: list[dict[str, Any]], task: Mapping[str, Any]) -> None:
    """Write the configs of the steps of late interaction that have one."""
    names = dict.fromkeys(("module_input_name", "module_output_name"), "token_embeddings")
    words = task["interaction"]["skipped_words"]
    mask = {"skiplist_words": words, "skiplist_tasks": [_DOCUMENT], "keep_only_token_ids": None}
    for step in steps:
        values = {"MultiVectorMask": mask, "Normalize": names}.get(step["type"].rsplit(".", 1)[-1])
        if values is not None:
            (folder / step["path"]).mkdir()
            write_json(folder / step["path"] / "config.json", values)


def _lengths(interaction: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the config of the Transformer step says about late interaction."""
    values = {"document_length": interaction["document_length"]}
    if interaction["expansion"] == "none":
        return {**values, "query_length": interaction["query_length"]}
    attends = interaction["expansion"] == "attended"
    length = {"length": interaction["query_length"]}
    return {**values, "query_expansion": {"strategy": "fixed", "attend": attends, **length}}


def _write_dense(
    folder: Path,
    width: int,
    layers: Mapping[str, Mapping[str, Any]],
    head: Mapping[str, keras.Variable],
    dtype: str | None,
    further: Mapping[str, str],
) -> None:
    """Write config and weights of each linear layer, in separate folders."""
    names = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
    tensors = export(dense_lines(f"{place}/" for place in layers), head)
    for place, layer in layers.items():
        if layer["activation"] not in names:
            raise ValueError(
                f"sentence-transformers has no activation {layer['activation']!r} for a Dense "
                f"step, only {', '.join(map(repr, filter(None, names)))}."
            )
        (folder / place).mkdir()
        values = {
            "in_features": width,
            "out_features": layer["units"],
            "bias": layer["use_bias"],
            "activation_function": names[layer["activation"]],
            **further,
        }
        write_json(folder / place / "config.json", values)
        own = {n.split("/")[1]: t for n, t in tensors.items() if n.startswith(place)}
        save_tensors(folder / place / WEIGHTS_FILE, own, dtype)
        width = layer["units"]


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
            f"{path}: the first step must be the model in the folder itself, with path ''."
        )
    return steps


def _read_pooling(path: Path) -> dict[str, Any]:
    values = read_json(path)
    newer = values.get("pooling_mode")
    chosen = [
        ours
        for ours, (switch, name) in _POOLINGS.items()
        if values.get(switch) is True or newer == name
    ]
    if len(chosen) != 1:
        raise ValueError(
            f"{path} must choose one pooling of {', '.join(_POOLINGS)}, but chooses "
            f"{' and '.join(chosen) or 'none of them'}."
        )
    included = _checked(path, "include_prompt", values.get("include_prompt", True), bool)
    return {"pooling": chosen[0], **({} if included else {"include_prompt": False})}


def _read_dense(
    modules: Path, path: Path, step: Mapping[str, str], several: bool
) -> dict[str, Any]:
    if not _DENSE_FOLDER.fullmatch(step["path"]):
        raise ValueError(
            f"{modules}: the folder of a Dense step must have a name such as '2_Dense', received "
            f"{step['path']!r}."
        )
    values = read_json(path)
    activation = values.get("activation_function", "torch.nn.modules.activation.Tanh")
    if activation not in _ACTIVATIONS:
        raise ValueError(
            f"{path}: activation_function={activation!r} is not supported, only "
            f"{', '.join(map(repr, _ACTIVATIONS))}."
        )
    state = "token_embeddings" if several else "sentence_embedding"
    for name, supported in (
        ("use_residual", (False,)),
        # PyLate leaves the names of vectors of texts in the config of a layer for tokens.
        ("module_input_name", (state, "sentence_embedding")),
        ("module_output_name", (state, "sentence_embedding")),
    ):
        if values.get(name) not in (None, *supported):
            raise ValueError(
                f"{path}: {name}={values[name]!r} is not supported, only {supported[0]!r}."
            )
    return {
        "units": _checked(path, "out_features", values.get("out_features"), int),
        "activation": _ACTIVATIONS[activation],
        "use_bias": _checked(path, "bias", values.get("bias", True), bool),
    }


def _read_prompts(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    prompts = dict(_checked(path, "prompts", values.get("prompts") or {}, dict))
    for name in (_QUERY, _DOCUMENT) if values.get("model_type") == _PYLATE else ():
        prefix = _checked(path, f"{name}_prefix", values.get(f"{name}_prefix") or "", str)
        prompts[name] = prefix + (prompts.get(name) or "").removeprefix(prefix)
    if values.get("model_type") == _MULTI:
        prompts = {name: prompt for name, prompt in prompts.items() if prompt is not None}
    for name, prompt in prompts.items():
        _checked(path, f"the prompt {name!r}", prompt, str)
    default = values.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise ValueError(
            f"{path}: default_prompt_name={default!r} is not one of its prompts {list(prompts)}."
        )
    prompts = {"prompts": prompts} if prompts else {}
    return prompts | ({} if default is None else {"default_prompt_name": default})


def _checked(path: Path, name: str, value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{path}: {name} must be {_KINDS[kind]}, received {value!r}.")
    return value


_KINDS = {bool: "true or false", int: "a number", dict: "an object", str: "a string"}
