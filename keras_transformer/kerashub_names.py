"""What users of KerasHub and Transformers type, and our names for it: values, and their errors."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from keras_transformer import transformers_names
from keras_transformer.checking import nearest

_Method = TypeVar("_Method", bound=Callable)

# Their options that are none here.
OPTIONS = {
    "preprocessor": "A task has its `tokenizer` in the place of a preprocessor, and cuts and pads "
    "texts by itself; `make_dataset(..., max_length=...)` cuts them shorter.",
    "activation": "Outputs are logits: `classify` gives probabilities, and `keras.ops.sigmoid` or "
    "`softmax` makes them of what `predict` returns. (In `from_preset` `activation` is a value of "
    "the config, that of every block.)",
    "sequence_length": "Texts are padded to the bucket that fits them, and cut at the model's "
    "longest; `make_dataset(..., max_length=...)` cuts them shorter.",
    "max_length": "`make_dataset(..., max_length=...)` cuts texts; of a language model "
    "`generate(..., max_length=...)`.",
    "pooling_mode": "It is `pooling` here: 'mean', 'max', or 'first' for their 'cls'.",
    "strip_prompt": "`generate` returns the continuation without the prompt; `return_prompt=True` "
    "puts the prompt before it.",
    "stop_token_ids": "It is `stop` here: strings and token ids.",
}

_LIBRARIES = {
    "KerasHub": OPTIONS,
    "Transformers": transformers_names.OPTIONS,
    "vLLM": transformers_names.VLLM_OPTIONS,
}

# Their names, by our module, of what is called otherwise here.
_NAMES = {
    "keras_transformer": {
        "samplers": "`kt.generation`: `Greedy`, `BeamSearch`, `Random`, `Contrastive`, ...",
        "metrics": "`kt.training`: `Perplexity`, `BLEU`, `ROUGE`, `EditDistance`",
        "upload_preset": "`huggingface_hub.upload_folder`, of a folder that a model was saved in",
    },
    "keras_transformer.generation": {
        "GreedySampler": "`Greedy`",
        "BeamSampler": "`BeamSearch`",
        "RandomSampler": "`Random`",
        "TopKSampler": "`Random(top_k=...)`",
        "TopPSampler": "`Random(top_p=...)`",
        "ContrastiveSampler": "`Contrastive`",
    },
    "keras_transformer.layers": {
        "TransformerEncoder": "`EncoderBlock`",
        "TransformerDecoder": "`DecoderBlock`",
        "PositionEmbedding": "`LearnedPosition`",
        "SinePositionEncoding": "`SinusoidalPosition`",
        "AlibiBias": "`ALiBi`",
        "ReversibleEmbedding": "`TokenEmbedding`",
        "TokenAndPositionEmbedding": "`TokenEmbedding` and `LearnedPosition`, added",
    },
}
# Attributes of their samplers, and our options.
_OF_SAMPLERS = {
    "temperature": "temperature",
    "k": "top_k",
    "p": "top_p",
    "alpha": "penalty_alpha",
    "num_beams": "num_beams",
}
# Endings of their classes in `keras_hub.models`, one class for each architecture.
_MODELS = {
    "Preprocessor": "no class here: a task has its `tokenizer`, and `make_dataset`",
    "Tokenizer": "`kt.Tokenizer`",
    "Backbone": "`kt.Backbone`, one class for every architecture",
    **{
        name: f"`kt.{name}`, one class for every architecture"
        for name in ("TextClassifier", "TextEmbedder", "MaskedLM", "CausalLM", "Seq2SeqLM")
    },
}


# Methods and attributes of their objects: of tokenizers, and of models.
_OF_TOKENIZERS = {
    "tokenize": "`encode`, or `encode_batch` of many; `id_to_token` is the string of an id",
    "detokenize": "`decode`, or `decode_batch`",
    "batch_encode_plus": "`encode_batch`",
    "encode_plus": "`encode`",
    "batch_decode": "`decode_batch`",
    "convert_tokens_to_ids": "`token_to_id`",
    "convert_ids_to_tokens": "`id_to_token`",
    "get_vocab": "`get_vocabulary()`",
    "vocab": "`get_vocabulary()`",
    "vocab_size": "`vocabulary_size`",
    "apply_chat_template": "`render_chat`",
    "save_pretrained": "`save`, whose files Transformers reads too, or `save_to_preset`",
    "pad": "not needed: tasks pad texts by themselves",
    "padding_side": "not needed: rows of any lengths go together",
    "model_max_length": "`max_sequence_length` of the config of a model",
    **{f"{theirs}_token": f"`id_to_token(tokenizer.{ours}_id)`" for theirs, ours in {
        "pad": "pad", "bos": "start", "cls": "start", "eos": "end", "sep": "end",
        "mask": "mask", "unk": "unknown",
    }.items()},
    **{f"{theirs}_token_id": f"`{ours}_id`" for theirs, ours in {
        "pad": "pad", "bos": "start", "cls": "start", "eos": "end", "sep": "end",
        "mask": "mask", "unk": "unknown",
    }.items()},
}  # fmt: skip
_OF_MODELS = {
    "preprocessor": "its `tokenizer`, and `make_dataset`",
    "encode": "`predict`, of a `TextEmbedder`",
    "encode_text": "`predict`, of a `TextEmbedder`",
    "embed": "`predict`, of a `TextEmbedder`",
    "translate": "`generate`, of a `Seq2SeqLM`",
    "enable_lora": "`enable_lora` of a task",
    "num_labels": "`num_classes`",
    "eval": "not needed: dropout is for `fit`, and for a call with `training=True`",
    "train": "`fit`; a call has `training=True`",
    **dict.fromkeys(
        ("to", "cuda", "cpu", "device"),
        "not needed: models are on the device that Keras takes, a GPU if there is one",
    ),
    "half": '`dtype="float16"` of `from_preset`',
    "state_dict": "`weights`, of which each has a `path`; `save_to_preset` for a file",
    "load_state_dict": "`load_weights`, or `keras_transformer.checkpoints.load_weights`",
    "parameters": "`weights`, or `trainable_weights`",
    "named_parameters": "`weights`, of which each has a `path`",
    "num_parameters": "`count_params()`",
    "requires_grad_": "`trainable`, an attribute; or `freeze` of a task",
    "gradient_checkpointing_enable": '`with keras.RematScope(mode="full"):` around what makes it',
    "get_input_embeddings": "`token_embedding` of a backbone",
    "forward": "`call`: a model is called with a dict of arrays",
    "config": "`backbone.config`, of a task",
    "id2label": "`labels`, of a classifier",
    "predict_proba": "`classify`, of a `TextClassifier`, with `top_k`",
    "similarity": "the product of two rows of what `predict` gives: `a @ b.T`",
    "export_to_transformers": "`kt.export_to_huggingface(model, folder)`",
}
_OF_ALL = {
    "save_pretrained": "`save_to_preset`, or `kt.export_to_huggingface` for their format",
    "from_pretrained": "`from_preset`",
    "presets": "`kt.list_presets()`",
    "push_to_hub": "`huggingface_hub.upload_folder`, of a folder that a model was saved in",
}

# Arguments of the calls of their attentions and blocks; of ours the first that a layer has.
_ARGUMENTS = {
    **dict.fromkeys(("padding_mask", "decoder_padding_mask", "key_padding_mask",
                     "src_key_padding_mask", "tgt_key_padding_mask"), ("mask",)),
    **dict.fromkeys(("encoder_padding_mask", "encoder_attention_mask",
                     "memory_key_padding_mask"), ("encoder_states_mask",)),
    **dict.fromkeys(("encoder_sequence", "encoder_hidden_states", "encoder_outputs", "memory"),
                    ("encoder_states",)),
    "key_mask": ("value_mask",),
    # Of tokens in Transformers, of pairs of them in Keras.
    "attention_mask": ("mask",),
    **dict.fromkeys(("decoder_attention_mask", "attn_mask", "position_ids", "positions",
                     "pack_ids"), ("visibility",)),
    "output_attentions": ("return_attention_scores",),
}  # fmt: skip


class _Elsewhere:
    """An attribute of their classes, which is there for its error alone."""

    def __init__(self, ours: str):
        self.ours = ours

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, instance, owner):
        ours = self.ours.format(owner=owner.__name__)
        raise AttributeError(f"{owner.__name__} has no `{self.name}`. It is {ours} here.")


class ForeignNames:
    """Answers attributes that KerasHub's and Transformers' objects have with our names for them."""

    if not TYPE_CHECKING:
        from_pretrained = _Elsewhere("`{owner}.from_preset(...)`, of a name or a folder,")
        presets = _Elsewhere("`kt.list_presets(task=...)`")

        def __getattr__(self, name: str):
            try:
                return super().__getattr__(name)  # PyTorch's modules have one.
            except AttributeError:
                own = _OF_TOKENIZERS if hasattr(type(self), "encode_batch") else _OF_MODELS
                ours = {**_OF_ALL, **own}.get(name)
                hint = "" if ours is None else f". What other libraries call so is {ours}"
                message = f"{type(self).__name__!r} object has no attribute {name!r}{hint}"
            raise AttributeError(message, name=name, obj=self)


def check_options(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """ValueError for options of KerasHub or Transformers alone, with the name that they have here.

    They are `given` to a class or function `owner`, which takes those that are `known`.
    """
    for name in given:
        for library, options in _LIBRARIES.items():
            if name in options and name not in known:
                raise ValueError(f"{owner} has no `{name}`, as {library} has it. {options[name]}")


def refuse_argument(owner: str, name: str, known: Sequence[str]) -> None:
    """TypeError, as Python's, for an argument of a call that is none of those `known`."""
    ours = next((ours for ours in _ARGUMENTS.get(name, ()) if ours in known), None)
    hint = "" if ours is None else f" It is `{ours}` here."
    raise TypeError(
        f"{owner} got an unexpected keyword argument {name!r}.{hint} It takes {', '.join(known)}."
    )


def refuse(owner: str, given: Iterable[str]) -> None:
    """As `check_options`, where there are no others: TypeError, as Python's, for the rest."""
    check_options(owner, given, ())
    for name in given:
        raise TypeError(f"{owner}() got an unexpected keyword argument {name!r}")


def answers_theirs(method: _Method) -> _Method:
    """A decorator: what is no argument of the method is answered as `refuse` does."""
    known = inspect.signature(method).parameters

    @functools.wraps(method)
    def answering(self, *args, **kwargs):
        unknown = [name for name in kwargs if name not in known]
        if unknown:
            refuse(f"{type(self).__name__}.{method.__name__}", unknown)
        return method(self, *args, **kwargs)

    return answering


def offer(module: str, names: Sequence[str]) -> None:
    """Has a package show these names alone to completion, and say of others what they are here."""

    def lack(name: str):
        raise missing(module, name, names)

    # Not defined in the package, where a type checker would take any name to be there.
    vars(sys.modules[module]).update(__getattr__=lack, __dir__=lambda: list(names))


def missing(module: str, name: str, names: Sequence[str] = ()) -> AttributeError:
    """The error for a name that a module lacks: with ours if it is one of theirs, or a near one.

    `names` are those that the module has.
    """
    ours = _NAMES.get(module, {}).get(name)
    library = "KerasHub"
    if ours is None and module == "keras_transformer" and name in transformers_names.CLASSES:
        library, ours = "Transformers", transformers_names.CLASSES[name]
    if ours is None and module in ("keras_transformer", "keras_transformer.models"):
        ours = next((ours for end, ours in _MODELS.items() if name.endswith(end)), None)
    if ours is None and module == "keras_transformer":
        library = "Transformers"
        ours = next(
            (ours for end, ours in transformers_names.ENDS.items() if name.endswith(end)), None
        )
    generating = ("keras_transformer", "keras_transformer.generation")
    if ours is None and module in generating and name in transformers_names.GENERATION:
        library, ours = "another library", transformers_names.GENERATION[name]
    hint = "" if ours is None else f". What {library} calls so is {ours}"
    if not hint and not name.startswith("_") and (near := nearest(name, names)):
        hint = f".{near}"
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}")


def sampler_here(sampler: Any) -> str:
    """A sentence with what another library's sampler, or its name, is here; "" for no such one."""
    if isinstance(sampler, str) and sampler in transformers_names.SAMPLERS:
        return f" It is {transformers_names.SAMPLERS[sampler]!r} here."
    ours = _NAMES["keras_transformer.generation"].get(type(sampler).__name__)
    if ours is None:
        return ""
    name = ours.strip("`").partition("(")[0]
    values = {own: getattr(sampler, theirs, None) for theirs, own in _OF_SAMPLERS.items()}
    if name != "Random" or values["temperature"] == 1:
        del values["temperature"]
    given = ", ".join(f"{n}={value!r}" for n, value in values.items() if value is not None)
    return f" It is `kt.generation.{name}({given})` here, and a seed is one of `generate`."


# Presets of KerasHub with the weights of ours, where the names differ.
PRESETS: Mapping[str, str] = {
    "all_minilm_l6_v2_en": "minilm_l6_en",
    "all_minilm_l12_v2_en": "minilm_l12_en",
    **{f"distil_bert_{end}": f"distilbert_{end}" for end in (
        "base_en", "base_en_uncased", "base_multi")},
    **{f"albert_{size}_en_uncased": f"albert_{size}_en" for size in (
        "base", "large", "extra_large", "extra_extra_large")},
    **{f"electra_{size}_discriminator_uncased_en": f"electra_{size}_en" for size in (
        "small", "base", "large")},
    **{f"electra_{size}_generator_uncased_en": f"electra_{size}_generator_en" for size in (
        "small", "base")},
    **{f"flan_{size}_multi": f"flan_t5_{size}_multi" for size in ("small", "base", "large")},
    "llama3.1_8b": "llama3_1_8b",
    "llama3.2_1b": "llama3_2_1b",
    "llama3.2_3b": "llama3_2_3b",
    "mistral_0.3_7b_en": "mistral_0_3_7b_en",
    "qwen2.5_0.5b_en": "qwen2_5_0_5b",
    "qwen2.5_3b_en": "qwen2_5_3b",
    "qwen3_0.6b_en": "qwen3_0_6b",
    "qwen3_1.7b_en": "qwen3_1_7b",
    "qwen3_4b_en": "qwen3_4b",
    "qwen3_8b_en": "qwen3_8b",
}  # fmt: skip
