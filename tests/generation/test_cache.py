"""The cache by itself: slots, positions, growing, repeating, reordering."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.generation import Cache
from keras_transformer.generation.compiling import compile_function
from tests.generation.common import make_backbone


class Model:
    """A backbone as a compiled function of NumPy arrays."""

    def __init__(self, backbone):
        self.backbone = backbone
        self.whole = compile_function(backbone, backbone)
        self.part = compile_function(lambda inputs, cache: backbone(inputs, cache=cache), backbone)

    def __call__(self, inputs, cache=None):
        inputs = {name: ops.convert_to_tensor(np.asarray(x)) for name, x in inputs.items()}
        if cache is None:
            return ops.convert_to_numpy(self.whole(inputs))
        states, cache = self.part(inputs, cache)
        return ops.convert_to_numpy(states), cache


@pytest.fixture(scope="module")
def model():
    return Model(make_backbone("decoder", position="rotary", num_key_value_heads=2))


def test_pieces_give_what_the_whole_gives(model):
    ids = np.array([[5, 6, 7, 8, 9, 10]])
    cache = Cache.create(model.backbone, rows=1, slots=4)
    first, cache = model({"token_ids": ids[:, :3]}, cache)
    second, cache = model({"token_ids": ids[:, 3:4]}, cache)
    cache = cache.grow(9)
    third, cache = model({"token_ids": ids[:, 4:]}, cache)
    whole = model({"token_ids": ids})
    np.testing.assert_allclose(np.concatenate([first, second, third], 1), whole, atol=1e-5)
    assert (int(cache.start), int(cache.end)) == (4, 6)
    assert ops.convert_to_numpy(cache.filled).tolist() == [[True] * 6 + [False] * 3]


def test_rows_of_different_lengths_keep_their_own_positions(model):
    ids, mask = [[5, 6, 7], [8, 0, 0]], [[True] * 3, [True, False, False]]
    cache = Cache.create(model.backbone, rows=2, slots=5)
    _, cache = model({"token_ids": ids, "padding_mask": mask}, cache)
    last, cache = model({"token_ids": [[9], [10]]}, cache)
    assert ops.convert_to_numpy(cache.lengths).tolist() == [4, 2]
    assert ops.convert_to_numpy(cache.positions)[:, 3].tolist() == [3, 1]
    assert ops.convert_to_numpy(cache.filled).tolist() == [
        [True, True, True, True, False],
        [True, False, False, True, False],
    ]
    alone = model({"token_ids": [[8, 10]]})
    np.testing.assert_allclose(last[1, 0], alone[0, -1], atol=1e-5)


def test_repeat_and_reorder(model):
    cache = Cache.create(model.backbone, rows=2, slots=4)
    _, cache = model({"token_ids": [[5, 6], [7, 8]]}, cache)
    assert cache.repeat(1) is cache
    cache = cache.repeat(2)
    assert ops.convert_to_numpy(cache.lengths).tolist() == [2] * 4
    # Rows 0 and 1 are of one prompt: they part, then both go on as row 1 did.
    _, cache = model({"token_ids": [[9], [10], [11], [12]]}, cache)
    cache = cache.reorder(ops.convert_to_tensor([1, 1, 3, 2]))
    last, _ = model({"token_ids": [[13]] * 4}, cache)
    pasts = [[5, 6, 10], [5, 6, 10], [7, 8, 12], [7, 8, 11]]
    whole = model({"token_ids": [[*past, 13] for past in pasts]})
    np.testing.assert_allclose(last[:, 0], whole[:, -1], atol=1e-5)


def test_encoder_states_are_projected_once():
    model = Model(make_backbone("seq2seq"))
    source, target = np.array([[5, 6, 7]]), np.array([[1, 8, 9]])
    whole = model({"encoder_token_ids": source, "decoder_token_ids": target})
    cache = Cache.create(model.backbone, rows=1, slots=4)
    assert cache.layers[0]["cross"] == ()
    _, cache = model({"encoder_token_ids": source, "decoder_token_ids": target[:, :1]}, cache)
    assert cache.layers[0]["cross"][0].shape == (1, 3, 4, 4)
    last, _ = model({"decoder_token_ids": target[:, 1:]}, cache)
    np.testing.assert_allclose(last, whole[:, 1:], atol=1e-5)


@pytest.mark.parametrize("kind", ["decoder", "seq2seq"])
def test_bytes_are_counted_before_they_are_taken(kind):
    backbone = make_backbone(kind, num_key_value_heads=2)
    cache = Cache.create(backbone, rows=3, slots=5)
    ids = np.ones((3, 2), "int32")
    inputs = {"token_ids": ids}
    if kind == "seq2seq":
        inputs = {"encoder_token_ids": np.ones((3, 7), "int32"), "decoder_token_ids": ids}
    _, cache = backbone(inputs, cache=cache)
    arrays = [x for layer in cache.layers for side in layer.values() for x in side]
    taken = sum(ops.convert_to_numpy(x).nbytes for x in arrays)
    assert Cache.count_bytes(backbone.config, rows=3, slots=5, source=7) == taken
