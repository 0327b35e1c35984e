"""The config: what it accepts, refuses and derives, and its way through JSON."""

import dataclasses
import json

import pytest

from keras_transformer import TransformerConfig
from keras_transformer.config.flat import DEFAULTS, FIELDS
from keras_transformer.config.options import Part, check_option

pytestmark = pytest.mark.backend_independent

SMALL = {
    "kind": "encoder",
    "vocabulary_size": 20,
    "hidden_dim": 12,
    "num_layers": 2,
    "num_heads": 3,
    "intermediate_dim": 16,
}
SEQ2SEQ = {**SMALL, "kind": "seq2seq"}


def config(**values):
    return TransformerConfig(**{**SMALL, **values})


def test_defaults_are_those_of_the_original_transformer():
    base = TransformerConfig(
        kind="seq2seq",
        vocabulary_size=37_000,
        hidden_dim=512,
        num_layers=6,
        num_heads=8,
        intermediate_dim=2048,
    )
    assert (base.head_dim, base.num_key_value_heads, base.num_decoder_layers) == (64, 8, 6)
    assert (base.activation, base.normalization, base.position) == (
        "relu",
        "layer_norm",
        "sinusoidal",
    )
    assert base.tie_embeddings and not base.normalize_first and not base.final_normalization


def test_values_that_follow_from_others():
    assert config(hidden_dim=13, head_dim=4, position="none").head_dim == 4
    assert config(normalize_first=True).final_normalization
    assert not config(normalize_first=True, final_normalization=False).final_normalization
    assert config(kind="seq2seq", num_decoder_layers=1).num_decoder_layers == 1
    assert config().num_decoder_layers is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_dim": 13}, "`hidden_dim` must be divisible by `num_heads`.*13.*3.*`head_dim`"),
        ({"num_key_value_heads": 2}, "multiple of `num_key_value_heads`, received 3 and 2"),
        ({"num_key_value_heads": 6}, "multiple of `num_key_value_heads`, received 3 and 6"),
        ({"kind": "decoder", "pooler": True}, "`pooler` needs kind='encoder'.*'decoder'"),
        ({"num_decoder_layers": 2}, "`num_decoder_layers` needs kind='seq2seq'.*'encoder'"),
        ({"position": "rotary", "head_dim": 5}, "'rotary' needs an even `head_dim`.*head_dim=5"),
        ({"hidden_dim": 15}, "'sinusoidal' needs an even `hidden_dim`, received 15"),
        (
            {"position": "relative", "relative_num_buckets": 3},
            "4 or more `relative_num_buckets`.*3 and 128",
        ),
        (
            {"position": "relative", "relative_max_distance": 16},
            "`relative_max_distance` above half.*32 and 16",
        ),
        ({"kind": "unet"}, "`kind` must be one of 'encoder', 'decoder', 'seq2seq'.*'unet'"),
        ({"position": "polar"}, "`position` must be one of 'none'.*'polar'"),
        ({"normalization": "batch"}, "`normalization` must be one of 'layer_norm'.*'batch'"),
        ({"activation": "swish"}, "`activation` must be one of 'relu'.*'swish'. It is 'silu' here"),
        ({"activation": "SwiGLU"}, "received 'SwiGLU'. It is 'silu' with `gated=True` here"),
        ({"score": "cos"}, "`score` must be one of 'scaled_dot'.*'cos'"),
        ({"embedding_dim": 8, "kind": "decoder"}, "need kind='encoder', received kind='decoder'"),
        ({"embedding_dim": 8, "embedding_projection": False}, "which needs `embedding_projection`"),
        ({"rotary_short_factors": [1.0]}, "`rotary_short_factors` needs rotary_scaling='longrope'"),
        (
            {"position": "rotary", "rotary_scaling": "longrope", "rotary_short_factors": [1, 0]},
            "`rotary_short_factors` must be . positive numbers",
        ),
        ({"num_layer_groups": 3}, "num_layer_groups=3 is more than num_layers=2"),
        ({"layers_per_group": 3}, "must be a multiple of 3, and at least 3"),
        ({"layers_per_group": 2, "num_layer_groups": 2}, "multiple of 2, and at least 4"),
        ({"num_layers": 10_001}, "`num_layers` must be at most 10,000, received 10001"),
        ({"kind": "seq2seq", "num_decoder_layers": 10**9}, "`num_decoder_layers` must be at most"),
        ({"kind": "seq2seq", "encoder": {"num_layers": 10**9}}, "`num_layers` must be at most"),
        ({"kind": "seq2seq", "decoder": {"num_layers": 10**9}}, "`num_layers` must be at most"),
        ({"layer_pattern": [{}] * 3}, "`layer_pattern` has 3 layers, the model only 2"),
        (
            {"layer_pattern": "local"},
            "`layer_pattern` must be of type tuple | list, received 'local'",
        ),
        ({"normalization": "batch_norm"}, "normalization='batch_norm' needs a `stem`"),
        ({"parallel_residual": True}, "`parallel_residual` needs `normalize_first`"),
        ({"share_normalization": True}, "`share_normalization` needs `parallel_residual`"),
        ({"residual_scale": 0.0}, "`residual_scale` must be a positive number, received 0.0"),
        ({"query_key_norm_across_heads": True}, "needs `query_key_norm`"),
        ({"query_key_norm_per_head": True}, "needs `query_key_norm` and a LayerNorm"),
        (
            {"query_key_norm_per_head": True, "query_key_norm": True, "normalization": "rms_norm"},
            "a LayerNorm, 'layer_norm' or 'layer_norm_no_bias', received 'rms_norm'",
        ),
        (
            {f"query_key_norm{end}": True for end in ("", "_per_head", "_across_heads")},
            "are two norms",
        ),
        ({"query_key_norm_after_rotation": True}, "_after_rotation` needs `query_key_norm`"),
        ({"rotary_attention_factor": 1.0}, "`rotary_attention_factor` needs a `rotary_scaling`"),
        ({"rotary_query_growth": 0.1}, "`rotary_query_growth` needs a `rotary_scaling`"),
        (
            {"rotary_scaling": "llama3", "rotary_attention_factor": 1.0},
            "needs the method 'yarn' or 'longrope', received 'llama3'",
        ),
        (
            {"rotary_scaling": "linear", "rotary_query_growth": 0.1},
            "with the method 'linear' needs an `original_length`",
        ),
        ({"rotary_direction": "left"}, "`rotary_direction` must be one of 'counterclockwise'"),
        ({"convolution_size": 2}, "must be odd, so that it is centered on a token, received 2"),
        ({"kind": "decoder", "convolution_size": 3}, "`convolution_size` needs kind='encoder'"),
        ({"token_projection": True}, "`token_projection` needs kind='decoder'"),
        ({"alibi_rounded": True}, "`alibi_rounded` need position='alibi'"),
        ({"position": "relative", "relative_bias": False}, "False and position='relative' contra"),
        ({"position": "alibi", "relative_bias": True}, "True and position='alibi' contradict"),
        (
            {
                "position": "relative",
                "relative_tables": "own",
                "window": 2,
                "global_block_size": 2,
            },
            "relative_tables='own' cannot be combined with `global_block_size`",
        ),
        ({"relative_tables": "each"}, "`relative_tables` must be one of 'own', 'shared'.*'each'"),
        ({"grid_bias": "own"}, "`grid_bias` needs a stem of patches with a class token"),
        ({"score_scale": 2.0, "score": "dot"}, "needs score='scaled_dot', received score='dot'"),
        ({"disentangled": "both"}, "`disentangled` must be one of None, 'shared', 'own'.*'both'"),
        ({"disentangled": "own", "score": "dot"}, "`disentangled` needs score='scaled_dot'"),
        ({"disentangled": "own", "kind": "decoder"}, "`disentangled` needs kind='encoder'"),
        ({"disentangled": "own", "relative_num_buckets": 3}, "received 3 and 128"),
        ({"disentangled": "own", "relative_max_distance": 15}, "received 32 and 15"),
        ({"position": "learned", "position_padding_id": 1}, "`position_offset` of at least 1"),
        ({"position": "rotary", "rotary_dim": 5}, "rotary_dim=5"),
        ({"position": "rotary", "rotary_dim": 6}, "rotary_dim=6 and head_dim=4"),
        ({"rotary_scaling": "ntk"}, "`rotary_scaling` must be one of None, 'linear'.*'ntk'"),
        (
            {"position": "rotary", "rotary_precision": "float16", "rotary_scaling": "linear"},
            "rotary_precision='float16' and rotary_scaling='linear' cannot be combined",
        ),
        ({"dropped_token_id": 10**6}, "`dropped_token_id` must be below `vocabulary_size`"),
        ({"dropped_token_id": 1, "kind": "decoder"}, "`dropped_token_id` needs kind='encoder'"),
        ({"rotary_min_turns": 32.0}, "`rotary_max_turns`.* received 32.0 and 32.0"),
        ({"position_offset": -1}, "`position_offset` must be at least 0, received -1"),
        ({"segment_vocabulary_size": -1}, "`segment_vocabulary_size` must be at least 0.*-1"),
        ({"hidden_dim": None}, "`hidden_dim` must be of type int, received None"),
        ({"hidden_dim": 12.0}, "`hidden_dim` must be of type int, received 12.0 of type float"),
        ({"num_layers": "2"}, "`num_layers` must be of type int, received '2' of type str"),
        ({"num_layers": True}, "`num_layers` must be of type int, received True of type bool"),
        ({"use_bias": 1}, "`use_bias` must be of type bool, received 1"),
        ({"kind": 3}, "`kind` must be of type str, received 3"),
        ({"dropout": "0.1"}, "`dropout` must be of type float, received '0.1'"),
    ],
)
def test_refuses(values, message):
    with pytest.raises(ValueError, match=message):
        config(**values)


@pytest.mark.parametrize(
    "name",
    [
        "embedding_dim",
        "hidden_dim",
        "num_layers",
        "num_heads",
        "max_sequence_length",
        "num_key_value_heads",
        "head_dim",
        "window",
        "relative_num_buckets",
        "relative_max_distance",
        "num_decoder_layers",
    ],
)
@pytest.mark.parametrize("value", [0, -4])
def test_refuses_numbers_below_one(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be at least 1, received {value}"):
        TransformerConfig(**{**SEQ2SEQ, name: value})


def test_a_width_of_zero_leaves_out_the_feed_forward_layer():
    assert (
        TransformerConfig(**{**SEQ2SEQ, "intermediate_dim": 0}).decoder.block.feed_forward is None
    )
    with pytest.raises(ValueError, match="`intermediate_dim` must be at least 0, received -4"):
        TransformerConfig(**{**SEQ2SEQ, "intermediate_dim": -4})


@pytest.mark.parametrize("name", ["dropout", "attention_dropout"])
@pytest.mark.parametrize("value", [-0.1, 1.0, 1.5, float("nan")])
def test_refuses_rates_outside_of_zero_to_one(name, value):
    with pytest.raises(ValueError, match=rf"`{name}` is a rate and must be in \[0, 1\)"):
        config(**{name: value})


@pytest.mark.parametrize("name", ["normalization_epsilon", "rotary_base", "initializer_range"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_numbers_that_are_not_positive(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be a positive number, received"):
        config(**{name: value})


@pytest.mark.parametrize(
    "values",
    [
        SMALL,
        {**SMALL, "normalize_first": True, "initializer_range": 0.02, "window": 3},
        {**SMALL, "kind": "decoder", "num_key_value_heads": 1, "head_dim": 8, "dropout": 0.1},
        {**SEQ2SEQ, "num_decoder_layers": 1, "position": "relative"},
    ],
)
def test_round_trip_through_json(values):
    first = TransformerConfig(**values)
    assert TransformerConfig.from_json(first.to_json()) == first
    assert TransformerConfig.from_dict(json.loads(json.dumps(first.to_dict()))) == first
    assert TransformerConfig.from_dict(first.stated()) == first
    assert TransformerConfig.from_dict(dict(first.flat)) == first
    # Values that followed from others are written too.
    side = first.to_dict()[first.side_names[-1]]
    assert side["block"]["mixer"]["head_dim"] == first.head_dim


def test_from_dict_names_what_is_wrong():
    with pytest.raises(ValueError, match=r"Unknown config values: colour, n_layers. Known are: "):
        TransformerConfig.from_dict({**SMALL, "n_layers": 3, "colour": "red"})
    with pytest.raises(ValueError, match="The config lacks the values: kind, hidden_dim"):
        TransformerConfig.from_dict(
            {k: v for k, v in SMALL.items() if k not in ("kind", "hidden_dim")}
        )
    for wrong in (None, [1], "encoder"):
        with pytest.raises(ValueError, match="must be a dictionary, received"):
            TransformerConfig.from_dict(wrong)
    with pytest.raises(ValueError):
        TransformerConfig.from_json("{")
    with pytest.raises(ValueError, match="must be a dictionary, received list"):
        TransformerConfig.from_json("[]")


def test_replace():
    first = config(normalize_first=True)
    wider = first.replace(hidden_dim=24, num_heads=4)
    assert (wider.head_dim, wider.num_key_value_heads) == (6, 4)  # followed, follow again
    assert first.head_dim == 4 and first.num_heads == 3
    assert not first.replace(normalize_first=False).final_normalization
    assert config(head_dim=8).replace(hidden_dim=24).head_dim == 8  # was given, stays
    assert TransformerConfig(**SEQ2SEQ).replace(num_layers=3).num_decoder_layers == 3
    assert TransformerConfig(**SEQ2SEQ).replace(kind="decoder").num_decoder_layers is None
    with pytest.raises(ValueError, match="Unknown config values: num_layer.*mean 'num_layers'"):
        TransformerConfig.from_dict({"num_layer": 3})
    with pytest.raises(ValueError, match="Unknown config values: width"):
        first.replace(width=3)
    with pytest.raises(ValueError, match="`dropout` is a rate"):
        first.replace(dropout=2)


def test_a_stem_is_replaced_beside_other_values():
    stem = {"kind": "patches", "image_size": [8, 8], "patch_size": 4}
    first = TransformerConfig(**{**SMALL, "vocabulary_size": 0, "stem": stem})
    changed = first.replace(hidden_dim=24, num_heads=4, stem=first.stem.replace(patch_size=2))
    assert (changed.hidden_dim, changed.stem.patch_size) == (24, 2)


def test_parts_and_keywords_do_not_mix():
    first = config()
    with pytest.raises(ValueError, match="parts and the keyword 'hidden_dim'"):
        TransformerConfig(encoder=first.side("encoder"), hidden_dim=24)
    with pytest.raises((TypeError, ValueError), match="hidden_dim"):
        first.replace(encoder=first.side("encoder"), hidden_dim=24)


def test_frozen_and_hashable():
    first = config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.hidden_dim = 24
    assert len({first, config(), config(dropout=0.1)}) == 2
    with pytest.raises(TypeError):
        TransformerConfig("encoder", 20, 12, 2, 3, 16)


def test_every_default_fits_its_option():
    """A value that is the default is not checked again."""
    parts, found = [Part], set()
    while parts:
        for each in parts.pop().__subclasses__():
            parts.append(each)
            fields = dataclasses.fields(each) if dataclasses.is_dataclass(each) else ()
            for field in fields:
                if field.default is not None and field.default is not dataclasses.MISSING:
                    assert check_option(field.name, field.default, field) == field.default
                    found.add((each.__name__, field.name))
    assert len(found) > 200
    for name, default in DEFAULTS.items():
        if default is not None and default is not dataclasses.MISSING:
            assert check_option(name, default, FIELDS[name]) == default
