"""Scheduler that decodes many prompts in one running batch: finished rows make room for others."""

import json
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.distribution.processes import check_processes
from keras_transformer.generation.engine import Batch, Engine, Settings, most_steps
from keras_transformer.generation.program import negative_inputs
from keras_transformer.generation.samplers.samplers import Outputs
from keras_transformer.support.checking import MOST_TOKENS, check_flag, check_int, check_seed
from keras_transformer.support.sizes import pad_rows, round_rows, round_size

# A common prefix of the prompts is computed once if it has at least this many tokens.
_SHORTEST_PREFIX = 16


class Finished(NamedTuple):
    """The generated texts of one sample of a prompt."""

    index: int  # which prompt
    copy: int  # which of its samples
    tokens: list[list[int]]  # the ids of each hypothesis, best first, an end id included
    scores: list[float] | None  # of each hypothesis
    # Number of passes of the model for the row, if a pass can give several tokens.
    passes: int | None = None
    # Of the tokens of the first hypothesis, float32 (tokens,), if the sampler keeps them.
    log_probabilities: np.ndarray | None = None
    entropies: np.ndarray | None = None


class Progress(NamedTuple):
    """The tokens of an unfinished row so far."""

    index: int  # which prompt
    copy: int  # which of its samples
    tokens: list[int]  # all new tokens, including an end id


class GenerationRequest(NamedTuple):
    """A request: a prompt and the options of its continuation."""

    prompt: list[int]
    max_new_tokens: int
    seed: int  # of its random numbers
    row: int  # row of the random numbers of `seed` for the first sample
    choices: tuple[float, ...] = ()  # see `samplers.RowLimits`
    negative: Sequence[int] = ()  # the negative prompt, if the settings have guidance


class Scheduler:
    """Decodes prompts in batches with a fixed number of rows, or as many rows as the load needs.

    When a quarter of the rows, or enough rows for all waiting prompts, are finished, waiting
    prompts take their place: they are read in one pass of their own, and their rows join the
    running batch. `run` decodes given prompts, the longest first. A server calls `add` whenever a
    prompt comes, and `advance` as long as it is `busy`.

    Args:
        engine: `Engine`.
        settings: `Settings`.
        make_inputs: function from ids and mask, `(rows, length)`, to the backbone's inputs.
        batch_size: int, number of prompts decoded together.
        copies: int, number of samples of each prompt.
        seed: int from 0 to 2**64 - 1, for samplers that draw. The random numbers of row `i` depend
            only on `seed` and `i`.
        share_prefix: bool, compute the common prefix of all prompts once. Ignored for samplers
            and rules that need whole prompts.
        longest: int, greatest length to which prompts may be padded. None disables the limit.
        further: dict of further inputs of the backbone by name, NumPy arrays with a row for each
            prompt, or objects that return arrays for a list of rows. Rows without such an input
            give None.
        row_counts: ascending ints up to `batch_size`, the allowed numbers of rows of a batch: it
            grows when prompts wait and shrinks when rows finish. `()` allows `batch_size` alone.

    Example: see `keras_transformer.CausalLM.generate`, which uses it.
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
        self._requests: dict[int, GenerationRequest] = {}  # all unfinished prompts
        self._queue: deque[int] = deque()  # unfinished prompts that are not in a batch yet
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
        """Yield the generated texts of each prompt as soon as they are finished.

        Args:
            prompts: lists of ids.
            max_new_tokens: int for each prompt.
            steps: int, yield each row's `Progress` too, after at most this many steps.
            negative_prompts: a list of ids for each prompt, if the settings have guidance.

        Raises:
            ValueError: if `prompts` is empty or has an empty prompt, if the limits are not one
                positive integer for each prompt, or if guidance lacks a negative prompt.
        """
        if not len(prompts) or not all(map(len, prompts)):
            raise ValueError(
                "`prompts` must be at least one list of ids, and no list may be empty."
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
                "`negative_prompts` must have a non-empty list of ids for each of "
                f"{len(prompts)} prompts if the `guidance_scale` of the settings is not 1, and "
                f"be None if it is 1; the scale is {self.settings.guidance_scale}."
            )
        return self._run(prompts, max_new_tokens, steps, negative)

    def _run(self, prompts, max_new_tokens, steps, negative) -> Iterator[Finished | Progress]:
        if getattr(self.engine.backbone, "shared_by", 1) > 1:  # processes that generate together
            asked = json.dumps([prompts, max_new_tokens, negative], default=int).encode()
            check_processes(seed=self.seed, rows=self.batch_size, prompts=zlib.crc32(asked))
        self._requests, self._stopped, self._batch = {}, set(), None
        self._prefix, self._shared, self._next = None, 0, 0
        if self.share_prefix:
            self._read_prefix(prompts)
        for i, (prompt, limit) in enumerate(zip(prompts, max_new_tokens, strict=True)):
            self.add(GenerationRequest(prompt, limit, self.seed, i * self.copies, (), negative[i]))
        self._queue = deque(sorted(self._queue, key=lambda i: -len(prompts[i])))
        while self.busy:
            yield from self.advance(steps)

    @property
    def busy(self) -> bool:
        """Whether there is anything to decode."""
        return self._batch is not None or bool(self._queue)

    @property
    def waiting(self) -> int:
        """Number of prompts that are not in a batch yet."""
        return len(self._queue)

    def add(self, request: GenerationRequest) -> int:
        """Add a prompt and return its index."""
        index, self._next = self._next, self._next + 1
        self._requests[index] = request
        self._queue.append(index)
        return index

    def advance(self, steps: int | None = None) -> Iterator[Finished | Progress]:
        """Yield the finished rows of the running batch; then let prompts join, or run steps.

        Args:
            steps: see `run`.
        """
        batch = self._batch
        if not self.busy:
            return
        if batch is None:
            # With `row_counts` other prompts join later, in groups of similar length.
            chosen = self._take(1 if self.row_counts else self.batch_size)
            self._batch = self._start(chosen, round_rows(self.batch_size))
            return
        done = self.engine.finished(batch)
        if steps is not None and self.settings.sampler.streams and not done.all():
            yield from self._progress(batch)
            done = done | [sample in self._stopped for sample in batch.samples]
        leaving = [row for row in np.flatnonzero(done) if batch.samples[row] is not None]
        if leaving:
            found = self.engine.outputs(batch)
            for row in leaving:
                sample = batch.samples[row]
                yield _finished(sample, found, row)
                batch.samples[row], batch.limits[row] = None, 0
                self._stopped.discard(sample)
            alive = {sample[0] for sample in batch.samples if sample is not None}.union(self._queue)
            self._requests = {i: x for i, x in self._requests.items() if i in alive}
        rows, free = len(batch.samples), batch.samples.count(None)
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
        """End the sample `copy` of prompt `index`, whose `Progress` was just yielded."""
        self._stopped.add((index, copy))

    def withdraw(self, index: int) -> bool:
        """Remove a prompt that is not in a batch yet, and return whether that was possible."""
        if index not in self._queue:
            return False
        self._queue.remove(index)
        del self._requests[index]
        return True

    def _rows_for(self, prompts: int) -> int:
        """Return the number of rows for this many prompts."""
        return next((count for count in self.row_counts if count >= prompts), self.batch_size)

    def _progress(self, batch: Batch) -> Iterator[Progress]:
        found = self.engine.outputs(batch)
        for row, sample in enumerate(batch.samples):
            if sample is not None:
                yield Progress(*sample, found.tokens[row, 0, : found.counts[row, 0]].tolist())

    def _draw(self, samples: list, width: int) -> np.ndarray:
        uniforms = np.zeros((len(samples), width), "float32")
        for row, sample in enumerate(samples):
            if sample is not None:
                request = self._requests[sample[0]]
                uniforms[row] = row_uniforms(request.seed, request.row + sample[1], width)
        return uniforms

    def _start(self, chosen: list[int], most: int, slots: int = 0) -> Batch:
        """Start a batch of the prompts `chosen`, filled up with waiting ones to at most `most`."""
        models = (model.config for model in self.settings.sampler.models)
        longest = [config.max_sequence_length for config in models if config.position == "learned"]
        longest += [] if self.longest is None else [self.longest]
        room = min(longest) - self._shared if longest else None
        rows = [self._requests[i].prompt[self._shared :] for i in chosen]
        count, length = len(rows), max(map(len, rows))
        if self.row_counts:
            length = round_size(length) if room is None else min(round_size(length), room)
        else:
            sizes = (most, room)
            count, length = self.engine.padded_prompts(self.settings, count, length, sizes)
        samples: list = [(i, copy) for i in chosen for copy in range(self.copies)]
        limits = np.zeros((count * self.copies,), "int32")
        limits[: len(samples)] = [self._requests[i].max_new_tokens for i, _ in samples]
        choices = np.array([self._requests[i].choices for i, _ in samples], "float32")
        choices = np.pad(choices, ((0, len(limits) - len(samples)), (0, 0)))
        samples += [None] * (len(limits) - len(samples))
        missing = count - len(rows)
        ids, mask = pad_rows(rows + rows[:1] * missing, self.settings.pad_id, length)
        further = {n: x[chosen + chosen[:1] * missing] for n, x in self.further.items()}
        further = {name: x for name, x in further.items() if x is not None}
        inputs = self.make_inputs(ids, mask) | further
        if self.settings.guided:
            negative = [self._requests[i].negative for i in chosen + chosen[:1] * missing]
            length = round_size(max(map(len, negative)))
            length = length if self.longest is None else min(length, self.longest)
            inputs |= negative_inputs(
                self.make_inputs(*pad_rows(negative, self.settings.pad_id, length))
            )
        return self.engine.prefill(
            inputs, self.settings, limits, self._draw, None, samples, self._prefix, slots, choices
        )

    def _refill(self, batch: Batch, rows: int) -> Batch:
        """Return the batch with `rows` rows, in which waiting prompts replace finished ones."""
        if rows != len(batch.samples):
            kept = _owned_first(batch)
            batch = self.engine.take_rows(batch, (kept + kept[-1:] * rows)[:rows])
        free = [row for row, sample in enumerate(batch.samples) if sample is None]
        for chosen in self._parts(len(free) // self.copies):
            most = round_rows(len(chosen))
            new = self._start(chosen, min(most, len(free) // self.copies), batch.state.cache.slots)
            places, free = free[: len(new.samples)], free[len(new.samples) :]
            self.engine.place_rows(batch, new, places)
        return batch

    def _parts(self, places: int) -> Iterator[list[int]]:
        """Yield groups of waiting prompts, to fill up to `places` rows; one pass reads a group.

        With `row_counts` the prompts of a group have similar lengths, and its size is an allowed
        number of rows: little is padded, and few programs are compiled.
        """
        if not self.row_counts:
            while round_rows(places) > places:  # down to an allowed number of rows
                places -= 1
            yield self._take(places)
            return
        alike: dict[int, list[int]] = {}
        for index in self._take(places):
            alike.setdefault(round_size(len(self._requests[index].prompt)), []).append(index)
        for chosen in alike.values():
            while chosen:
                count = max(count for count in (1, *self.row_counts) if count <= len(chosen))
                yield chosen[:count]
                chosen = chosen[count:]

    def _take(self, count: int) -> list[int]:
        """Return the next `count` waiting prompts."""
        return [self._queue.popleft() for _ in range(min(count, len(self._queue)))]

    def _read_prefix(self, prompts: Sequence[list[int]]) -> None:
        """Compute the common prefix of all prompts if it is long enough to pay off."""
        rules = self.settings.rules
        whole = self.settings.sampler.reads_prompt or (rules is not None and rules.reads_prompt)
        if len(prompts) < 2 or whole:
            return
        first, last = min(prompts), max(prompts)
        # At least one token of each prompt remains, from which the next one is predicted.
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
    """Draw the random numbers of one row, from 0 to 1, float32 `(size,)`, in any batch the same.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
    """
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, row], "uint64")))
    return generator.random(size, dtype="float32")


def _owned_first(batch: Batch) -> list[int]:
    """Return the row indices of a batch, idle rows last."""
    return sorted(range(len(batch.samples)), key=lambda row: batch.samples[row] is None)


def _finished(sample: tuple[int, int], found: Outputs, row: int) -> Finished:
    kept = [i for i in range(found.tokens.shape[1]) if found.counts[row, i]]
    tokens = [found.tokens[row, i, : found.counts[row, i]].tolist() for i in kept]
    scores = None if found.scores is None else [float(found.scores[row, i]) for i in kept]
    passes = None if found.passes is None else int(found.passes[row])
    kept_values = (
        None if values is None or not tokens else values[row, 0, : len(tokens[0])].copy()
        for values in (found.log_probabilities, found.entropies)
    )
    return Finished(*sample, tokens, scores, passes, *kept_values)
