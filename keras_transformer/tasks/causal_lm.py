"""Causal language models: text generation."""

import keras
import numpy as np

from keras_transformer.checkpoints.heads import END_IDS
from keras_transformer.data import BucketedDataset
from keras_transformer.generation.scoring import pad_for
from keras_transformer.models.turns import reads
from keras_transformer.tasks.labels import token_weights, weighed
from keras_transformer.tasks.language_model import IdsOfText, LanguageModel
from keras_transformer.tasks.text import (
    check_said,
    encode_rows,
    take_max_length,
    text_columns,
    tokenizer_of,
    with_end,
    without_end,
)
from keras_transformer.training import NextToken


@keras.saving.register_keras_serializable(package="keras_transformer")
class CausalLM(LanguageModel):
    """A decoder-only model that predicts the next token, trains on texts and continues prompts.

    Compiled with Adam (1e-4), token cross-entropy, perplexity and accuracy; `compile` changes
    that, and takes the default `sampler`.

    Args:
        backbone, tokenizer, name: as for `Task`.
        end_ids: list of int, any of which ends a text. Defaults to the tokenizer's end.

    Call arguments:
        inputs: dict of `token_ids` and `padding_mask`, as for `Decoder`.

    Returns:
        Logits, float `(batch, length, vocabulary_size)`.

    Example:
    ```python
    import keras_transformer as kt

    lm = kt.CausalLM.from_preset("gpt_tiny_shakespeare")
    lm.fit(["to be or not to be", "the rest is silence"], epochs=1, verbose=0)
    assert isinstance(lm.generate("to be", max_new_tokens=4), str)
    ```

    Source: Radford et al. 2018, section 3.1.
    """

    backbone_kinds = ("decoder",)
    alias = "causal_lm"
    published_as = ("ForCausalLM",)
    published_options = (END_IDS,)
    continues_prompts = True
    takes_guidance = True

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Texts as inputs and, shifted by one, targets. See `Task.make_dataset`.

        Args:
            x: texts.
            y: None, since the targets are made of the texts.
            sample_weight: one number a text; or for each text one for each target, which are its
                tokens but for the first, and the end if the tokenizer has one.
            **options: as in `Task.make_dataset`.
        """
        self._refuse_targets(y)
        tokenizer = tokenizer_of(self)
        max_length = take_max_length(self, options)

        def encode(texts, place):
            rows = with_end(tokenizer.encode_batch(*texts), tokenizer.end_id)
            (empty,) = with_end(tokenizer.encode_batch([""]), tokenizer.end_id)
            rows = [row[: max_length + 1] for row in rows]
            for index, row in enumerate(rows):
                if len(row) < 2:
                    raise ValueError(
                        f"{place(index)} is too short: there is no next token to predict."
                    )
            check_said(*texts, rows, empty[: max_length + 1], place)
            return {"tokens": rows}

        rows = encode_rows(self, text_columns(x), encode, max_length=max_length).columns["tokens"]
        objective = NextToken()
        columns = objective.columns(rows)
        targets = columns["targets"].lengths
        columns |= token_weights(sample_weight, targets, max_length, "text")

        def make_batch(arrays, masks):
            inputs, targets, counted = objective(arrays, masks)
            return inputs, targets, weighed(counted, arrays)

        return self._bucketed(
            columns,
            make_batch,
            pad_values={"inputs": self.pad_id, "targets": self.pad_id},
            **options,
        )

    @reads
    def score(self, texts, per_token: bool = False):
        """The log-probability of texts.

        Args:
            texts: a string, a list of strings, or lists of ids. The first token has nothing before
                it and is not scored, unless the tokenizer begins a text with one of its own.
            per_token: bool, return the log-probability of each token but the first.

        Returns:
            The natural logarithm of each text's probability, float64 `(texts,)`; a float for a
            string. With `per_token` a list of float32 arrays; an array for a string.

        Raises:
            ValueError: for a text of fewer than two tokens, or one longer than the model.
        """
        rows, _, single = self._prompt_ids(texts, "texts")
        for place, row in enumerate(rows):
            if len(row) < 2:
                raise ValueError(f"`texts[{place}]` is too short: there is no token to score.")
            self.backbone.check_ids(**{f"texts[{place}]": np.asarray(row)})
        return self._scores([(row[:1], row[1:]) for row in rows], per_token, single)

    def chat(self, messages: list[dict], **options):
        """The model's answer to a conversation, by the chat template of its tokenizer.

        Special tokens that are written out in messages are text, see `Tokenizer.encode_chat`.

        Args:
            messages: list of `{"role": "user" or "assistant" or "system", "content": str}`.
            **options: as in `generate`, e.g. `max_new_tokens`, `sampler`, `stream`.

        Returns:
            The text of the answer, or what `generate` returns with these options.

        Raises:
            ValueError: for a model without a chat template, and for messages that are no
                conversation.
            ImportError: if jinja2 is not installed.
        """
        return self.generate(IdsOfText(tokenizer_of(self).encode_chat(messages)), **options)

    def _encode_prompts(self, texts):
        tokenizer = tokenizer_of(self)
        return without_end(tokenizer.encode_batch(texts), tokenizer.end_id)

    def _to_texts(self, prompts, continuations):
        decode = tokenizer_of(self).decode_batch
        wholes = decode([row + ids for row, ids in zip(prompts, continuations, strict=True)])
        # Decoded alone, a continuation may lose the space before its first word.
        parts = zip(wholes, decode(prompts), decode(continuations), strict=True)
        return [
            whole[len(prompt) :] if whole.startswith(prompt) else alone
            for whole, prompt, alone in parts
        ]

    def _engine_inputs(self, ids, mask):
        return {"token_ids": ids, "padding_mask": mask}

    def _scoring_inputs(self, prompts, continuations):
        rows = [prompt + new for prompt, new in zip(prompts, continuations, strict=True)]
        first = [len(prompt) - 1 for prompt in prompts]
        ids, mask = pad_for(self.backbone.config, [row[:-1] for row in rows], self.pad_id)
        return {"token_ids": ids, "padding_mask": mask}, np.asarray(first)
