"""Translate a file of sentences line by line; if it is killed, it resumes on the next start.

The sentences are translated sorted by length, so that no batch waits for one long sentence, and
written in the order of the input. Finished translations are kept beside the output and not redone.

    python examples/translate_file.py --input english.txt --output german.txt
    python examples/translate_file.py          # 200 sentences of Multi30k, and their BLEU
"""

import hashlib
import json
import os
import pathlib
import time

from runs import read_text, start

import keras_transformer as kt
from example_data import multi30k
from keras_transformer.checkpoints import load_config, resolve_preset
from keras_transformer.tokenizers import moses_detokenize, moses_tokenize

from absl import flags

INPUT = flags.DEFINE_string("input", None, "A file with one sentence a line.")
OUTPUT = flags.DEFINE_string("output", None, "File for the translations. Defaults to INPUT.out.")
PRESET = flags.DEFINE_string("preset", "transformer_tiny_en_de", "Preset or folder of a Seq2SeqLM.")
BEAMS = flags.DEFINE_integer("beams", 5, "Number of beams; 1 decodes greedily.", lower_bound=1)
BATCH = flags.DEFINE_integer("batch_size", 32, "Sentences translated together.", lower_bound=1)
LENGTH = flags.DEFINE_integer(
    "max_new_tokens", 128, "Maximum length of a translation.", lower_bound=1
)
PART = flags.DEFINE_integer("part", 128, "Sentences between two writes to disk.", lower_bound=1)


def finished_lines(journal: pathlib.Path, key: str) -> dict[int, str]:
    """Return the translations of an earlier run, by line; its last line may be incomplete."""
    if not journal.is_file():
        return {}
    done: dict[int, str] = {}
    lines = journal.read_text(encoding="utf-8").split("\n")
    if lines[0] != key:
        raise SystemExit(
            f"{journal} is of another input, model or setting. Remove it to begin anew."
        )
    for line in lines[1:]:
        try:
            number, text = json.loads(line)
        except ValueError:
            continue
        done[number] = text
    return done


def wants_moses() -> bool:
    """Return whether the preset was trained on text tokenized with Moses."""
    return load_config(resolve_preset(PRESET.value), load_weights=False)[2].get("text") == "moses"


def translate(lines: list[str], output: pathlib.Path, moses: bool) -> tuple[list[str], int, float]:
    """Return all translations, and how many were made now, in how many seconds."""
    translator = kt.Seq2SeqLM.from_preset(PRESET.value)
    beam = BEAMS.value
    sampler = kt.generation.BeamSearch(num_beams=beam) if beam > 1 else kt.generation.Greedy()
    journal = output.with_name(output.name + ".part")
    settings = [PRESET.value, beam, LENGTH.value, *lines]
    key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()
    done = finished_lines(journal, key)
    if done:
        print(f"{len(done)} of {len(lines)} lines are done already: going on.")
    left = [i for i, line in enumerate(lines) if line.strip() and i not in done]
    left.sort(key=lambda i: -len(lines[i]))
    start = time.perf_counter()
    with journal.open("a", encoding="utf-8") as file:
        if file.tell() == 0:
            file.write(key + "\n")
        file.write("\n")  # after an incomplete line
        for first in range(0, len(left), PART.value):
            part = left[first : first + PART.value]
            texts = translator.generate(
                [moses_tokenize(lines[i]) if moses else lines[i] for i in part],
                max_new_tokens=LENGTH.value,
                sampler=sampler,
                batch_size=BATCH.value,
            )
            for i, text in zip(part, texts, strict=True):
                text = moses_detokenize(text) if moses else text
                done[i] = text
                file.write(json.dumps([i, text]) + "\n")
            file.flush()
            os.fsync(file.fileno())
            seconds = time.perf_counter() - start
            share = (first + len(part)) / len(left)
            bar = ("=" * round(30 * share)).ljust(30)
            rate = (first + len(part)) / seconds
            print(f"\r[{bar}] {first + len(part)}/{len(left)}  {rate:.1f} sentences/s", end="")
    if left:
        print()
    translations = [done.get(i, "") for i in range(len(lines))]
    unfinished = output.with_name(output.name + ".new")
    unfinished.write_text("".join(f"{text}\n" for text in translations), encoding="utf-8")
    unfinished.replace(output)
    journal.unlink()
    return translations, len(left), time.perf_counter() - start


def main(_) -> None:
    if INPUT.value is not None:
        path = pathlib.Path(INPUT.value)
        if not path.is_file():
            raise SystemExit(f"There is no file {path}. Give one with --input.")
        lines = read_text(path).removesuffix("\n").split("\n")
        output = pathlib.Path(OUTPUT.value or f"{path}.out")
        references = None
    else:
        lines, references = (multi30k("test_2016_flickr", side)[:200] for side in ("en", "de"))
        output = pathlib.Path(OUTPUT.value or "multi30k.de")
    ordinary = INPUT.value is not None and wants_moses()  # the bundled data is tokenized already
    translations, made, seconds = translate(lines, output, ordinary)
    print(f"{output}: {len(lines)} lines, {made} translated in {seconds:.1f} s.")
    for source, translation in list(zip(lines, translations, strict=True))[:3]:
        print(f"  {source}\n    -> {translation}")
    if references is not None:
        import sacrebleu

        score = sacrebleu.corpus_bleu(translations, [references], tokenize="none", force=True)
        print(f"BLEU of these {len(lines)}: {score.score:.2f}")


if __name__ == "__main__":
    start(main)
