"""The parts of the folders of published families: texts, vocabularies learned from them, files."""

import gzip
import io
import itertools
import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from tests.tokenizers.nasty import SENTENCES

sentencepiece = pytest.importorskip("sentencepiece")

DATA = Path(__file__).parents[3] / "shared" / "data"
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


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
