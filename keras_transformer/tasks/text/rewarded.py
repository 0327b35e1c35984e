"""Reinforcement learning of a language model: sample, reward, and train on what was sampled."""

import copy
import dataclasses
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.generation.engine import Engine
from keras_transformer.generation.samplers import samplers
from keras_transformer.generation.samplers.recorded import RecordedRandom
from keras_transformer.generation.samplers.samplers import COLD, Random
from keras_transformer.kernels.programs import compile_function, to_tensor
from keras_transformer.models.runtime.quantized import refuse_training
from keras_transformer.support.checking import check_int, check_seed, describe
from keras_transformer.support.sizes import RoundedSizes, pad_rows, round_size
from keras_transformer.tasks.data.prompts import prompt_rows
from keras_transformer.tasks.data.text import tokenizer_of
from keras_transformer.tasks.text.generating import GenerationCall, Sample
from keras_transformer.training.log_probabilities import make_reference
from keras_transformer.training.policy_training import PolicyTrainer
from keras_transformer.training.reinforcement import GRPO, PolicyLoss
from keras_transformer.training.rewards import Rewards

_MOST = 2**31 - 1
_SHORT = 16  # below it a multiple of 4 saves much of the work
_LEAST_SHARE = 4  # a batch whose completions are mostly skipped shrinks to this part at most


class _Rows(NamedTuple):
    """Sampled completions as arrays, a row for each."""

    ids: np.ndarray  # int32 (rows, length), prompt and completion except the last token
    mask: np.ndarray  # bool (rows, length)
    targets: np.ndarray  # int32 (rows, length), the next tokens
    counted: np.ndarray  # float32 (rows, length), 1 where the next token is one of the completion
    sampled: np.ndarray  # float32 (rows, length), log-probabilities when sampled
    counts: np.ndarray  # int (rows,), tokens of completions


class RewardedRun:
    """The steps of `CausalLM.fit_rewards`, for whose arguments see there."""

    def __init__(
        self, task, prompts, rewards, *, loss, group_size, batch_size, steps, passes, update_rows,
        reward_weights, reward_seconds, reference, sampler, seed, **generation,
    ):  # fmt: skip
        refuse_training(task)
        self.task = task
        self.loss = GRPO() if loss is None else loss
        if not isinstance(self.loss, PolicyLoss):
            raise ValueError(
                "`loss` must be a PolicyLoss, such as kt.training.GRPO(), received "
                f"{describe(loss)}."
            )
        self.rewards = Rewards(rewards, reward_weights, reward_seconds)
        self.prompts, self.columns = prompt_rows(prompts)
        self.ids = _prompt_ids(task, self.prompts)
        self.group_size = check_int("group_size", group_size, 2, _MOST)
        self.batch_size = min(check_int("batch_size", batch_size, 1, _MOST), len(self.ids))
        per_pass = -(-len(self.ids) // self.batch_size)
        self.steps = check_int("steps", steps, 1, _MOST, none=True) or per_pass
        self.passes = check_int("passes", passes, 1, _MOST)
        rows = self.batch_size * self.group_size
        update_rows = check_int("update_rows", update_rows, 1, _MOST, none=True)
        self.updates = 1 if update_rows is None else -(-rows // update_rows)
        self.update_rows = -(-rows // self.updates)
        seed = check_seed("seed", seed, none=True)
        self.seed = int(np.random.randint(2**31)) if seed is None else seed
        self.sampler = _recorded(sampler)
        self.generation = {**generation, "guidance_scale": 1.0}
        self.generator = copy.copy(task.generator)
        self.generator.engine = Engine(task.backbone, RoundedSizes)
        call = self._call(range(len(self.ids)), 0)  # all prompts and options are checked
        self.longest = max(call.limits)
        self.most = max(len(ids) + limit for ids, limit in zip(self.ids, call.limits, strict=True))
        self.trainer = PolicyTrainer(task, self.loss, self.sampler.temperature)
        self._score = None
        if self.loss.beta:
            self._score = _compiled(make_reference(task, reference), self.sampler.temperature)

    def fit(self, verbose, callbacks) -> keras.callbacks.History:
        """Run all steps; a step is an epoch for callbacks, and an update is a batch.

        The callbacks' model is the task.
        """
        task = self.task
        if not isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = keras.callbacks.CallbackList(
                callbacks, add_history=True, add_progbar=verbose != 0, verbose=verbose,
                epochs=self.steps, steps=self.updates * self.passes, model=task,
            )  # fmt: skip
        task.stop_training, task.run_values = False, self._values()
        logs: dict[str, float] = {}
        try:
            with task.weights_lock.trainer:
                callbacks.on_train_begin()
                for step in range(task._initial_epoch or 0, self.steps):
                    callbacks.on_epoch_begin(step)
                    logs = self._step(step, callbacks)
                    callbacks.on_epoch_end(step, logs)
                    if task.stop_training:
                        break
                task.optimizer.finalize_variable_values(task.trainable_weights)
                callbacks.on_train_end(logs)
        finally:
            del task.run_values
        return task.history

    def _step(self, step: int, callbacks) -> dict[str, float]:
        """Sample, reward and train once; return the logs."""
        places = self.places(step)
        samples = self.sample(places, step)
        rewards, by_function = self._rewarded(places, samples)
        flat = [sample for group in samples for sample in group]
        rows = self._arrays(places, samples)
        logs = _logs(self.rewards, rewards, by_function, flat)
        reference = None if self._score is None else self._reference(rows)
        if self.loss.beta and self.loss.kl == "reward":
            divergence = ((rows.sampled - reference) * rows.counted).sum(axis=1, dtype="float64")
            logs["kl"] = float(divergence.sum() / max(rows.counts.sum(), 1))
            rewards = rewards - self.loss.beta * divergence.reshape(rewards.shape)
        advantages = self.loss.advantages(rewards)
        logs["skipped_groups"] = float((advantages == 0).all(axis=1).sum())
        found = []
        batches = self.batches(rows, advantages.reshape(-1), reference, step)
        for number, batch in enumerate(batches):
            callbacks.on_train_batch_begin(number)
            found.append(self.trainer.train_on_batch(*batch, return_dict=True))
            callbacks.on_train_batch_end(number, found[-1])
        names = ["loss", *(metric.name for metric in self.trainer.term_metrics)]
        means = {n: float(np.mean([x[n] for x in found])) if found else 0.0 for n in names}
        return {**means, **logs}

    def places(self, step: int) -> np.ndarray:
        """Return the indices of the prompts of a step; each pass over all prompts is shuffled."""
        count, first = len(self.ids), step * self.batch_size
        wanted = np.arange(first, first + self.batch_size)
        orders = {
            each: np.random.default_rng((self.seed, 0, each)).permutation(count)
            for each in np.unique(wanted // count).tolist()
        }
        return np.array([orders[each // count][each % count] for each in wanted.tolist()])

    def sample(self, places: Sequence[int], step: int) -> list[list[Sample]]:
        """Return `group_size` samples for each prompt, which depend on `seed` and `step` only."""
        return self._call(places, step).samples()

    def _call(self, places: Sequence[int], step: int) -> GenerationCall:
        seed = int(np.random.SeedSequence((self.seed, 1, step)).generate_state(1, "uint64")[0])
        options = {"batch_size": self.batch_size, **self.generation}
        return GenerationCall(
            self.task, [self.ids[i] for i in places], further={}, sampler=self.sampler,
            num_samples=self.group_size, seed=seed, generator=self.generator, **options,
        )  # fmt: skip

    def _rewarded(self, places, samples) -> tuple[np.ndarray, np.ndarray]:
        """Return the weighted rewards, `(prompts, group_size)`, and those of each function."""
        texts = self.task.tokenizer is not None
        rows = [
            (
                self.prompts[place],
                sample.completion.text if texts else sample.completion.token_ids,
                self.columns[place],
            )
            for place, group in zip(places, samples, strict=True)
            for sample in group
        ]
        by_function = self.rewards(rows)
        total = by_function @ np.asarray(self.rewards.weights)
        return total.reshape(-1, self.group_size), by_function

    def _arrays(self, places, samples) -> _Rows:
        whole, first, sampled = [], [], []
        for place, group in zip(places, samples, strict=True):
            for sample in group:
                whole.append(self.ids[place] + list(sample.drawn_ids))
                first.append(len(self.ids[place]) - 1)
                sampled.append(sample.log_probabilities)
        pad_id, inputs = self.task.pad_id, [row[:-1] for row in whole]
        ids, mask = pad_rows(inputs, pad_id, self._length(max(map(len, inputs))))
        targets = np.full_like(ids, pad_id)
        counted, values = np.zeros((2, *ids.shape), "float32")
        for i, row in enumerate(whole):
            targets[i, : len(row) - 1] = row[1:]
            counted[i, first[i] : len(row) - 1] = 1.0
            values[i, first[i] : len(row) - 1] = sampled[i]
        return _Rows(ids, mask, targets, counted, values, counted.sum(axis=1).astype(int))

    def _length(self, longest: int) -> int:
        """Return the length to pad to, in multiples of 4 for short texts.

        It is never more than the inputs of the longest text that the run can sample.
        """
        length = round_size(longest) if longest > _SHORT else -(-longest // 4) * 4
        return min(length, self.most - 1)

    def _reference(self, rows: _Rows) -> np.ndarray:
        """Return the log-probabilities of the reference, with batches of the size of updates."""
        found = []
        for first in range(0, len(rows.ids), self.update_rows):
            chosen = np.arange(first, min(first + self.update_rows, len(rows.ids)))
            chosen = _filled(chosen, self.update_rows)
            inputs = {"token_ids": rows.ids[chosen], "padding_mask": rows.mask[chosen]}
            arrays = (inputs, rows.targets[chosen], rows.counted[chosen])
            tensors = keras.tree.map_structure(to_tensor, arrays)
            found.append(ops.convert_to_numpy(self._score(*tensors)))
        return np.concatenate(found)[: len(rows.ids)]

    def batches(self, rows: _Rows, advantages, reference, step: int) -> Iterator[tuple]:
        """Yield the batches of a step's updates.

        Groups without a difference in reward cannot change the weights and are left out, unless
        the loss has a divergence. The sizes of batches depend on nothing but the step, so that a
        run that resumes repeats them.
        """
        weights = self.loss.token_weights(rows.counts, self.longest) * self.updates
        all_rows = np.arange(len(rows.ids))
        kept = all_rows if self.loss.kl_in_loss else np.flatnonzero(advantages)
        if not len(kept):
            return
        size, most = self.update_rows, -(-len(kept) // self.updates)
        while size % 2 == 0 and size // 2 >= most and size * _LEAST_SHARE > self.update_rows * 2:
            size //= 2
        for each in range(self.passes):
            order = np.random.default_rng((self.seed, 2, step, each)).permutation(kept)
            for part in np.array_split(order, self.updates):
                chosen = _filled(part, size)
                used = (np.arange(size) < len(part)).astype("float32")
                inputs = {"token_ids": rows.ids[chosen], "padding_mask": rows.mask[chosen]}
                values = {
                    "targets": rows.targets[chosen],
                    "sampled": rows.sampled[chosen],
                    "advantages": advantages[chosen],
                    "weights": weights[chosen],
                    "reference": (rows.sampled if reference is None else reference)[chosen],
                }
                yield inputs, values, rows.counted[chosen] * used[:, None]

    def _values(self) -> dict[str, Any]:
        """Return what must be equal to resume the run, see `ResumableRun`."""
        content = zlib.crc32(repr((self.ids, self.columns)).encode())
        loss = {"name": type(self.loss).__name__, **dataclasses.asdict(self.loss)}
        generation = {name: repr(value) for name, value in self.generation.items() if value}
        return {
            "prompts": {"rows": len(self.ids), "content": content},
            "loss": loss,
            "rewards": {"names": self.rewards.names, "weights": self.rewards.weights},
            "sampling": {"sampler": repr(self.sampler), "seed": self.seed, **generation},
            "group_size": self.group_size,
            "batch_size": self.batch_size,
            "passes": self.passes,
            "updates": self.updates,
        }


def _filled(chosen: np.ndarray, size: int) -> np.ndarray:
    """Repeat the first index, or 0, up to `size` indices."""
    return np.concatenate([chosen, np.full(size - len(chosen), chosen[0] if len(chosen) else 0)])


def _compiled(reference, temperature: float):
    def score(inputs, targets, mask):
        return reference.log_probabilities(inputs, targets, mask, temperature)

    return compile_function(score, reference.task)


def _recorded(sampler) -> RecordedRandom:
    """Return the sampler that keeps log-probabilities, of a `Random` sampler or its name."""
    sampler = samplers.get(sampler)
    if type(sampler) not in (Random, RecordedRandom) or sampler.temperature < COLD:
        raise ValueError(
            "`sampler` must draw at random: kt.generation.Random(temperature=..., top_p=...), or "
            f"one of the names 'random', 'top_k' and 'top_p'. Received {sampler}."
        )
    return RecordedRandom(*dataclasses.astuple(sampler))


def _prompt_ids(task, prompts: list) -> list[list[int]]:
    """Return the token ids of prompts: texts, lists of ids, or lists of messages."""
    if not any(_is_chat(prompt) for prompt in prompts):
        return task.generator.prompt_ids(prompts)[0]
    wrong = next((i for i, prompt in enumerate(prompts) if not _is_chat(prompt)), None)
    if wrong is not None:
        raise ValueError(
            f"`prompts[{wrong}]` must be a list of messages as other prompts are, received "
            f"{describe(prompts[wrong])}."
        )
    return [tokenizer_of(task).encode_chat(prompt) for prompt in prompts]


def _is_chat(prompt: Any) -> bool:
    return isinstance(prompt, (list, tuple)) and bool(prompt) and isinstance(prompt[0], dict)


def _logs(rewards: Rewards, total, by_function, samples: list[Sample]) -> dict[str, float]:
    """Return the logs of a step's samples."""
    counts = np.array([len(sample.drawn_ids) for sample in samples])
    reasons = [sample.completion.finish_reason for sample in samples]
    logs = {"reward": total.mean(), "reward_std": total.std(ddof=1)}
    if len(rewards.names) > 1:
        means = by_function.mean(axis=0)
        logs |= {f"reward/{name}": mean for name, mean in zip(rewards.names, means, strict=True)}
    logs |= {
        "entropy": np.concatenate([sample.entropies for sample in samples]).mean(),
        "length": counts.mean(),
        "length_of_ended": _mean(counts[[reason != "length" for reason in reasons]]),
        "cut": np.mean([reason == "length" for reason in reasons]),
    }
    return {name: float(value) for name, value in logs.items()}


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0
