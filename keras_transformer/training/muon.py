"""Muon for the matrices of blocks, AdamW for everything else."""

import math

import keras
from keras import ops

from keras_transformer.config.structure import VECTORS, is_hidden_matrix
from keras_transformer.kernels.accumulation import count_updates
from keras_transformer.kernels.process import tune_once
from keras_transformer.support.checking import check_number

# On PyTorch, Keras replaces some optimizers by a class of its own.
_Muon = type(keras.optimizers.Muon.__new__(keras.optimizers.Muon))


@keras.saving.register_keras_serializable(package="keras_transformer")
class Muon(_Muon):
    """`keras.optimizers.Muon` that chooses the matrices by what they are in the model.

    The kernels of dense layers in the blocks, also those of each expert, get orthogonal updates.
    Embeddings, the vocabulary projection, heads, filters of convolutions, biases, norms and the
    factors of adapters get AdamW's, since the reason for an orthogonal update, a matrix that maps
    states to states, does not hold for them. Biases and norms have no weight decay. Updates of
    matrices are scaled to the size of AdamW's, so that both have one learning rate.

    Args:
        learning_rate: float or schedule.
        weight_decay: float, of matrices, with AdamW too. None turns it off.
        momentum: float in [0, 1), of the matrices.
        ns_steps: int, Newton-Schulz iterations of an update.
        **kwargs: see `keras.optimizers.Muon`, e.g. `adam_beta_2`, `adam_lr_ratio`,
            `global_clipnorm`.

    Raises:
        ValueError: if a value is out of range.

    Example:
    ```python
    import keras_transformer as kt

    lm = kt.CausalLM.from_preset("gpt_tiny_shakespeare")
    lm.compile(kt.training.Muon(1e-3), lm.loss, weighted_metrics=[kt.training.Perplexity()])
    lm.fit(["to be or not to be"], verbose=0)
    ```

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks",
    https://kellerjordan.github.io/posts/muon; Liu et al. 2025, "Muon is Scalable for LLM Training",
    section 2.2, https://arxiv.org/abs/2502.16982, for the scale and the weight decay.
    """

    def __init__(
        self,
        learning_rate=1e-3,
        weight_decay: float | None = 0.01,
        momentum: float = 0.95,
        ns_steps: int = 5,
        name: str = "muon",
        **kwargs,
    ):
        if not callable(learning_rate):
            learning_rate = check_number(
                "learning_rate", learning_rate, at_least=0, hint="Or give a schedule of Keras."
            )
        weight_decay = check_number("weight_decay", weight_decay, at_least=0, none=True)
        momentum = check_number("momentum", momentum, at_least=0, below=1)
        tune_once()
        super().__init__(
            learning_rate,
            weight_decay=weight_decay,
            momentum=momentum,
            ns_steps=ns_steps,
            name=name,
            **{"adam_weight_decay": weight_decay, **kwargs},
        )
        count_updates(self)
        # Done here, since a copy made from `get_config` must exclude them too.
        self.exclude_from_weight_decay(var_names=list(VECTORS))

    def _should_use_adamw(self, variable) -> bool:
        return not is_hidden_matrix(variable.path, len(variable.shape))

    def lr_adjust(self, x):
        # Keras takes the first two axes, of which the first may count experts.
        if self.rms_rate is None:
            return x
        return x * ops.cast(math.sqrt(max(x.shape[-2:])) * self.rms_rate, x.dtype)
