"""Further decoders of KerasHub in memory, to ours and back, against KerasHub itself."""

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.keras_hub.families import KERAS_HUB
from keras_transformer.checkpoints.keras_hub.writing import make_tokenizer
from tests.checkpoints.test_keras_hub import (
    _no_drawing,  # noqa: F401
    call,
    difference,
    hub,  # noqa: F401
    make_batch,
    randomize,
    run,
)
from tests.checkpoints.test_keras_hub_live import GROUPED, QWEN3_5, SIZES, assert_same_weights

pytestmark = [
    pytest.mark.one_backend,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Layer '(self|cross)_attention':UserWarning"),
]

GEMMA = {**GROUPED, "head_dim": 6}
NORMS = {"use_post_ffw_norm": True, "use_post_attention_norm": True}
WINDOW = {"use_sliding_window_attention": True, "sliding_window_size": 3}
GEMMA2 = {
    **GEMMA, **NORMS, **WINDOW, "num_layers": 3, "attention_logit_soft_cap": 2.0,
    "final_logit_soft_cap": 3.0,
}  # fmt: skip
GEMMA3 = {
    **GEMMA, **NORMS, **WINDOW, "num_layers": 7, "image_size": 8,
    "local_rope_scaling_factor": 2.0, "global_rope_scaling_factor": 4.0,
}  # fmt: skip
SU = {
    "rope_scaling_type": "su", "max_sequence_length": 24, "pretraining_sequence_length": 8,
    "rope_scaling_short_factor": [1.5, 2.0], "rope_scaling_long_factor": [3.0, 5.0],
}  # fmt: skip
FALCON = {n: v for n, v in SIZES.items() if n != "num_heads"} | {"num_attention_heads": 2}
QWEN_MOE = {**GROUPED, "moe_intermediate_dim": 10, "num_experts": 3, "top_k": 2}
QWEN3_5_MOE = {
    **{n: v for n, v in QWEN3_5.items() if n != "intermediate_dim"}, "num_experts": 3, "top_k": 2,
    "moe_intermediate_dim": 10, "shared_expert_intermediate_size": 14,
}  # fmt: skip
GPT_OSS = {**GROUPED, "num_layers": 2, "num_experts": 3, "head_dim": 6, "sliding_window": 2}
SMOLLM3 = {
    **{n: v for n, v in GROUPED.items() if n != "num_query_heads"}, "num_attention_heads": 4,
    "num_layers": 3, "rope_layer_enabled_list": [True, False], "mlp_bias": False,
    "layer_types": ["full_attention"] * 3, "attention_bias": False, "attention_dropout": 0.0,
    "layer_norm_epsilon": 1e-3, "max_position_embeddings": 64, "rope_theta": 50.0,
    "partial_rotary_factor": 1.0,
}  # fmt: skip


def both(hub, name, sizes):  # noqa: F811
    backbone = getattr(hub.models, f"{name}Backbone")(**sizes)
    made = getattr(hub.models, f"{name}CausalLM")
    theirs = randomize(made(backbone=backbone, preprocessor=None))
    return theirs, kt.from_keras_hub(theirs)


@pytest.mark.parametrize(
    "name, family, sizes",
    [
        ("Gemma", "gemma", GEMMA),
        ("Gemma", "gemma2", GEMMA2),
        ("Gemma3", "gemma3_text", GEMMA3),
        ("Gemma3", "gemma3_text", {**GEMMA, "image_size": None, "use_query_key_norm": False}),
        ("Phi3", "phi3", GROUPED),
        ("Phi3", "phi3", {**GROUPED, **SU}),
        ("OPT", "opt", {**SIZES, "max_sequence_length": 14}),
        ("Bloom", "bloom", {**SIZES, "num_heads": 3, "hidden_dim": 9}),
        ("Falcon", "falcon", FALCON),
        ("Mixtral", "mixtral", {**GROUPED, "num_experts": 3, "rope_scaling_factor": 2.0}),
        (
            "QwenMoe",
            "qwen2_moe",
            {**QWEN_MOE, "shared_expert_intermediate_dim": 14, "norm_top_k_prob": True},
        ),
        ("Qwen3Moe", "qwen3_moe", {**QWEN_MOE, "num_layers": 2, "mlp_only_layers": [0]}),
        ("Qwen3_5Moe", "qwen3_5_moe_text", QWEN3_5_MOE),
        ("GptOss", "gpt_oss", GPT_OSS),
        ("GptOss", "gpt_oss", {**GPT_OSS, "rope_scaling_factor": 8.0, "head_dim": None}),
        ("SmolLM3", "smollm3", SMOLLM3),
        ("SmolLM3", "smollm3", {**SMOLLM3, "attention_bias": True, "mlp_bias": True}),
    ],
)
def test_a_decoder_there_and_back(hub, name, family, sizes):  # noqa: F811
    theirs, ours = both(hub, name, sizes)
    assert type(ours) is kt.CausalLM and ours.backbone.family == family
    # Theirs takes the factors of a long text for all rows, if one row of the batch is long.
    batch = make_batch(30, (9, 9, 9) if "rope_scaling_type" in sizes else (9, 6, 1))
    logits = run(ours, batch)
    assert difference(logits, call(theirs, batch), batch["padding_mask"]) <= 1e-4
    assert_same_weights(kt.to_keras_hub(ours), theirs)


def test_what_their_decoders_have_otherwise(hub):  # noqa: F811
    cases = [
        ("Gemma", {**GEMMA, "use_post_ffw_norm": True}, "use_post_attention_norm and use_post_ffw"),
        ("Gemma", {**GEMMA, "layer_norm_epsilon": 1e-5}, "layer_norm_epsilon=1e-05 is not"),
        ("Gemma", {**GEMMA2, "query_head_dim_normalize": False}, "query_head_dim_normalize=False"),
        ("Gemma3", {**GEMMA3, "query_head_dim_normalize": False}, "query_head_dim_normalize=False"),
        ("Gemma3", {**GEMMA3, "use_bidirectional_attention": True}, "use_bidirectional_attention="),
        ("Falcon", {**FALCON, "layer_norm_epsilon": 1e-6}, "layer_norm_epsilon=1e-06 is not"),
        ("Mixtral", {**GROUPED, "num_experts": 3, "router_jitter_noise": 0.1}, "router_jitter"),
        (
            "SmolLM3",
            {**SMOLLM3, "layer_types": ["sliding_attention"] * 3},
            "layers have no windows",
        ),
        ("SmolLM3", {**SMOLLM3, "rope_layer_enabled_list": [False] * 3}, "a layer with a rotation"),
        ("SmolLM3", {**SMOLLM3, "partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not"),
    ]
    for name, sizes, message in cases:
        with pytest.raises(ValueError, match=message):
            kt.from_keras_hub(getattr(hub.models, f"{name}Backbone")(**sizes))


def test_gemma_goes_on_to_hugging_face(hub, tmp_path):  # noqa: F811
    """A model of one class there has the architecture of its own config in Hugging Face's form."""
    for sizes, family in ((GEMMA, "gemma"), (GEMMA2, "gemma2")):
        ours = both(hub, "Gemma", sizes)[1]
        kt.export_to_huggingface(ours, tmp_path / family)
        again = kt.CausalLM.from_preset(tmp_path / family)
        assert again.backbone.family == family
        batch = make_batch(30)
        assert difference(run(again, batch), run(ours, batch), batch["padding_mask"]) <= 1e-5


@pytest.mark.backend_independent
def test_types_of_families():
    assert KERAS_HUB["GemmaBackbone"].model_types == ("gemma", "gemma2")
    types = {each for family in KERAS_HUB.values() for each in family.model_types}
    assert types - set(FAMILIES) <= {"parseq", "rwkv7", "roformer_v2"}


@pytest.mark.backend_independent
def test_tokenizers_of_decoders(hub, tmp_path):  # noqa: F811
    """Byte-level vocabularies with the special tokens of each class."""
    special = ["<s>", "</s>", "<pad>", "<|endoftext|>", "<|im_end|>", "<think>", "</think>"]
    special += ["<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>"]
    trained = kt.Tokenizer.train(
        ["a man rides a bike ."] * 9, special_tokens=special, vocabulary_size=300
    )
    vocabulary = trained.get_vocabulary()
    merges = ["a n"] if {"a", "n", "an"} <= vocabulary.keys() else []
    for name in (
        "OPT",
        "Bloom",
        "Falcon",
        "Qwen3Moe",
        "Qwen3_5Moe",
        "QwenMoe",
        "GptOss",
        "SmolLM3",
    ):
        options = {"has_vision_tokens": False} if name == "Qwen3_5Moe" else {}
        made = getattr(hub.models, f"{name}Tokenizer")
        theirs = made(vocabulary=vocabulary, merges=merges, **options)
        theirs.save_to_preset(tmp_path / name)
        ours = kt.Tokenizer.from_preset(tmp_path / name)
        for text in ("a man, naïve", "x"):
            found = ours.encode(text, special_tokens=False)
            assert found == [int(i) for i in np.ravel(theirs(text))], name
        assert (ours.start_id, ours.end_id) == (theirs.start_token_id, theirs.end_token_id)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    "name, start, end",
    [
        ("Gemma", "<bos>", "<eos>"),
        ("Gemma3", "<bos>", "<eos>"),
        ("T5Gemma", "<bos>", "<eos>"),
        ("Phi3", "<s>", "<|endoftext|>"),
        ("Mixtral", "<s>", "</s>"),
    ],
)
def test_pieces_of_decoders(hub, tmp_path, name, start, end):  # noqa: F811
    """SentencePiece files with the special tokens of each class, there and back."""
    pieces = pytest.importorskip("sentencepiece")
    pieces.SentencePieceTrainer.train(
        sentence_iterator=iter(["a man rides a bike .", "two dogs run , naïvely"] * 9),
        model_prefix=str(tmp_path / "spm"), model_type="bpe", vocab_size=330, byte_fallback=True,
        hard_vocab_limit=False, pad_id=0, eos_id=1, bos_id=2, unk_id=3, bos_piece=start,
        eos_piece=end, minloglevel=2,
    )  # fmt: skip
    proto = (tmp_path / "spm.model").read_bytes()
    more = {"has_vision_tokens": False} if name == "Gemma3" else {}
    theirs = getattr(hub.models, f"{name}Tokenizer")(proto=proto, **more)
    theirs.save_to_preset(tmp_path / "preset")
    ours = kt.Tokenizer.from_preset(tmp_path / "preset")
    for text in ("a man runs , naïvely", "x 東京"):
        assert ours.encode(text, special_tokens=False) == [int(i) for i in np.ravel(theirs(text))]
    assert (ours.start_id, ours.end_id) == (2, 1)
    back = make_tokenizer(hub, f"{name}Tokenizer", ours)
    assert [int(i) for i in np.ravel(back("two bikes"))] == ours.encode(
        "two bikes", special_tokens=False
    )
