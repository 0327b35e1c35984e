"""Preferences to batches: prompts with completions for language models, whole texts for rewards."""

import warnings
from collections.abc import Sequence

import numpy as np

from keras_transformer.data import BucketedDataset
from keras_transformer.data.preferences import LABELLED, PAIRS, Preferences
from keras_transformer.support.checking import shorten
from keras_transformer.tasks.data.arguments import level_of_user
from keras_transformer.tasks.data.text import segmented_rows, tokenizer_of, with_end, without_end


class PreferenceBatches:
    """Makes the batches of a `PreferenceTrainer` from the columns of a `BucketedDataset`.

    The attribute `reference` is None, or the reference's log-probabilities of the completions of
    all rows, float32 `(rows, completions)`, computed ahead.
    """

    paired: bool
    reference: np.ndarray | None = None

    def __call__(self, arrays, masks):
        raise NotImplementedError


class CompletionBatches(PreferenceBatches):
    """Batches of a language model: each prompt followed by its completions.

    Args:
        names: the columns of completions.
        pad_id: int.
        width: int, the most tokens of a row.
    """

    def __init__(self, names: Sequence[str], pad_id: int, width: int):
        self.names, self.pad_id, self.width = names, pad_id, width
        self.paired = len(names) == 2

    def __call__(self, arrays, masks):
        prompts, prompt_lengths = arrays["prompt"], masks["prompt"].sum(axis=1)
        completions = [(arrays[name], arrays[f"{name}_length"]) for name in self.names]
        batch = {"rows": self._rows(prompts, prompt_lengths, completions)}
        if "label" in arrays:
            batch["labels"] = arrays["label"]
            # Each prompt with the completion of the row before, as TRL pairs them.
            moved = [tuple(np.roll(x, 1, axis=0) for x in each) for each in completions]
            batch["mismatched"] = self._rows(prompts, prompt_lengths, moved)
        if self.reference is not None:
            batch["reference"] = self.reference[arrays["row"]].reshape(-1)
        return (batch,)

    def _rows(self, prompts, prompt_lengths, completions) -> dict:
        """Join prompts and completions; the completions of a prompt are neighbours."""
        first = prompt_lengths[:, None]
        parts = []
        for ids, lengths in completions:
            width = min(prompts.shape[1] + ids.shape[1], self.width)
            end = np.minimum(first + lengths[:, None], width)
            place = np.arange(width)
            source = np.concatenate([prompts, ids], axis=1)
            inside = place < end
            index = np.where(place < first, place, prompts.shape[1] + place - first)
            joined = np.take_along_axis(source, np.where(inside, index, 0), axis=1)
            tokens = np.where(inside, joined, self.pad_id).astype("int32")
            following = np.pad(tokens[:, 1:], [(0, 0), (0, 1)], constant_values=self.pad_id)
            parts.append(
                {
                    "token_ids": tokens,
                    "padding_mask": inside,
                    "targets": following,
                    "completion": (place >= first - 1) & (place < end - 1),
                }
            )
        return {name: _neighbours([part[name] for part in parts]) for name in parts[0]}


class TextBatches(PreferenceBatches):
    """Batches of a reward model: the chosen text of a pair, then the rejected one."""

    paired = True

    def __call__(self, arrays, masks):
        width = masks["chosen_token_ids"].shape[1]
        lengths = _neighbours([arrays[f"{name}_length"] for name in PAIRS])
        names = [n.removeprefix("chosen_") for n in masks if n.startswith("chosen_")]
        rows = {n: _neighbours([arrays[f"{side}_{n}"] for side in PAIRS]) for n in names}
        return ({"rows": {**rows, "padding_mask": np.arange(width) < lengths[:, None]}},)


def completion_batches(task, rows: Preferences, max_length: int, **options) -> BucketedDataset:
    """Encode prompts with their completions for a language model, and batch them.

    A completion ends with the tokenizer's end token. It begins where the ids of prompt and
    completion together differ from those of the prompt. Completions are cut so that a row has at
    most `max_length` tokens; a row whose prompt is as long is left out, with a warning.

    Raises:
        ValueError: if a prompt or completion has no tokens, or no row is left.
    """
    names = PAIRS if rows.labels is None else LABELLED[:1]
    prompts, completions, kept = [], [[] for _ in names], []
    before = _encoded(task, rows.prompts)
    wholes = [_encoded(task, rows.prompts, each) for each in rows.completions]
    cut = []
    for i, (prompt, *texts) in enumerate(zip(before, *wholes, strict=True)):
        length = min(_common(prompt, text) for text in texts)
        if length < len(prompt):
            cut.append(i)
        if length == 0:
            raise ValueError(
                f"prompts[{i}] has no token of its own before the completion: "
                f"{shorten(rows.prompts[i])}. A completion is learned after at least one token."
            )
        for name, text in zip(names, texts, strict=True):
            if len(text) <= length:
                raise ValueError(f"{name}[{i}] has no token of its own: remove the row.")
        if length >= max_length:
            continue
        kept.append(i)
        prompts.append(prompt[:length])
        for column, text in zip(completions, texts, strict=True):
            column.append(text[length:max_length])
    if cut:
        warnings.warn(
            f"In {len(cut)} of {len(before)} rows, the first of them row {cut[0]}, the ids of the "
            "prompt are not the beginning of those of prompt and completion. The end of these "
            "prompts counts as part of the completion: let a prompt end where a token ends, or use "
            "a chat template that renders it the same way in both.",
            stacklevel=level_of_user(),
        )
    _check_left(len(kept), len(before), max_length)
    lengths = {f"{n}_length": list(map(len, c)) for n, c in zip(names, completions, strict=True)}
    values = dict(lengths)
    if rows.labels is not None:
        values["label"] = np.asarray(rows.labels)[kept]
    pad_id = task.pad_id
    batches = CompletionBatches(names, pad_id, max_length)
    return task._bucketed(
        {"prompt": prompts},
        batches,
        paired_columns=dict(zip(names, _of_one_length(completions, pad_id), strict=True)),
        values=values,
        pad_values=dict.fromkeys(("prompt", *names), pad_id),
        **options,
    )


def text_batches(task, rows: Preferences, max_length: int, **options) -> BucketedDataset:
    """Encode whole texts, prompt and completion, for a task that gives each a number."""
    columns, lengths = {}, {}
    encode = segmented_rows(task, max_length)
    for name, completions in zip(PAIRS, rows.completions, strict=True):
        wholes = [prompt + text for prompt, text in zip(rows.prompts, completions, strict=True)]
        if isinstance(wholes[0], str):
            encoded = encode([wholes], lambda i, name=name: f"{name}[{i}]")
        else:
            chats = _chats(task, wholes, False)
            encoded = {"token_ids": [ids[:max_length] for ids in chats]}
        lengths[f"{name}_length"] = [len(row) for row in encoded["token_ids"]]
        columns |= {f"{name}_{kind}": ids for kind, ids in encoded.items()}
    pads = {n: tokenizer_of(task).pad_id or 0 if n.endswith("token_ids") else 0 for n in columns}
    for kind in {name.partition("_")[2] for name in columns}:
        both = [columns[f"{side}_{kind}"] for side in PAIRS]
        both = _of_one_length(both, pads[f"chosen_{kind}"])
        columns |= {f"{side}_{kind}": ids for side, ids in zip(PAIRS, both, strict=True)}
    return task._bucketed(columns, TextBatches(), values=lengths, pad_values=pads, **options)


def _encoded(task, prompts: list, completions: list | None = None) -> list[list[int]]:
    """Return the ids of prompts, or of prompts with completions."""
    tokenizer, wholes = tokenizer_of(task), prompts
    if completions is not None:
        wholes = [prompt + text for prompt, text in zip(prompts, completions, strict=True)]
    texts = [i for i, whole in enumerate(wholes) if isinstance(whole, str)]
    encoded = tokenizer.encode_batch([wholes[i] for i in texts])
    finish = without_end if completions is None else with_end
    found = dict(zip(texts, finish(encoded, tokenizer.end_id), strict=True))
    chats = [i for i in range(len(wholes)) if i not in found]
    encoded = _chats(task, [wholes[i] for i in chats], completions is None)
    found |= dict(zip(chats, encoded, strict=True))
    return [found[i] for i in range(len(wholes))]


def _chats(task, conversations: list, add_generation_prompt: bool) -> list[list[int]]:
    encode = tokenizer_of(task).encode_chat
    return [encode(each, add_generation_prompt=add_generation_prompt) for each in conversations]


def _common(one: list[int], two: list[int]) -> int:
    """Return the number of tokens with which both begin."""
    pairs = zip(one, two, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(one), len(two)))


def _check_left(kept: int, count: int, max_length: int) -> None:
    if kept == 0:
        raise ValueError(
            f"The prompts of all {count} rows have {max_length} tokens or more, so no token of a "
            "completion is left. Raise `max_length`, or shorten the prompts."
        )
    if kept < count:
        warnings.warn(
            f"{count - kept} of {count} rows are left out, since their prompts have {max_length} "
            "tokens (`max_length`) or more.",
            stacklevel=level_of_user(),
        )


def _of_one_length(columns: list[list], pad_id: int) -> list[list]:
    """Pad the rows of columns that share a place in a batch to the longer of them."""
    if len(columns) == 1:
        return columns
    longest = [max(map(len, rows)) for rows in zip(*columns, strict=True)]
    return [
        [[*row, *[pad_id] * (length - len(row))] for row, length in zip(rows, longest, strict=True)]
        for rows in columns
    ]


def _neighbours(parts: list[np.ndarray]) -> np.ndarray:
    """Interleave the rows of equally long arrays."""
    stacked = np.stack(parts, axis=1)
    return stacked.reshape(-1, *stacked.shape[2:])
