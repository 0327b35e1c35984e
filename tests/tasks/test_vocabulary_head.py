"""Training with the projection in the loss, against training from logits."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.tasks.heads.vocabulary_head import VocabularyHead
from keras_transformer.training import Perplexity, TokenAccuracy, TokenCrossEntropy
from tests.generation.common import on_one

TEXTS = ["a man rides a bike .", "two dogs run on the grass .", "nobody is here ."] * 32
SIZES = {"hidden_dim": 16, "num_layers": 1, "num_heads": 2, "intermediate_dim": 32}


class FromLogits(kt.CausalLM):
    """A subclass with a `call` of its own, which the loss cannot look into."""

    def call(self, inputs, training=False):
        return self.backbone.logits(self.backbone(inputs, training=training))


@functools.cache  # one training may number the tokens otherwise than another
def tokenizer_of(kind):
    return kt.Tokenizer.train(TEXTS, kind=kind, vocabulary_size=300)


def make(name, **values):
    keras.utils.set_random_seed(0)
    kind, task, text = {
        "causal": ("decoder", kt.CausalLM, "bpe"),
        "from_logits": ("decoder", FromLogits, "bpe"),
        "seq2seq": ("seq2seq", kt.Seq2SeqLM, "bpe"),
        "masked": ("encoder", kt.MaskedLM, "wordpiece"),
    }[name]
    tokenizer = tokenizer_of(text)
    config = kt.TransformerConfig(
        kind=kind, vocabulary_size=tokenizer.vocabulary_size, **SIZES, **values
    )
    return task(kt.models.build_backbone(config), tokenizer)


def train(task):
    """The history of four epochs with validation."""
    x = (TEXTS, TEXTS[::-1]) if isinstance(task, kt.Seq2SeqLM) else (TEXTS,)
    y = dict(zip("xy", x, strict=False))
    validation = (x[0][:5], x[1][:5]) if len(x) == 2 else x[0][:5]
    return task.fit(**y, epochs=4, seed=1, verbose=0, validation_data=validation).history


def compile_(task):
    task.compile(
        keras.optimizers.Adam(0.01),
        TokenCrossEntropy(label_smoothing=0.1),
        weighted_metrics=[Perplexity(), TokenAccuracy()],
    )


@pytest.mark.parametrize(
    "name, values",
    [
        ("causal", {"tie_embeddings": False, "output_bias": True}),
        on_one("seq2seq", {"scale_logits": True, "dropout": 0.1}),
        on_one("seq2seq", {"output_transform": "gelu", "projector": "linear"}),
        on_one("masked", {}),
    ],
)
def test_training_is_that_from_logits(name, values, monkeypatch):
    found = []
    for projects in (True, False):
        task = make(name, **values)
        compile_(task)
        assert task.training_loss() is not None
        if not projects:
            monkeypatch.setattr(VocabularyHead, "training_loss", lambda self: None)
        found.append(train(task))
    history, expected = found
    assert history.keys() == expected.keys()
    for key, values in expected.items():
        np.testing.assert_allclose(history[key], values, rtol=1e-3)
    assert 0 < history["accuracy"][-1] < 1


@pytest.mark.one_backend
def test_outside_of_training_the_outputs_are_logits():
    task = make("causal")
    train(task)
    batch = task.make_dataset(TEXTS[:4])[0][0]
    shape = (*batch["token_ids"].shape, task.backbone.config.vocabulary_size)
    assert task(batch, training=True).shape == task.predict_on_batch(batch).shape == shape


@pytest.mark.one_backend
def test_other_metrics_losses_and_calls_get_logits():
    def check(**compiled):
        task = make("causal")
        task.compile("sgd", **compiled)
        assert task.training_loss() is None
        return train(task)

    loss = TokenCrossEntropy()
    assert "perplexity" in check(loss=loss, metrics=[Perplexity()])
    assert "k" in check(
        loss=loss, weighted_metrics=[keras.metrics.SparseTopKCategoricalAccuracy(name="k")]
    )
    assert "loss" in check(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    task = make("from_logits")
    assert task.training_loss() is None
    np.testing.assert_allclose(train(task)["loss"], train(make("causal"))["loss"], rtol=1e-4)


@pytest.mark.one_backend
def test_a_loss_without_metrics_needs_no_logits():
    task = make("causal")
    task.compile("sgd", loss=TokenCrossEntropy())
    assert task.training_loss() is not None
    expected = make("from_logits").evaluate(TEXTS, verbose=0, return_dict=True)["loss"]
    found = task.evaluate(TEXTS, verbose=0, return_dict=True)["loss"]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.one_backend
def test_metrics_of_before_are_kept_as_keras_keeps_them():
    task = make("causal")
    task.evaluate(TEXTS[:3], verbose=0)
    for arguments in (("sgd", TokenCrossEntropy()), ("sgd",)):
        task.compile(*arguments)
        assert task.training_loss() is not None
        logs = task.evaluate(TEXTS[:3], verbose=0, return_dict=True)
        assert logs["perplexity"] == pytest.approx(np.exp(logs["loss"]), rel=1e-4)
    task.compile("sgd", TokenCrossEntropy(), metrics=[keras.metrics.SparseCategoricalAccuracy()])
    task.compile("sgd", TokenCrossEntropy())
    assert task.training_loss() is None  # the metric of before needs logits


def test_padding_is_left_to_causality_only_where_no_loss_counts_it():
    """On PyTorch, where a mask can be looked at; a loss of all positions is that of a call."""
    task = make("causal", dropout=0.0)
    task.compile(keras.optimizers.SGD(0.0), TokenCrossEntropy())
    x, y, weights = task.make_dataset(TEXTS[:3], max_buckets=1)[0]
    assert not x["padding_mask"].all()
    for given in ((x, y), (x, y, weights), (x, y, np.ones_like(weights))):
        expected = task.test_on_batch(*given)
        np.testing.assert_allclose(task.train_on_batch(*given), expected, rtol=1e-5)
    masked = "padding_mask" in task.backbone.without_unseen_padding(x, weights)
    assert masked == (keras.backend.backend() != "torch")
    assert "padding_mask" in task.backbone.without_unseen_padding(x, np.ones_like(weights))
    shifted = {name: array[:, ::-1].copy() for name, array in x.items()}
    assert "padding_mask" in task.backbone.without_unseen_padding(shifted)


@pytest.mark.one_backend
def test_regularizers_count():
    task = make("causal")
    task.backbone.token_embedding.embeddings.regularizer = keras.regularizers.L2(0.1)
    expected = 0.1 * float(ops.sum(ops.square(task.backbone.token_embedding.embeddings)))
    plain = make("causal").evaluate(TEXTS, verbose=0)[0]
    assert task.evaluate(TEXTS, verbose=0)[0] - plain == pytest.approx(expected, rel=1e-3)


@pytest.mark.cpu  # a GPU makes more of them at a time
@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="JAX alone says what a compiled step needs"
)
def test_the_memory_of_a_step_is_less_than_half():
    """A vocabulary of 32,000 words, 4,096 tokens: what the compiler says it needs."""
    import jax

    config = kt.TransformerConfig(
        kind="decoder", **{**SIZES, "vocabulary_size": 32_000, "hidden_dim": 64}
    )
    backbone = kt.models.build_backbone(config)
    ids = np.zeros((8, 512), "int32")
    batch = {"token_ids": ids, "padding_mask": np.ones_like(ids, "bool")}

    def bytes_of(task_class):
        task = task_class(backbone)
        task.optimizer.build(task.trainable_variables)
        state = [
            [variable.value for variable in variables]
            for variables in (
                task.trainable_variables,
                task.non_trainable_variables,
                task.optimizer.variables,
                task.metrics_variables,
            )
        ]
        data = (batch, ids, np.ones(ids.shape, "float32"))
        task._symbolic_build(data_batch=data)
        state[-1] = [variable.value for variable in task.metrics_variables]
        compiled = jax.jit(task.train_step).lower(state, data).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert bytes_of(kt.CausalLM) < 0.5 * bytes_of(FromLogits)


@pytest.mark.one_backend("tensorflow")
@pytest.mark.parametrize("name", ["causal", "masked"])
def test_run_eagerly_learns_the_same(name):
    """Also of a bias of the vocabulary, which TensorFlow then hands on as a variable."""
    losses = []
    for eager in (False, True):
        task = make(name, **({"output_bias": True} if name == "causal" else {}))
        task.compile(keras.optimizers.Adam(0.01), run_eagerly=eager)
        history = task.fit(TEXTS[:8], epochs=2, seed=1, verbose=0).history
        losses.append(history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-5)
