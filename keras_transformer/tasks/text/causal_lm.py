"""Causal language models: text generation."""

import keras
import numpy as np

from keras_transformer.checkpoints.heads import END_IDS
from keras_transformer.data import BucketedDataset
from keras_transformer.generation.scoring import pad_for
from keras_transformer.models.runtime.read_write_lock import reads
from keras_transformer.tasks.data.labels import token_weights, weighed
from keras_transformer.tasks.data.text import (
    check_said,
    encode_rows,
    take_max_length,
    text_columns,
    tokenizer_of,
    with_end,
    without_end,
)
from keras_transformer.tasks.heads.vocabulary_head import VocabularyHead
from keras_transformer.tasks.text.generator import IdsOfText, PromptFormat
from keras_transformer.tasks.text.language_model import LanguageModel
from keras_transformer.training import NextToken


class NextTokenHead(VocabularyHead):
    """The head of `CausalLM`: logits of the next token."""

    published_as = ("ForCausalLM",)
    published_options = (END_IDS,)


class ContinuationFormat(PromptFormat):
    """The format of prompts that the generated text continues."""

    continues_prompts = True
    takes_guidance = True

    def encode(self, texts):
        tokenizer = tokenizer_of(self.task)
        return without_end(tokenizer.encode_batch(texts), tokenizer.end_id)

    def decode(self, prompts, continuations):
        decode = tokenizer_of(self.task).decode_batch
        wholes = decode([row + ids for row, ids in zip(prompts, continuations, strict=True)])
        # A continuation decoded alone may lose the space before its first word.
        parts = zip(wholes, decode(prompts), decode(continuations), strict=True)
        return [
            whole[len(prompt) :] if whole.startswith(prompt) else alone
            for whole, prompt, alone in parts
        ]

    def engine_inputs(self, ids, mask):
        return {"token_ids": ids, "padding_mask": mask}

    def scoring_inputs(self, prompts, continuations):
        rows = [prompt + new for prompt, new in zip(prompts, continuations, strict=True)]
        first = [len(prompt) - 1 for prompt in prompts]
        ids, mask = pad_for(self.task.backbone.config, [row[:-1] for row in rows], self.task.pad_id)
        return {"token_ids": ids, "padding_mask": mask}, np.asarray(first)


@keras.saving.register_keras_serializable(package="keras_transformer")
class CausalLM(LanguageModel):
    """A decoder-only model that predicts the next token, trains on texts and continues prompts.

    Compiled with Adam (1e-4), token cross-entropy, perplexity and accuracy; `compile` changes
    this, and takes the default `sampler`.

    Args:
        backbone, tokenizer, name: as for `Task`.
        end_ids: list of int, ids that each end a text. Defaults to the tokenizer's end id.

    Call arguments:
        inputs: dict with `token_ids` and `padding_mask`, as for `Decoder`.

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

    alias = "causal_lm"
    backbone_kinds = ("decoder",)
    head_class = NextTokenHead
    format_class = ContinuationFormat

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Batch texts as inputs and targets shifted by one. See `Task.make_dataset`.

        Args:
            x: texts.
            y: must be None: the targets are made from the texts.
            sample_weight: one number for each text; or for each text an array with one number for
                each target. The targets are the tokens except the first, then the end token if the
                tokenizer has one.
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
        """Return the log-probability of texts.

        Args:
            texts: a string, a list of strings, or lists of ids. The first token is not scored, as
                nothing precedes it, unless the tokenizer adds a start token.
            per_token: bool, return the log-probability of each token except the first.

        Returns:
            The natural logarithm of each text's probability, float64 `(texts,)`; a float for a
            string. With `per_token` a list of float32 arrays; an array for a string.

        Raises:
            ValueError: if a text has fewer than two tokens, or is longer than the model allows.
        """
        rows, _, single = self.generator.prompt_ids(texts, "texts")
        for place, row in enumerate(rows):
            if len(row) < 2:
                raise ValueError(f"`texts[{place}]` is too short: there is no token to score.")
            self.backbone.check_ids(**{f"texts[{place}]": np.asarray(row)})
        return self.generator.scores([(row[:1], row[1:]) for row in rows], per_token, single)

    def chat(self, messages: list[dict], **options):
        """Answer a conversation with the chat template of the tokenizer.

        Special tokens written out in messages are read as plain text, see `Tokenizer.encode_chat`.

        Args:
            messages: list of `{"role": "user" or "assistant" or "system", "content": str}`.
            **options: as for `generate`, e.g. `max_new_tokens`, `sampler`, `stream`.

        Returns:
            The text of the answer, or whatever `generate` returns with these options.

        Raises:
            ValueError: if the model has no chat template, or `messages` is not a valid
                conversation.
            ImportError: if jinja2 is not installed.
        """
        return self.generate(IdsOfText(tokenizer_of(self).encode_chat(messages)), **options)
