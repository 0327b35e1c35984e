"""The decode engine: the whole prompt at once, then token by token in a compiled loop."""

from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.generation.cache import Cache
from keras_transformer.generation.compiling import compile_function
from keras_transformer.generation.samplers import Limits, Sampler

# Shapes come from this ladder, so that inputs of similar sizes share compiled functions.
_LADDER = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


def round_up(size: int) -> int:
    """The next size of the ladder; above it, multiples of 512."""
    for step in _LADDER:
        if size <= step:
            return step
    return -(-size // 512) * 512


class DecodeState(NamedTuple):
    """What goes from one step to the next."""

    step: Any  # int scalar, number of new tokens
    sampled: Any  # the sampler's state
    cache: Cache


class Engine:
    """Generates with a backbone that follows the cache protocol.

    The protocol: `backbone(inputs, cache=cache)` returns states and the updated cache;
    `backbone.logits`; `backbone.prompt_tokens(inputs)` the ids and mask that the decoder starts
    from; and `backbone.step_inputs(tokens, inputs)` the inputs of one further step.

    Args:
        backbone: a `Decoder` or `Seq2Seq`.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt
    from keras_transformer.generation import Engine, Greedy

    backbone = kt.models.Decoder(kt.TransformerConfig(
        kind="decoder", vocabulary_size=50, hidden_dim=16, num_layers=1, num_heads=2,
        intermediate_dim=32,
    ))
    inputs = {"token_ids": np.array([[3, 4]]), "padding_mask": np.ones((1, 2), bool)}
    new = Engine(backbone).generate(inputs, Greedy(), max_new_tokens=5, end_ids=(2,), pad_id=0)
    assert new.shape == (1, 5)
    ```
    """

    def __init__(self, backbone):
        self.backbone = backbone
        self._compiled: dict = {}

    def generate(
        self,
        inputs: dict[str, np.ndarray],
        sampler: Sampler,
        max_new_tokens: int,
        end_ids: tuple[int, ...],
        pad_id: int,
    ) -> np.ndarray:
        """New tokens for a batch of prompts.

        Args:
            inputs: the backbone's inputs, NumPy arrays, rows padded on the right.
            sampler: a `Sampler`.
            max_new_tokens: int.
            end_ids: a row ends with any of these ids.
            pad_id: int.

        Returns:
            Int `(prompts, max_new_tokens)`, each row ended by an end id or by pads.
        """
        prefill, extend = self._functions(sampler, tuple(end_ids), pad_id)
        size = round_up(max_new_tokens)
        limit = ops.convert_to_tensor(max_new_tokens, dtype="int32")
        inputs = {name: ops.convert_to_tensor(array) for name, array in inputs.items()}
        prompt_slots = self.backbone.prompt_tokens(inputs)[0].shape[1]
        room = min(size, 32)
        state = prefill(inputs, limit, self._sizes(size, prompt_slots + room))
        while True:
            stop = min(room, max_new_tokens)
            state = extend(inputs, state, limit, ops.convert_to_tensor(stop, dtype="int32"))
            if room >= max_new_tokens or bool(ops.all(sampler.finished(state.sampled))):
                break
            # Most rows are short: the cache grows only once some are known to be longer.
            room = min(size, 2 * room)
            state = state._replace(cache=state.cache.grow(prompt_slots + room))
        return ops.convert_to_numpy(sampler.result(state.sampled))[:, :max_new_tokens]

    def _sizes(self, size: int, slots: int):
        """Sizes as the shape of an (empty) tensor: static for every compiler."""
        return ops.zeros((0, size, slots), "int8")

    def _functions(self, sampler: Sampler, end_ids: tuple[int, ...], pad_id: int):
        key = (sampler, end_ids, pad_id)
        if key not in self._compiled:
            backbone = self.backbone

            def choose(state, hidden, inputs, limits):
                logits = backbone.logits(hidden)
                sampled, rows = sampler.advance(state.sampled, logits, state.step, limits)
                cache = state.cache if rows is None else state.cache.reorder(rows)
                return DecodeState(state.step + 1, sampled, cache)

            def prefill(inputs, limit, sizes):
                limits = Limits(end_ids, pad_id, limit)
                tokens, mask = backbone.prompt_tokens(inputs)
                prompts, (_, size, slots) = tokens.shape[0], sizes.shape
                cache = Cache.create(backbone, prompts, slots)
                hidden, cache = backbone(inputs, cache=cache)
                last = ops.sum(ops.cast(mask, "int32"), axis=1) - 1
                hidden = ops.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]
                sampled = sampler.start(prompts, size, limits)
                state = DecodeState(
                    ops.zeros((), "int32"), sampled, cache.repeat(sampler.rows_per_prompt)
                )
                hidden = ops.repeat(hidden, sampler.rows_per_prompt, axis=0)
                return choose(state, hidden, inputs, limits)

            def extend(inputs, state, limit, stop):
                limits = Limits(end_ids, pad_id, limit)
                times = sampler.rows_per_prompt
                context = {name: ops.repeat(array, times, axis=0) for name, array in inputs.items()}

                def unfinished(state):
                    all_finished = ops.all(sampler.finished(state.sampled))
                    return ops.logical_and(state.step < stop, ops.logical_not(all_finished))

                def step(state):
                    tokens = sampler.last_tokens(state.sampled, state.step - 1)
                    step_inputs = backbone.step_inputs(tokens[:, None], context)
                    hidden, cache = backbone(step_inputs, cache=state.cache)
                    state = state._replace(cache=cache)
                    return (choose(state, hidden[:, -1], context, limits),)

                return ops.while_loop(unfinished, step, (state,))[0]

            self._compiled[key] = (
                compile_function(prefill, backbone),
                compile_function(extend, backbone),
            )
        return self._compiled[key]
