"""Measure what decoding a token costs behind texts of several lengths, by the mixer of a model.

Each model has blocks of one mixer, of about as many weights: attention (with as many and with few
key and value heads), a selective state space (Mamba 2), and the gated delta rule. The cache is
marked as full of tokens, whose values no time depends on. Times are processor time for one token of
one row, the least of several rounds of 16 steps in turns; memory is that of the cache.

    python benchmarks/recurrent.py
    python benchmarks/recurrent.py --dim 1024 --picture docs/mixers_cost.svg
"""

import argparse
import time

import numpy as np
from keras import ops

import keras_transformer as kt
from keras_transformer import config as parts
from keras_transformer.generation import Cache
from keras_transformer.generation.program import Program
from keras_transformer.kernels.programs import compile_function

STEPS = 16


def models(dim: int, layers: int) -> dict:
    """Return the models by the name of their mixer."""
    heads = dim // 64
    rotary = parts.Rotary()
    mixers = {
        "attention": parts.Attention(num_heads=heads, bias=False, position=rotary),
        "grouped attention": parts.Attention(
            num_heads=heads, num_key_value_heads=max(heads // 4, 1), bias=False, position=rotary
        ),
        "state space": parts.StateSpace(num_heads=2 * heads, head_dim=64, state_dim=128),
        "gated delta": parts.GatedDelta(
            num_key_heads=heads // 2, num_value_heads=heads, key_dim=64, value_dim=64
        ),
    }
    made = {}
    for name, mixer in mixers.items():
        block = parts.Block(
            mixer=mixer,
            feed_forward=parts.Dense(dim=2 * dim, activation="silu", gated=True, bias=False),
            norm=parts.Norm(type="rms_norm"),
            residual=parts.Residual(order="pre"),
        )
        side = parts.Side(
            input=parts.Tokens(vocabulary_size=64), hidden_dim=dim, num_layers=layers, block=block
        )
        made[name] = kt.models.Decoder(kt.TransformerConfig(decoder=side))
    return made


def filled(model, length: int, room: int) -> Cache:
    """Return a cache behind `length` tokens, with slots for `room` more."""
    slots = {key: room if key else length + room for key in Program(model).groups}
    cache, groups = Cache.create(model, 1, slots), {}
    for key, group in cache.groups.items():
        if not key:
            places = np.arange(group.slots)
            group = group._replace(
                valid=ops.convert_to_tensor((places < length)[None, None]),
                positions=ops.convert_to_tensor(places[None].astype("int32")),
                end=length,
            )
        groups[key] = group
    lengths = ops.convert_to_tensor(np.array([length], "int32"))
    return cache._replace(groups=groups, lengths=lengths).as_tensors()


def draw(path: str, lengths: list[int], found: dict) -> None:
    """Draw the time of a token and the memory of the cache by the length of the text."""
    import matplotlib
    from matplotlib import pyplot

    matplotlib.use("agg")
    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for place, (panel, title) in enumerate(
        zip(panels, ("time of a token (ms)", "memory of the cache (MB)"), strict=True)
    ):
        for name, figures in found.items():
            panel.plot(lengths, [each[place] for each in figures], marker="o", label=name)
        panel.set(title=title, xlabel="tokens before it", xscale="log", xticks=lengths)
        panel.set_xticklabels([f"{length:,}" for length in lengths])
        panel.minorticks_off()
    panels[0].set_ylim(0)
    panels[1].set_yscale("log")
    panels[0].legend(frameon=False)
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 8192, 32768])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--picture", help="file to draw the figures to, .svg or .png")
    options = parser.parse_args()
    made, running = models(options.dim, options.layers), {}
    for name, model in made.items():
        program = Program(model)
        step = compile_function(lambda tokens, cache, p=program: p.step(tokens, cache)[::2], model)
        for length in options.lengths:
            cache = filled(model, length, STEPS * (options.rounds + 1))
            running[name, length] = [step, cache, np.inf]
    token = ops.convert_to_tensor(np.array([[3]], "int32"))
    for _ in range(options.rounds + 1):  # the first round compiles
        for state in running.values():
            step, cache, _ = state
            start = time.process_time()
            for _ in range(STEPS):
                logits, cache = step(token, cache)
            ops.convert_to_numpy(logits)
            state[1:] = cache, min(state[2], (time.process_time() - start) / STEPS)
    print(f"width {options.dim}, {options.layers} layers: ms of a token (MB of the cache)")
    print(f"{'':24}" + "".join(f"{length:>18,}" for length in options.lengths))
    found = {}
    for name, model in made.items():
        found[name] = [
            (running[name, length][2] * 1e3, Cache.count_bytes(model.config, 1, length) / 1e6)
            for length in options.lengths
        ]
        row = "".join(f"{taken:9.2f} ({memory:5.1f})" for taken, memory in found[name])
        print(f"{name:18}{model.count_params() / 1e6:4.1f}M {row}")
    if options.picture:
        draw(options.picture, options.lengths, found)


if __name__ == "__main__":
    main()
