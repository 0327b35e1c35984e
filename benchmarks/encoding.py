"""Sentence vectors of 2,000 SST-2 sentences with all-MiniLM-L6-v2, from strings.

python benchmarks/encoding.py --rounds 3
"""

import functools

from harness import BACKENDS, main, median_seconds, minilm_folder, sst2, use_threads_of_torch


def texts() -> list[str]:
    return sst2("train")[0][:2000]


def ours(dtype: str = "float32") -> list:
    import keras

    import keras_transformer as kt

    if keras.backend.backend() == "torch":
        use_threads_of_torch()
    embedder = kt.TextEmbedder.from_preset("minilm_l6_en", dtype=dtype)
    rows = texts()
    seconds = median_seconds(lambda: embedder.predict(rows, verbose=0))
    return [("texts", len(rows) / seconds)]


def sentence_transformers(dtype: str) -> list:
    import torch
    from sentence_transformers import SentenceTransformer

    use_threads_of_torch()
    model = SentenceTransformer(minilm_folder()).to(getattr(torch, dtype))
    rows = texts()
    seconds = median_seconds(lambda: model.encode(rows, batch_size=32, show_progress_bar=False))
    return [("texts", len(rows) / seconds)]


def keras_hub() -> list:
    import keras_hub

    model = keras_hub.models.TextEmbedder.from_preset(minilm_folder())
    rows = texts()[:512]  # It pads each to 256 tokens.
    seconds = median_seconds(lambda: model.predict(rows, batch_size=32, verbose=0), runs=1)
    return [("texts", len(rows) / seconds)]


CONTENDERS = {
    **{f"keras_transformer-{backend}": ours for backend in BACKENDS},
    **{
        f"keras_transformer-bfloat16-{backend}": functools.partial(ours, "bfloat16")
        for backend in BACKENDS
    },
    "sentence-transformers": functools.partial(sentence_transformers, "float32"),
    "sentence-transformers-bfloat16": functools.partial(sentence_transformers, "bfloat16"),
    **{f"keras_hub-{backend}": keras_hub for backend in BACKENDS},
}
DEFAULT = [
    "keras_transformer-jax",
    "sentence-transformers",
    "keras_transformer-tensorflow",
    "keras_transformer-torch",
    "keras_hub-jax",
]

if __name__ == "__main__":
    main(__doc__.splitlines()[0], CONTENDERS, "texts/s", DEFAULT)
