"""The mixture of experts against a loop over tokens in PyTorch: outputs, losses, one step."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.config import Router
from keras_transformer.layers import DecoderBlock, MixtureOfExperts
from tests.layers.conftest import assert_close, copy_weights, differs, numpy, random, randomize

FEW, MANY = random(2, 3, 8), random(4, 150, 8, seed=1)  # MANY fills more than a block of rows
PLAIN = {"num_experts": 4, "expert_dim": 6}
GATED = {
    **PLAIN,
    "num_experts": 3,
    "gated": True,
    "gate_limit": 0.4,
    "activation": "quick_gelu",
    "router_bias": True,
    "normalize_expert_weights": False,
    "shared_expert_dim": 5,
}


def made(inputs, **options):
    layer = MixtureOfExperts(**options)
    layer.build(inputs.shape)
    return randomize(layer)


def reference(torch, layer, inputs, weights, mask=None):
    """Output, and the two losses, one token at a time."""
    w = {path.split("/", 1)[1]: value for path, value in weights.items()}
    k, number = layer.experts_per_token, layer.num_experts

    def activated(hidden, gate):
        if gate is None:
            return torch.relu(hidden)
        gate, hidden = gate.clamp(max=0.4), hidden.clamp(-0.4, 0.4) + 1
        return gate * torch.sigmoid(1.702 * gate) * hidden

    def network(x, at):
        hidden, gate = at("intermediate", x), at("gate", x) if layer.expert_gate else None
        return at("output", activated(hidden, gate))

    tokens = inputs.reshape(-1, inputs.shape[-1])
    real = torch.ones(len(tokens)) if mask is None else torch.tensor(mask).float().reshape(-1)
    scores = tokens @ w["router/kernel"] + w.get("router/bias", 0.0)
    shares = scores.softmax(-1)
    top, chosen = shares.topk(k)
    top = top / top.sum(-1, keepdim=True) if layer.normalize_expert_weights else top
    rows = []
    for x, weight, experts, is_real in zip(tokens, top, chosen, real, strict=True):
        row = torch.zeros_like(x)
        for j, e in enumerate(experts.tolist() if is_real else []):
            at = lambda n, x, e=e: x @ w[f"expert_{n}/kernel"][e] + w[f"expert_{n}/bias"][e]  # noqa: E731
            row = row + weight[j] * network(x, at)
        if layer.shared is not None:
            at = lambda n, x: x @ w[f"shared/{n}/kernel"] + w[f"shared/{n}/bias"]  # noqa: E731
            row = row + torch.sigmoid(x @ w["shared_score/kernel"]) * network(x, at)
        rows.append(row)
    counts = torch.nn.functional.one_hot(chosen, number).sum(1).float()
    loads, means = ((x * real[:, None]).sum(0) / real.sum() for x in (counts, shares))
    z = (scores.logsumexp(-1) ** 2 * real).sum() / real.sum()
    return torch.stack(rows).reshape(inputs.shape), number * (loads * means).sum(), z


def tensors(torch, layer):
    return {v.path: torch.tensor(numpy(v), requires_grad=True) for v in layer.trainable_variables}


@pytest.mark.parametrize("options", [PLAIN, GATED, {**PLAIN, "experts_per_token": 4}])
@pytest.mark.parametrize("inputs", [FEW[:1, :1], MANY], ids=["few", "many"])
def test_outputs_are_those_of_a_loop(torch, options, inputs):
    layer = made(inputs, **options)
    expected, _, _ = reference(torch, layer, torch.tensor(inputs), tensors(torch, layer))
    assert_close(layer(inputs), expected.detach().numpy(), atol=2e-6)


@pytest.mark.parametrize(
    ("options", "inputs"), [(GATED, MANY), ({**PLAIN, "num_experts": 16}, FEW)], ids=["many", "few"]
)
def test_a_step_of_fit_is_that_of_a_loop(torch, options, inputs):
    """Gradients and both losses, in a compiled step, with padding that counts for none."""
    factors = {"load_balancing_factor": 0.5, "router_z_loss_factor": 0.25}
    layer = made(inputs, **options, **factors)
    mask = np.arange(inputs.shape[1]) < np.linspace(2, inputs.shape[1], len(inputs))[:, None]
    weights = tensors(torch, layer)
    states = keras.Input(inputs.shape[1:]), keras.Input(mask.shape[1:], dtype="bool")
    model = keras.Model(states, layer(states[0], mask=states[1]))
    model.compile(keras.optimizers.SGD(0.1), "mean_squared_error")
    loss = model.train_on_batch((inputs, mask), np.zeros_like(inputs))

    outputs, balance, z = reference(torch, layer, torch.tensor(inputs), weights, mask)
    squares = (outputs**2).mean(-1)[torch.tensor(mask)].mean()  # Keras takes the layer's mask
    expected = squares + 0.5 * balance + 0.25 * z
    expected.backward()
    assert float(loss) == pytest.approx(expected.item(), rel=1e-5)
    for variable in layer.trainable_variables:
        before = weights[variable.path]
        step = (before.detach() - 0.1 * before.grad).numpy()
        assert_close(variable.value, step, atol=2e-6)
    # Evaluation is without them.
    outputs = model.predict((inputs, mask), batch_size=len(inputs), verbose=0)
    evaluated = model.test_on_batch((inputs, mask), np.zeros_like(inputs))
    assert float(evaluated) == pytest.approx(np.mean(outputs[mask] ** 2), rel=1e-5)


EIGHT = {
    "num_experts": 8,
    "expert_dim": 6,
    "experts_per_token": 3,
}


def weights_of_experts(layer, inputs):
    """The weight of each expert for each token, in NumPy, one token at a time."""
    tokens = inputs.reshape(-1, inputs.shape[-1]).astype("float64")
    scores = tokens @ numpy(layer.router.kernel).astype("float64")
    found = np.zeros_like(scores)
    for row, x in zip(found, scores, strict=True):
        sigmoid = layer.routing.activation == "sigmoid"
        shares = 1 / (1 + np.exp(-x)) if sigmoid else np.exp(x) / np.exp(x).sum()
        choice = shares if layer.correction_bias is None else shares + numpy(layer.correction_bias)
        groups = np.sort(choice.reshape(layer.routing.groups, -1), axis=1)
        both = layer.routing.group_score == "top_two"
        best = groups[:, -2:].sum(1) if both else groups[:, -1]
        size = groups.shape[1]
        limit = layer.routing.group_limit
        kept = [g * size + i for g in np.argsort(best)[-limit:] for i in range(size)]
        chosen = sorted(kept, key=lambda e: choice[e])[-layer.experts_per_token :]
        total = shares[chosen].sum() if layer.normalize_expert_weights else 1.0
        row[chosen] = layer.routing.weight_scale * shares[chosen] / total
    return found


@pytest.mark.parametrize(
    ("normalized", "router"),
    [
        (False, Router(groups=4, group_limit=2)),
        (
            True,
            Router(
                groups=4,
                group_limit=2,
                activation="sigmoid",
                correction_bias=True,
                group_score="top_two",
                weight_scale=2.5,
            ),
        ),
    ],
    ids=["DeepSeek-V2", "DeepSeek-V3"],
)
def test_experts_of_the_best_groups(normalized, router):
    options = {**EIGHT, "normalize_expert_weights": normalized}
    layer = made(MANY, **options, router=router)
    weights, chosen = layer._routed(MANY.reshape(-1, 8), None, False)
    found = np.zeros((len(chosen), 8))
    np.put_along_axis(found, numpy(chosen), numpy(weights), axis=1)
    assert_close(found, weights_of_experts(layer, MANY), atol=1e-5)
    everywhere = made(MANY, **options, router=router.replace(group_limit=None))
    assert differs(everywhere._routed(MANY.reshape(-1, 8), None, False)[0], weights)


@pytest.mark.one_backend
def test_a_shared_expert_without_a_gate_is_added_as_it_is():
    options = {**PLAIN, "shared_expert_dim": 5, "shared_expert_gate": False}
    layer, alone = made(FEW, **options), MixtureOfExperts(**PLAIN)
    alone.build(FEW.shape)
    shared = {v.path for v in layer.shared.weights}
    alone.set_weights([numpy(v) for v in layer.weights if v.path not in shared])
    assert_close(layer(FEW), numpy(alone(FEW)) + numpy(layer.shared(FEW)), atol=1e-6)


@pytest.mark.one_backend
def test_the_bias_of_the_choice_is_not_trained():
    router = {"activation": "sigmoid", "correction_bias": True}
    lm = model(router=router, load_balancing_factor=0.1)
    ids = np.random.default_rng(0).integers(1, 11, (2, 7))
    experts = lm.backbone.decoder.blocks[0].feed_forward
    bias = experts.correction_bias
    bias.assign([5.0, -0.5, 0.25, 0.0])
    lm.fit({"token_ids": ids}, ids, verbose=0)
    assert numpy(bias).tolist() == [5.0, -0.5, 0.25, 0.0]
    lm.freeze(layers=0, embeddings=False)
    assert not bias.trainable and bias.dtype == "float32"
    _, chosen = experts._routed(FEW.reshape(-1, 8), None, True)
    assert (numpy(chosen) == 0).any(axis=1).all()


def test_a_capacity_is_for_the_first_choices_of_the_first_tokens():
    """All choose expert 0 first and expert 1 then; padding does not take a place."""
    inputs = np.ones((1, 6, 8), "float32")
    layer = made(inputs, **PLAIN, expert_capacity_factor=1.0)
    layer.router.kernel.assign(np.tile([[2.0, 1.0, 0.0, 0.0]], (8, 1)))
    layer.router.bias and layer.router.bias.assign(np.zeros(4))
    mask = np.array([[False, True, True, True, True, True]])
    whole = numpy(layer(inputs, mask=mask))[0]
    assert not whole[0].any() and np.ptp(whole[1:], axis=0).max() < 1e-6
    # 5 tokens with 2 choices each, 4 experts: each takes 2.5, rounded up.
    cut = numpy(layer(inputs, mask=mask, training=True))[0]
    assert_close(cut[1:4], whole[1:4])
    assert not cut[0].any() and not cut[4:].any()


def test_padding_changes_nothing():
    layer = made(MANY, **GATED, expert_capacity_factor=1.1, load_balancing_factor=0.1)
    mask = np.arange(150) < np.array([[150], [99], [1], [30]])
    other = np.where(mask[..., None], MANY, 3.0).astype("float32")
    outputs, losses = [], []
    for inputs in (MANY, other):
        outputs.append(numpy(layer(inputs, mask=mask, training=True))[mask])
        losses.append(float(layer.losses[0]))
    assert_close(*outputs)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert_close(layer(MANY, mask=np.ones_like(mask)), layer(MANY))
    assert differs(layer(MANY, mask=mask), layer(MANY))


def test_rematerialized_blocks_have_the_same_losses():
    options = {"num_experts": 4, "load_balancing_factor": 0.5, "normalize_first": True}
    plain = DecoderBlock(2, 6, **options)
    with keras.RematScope(mode="full"):
        saving = DecoderBlock(2, 6, **options)
    for block in (plain, saving):
        block.build(FEW.shape)
    copy_weights(randomize(plain), saving)
    results = []
    for block in (plain, saving):
        states = keras.Input(FEW.shape[1:])
        model = keras.Model(states, block(states))
        model.compile(keras.optimizers.SGD(0.1), "mean_squared_error")
        loss = model.train_on_batch(FEW, np.zeros_like(FEW))
        results.append((float(loss), [numpy(w.value) for w in block.trainable_weights]))
    (loss, weights), (again, same) = results
    assert again == pytest.approx(loss, rel=1e-6) and loss > 0.5 * 2 * 0.9
    for mine, theirs in zip(same, weights, strict=True):
        assert_close(mine, theirs)


def model(**values):
    sizes = {"vocabulary_size": 11, "hidden_dim": 8, "num_heads": 2, "intermediate_dim": 6}
    config = kt.TransformerConfig(kind="decoder", num_layers=1, num_experts=4, **sizes, **values)
    keras.utils.set_random_seed(0)
    return kt.CausalLM(kt.models.build_backbone(config))


def test_a_language_model_is_fitted_with_the_losses():
    ids = np.random.default_rng(0).integers(1, 11, (2, 7))
    mask = np.arange(7) < np.array([[7], [3]])
    x, weight = {"token_ids": ids, "padding_mask": mask}, mask.astype("float32")
    losses = {}
    for factor in (0.0, 0.5):
        lm = model(load_balancing_factor=factor)
        lm.backbone(x, training=True)
        added = [float(loss) for loss in lm.backbone.losses]
        losses[factor] = float(lm.train_on_batch(x, ids, weight, return_dict=True)["loss"])
    assert losses[0.5] - losses[0.0] == pytest.approx(added[0], rel=1e-4) and added[0] > 0.5


@pytest.mark.one_backend
def test_what_does_not_go_is_refused():
    with pytest.raises(ValueError, match="experts_per_token` must be from 1 to `num_experts`, rec"):
        MixtureOfExperts(2, 6, experts_per_token=3)
    with pytest.raises(ValueError, match="experts_per_token=5 is more than num_experts=4"):
        model(experts_per_token=5)
    with pytest.raises(ValueError, match="`gate_limit` needs `gated`"):
        model(gate_limit=7.0)
    with pytest.raises(ValueError, match="groups=3 of a router must divide num_experts=4"):
        model(router={"groups": 3})
    with pytest.raises(ValueError, match="'sparse_mixer' of a router has no `correction_bias`"):
        Router(activation="sparse_mixer", correction_bias=True)
    with pytest.raises(ValueError, match="group_limit=3 of a router is more than groups=2"):
        model(router={"groups": 2, "group_limit": 3})
    with pytest.raises(ValueError, match="is more than the 1 experts of group_limit=1 groups"):
        MixtureOfExperts(4, 6, router=Router(groups=4, group_limit=1))
    with pytest.raises(ValueError, match="'top_two' of a router needs groups of 2 experts or more"):
        model(router={"groups": 4, "group_score": "top_two"})
    with pytest.raises(ValueError, match="`activation` must be one of 'softmax'"):
        MixtureOfExperts(4, 6, router={"activation": "tanh"})
    assert model(router={}).backbone.config.router is None
    lm = model()
    with pytest.raises(ValueError, match="with experts is not quantized"):
        lm.quantize("int8")
    with pytest.raises(ValueError, match="`targets` must be a list of dense layers of the"):
        lm.enable_lora(2, targets=["expert_output"])
