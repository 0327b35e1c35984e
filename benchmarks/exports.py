"""Measure the quality and speed of exported models, float32 and int8, with their runtimes.

python benchmarks/exports.py --what translation --data_dir ../shared/data
python benchmarks/exports.py --what classification --preset FOLDER --data_dir ../shared/data

translation: BLEU of `transformer_tiny_en_de` on the test set of Multi30k. CTranslate2 searches with
5 beams, the others decode greedily, like examples/decode_exported.py.
classification: accuracy on the dev sentences of SST-2 of a classifier written by
examples/classification.py with --output.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tokenizers
from absl import app, flags

import keras_transformer as kt

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from decode_exported import RUNTIMES, Model
from example_data import multi30k, sst2

FLAGS = flags.FLAGS
flags.DEFINE_enum("what", "translation", ["translation", "classification"], "What is measured.")
flags.DEFINE_string("preset", None, "The classifier.")
flags.DEFINE_list("formats", ["ctranslate2", *RUNTIMES], "Only these formats.")
flags.DEFINE_integer("rows", None, "Only the first sentences.", lower_bound=1)

BEAMS, BATCH, TOKENS = 5, 64, 100
Outputs = tuple[list, float]  # outputs in the order of the sentences, and the seconds taken


def by_length(texts: list[str], run: Callable[[list[str]], list]) -> Outputs:
    """Return the outputs of `run` for batches of texts of similar length."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    found: dict[int, object] = {}
    begin = time.perf_counter()
    for first in range(0, len(texts), BATCH):
        places = order[first : first + BATCH]
        found |= zip(places, run([texts[i] for i in places]), strict=True)
    return [found[i] for i in range(len(texts))], time.perf_counter() - begin


def ctranslate2(folder: str) -> Callable[[list[str]], list[str]]:
    """Return a function that translates sentences with CTranslate2."""
    import ctranslate2

    tokenizer = tokenizers.Tokenizer.from_file(str(Path(folder, "tokenizer.json")))
    there = ctranslate2.Translator(folder)

    def run(texts):
        rows = [encoding.tokens for encoding in tokenizer.encode_batch(texts)]
        found = there.translate_batch(rows, beam_size=BEAMS)
        ids = [[tokenizer.token_to_id(t) for t in each.hypotheses[0]] for each in found]
        return tokenizer.decode_batch(ids)

    return run


def labels(format: str, folder: str, classifier: kt.TextClassifier) -> Callable:
    """Return a function that classifies sentences with the runtime of a format."""
    graph = RUNTIMES[format](folder)
    names = {"token_ids": "input_ids", "padding_mask": "attention_mask"}
    names |= {"segment_ids": "token_type_ids"}

    def run(texts):
        dataset = classifier.make_dataset(texts, batch_size=BATCH, shuffle=False, max_buckets=1)
        arrays = {names[n]: np.asarray(x).astype("int64") for n, x in dataset[0][0].items()}
        return dataset.restore_order(graph("model", arrays)["logits"].argmax(axis=-1).tolist())

    return run


def translation() -> None:
    import sacrebleu

    pairs = (multi30k("test_2016_flickr", language)[: FLAGS.rows] for language in ("en", "de"))
    sources, references = pairs
    task = kt.Seq2SeqLM.from_preset("transformer_tiny_en_de")

    def ours(**options):
        return lambda texts: task.generate(texts, max_new_tokens=TOKENS, **options)

    beams = kt.generation.BeamSearch(num_beams=BEAMS)
    runs = {"beams": ours(sampler=beams), "likeliest": ours(sampler="greedy")}
    first = {name: by_length(sources, run) for name, run in runs.items()}

    def report(name, outputs, like):
        texts, seconds = outputs
        score = sacrebleu.corpus_bleu(texts, [references], tokenize="none", force=True).score
        equal = sum(a == b for a, b in zip(texts, first[like][0], strict=True))
        print(f"{name}: BLEU {score:.2f}, {equal} of {len(texts)} as here, {seconds:.0f} s")

    for name, outputs in first.items():
        report(f"keras_transformer, {name}", outputs, name)
    for format, quantization, folder in exported(task, ("ctranslate2", *RUNTIMES)):
        if format == "ctranslate2":
            report(f"{format} {quantization}", by_length(sources, ctranslate2(folder)), "beams")
        else:
            model = Model(folder)
            run = by_length(sources, lambda texts, m=model: m.write(texts, TOKENS))
            report(f"{format} {quantization}", run, "likeliest")


def classification() -> None:
    texts, targets = (rows[: FLAGS.rows] for rows in sst2("dev"))
    task = kt.TextClassifier.from_preset(FLAGS.preset)

    def ours(texts):
        return np.asarray(task.predict(texts, verbose=0)).argmax(axis=-1).tolist()

    first = by_length(texts, ours)

    def report(name, outputs):
        found, seconds = outputs
        right = np.mean(np.array(found) == np.array(targets))
        equal = sum(a == b for a, b in zip(found, first[0], strict=True))
        print(f"{name}: {right:.2%} right, {equal} of {len(found)} as here, {seconds:.1f} s")

    report("keras_transformer", first)
    for format, quantization, folder in exported(task, RUNTIMES):
        report(f"{format} {quantization}", by_length(texts, labels(format, folder, task)))


def exported(task, formats):
    """Export to each requested format among these, in float32 and int8; return the folders."""
    for format in (name for name in FLAGS.formats if name in formats):
        for quantization in (None, "int8"):
            with tempfile.TemporaryDirectory() as scratch:
                folder = str(Path(scratch, "exported"))
                kt.export(task, folder, format=format, quantization=quantization)
                files = [p for p in Path(folder).iterdir() if p.suffix != ".json"]
                size = sum(p.stat().st_size for p in files) / 1e6
                yield format, f"{quantization or 'float32'} ({size:.1f} MB)", folder


def main(_) -> None:
    {"translation": translation, "classification": classification}[FLAGS.what]()


if __name__ == "__main__":
    app.run(main)
