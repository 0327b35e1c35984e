"""Prompts of models that read states of an encoder in the place of placeholder tokens."""

from collections.abc import Sequence

from keras_transformer.checking import check_text
from keras_transformer.models.placing import Places

PROMPT = "{prompt}"


def check_template(template: str | None) -> str | None:
    """`template`, None for none. ValueError for what has no place for a prompt."""
    if template is not None:
        check_text("template", template)
        if PROMPT not in template:
            raise ValueError(
                f"`template` must have {PROMPT!r}, where a prompt stands, received {template!r}."
            )
    return template


def in_template(template: str | None, texts: Sequence[str], token: str | None) -> list[str]:
    """The texts within the template, but for those that say where the placeholder `token` is."""
    return [
        text if template is None or (token and token in text) else template.replace(PROMPT, text)
        for text in texts
    ]


def placed_rows(places: Places, rows: Sequence[list[int]], start: list[int]) -> list[list[int]]:
    """Prompts with as many placeholders as an input has states, and the start of a text.

    A prompt without a placeholder has them in front of its start; one stands for all.

    Args:
        places: what the backbone knows of them.
        rows: ids of each prompt.
        start: the ids that a text begins with.

    Raises:
        ValueError: for another number of placeholders, with the place of the prompt.
    """
    token, wanted = places.token, places.count
    placed = [token] * wanted
    made = []
    for place, row in enumerate(rows):
        count = row.count(token)
        if count == 0:
            made.append([*placed, *start, *row])
        elif count == 1:
            at = row.index(token)
            made.append([*start, *row[:at], *placed, *row[at + 1 :]])
        elif count == wanted:
            made.append([*start, *row])
        else:
            raise ValueError(
                f"`prompts[{place}]` has {count} placeholders, tokens of the id {token}: give one, "
                f"which stands for all {wanted} states of an input, {wanted} of them, or none for "
                "all in front of the prompt."
            )
    return made
