r"""Measure encoders of images: ViT-B/16, SigLIP and SAM's.

python benchmarks/images.py --rounds 3

ViT-B/16 and SigLIP base read 8 images of 224 x 224 (64 on a GPU), SAM's base encoder one of 1,024 x
1,024; ViT also learns. In float32; contenders named `bfloat16` compute in bfloat16 with float32
weights. The weights are random, and the images are prepared, since reading and resizing is done by
Pillow for all. They begin and the results end in the host's memory. A training step uses
cross-entropy over 1,000 classes and Adam. On a GPU, where Transformers is compiled too:

python benchmarks/images.py --contenders keras_transformer-bfloat16-torch transformers-bfloat16 \
    transformers-compiled-bfloat16
"""

import functools

import numpy as np
from harness import BACKENDS, has_gpu, main, median_seconds, use_threads_of_torch

CLASSES = 1000


def data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    images = random.normal(size=(rows, 224, 224, 3)).astype("float32")
    return images, random.integers(0, CLASSES, rows).astype("int32")


def rows_on(backend: str) -> int:
    return 64 if has_gpu(backend) else 8


def large_image() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(1, 1024, 1024, 3)).astype("float32")


def _measured(rows: int, vit, step, siglip, sam) -> list:
    """Return images a second; on a GPU after as many passes as a compiler may wait for."""
    further = 10 if rows > 8 else 0
    found = []
    for measure, call, amount, runs, warmup in (
        ("ViT-B/16, forward", vit, rows, 5, 2),
        ("the same, training", step, rows, 3, 2),
        ("SigLIP base, forward", siglip, rows, 5, 2),
        ("SAM base, encoder", sam, 1, 3, 1),
    ):
        seconds = median_seconds(call, runs=runs + further, warmup=warmup + further)
        found.append((measure, amount / seconds))
        print(f"ROW {found[-1]}", flush=True)
    return found


def ours(dtype: str = "float32") -> list:
    import keras

    import keras_transformer as kt

    if keras.backend.backend() == "torch":
        use_threads_of_torch()
    model = kt.ImageClassifier.from_preset(
        "vit_base_patch16_224", load_weights=False, num_classes=CLASSES, dtype=dtype
    )
    model.compile(keras.optimizers.Adam(1e-4), model.loss)
    rows = rows_on(keras.backend.backend())
    images, labels = data(rows)
    inputs = {"images": images}
    siglip = kt.ImageEmbedder.from_preset(
        "siglip_base_patch16_224", load_weights=False, dtype=dtype
    )
    sam = kt.PromptedSegmenter.from_preset("sam_vit_base", load_weights=False, dtype=dtype)
    return _measured(
        rows,
        lambda: model.predict_on_batch(inputs),
        lambda: model.train_on_batch(inputs, labels),
        lambda: siglip.predict_on_batch(inputs),
        lambda: sam.predict_on_batch({"images": large_image()}),
    )


def keras_hub(dtype: str = "float32") -> list:
    import keras
    import keras_hub
    from keras_hub.src.models.siglip.siglip_vision_encoder import SigLIPVisionEncoder

    if keras.backend.backend() == "torch":
        use_threads_of_torch()
    keras.config.set_dtype_policy(dtype)
    backbone = keras_hub.models.ViTBackbone(
        (224, 224, 3), (16, 16), num_layers=12, num_heads=12, hidden_dim=768, mlp_dim=3072
    )
    model = keras_hub.models.ViTImageClassifier(backbone, num_classes=CLASSES, pooling="token")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss)
    rows = rows_on(keras.backend.backend())
    images, labels = data(rows)
    siglip = SigLIPVisionEncoder(16, 768, num_layers=12, num_heads=12, intermediate_dim=3072)
    sam = keras_hub.models.ViTDetBackbone(
        hidden_size=768,
        num_layers=12,
        intermediate_dim=3072,
        num_heads=12,
        global_attention_layer_indices=[2, 5, 8, 11],
        image_shape=(1024, 1024, 3),
    )
    return _measured(
        rows,
        lambda: model.predict_on_batch(images),
        lambda: model.train_on_batch(images, labels),
        lambda: siglip.predict_on_batch(images),
        lambda: sam.predict_on_batch(large_image()),
    )


def transformers(dtype: str = "float32", compiled: bool = False) -> list:
    import torch
    import transformers as library

    use_threads_of_torch()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = library.ViTForImageClassification(library.ViTConfig(num_labels=CLASSES)).to(device)
    half = torch.autocast(device, torch.bfloat16, enabled=dtype != "float32")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    rows = rows_on("torch")
    images, labels = data(rows)
    images, large = (torch.tensor(np.moveaxis(x, -1, 1).copy()) for x in (images, large_image()))
    labels = torch.tensor(labels).long().to(device)

    siglip = library.SiglipVisionModel(library.SiglipVisionConfig()).to(device)
    sam = library.SamVisionModel(library.SamVisionConfig()).to(device)

    run = torch.compile if compiled else lambda function: function
    passes = {each: run(each) for each in (model, siglip, sam)}

    def forward(model, images):
        model.eval()
        with torch.inference_mode(), half:
            outputs = passes[model](images.to(device))
        return outputs[0].float().cpu().numpy()

    def step():
        model.train()
        with half:
            loss = passes[model](images.to(device), labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss)

    return _measured(
        rows,
        lambda: forward(model, images),
        step,
        lambda: forward(siglip, images),
        lambda: forward(sam, large),
    )


CONTENDERS = {
    **{f"keras_transformer-{backend}": ours for backend in BACKENDS},
    **{f"keras_hub-{backend}": keras_hub for backend in BACKENDS},
    "transformers": transformers,
}
DEFAULT = list(CONTENDERS)
# Variables of float32, products of bfloat16.
_MIXED = "mixed_bfloat16"
for _backend in BACKENDS:
    CONTENDERS[f"keras_transformer-bfloat16-{_backend}"] = functools.partial(ours, _MIXED)
    CONTENDERS[f"keras_hub-bfloat16-{_backend}"] = functools.partial(keras_hub, _MIXED)
CONTENDERS["transformers-bfloat16"] = functools.partial(transformers, _MIXED)
CONTENDERS["transformers-compiled-bfloat16"] = functools.partial(transformers, _MIXED, True)

if __name__ == "__main__":
    main(__doc__.splitlines()[0], CONTENDERS, "images/s", DEFAULT)
