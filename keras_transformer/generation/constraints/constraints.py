"""Constraints on generated texts, compiled for the tokens of one vocabulary."""

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

from keras_transformer.generation.constraints.token_automaton import (
    TokenAutomaton,
    check_choices,
    compile_constraint,
)
from keras_transformer.support.former_names import FormerName
from keras_transformer.tokenizers.pieces import ids_within_words, strips_first_space, token_bytes
from keras_transformer.tokenizers.tokenizer import Tokenizer


class Constraints:
    """Compiles constraints for one vocabulary and caches the latest ones.

    Args:
        token_bytes: list of the bytes of each token, see `TokenAutomaton.from_regex`.
        never_first: ids that no text may begin with.
        size: int, number of cached automata.
        optional_space: bool, whether a text may begin with an additional space.
        compile: function with the arguments and result of `compile_constraint`, which may run in
            another process.

    Example:

    ```python
    from keras_transformer.generation.constraints.constraints import Constraints

    constraints = Constraints([b"yes", b"no"])
    assert constraints.regex("yes|no") is constraints.regex("yes|no")
    ```
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes | None],
        never_first: Sequence[int] = (),
        size: int = 32,
        optional_space: bool = False,
        compile: Callable[..., TokenAutomaton] = compile_constraint,
    ):
        self.token_bytes = list(token_bytes)
        self.optional_space = optional_space

        @functools.lru_cache(maxsize=size)
        def compiled(kind: str, value, *options) -> TokenAutomaton:
            return compile(kind, value, options, self.token_bytes, never_first)

        self._compiled = compiled

    of = FormerName("of", "from_tokenizer")

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, continues: bool, **options: Any) -> "Constraints":
        """Return the constraints of a tokenizer, for texts that continue others or stand alone."""
        if continues:
            return cls(token_bytes(tokenizer), **options)
        # Decoding a text that stands alone drops the space before its first word.
        space = strips_first_space(tokenizer)
        within = ids_within_words(tokenizer)
        return cls(token_bytes(tokenizer), within, optional_space=space, **options)

    def make(self, regex=None, choices=None, json_schema=None) -> TokenAutomaton:
        """Compile the constraint of the one argument that is given."""
        given = {"regex": regex, "choices": choices, "json_schema": json_schema}
        given = {name: value for name, value in given.items() if value is not None}
        if len(given) != 1:
            raise ValueError("Give exactly one of `regex`, `choices` and `json_schema`.")
        ((name, value),) = given.items()
        return getattr(self, name)(value)

    def regex(self, pattern: str, optional_space: bool | None = None) -> TokenAutomaton:
        """Compile a regular expression, see `TokenAutomaton.from_regex`."""
        if not isinstance(pattern, str):
            raise ValueError(f"`regex` must be a string, received {pattern!r}.")
        space = self.optional_space if optional_space is None else optional_space
        return self._compiled("regex", pattern, space)

    def choices(self, choices: Sequence[str]) -> TokenAutomaton:
        """Compile a choice of strings, see `TokenAutomaton.from_choices`."""
        choices = check_choices(choices)
        spaced = tuple(" " + text for text in choices) if self.optional_space else ()
        return self._compiled("choices", (*choices, *spaced))

    def json_schema(self, schema: dict | bool) -> TokenAutomaton:
        """Compile a JSON Schema, see `TokenAutomaton.from_json_schema`."""
        if not isinstance(schema, (dict, bool)):
            raise ValueError(
                f"`json_schema` must be a JSON Schema as a dict, received {type(schema).__name__}."
            )
        try:
            text = json.dumps(schema, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"`json_schema` must hold JSON values only: {error}") from None
        return self._compiled("json_schema", text, self.optional_space)
