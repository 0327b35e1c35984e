"""Models exported to CTranslate2, run there."""

import json

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.generation import BeamSearch
from tests.thorough import a_part

ctranslate2 = pytest.importorskip("ctranslate2")
tokenizers = pytest.importorskip("tokenizers")

SIZES = {
    "vocabulary_size": 61, "hidden_dim": 24, "num_layers": 2, "num_heads": 4,
    "intermediate_dim": 40, "max_sequence_length": 64,
}  # fmt: skip
ROWS = [[5, 6, 7], [9, 8, 7, 6, 5, 4]]
ROTARY = {"position": "rotary", "normalize_first": True}
LLAMA = {
    **ROTARY, "activation": "silu", "gated": True, "normalization": "rms_norm", "use_bias": False,
    "num_key_value_heads": 2,
}  # fmt: skip
GEMMA = {**LLAMA, "normalization": "rms_norm_plus_one", "normalize_output": True, "head_dim": 8}
DECODERS = {
    "gpt2": {"position": "learned", "normalize_first": True, "activation": "gelu_tanh"},
    "llama": {**LLAMA, "tie_embeddings": False},
    "multi query": {**LLAMA, "num_key_value_heads": 1, "head_dim": 8},
    "llama3": {
        **ROTARY, "rotary_scaling": "llama3", "rotary_factor": 8.0, "rotary_max_turns": 4.0,
        "rotary_original_length": 32, "rotary_base": 500.0,
    },
    "linear": {**ROTARY, "rotary_scaling": "linear", "rotary_factor": 4.0},
    "yarn": {
        **ROTARY, "rotary_scaling": "yarn", "rotary_factor": 4.0, "rotary_original_length": 16,
        "rotary_attention_factor": 1.3,
    },
    "dynamic": {**ROTARY, "rotary_scaling": "dynamic", "rotary_factor": 4.0},
    "longrope": {
        **ROTARY, "rotary_scaling": "longrope", "rotary_factor": 4.0,
        "rotary_short_factors": (1.0, 1.5, 2.0), "rotary_long_factors": (2.0, 3.0, 4.0),
    },
    "gpt-j": {
        **ROTARY, "rotary_interleaved": True, "rotary_dim": 4, "parallel_residual": True,
        "share_normalization": True,
    },
    "gpt-neox": {**ROTARY, "rotary_dim": 4, "parallel_residual": True},
    "cohere": {
        **ROTARY, "parallel_residual": True, "share_normalization": True, "logit_scale": 0.25,
        "normalization": "layer_norm_no_bias",
    },
    "nemotron": {**ROTARY, "rotary_dim": 4, "normalization": "layer_norm_plus_one"},
    "bloom": {"position": "alibi", "normalize_first": True, "embedding_normalization": True},
    "alibi scaled": {"position": "alibi", "alibi_scale": 6**-0.5},
    "sinusoidal": {"scale_embedding": True, "position_offset": 2, "final_normalization": True},
    "without positions": {"position": "none"},
    "some layers without": {**ROTARY, "layer_pattern": [{"position": "none"}, {}]},
    "gemma2": {**GEMMA, "logit_soft_cap": 5.0, "scale_embedding": True},
    "gemma3": {
        **GEMMA, "query_key_norm": True, "layer_pattern": [{"window": 8, "rotary_base": 100.0}, {}],
    },
    "mistral": {**LLAMA, "window": 8},
    "granite": {
        **LLAMA, "residual_scale": 0.3, "embedding_scale": 3.0, "score_scale": 0.2,
        "logit_scale": 0.5,
    },
    "opt": {"position": "learned", "embedding_dim": 16, "token_projection": True},
    "biases": {
        "position": "learned", "output_bias": True, "key_bias": False, "score": "dot",
        "trained_residual_scale": True, "num_layer_groups": 1, "activation": "quick_gelu",
    },
}  # fmt: skip
SEQ2SEQ = {
    "marian": {
        "sinusoidal_interleaved": False, "scale_embedding": True, "activation": "silu",
        "output_bias": True,
    },
    "bart": {
        "position": "learned", "position_offset": 2, "embedding_normalization": True,
        "activation": "gelu", "num_decoder_layers": 1,
    },
    "t5": {
        "position": "relative", "normalize_first": True, "normalization": "rms_norm",
        "use_bias": False, "score_scale": 1.0, "scale_logits": True, "gated": True, "head_dim": 8,
    },
    "t5gemma": {**GEMMA},
    "two vocabularies": {
        "position": "learned", "share_embeddings": False, "tie_embeddings": False,
        "encoder": {"vocabulary_size": 50, "num_heads": 2},
    },
}  # fmt: skip
ENCODERS = {
    "bert": {
        "position": "learned", "embedding_normalization": True, "segment_vocabulary_size": 2,
        "pooler": True, "activation": "gelu", "scale_embedding": True,
    },
    "roberta": {"position": "learned", "position_offset": 2, "position_padding_id": 1},
    "modernbert": {**ROTARY, "gated": True, "normalization": "layer_norm_no_bias"},
    "t5": {"position": "relative", "normalize_first": True, "normalization": "rms_norm"},
    "gemma": {**GEMMA, "query_key_norm": True},
}  # fmt: skip
REFUSED = {
    "num_experts": {"num_experts": 2},
    "attention_soft_cap": {"attention_soft_cap": 5.0},
    "attention_sinks": {"attention_sinks": True},
    "activation": {"activation": "mish"},
    "normalize_output": {"normalize_output": True},
    "query_key_norm_across_heads": {"query_key_norm": True, "query_key_norm_across_heads": True},
    "attention_normalization": {"layer_pattern": [{"attention_normalization": False}, {}]},
    "normalization_epsilon": {"layer_pattern": [{"normalization_epsilon": 1e-3}, {}]},
    "num_heads": {"position": "learned", "layer_pattern": [{"num_heads": 2}, {}]},
    "window": {"layer_pattern": [{"window": 4}, {"window": 8}]},
    "alibi_scale": {"position": "alibi", "alibi_scale": 0.3},
    "position": {"position": "relative"},
    "normalization": {"normalization": "rms_norm_no_weight"},
    "rotary_direction": {"rotary_direction": "clockwise"},
    "rotary_query_growth": {"rotary_scaling": "yarn", "rotary_query_growth": 0.1},
    "alibi_rounded": {"position": "alibi", "alibi_rounded": True},
}


def model(kind, values):
    """A backbone with weights of which none is what it is made with."""
    keras.utils.set_random_seed(3)
    config = kt.TransformerConfig(kind=kind, **{**SIZES, **values})
    backbone = kt.models.build_backbone(config)
    random = np.random.default_rng(0)
    for weight in backbone.weights:
        array = keras.ops.convert_to_numpy(weight)
        weight.assign(array + 0.15 * random.standard_normal(array.shape).astype("float32"))
    return backbone


def named(rows):
    return [[f"<id_{i}>" for i in row] for row in rows]


def numbers(tensor):
    return keras.ops.convert_to_numpy(tensor)


def to_the_end(rows, end=2):
    rows = [list(map(int, row)) for row in rows]
    return [row[: row.index(end)] if end in row else row for row in rows]


@pytest.mark.filterwarnings("ignore:CTranslate2 attends")
@pytest.mark.one_backend
@pytest.mark.parametrize("name", a_part(DECODERS))
def test_decoders_give_the_same_logits_and_tokens(tmp_path, name):
    lm = kt.CausalLM(model("decoder", DECODERS[name]), end_ids=[2])
    kt.export(lm, tmp_path / "there", format="ctranslate2")
    there = ctranslate2.Generator(str(tmp_path / "there"), compute_type="float32")
    for row in ROWS:
        logits = np.array(there.forward_batch(named([row])))
        np.testing.assert_allclose(logits, numbers(lm({"token_ids": np.array([row])})), atol=1e-4)
    found = there.generate_batch(
        named(ROWS), max_length=12, beam_size=1, include_prompt_in_result=False
    )
    ours = lm.generate(ROWS, max_new_tokens=12, sampler="greedy")
    assert to_the_end(each.sequences_ids[0] for each in found) == to_the_end(ours)


@pytest.mark.one_backend
@pytest.mark.parametrize("name", a_part(SEQ2SEQ))
def test_seq2seq_give_the_same_scores_and_tokens(tmp_path, name):
    lm = kt.Seq2SeqLM(model("seq2seq", SEQ2SEQ[name]), start_id=1, end_ids=[2])
    kt.export(lm, tmp_path / "there", format="ctranslate2")
    there = ctranslate2.Translator(str(tmp_path / "there"), compute_type="float32")
    for beams, sampler in ((1, "greedy"), (3, BeamSearch(3, length_penalty=0.0))):
        ours = to_the_end(lm.generate(ROWS, max_new_tokens=12, sampler=sampler))
        found = there.translate_batch(
            named(ROWS), max_decoding_length=12, beam_size=beams, length_penalty=0
        )
        assert [each.hypotheses[0] for each in found] == named(ours)
    scores = there.score_batch(named(ROWS), named(ours))
    for theirs, expected in zip(scores, lm.score(ROWS, ours, per_token=True), strict=True):
        np.testing.assert_allclose(theirs.log_probs, expected, atol=1e-4)


@pytest.mark.one_backend
@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_give_the_same_states(tmp_path, name):
    encoder = model("encoder", ENCODERS[name])
    kt.export(encoder, tmp_path / "there", format="ctranslate2")
    there = ctranslate2.Encoder(str(tmp_path / "there"), compute_type="float32")
    segments = [[0, 1, 1], [0, 0, 0, 1, 1, 1]] if encoder.config.segment_vocabulary_size else None
    found = there.forward_batch(ROWS, token_type_ids=segments)
    for i, row in enumerate(ROWS):
        further = {} if segments is None else {"segment_ids": np.array([segments[i]])}
        states = encoder({"token_ids": np.array([row]), **further})
        theirs = np.array(found.last_hidden_state)[i, : len(row)]
        np.testing.assert_allclose(theirs, numbers(states)[0], atol=1e-4)
        if encoder.config.pooler:
            pooled = np.array(found.pooler_output)[i]
            np.testing.assert_allclose(pooled, numbers(encoder.pool(states))[0], atol=1e-4)


def test_each_backend_writes_the_same_model(tmp_path):
    lm = kt.CausalLM(model("decoder", LLAMA), end_ids=[2])
    kt.export(lm, tmp_path / "there", format="ctranslate2")
    there = ctranslate2.Generator(str(tmp_path / "there"), compute_type="float32")
    logits = np.array(there.forward_batch(named(ROWS[:1])))
    np.testing.assert_allclose(logits, numbers(lm({"token_ids": np.array(ROWS[:1])})), atol=1e-4)


@pytest.mark.one_backend
@pytest.mark.parametrize("name", REFUSED)
def test_a_value_without_a_word_is_named(tmp_path, name):
    backbone = model("decoder", {**ROTARY, "normalize_first": False, **REFUSED[name]})
    with pytest.raises(ValueError, match=f"no equivalent of {name}=.*onnx"):
        kt.export(backbone, tmp_path / "there", format="ctranslate2")
    assert not (tmp_path / "there").exists()


@pytest.mark.one_backend
def test_angles_by_the_length_of_a_row_need_a_bound(tmp_path):
    values = {**DECODERS["dynamic"], "rotary_original_length": 32}
    with pytest.raises(ValueError, match="Load the model with `max_sequence_length=32`"):
        kt.export(model("decoder", values), tmp_path / "there", format="ctranslate2")
    kt.export(
        model("decoder", {**values, "max_sequence_length": 32}),
        tmp_path / "there",
        format="ctranslate2",
    )


@pytest.mark.one_backend
def test_what_is_asked_wrongly_is_named(tmp_path):
    backbone = model("encoder", ENCODERS["t5"])
    with pytest.raises(ValueError, match="`quantization` must be one of .*'int8'"):
        kt.export(backbone, tmp_path / "there", format="ctranslate2", quantization="int3")
    classifier = kt.TextClassifier(backbone, num_classes=2)
    with pytest.raises(ValueError, match="task.backbone"):
        kt.export(classifier, tmp_path / "there", format="ctranslate2")
    with pytest.warns(UserWarning, match="window=8"):
        kt.export(model("decoder", {"window": 8}), tmp_path / "there", format="ctranslate2")


@pytest.mark.one_backend
def test_a_translator_needs_nothing_but_the_folder(tmp_path):
    translator = kt.Seq2SeqLM.from_preset("transformer_tiny_en_de")
    texts = ["a man rides a bike .", "two dogs play in the snow .", "a girl in a red dress sings ."]
    sources = []
    for quantization in (None, "int8"):
        folder = tmp_path / str(quantization)
        kt.export(translator, folder, format="ctranslate2", quantization=quantization)
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        there = ctranslate2.Translator(str(folder))
        sources = [tokenizer.encode(text).tokens for text in texts]
        found = there.translate_batch(sources, beam_size=4)
        ids = [[tokenizer.token_to_id(t) for t in each.hypotheses[0]] for each in found]
        assert tokenizer.decode_batch(ids) == translator.generate(texts, sampler="beam")
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("None", "int8")]
    assert sizes[1] < 0.3 * sizes[0]
    said = json.loads((tmp_path / "None" / "config.json").read_text())
    assert (said["decoder_start_token"], said["eos_token"]) == ("<s>", "</s>")


@pytest.mark.one_backend
def test_an_embedder_gives_its_states(tmp_path):
    embedder = kt.TextEmbedder.from_preset("minilm_l6_en")
    kt.export(embedder, tmp_path / "there", format="ctranslate2")
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "there" / "tokenizer.json"))
    there = ctranslate2.Encoder(str(tmp_path / "there"))
    texts = ["A man rides a bike.", "Two dogs play in the snow, and a third one watches them."]
    rows = [tokenizer.encode(text).ids for text in texts]
    states = np.array(there.forward_batch(rows).last_hidden_state)
    means = np.stack([s[: len(row)].mean(0) for s, row in zip(states, rows, strict=True)])
    vectors = means / np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, embedder.predict(texts, verbose=0), atol=1e-5)
