"""A tiny model, completions and rewards, and what TRL computes for them.

`python -m tests.training.rewarding` writes TRL's values to `trl_reward_values.json`, with which the
tests compare on each backend. A test on PyTorch computes them again.
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
from keras_transformer.training import GRPO, RLOO, DrGRPO, PPOClip

VALUES = Path(__file__).with_name("trl_reward_values.json")
TEMPERATURE, GROUP, LONGEST = 0.7, 4, 5
TOKENIZER = kt.Tokenizer.of_symbols("abcdefghij", template="none")
PROMPTS = ["abc", "fadgeh", "b"]  # ragged; the rewards of the last are all equal
# Ours, and the arguments of TRL's trainer that mean the same.
LOSSES = {
    "GRPO": (GRPO(beta=0.1), {"loss_type": "grpo", "beta": 0.1}),
    "DAPO": (
        GRPO(clip_high=0.28, average="tokens"),
        {"epsilon_high": 0.28, "loss_type": "bnpo"},
    ),
    "GSPO": (
        GRPO(ratio="sequence_mean", clip=0.1, beta=0.05),
        {
            "importance_sampling_level": "sequence",
            "loss_type": "grpo",
            "epsilon": 0.1,
            "beta": 0.05,
        },
    ),
    "DrGRPO": (DrGRPO(), {"loss_type": "dr_grpo", "scale_rewards": "none"}),
    "PPOClip": (PPOClip(), {"loss_type": "bnpo", "scale_rewards": "batch"}),
    "RLOO": (RLOO(beta=0.1), {"beta": 0.1}),
}
METRICS = {"kl": "kl", "clip_low": "clip_ratio/low_mean", "clip_high": "clip_ratio/high_mean"}
COMPARED = ("lm_head.weight", "model.layers.1.self_attn.q_proj.weight", "model.norm.weight")


def reward(prompt, completion, row) -> float:
    """Reward letters; a row may say that all completions are the same."""
    return 0.25 if row.get("equal") else completion.count("a") + 0.5 * completion.count("b")


def make_lm(seed: int = 0, **values):
    """Make a model with random weights that do not depend on the backend."""
    config = kt.TransformerConfig(
        kind="decoder", vocabulary_size=TOKENIZER.vocabulary_size, hidden_dim=8, num_layers=2,
        num_heads=2, intermediate_dim=12, position="rotary", normalization="rms_norm",
        normalize_first=True, activation="silu", gated=True, use_bias=False,
        tie_embeddings=False, max_sequence_length=64, **values,
    )  # fmt: skip
    lm = kt.CausalLM(kt.models.build_backbone(config), TOKENIZER)
    random = np.random.default_rng(seed)
    for variable in lm.weights:
        variable.assign(random.normal(size=variable.shape, scale=0.4))
    return lm


def by_checkpoint_names(task, values) -> dict[str, np.ndarray]:
    """Return values of all weights as the tensors of a Hugging Face checkpoint."""
    before = [np.array(ops.convert_to_numpy(v)) for v in task.weights]
    for variable, value in zip(task.weights, values, strict=True):
        variable.assign(value)
    with tempfile.TemporaryDirectory() as folder:
        kt.export_to_huggingface(task, folder)
        file = SafetensorsFile(Path(folder) / "model.safetensors")
        found = {key: np.array(file[key]) for key in file}
    for variable, value in zip(task.weights, before, strict=True):
        variable.assign(value)
    return found


def by_trl(name: str) -> dict:
    """Return completions, advantages, loss, metrics and gradients of TRL's trainer."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import datasets
    import torch
    import transformers
    import trl
    from trl.trainer.grpo_trainer import add_fused_lm_head

    kind = (
        (trl.RLOOTrainer, trl.RLOOConfig) if name == "RLOO" else (trl.GRPOTrainer, trl.GRPOConfig)
    )
    options = dict(LOSSES[name][1])
    beta = options.pop("beta", 0.0)
    rows = [{"prompt": prompt, "equal": i == 2} for i, prompt in enumerate(PROMPTS)]
    with tempfile.TemporaryDirectory() as folder:
        models = []
        for seed in (0, 3):
            kt.export_to_huggingface(make_lm(seed), f"{folder}/{seed}")
            models.append(transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/{seed}"))
        arguments = kind[1](
            f"{folder}/out", per_device_train_batch_size=GROUP * len(PROMPTS), report_to=[],
            num_generations=GROUP, max_completion_length=LONGEST, temperature=TEMPERATURE,
            use_cpu=True, bf16=False, beta=0.0, gradient_checkpointing=False, **options,
        )  # fmt: skip
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=TOKENIZER._backend,
            bos_token="<s>",
            eos_token="</s>",
            pad_token="<pad>",
        )
        functions = [
            lambda prompts, completions, equal, **more: [
                reward(*row) for row in zip(
                    prompts, completions, [{"equal": each} for each in equal], strict=True
                )
            ]
        ]  # fmt: skip
        trainer = kind[0](
            models[0], functions, arguments, datasets.Dataset.from_list(rows),
            processing_class=tokenizer,
        )  # fmt: skip
    trainer.beta, trainer.ref_model = beta, models[1].eval()
    add_fused_lm_head(models[1], temperature=TEMPERATURE)
    trainer.current_gradient_accumulation_steps = 1
    torch.manual_seed(0)
    trainer.model.train()
    batch = trainer._generate_and_score_completions([row for row in rows for _ in range(GROUP)])
    ids, mask = batch["completion_ids"], batch["completion_mask"]
    whole = [
        torch.cat([batch[f"prompt_{x}"], batch[f"completion_{x}"]], 1) for x in ("ids", "mask")
    ]
    with torch.no_grad():
        own, other = (
            trainer._get_per_token_logps_and_entropies(model, *whole, ids.shape[1])[0]
            for model in models
        )
    # Ratios on both sides of the range.
    old = own + torch.linspace(-0.4, 0.4, own.numel()).reshape(own.shape).flip(1)
    batch |= {"old_per_token_logps": old, "old_logps": (old * mask).sum(1)}
    trainer._metrics["train"].clear()
    loss = trainer._compute_loss(trainer.model, batch)
    loss.backward()
    metrics = {mine: trainer._metrics["train"].get(theirs) for mine, theirs in METRICS.items()}
    gradients = dict(trainer.model.named_parameters())
    counts = mask.sum(1).tolist()

    def ragged(tensor, digits=7):
        return [
            np.round(row[:count], digits).tolist()
            for row, count in zip(tensor.detach().numpy().astype("float64"), counts, strict=True)
        ]

    return {
        "completions": [row[:count] for row, count in zip(ids.tolist(), counts, strict=True)],
        "own": ragged(own),
        "sampled": ragged(old),
        "reference": ragged(other),
        "advantages": np.round(batch["advantages"].numpy().astype("float64"), 7).tolist(),
        "loss": loss.item(),
        "metrics": {key: value[0] for key, value in metrics.items() if value},
        "gradients": {
            key: np.round(gradients[key].grad.numpy().astype("float64"), 8).tolist()
            for key in COMPARED
        },
    }


def kept() -> dict:
    """Return the values that TRL computed."""
    return json.loads(VALUES.read_text(encoding="utf-8"))


if __name__ == "__main__":
    keras.utils.set_random_seed(0)
    found = {name: by_trl(name) for name in LOSSES}
    VALUES.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")
