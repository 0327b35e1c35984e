"""Switch Transformers: Fedus et al. 2021, https://arxiv.org/abs/2101.03961.

A T5 in some of whose layers each token uses one of several experts, multiplied by its probability.
An expert takes all tokens that choose it. The published model leaves out those beyond a capacity
for each text, in evaluation too, so that its outputs depend on how a text is cut into calls; in
training `capacity_factor` limits experts here.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import cycle_of_layers, number
from keras_transformer.checkpoints.families.seq2seq.t5 import T5, encoder_alone
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, layers
from keras_transformer.config import Experts, TransformerConfig
from keras_transformer.config.side import MOST_LAYERS

# Values of layers with experts, which the first layer need not be: published, ours as a keyword and
# in the part, the default.
_OF_EXPERTS = (
    ("router_bias", "router_bias", "router_bias", False),
    ("router_aux_loss_coef", "load_balancing_factor", "load_balancing", 0.001),
    ("router_z_loss_coef", "router_z_loss_factor", "z_loss", 0.001),
)


def _sparse_layers(count: int, sparse: int) -> list[bool]:
    """Return which layers have experts, if `sparse` of them are said to, as Transformers counts."""
    step = count // sparse if sparse > 0 else count
    return [step > 0 and (step == 1 or i % step == 1) for i in range(count)]


def _depth(values: Values, name: str, default: int) -> int:
    count = number(values, name, default)
    if not 0 < count <= MOST_LAYERS:
        raise ValueError(f"{name}={count} is not from 1 to {MOST_LAYERS:,}.")
    return count


def _read_experts(values: Values) -> dict[str, Any]:
    found = number(values, "num_experts", 8)
    depth = _depth(values, "num_layers", 12)
    further = depth
    if values.get("num_decoder_layers", 12) is not None:
        further = _depth(values, "num_decoder_layers", 12)
    encoder, decoder = (
        {
            "layer_pattern": None,
            **cycle_of_layers(
                _sparse_layers(count, number(values, f"num_sparse_{side}_layers", 3)),
                {False: {"num_experts": 0}, True: {"num_experts": found}},
            ),
        }
        for side, count in (("encoder", depth), ("decoder", further))
    )
    return {
        "expert_dim": number(values, "d_ff", 2048),
        "experts_per_token": 1,
        "normalize_expert_weights": False,
        **{ours: values.get(name, default) for name, ours, _, default in _OF_EXPERTS},
        **encoder,
        "decoder": decoder,
    }


def _write_experts(config: TransformerConfig) -> dict[str, Any]:
    # Transformers leaves no token out of a text that the model can read.
    theirs: dict[str, Any] = {"expert_capacity": config.max_sequence_length}
    experts: list[Experts] = []
    for side in config.sides:
        forwards = [block.feed_forward for block in side.only_side.blocks]
        has = [isinstance(each, Experts) for each in forwards]
        experts += [each for each in forwards if isinstance(each, Experts)]
        counts = (n for n in (*range(1, len(has) + 2), 0) if _sparse_layers(len(has), n) == has)
        name = "encoder" if side.kind == "encoder" else "decoder"
        theirs[f"num_sparse_{name}_layers"] = next(counts, None)
    if None in theirs.values():
        raise ValueError("its layers with experts are not evenly spaced.")
    if experts:
        theirs |= {name: getattr(experts[0], part) for name, _, part, _ in _OF_EXPERTS}
        theirs["num_experts"] = experts[0].number
    return theirs


_LAYER = {
    "feed_forward/intermediate": "wi",
    "feed_forward/output": "wo",
    "feed_forward/router": "router.classifier",
    "feed_forward/expert_intermediate": "experts.expert_*.wi",
    "feed_forward/expert_output": "experts.expert_*.wo",
}


def _feed_forward(side: str, place: int) -> tuple[WeightLine, ...]:
    return layers(_LAYER, f"{side}/layer_{{i}}/", f"{side}.block.{{i}}.layer.{place}.mlp.")


SWITCH_TRANSFORMERS = dataclasses.replace(
    T5,
    model_type="switch_transformers",
    architecture="SwitchTransformersModel",
    fields={
        **T5.fields,
        "d_model": ConfigField("hidden_dim", 768),
        "num_layers": ConfigField("num_layers", 12),
        "num_decoder_layers": ConfigField("num_decoder_layers", 12),
        "num_heads": ConfigField("num_heads", 12),
        "dense_act_fn": ConfigField("activation", "relu"),
    },
    conversions=(
        Conversion(_read_experts, _write_experts),
        encoder_alone("SwitchTransformersEncoderModel"),
    ),
    constants={**T5.constants, "scale_logits": True, "tie_embeddings": True},
    # Transformers has three embeddings of tokens otherwise.
    required={"tie_word_embeddings": True},
    weights=(
        *(line for line in T5.weights if "DenseReluDense" not in line.theirs),
        *_feed_forward("encoder", 1),
        *_feed_forward("decoder", 2),
    ),
    heads={
        "Seq2SeqLM": PublishedHead(
            architectures=("SwitchTransformersForConditionalGeneration",),
            values={"start_id": 0},
            prefix="",
        )
    },
    names=Names(),
)
