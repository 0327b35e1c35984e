"""One model of each kind, its data, and 20 steps of training: what all runs have in common."""

import keras
import numpy as np

import keras_transformer as kt

STEPS = 20
_SIZES = {"hidden_dim": 16, "num_heads": 8, "head_dim": 4, "intermediate_dim": 32}
_SIZES |= {"vocabulary_size": 64, "num_layers": 1, "dropout": 0.0}


def config(kind: str, **values) -> kt.TransformerConfig:
    """A small config of an encoder, a decoder or both, whose sizes 8 devices divide."""
    own = {
        "encoder": {"position": "learned", "max_sequence_length": 32, "pooler": True},
        "decoder": {
            "position": "rotary",
            "num_key_value_heads": 4,
            "gated": True,
            "normalization": "rms_norm",
            "normalize_first": True,
            "tie_embeddings": False,
        },
        "seq2seq": {"position": "relative", "output_bias": True},
    }
    own["experts"] = {
        **own["decoder"],
        "num_experts": 8,
        "expert_dim": 12,
        "shared_expert_dim": 8,
        "expert_capacity_factor": 1.5,
        "load_balancing_factor": 0.1,
        "router_z_loss_factor": 0.1,
    }
    sizes = {"num_key_heads": 2, "num_value_heads": 4, "key_dim": 4, "value_dim": 3}
    own["recurrent"] = {
        **own["decoder"],
        "num_layers": 2,
        "attention_gate": True,
        "layer_pattern": ({"mixer": {"kind": "gated_delta", **sizes}}, {}),
    }
    latent = {
        "kind": "latent_attention",
        "num_heads": 8,
        "kv_lora_rank": 6,
        "q_lora_rank": 10,
        "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 2,
        "v_head_dim": 3,
        "position": {"kind": "rotary"},
    }
    own["latent"] = {
        **{name: own["decoder"][name] for name in ("gated", "normalization", "normalize_first")},
        "tie_embeddings": False,
        "mixer": latent,
        "position": "none",
        "num_experts": 8,
        "expert_dim": 12,
        "shared_expert_dim": 8,
        "shared_expert_gate": False,
        "router": {
            "activation": "sigmoid",
            "correction_bias": True,
            "groups": 4,
            "group_limit": 2,
            "group_score": "top_two",
        },
    }
    own = {name: {"kind": name, **of_kind} for name, of_kind in own.items()}
    for name in ("experts", "recurrent", "latent"):
        own[name]["kind"] = "decoder"
    of_attention = ("num_heads", "head_dim") if "mixer" in own[kind] else ()
    sizes = {name: size for name, size in _SIZES.items() if name not in of_attention}
    return kt.TransformerConfig(**{**sizes, **own[kind], **values})


def make(kind: str, dtype: str = "float32", **values) -> kt.Task:
    """The task of a kind, with weights that do not depend on the devices."""
    keras.utils.set_random_seed(0)  # Keras draws the same weights on any mesh.
    task_class = {"encoder": kt.MaskedLM, "seq2seq": kt.Seq2SeqLM}.get(kind, kt.CausalLM)
    task = task_class(kt.models.build_backbone(config(kind, **values), dtype=dtype))
    compile_task(task)
    return task


def make_variant(name: str) -> kt.Task:
    """A task of `VARIANTS`: what else training does to weights that are spread."""
    kind, values = VARIANTS[name]
    with keras.RematScope("full" if name == "tied, rematerialized" else None):
        task = make(kind, **values)
    if name == "adapters":
        task.enable_lora(rank=2)
        compile_task(task)
    if name == "accumulated":
        compile_task(task, gradient_accumulation_steps=2)
    return task


VARIANTS: dict[str, tuple[str, dict]] = {
    "tied, rematerialized": ("decoder", {"tie_embeddings": True, "num_layers": 2}),
    "adapters": ("decoder", {}),
    "accumulated": ("encoder", {}),
    "mixed precision": ("decoder", {"dtype": "mixed_bfloat16"}),
}


def compile_task(task: kt.Task, **options):
    """Adam with decay, and with clipping, which looks at all gradients.

    Its epsilon is not far below the gradients: else the sign of one that is zero but for rounding
    decides over a whole step, and the losses of a recurrent model part within 20 steps.
    """
    # On TensorFlow Keras clips what a replica found before it is added to that of the others.
    clipnorm = None if keras.backend.backend() == "tensorflow" else 1.0
    task.compile(
        optimizer=keras.optimizers.AdamW(
            1e-2, epsilon=1e-3, weight_decay=0.01, global_clipnorm=clipnorm, **options
        ),
        loss=kt.training.TokenCrossEntropy(label_smoothing=0.1),
        weighted_metrics=[kt.training.Perplexity()],
    )


class Batches(keras.utils.PyDataset):
    """Random rows of differing lengths; one batch of another number of rows."""

    def __init__(self, kind: str, vocabulary_size: int = 64, rows: int = 8, odd_rows: int = 8):
        super().__init__()
        self.kind, self.vocabulary_size = kind, vocabulary_size
        self.rows, self.odd_rows = rows, odd_rows

    def __len__(self):
        return STEPS

    def __getitem__(self, place):
        random = np.random.default_rng(place)
        rows = self.odd_rows if place == 1 else self.rows
        ids = random.integers(1, self.vocabulary_size, (rows, 13)).astype("int32")
        # More tokens in the first rows: the shares of a batch do not count the same.
        lengths = np.linspace(12, 3, rows).astype("int32") + random.integers(-2, 1, rows)
        mask = np.arange(12) < lengths[:, None]
        inputs, targets = ids[:, :-1], ids[:, 1:]
        if self.kind == "encoder":
            places = np.stack([np.arange(3)] * rows).astype("int32")
            x = {"token_ids": inputs, "padding_mask": mask, "mask_positions": places}
            return x, targets[:, :3], (places < lengths[:, None] - 1).astype("float32")
        if self.kind in ("decoder", "experts", "latent", "recurrent"):
            return {"token_ids": inputs, "padding_mask": mask}, targets, mask.astype("float32")
        x = {
            "encoder_token_ids": inputs[:, :7],
            "encoder_padding_mask": mask[:, :7],
            "decoder_token_ids": inputs,
            "decoder_padding_mask": mask,
        }
        return x, targets, mask.astype("float32")


class Losses(keras.callbacks.Callback):
    """The loss of each step, out of the means over the tokens of the epoch so far."""

    def __init__(self, tokens: list[float]):
        super().__init__()
        self.tokens, self.values, self._sum = tokens, [], 0.0

    def on_train_batch_end(self, batch, logs=None):
        total = float(logs["loss"]) * sum(self.tokens[: batch + 1])
        self.values.append((total - self._sum) / self.tokens[batch])
        self._sum = total


def losses(task: kt.Task, dataset: keras.utils.PyDataset) -> list[float]:
    """The loss of each of the 20 steps, of whole batches, whatever part of them is read here."""
    whole = getattr(dataset, "dataset", dataset)
    watch = Losses([float(whole[place][2].sum()) for place in range(STEPS)])
    task.fit(dataset, epochs=1, shuffle=False, verbose=0, callbacks=[watch])
    return watch.values
