"""`fit_preferences` of language models and reward models."""

import contextlib
from typing import Any

import keras
import numpy as np

from keras_transformer.data import BucketedDataset
from keras_transformer.data.dataset import check_batch
from keras_transformer.data.preferences import Preferences, read_preferences
from keras_transformer.models.runtime.quantized import refuse_training
from keras_transformer.support.checking import check_choice, check_seed, describe
from keras_transformer.tasks.data.arguments import checked_options
from keras_transformer.tasks.data.preferences import (
    CompletionBatches,
    TextBatches,
    completion_batches,
    text_batches,
)
from keras_transformer.tasks.data.text import take_max_length
from keras_transformer.training.log_probabilities import make_reference
from keras_transformer.training.losses.preference_losses import DPO, BradleyTerry, PreferenceLoss
from keras_transformer.training.preferences import PreferenceTrainer, reference_totals

REFERENCES = ("auto", "adapters", "copy", "cached")


def preference_dataset(
    task, x: Any, first: Any, second: Any, loss: PreferenceLoss | None, **options: Any
) -> BucketedDataset:
    """Make the batches of `fit_preferences`; see `CausalLM.make_preference_dataset`."""
    loss = _default_loss(task) if loss is None else loss
    _check_loss(task, loss, "auto")
    rows = read_preferences(x, first, second)
    if loss.paired and rows.labels is not None:
        raise ValueError(
            f"{type(loss).__name__} learns from pairs, received completions with labels. Give "
            "chosen and rejected completions, or loss=KTO()."
        )
    if not loss.paired and rows.labels is None:
        rows = _unpaired(rows)
    if not loss.paired and options.get("batch_size") == 1:
        raise ValueError("KTO compares the rows of a batch: give a `batch_size` of at least 2.")
    max_length = take_max_length(task, options, at_least=2)
    return _kinds(loss)[1](task, rows, max_length, **options)


def fit_preferences(
    task,
    x: Any,
    first: Any,
    second: Any,
    loss: PreferenceLoss | None,
    reference: Any,
    validation_data: Any,
    *,
    batch_size: int | None,
    max_length: int | None,
    shuffle: bool,
    seed: int | None,
    **options: Any,
) -> keras.callbacks.History:
    """Train a task on preferences; see `CausalLM.fit_preferences`."""
    refuse_training(task)  # before any text is tokenized
    task._check_precision()
    loss = _default_loss(task) if loss is None else loss
    _check_loss(task, loss, reference)
    options = checked_options(options)
    batches = {"max_length": max_length, **check_batch(batch_size)}
    batches.pop("batch_tokens")
    seed = check_seed("seed", seed, none=True)
    seed = int(np.random.randint(2**31)) if seed is None else seed
    dataset = _batches(task, x, first, second, loss, **batches, shuffle=shuffle, seed=seed)
    if validation_data is not None:
        given = validation_data if isinstance(validation_data, tuple) else (validation_data,)
        given = (*given, None, None)[:3]
        options["validation_data"] = _batches(task, *given, loss, **batches)

    frozen, reading = None, contextlib.nullcontext()
    if loss.reads_reference and isinstance(reference, str) and reference == "cached":
        for some in (dataset, options.get("validation_data")):
            if some is not None:
                some.make_batch.reference = reference_totals(task, some)
    elif loss.reads_reference:
        frozen = make_reference(task, reference)
        if frozen.task is not task:
            reading = frozen.task.weights_lock.hold("fit_preferences", changes=False)
    trainer = PreferenceTrainer(task, loss, frozen)
    with reading:
        trainer._expect("train", dataset)
        return trainer.fit(dataset, shuffle=False, **options)  # the dataset shuffles itself


def _batches(task, x, first, second, loss, **options) -> BucketedDataset:
    if not isinstance(x, BucketedDataset):
        return preference_dataset(task, x, first, second, loss, **options)
    kind, batches = _kinds(loss)[0], x.make_batch
    if not isinstance(batches, kind) or batches.paired != loss.paired:
        raise ValueError(
            "A data set for `fit_preferences` is made by `make_preference_dataset` with the same "
            f"`loss`, {loss}."
        )
    batches.reference = None  # an earlier call may have set it
    return x


def _kinds(loss: PreferenceLoss) -> tuple:
    """Return the class of the batches of a loss, and the function that makes a data set of them."""
    if isinstance(loss, BradleyTerry):
        return TextBatches, text_batches
    return CompletionBatches, completion_batches


def _unpaired(rows: Preferences) -> Preferences:
    """Return pairs as labelled completions: first the chosen ones, then the rejected ones."""
    count = len(rows.prompts)
    completions = [text for side in rows.completions for text in side]
    return Preferences(rows.prompts * 2, (completions,), [True] * count + [False] * count)


def _is_reward_model(task) -> bool:
    return not hasattr(task.head, "log_probabilities")


def _default_loss(task) -> PreferenceLoss:
    return BradleyTerry() if _is_reward_model(task) else DPO()


def _check_loss(task, loss: Any, reference: Any) -> None:
    rewards = _is_reward_model(task)
    if not isinstance(loss, PreferenceLoss) or isinstance(loss, BradleyTerry) != rewards:
        known = (
            "BradleyTerry()" if rewards else "DPO(), IPO(), SLiC(), CPO(), SimPO(), ORPO(), KTO()"
        )
        raise ValueError(
            f"The `loss` of a {type(task).__name__} must be one of {known} of "
            f"keras_transformer.training, received {describe(loss)}."
        )
    if rewards and (task.num_classes != 1 or task.multi_label):
        raise ValueError(
            f"A reward model gives each text one number, but the task has {task.num_classes} "
            "classes: make it with num_classes=1."
        )
    if isinstance(reference, str):
        check_choice("reference", reference, REFERENCES)
    if isinstance(reference, str) and reference == "auto":
        return
    if not loss.reads_reference:
        raise ValueError(
            f"{type(loss).__name__} compares with no reference model: leave `reference` out."
        )
    if isinstance(reference, str) and reference == "cached" and not loss.paired:
        raise ValueError(
            "KTO scores other completions in each batch, which cannot be computed ahead: give "
            "reference='adapters' or 'copy'."
        )
