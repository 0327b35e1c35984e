"""What the tests of generation share: small models with clear margins, and uncached logits."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer import TransformerConfig
from keras_transformer.generation import Greedy
from keras_transformer.generation.compiling import compile_function
from keras_transformer.models import build_backbone

START, END, PAD = 1, 2, 0


def make_backbone(kind, vocabulary_size=24, seed=0, **values):
    """A backbone with weights so large that the likeliest token is so by a margin."""
    # Untied: a tied output mostly repeats the last token.
    sizes = {"hidden_dim": 16, "num_layers": 1, "num_heads": 4, "intermediate_dim": 24}
    values = {**sizes, "tie_embeddings": False, **values}
    config = TransformerConfig(kind=kind, vocabulary_size=vocabulary_size, **values)
    backbone = build_backbone(config)
    random = np.random.default_rng(seed)
    for variable in backbone.weights:
        scale = {"kernel": 0.6, "embeddings": 1.0, "reverse_embeddings": 1.0}.get(
            variable.name, 0.1
        )
        offset = 1.0 if variable.name in ("gamma", "scale") else 0.0
        variable.assign(offset + scale * random.normal(size=variable.shape))
    return backbone


def make_prompts(lengths, vocabulary_size=24, seed=0):
    random = np.random.default_rng(seed)
    return [random.integers(3, vocabulary_size, length).tolist() for length in lengths]


def engine_inputs(backbone, prompts):
    """The prompts as one batch, padded on the right."""
    ids = np.full((len(prompts), max(map(len, prompts))), PAD, "int32")
    mask = np.zeros(ids.shape, "bool")
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = prompt
        mask[row, : len(prompt)] = True
    if backbone.config.kind == "decoder":
        return {"token_ids": ids, "padding_mask": mask}
    start = np.full((len(prompts), 1), START, "int32")
    return {"encoder_token_ids": ids, "encoder_padding_mask": mask, "decoder_token_ids": start}


def uncached_logits(backbone, prompts, new):
    """Logits that choose each of the tokens `new`, a row a prompt, in one pass without cache."""
    inputs = engine_inputs(backbone, prompts)
    before = np.asarray(new)[:, :-1].tolist()
    first = [0] * len(prompts)
    if backbone.config.kind == "decoder":
        whole = [prompt + row for prompt, row in zip(prompts, before, strict=True)]
        inputs, first = engine_inputs(backbone, whole), [len(prompt) - 1 for prompt in prompts]
    else:
        inputs["decoder_token_ids"] = np.array([[START, *row] for row in before])
    logits = compile_function(lambda inputs: backbone.logits(backbone(inputs)), backbone)
    inputs = {name: ops.convert_to_tensor(array) for name, array in inputs.items()}
    rows = ops.convert_to_numpy(logits(inputs))
    return np.stack([row[i:][: len(new[0])] for i, row in zip(first, rows, strict=True)])


class RecordedState(NamedTuple):
    tokens: Any
    ended: Any
    logits: Any  # float (rows, size, vocabulary_size)


@dataclasses.dataclass(frozen=True)
class Recording(Greedy):
    """Greedy, and its result is the logits of every step that was made; zeros for the others."""

    vocabulary_size: int = 24

    def start(self, prompts, size, limits):
        logits = ops.zeros((prompts, size, self.vocabulary_size), "float32")
        return RecordedState(*super().start(prompts, size, limits), logits)

    def advance(self, state, logits, step, limits):
        chosen, _ = super().advance(state, logits, step, limits)
        logits = ops.cast(logits, "float32")[:, None]
        logits = ops.slice_update(state.logits, (0, step, 0), logits)
        return RecordedState(chosen.tokens, chosen.ended, logits), None

    def result(self, state):
        return state.logits
