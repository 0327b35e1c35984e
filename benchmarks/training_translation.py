"""Translation in `training.py`: the tiny translator of `examples/translation.py`, three times.

4 + 4 layers of width 128, feed-forward 256, 4 heads, norms first, one matrix of 10,000 words for
both embeddings and the output, sinusoidal positions, dropout 0.3 on the embeddings and on each
sub-layer's output and nowhere else, label smoothing 0.1, Adam. Batches of about 4,096 tokens a
side, the same for all: 256 x 16 random ones, and those of Multi30k as `fit` makes them.
"""

import math
import pathlib
import sys

import numpy as np
from harness import data_folder, multi30k
from training_passes import (
    Setting,
    cross_attention_flops,
    encoder_flops,
    keras_pass,
    measure_passes,
    measure_peak,
    prepare,
    projection_flops,
    torch_pass,
    training_flops,
)

VOCABULARY, LAYERS, WIDTH, INNER, HEADS, DROPOUT = 10_000, 4, 128, 256, 4, 0.3
RATE, SMOOTHING = 5e-4, 0.1
RANDOM, REAL = "256 x 16", "Multi30k"


def layers_of(setting: Setting) -> int:
    return 1 if setting.short else LAYERS


def translation(setting: Setting) -> list:
    prepare(setting)
    make = {
        "keras_transformer": _ours,
        "torch_transformer": _torch,
        "keras_hub": _keras_hub,
    }[setting.name.split("-")[0]]
    results = []
    for measure, batches in load_batches(setting.folder).items():
        run = make(batches, setting)
        results += measure_passes(run, sum(map(count_tokens, batches)), measure)
    return [*results, ("peak", measure_peak(setting))]


# The batches: `(inputs, targets, weights)` as Keras takes them.


def make_batches(setting: Setting) -> None:
    """Write the batches of all contenders to a file."""
    cases = {RANDOM: random_batches(setting.short)}
    texts = pathlib.Path(data_folder(), "multi30k", "tok")
    if texts.is_dir():
        cases[REAL] = _real_batches(setting.short)
    else:
        print(f"{texts} is missing, so there are random batches only", file=sys.stderr)
    arrays = {}
    for measure, batches in cases.items():
        for place, (inputs, targets, weights) in enumerate(batches):
            batch = {**inputs, "targets": targets, "weights": weights}
            arrays.update({f"{measure}/{place:03}/{name}": v for name, v in batch.items()})
    np.savez(setting.folder / "batches.npz", **arrays)


def load_batches(folder: pathlib.Path) -> dict[str, list]:
    """`{measure: batches}`, in the order in which they were made."""
    found: dict = {}
    with np.load(folder / "batches.npz") as arrays:
        for key in arrays.files:
            measure, place, name = key.split("/")
            found.setdefault(measure, {}).setdefault(place, {})[name] = arrays[key]
    return {
        measure: [(batch, batch.pop("targets"), batch.pop("weights")) for batch in places.values()]
        for measure, places in found.items()
    }


def count_tokens(batch) -> int:
    """Return the number of tokens of both sides that are not padding."""
    return int(batch[0]["encoder_padding_mask"].sum() + batch[0]["decoder_padding_mask"].sum())


def random_batches(short: bool) -> list:
    """Frequent words and rare ones, so that there is something to learn."""
    rng = np.random.default_rng(0)
    frequency = 1 / np.arange(10, VOCABULARY)
    count, shape = (2, (4, 8)) if short else (8, (256, 16))
    batches = []
    for _ in range(count):
        ids = rng.choice(VOCABULARY - 10, (3, *shape), p=frequency / frequency.sum()) + 10
        source, inputs, targets = ids.astype("int32")
        whole = np.ones(shape, bool)
        batch = {
            "encoder_token_ids": source,
            "encoder_padding_mask": whole,
            "decoder_token_ids": inputs,
            "decoder_padding_mask": whole,
        }
        batches.append((batch, targets, whole.astype("float32")))
    return batches


def _real_batches(short: bool) -> list:
    """Return the first batches of an epoch, in which all lengths occur."""
    import keras_transformer as kt

    source, target = (side[: 500 if short else None] for side in multi30k("train"))
    tokenizer = kt.Tokenizer.train(source + target, kind="bpe", vocabulary_size=VOCABULARY)
    dataset = kt.Seq2SeqLM(_our_backbone(1), tokenizer).make_dataset(
        source, target, batch_tokens=64 if short else 4096, multiple=4, shuffle=True
    )
    return [dataset[i] for i in range(min(len(dataset), 3 if short else 24))]


def forward_flops(batches: list, layers: int) -> float:
    """Operations of a forward pass over batches, without their padding."""
    sources, targets = (
        np.concatenate([batch[0][f"{side}_padding_mask"].sum(-1) for batch in batches])
        for side in ("encoder", "decoder")
    )
    return (
        encoder_flops(sources, layers, WIDTH, INNER)
        + encoder_flops(targets, layers, WIDTH, INNER)
        + cross_attention_flops(targets, sources, layers, WIDTH)
        + projection_flops(targets, WIDTH, VOCABULARY)
    )


def gflop_per_token(setting: Setting) -> dict:
    """GFLOP for a token of either side that is not padding."""
    return {
        measure: training_flops(forward_flops(batches, layers_of(setting)))
        / (1e9 * sum(map(count_tokens, batches)))
        for measure, batches in load_batches(setting.folder).items()
    }


# The contenders.


def _our_backbone(layers: int):
    import keras_transformer as kt

    config = kt.TransformerConfig(
        kind="seq2seq",
        vocabulary_size=VOCABULARY,
        hidden_dim=WIDTH,
        num_layers=layers,
        num_heads=HEADS,
        intermediate_dim=INNER,
        normalize_first=True,
        dropout=DROPOUT,
        scale_embedding=True,
    )
    return kt.models.Seq2Seq(config)


def _ours(batches: list, setting: Setting):
    import keras_transformer as kt

    lm = kt.Seq2SeqLM(_our_backbone(layers_of(setting)))
    lm.compile(
        kt.training.transformer_adam(RATE),
        loss=kt.training.TokenCrossEntropy(label_smoothing=SMOOTHING),
    )
    return keras_pass(lm, batches)


def _keras_hub(batches: list, setting: Setting):
    import keras
    import keras_hub
    from keras import ops

    inputs = {
        f"{side}_{name}": keras.Input((None,), dtype=dtype, name=f"{side}_{name}")
        for side in ("encoder", "decoder")
        for name, dtype in (("token_ids", "int32"), ("padding_mask", "bool"))
    }
    embedding = keras_hub.layers.ReversibleEmbedding(
        VOCABULARY, WIDTH, embeddings_initializer=keras.initializers.RandomNormal(0, WIDTH**-0.5)
    )

    def embed(side):
        x = embedding(inputs[f"{side}_token_ids"]) * math.sqrt(WIDTH)
        x = x + keras_hub.layers.SinePositionEncoding()(x)
        return keras.layers.Dropout(DROPOUT)(x)

    options = {"dropout": DROPOUT, "activation": "relu", "normalize_first": True}
    blocks = []
    x = embed("encoder")
    for _ in range(layers_of(setting)):
        blocks.append(keras_hub.layers.TransformerEncoder(INNER, HEADS, **options))
        x = blocks[-1](x, padding_mask=inputs["encoder_padding_mask"])
    states = keras.layers.LayerNormalization()(x)
    x = embed("decoder")
    for _ in range(layers_of(setting)):
        blocks.append(keras_hub.layers.TransformerDecoder(INNER, HEADS, **options))
        x = blocks[-1](
            x,
            states,
            decoder_padding_mask=inputs["decoder_padding_mask"],
            encoder_padding_mask=inputs["encoder_padding_mask"],
        )
    logits = embedding(keras.layers.LayerNormalization()(x), reverse=True)
    # These layers drop attention weights at the rate of their outputs, and with that they have no
    # fused attention. The model has no such dropout: without it they are faster.
    for layer in blocks:
        for name in ("_self_attention_layer", "_cross_attention_layer"):
            if hasattr(layer, name):
                getattr(layer, name)._dropout = 0.0

    class CrossEntropy(keras.losses.Loss):
        """With label smoothing, and without the one-hot targets that Keras's own would need."""

        def call(self, targets, logits):
            targets = ops.expand_dims(ops.cast(targets, "int32"), -1)
            picked = ops.take_along_axis(logits, targets, axis=-1)[..., 0]
            expected = (1 - SMOOTHING) * picked + SMOOTHING * ops.mean(logits, axis=-1)
            return ops.logsumexp(logits, axis=-1) - expected

    model = keras.Model(inputs, logits)
    loss = CrossEntropy(reduction="mean_with_sample_weight")
    model.compile(keras.optimizers.Adam(RATE, beta_2=0.98, epsilon=1e-9), loss=loss)
    return keras_pass(model, batches)


def _torch(batches: list, setting: Setting):
    import torch

    # A program for each shape of a batch, as the other libraries compile them.
    compiled = setting.name == "torch_transformer-compiled"
    if compiled:
        torch._dynamo.config.recompile_limit = 64
    model = torch_model(layers_of(setting))
    optimizer = torch.optim.Adam(model.parameters(), RATE, betas=(0.9, 0.98), eps=1e-9, fused=True)
    if compiled:
        model = torch.compile(model, dynamic=False)

    def loss_of(model, batch):
        source, target, source_padding, target_padding, wanted = batch
        logits = model(source, target, source_padding, target_padding)
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), wanted, label_smoothing=SMOOTHING
        )

    return torch_pass(loss_of, model, optimizer, [torch_batch(*batch) for batch in batches])


def torch_batch(inputs: dict, targets, weights) -> list:
    """Convert to tensors: a mask that masks nothing to None, targets that do not count to -100."""
    import torch

    ids = [torch.from_numpy(inputs[f"{s}_token_ids"]) for s in ("encoder", "decoder")]
    masks = [torch.from_numpy(~inputs[f"{s}_padding_mask"]) for s in ("encoder", "decoder")]
    masks = [mask if mask.any() else None for mask in masks]
    wanted = np.where(weights > 0, targets, -100).astype("int64").ravel()
    return [*ids, *masks, torch.from_numpy(wanted)]


def torch_model(layers: int):
    import torch
    from torch import nn

    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, WIDTH)
            nn.init.normal_(self.embedding.weight, std=WIDTH**-0.5)
            self.dropout = nn.Dropout(DROPOUT)
            self.transformer = nn.Transformer(
                WIDTH, HEADS, layers, layers, INNER, DROPOUT, batch_first=True, norm_first=True
            )
            # It drops attention weights and the inner activations too: the model does not.
            for module in self.modules():
                if isinstance(module, nn.MultiheadAttention):
                    module.dropout = 0.0
                elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                    module.dropout.p = 0.0
            positions = np.arange(512)[:, None] / 10_000 ** (np.arange(0, WIDTH, 2) / WIDTH)
            table = np.stack([np.sin(positions), np.cos(positions)], -1).reshape(512, WIDTH)
            self.register_buffer("positions", torch.tensor(table, dtype=torch.float32))

        def embed(self, ids):
            x = self.embedding(ids) * math.sqrt(WIDTH) + self.positions[: ids.shape[1]]
            return self.dropout(x)

        def forward(self, source, target, source_padding, target_padding):
            length = target.shape[1]
            causal = torch.ones(length, length, dtype=torch.bool).triu(1)
            states = self.transformer(
                self.embed(source),
                self.embed(target),
                tgt_mask=causal,
                tgt_is_causal=True,
                src_key_padding_mask=source_padding,
                tgt_key_padding_mask=target_padding,
                memory_key_padding_mask=source_padding,
            )
            return states @ self.embedding.weight.T

    return Translator().train()
