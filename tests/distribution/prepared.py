"""Datasets that processes prepare together, with counts of what one of them does."""

import contextlib
from pathlib import Path

import keras
import numpy as np

import keras_transformer as kt
from keras_transformer.data import records
from tests.distribution.models import config

_WORDS = ["to", "be", "or", "not", "that", "is", "the", "question", "whether", "nobler", "mind"]
_RANDOM = np.random.default_rng(0)
TEXTS = [" ".join(_RANDOM.choice(_WORDS, _RANDOM.integers(2, 20))) for _ in range(60)]
LABELS = [text[0] for text in TEXTS]  # whose numbers depend on which text comes first
OPTIONS = {"batch_size": 7, "shuffle": True, "seed": 3, "max_buckets": 2}


def save_tokenizer(folder: Path) -> None:
    """Save a tokenizer for all processes: training one twice gives different ones."""
    kt.Tokenizer.train(TEXTS, "wordpiece", vocabulary_size=60).save(folder / "tokenizer")


def save_files(folder: Path) -> None:
    """Save the texts and their labels in two files."""
    lines = [f'"{text}",{label}' for text, label in zip(TEXTS, LABELS, strict=True)]
    for number, part in enumerate((lines[:25], lines[25:])):
        (folder / f"{number}.csv").write_text("\n".join(["text,label", *part]))


def make_task(folder: Path, kind=kt.MaskedLM, **options):
    """A task without dropout whose tokenizer counts the texts that it encodes."""
    keras.utils.set_random_seed(0)
    tokenizer = kt.Tokenizer.from_files(folder / "tokenizer")
    encode, tokenizer.encoded = tokenizer.encode_batch_with_segments, 0

    def counting(texts, *args, **kwargs):
        tokenizer.encoded += sum(map(bool, texts))  # the empty text shows the special tokens
        return encode(texts, *args, **kwargs)

    tokenizer.encode_batch_with_segments = counting
    task = kind(kt.models.build_backbone(config("encoder")), tokenizer, **options)
    task.compile(keras.optimizers.Adam(1e-2), task.loss, weighted_metrics=["accuracy"])
    return task


@contextlib.contextmanager
def small_chunks():
    """Let files have several chunks, as large ones do."""
    before, records._CHUNK_ROWS = records._CHUNK_ROWS, 8
    yield
    records._CHUNK_ROWS = before


def sources(folder: Path) -> dict:
    """Return the texts as a list, as files, and as the table of another library."""
    import pyarrow

    table = pyarrow.table({"text": TEXTS, "label": LABELS})
    # The store says in which file a label was found: the files are the same for all.
    names = [folder.parent / f"{number}.csv" for number in range(2)]
    return {
        "list": TEXTS,
        "files": kt.data.read(names, cache=folder / "cache"),
        "table": kt.data.read(table, cache=folder / "cache"),
        "labels": kt.data.read(names, y="label", cache=folder / "cache"),
    }


def of_kind(task, classifier, source):
    """Return the task that a source is for."""
    return classifier if getattr(source, "y", None) is not None else task


def batches(dataset) -> list:
    """Return the arrays of all batches of the second epoch, as lists."""
    dataset.epoch = 1
    return keras.tree.map_structure(
        lambda array: np.asarray(array).tolist(), [dataset[i] for i in range(len(dataset))]
    )


def prepared(folder: Path) -> dict:
    """Return what this process makes of all sources, and how many texts and rows it prepares."""
    task = make_task(folder.parent)
    classifier = make_task(folder.parent, kt.TextClassifier, labels=sorted(set(LABELS)))
    found = {}
    with small_chunks():
        for name, source in sources(folder).items():
            own = of_kind(task, classifier, source)
            own.tokenizer.encoded = 0
            share = kt.distribution.shard_of(
                lambda own=own, x=source: own.make_dataset(x, **OPTIONS)
            )
            found[name] = {"encoded": own.tokenizer.encoded, "made": 0}
            make_batch = share.dataset.make_batch

            def counting(arrays, masks, make_batch=make_batch, counts=found[name]):
                counts["made"] += len(arrays["row"])
                return make_batch(arrays, masks)

            share.dataset.make_batch = counting
            found[name]["batches"] = batches(share)
    return found


def trained(folder: Path, dataset_of) -> dict:
    """Return the loss and the metrics of each of two epochs."""
    task = make_task(folder)
    return task.fit(dataset_of(task), epochs=2, verbose=0).history
