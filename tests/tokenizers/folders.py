"""Folders of every published family, as they are laid out on the hub, with small vocabularies.

The vocabularies are learned here, from a few hundred sentences.
"""

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers, processors, trainers

from tests.tokenizers.folder_parts import BYTES, REAL, train_bytes, write_bpe, write_json
from tests.tokenizers.piece_folders import (
    albert,
    albert_accents,
    deberta,
    deberta_words,
    fnet,
    llama,
    llama_json,
    llama_legacy,
    llama_no_prefix,
    madlad,
    mbart,
    mbart50,
    mistral,
    mistral_pieces,
    moonshine,
    mt5,
    nllb,
    nllb_legacy,
    pegasus,
    rembert,
    rembert_plain,
    t5,
    xglm,
    xlm_roberta,
)

transformers = pytest.importorskip("transformers")

QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CLIP_WORDS = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)
LLAMA3_WORDS = QWEN2_WORDS.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def bert(folder: Path, lowercase: bool = True) -> None:
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=900, special_tokens=specials, show_progress=False
    )
    backend.train_from_iterator(REAL, trainer)
    vocabulary = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token, _ in vocabulary))
    write_json(folder, "config.json", {"model_type": "bert"})


def bert_json(folder: Path) -> None:
    """A tokenizer.json that its config, and the class it names, overrule."""
    bert(folder)
    model = models.WordPiece.from_file(str(folder / "vocab.txt"), max_input_chars_per_word=50)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "BertTokenizerFast", "do_lower_case": False}
    write_json(folder, "tokenizer_config.json", config)


def bert_cased(folder: Path) -> None:
    bert(folder, lowercase=False)
    write_json(folder, "tokenizer_config.json", {"do_lower_case": False, "model_max_length": 512})


def distilbert(folder: Path) -> None:
    bert(folder)
    write_json(folder, "config.json", {"model_type": "distilbert"})
    config = {"strip_accents": False, "tokenize_chinese_chars": False}
    write_json(folder, "tokenizer_config.json", config | {"tokenizer_class": "DistilBertTokenizer"})


def electra(folder: Path) -> None:
    bert(folder)
    write_json(folder, "config.json", {"model_type": "electra"})
    mask = {"content": "[MASK]", "lstrip": True, "normalized": False, "__type": "AddedToken"}
    config = {"tokenizer_class": "ElectraTokenizer", "do_lower_case": True, "mask_token": mask}
    write_json(folder, "tokenizer_config.json", config)


def roberta(folder: Path) -> None:
    write_bpe(folder, train_bytes(["<s>", "<pad>", "</s>", "<unk>", "<mask>"]))
    write_json(folder, "config.json", {"model_type": "roberta"})


def roberta_json(folder: Path) -> None:
    roberta(folder)
    backend = train_bytes([])
    model = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    parts = backend.pre_tokenizer, backend.decoder
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer, backend.decoder = parts
    mask = tokenizers.AddedToken("<mask>", lstrip=True, normalized=False)
    backend.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", mask])
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    backend.save(str(folder / "tokenizer.json"))


def bart(folder: Path) -> None:
    roberta_json(folder)
    write_json(folder, "config.json", {"model_type": "bart"})
    config = {"tokenizer_class": "BartTokenizer", "add_prefix_space": True}
    write_json(folder, "tokenizer_config.json", config)


def blenderbot(folder: Path) -> None:
    roberta(folder)
    write_json(folder, "config.json", {"model_type": "blenderbot"})
    mask = {"content": "<mask>", "lstrip": True, "normalized": False, "__type": "AddedToken"}
    write_json(folder, "tokenizer_config.json", {"mask_token": mask, "eos_token": "</s>"})


def blenderbot_json(folder: Path) -> None:
    """With the end of a text, as published."""
    roberta_json(folder)
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 2)]
    )
    backend.save(str(folder / "tokenizer.json"))
    write_json(folder, "config.json", {"model_type": "blenderbot"})
    write_json(folder, "tokenizer_config.json", {"tokenizer_class": "BlenderbotTokenizer"})


def gpt2(folder: Path) -> None:
    write_bpe(folder, train_bytes(["<|endoftext|>"]))
    write_json(folder, "config.json", {"model_type": "gpt2"})
    write_json(folder, "tokenizer_config.json", {"model_max_length": 1024})


def gpt2_added(folder: Path) -> None:
    """Tokens that `added_tokens.json` gives ids, one named, one without room for it."""
    gpt2(folder)
    size = len(json.loads((folder / "vocab.json").read_text()))
    write_json(folder, "added_tokens.json", {"<new>": size, "<|im_end|>": size + 1})
    names = {"eos_token": "<|im_end|>", "pad_token": "[PAD]", "add_bos_token": True}
    write_json(folder, "tokenizer_config.json", names | {"tokenizer_class": "GPT2Tokenizer"})
    write_json(folder, "config.json", {"model_type": "gpt2", "vocab_size": size + 3})


def codegen(folder: Path) -> None:
    gpt2(folder)
    write_json(folder, "config.json", {"model_type": "codegen"})
    config = {"tokenizer_class": "CodeGenTokenizer", "add_prefix_space": True}
    write_json(folder, "tokenizer_config.json", config)


def gpt(folder: Path) -> None:
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    backend.train_from_iterator(REAL, trainer)
    write_bpe(folder, backend)
    write_json(folder, "config.json", {"model_type": "openai-gpt"})


def clip(folder: Path) -> None:
    """Bytes, alone and at the end of a word, then what was merged, then two special tokens."""
    backend = tokenizers.Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    words = pre_tokenizers.Split(Regex(CLIP_WORDS), behavior="removed", invert=True)
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_of])
    trainer = trainers.BpeTrainer(
        vocab_size=900, end_of_word_suffix="</w>", initial_alphabet=BYTES, show_progress=False
    )
    backend.train_from_iterator(REAL, trainer)
    write_bpe(folder, backend)
    vocabulary = json.loads((folder / "vocab.json").read_text())
    ends = [f"{byte}</w>" for byte in BYTES if f"{byte}</w>" not in vocabulary]
    tokens = [*vocabulary, *ends, "<|startoftext|>", "<|endoftext|>"]
    write_json(folder, "vocab.json", {token: index for index, token in enumerate(tokens)})
    write_json(folder, "config.json", {"model_type": "clip"})


def clip_json(folder: Path) -> None:
    clip(folder)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)


def llama3(folder: Path) -> None:
    words = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend = train_bytes([], words)
    backend.model.ignore_merges = True
    start, end = "<|begin_of_text|>", "<|end_of_text|>"
    backend.add_special_tokens([start, end, "<|eot_id|>"])
    template = processors.TemplateProcessing(
        single=f"{start} $A",
        pair=f"{start} $A {start}:1 $B:1",
        special_tokens=[(start, backend.token_to_id(start))],
    )
    backend.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), template]
    )
    backend.save(str(folder / "tokenizer.json"))
    config = {"bos_token": start, "eos_token": end, "clean_up_tokenization_spaces": True}
    write_json(
        folder, "tokenizer_config.json", config | {"tokenizer_class": "PreTrainedTokenizerFast"}
    )
    write_json(folder, "config.json", {"model_type": "llama"})


def llama3_named_llama(folder: Path) -> None:
    llama3(folder)
    write_json(folder, "tokenizer_config.json", {"tokenizer_class": "LlamaTokenizerFast"})


def smollm(folder: Path) -> None:
    words = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    backend = train_bytes(["<|endoftext|>", "<|im_start|>", "<|im_end|>"], words)
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "added_tokens_decoder": {
            # What is named is special, whatever this says.
            str(i): {"content": token, "special": False, "normalized": False}
            for i, token in enumerate(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
        },
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        **dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"),
        "tokenizer_class": "GPT2Tokenizer",
    }
    write_json(folder, "tokenizer_config.json", config)
    write_json(folder, "config.json", {"model_type": "llama"})


def qwen2(folder: Path) -> None:
    words = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend = train_bytes([], words, normalizers.NFC())
    write_bpe(folder, backend)
    added = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    size = backend.get_vocab_size()
    config = {
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(size + i): {"content": token, "special": True, "normalized": False}
            for i, token in enumerate(added)
        },
        "additional_special_tokens": added[1:],
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "tokenizer_class": "Qwen2Tokenizer",
    }
    write_json(folder, "tokenizer_config.json", config)
    write_json(folder, "config.json", {"model_type": "qwen2"})


def qwen3_json(folder: Path) -> None:
    qwen2(folder)
    transformers.AutoTokenizer.from_pretrained(folder).backend_tokenizer.save(
        str(folder / "tokenizer.json")
    )
    write_json(folder, "config.json", {"model_type": "qwen3"})


def neox(folder: Path) -> None:
    backend = train_bytes(["<|endoftext|>", "<|padding|>"], normalizer=normalizers.NFC())
    backend.add_tokens([tokenizers.AddedToken(" " * n, normalized=True) for n in (4, 3, 2)])
    backend.post_processor = processors.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "GPTNeoXTokenizer", "add_bos_token": True}
    write_json(folder, "tokenizer_config.json", config)
    write_json(folder, "config.json", {"model_type": "gpt_neox"})


def modernbert(folder: Path) -> None:
    specials = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    backend = train_bytes(specials[:0], normalizer=normalizers.NFC())
    mask = tokenizers.AddedToken("[MASK]", lstrip=True)
    backend.add_special_tokens([*specials[:4], mask])
    ids = [(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    backend.save(str(folder / "tokenizer.json"))
    names = ("unk", "cls", "sep", "pad", "mask")
    config = {f"{name}_token": token for name, token in zip(names, specials, strict=True)}
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": True}
    write_json(folder, "tokenizer_config.json", config)
    write_json(folder, "config.json", {"model_type": "modernbert"})


def esm(folder: Path) -> None:
    """Amino acids, gaps, and tokens of several letters, one of which begins as others do."""
    from transformers.models.esm.configuration_esm import get_default_vocab_list

    tokens = [*get_default_vocab_list(), "LA", "<null_12>", "(", "."]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(tokens)))
    write_json(folder, "config.json", {"model_type": "esm"})


def esm_named(folder: Path) -> None:
    """As on the hub: the config of the tokenizer names the class and the special tokens."""
    esm(folder)
    names = ("cls", "pad", "eos", "unk", "mask")
    config = {f"{name}_token": f"<{name}>" for name in names}
    write_json(folder, "tokenizer_config.json", config | {"tokenizer_class": "EsmTokenizer"})


FAMILIES = [
    *(bert, bert_json, bert_cased, distilbert, electra),
    *(roberta, roberta_json, bart, blenderbot, blenderbot_json, gpt2, gpt2_added, codegen, gpt),
    *(clip, clip_json),
    *(albert, albert_accents, deberta, deberta_words, xlm_roberta, xglm, t5, mt5),
    *(mbart, mbart50, nllb, nllb_legacy, madlad, pegasus),
    *(esm, esm_named, fnet, rembert, rembert_plain),
    *(llama, llama_legacy, llama_no_prefix, llama_json, moonshine, mistral, mistral_pieces),
    *(llama3, llama3_named_llama, smollm, qwen2, qwen3_json, neox, modernbert),
]
