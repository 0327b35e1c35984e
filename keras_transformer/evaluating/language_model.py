"""A causal language model with the interface of the models of lm-eval."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm.auto import tqdm

from keras_transformer.generation import Greedy, Random
from keras_transformer.support.checking import check_flag, check_int, check_seed, shorten
from keras_transformer.support.progress import shows_bars
from keras_transformer.tasks import CausalLM

# Requests between two updates of the progress bar. Within them batches are made by tokens.
_REQUESTS = 64
# The tokens of the harness's own models, if a task does not say how many to generate.
_NEW_TOKENS = 256
_SAMPLING = ("temperature", "top_k", "top_p")

Tokens = tuple[list[int], list[int]]  # ids of a context and of its continuation


class HarnessModel(TemplateLM):
    """A `CausalLM` with the interface by which lm-eval asks models.

    Texts become tokens as they do in the `hf` model of the harness, so that scores are comparable.
    Requests are computed longest first, in batches of about the same number of tokens. If several
    continuations of one context have a single token each, such as the letters of multiple choice,
    the context is computed once.

    Args:
        task: a `CausalLM` with a tokenizer.
        max_length: int, the most tokens that the model reads. Contexts lose their beginning if they
            are longer. Defaults to the model's `max_sequence_length`.
        batch_size: int, the number of texts that are generated together.
        seed: int, for requests that sample.
        verbose: bool, show progress bars.

    Raises:
        ValueError: if the task is not a `CausalLM` or has no tokenizer, or `max_length` is more
            than the model allows.

    Example:
    ```python
    import keras_transformer as kt
    from keras_transformer.evaluating import HarnessModel
    from lm_eval.api.instance import Instance

    lm = HarnessModel(kt.CausalLM.from_preset("gpt_tiny_shakespeare"), verbose=False)
    pair = ("My mistress' eyes are", " nothing like the sun")
    ((log_probability, is_greedy),) = lm.loglikelihood([Instance("loglikelihood", {}, pair, 0)])
    assert log_probability < 0 and not is_greedy
    ```

    Source: Gao et al. 2024, "The Language Model Evaluation Harness".
    """

    def __init__(
        self,
        task: CausalLM,
        *,
        max_length: int | None = None,
        batch_size: int = 32,
        seed: int = 0,
        verbose: bool = True,
    ):
        super().__init__()
        if not isinstance(task, CausalLM):
            raise ValueError(
                f"lm-eval asks a CausalLM; {type(task).__name__} does not continue texts."
            )
        if task.tokenizer is None:
            raise ValueError("The task has no tokenizer, which is needed to read the requests.")
        longest = task.backbone.config.max_sequence_length
        self.max_length = check_int(
            "max_length", max_length, at_least=2, at_most=longest, none=True,
            hint="The model's `max_sequence_length` is the longest.",
        ) or longest  # fmt: skip
        self.batch_size = check_int("batch_size", batch_size, at_least=1)
        self.seed = check_seed("seed", seed, bits=64)
        self.verbose = check_flag("verbose", verbose)
        self.task, self.tokenizer = task, task.tokenizer

    @property
    def eot_token_id(self) -> int:
        """Id of the token that ends a text."""
        ends = self.task.end_ids
        if not ends:
            raise ValueError("The model has no end token, which this request needs.")
        return ends[0]

    @property
    def prefix_token_id(self) -> int:
        """Id of the token before a text that has no context: the start token, or the end token."""
        start = self.tokenizer.start_id
        return self.eot_token_id if start is None else start

    @property
    def tokenizer_name(self) -> str:
        """Name by which the harness tells tokenizers apart."""
        return self.task.name

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Return the ids of a text, with the start token if the model's texts begin with one.

        A text that is written with a start token, such as a rendered chat, gets no second one.
        """
        if add_special_tokens is None:
            prefix = self.tokenizer.id_to_token(self.prefix_token_id)
            add_special_tokens = not string.startswith(prefix)
        if not add_special_tokens:
            return self.tokenizer.encode(string, special_tokens=False)
        (ids,) = self.task.generator.format.encode([string])
        return ids

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return a chat as text, by the chat template of the tokenizer.

        Without `add_generation_prompt` the last message stays open, to be continued.
        """
        if add_generation_prompt:
            return self.tokenizer.render_chat(chat_history)
        # What the template writes behind the last message is cut off.
        text = self.tokenizer.render_chat(chat_history, add_generation_prompt=False)
        last = chat_history[-1]["content"].strip()
        return text[: text.rindex(last) + len(last)] if last else text

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Score continuations of contexts.

        Args:
            requests: instances with the arguments `(context, continuation)`, two strings.
            disable_tqdm: bool, show no progress bars.

        Returns:
            For each request the log-probability of the continuation, and whether greedy decoding
            generates it.
        """
        return super().loglikelihood(requests, disable_tqdm=self._hidden(disable_tqdm))

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str] | None, list[int], list[int]]],
        disable_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[tuple[float, bool]]:
        found = self._scores(
            [self._fitting(context, new) for _, context, new in requests],
            self._hidden(disable_tqdm),
        )
        for (texts, _, _), scores in zip(requests, found, strict=True):
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, scores)
        return found

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Score whole texts, in windows of `max_length` tokens if they are longer.

        Args:
            requests: instances with the arguments `(text,)`.
            disable_tqdm: bool, show no progress bar.

        Returns:
            For each request the log-probability of all its tokens, each scored once.
        """
        windows, counts = [], []
        for (text,) in (request.args for request in requests):
            rolling = get_rolling_token_windows(
                self.tok_encode(text), self.prefix_token_id, self.max_length, context_len=1
            )
            pairs = [make_disjoint_window(pair) for pair in rolling]
            windows += pairs
            counts.append(len(pairs))
        scores = iter(self._scores(windows, self._hidden(disable_tqdm)))
        sums = [sum(next(scores)[0] for _ in range(count)) for count in counts]
        for request, total in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return sums

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Continue contexts until a stop string, an end token or the limit of tokens.

        Args:
            requests: instances with the arguments `(context, options)`. The options are `until`,
                strings before which the text ends; `max_gen_toks`, 256 by default; `do_sample`,
                `temperature`, `top_k`, `top_p`.
            disable_tqdm: bool, show no progress bar.

        Returns:
            The continuation of each request.

        Raises:
            ValueError: if an option is unknown, or if `max_gen_toks` leaves no room for a context.
        """
        groups: dict[str, list[int]] = {}
        for place, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(place)
        # All options are read before the first text is generated.
        read = {key: self._generation(json.loads(key)) for key in groups}
        texts = [""] * len(requests)
        bar = tqdm(
            total=len(requests), desc="Generating", disable=self._hidden(disable_tqdm)
        )  # fmt: skip
        for key, places in groups.items():
            until, options = read[key]
            room = self.max_length - options["max_new_tokens"]
            rows = {i: self.tok_encode(requests[i].args[0])[-room:] for i in places}
            order = sorted(places, key=lambda i: -len(rows[i]))
            for first in range(0, len(order), _REQUESTS):
                chosen = order[first : first + _REQUESTS]
                prompts = [rows[i] or [self.prefix_token_id] for i in chosen]
                found = self.task.generate(prompts, batch_size=self.batch_size, **options)
                for i, ids in zip(chosen, found, strict=True):
                    text = self.tokenizer.decode(ids)
                    texts[i] = postprocess_generated_text(text, until, think_end_token=None)
                    self.cache_hook.add_partial("generate_until", requests[i].args, texts[i])
                bar.update(len(chosen))
        bar.close()
        return texts

    def get_model_info(self) -> dict[str, Any]:
        """Return facts that the harness keeps with its results."""
        return {
            "model_num_parameters": self.task.count_params(),
            "model_dtype": self.task.dtype_policy.name,
        }

    def _hidden(self, disable_tqdm: bool) -> bool:
        return disable_tqdm or not self.verbose or not shows_bars()

    def _fitting(self, context: list[int], new: list[int]) -> Tokens:
        """Cut off the beginning of a context so that the model can read all but the last token."""
        if len(new) > self.max_length:
            raise ValueError(
                f"A continuation has {len(new)} tokens, and the model reads {self.max_length}: "
                "the task needs a model with more positions."
            )
        return (context + new)[-self.max_length - 1 :][: -len(new)], new

    def _scores(self, pairs: Sequence[Tokens], hidden: bool) -> list[tuple[float, bool]]:
        """Return the log-probability of each continuation, and whether it is the greedy one."""
        found: list[tuple[float, bool]] = [(0.0, True)] * len(pairs)
        groups: dict[tuple[int, ...], list[int]] = {}  # pairs with one new token, by context
        for place, (context, new) in enumerate(pairs):
            if len(new) == 1:
                groups.setdefault(tuple(context), []).append(place)
        groups = {context: places for context, places in groups.items() if len(places) > 1}
        shared = {place for places in groups.values() for place in places}
        alone = [place for place in range(len(pairs)) if place not in shared]
        bar = tqdm(total=len(pairs), desc="Scoring", disable=hidden)
        for chosen in _chunks(alone, [len(pairs[i][0]) + len(pairs[i][1]) for i in alone]):
            scores = self.task.token_scores([pairs[i] for i in chosen], top_k=1)
            for i, score in zip(chosen, scores, strict=True):
                total = float(score.log_probabilities.sum(dtype="float64"))
                found[i] = total, bool((score.best_ids[:, 0] == pairs[i][1]).all())
            bar.update(len(chosen))
        contexts = list(groups)
        for chosen in _chunks(range(len(contexts)), [len(context) for context in contexts]):
            rows = self.task.next_scores([list(contexts[i]) for i in chosen])
            for row, places in zip(rows, (groups[contexts[i]] for i in chosen), strict=True):
                for i in places:
                    (token,) = pairs[i][1]
                    found[i] = float(row[token]), token == int(np.argmax(row))
                bar.update(len(places))
        bar.close()
        return found

    def _generation(self, given: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
        """Return the stop strings of a request, and the options for `generate`."""
        options = dict(normalize_gen_kwargs(given, _NEW_TOKENS))
        end = self.tokenizer.id_to_token(self.task.end_ids[0]) if self.task.end_ids else None
        until = [text for text in handle_stop_sequences(options.pop("until", None), end) if text]
        most = options.pop("max_gen_toks")
        if not 0 < most < self.max_length:
            raise ValueError(
                f"A task generates up to {most} tokens, and the model reads {self.max_length}, "
                "context included: give a smaller `max_gen_toks` in `gen_kwargs`."
            )
        sample = options.pop("do_sample", False)
        sampling = {name: options.pop(name) for name in _SAMPLING if name in options}
        if options:
            raise ValueError(
                f"A task generates with the options {shorten(options)}, which are not known here: "
                f"known are until, max_gen_toks, do_sample, {', '.join(_SAMPLING)}."
            )
        sampling = {name: value for name, value in sampling.items() if value is not None}
        sampler = Random(**sampling) if sample and sampling.get("temperature", 1) else Greedy()
        return until, {
            "max_new_tokens": most, "sampler": sampler, "stop": until or None, "seed": self.seed
        }  # fmt: skip


def _chunks(items: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """Split items into lists of `_REQUESTS`, those with the largest lengths first."""
    order = sorted(range(len(items)), key=lambda place: -lengths[place])
    ordered = [items[place] for place in order]
    return [ordered[first : first + _REQUESTS] for first in range(0, len(ordered), _REQUESTS)]
