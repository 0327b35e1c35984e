"""Keras's own test of layers, `keras.src.testing.TestCase.run_layer_test`, on each public layer.

It tries a config's round trips, building by a shape, a symbolic and an eager call of the same
shapes, half precision, and for some a step of `fit`. What does not apply, and why:

- `KeyValueCache`, `AttentionMask`, `RelativeStates`, `Fusion`, `StageFusion` and `combine_masks`
  are no layers.
- `FusionDecoder` and `StageFusionDecoder` are called with the grids of patches too, which this test
  cannot give.
- Layers with two or more arrays (`ALiBi`, `RelativePositionBias`, `RelativeEmbedding`, attention
  and blocks across) are given them as a dict, which the model of its training step does not take.
- A training step is run of one layer of each kind of weights: the others differ in nothing that it
  looks at, and each is a program to compile.
- `RelativeEmbedding` makes a bucket of each pair, which are integers in mixed precision too.
"""

import pytest
from keras.src.testing import TestCase

from keras_transformer import config, layers

STATES, SOURCE, IDS = (2, 4, 8), (2, 3, 8), (2, 4)
PAIRS = {"query_positions_shape": (1, 4), "key_positions_shape": (1, 3)}
ACROSS = {"query_shape": STATES, "value_shape": SOURCE}

# A layer, its options, the shapes that it is called with, that of the outputs, and how.
PART = config.Block(
    mixer=config.Attention(num_heads=2, position=config.Rotary()),
    feed_forward=config.Experts(number=2, dim=3),
    residual=config.Residual(order="pre"),
)
CASES = {
    "attention": (layers.MultiHeadAttention, {"num_heads": 2, "head_dim": 4}, STATES, STATES, {}),
    "attention across": (
        layers.MultiHeadAttention,
        {"num_heads": 2, "head_dim": 4, "output_dim": 6, "score": "general"},
        ACROSS,
        (2, 4, 6),
        {},
    ),
    "encoder": (
        layers.EncoderBlock,
        {"num_heads": 2, "intermediate_dim": 6, "dropout": 0.1},
        STATES,
        STATES,
        {"trained": True},
    ),
    "block": (layers.Block, {"config": PART, "causal": True}, STATES, STATES, {}),
    "decoder": (layers.DecoderBlock, {"num_heads": 2, "intermediate_dim": 6}, STATES, STATES, {}),
    "decoder across": (
        layers.DecoderBlock,
        {"num_heads": 2, "intermediate_dim": 6, "cross_attention": True},
        {"inputs_shape": STATES, "encoder_states_shape": SOURCE},
        STATES,
        {},
    ),
    "feed-forward": (
        layers.FeedForward,
        {"intermediate_dim": 6, "output_dim": 5, "gated": True},
        STATES,
        (2, 4, 5),
        {},
    ),
    "experts": (layers.MixtureOfExperts, {"num_experts": 3, "expert_dim": 6}, STATES, STATES, {}),
    "dropout": (layers.Dropout, {"rate": 0.2, "seed": 1}, STATES, STATES, {}),
    "sinusoidal": (layers.SinusoidalPosition, {}, STATES, STATES, {}),
    "learned": (
        layers.LearnedPosition,
        {"max_sequence_length": 5, "hidden_dim": 8},
        STATES,
        STATES,
        {},
    ),
    "rotary": (layers.RotaryEmbedding, {}, (2, 4, 2, 6), (2, 4, 2, 6), {}),
    "relative bias": (layers.RelativePositionBias, {"num_heads": 2}, PAIRS, (1, 2, 4, 3), {}),
    "alibi": (layers.ALiBi, {"num_heads": 2}, PAIRS, (1, 2, 4, 3), {}),
    "relative states": (
        layers.RelativeEmbedding,
        {"dim": 8, "num_buckets": 4},
        PAIRS,
        ((1, 4, 8), (1, 4, 3)),
        {},
    ),
    "tokens": (
        layers.TokenEmbedding,
        {"vocabulary_size": 9, "hidden_dim": 8},
        IDS,
        STATES,
        {"trained": True},
    ),
    "segments": (layers.SegmentEmbedding, {"num_segments": 9, "hidden_dim": 8}, IDS, STATES, {}),
    "vocabulary": (layers.VocabularyBias, {"vocabulary_size": 8}, STATES, STATES, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_it_passes(name):
    layer, options, shapes, expected, how = CASES[name]
    integers = shapes is IDS or shapes is PAIRS
    dtype = "int32" if integers else "float32"
    if isinstance(shapes, dict):
        dtype = dict.fromkeys(shapes, dtype)
    if shapes is PAIRS:
        expected = layers.RelativeStates(*expected) if len(expected) == 2 else expected
    TestCase().run_layer_test(
        layer,
        options,
        input_shape=shapes,
        input_dtype=dtype,
        expected_output_shape=expected,
        run_training_check=how.get("trained", False),
    )


@pytest.mark.one_backend
def test_all_layers_are_tried():
    public = {getattr(layers, name) for name in layers.__all__}
    apart = {
        layers.KeyValueCache,
        layers.AttentionMask,
        layers.RelativeStates,
        layers.Fusion,
        layers.StageFusion,
        layers.FusionDecoder,
        layers.StageFusionDecoder,
        layers.combine_masks,
    }
    assert public - apart == {case[0] for case in CASES.values()}
