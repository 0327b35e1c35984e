"""Measure ViT-B/16 on 8 images of 224 x 224: a forward pass and a training step.

python benchmarks/images.py --rounds 3

In float32; contenders named `bfloat16` compute in bfloat16 with float32 weights. The weights are
random, and the images are prepared, since reading and resizing is done by Pillow for all. A
training step uses cross-entropy over 1,000 classes and Adam.
"""

import functools

import numpy as np
from harness import BACKENDS, main, median_seconds, use_threads_of_torch

ROWS, CLASSES = 8, 1000


def data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    images = random.normal(size=(ROWS, 224, 224, 3)).astype("float32")
    return images, random.integers(0, CLASSES, ROWS).astype("int32")


def _measured(forward, step) -> list:
    return [
        ("forward", ROWS / median_seconds(forward, runs=5, warmup=2)),
        ("training", ROWS / median_seconds(step, runs=3, warmup=2)),
    ]


def ours(dtype: str = "float32") -> list:
    import keras

    import keras_transformer as kt

    if keras.backend.backend() == "torch":
        use_threads_of_torch()
    model = kt.ImageClassifier.from_preset(
        "vit_base_patch16_224", load_weights=False, num_classes=CLASSES, dtype=dtype
    )
    model.compile(keras.optimizers.Adam(1e-4), model.loss)
    images, labels = data()
    inputs = {"images": images}
    return _measured(
        lambda: model.predict_on_batch(inputs), lambda: model.train_on_batch(inputs, labels)
    )


def keras_hub(dtype: str = "float32") -> list:
    import keras
    import keras_hub

    if keras.backend.backend() == "torch":
        use_threads_of_torch()
    keras.config.set_dtype_policy(dtype)
    backbone = keras_hub.models.ViTBackbone(
        (224, 224, 3), (16, 16), num_layers=12, num_heads=12, hidden_dim=768, mlp_dim=3072
    )
    model = keras_hub.models.ViTImageClassifier(backbone, num_classes=CLASSES, pooling="token")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss)
    images, labels = data()
    return _measured(
        lambda: model.predict_on_batch(images), lambda: model.train_on_batch(images, labels)
    )


def transformers(dtype: str = "float32") -> list:
    import torch
    import transformers as library

    use_threads_of_torch()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = library.ViTForImageClassification(library.ViTConfig(num_labels=CLASSES)).to(device)
    half = torch.autocast(device, torch.bfloat16, enabled=dtype != "float32")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    images, labels = data()
    images = torch.tensor(np.moveaxis(images, -1, 1).copy())
    labels = torch.tensor(labels).long().to(device)

    def forward():
        with torch.inference_mode(), half:
            return model.eval()(images.to(device)).logits.float().cpu().numpy()

    def step():
        with half:
            loss = model.train()(images.to(device), labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss)

    return _measured(forward, step)


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

if __name__ == "__main__":
    main(__doc__.splitlines()[0], CONTENDERS, "images/s", DEFAULT)
