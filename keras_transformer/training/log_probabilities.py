"""Log-probabilities of given tokens, by a task that is trained and by its frozen reference."""

import contextlib

import numpy as np
from keras import ops

from keras_transformer.kernels.gradients import without_gradients
from keras_transformer.support.checking import describe, shorten
from keras_transformer.training import lora


def token_log_probabilities(
    task, inputs, targets, mask=None, training: bool = False, temperature: float = 1.0
):
    """Compute the log-probability of each target token, with gradients to the task's weights.

    Where the logits are a product of states and a matrix, as in most language models, they are
    computed some positions at a time and never held as a whole.

    Args:
        task: a task that predicts tokens, such as `CausalLM`.
        inputs: dict of the task's inputs, such as `token_ids` `(batch, length)` and `padding_mask`.
        targets: int `(batch, length)`, for each position the token to score: in a causal model the
            next token of the text.
        mask: bool or float `(batch, length)`, the targets to compute; others give 0. Defaults to
            all.
        training: bool, whether dropout is active.
        temperature: float above 0, divides the logits, as samplers do.

    Returns:
        float32 `(batch, length)`, natural logarithms.

    Raises:
        ValueError: if the task does not predict tokens, or a target within the mask is outside the
            vocabulary, where values are known.

    Example:
    ```python
    import keras_transformer as kt

    lm = kt.CausalLM.from_preset("gpt_tiny_shakespeare")
    (inputs, targets, counted), *_ = lm.make_dataset(["to be or not to be"])
    found = kt.training.token_log_probabilities(lm, inputs, targets, counted)
    assert found.shape == targets.shape and float(found[0, 0]) < 0
    ```

    Source: Radford et al. 2018, section 3.1, equation 1.
    """
    head = getattr(task, "head", None)
    if not hasattr(head, "log_probabilities"):
        raise ValueError(
            "`task` must predict tokens, such as a CausalLM or a Seq2SeqLM, received "
            f"{describe(task)}."
        )
    inputs = task._named(inputs)
    states, _ = task.backbone_states(inputs, training=training)
    return head.log_probabilities(states, inputs, targets, mask, temperature)


class Reference:
    """A frozen model that tells how far a task has moved while it is trained.

    Args:
        task: the task that computes log-probabilities.
    """

    def __init__(self, task):
        self.task = task

    @property
    def variables(self) -> list:
        """Variables that a training step reads besides those of the trained task."""
        return []

    def log_probabilities(self, inputs, targets, mask=None, temperature: float = 1.0):
        """Compute `token_log_probabilities` of the frozen model, without gradients."""
        with self.without_training(), without_gradients():
            found = token_log_probabilities(
                self.task, inputs, targets, mask, temperature=temperature
            )
        return ops.stop_gradient(found)

    def without_training(self) -> contextlib.AbstractContextManager:
        """Return the scope within which the task computes with the frozen weights."""
        return contextlib.nullcontext()


class WithoutAdapters(Reference):
    """The trained task without its LoRA adapters: there is no second copy of the weights.

    Args:
        task: the trained task.

    Raises:
        ValueError: if the task has no adapters.
    """

    def __init__(self, task):
        lora.adapted_layers(task.backbone)
        super().__init__(task)

    def without_training(self):
        return lora.without_adapters(self.task.backbone)


class FrozenTask(Reference):
    """Another task with the same vocabulary, which is not trained.

    Args:
        task: the frozen task.
    """

    @property
    def variables(self) -> list:
        return self.task.variables


def make_reference(task, reference="auto") -> Reference:
    """Make the reference of a task that is about to be trained.

    Args:
        task: the task, such as a `CausalLM`.
        reference: `"adapters"`, the task without its adapters; `"copy"`, a frozen copy of the task
            as it is now, which takes the memory of its weights a second time; or a task with the
            same vocabulary. `"auto"` is `"adapters"` for a task with adapters and `"copy"`
            otherwise.

    Returns:
        A `Reference`.

    Raises:
        ValueError: if `reference` is something else, the task has no adapters, or the other task
            has another vocabulary or is the trained task itself.

    Example:
    ```python
    import keras_transformer as kt
    from keras_transformer.training.log_probabilities import make_reference

    lm = kt.CausalLM.from_preset("gpt_tiny_shakespeare")
    lm.enable_lora(rank=2)
    assert make_reference(lm).variables == []
    ```
    """
    if isinstance(reference, type(task)):
        return FrozenTask(_checked(task, reference))
    known = ("auto", "adapters", "copy")
    if not isinstance(reference, str) or reference not in known:
        raise ValueError(
            f"`reference` must be one of {', '.join(map(repr, known))}, or another "
            f"{type(task).__name__}; received {shorten(reference)}."
        )
    if reference == "adapters" or (reference == "auto" and lora.is_adapted(task.backbone)):
        return WithoutAdapters(task)
    return FrozenTask(frozen_copy(task))


def frozen_copy(task):
    """Return a task with the same values and arrays of its own, which are not trainable."""
    copy = type(task).from_config(task.get_config())
    for new, old in zip(copy.variables, task.variables, strict=True):
        # A copy: on JAX both variables would share one array, which a step cannot donate.
        new.assign(np.array(ops.convert_to_numpy(old)))
    copy.trainable = False
    return copy


def _checked(task, reference):
    if reference is task:
        raise ValueError("The reference is the trained task itself: give reference='copy'.")
    sizes = [each.number_of_targets for each in (task, reference)]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"The task has a vocabulary of {sizes[0]} tokens and the reference one of {sizes[1]}: "
            "both must have the same."
        )
    return reference
