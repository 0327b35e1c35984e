"""SentencePiece models, run by the library `tokenizers`.

Source: Kudo & Richardson 2018.
"""

import os
import re

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers

from keras_transformer.tokenizers.sentencepiece_file import (
    NORMAL,
    USER_DEFINED,
    Charsmap,
    SentencePieceModel,
    parse_sentencepiece,
)

SPACE = "▁"


def read_sentencepiece(path: str | os.PathLike) -> tokenizers.Tokenizer:
    """Return the backend of a SentencePiece file, with SentencePiece's segmentation and ids."""
    return sentencepiece_backend(parse_sentencepiece(path), repr(os.fspath(path)))


def sentencepiece_backend(model: SentencePieceModel, where: str) -> tokenizers.Tokenizer:
    """Return the backend of the content of a SentencePiece file; `where` names it in errors."""
    # Two differences from SentencePiece, as in Transformers: a control symbol such as `</s>` that
    # is written out in a text is recognized, and rules are looked up for a character together with
    # its marks, so decomposed Korean, or two marks on one letter, may come out differently.
    backend = tokenizers.Tokenizer(
        piece_model(model, segmentation_scores(model), model.byte_fallback)
    )
    added = [t for t in model.added_tokens() if t.special or model.kind != "unigram"]
    steps = charsmap_normalizers(model.charsmap, where)
    if model.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), "")]
        steps += [normalizers.Replace(Regex(" {2,}"), " ")]
    if model.add_dummy_prefix:
        steps += [normalizers.Prepend(SPACE)]
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    backend.decoder = space_decoder(strip=model.add_dummy_prefix)
    specials = [model.pieces[index] for index in model.special_ids.values() if index >= 0]
    named = [AddedToken(piece, normalized=False, special=True) for piece in specials]
    backend.add_tokens(added + named)
    return backend


def piece_model(
    model: SentencePieceModel, scores: list[float], byte_fallback: bool, bare: bool = True
) -> models.Model:
    """Return the library's model of a file, with these scores if it is a unigram model.

    Without `bare`, control symbols and bytes of a unigram model are never found in texts.
    """
    if model.kind == "unigram":
        # A name that begins with a space cannot match: texts have no spaces any more.
        names = [
            piece if bare or type in (NORMAL, USER_DEFINED) else f" {piece}"
            for piece, type in zip(model.pieces, model.types, strict=True)
        ]
        scored = list(zip(names, scores, strict=True))
        return models.Unigram(scored, model.special_ids["unk"], byte_fallback)
    return models.BPE(
        model.vocabulary,
        model.merges(),
        unk_token=model.pieces[model.special_ids["unk"]],
        fuse_unk=True,
        byte_fallback=byte_fallback,
    )


def segmentation_scores(model: SentencePieceModel) -> list[float]:
    """Return the scores of a file as unigram segmentation uses them."""
    # User defined symbols are found whatever their score: SentencePiece replaces it by the best
    # score times their number of characters.
    typed = list(zip(model.pieces, model.scores, model.types, strict=True))
    best = max((score for _, score, type in typed if type == NORMAL), default=0.0)
    return [
        len(piece) * best - 0.1 if type == USER_DEFINED else score for piece, score, type in typed
    ]


class Segmenter:
    """Segmentation as in SentencePiece; unknown pieces are returned as they are in the text.

    The one difference is that user defined symbols have no precedence in a BPE file.
    """

    def __init__(self, model: SentencePieceModel):
        self.model = model
        self._charsmap = Charsmap(model.charsmap) if model.charsmap else None
        segment = piece_model(model, segmentation_scores(model), byte_fallback=False, bare=False)
        self._backend = tokenizers.Tokenizer(segment)

    def __call__(self, texts: list[str]) -> list[list[str]]:
        texts = [self._normalize(text) for text in texts]
        encodings = self._backend.encode_batch(texts)
        return [self._pieces(*row) for row in zip(texts, encodings, strict=True)]

    def _pieces(self, text: str, encoding: tokenizers.Encoding) -> list[str]:
        pieces = [text[start:end] for start, end in encoding.offsets]
        if not self.model.byte_fallback:
            return pieces
        unknown = self.model.special_ids["unk"]
        return [
            part
            for piece, index in zip(pieces, encoding.ids, strict=True)
            for part in (
                [f"<0x{byte:02X}>" for byte in piece.encode()] if index == unknown else [piece]
            )
        ]

    def _normalize(self, text: str) -> str:
        """Return the text as pieces spell it: normalized by the rules, and with `▁` for spaces."""
        if self._charsmap is not None:
            text = self._charsmap.normalize(text)
        if self.model.remove_extra_whitespaces:
            text = re.sub(" {2,}", " ", text).lstrip(" ")
        if text and self.model.add_dummy_prefix:
            text = SPACE + text
        text = text.replace(" ", SPACE)
        return text.rstrip(SPACE) if self.model.remove_extra_whitespaces else text


def charsmap_normalizers(charsmap: bytes, where: str) -> list[normalizers.Normalizer]:
    """Return the normalizer of a file's compiled rules in a list, which is empty without rules."""
    if not charsmap:
        return []
    try:
        Charsmap(charsmap)
        return [normalizers.Precompiled(charsmap)]
    except Exception as error:
        raise ValueError(f"{where} has invalid normalization rules: {error}") from None


def space_decoder(strip: bool) -> decoders.Decoder:
    """Return a decoder of pieces and bytes; with `strip` it drops a space at the start."""
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * strip)
