"""Numbers of parameters against the published ones, from the config alone: nothing is allocated."""

import math

import pytest

from keras_transformer import TransformerConfig
from keras_transformer.config.structure import variable_shapes

pytestmark = pytest.mark.backend_independent


def parameters(**values):
    return sum(map(math.prod, variable_shapes(TransformerConfig(**values)).values()))


def transformer(width, heads, inner):
    return parameters(
        kind="seq2seq",
        vocabulary_size=37_000,
        hidden_dim=width,
        num_layers=6,
        num_heads=heads,
        intermediate_dim=inner,
    )


def derived(width, inner):
    """Vaswani et al. 2017, section 3: post-norm, biases in all projections, one shared matrix."""
    attention = 4 * (width**2 + width)
    feed_forward = 2 * width * inner + inner + width
    norm = 2 * width
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    return 37_000 * width + 6 * (encoder + decoder)


def test_transformer_base_and_big():
    """The paper's table 3 prints 65 and 213 million, in whole millions.

    Its description gives 63.1 and 214.2 with "about 37000" rows in the shared matrix, 3% below
    and 0.6% above. No number of rows gives both: 65 million needs about 40,700 of them in the base
    model, 213 million about 35,800 in the big one. (Without the biases of the attention it would
    be 36,864 parameters fewer, which is nothing.)
    """
    base, big = transformer(512, 8, 2048), transformer(1024, 16, 4096)
    assert base == derived(512, 2048) == 63_082_496
    assert big == derived(1024, 4096) == 214_245_376
    assert base / 65e6 == pytest.approx(0.97, abs=0.005)
    assert big / 213e6 == pytest.approx(1.006, abs=0.001)
    rows = [37_000 + (65e6 - base) / 512, 37_000 + (213e6 - big) / 1024]
    assert [round(number, -2) for number in rows] == [40_700, 35_800]


@pytest.mark.parametrize(
    ("width", "layers", "heads", "published"),
    [(768, 12, 12, 109_482_240), (1024, 24, 16, 335_141_888)],
)
def test_bert_with_pooler(width, layers, heads, published):
    count = parameters(
        kind="encoder",
        vocabulary_size=30_522,
        hidden_dim=width,
        num_layers=layers,
        num_heads=heads,
        intermediate_dim=4 * width,
        embedding_normalization=True,
        position="learned",
        segment_vocabulary_size=2,
        pooler=True,
    )
    assert count == published


@pytest.mark.parametrize(
    ("width", "layers", "heads", "published"),
    [
        (768, 12, 12, 124_439_808),
        (1024, 24, 16, 354_823_168),
        (1280, 36, 20, 774_030_080),
        (1600, 48, 25, 1_557_611_200),
    ],
)
def test_gpt2(width, layers, heads, published):
    count = parameters(
        kind="decoder",
        vocabulary_size=50_257,
        hidden_dim=width,
        num_layers=layers,
        num_heads=heads,
        intermediate_dim=4 * width,
        position="learned",
        max_sequence_length=1024,
        normalize_first=True,
    )
    assert count == published
