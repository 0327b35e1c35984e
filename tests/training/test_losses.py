import itertools

import keras
import numpy as np
import pytest

from keras_transformer.kernels.device import device
from keras_transformer.kernels.programs import compile_function
from keras_transformer.training import (
    ClassCrossEntropy,
    ContrastiveLoss,
    CTCLoss,
    Perplexity,
    TokenAccuracy,
    TokenCrossEntropy,
    distillation_loss,
    linear_cross_entropy,
)
from tests.generation.common import on_one

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(3, 5, 11)).astype("float32") * 3
TARGETS = RNG.integers(0, 11, size=(3, 5))
MASK = np.arange(5) < np.array([[5], [3], [1]])


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])
def test_equals_torch(smoothing):
    torch = pytest.importorskip("torch")
    targets = torch.tensor(np.where(MASK, TARGETS, -100)).reshape(-1)
    expected = torch.nn.functional.cross_entropy(
        torch.tensor(LOGITS).reshape(-1, 11), targets, label_smoothing=smoothing
    )
    loss = TokenCrossEntropy(smoothing)(TARGETS, LOGITS, sample_weight=MASK)
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)


def test_by_hand():
    # Two words with logits ln 3 and 0: probabilities 3/4 and 1/4.
    logits = np.array([[[np.log(3.0), 0.0]]], "float32")
    plain = TokenCrossEntropy()(np.array([[0]]), logits)
    assert float(plain) == pytest.approx(-np.log(0.75), rel=1e-6)
    smooth = TokenCrossEntropy(0.2)(np.array([[0]]), logits)
    assert float(smooth) == pytest.approx(-0.9 * np.log(0.75) - 0.1 * np.log(0.25), rel=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradient_is_softmax_minus_smoothed_target(smoothing):
    # One step of plain gradient descent with rate 1 moves the logits by the gradient.
    table = keras.layers.Embedding(15, 11)
    model = keras.Sequential([keras.Input((5,), dtype="int32"), table])
    table.set_weights([LOGITS.reshape(15, 11)])
    model.compile(keras.optimizers.SGD(1.0), TokenCrossEntropy(smoothing))
    ids = np.arange(15).reshape(3, 5)
    model.fit(ids, TARGETS, sample_weight=MASK, batch_size=3, shuffle=False, verbose=0)
    gradient = LOGITS - table.get_weights()[0].reshape(LOGITS.shape)
    softmax = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=-1, keepdims=True)
    goal = (1 - smoothing) * np.eye(11)[TARGETS] + smoothing / 11
    np.testing.assert_allclose(gradient, (softmax - goal) * MASK[..., None] / MASK.sum(), atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_float32_inside(dtype):
    # In float16 the sum of exp over 5,000 words would overflow, its mean lose the digits.
    logits = keras.ops.cast(keras.ops.full((1, 1, 5000), 8.0), dtype)
    loss = TokenCrossEntropy(0.1)(np.array([[7]]), logits)
    assert keras.backend.standardize_dtype(loss.dtype) == "float32"
    assert float(loss) == pytest.approx(np.log(5000), rel=1e-6)


def test_config_round_trip_and_bad_smoothing():
    loss = keras.losses.deserialize(keras.losses.serialize(TokenCrossEntropy(0.1, name="nll")))
    assert (loss.label_smoothing, loss.name) == (0.1, "nll")
    assert loss.reduction == "mean_with_sample_weight"
    with pytest.raises(ValueError, match="`label_smoothing` must be a number of at"):
        TokenCrossEntropy(1.0)


@pytest.mark.parametrize("blank", [0, 2])
def test_ctc_is_the_sum_over_all_that_states_can_say(blank):
    """Compare texts with a repeated token, with one token, and without tokens."""
    first, second = [i for i in range(3) if i != blank]
    texts = [[first, first], [second], [], [second, first, second]]
    targets = np.array([text + [blank] * (4 - len(text)) for text in texts])
    logits = np.random.default_rng(0).normal(size=(4, 4, 3)).astype("float32")
    weights = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    expected = np.zeros(4)
    for said in itertools.product(range(3), repeat=4):
        text = [token for token, _ in itertools.groupby(said) if token != blank]
        if text in texts:
            row = texts.index(text)
            expected[row] += np.prod(weights[row, np.arange(4), said])
    expected = -np.log(expected) / np.array([2, 1, 1, 3])
    loss = CTCLoss(blank, reduction=None)
    found = keras.ops.convert_to_numpy(loss(targets, logits))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert again.blank_id == blank and again.reduction is None
    with pytest.raises(ValueError, match="`blank_id` must be an integer of at least 0"):
        CTCLoss(-1)


SOME = np.zeros((2, 3, 4), "float32")  # logits of four tokens
# On a GPU of PyTorch a look at targets would wait for them.
KNOWN = keras.backend.backend() != "torch" or device().is_cpu
OF_TOKENS = {
    "token": lambda y, weights=None: TokenCrossEntropy()(y, SOME, weights),
    "perplexity": lambda y, weights=None: Perplexity().update_state(y, SOME, weights),
    "accuracy": lambda y, weights=None: TokenAccuracy().update_state(y, SOME, weights),
    "linear": lambda y, weights=None: (
        linear_cross_entropy(SOME, np.eye(4, dtype="float32"), y, weights).loss
    ),
    "class": lambda y, weights=None: ClassCrossEntropy()(
        y[:, 1], SOME[:, 0], None if weights is None else weights[:, 1]
    ),
    "ctc": lambda y, weights=None: CTCLoss()(
        y, SOME, None if weights is None else weights.min(axis=1)
    ),
}


@pytest.mark.parametrize("name", ["token", *map(on_one, list(OF_TOKENS)[1:])])
def test_targets_that_are_none_of_the_tokens(name):
    """PyTorch's CTC read past its array, TensorFlow took no token, and -1 was the last one."""
    loss, weights = OF_TOKENS[name], np.ones((2, 3), "float32")
    weights[0, 1] = 0
    for wrong in (4, 10**6, -1, -100):
        targets = np.array([[1, wrong, 3], [2, 1, 0]])
        if not KNOWN:
            found = loss(targets)
            assert found is None or not np.isfinite(float(found))
            continue
        with pytest.raises(ValueError, match=f"Targets must be from 0 to 3.* received {wrong}"):
            loss(targets)
    found = loss(targets, weights)  # what has no weight may be anything
    assert found is None or np.isfinite(float(found))


def test_within_a_program_their_loss_is_not_a_number():
    targets = np.array([[1, 4, 3], [2, 1, 0]])
    found = keras.ops.convert_to_numpy(TokenCrossEntropy().call(targets, SOME))
    assert np.isnan(found).tolist() == [[False, True, False], [False] * 3]
    for wrong in ([1, 4, 3], [1, -1, 3], [1, 0, 3]):  # the last has a blank before a token
        rows = np.array([wrong, [2, 1, 0]])
        found = keras.ops.convert_to_numpy(CTCLoss().call(rows, SOME))
        assert np.isnan(found).tolist() == [True, False]
    if KNOWN:
        with pytest.raises(ValueError, match="Row 1 of the targets has the blank token 0"):
            CTCLoss()([[1, 2, 0], [1, 0, 3]], SOME)
    with pytest.raises(ValueError, match="`blank_id` must be an integer from 0 to 3, received 4"):
        CTCLoss(4)(targets, SOME)

    def sums(states, targets, weights):
        return linear_cross_entropy(states, np.eye(4, dtype="float32"), targets, weights).loss

    if keras.backend.backend() == "torch":
        return  # where values are known at any time
    given = (SOME + 1, targets, np.ones((2, 3), "float32"))
    program = compile_function(sums, loops=True)  # compiled however many programs there are
    assert np.isnan(program(*given))
    given[2][0, 1] = 0
    assert np.isfinite(program(*given))


def test_what_a_mask_of_keras_hides_may_be_any_number():
    """The loss of a model whose embedding masks padding is that of its tokens."""
    inputs = keras.Input((4,), dtype="int32")
    states = keras.layers.Embedding(7, 8, mask_zero=True)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(5)(states))
    model.compile("sgd", loss=TokenCrossEntropy())
    ids, targets = np.array([[1, 2, 0, 0], [3, 4, 5, 0]]), np.array([[1, 2, 9, 9], [3, 4, 0, 9]])
    found = model.evaluate(ids, np.where(ids == 0, -100, targets), verbose=0)
    assert found == pytest.approx(model.evaluate(ids, np.where(ids == 0, 0, targets), verbose=0))
    logits = keras.ops.convert_to_numpy(model(ids))
    each = keras.ops.convert_to_numpy(TokenCrossEntropy(reduction=None)(targets % 5, logits))
    assert found == pytest.approx(each[ids > 0].mean(), rel=1e-5)


OFFSET = 1e7  # in float32 neighbours are a whole number apart there
# Logits of whole numbers, so that adding the offset loses nothing.
WHOLE = np.round(RNG.normal(size=(4, 11)) * 3).astype("float32")


def offset_losses(offset):
    """Every loss of logits whose softmax is taken, of `WHOLE` and a number more."""
    logits, classes = WHOLE + np.float32(offset), np.array([3, 0, 10, 5])
    soft = np.full((4, 11), 1 / 11, "float32")
    square = logits[:, :4]
    states = np.concatenate([np.eye(4), np.ones((4, 1))], axis=1)[None].astype("float32")
    kernel = np.concatenate([WHOLE.T, np.full((11, 1), offset)], axis=1).astype("float32")
    sums = [
        linear_cross_entropy(states, kernel, classes[None], label_smoothing=s) for s in (0, 0.1)
    ]
    return {
        "tokens": TokenCrossEntropy()(classes[None], logits[None]),
        "smoothed": TokenCrossEntropy(0.1)(classes[None], logits[None]),
        "perplexity": Perplexity()(classes[None], logits[None]),
        "classes": ClassCrossEntropy()(classes, logits),
        "soft classes": ClassCrossEntropy()(soft, logits),
        "pairs": ContrastiveLoss()(np.ones(4), square),
        "some pairs": ContrastiveLoss()(np.ones(4), square, sample_weight=np.array([1, 1, 0, 1])),
        "teacher": distillation_loss(logits[::-1].copy(), logits, temperature=2.0),
        "in chunks": sums[0].loss,
        "in chunks, smoothed": sums[1].loss,
        "text as frames": CTCLoss()(np.array([[1, 10]]), logits[None]),
    }


def test_a_number_added_to_all_logits_changes_no_loss():
    """The softmax is the same, and so is the loss to the last digits of float32."""
    plain, moved = offset_losses(0.0), offset_losses(OFFSET)
    wide = WHOLE.astype("float64")
    shares = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    mean = -np.mean(shares[np.arange(4), [3, 0, 10, 5]])
    assert float(plain["tokens"]) == pytest.approx(mean, rel=1e-6)
    for name, loss in plain.items():
        assert float(moved[name]) == pytest.approx(float(loss), rel=1e-5), name
    zeros = np.zeros((1, 1, 4), "float32")
    assert float(TokenCrossEntropy()(np.array([[0]]), zeros + OFFSET)) == pytest.approx(np.log(4))
