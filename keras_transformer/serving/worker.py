"""The thread that decodes for all requests of one model, in one running batch."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keras_transformer.generation.row_sampler import RowRandom
from keras_transformer.generation.scheduler import Finished, Progress, Scheduler, Waiting
from keras_transformer.serving.limits import TooManyRequests
from keras_transformer.tasks.generating import GenerationCall

_LOGGER = logging.getLogger("keras_transformer.serving")
# Steps between two looks at what was written.
_STEPS = 4
# Batches of unlike settings (another JSON Schema, say) that are decoded in turn; others wait.
_MOST_BATCHES = 4


class Piece(NamedTuple):
    """Text that a job has more, in the order of its tokens."""

    text: str


class Done(NamedTuple):
    """The end of a job."""

    text: str  # the rest of it
    token_ids: list[int]  # all of them, without the end
    reason: str  # "stop" or "length", as OpenAI calls it
    stop: str | int | None = None  # the stop string or the token id that ended it


class Failed(NamedTuple):
    """A job that the model cannot do."""

    error: Exception


class Job:
    """One text that is to be written.

    Args:
        task: a `CausalLM`.
        ids: the prompt.
        most: int, the most new tokens.
        temperature: float, 0 for the likeliest tokens.
        top_p: float.
        seed: int.
        copy: int, which of the samples of its prompt it is: with `num_samples` of `generate` the
            same seed gives the same texts.
        tell: called from the worker's thread with `Piece`s and in the end `Done` or `Failed`.
        **options: of `GenerationCall`: `stop`, `rules`, `constraint`, `guidance_scale`,
            `negative_prompts`.

    Raises:
        ValueError: for what the model cannot take.
    """

    def __init__(
        self, task: Any, ids: list[int], most: int, temperature: float, top_p: float, seed: int,
        copy: int, tell: Callable[[Piece | Done | Failed], None], **options: Any,
    ):  # fmt: skip
        sampler = RowRandom(cuts=temperature > 0 and top_p < 1)
        self.call = GenerationCall(
            task, [ids], further={}, max_new_tokens=most, sampler=sampler, seed=seed, **options
        )
        choices = (float(temperature), float(top_p))
        negative = (self.call.negative_prompts or [()])[0]
        self.waiting = Waiting(ids, self.call.limits[0], seed, copy, choices, negative)
        self.settings = self.call.scheduler.settings
        self.tell = tell
        self.left = False  # whoever asked is gone
        self.begun: float | None = None  # when the first token was there
        self._row = self.call._new_row(0)

    def push(self, event: Progress | Finished) -> bool:
        """Tells what is new; whether a stop string ends the text. Tokens known are passed over."""
        last = isinstance(event, Finished)
        tokens = (event.tokens[0] if event.tokens else []) if last else event.tokens
        self.begun = self.begun or time.perf_counter()
        kept = self.call._until_end(tokens)
        self._row.push(kept)
        text = self._row.take(last)
        if last:
            stop: str | int | None = self._row.stream.stopped_by
            if self._row.stopped:
                kept = kept[: self._row.count]
            elif len(kept) < len(tokens):
                stop = tokens[len(kept)]
            self.tell(Done(text, kept, "length" if stop is None else "stop", stop))
        elif text:
            self.tell(Piece(text))
        return self._row.stopped


class _Group:
    """Jobs of equal settings, and the scheduler that decodes them."""

    def __init__(self, scheduler: Scheduler, is_open: bool):
        self.scheduler, self.is_open = scheduler, is_open
        self.jobs: dict[int, Job] = {}

    def add(self, job: Job) -> None:
        self.jobs[self.scheduler.add(job.waiting)] = job

    def advance(self) -> None:
        """Some steps. Who has left is taken out."""
        for index in [index for index, job in self.jobs.items() if job.left]:
            if self.scheduler.withdraw(index):
                del self.jobs[index]
        for event in self.scheduler.advance(_STEPS):
            job = self.jobs[event.index]
            stopped = job.push(event)
            if isinstance(event, Finished):
                del self.jobs[event.index]
            elif stopped or job.left:
                self.scheduler.stop(event.index)


class Worker:
    """Decodes the jobs of one model in a thread of its own.

    Jobs join and leave between calls of the decoding loop. Those of equal rules share a batch,
    whatever their temperatures and seeds. Where a batch fails, its jobs are decoded again, in
    halves, until the one that makes it fail is alone: that one alone fails.

    Args:
        task: a `CausalLM` with a tokenizer.
        batch_size: int, texts decoded together.
        waiting: int, so many more may wait.

    Example: see `make_api`, which is made of it.
    """

    def __init__(self, task: Any, batch_size: int = 32, waiting: int = 256):
        self.task, self.batch_size, self.room = task, batch_size, batch_size + waiting
        self.failures = 0  # batches that the model failed in
        self._groups: list[_Group] = []
        self._coming: deque[Job] = deque()
        self._news = threading.Condition()
        self._ends = False
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._work, name="decoding", daemon=True)

    def start(self) -> None:
        """Starts the thread. It writes a few tokens first, so that what they need is compiled."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; jobs that are not done fail."""
        with self._news:
            self._ends = True
            self._news.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def ready(self) -> bool:
        """Whether the model has written something, and the thread goes on."""
        return self._ready.is_set() and self._thread.is_alive()

    @property
    def running(self) -> int:
        """Jobs that are decoded."""
        return max(0, self._count() - self.waiting)

    @property
    def waiting(self) -> int:
        """Jobs that wait for a place."""
        queued = sum(group.scheduler.waiting for group in tuple(self._groups))
        return len(self._coming) + queued

    def submit(self, jobs: Sequence[Job], admitted: bool = False) -> None:
        """Take all of the jobs. Raises TooManyRequests if as many wait as may.

        Jobs that are `admitted` go on with a text whose place was granted before.
        """
        with self._news:
            full = not admitted and self._count() + len(jobs) > self.room
            if self._ends or full:
                raise TooManyRequests
            self._coming.extend(jobs)
            self._news.notify()

    def leave(self, jobs: Sequence[Job]) -> None:
        """Gives the places of jobs free that nobody waits for any more."""
        for job in jobs:
            job.left = True

    def _count(self) -> int:
        return len(self._coming) + sum(len(group.jobs) for group in tuple(self._groups))

    def _work(self) -> None:
        try:
            self._warm_up()
            while self._wait():
                for group in tuple(self._groups):
                    self._advance(group)
        finally:
            self._ends = True
            for job in [*self._coming, *(j for group in self._groups for j in group.jobs.values())]:
                job.tell(Failed(RuntimeError("The server stops.")))

    def _warm_up(self) -> None:
        """Writes two tokens. Whoever asks the server whether it is ready is told yes then."""
        ids = [self.task.end_ids[0] if self.task.end_ids else 0]
        most = 2 + self.task.published_rules().forced_tokens
        group = self._group([Job(self.task, ids, most, 0, 1, 0, 0, lambda event: None)], False)
        try:
            while group.jobs and not self._ends:
                group.advance()
        except Exception:  # it is not ready, and goes on: not each text need fail
            _LOGGER.exception("the model failed when it was tried first")
        else:
            self._ready.set()

    def _wait(self) -> bool:
        """Waits until there is something to do, and hands out what has come. False for the end."""
        with self._news:
            while not (self._ends or self._coming or self._groups):
                self._news.wait()
            coming, self._coming = self._coming, deque()
            kept = [job for job in coming if not job.left and not self._placed(job)]
            self._coming.extend(kept)
            if kept:  # the oldest batch takes no more, and makes room when it is done
                self._groups[0].is_open = False
            return not self._ends

    def _placed(self, job: Job) -> bool:
        """Whether there is a group for a job; the groups are few."""
        for group in self._groups:
            if group.is_open and group.scheduler.settings == job.settings:
                group.add(job)
                return True
        if len(self._groups) < _MOST_BATCHES:
            self._groups = [*self._groups, self._group([job], is_open=True)]
            return True
        return False

    def _group(self, jobs: Sequence[Job], is_open: bool) -> _Group:
        scheduler = Scheduler(
            self.task.engine,
            jobs[0].settings,
            self.task._engine_inputs,
            self.batch_size,
            longest=jobs[0].call.scheduler.longest,
            row_counts=row_counts(self.batch_size),
        )
        group = _Group(scheduler, is_open)
        for job in jobs:
            group.add(job)
        return group

    def _advance(self, group: _Group) -> None:
        try:
            with self.task.turns.of("serve", changes=False):
                group.advance()
        except Exception as error:
            self.failures += 1
            _LOGGER.warning("a step of %d texts failed: %r", len(group.jobs), error)
            self._part(group, error)
        if not group.scheduler.busy:
            self._groups = [other for other in self._groups if other is not group]

    def _part(self, group: _Group, error: Exception) -> None:
        """Decodes the jobs of a batch that failed again, in halves, from their prompts."""
        jobs = [job for job in group.jobs.values() if not job.left]
        self._groups = [other for other in self._groups if other is not group]
        if len(jobs) == 1:
            jobs[0].tell(Failed(error))
        elif jobs:
            half = len(jobs) // 2
            halves = [self._group(part, is_open=False) for part in (jobs[:half], jobs[half:])]
            self._groups = [*self._groups, *halves]


def row_counts(batch_size: int) -> tuple[int, ...]:
    """The numbers of rows that a batch may have: few, since each is a program, up to the size."""
    counts = [4**power for power in range(6)]
    return (*(count for count in counts if count < batch_size), batch_size)
