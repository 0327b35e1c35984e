"""Classifier-free guidance, which moves logits away from a negative prompt."""

from collections.abc import Mapping
from typing import Any

from keras import ops

from keras_transformer.generation.cache import Cache
from keras_transformer.generation.program import Program
from keras_transformer.support.checking import check_float

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
    from keras_transformer.generation.guidance import GuidedProgram, negative_inputs

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
