"""What the two tasks that generate share: the sampler, prompts in batches, text or ids."""

from collections.abc import Sequence
from typing import ClassVar

import keras
import numpy as np

from keras_transformer.data import BucketedDataset
from keras_transformer.generation import samplers
from keras_transformer.generation.engine import Engine, round_up
from keras_transformer.models.backbone import Backbone
from keras_transformer.tasks.task import Task, text_rows
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.training import Perplexity, TokenAccuracy, TokenCrossEntropy


class LanguageModel(Task):
    """A decoder with the vocabulary's logits as output, and `generate`.

    Args:
        backbone: a backbone with a decoder.
        tokenizer: `Tokenizer`, or None to take and return ids.
        end_ids: list of int, any of which ends a row. Defaults to the tokenizer's end.
        name: str.
    """

    predict_options: ClassVar = {"max_buckets": 1}

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer | None = None,
        end_ids: Sequence[int] | None = None,
        name: str | None = None,
    ):
        super().__init__(backbone, tokenizer, name=name)
        if end_ids is None:
            end = None if tokenizer is None else tokenizer.end_id
            end_ids = [] if end is None else [end]
        elif not isinstance(end_ids, (list, tuple)) or not all(map(_is_int, end_ids)):
            raise ValueError(f"`end_ids` must be a list of token ids, received {end_ids!r}.")
        if end_ids:
            backbone.check_ids(end_ids=np.asarray(end_ids))
        self.end_ids = tuple(map(int, end_ids))
        self.engine = Engine(backbone)
        self.built = True
        self.compile(
            optimizer=keras.optimizers.Adam(1e-4),
            loss=TokenCrossEntropy(),
            weighted_metrics=[Perplexity(), TokenAccuracy()],
        )

    def compile(self, *args, sampler="greedy", **kwargs):
        """As `keras.Model.compile`; `sampler` is the default of `generate`."""
        self.sampler = samplers.get(sampler)
        super().compile(*args, **kwargs)

    @property
    def number_of_targets(self) -> int:
        return self.backbone.config.vocabulary_size

    def call(self, inputs, training: bool = False):
        return self.backbone.logits(self.backbone(inputs, training=training))

    def generate(
        self,
        prompts,
        max_new_tokens: int = 64,
        sampler=None,
        batch_size: int = 32,
        return_prompt: bool = False,
    ):
        """Continuations of prompts, or translations of sources.

        Prompts of any lengths go in one call; each gives what it gives alone.

        Args:
            prompts: a string, a list of strings, a list of ids, or a list of lists of ids.
            max_new_tokens: int.
            sampler: `"greedy"`, `"beam"`, or a sampler object. Defaults to that of `compile`.
            batch_size: int, prompts decoded together.
            return_prompt: bool, put the prompt before its continuation.

        Returns:
            A string for a string, a list of strings for a list; ids likewise.

        Raises:
            ValueError: for empty or wrongly typed prompts, ids outside the vocabulary, a
                length that the model does not have, an unknown sampler.
        """
        sampler = self.sampler if sampler is None else samplers.get(sampler)
        for name, value in {"max_new_tokens": max_new_tokens, "batch_size": batch_size}.items():
            if not _is_int(value) or value < 1:
                raise ValueError(f"`{name}` must be an integer of at least 1, received {value!r}.")
        rows, as_text, single = self._prompt_ids(prompts)
        for place, row in enumerate(rows):
            if not row:
                raise ValueError(f"`prompts[{place}]` is empty: there must be at least one token.")
            self.backbone.check_ids(**{f"prompts[{place}]": np.asarray(row)})
        self._check_room(rows, max_new_tokens)
        continuations: list = [None] * len(rows)
        by_length = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        for first in range(0, len(rows), batch_size):
            chosen = by_length[first : first + batch_size]
            new = self._generate_batch([rows[i] for i in chosen], max_new_tokens, sampler)
            for i, ids in zip(chosen, new, strict=True):
                continuations[i] = ids
        if as_text:
            outputs = self._to_texts(rows, continuations, return_prompt)
        elif return_prompt:
            outputs = [row + ids for row, ids in zip(rows, continuations, strict=True)]
        else:
            outputs = continuations
        return outputs[0] if single else outputs

    def _generate_batch(self, rows, max_new_tokens, sampler) -> list[list[int]]:
        # Sizes of a ladder: the compiled functions serve batches of other sizes too.
        length = round_up(max(map(len, rows)))
        if self.backbone.config.position == "learned":
            length = min(length, self.backbone.config.max_sequence_length)
        filled = rows + [rows[0]] * (round_up(len(rows)) - len(rows))
        ids = np.full((len(filled), length), self.pad_id, "int32")
        mask = np.zeros((len(filled), length), "bool")
        for i, row in enumerate(filled):
            ids[i, : len(row)] = row
            mask[i, : len(row)] = True
        new = self.engine.generate(
            self._engine_inputs(ids, mask), sampler, max_new_tokens, self.end_ids, self.pad_id
        )
        return [self._until_end(row) for row in new[: len(rows)].tolist()]

    def _until_end(self, ids: list[int]) -> list[int]:
        ends = [place for place, token in enumerate(ids) if token in self.end_ids]
        return ids[: ends[0]] if ends else ids

    @property
    def pad_id(self) -> int:
        """The id that fills rows after their end."""
        return 0 if self.tokenizer is None else self.tokenizer.pad_id or 0

    def _prompt_ids(self, prompts) -> tuple[list[list[int]], bool, bool]:
        """Rows of ids, whether they were text, and whether it was one prompt."""
        if isinstance(prompts, str):
            return self._encode_prompts([prompts]), True, True
        rows = prompts.tolist() if isinstance(prompts, np.ndarray) else prompts
        if isinstance(rows, (list, tuple)) and not rows:
            raise ValueError("`prompts` is empty: there must be at least one prompt.")
        if not isinstance(rows, (list, tuple)):
            raise ValueError(
                "`prompts` must be a string, a list of strings, or lists of token ids, received "
                f"{str(prompts)[:60]!r} of type {type(prompts).__name__}."
            )
        if all(_is_int(token) for token in rows):
            return [[int(token) for token in rows]], False, True
        if all(isinstance(row, (list, tuple, np.ndarray)) for row in rows):
            for place, row in enumerate(rows):
                if not all(_is_int(token) for token in row):
                    raise ValueError(f"`prompts[{place}]` must hold token ids, received {row!r}.")
            return [[int(token) for token in row] for row in rows], False, False
        return self._encode_prompts(text_rows(rows, "prompts")), True, False

    def task_values(self) -> dict:
        return {"end_ids": list(self.end_ids)}

    # What a subclass says of itself.

    def _encode_prompts(self, texts: list[str]) -> list[list[int]]:
        raise NotImplementedError

    def _to_texts(self, prompts, continuations, return_prompt: bool) -> list[str]:
        raise NotImplementedError

    def _engine_inputs(self, ids, mask) -> dict:
        raise NotImplementedError

    def _check_room(self, rows, max_new_tokens: int):
        raise NotImplementedError

    def make_dataset(self, x, y=None, *args, **kwargs) -> BucketedDataset:
        raise NotImplementedError


def with_end(rows: list[list[int]], end_id: int | None) -> list[list[int]]:
    """The rows, each ended by `end_id`, if there is one, exactly once."""
    if end_id is None:
        return rows
    return [row if row and row[-1] == end_id else [*row, end_id] for row in rows]


def without_end(rows: list[list[int]], end_id: int | None) -> list[list[int]]:
    """The rows without the end that a tokenizer's template adds."""
    return [row[:-1] if row and row[-1] == end_id else row for row in rows]


def _is_int(value) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
