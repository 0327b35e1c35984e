"""What a task that writes saw: of a text as it is, or of each step in which one was written."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_transformer.explanations.explanation import Explanation
from keras_transformer.explanations.tokens import readable_tokens
from keras_transformer.models.turns import reads
from keras_transformer.tasks.explaining import Asked, Explains
from keras_transformer.tasks.inputs import listed
from keras_transformer.tasks.text import tokenizer_of


class ExplainsWritten(Explains):
    """Mixin of a `LanguageModel`: `explain` of prompts, and of what was written on them."""

    @reads
    def explain(self, prompts, output=None, **options) -> Any:
        """What the model saw of a text, or of each step of writing one.

        Args:
            prompts: as of `generate`; or a dict of arrays, as for `predict`.
            output: the text that was written, a string for each prompt, or its ids. Defaults to
                none for a model that goes on with its prompt, which then is what is explained; and
                to what `generate` writes for one that translates.
            **options: as of `TextClassifier.explain`: `saliency`, `target`, `position`, `steps`,
                `baseline`, `top_k`, `vectors`, `max_attention`. Attributions are of the last token
                that was written, or of the likeliest next one.

        Returns:
            An `explanations.Explanation`; for a list of prompts a list of them. Token `i` of
            `next_tokens` is what was written behind token `i`.

        Raises:
            ValueError: for prompts or outputs that the model cannot take.

        Example:
        ```python
        import keras_transformer as kt

        translator = kt.Seq2SeqLM.from_preset("transformer_tiny_en_de")
        explanation = translator.explain("a man rides a bike .")
        assert "mann" in explanation.next_tokens
        steps, words = explanation.cross_attention.shape[2:]
        assert words == len(explanation.encoder_tokens)
        ```
        """
        if isinstance(prompts, Mapping):
            return super().explain(prompts, **options)
        how = Asked.of(**options)
        rows, _, alone = self._prompt_ids(prompts)
        for place, row in enumerate(rows):
            if not row:
                raise ValueError(f"`prompts[{place}]` is empty: there must be at least one token.")
            self.backbone.check_ids(**{f"prompts[{place}]": np.asarray(row)})
        if output is None and not self.continues_prompts:
            return self._explained_as_written(rows, alone, how)
        written = [[] for _ in rows] if output is None else self._written_ids(output, rows, alone)
        found = self.explained_texts(rows, written, how)
        return found[0] if alone else found

    def _explained_as_written(self, rows, alone: bool, how: Asked):
        completions = self._completed(
            rows, {}, {}, self.tokenizer is not None, False, False, False, False, explain=how
        )
        found = [each.explanation for each in completions]
        return found[0] if alone else found

    def _written_ids(self, output: Any, rows: list, alone: bool) -> list[list[int]]:
        """The ids of what was written, of texts with their end."""
        given = listed(output, "output")
        given = [given] if alone else list(given)
        if len(given) != len(rows):
            raise ValueError(f"Received {len(rows)} prompts and {len(given)} outputs.")
        found = []
        for place, each in enumerate(given):
            ids = self._output_ids(each) if isinstance(each, str) else [int(id) for id in each]
            self.backbone.check_ids(**{f"output[{place}]": np.asarray(ids or [0])})
            found.append(ids)
        return found

    def _output_ids(self, text: str) -> list[int]:
        """The ids of a text that was written."""
        tokenizer = tokenizer_of(self)
        if self.continues_prompts:
            return tokenizer.encode(text, special_tokens=False)
        encode = getattr(self, "_encode_targets", tokenizer.encode_targets)
        return [*encode([text])[0], *self.end_ids[:1]]

    def explained_texts(
        self, rows: list, written: list, how: Asked, further: Mapping[str, Any] | None = None
    ) -> list[Explanation]:
        """Return the explanation of each row of ids and of what was written behind it."""
        self.check_explained_texts(rows, written, how, further)
        pairs = enumerate(zip(rows, written, strict=True))
        return [self.explained_text(*pair, how, further, i) for i, pair in pairs]

    def check_explained_texts(
        self, rows: list, written: list, how: Asked, further: Mapping[str, Any] | None = None
    ) -> None:
        """Check the attention of prompts, and of what is known to be written, before any pass.

        Raises ValueError for one of more than `how.max_attention` weights.
        """
        if how.max_attention is not None:
            pairs = enumerate(zip(rows, written, strict=True))
            inputs = (self._text_inputs(*pair, further, i)[0] for i, pair in pairs)
            self.check_explained(inputs, how)

    def _text_inputs(
        self, prompt: list[int], written: list[int], further: Mapping[str, Any] | None, place: int
    ) -> tuple[dict[str, Any], Any]:
        """Return the arrays of one text, and where what was written begins."""
        inputs, first = self._scoring_inputs([prompt], [written or [self.pad_id]])
        others = {name: np.asarray(rows[[place]]) for name, rows in (further or {}).items()}
        return {**inputs, **others}, first

    def explained_text(
        self,
        prompt: list[int],
        written: list[int],
        how: Asked,
        further: Mapping[str, Any] | None = None,
        place: int = 0,
    ) -> Explanation:
        """The explanation of the steps in which ids were written behind those of a prompt.

        Args:
            prompt: ids.
            written: ids; none for the prompt alone.
            how: `Asked`.
            further: inputs of the backbone beside them, with a row for each prompt.
            place: int, the row among them.
        """
        inputs, first = self._text_inputs(prompt, written, further, place)
        known: dict[str, Any] = {}
        if written:
            names = readable_tokens(written, self.tokenizer)
            known["next_tokens"] = (*[""] * int(first[0]), *names)
            known["written"] = dict(enumerate(written, int(first[0])))
            if self.tokenizer is not None:
                known["text"] = self._to_texts([prompt], [written])[0]
        return self.explained(inputs, how, **known)
