"""Find the names of persons and places in a text, with their character positions.

    python examples/named_entities.py --output my_recognizer "I met Romeo in Verona."

trains on Shakespeare's plays. They are not labelled, but the scripts name the speakers ("ROMEO:"),
so these names are known to be persons when they occur in the lines; places are in a short list.
Some names are held out: no training sentence has them, so they must be found by their context.
(MiniLM reads lower case, so it does not see that names are capitalized.)

A preset that recognizes entities already needs no training:

    python examples/named_entities.py --preset bert_base_en_ner "I met Romeo in Verona."
"""

import logging
import random
import re
import textwrap
import time
from collections import Counter
from typing import NamedTuple

from runs import start

import keras_transformer as kt
from example_data import BEAGLE, shakespeare_speeches

import keras
from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_string("encoder", "minilm_l6_en", "Preset of the encoder to train.")
flags.DEFINE_integer("epochs", 2, "Passes over the training sentences.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Sentences in a training step.", lower_bound=1)
flags.DEFINE_float("learning_rate", 3e-4, "Peak of the learning rate, which then falls to 0.")
flags.DEFINE_integer("train_size", None, "Number of training sentences, for a quick look.")
flags.DEFINE_integer("test_size", None, "Number of held-out sentences to test on.")
flags.DEFINE_integer("seed", 0, "Seed of what is held out, new weights, dropout and shuffling.")
flags.DEFINE_string("output", None, "Save the trained recognizer as a preset here.")
flags.DEFINE_string("preset", None, "Do not train: use this preset, which recognizes entities.")

# Persons in the lines who never speak, or only under another name. Neither list is complete, and
# a missing name counts as an ordinary word.
PERSONS = """
Adam Brandon Caesar Caius Cambio Cobham Doricles Forrest Francis Harry Hector Hereford Isabel Jack
Julius Kate Lancaster Licio Lodowick Lucy Minola Ned Pembroke Plantagenet Ragozine Robert Rosaline
Shore Stafford Susan Sycorax Tullus Ulysses Walter William Wiltshire
"""
PLACES = """
Afric Africa Albion Alps Antium Arabia Argier Barbary Barnet Bohemia Bordeaux Bosworth Bretagne
Bristol Brittany Calais Capitol Carthage Chertsey Christendom Corioli Cotswold Coventry Delphos
Egypt England Europe Florence France Gloucestershire Greece Guildhall Hyrcania Ireland Italy
Jerusalem Libya London Ludlow Mantua Milan Naples Northampton Olympus Padua Pisa Plashy Pomfret
Ravenspurgh Rome Russia Sicilia Scotland Tamworth Tewksbury Tiber Troy Tunis Venice Verona Vienna
Wales Westminster Yorkshire
"""
LABELS = ["O", "B-person", "I-person", "B-place", "I-place"]
MAX_WORDS = 50


class Sentence(NamedTuple):
    """A sentence, its entities as `(start, end, label)`, and whether each has a held-out name."""

    text: str
    entities: list[tuple[int, int, str]]
    held_out: list[bool]


def names_of_speakers(speeches: list[tuple[str, str]]) -> set[str]:
    """Return the names in the speakers' designations: "Richard" for "KING RICHARD II"."""
    words = Counter(re.findall(r"(?<=[a-z,] )[A-Za-z]+", "\n".join(text for _, text in speeches)))
    # Names are in capitals ("ROMEO"), other speakers are not ("First Citizen"). "KING" and "OF"
    # are not names: within a sentence they are mostly in lower case.
    speakers = {speaker for speaker, _ in speeches if speaker.isupper()}
    parts = {part.capitalize() for speaker in speakers for part in re.findall("[A-Z]+", speaker)}
    return {part for part in parts if words[part] > words[part.lower()]} - {"Archbishop", "Earl"}


def make_data(seed: int) -> tuple[list[Sentence], list[Sentence], set[str]]:
    """Return training sentences, test sentences, and the names that only the latter have."""
    speeches = shakespeare_speeches()
    draw = random.Random(seed)
    persons = sorted(names_of_speakers(speeches) | set(PERSONS.split()))
    places = sorted(PLACES.split())
    held_out = {name for names in (persons, places) for name in draw.sample(names, len(names) // 5)}
    one_person, one_place = (rf"\b(?:{'|'.join(names)})\b" for names in (persons, places))
    pattern = re.compile(
        rf"(?P<person>{one_person}(?: (?:of )?{one_person})*)|(?P<place>{one_place})"
    )
    train, test = [], []
    for _, lines in speeches:
        in_test = draw.random() < 0.1
        for text in re.split(r"(?<=[.!?]) ", " ".join(lines.split())):
            found = list(pattern.finditer(text))
            if len(text.split()) > MAX_WORDS:
                continue
            entities = [(*match.span(), match.lastgroup) for match in found]
            new = [not held_out.isdisjoint(match[0].split()) for match in found]
            if in_test or any(new):
                test.append(Sentence(text, entities, new))
            else:
                train.append(Sentence(text, entities, new))
    # Most sentences have no name. Keep as many of them as have one.
    with_names = [sentence for sentence in train if sentence.entities]
    without = [sentence for sentence in train if not sentence.entities]
    train = with_names + draw.sample(without, len(with_names))
    draw.shuffle(train)
    draw.shuffle(test)
    return train[: FLAGS.train_size], test[: FLAGS.test_size], held_out


def train(sentences: list[Sentence]) -> kt.TokenClassifier:
    """Train a recognizer of persons and places on labelled sentences."""
    recognizer = kt.TokenClassifier.from_preset(FLAGS.encoder, labels=LABELS)
    texts, entities, _ = map(list, zip(*sentences, strict=True))
    steps = -(-len(texts) // FLAGS.batch_size) * FLAGS.epochs
    recognizer.optimizer.learning_rate = kt.training.LinearDecay(
        FLAGS.learning_rate, steps, warmup_steps=steps // 10
    )
    recognizer.fit(texts, entities, batch_size=FLAGS.batch_size, epochs=FLAGS.epochs)
    return recognizer


def print_scores(sentences: list[Sentence], recognized: list[list]):
    """Print how many names were found with exactly the right characters and label."""
    wanted = {
        (number, *entity): new
        for number, sentence in enumerate(sentences)
        for entity, new in zip(sentence.entities, sentence.held_out, strict=True)
    }
    marked = {
        (number, entity.start, entity.end, entity.label)
        for number, entities in enumerate(recognized)
        for entity in entities
    }
    print("                      names  precision  recall     F1")
    for title, chosen in {
        "all": lambda key: True,
        "persons": lambda key: key[3] == "person",
        "places": lambda key: key[3] == "place",
        # Wrongly marked spans belong to neither seen nor unseen names, so both rows count them.
        "seen in the training": lambda key: not wanted.get(key, False),
        "never seen": lambda key: wanted.get(key, True),
    }.items():
        right = sum(map(chosen, marked & wanted.keys()))
        precision = right / max(1, sum(map(chosen, marked)))
        recall = right / max(1, sum(map(chosen, wanted)))
        f1 = 2 * precision * recall / max(1e-9, precision + recall)
        number = sum(map(chosen, wanted))
        print(f"  {title:<20}{number:>5}{precision:>11.1%}{recall:>8.1%}{f1:>7.1%}")
    wrong = Counter(
        f"{sentences[number].text[start:end]} as {label}"
        for number, start, end, label in marked - wanted.keys()
    )
    print("\nWrong most often; of these, some are names that the lists lack:")
    print("  " + ", ".join(f"{name} ({times})" for name, times in wrong.most_common(8)))


def print_entities(text: str, entities: list, held_out: set[str] = frozenset()):
    """Print a text, and below it the entities found in it."""
    print("\n" + textwrap.fill(text, 98, initial_indent="  ", subsequent_indent="  "))
    for entity in entities:
        new = "  (never seen)" if not held_out.isdisjoint(entity.text.split()) else ""
        print(
            f"    {entity.start:>4}-{entity.end:<4} {entity.label:<7} {entity.score:5.1%}  "
            f"{entity.text}{new}"
        )


def train_and_test() -> tuple[kt.TokenClassifier, list[Sentence], list[list]]:
    """Return the trained recognizer, the test sentences, and the entities found in each."""
    keras.utils.set_random_seed(FLAGS.seed)
    sentences, test, held_out = make_data(FLAGS.seed)
    print(
        f"{FLAGS.encoder} learns from {len(sentences):,} sentences with "
        f"{sum(len(sentence.entities) for sentence in sentences):,} names. {len(held_out)} names "
        f"are in none of them, such as {', '.join(sorted(held_out)[::9])}.\n"
    )
    recognizer = train(sentences)
    if FLAGS.output:
        recognizer.save_to_preset(FLAGS.output)
        print(f"The recognizer is in {FLAGS.output}.")
    recognized = recognizer.recognize([sentence.text for sentence in test])
    print("\nHeld-out sentences, and the names found at these characters:")
    shown = [i for i, s in enumerate(test) if any(s.held_out) and 8 < len(s.text.split()) < 20]
    for i in shown[:6]:
        print_entities(test[i].text, recognized[i], held_out)
    return recognizer, test, recognized


def main(arguments):
    started = time.time()
    # Hide the warning that the new layer is untrained.
    logging.getLogger("keras_transformer").setLevel(logging.ERROR)
    texts = arguments[1:] or [BEAGLE]
    if FLAGS.preset:
        recognizer = kt.TokenClassifier.from_preset(FLAGS.preset)
        test = []
        print(f"Entities that {FLAGS.preset} finds:")
    else:
        recognizer, test, recognized = train_and_test()
        print("\nNames in other text:")
    for text, entities in zip(texts, recognizer.recognize(texts), strict=True):
        print_entities(text, entities)
    if test:
        print(
            f"\n{len(test):,} held-out sentences, {keras.backend.backend()}, seed {FLAGS.seed}, "
            f"{FLAGS.epochs} epoch(s), {time.time() - started:.0f} s in all\n"
        )
        print_scores(test, recognized)


if __name__ == "__main__":
    start(main)
