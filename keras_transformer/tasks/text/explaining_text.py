"""`explain` for tasks that generate text: explain a given text, or each step of generation."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_transformer.explanations.explaining import (
    ExplainOptions,
    check_explained,
    explain,
    explained,
)
from keras_transformer.explanations.explanation import Explanation
from keras_transformer.explanations.tokens import readable_tokens
from keras_transformer.tasks.data.arguments import listed
from keras_transformer.tasks.data.text import tokenizer_of


def explain_generation(task, prompts, output=None, **options) -> Any:
    """Explain a text, or each step of generating one, see `LanguageModel.explain`."""
    if isinstance(prompts, Mapping):
        return explain(task, prompts, **options)
    generator, how = task.generator, ExplainOptions.checked(**options)
    rows, _, alone = generator.prompt_ids(prompts)
    for place, row in enumerate(rows):
        if not row:
            raise ValueError(f"`prompts[{place}]` is empty: there must be at least one token.")
        task.backbone.check_ids(**{f"prompts[{place}]": np.asarray(row)})
    if output is None and not generator.continues_prompts:
        return _explained_as_written(generator, rows, alone, how)
    written = [[] for _ in rows] if output is None else written_ids(generator, output, rows, alone)
    found = explained_texts(generator, rows, written, how)
    return found[0] if alone else found


def _explained_as_written(generator, rows, alone: bool, how: ExplainOptions):
    completions = generator.completed(
        rows, {}, {}, as_text=generator.tokenizer is not None, explain=how
    )
    found = [each.explanation for each in completions]
    return found[0] if alone else found


def written_ids(generator, output: Any, rows: list, alone: bool) -> list[list[int]]:
    """Return the ids of generated texts, given as strings or ids."""
    given = listed(output, "output")
    given = [given] if alone else list(given)
    if len(given) != len(rows):
        raise ValueError(
            f"Received {len(rows)} prompts and {len(given)} outputs: give one output per prompt."
        )
    found = []
    for place, each in enumerate(given):
        ids = _output_ids(generator, each) if isinstance(each, str) else [int(id) for id in each]
        generator.backbone.check_ids(**{f"output[{place}]": np.asarray(ids or [0])})
        found.append(ids)
    return found


def _output_ids(generator, text: str) -> list[int]:
    """Return the ids of a generated text, with an end token unless it continues its prompt."""
    tokenizer = tokenizer_of(generator.task)
    if generator.continues_prompts:
        return tokenizer.encode(text, special_tokens=False)
    encode = getattr(generator.task, "_encode_targets", tokenizer.encode_targets)
    return [*encode([text])[0], *generator.end_ids[:1]]


def explained_texts(
    generator,
    rows: list,
    written: list,
    how: ExplainOptions,
    further: Mapping[str, Any] | None = None,
) -> list[Explanation]:
    """Return the explanation of each prompt and of the ids generated after it."""
    check_explained_texts(generator, rows, written, how, further)
    pairs = enumerate(zip(rows, written, strict=True))
    return [explained_text(generator, *pair, how, further, i) for i, pair in pairs]


def check_explained_texts(
    generator,
    rows: list,
    written: list,
    how: ExplainOptions,
    further: Mapping[str, Any] | None = None,
) -> None:
    """Check the attention size of prompts and given outputs before any forward pass.

    Raises ValueError if one has more than `how.max_attention` weights.
    """
    if how.max_attention is not None:
        pairs = enumerate(zip(rows, written, strict=True))
        inputs = (_text_inputs(generator, *pair, further, i)[0] for i, pair in pairs)
        check_explained(generator.task, inputs, how)


def _text_inputs(
    generator, prompt: list[int], written: list[int], further: Mapping[str, Any] | None, place: int
) -> tuple[dict[str, Any], Any]:
    """Return the arrays of one text, and the position where its generated part begins."""
    inputs, first = generator.format.scoring_inputs([prompt], [written or [generator.pad_id]])
    others = {name: rows[[place]] for name, rows in (further or {}).items()}
    others = {name: np.asarray(row) for name, row in others.items() if row is not None}
    return {**inputs, **others}, first


def explained_text(
    generator,
    prompt: list[int],
    written: list[int],
    how: ExplainOptions,
    further: Mapping[str, Any] | None = None,
    place: int = 0,
) -> Explanation:
    """Explain the steps that generated ids after a prompt.

    Args:
        generator: the `Generator` of the task.
        prompt: ids.
        written: generated ids; empty to explain the prompt alone.
        how: `ExplainOptions`.
        further: further inputs of the backbone, with a row for each prompt.
        place: int, the row of this prompt in `further`.
    """
    inputs, first = _text_inputs(generator, prompt, written, further, place)
    known: dict[str, Any] = {}
    if written:
        names = readable_tokens(written, generator.tokenizer)
        known["next_tokens"] = (*[""] * int(first[0]), *names)
        known["written"] = dict(enumerate(written, int(first[0])))
        if generator.tokenizer is not None:
            known["text"] = generator.format.decode([prompt], [written])[0]
    return explained(generator.task, inputs, how, **known)
