"""Positions against their formulas and the reference implementations."""

import keras
import ml_dtypes
import numpy as np
import pytest

from keras_transformer.config import (
    Attention,
    Block,
    GatedRelativeBias,
    GridRotary,
    PatchStemConfig,
    Rotary,
    RotaryAxes,
    Side,
    Tokens,
    Window,
)
from keras_transformer.layers import (
    ALiBi,
    LearnedPosition,
    RelativePositionBias,
    RotaryEmbedding,
    SinusoidalPosition,
)
from keras_transformer.layers.position import GridRotaryEmbedding
from tests.layers.conftest import assert_close, differs, numpy, random


def sinusoids(length, dim):
    """Vaswani et al. 2017, section 3.5, value by value."""
    table = np.zeros((length, dim))
    for pos in range(length):
        for i in range(dim // 2):
            angle = pos / 10000 ** (2 * i / dim)
            table[pos, 2 * i : 2 * i + 2] = np.sin(angle), np.cos(angle)
    return table.astype("float32")


def test_sinusoidal_table():
    table = SinusoidalPosition()(np.zeros((2, 200, 16), "float32"))
    assert_close(table, np.stack([sinusoids(200, 16)] * 2), atol=2e-5)
    positions = np.array([[0, 1, 5], [9, 0, 199]])
    given = SinusoidalPosition()(np.zeros((2, 3, 16), "float32"), positions=positions)
    assert_close(given, sinusoids(200, 16)[positions], atol=2e-5)


def test_sinusoidal_table_of_tensor2tensor():
    """As fairseq and Transformers' TrOCR compute it, from a position that is not 0."""
    table = np.zeros((9, 16))
    for pos in range(9):
        angles = (pos + 2) * np.exp(-np.log(10000) / 7 * np.arange(8))
        table[pos] = np.concatenate([np.sin(angles), np.cos(angles)])
    layer = SinusoidalPosition(interleaved=False, offset=2, inclusive=True)
    assert_close(layer(np.zeros((1, 9, 16), "float32")), table[None], atol=1e-5)
    given = layer(np.zeros((1, 3, 16), "float32"), positions=np.array([[8, 0, 1]]))
    assert_close(given, table[None, [8, 0, 1]], atol=1e-5)
    with pytest.raises(ValueError, match="`inclusive` needs a last dimension of at least 4"):
        SinusoidalPosition(inclusive=True)(np.zeros((1, 3, 2), "float32"))


def test_sinusoidal_angles_are_float32_in_half_precision():
    table = SinusoidalPosition(dtype="mixed_bfloat16")(np.zeros((1, 500, 16), "float32"))
    assert keras.backend.standardize_dtype(table.dtype) == "bfloat16"
    assert_close(table, sinusoids(500, 16)[None], atol=0.005)


def test_sinusoidal_odd_width():
    with pytest.raises(ValueError, match="need an even last dimension, received 5"):
        SinusoidalPosition()(np.zeros((1, 3, 5), "float32"))


def test_learned_positions():
    layer = LearnedPosition(6, 8)
    result = layer(np.zeros((2, 4, 8), "float32"))
    table = numpy(layer.embeddings)
    assert_close(result, np.stack([table[:4]] * 2))
    positions = np.array([[5, 0, 1], [2, 2, 3]])
    assert_close(layer(np.zeros((2, 3, 8), "float32"), positions=positions), table[positions])


def test_more_tokens_than_learned_positions():
    message = "The sequence has 7 tokens, but there are learned positions for 6 only. Truncate"
    with pytest.raises(ValueError, match=message):
        LearnedPosition(6, 8)(np.zeros((2, 7, 8), "float32"))


def test_learned_positions_in_int8():
    layer = LearnedPosition(6, 8)
    x = np.zeros((1, 4, 8), "float32")
    before = numpy(layer(x))
    layer.quantize("int8", type_check=False)
    assert_close(layer(x), before, atol=1e-3)
    with pytest.raises(ValueError, match="learned positions for 6 only"):
        layer(np.zeros((1, 7, 8), "float32"))


def test_rotary_equals_the_reference(torch):
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    x, positions = random(2, 5, 3, 8), np.array([[0, 1, 2, 3, 4], [7, 3, 90, 0, 1]])
    frequencies = 1 / 10000 ** (torch.arange(0, 8, 2) / 8)
    angles = torch.tensor(positions)[..., None] * frequencies
    angles = torch.cat([angles, angles], dim=-1)
    queries = torch.tensor(x).transpose(1, 2)
    expected, _ = llama.apply_rotary_pos_emb(queries, queries, angles.cos(), angles.sin())
    result = RotaryEmbedding()(x, positions=positions)
    assert_close(result, expected.transpose(1, 2).numpy())


def test_rotary_of_neighbouring_features():
    """Su et al. 2021, equation 34: each pair is a complex number, times one on the circle."""
    x, positions = random(2, 5, 3, 10), np.array([[0, 1, 2, 3, 4], [7, 3, 90, 0, 1]])
    angles = positions[..., None] / 10000 ** (np.arange(0, 8, 2) / 8)
    turned = (x[..., 0:8:2] + 1j * x[..., 1:8:2]) * np.exp(1j * angles)[:, :, None]
    expected = x.copy()
    expected[..., 0:8:2], expected[..., 1:8:2] = turned.real, turned.imag
    result = RotaryEmbedding(dim=8, interleaved=True)(x, positions=positions)
    assert_close(result, expected, atol=1e-5)


def test_rotary_clockwise():
    """By negative angles: back from where the usual rotation goes."""
    x, positions = random(2, 5, 3, 8), np.array([[0, 1, 2, 3, 4], [7, 3, 90, 0, 1]])
    there = RotaryEmbedding()(x, positions=positions)
    clockwise = RotaryEmbedding(direction="clockwise")
    assert_close(clockwise(there, positions=positions), x, atol=1e-5)
    angles = positions[..., None] / 10000 ** (np.arange(0, 8, 2) / 8)
    turned = (x[..., :4] + 1j * x[..., 4:]) * np.exp(-1j * angles)[:, :, None]
    expected = np.concatenate([turned.real, turned.imag], axis=-1).astype("float32")
    assert_close(clockwise(x, positions=positions), expected, atol=1e-5)


def test_factors_of_rotated_queries():
    options = {"scaling": "yarn", "factor": 4.0, "original_length": 3}
    rotary = RotaryEmbedding(**options, attention_factor=1.5, query_growth=0.4)
    x, positions = random(2, 4, 3, 8), np.array([[0, 2, 3, 9], [1, 5, 6, 300]])
    usual = RotaryEmbedding(**options)
    raised = numpy(usual(x)) * 1.5 / (0.1 * np.log(4) + 1)
    assert_close(rotary(x), raised, atol=1e-5)
    growth = 1 + 0.4 * np.log(1 + positions // 3)
    queries = keras.ops.convert_to_tensor(x)
    assert_close(rotary.scaled_queries(queries, positions), x * growth[..., None, None])
    assert_close(rotary.scaled_queries(queries)[:, :3], x[:, :3])
    with pytest.raises(ValueError, match="`attention_factor` of rotary positions needs scaling="):
        RotaryEmbedding(attention_factor=1.5)
    with pytest.raises(ValueError, match="`query_growth` of rotary positions needs `original_len"):
        RotaryEmbedding(query_growth=0.4)


_FACTORS = {"short_factors": [1.0, 1.5, 2.0, 2.5], "long_factors": [2.0, 4.0, 5.0, 9.0]}


@pytest.mark.parametrize(
    ("values", "further"),
    [
        ({"rope_type": "dynamic", "factor": 3.0}, {}),
        ({"rope_type": "longrope", "factor": 4.0}, _FACTORS),
    ],
)
def test_angles_that_depend_on_the_length(torch, values, further):
    transformers = pytest.importorskip("transformers")
    module = pytest.importorskip("transformers.models.llama.modeling_llama")
    lists = {name.removesuffix("s"): value for name, value in further.items()}
    config = transformers.LlamaConfig(
        hidden_size=16, num_attention_heads=2, max_position_embeddings=6,
        rope_parameters={"rope_theta": 50.0, **values, **lists},
    )  # fmt: skip
    kind, factor = values["rope_type"], values["factor"]
    rotary = RotaryEmbedding(50.0, scaling=kind, factor=factor, original_length=6, **further)
    x = random(2, 11, 2, 8)
    for length in (4, 6, 7, 11):
        reference = module.LlamaRotaryEmbedding(config)
        part = torch.tensor(x[:, :length]).transpose(1, 2)
        cos, sin = reference(part, torch.arange(length)[None])
        expected = module.apply_rotary_pos_emb(part, part, cos, sin)[0].transpose(1, 2).numpy()
        assert_close(rotary(x[:, :length]), expected, atol=1e-5)
        # Of a row that is padded, and of the last token of one that came before.
        lengths = np.array([length] * 2)
        assert_close(rotary(x, lengths=lengths)[:, :length], expected, atol=1e-5)
        last = rotary(x[:, length - 1 : length], positions=np.array([[length - 1]] * 2))
        assert_close(last, expected[:, -1:], atol=1e-5)


def test_rotary_products_depend_on_the_distance_alone():
    rotary, x = RotaryEmbedding(), random(1, 2, 1, 8)

    def product(first, second):
        y = numpy(rotary(x, positions=np.array([[first, second]])))
        return (y[0, 0, 0] * y[0, 1, 0]).sum()

    assert product(3, 5) == pytest.approx(product(13, 15), abs=1e-5)
    assert product(3, 5) != pytest.approx(product(3, 6), abs=1e-3)
    norms = np.linalg.norm(numpy(rotary(x)), axis=-1)
    np.testing.assert_allclose(norms, np.linalg.norm(x, axis=-1), rtol=1e-5)


@pytest.mark.parametrize("dim", [8, 16, 24, 32, 64, 72, 128])
def test_rotary_angles_rounded_to_float16(torch, dim):
    """As `half()` rounds the angles of a model on PyTorch, of the head sizes of ESM-2."""
    angles = (1 / 10000 ** (torch.arange(0, dim, 2) / dim)).half().float()
    found = RotaryEmbedding(precision="float16").frequencies(dim)
    np.testing.assert_array_equal(found.astype("float32"), angles.numpy())
    with pytest.raises(ValueError, match="precision='float16' and scaling='linear'"):
        RotaryEmbedding(precision="float16", scaling="linear", factor=2.0)
    with pytest.raises(ValueError, match="'float32', 'float16'"):
        RotaryEmbedding(precision="float64")


def test_rotary_of_grouped_axes():
    """Pixtral's: rows and columns share the wavelengths in turns, each with its pairs together.

    Feature by feature, after Agrawal et al. 2024, "Pixtral 12B", section 2.2, in the order of
    features of Transformers: the first quarter of a head and the third rotate by rows.
    """
    x = random(1, 6, 2, 12)
    places = np.array([[[0, 0], [0, 1], [1, 0], [2, 5], [7, 3], [9, 9]]], "int32")
    axes = RotaryAxes(pairs=(3, 3), order="grouped")
    found = numpy(RotaryEmbedding(base=50.0, position_axes=axes)(x, positions=places))
    expected = np.zeros_like(x)
    for pair in range(6):
        axis, step = divmod(pair, 3)
        angle = places[..., axis] * 50.0 ** (-2 * (2 * step + axis) / 12)
        first, second = x[..., pair], x[..., pair + 6]
        sin, cos = np.sin(angle)[..., None], np.cos(angle)[..., None]
        expected[..., pair] = first * cos - second * sin
        expected[..., pair + 6] = second * cos + first * sin
    assert_close(found, expected)


def test_rotary_of_axes_apart():
    """Gemma 4's: the columns rotate the first half of a head as if it were one, rows the second.

    Feature by feature, after the published code.
    """
    x = random(2, 6, 2, 12)
    places = np.array([[[0, 0], [0, 1], [1, 0], [2, 5], [7, 3], [9, 9]]] * 2, "int32")
    rotary = RotaryEmbedding(base=50.0, position_axes=RotaryAxes(pairs=(3, 3), order="apart"))
    expected = np.zeros_like(x)
    for half, axis in enumerate((1, 0)):
        for pair in range(3):
            angle = places[..., axis] * 50.0 ** (-2 * pair / 6)
            place = 6 * half + pair
            first, second = x[..., place], x[..., place + 3]
            sin, cos = np.sin(angle)[..., None], np.cos(angle)[..., None]
            expected[..., place] = first * cos - second * sin
            expected[..., place + 3] = second * cos + first * sin
    assert_close(rotary(x, positions=places), expected)
    once = np.repeat(np.arange(6)[None, :, None], 2, axis=-1)  # a number is that of all axes
    assert_close(rotary(x), rotary(x, positions=np.repeat(once, 2, axis=0)))


def test_rotary_odd_width():
    with pytest.raises(ValueError, match="need an even number of features.*received 5"):
        RotaryEmbedding()(np.zeros((1, 3, 2, 5), "float32"))


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 20)])
def test_relative_bias_equals_t5(torch, bidirectional, buckets, distance):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    layer = RelativePositionBias(3, buckets, distance, bidirectional=bidirectional)
    queries, keys = np.arange(150)[None], np.arange(170)[None]
    result = layer(queries, keys)
    relative = torch.tensor(keys[0][None] - queries[0][:, None])
    expected = t5.T5Attention._relative_position_bucket(
        relative, bidirectional=bidirectional, num_buckets=buckets, max_distance=distance
    ).numpy()
    assert_close(result, numpy(layer.embeddings)[expected].transpose(2, 0, 1)[None])


def test_relative_bias_by_row():
    layer = RelativePositionBias(2)
    rows = np.array([[0, 1, 2], [5, 9, 0]])
    result = numpy(layer(rows, rows))
    assert result.shape == (2, 2, 3, 3)
    for i in range(2):
        assert_close(layer(rows[i : i + 1], rows[i : i + 1])[0], result[i])


def test_relative_bias_of_layers():
    """Each layer has the bias of its own table."""
    positions = np.arange(7)[None]
    layer, one = RelativePositionBias(2, 8, 20, num_layers=3), RelativePositionBias(2, 8, 20)
    layer.build()
    tables = random(3, 8, 2)
    layer.embeddings.assign(tables)
    one.build()
    for number, table in enumerate(tables):
        one.embeddings.assign(table)
        assert_close(layer(positions, positions, layer=number), one(positions, positions))


@pytest.mark.parametrize(
    "values",
    [
        {"num_buckets": 3},
        {"num_buckets": 1, "bidirectional": False},
        {"num_buckets": 32, "max_distance": 8},
        {"num_buckets": 32, "max_distance": 16, "bidirectional": False},
    ],
)
def test_relative_buckets_that_leave_nothing_to_share(values):
    with pytest.raises(ValueError, match="leave no distances to share a bucket"):
        RelativePositionBias(2, **values)


def test_alibi_slopes_of_the_paper():
    # Press et al. 2021, section 3: for 8 heads 1/2, 1/4, ... 1/256; 16 heads from 1/sqrt(2).
    positions = np.array([[0, 1]])
    eight = -numpy(ALiBi(8)(positions, positions))[0, :, 1, 0]
    np.testing.assert_allclose(eight, [2.0**-i for i in range(1, 9)])
    sixteen = -numpy(ALiBi(16)(positions, positions))[0, :, 1, 0]
    np.testing.assert_allclose(sixteen, [2 ** (-i / 2) for i in range(1, 17)], rtol=1e-6)
    # Between powers of two: slopes of 8 heads, then every other one of 16 (the authors' code).
    twelve = -numpy(ALiBi(12)(positions, positions))[0, :, 1, 0]
    np.testing.assert_allclose(twelve, [*eight, *sixteen[0:8:2]], rtol=1e-6)


def test_alibi_is_linear_in_the_distance():
    queries, keys = np.array([[2, 5]]), np.array([[0, 2, 9]])
    result = numpy(ALiBi(8)(queries, keys))
    assert result.shape == (1, 8, 2, 3)
    np.testing.assert_allclose(result[0, 0], [[-1, 0, -3.5], [-2.5, -1.5, -2]])


def test_alibi_in_numbers_of_bfloat16():
    """Compiled too: XLA leaves out a cast there and back."""
    bfloat16 = ml_dtypes.bfloat16
    places = np.random.default_rng(0).integers(0, 9000, (2, 300)).astype("int32")
    slopes = -numpy(ALiBi(12)(np.array([[1]]), np.array([[0]]))).astype(bfloat16)
    products = (slopes * places[:, None, None].astype(bfloat16)).astype("float32")
    expected = 0.25 * -np.abs(products - products[..., :1])
    layer = ALiBi(12, scale=0.25, rounded=True)
    keys = keras.Input((300,), dtype="int32")
    model = keras.Model(keys, layer(keys[:, :1], keys))
    model.compile(jit_compile=keras.backend.backend() != "torch")
    np.testing.assert_array_equal(model.predict(places, verbose=0), expected)
    np.testing.assert_array_equal(numpy(layer(places[:, :1], places)), expected)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (SinusoidalPosition(), (2, 5, 8)),
        (LearnedPosition(9, 8), (2, 5, 8)),
        (RotaryEmbedding(), (2, 5, 2, 8)),
    ],
)
def test_symbolic_shapes_equal_the_real_ones(layer, shape):
    x = random(2, 5, 8) if len(shape) == 3 else random(2, 5, 2, 8)
    positions = np.tile(np.arange(5), (2, 1))
    symbolic = keras.KerasTensor(x.shape), keras.KerasTensor((2, 5), dtype="int32")
    assert layer(x).shape == layer(symbolic[0]).shape == shape
    result = layer(x, positions=positions)
    assert result.shape == layer(symbolic[0], positions=symbolic[1]).shape == x.shape
    assert not differs(layer(x), result, by=1e-6)


def test_a_rotation_over_a_grid():
    """Its products depend on the distance in rows and columns, as a share of the grid."""
    layer = GridRotaryEmbedding(base=30.0)
    places = np.array([[[0, 0, 1, 1], [0, 1, 4, 6], [1, 3, 4, 6], [2, 3, 4, 6], [3, 5, 4, 6]]])
    x = np.random.default_rng(0).normal(size=(2, 1, 3, 8)).astype("float32")
    y = numpy(layer(np.repeat(x, 5, axis=1), positions=places))
    assert np.abs(y[:, 0] - x[:, 0]).max() == 0  # the only place of its grid
    products = np.einsum("blhd,bmhd->lmbh", y, y)
    assert_close(products[1, 2], products[3, 4])  # one row and two columns apart
    assert np.abs(products[1, 2] - products[2, 3]).max() > 1e-2
    # The first pair of rows and of columns turns once from the middle to the last edge.
    angle = np.pi * 2 * (2 * (3 + 0.5) / 4 - 1)
    turned = x[:, 0, :, 0] * np.cos(angle) - x[:, 0, :, 4] * np.sin(angle)
    assert_close(y[:, 4, :, 0], turned)


@pytest.mark.backend_independent
def test_where_grouped_axes_do_not_fit():
    with pytest.raises(ValueError, match="order='grouped' needs an axis first that has at least"):
        RotaryAxes(pairs=(2, 3), order="grouped")


@pytest.mark.backend_independent
def test_where_axes_apart_do_not_fit():
    with pytest.raises(ValueError, match="order='apart' needs axes with as many pairs each"):
        RotaryAxes(pairs=(2, 3), order="apart")
    axes = RotaryAxes(pairs=(2, 2), order="apart")
    for options in ({"dim": 8}, {"interleaved": True}):
        with pytest.raises(ValueError, match="order='apart' of `position_axes` rotates whole"):
            Rotary(position_axes=axes, **options)


@pytest.mark.backend_independent
def test_where_a_rotation_over_a_grid_does_not_fit():
    attention = Attention(num_heads=2, position=GridRotary())
    side = {"hidden_dim": 16, "num_layers": 1, "block": Block(mixer=attention)}
    with pytest.raises(ValueError, match="needs a stem of patches"):
        Side(input=Tokens(vocabulary_size=9), **side)
    with pytest.raises(ValueError, match="a multiple of 4, received 6"):
        Side(input=PatchStemConfig(), **{**side, "hidden_dim": 12})
    with pytest.raises(ValueError, match="which a `PatchStem` makes"):
        GridRotaryEmbedding()(np.zeros((1, 2, 1, 8), "float32"))
    bias = GatedRelativeBias()
    with pytest.raises(ValueError, match="cannot be combined"):
        Attention(num_heads=2, score_bias=bias, pattern=Window(size=3))
    with pytest.raises(ValueError, match="a multiple of `num_heads`, received 15 and 2"):
        block = Block(mixer=Attention(num_heads=2, head_dim=8, score_bias=bias))
        Side(input=Tokens(vocabulary_size=9), hidden_dim=15, num_layers=1, block=block)
