"""Measure and compute the memory of a model's cache by the number of tokens.

The config is that of a preset. The tensors of the cache are measured after a prompt and 128 new
tokens, `length` in all. The model has the layers, windows, and key and value heads of the preset,
but narrow states and a small vocabulary, which do not affect the cache. "all" is a cache that keeps
all tokens in all layers.

    python benchmarks/cache.py
    python benchmarks/cache.py --preset gemma2_2b_en --lengths 4096 --measured 4096
"""

import argparse
import dataclasses

import numpy as np

import keras_transformer as kt
from keras_transformer.checkpoints import load_config, resolve_preset
from keras_transformer.generation import Cache, Engine, Greedy, Settings

NEW = 128


class KeepsAll(kt.models.Decoder):
    """Model whose cache keeps all tokens in all layers."""

    @property
    def cache_layers(self):
        return [layer[:2] for layer in super().cache_layers]


def measure(model, length: int) -> int:
    """Return the bytes of keys and values after `length` tokens, including the new ones."""
    engine, settings = Engine(model), Settings(Greedy())
    ids = np.random.default_rng(0).integers(0, model.config.vocabulary_size, (1, length - NEW))
    inputs = {"token_ids": ids.astype("int32"), "padding_mask": np.ones(ids.shape, "bool")}
    batch = engine.prefill(inputs, settings, np.array([NEW], "int32"))
    while not engine.finished(batch).all():
        engine.extend(batch)
    layers = batch.state.cache.layers
    return sum(4 * int(np.prod(x.shape)) for layer in layers for x in layer["self"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="gemma3_1b")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 4096, 8192, 32768])
    parser.add_argument("--measured", type=int, default=8192, help="the longest that is measured")
    options = parser.parse_args()
    config = load_config(resolve_preset(options.preset), load_weights=False)[0]
    heads = config.num_key_value_heads
    narrow = {"vocabulary_size": 64, "hidden_dim": 16, "intermediate_dim": 16, "num_heads": heads}
    small = dataclasses.replace(config, embedding_dim=16, **narrow)
    everything = dataclasses.replace(config, layer_pattern=None, window=None)
    models = [KeepsAll(small), kt.models.Decoder(small)]
    print(f"{options.preset}, one row, float32, MB")
    print("length   all, counted  measured   windows, counted  measured")
    for length in options.lengths:
        counted = [Cache.count_bytes(each, 1, length) / 1e6 for each in (everything, config)]
        measured = ["", ""]
        if length <= options.measured:
            measured = [f"{measure(model, length) / 1e6:.1f}" for model in models]
        pairs = zip(counted, measured, (14, 18), strict=True)
        print(f"{length:6}" + "".join(f"{a:{width}.1f}{b:>10}" for a, b, width in pairs))


if __name__ == "__main__":
    main()
