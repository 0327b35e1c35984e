"""No argument of a layer is ignored: what would have no effect is refused, in a graph too."""

import sys

import keras
import numpy as np
import pytest

from keras_transformer import layers
from keras_transformer.config import TransformerConfig
from keras_transformer.layers import AttentionMask
from keras_transformer.layers import arguments as checking
from keras_transformer.layers.attention.key_value_cache import KeyValueCache
from keras_transformer.models import Decoder, Encoder, Seq2Seq
from tests.layers.conftest import assert_close, differs, random

X, SOURCE = random(2, 5, 8), random(2, 7, 8, seed=1)
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)
SOURCE_MASK = np.ones((2, 7), bool)
POSITIONS = np.arange(10, dtype="int32").reshape(2, 5)
PACK, SOURCE_PACK = np.zeros((2, 5), "int32"), np.zeros((2, 7), "int32")
KEYS = np.zeros((2, 7), "int32")


def plain(**options):
    return layers.MultiHeadAttention(2, 4, **options)


def rotary():
    return plain(rotary={})


def encoder(**options):
    return layers.EncoderBlock(2, 12, **options)


def decoder(**options):
    return layers.DecoderBlock(2, 12, **options)


def across():
    return decoder(cross_attention=True)


# A layer, what would be ignored, and what the message names.
UNUSED = {
    "states": (decoder, {"encoder_states": SOURCE}, "`encoder_states` .*`cross_attention=True`"),
    "states' mask": (decoder, {"encoder_states_mask": SOURCE_MASK}, "`encoder_states_mask` would"),
    "states' documents": (
        decoder,
        {"cross_visibility": AttentionMask(query_pack=PACK, key_pack=SOURCE_PACK)},
        "`cross_visibility` would",
    ),
    "mask without states": (across, {"encoder_states_mask": SOURCE_MASK}, "give `encoder_states`"),
    "documents of one side": (
        across,
        {"encoder_states": SOURCE, "cross_visibility": AttentionMask(key_pack=SOURCE_PACK)},
        "`key_pack` would be ignored: `query_pack`",
    ),
    "option of the layer": (
        decoder,
        {"visibility": AttentionMask(causal=True)},
        "`causal` would be ignored: these fields follow from the options of the layer",
    ),
    "positions of the decoder": (
        decoder,
        {"visibility": AttentionMask(query_positions=POSITIONS)},
        "`query_positions` would.*`rotary`",
    ),
    "keys of the decoder": (
        lambda: decoder(rotary={}),
        {"visibility": AttentionMask(query_positions=POSITIONS, key_positions=POSITIONS)},
        "`key_positions` would be ignored",
    ),
    "positions of the encoder": (
        encoder,
        {"visibility": AttentionMask(query_positions=POSITIONS)},
        "`query_positions` would.*`window`",
    ),
    "positions of a window": (
        lambda: plain(window=2),
        {"visibility": AttentionMask(query_positions=POSITIONS)},
        "`query_positions` would.*with a `window` and a cache",
    ),
    "positions": (
        plain,
        {"visibility": AttentionMask(query_positions=POSITIONS)},
        "`query_positions` would be ignored",
    ),
    "both positions": (
        plain,
        {
            "value": SOURCE,
            "visibility": AttentionMask(query_positions=POSITIONS, key_positions=KEYS),
        },
        "`query_positions` and `key_positions` would be ignored",
    ),
    "own keys": (
        rotary,
        {"visibility": AttentionMask(query_positions=POSITIONS, key_positions=POSITIONS)},
        "`key_positions` would.*Give `query_positions`",
    ),
    "mask of no value": (plain, {"value_mask": MASK}, "`value_mask` would be ignored: there is no"),
    "documents of keys": (
        plain,
        {"visibility": AttentionMask(key_pack=PACK)},
        "`key_pack` would be ignored",
    ),
}


@pytest.mark.parametrize("symbolic", [False, True], ids=["called", "in a graph"])
@pytest.mark.parametrize("name", UNUSED)
def test_what_would_be_ignored_is_refused(name, symbolic):
    make, arguments, message = UNUSED[name]
    x = X
    if symbolic:
        x = keras.Input((None, 8))
        arguments = keras.tree.map_structure(
            lambda value: (
                keras.Input((None, *value.shape[2:]), dtype=str(value.dtype))
                if isinstance(value, np.ndarray)
                else value
            ),
            arguments,
        )
    with pytest.raises(ValueError, match=message):
        make()(x, **arguments)


# A layer, an array that does not fit, and what the message says.
MISFITS = {
    "short mask": (
        encoder,
        {"mask": MASK[:, :4]},
        r"`mask` must be .* \(2, 5\), received \(2, 4\)",
    ),
    "mask of one token": (encoder, {"mask": MASK[:, :1]}, r"`mask` .* received \(2, 1\)"),
    "mask of pairs": (
        decoder,
        {"mask": np.ones((2, 5, 5), bool)},
        r"`mask` must be of shape \(2, 5\), received \(2, 5, 5\)",
    ),
    "mask of other rows": (plain, {"mask": np.ones((3, 5), bool)}, r"\(2, 5\), received \(3, 5\)"),
    "mask of the states": (
        across,
        {"encoder_states": SOURCE, "encoder_states_mask": MASK},
        r"`encoder_states_mask` must be of shape \(2, 7\), received \(2, 5\)",
    ),
    "mask of the value": (
        plain,
        {"value": SOURCE, "value_mask": MASK},
        r"`value_mask` must be of shape \(2, 7\), received \(2, 5\)",
    ),
    "pairs without rows": (
        plain,
        {"visibility": AttentionMask(explicit=np.ones((5, 5), bool))},
        r"`explicit` must be of shape \(2, 5, 5\), received \(5, 5\)",
    ),
    "pairs with heads": (
        decoder,
        {"visibility": AttentionMask(explicit=np.ones((2, 2, 5, 4), bool))},
        r"`explicit` must be of shape \(2, heads, 5, 5\), received \(2, 2, 5, 4\)",
    ),
    "bias": (encoder, {"bias": random(2, 5, 5)}, r"`bias` must .* \(2, heads, 5, 5\), received"),
    "documents": (
        encoder,
        {"visibility": AttentionMask(query_pack=PACK[0])},
        r"`query_pack` must .* \(2, 5\), received \(5,\)",
    ),
    "positions": (
        rotary,
        {"visibility": AttentionMask(query_positions=KEYS)},
        r"`query_positions` .* \(2, 5\), received \(2, 7\)",
    ),
}


IDS = np.zeros((2, 5), "int32")
HEADS = random(2, 5, 2, 4)
FURTHER = random(2, 2, 5, 8)  # an axis too many
MISFITS |= {
    "more keys": (
        plain,
        {"value": SOURCE, "key": random(2, 9, 8)},
        r"`key` of MultiHeadAttention must be of shape \(2, 7, key_dim\), received \(2, 9, 8\)",
    ),
    "fewer keys": (plain, {"value": SOURCE, "key": X}, r"`key` .* \(2, 7, .* received \(2, 5, 8\)"),
    "keys of no value": (plain, {"key": SOURCE}, r"`key` .* \(2, 5, .* received \(2, 7, 8\)"),
    "values of other rows": (plain, {"value": random(3, 7, 8)}, r"`value` .* \(2, .* \(3, 7, 8\)"),
    "values with heads": (plain, {"value": FURTHER}, r"`value` .* received \(2, 2, 5, 8\)"),
    "no keys": (plain, {"value": X[:, :0]}, r"`value` .* no keys to attend to: .* \(2, 0, 8\)"),
    "states of other rows": (
        across,
        {"encoder_states": random(3, 7, 8)},
        r"`encoder_states` of DecoderBlock must be of shape \(2, .* received \(3, 7, 8\)",
    ),
    "buckets of pairs": (
        lambda: plain(disentangled="shared"),
        {"relative": layers.RelativeStates(random(1, 4, 8), np.zeros((1, 5, 4), "int32"))},
        r"`buckets` must be of shape \(2, 5, 5\), received \(1, 5, 4\)",
    ),
    "added positions": (
        lambda: layers.SinusoidalPosition(),
        {"positions": KEYS},
        r"`positions` of SinusoidalPosition must be of shape \(2, 5\), received \(2, 7\)",
    ),
    "learned positions": (
        lambda: layers.LearnedPosition(9, 8),
        {"positions": KEYS[0]},
        r"`positions` of LearnedPosition must .* received \(7,\)",
    ),
    "mask of experts": (
        lambda: layers.MixtureOfExperts(2, 4),
        {"mask": MASK[:, :4]},
        r"`mask` of MixtureOfExperts must be of shape \(2, 5\), received \(2, 4\)",
    ),
}


@pytest.mark.parametrize("symbolic", [False, True], ids=["called", "in a graph"])
@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_the_states_is_refused(name, symbolic):
    make, arguments, message = MISFITS[name]
    x = X
    if symbolic:
        x, arguments = (
            keras.tree.map_structure(
                lambda a: (
                    keras.Input(batch_shape=a.shape, dtype=str(a.dtype))
                    if isinstance(a, np.ndarray)
                    else a
                ),
                part,
            )
            for part in (x, arguments)
        )
    with pytest.raises(ValueError, match=message):
        make()(x, **arguments)


# A layer, once built for states of width 8, and shapes of another rank or width.
OTHER_RANKS = {
    "attention": (plain, X, [(2, 8), (2, 2, 5, 8), (2, 5, 4)]),
    "encoder": (encoder, X, [(2, 8), (2, 2, 5, 8), (2, 5, 4)]),
    "decoder": (decoder, X, [(2, 8), (2, 2, 5, 8), (2, 5, 4)]),
    "feed-forward": (lambda: layers.FeedForward(4), X, [(8,), (2, 5, 4)]),
    "experts": (lambda: layers.MixtureOfExperts(2, 4), X, [(8,), (2, 5, 4)]),
    "sinusoidal": (
        lambda: layers.SinusoidalPosition(),
        X,
        [(8,), (5, 8), (2, 5, 2, 8), (2, 5, 7)],
    ),
    "learned": (
        lambda: layers.LearnedPosition(9, 8),
        X,
        [(8,), (5, 8), (2, 5, 2, 8), (2, 5, 4)],
    ),
    "rotary": (
        lambda: layers.RotaryEmbedding(),
        HEADS,
        [(4,), (2, 5), (2, 5, 8), (2, 5, 2, 2, 4), (2, 5, 2, 3)],
    ),
    "bias of the vocabulary": (lambda: layers.VocabularyBias(8), X, [(8,), (2, 5, 4), (2, 5, 1)]),
}


@pytest.mark.parametrize("name", OTHER_RANKS)
def test_states_of_another_rank_or_width_are_refused(name):
    make, states, shapes = OTHER_RANKS[name]
    layer = make()
    layer(states)
    for shape in shapes:
        for given in (random(*shape), keras.Input(batch_shape=shape)):
            with pytest.raises(ValueError, match=r"(?s)must be|takes states|need an even"):
                layer(given)


def test_positions_of_pairs_have_rows():
    for layer in (
        layers.ALiBi(2),
        layers.RelativePositionBias(2),
        layers.RelativeEmbedding(8, num_buckets=4),
    ):
        assert layer(IDS[:1], KEYS) is not None and layer(IDS, KEYS[:1]) is not None
        for queries, keys in ((IDS[0], KEYS), (IDS, KEYS[:1, 0]), (IDS, np.zeros((3, 7), "int32"))):
            for symbolic in (False, True):
                given = [
                    keras.Input(batch_shape=x.shape, dtype="int32") if symbolic else x
                    for x in (queries, keys)
                ]
                with pytest.raises(
                    ValueError, match=rf"_positions` of {type(layer).__name__} must"
                ):
                    layer(*given)
    embedding = layers.TokenEmbedding(9, 8)
    embedding(IDS)
    with pytest.raises(ValueError, match=r"`inputs` of TokenEmbedding .* \(\.\.\., 8\), received"):
        embedding(random(2, 5, 4), reverse=True)


# Values that a config refuses of the same option, and of options that a config has not.
OUT_OF_RANGE = [
    (plain, {"window": 0}, "`window` must be at least 1, received 0"),
    (plain, {"window": -2}, "`window` must be at least 1"),
    (plain, {"window": 1.5}, "`window` must be of type int, received 1.5 of type float"),
    (plain, {"window": True}, "`window` must be of type int"),
    (plain, {"causal": "yes"}, "`causal` must be True or False"),
    (plain, {"dropout": 1.0}, r"`dropout` is a rate and must be in \[0, 1\)"),
    (plain, {"score_scale": -1.0}, "`score_scale` must be a positive number"),
    (plain, {"attention_soft_cap": 0.0}, "`attention_soft_cap` must be a positive number"),
    (plain, {"output_dim": 0}, "`output_dim` must be an integer of at least 1"),
    (plain, {"global_tokens": -1, "window": 2}, "`global_tokens` must be at least 0"),
    (plain, {"block_size": 0}, "`block_size` must be at least 1"),
    (plain, {"window": 2, "window_dilation": 0}, "`window_dilation` must be at least 1"),
    (plain, {"query_key_norm_across_heads": True}, "needs `query_key_norm`"),
    (plain, {"rotary": {"base": 0}}, "`base` must be a positive number"),
    (encoder, {"window": 0}, "`window` must be at least 1"),
    (encoder, {"head_dim": 0}, "`head_dim` must be at least 1"),
    (encoder, {"num_experts": -1}, "`num_experts` must be at least 0"),
    (encoder, {"gate_limit": 1.0}, "`gate_limit` needs `gated`"),
    (encoder, {"residual_scale": 0}, "`residual_scale` must be a positive number"),
    (encoder, {"attention_dropout": -0.1}, "`attention_dropout` is a rate"),
    (encoder, {"use_bias": 1}, "`use_bias` must be of type bool"),
    (decoder, {"cross_attention": 2}, "`cross_attention` must be True or False"),
    (lambda **kw: layers.FeedForward(0, **kw), {}, "`intermediate_dim` must be an integer of at"),
    (lambda **kw: layers.FeedForward(4, **kw), {"output_dim": 2.5}, "`output_dim` must be an int"),
    (lambda **kw: layers.MixtureOfExperts(2, 0, **kw), {}, "`expert_dim` must be at least 1"),
    (layers.SinusoidalPosition, {"max_wavelength": 0}, "`max_wavelength` must be a positive"),
    (layers.SinusoidalPosition, {"offset": -1}, "`offset` must be at least 0"),
    (lambda **kw: layers.LearnedPosition(0, 8, **kw), {}, "`max_sequence_length` must be at least"),
    (lambda **kw: layers.LearnedPosition(9, 8, **kw), {"offset": 0.5}, "`offset` must be of type"),
    (layers.RotaryEmbedding, {"dim": 0}, "`dim` must be at least 1"),
    (
        layers.RotaryEmbedding,
        {"scaling": "llama3", "factor": 2.0, "original_length": 8, "max_turns": 1.0},
        "needs `min_turns` below `max_turns`, received 1.0 and 1.0",
    ),
    (layers.RotaryEmbedding, {"interleaved": 1}, "`interleaved` must be of type bool"),
    (lambda **kw: layers.ALiBi(0, **kw), {}, "`num_heads` must be at least 1"),
    (lambda **kw: layers.ALiBi(2, **kw), {"scale": -1.0}, "`scale` must be a positive number"),
    (lambda **kw: layers.RelativePositionBias(2.0, **kw), {}, "`num_heads` must be of type int"),
    (lambda **kw: layers.RelativeEmbedding(0, **kw), {}, "`dim` must be at least 1"),
    (lambda **kw: layers.TokenEmbedding(0, 8, **kw), {}, "`vocabulary_size` must be an integer of"),
    (lambda **kw: layers.TokenEmbedding(9, 0, **kw), {}, "`hidden_dim` must be at least 1"),
    (lambda **kw: layers.SegmentEmbedding(-1, 8, **kw), {}, "`num_segments` must be an integer"),
    (lambda **kw: layers.VocabularyBias(1.5, **kw), {}, "`vocabulary_size` must be an integer"),
    (lambda **kw: layers.combine_masks(3, 3, **kw), {"window": 0}, "`window` must be an integer"),
    (
        lambda **kw: layers.combine_masks(3, 3, **kw),
        {"padding": MASK},
        r"`padding` must be of shape \(batch, 3\), received \(2, 5\)",
    ),
]


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("make", "options", "message"), OUT_OF_RANGE, ids=lambda x: None if callable(x) else str(x)[:40]
)
def test_options_out_of_range_are_refused_as_a_config_refuses_them(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_numbers_of_numpy_are_kept_as_those_of_python():
    layer = plain(window=np.int64(3), dropout=np.float32(0.5))
    assert [type(layer.get_config()[n]) for n in ("window", "dropout")] == [int, float]


def test_one_row_or_pair_stands_for_all():
    for make in (plain, encoder, decoder):
        layer = make()
        assert_close(layer(X, mask=MASK[1:]), layer(X, mask=MASK[[1, 1]]))
        assert_close(layer(X, bias=random(1, 1, 5, 5)), layer(X, bias=random(1, 2, 5, 5)[:, :1]))
    attention = plain()
    of_keys = MASK[1:, None]
    assert_close(
        attention(X, visibility=AttentionMask(explicit=of_keys)), attention(X, mask=MASK[[1, 1]])
    )


@pytest.mark.parametrize(
    ("make", "name", "ours"),
    [
        (encoder, "padding_mask", "mask"),
        (encoder, "attention_mask", "mask"),
        (decoder, "decoder_padding_mask", "mask"),
        (across, "encoder_sequence", "encoder_states"),
        (across, "encoder_padding_mask", "encoder_states_mask"),
        (across, "encoder_attention_mask", "encoder_states_mask"),
        (plain, "key_mask", "value_mask"),
        (plain, "attn_mask", "visibility"),
        (encoder, "attn_mask", "visibility"),
    ],
)
def test_an_argument_of_another_library_is_answered_with_ours(make, name, ours):
    message = (
        rf"got an unexpected keyword argument '{name}'\. It is `{ours}` here\. It takes .*bias"
    )
    for x in (X, keras.Input((5, 8))):
        with pytest.raises(TypeError, match=message):
            make()(x, **{name: MASK})


def test_arguments_of_another_block():
    for name in ("encoder_states", "cache", "cross_visibility"):
        with pytest.raises(TypeError, match=name):
            encoder()(X, **{name: SOURCE})


def test_what_is_used_changes_the_result():
    """The same arguments where they have an effect."""
    block = across()
    states = block(X, encoder_states=SOURCE)
    assert differs(block(X, encoder_states=SOURCE + 1), states)
    mask = SOURCE_MASK & (np.arange(7) < 3)
    assert differs(block(X, encoder_states=SOURCE, encoder_states_mask=mask), states)
    packed = AttentionMask(query_pack=PACK, key_pack=(np.arange(7) > 2) + SOURCE_PACK)
    assert differs(block(X, encoder_states=SOURCE, cross_visibility=packed), states)
    scattered = AttentionMask(query_positions=POSITIONS * 3 % 7)
    for make in (plain, encoder, decoder):
        layer = make(rotary={})
        assert differs(layer(X, visibility=scattered), layer(X))


def slots(length):
    return KeyValueCache.make(rows=2, heads=2, slots=length, head_dim=4, dtype="float32")


def test_arguments_beside_a_cache():
    attention = plain()
    attention(X)
    with pytest.raises(ValueError, match="`key` would be ignored: the keys come from the cache"):
        attention(X, key=X, cache=slots(7).full())
    block = across()
    block(X, encoder_states=SOURCE)
    cache = {"self": slots(5), "cross": None}
    with pytest.raises(ValueError, match="that holds their keys and values"):
        block(X, cache=cache)


def test_a_cache_that_does_not_fit_is_refused():
    attention = plain()
    attention(X)
    for rows, heads, head_dim in ((1, 2, 4), (2, 1, 4), (2, 2, 8)):
        cache = KeyValueCache.make(
            rows=rows, heads=heads, slots=7, head_dim=head_dim, dtype="float32"
        )
        message = rf"`cache` .* \(2, 2, slots, 4\), received \({rows}, {heads}, 7, {head_dim}\)"
        with pytest.raises(ValueError, match=message):
            attention(X, cache=cache)
    _, cache = attention(X, cache=slots(7))
    with pytest.raises(ValueError, match="7 slots, of which 2 are free: there is no room for 5"):
        attention(X, cache=cache)


@pytest.mark.parametrize("options", [{}, {"window": 2}, {"rotary": {}}])
@pytest.mark.parametrize("steps", [[5], [2, 3], [1, 1, 1, 1, 1]])
def test_a_causal_layer_stays_causal_with_a_cache(steps, options):
    """Also where nothing says which slots are seen, and which positions they have."""
    attention = plain(causal=True, **options)
    whole = attention(X)
    cache, start, parts = slots(6), 0, []
    for length in steps:
        part, cache = attention(X[:, start : start + length], cache=cache)
        parts.append(part)
        start += length
    assert_close(keras.ops.concatenate(parts, axis=1), whole)


def test_arguments_by_place_in_a_graph():
    """In a functional model a third argument is a key or a mask, and not the cache."""
    x, mask = keras.Input((None, 8)), keras.Input((None,), dtype="bool")
    for layer, arguments, given in (
        (plain(), [x, x, x], [X, X, X]),
        (across(), [x, x, mask], [X, X, MASK]),
        (encoder(), [x, mask], [X, MASK]),
    ):
        model = keras.Model([x, mask], layer(*arguments))
        assert model.output_shape == (None, None, 8)
        assert_close(model([X, MASK]), layer(*given))


def small(kind, **values):
    sizes = {"vocabulary_size": 9, "hidden_dim": 8, "num_layers": 1, "num_heads": 2}
    return TransformerConfig(kind=kind, intermediate_dim=12, **{**sizes, **values})


def test_inputs_that_a_model_has_no_use_for():
    ids = np.array([[3, 1, 4]])
    without = Encoder(small("encoder", position="none"))
    for name in ("segment_ids", "position_ids"):
        with pytest.raises(ValueError, match=f"`{name}` would be ignored: the model has no"):
            without({"token_ids": ids, name: ids * 0})
    packed = {"position_ids": ids * 0, "pack_ids": ids * 0}  # what every packed row has
    assert without({"token_ids": ids, **packed}).shape == (1, 3, 8)
    with_both = Encoder(small("encoder", segment_vocabulary_size=2))
    states = with_both({"token_ids": ids})
    for name in ("segment_ids", "position_ids"):
        assert differs(with_both({"token_ids": ids, name: ids * 0 + 1}), states)


def test_a_source_beside_its_states():
    backbone = Seq2Seq(small("seq2seq"))
    ids = np.array([[3, 1, 4]])
    given = {"decoder_token_ids": ids, "encoder_states": backbone.encode(ids)}
    assert_close(backbone(given), backbone({"decoder_token_ids": ids, "encoder_token_ids": ids}))
    with pytest.raises(ValueError, match="`encoder_token_ids` would be ignored: its"):
        backbone({**given, "encoder_token_ids": ids})


def test_positions_beside_a_cache():
    from keras_transformer.generation import Cache

    backbone = Decoder(small("decoder"))
    cache = Cache.create(backbone, rows=1, slots=4)
    ids = np.array([[3, 1, 4]])
    with pytest.raises(ValueError, match="`position_ids` would be ignored: the cache counts"):
        backbone({"token_ids": ids, "position_ids": ids}, cache=cache)


def test_options_that_do_nothing_alone():
    with pytest.raises(ValueError, match="factor=4.0 .* does nothing without `scaling`"):
        layers.RotaryEmbedding(factor=4.0)
    for scaling in (None, "dynamic"):
        with pytest.raises(ValueError, match=f"belong to .*longrope.*Received scaling={scaling!r}"):
            layers.RotaryEmbedding(
                scaling=scaling, original_length=4, short_factors=[1.0], long_factors=[1.0]
            )
    with pytest.raises(ValueError, match="must have 4 numbers.*received 1"):
        factors = {"short_factors": [1.0], "long_factors": [1.0]}
        rotary = layers.RotaryEmbedding(scaling="longrope", original_length=4, **factors)
        rotary(np.zeros((1, 2, 1, 8), "float32"))
    with pytest.raises(ValueError, match="`key_pack` would be ignored"):
        layers.combine_masks(5, 5, key_pack=PACK)


# Functions that check the arguments of a call.
CHECKS = {"__call__", "check_call", "check_axes", "check_shapes", "check_has_keys", "refuse_unused"}


def checks_of(call) -> int:
    """Return how often a call enters the checks of layers' arguments."""
    entered = 0

    def count(frame, event, argument):
        nonlocal entered
        code = frame.f_code
        if event == "call" and code.co_filename == checking.__file__:
            entered += code.co_name in CHECKS

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


def passes(num_layers):
    """Yield passes of small models by name."""
    from keras_transformer.generation import Cache

    ids = np.array([[3, 1, 4]])
    encoder = Encoder(small("encoder", num_layers=num_layers))
    yield "encoder", lambda: encoder({"token_ids": ids, "padding_mask": ids > 1})
    rotary = {"position": "rotary", "num_key_value_heads": 1, "num_experts": 2, "window": 2}
    decoder = Decoder(small("decoder", num_layers=num_layers, **rotary))
    yield "decoder", lambda: decoder({"token_ids": ids})
    cache = Cache.create(decoder, rows=1, slots=4)
    _, cache = decoder({"token_ids": ids}, cache=cache)
    yield "step", lambda: decoder({"token_ids": ids[:, :1]}, cache=cache)
    seq2seq = Seq2Seq(small("seq2seq", num_layers=num_layers))
    both = {"encoder_token_ids": ids, "decoder_token_ids": ids}
    yield "seq2seq", lambda: seq2seq(both)


@pytest.mark.one_backend
def test_the_first_block_of_a_model_checks_for_all():
    one, three = dict(passes(1)), dict(passes(3))
    for name, call in one.items():
        assert 0 < checks_of(call) == checks_of(three[name]), name
    block, x = layers.EncoderBlock(2, 12), random(2, 5, 8)
    alone = checks_of(lambda: block(x))
    assert alone <= checks_of(one["encoder"])
    attention = block.self_attention  # a part that is called by itself checks, too
    with pytest.raises(ValueError, match="`prefix` would be ignored"):
        attention(x, visibility=AttentionMask(prefix=np.ones((2, 5), "int32")))


class Halved(keras.layers.Layer):
    """The first two tokens, with the mask of all, as of a layer that forgets `compute_mask`."""

    supports_masking = True

    def call(self, x):
        return x[:, :2]

    def compute_output_shape(self, shape):
        return (shape[0], 2, shape[2])


@pytest.mark.parametrize("make", [plain, encoder])
@pytest.mark.parametrize("symbolic", [False, True], ids=["called", "in a graph"])
def test_a_propagated_mask_of_another_length_is_refused(make, symbolic):
    ids = keras.Input((5,), dtype="int32") if symbolic else np.ones((2, 5), "int32")
    x = Halved()(layers.TokenEmbedding(9, 8, mask_zero=True)(ids))
    with pytest.raises(
        ValueError, match=r"`mask` must be of shape \((2|None|batch), 2\), received"
    ):
        make()(x)


def test_a_block_refuses_what_its_parts_would():
    block = across()
    with pytest.raises(ValueError, match="has no keys to attend to"):
        block(X, encoder_states=SOURCE[:, :0])
    for own, cross in (((2, 1, 4), None), ((2, 2, 4), (2, 2, 8))):
        cache = {"self": slots_of(*own), "cross": cross and slots_of(*cross)}
        with pytest.raises(ValueError, match=r"must be of shape \(2, 2, slots, 4\)"):
            block(X, encoder_states=SOURCE, cache=cache)
    with pytest.raises(ValueError, match="even number of features, at most the head size 7"):
        layers.MultiHeadAttention(2, 7, rotary={})(X)


def slots_of(rows, heads, head_dim):
    return KeyValueCache.make(rows=rows, heads=heads, slots=7, head_dim=head_dim, dtype="float32")
