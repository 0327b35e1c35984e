r"""Embed 2,000 SST-2 sentences with all-MiniLM-L6-v2, from strings.

python benchmarks/encoding.py --rounds 3

Batches have 32 texts, or in contenders named `128` as many; on a GPU this library chooses them by
tokens. There the texts are 20,000, and these contenders tell most:

python benchmarks/encoding.py --contenders keras_transformer-torch sentence-transformers \
    sentence-transformers-128 keras_transformer-bfloat16-torch \
    sentence-transformers-bfloat16 sentence-transformers-bfloat16-128
"""

import functools

from harness import (
    BACKENDS,
    has_gpu,
    main,
    median_seconds,
    minilm_folder,
    sst2,
    use_threads_of_torch,
)


def texts(backend: str = "torch") -> list[str]:
    return sst2("train")[0][: 20_000 if has_gpu(backend) else 2000]


def ours(mode: str = "float32") -> list:
    import keras

    import keras_transformer as kt

    if keras.backend.backend() == "torch":
        use_threads_of_torch()
    mode, packed = mode.removesuffix("-packed"), mode.endswith("-packed")
    dtype = "float32" if mode == "int8" else mode
    embedder = kt.TextEmbedder.from_preset(minilm_folder(), dtype=dtype)
    if mode == "int8":
        embedder.quantize(mode)
    if packed:
        embedder.compile(pack_weights=True)
    rows = texts(keras.backend.backend())
    seconds = median_seconds(lambda: embedder.predict(rows, verbose=0))
    return [("texts", len(rows) / seconds)]


def sentence_transformers(dtype: str, batch_size: int = 32) -> list:
    import torch
    from sentence_transformers import SentenceTransformer

    use_threads_of_torch()
    model = SentenceTransformer(minilm_folder()).to(getattr(torch, dtype))
    rows, options = texts(), {"batch_size": batch_size, "show_progress_bar": False}
    seconds = median_seconds(lambda: model.encode(rows, **options))
    return [("texts", len(rows) / seconds)]


def openvino_int8() -> list:
    """Embed with our OpenVINO export, quantized by NNCF, in batches by length.

    It stands in for sentence-transformers' own OpenVINO backend, which needs optimum-intel: the
    same model, runtime and quantizer, without that library around it.
    """
    import tempfile

    import numpy as np
    import openvino
    import tokenizers

    import keras_transformer as kt

    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/exported"
        embedder = kt.TextEmbedder.from_preset("minilm_l6_en")
        kt.export(embedder, place, format="openvino", quantization="int8")
        del embedder
        tokenizer = tokenizers.Tokenizer.from_file(f"{place}/tokenizer.json")
        model = openvino.Core().compile_model(f"{place}/model.xml", "CPU")
    tokenizer.enable_padding()
    tokenizer.enable_truncation(256)
    names = {each for port in model.inputs for each in port.names}
    rows = texts()

    def encode() -> np.ndarray:
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
        vectors: list = [None] * len(rows)
        for start in range(0, len(rows), 32):
            chosen = order[start : start + 32]
            found = tokenizer.encode_batch([rows[i] for i in chosen])
            ids = np.array([each.ids for each in found], "int64")
            arrays = {
                "input_ids": ids,
                "attention_mask": np.array([each.attention_mask for each in found], "int64"),
                "token_type_ids": np.zeros_like(ids),
            }
            given = {name: arrays[name] for name in names}
            for i, vector in zip(chosen, model(given)[0], strict=True):
                vectors[i] = vector
        return np.stack(vectors)

    seconds = median_seconds(encode)
    return [("texts", len(rows) / seconds)]


def keras_hub() -> list:
    import keras_hub

    model = keras_hub.models.TextEmbedder.from_preset(minilm_folder())
    rows = texts()[:512]  # fewer, because each is padded to 256 tokens
    seconds = median_seconds(lambda: model.predict(rows, batch_size=32, verbose=0), runs=1)
    return [("texts", len(rows) / seconds)]


CONTENDERS = {
    **{f"keras_transformer-{backend}": ours for backend in BACKENDS},
    **{
        f"keras_transformer-bfloat16-{backend}": functools.partial(ours, "bfloat16")
        for backend in BACKENDS
    },
    **{f"keras_transformer-int8-{b}": functools.partial(ours, "int8") for b in BACKENDS},
    **{
        f"keras_transformer-packed-{mode}-torch": functools.partial(ours, f"{mode}-packed")
        for mode in ("float32", "bfloat16", "int8")
    },
    "openvino-int8": openvino_int8,
    "sentence-transformers": functools.partial(sentence_transformers, "float32"),
    "sentence-transformers-128": functools.partial(sentence_transformers, "float32", 128),
    "sentence-transformers-bfloat16": functools.partial(sentence_transformers, "bfloat16"),
    "sentence-transformers-bfloat16-128": functools.partial(sentence_transformers, "bfloat16", 128),
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
