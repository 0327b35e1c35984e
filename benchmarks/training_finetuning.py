"""W4 of `training.py`: one epoch of SST-2 fine-tuning of MiniLM from strings, to dev accuracy.

Batch 32, AdamW 5e-5, weights in float32 on all sides. The clock starts before the tokenizer, so
that what a library compiles is in the time, and is read after the epoch and after the accuracy.
"""

import time

from harness import minilm_folder, sst2
from training_passes import (
    MIXED,
    Setting,
    cross_attention_flops,
    encoder_flops,
    measure_peak,
    prepare,
    training_flops,
)

BATCH = 32
# The best for these sentences, in place of KerasHub's default of 512.
LENGTH_OF_KERAS_HUB = 64
MEASURES = ("epoch", "epoch and accuracy")
_LAYERS, _WIDTH, _INNER = 6, 384, 1536  # of MiniLM


def data(setting: Setting) -> tuple:
    """`(texts, labels)` of training, and of dev."""
    count = 64 if setting.short else setting.texts
    train, dev = sst2("train"), sst2("dev")
    dev = tuple(part[:64] for part in dev) if setting.short else dev
    return tuple(part[:count] for part in train), dev


def finetuning(setting: Setting) -> list:
    library = setting.name.split("-")[0]
    run = {
        "keras_transformer": _ours,
        "transformers": _transformers,
        "keras_hub": _keras_hub,
    }[library]
    prepare(setting)
    (texts, labels), dev = data(setting)
    start, epoch, whole, accuracy = run(setting, texts, labels, *dev)
    return [
        (MEASURES[0], len(texts) / (epoch - start)),
        (MEASURES[1], len(texts) / (whole - start)),
        ("dev accuracy", accuracy),
        ("peak", measure_peak(setting)),
    ]


def gflop_per_text(setting: Setting) -> dict:
    """GFLOP for a training text, of the tokens that it has; and with its share of dev.

    What a classifier needs: of the last layer the state of the first token.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{minilm_folder()}/tokenizer.json")
    tokenizer.no_padding()
    tokenizer.no_truncation()

    def needed(texts) -> float:
        lengths = [len(e) for e in tokenizer.encode_batch(texts)]
        last = cross_attention_flops([1] * len(texts), lengths, 1, _WIDTH)
        last += 2 * 2 * _WIDTH * _INNER * len(texts)
        return encoder_flops(lengths, _LAYERS - 1, _WIDTH, _INNER) + last

    train, dev = (needed(texts) for texts, _ in data(setting))
    count = len(data(setting)[0][0])
    flops = training_flops(train), training_flops(train) + dev
    return {m: f / 1e9 / count for m, f in zip(MEASURES, flops, strict=True)}


def _ours(setting, texts, labels, dev_texts, dev_labels):
    import keras

    import keras_transformer as kt

    classifier = kt.TextClassifier.from_preset(
        "minilm_l6_en", num_classes=2, dtype=setting.precision
    )
    start = time.perf_counter()
    options = {"batch_size": BATCH, "shuffle": True}
    if keras.backend.backend() == "torch":
        # PyTorch compiles nothing for a shape, so there may be many.
        options |= {"max_buckets": 32, "multiple": 1}
    classifier.fit(classifier.make_dataset(texts, labels, **options), epochs=1, verbose=0)
    epoch = time.perf_counter()
    accuracy = classifier.evaluate(dev_texts, dev_labels, batch_size=2 * BATCH, verbose=0)[1]
    return start, epoch, time.perf_counter(), accuracy


def _keras_hub(setting, texts, labels, dev_texts, dev_labels):
    import keras
    import keras_hub
    import numpy as np

    folder = minilm_folder()
    tokenizer = keras_hub.models.Tokenizer.from_preset(folder)
    model = keras_hub.models.BertTextClassifier(
        backbone=keras_hub.models.Backbone.from_preset(folder),
        preprocessor=keras_hub.models.BertTextClassifierPreprocessor(
            tokenizer, sequence_length=LENGTH_OF_KERAS_HUB
        ),
        num_classes=2,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.AdamW(5e-5), loss=loss, metrics=["accuracy"])
    start = time.perf_counter()
    model.fit(texts, np.array(labels), batch_size=BATCH, epochs=1, verbose=0)
    epoch = time.perf_counter()
    dev = dev_texts, np.array(dev_labels)
    accuracy = model.evaluate(*dev, batch_size=2 * BATCH, verbose=0)[1]
    return start, epoch, time.perf_counter(), accuracy


def _transformers(setting, texts, labels, dev_texts, dev_labels):
    """With the parts of its Trainer: each batch padded to its longest row; or grouped by length."""
    import torch
    from torch.utils.data import DataLoader, RandomSampler
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
    )
    from transformers.trainer_pt_utils import LengthGroupedSampler

    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    model = AutoModelForSequenceClassification.from_pretrained(minilm_folder(), num_labels=2)
    # Fused, as the Trainer's is.
    optimizer = torch.optim.AdamW(model.parameters(), 5e-5, fused=True)
    collate = DataCollatorWithPadding(tokenizer)

    def rows_of(texts, labels):
        ids = tokenizer(texts, truncation=True)["input_ids"]
        return [{"input_ids": i, "label": n} for i, n in zip(ids, labels, strict=True)]

    model.train()
    start = time.perf_counter()
    rows = rows_of(texts, labels)
    if setting.name == "transformers-grouped":
        sampler = LengthGroupedSampler(BATCH, lengths=[len(row["input_ids"]) for row in rows])
    else:
        sampler = RandomSampler(rows)
    for batch in DataLoader(rows, BATCH, sampler=sampler, collate_fn=collate):
        with torch.autocast("cpu", torch.bfloat16, enabled=setting.precision == MIXED):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    epoch = time.perf_counter()
    model.eval()
    right = 0
    mixed = torch.autocast("cpu", torch.bfloat16, enabled=setting.precision == MIXED)
    with torch.inference_mode(), mixed:
        dev = rows_of(dev_texts, dev_labels)
        for batch in DataLoader(dev, 2 * BATCH, collate_fn=collate):
            right += int((model(**batch).logits.argmax(-1) == batch["labels"]).sum())
    return start, epoch, time.perf_counter(), right / len(dev_labels)
