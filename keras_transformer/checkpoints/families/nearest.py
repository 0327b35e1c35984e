"""Which family is nearest to a published config of a type that is not covered, and what differs."""

import fnmatch
from collections.abc import Iterable

from keras_transformer.checking import shorten
from keras_transformer.checkpoints.families.family import Family, Values
from keras_transformer.checkpoints.heads import TASKS

# Of configs of all types: what computes nothing, or is read whatever its spelling.
_ANY = (
    "_*", "*_token_id", "*dtype", "architectures", "auto_map", "id2label", "is_encoder_decoder",
    "label2id", "model_type", "output_*", "pretraining_tp", "return_dict", "rope_*",
    "task_specific_params", "transformers_version", "use_cache",
)  # fmt: skip
_LEAST = 0.3  # of all names those that both know, for a family to be near
_MOST = 8  # values that are shown


def advice(values: Values, families: Iterable[Family]) -> str:
    """A sentence to stand behind an error: the nearest family, and the values that it lacks."""
    given = _own(values)
    families = list(families)
    known = {
        f.model_type: (f, set(_own(f.published_config(f.config({})))))
        for f in _of_class(values, families) or families
    }

    def likeness(model_type: str) -> float:
        names = known[model_type][1]
        return len(names.intersection(given)) / len(names.union(given))

    best = max(known, key=likeness)
    page = " docs/add_a_family.md says how to add a family."
    if likeness(best) < _LEAST:
        return page
    family, names = known[best]
    used = [name for name in given if values[name] not in (None, False, "", [], {})]
    other = [name for name in used if name not in names]
    other += [
        n for n, alone in family.required.items() if values.get(n, alone) not in (alone, None)
    ]
    shown = [f"{shorten(name)[1:-1]}={shorten(values[name])}" for name in other[:_MOST]]
    shown += [f"{len(other) - _MOST} more"] if len(other) > _MOST else []
    differing = f", which has no place for {', '.join(shown)}" if shown else ""
    return f" The nearest of these is {best!r}{differing}.{page}"


def _of_class(values: Values, families: Iterable[Family]) -> list[Family]:
    """The families with a head of the kind that the config names, such as a language model's."""
    named = values.get("architectures")
    classes = [n for n in named if isinstance(n, str)] if isinstance(named, list) else []
    ends = {
        f.model_type: tuple(e for t in f.heads for e in TASKS[t].published_as[:1]) for f in families
    }
    return [f for f in families if any(n.endswith(ends[f.model_type]) for n in classes)]


def _own(values: Values) -> list[str]:
    """The names in a config, but for those that all have."""
    return [n for n in values if not any(fnmatch.fnmatchcase(n, pattern) for pattern in _ANY)]
