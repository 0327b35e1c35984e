"""Run the readers of `datasets` on files for which `data.read` raises an error.

broken   files that are cut or wrong: what `load_dataset` gives, or which error
line     the most memory for a packed file of a few MB whose one line is 1 GB
speed    million tokens a second from a file of texts to token ids on disk

  python benchmarks/reading.py broken
  python benchmarks/reading.py line
  python benchmarks/reading.py speed --rows 40000
"""

import argparse
import gzip
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
BROKEN = [
    ("a.jsonl", '{"text": "a"}\n{"text": "b'), ("a.jsonl", '{"text": "a"}\n[1]\n'),
    ("a.json", '[\n{"text": "a"}\n]\n'), ("a.jsonl", '{"text": "a"}\n{"x": 1}\n'),
    ("a.jsonl", '{"text": ' + "[" * 100_000 + "\n"), ("a.csv", 'text,y\n"a\nb",1\nc\n'),
    ("a.csv", "text,y\na,1\nb, c,1\n"), ("a.csv", 'text,y\na,1\n"b,1\nc,0\n'),
    ("a.csv", 'text,y\na,1\n"b"c,1\n'), ("a.csv", "text,text\na,b\n"), ("a.csv", ""),
    ("a.tsv", "text\ty\na\t1\nb\n"), ("a.csv.gz", "no gzip"),
    ("a.csv", b"text\nfine\nG\xe4nse\n"), ("a.csv", "text,y\nNA,null\n007,1\n"),
]  # fmt: skip
WORDS = ["a", "man", "rides", "the", "bike", "two", "dogs", "run", "on", "grass", "while", "film"]


def theirs(path: Path) -> list:
    """Return the rows that `datasets` reads from a file."""
    import datasets

    kind = {"jsonl": "json", "json": "json"}.get(path.suffix[1:], "csv")
    options = {"sep": "\t"} if path.suffix == ".tsv" else {}
    return list(
        datasets.load_dataset(kind, data_files=str(path), split="train", streaming=True, **options)
    )


def broken(folder: Path, rows: int) -> None:
    import keras_transformer as kt

    for name, content in BROKEN:
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        for who, read in (
            ("datasets", theirs),
            ("data.read", lambda path: [c.columns for c in kt.data.read(path).chunks()]),
        ):
            try:
                found = read(path)
            except Exception as error:
                found = f"{type(error).__name__}: {error}"
            print(f"{name:9} {who:9} {str(found).replace(str(folder), '')[:130]!r}")


def line(folder: Path, rows: int) -> None:
    path = folder / "line.txt.gz"
    with gzip.open(path, "wb", 1) as file:
        for _ in range(1000):
            file.write(b"a" * 1_000_000)
    for who in ("datasets", "data.read"):
        subprocess.run([sys.executable, __file__, "peak", "--of", who, "--path", str(path)])


def peak(who: str, path: str) -> None:
    import datasets

    import keras_transformer as kt

    def most() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

    before, found = most(), "read"
    try:
        if who == "datasets":
            options = {"split": "train", "streaming": True}
            next(iter(datasets.load_dataset("text", data_files=path, **options)))
        else:
            kt.data.read(path)
    except ValueError as error:
        found = f"refused: {str(error)[-90:]}"
    print(f"{who}: {most() - before:,} MB more, {found}")


def speed(folder: Path, rows: int) -> None:
    import datasets

    import keras_transformer as kt
    from keras_transformer.data.token_store import tokenize

    words = kt.Tokenizer.from_preset("minilm_l6_en")
    random.seed(0)
    path = folder / "rows.jsonl"
    with open(path, "w") as file:
        for _ in range(rows):
            print(json.dumps({"text": " ".join(random.choices(WORDS, k=20))}), file=file)
    features = datasets.Features({"ids": datasets.List(datasets.Value("uint16"))})

    def ours(cache: str) -> None:
        def encode(columns, place):
            return {"ids": words.encode_batch(*columns)}

        tokenize(kt.data.read(path, cache=cache), encode, {}, {"ids": "uint16"})

    def from_generator(cache: str) -> None:
        def each():
            for part in kt.data.read(path, cache=cache).chunks():
                for ids in words.encode_batch(*part.columns):
                    yield {"ids": ids}

        datasets.Dataset.from_generator(
            each, features=features, cache_dir=cache, fingerprint="generated"
        )

    def mapped(cache: str) -> None:
        options = {"split": "train", "cache_dir": cache}
        datasets.load_dataset("json", data_files=str(path), **options).map(
            lambda batch: {"ids": words.encode_batch(batch["text"])},
            batched=True, batch_size=4096, remove_columns=["text"], features=features,
            new_fingerprint="mapped",
        )  # fmt: skip

    with open(path) as file:
        tokens = sum(map(len, words.encode_batch([json.loads(row)["text"] for row in file])))
    for _ in range(3):
        for way in (ours, from_generator, mapped):
            with tempfile.TemporaryDirectory() as cache:
                begin = time.perf_counter()
                way(cache)
                print(f"{way.__name__:15} {tokens / (time.perf_counter() - begin) / 1e6:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["broken", "line", "speed", "peak"])
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--of", help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.what == "peak":
        peak(options.of, options.path)
    else:
        with tempfile.TemporaryDirectory() as folder:
            {"broken": broken, "line": line, "speed": speed}[options.what](
                Path(folder), options.rows
            )
