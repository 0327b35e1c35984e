"""The training step of a language model on rewarded completions."""

import keras
from keras import ops

from keras_transformer.models.runtime.read_write_lock import ReadWriteLock
from keras_transformer.models.runtime.runtime import Runtime, TrainingLoss
from keras_transformer.training.log_probabilities import token_log_probabilities
from keras_transformer.training.reinforcement import PolicyLoss


class PolicyTrainer(Runtime):
    """Trains a task on sampled completions; `CausalLM.fit_rewards` makes and uses it.

    The optimizer and its state are the task's. Dropout is off, since the log-probabilities of the
    sampler have none. A batch is a dict of the task's inputs; a dict with `targets`, int `(rows,
    length)`, and the arguments of `PolicyLoss` by name; and the mask of the completions' tokens.

    Args:
        task: a compiled `CausalLM`.
        policy_loss: `PolicyLoss`.
        temperature: float above 0, of the sampler: the trained model's probabilities have it too.
    """

    def __init__(self, task, policy_loss: PolicyLoss, temperature: float = 1.0):
        super().__init__(dtype=task.dtype_policy)
        self.task = task
        self.policy_loss = policy_loss
        self.temperature = temperature
        names = ["clip_low", "clip_high", "log_ratio", *["kl"] * policy_loss.kl_in_loss]
        self.term_metrics = [keras.metrics.Mean(name) for name in names]
        self.built = True
        options = {"jit_compile": task.jit_compile, "run_eagerly": task.run_eagerly}
        self.compile(task.optimizer, **options)

    @property
    def weights_lock(self) -> ReadWriteLock:
        return self.task.weights_lock

    # In the task's order, which its optimizer knows.
    trainable_variables = property(lambda self: self.task.trainable_variables)
    trainable_weights = property(lambda self: self.task.trainable_weights)
    non_trainable_variables = property(lambda self: self.task.non_trainable_variables)
    non_trainable_weights = property(lambda self: self.task.non_trainable_weights)

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call  # the task recomputes its blocks one by one

    def call(self, inputs, training: bool = False):
        return self.task(inputs, training=training)

    def training_loss(self) -> "_PolicyStep":
        return _PolicyStep(self)


class _PolicyStep(TrainingLoss):
    """The training loss of a `PolicyTrainer`."""

    def states(self, x, sample_weight, training):
        return ()  # the targets are needed too: all is computed in `loss`

    def loss(self, states, x, y, sample_weight, training):
        model = self.model
        # `train_on_batch` of Keras gives PyTorch NumPy arrays.
        values, mask = keras.tree.map_structure(ops.convert_to_tensor, (dict(y), sample_weight))
        found = token_log_probabilities(
            model.task, x, values.pop("targets"), mask, temperature=model.temperature
        )
        terms = model.policy_loss(found, mask=mask, **values)
        for metric in model.term_metrics:
            metric.update_state(getattr(terms, metric.name))
        return terms.loss
