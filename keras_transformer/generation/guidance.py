"""Classifier-free guidance: logits that lead from a negative prompt towards the prompt."""

from collections.abc import Mapping
from typing import Any

from keras import ops

from keras_transformer.checking import check_float
from keras_transformer.generation.cache import Cache
from keras_transformer.generation.program import Program

# Prefix of the names that the inputs of negative prompts have in a batch.
_NEGATIVE = "negative_"
# Summed over a text, guided scores stay above what beam search takes for no hypothesis.
_LARGEST_SCALE = 1e3


def check_scale(name: str, value: Any) -> float:
    """Return a guidance scale as a float. Raises ValueError unless it is from -1000 to 1000."""
    return check_float(name, value, at_least=-_LARGEST_SCALE, at_most=_LARGEST_SCALE)


def negative_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the backbone's inputs of negative prompts by the names that they have in a batch."""
    return {_NEGATIVE + name: array for name, array in inputs.items()}


def split_inputs(inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs of prompts and of negative prompts; the latter may be empty."""
    own = {name: array for name, array in inputs.items() if not name.startswith(_NEGATIVE)}
    negative = {n.removeprefix(_NEGATIVE): x for n, x in inputs.items() if n not in own}
    return own, negative


class GuidedProgram(Program):
    """A program whose logits are `scale * (p - n) + n`.

    `p` are the log-probabilities behind a row's prompt and the new tokens, `n` those behind its
    negative prompt and the same new tokens. Each row of the batch has two rows of the cache, one
    behind the other, which a step reads in one pass; so nothing but this class tells them apart.

    Args:
        backbone: as of `Program`.
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

    Source: Sanchez et al. 2023, "Stay on topic with Classifier-Free Guidance", section 2; of an
    encoder-decoder, whose negative prompt is another source: Sennrich et al. 2024, "Mitigating
    Hallucinations and Off-target Machine Translation with Source-Contrastive and
    Language-Contrastive Decoding", section 2.
    """

    def __init__(self, backbone, scale: float, cache_dtype: str | None = None):
        super().__init__(backbone)
        self.scale, self.cache_dtype = scale, cache_dtype

    def prefill(self, inputs: dict, cache: Cache) -> tuple:
        """Read prompts and their negative prompts, or what all prompts begin with without these."""
        inputs, negative = split_inputs(inputs)
        logits, hidden, cache = super().prefill(inputs, cache)
        if not negative:
            return logits, hidden, cache
        rows, length = self.backbone.prompt_tokens(negative)[0].shape
        room = {key: space.slots for key, space in cache.spaces.items()}
        room = {key: slots if key else max(slots, length) for key, slots in room.items()}
        # Read apart: it is mostly far shorter than the prompt.
        others = self.new_cache(rows, room, self.cache_dtype)
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
        # As in Transformers, guided scores are added up without being normalized.
        nothing = ops.zeros(logits.shape[:-1], "float32")
        return nothing, nothing

    def _guided(self, logits, without):
        logits, without = (ops.log_softmax(each, axis=-1) for each in (logits, without))
        return self.scale * (logits - without) + without
