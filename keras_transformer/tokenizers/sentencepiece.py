"""SentencePiece's models, by the library `tokenizers`.

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
    """A SentencePiece file as a backend that segments as SentencePiece does, with its ids."""
    # Two things are other than there, as in Transformers: a control symbol such as `</s>` that is
    # written out in a text is that symbol, and rules are looked up for a character together with
    # its marks, so that decomposed Korean, or two marks on one letter, may come out differently.
    model = parse_sentencepiece(path)
    backend = tokenizers.Tokenizer(
        piece_model(model, segmentation_scores(model), model.byte_fallback)
    )
    added = [t for t in model.added_tokens() if t.special or model.kind != "unigram"]
    steps = charsmap_normalizers(model.charsmap, repr(os.fspath(path)))
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
    """The library's model of a file, with these scores if it is of the unigram kind."""
    if model.kind == "unigram":
        # Else control symbols and bytes are not to be found in texts, none of which has a space.
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
    """The scores of a file as the segmentation of the unigram kind uses them."""
    # User defined symbols are to be found whatever their score: SentencePiece gives them, in place
    # of theirs, the best score once for each character.
    typed = list(zip(model.pieces, model.scores, model.types, strict=True))
    best = max((score for _, score, type in typed if type == NORMAL), default=0.0)
    return [
        len(piece) * best - 0.1 if type == USER_DEFINED else score for piece, score, type in typed
    ]


class Segmenter:
    """Segments texts exactly as SentencePiece does; an unknown piece is what stands in the text."""

    # Except that user defined symbols have no precedence in a file of the BPE kind.

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
        """The text as the pieces spell it: by the rules, and with `▁` for spaces."""
        if self._charsmap is not None:
            text = self._charsmap.normalize(text)
        if self.model.remove_extra_whitespaces:
            text = re.sub(" {2,}", " ", text).lstrip(" ")
        if text and self.model.add_dummy_prefix:
            text = SPACE + text
        text = text.replace(" ", SPACE)
        return text.rstrip(SPACE) if self.model.remove_extra_whitespaces else text


def charsmap_normalizers(charsmap: bytes, where: str) -> list[normalizers.Normalizer]:
    """The normalizer of compiled rules of a file, in a list that is empty if there are none."""
    if not charsmap:
        return []
    try:
        Charsmap(charsmap)
        return [normalizers.Precompiled(charsmap)]
    except Exception as error:
        raise ValueError(f"{where} has broken normalization rules: {error}") from None


def space_decoder(strip: bool) -> decoders.Decoder:
    """Pieces to text: spaces, bytes, and one space less at the start if one was put there."""
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * strip)
