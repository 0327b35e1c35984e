"""Adam as the original Transformer was trained with, and AdamW for fine-tuning.

A step is one fused operation on backends that have one (`kernels.adam`).
"""

import keras

from keras_transformer.config.structure import VECTORS, block_of, is_before_blocks
from keras_transformer.kernels import adam
from keras_transformer.kernels.accumulation import count_updates
from keras_transformer.kernels.process import tune_once
from keras_transformer.support.checking import check_number

# On PyTorch, Keras replaces these by a class that updates all variables at once.
_Adam, _AdamW = (type(cls.__new__(cls)) for cls in (keras.optimizers.Adam, keras.optimizers.AdamW))


class OnePass:
    """Mixin that updates variables in one pass over memory, with the numbers of Adam.

    It comes before `keras.optimizers.Adam`, or a subclass of it, among the base classes.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.gradient_accumulation_steps:  # here, for models that are not from this library
            count_updates(self)

    def update_step(self, gradient, variable, learning_rate):
        # For TensorFlow and JAX; PyTorch updates all variables at once, see below.
        if not adam.takes_one(self, gradient, variable):
            return super().update_step(gradient, variable, learning_rate)
        return adam.update_one(self, gradient, variable, learning_rate)

    def _apply_weight_decay(self, variables):
        if not adam.takes_decay():
            super()._apply_weight_decay(variables)

    def _parallel_update_step(self, grads, variables, learning_rate):
        decayed = [self.weight_decay is not None and self._use_weight_decay(v) for v in variables]
        if adam.takes_all(self, [*(variable.value for variable in variables), *grads]):
            adam.update_all(self, grads, variables, learning_rate, decayed)
            return
        decayed = [v for v, decays in zip(variables, decayed, strict=True) if decays]
        adam.decay_all(decayed, 1 - (self.weight_decay or 0) * learning_rate)
        super()._parallel_update_step(grads, variables, learning_rate)


@keras.saving.register_keras_serializable(package="keras_transformer")
class OnePassAdam(OnePass, _Adam):
    """`keras.optimizers.Adam` with the updates of `OnePass`."""


def transformer_adam(learning_rate, **kwargs) -> keras.optimizers.Adam:
    """Make Adam with the beta_2 (0.98) and epsilon (1e-9) of the original Transformer.

    A step is one pass over memory.

    Args:
        learning_rate: float or schedule, such as `InverseSquareRoot`.
        **kwargs: other arguments of `keras.optimizers.Adam`.

    Example:
    ```python
    from keras_transformer.training import transformer_adam

    assert transformer_adam(1e-3).beta_2 == 0.98
    ```

    Source: Vaswani et al. 2017, section 5.3.
    """
    learning_rate = _checked_rate(learning_rate, kwargs)
    tune_once()  # an optimizer may be made before the model, and makes arrays
    return OnePassAdam(learning_rate, **{"beta_2": 0.98, "epsilon": 1e-9, **kwargs})


@keras.saving.register_keras_serializable(package="keras_transformer")
class FineTuningAdamW(OnePass, _AdamW):
    """AdamW that decays only weight matrices, with a learning rate that can decay by layer.

    Biases and normalizations have no weight decay. With `layer_decay` d the last block of encoder
    and decoder learns with d times the learning rate, the block before it with d squared, and so
    on; the embeddings, tied to the output or not, with the next power. Other layers after the last
    block have the full rate. Weight decay is scaled like the learning rate.

    Args:
        learning_rate: float or schedule.
        weight_decay: float, see `keras.optimizers.AdamW`.
        layer_decay: float in (0, 1]. Defaults to 1, the same learning rate for all layers.
        **kwargs: see `keras.optimizers.AdamW`, e.g. `global_clipnorm`.

    Raises:
        ValueError: if `layer_decay` is out of range, or below 1 for a model without blocks.

    Example:
    ```python
    import keras_transformer as kt

    classifier = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
    optimizer = kt.training.FineTuningAdamW(1e-4, layer_decay=0.9)
    classifier.compile(optimizer, classifier.loss, metrics=["accuracy"])
    classifier.fit(["a warm and funny film", "dull from start to end"], [1, 0], verbose=0)
    ```

    Source: Howard and Ruder 2018, "ULMFiT", section 3.2 (discriminative fine-tuning); Clark et al.
    2020, "ELECTRA", appendix B, whose code has one more power between last block and head.
    """

    def __init__(
        self,
        learning_rate=5e-5,
        weight_decay: float = 0.01,
        layer_decay: float = 1.0,
        name: str = "fine_tuning_adamw",
        **kwargs,
    ):
        layer_decay = check_number("layer_decay", layer_decay, above=0, at_most=1)
        weight_decay = check_number("weight_decay", weight_decay, at_least=0, none=True)
        learning_rate = _checked_rate(learning_rate, kwargs)
        tune_once()
        super().__init__(learning_rate, weight_decay=weight_decay, name=name, **kwargs)
        self.layer_decay = layer_decay
        # Done here, since a copy made from `get_config` must exclude them too.
        self.exclude_from_weight_decay(var_names=list(VECTORS))

    def build(self, variables):
        if not self.built:
            # A tuple, since Keras would track a list.
            self._factors = tuple(_factors([v.path for v in variables], self.layer_decay))
        super().build(variables)

    def _groups(self, *lists):
        """Split lists, the first of which holds variables, into parts with the same factor."""
        rows = list(zip(*lists, strict=True))
        factors = [self._factors[self._get_variable_index(variable)] for variable, *_ in rows]
        for factor in sorted(set(factors)):
            part = [row for row, own in zip(rows, factors, strict=True) if own == factor]
            yield factor, *map(list, zip(*part, strict=True))

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        for factor, variables, part in self._groups(trainable_variables, grads):
            rate = learning_rate if factor == 1 else learning_rate * factor
            super()._backend_update_step(part, variables, rate)

    def _apply_weight_decay(self, variables):
        whole = self.weight_decay
        try:
            for factor, part in self._groups([v for v in variables if self._use_weight_decay(v)]):
                self.weight_decay = whole * factor
                super()._apply_weight_decay(part)
        finally:
            self.weight_decay = whole

    def get_config(self):
        return {**super().get_config(), "layer_decay": self.layer_decay}


def _checked_rate(learning_rate, options: dict):
    """Check the learning rate and other options of Adam, of which Keras would accept NaN."""
    for name in ("beta_1", "beta_2"):
        if name in options:
            check_number(name, options[name], at_least=0, below=1)
    if "epsilon" in options:
        check_number("epsilon", options["epsilon"], above=0)
    for name in ("clipnorm", "clipvalue", "global_clipnorm"):
        check_number(name, options.get(name), above=0, none=True)
    if callable(learning_rate):  # a schedule
        return learning_rate
    return check_number(
        "learning_rate", learning_rate, at_least=0, hint="Or give a schedule of Keras."
    )


def _factors(paths: list[str], layer_decay: float) -> list[float]:
    """Return the factor of each variable's learning rate."""
    places = [block_of(path) for path in paths]
    depths: dict[str, int] = {}
    for stack, number in filter(None, places):
        depths[stack] = max(depths.get(stack, 0), number + 1)
    if layer_decay != 1 and not depths:
        raise ValueError(
            f"layer_decay={layer_decay} needs variables in blocks, of paths like 'encoder/layer_0/"
            f"...', received such as {paths[:1]}. Train more of the model, or use layer_decay=1."
        )

    def power(path, place):
        if place:
            return depths[place[0]] - place[1]
        if not is_before_blocks(path):
            return 0
        own = [depth for stack, depth in depths.items() if path.startswith(stack + "/")]
        return 1 + max(own or depths.values(), default=-1)

    return [layer_decay ** power(*each) for each in zip(paths, places, strict=True)]
