"""Measure the quality of each mode with fewer bytes: SST-2, Multi30k and tiny Shakespeare.

python benchmarks/quality.py --modes bfloat16 int8 int4 --classifier my_classifier

accuracy of a MiniLM that is fine-tuned on SST-2, on its dev set; --classifier is a preset of one,
such as examples/classification.py writes, and without it one is trained. BLEU of
transformer_tiny_en_de with 5 beams on test_2016 of Multi30k, and perplexity of a token of
gpt_tiny_shakespeare on the last tenth of the text, which it was not trained on.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Callable

import keras
from harness import DATA, data_folder, multi30k, sst2, use_threads_of_torch

import keras_transformer as kt

_WINDOW = 128


def in_mode(preset: str, mode: str, **options) -> kt.Task:
    """Return the task of a preset in a mode."""
    quantized = mode.startswith("int")
    dtype = "float32" if quantized else mode
    task = kt.Task.from_preset(preset, dtype=dtype, **options)
    if quantized:
        task.quantize(mode)
    return task


def trained() -> str:
    """Train a classifier, and return its folder."""
    keras.utils.set_random_seed(0)
    texts, labels = sst2("train")
    classifier = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
    steps = 2 * math.ceil(len(texts) / 32)
    rate = keras.optimizers.schedules.PolynomialDecay(5e-5, steps, 0.0)
    classifier.compile(keras.optimizers.AdamW(rate))
    classifier.fit(texts, labels, epochs=2, batch_size=32, verbose=2)
    folder = "build/quality_classifier"
    classifier.save_to_preset(folder)
    return folder


def accuracy(mode: str, preset: str) -> float:
    texts, labels = sst2("dev")
    classes = in_mode(preset, mode).predict(texts, verbose=0).argmax(-1)
    return 100 * float((classes == labels).mean())


def bleu(mode: str, preset: str = "transformer_tiny_en_de") -> float:
    import sacrebleu

    sources, references = multi30k("test_2016_flickr")
    sampler = kt.generation.BeamSearch(num_beams=5)
    texts = in_mode(preset, mode).generate(sources, sampler=sampler, batch_size=64)
    return sacrebleu.corpus_bleu(texts, [references], tokenize="none", force=True).score


def perplexity(mode: str, preset: str = "gpt_tiny_shakespeare") -> float:
    text = (data_folder() / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8")
    lm = in_mode(preset, mode)
    ids = lm.tokenizer.encode(text[len(text) * 9 // 10 :])
    rows = [ids[i : i + _WINDOW] for i in range(0, len(ids) - _WINDOW, _WINDOW)]
    scores = lm.score(rows)
    return math.exp(-scores.sum() / (len(rows) * (_WINDOW - 1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modes", nargs="+", default=["bfloat16", "int8"])
    measures = ("accuracy", "BLEU", "perplexity")
    parser.add_argument("--measures", nargs="+", default=measures, choices=measures)
    parser.add_argument("--classifier", help="a preset of MiniLM fine-tuned on SST-2")
    parser.add_argument("--data_dir", default=str(DATA))
    options = parser.parse_args()
    os.environ["KT_BENCHMARK_DATA"] = options.data_dir
    if keras.backend.backend() == "torch":
        use_threads_of_torch()
    ways: dict[str, Callable[[str], float]] = {"BLEU": bleu, "perplexity": perplexity}
    if "accuracy" in options.measures:
        classifier = options.classifier or trained()
        ways["accuracy"] = lambda mode: accuracy(mode, classifier)
    for measure in options.measures:
        whole = None
        for mode in ("float32", *options.modes):
            begin = time.perf_counter()
            value = ways[measure](mode)
            whole = value if whole is None else whole
            seconds = time.perf_counter() - begin
            moved = f"{value - whole:+.2f}, {value / whole - 1:+.2%}"
            print(f"{measure:<10} {mode:<8} {value:7.2f}  ({moved})  {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
