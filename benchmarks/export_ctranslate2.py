"""BLEU of `transformer_tiny_en_de` on the test set of Multi30k, here and in CTranslate2.

python benchmarks/export_ctranslate2.py --data_dir ../shared/data
"""

import sys
import tempfile
import time
from pathlib import Path

import ctranslate2
import sacrebleu
import tokenizers
from absl import app

import keras_transformer as kt

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from example_data import multi30k

BEAMS = 5


def exported(translator: kt.Seq2SeqLM, sources: list[str], quantization: str | None) -> list[str]:
    """The translations that CTranslate2 gives of the exported model."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "exported")
        kt.export(translator, place, format="ctranslate2", quantization=quantization)
        tokenizer = tokenizers.Tokenizer.from_file(str(place / "tokenizer.json"))
        there = ctranslate2.Translator(str(place))
        rows = [tokenizer.encode(text).tokens for text in sources]
        found = there.translate_batch(rows, beam_size=BEAMS, max_batch_size=64)
    ids = [[tokenizer.token_to_id(t) for t in each.hypotheses[0]] for each in found]
    return tokenizer.decode_batch(ids)


def main(_) -> None:
    sources, references = (multi30k("test_2016_flickr", language) for language in ("en", "de"))
    translator = kt.Seq2SeqLM.from_preset("transformer_tiny_en_de")
    sampler = kt.generation.BeamSearch(num_beams=BEAMS)
    runs = {
        "keras_transformer": lambda: translator.generate(sources, sampler=sampler, batch_size=64),
        "CTranslate2 float32": lambda: exported(translator, sources, None),
        "CTranslate2 int8": lambda: exported(translator, sources, "int8"),
    }
    ours = None
    for name, run in runs.items():
        begin = time.perf_counter()
        texts = run()
        seconds = time.perf_counter() - begin
        ours = ours or texts
        score = sacrebleu.corpus_bleu(texts, [references], tokenize="none", force=True).score
        equal = sum(a == b for a, b in zip(texts, ours, strict=True))
        print(f"{name}: BLEU {score:.2f}, {equal} of {len(ours)} as here, {seconds:.0f} s")


if __name__ == "__main__":
    app.run(main)
