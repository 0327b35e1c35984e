"""Values that configs of encoders and encoder-decoders are drawn from: all that the models act on.

A list is what one value is drawn from; a function makes it of the values before it.
"""

from keras_transformer.checkpoints.families.base.family import ACTIVATIONS
from tests.checkpoints.family_seq2seqs import NO_IMAGES

_ACTIVATIONS = [*ACTIVATIONS]
_BOTH = [False, True]
_LAYERS, _HEADS, _WIDTHS = [1, 2, 3, 4], [1, 2, 3, 5], [7, 20, 33]


def _without(values, *names):
    return {name: choices for name, choices in values.items() if name not in names}


def _width(size, heads="num_attention_heads"):
    """A width that the heads divide."""
    return lambda random, values: values[heads] * int(random.choice(size))


_BERT = {
    "vocab_size": [61, 70],
    "num_attention_heads": _HEADS,
    "hidden_size": _width([2, 4, 7]),
    "num_hidden_layers": _LAYERS,
    "intermediate_size": _WIDTHS,
    "hidden_act": _ACTIVATIONS,
    "max_position_embeddings": [24, 31],
    "type_vocab_size": [1, 2, 3],
    "layer_norm_eps": [1e-12, 1e-7, 1e-5, 1e-3],
    "pad_token_id": [0, 1, 4],
    "tie_word_embeddings": _BOTH,
    "hidden_dropout_prob": [0.0, 0.1, 0.3],
    "attention_probs_dropout_prob": [0.0, 0.1, 0.3],
    "classifier_dropout": [None, 0.0, 0.2],
}
_NARROW = {**_BERT, "embedding_size": [3, 8, 20]}


def _drawn_rotary(random, values=None):
    base = float(random.choice([1000.0, 70.0]))
    kind = str(random.choice(["default", "linear", "dynamic", "llama3", "yarn"]))
    options = {"rope_theta": base, "rope_type": kind}
    if kind != "default":
        options["factor"] = float(random.choice([2.0, 1.5]))
    if kind == "llama3":
        options |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind in ("llama3", "yarn"):
        options["original_max_position_embeddings"] = 8
    return options


def _of_kinds(random, values):
    kinds = ("full_attention", "sliding_attention")
    return {kind: _drawn_rotary(random) for kind in kinds}


def _positions(random, values):
    if not values["relative_attention"]:
        return {}
    longest = int(random.choice([-1, 5, 7, 9]))
    return {
        "pos_att_type": [["c2p", "p2c"], "p2c|c2p", "c2p|p2c"][int(random.integers(3))],
        "norm_rel_ebd": "layer_norm",
        "share_att_key": bool(random.integers(2)),
        "max_relative_positions": longest,
        "position_buckets": int(random.choice([-1, 2, 3, 4])),
    }


_T5 = {
    "vocab_size": [61, 70],
    "num_heads": _HEADS,
    "d_model": [6, 12, 19],
    "d_kv": [2, 5, 8],
    "d_ff": _WIDTHS,
    "num_layers": _LAYERS,
    "num_decoder_layers": [None, 1, 2, 3],
    "relative_attention_num_buckets": [4, 8, 32],
    "relative_attention_max_distance": [17, 20, 128],
    "dropout_rate": [0.0, 0.1],
    "classifier_dropout": [0.0, 0.2],
    "layer_norm_epsilon": [1e-6, 1e-3],
    "feed_forward_proj": [*_ACTIVATIONS, *(f"gated-{name}" for name in _ACTIVATIONS)],
    "tie_word_embeddings": _BOTH,
    "pad_token_id": [0, 1, 4],
    "eos_token_id": [2],
    "decoder_start_token_id": [0, 3],
}
_BART = {
    "vocab_size": [61, 70],
    "encoder_attention_heads": [1, 2, 3, 5],
    "decoder_attention_heads": [1, 2, 3, 5],
    "d_model": [30, 60],
    "encoder_layers": _LAYERS,
    "decoder_layers": _LAYERS,
    "encoder_ffn_dim": _WIDTHS,
    "decoder_ffn_dim": _WIDTHS,
    "activation_function": _ACTIVATIONS,
    "dropout": [0.0, 0.1],
    "attention_dropout": [0.0, 0.2],
    "classifier_dropout": [0.0, 0.2],
    "scale_embedding": _BOTH,
    "tie_word_embeddings": _BOTH,
    "max_position_embeddings": [66, 80],
    "pad_token_id": [0, 1, 4],
    "bos_token_id": [0, 3],
    "eos_token_id": [2],
    "decoder_start_token_id": [0, 2, 3],
    "forced_eos_token_id": [None, 2],
}


def _windows(layers):
    return lambda random, values: (
        int(random.choice([4, 6]))
        if random.integers(2)
        else random.choice([4, 8], values[layers]).tolist()
    )


def _side(random, values):
    heads = int(random.choice([2, 3, 4]))
    layers = int(random.choice([1, 2, 3]))
    kinds = random.choice(["full_attention", "sliding_attention"], layers).tolist()
    caps = [[None, 2.0, 30.0][int(random.integers(3))] for _ in range(2)]
    return {
        "vocab_size": 61,
        "num_attention_heads": heads,
        "hidden_size": heads * int(random.choice([4, 6])),
        "num_hidden_layers": layers,
        "num_key_value_heads": int(random.choice([n for n in (1, 2, 3, 4) if heads % n == 0])),
        "head_dim": int(random.choice([4, 6, 8])),
        "intermediate_size": int(random.choice(_WIDTHS)),
        "hidden_activation": str(random.choice(_ACTIVATIONS)),
        "max_position_embeddings": 80,
        "rms_norm_eps": float(random.choice([1e-6, 1e-3])),
        "rope_parameters": _drawn_rotary(random),
        "attention_bias": bool(random.integers(2)),
        "query_pre_attn_scalar": int(random.choice([4, 5, 8])),
        "sliding_window": int(random.choice([2, 3, 5])),
        "layer_types": kinds if random.integers(2) else None,
        "final_logit_softcapping": caps[0],
        "attn_logit_softcapping": caps[1],
    }


def _side2(random, values):
    """A side of T5Gemma 2, as wide as the other."""
    side = _without(_side(random, values), "attn_logit_softcapping")  # which it does not read
    return {**side, "hidden_size": 24, "rope_parameters": _of_kinds(random, values)}


def _with_images(random, values):
    side, own = _side2(random, values), int(random.choice([6, 60]))
    return {"text_config": side, **NO_IMAGES, "eoi_token_index": own}


RANGES = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "camembert": _BERT,
    "distilbert": {
        "vocab_size": [61, 70],
        "n_heads": _HEADS,
        "dim": _width([2, 4, 7], "n_heads"),
        "n_layers": _LAYERS,
        "hidden_dim": _WIDTHS,
        "activation": _ACTIVATIONS,
        "max_position_embeddings": [24, 31],
        "sinusoidal_pos_embds": _BOTH,
        "pad_token_id": [0, 1, 4],
        "tie_word_embeddings": _BOTH,
        "dropout": [0.0, 0.1],
        "attention_dropout": [0.0, 0.1],
        "qa_dropout": [0.0, 0.3],
        "seq_classif_dropout": [0.0, 0.2],
    },
    "albert": {
        **_without(_NARROW, "classifier_dropout"),
        "num_hidden_groups": lambda random, values: int(
            random.integers(1, values["num_hidden_layers"] + 1)
        ),
        "inner_group_num": [1, 1, 2, 3],
        "classifier_dropout_prob": [0.0, 0.2],
    },
    "electra": _NARROW,
    "mpnet": {
        **_without(_BERT, "type_vocab_size", "pad_token_id"),
        "pad_token_id": [1],
    },
    "nomic_bert": {
        **_BERT,
        "hidden_size": _width([4, 6]),
        "head_dim": [None, 4, 6, 8],
        "rope_parameters": _drawn_rotary,
    },
    "modernbert": {
        **_without(_BERT, "type_vocab_size", "layer_norm_eps", "hidden_act"),
        "hidden_size": _width([4, 6]),
        "hidden_activation": _ACTIVATIONS,
        "norm_eps": [1e-5, 1e-3],
        "norm_bias": _BOTH,
        "attention_bias": _BOTH,
        "mlp_bias": _BOTH,
        "embedding_dropout": [0.0],
        "mlp_dropout": [0.0, 0.1],
        "attention_dropout": [0.0, 0.1],
        "local_attention": [2, 4, 6, 8],
        "layer_types": lambda random, values: (
            random.choice(
                ["full_attention", "sliding_attention"], values["num_hidden_layers"]
            ).tolist()
            if random.integers(2)
            else None
        ),
        "rope_parameters": _of_kinds,
        "classifier_pooling": ["cls", "mean"],
        "classifier_dropout": [0.0, 0.2],
        "classifier_bias": _BOTH,
        "classifier_activation": _ACTIVATIONS,
    },
    "longformer": {
        **_without(_BERT, "classifier_dropout"),
        "attention_window": _windows("num_hidden_layers"),
        "sep_token_id": [3],
    },
    "big_bird": {
        **_BERT,
        "max_position_embeddings": [64],
        "attention_type": ["block_sparse", "block_sparse", "original_full"],
        "block_size": [1, 2, 3],
        "num_random_blocks": [1, 2],
        "use_bias": _BOTH,
        "rescale_embeddings": _BOTH,
        "sep_token_id": [3],
    },
    "deberta-v2": {
        **_without(_BERT, "classifier_dropout"),
        "type_vocab_size": [0, 1, 2],
        "position_biased_input": _BOTH,
        "relative_attention": [True, True, False],
        "": _positions,
        "conv_kernel_size": [0, 0, 1, 3, 5],
        "conv_act": _ACTIVATIONS,
        "legacy": _BOTH,
        "cls_dropout": [None, 0.2],
        "pooler_dropout": [0.0, 0.3],
    },
    "t5": _T5,
    "mt5": _T5,
    "umt5": _T5,
    "longt5": {
        **_T5,
        "local_radius": [1, 2, 3, 5],
        "encoder_attention_type": ["local", "transient-global"],
        "global_block_size": [2, 3, 4, 16],
    },
    "t5gemma": {
        "encoder": _side,
        "decoder": _side,
        "vocab_size": [61],
        "tie_word_embeddings": _BOTH,
        "dropout_rate": [0.0, 0.1],
        "attention_dropout": [0.0, 0.1],
    },
    "t5gemma2": {
        "encoder": _with_images,
        "decoder": _side2,
        "dropout_rate": [0.0, 0.1],
        "attention_dropout": [0.0, 0.1],
    },
    "bart": _BART,
    "mbart": {**_BART, "decoder_start_token_id": [None, 0, 2, 3]},
    "m2m_100": {
        **_without(_BART, "classifier_dropout"),
        "decoder_start_token_id": [None, 2, 3],
        "bos_token_id": [5],
    },
    "blenderbot": _without(_BART, "classifier_dropout"),
    "pegasus": _without(_BART, "classifier_dropout"),
    "pegasus_x": {
        **_without(_BART, "classifier_dropout"),
        "block_size": [2, 4, 6, 64],
        "num_global_tokens": [1, 2, 5],
        "stagger_local_blocks": _BOTH,
    },
    "marian": {
        **_without(_BART, "classifier_dropout", "bos_token_id"),
        "": lambda random, values: (
            {"decoder_vocab_size": 70, "share_encoder_decoder_embeddings": False}
            if random.integers(3) == 0
            else {"share_encoder_decoder_embeddings": bool(random.integers(2))}
        ),
        "pad_token_id": [4, 60],
    },
    "led": {
        **_without(_BART, "max_position_embeddings", "scale_embedding"),
        "attention_window": _windows("encoder_layers"),
        "max_encoder_position_embeddings": [64, 80],
        "max_decoder_position_embeddings": [66, 70],
    },
}


def drawn(random, model_type):
    """Values of a config of that family."""
    values = {}
    for name, choices in RANGES[model_type].items():
        if callable(choices):
            value = choices(random, values)
        else:
            value = choices[int(random.integers(len(choices)))]
        values |= {name: value} if name else value
    return values
