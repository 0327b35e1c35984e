"""A model that generates as two plain functions, and loops of plain functions compiled."""

import functools
import weakref
from collections.abc import Mapping

from keras import ops

from keras_transformer.generation.cache import Cache, spaces_of
from keras_transformer.kernels.selection import log_sum

# Weights in another order in memory, for as long as something that is compiled has them; or none.
Packed = weakref.WeakValueDictionary | None


class Program:
    """A decoder, or an encoder with its decoder, as plain functions of inputs and a cache.

    Both give logits, float32 `(rows, count, vocabulary_size)`, states of all tokens and the cache
    after them. `compile_function` makes the weights of `models` arguments of what it compiles.
    Drafts are further backbones that read the same prompts: their layers of the cache are behind
    the first's. With `best_only`, which is for PyTorch, the largest logit alone need be exact.

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

    def __init__(self, backbone, *drafts, best_only: bool = False):
        self.backbone = backbone
        a_product = getattr(backbone, "logits_are_a_product", False)
        self.best_only = best_only and a_product and backbone.compute_dtype == "float32"
        self.models = (backbone, *drafts)
        self.spaces = spaces_of(*self.models)
        self._own_layers = len(backbone.cache_layers)

    def new_cache(
        self, rows: int, slots: int | Mapping[int, int], dtype: str | None = None
    ) -> Cache:
        """An empty cache for all models, see `Cache.create`."""
        caches = [Cache.create(model, rows, slots, dtype) for model in self.models]
        return functools.reduce(Cache.join, caches)

    def prefill(self, inputs: dict, cache: Cache) -> tuple:
        """Reads prompts, padded on the right. The logits are those behind their last tokens."""
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
        """Reads `(rows, branches)` or `(rows, length)` tokens; the layers of drafts stay."""
        own, others = cache.part(0, self._own_layers), cache.part(self._own_layers)
        hidden, own = self.backbone(self.backbone.step_inputs(tokens), cache=own)
        return self._logits(hidden), hidden, own.join(others)

    def _logits(self, states):
        if not self.best_only:
            return ops.cast(self.backbone.logits(states), "float32")
        from keras_transformer.kernels.torch_tracing.screened import best_product

        states, kernel = self.backbone.output_projection(states)
        rows, bias = ops.shape(states)[:-1], self.backbone.output_bias
        bias = None if bias is None else ops.convert_to_tensor(bias.bias)
        states = ops.reshape(states, (-1, states.shape[-1]))
        logits = best_product(states, ops.convert_to_tensor(kernel), bias)
        return ops.reshape(logits, (*rows, kernel.shape[0]))

    def cache_rows(self, rows):
        """Return the rows of the cache that belong to the rows `rows`, int `(count,)`."""
        return rows

    def for_cache(self, values):
        """Return values of each row `(rows, ...)` for each of its rows of the cache."""
        return values

    def log_sum(self, logits) -> tuple:
        """Return what is subtracted from logits where log-probabilities are ranked, in two parts.

        See `logits.log_sum`.
        """
        return log_sum(logits)

    def drafts_of(self, cache: Cache) -> Cache:
        """The cache of the drafts, or one without layers."""
        return cache.part(self._own_layers)

    def with_drafts(self, cache: Cache, drafts: Cache) -> Cache:
        """`cache` with the layers of `drafts` for those that it has of drafts."""
        return cache.part(0, self._own_layers).join(drafts)
