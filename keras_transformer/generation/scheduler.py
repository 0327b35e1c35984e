"""Many prompts through one running batch: rows that are done make room for others."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.checking import MOST_TOKENS, check_flag, check_int, check_seed
from keras_transformer.generation.engine import Batch, Engine, Settings, most_steps
from keras_transformer.generation.samplers import Outputs
from keras_transformer.generation.scoring import pad_rows
from keras_transformer.sizes import round_size, round_up

# A prefix is computed once for all prompts if it has at least so many tokens.
_SHORTEST_PREFIX = 16


class Finished(NamedTuple):
    """What was generated for a prompt."""

    index: int  # which prompt
    copy: int  # which of its samples
    tokens: list[list[int]]  # the ids of each hypothesis, best first, an end id included
    scores: list[float] | None  # of each hypothesis
    # How often the model ran for the row, where a pass may give several tokens.
    passes: int | None = None


class Progress(NamedTuple):
    """What a row has so far."""

    index: int  # which prompt
    copy: int  # which of its samples
    tokens: list[int]  # all the new ones, an end id included


class Scheduler:
    """Decodes prompts in batches of a fixed number of rows.

    The longest prompts come first. When a quarter of the rows is done, waiting prompts take their
    place: they are read in one pass of their own, and their rows appended to the running batch.

    Args:
        engine: `Engine`.
        settings: `Settings`.
        make_inputs: from ids and mask, `(rows, length)`, to the backbone's inputs.
        batch_size: int, prompts decoded together.
        copies: int, samples of each prompt.
        seed: int from 0 to 2**64 - 1, for samplers that draw. Row `i`'s numbers depend on `seed`
            and `i` alone.
        share_prefix: bool, compute what all prompts begin with once. Not done for
            samplers and rules that need to see whole prompts.
        longest: int, the most tokens a prompt may be padded to, or None.
        further: dict of further inputs of the backbone by name, NumPy arrays of a row for each
            prompt.

    Example: see `keras_transformer.CausalLM.generate`, which is made of it.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        make_inputs: Callable,
        batch_size: int = 32,
        copies: int = 1,
        seed: int = 0,
        share_prefix: bool = False,
        longest: int | None = None,
        further: Mapping[str, np.ndarray] | None = None,
    ):
        self.engine = engine
        self.settings = settings
        self.make_inputs = make_inputs
        self.batch_size = check_int("batch_size", batch_size, 1, MOST_TOKENS)
        self.copies = check_int("copies", copies, 1, MOST_TOKENS)
        self.seed = check_seed("seed", seed, bits=64)
        self.share_prefix = check_flag("share_prefix", share_prefix)
        self.longest = check_int("longest", longest, 1, MOST_TOKENS, none=True)
        self.further = dict(further or {})

    def run(
        self,
        prompts: Sequence[list[int]],
        max_new_tokens: Sequence[int],
        steps: int | None = None,
    ) -> Iterator[Finished | Progress]:
        """What is generated for each prompt, as it is done.

        Args:
            prompts: lists of ids.
            max_new_tokens: int for each prompt.
            steps: int, to be told of each row's `Progress` after at most so many steps.

        Raises:
            ValueError: for no prompts, an empty one, or limits that are not positive integers,
                one for each prompt.
        """
        if not len(prompts) or not all(map(len, prompts)):
            raise ValueError(
                "`prompts` must be lists of ids, none empty, and at least one of them."
            )
        if len(max_new_tokens) != len(prompts):
            raise ValueError(
                f"`max_new_tokens` must have a limit for each of {len(prompts)} prompts, received "
                f"{len(max_new_tokens)}."
            )
        max_new_tokens = [
            check_int(f"max_new_tokens[{i}]", limit, 1, MOST_TOKENS)
            for i, limit in enumerate(max_new_tokens)
        ]
        steps = check_int("steps", steps, 1, MOST_TOKENS, none=True)
        return self._run(prompts, max_new_tokens, steps)

    def _run(self, prompts, max_new_tokens, steps) -> Iterator[Finished | Progress]:
        self._prompts, self._limits, self._stopped = prompts, max_new_tokens, set()
        self._prefix, self._shared = None, 0
        if self.share_prefix:
            self._read_prefix()
        queue = deque(sorted(range(len(prompts)), key=lambda i: -len(prompts[i])))
        batch = self._start(queue, self.batch_size)
        while True:
            done = self.engine.finished(batch)
            if steps is not None and self.settings.sampler.streams and not done.all():
                yield from self._progress(batch)
                done = done | [owner in self._stopped for owner in batch.owners]
            leaving = [row for row in np.flatnonzero(done) if batch.owners[row] is not None]
            if leaving:
                found = self.engine.outputs(batch)
                for row in leaving:
                    yield _finished(batch.owners[row], found, row)
                    batch.owners[row], batch.limits[row] = None, 0
            rows, free = len(batch.owners), batch.owners.count(None)
            if free == rows:
                if not queue:
                    return
                batch = self._start(queue, self.batch_size)
            elif queue and free >= max(self.copies, rows // 4):
                batch = self._refill(batch, queue, free)
            else:
                most = most_steps(self.settings.sampler)
                enough = min(rows, max(free + 1, rows // 4)) if queue else rows
                self.engine.extend(batch, most if steps is None else min(most, steps), enough)

    def stop(self, index: int, copy: int = 0) -> None:
        """Ends the sample `copy` of prompt `index`, whose `Progress` was just given."""
        self._stopped.add((index, copy))

    def _progress(self, batch: Batch) -> Iterator[Progress]:
        found = self.engine.outputs(batch)
        for row, owner in enumerate(batch.owners):
            if owner is not None:
                yield Progress(*owner, found.tokens[row, 0, : found.counts[row, 0]].tolist())

    def _draw(self, owners: list, width: int) -> np.ndarray:
        uniforms = np.zeros((len(owners), width), "float32")
        for row, owner in enumerate(owners):
            if owner is not None:
                uniforms[row] = row_uniforms(self.seed, owner, self.copies, width)
        return uniforms

    def _start(self, queue: deque, count: int, most: int | None = None, slots: int = 0) -> Batch:
        """A batch of the next `count` prompts, filled up to at most `most`. Owners are samples."""
        chosen = [queue.popleft() for _ in range(min(count, len(queue)))]
        models = (model.config for model in self.settings.sampler.models)
        longest = [config.max_sequence_length for config in models if config.position == "learned"]
        longest += [] if self.longest is None else [self.longest]
        rows = [self._prompts[i][self._shared :] for i in chosen]
        count, length = self.engine.padded_prompts(
            self.settings,
            len(rows),
            max(map(len, rows)),
            (
                round_up(self.batch_size) if most is None else most,
                min(longest) - self._shared if longest else None,
            ),
        )
        owners: list = [(i, copy) for i in chosen for copy in range(self.copies)]
        limits = np.zeros((count * self.copies,), "int32")
        limits[: len(owners)] = [self._limits[i] for i, _ in owners]
        owners += [None] * (len(limits) - len(owners))
        missing = count - len(rows)
        ids, mask = pad_rows(rows + rows[:1] * missing, self.settings.pad_id, length)
        further = {n: x[chosen + chosen[:1] * missing] for n, x in self.further.items()}
        inputs = self.make_inputs(ids, mask) | further
        return self.engine.prefill(
            inputs, self.settings, limits, self._draw, None, owners, self._prefix, slots
        )

    def _refill(self, batch: Batch, queue: deque, free: int) -> Batch:
        """The batch with waiting prompts in the place of finished ones, as many rows as before."""
        places = free // self.copies
        while round_up(places) > places:  # as many prompts as a step of the ladder has
            places -= 1
        new = self._start(queue, places, places, batch.state.cache.slots)
        kept = sorted(range(len(batch.owners)), key=lambda row: batch.owners[row] is None)
        return self.engine.replace_rows(batch, kept[: len(kept) - len(new.owners)], new)

    def _read_prefix(self) -> None:
        """Computes what all prompts begin with, if that pays."""
        rules = self.settings.rules
        whole = self.settings.sampler.reads_prompt or (rules is not None and rules.reads_prompt)
        if len(self._prompts) < 2 or whole:
            return
        first, last = min(self._prompts), max(self._prompts)
        # At least one token of each prompt is left, to predict the next from.
        longest = min(map(len, self._prompts)) - 1
        same = 0
        while same < longest and first[same] == last[same]:
            same += 1
        lengths = range(_SHORTEST_PREFIX, same + 1)
        shared = max((length for length in lengths if round_size(length) == length), default=0)
        if shared:
            self._shared = shared
            self._prefix = self.engine.read_prefix(list(first[:shared]), self.settings)


def row_uniforms(seed: int, owner: tuple[int, int], copies: int, size: int) -> np.ndarray:
    """Random numbers of one row, whatever batch it is in: from 0 to 1, float32 `(size,)`.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
    """
    row = owner[0] * copies + owner[1]
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, row], "uint64")))
    return generator.random(size, dtype="float32")


def _finished(owner: tuple[int, int], found: Outputs, row: int) -> Finished:
    kept = [i for i in range(found.tokens.shape[1]) if found.counts[row, i]]
    tokens = [found.tokens[row, i, : found.counts[row, i]].tolist() for i in kept]
    scores = None if found.scores is None else [float(found.scores[row, i]) for i in kept]
    passes = None if found.passes is None else int(found.passes[row])
    return Finished(*owner, tokens, scores, passes)
