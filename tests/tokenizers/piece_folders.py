"""Folders of published families whose tokenizers are SentencePiece's, as they lie on the hub."""

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import normalizers

from keras_transformer.tokenizers.languages import M2M100_CODES
from keras_transformer.tokenizers.sentencepiece_file import parse_sentencepiece
from tests.tokenizers.folder_parts import REAL, sentencepiece, train_pieces, write_json

transformers = pytest.importorskip("transformers")


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


def fnet(folder: Path) -> None:
    """A tokenizer.json that says more than the class, which has none of its own."""
    albert(folder)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    (folder / "spiece.model").unlink()
    write_json(folder, "config.json", {"model_type": "fnet"})
    write_json(folder, "tokenizer_config.json", {"tokenizer_class": "FNetTokenizer"})


def rembert_pieces(folder: Path) -> None:
    """The older files, around whose texts Transformers 5.23 puts no tokens until it saved them."""
    train_pieces(
        folder,
        "sentencepiece.model",
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
    )
    write_json(folder, "config.json", {"model_type": "rembert"})


def rembert(folder: Path, **config) -> None:
    rembert_pieces(folder)
    for _ in range(2):
        transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    (folder / "sentencepiece.model").unlink()
    write_json(folder, "tokenizer_config.json", {"tokenizer_class": "RemBertTokenizer", **config})


def rembert_plain(folder: Path) -> None:
    rembert(folder, keep_accents=False, do_lower_case=True)


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


def xglm(folder: Path) -> None:
    """Write a tokenizer.json beside the pieces: Transformers 5 does not read these alone."""
    train_pieces(folder, "sentencepiece.bpe.model")
    file = parse_sentencepiece(folder / "sentencepiece.bpe.model")
    named = [(name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")]
    behind = [(f"<madeupword{i}>", 0.0) for i in range(7)]
    vocabulary = [*named, *zip(file.pieces[3:], file.scores[3:], strict=True), *behind]
    tokenizer = transformers.XGLMTokenizer(vocabulary, _spm_precompiled_charsmap=file.charsmap)
    tokenizer.save_pretrained(folder)
    write_json(folder, "config.json", {"model_type": "xglm"})


def mbart(folder: Path) -> None:
    train_pieces(folder, "sentencepiece.bpe.model")
    write_json(folder, "config.json", {"model_type": "mbart"})


def mbart50(folder: Path) -> None:
    mbart(folder)
    mask = {"content": "<mask>", "lstrip": True, "normalized": True, "single_word": False}
    write_json(folder, "special_tokens_map.json", {"mask_token": mask})
    values = {"tokenizer_class": "MBart50Tokenizer", "src_lang": "de_DE"}
    write_json(folder, "tokenizer_config.json", values)


NLLB_LANGUAGES = ("ace_Arab", "deu_Latn", "eng_Latn", "fra_Latn", "zho_Hant")
M2M100_MASK = {"content": "<mask>", "lstrip": True, "normalized": True, "single_word": False}


def nllb_pieces(folder: Path, **config) -> None:
    """The older files, of which release 5 of Transformers does not read the languages."""
    train_pieces(folder, "sentencepiece.bpe.model", model_type="bpe")
    write_json(folder, "config.json", {"model_type": "m2m_100"})
    tokens = {"mask_token": M2M100_MASK, "additional_special_tokens": [*NLLB_LANGUAGES]}
    write_json(folder, "special_tokens_map.json", tokens)
    write_json(folder, "tokenizer_config.json", {"tokenizer_class": "NllbTokenizer", **config})


def nllb(folder: Path, **config) -> None:
    """A `tokenizer.json` as published, in which the languages and the mask are added tokens."""
    nllb_pieces(folder, **config)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    (folder / "sentencepiece.bpe.model").unlink()
    values = json.loads(theirs.backend_tokenizer.to_str()) | {"added_tokens": []}
    backend = tokenizers.Tokenizer.from_str(json.dumps(values))
    names = ["<s>", "<pad>", "</s>", "<unk>", *NLLB_LANGUAGES]
    tokens = [tokenizers.AddedToken(name, normalized=False) for name in names]
    mask = tokenizers.AddedToken("<mask>", lstrip=True, normalized=True)
    backend.add_special_tokens([*tokens, mask])
    backend.save(str(folder / "tokenizer.json"))


def nllb_legacy(folder: Path) -> None:
    nllb(folder, src_lang="deu_Latn", legacy_behaviour=True)


def m2m100(folder: Path, languages=M2M100_CODES["m2m100"], **config) -> None:
    train_pieces(folder, "sentencepiece.bpe.model", model_type="bpe")
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.bpe.model"))
    pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
    tokens = dict.fromkeys(["<s>", "<pad>", "</s>", "<unk>", *pieces[::-1]])
    write_json(folder, "vocab.json", {token: index for index, token in enumerate(tokens)})
    write_json(folder, "config.json", {"model_type": "m2m_100"})
    further = [f"__{code}__" for code in languages]
    write_json(folder, "special_tokens_map.json", {"additional_special_tokens": further})
    write_json(folder, "tokenizer_config.json", config)


def madlad(folder: Path) -> None:
    """MADLAD-400: a T5 with a word for each language before the text."""
    options = {"pad_id": 1, "eos_id": 2, "unk_id": 0, "bos_id": -1}
    languages = ["<2de>", "<2en>", "<2zh_Latn>"]
    train_pieces(folder, "spiece.model", user_defined_symbols=languages, **options)
    write_json(folder, "config.json", {"model_type": "t5"})
    config = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0, "eos_token": "</s>"}
    write_json(folder, "tokenizer_config.json", config)


def pegasus(folder: Path) -> None:
    train_pieces(folder, "spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    write_json(folder, "config.json", {"model_type": "pegasus"})


def siglip(folder: Path) -> None:
    train_pieces(
        folder, "spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1, pad_piece="</pad>"
    )
    write_json(folder, "config.json", {"model_type": "siglip"})
    config = {"do_lower_case": True, "model_max_length": 64, "tokenizer_class": "SiglipTokenizer"}
    # No mask of padding: so were the models trained.
    write_json(folder, "tokenizer_config.json", {**config, "model_input_names": ["input_ids"]})


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


def moonshine(folder: Path) -> None:
    """Llama's rules in a `tokenizer.json` of its own, with tokens for times."""
    llama_json(folder)
    (folder / "tokenizer.model").unlink()
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_special_tokens([f"<<ST_{i}>>" for i in range(8)])
    # The library would give the pre-tokenizer that is not there one of its own.
    values = json.loads(backend.to_str()) | {"pre_tokenizer": None}
    write_json(folder, "tokenizer.json", values)
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    write_json(folder, "tokenizer_config.json", {**names, **config})
    write_json(folder, "config.json", {"model_type": "moonshine"})


def mistral(folder: Path) -> None:
    llama_json(folder)
    write_json(folder, "config.json", {"model_type": "mistral"})


def mistral_pieces(folder: Path) -> None:
    llama(folder)
    write_json(folder, "config.json", {"model_type": "mistral"})


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
