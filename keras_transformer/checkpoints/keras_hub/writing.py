"""Conversion of this package's tokenizers to KerasHub's."""

import base64
import json
import re
from typing import Any

from keras_transformer.tokenizers import Tokenizer
from keras_transformer.tokenizers.rwkv import RWKVTokenizer
from keras_transformer.tokenizers.sentencepiece_file import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    field,
)

_WORD_PIECE = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "RoformerV2Tokenizer")
_SENTENCE_PIECE = {
    "T5Tokenizer": "Unigram",
    "AlbertTokenizer": "Unigram",
    "FNetTokenizer": "Unigram",
    "XLMRobertaTokenizer": "Unigram",
    "LlamaTokenizer": "BPE",
    "MistralTokenizer": "BPE",
    "MixtralTokenizer": "BPE",
    "Phi3Tokenizer": "BPE",
    "GemmaTokenizer": "BPE",
    "Gemma3Tokenizer": "BPE",
    "T5GemmaTokenizer": "BPE",
}
# Tokens of images, without which the tokenizer is one of texts alone.
_OF_IMAGES = {"<img>", "<start_of_image>", "<end_of_image>"}
# Both tokenizers must give these texts the same ids: they have capitals, accents, spaces,
# punctuation and another script.
_PROBES = ("A man wasn't here in 1999.", "naïve  CAFÉ (one) two ; x", "東京 ab")


def make_tokenizer(hub: Any, name: str, tokenizer: Tokenizer) -> Any:
    """Return KerasHub's tokenizer, of class `name`, that gives the same ids as `tokenizer`."""
    try:
        made = getattr(hub.tokenizers, name)(**_arguments(name, tokenizer))
    except ValueError as error:
        raise ValueError(
            f"its {name} does not take this tokenizer: {error} Convert the `backbone` alone."
        ) from error
    for text in _PROBES:
        ours = tokenizer.encode(text, special_tokens=False)
        theirs = [int(i) for i in made(text)]
        if ours != theirs:
            raise ValueError(
                f"its {name} gives other ids for {text!r}: {theirs}, but the model's gives {ours}. "
                "Convert the `backbone` alone."
            )
    return made


def _arguments(name: str, tokenizer: Tokenizer) -> dict[str, Any]:
    if isinstance(tokenizer, RWKVTokenizer) or name == "RWKVTokenizer":
        return _longest_match(name, tokenizer)
    values = json.loads(tokenizer._backend.to_str())
    model = values["model"]
    if name == "PARSeqTokenizer":
        return _characters(model)
    in_bytes = '"ByteLevel"' in json.dumps([values["pre_tokenizer"], values["decoder"]])
    pieces = _SENTENCE_PIECE.get(name)
    expected = "WordPiece" if name in _WORD_PIECE else pieces or "BPE"
    if model["type"] != expected or in_bytes is not (expected == "BPE" and not pieces):
        kind = f"{model['type']}{' of bytes' if in_bytes else ''}"
        raise ValueError(f"it has the kind {expected}, but the model's has {kind}.")
    if expected == "WordPiece":
        return _word_piece(tokenizer, model)
    if pieces:
        proto = sentencepiece_proto(tokenizer, values, name == "XLMRobertaTokenizer")
        images = tokenizer.get_vocabulary().keys() >= _OF_IMAGES
        more = {"has_vision_tokens": images} if name == "Gemma3Tokenizer" else {}
        return {"proto": proto, **more}
    added = {each["content"]: each["id"] for each in values["added_tokens"]}
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    first = '"add_prefix_space": true' in json.dumps(values["pre_tokenizer"])
    vocabulary = model["vocab"] | added
    more = {}
    if name in ("Qwen3_5Tokenizer", "Qwen3_5MoeTokenizer"):
        more["has_vision_tokens"] = "<|vision_start|>" in vocabulary
    return {"vocabulary": vocabulary, "merges": merges, "add_prefix_space": first, **more}


def _characters(model: dict[str, Any]) -> dict[str, Any]:
    """Return the characters of a vocabulary that its end precedes; start and padding follow."""
    names = sorted(model["vocab"], key=model["vocab"].get)
    first, *characters, start, pad = names if len(names) > 3 else ["", "", "", ""]
    if (first, start, pad) != ("[E]", "[B]", "[P]"):
        raise ValueError("it has a token for each character between [E] and [B], [P].")
    return {"vocabulary": characters}


def _longest_match(name: str, tokenizer: Tokenizer) -> dict[str, Any]:
    if not isinstance(tokenizer, RWKVTokenizer) or name != "RWKVTokenizer":
        kind = "RWKV's" if isinstance(tokenizer, RWKVTokenizer) else "another"
        raise ValueError(f"it has the kind of its class, but the model's has {kind}.")
    roles = {f"{role}_token_id": getattr(tokenizer, f"{role}_id") for role in ("start", "end")}
    return {"vocabulary": tokenizer.lines(), "pad_token_id": tokenizer.pad_id or 0, **roles}


def _word_piece(tokenizer: Tokenizer, model: dict[str, Any]) -> dict[str, Any]:
    vocabulary = sorted(tokenizer.get_vocabulary().items(), key=lambda item: item[1])
    if [index for _, index in vocabulary] != list(range(len(vocabulary))):
        raise ValueError("the ids of the vocabulary have gaps.")
    # Find the option by trying it: the same normalizer can be configured in several ways.
    normalizer = tokenizer._backend.normalizer
    example = "" if normalizer is None else normalizer.normalize_str("É")
    return {
        "vocabulary": [token for token, _ in vocabulary],
        "lowercase": example in ("é", "e"),
        "strip_accents": example in ("E", "e"),
        "oov_token": model["unk_token"],
        "suffix_indicator": model["continuing_subword_prefix"],
    }


def sentencepiece_proto(tokenizer: Tokenizer, values: dict[str, Any], fairseq: bool) -> bytes:
    """Return the content of a SentencePiece file that segments as a tokenizer does."""
    model = values["model"]
    roles = {name: getattr(tokenizer, f"{name}_id") for name in ("unknown", "start", "end", "pad")}
    if model["type"] == "Unigram":
        scored = [(piece, score) for piece, score in model["vocab"]]
        roles["unknown"] = model["unk_id"]
        if fairseq:  # four special tokens there and three here, and the mask is not a piece
            rest = scored[4:-1] if scored[-1][0] == tokenizer.id_to_token(tokenizer.mask_id) else ()
            scored = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *(rest or scored[4:])]
            roles = {"unknown": 0, "start": 1, "end": 2, "pad": None}
    else:
        ranks: dict[str, int] = {}
        for merge in model["merges"]:
            ranks.setdefault(
                "".join(merge.split(" ") if isinstance(merge, str) else merge), len(ranks)
            )
        pieces = sorted(model["vocab"], key=model["vocab"].get)
        scored = [(piece, -float(ranks.get(piece, len(ranks)))) for piece in pieces]
        roles["unknown"] = model["vocab"].get(model["unk_token"] or "<unk>")
    special = {each["content"] for each in values["added_tokens"] if each["special"]}
    data = b""
    for place, (piece, score) in enumerate(scored):
        kind = CONTROL if piece in special else NORMAL
        kind = BYTE if re.fullmatch("<0x[0-9A-F]{2}>", piece) else kind
        kind = UNKNOWN if place == roles["unknown"] else kind
        data += field(1, field(1, piece.encode()) + field(2, score) + field(3, kind))
    trainer = field(3, 1 if model["type"] == "Unigram" else 2) + field(4, len(scored))
    trainer += field(35, int(model.get("byte_fallback") or False))
    for place, index in enumerate(roles.values()):
        trainer += field(40 + place, -1 if index is None else index)
        if index is not None and index < len(scored):
            trainer += field(45 + place, scored[index][0].encode())
    around = json.dumps([values["normalizer"], values["pre_tokenizer"]])
    rules = re.search('"precompiled_charsmap": "([^"]*)"', around)
    prefix = '"Prepend"' in around or ('"Metaspace"' in around and '"never"' not in around)
    joined = tokenizer.encode("a  b", special_tokens=False) == tokenizer.encode(
        "a b", special_tokens=False
    )
    normalizer = field(2, base64.b64decode(rules[1])) if rules else b""
    normalizer += field(3, int(prefix)) + field(4, int(joined))
    return data + field(2, trainer) + field(3, normalizer)
