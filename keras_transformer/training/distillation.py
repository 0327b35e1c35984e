"""Distillation: a smaller model learns the outputs of a larger one."""

from collections.abc import Mapping

import keras
import numpy as np
from keras import ops

from keras_transformer.config.structure import sides
from keras_transformer.data import BucketedDataset
from keras_transformer.kernels.gradients import without_gradients
from keras_transformer.layers.arguments import HostZeros
from keras_transformer.layers.normalization import unit_vectors
from keras_transformer.models import build_backbone
from keras_transformer.models.runtime.read_write_lock import ReadWriteLock
from keras_transformer.models.runtime.runtime import OutputLoss, Runtime
from keras_transformer.support.checking import check_int, check_number, describe
from keras_transformer.training.optimizers import FineTuningAdamW


def smaller(teacher, num_layers: int, num_decoder_layers: int | None = None):
    """Make a task with fewer layers, initialized from some of the teacher's layers.

    The chosen layers are evenly spaced and include the first and the last: 6 of 12 layers are 0, 2,
    4, 7, 9 and 11, as in DistilBERT. Embeddings and head are copied too.

    Args:
        teacher: a task.
        num_layers: int, number of layers of the new model, or of its encoder in an encoder-decoder.
        num_decoder_layers: int, number of layers of its decoder. Defaults to the smaller of
            `num_layers` and the number of the teacher's decoder layers.

    Returns:
        A task of the teacher's class, with its tokenizer.

    Raises:
        ValueError: if the teacher has fewer layers than asked for, layers that share weights, or
            adapters.

    Source: Sanh et al. 2019, "DistilBERT", section 3. Example: see `Distiller`.
    """
    if not hasattr(teacher, "backbone"):
        raise ValueError(f"`teacher` must be a task, received {describe(teacher)}.")
    config = teacher.backbone.config
    if not teacher.backbone.stacks:
        raise ValueError("The teacher has custom blocks: make the student yourself.")
    if any(side.groups < side.depth for side in sides(config)):
        raise ValueError("The teacher's layers share weights: fewer of them would not be smaller.")
    values = {"num_layers": num_layers}
    if config.kind == "seq2seq":
        fewer = min(check_int("num_layers", num_layers), config.num_decoder_layers)
        values["num_decoder_layers"] = fewer if num_decoder_layers is None else num_decoder_layers
    elif num_decoder_layers is not None:
        raise ValueError(f"A model of kind {config.kind!r} has no `num_decoder_layers`.")
    for name, value in values.items():
        values[name] = check_int(name, value, at_least=1, at_most=getattr(config, name))
    backbone = build_backbone(
        config.replace(**values), dtype=teacher.dtype_policy, initializer=HostZeros()
    )
    processor = teacher.tokenizer or teacher.processor
    student = type(teacher)(backbone, processor, **teacher.task_values())
    backbone.family = teacher.backbone.family
    backbone.generation_config = teacher.backbone.generation_config

    pairs = []
    for new, old in zip(backbone.stacks, teacher.backbone.stacks, strict=True):
        places = np.rint(np.linspace(0, len(old.blocks) - 1, len(new.blocks))).astype(int)
        pairs += [(block, old.blocks[i]) for block, i in zip(new.blocks, places, strict=True)]
    pairs = [(new.weights, old.weights) for new, old in pairs]
    pairs.append((_outside_blocks(student), _outside_blocks(teacher)))
    if any(len(new) != len(old) for new, old in pairs):
        raise ValueError("The teacher has adapters: call its `merge_lora` first.")
    for new, old in pairs:
        for variable, value in zip(new, old, strict=True):
            # A copy: on JAX both variables would share one array, which a step cannot donate twice.
            variable.assign(np.array(ops.convert_to_numpy(value)))
    return student


def _outside_blocks(task) -> list[keras.Variable]:
    blocks = [block for stack in task.backbone.stacks for block in stack.blocks]
    inside = {id(variable) for block in blocks for variable in block.weights}
    return [variable for variable in task.weights if id(variable) not in inside]


class Distiller(Runtime):
    """Trains a task on the outputs of a larger task in addition to its own targets.

    The loss is `soft_weight * temperature**2 * KL(teacher || student)` of the probabilities at the
    temperature, plus `hard_weight` times the student's own loss, plus `cosine_weight` times
    `1 - cosine` of the last hidden states; `fit` reports each term. Fit it on the result of
    `student.make_dataset`. The teacher is not changed. A step holds all logits of both models in
    memory.

    It is compiled with `FineTuningAdamW` at a learning rate of 5e-5; `compile` changes that.

    Args:
        student: a task that predicts classes or tokens, compiled.
        teacher: a task of the same class, with the same classes or vocabulary.
        temperature: float above 0.
        soft_weight, hard_weight: float, at least 0, the weights of the first two terms.
        cosine_weight: float, at least 0. Defaults to 1, or 0 if the models differ in width.
        name: str, name of the model.

    Call arguments:
        inputs: the inputs of the student.

    Returns:
        The student's logits.

    Raises:
        ValueError: if the tasks differ in class, targets or vocabulary, or a value is out of range.

    Example:
    ```python
    import keras_transformer as kt

    texts, labels = ["a warm and funny film", "dull from start to end"] * 4, [1, 0] * 4
    teacher = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
    student = kt.training.smaller(teacher, num_layers=2)
    assert student.count_params() < 0.8 * teacher.count_params()
    distiller = kt.training.Distiller(student, teacher)
    distiller.fit(student.make_dataset(texts, labels, shuffle=True), verbose=0)
    student.save_to_preset("small_classifier")
    ```

    Source: Sanh et al. 2019, "DistilBERT", section 2, and its code for the weights; Hinton et al.
    2015, "Distilling the Knowledge in a Neural Network", section 2.
    """

    def __init__(
        self,
        student,
        teacher,
        temperature: float = 2.0,
        soft_weight: float = 5.0,
        hard_weight: float = 2.0,
        cosine_weight: float | None = None,
        name: str | None = None,
    ):
        _check_pair(student, teacher)
        temperature = check_number("temperature", temperature, above=0)
        soft_weight = check_number("soft_weight", soft_weight, at_least=0)
        hard_weight = check_number("hard_weight", hard_weight, at_least=0)
        cosine_weight = check_number("cosine_weight", cosine_weight, at_least=0, none=True)
        same = student.backbone.config.hidden_dim == teacher.backbone.config.hidden_dim
        cosine_weight = float(same) if cosine_weight is None else cosine_weight
        if cosine_weight and not same:
            raise ValueError(
                "The cosine of hidden states needs models of the same `hidden_dim`, received "
                f"{student.backbone.config.hidden_dim} and {teacher.backbone.config.hidden_dim}. "
                "Leave `cosine_weight` out."
            )
        weights = {"soft": soft_weight, "hard": hard_weight, "cosine": cosine_weight}
        if not any(weights.values()):
            raise ValueError(f"One of the weights must be above 0, received {weights}.")
        super().__init__(name=name, dtype=student.dtype_policy)
        self.student = student
        self.teacher = teacher
        self.temperature = temperature
        self.loss_parts = weights
        self.soft_loss = keras.metrics.Mean("soft_loss")
        self.hard_loss = keras.metrics.Mean("hard_loss")
        self.cosine_loss = keras.metrics.Mean("cosine_loss")
        self.built = True
        self.compile(FineTuningAdamW())

    def compile(self, optimizer="rmsprop", loss=None, **kwargs):
        """Configure training like `keras.Model.compile`; `loss` defaults to the student's."""
        super().compile(optimizer, self.student.loss if loss is None else loss, **kwargs)

    def fit(self, x=None, y=None, **kwargs):
        """Train like `keras.Model.fit`, with batches of `student.make_dataset` or arrays."""
        if x is None or isinstance(x, (str, bytes, list, tuple, int, float)):
            raise ValueError(
                "Distiller takes batches: give `fit` the result of `student.make_dataset(texts, "
                f"...)`. Received {describe(x)}."
            )
        if isinstance(x, Mapping):
            x = self.student._named(x)
        if isinstance(x, BucketedDataset):
            kwargs["shuffle"] = False  # the dataset shuffles itself
        weigh = self.student.class_weights(kwargs.pop("class_weight", None))
        weights, steps = kwargs.pop("sample_weight", None), kwargs.get("steps_per_epoch")
        with self.student.weighing(x, y, weights, weigh, steps) as (x, weights):
            return super().fit(x, y, sample_weight=weights, **kwargs)

    def train_on_batch(self, x, y=None, sample_weight=None, class_weight=None, return_dict=False):
        """Train like `keras.Model.train_on_batch`, with the student's form of `class_weight`."""
        weigh = self.student.class_weights(class_weight)
        sample_weight = sample_weight if weigh is None else weigh(y, sample_weight)
        return super().train_on_batch(x, y, sample_weight, return_dict=return_dict)

    @property
    def weights_lock(self) -> ReadWriteLock:
        return self.student.weights_lock

    # The teacher's variables are state that a step only reads. Setting its `trainable` to False
    # would change the teacher for other users too.
    trainable_variables = property(lambda self: self.student.trainable_variables)
    trainable_weights = property(lambda self: self.student.trainable_weights)
    non_trainable_variables = property(
        lambda self: [*self.student.non_trainable_variables, *self.teacher.variables]
    )
    non_trainable_weights = property(
        lambda self: [*self.student.non_trainable_weights, *self.teacher.weights]
    )

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call  # the student recomputes its blocks one by one, as every task does

    def call(self, inputs, training: bool = False):
        return self.student(inputs, training=training)

    def get_metrics_result(self) -> dict:
        """Return the metrics of `keras.Model`, with the loss as the sum of its parts' means."""
        logs = super().get_metrics_result()
        parts = (weight * logs[f"{name}_loss"] for name, weight in self.loss_parts.items())
        return {**logs, "loss": sum(parts)}

    def training_loss(self) -> "_DistillationLoss":
        return _DistillationLoss(self)


class _DistillationLoss(OutputLoss):
    """The training loss of a `Distiller`, with the outputs of student and teacher that it needs."""

    def states(self, x, sample_weight, training):
        student, teacher = self.model.student, self.model.teacher
        logits, found = student(x, collect=("states",), training=training)
        with without_gradients():
            teacher_logits, taught = teacher(x, collect=("states",), training=False)
        return {
            "logits": logits,
            "states": found["states"][-1],
            "teacher_logits": ops.stop_gradient(teacher_logits),
            "teacher_states": ops.stop_gradient(taught["states"][-1]),
        }

    def loss(self, states, x, y, sample_weight, training):
        model, logits = self.model, states["logits"]
        parts = {
            "soft": distillation_loss(
                states["teacher_logits"], logits, model.temperature, weights=sample_weight
            ),
            "hard": model._compute_loss(x, y, logits, sample_weight, training=training),
        }
        # The weight over which each part is a mean.
        weights = {
            "soft": _total_weight(logits[..., 0], sample_weight),
            "hard": self.weight(x, y, sample_weight),
        }
        if model.loss_parts["cosine"]:
            ids = model.student.input_interface.id_inputs[-1]
            mask = model.student._named(x).get(ids.replace("token_ids", "padding_mask"))
            pair = (states["states"], states["teacher_states"])
            pair = [unit_vectors(ops.cast(x, "float32")) for x in pair]
            parts["cosine"] = _mean(1.0 - ops.sum(pair[0] * pair[1], axis=-1), mask)
            weights["cosine"] = _total_weight(states["states"][..., 0], mask)
        loss = 0.0
        for name, part in parts.items():
            getattr(model, f"{name}_loss").update_state(part, sample_weight=weights[name])
            loss = loss + model.loss_parts[name] * part
        return loss

    def logs(self, states, x, y, sample_weight):
        return self.model.compute_metrics(x, y, states["logits"], sample_weight)


def distillation_loss(teacher_logits, logits, temperature: float = 1.0, weights=None):
    """Return the mean of `temperature**2 * KL(teacher || student)` over float logits.

    Args:
        teacher_logits: float `(..., classes)`.
        logits: float `(..., classes)`, of the student.
        temperature: float above 0, divisor of both logits.
        weights: float `(...)`, the weight of each position. Defaults to 1 each.

    Returns:
        float32 scalar, the mean in nats.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import distillation_loss

    teacher, student = np.array([[np.log(3.0), 0.0]]), np.zeros((1, 2))
    kl = 0.75 * np.log(0.75 / 0.5) + 0.25 * np.log(0.25 / 0.5)
    assert abs(float(distillation_loss(teacher, student)) - kl) < 1e-6
    ```

    Source: Hinton et al. 2015, section 2; the factor `temperature**2` keeps the scale of the
    gradient.
    """
    teacher, student = (
        ops.log_softmax(ops.cast(x, "float32") / temperature, axis=-1)
        for x in (teacher_logits, logits)
    )
    divergence = ops.sum(ops.exp(teacher) * (teacher - student), axis=-1)
    return temperature**2 * _mean(divergence, weights)


def _mean(values, weights):
    if weights is None:
        return ops.mean(values)
    weights = ops.cast(weights, "float32")
    # `where` drops outputs at padding even if they are NaN.
    values = ops.where(weights > 0, values, 0.0)
    return ops.divide_no_nan(ops.sum(values * weights), ops.sum(weights))


def _total_weight(values, weights):
    """Return the total weight of `_mean`, a float scalar."""
    return ops.cast(ops.size(values) if weights is None else ops.sum(weights), "float32")


def _check_pair(student, teacher) -> None:
    if type(student) is not type(teacher) or student is teacher:
        raise ValueError(
            "Distiller needs two tasks of one class, received a student of type "
            f"{type(student).__name__} and "
            + ("itself as teacher." if student is teacher else f"a {type(teacher).__name__}.")
        )
    counts = [getattr(task, "number_of_targets", None) for task in (student, teacher)]
    if None in counts:
        raise ValueError(
            "Distiller needs tasks that predict classes or tokens, which "
            f"{type(student).__name__} does not."
        )
    if counts[0] != counts[1]:
        raise ValueError(
            f"The student predicts {counts[0]} classes or tokens, the teacher {counts[1]}: "
            "both must predict the same ones."
        )
    tokenizers = [task.tokenizer for task in (student, teacher)]
    if None not in tokenizers and tokenizers[0] is not tokenizers[1]:
        one, two = (tokenizer.get_vocabulary() for tokenizer in tokenizers)
        if one != two:
            raise ValueError(
                "The tokenizers of student and teacher have different vocabularies: give the "
                "student the teacher's tokenizer."
            )
