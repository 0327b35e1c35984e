"""Causal language models: text generation."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_transformer.checkpoints.heads import END_IDS
from keras_transformer.data import BucketedDataset
from keras_transformer.generation.constraints.constraints import TokenAutomaton
from keras_transformer.generation.rules.rules import Rules
from keras_transformer.generation.samplers.samplers import Sampler
from keras_transformer.generation.scoring import pad_for, sliding_windows
from keras_transformer.models.runtime.read_write_lock import changes, reads
from keras_transformer.support.checking import check_int
from keras_transformer.tasks.data.conversation_rows import (
    ConversationProcessor,
    encode_rows_of_conversations,
    holds_conversations,
    refuse_train_on,
)
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
from keras_transformer.tasks.text.preferring import fit_preferences, preference_dataset
from keras_transformer.tasks.text.rewarded import RewardedRun
from keras_transformer.tasks.text.shown_example import ShownExample
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.training import NextToken, PolicyLoss
from keras_transformer.training.losses.preference_losses import PreferenceLoss


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

    `fit` takes texts, all of whose tokens it learns; or conversations, or prompts with their
    answers (`fit(prompts, answers)`), of which it learns what the assistant writes: see
    `make_dataset`.

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
    processor_class = ConversationProcessor
    format_class = ContinuationFormat

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Batch texts or conversations as inputs and targets shifted by one.

        Args:
            x: texts; conversations, in any form of `data.as_conversations`; or prompts.
            y: None, or the answers to the prompts, strings or lists of messages.
            sample_weight: one number for each text or conversation; or for each text an array with
                one number for each target. The targets are the tokens except the first, then the
                end token if the tokenizer has one.
            **options: as in `Task.make_dataset`; and `train_on`, the targets of a conversation that
                the loss counts: `"assistant"` (the default), all messages of the assistant;
                `"completion"`, its last one; or `"all"`.

        Raises:
            ValueError: if the data is invalid, a conversation is given to a tokenizer without a
                chat template, or the template does not tell exactly which text an answer gives.

        Example:
        ```python
        import keras_transformer as kt

        lm = kt.CausalLM.from_preset("gpt_tiny_shakespeare")
        lm = kt.CausalLM(lm.backbone, lm.tokenizer.with_chat_template("zephyr"))
        chat = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
        inputs, targets, weights = lm.make_dataset([chat])[0]
        answer = lm.tokenizer.decode_whole(targets[weights > 0])
        assert answer.splitlines() == ["4</s>"]
        ```
        """
        train_on = options.pop("train_on", None)
        tokenizer = tokenizer_of(self)
        max_length = take_max_length(self, options)
        objective = NextToken()
        if holds_conversations(x, y):
            given = (x, y, sample_weight, train_on, max_length)
            found, _ = encode_rows_of_conversations(self, *given)
            columns = objective.columns(found["tokens"])
            columns["counted"] = found["counted"].without_first()
            columns |= {name: found[name] for name in ("weights",) if name in found}
        else:
            refuse_train_on(train_on)
            columns = self._text_columns(x, sample_weight, tokenizer, max_length)

        def make_batch(arrays, masks):
            inputs, targets, counted = objective(arrays, masks)
            counted = counted * arrays.get("counted", 1)
            return inputs, targets, weighed(counted.astype("float32"), arrays)

        return self._bucketed(
            columns,
            make_batch,
            pad_values={"inputs": self.pad_id, "targets": self.pad_id},
            rowwise=True,
            **options,
        )

    def _text_columns(self, x, sample_weight, tokenizer: Tokenizer, max_length: int) -> dict:
        """Return the columns of texts, whose tokens all count."""

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
        columns = NextToken().columns(rows)
        targets = columns["targets"].lengths
        return columns | token_weights(sample_weight, targets, max_length, "text")

    @changes
    def fit_preferences(
        self,
        prompts,
        chosen=None,
        rejected=None,
        *,
        loss: PreferenceLoss | None = None,
        reference="auto",
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int | str = "auto",
        callbacks=None,
        validation_data=None,
        shuffle: bool = True,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_freq=1,
        max_length: int | None = None,
        seed: int | None = None,
    ) -> keras.callbacks.History:
        """Train on preferences between completions, with the compiled optimizer.

        A prompt and its completion are joined and encoded as one text, which ends with the
        tokenizer's end token; only tokens of completions count. Dropout is off. For full
        fine-tuning, compile a learning rate of about 1e-6, for adapters of about 1e-5.

        Args:
            prompts: list of strings, or of conversations (lists of messages), which the
                tokenizer's chat template renders; None if each chosen and rejected text begins
                with its prompt. Or, alone, a table with the columns `prompt`, `chosen` and
                `rejected` (a `datasets.Dataset`, data frame, dict of lists or list of dicts;
                without `prompt`, both texts begin with it); or the result of
                `make_preference_dataset`.
            chosen: list of the better completions, strings or lists of messages. For `KTO`, the
                completions.
            rejected: list of the worse completions. For `KTO` their labels, bool, True for
                desirable ones; or pairs, as for other losses. Columns of a table are then
                `prompt`, `completion` and `label`.
            loss: `training.DPO`, `IPO`, `SLiC`, `CPO`, `SimPO`, `ORPO` or `KTO`. Defaults to
                `DPO()`.
            reference: the frozen model that `DPO`, `IPO`, `SLiC` and `KTO` compare with.
                `"adapters"`: this model without its LoRA adapters; `"copy"`: a copy as it is now,
                with its weights in memory a second time; `"cached"`: its log-probabilities,
                computed ahead and kept on disk (not with `KTO`); or another `CausalLM`. Defaults to
                adapters if there are any, and otherwise to a copy.
            batch_size: int, the number of prompts in a batch. Defaults to 32.
            epochs: as for `fit`.
            verbose: as for `fit`.
            callbacks: as for `fit`.
            validation_data: as `prompts`, or a tuple `(prompts, chosen, rejected)`.
            shuffle: as for `fit`.
            initial_epoch: as for `fit`.
            steps_per_epoch: as for `fit`.
            validation_steps: as for `fit`.
            validation_freq: as for `fit`.
            max_length: int, the most tokens of prompt and completion. Longer completions are cut at
                their end; rows whose prompt is as long are left out, with a warning. Defaults to
                the model's maximum.
            seed: int, the seed of shuffling, as for `fit`.

        Returns:
            A `keras.callbacks.History` with `loss`; `accuracy`, the share of pairs whose chosen
            completion has the larger reward; `chosen_reward` and `rejected_reward`, their means;
            and `margin`, the difference. With `KTO` in place of the accuracy `divergence`, the
            estimate in nats.

        Raises:
            ValueError: if the model is quantized, the loss or reference does not fit, or, with the
                number of the row, if rows are invalid: see `data.preferences.read_preferences`.

        Example:
        ```python
        import keras_transformer as kt

        lm = kt.CausalLM.from_preset("gpt_tiny_shakespeare")
        lm.enable_lora(rank=4)
        history = lm.fit_preferences(
            ["ROMEO:", "JULIET:"], [" my love", " my lord"], [" what", " who"], verbose=0
        )
        assert set(history.history) == {
            "loss", "accuracy", "chosen_reward", "rejected_reward", "margin"
        }
        ```

        Source: Rafailov et al. 2023, "Direct Preference Optimization"; the other papers at the
        losses.
        """
        return fit_preferences(
            self, prompts, chosen, rejected, loss, reference, validation_data,
            batch_size=batch_size, max_length=max_length, shuffle=shuffle, seed=seed,
            epochs=epochs, verbose=verbose, callbacks=callbacks, initial_epoch=initial_epoch,
            steps_per_epoch=steps_per_epoch, validation_steps=validation_steps,
            validation_freq=validation_freq,
        )  # fmt: skip

    def make_preference_dataset(
        self, prompts, chosen=None, rejected=None, *, loss: PreferenceLoss | None = None, **options
    ) -> BucketedDataset:
        """Convert preferences to batches for `fit_preferences`, such as for a `ResumableRun`.

        Args:
            prompts: as for `fit_preferences`.
            chosen: as for `fit_preferences`.
            rejected: as for `fit_preferences`.
            loss: the loss that they are for. Defaults to `DPO()`.
            **options: `max_length`, as for `fit_preferences`, and options of
                `data.BucketedDataset`, e.g. `batch_size`, `shuffle`, `seed`.

        Returns:
            A `data.BucketedDataset`.

        Raises:
            ValueError: as `fit_preferences`.

        Example:
        ```python
        import keras_transformer as kt

        lm = kt.CausalLM.from_preset("gpt_tiny_shakespeare")
        lm.enable_lora(rank=4)
        data = lm.make_preference_dataset(["A:"] * 4, ["yes"] * 4, ["no"] * 4, shuffle=True)
        run = kt.training.ResumableRun("run", data, every=1)
        lm.fit_preferences(data, callbacks=[run], verbose=0)
        ```
        """
        return preference_dataset(self, prompts, chosen, rejected, loss, **options)

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

    @reads
    def perplexity(self, texts, stride: int | None = None, max_length: int | None = None) -> float:
        """Return the perplexity of texts, the exponential of the mean loss of their tokens.

        A text that is longer than the model is read in windows that overlap: each token is scored
        once, and all but those of the first window have at least `max_length - stride` tokens
        before them. The first token of a text is not scored.

        Args:
            texts: a string, a list of strings, or lists of ids; or a `Path`, a file with one text
                in UTF-8.
            stride: int up to `max_length`, tokens from one window to the next. A small stride gives
                more context and takes longer. With `max_length` windows do not overlap, and the
                first token of each is not scored. Defaults to half of `max_length`.
            max_length: int, the most tokens of a window. Defaults to the model's
                `max_sequence_length`.

        Returns:
            The perplexity over all texts together, a float. It depends on the tokenizer: only
            models with the same tokenizer are comparable.

        Raises:
            ValueError: if no token can be scored, or a length is not possible.
            FileNotFoundError: if there is no such file.

        Example:
        ```python
        import keras_transformer as kt

        lm = kt.CausalLM.from_preset("gpt_tiny_shakespeare")
        text = "Come hither, good my lord, and speak with me a while. " * 8
        assert lm.perplexity(text, stride=32, max_length=64) < lm.perplexity(text[::-1], 32, 64)
        ```

        Source: Jelinek et al. 1977, "Perplexity: a measure of the difficulty of speech recognition
        tasks".
        """
        longest = self.backbone.config.max_sequence_length
        max_length = check_int(
            "max_length", max_length, at_least=2, at_most=longest, none=True,
            hint="The model's `max_sequence_length` is the longest.",
        ) or longest  # fmt: skip
        stride = check_int("stride", stride, at_least=1, at_most=max_length, none=True)
        if isinstance(texts, os.PathLike):
            texts = Path(texts).read_text(encoding="utf-8")
        rows, _, _ = self.generator.prompt_ids(texts, "texts")
        for place, row in enumerate(rows):
            if not row:
                raise ValueError(f"`texts[{place}]` is empty: there is no token to score.")
            # Only whether there are such ids: a text may be longer than the model.
            self.backbone.check_ids(**{f"texts[{place}]": np.asarray([min(row), max(row)])})
        windows = [
            window
            for row in rows
            for window in sliding_windows(row, max_length, stride or max(1, max_length // 2))
        ]
        scores = self.generator.log_probabilities(windows)
        count = sum(map(len, scores))
        if not count:
            raise ValueError("`texts` have no token to score: each has fewer than two tokens.")
        return math.exp(-sum(row.sum(dtype="float64") for row in scores) / count)

    @changes
    def fit_rewards(
        self,
        prompts,
        rewards,
        loss: PolicyLoss | None = None,
        *,
        group_size: int = 8,
        batch_size: int = 8,
        steps: int | None = None,
        passes: int = 1,
        update_rows: int | None = None,
        reward_weights: Sequence[float] | None = None,
        reward_seconds: float | None = None,
        reference: Any = "auto",
        sampler: "str | Sampler" = "random",
        max_new_tokens: int | None = None,
        stop=None,
        rules: Rules | None = None,
        constraint: "TokenAutomaton | dict | None" = None,
        cache_dtype: str | None = None,
        seed: int | None = None,
        verbose: int | str = "auto",
        callbacks=None,
    ) -> keras.callbacks.History:
        """Train on completions that the model samples itself and functions reward.

        A step samples `group_size` completions for each of `batch_size` prompts, calls the rewards,
        and updates the weights with the compiled optimizer. For callbacks a step is an epoch, and
        an update is a batch. A run with the callback `training.ResumableRun(directory)` that is
        killed, or ended by an error of a reward, goes on from its last whole step when the program
        is started again, with the same samples and weights as if it had not been interrupted.

        Args:
            prompts: a list of texts, of lists of token ids, or of lists of messages, which the chat
                template formats; or a table with a column `"prompt"`: a list of dicts, a dict of
                columns, a data frame or a `datasets.Dataset`.
            rewards: a function of `(prompt, completion, row)`, or a list of them. It gets the
                prompt as it was given, the completion as text (as ids if there is no tokenizer) and
                a dict of the table's further columns, and returns a number or a bool.
            loss: a `training.PolicyLoss`: `training.GRPO`, `DrGRPO`, `RLOO` or `PPOClip`. Defaults
                to `GRPO()`.
            group_size: int, at least 2, the number of completions for each prompt.
            batch_size: int, the number of prompts in a step.
            steps: int, the number of steps. Defaults to one pass over the prompts.
            passes: int, how often a step trains on its completions.
            update_rows: int, the most completions in an update. Defaults to all of a step.
            reward_weights: a float for each function. Defaults to 1 each.
            reward_seconds: float, the most seconds that a call of a function may take. Defaults to
                no limit.
            reference: the model that `beta` of the loss keeps near to: `"auto"`, the model without
                its LoRA adapters, or a copy of the model as it is now; or another `CausalLM`.
            sampler: a `generation.Random`, or `"random"`, `"top_k"` or `"top_p"`.
            max_new_tokens: int, as for `generate`.
            stop: as for `generate`; a stop string is trained on as part of the completion.
            rules: as for `generate`.
            constraint: as for `generate`.
            cache_dtype: as for `generate`.
            seed: int. Samples and shuffling depend on it and on the step. Defaults to a seed drawn
                from NumPy, which `keras.utils.set_random_seed` seeds.
            verbose: as for `fit`.
            callbacks: as for `fit`.

        Returns:
            A `keras.callbacks.History` with the logs of each step; docs/reinforcement.md explains
            them.

        Raises:
            ValueError: if an argument is invalid or does not fit the model; or, naming prompt and
                completion, if a reward is not one finite number.
            RuntimeError: if a function raises, with its error as the cause.
            TimeoutError: if a call takes longer than `reward_seconds`.

        Example:
        ```python
        import keras_transformer as kt
        import keras

        def short_words(prompt, completion, row):
            return -max(map(len, completion.split(" ")))

        lm = kt.CausalLM.from_preset("gpt_tiny_shakespeare")
        lm.compile(optimizer=keras.optimizers.Adam(1e-5))
        history = lm.fit_rewards(
            ["ROMEO:", "JULIET:"], short_words, loss=kt.training.GRPO(), group_size=4,
            max_new_tokens=8, steps=1, seed=0, verbose=0,
        )
        assert history.history["reward"][0] < 0
        ```

        Source: Shao et al. 2024, "DeepSeekMath", section 4.1.
        """
        run = RewardedRun(
            self, prompts, rewards, loss=loss, group_size=group_size, batch_size=batch_size,
            steps=steps, passes=passes, update_rows=update_rows, reward_weights=reward_weights,
            reward_seconds=reward_seconds, reference=reference, sampler=sampler, seed=seed,
            max_new_tokens=max_new_tokens, stop=stop, rules=rules, constraint=constraint,
            cache_dtype=cache_dtype,
        )  # fmt: skip
        return run.fit(verbose, callbacks)

    def show_example(self, row, train_on: str | None = None, max_length: int | None = None) -> None:
        """Print a row of training data with the tokens that the loss counts.

        The row is what `fit` makes of it. In a terminal the counted tokens are green, in a notebook
        they have a background; elsewhere they are between `«` and `»`.

        Args:
            row: a text; a conversation, in any form of `data.as_conversations`; or a tuple of a
                prompt and its answer.
            train_on: as for `fit`.
            max_length: as for `fit`.

        Raises:
            ValueError: as `fit`, if the row is invalid.

        Example:
        ```python
        import keras_transformer as kt

        lm = kt.CausalLM.from_preset("gpt_tiny_shakespeare")
        lm.show_example(("To be, or", " not to be"))
        # 9 tokens, of which the loss counts 4, between « and »:
        # To be, or« not to be</s>»
        ```
        """
        x, y = ([row[0]], [row[1]]) if isinstance(row, tuple) and len(row) == 2 else ([row], None)
        options = {} if max_length is None else {"max_length": max_length}
        dataset = self.make_dataset(x, y, train_on=train_on, **options)
        inputs, targets, weights = (keras.tree.map_structure(np.asarray, p) for p in dataset[0])
        length = int(inputs["padding_mask"][0].sum())
        ids = [int(inputs["token_ids"][0, 0]), *targets[0, :length].tolist()]
        counted = [False, *(weights[0, :length] > 0).tolist()]
        ShownExample.of_tokens(tokenizer_of(self), ids, counted).show()

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
