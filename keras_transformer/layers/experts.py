"""Mixture of experts, which replaces the feed-forward layer."""

from collections.abc import Callable
from typing import Any, ClassVar

import keras
from keras import ops

from keras_transformer.config import Experts, Router
from keras_transformer.distribution.layout import on_each_device
from keras_transformer.distribution.replicas import (
    counts_of_replicas,
    mean_over_replicas,
    share_of_weight,
)
from keras_transformer.kernels.grouped import ExpertGroups
from keras_transformer.kernels.values import tensor_of
from keras_transformer.layers.arguments import (
    ChecksCall,
    SavesArguments,
    check_axes,
    initial_stack,
    known_shape,
    own_layer,
    part_of,
)
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.feed_forward import (
    FeedForward,
    activated,
    build_function,
    check_gate,
    get_activation,
)
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.remat import Rematerializable, no_inner_remat


class _Projection(keras.layers.Layer):
    """Kernels and biases of one projection, for all experts."""

    def __init__(self, number: int, units: int, use_bias: bool, kernel_initializer, **kwargs):
        super().__init__(**kwargs)
        self.number, self.units, self.use_bias = number, units, use_bias
        self.kernel_initializer = kernel_initializer.clone()

    def build(self, input_shape):
        shape = (self.number, input_shape[-1], self.units)
        self.kernel = self.add_weight(name="kernel", shape=shape, initializer=self._initial)
        self.bias = None
        if self.use_bias:
            shape = (self.number, self.units)
            self.bias = self.add_weight(name="bias", shape=shape, initializer="zeros")

    def _initial(self, shape, dtype=None):
        return initial_stack(self.kernel_initializer, shape, dtype)

    def weights_of_call(self) -> tuple:
        """Return the kernel, and the bias if there is one, as tensors of the compute dtype."""
        weights = (self.kernel,) if self.bias is None else (self.kernel, self.bias)
        return tuple(tensor_of(ops.cast(weight, self.compute_dtype)) for weight in weights)


@keras.saving.register_keras_serializable(package="keras_transformer")
class MixtureOfExperts(ChecksCall, SavesArguments, Rematerializable, keras.layers.Layer):
    """Mixture of experts: several feed-forward layers, of which each token uses a few.

    A router scores the experts for each token. The experts with the highest scores process it, and
    their outputs are summed, weighted by the softmax of the scores. Other experts are not computed
    for the token, and no token is dropped unless there is a capacity.

    Args:
        num_experts: int, number of experts.
        expert_dim: int, width inside an expert.
        experts_per_token: int, number of experts that process a token.
        shared_expert_dim: int, width of an additional expert that processes all tokens. 0 makes no
            shared expert.
        activation: str, function or layer, see `FeedForward`. The experts share it.
        gated: bool, see `FeedForward`.
        gate_limit: float, see `FeedForward`.
        use_bias: bool, whether the experts have biases.
        router_bias: bool, whether the router has a bias.
        normalize_expert_weights: bool, whether the weights of a token's experts sum to 1.
        expert_capacity_factor: float, maximum number of tokens that an expert takes in training, as
            a multiple of its share if tokens were spread evenly. First choices come before second
            ones, and the first tokens of the batch before later ones. A token skips the experts
            that are full. None disables the limit; evaluation has no limit.
        load_balancing_factor: float, factor of the loss `num_experts * sum(f * p)` added in
            training, with `f` the mean number of choices of an expert per token and `p` its mean
            share of the weights over all experts.
        router_z_loss_factor: float, factor of the loss added in training that is the mean square
            of the logsumexp of a token's scores.
        kernel_initializer: initializer of the kernels.
        shared_expert_gate: bool, whether the output of the shared expert is weighted by the sigmoid
            of a score of its own.
        router: `config.Router` or a dict of its values, how the experts of a token are chosen and
            weighted. Defaults to a softmax over all experts.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, dim)`.
        mask: bool `(batch, length)`, True for real tokens. Padding is not given to any expert, and
            counts neither for the capacity nor for the losses.
        training: bool, whether the capacity and the losses apply.
        routed_by: float `(batch, length, dim)`, the states that the router reads. Defaults to
            `inputs`.

    Returns:
        Float `(batch, length, dim)`.

    Raises:
        ValueError: if the activation is unknown, an option is out of range, or
            `experts_per_token` exceeds `num_experts`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import MixtureOfExperts

    layer = MixtureOfExperts(num_experts=8, expert_dim=64, activation="silu", gated=True)
    assert layer(np.ones((2, 5, 16))).shape == (2, 5, 16)
    ```

    Source: Shazeer et al. 2017, "Outrageously Large Neural Networks", section 2; capacity and
    losses: Fedus et al. 2021, "Switch Transformers", section 2.2, and Zoph et al. 2022, "ST-MoE",
    section 3.2; shared expert: Yang et al. 2024, "Qwen2", section 2.2.2; groups: DeepSeek-AI 2024,
    "DeepSeek-V2", section 2.2.2, and "DeepSeek-V3", section 2.1.2, with the correction bias;
    SparseMixer, without its sampling in training: Liu et al. 2024, "GRIN", section 2.
    """

    axes: ClassVar = {"inputs": (..., "dim")}
    # The processes that have other experts, see `distribution.tensor_parallel`.
    sharing: Any = None

    def __init__(
        self,
        num_experts: int,
        expert_dim: int,
        experts_per_token: int = 2,
        shared_expert_dim: int = 0,
        activation: str | Callable = "relu",
        gated: bool = False,
        gate_limit: float | None = None,
        use_bias: bool = True,
        router_bias: bool = False,
        normalize_expert_weights: bool = True,
        expert_capacity_factor: float | None = None,
        load_balancing_factor: float = 0.0,
        router_z_loss_factor: float = 0.0,
        kernel_initializer="glorot_uniform",
        shared_expert_gate: bool = True,
        router: Router | dict | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if not 1 <= experts_per_token <= num_experts:
            raise ValueError(
                "`experts_per_token` must be from 1 to `num_experts`, received "
                f"{experts_per_token} of {num_experts}."
            )
        self.routing = part_of("router", router or Router(), Router)
        self.routing.check_experts(num_experts, experts_per_token)
        activation = own_layer(activation)
        check_gate(gated, gate_limit)
        if not callable(activation):
            get_activation(activation)
        self.num_experts = num_experts
        self.experts_per_token = experts_per_token
        self.activation = activation
        self.gate_limit = gate_limit
        self.normalize_expert_weights = normalize_expert_weights
        self.expert_capacity_factor = expert_capacity_factor
        self.load_balancing_factor = load_balancing_factor
        self.router_z_loss_factor = router_z_loss_factor
        self.correction_bias = self.expert_scales = self.router_norm = None
        if self.routing.norm is not None:
            kind = self.routing.norm
            with no_inner_remat():
                self.router_norm = make_normalization(
                    kind.type, kind.epsilon, name="router_norm", dtype=self.dtype_policy
                )
        self.supports_masking = True
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.router = self._dense(num_experts, router_bias, "router")
        self.expert_intermediate = self._projection(expert_dim, "intermediate")
        self.expert_gate = self._projection(expert_dim, "gate") if gated else None
        self.shared = self.shared_score = None
        if shared_expert_dim:
            if shared_expert_gate:
                self.shared_score = self._dense(1, False, "shared_score")
            with no_inner_remat():
                self.shared = FeedForward(
                    shared_expert_dim,
                    activation=activation,
                    gated=gated,
                    gate_limit=gate_limit,
                    use_bias=use_bias,
                    kernel_initializer=self.kernel_initializer,
                    name="shared",
                    dtype=self.dtype_policy,
                )

    @classmethod
    def from_part(cls, part: Experts, **kwargs) -> "MixtureOfExperts":
        """Make the layer for a part of a config; `kwargs` are the other arguments of the layer."""
        options = {
            n: getattr(part, n) for n in ("activation", "gated", "gate_limit", "router_bias")
        }
        return cls(
            part.number,
            part.dim,
            part.per_token,
            part.shared_dim,
            use_bias=part.bias,
            normalize_expert_weights=part.normalize_weights,
            expert_capacity_factor=part.capacity_factor,
            load_balancing_factor=part.load_balancing,
            router_z_loss_factor=part.z_loss,
            shared_expert_gate=part.shared_gate,
            router=part.router,
            **options,
            **kwargs,
        )

    def _dense(self, units: int, use_bias: bool, name: str) -> Dense:
        options = {"kernel_initializer": self.kernel_initializer.clone(), "name": name}
        with no_inner_remat():
            return Dense(units, use_bias=use_bias, dtype=self.dtype_policy, **options)

    def _projection(self, units: int, name: str) -> _Projection:
        options = {"name": f"expert_{name}", "dtype": self.dtype_policy}
        with no_inner_remat():
            return _Projection(
                self.num_experts, units, self.use_bias, self.kernel_initializer, **options
            )

    def check_call(self, given):
        super().check_call(given)
        shape, mask = known_shape(given.get("inputs")), given.get("mask")
        if shape is not None:
            axes = {"mask": ("batch or 1", "length")}
            sizes = dict(zip(("batch", "length"), shape[:-1], strict=False))
            check_axes(type(self).__name__, axes, sizes, {"mask": mask})

    def build(self, input_shape):
        build_function(self.activation, (None, self.expert_intermediate.units))
        self.expert_output = self._projection(input_shape[-1], "output")
        self.expert_output.build((*input_shape[:-1], self.expert_intermediate.units))
        of_inputs = (
            self.router,
            self.expert_intermediate,
            self.expert_gate,
            self.shared,
            self.shared_score,
        )
        for layer in of_inputs:
            if layer is not None:
                layer.build((None, input_shape[-1]))  # The calls flatten all tokens to rows.
        if self.router_norm is not None:
            self.router_norm.build((None, input_shape[-1]))
        if self.routing.expert_scales:
            self.expert_scales = self.add_weight((self.num_experts,), "ones", name="expert_scales")
        if self.routing.correction_bias:
            # In float32: it differs from expert to expert by less than bfloat16 resolves.
            self.correction_bias = self.add_weight(
                (self.num_experts,),
                "zeros",
                dtype="float32",
                trainable=False,
                autocast=False,
                name="correction_bias",
            )
        self.fixed = {"dim": input_shape[-1]}

    def call(self, inputs, mask=None, training: bool = False, routed_by=None):
        shape = ops.shape(inputs)
        states = ops.reshape(inputs, (-1, inputs.shape[-1]))
        real = None
        if mask is not None:
            mask = ops.broadcast_to(ops.cast(mask, "bool"), shape[:2])
            real = ops.reshape(mask, (-1,))
        routed_by = states if routed_by is None else ops.reshape(routed_by, ops.shape(states))
        weights, chosen = self._routed(routed_by, real, training)
        weights = ops.cast(weights, self.compute_dtype)
        projections = {
            "intermediate": self.expert_intermediate,
            "gate": self.expert_gate,
            "output": self.expert_output,
        }
        kernels = {n: layer.weights_of_call() for n, layer in projections.items() if layer}
        given = (states, chosen, weights)
        output = on_each_device(self._mixed, given, kernels, self.sharing)
        if self.shared is not None:
            shared = self.shared(states)
            if self.shared_score is not None:
                shared = ops.sigmoid(self.shared_score(states)) * shared
            output = output + shared
        return ops.reshape(output, shape)

    def _routed(self, states, real, training: bool):
        """Return weights and indices of each token's experts, `(tokens, experts_per_token)`."""
        states = states if self.router_norm is None else self.router_norm(states)
        scores = ops.cast(self.router(states), "float32")
        scores = scores if self.routing.score_scale == 1 else scores * self.routing.score_scale
        by_sigmoid = self.routing.activation == "sigmoid"
        shares = ops.sigmoid(scores) if by_sigmoid else self._softmax(scores)
        if self.routing.activation == "sparse_mixer":
            weights, chosen = self._in_turn(scores)
        else:
            choice = self._of_best_groups(shares)
            weights, chosen = ops.top_k(choice, self.experts_per_token)
            chosen = ops.cast(chosen, "int32")
            if choice is not shares:
                weights = ops.take_along_axis(shares, chosen, axis=-1)
        if self.normalize_expert_weights:
            total = ops.sum(weights, axis=-1, keepdims=True)
            weights = weights / (total + self.routing.epsilon)  # sigmoids may all be 0
        if self.routing.weight_scale != 1:
            weights = weights * self.routing.weight_scale
        if self.expert_scales is not None:
            weights = weights * ops.take(ops.cast(self.expert_scales, "float32"), chosen, axis=0)
        if training:
            if by_sigmoid:
                shares = shares / (ops.sum(shares, axis=-1, keepdims=True) + 1e-20)
            self._add_losses(scores, shares, chosen, real)
        if real is not None:
            chosen = ops.where(real[:, None], chosen, self.num_experts)
        if training and self.expert_capacity_factor is not None:
            chosen = self._within_capacity(chosen)
        return weights, chosen

    def _in_turn(self, scores):
        """Return weights and experts, each the best of those that are left (SparseMixer)."""
        experts = ops.arange(self.num_experts, dtype="int32")
        left, weights, chosen = scores, [], []
        for _ in range(self.experts_per_token):
            best = ops.max(left, axis=-1, keepdims=True)
            distance = (best - scores) / ops.maximum(ops.abs(scores), best)
            far = ops.stop_gradient(distance) > 2 * self.routing.tolerance
            shares = self._softmax(ops.where(far, -float("inf"), left))
            index = ops.cast(ops.argmax(left, axis=-1, keepdims=True), "int32")
            weights.append(ops.take_along_axis(shares, index, axis=-1))
            chosen.append(index)
            left = ops.where(experts == index, -float("inf"), left)
        return ops.concatenate(weights, axis=-1), ops.concatenate(chosen, axis=-1)

    def _softmax(self, scores):
        # Keras warns about a softmax over one number.
        return ops.softmax(scores, axis=-1) if self.num_experts > 1 else ops.ones_like(scores)

    def _of_best_groups(self, shares):
        """Return the numbers that the experts of a token are chosen by, `(tokens, experts)`.

        They are the shares with the correction bias, and -inf outside of the chosen groups.
        """
        choice = shares if self.correction_bias is None else shares + self.correction_bias
        count, limit = self.routing.groups, self.routing.seen_groups
        if limit == count:
            return choice
        each = ops.reshape(choice, (-1, count, self.num_experts // count))
        best = ops.top_k(each, 2 if self.routing.group_score == "top_two" else 1)[0]
        groups = ops.top_k(ops.sum(best, axis=-1), limit)[1]
        numbers = ops.arange(count, dtype="int32")
        seen = ops.any(ops.cast(groups, "int32")[..., None] == numbers, axis=1)
        each = ops.where(seen[..., None], each, -float("inf"))
        return ops.reshape(each, (-1, self.num_experts))

    def _add_losses(self, scores, shares, chosen, real):
        factors = (self.load_balancing_factor, self.router_z_loss_factor)
        if not any(factors):
            return
        counted = ops.ones_like(scores[:, :1])
        counted = counted if real is None else ops.cast(real, "float32")[:, None]
        total = ops.sum(counted)  # 0 if this replica has padding alone
        balance = z = 0.0
        if factors[0]:
            choices = ops.sum(self._one_hot(chosen), axis=1)
            loads = mean_over_replicas(ops.sum(choices * counted, axis=0), within_layer=True)
            loads = ops.divide_no_nan(loads, mean_over_replicas(total, within_layer=True))
            means = ops.divide_no_nan(ops.sum(shares * counted, axis=0), total)
            balance = self.num_experts * ops.sum(loads * means)
        if factors[1]:
            sums = ops.logsumexp(scores, axis=-1, keepdims=True)
            z = ops.divide_no_nan(ops.sum(ops.square(sums) * counted), total)
        share = share_of_weight(total, within_layer=True)
        self.add_loss((factors[0] * balance + factors[1] * z) * share)

    def _one_hot(self, chosen):
        experts = ops.arange(self.num_experts, dtype="int32")
        return ops.cast(ops.expand_dims(chosen, -1) == experts, "float32")

    def _within_capacity(self, chosen):
        """Return the experts of each token; `num_experts` replaces an expert that is full."""
        order = ops.reshape(ops.transpose(chosen), (-1,))
        one_hot = self._one_hot(order)
        turns = ops.reshape(one_hot, (self.experts_per_token, -1, self.num_experts))
        counts, index = counts_of_replicas(ops.sum(turns, axis=1))
        before = ops.cumsum(one_hot, axis=0)
        if len(counts) > 1:  # choices of replicas with earlier rows, and earlier ones of others
            others = ops.sum(counts, axis=0) - counts[index]
            others = ops.cumsum(others, axis=0) - others + ops.sum(counts[:index], axis=0)
            before = before + ops.repeat(others, turns.shape[1], axis=0)
        places = ops.sum(one_hot * before, axis=-1)
        share = ops.sum(counts) / self.num_experts
        capacity = ops.ceil(self.expert_capacity_factor * share)
        order = ops.where(places <= capacity, order, self.num_experts)
        return ops.transpose(ops.reshape(order, (self.experts_per_token, -1)))

    def _mixed(self, first, rows: tuple, kernels: dict):
        """Return the outputs of this device's experts, which are numbered from `first` on."""
        states, chosen, weights = rows
        number = kernels["output"][0].shape[0]
        if number < self.num_experts:
            chosen = chosen - first
            chosen = ops.where(chosen < 0, number, ops.minimum(chosen, number))
        weights = ops.where(chosen < number, weights, ops.zeros((), weights.dtype))
        groups = ExpertGroups.sort(chosen, number)
        given = groups.gather(states)
        if self.routing.weighted == "inputs":
            given = given * groups.spread(weights)
            weights = ops.cast(chosen < number, weights.dtype)
        hidden = groups.product(given, *kernels["intermediate"])
        gate = groups.product(given, *kernels["gate"]) if "gate" in kernels else None
        hidden = activated(self.activation, hidden, gate, self.gate_limit)
        outputs = groups.choices(groups.product(hidden, *kernels["output"]))
        return ops.sum(outputs * ops.transpose(weights)[..., None], axis=0)

    def compute_mask(self, inputs, mask=None):
        return mask

    def compute_output_shape(self, input_shape):
        return input_shape
