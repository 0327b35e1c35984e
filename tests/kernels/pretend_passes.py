"""A program: passes of models on the device of `pretend_gpu`, which no tensor of the host may meet.

Prints JSON: for each kind the shapes of what its calls gave.
"""

import contextlib
import json
import sys

import keras
import numpy as np
import torch
from keras import ops
from torch._subclasses import FakeTensorMode

from keras_transformer.generation import Cache, Greedy, Random, Rules
from keras_transformer.generation.samplers.samplers import Prompt, RowLimits
from keras_transformer.kernels import torch_gpu_int8
from tests.generation.common import make_backbone
from tests.kernels.pretend_gpu import DEVICE, pretend
from tests.tasks import audio, images, series

ROWS, LENGTH = 2, 12
IDS = np.ones((ROWS, LENGTH), "int32")
PADDING = np.arange(LENGTH)[None] < np.array([[LENGTH], [5]])
TOKENS = {"token_ids": IDS, "padding_mask": PADDING}


def fake(array):
    """A tensor of the device in place of an array."""
    return torch.empty(array.shape, dtype=getattr(torch, str(array.dtype)), device=DEVICE)


@contextlib.contextmanager
def on_device(model):
    """Within, the weights of a model are tensors of the device without numbers."""
    with FakeTensorMode(allow_non_fake_inputs=True), keras.device(DEVICE), torch.no_grad():
        mapping = [
            (v, torch.empty(tuple(v.shape), dtype=v._value.dtype, device=DEVICE))
            for v in model.variables
        ]
        with keras.StatelessScope(state_mapping=mapping):
            yield


def bare(make, inputs):
    """One pass of a backbone."""

    def run():
        backbone = make()
        with on_device(backbone):
            return [backbone({name: fake(array) for name, array in inputs.items()})]

    return run


def of_task(make, data):
    """One pass of a task, of a batch as `fit` gives it."""

    def run():
        task = make()
        inputs = task.make_dataset(*data, batch_size=ROWS)[0][0]
        with on_device(task):
            outputs = task({name: fake(np.asarray(x)) for name, x in inputs.items()})
            return [keras.tree.flatten(outputs)[0]]

    return run


def decoded(kind="decoder", quantize=None, **values):
    """A prompt and a step with a cache, and logits."""

    def run():
        backbone = make_backbone(kind, **values)
        if quantize is not None:
            backbone.quantize(quantize)
        first = "decoder_" if kind == "seq2seq" else ""
        source = {f"encoder_{name}": x for name, x in TOKENS.items()} if first else {}
        prompt = {f"{first}{name}": x for name, x in TOKENS.items()} | source
        found = []
        with on_device(backbone):
            cache = Cache.create(backbone, ROWS, LENGTH + 2)
            for inputs in (prompt, {f"{first}token_ids": IDS[:, :1]}):
                given = {name: fake(array) for name, array in inputs.items()}
                states, cache = backbone(given, cache=cache)
                found.append(backbone.logits(states))
        return found

    return run


def chosen(sampler, **rules):
    """A step of rules and a sampler."""

    def run():
        rows, vocabulary, size, made = ROWS, 24, 4, Rules(**rules)
        uniforms = ops.zeros((rows, size * max(sampler.draws, 1)))
        limits = RowLimits((1,), 0, ops.full((rows,), size, "int32"), uniforms)
        hidden = np.ones((rows, LENGTH, 8), "float32")
        prompt = Prompt(*map(ops.convert_to_tensor, (IDS, PADDING, hidden)))
        state = sampler.start(rows, size, limits, prompt)
        begun = made.start(sampler.branches, size, vocabulary, prompt, limits)
        with FakeTensorMode(allow_non_fake_inputs=True), keras.device(DEVICE), torch.no_grad():
            given = keras.tree.map_structure(there, (limits, prompt, state, begun))
            limits, prompt, state, begun = given
            logits = fake(np.ones((rows, sampler.branches, vocabulary), "float32"))
            logits = made.apply(logits, begun, limits)
            state = sampler.advance(state, logits, prompt.hidden[:, : sampler.branches], limits)
            state = state[0] if isinstance(state, tuple) and len(state) == 2 else state
            tokens = sampler.next_tokens(state)
            return [logits, tokens]

    return run


def there(x):
    """A tensor of the host as one of the device without numbers."""
    return torch.empty_like(x, device=DEVICE) if isinstance(x, torch.Tensor) else x


RULES = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "bad_words": [[5], [3, 9]]}
PASSES = {
    "encoder": bare(lambda: make_backbone("encoder", position="learned"), TOKENS),
    "relative": bare(lambda: make_backbone("encoder", position="relative"), TOKENS),
    "disentangled": bare(
        lambda: make_backbone(
            "encoder", position="none", disentangled="shared", relative_max_distance=8,
            relative_num_buckets=8,
        ),
        TOKENS,
    ),
    "window": bare(
        lambda: make_backbone("encoder", position="learned", window=2, global_tokens=1), TOKENS
    ),
    "blocks": bare(
        lambda: make_backbone("encoder", position="learned", block_size=1, random_blocks=1), TOKENS
    ),
    "decoder": decoded(position="rotary", num_key_value_heads=2),
    "seq2seq": decoded("seq2seq", position="relative"),
    "int8": decoded(quantize="int8", position="learned"),
    "int4": decoded(quantize="int4", position="learned"),
    "greedy": chosen(Greedy(), **RULES),
    "random": chosen(Random(top_k=3, top_p=0.9), **RULES),
    "images": of_task(images.classifier, images.pictures(4)),
    "sound": of_task(audio.classifier, audio.recordings(4)),
    "series": of_task(series.forecaster, (series.waves(60),)),
}  # fmt: skip


def main(kinds):
    # Products of int8 are those of a GPU: the fake device has no numbers to prove them by.
    torch_gpu_int8.takes = lambda rows: rows.device.type == "pretend"
    return {kind: [list(x.shape) for x in PASSES[kind]()] for kind in kinds}


if __name__ == "__main__":
    library = pretend()
    print(json.dumps(main(sys.argv[1:] or PASSES)))
