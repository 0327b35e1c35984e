"""Tiny models and rows for tests of preferences, and what TRL computes for them.

`python -m tests.training.preferring` writes TRL's values to `trl_values.json`, with which the tests
compare on each backend. A test on PyTorch computes them again.
"""

import json
import os
import tempfile
from pathlib import Path

import keras
import numpy as np
from keras import ops

import keras_transformer as kt
from keras_transformer.support.files import SafetensorsFile
from keras_transformer.training import CPO, DPO, IPO, KTO, ORPO, BradleyTerry, SimPO, SLiC

VALUES = Path(__file__).with_name("trl_values.json")

# From short to long: without shuffling, the order of a data set, on which TRL's KTO depends.
ROWS = [
    ("red is", " warm", " cold"),
    ("a colour for", " you", " ice is warm red"),
    ("blue is", " cold you", " ice for you is it"),
]
TOKENIZER = kt.Tokenizer.train(
    [prompt + text for prompt, *texts in ROWS for text in texts] * 3,
    vocabulary_size=260,  # bytes: merges with equal counts come in any order
    template="none",
)
LOSSES = {
    "DPO": DPO(beta=0.3),
    "IPO": IPO(beta=0.2),
    "SLiC": SLiC(beta=0.2),
    "CPO": CPO(beta=0.2, alpha=0.5),
    "smoothed CPO": CPO(beta=0.2, alpha=0.0, label_smoothing=0.1),
    "SimPO": SimPO(beta=2.0, gamma=0.5),
    "ORPO": ORPO(beta=0.3),
    "KTO": KTO(beta=0.3, desirable_weight=1.5, undesirable_weight=0.75),
    "reward": BradleyTerry(center=0.1),
}
METRICS = {
    "accuracy": "rewards/accuracies",
    "chosen_reward": "rewards/chosen",
    "rejected_reward": "rewards/rejected",
    "margin": "rewards/margins",
    "divergence": "kl",
}


def columns() -> dict[str, list[str]]:
    return dict(
        zip(("prompt", "chosen", "rejected"), map(list, zip(*ROWS, strict=True)), strict=True)
    )


def labelled() -> dict[str, list]:
    """Return the rows without pairs, from short to long completions."""
    rows = [(p, text, side == 0) for p, *texts in ROWS for side, text in enumerate(texts)]
    count = {row: len(TOKENIZER.encode(row[0])) for row in rows}
    rows.sort(key=lambda row: (len(TOKENIZER.encode(row[0] + row[1])) - count[row], count[row]))
    return dict(
        zip(("prompt", "completion", "label"), map(list, zip(*rows, strict=True)), strict=True)
    )


def fill(task, seed: int):
    """Give a task random weights that do not depend on the backend."""
    random = np.random.default_rng(seed)
    for variable in task.weights:
        variable.assign(random.normal(size=variable.shape, scale=0.3))
    return task


def make_backbone(dropout=0.0, **values):
    return kt.models.build_backbone(
        kt.TransformerConfig(
            kind="decoder", vocabulary_size=TOKENIZER.vocabulary_size, hidden_dim=8, num_layers=1,
            num_heads=2, intermediate_dim=12, position="rotary", normalization="rms_norm",
            normalize_first=True, activation="silu", gated=True, use_bias=False,
            tie_embeddings=False, max_sequence_length=64, dropout=dropout, **values,
        )
    )  # fmt: skip


def make_lm(seed: int = 0, **values):
    return fill(kt.CausalLM(make_backbone(**values), TOKENIZER), seed)


def make_reward_model(seed: int = 0):
    return fill(kt.TextClassifier(make_backbone(), TOKENIZER, num_classes=1), seed)


def learn(name: str):
    """Fit one step of gradient descent with a rate of 1; return the task, history and gradients."""
    loss = LOSSES[name]
    task = make_reward_model() if name == "reward" else make_lm(2)
    before = [np.array(ops.convert_to_numpy(v)) for v in task.weights]
    # TensorFlow's graphs are enough here: XLA would compile nine of them.
    task.compile(keras.optimizers.SGD(1.0), jit_compile=keras.backend.backend() == "jax")
    more = {"reference": make_lm(0)} if loss.reads_reference else {}
    rows = columns()
    if name == "KTO":  # in one bucket, so that rows are in the same order on each backend
        rows = task.make_preference_dataset(labelled(), loss=loss, buckets=[(16, 24)])
    if name == "reward":  # TRL ends texts with this token
        rows |= {side: [f"{text}</s>" for text in rows[side]] for side in ("chosen", "rejected")}
    history = task.fit_preferences(rows, loss=loss, shuffle=False, verbose=0, **more).history
    gradients = [old - ops.convert_to_numpy(v) for old, v in zip(before, task.weights, strict=True)]
    return task, {key: value[0] for key, value in history.items()}, gradients


def gradients_by_their_names(task, gradients) -> dict[str, np.ndarray]:
    """Return gradients as tensors of a Hugging Face checkpoint."""
    for variable, gradient in zip(task.weights, gradients, strict=True):
        variable.assign(gradient)
    with tempfile.TemporaryDirectory() as folder:
        kt.export_to_huggingface(task, folder)
        file = SafetensorsFile(Path(folder) / "model.safetensors")
        return {key: np.array(file[key]) for key in file}


def by_trl(name: str):
    """Return the model, loss and metrics of TRL's trainer for the same weights and rows."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import datasets
    import transformers
    import trl
    from trl.experimental.cpo import CPOConfig, CPOTrainer
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    loss, data = LOSSES[name], datasets.Dataset.from_dict(columns())

    def theirs(task, kind):
        kt.export_to_huggingface(task, f"{folder}/{task.name}")
        return kind.from_pretrained(f"{folder}/{task.name}")

    with tempfile.TemporaryDirectory() as folder:
        TOKENIZER.save(f"{folder}/words")
        words = transformers.AutoTokenizer.from_pretrained(f"{folder}/words")
        words.bos_token = None  # the trainers of CPO and ORPO would put it before each text
        config = {
            "output_dir": folder, "use_cpu": True, "bf16": False, "report_to": "none",
            "gradient_checkpointing": False, "per_device_train_batch_size": 8, "max_length": 64,
            "disable_tqdm": True,
        }  # fmt: skip
        lm, options = transformers.AutoModelForCausalLM, {}
        if name == "reward":
            model = theirs(make_reward_model(), transformers.AutoModelForSequenceClassification)
            model.config.pad_token_id = TOKENIZER.pad_id
            kinds = trl.RewardTrainer, trl.RewardConfig
            config["center_rewards_coefficient"] = loss.center
        else:
            model = theirs(make_lm(2), lm)
            config["beta"] = loss.beta
        if name in ("DPO", "IPO", "SLiC"):
            kinds = trl.DPOTrainer, trl.DPOConfig
            config["loss_type"] = [{"DPO": "sigmoid", "IPO": "ipo", "SLiC": "hinge"}[name]]
        elif name in ("CPO", "smoothed CPO"):
            kinds = CPOTrainer, CPOConfig
            config |= {"cpo_alpha": loss.alpha, "label_smoothing": loss.label_smoothing}
        elif name == "SimPO":
            kinds = CPOTrainer, CPOConfig
            config |= {"loss_type": "simpo", "cpo_alpha": 0.0, "simpo_gamma": loss.gamma}
        elif name == "ORPO":
            kinds = ORPOTrainer, ORPOConfig
        elif name == "KTO":
            kinds = trl.KTOTrainer, trl.KTOConfig
            data = datasets.Dataset.from_dict(labelled())
            config |= {"desirable_weight": loss.desirable_weight}
            config |= {"undesirable_weight": loss.undesirable_weight}
        if loss.reads_reference:
            options["ref_model"] = theirs(make_lm(0), lm)
        trainer = kinds[0](
            model, args=kinds[1](**config), train_dataset=data, processing_class=words, **options
        )
        batch = next(iter(trainer.get_train_dataloader()))
        found = trainer.compute_loss(model.train(), batch)
        found.backward()
        kept = getattr(trainer, "_metrics", None) or trainer._stored_metrics
        metrics = {key: np.mean(value) for key, value in kept["train"].items()}
    return model, float(found.detach()), metrics


# A tensor whose gradient is recorded.
RECORDED = "model.layers.0.mlp.down_proj.weight"


def _record() -> None:
    values = {}
    for name in LOSSES:
        model, loss, metrics = by_trl(name)
        known = {ours: float(metrics[key]) for ours, key in METRICS.items() if key in metrics}
        if name == "reward":
            known = {key: float(metrics[key]) for key in ("accuracy", "margin")}
        gradient = model.get_parameter(RECORDED).grad.numpy()
        rounded = [[float(f"{x:.7g}") for x in row] for row in gradient]
        values[name] = {"loss": loss, **known, "gradient": rounded}
    VALUES.write_text(json.dumps(values) + "\n")


if __name__ == "__main__":
    _record()
