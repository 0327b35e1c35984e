"""W3 of `training.py`, BERT-base, and what it runs on a GPU: BERT-base and GPT-2.

BERT learns to make the mean square of its last states small, GPT-2 predicts the next token. Dropout
0.1 everywhere, on the attention too, and AdamW 1e-4. For "mixed_bfloat16" of Keras the Transformers
library has PyTorch's autocast, and `compiled` its forward pass by `torch.compile`.
"""

import contextlib
import dataclasses

import numpy as np
from harness import device_gigabytes
from training_passes import (
    MIXED,
    Setting,
    encoder_flops,
    keras_pass,
    measure_passes,
    measure_peak,
    prepare,
    projection_flops,
    torch_pass,
    training_flops,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and its batches."""

    measure: str
    model: str  # "bert" or "decoder"
    rows: int
    length: int
    steps: int = 4  # of a pass
    layers: int = 12
    width: int = 768
    heads: int = 12
    inner: int = 3072
    vocabulary: int = 30_522

    def batches(self) -> list:
        """Random ids; of the decoder, each predicts the next."""
        rng = np.random.default_rng(0)
        shape = (self.steps, self.rows, self.length + 1)
        ids = rng.integers(10, self.vocabulary, shape).astype("int32")
        return [(row[:, :-1], row[:, 1:]) for row in ids]


CASES = {
    "bert": [Case("step of 8 x 128", "bert", 8, 128)],
    "gpu": [
        Case("BERT-base, 64 x 128", "bert", 64, 128, steps=20),
        Case("GPT-2 124M, 16 x 1024", "decoder", 16, 1024, steps=20, vocabulary=50_257),
        Case("BERT-base, 32 x 512", "bert", 32, 512, steps=20),
    ],
}


def cases_of(workload: str, short: bool) -> list[Case]:
    tiny = {"rows": 2, "length": 8, "steps": 2, "layers": 2, "width": 32, "heads": 2, "inner": 64}
    cases = CASES[workload]
    return [dataclasses.replace(c, vocabulary=500, **tiny) for c in cases] if short else cases


def gflop_per_step(workload: str, setting: Setting) -> dict:
    gflop = {}
    for case in cases_of(workload, setting.short):
        lengths = [case.length] * case.rows
        flops = encoder_flops(lengths, case.layers, case.width, case.inner)
        if case.model == "decoder":
            flops += projection_flops(lengths, case.width, case.vocabulary)
        gflop[case.measure] = training_flops(flops) / 1e9
    return gflop


def models(workload: str, setting: Setting) -> list:
    prepare(setting)
    make = {
        "keras_transformer": _ours,
        "transformers": _transformers,
        "keras_hub": _keras_hub,
    }[setting.name.split("-")[0]]
    results = []
    for case in cases_of(workload, setting.short):
        found = measure_passes(make(case, setting), case.steps, case.measure)
        if setting.gpu:
            found.append((f"GB, {case.measure}", device_gigabytes()))
        print(f"ROW {found}", flush=True)
        results += found
    return [*results, ("peak", measure_peak(setting))]


def _ours(case: Case, setting: Setting):
    import keras_transformer as kt

    preset = {"bert": "bert_base_en_uncased", "decoder": "gpt2_base_en"}[case.model]
    model = kt.Backbone.from_preset(
        preset,
        load_weights=False,
        dtype=setting.precision,
        num_layers=case.layers,
        hidden_dim=case.width,
        num_heads=case.heads,
        intermediate_dim=case.inner,
        vocabulary_size=case.vocabulary,
        **({"pooler": False} if case.model == "bert" else {}),
    )
    if case.model == "bert":
        model.compile(kt.training.FineTuningAdamW(1e-4), loss="mse")
        return keras_pass(model, _with_zeros(case))
    lm = kt.CausalLM(model)
    lm.compile(kt.training.FineTuningAdamW(1e-4), loss=kt.training.TokenCrossEntropy())
    batches = [
        ({"token_ids": ids, "padding_mask": np.ones_like(ids, bool)}, following)
        for ids, following in case.batches()
    ]
    return keras_pass(lm, batches)


def _keras_hub(case: Case, setting: Setting):
    import keras
    import keras_hub

    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=case.vocabulary,
        num_layers=case.layers,
        num_heads=case.heads,
        hidden_dim=case.width,
        intermediate_dim=case.inner,
        dropout=0.1,
        dtype=setting.precision,
    )
    model = keras.Model(backbone.input, backbone.output["sequence_output"])
    model.compile(keras.optimizers.AdamW(1e-4), loss="mse")
    return keras_pass(model, _with_zeros(case))


def _with_zeros(case: Case) -> list:
    """Batches of BERT for Keras, whose loss "mse" compares the states with zeros."""
    zeros = np.zeros((case.rows, case.length, case.width), "float32")
    batches = []
    for ids, _ in case.batches():
        inputs = {"token_ids": ids, "segment_ids": np.zeros_like(ids)}
        batches.append(({**inputs, "padding_mask": np.ones_like(ids, bool)}, zeros))
    return batches


def _transformers(case: Case, setting: Setting):
    import torch
    from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

    if case.model == "bert":
        config = BertConfig(
            vocab_size=case.vocabulary,
            hidden_size=case.width,
            num_hidden_layers=case.layers,
            num_attention_heads=case.heads,
            intermediate_size=case.inner,
        )
        model = BertModel._from_config(config, attn_implementation="sdpa", add_pooling_layer=False)
    else:
        config = GPT2Config(
            vocab_size=case.vocabulary,
            n_embd=case.width,
            n_layer=case.layers,
            n_head=case.heads,
            n_inner=case.inner,
            use_cache=False,
        )
        model = GPT2LMHeadModel._from_config(config, attn_implementation="sdpa")
    model = model.to(setting.device).train()
    cast = contextlib.nullcontext
    if setting.precision == MIXED:
        cast = lambda: torch.autocast(setting.device, torch.bfloat16)  # noqa: E731
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    batches = [
        [torch.tensor(part, dtype=torch.long, device=setting.device) for part in batch]
        for batch in case.batches()
    ]

    def forward(ids, following):
        with cast():
            outputs = model(input_ids=ids, attention_mask=torch.ones_like(ids))
            if case.model == "bert":
                return outputs.last_hidden_state.float().square().mean()
            logits = outputs.logits.float().flatten(0, 1)
            return torch.nn.functional.cross_entropy(logits, following.flatten())

    if "compiled" in setting.name.split("-"):
        forward = torch.compile(forward)
    return torch_pass(lambda _, batch: forward(*batch), model, optimizer, batches)
