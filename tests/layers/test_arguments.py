"""No argument of a layer is ignored: what would have no effect is refused, in a graph too."""

import keras
import numpy as np
import pytest

from keras_transformer import layers
from keras_transformer.config import TransformerConfig
from keras_transformer.layers import Visibility
from keras_transformer.layers.slots import Slots
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
        {"cross_visibility": Visibility(query_pack=PACK, key_pack=SOURCE_PACK)},
        "`cross_visibility` would",
    ),
    "mask without states": (across, {"encoder_states_mask": SOURCE_MASK}, "give `encoder_states`"),
    "documents of one side": (
        across,
        {"encoder_states": SOURCE, "cross_visibility": Visibility(key_pack=SOURCE_PACK)},
        "`key_pack` would be ignored: `query_pack`",
    ),
    "option of the layer": (
        decoder,
        {"visibility": Visibility(window=2)},
        "`window` would be ignored: they are options of the layer",
    ),
    "positions of the decoder": (
        decoder,
        {"visibility": Visibility(query_positions=POSITIONS)},
        "`query_positions` would.*`rotary`",
    ),
    "keys of the decoder": (
        lambda: decoder(rotary={}),
        {"visibility": Visibility(query_positions=POSITIONS, key_positions=POSITIONS)},
        "`key_positions` would be ignored",
    ),
    "positions of the encoder": (
        encoder,
        {"visibility": Visibility(query_positions=POSITIONS)},
        "`query_positions` would.*`window`",
    ),
    "positions of a window": (
        lambda: plain(window=2),
        {"visibility": Visibility(query_positions=POSITIONS)},
        "`query_positions` would.*with a `window` and a cache",
    ),
    "positions": (
        plain,
        {"visibility": Visibility(query_positions=POSITIONS)},
        "`query_positions` would be ignored",
    ),
    "both positions": (
        plain,
        {
            "value": SOURCE,
            "visibility": Visibility(query_positions=POSITIONS, key_positions=KEYS),
        },
        "`query_positions` and `key_positions` would be ignored",
    ),
    "own keys": (
        rotary,
        {"visibility": Visibility(query_positions=POSITIONS, key_positions=POSITIONS)},
        "`key_positions` would.*Give `query_positions`",
    ),
    "mask of no value": (plain, {"value_mask": MASK}, "`value_mask` would be ignored: there is no"),
    "documents of keys": (
        plain,
        {"visibility": Visibility(key_pack=PACK)},
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
        {"visibility": Visibility(explicit=np.ones((5, 5), bool))},
        r"`explicit` must be of shape \(2, 5, 5\), received \(5, 5\)",
    ),
    "pairs with heads": (
        decoder,
        {"visibility": Visibility(explicit=np.ones((2, 2, 5, 4), bool))},
        r"`explicit` must be of shape \(2, heads, 5, 5\), received \(2, 2, 5, 4\)",
    ),
    "bias": (encoder, {"bias": random(2, 5, 5)}, r"`bias` must .* \(2, heads, 5, 5\), received"),
    "documents": (
        encoder,
        {"visibility": Visibility(query_pack=PACK[0])},
        r"`query_pack` must .* \(2, 5\), received \(5,\)",
    ),
    "positions": (
        rotary,
        {"visibility": Visibility(query_positions=KEYS)},
        r"`query_positions` .* \(2, 5\), received \(2, 7\)",
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


def test_one_row_or_pair_stands_for_all():
    for make in (plain, encoder, decoder):
        layer = make()
        assert_close(layer(X, mask=MASK[1:]), layer(X, mask=MASK[[1, 1]]))
        assert_close(layer(X, bias=random(1, 1, 5, 5)), layer(X, bias=random(1, 2, 5, 5)[:, :1]))
    attention = plain()
    of_keys = MASK[1:, None]
    assert_close(
        attention(X, visibility=Visibility(explicit=of_keys)), attention(X, mask=MASK[[1, 1]])
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
    packed = Visibility(query_pack=PACK, key_pack=(np.arange(7) > 2) + SOURCE_PACK)
    assert differs(block(X, encoder_states=SOURCE, cross_visibility=packed), states)
    scattered = Visibility(query_positions=POSITIONS * 3 % 7)
    for make in (plain, encoder, decoder):
        layer = make(rotary={})
        assert differs(layer(X, visibility=scattered), layer(X))


def slots(length):
    return Slots.make(rows=2, heads=2, slots=length, head_dim=4, dtype="float32")


def test_arguments_beside_a_cache():
    attention = plain()
    attention(X)
    with pytest.raises(ValueError, match="`key` would be ignored: the keys are those of the cache"):
        attention(X, key=X, cache=slots(7).full())
    block = across()
    block(X, encoder_states=SOURCE)
    cache = {"self": slots(5), "cross": None}
    with pytest.raises(ValueError, match="that holds their keys and values"):
        block(X, cache=cache)


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
    return TransformerConfig(kind=kind, **sizes, intermediate_dim=12, **values)


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
