"""A generative model as two pure functions of inputs and a cache, also with guidance."""

import functools
import weakref
from collections.abc import Mapping
from typing import Any

from keras import ops

from keras_transformer.generation.cache import Cache, cache_group_keys
from keras_transformer.kernels.selection import log_sum
from keras_transformer.support.checking import check_float

# Weights reordered in memory, kept as long as a compiled function uses them; or None.
Packed = weakref.WeakValueDictionary | None


class Program:
    """A decoder, or an encoder with its decoder, as pure functions of inputs and a cache.

    `prefill` and `step` return logits, float32 `(rows, count, vocabulary_size)`, the states of all
    tokens, and the updated cache. `compile_function` makes the weights of `models` arguments of the
    compiled function. Drafts are further backbones that read the same prompts; in the cache their
    layers come after the layers of the first model. With `argmax_only` (PyTorch) only the largest
    logit needs to be exact.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt
    import keras
    from keras_transformer.generation.program import Program

    program = Program(kt.CausalLM.from_preset("gpt_tiny_shakespeare").backbone)
    inputs = {"token_ids": np.array([[3, 4]]), "padding_mask": np.ones((1, 2), bool)}
    cache = program.new_cache(rows=1, slots=8)
    logits, _, cache = program.prefill(inputs, cache)
    token = keras.ops.argmax(logits, axis=-1)
    logits, _, cache = program.step(token, cache)
    assert logits.shape[:2] == (1, 1)
    ```
    """

    def __init__(self, backbone, *drafts, argmax_only: bool = False):
        self.backbone = backbone
        a_product = getattr(backbone, "logits_are_a_product", False)
        in_floats = a_product and backbone.token_embedding.quantization_mode is None
        self.argmax_only = argmax_only and in_floats and backbone.compute_dtype == "float32"
        self.models = (backbone, *drafts)
        self.groups = cache_group_keys(*self.models)
        self._own_layers = len(backbone.cache_layers)

    def new_cache(
        self, rows: int, slots: int | Mapping[int, int], dtype: str | None = None
    ) -> Cache:
        """Create an empty cache for all models, see `Cache.create`."""
        caches = [Cache.create(model, rows, slots, dtype) for model in self.models]
        return functools.reduce(Cache.join, caches)

    def prefill(self, inputs: dict, cache: Cache) -> tuple:
        """Read prompts, padded on the right; the logits are for the token after each prompt."""
        first, states, caches = 0, [], []
        for model in self.models:
            last = first + len(model.cache_layers)
            hidden, after = model(inputs, cache=cache.part(first, last))
            states.append(hidden)
            caches.append(after)
            first = last
        mask = self.backbone.prompt_tokens(inputs)[1]
        last = ops.sum(ops.cast(mask, "int32"), axis=1) - 1
        behind = ops.take_along_axis(states[0], last[:, None, None], axis=1)
        return self._logits(behind), states[0], functools.reduce(Cache.join, caches)

    def step(self, tokens, cache: Cache) -> tuple:
        """Read tokens, `(rows, branches)` or `(rows, length)`; drafts' layers in the cache stay."""
        own, others = cache.part(0, self._own_layers), cache.part(self._own_layers)
        hidden, own = self.backbone(self.backbone.step_inputs(tokens), cache=own)
        return self._logits(hidden), hidden, own.join(others)

    def _logits(self, states):
        if not self.argmax_only:
            return ops.cast(self.backbone.logits(states), "float32")
        from keras_transformer.kernels.torch_tracing.float16_prefilter import best_product

        states, kernel = self.backbone.output_projection(states)
        rows, bias = ops.shape(states)[:-1], self.backbone.output_bias
        bias = None if bias is None else ops.convert_to_tensor(bias.bias)
        states = ops.reshape(states, (-1, states.shape[-1]))
        logits = best_product(states, ops.convert_to_tensor(kernel), bias)
        return ops.reshape(logits, (*rows, kernel.shape[0]))

    def cache_rows(self, rows):
        """Return the cache rows that belong to the rows `rows`, int `(count,)`."""
        return rows

    def for_cache(self, values):
        """Repeat values `(rows, ...)`, once for each row of the cache that belongs to a row."""
        return values

    def log_sum(self, logits) -> tuple:
        """Return two terms whose subtraction from logits gives log-probabilities.

        See `logits.log_sum`.
        """
        return log_sum(logits)

    def drafts_of(self, cache: Cache) -> Cache:
        """Return the cache of the drafts, which may have no layers."""
        return cache.part(self._own_layers)

    def with_drafts(self, cache: Cache, drafts: Cache) -> Cache:
        """Return `cache` with its draft layers replaced by the layers of `drafts`."""
        return cache.part(0, self._own_layers).join(drafts)


# Prefix of the input names of negative prompts in a batch.
_NEGATIVE = "negative_"
# Keeps guided scores, summed over a text, above the score that beam search gives to absent
# hypotheses.
_LARGEST_SCALE = 1e3


def check_scale(name: str, value: Any) -> float:
    """Return a guidance scale as a float. Raises ValueError unless it is from -1000 to 1000."""
    return check_float(name, value, at_least=-_LARGEST_SCALE, at_most=_LARGEST_SCALE)


def negative_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the backbone's inputs of negative prompts under their names in a batch."""
    return {_NEGATIVE + name: array for name, array in inputs.items()}


def split_inputs(inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs of prompts and of negative prompts; the latter may be empty."""
    own = {name: array for name, array in inputs.items() if not name.startswith(_NEGATIVE)}
    negative = {n.removeprefix(_NEGATIVE): x for n, x in inputs.items() if n not in own}
    return own, negative


class GuidedProgram(Program):
    """A program whose logits are `scale * (p - n) + n`.

    `p` are the log-probabilities after a row's prompt and the new tokens, `n` the log-probabilities
    after its negative prompt and the same new tokens. Each row of the batch has two consecutive
    rows of the cache, which a step reads in one pass; only this class tells them apart.

    Args:
        backbone: see `Program`.
        scale: float. 1 gives the model's own log-probabilities, larger values lead away from the
            negative prompt.
        cache_dtype: see `Cache.create`.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt
    from keras_transformer.generation.program import GuidedProgram, negative_inputs

    program = GuidedProgram(kt.CausalLM.from_preset("gpt_tiny_shakespeare").backbone, scale=1.5)
    inputs = {"token_ids": np.array([[3, 4]])} | negative_inputs({"token_ids": np.array([[4]])})
    logits, _, cache = program.prefill(inputs, program.new_cache(rows=1, slots=8))
    assert logits.shape[:2] == (1, 1) and cache.rows == 2
    ```

    Source: Sanchez et al. 2023, "Stay on topic with Classifier-Free Guidance", section 2. For an
    encoder-decoder, whose negative prompt is another source: Sennrich et al. 2024, "Mitigating
    Hallucinations and Off-target Machine Translation with Source-Contrastive and
    Language-Contrastive Decoding", section 2.
    """

    def __init__(self, backbone, scale: float, cache_dtype: str | None = None):
        super().__init__(backbone)
        self.scale, self.cache_dtype = scale, cache_dtype

    def prefill(self, inputs: dict, cache: Cache) -> tuple:
        """Read prompts and their negative prompts, or a common prefix without a negative prompt."""
        inputs, negative = split_inputs(inputs)
        logits, hidden, cache = super().prefill(inputs, cache)
        if not negative:
            return logits, hidden, cache
        rows, length = self.backbone.prompt_tokens(negative)[0].shape
        capacities = {key: group.slots for key, group in cache.groups.items()}
        capacities = {
            key: slots if key else max(slots, length) for key, slots in capacities.items()
        }
        # Read separately, since a negative prompt is usually far shorter than the prompt.
        others = self.new_cache(rows, capacities, self.cache_dtype)
        without, _, others = super().prefill(negative, others)
        each = ops.arange(rows, dtype="int32")
        cache = cache.take_rows(self.for_cache(each)).place(others, 2 * each + 1)
        return self._guided(logits, without), hidden, cache

    def step(self, tokens, cache: Cache) -> tuple:
        logits, hidden, cache = super().step(self.for_cache(tokens), cache)
        return self._guided(logits[::2], logits[1::2]), hidden[::2], cache

    def cache_rows(self, rows):
        return ops.reshape(ops.stack([2 * rows, 2 * rows + 1], axis=1), (-1,))

    def for_cache(self, values):
        return ops.repeat(values, 2, axis=0)

    def log_sum(self, logits) -> tuple:
        # As in Transformers, guided scores are summed without normalization.
        nothing = ops.zeros(logits.shape[:-1], "float32")
        return nothing, nothing

    def _guided(self, logits, without):
        logits, without = (ops.log_softmax(each, axis=-1) for each in (logits, without))
        return self.scale * (logits - without) + without
