"""Configs of an encoder and a decoder of two families, as `family_images.py` has those of one."""

from tests.checkpoints.family_images import CONFIGS as _IMAGES

_CROSS = {"is_decoder": True, "add_cross_attention": True}
_BERT = {
    "vocab_size": 61,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 24,
}
_BERT_WRITER = {"model_type": "bert", **_BERT, **_CROSS, "hidden_act": "relu"}
_ROBERTA_WRITER = {
    "model_type": "roberta",
    **_BERT,
    **_CROSS,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "pad_token_id": 1,
    "hidden_act": "silu",
}
_GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 61,
    "n_embd": 12,
    "n_layer": 2,
    "n_head": 3,
    "n_positions": 24,
    "bos_token_id": 3,
    "eos_token_id": 2,
    **_CROSS,
}
_TROCR = {
    "model_type": "trocr",
    "vocab_size": 61,
    "d_model": 16,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 24,
    **_CROSS,
}
# As large-printed is.
_WAVES = {
    "use_learned_position_embeddings": False,
    "layernorm_embedding": False,
    "scale_embedding": True,
    "tie_word_embeddings": False,
    "activation_function": "relu",
}
_IDS = {"decoder_start_token_id": 3, "eos_token_id": 2, "pad_token_id": 1}
_VIT = {"model_type": "vit", **_IMAGES["vit"][1][0]}
_DEIT = {"model_type": "deit", **_IMAGES["deit"][1][0], "qkv_bias": False}

OF_TEXTS = {
    "encoder-decoder": (
        "EncoderDecoder",
        [
            {"encoder": {"model_type": "bert", **_BERT}, "decoder": _BERT_WRITER, **_IDS},
            *(
                {
                    "encoder": {"model_type": "bert", **_BERT, "type_vocab_size": 3},
                    "decoder": {**decoder, "tie_word_embeddings": False},
                    **_IDS,
                }
                for decoder in (_BERT_WRITER, _ROBERTA_WRITER)
            ),
            {  # Sides that do not differ.
                "encoder": {"model_type": "bert", **_BERT},
                "decoder": {"model_type": "bert", **_BERT, **_CROSS},
                **_IDS,
            },
            {
                "encoder": {"model_type": "roberta", **_BERT, "vocab_size": 70},
                "decoder": _ROBERTA_WRITER,
                **_IDS,
            },
            {
                "encoder": {"model_type": "bert", **_BERT, "layer_norm_eps": 1e-3},
                "decoder": {**_GPT2, "n_embd": 8, "n_head": 2, "tie_word_embeddings": False},
                **_IDS,
            },
        ],
    )
}
_BLIP_TEXTS = {**_BERT, "bos_token_id": 3, "sep_token_id": 2, "pad_token_id": 0}
_BLIP_IMAGES = {"layer_norm_eps": 1e-3, **_IMAGES["vit"][1][0]}
OF_IMAGES = {
    "blip": (
        "Blip",
        [
            {"vision_config": _BLIP_IMAGES, "text_config": _BLIP_TEXTS},
            {
                "vision_config": {**_BLIP_IMAGES, "num_hidden_layers": 1, "hidden_act": "relu"},
                "text_config": {
                    **_BLIP_TEXTS,
                    "hidden_size": 16,
                    "num_attention_heads": 2,
                    "hidden_act": "silu",
                },
            },
        ],
    ),
    "vision-encoder-decoder": (
        "VisionEncoderDecoder",
        [
            {"encoder": _VIT, "decoder": _GPT2, **_IDS},
            {"encoder": _DEIT, "decoder": {**_TROCR, "cross_attention_hidden_size": 12}, **_IDS},
            {"encoder": {**_VIT, "qkv_bias": False}, "decoder": {**_TROCR, **_WAVES}, **_IDS},
            {"encoder": _VIT, "decoder": _BERT_WRITER, **_IDS},
            {"encoder": _VIT, "decoder": _ROBERTA_WRITER, **_IDS},
            {
                "encoder": _DEIT,
                "decoder": {**_GPT2, "scale_attn_by_inverse_layer_idx": True, "n_inner": 23},
                **_IDS,
            },
        ],
    ),
}
