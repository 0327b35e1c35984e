"""W8: one encoder layer of width 768 on 1k to 16k tokens, full and windowed, compared with peers.

Batch 1, 12 heads, inner width 3,072, float32, random states. The window is 256 tokens on each side,
which Longformer calls 512. BigBird has blocks of 64 tokens, three of them random. A training step
uses AdamW and the mean square of the output as its loss. Each contender runs in its own process, in
turns. "exponent" is the exponent of the time between 2,048 and 16,384 tokens: 1 is linear, 2
quadratic. "peak MB" is the largest memory since the libraries were imported; lengths are measured
in rising order, so it is the peak of that length. Each length is printed as soon as it is measured,
the medians at the end. Linux only.

    python benchmarks/attention.py --rounds 3
    python benchmarks/attention.py --lengths 2048 4096 --contenders longformer bigbird
    python benchmarks/attention.py --short --rounds 1               # a tiny layer, to try it
"""

import argparse
import json
import math
import sys
from collections.abc import Callable

import numpy as np
from harness import (
    BACKENDS,
    median_seconds,
    memory,
    print_columns,
    run_rounds,
    run_worker,
    use_threads_of_torch,
)

LENGTHS = [1024, 2048, 4096, 8192, 16384]
LONGEST = 65536
WINDOW = 512
# Lengths from which the exponent is computed.
FROM, TO = 2048, 16384


class Size:
    """Size of the layer."""

    def __init__(self, short: bool):
        self.width, self.heads, self.inner = (32, 2, 64) if short else (768, 12, 3072)

    def states(self, length: int) -> np.ndarray:
        rng = np.random.default_rng(0)
        return rng.standard_normal((1, length, self.width), "float32")


def ours(size: Size, window: int | None) -> tuple[Callable, Callable]:
    """Return a compiled forward pass, and a step of `fit`, for states of any length."""
    import keras

    from keras_transformer.layers import EncoderBlock

    if keras.backend.backend() == "torch":
        use_threads_of_torch()
    keras.utils.set_random_seed(0)
    options = {} if window is None else {"window": window // 2 + 1}
    inputs = keras.Input((None, size.width))
    block = EncoderBlock(size.heads, size.inner, activation="gelu", **options)
    model = keras.Model(inputs, block(inputs))
    model.compile(keras.optimizers.AdamW(1e-4), "mean_squared_error")

    def train(states):
        return float(model.train_on_batch(states, np.zeros_like(states)))

    return model.predict_on_batch, train


def torch_steps(model, forward: Callable) -> tuple[Callable, Callable]:
    """Return the same for a PyTorch module with the output `forward(model, states)`."""
    import torch

    use_threads_of_torch()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def infer(states):
        with torch.inference_mode():
            return forward(model, torch.from_numpy(states)).numpy()

    def train(states):
        loss = forward(model, torch.from_numpy(states)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss)

    return infer, train


def transformers_layer(size: Size, name: str) -> tuple[Callable, Callable]:
    """Build a Longformer or BigBird layer of Transformers, after the norm of its embedding."""
    import transformers

    values = {
        "hidden_size": size.width,
        "num_attention_heads": size.heads,
        "intermediate_size": size.inner,
        "num_hidden_layers": 1,
        "vocab_size": 8,
        "max_position_embeddings": LONGEST + 2,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    if name == "longformer":
        config = transformers.LongformerConfig(attention_window=[WINDOW], **values)
        model = transformers.LongformerModel(config, add_pooling_layer=False)
    else:
        config = transformers.BigBirdConfig(block_size=64, num_random_blocks=3, **values)
        model = transformers.BigBirdModel(config, add_pooling_layer=False)
    return torch_steps(model, lambda m, states: m(inputs_embeds=states).last_hidden_state)


def torch_layer(size: Size, attend: Callable) -> tuple[Callable, Callable]:
    """Build a layer of PyTorch modules with the attention `attend(queries, keys, values)`."""
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.projections = nn.Linear(size.width, 3 * size.width)
            self.output = nn.Linear(size.width, size.width)
            self.norms = nn.ModuleList(nn.LayerNorm(size.width) for _ in range(2))
            inner = nn.Linear(size.width, size.inner), nn.Linear(size.inner, size.width)
            self.feed_forward = nn.Sequential(inner[0], nn.GELU(), inner[1])

        def forward(self, x):
            heads = self.projections(x).unflatten(-1, (3, size.heads, -1)).permute(2, 0, 3, 1, 4)
            attended = attend(*heads).transpose(1, 2).flatten(2)
            x = self.norms[0](x + self.output(attended))
            return self.norms[1](x + self.feed_forward(x))

    torch.manual_seed(0)
    return torch_steps(Layer(), lambda layer, states: layer(states))


def sdpa(size: Size) -> tuple[Callable, Callable]:
    """Build a layer with PyTorch's fused attention and a mask of length x length."""
    import torch

    def attend(queries, keys, values):
        places = torch.arange(queries.shape[2])
        near = (places[:, None] - places).abs() <= WINDOW // 2
        return torch.nn.functional.scaled_dot_product_attention(queries, keys, values, near)

    return torch_layer(size, attend)


def flex(size: Size) -> tuple[Callable, Callable]:
    """Build a layer with PyTorch's compiled block-sparse attention, without gradient on a CPU."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled, masks = torch.compile(flex_attention), {}

    def attend(queries, keys, values):
        length = queries.shape[2]
        if length not in masks:
            near = lambda b, h, q, k: (q - k).abs() <= WINDOW // 2  # noqa: E731
            masks[length] = create_block_mask(near, None, None, length, length, device="cpu")
        return compiled(queries, keys, values, block_mask=masks[length])

    return torch_layer(size, attend)[0], None


CONTENDERS = {
    **{f"keras_transformer-window-{b}": lambda size: ours(size, WINDOW) for b in BACKENDS},
    **{f"keras_transformer-full-{b}": lambda size: ours(size, None) for b in BACKENDS},
    "longformer": lambda size: transformers_layer(size, "longformer"),
    "bigbird": lambda size: transformers_layer(size, "bigbird"),
    "sdpa": sdpa,
    "flex": flex,
}


def measure(name: str, lengths: list[int], short: bool) -> list:
    """Return tokens per second for each length, the exponents, and memory."""
    size = Size(short)
    forward, train = CONTENDERS[name](size)
    imported, results = memory("VmRSS"), []
    seconds: dict[str, dict[int, float]] = {"forward": {}, "training": {}}
    for length in lengths:
        if length > LENGTHS[-1] and "window" not in name:
            continue
        states, before = size.states(length), len(results)
        for what, step in (("forward", forward), ("training", train)):
            if step is None:
                continue
            seconds[what][length] = median_seconds(lambda: step(states))  # noqa: B023
            results.append((f"{what} {length}", length / seconds[what][length]))
        results.append((f"peak MB {length}", memory("VmHWM") - imported))
        row = (f"{measure} {value:.4g}" for measure, value in results[before:])
        print(f"ROW {', '.join(row)}", flush=True)
    for what, of_lengths in seconds.items():
        if FROM in of_lengths and TO in of_lengths:
            exponent = math.log(of_lengths[TO] / of_lengths[FROM]) / math.log(TO / FROM)
            results.append((f"{what} exponent", exponent))
    return results


def main() -> None:
    summary, _, details = __doc__.partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), metavar="NAME",
                        default=list(CONTENDERS), help=f"of {', '.join(CONTENDERS)}")  # fmt: skip
    parser.add_argument("--lengths", nargs="+", type=int, default=[*LENGTHS, LONGEST],
                        help=f"in tokens; above {LENGTHS[-1]} for windows alone")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=3, help="times each contender runs")
    parser.add_argument("--short", action="store_true", help="a tiny layer, to try the benchmark")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    lengths = sorted(arguments.lengths)
    if arguments.worker:
        print("RESULT " + json.dumps(measure(arguments.worker, lengths, arguments.short)))
        return
    options = ["--lengths", *map(str, lengths), *(["--short"] if arguments.short else [])]
    values = run_rounds(
        arguments.contenders, arguments.rounds, lambda name: run_worker(name, options)
    )
    for what in ("forward", "training"):
        chosen = {key: v for key, v in values.items() if key[0].startswith(what)}
        print_columns(f"{what}: tokens/s by length", _without(chosen, f"{what} "))
    peaks = {key: v for key, v in values.items() if key[0].startswith("peak")}
    print_columns("peak MB of training by length, forward before it", _without(peaks, "peak MB "))


def _without(values: dict, prefix: str) -> dict:
    return {(measure.removeprefix(prefix), name): v for (measure, name), v in values.items()}


if __name__ == "__main__":
    sys.exit(main())
