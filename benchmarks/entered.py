"""Count the files and functions of the package that a call enters, and its deepest stack.

A reader who follows a call meets these files. The counts fall when code skips parts that a model
does not have, and rise with each layer of indirection. `python benchmarks/entered.py` prints a
table; `tests/tasks/test_design.py` limits the counts of files.
"""

import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import keras_transformer as kt

PACKAGE = str(Path(kt.__file__).parent) + os.sep
TEXTS, LABELS = ["a warm and funny film", "dull", "fine", "from start to end"], [1, 0, 1, 0]
# The most files that a call may enter. Lower a number when the count falls.
MOST_FILES = {"fit": 45, "generate": 42, "from_preset": 50, "encoder": 16}


class Entered(NamedTuple):
    """The counts of one call."""

    files: int
    functions: int
    depth: int


def entered(call: Callable) -> Entered:
    """Count the files and functions of the package that a call enters, in all threads."""
    codes, deepest, depths = set(), [0], threading.local()

    def profile(frame, event, argument):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return
        if event == "call":
            codes.add(frame.f_code)
            depths.now = getattr(depths, "now", 0) + 1
            deepest[0] = max(deepest[0], depths.now)
        elif event == "return":
            depths.now = getattr(depths, "now", 1) - 1

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return Entered(len({code.co_filename for code in codes}), len(codes), deepest[0])


def calls(folder: str) -> dict[str, Callable]:
    """Return the calls to count, by name; each has been made once before.

    The first call of a process also sets up state that later calls share. The models are small:
    the counts depend on the parts of a model, not on its size.

    Args:
        folder: an empty folder for a preset.
    """
    tokenizer = kt.Tokenizer.train(TEXTS * 4, vocabulary_size=300)
    sizes = {"hidden_dim": 16, "num_layers": 2, "num_heads": 2, "intermediate_dim": 32}
    values = {**sizes, "vocabulary_size": tokenizer.vocabulary_size, "max_sequence_length": 64}
    bert = {
        "position": "learned",
        "segment_vocabulary_size": 2,
        "embedding_normalization": True,
        "pooler": True,
    }
    gpt = {"position": "learned", "normalize_first": True}
    encoder = kt.models.Encoder(kt.TransformerConfig(kind="encoder", **values, **bert))
    decoder = kt.models.Decoder(kt.TransformerConfig(kind="decoder", **values, **gpt))
    classifier = kt.TextClassifier(encoder, tokenizer, num_classes=2)
    lm = kt.CausalLM(decoder, tokenizer, end_ids=[])
    classifier.save_to_preset(folder)
    inputs = classifier.make_dataset(TEXTS)[0][0]
    found = {
        "fit": lambda: classifier.fit(TEXTS, LABELS, epochs=1, batch_size=4, verbose=0),
        "generate": lambda: lm.generate("fun", max_new_tokens=8),
        "from_preset": lambda: kt.TextClassifier.from_preset(folder),
        "encoder": lambda: encoder(inputs),
    }
    for call in found.values():
        call()
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'call':<12} {'files':>6} {'most':>6} {'functions':>10} {'depth':>6}")
        for name, call in calls(folder).items():
            found, most = entered(call), MOST_FILES[name]
            print(f"{name:<12} {found.files:>6} {most:>6} {found.functions:>10} {found.depth:>6}")
