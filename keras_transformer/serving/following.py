"""Processes that decode together with the one that serves, on PyTorch.

Processes that share the work of layers (`distribution.setup(model=...)`) have to make the same
steps. The first one has the clients and decides; before each call of the decoding loop it tells the
others which prompts join and leave which batch, as JSON and arrays. From these they make the same
schedulers, with the same random numbers.
"""

import dataclasses
import itertools
import weakref
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.distribution.processes import gather_arrays, gather_values
from keras_transformer.distribution.reading import weights_for_reading
from keras_transformer.distribution.spread import shared_by
from keras_transformer.generation import TokenAutomaton
from keras_transformer.generation.engine import Settings
from keras_transformer.generation.rules.rules import Rules
from keras_transformer.generation.samplers.samplers import RowRandom
from keras_transformer.generation.scheduler import GenerationRequest, Scheduler

_AUTOMATON = tuple(field.name for field in dataclasses.fields(TokenAutomaton))


class Orders(NamedTuple):
    """Changes of a batch before a call of its decoding loop."""

    add: list[GenerationRequest]
    withdraw: list[int]  # prompts that are not in the batch yet
    stop: list[tuple[int, int]]  # prompt and sample

    def apply(self, scheduler: Scheduler) -> None:
        """Change the batch of a scheduler."""
        for request in self.add:
            scheduler.add(request)
        for index in self.withdraw:
            scheduler.withdraw(index)
        for sample in self.stop:
            scheduler.stop(*sample)


class Leader:
    """The process that decides, as the others hear it; nobody listens to a single process."""

    def __init__(self) -> None:
        self.is_heard = shared_by() > 1
        self._numbers: weakref.WeakKeyDictionary[Scheduler, int] = weakref.WeakKeyDictionary()
        self._count = itertools.count()

    def tell(self, scheduler: Scheduler, orders: Orders) -> None:
        """Tell the others to change a batch, and to run the decoding loop once."""
        if not self.is_heard:
            return
        told: dict[str, Any] = {"orders": orders}
        automaton = None
        if scheduler not in self._numbers:
            self._numbers[scheduler] = next(self._count)
            told["settings"], automaton = _described(scheduler.settings)
            told["longest"] = scheduler.longest
        _send({**told, "batch": self._numbers[scheduler]}, automaton)

    def call(self) -> None:
        """Let the others know that this process is there. Their patience is half an hour."""
        if self.is_heard:
            _send({})

    def end(self) -> None:
        """Let the others end."""
        if self.is_heard:
            _send(None)


def follow(task: Any, batch_size: int, row_counts: tuple[int, ...], steps: int) -> None:
    """Decode what the first process decodes, until it ends.

    Args:
        task: the `CausalLM`, whose weights the processes share.
        batch_size: int, of a batch.
        row_counts: ints, numbers of rows of a batch.
        steps: int, steps of a call of the decoding loop.
    """
    schedulers: dict[int, Scheduler] = {}
    with weights_for_reading(task):  # cut at once, as in the first process
        pass
    while (told := gather_values(None)[0]) is not None:
        if not told:
            continue
        if "settings" in told:
            schedulers[told["batch"]] = Scheduler(
                task.engine,
                _settings(told["settings"]),
                task.generator.format.engine_inputs,
                batch_size,
                longest=told["longest"],
                row_counts=row_counts,
            )
        scheduler = schedulers[told["batch"]]
        add, *others = told["orders"]
        Orders([GenerationRequest(*each) for each in add], *others).apply(scheduler)
        try:
            with weights_for_reading(task):
                for _ in scheduler.advance(steps):
                    pass
        except Exception:  # as in the first process, which makes new batches of these prompts
            del schedulers[told["batch"]]
        else:
            if not scheduler.busy:
                del schedulers[told["batch"]]


def _send(told: dict | None, automaton: TokenAutomaton | None = None) -> None:
    gather_values(told)
    for name in _AUTOMATON if automaton is not None else ():
        gather_values(list(getattr(automaton, name).shape))
        gather_arrays(getattr(automaton, name).ravel())


def _described(settings: Settings) -> tuple[dict[str, Any], TokenAutomaton | None]:
    """Return settings of this server as JSON, and the automaton of their rules apart."""
    values = {each.name: getattr(settings, each.name) for each in dataclasses.fields(settings)}
    rules, automaton = values.pop("rules"), None
    values["sampler"] = settings.sampler.cuts
    if rules is not None:
        automaton = rules.automaton
        each = {field.name: getattr(rules, field.name) for field in dataclasses.fields(rules)}
        values["rules"] = {**each, "automaton": automaton is not None}
    return values, automaton


def _settings(values: dict[str, Any]) -> Settings:
    rules = values.get("rules")
    if rules is not None:
        automaton = _automaton() if rules["automaton"] else None
        rules = Rules(**{**rules, "automaton": automaton})
    return Settings(**{**values, "sampler": RowRandom(cuts=values["sampler"]), "rules": rules})


def _automaton() -> TokenAutomaton:
    nothing, arrays = np.zeros(0, "int32"), []
    for name in _AUTOMATON:
        shape = gather_values(None)[0]
        array = gather_arrays(nothing)[0].reshape(shape)
        arrays.append(array.astype("bool") if name == "accepting" else array)
    return TokenAutomaton(*arrays)
