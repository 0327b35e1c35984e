"""Answer questions about a text by marking the words that answer them.

    python examples/question_answering.py --output my_answerer

trains on scenes of Shakespeare, where the script names the speakers, so that the right answers are
known:

    Who says "But, soft! what light"?     ROMEO
    What does JULIET say first?           O Romeo, Romeo

and asks about scenes from the part of the text that it was not trained on. A preset that answers
questions already needs no training:

    python examples/question_answering.py --preset distilbert_base_en_cased_squad

asks it about a page by Darwin; use --question and --context for another text.
"""

import itertools
import logging
import random
import re
import textwrap
import time
from typing import NamedTuple

from runs import start

import keras_transformer as kt
from example_data import BEAGLE, shakespeare_speeches

import keras
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("encoder", "minilm_l6_en", "Preset of the encoder to train.")
flags.DEFINE_integer("epochs", 2, "Passes over the training questions.", lower_bound=1)
flags.DEFINE_integer("batch_size", 16, "Questions in a training step.", lower_bound=1)
flags.DEFINE_float("learning_rate", 5e-4, "Peak of the learning rate, which then falls to 0.")
flags.DEFINE_integer("train_size", 3000, "Number of training questions.", lower_bound=2)
flags.DEFINE_integer("test_size", 400, "Number of held-out questions.", lower_bound=2)
flags.DEFINE_integer("seed", 0, "Seed of the questions, new weights, dropout and shuffling.")
flags.DEFINE_string("output", None, "Save the trained answerer as a preset here.")
flags.DEFINE_string("preset", None, "Do not train: ask this preset, which answers questions.")
flags.DEFINE_multi_string("question", None, "With --preset: a question. May be repeated.")
flags.DEFINE_string("context", None, "With --preset: the text with the answers.")

BEAGLE_QUESTIONS = [
    "Who commanded the Beagle?",
    "When did the ship sail?",
    "Where did it sail from?",
    "Which coasts were to be surveyed?",
]
KINDS = ("says", "what")
MAX_WORDS = 60


class Question(NamedTuple):
    """A question about a context, with its answer `context[start:end]`."""

    kind: str
    text: str
    context: str
    start: int
    end: int

    @property
    def answer(self) -> str:
        return self.context[self.start : self.end]


def make_questions(speeches: list[tuple[str, str]], count: int, seed: int) -> list[Question]:
    """Make questions of two kinds in turn about 3 to 5 speeches by at least 3 speakers."""
    draw = random.Random(seed)
    questions: list[Question] = []
    while len(questions) < count:
        first = draw.randrange(len(speeches) - 5)
        scene = speeches[first : first + draw.randint(3, 5)]
        parts = [f"{speaker}: {' '.join(lines.split())}" for speaker, lines in scene]
        context = "\n".join(parts)
        if len(context.split()) > MAX_WORDS or len({speaker for speaker, _ in scene}) < 3:
            continue
        places = [0, *itertools.accumulate(len(part) + 1 for part in parts)]  # of the speakers
        chosen = draw.randrange(len(scene))
        speaker, lines = parts[chosen].split(": ", 1)
        kind = KINDS[len(questions) % len(KINDS)]
        if kind == "what":
            phrase = re.match(r"[^.,;:!?]+", lines)  # up to the first punctuation mark
            said_before = speaker in [name for name, _ in scene[:chosen]]
            if said_before or not phrase or len(phrase[0].split()) > 10:
                continue
            question = f"What does {speaker} say first?"
            start = places[chosen] + len(speaker) + 2
            end = start + phrase.end()
        else:
            quote = " ".join(lines.split()[: draw.randint(3, 6)]).rstrip(".,;:!?-")
            if context.count(quote) > 1:
                continue
            question = f'Who says "{quote}"?'
            start = places[chosen]
            end = start + len(speaker)
        questions.append(Question(kind, question, context, start, end))
    return questions


def ask(answerer: kt.QuestionAnswerer, questions: list[Question]) -> list:
    """Return the answers of the model."""
    return answerer.answer([q.text for q in questions], [q.context for q in questions])


def exact_matches(questions: list[Question], answers: list, kind: str) -> float:
    """Return the share of questions of a kind that are answered with exactly the right words."""
    right = [
        answer.text == question.answer
        for question, answer in zip(questions, answers, strict=True)
        if question.kind == kind
    ]
    return sum(right) / len(right)


def train(answerer: kt.QuestionAnswerer, questions: list[Question]):
    """Fit on the questions; the learning rate rises for a tenth of the steps, then falls."""
    steps = -(-len(questions) // FLAGS.batch_size) * FLAGS.epochs
    answerer.optimizer.learning_rate = kt.training.LinearDecay(
        FLAGS.learning_rate, steps, warmup_steps=steps // 10
    )
    answerer.fit(
        ([q.text for q in questions], [q.context for q in questions]),
        [(q.start, q.end) for q in questions],
        batch_size=FLAGS.batch_size,
        epochs=FLAGS.epochs,
    )


def one_line(text: str) -> str:
    """Return a text of several lines as one line."""
    return " / ".join(text.splitlines())


def show(questions: list[Question], answers: list):
    """Print questions, the shortened speeches that they are about, and the answers."""
    for question, answer in zip(questions, answers, strict=True):
        print()
        for speech in question.context.split("\n"):
            print(f"  | {textwrap.shorten(speech, 76, placeholder=' ...')}")
        verdict = "right" if answer.text == question.answer else f"expected: {question.answer}"
        print(f"  {question.text}\n  -> {one_line(answer.text)}  ({answer.score:.1%}, {verdict})")


def ask_preset():
    """Answer the questions about a text with a preset that was trained elsewhere."""
    answerer = kt.QuestionAnswerer.from_preset(FLAGS.preset)
    context = FLAGS.context or BEAGLE
    print("\n" + textwrap.fill(context, 90, initial_indent="  | ", subsequent_indent="  | "))
    questions = FLAGS.question or BEAGLE_QUESTIONS
    answers = answerer.answer(questions, [context] * len(questions))
    for question, answer in zip(questions, answers, strict=True):
        print(f"  {question}\n  -> {one_line(answer.text)}  ({answer.score:.1%})")


def main(_):
    started = time.time()
    if FLAGS.question and not FLAGS.preset:
        raise app.UsageError("--question needs a --preset that answers it.")
    if FLAGS.context and not FLAGS.question:
        raise app.UsageError("--context needs a --question about it.")
    # Hide the warning that the new layer is untrained: the first scores show it.
    logging.getLogger("keras_transformer").setLevel(logging.ERROR)
    if FLAGS.preset:
        ask_preset()
        return
    keras.utils.set_random_seed(FLAGS.seed)
    # The last tenth of the text is held out.
    speeches = shakespeare_speeches()
    first_held_out = len(speeches) * 9 // 10
    questions = make_questions(speeches[:first_held_out], FLAGS.train_size, FLAGS.seed)
    test = make_questions(speeches[first_held_out:], FLAGS.test_size, FLAGS.seed + 1)
    answerer = kt.QuestionAnswerer.from_preset(FLAGS.encoder)
    before = ask(answerer, test)
    print(f"{FLAGS.encoder} learns from {len(questions):,} questions.\n")
    train(answerer, questions)
    if FLAGS.output:
        answerer.save_to_preset(FLAGS.output)
        print(f"The answerer is in {FLAGS.output}.")
    after = ask(answerer, test)
    print("\nHeld-out scenes:")
    show(test[:6], after[:6])
    print(
        f"\n{len(test):,} held-out questions, {keras.backend.backend()}, seed {FLAGS.seed}, "
        f"{FLAGS.epochs} epoch(s), {time.time() - started:.0f} s in all\n\n"
        "  exact matches              before    after"
    )
    for kind, form in zip(KINDS, ('Who says "..."?', "What does ... say first?"), strict=True):
        shares = (exact_matches(test, answers, kind) for answers in (before, after))
        print(f"  {form:<25}" + "".join(f"{share:8.1%} " for share in shares).rstrip())
    says = [question.context for question in test if question.kind == "says"]
    speakers = [len({speech.partition(":")[0] for speech in scene.split("\n")}) for scene in says]
    chance = sum(1 / number for number in speakers) / len(speakers)
    print(f"\nNaming a speaker of the scene at random is right in {chance:.1%} of the first kind.")


if __name__ == "__main__":
    start(main)
