"""A model that is one table, for tests of what chooses tokens and of what arranges rows.

Samplers, rules and the scheduler see logits, states and a cache. A table gives them without layers
or weights: what is compiled is the sampler, and the expected values are a few lines of NumPy.
"""

from types import SimpleNamespace

import numpy as np
from keras import ops

from keras_transformer.layers.attention.masking import AttentionMask
from keras_transformer.models.backbone import as_mask

TABLES = 3  # of which a token's position chooses one, so that texts do not run in a circle


class TableModel:
    """A decoder whose logits are a product of its table with what a token and its past are.

    The state of a token is one at its id, plus for each id its share of the tokens seen. The ids
    are in the cache, as keys of attention are, so that a wrong slot gives other logits.
    """

    compute_dtype, weights, cache_layers = "float32", (), ((1, 1),)

    def __init__(self, vocabulary_size=24, seed=0):
        self.config = SimpleNamespace(
            kind="decoder", vocabulary_size=vocabulary_size, position="none",
            max_sequence_length=None,
        )  # fmt: skip
        shape = (TABLES * vocabulary_size, vocabulary_size)
        self.array = 2.0 * np.random.default_rng(seed).normal(size=shape)
        self.table = ops.convert_to_tensor(self.array, "float32")

    def __call__(self, inputs, cache):
        ids = ops.cast(inputs["token_ids"], "int32")
        cache = cache.reserve(ids, inputs.get("padding_mask"))
        visibility: AttentionMask = cache.visibilities(ids.shape[1])[0]
        if visibility.explicit is None:  # the first tokens of a cache
            visibility = visibility._replace(causal=True)
        own = ops.cast(ids, "float32")[..., None, None]
        slots = cache.layer(0)["self"].write(own, own)
        known = slots.read("float32")[0][:, 0, :, 0]
        seen = visibility.mask(ids.shape[1], known.shape[1])[:, 0]
        seen = ops.cast(seen, "float32")
        shares = ops.matmul(seen, self._one_hot(ops.cast(known, "int32")))
        shares = shares / ops.maximum(ops.sum(seen, axis=-1, keepdims=True), 1.0)
        states = self._one_hot(ids) + shares
        chosen = ops.cast(visibility.query_positions, "int32")[..., None] % TABLES
        chosen = ops.cast(chosen == ops.arange(TABLES, dtype="int32"), "float32")
        states = ops.reshape(chosen[..., None] * states[:, :, None], (*ids.shape, -1))
        return states, cache.with_layers([{"self": slots, "cross": None}])

    def logits(self, states):
        return ops.matmul(states, self.table)

    def prompt_tokens(self, inputs):
        ids = inputs["token_ids"]
        return ids, as_mask(ids, inputs.get("padding_mask"))

    def step_inputs(self, tokens):
        return {"token_ids": tokens}

    def states_of(self, text):
        """The state of each token of a text, float64, without a cache."""
        one_hot = np.eye(self.config.vocabulary_size)[list(text)]
        states = one_hot + one_hot.cumsum(axis=0) / np.arange(1, len(text) + 1)[:, None]
        chosen = np.eye(TABLES)[np.arange(len(text)) % TABLES]
        return (chosen[..., None] * states[:, None]).reshape(len(text), -1)

    def logits_after(self, prompts, new):
        """The logits that choose each of the tokens `new`, a row for each prompt."""
        states = [
            self.states_of([*prompt, *row])[len(prompt) - 1 : -1]
            for prompt, row in zip(prompts, new, strict=True)
        ]
        return np.stack(states) @ self.array

    def greedy(self, prompts, count):
        """The likeliest `count` tokens of each prompt."""
        found = []
        for prompt in prompts:
            text = list(prompt)
            for _ in range(count):
                text.append(int((self.states_of(text)[-1] @ self.array).argmax()))
            found.append(text[len(prompt) :])
        return found

    def _one_hot(self, ids):
        every = ops.arange(self.config.vocabulary_size, dtype="int32")
        return ops.cast(ids[..., None] == every, "float32")
