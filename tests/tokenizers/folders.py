"""Folders of every published family, as they are laid out on the hub, with small vocabularies.

The vocabularies are learned here, from a few hundred sentences.
"""

import gzip
import io
import itertools
import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.tokenizers.nasty import SENTENCES

transformers = pytest.importorskip("transformers")
sentencepiece = pytest.importorskip("sentencepiece")

DATA = Path(__file__).parents[3] / "shared" / "data"
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_WORDS = QWEN2_WORDS.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def real_strings(count: int = 500) -> list[str]:
    """Film reviews, image descriptions in three languages; without the data a few sentences."""
    if not DATA.is_dir():
        return SENTENCES
    with open(DATA / "sst2" / "dev.tsv", encoding="utf-8") as file:
        texts = [line.split("\t")[0] for line in itertools.islice(file, count // 4)]
    for language in ("en", "de", "fr"):
        path = DATA / "multi30k" / "raw" / f"val.{language}.gz"
        with gzip.open(path, "rt", encoding="utf-8") as file:
            texts += [line.rstrip("\n") for line in itertools.islice(file, count // 4)]
    return texts


REAL = real_strings()


def write_json(folder: Path, name: str, values) -> None:
    (folder / name).write_text(json.dumps(values), encoding="utf-8")


def train_bytes(specials: list[str], words=None, normalizer=None) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = words or pre_tokenizers.ByteLevel(add_prefix_space=False)
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=specials, initial_alphabet=BYTES, show_progress=False
    )
    backend.train_from_iterator(REAL, trainer)
    return backend


def write_bpe(folder: Path, backend: tokenizers.Tokenizer, without: tuple[str, ...] = ()) -> None:
    model = json.loads(backend.to_str())["model"]
    write_json(folder, "vocab.json", {k: v for k, v in model["vocab"].items() if k not in without})
    merges = "".join(f"{' '.join(merge)}\n" for merge in model["merges"])
    (folder / "merges.txt").write_text("#version: 0.2\n" + merges, encoding="utf-8")


def train_pieces(folder: Path, name: str, texts=None, **options) -> None:
    data = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(REAL if texts is None else texts),
        model_writer=data,
        **{"vocab_size": 700, "hard_vocab_limit": False, "minloglevel": 2} | options,
    )
    (folder / name).write_bytes(data.getvalue())


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


def albert(folder: Path) -> None:
    train_pieces(
        folder,
        "spiece.model",
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        user_defined_symbols=["(", ")", '"', "-", ".", "–", "£", "€"],
        texts=[text.lower() for text in REAL],
    )
    write_json(folder, "config.json", {"model_type": "albert"})


def albert_accents(folder: Path) -> None:
    albert(folder)
    config = {"tokenizer_class": "AlbertTokenizer", "keep_accents": True, "do_lower_case": False}
    write_json(folder, "tokenizer_config.json", config)


def deberta(folder: Path, **config) -> None:
    names = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
    train_pieces(folder, "spm.model", pad_id=0, bos_id=1, eos_id=2, unk_id=3, **names)
    write_json(folder, "config.json", {"model_type": "deberta-v2", "vocab_size": 900})
    write_json(folder, "tokenizer_config.json", {"vocab_type": "spm", **config})


def deberta_words(folder: Path) -> None:
    deberta(folder, do_lower_case=True, split_by_punct=True)


def xlm_roberta(folder: Path) -> None:
    train_pieces(folder, "sentencepiece.bpe.model")
    write_json(folder, "config.json", {"model_type": "xlm-roberta"})
    mask = {"content": "<mask>", "lstrip": True, "normalized": True, "single_word": False}
    write_json(folder, "special_tokens_map.json", {"mask_token": mask})
    write_json(folder, "tokenizer_config.json", {"clean_up_tokenization_spaces": True})


def mbart(folder: Path) -> None:
    train_pieces(folder, "sentencepiece.bpe.model")
    write_json(folder, "config.json", {"model_type": "mbart"})


def mbart50(folder: Path) -> None:
    mbart(folder)
    mask = {"content": "<mask>", "lstrip": True, "normalized": True, "single_word": False}
    write_json(folder, "special_tokens_map.json", {"mask_token": mask})
    values = {"tokenizer_class": "MBart50Tokenizer", "src_lang": "de_DE"}
    write_json(folder, "tokenizer_config.json", values)


def pegasus(folder: Path) -> None:
    train_pieces(folder, "spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    write_json(folder, "config.json", {"model_type": "pegasus"})


def t5(folder: Path) -> None:
    train_pieces(folder, "spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    write_json(folder, "config.json", {"model_type": "t5"})
    extra = [f"<extra_id_{i}>" for i in range(100)]
    config = {"extra_ids": 100, "additional_special_tokens": extra, "eos_token": "</s>"}
    write_json(folder, "tokenizer_config.json", config)


def mt5(folder: Path) -> None:
    t5(folder)
    write_json(folder, "config.json", {"model_type": "mt5"})
    write_json(folder, "tokenizer_config.json", {"tokenizer_class": "T5Tokenizer", "extra_ids": 0})


def llama(folder: Path, **config) -> None:
    train_pieces(
        folder,
        "tokenizer.model",
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        vocab_size=900,
    )
    token = {"__type": "AddedToken", "lstrip": False, "normalized": True, "rstrip": False}
    tokens = {
        f"{name}_token": token | {"content": content, "single_word": False}
        for name, content in (("bos", "<s>"), ("eos", "</s>"), ("unk", "<unk>"))
    }
    config = {"add_bos_token": True, "add_eos_token": False, "legacy": False, **config}
    config |= {"tokenizer_class": "LlamaTokenizer", "pad_token": None, **tokens}
    write_json(folder, "tokenizer_config.json", config)
    write_json(folder, "config.json", {"model_type": "llama"})


def llama_legacy(folder: Path) -> None:
    llama(folder, legacy=True, add_eos_token=True)


def llama_no_prefix(folder: Path) -> None:
    llama(folder, add_prefix_space=False, add_bos_token=False)


def llama_json(folder: Path) -> None:
    """As Llama 2 was published: the file of release 4 with its own normalizer."""
    llama(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    backend = tokenizers.Tokenizer.from_str(theirs.backend_tokenizer.to_str())
    backend.model.unk_token = "<unk>"
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.pre_tokenizer = None
    # None cannot be set: the copy leaves the part out.
    values = json.loads(backend.to_str()) | {"pre_tokenizer": None}
    write_json(folder, "tokenizer.json", values)


def mistral(folder: Path) -> None:
    llama_json(folder)
    write_json(folder, "config.json", {"model_type": "mistral"})


def mistral_pieces(folder: Path) -> None:
    llama(folder)
    write_json(folder, "config.json", {"model_type": "mistral"})


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


FAMILIES = [
    *(bert, bert_json, bert_cased, distilbert, electra),
    *(roberta, roberta_json, bart, gpt2, gpt2_added, gpt),
    *(albert, albert_accents, deberta, deberta_words, xlm_roberta, t5, mt5),
    *(mbart, mbart50, pegasus),
    *(llama, llama_legacy, llama_no_prefix, llama_json, mistral, mistral_pieces),
    *(llama3, llama3_named_llama, smollm, qwen2, qwen3_json, neox, modernbert),
]


def marian(folder: Path, languages=(">>fra<<", ">>deu<<"), **options) -> None:
    half = len(REAL) // 2
    train_pieces(folder, "source.spm", texts=REAL[:half], **options)
    train_pieces(folder, "target.spm", texts=REAL[half:], **options)
    pieces = []
    for name in ("source.spm", "target.spm"):
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / name))
        pieces += [model.id_to_piece(i) for i in range(model.get_piece_size())]
    pieces = [piece for piece in pieces[::-1] if piece not in ("<s>", "</s>", "<unk>")]
    tokens = dict.fromkeys(["</s>", "<unk>", *pieces, *languages, "<pad>"])
    write_json(folder, "vocab.json", {token: index for index, token in enumerate(tokens)})
    write_json(folder, "config.json", {"model_type": "marian"})
    config = {"source_lang": "eng", "target_lang": "deu", "model_max_length": 512}
    write_json(folder, "tokenizer_config.json", config)
