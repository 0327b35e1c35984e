"""Selection of bundled presets by task, modality, language, size and licence."""

import operator
import re
from collections.abc import Callable, Iterable
from typing import Any

from keras_transformer.checkpoints.heads import TASKS
from keras_transformer.support.checking import check_choice, nearest, shorten

# Stands for many languages: such a model is listed for each of them.
MULTILINGUAL = "multilingual"
# The modality by the kind of a side's input.
_MODALITIES = {
    "tokens": "text",
    "patches": "images",
    "patch_sequence": "images",
    "convolutions": "images",
    "resnet": "images",
    "hgnet": "images",
    "mobilenet_v5": "images",
    "queries": "images",
    "tubes": "videos",
    "frames": "sound",
    "folded_frames": "sound",
    "subsampled_frames": "sound",
    "convolved_frames": "sound",
    "waveform": "sound",
    "series": "series",
}
_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_BOUND = re.compile(r"\s*(<=|>=|<|>)\s*(\d{1,15}(?:\.\d{1,15})?)\s*([KMBT]?)\s*", re.IGNORECASE)


def select(
    configs: dict[str, dict[str, Any]],
    task: str | None = None,
    modality: str | None = None,
    language: str | None = None,
    parameters: str | None = None,
    license: str | None = None,
) -> list[str]:
    """Return the names of the presets that fit all values, which `list_presets` describes.

    `configs` has the contents of `config.json` by name. Raises ValueError if the task or
    modality is unknown, if no preset has the language or licence, or if the bounds cannot be read.
    """
    kept = list(configs)
    if task is not None:
        wanted = _task_name(task)
        kept = [name for name in kept if (configs[name].get("task") or {}).get("name") == wanted]
    if modality is not None:
        check_choice("modality", modality, sorted(set(_MODALITIES.values())))
        kept = [name for name in kept if modality in modalities(configs[name])]
    if language is not None:
        check_choice("language", language, _values(configs.values(), languages))
        kept = [name for name in kept if {language, MULTILINGUAL} & set(languages(configs[name]))]
    if license is not None:
        check_choice("license", license, _values(configs.values(), _licenses))
        kept = [name for name in kept if license in _licenses(configs[name])]
    if parameters is not None:
        fits = _size_check(parameters)
        kept = [name for name in kept if fits(configs[name]["metadata"]["parameters"])]
    return kept


def modalities(config: dict[str, Any]) -> list[str]:
    """Return what the model of a `config.json` reads, without the text that a decoder writes."""
    backbone = config["backbone"]
    sides = {name: side["input"]["kind"] for name, side in backbone.items() if _is_side(side)}
    if backbone["kind"] == "seq2seq":
        del sides["decoder"]
    return sorted({_MODALITIES[kind] for kind in sides.values()})


def languages(config: dict[str, Any]) -> list[str]:
    """Return the languages of the model of a `config.json`, as codes of ISO 639-1."""
    return config["metadata"].get("languages", [])


def _licenses(config: dict[str, Any]) -> list[str]:
    found = config["metadata"].get("license")
    return [found] if found else []


def _is_side(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("input"), dict)


def _values(configs: Iterable[dict[str, Any]], of: Callable) -> list[str]:
    return sorted({value for config in configs for value in of(config)})


def _task_name(task: str) -> str:
    """Return the name of a task's class, given as such or by its alias."""
    if isinstance(task, str) and task in TASKS:
        return task
    classes = {known.alias: name for name, known in TASKS.items()}
    if not isinstance(task, str) or task not in classes:
        raise ValueError(  # the names of the classes are the shorter ones
            f"`task` must be one of {', '.join(sorted(classes.values()))}, "
            f"received {shorten(task, 24)}.{nearest(task, [*classes, *classes.values()])}"
        )
    return classes[task]


def _size_check(text: str) -> Callable[[int], bool]:
    """Return a check of a number of parameters, from bounds such as `"<1B"` or `">=100M, <1B"`."""
    bounds = []
    for part in text.split(",") if isinstance(text, str) else [""]:
        found = _BOUND.fullmatch(part)
        if found is None:
            raise ValueError(
                "`parameters` must be one or two bounds such as '<1B' or '>=100M, <1B', received "
                f"{shorten(text)}."
            )
        comparison, number, unit = found.groups()
        bounds.append((_COMPARISONS[comparison], float(number) * _UNITS[unit.upper()]))
    return lambda count: all(compare(count, bound) for compare, bound in bounds)
