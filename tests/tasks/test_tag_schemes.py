"""Tags of entities: the spans of each scheme by its definition, and those of conlleval."""

import random

import pytest

from keras_transformer.tasks.text.tag_schemes import Span, TagScheme

pytestmark = pytest.mark.backend_independent

KINDS = ("PER", "LOC", "O")  # a kind may be called as what is outside


def tags_of(letters):
    return ["O", *(f"{letter}-{kind}" for letter in letters for kind in KINDS)]


def random_spans(draw, length=12):
    """Entities of a row of words, some next to each other."""
    spans, place = [], 0
    while place < length:
        size = draw.randint(1, 4)
        if draw.random() < 0.7 and place + size <= length:
            spans.append(Span(draw.choice(KINDS), place, place + size))
        place += size
    return spans


# By the definition of each scheme: the letters of an entity of this many words; `again` says that
# one of the same kind ends (or, for IOE1, begins) right beside it.
LETTERS = {
    "IOB2": lambda size, before, after: ["B", *["I"] * (size - 1)],
    "IOB1": lambda size, before, after: ["B" if before else "I", *["I"] * (size - 1)],
    "IOE2": lambda size, before, after: [*["I"] * (size - 1), "E"],
    "IOE1": lambda size, before, after: [*["I"] * (size - 1), "E" if after else "I"],
    "IOBES": lambda size, before, after: (
        ["S"] if size == 1 else ["B", *["I"] * (size - 2), "E"]
    ),
    "BILOU": lambda size, before, after: (
        ["U"] if size == 1 else ["B", *["I"] * (size - 2), "L"]
    ),
    "BMES": lambda size, before, after: (
        ["S"] if size == 1 else ["B", *["M"] * (size - 2), "E"]
    ),
}  # fmt: skip
USED = {"IOB2": "BI", "IOB1": "BI", "IOE2": "IE", "IOE1": "IE", "IOBES": "BIES", "BILOU": "BILU",
        "BMES": "BMES"}  # fmt: skip


@pytest.mark.parametrize("name", LETTERS)
def test_entities_of_a_scheme(name):
    draw, scheme = random.Random(0), TagScheme(tags_of(USED[name]))
    for _ in range(200):
        spans, tags = random_spans(draw), ["O"] * 12
        for place, (kind, start, end) in enumerate(spans):
            before, after = (
                0 <= other < len(spans)
                and spans[other].kind == kind
                and (spans[other].end == start or spans[other].start == end)
                for other in (place - 1, place + 1)
            )
            letters = LETTERS[name](end - start, before, after)
            tags[start:end] = [f"{letter}-{kind}" for letter in letters]
        assert scheme.spans(tags) == spans
        if name not in ("IOB1", "IOE1"):  # Their labels are those of IOB2 and IOE2.
            assert [scheme.labels(kind, end - start) for kind, start, end in spans] == [
                tags[start:end] for _, start, end in spans
            ]


def conlleval(tags):
    """The chunks of conlleval.pl, by its rules of where one ends and where one begins."""
    chunks, begin, before, kind_before = [], 0, "O", ""
    for place, tag in enumerate([*tags, "O"]):
        letter, _, kind = tag.partition("-")
        differs = before != "O" and kind != kind_before
        ends = before in "ES" or (before in "BI" and letter in "BSO") or differs
        if before != "O" and ends:
            chunks.append(Span(kind_before, begin, place))
        begins = letter in "BS" or (before in "ESO" and letter in "EI")
        if letter != "O" and (begins or kind != kind_before):
            begin = place
        before, kind_before = letter, kind
    return chunks


@pytest.mark.parametrize("letters", ["BI", "I", "BIES", "IE"])
def test_any_tags_are_cut_as_by_conlleval(letters):
    draw, known = random.Random(1), tags_of(letters)
    scheme = TagScheme(known)
    for _ in range(200):
        tags = draw.choices(known, k=12)
        assert scheme.spans(tags) == conlleval(tags)


def test_of_bilou_whole_entities_count():
    scheme = TagScheme(tags_of("BILU"))
    short = ["LP", "UP", "BL", "IL", "O", "BL", "LP", "BP", "IP", "LP", "LP", "IL", "UL"]
    kinds = {"P": "PER", "L": "LOC"}
    tags = [tag if tag == "O" else f"{tag[0]}-{kinds[tag[1]]}" for tag in short]
    assert scheme.spans(tags) == [Span("PER", 1, 2), Span("PER", 7, 10), Span("LOC", 12, 13)]


def test_labels_that_are_no_tags():
    scheme = TagScheme(["O", "PER", "E-mail", "DATE-TIME"])
    tags = ["PER", "PER", "E-mail", "O", "DATE-TIME", "DATE-TIME"]
    expected = [Span("PER", 0, 2), Span("E-mail", 2, 3), Span("DATE-TIME", 4, 6)]
    assert scheme.spans(tags) == expected
    assert scheme.labels("PER", 2) == ["PER", "PER"] and "E-mail" in scheme.kinds
    assert TagScheme(["O", "I-PER"]).labels("PER", 2) == ["I-PER", "I-PER"]
