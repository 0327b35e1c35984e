"""Training on preferences: of language models against a reference, and of reward models."""

import contextlib
import hashlib
import os
from pathlib import Path

import keras
import numpy as np
from keras import ops

from keras_transformer.distribution.replicas import part_of_mean
from keras_transformer.kernels.gradients import without_gradients
from keras_transformer.kernels.programs import compile_function, to_tensor
from keras_transformer.models.runtime.read_write_lock import ReadWriteLock
from keras_transformer.models.runtime.runtime import Runtime, TrainingLoss
from keras_transformer.support.files import SafetensorsFile, has_file, write_safetensors
from keras_transformer.training.log_probabilities import (
    Reference,
    WithoutAdapters,
    token_log_probabilities,
)
from keras_transformer.training.lora import is_adapted
from keras_transformer.training.losses.preference_losses import (
    BradleyTerry,
    PreferenceLoss,
    Preferred,
    Scores,
)

_FILE_VERSION = "1"
_MOST_FILES = 100  # each of 4 bytes for a completion


class PreferenceTrainer(Runtime):
    """Trains a task on batches of preferences, with the task's optimizer.

    A batch is a dict `rows` with the inputs of the task, in which each chosen text is followed by
    the rejected one. For a language model it also has `targets` and `completion`, the mask of the
    targets that belong to completions; beside `rows` there may be `reference`, the reference's
    log-probabilities of these completions, `labels`, and `mismatched`, rows with completions of
    other prompts.

    Dropout is off, so that the model and its reference differ only by what was learned.

    Args:
        task: a compiled task.
        loss: a `PreferenceLoss`.
        reference: a `Reference`; None if the loss reads none, or the batches hold its values.
    """

    def __init__(self, task, loss: PreferenceLoss, reference: Reference | None = None):
        super().__init__(name=f"{task.name}_preferences", dtype=task.dtype_policy)
        self.task = task
        self.preference_loss = loss
        self.reference = reference
        # Tracked: a run that is resumed restores the frozen weights too.
        self.frozen = reference.task if reference is not None and reference.variables else None
        self.rewards = {
            name: keras.metrics.Mean(f"{name}_reward") for name in ("chosen", "rejected")
        }
        self.accuracy = keras.metrics.Mean("accuracy") if loss.paired else None
        self.divergence = None if loss.paired else keras.metrics.Mean("divergence")
        self.built = True
        self.compile(
            task.optimizer,
            jit_compile=task.jit_compile,
            run_eagerly=task.run_eagerly,
            steps_per_execution=task.steps_per_execution,
            auto_scale_loss=False,  # the task's optimizer does it already if it should
        )

    @property
    def weights_lock(self) -> ReadWriteLock:
        return self.task.weights_lock

    # The reference's variables are state that a step only reads.
    trainable_variables = property(lambda self: self.task.trainable_variables)
    trainable_weights = property(lambda self: self.task.trainable_weights)
    non_trainable_variables = property(
        lambda self: [*self.task.non_trainable_variables, *self._frozen_variables()]
    )
    non_trainable_weights = property(
        lambda self: [*self.task.non_trainable_weights, *self._frozen_variables()]
    )

    def _frozen_variables(self) -> list:
        return [] if self.frozen is None else self.frozen.variables

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call  # the task recomputes its blocks one by one

    def call(self, inputs, training: bool = False):
        return self.task(_inputs(inputs["rows"]), training=training)

    def get_metrics_result(self) -> dict:
        """Return the loss, the mean rewards, and the difference of the latter."""
        logs = super().get_metrics_result()
        margin = logs["chosen_reward"] - logs["rejected_reward"]
        return {**logs, "margin": margin}

    def training_loss(self) -> TrainingLoss:
        reward = isinstance(self.preference_loss, BradleyTerry)
        return (_RewardLoss if reward else _CompletionLoss)(self)


class _PreferredLoss(TrainingLoss):
    """The mean of a loss over pairs or labelled rows, with the metrics of their rewards."""

    def preferred(self, states, x) -> Preferred:
        raise NotImplementedError

    def weight(self, x, y, sample_weight):
        rows = ops.shape(x["rows"]["token_ids"])[0]
        return ops.cast(rows // 2 if self.model.preference_loss.paired else rows, "float32")

    def loss(self, states, x, y, sample_weight, training):
        losses, rewards = self.preferred(states, x)
        model = self.model
        if model.accuracy is not None:
            chosen, rejected = rewards[:, 0], rewards[:, 1]
            model.accuracy.update_state(ops.cast(chosen > rejected, "float32"))
            model.rewards["chosen"].update_state(chosen)
            model.rewards["rejected"].update_state(rejected)
        else:
            labels = ops.cast(x["labels"], "float32")
            model.rewards["chosen"].update_state(rewards, sample_weight=labels)
            model.rewards["rejected"].update_state(rewards, sample_weight=1.0 - labels)
            model.divergence.update_state(states["divergence"])
        return part_of_mean(ops.mean(losses), self.weight(x, y, sample_weight))


class _RewardLoss(_PreferredLoss):
    """The loss of a task that gives each text a number."""

    def states(self, x, sample_weight, training):
        return self.model.task(_inputs(x["rows"]), training=False)

    def preferred(self, states, x):
        return self.model.preference_loss(ops.reshape(states, (-1, 2)))


class _CompletionLoss(_PreferredLoss):
    """The loss of a language model."""

    def states(self, x, sample_weight, training):
        model, loss = self.model, self.model.preference_loss
        reference, divergence = x.get("reference"), 0.0
        if loss.reads_reference and reference is None:
            frozen = model.reference
            reference = _completion_sums(frozen.log_probabilities(*_scored(x["rows"])))
        if "mismatched" in x:
            scored = _scored(x["mismatched"])
            with without_gradients():
                now = _completion_sums(token_log_probabilities(model.task, *scored))
            then = _completion_sums(model.reference.log_probabilities(*scored))
            divergence = ops.maximum(ops.mean(ops.stop_gradient(now - then)), 0.0)
        scores = completion_scores(model.task, x["rows"], loss.learns_prompts)
        return {"scores": scores._asdict(), "reference": reference, "divergence": divergence}

    def preferred(self, states, x):
        loss, reference = self.model.preference_loss, states["reference"]
        if not loss.paired:
            scores = Scores(**states["scores"])
            return loss(scores, reference, x["labels"], states["divergence"])

        def pairs(values):
            return None if values is None else ops.reshape(values, (-1, 2))

        scores = Scores(**{name: pairs(value) for name, value in states["scores"].items()})
        return loss(scores, pairs(reference))


def completion_scores(task, rows: dict, with_prompts: bool = False) -> Scores:
    """Compute `Scores` of the rows of a batch, each `(rows,)`; see `PreferenceTrainer`."""
    inputs, targets, completion = _scored(rows)
    length = ops.sum(completion, axis=1)
    if not with_prompts:
        found = token_log_probabilities(task, inputs, targets, completion)
        return Scores(_completion_sums(found), length)
    real = ops.cast(inputs["padding_mask"], "float32")
    text = ops.pad(real[:, 1:], [(0, 0), (0, 1)])  # each real token but the first is a target
    found = token_log_probabilities(task, inputs, targets, text)
    return Scores(
        _completion_sums(found * completion), length, _completion_sums(found), ops.sum(text, axis=1)
    )


def _inputs(rows: dict) -> dict:
    return {name: x for name, x in rows.items() if name not in ("targets", "completion")}


def _scored(rows: dict) -> tuple:
    """Return the inputs, the targets, and the float mask of those in completions."""
    return _inputs(rows), rows["targets"], ops.cast(rows["completion"], "float32")


def _completion_sums(log_probabilities):
    return ops.sum(log_probabilities, axis=1)


def reference_totals(task, dataset) -> np.ndarray:
    """Return the log-probability of each completion of a dataset, computed once or read from disk.

    The task computes as it is before the training: without its adapters, if it has any. The file
    is in `keras_transformer/references` in `$XDG_CACHE_HOME` or `~/.cache`, and named by the data
    and the weights, so another task, tokenizer or text has another one. The latest 100 files are
    kept.

    Args:
        task: a language model.
        dataset: `BucketedDataset` of pairs, as for `PreferenceTrainer`.

    Returns:
        float32 `(rows, 2)`.

    Raises:
        OSError: if the file cannot be written.
        ValueError: if the file is damaged.
    """
    frozen = WithoutAdapters(task) if is_adapted(task.backbone) else Reference(task)
    path = _folder() / f"{_fingerprint(task, dataset)}.safetensors"
    if has_file(path):
        return SafetensorsFile(path)["totals"]

    def totals(rows):
        return _completion_sums(frozen.log_probabilities(*_scored(rows)))

    compiled = compile_function(totals, task)
    found = []
    for place in range(len(dataset)):
        (batch,) = dataset[place]
        rows = keras.tree.map_structure(to_tensor, batch["rows"])
        found.append(ops.convert_to_numpy(compiled(rows)).reshape(-1, 2))
    found = dataset.restore_order(np.concatenate(found).astype("float32"))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_safetensors(path, {"totals": found})
    _remove_old(path.parent)
    return found


def _remove_old(folder: Path) -> None:
    with contextlib.suppress(OSError):  # such as a file that another process has just removed
        files = sorted(folder.glob("*.safetensors"), key=lambda file: file.stat().st_mtime_ns)
        for file in files[:-_MOST_FILES]:
            file.unlink()


def _folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home, "keras_transformer", "references")


def _fingerprint(task, dataset) -> str:
    """Return a digest of the frozen weights, how they are computed with, and the data."""
    digest = hashlib.sha256(_FILE_VERSION.encode())
    digest.update(f"{task.dtype_policy.name} {task.backbone.config}".encode())
    for variable in task.weights:
        if not variable.name.startswith("lora_"):  # which the reference does without
            digest.update(np.ascontiguousarray(ops.convert_to_numpy(variable)).tobytes())
    for array in dataset.content():
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:32]
