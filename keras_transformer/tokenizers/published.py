"""The published tokenizer classes, as values.

Transformers 5 takes from a `tokenizer.json` of one of these classes the vocabulary, the merges,
the compiled normalization rules, the added tokens and mostly the template; normalizer,
pre-tokenizer and decoder are the class's own. So do we. (Release 4 took all from the file. It
matters where they differ: Llama's files of that time, say, always put a space before a text,
release 5 only where there is none yet.) Every other class is what its file says.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tokenizers
from tokenizers import AddedToken, models

from keras_transformer.tokenizers import preparing
from keras_transformer.tokenizers.preparing import Settings
from keras_transformer.tokenizers.sentencepiece_file import SentencePieceModel

# What the files of a tokenizer without a class of its own say, without the ending "Fast".
GENERIC = "PreTrainedTokenizer"
GENERIC_CLASSES = (GENERIC, "TokenizersBackend", "PythonBackend", "MarianTokenizer")

# The class of a model's tokenizer if its tokenizer_config.json names none. The class of the
# Llama line is in its files only.
CLASS_OF_MODEL = {
    "albert": "AlbertTokenizer",
    "bart": "RobertaTokenizer",
    "bert": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "gpt2": "GPT2Tokenizer",
    "gpt_neox": "GPTNeoXTokenizer",
    "marian": "MarianTokenizer",
    "mistral": GENERIC,
    "modernbert": GENERIC,
    "mt5": "T5Tokenizer",
    "openai-gpt": "OpenAIGPTTokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "roberta": "RobertaTokenizer",
    "t5": "T5Tokenizer",
    "umt5": GENERIC,
    "xlm-roberta": "XLMRobertaTokenizer",
}
# Models whose files often name another class than theirs.
WRONGLY_NAMED = ("modernbert", "qwen2")


@dataclasses.dataclass(frozen=True)
class Published:
    """A published tokenizer class.

    Args:
        model: the kind of its model.
        files: its files if there is no `tokenizer.json`.
        tokens: the special tokens that it has if its files do not name others.
        prepare: sets normalizer, pre-tokenizer and decoder of a backend.
        template: sets what is put around a text; `None` for the start and end that
            `add_bos_token` and `add_eos_token` ask for.
        own_template: whether this is so whatever the `tokenizer.json` says.
        options: values of the model.
        needs: the names of the special tokens that the vocabulary must have.
        further: special tokens beyond the named ones, if no file speaks of such.
        from_pieces: the model from a SentencePiece file.
    """

    model: type
    files: tuple[str, ...]
    tokens: dict[str, str]
    prepare: Callable[[tokenizers.Tokenizer, Settings], None]
    template: Callable[[tokenizers.Tokenizer, Settings], None] | None = None
    own_template: bool = False
    options: Callable[[Settings], dict[str, Any]] = lambda settings: {}
    needs: tuple[str, ...] = ()
    further: Callable[[Settings], list[AddedToken]] = lambda settings: []
    from_pieces: Callable[[SentencePieceModel, Settings], models.Model] | None = None


_BERT_TOKENS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_ROBERTA_TOKENS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}
_END_OF_TEXT = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
_BPE_FILES = ("vocab.json", "merges.txt")

_BERT = Published(
    model=models.WordPiece,
    files=("vocab.txt",),
    tokens=_BERT_TOKENS,
    prepare=preparing.prepare_bert,
    template=preparing.bert_template,
    own_template=True,
    needs=("unk_token",),
    options=lambda settings: {
        "unk_token": settings.tokens["unk_token"],
        "max_input_chars_per_word": 100,
        "continuing_subword_prefix": "##",
    },
)
_ROBERTA = Published(
    model=models.BPE,
    files=_BPE_FILES,
    tokens=_ROBERTA_TOKENS,
    prepare=preparing.prepare_bytes,
    template=preparing.roberta_template,
    own_template=True,
    options=preparing.bpe_options(),
)
CLASSES = {
    "BertTokenizer": _BERT,
    "DistilBertTokenizer": _BERT,
    "ElectraTokenizer": _BERT,
    "RobertaTokenizer": _ROBERTA,
    "BartTokenizer": _ROBERTA,
    "GPT2Tokenizer": Published(
        model=models.BPE,
        files=_BPE_FILES,
        tokens=_END_OF_TEXT,
        prepare=preparing.prepare_bytes,
        options=preparing.bpe_options(),
    ),
    "GPTNeoXTokenizer": Published(
        model=models.BPE,
        files=_BPE_FILES,
        tokens={**_END_OF_TEXT, "pad_token": "<|padding|>"},
        prepare=preparing.prepare_neox,
        own_template=True,
        options=preparing.bpe_options(),
    ),
    "Qwen2Tokenizer": Published(
        model=models.BPE,
        files=_BPE_FILES,
        tokens=dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>"),
        prepare=preparing.prepare_qwen2,
        options=preparing.bpe_options(),
    ),
    "OpenAIGPTTokenizer": Published(
        model=models.BPE,
        files=_BPE_FILES,
        tokens={"unk_token": "<unk>"},
        prepare=preparing.prepare_gpt,
        needs=("unk_token",),
        options=preparing.bpe_options(suffix="</w>", unknown=True),
    ),
    "AlbertTokenizer": Published(
        model=models.Unigram,
        files=("spiece.model",),
        tokens={
            **_BERT_TOKENS,
            "bos_token": "[CLS]",
            "eos_token": "[SEP]",
            "unk_token": "<unk>",
            "pad_token": "<pad>",
        },
        prepare=preparing.prepare_albert,
        template=preparing.bert_template,
        from_pieces=preparing.albert_pieces,
    ),
    "XLMRobertaTokenizer": Published(
        model=models.Unigram,
        files=("sentencepiece.bpe.model",),
        tokens=_ROBERTA_TOKENS,
        prepare=preparing.prepare_xlm_roberta,
        template=preparing.xlm_roberta_template,
        own_template=True,
        from_pieces=preparing.xlm_roberta_pieces,
    ),
    "T5Tokenizer": Published(
        model=models.Unigram,
        files=("spiece.model",),
        tokens={"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
        prepare=preparing.prepare_t5,
        template=preparing.t5_template,
        own_template=True,
        from_pieces=preparing.t5_pieces,
        further=preparing.t5_sentinels,
    ),
    "LlamaTokenizer": Published(
        model=models.BPE,
        files=("tokenizer.model",),
        tokens={"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
        prepare=preparing.prepare_llama,
        options=preparing.bpe_options(fused_bytes=True),
        from_pieces=preparing.llama_pieces,
    ),
}


def class_of(tokenizer_config: dict, model_config: dict, tokenizer_json: str) -> str:
    """The class that a folder's files name, without the ending "Fast"; `GENERIC` for none.

    The rules are those of `AutoTokenizer`: the tokenizer's file decides, except for models that
    are known for wrong names or have no class of their own.
    """
    named = tokenizer_config.get("tokenizer_class") or model_config.get("tokenizer_class")
    named = named.removesuffix("Fast") if isinstance(named, str) else None
    model_type = model_config.get("model_type")
    registered = CLASS_OF_MODEL.get(model_type) if isinstance(model_type, str) else None
    if named is None:
        return registered or GENERIC
    # Llama 3, whose words are spelled in bytes, is often named as Llama 2.
    in_bytes = '"ByteLevel"' in tokenizer_json
    if named == "LlamaTokenizer" and in_bytes and model_type not in WRONGLY_NAMED:
        return GENERIC
    if registered == GENERIC or (registered and model_type in WRONGLY_NAMED):
        return registered
    return named
