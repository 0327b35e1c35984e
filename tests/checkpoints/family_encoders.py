"""Configs of encoders: the start of the classes' names, and three configs or more."""

from tests.checkpoints.family_sizes import WIDER

_BERT = {
    "vocab_size": 61,
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 24,
}
_XLNET = {"vocab_size": 61, "d_model": 12, "n_layer": 2, "n_head": 3, "d_inner": 20}
_MPNET = {**_BERT, "pad_token_id": 1}
_MODERN = {**_MPNET, "local_attention": 4}
_LONGFORMER = {**_BERT, "attention_window": 4, "pad_token_id": 1}
_BIG_BIRD = {**_BERT, "block_size": 2, "num_random_blocks": 1, "sep_token_id": 3}
_EUROBERT = {**_BERT, "num_key_value_heads": 1, "head_dim": 4, "pad_token_id": 0}
_ESM = {
    **{name: value for name, value in _BERT.items() if name != "type_vocab_size"},
    "position_embedding_type": "rotary",
    "token_dropout": True,
    "mask_token_id": 28,
    "pad_token_id": 1,
}
_FNET = {
    **{name: value for name, value in _BERT.items() if name != "num_attention_heads"},
    "pad_token_id": 0,
}
_DEBERTA = {
    **_BERT,
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
}
_DISTILBERT = {
    "vocab_size": 61,
    "dim": 12,
    "n_layers": 2,
    "n_heads": 3,
    "hidden_dim": 20,
    "max_position_embeddings": 24,
}

CONFIGS = {
    "bert": (
        "Bert",
        [
            _BERT,
            {**_BERT, **WIDER, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3},
            {**_BERT, "hidden_act": "mish", "type_vocab_size": 5, "tie_word_embeddings": False},
        ],
    ),
    "roberta": (
        "Roberta",
        [
            {**_BERT, "type_vocab_size": 1},
            {**_BERT, **WIDER, "hidden_act": "relu", "pad_token_id": 4},
            {**_BERT, "hidden_act": "quick_gelu", "tie_word_embeddings": False},
        ],
    ),
    "xlm-roberta": (
        "XLMRoberta",
        [_BERT, {**_BERT, **WIDER, "hidden_act": "tanh"}, {**_BERT, "pad_token_id": 0}],
    ),
    "camembert": (
        "Camembert",
        [_BERT, {**_BERT, **WIDER, "hidden_act": "silu"}, {**_BERT, "type_vocab_size": 3}],
    ),
    "distilbert": (
        "DistilBert",
        [
            _DISTILBERT,
            {**_DISTILBERT, "dim": 40, "n_heads": 5, "activation": "relu"},
            {**_DISTILBERT, "sinusoidal_pos_embds": True, "tie_word_embeddings": False},
        ],
    ),
    "albert": (
        "Albert",
        [
            {**_BERT, "embedding_size": 7},
            {**_BERT, **WIDER, "embedding_size": 40, "num_hidden_groups": 2},
            {**_BERT, "embedding_size": 20, "hidden_act": "relu", "tie_word_embeddings": False},
            {**_BERT, "num_hidden_groups": 2, "inner_group_num": 2, "num_attention_heads": 2},
        ],
    ),
    "electra": (
        "Electra",
        [
            {**_BERT, "embedding_size": 7},
            {**_BERT, **WIDER, "embedding_size": 40, "hidden_act": "gelu_new"},
            {**_BERT, "embedding_size": 20, "type_vocab_size": 3, "tie_word_embeddings": False},
        ],
    ),
    "mpnet": (
        "MPNet",
        [
            _MPNET,
            {**_MPNET, **WIDER, "hidden_act": "relu", "layer_norm_eps": 1e-3},
            {**_MPNET, "hidden_act": "gelu_new"},
        ],
    ),
    "nomic_bert": (
        "NomicBert",
        [
            _BERT,
            {**_BERT, **WIDER, "type_vocab_size": 3, "rope_parameters": {"rope_theta": 70.0}},
            {
                **_BERT,
                "head_dim": 6,
                "hidden_act": "gelu",
                "layer_norm_eps": 1e-3,
                "tie_word_embeddings": False,
            },
        ],
    ),
    "modernbert": (
        "ModernBert",
        [
            {**_MODERN, "num_hidden_layers": 4},
            {
                **_MODERN,
                **WIDER,
                "norm_bias": True,
                "global_rope_theta": 70.0,
                "local_rope_theta": 20.0,
                "global_attn_every_n_layers": 2,
                "attention_bias": True,
                "classifier_pooling": "mean",
                "classifier_bias": True,
                "classifier_activation": "relu",
            },
            {
                **_MODERN,
                "layer_types": ["sliding_attention", "full_attention", "full_attention"],
                "rope_parameters": {"full_attention": {"rope_theta": 50.0}},
                "mlp_bias": True,
                "hidden_activation": "gelu_new",
            },
        ],
    ),
    "longformer": (
        "Longformer",
        [
            _LONGFORMER,
            {**_LONGFORMER, **WIDER, "attention_window": [4, 12, 4], "type_vocab_size": 1},
            {**_LONGFORMER, "hidden_act": "relu", "tie_word_embeddings": False},
        ],
    ),
    "big_bird": (
        "BigBird",
        [
            _BIG_BIRD,
            {**_BIG_BIRD, **WIDER, "use_bias": False, "rescale_embeddings": True},
            {
                **_BIG_BIRD,
                "attention_type": "original_full",
                "type_vocab_size": 4,
                "hidden_act": "relu",
                "tie_word_embeddings": False,
            },
        ],
    ),
    "deberta-v2": (
        "DebertaV2",
        [
            {**_DEBERTA, "position_buckets": 4, "share_att_key": True},
            {
                **_DEBERTA,
                **WIDER,
                "pos_att_type": "p2c|c2p",
                "max_relative_positions": 5,
                "position_biased_input": True,
                "type_vocab_size": 2,
                "legacy": False,
                "pooler_hidden_act": "relu",
            },
            {
                **_DEBERTA,
                "position_buckets": 3,
                "max_relative_positions": 7,
                "hidden_act": "gelu_new",
                "layer_norm_eps": 1e-3,
                "tie_word_embeddings": False,
            },
            _BERT,  # without relative positions
            {**_DEBERTA, "conv_kernel_size": 3, "conv_act": "gelu", "position_buckets": 4},
            {**_DEBERTA, **WIDER, "conv_kernel_size": 5, "num_hidden_layers": 1},
            {**_DEBERTA, "conv_kernel_size": 1, "conv_act": "silu", "layer_norm_eps": 1e-3},
        ],
    ),
    "eurobert": (
        "EuroBert",
        [
            _EUROBERT,
            {
                **_EUROBERT,
                **WIDER,
                "num_key_value_heads": 5,
                "head_dim": 6,
                "hidden_act": "gelu",
                "rope_parameters": {"rope_theta": 70.0},
                "classifier_pooling": "mean",
                "tie_word_embeddings": True,
            },
            {
                **_EUROBERT,
                "attention_bias": True,
                "mlp_bias": True,
                "rms_norm_eps": 1e-3,
                "classifier_pooling": "bos",
            },
        ],
    ),
    "esm": (
        "Esm",
        [
            _ESM,
            {
                **_ESM,
                **WIDER,
                "hidden_size": 20,
                "position_embedding_type": "absolute",
                "emb_layer_norm_before": True,
                "pad_token_id": 4,
            },
            {**_ESM, "token_dropout": False, "rope_theta": 70.0, "layer_norm_eps": 1e-3},
        ],
    ),
    "roformer": (
        "RoFormer",
        [
            {**_BERT, "embedding_size": 7},
            {**_BERT, **WIDER, "hidden_act": "relu", "layer_norm_eps": 1e-3},
            {**_BERT, "embedding_size": 20, "type_vocab_size": 3, "tie_word_embeddings": False},
        ],
    ),
    "xlnet": (
        "XLNet",
        [
            _XLNET,
            {**_XLNET, "clamp_len": 3, "ff_activation": "relu", "layer_norm_eps": 1e-3},
            {**_XLNET, "d_model": 20, "n_head": 5, "n_layer": 3, "initializer_range": 0.1},
        ],
    ),
    "rembert": (
        "RemBert",
        [
            {**_BERT, "input_embedding_size": 7, "output_embedding_size": 17},
            {
                **_BERT,
                **WIDER,
                "input_embedding_size": 40,
                "output_embedding_size": 9,
                "hidden_act": "relu",
            },
            {
                **_BERT,
                "input_embedding_size": 20,
                "output_embedding_size": 20,
                "type_vocab_size": 3,
                "layer_norm_eps": 1e-3,
            },
        ],
    ),
    "xlm-roberta-xl": (
        "XLMRobertaXL",
        [
            _BERT,
            {**_BERT, **WIDER, "hidden_act": "gelu_new", "pad_token_id": 4},
            {**_BERT, "type_vocab_size": 3, "layer_norm_eps": 1e-3, "tie_word_embeddings": False},
        ],
    ),
    "megatron-bert": (
        "MegatronBert",
        [
            _BERT,
            {**_BERT, **WIDER, "hidden_act": "relu", "layer_norm_eps": 1e-3},
            {**_BERT, "hidden_act": "silu", "type_vocab_size": 5, "tie_word_embeddings": False},
        ],
    ),
    "data2vec-text": (
        "Data2VecText",
        [
            _BERT,
            {**_BERT, **WIDER, "hidden_act": "relu", "pad_token_id": 4},
            {**_BERT, "type_vocab_size": 1, "tie_word_embeddings": False},
        ],
    ),
    "roberta-prelayernorm": (
        "RobertaPreLayerNorm",
        [
            _BERT,
            {**_BERT, **WIDER, "hidden_act": "gelu_new", "pad_token_id": 0},
            {**_BERT, "type_vocab_size": 3, "layer_norm_eps": 1e-3, "tie_word_embeddings": False},
        ],
    ),
    "fnet": (
        "FNet",
        [
            _FNET,
            {**_FNET, "hidden_size": 20, "hidden_act": "relu", "layer_norm_eps": 1e-3},
            {**_FNET, "type_vocab_size": 1, "tie_word_embeddings": False, "hidden_size": 15},
        ],
    ),
    "jina_embeddings_v3": (
        "JinaEmbeddingsV3",
        [
            _MPNET,
            {
                **_MPNET,
                **WIDER,
                "hidden_act": "relu",
                "type_vocab_size": 3,
                "rope_parameters": {"rope_theta": 70.0, "rope_type": "linear", "factor": 2.0},
            },
            {**_MPNET, "layer_norm_eps": 1e-3, "tie_word_embeddings": False},
        ],
    ),
    "gte": (
        "Gte",
        [
            _MPNET,
            {
                **_MPNET,
                **WIDER,
                "hidden_act": "relu",
                "type_vocab_size": 3,
                "rope_parameters": {"rope_theta": 70.0, "rope_type": "linear", "factor": 2.0},
            },
            {**_MPNET, "type_vocab_size": 0, "layer_norm_eps": 1e-3, "tie_word_embeddings": False},
        ],
    ),
}
