"""Functions and layers of one's own as score and as activation."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import DecoderBlock, FeedForward, MultiHeadAttention
from tests.layers.conftest import assert_close, random

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


@pytest.mark.backend_independent
def test_an_unknown_name_is_still_refused():
    with pytest.raises(ValueError, match="Unknown activation"):
        FeedForward(4, activation="rellu")
    with pytest.raises(ValueError, match="Unknown score"):
        MultiHeadAttention(2, 2, score="dott")
