"""Overrides of a preset with loaded weights: only options that the weights do not depend on."""

import logging
import re

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import load_config, load_weights
from keras_transformer.config import CHANGEABLE, OPTIONS
from keras_transformer.models import build_backbone
from tests.checkpoints.conftest import small_backbone
from tests.thorough import a_part

pytestmark = pytest.mark.one_backend

IDS = np.array([[3, 1, 4, 1, 5, 9]])
MASK = np.array([[1, 1, 1, 1, 0, 0]], bool)
SIZES = {"hidden_dim": 8, "num_heads": 2, "intermediate_dim": 12, "vocabulary_size": 13}
ROTARY = {
    "position": "rotary",
    "rotary_scaling": "yarn",
    "rotary_factor": 2.0,
    "max_sequence_length": 16,
    "normalize_first": True,
}
EXPERTS = {"num_experts": 4}
LONGROPE = {
    **ROTARY,
    "rotary_scaling": "longrope",
    "rotary_short_factors": (1.0, 1.5),
    "rotary_long_factors": (2.0, 4.0),
}
RELATIVE = {"position": "relative", "relative_num_buckets": 8, "relative_max_distance": 16}

# For each value of the config a model, and what is given in place of what the model has.
CHANGES = {
    "kind": ("encoder", {}, "decoder"),
    "vocabulary_size": ("encoder", {}, 14),
    "hidden_dim": ("encoder", {}, 16),
    "num_layers": ("encoder", {}, 1),
    "num_heads": ("encoder", {}, 4),
    "intermediate_dim": ("encoder", {}, 8),
    "num_decoder_layers": ("seq2seq", {}, 1),
    "num_key_value_heads": ("encoder", {}, 1),
    "head_dim": ("encoder", {}, 2),
    "embedding_dim": ("encoder", {}, 4),
    "embedding_projection": ("encoder", {}, True),
    "num_layer_groups": ("encoder", {}, 1),
    "layers_per_group": ("encoder", {"num_layer_groups": 1}, 2),
    "activation": ("encoder", {}, "sigmoid"),
    "gated": ("encoder", {}, True),
    "gate_limit": ("encoder", {"gated": True}, 0.5),
    "num_experts": ("encoder", EXPERTS, 5),
    "experts_per_token": ("encoder", EXPERTS, 1),
    "expert_dim": ("encoder", EXPERTS, 5),
    "shared_expert_dim": ("encoder", EXPERTS, 3),
    "normalize_expert_weights": ("encoder", EXPERTS, False),
    "router_bias": ("encoder", EXPERTS, True),
    "router": ("encoder", EXPERTS, {"activation": "sigmoid"}),
    "shared_expert_gate": ("encoder", {**EXPERTS, "shared_expert_dim": 3}, False),
    "expert_capacity_factor": ("encoder", EXPERTS, 0.5),
    "load_balancing_factor": ("encoder", EXPERTS, 0.5),
    "router_z_loss_factor": ("encoder", EXPERTS, 0.5),
    "attention_sinks": ("encoder", {}, True),
    "attention_gate": ("encoder", {}, True),
    "use_bias": ("encoder", {}, False),
    "attention_bias": ("encoder", {}, False),
    "attention_output_bias": ("encoder", {}, False),
    "key_bias": ("encoder", {}, False),
    "feed_forward_output_bias": ("encoder", {}, False),
    "softmax_gate": ("encoder", {}, True),
    "query_key_norm": ("encoder", {}, True),
    "query_key_norm_across_heads": ("encoder", {"query_key_norm": True}, True),
    "query_key_norm_per_head": ("encoder", {"query_key_norm": True}, True),
    "query_key_norm_after_rotation": ("decoder", {**ROTARY, "query_key_norm": True}, True),
    "convolution_size": ("encoder", {}, 3),
    "convolution_activation": ("encoder", {"convolution_size": 3}, "relu"),
    "token_projection": ("decoder", {}, True),
    "alibi_scale": ("decoder", {"position": "alibi"}, 0.5),
    "alibi_rounded": ("decoder", {"position": "alibi", "max_sequence_length": 512}, True),
    "parallel_residual": ("encoder", {"normalize_first": True}, True),
    "share_normalization": ("encoder", {"normalize_first": True, "parallel_residual": True}, True),
    "residual_scale": ("encoder", {}, 0.5),
    "normalization": ("encoder", {}, "rms_norm"),
    "normalization_epsilon": ("encoder", {}, 0.5),
    "normalize_first": ("encoder", {"final_normalization": False}, True),
    "attention_normalization": ("encoder", {}, False),
    "normalize_output": ("encoder", {}, True),
    "embedding_normalization": ("encoder", {}, True),
    "final_normalization": ("encoder", {}, True),
    "position": ("encoder", {}, "none"),
    "max_sequence_length": ("decoder", ROTARY, 64),
    "position_offset": ("encoder", {"position": "learned", "max_sequence_length": 16}, 1),
    "position_padding_id": (
        "encoder",
        {"position": "learned", "position_offset": 2, "max_sequence_length": 16},
        1,
    ),
    "sinusoidal_interleaved": ("encoder", {}, False),
    "sinusoidal_inclusive": ("encoder", {}, True),
    "segment_vocabulary_size": ("encoder", {}, 2),
    "dropped_token_id": ("encoder", {}, 3),
    "dropout": ("encoder", {}, 0.5),
    "attention_dropout": ("encoder", {}, 0.5),
    "mixer": ("encoder", {}, {"kind": "fourier"}),
    "score": ("encoder", {}, "dot"),
    "score_scale": ("encoder", {}, 2.0),
    "window": ("encoder", {}, 2),
    "window_dilation": ("encoder", {"window": 3}, 2),
    "global_tokens": ("encoder", {"window": 3}, 1),
    "global_projection": ("encoder", {"window": 3}, True),
    "block_size": ("encoder", {}, 4),
    "random_blocks": ("encoder", {"block_size": 2}, 1),
    "global_block_size": ("encoder", {"window": 3}, 2),
    "tie_embeddings": ("decoder", {}, False),
    "scale_embedding": ("encoder", {}, True),
    "scale_logits": ("decoder", {}, True),
    "embedding_scale": ("encoder", {}, 2.0),
    "logit_scale": ("decoder", {}, 2.0),
    "output_bias": ("decoder", {}, True),
    "pooler": ("encoder", {}, True),
    "mean_pooler": ("encoder", {}, True),
    "initializer_range": ("encoder", {}, 0.5),
    "rotary_base": ("decoder", ROTARY, 100.0),
    "rotary_dim": ("decoder", ROTARY, 2),
    "rotary_interleaved": ("decoder", ROTARY, True),
    "rotary_direction": ("decoder", ROTARY, "clockwise"),
    "rotary_precision": ("decoder", {"position": "rotary", "max_sequence_length": 16}, "float16"),
    "rotary_scaling": ("decoder", ROTARY, None),
    "rotary_factor": ("decoder", ROTARY, 4.0),
    "rotary_min_turns": ("decoder", ROTARY, 0.5),
    "rotary_max_turns": ("decoder", ROTARY, 8.0),
    "rotary_original_length": ("decoder", ROTARY, 4),
    "rotary_truncate": ("decoder", ROTARY, False),
    "rotary_attention_factor": ("decoder", ROTARY, 0.5),
    "rotary_query_growth": ("decoder", ROTARY, 0.5),
    "rotary_short_factors": ("decoder", LONGROPE, (1.0, 3.0)),
    "rotary_long_factors": ("decoder", LONGROPE, (1.0, 3.0)),
    "relative_bias": ("encoder", {}, True),
    "relative_num_buckets": ("encoder", RELATIVE, 4),
    "relative_max_distance": ("encoder", RELATIVE, 8),
    "relative_tables": ("encoder", RELATIVE, "own"),
    "grid_bias": ("encoder", {}, "shared"),
    "disentangled": ("encoder", {}, "own"),
    "share_embeddings": ("seq2seq", {}, False),
    "attention_soft_cap": ("encoder", {}, 2.0),
    "logit_soft_cap": ("decoder", {}, 2.0),
    "encoder": ("seq2seq", {}, {"activation": "tanh"}),
    "decoder": ("seq2seq", {}, {"activation": "tanh"}),
    "source": ("seq2seq", {}, {"activation": "tanh"}),
    "layer_pattern": ("decoder", {}, ({"window": 2}, {})),
    "trained_residual_scale": ("encoder", {}, True),
    "stem": ("encoder", {}, {"kind": "patches"}),
    "vector_pooling": ("encoder", {}, "first"),
    "vector_end_id": ("encoder", {}, 3),
    "vector_dim": ("encoder", {}, 6),
    "vector_bias": ("encoder", {}, True),
    "vector_activation": ("encoder", {"vector_pooling": "first", "vector_dim": 6}, "relu"),
    "vector_pooler": ("encoder", {"vector_pooling": "first"}, True),
    "vector_normalization": ("encoder", {}, True),
    "bidirectional": ("decoder", {}, True),
    "causal": ("encoder", {}, True),
    "similarity_bias": ("encoder", {}, True),
    "similarity_text_scale": ("encoder", {}, True),
    "output_transform": ("decoder", {}, "gelu"),
    "output_transform_bias": ("decoder", {"output_transform": "gelu"}, False),
    "placeholder_id": ("seq2seq", {}, 3),
    "placeholder_visibility": ("seq2seq", {}, "states"),
    "placeholder_side": ("seq2seq", {}, "encoder"),
    "placeholders_counted": ("seq2seq", {}, True),
    "place_class_token": ("seq2seq", {}, False),
    "projector": ("seq2seq", {}, "linear"),
    "projector_activation": ("seq2seq", {}, "relu"),
    "projector_bias": ("seq2seq", {}, False),
    "projector_pool": ("seq2seq", {}, 2),
    "projector_separator": ("seq2seq", {}, True),
    "stacked_layers": ("seq2seq", {}, (0,)),
}


def inputs_of(kind):
    if kind != "seq2seq":
        return {"token_ids": IDS, "padding_mask": MASK}
    return {"encoder_token_ids": IDS, "decoder_token_ids": IDS, "decoder_padding_mask": MASK}


def outputs(backbone):
    states = backbone(inputs_of(backbone.kind))
    return [keras.ops.convert_to_numpy(x) for x in (states, backbone.logits(states))]


def test_every_value_of_the_config_has_a_case():
    assert set(CHANGES) == set(OPTIONS)
    assert set(CHANGES) > CHANGEABLE


@pytest.mark.parametrize("name", a_part(CHANGES))
def test_with_weights_a_value_is_refused_or_changes_no_number(name, tmp_path):
    kind, values, given = CHANGES[name]
    backbone = small_backbone(kind, **values)
    backbone.save_to_preset(tmp_path)
    mine = backbone.config.flat[name]
    assert mine != given
    if name in CHANGEABLE:
        changed = kt.Backbone.from_preset(tmp_path, **{name: given})
        assert changed.config.flat == {**backbone.config.flat, name: given}
        for ours, theirs in zip(outputs(changed), outputs(backbone), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        return
    (tmp_path / "model.safetensors").rename(tmp_path / "hidden")  # no work is done before
    message = re.escape(f"with {name}={mine!r}, received {given!r}: ")
    message += ".*`load_weights=False`.*load_weights`"
    with pytest.raises(ValueError, match=message):
        kt.Backbone.from_preset(tmp_path, **{name: given})
    with pytest.raises(ValueError, match=message):
        if kind == "seq2seq":
            kt.Seq2SeqLM.from_preset(tmp_path, **{name: given})
        else:
            kt.TextClassifier.from_preset(tmp_path, num_classes=2, **{name: given})
    same = {name: mine}
    (tmp_path / "hidden").rename(tmp_path / "model.safetensors")
    again = kt.Backbone.from_preset(tmp_path, **same)
    assert again.config == backbone.config


def test_values_of_any_type_are_refused(tmp_path):
    backbone = small_backbone(num_heads=1)
    backbone.save_to_preset(tmp_path)
    for given in (keras.activations.sigmoid, None, np.zeros(3), ["relu"], "softmax"):
        with pytest.raises(ValueError, match="activation='relu', received "):
            kt.Backbone.from_preset(tmp_path, activation=given)
    with pytest.raises(ValueError, match="num_heads=1, received True"):
        kt.Backbone.from_preset(tmp_path, num_heads=True)
    with pytest.raises(ValueError, match="`dropout` must be of type float, received None"):
        kt.Backbone.from_preset(tmp_path, dropout=None)
    assert kt.Backbone.from_preset(tmp_path, head_dim=None, normalization_epsilon=1e-6)
    fresh = kt.Backbone.from_preset(tmp_path, load_weights=False, activation="gelu", num_heads=2)
    assert (fresh.config.activation, fresh.config.head_dim) == ("gelu", 4)


def test_a_pattern_is_the_same_as_a_list(tmp_path):
    backbone = small_backbone("decoder", layer_pattern=[{"window": 2}])
    backbone.save_to_preset(tmp_path)
    again = kt.Backbone.from_preset(tmp_path, layer_pattern=[{"window": 2}])
    assert again.config == backbone.config and again.config.layer_pattern == ({"window": 2},)
    with pytest.raises(ValueError, match="were trained with layer_pattern="):
        kt.Backbone.from_preset(tmp_path, layer_pattern=[{"window": 3}])


def test_learned_positions_fit_one_length(tmp_path):
    small_backbone(position="learned", max_sequence_length=16).save_to_preset(tmp_path)
    with pytest.raises(ValueError, match="position_embedding"):
        kt.Backbone.from_preset(tmp_path, max_sequence_length=8)


@pytest.mark.parametrize("published", [False, True])
def test_the_activation_of_a_head_is_not_that_of_the_blocks(published, tmp_path):
    llama = {"normalize_first": True, "position": "rotary", "normalization": "rms_norm"}
    llama |= {"activation": "silu", "gated": True, "use_bias": False}
    backbone = small_backbone("decoder", **llama)
    backbone.save_to_preset(tmp_path / "ours")
    if published:
        kt.export_to_huggingface(kt.Backbone.from_preset(tmp_path / "ours"), tmp_path / "theirs")
    folder = tmp_path / ("theirs" if published else "ours")
    message = (
        "activation='silu', received 'sigmoid'.*KerasHub's tasks have an argument of this name"
        ".*`classify` gives probabilities.*sigmoid"
    )
    with pytest.raises(ValueError, match=message):
        kt.TextClassifier.from_preset(folder, num_classes=2, activation="sigmoid")
    with pytest.raises(ValueError, match="num_heads=2, received 4"):
        kt.CausalLM.from_preset(folder, num_heads=4)


def test_the_values_that_a_head_was_trained_with(tmp_path):
    backbone = small_backbone(activation="gelu")
    heads = {
        kt.TextClassifier: (
            {"labels": ["bad", "good"], "hidden_activation": "tanh"},
            [{"pooling": "mean"}, {"hidden_activation": "relu"}, {"labels": ["good", "bad"]}],
            {"pooling": "first", "labels": ["bad", "good"], "dropout": 0.3},
        ),
        kt.MaskedLM: (
            {},
            [{"hidden_activation": "relu"}, {"normalization_epsilon": 0.1}],
            {"hidden_activation": "gelu", "mask_rate": 0.3},
        ),
        kt.TextEmbedder: (
            {"pooling": "max"}, [{"pooling": "mean"}], {"pooling": "max", "normalize": False}
        ),
    }  # fmt: skip
    for number, (task, (options, refused, allowed)) in enumerate(heads.items()):
        folder = tmp_path / str(number)
        saved = task(backbone, **options)
        saved.save_to_preset(folder)
        for changed in refused:
            (name,) = changed
            with pytest.raises(ValueError, match=rf"trained .*with .*{name}=.*, received "):
                task.from_preset(folder, **changed)
        loaded = task.from_preset(folder, **allowed)
        for mine, theirs in zip(loaded.head.values(), saved.head.values(), strict=True):
            mine, theirs = map(keras.ops.convert_to_numpy, (mine, theirs))
            np.testing.assert_array_equal(mine, theirs)
    # Of a fresh head everything may be chosen.
    fresh = kt.TextClassifier.from_preset(tmp_path / "0", num_classes=3, pooling="mean")
    assert fresh.pooling == "mean"


def test_on_purpose_it_is_logged(tmp_path, caplog):
    backbone = small_backbone(activation="gelu")
    backbone.save_to_preset(tmp_path)
    config, _, _ = load_config(tmp_path)
    with caplog.at_level(logging.WARNING, "keras_transformer"):
        load_weights(tmp_path, build_backbone(config.replace(dropout=0.5)))
        assert not caplog.records
        load_weights(tmp_path, build_backbone(config.replace(activation="relu", num_heads=4)))
    (record,) = caplog.records
    assert "num_heads=2, here 4" in record.getMessage()
    assert "activation='gelu', here 'relu'" in record.getMessage()
