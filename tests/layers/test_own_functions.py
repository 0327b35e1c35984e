"""Functions and layers of one's own as score and as activation."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import DecoderBlock, EncoderBlock, FeedForward, MultiHeadAttention
from tests.layers.conftest import assert_close, random, randomize

X = random(2, 5, 8)


@keras.saving.register_keras_serializable("tests")
def squared(x):
    return ops.square(ops.relu(x))


@keras.saving.register_keras_serializable("tests")
def scaled(queries, keys):
    return ops.einsum("bnth,bnsh->bnts", queries, keys) / 2**0.5


@keras.saving.register_keras_serializable("tests")
class General(keras.layers.Layer):
    """`q W k`, with one matrix for all heads."""

    def build(self, queries_shape, keys_shape):
        size = queries_shape[-1]
        self.matrix = self.add_weight(shape=(size, size), initializer="identity", name="matrix")

    def call(self, queries, keys):
        return scaled(ops.matmul(queries, self.matrix), keys)


def model(**options):
    inputs = keras.Input((None, 8))
    block = DecoderBlock(4, 16, num_key_value_heads=2, dropout=0.1, **options)
    return keras.Model(inputs, block(inputs))


@pytest.mark.parametrize("score", [scaled, General])
@pytest.mark.parametrize("activation", [squared, keras.layers.Activation])
def test_it_computes_and_is_saved_as_the_name_is(score, activation, tmp_path):
    named = model(score="scaled_dot", activation="relu_squared")
    own = model(
        score=score() if score is General else score,
        activation=activation(squared) if activation is not squared else squared,
    )
    weights = iter(named.get_weights())
    for variable in own.weights:
        if variable.name != "matrix":
            variable.assign(next(weights))
    expected = named.predict(X, verbose=0)
    assert_close(own.predict(X, verbose=0), expected)
    own.save(tmp_path / "own.keras")
    assert_close(keras.models.load_model(tmp_path / "own.keras").predict(X, verbose=0), expected)


def test_weights_of_ones_own_are_there_and_learn():
    own = model(score=General(), activation=keras.layers.PReLU(shared_axes=[1]))
    names = [v.name for v in own.trainable_variables]
    assert names.count("matrix") == names.count("alpha") == 1
    own.compile(keras.optimizers.SGD(0.5), "mse")
    before = {v.path: np.array(v.numpy()) for v in own.trainable_variables}
    own.fit(X, X, verbose=0)
    for variable in own.trainable_variables:
        if variable.name in ("matrix", "alpha"):
            assert np.abs(variable.numpy() - before[variable.path]).max() > 0


def shared_by(kind):
    """A model whose attentions, blocks or functions are given one layer with weights."""
    x, source = keras.Input((5, 8)), keras.Input((7, 8))
    score, activation = General(), keras.layers.PReLU(shared_axes=[1])
    if kind == "cross-attention":
        block = DecoderBlock(2, 16, score=score, activation=activation, cross_attention=True)
        return keras.Model([x, source], block(x, encoder_states=source)), 2, 1
    if kind == "convolution":
        options = {"convolution_size": 3, "convolution_activation": activation}
        block = EncoderBlock(2, 8, score=score, activation=activation, **options)
        return keras.Model(x, block(x)), 1, 2
    if kind == "experts":
        options = {"num_experts": 3, "shared_expert_dim": 16}
        block = EncoderBlock(2, 16, activation=activation, **options)
        return keras.Model(x, block(x)), 0, 2
    y = EncoderBlock(2, 16, score=score, activation=activation)(x)
    y = EncoderBlock(2, 16, score=score, activation=activation)(y)
    return keras.Model(x, MultiHeadAttention(2, 4, score=score)(y)), 3, 2


@pytest.mark.one_backend
@pytest.mark.parametrize("kind", ["cross-attention", "convolution", "experts", "blocks"])
def test_a_layer_that_several_are_given_is_each_ones_own_in_a_file(kind, tmp_path):
    built, scores, activations = shared_by(kind)
    names = [v.name for v in built.trainable_variables]
    assert names.count("matrix") == scores and names.count("alpha") == activations
    randomize(built)
    arrays = [random(2, *x.shape[1:]) for x in built.inputs]
    expected = built(arrays if len(arrays) > 1 else arrays[0])
    built.save(tmp_path / "model.keras")
    built.save_weights(tmp_path / "model.weights.h5")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_close(loaded(arrays if len(arrays) > 1 else arrays[0]), expected)
    randomize(loaded, seed=1)
    loaded.load_weights(tmp_path / "model.weights.h5")
    assert_close(loaded(arrays if len(arrays) > 1 else arrays[0]), expected)


@pytest.mark.one_backend
def test_a_copy_of_a_layer_begins_with_its_weights():
    first = MultiHeadAttention(2, 4, score=General())
    first(X)
    first.score.matrix.assign(random(4, 4))
    second = MultiHeadAttention(2, 4, score=first.score)
    second(X)
    assert second.score is not first.score
    assert_close(second.score.matrix, first.score.matrix)


@pytest.mark.backend_independent
def test_an_unknown_name_is_still_refused():
    with pytest.raises(ValueError, match="Unknown activation"):
        FeedForward(4, activation="rellu")
    with pytest.raises(ValueError, match="`score` must be one of"):
        MultiHeadAttention(2, 2, score="dott")
