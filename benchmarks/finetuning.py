"""One epoch of SST-2 fine-tuning of MiniLM from strings, compile time included; dev accuracy.

Batch 32, AdamW 5e-5 on all sides. The Transformers library pads each batch to its longest row.
KerasHub pads to a set length: 64, the best for these sentences, in place of its default of 512.

python benchmarks/finetuning.py --rounds 3
"""

import random
import time

from harness import BACKENDS, main, minilm_folder, sst2, use_threads_of_torch


def ours() -> list:
    import keras

    import keras_transformer as kt

    if keras.backend.backend() == "torch":
        use_threads_of_torch()
    keras.utils.set_random_seed(0)
    (texts, labels), dev = sst2("train"), sst2("dev")
    classifier = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
    start = time.perf_counter()
    classifier.fit(texts, labels, batch_size=32, epochs=1, verbose=0)
    seconds = time.perf_counter() - start
    accuracy = classifier.evaluate(*dev, batch_size=64, verbose=0)[1]
    return [("texts", len(texts) / seconds), ("dev accuracy", accuracy)]


def transformers() -> list:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    use_threads_of_torch()
    torch.manual_seed(0)
    random.seed(0)
    (texts, labels), (dev_texts, dev_labels) = sst2("train"), sst2("dev")
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    model = AutoModelForSequenceClassification.from_pretrained(minilm_folder(), num_labels=2)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-5)
    start = time.perf_counter()
    ids, order = tokenizer(texts, truncation=True)["input_ids"], list(range(len(texts)))
    random.shuffle(order)
    for first in range(0, len(order), 32):
        rows = order[first : first + 32]
        batch = tokenizer.pad({"input_ids": [ids[i] for i in rows]}, return_tensors="pt")
        model(**batch, labels=torch.tensor([labels[i] for i in rows])).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    seconds = time.perf_counter() - start
    model.eval()
    with torch.inference_mode():
        batch = tokenizer(dev_texts, padding=True, truncation=True, return_tensors="pt")
        right = model(**batch).logits.argmax(-1) == torch.tensor(dev_labels)
    return [("texts", len(texts) / seconds), ("dev accuracy", right.float().mean().item())]


def keras_hub() -> list:
    import keras
    import keras_hub
    import numpy as np

    keras.utils.set_random_seed(0)
    (texts, labels), (dev_texts, dev_labels) = sst2("train"), sst2("dev")
    folder = minilm_folder()
    tokenizer = keras_hub.models.Tokenizer.from_preset(folder)
    model = keras_hub.models.BertTextClassifier(
        backbone=keras_hub.models.Backbone.from_preset(folder),
        preprocessor=keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=64),
        num_classes=2,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.AdamW(5e-5), loss=loss, metrics=["accuracy"])
    start = time.perf_counter()
    model.fit(texts, np.array(labels), batch_size=32, epochs=1, verbose=0)
    seconds = time.perf_counter() - start
    accuracy = model.evaluate(dev_texts, np.array(dev_labels), batch_size=64, verbose=0)[1]
    return [("texts", len(texts) / seconds), ("dev accuracy", accuracy)]


CONTENDERS = {
    **{f"keras_transformer-{backend}": ours for backend in BACKENDS},
    "transformers": transformers,
    **{f"keras_hub-{backend}": keras_hub for backend in BACKENDS},
}
DEFAULT = ["keras_transformer-jax", "transformers", "keras_hub-tensorflow", "keras_hub-jax"]

if __name__ == "__main__":
    main(__doc__.splitlines()[0], CONTENDERS, "texts/s", DEFAULT)
