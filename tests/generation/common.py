"""Shared code of generation tests: small models with clear margins, and uncached logits."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import TransformerConfig
from keras_transformer.generation import Greedy
from keras_transformer.kernels.programs import compile_function
from keras_transformer.models import build_backbone
from tests.generation.tables import TableModel

START, END, PAD = 1, 2, 0


# Sizes and counts of a CPU: there caches grow, and each step looks for rows that have ended. A GPU
# makes caches at once, looks once in 16 steps, and traces later.
on_cpu = pytest.mark.cpu


def on_one(*values):
    """Parameters whose kin run on each backend: these on one, and on each in a thorough run."""
    return pytest.param(*values, marks=pytest.mark.one_backend)


def make_backbone(kind, vocabulary_size=24, seed=0, **values):
    """A backbone with weights so large that the likeliest token is so by a margin."""
    # Untied: a tied output mostly repeats the last token.
    sizes = {"hidden_dim": 16, "num_layers": 1, "num_heads": 4, "intermediate_dim": 24}
    if values.get("mixer") is not None:
        del sizes["num_heads"]
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


def compiled(function, *models):
    """On TensorFlow the function as it is: tracing takes longer there than what is tested."""
    if keras.backend.backend() == "tensorflow":
        return function
    return compile_function(function, *models)


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
    if isinstance(backbone, TableModel):
        return backbone.logits_after(prompts, new)
    inputs = engine_inputs(backbone, prompts)
    before = np.asarray(new)[:, :-1].tolist()
    first = [0] * len(prompts)
    if backbone.config.kind == "decoder":
        whole = [prompt + row for prompt, row in zip(prompts, before, strict=True)]
        inputs, first = engine_inputs(backbone, whole), [len(prompt) - 1 for prompt in prompts]
    else:
        inputs["decoder_token_ids"] = np.array([[START, *row] for row in before])
    logits = compiled(lambda inputs: backbone.logits(backbone(inputs)), backbone)
    inputs = {name: ops.convert_to_tensor(array) for name, array in inputs.items()}
    rows = ops.convert_to_numpy(logits(inputs))
    return np.stack([row[i:][: len(new[0])] for i, row in zip(first, rows, strict=True)])


def guided(logits, without, scale):
    """Logits led away from others, by the formula of classifier-free guidance in float64."""
    own, without = (
        x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
        for x in (logits.astype("float64"), without.astype("float64"))
    )
    return scale * (own - without) + without


def uncached_greedy(backbone, prompts, count):
    """The likeliest `count` tokens of each prompt, by a pass over all of them for each token."""
    if isinstance(backbone, TableModel):
        return backbone.greedy(prompts, count)
    names = ("token_ids", "padding_mask")
    inputs = engine_inputs(backbone, prompts)
    if backbone.config.kind == "seq2seq":
        names = ("decoder_token_ids", "decoder_padding_mask")
        inputs["decoder_padding_mask"] = np.ones((len(prompts), 1), "bool")
    ids, mask = (np.pad(inputs[name], ((0, 0), (0, count))) for name in names)
    logits = compiled(lambda inputs: backbone.logits(backbone(inputs)), backbone)
    rows, last = np.arange(len(prompts)), mask.sum(axis=1) - 1
    new = np.zeros((len(prompts), count), "int32")
    for step in range(count):
        inputs.update(dict(zip(names, (ids, mask), strict=True)))
        tensors = {name: ops.convert_to_tensor(array) for name, array in inputs.items()}
        new[:, step] = ops.convert_to_numpy(logits(tensors))[rows, last].argmax(axis=-1)
        last = last + 1
        ids[rows, last], mask[rows, last] = new[:, step], True
    return new.tolist()


def until(tokens, limit, end_ids=()):
    """The first `limit` tokens, up to the first end and with it."""
    tokens = list(tokens[:limit])
    ends = [place for place, token in enumerate(tokens) if token in end_ids]
    return tokens[: ends[0] + 1] if ends else tokens


def decode(engine, inputs, settings, limits, steps=8):
    """`Engine.generate` with a limit for each row; also the batch."""
    batch = engine.prefill(inputs, settings, np.asarray(limits, "int32"), steps=steps)
    while not engine.finished(batch).all():
        engine.extend(batch, steps)
    found = engine.outputs(batch)
    return found._replace(tokens=found.tokens[..., : max(limits)]), batch


def found_tokens(outputs):
    """For each row the ids of each hypothesis."""
    return [
        [ids[:count].tolist() for ids, count in zip(*row, strict=True) if count]
        for row in zip(outputs.tokens, outputs.counts, strict=True)
    ]


class RecordedState(NamedTuple):
    tokens: Any
    count: Any
    ended: Any
    logits: Any  # float (rows, size, vocabulary_size)


@dataclasses.dataclass(frozen=True)
class Recording(Greedy):
    """Greedy; its scores are the logits of each token that was chosen, zeros for the others."""

    vocabulary_size: int = 24

    sized: ClassVar[dict[str, int]] = {"tokens": -1, "logits": 1}

    def start(self, rows, size, limits, prompt):
        logits = ops.zeros((rows, size, self.vocabulary_size), "float32")
        return RecordedState(*super().start(rows, size, limits, prompt), logits)

    def advance(self, state, logits, hidden, limits):
        chosen, _ = super().advance(state, logits, hidden, limits)
        columns = ops.arange(state.tokens.shape[1], dtype="int32")
        here = ops.logical_and(columns >= state.count[:, None], columns < chosen.count[:, None])
        return RecordedState(*chosen, ops.where(here[..., None], logits, state.logits)), None

    def outputs(self, state):
        return super().outputs(state)._replace(scores=state.logits)
