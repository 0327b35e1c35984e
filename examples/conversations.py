"""Make conversations by rules: questions whose answers can be checked, asked in several ways.

Each question has a short answer and a wordy one. `skills` says what is asked for training and what
is held out: other wordings of the facts, other numbers, other counts of a word.
"""

import dataclasses
import random
import re

OPPOSITES = (
    "hot cold, big small, day night, up down, left right, old young, fast slow, happy sad, "
    "open closed, light dark, hard soft, wet dry, early late, full empty, high low, rich poor, "
    "strong weak, near far, clean dirty, loud quiet, sweet sour, thick thin, wide narrow, war peace"
)
CAPITALS = (
    "France Paris, Italy Rome, Spain Madrid, Germany Berlin, Japan Tokyo, Egypt Cairo, "
    "Greece Athens, Norway Oslo, Cuba Havana, Peru Lima, Kenya Nairobi, Austria Vienna, "
    "Portugal Lisbon, Ireland Dublin, Poland Warsaw, Russia Moscow, Sweden Stockholm, "
    "Hungary Budapest, Canada Ottawa, India Delhi"
)
COLOURS = (
    "grass green, snow white, blood red, coal black, gold yellow, milk white, a cherry red, "
    "a lemon yellow, an orange orange, chocolate brown, a leaf green, a crow black"
)
WORDINGS = {
    "opposites": (
        "What is the opposite of {}?", "Tell me the opposite of {}.", "{}: what is its opposite?",
        "Which word means the opposite of {}?",
    ),
    "capitals": (
        "What is the capital of {}?", "Tell me the capital of {}.", "{}: what is its capital?",
        "Which city is the capital of {}?",
    ),
    "colours": (
        "What color is {}?", "Tell me the color of {}.", "{}: what color is it?",
        "Which color has {}?",
    ),
}  # fmt: skip
FACTS = {
    "opposites": "The opposite of {} is {}.",
    "capitals": "The capital of {} is {}.",
    "colours": "The color of {} is {}.",
}
OPENINGS = ("That is a good question.", "Let me think about it for a moment.", "I can help you.")
ENDINGS = ("I hope that this helps you.", "Ask me again if you like.", "Is there more to ask?")
COUNTS = {"twice": 2, "three times": 3, "four times": 4, "five times": 5}


@dataclasses.dataclass(frozen=True)
class Question:
    """A question with its answers.

    Args:
        skill: str, `"facts"`, `"sums"` or `"repeating"`.
        text: str, the question.
        answer: str, the words that an answer has to have.
        short, wordy: str, two right answers.
    """

    skill: str
    text: str
    answer: str
    short: str
    wordy: str

    def is_right(self, reply: str) -> bool:
        """Return True if a reply says the answer, and no other number or repetition."""
        words = re.findall(r"[a-z]+|\d+", reply.lower())
        expected = self.answer.lower().split()
        if self.skill == "facts":
            return expected[0] in words
        if self.skill == "sums":
            asked = re.findall(r"\d+", self.text)
            return [word for word in words if word.isdigit() and word not in asked] == expected
        return [word for word in words if word == expected[0]] == expected


def skills(words: list[str], seed: int = 0) -> dict[str, list[Question]]:
    """Return questions for training and held-out ones, as `"train"` and `"held_out"`.

    Args:
        words: list of str, those that are to be repeated.
        seed: int, of the choice of what is held out.
    """
    draw = random.Random(seed)
    parts: dict[str, list[Question]] = {"train": [], "held_out": []}
    for kind, pairs in {
        "opposites": [*_pairs(OPPOSITES), *((b, a) for a, b in _pairs(OPPOSITES))],
        "capitals": _pairs(CAPITALS),
        "colours": _pairs(COLOURS),
    }.items():
        for thing, answer in pairs:
            held_out = draw.randrange(len(WORDINGS[kind]))
            for place, wording in enumerate(WORDINGS[kind]):
                text = wording.format(thing)
                fact = FACTS[kind].format(thing, answer)
                question = _question("facts", text[0].upper() + text[1:], answer, fact, draw)
                parts["held_out" if place == held_out else "train"].append(question)
    for first in range(1, 21):
        for second in range(1, 21):
            answer = str(first + second)
            fact = f"{first} plus {second} is {answer}."
            question = _question("sums", f"What is {first} plus {second}?", answer, fact, draw)
            parts["held_out" if draw.random() < 0.2 else "train"].append(question)
    for word in words:
        held_out = draw.choice(list(COUNTS))
        for count, number in COUNTS.items():
            answer = " ".join([word] * number)
            fact = f"Here it is: {answer}."
            question = _question("repeating", f"Say {word} {count}.", answer, fact, draw)
            parts["held_out" if count == held_out else "train"].append(question)
    return parts


def conversations(questions: list[Question], count: int, seed: int = 0) -> list[list[dict]]:
    """Return conversations of one to three questions, most of them with wordy answers."""
    draw = random.Random(seed)
    by_skill: dict[str, list[Question]] = {}
    for question in questions:
        by_skill.setdefault(question.skill, []).append(question)
    rows = []
    for _ in range(count):
        messages = []
        for _ in range(draw.choice((1, 1, 2, 3))):
            question = draw.choice(by_skill[draw.choice(sorted(by_skill))])
            answer = question.wordy if draw.random() < 0.7 else question.short
            messages.append({"role": "user", "content": question.text})
            messages.append({"role": "assistant", "content": answer})
        rows.append(messages)
    return rows


def _pairs(text: str) -> list[tuple[str, str]]:
    return [tuple(pair.rsplit(" ", 1)) for pair in text.split(", ")]


def _question(skill: str, text: str, answer: str, fact: str, draw: random.Random) -> Question:
    wordy = f"{draw.choice(OPENINGS)} {fact} {draw.choice(ENDINGS)}"
    return Question(skill, text, answer, f"{answer[0].upper()}{answer[1:]}.", wordy)
