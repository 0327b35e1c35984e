"""Many prompts through one running batch: rows that are done make room for others."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.checking import MOST_TOKENS, check_flag, check_int, check_seed
from keras_transformer.generation.engine import Batch, Engine, Settings, most_steps
from keras_transformer.generation.guidance import negative_inputs
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


class Waiting(NamedTuple):
    """A prompt, and how it is continued."""

    prompt: list[int]
    max_new_tokens: int
    seed: int  # of its random numbers
    row: int  # which of the seed's rows of numbers its first sample has
    choices: tuple[float, ...] = ()  # see `samplers.Limits`
    negative: Sequence[int] = ()  # its negative prompt, where the settings have guidance


class Scheduler:
    """Decodes prompts in batches of a fixed number of rows, or of as many as the load needs.

    When a quarter of the rows is done, or enough for all that wait, waiting prompts take their
    place: they are read in one pass of their own, and their rows appended to the running batch.
    `run` decodes given prompts, the longest first. A server calls `add` whenever a prompt comes,
    and `advance` as long as it is `busy`.

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
        row_counts: ascending ints up to `batch_size`, the numbers of rows that a batch may have:
            it grows when prompts wait and shrinks when rows are done. `()` for `batch_size` alone.

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
        row_counts: Sequence[int] = (),
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
        self.row_counts = tuple(check_int("row_counts", n, 1, MOST_TOKENS) for n in row_counts)
        self._waiting: dict[int, Waiting] = {}  # all that are not done
        self._queue: deque[int] = deque()  # those of them in no batch yet
        self._stopped: set[tuple[int, int]] = set()
        self._batch: Batch | None = None
        self._prefix, self._shared, self._next = None, 0, 0

    def run(
        self,
        prompts: Sequence[list[int]],
        max_new_tokens: Sequence[int],
        steps: int | None = None,
        negative_prompts: Sequence[list[int]] | None = None,
    ) -> Iterator[Finished | Progress]:
        """What is generated for each prompt, as it is done.

        Args:
            prompts: lists of ids.
            max_new_tokens: int for each prompt.
            steps: int, to be told of each row's `Progress` after at most so many steps.
            negative_prompts: a list of ids for each prompt, where the settings have guidance.

        Raises:
            ValueError: for no prompts, an empty one, limits that are not positive integers,
                one for each prompt, or guidance without a negative prompt for each prompt.
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
        if self.settings.rules is not None:
            self.settings.rules.check_limit(min(max_new_tokens))
        steps = check_int("steps", steps, 1, MOST_TOKENS, none=True)
        negative = negative_prompts or [()] * len(prompts)
        if len(negative) != len(prompts) or any(bool(x) != self.settings.guided for x in negative):
            raise ValueError(
                "`negative_prompts` must have a list of ids, not empty, for each of "
                f"{len(prompts)} prompts if the `guidance_scale` of the settings is not 1, and "
                f"else be None; it is {self.settings.guidance_scale}."
            )
        return self._run(prompts, max_new_tokens, steps, negative)

    def _run(self, prompts, max_new_tokens, steps, negative) -> Iterator[Finished | Progress]:
        self._waiting, self._stopped, self._batch = {}, set(), None
        self._prefix, self._shared, self._next = None, 0, 0
        if self.share_prefix:
            self._read_prefix(prompts)
        for i, (prompt, limit) in enumerate(zip(prompts, max_new_tokens, strict=True)):
            self.add(Waiting(prompt, limit, self.seed, i * self.copies, (), negative[i]))
        self._queue = deque(sorted(self._queue, key=lambda i: -len(prompts[i])))
        while self.busy:
            yield from self.advance(steps)

    @property
    def busy(self) -> bool:
        """Whether there is anything to decode."""
        return self._batch is not None or bool(self._queue)

    @property
    def waiting(self) -> int:
        """The number of prompts that are in no batch yet."""
        return len(self._queue)

    def add(self, waiting: Waiting) -> int:
        """Takes one more prompt, and returns its index."""
        index, self._next = self._next, self._next + 1
        self._waiting[index] = waiting
        self._queue.append(index)
        return index

    def advance(self, steps: int | None = None) -> Iterator[Finished | Progress]:
        """What is done of the running batch; then others join it, or it makes further steps.

        Args:
            steps: as in `run`.
        """
        batch = self._batch
        if not self.busy:
            return
        if batch is None:
            # With `row_counts` the others join when it is known how long they are.
            chosen = self._take(1 if self.row_counts else self.batch_size)
            self._batch = self._start(chosen, round_up(self.batch_size))
            return
        done = self.engine.finished(batch)
        if steps is not None and self.settings.sampler.streams and not done.all():
            yield from self._progress(batch)
            done = done | [owner in self._stopped for owner in batch.owners]
        leaving = [row for row in np.flatnonzero(done) if batch.owners[row] is not None]
        if leaving:
            found = self.engine.outputs(batch)
            for row in leaving:
                owner = batch.owners[row]
                yield _finished(owner, found, row)
                batch.owners[row], batch.limits[row] = None, 0
                self._stopped.discard(owner)
            alive = {owner[0] for owner in batch.owners if owner is not None}.union(self._queue)
            self._waiting = {i: x for i, x in self._waiting.items() if i in alive}
        rows, free = len(batch.owners), batch.owners.count(None)
        wanted = self._rows_for((rows - free) // self.copies + len(self._queue)) * self.copies
        joins = min(len(self._queue) * self.copies, max(self.copies, rows // 4))
        if free == rows:
            self._batch = None
        elif self._queue and wanted > rows:
            self._batch = self._refill(batch, wanted)
        elif self._queue and free >= joins:
            self._batch = self._refill(batch, rows)
        elif self.row_counts and wanted <= rows // 4:
            self._batch = self.engine.take_rows(batch, _owned_first(batch)[:wanted])
        else:
            most = most_steps(self.settings.sampler)
            enough = min(rows, max(free + 1, rows // 4)) if self._queue else rows
            self.engine.extend(batch, most if steps is None else min(most, steps), enough)

    def stop(self, index: int, copy: int = 0) -> None:
        """Ends the sample `copy` of prompt `index`, whose `Progress` was just given."""
        self._stopped.add((index, copy))

    def withdraw(self, index: int) -> bool:
        """Takes a prompt back that is in no batch yet; whether it is so."""
        if index not in self._queue:
            return False
        self._queue.remove(index)
        del self._waiting[index]
        return True

    def _rows_for(self, prompts: int) -> int:
        """The number of rows for so many prompts."""
        return next((count for count in self.row_counts if count >= prompts), self.batch_size)

    def _progress(self, batch: Batch) -> Iterator[Progress]:
        found = self.engine.outputs(batch)
        for row, owner in enumerate(batch.owners):
            if owner is not None:
                yield Progress(*owner, found.tokens[row, 0, : found.counts[row, 0]].tolist())

    def _draw(self, owners: list, width: int) -> np.ndarray:
        uniforms = np.zeros((len(owners), width), "float32")
        for row, owner in enumerate(owners):
            if owner is not None:
                waiting = self._waiting[owner[0]]
                uniforms[row] = row_uniforms(waiting.seed, waiting.row + owner[1], width)
        return uniforms

    def _start(self, chosen: list[int], most: int, slots: int = 0) -> Batch:
        """A batch of prompts, filled up to at most `most`. Owners are samples."""
        models = (model.config for model in self.settings.sampler.models)
        longest = [config.max_sequence_length for config in models if config.position == "learned"]
        longest += [] if self.longest is None else [self.longest]
        room = min(longest) - self._shared if longest else None
        rows = [self._waiting[i].prompt[self._shared :] for i in chosen]
        count, length = len(rows), max(map(len, rows))
        if self.row_counts:
            length = round_size(length) if room is None else min(round_size(length), room)
        else:
            sizes = (most, room)
            count, length = self.engine.padded_prompts(self.settings, count, length, sizes)
        owners: list = [(i, copy) for i in chosen for copy in range(self.copies)]
        limits = np.zeros((count * self.copies,), "int32")
        limits[: len(owners)] = [self._waiting[i].max_new_tokens for i, _ in owners]
        choices = np.array([self._waiting[i].choices for i, _ in owners], "float32")
        choices = np.pad(choices, ((0, len(limits) - len(owners)), (0, 0)))
        owners += [None] * (len(limits) - len(owners))
        missing = count - len(rows)
        ids, mask = pad_rows(rows + rows[:1] * missing, self.settings.pad_id, length)
        further = {n: x[chosen + chosen[:1] * missing] for n, x in self.further.items()}
        inputs = self.make_inputs(ids, mask) | further
        if self.settings.guided:
            negative = [self._waiting[i].negative for i in chosen + chosen[:1] * missing]
            length = round_size(max(map(len, negative)))
            length = length if self.longest is None else min(length, self.longest)
            inputs |= negative_inputs(
                self.make_inputs(*pad_rows(negative, self.settings.pad_id, length))
            )
        return self.engine.prefill(
            inputs, self.settings, limits, self._draw, None, owners, self._prefix, slots, choices
        )

    def _refill(self, batch: Batch, rows: int) -> Batch:
        """The batch with `rows` rows, and waiting prompts in the place of finished ones."""
        if rows != len(batch.owners):
            kept = _owned_first(batch)
            batch = self.engine.take_rows(batch, (kept + kept[-1:] * rows)[:rows])
        free = [row for row, owner in enumerate(batch.owners) if owner is None]
        for chosen in self._parts(len(free) // self.copies):
            most = round_up(len(chosen))
            new = self._start(chosen, min(most, len(free) // self.copies), batch.state.cache.slots)
            places, free = free[: len(new.owners)], free[len(new.owners) :]
            self.engine.place_rows(batch, new, places)
        return batch

    def _parts(self, places: int) -> Iterator[list[int]]:
        """The waiting prompts that are read in one pass each, to fill at most so many places.

        With `row_counts` they are alike in length and as many as a batch may have rows: little is
        padded, and there are few programs.
        """
        if not self.row_counts:
            while round_up(places) > places:  # as many prompts as a step of the ladder has
                places -= 1
            yield self._take(places)
            return
        alike: dict[int, list[int]] = {}
        for index in self._take(places):
            alike.setdefault(round_size(len(self._waiting[index].prompt)), []).append(index)
        for chosen in alike.values():
            while chosen:
                count = max(count for count in (1, *self.row_counts) if count <= len(chosen))
                yield chosen[:count]
                chosen = chosen[count:]

    def _take(self, count: int) -> list[int]:
        """The next `count` prompts that wait."""
        return [self._queue.popleft() for _ in range(min(count, len(self._queue)))]

    def _read_prefix(self, prompts: Sequence[list[int]]) -> None:
        """Computes what all prompts begin with, if that pays."""
        rules = self.settings.rules
        whole = self.settings.sampler.reads_prompt or (rules is not None and rules.reads_prompt)
        if len(prompts) < 2 or whole:
            return
        first, last = min(prompts), max(prompts)
        # At least one token of each prompt is left, to predict the next from.
        longest = min(map(len, prompts)) - 1
        same = 0
        while same < longest and first[same] == last[same]:
            same += 1
        lengths = range(_SHORTEST_PREFIX, same + 1)
        shared = max((length for length in lengths if round_size(length) == length), default=0)
        if shared:
            self._shared = shared
            self._prefix = self.engine.read_prefix(list(first[:shared]), self.settings)


def row_uniforms(seed: int, row: int, size: int) -> np.ndarray:
    """Random numbers of one row, whatever batch it is in: from 0 to 1, float32 `(size,)`.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
    """
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, row], "uint64")))
    return generator.random(size, dtype="float32")


def _owned_first(batch: Batch) -> list[int]:
    """The rows of a batch, those first that are somebody's."""
    return sorted(range(len(batch.owners)), key=lambda row: batch.owners[row] is None)


def _finished(owner: tuple[int, int], found: Outputs, row: int) -> Finished:
    kept = [i for i in range(found.tokens.shape[1]) if found.counts[row, i]]
    tokens = [found.tokens[row, i, : found.counts[row, i]].tolist() for i in kept]
    scores = None if found.scores is None else [float(found.scores[row, i]) for i in kept]
    passes = None if found.passes is None else int(found.passes[row])
    return Finished(*owner, tokens, scores, passes)
