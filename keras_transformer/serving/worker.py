"""The thread that decodes for all requests of one model, in one running batch."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keras_transformer.distribution.reading import weights_for_reading
from keras_transformer.generation.samplers.samplers import RowRandom
from keras_transformer.generation.scheduler import Finished, GenerationRequest, Progress, Scheduler
from keras_transformer.serving.following import Leader, Orders
from keras_transformer.serving.limits import TooManyRequests
from keras_transformer.tasks.images.row_images import RowImages
from keras_transformer.tasks.media.sources import SourceRows
from keras_transformer.tasks.text.generating import GenerationCall

_LOGGER = logging.getLogger("keras_transformer.serving")
# Decoding steps between two checks for new text.
STEPS = 4
# Seconds after which the first of several processes sends the others an empty message, if no
# request has come.
_CALLS = 60.0
# Most batches decoded in turn, each with its own settings (such as a JSON Schema); others wait.
_MOST_BATCHES = 4


class Piece(NamedTuple):
    """New text of a job, in the order of its tokens."""

    text: str


class Done(NamedTuple):
    """The end of a job."""

    text: str  # the rest of the text
    token_ids: list[int]  # all new tokens, without the end token
    reason: str  # "stop" or "length", in OpenAI's terms
    stop: str | int | None = None  # the stop string or the token id that ended the text


class Failed(NamedTuple):
    """The end of a job that failed."""

    error: Exception


class Job:
    """One text to generate.

    Args:
        task: a `CausalLM`, or an `ImageToText` that takes conversations.
        ids: list of int, ids of the prompt.
        most: int, most new tokens.
        temperature: float; 0 takes the likeliest tokens.
        top_p: float, total probability of the likeliest tokens, among which tokens are drawn.
        seed: int.
        copy: int, index of the text among the samples of its prompt. `generate` with `num_samples`
            gives the same texts for the same seed.
        tell: function, called from the worker's thread with `Piece`s and finally with `Done` or
            `Failed`.
        images: the `RowImages` of a conversation, for an `ImageToText`.
        **options: options of `GenerationCall`: `stop`, `rules`, `constraint`, `guidance_scale`,
            `negative_prompts`.

    Raises:
        ValueError: if the model cannot take the prompt or an option.
    """

    def __init__(
        self, task: Any, ids: list[int], most: int, temperature: float, top_p: float, seed: int,
        copy: int, tell: Callable[[Piece | Done | Failed], None], images: Any = None,
        **options: Any,
    ):  # fmt: skip
        self.images = images
        sampler = RowRandom(cuts=temperature > 0 and top_p < 1)
        self.call = GenerationCall(
            task, [ids], further={}, max_new_tokens=most, sampler=sampler, seed=seed, **options
        )
        choices = (float(temperature), float(top_p))
        negative = (self.call.negative_prompts or [()])[0]
        self.request = GenerationRequest(ids, self.call.limits[0], seed, copy, choices, negative)
        self.settings = self.call.scheduler.settings
        self.tell = tell
        self.left = False  # whether the client has left
        self.begun: float | None = None  # time of the first token
        self._row = self.call._new_row(0)

    def push(self, event: Progress | Finished) -> bool:
        """Report new text to the client, and return whether a stop string ended the text."""
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
    """Jobs with equal settings, and the scheduler that decodes them."""

    def __init__(self, scheduler: Scheduler, is_open: bool, images: dict[int, Any], leader: Leader):
        self.scheduler, self.is_open, self.images = scheduler, is_open, images
        self.jobs: dict[int, Job] = {}
        self._leader, self._orders = leader, Orders([], [], [])

    def add(self, job: Job) -> None:
        index = self.scheduler.add(job.request)
        self.jobs[index], self.images[index] = job, job.images
        self._orders.add.append(job.request)

    def advance(self) -> None:
        """Run some decoding steps, after removing the jobs of clients that have left."""
        for index in [index for index, job in self.jobs.items() if job.left]:
            if self.scheduler.withdraw(index):
                del self.jobs[index], self.images[index]
                self._orders.withdraw.append(index)
        orders, self._orders = self._orders, Orders([], [], [])
        self._leader.tell(self.scheduler, orders)
        for sample in orders.stop:
            self.scheduler.stop(*sample)
        for event in self.scheduler.advance(STEPS):
            job = self.jobs[event.index]
            stopped = job.push(event)
            if isinstance(event, Finished):
                del self.jobs[event.index], self.images[event.index]
            elif stopped or job.left:
                if self._leader.is_heard:  # the others hear of it before the next steps
                    self._orders.stop.append((event.index, 0))
                else:
                    self.scheduler.stop(event.index)


class Worker:
    """Decodes the jobs of one model in its own thread.

    Jobs join and leave between calls of the decoding loop. Jobs with equal settings share a batch,
    whatever their temperatures and seeds. If a batch fails, its jobs are decoded again in halves,
    until the job that causes the failure is alone and fails alone.

    If processes share the weights, the others follow this one (`following.follow`).

    Args:
        task: a `CausalLM` with a tokenizer, or an `ImageToText` that takes conversations.
        batch_size: int, texts decoded together.
        waiting: int, further jobs that may wait.

    Example: see `make_api`, which makes a worker for each generating task.
    """

    def __init__(self, task: Any, batch_size: int = 32, waiting: int = 256):
        self.task, self.batch_size, self.room = task, batch_size, batch_size + waiting
        self.failures = 0  # number of failed batches
        self._groups: list[_Group] = []
        self._coming: deque[Job] = deque()
        self._news = threading.Condition()
        self._ends = False
        self._ready = threading.Event()
        self._leader = Leader()
        self._thread = threading.Thread(target=self._work, name="decoding", daemon=True)

    def start(self) -> None:
        """Start the thread. It generates a few tokens first, which compiles the programs."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Unfinished jobs fail."""
        with self._news:
            self._ends = True
            self._news.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def ready(self) -> bool:
        """Whether the model has generated something and the thread is running."""
        return self._ready.is_set() and self._thread.is_alive()

    @property
    def running(self) -> int:
        """Number of jobs being decoded."""
        return max(0, self._count() - self.waiting)

    @property
    def waiting(self) -> int:
        """Number of jobs that wait for a place."""
        queued = sum(group.scheduler.waiting for group in tuple(self._groups))
        return len(self._coming) + queued

    def submit(self, jobs: Sequence[Job], admitted: bool = False) -> None:
        """Accept all of the jobs. Raises TooManyRequests if too many would wait.

        If they are `admitted`, they continue texts that already had a place, and are not counted.
        """
        with self._news:
            full = not admitted and self._count() + len(jobs) > self.room
            if self._ends or full:
                raise TooManyRequests
            self._coming.extend(jobs)
            self._news.notify()

    def leave(self, jobs: Sequence[Job]) -> None:
        """Mark jobs that nobody waits for any more: they stop at the next step."""
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
            self._leader.end()
            for job in [*self._coming, *(j for group in self._groups for j in group.jobs.values())]:
                job.tell(Failed(RuntimeError("The server is stopping.")))

    def _warm_up(self) -> None:
        """Generate two tokens, after which the server reports that it is ready."""
        ids = [self.task.end_ids[0] if self.task.end_ids else 0]
        most = 2 + self.task.published_rules().forced_tokens
        images = no_images(self.task)
        job = Job(self.task, ids, most, 0, 1, 0, 0, lambda event: None, images)
        group = self._group([job], False)
        try:
            with weights_for_reading(self.task):
                while group.jobs and not self._ends:
                    group.advance()
        except Exception:  # the server is not ready, but goes on: other texts may succeed
            _LOGGER.exception("the model failed at its first attempt")
        else:
            self._ready.set()

    def _wait(self) -> bool:
        """Wait for work and distribute new jobs. Returns False when the worker ends."""
        with self._news:
            while not (self._ends or self._coming or self._groups):
                if not self._news.wait(_CALLS if self._leader.is_heard else None):
                    self._leader.call()
            coming, self._coming = self._coming, deque()
            kept = [job for job in coming if not job.left and not self._placed(job)]
            self._coming.extend(kept)
            if kept:  # close the oldest batch: once it is done, it makes room for the waiting jobs
                self._groups[0].is_open = False
            return not self._ends

    def _placed(self, job: Job) -> bool:
        """Add a job to a group with its settings or a new one; return False if all are taken."""
        for group in self._groups:
            if group.is_open and group.scheduler.settings == job.settings:
                group.add(job)
                return True
        if len(self._groups) < _MOST_BATCHES:
            self._groups = [*self._groups, self._group([job], is_open=True)]
            return True
        return False

    def _group(self, jobs: Sequence[Job], is_open: bool) -> _Group:
        images: dict[int, Any] = {}  # of the jobs, by the scheduler's numbers of their prompts
        own = jobs[0].images is not None
        scheduler = Scheduler(
            self.task.engine,
            jobs[0].settings,
            self.task.generator.format.engine_inputs,
            self.batch_size,
            longest=jobs[0].call.scheduler.longest,
            further=SourceRows.by_name(self.task, images) if own else None,
            row_counts=row_counts(self.batch_size),
        )
        group = _Group(scheduler, is_open, images, self._leader)
        for job in jobs:
            group.add(job)
        return group

    def _advance(self, group: _Group) -> None:
        try:
            with (
                self.task.weights_lock.hold("serve", changes=False),
                weights_for_reading(self.task),
            ):
                group.advance()
        except Exception as error:
            self.failures += 1
            _LOGGER.warning("a step of %d texts failed: %r", len(group.jobs), error)
            self._part(group, error)
        if not group.scheduler.busy:
            self._groups = [other for other in self._groups if other is not group]

    def _part(self, group: _Group, error: Exception) -> None:
        """Decode the jobs of a failed batch again, in halves, from their prompts."""
        jobs = [job for job in group.jobs.values() if not job.left]
        self._groups = [other for other in self._groups if other is not group]
        if len(jobs) == 1:
            jobs[0].tell(Failed(error))
        elif jobs:
            half = len(jobs) // 2
            halves = [self._group(part, is_open=False) for part in (jobs[:half], jobs[half:])]
            self._groups = [*self._groups, *halves]


def no_images(task: Any) -> RowImages | None:
    """Return the images of a text without any; None if the task reads texts alone."""
    return RowImages() if getattr(task, "takes_conversations", False) else None


def row_counts(batch_size: int) -> tuple[int, ...]:
    """Return the allowed numbers of rows in a batch: few, since each needs a compiled program."""
    counts = [4**power for power in range(6)]
    return (*(count for count in counts if count < batch_size), batch_size)
