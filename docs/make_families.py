"""Writes docs/families.md from the code: `python docs/make_families.py`, `--check` to compare."""

import dataclasses
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from family_words import names_of, normalization, paper, positions, special
from loaded_types import rows as rows_of_loaded_types
from written import write_or_check

from keras_transformer import list_presets
from keras_transformer.checkpoints import load_config
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.families.base.family import ACTIVATIONS as THEIR_ACTIVATIONS
from keras_transformer.checkpoints.families.base.family import Family
from keras_transformer.checkpoints.keras_hub.families import KERAS_HUB
from keras_transformer.checkpoints.keras_hub.others import NOT_COMPUTED, PUBLISHED_FORM

PAGE = Path(__file__).with_name("families.md")
TITLES = {
    "encoder": "Encoders",
    "decoder": "Decoders",
    "seq2seq": "Encoder-decoders",
    "images": "Encoders of images",
    "videos": "Encoders of videos",
    "captions": "Images to text",
    "sound": "Sound and speech",
    "series": "Series of numbers",
    "dual": "Encoders of images or sound, and texts",
}


@dataclasses.dataclass(frozen=True)
class NotCovered:
    """A row of the last table.

    Args:
        what: What is not covered.
        why: Why, and what happens instead.
        refused: Published configs that show it: reading them raises ValueError.
    """

    what: str
    why: str
    refused: tuple[Mapping[str, Any], ...] = ()


def group(family: Family) -> str:
    """The part of the page that a family is in."""
    if {"AudioClassifier", "CTCSpeechToText", "SpeechToText"} & family.heads.keys():
        return "sound"
    if "VideoClassifier" in family.heads:
        return "videos"
    if {"ImageToText", "PageEmbedder"} & family.heads.keys():
        return "captions"
    if "Forecaster" in family.heads:
        return "series"
    if family.config({}).vector_pooling is not None:
        return "dual"  # One of the two sides by itself.
    is_text = family.constants.get("vocabulary_size") != 0
    return family.constants["kind"] if is_text else "images"


NOT_COVERED = (
    NotCovered(
        "The layers of DeepSeek-V3 that predict further tokens",
        "The layers behind the last one are left out.",
    ),
    NotCovered(
        "Parts of `encoder-decoder` and `vision-encoder-decoder` by themselves, and those of other "
        "families (Swin, BEiT, BertGeneration)",
        "A BERT or a GPT-2 with attention to another model's states is a side of such a model. A "
        "side may be of the families that its row names.",
        (
            {"model_type": "bert", "is_decoder": True},
            {"model_type": "gpt2", "add_cross_attention": True},
            {"model_type": "vision-encoder-decoder", "encoder": {"model_type": "swin"}},
            {"model_type": "encoder-decoder", "encoder": {"model_type": "bert-generation"}},
        ),
    ),
    NotCovered(
        "MPT whose queries, keys and values are clipped (StoryWriter)",
        "A limit of projections is no config value, and the norms and the positions that MPT's "
        "config may name are not those of Transformers' class.",
        ({"model_type": "mpt", "attn_config": {"clip_qkv": 6.0}},),
    ),
    NotCovered(
        "CLAP that fuses spectrograms as channels of one image",
        "No published model has it; the others that fuse are covered.",
        (
            {
                "model_type": "clap",
                "audio_config": {"enable_fusion": True, "fusion_type": "channel_map"},
            },
        ),
    ),
    NotCovered(
        "BLIP for images and texts that fit",
        "No stack of blocks writes there: a text that attends to the image gives one of two "
        "classes. Captions and answers are covered.",
        ({"model_type": "blip", "architectures": ["BlipForImageTextRetrieval"]},),
    ),
    NotCovered(
        "InstructBLIP, and BLIP-2 for images and texts that fit",
        "Their query transformer reads a text beside its trained states, with a feed-forward layer "
        "of its own for tokens: `queries` are a side without tokens.",
        (
            {"model_type": "instructblip"},
            {"model_type": "blip-2", "qformer_config": {"use_qformer_text_input": True}},
        ),
    ),
    NotCovered(
        "Both directions of attention in Gemma 1 and 2",
        "A Gemma 3 may be an encoder whose tokens see both sides (EmbeddingGemma).",
        ({"model_type": "gemma", "use_bidirectional_attention": True},),
    ),
    NotCovered(
        "Images for Llama 4 (`llama4`)",
        "The text model in such a folder loads alone, as a `llama4_text`, and is exported as one.",
    ),
    NotCovered(
        "RWKV-7 in Hugging Face's format",
        "Transformers has no class of it to compare with: the model loads from KerasHub's folders, "
        "its tokenizer from `rwkv_vocab_v20230424.txt` too.",
    ),
    NotCovered(
        "The capacity of experts of Switch Transformers (`expert_capacity`)",
        "An expert takes every token that chooses it. The published model leaves out those beyond "
        "a capacity, in evaluation too, but none that are decoded one by one: outputs would depend "
        "on how a text is cut into calls. `capacity_factor` limits experts in training.",
    ),
    NotCovered(
        "PatchTST for pretraining, regression and classes, and with a distribution as its output",
        "The task here forecasts values. A model whose channels have embeddings or outputs of "
        "their own, or attend to each other, is no row for each channel.",
        (
            {"model_type": "patchtst", "architectures": ["PatchTSTForPretraining"]},
            {"model_type": "patchtst", "channel_attention": True},
        ),
    ),
    NotCovered(
        "PatchTSMixer for pretraining, regression and classes",
        "The task here forecasts values.",
        ({"model_type": "patchtsmixer", "architectures": ["PatchTSMixerForRegression"]},),
    ),
    NotCovered(
        "LLaVA that reads several layers of images (`vision_feature_layer` a list), such as "
        "Granite Vision; videos, of GIT, LLaVA-OneVision, SmolVLM and InternVL",
        "The states of an image are those of one layer. A GIT has one image a row.",
        (
            {"model_type": "git", "num_image_with_embedding": 6},
            {"model_type": "llava", "text_config": {"model_type": "phi"}},
            {"model_type": "llava_next", "text_config": {"model_type": "granite"}},
        ),
    ),
    NotCovered(
        "TimesFM 1 and 2 (`timesfm`)",
        "They scale a window by its first piece, and have two kinds of norms in a block and a "
        "state for the frequency. TimesFM 2.5 is covered.",
        ({"model_type": "timesfm"},),
    ),
    NotCovered(
        "Words that XLNet predicts (`XLNetLMHeadModel`)",
        "A second stream of states, which stand in the place of the words, predicts them in "
        "permuted orders. The backbone of such a checkpoint loads, and its classifiers do.",
    ),
    NotCovered(
        "Heads of T5Gemma and T5Gemma 2 for classes",
        "The backbone of such a checkpoint loads, and the head is left out.",
    ),
    NotCovered(
        "Next sentence (BERT), order of sentences (ALBERT), replaced tokens (ELECTRA, DeBERTa v3)",
        "There is no such task here. The backbone loads, the head is left out.",
    ),
    NotCovered(
        "Contacts of amino acids (ESM-2), ESMFold",
        "There is no task for pairs of tokens. The backbone loads, and the head of contacts is "
        "left out; a model that folds proteins is refused.",
        ({"model_type": "esm", "is_folding_model": True},),
    ),
    NotCovered(
        "Texts of RoFormer",
        "Its tokenizer finds words with the dictionary of jieba, which no file contains. The model "
        "loads and takes token ids.",
    ),
    NotCovered(
        "Adapters of languages (MMS), pooled adapters and weighted sums of layers of wav2vec 2.0",
        "The block has no such adapters, and a classifier reads the last states.",
        (
            {"model_type": "wav2vec2", "adapter_attn_dim": 16},
            {"model_type": "wav2vec2", "add_adapter": True},
            {"model_type": "hubert", "conv_pos_batch_norm": True},
        ),
    ),
    NotCovered(
        "Moonshine Streaming (`moonshine_streaming`)",
        "Its encoder reads frames, normalized one by one and compressed by a trained asinh, and "
        "its layers see farther to one side than to the other; its decoder adds positions to the "
        "states of the encoder.",
        ({"model_type": "moonshine_streaming"},),
    ),
    NotCovered(
        "Presets of GraniteMoE with a shared expert, Hunyuan dense, Ministral, PatchTSMixer, "
        "Phi-3.5-MoE, RoBERTa with norms first and ViTDet",
        "Folders of these types load. A preset has values that two sources agree on, which are "
        "missing here: GraniteMoE's is a model for tests; Ministral 8B has the type `mistral`; "
        "ViTDet's published weights are pickles of Detectron2; "
        "of the others, these are in their own configs alone: the longest sequence and the "
        "scaling of the positions (Hunyuan), the lengths of a series and of its pieces "
        "(PatchTSMixer), the factors of the positions (Phi), and their number (RoBERTa).",
    ),
    NotCovered(
        "Pickled weights (`pytorch_model.bin`)",
        "A pickle can run code. Transformers' `save_pretrained` writes safetensors.",
    ),
    NotCovered(
        "Weights quantized by other schemes than GPTQ, AWQ, bitsandbytes, compressed-tensors, FP8 "
        "and MXFP4; GGUF files of other architectures than Llama, Mistral, Mixtral, Qwen 2, 3 and "
        "3.5 (MoE too), DeepSeek-V2, gpt-oss, Gemma 1 to 3, Phi 3, Falcon, BLOOM, GPT-2, StableLM, "
        "StarCoder 2, Nemotron, LFM2 and T5",
        "Loading names the scheme and those that are read. A GGUF file says too little about a "
        "model to read one of an architecture that was not compared with its published form.",
    ),
)


def page() -> str:
    """The text of docs/families.md."""
    of_kind = {kind: [f for f in FAMILIES.values() if group(f) == kind] for kind in TITLES}
    everything = [family for families_ in of_kind.values() for family in families_]
    presets = presets_by_family()
    lines = [
        "<!-- Written by docs/make_families.py. Change that, or the code it reads. -->",
        "",
        "# Families",
        "",
        *paragraph(
            "Checkpoints of these architectures in Hugging Face's format load by `from_preset`, "
            'from a folder or from the hub (`"hf://org/name"`), and `export_to_huggingface` writes '
            "them back. Each family is compared with the Transformers library on random weights, "
            "on every backend: states of encoders to 2e-5, logits to 1e-4 "
            "(`tests/checkpoints/test_families.py`). [add_a_family.md](add_a_family.md) says how "
            "to add one."
        ),
        "## What they are",
        "",
        *paragraph(
            "One row for each `model_type` of a `config.json`, with the published defaults of that "
            "type. Sizes, rates and epsilons are read from the config. Whether the output matrix "
            "is the token embedding is seen in the weights. Normalization *first* is in front of "
            "each sub-layer and once more at the end; *last* is behind each sub-layer and its "
            "residual."
        ),
        *table(
            ("model_type", "paper", "kind", "positions", "normalization", "what else"),
            (
                (
                    f"`{family.model_type}`",
                    paper(family),
                    family.constants["kind"],
                    positions(family),
                    normalization(family),
                    "; ".join(special(family)),
                )
                for family in everything
            ),
        ),
        "",
        "## Their tasks",
        "",
        *paragraph(
            "The cells name the classes of the Transformers library whose checkpoints bring the "
            "head of a task. Export writes the first one. A task can be made from any backbone of "
            "a kind that it takes: a head that the checkpoint lacks is fresh, and a warning says "
            "so. `TextEmbedder` takes encoders and decoders; the sentence-transformers files in a "
            "folder say how it pools, and bring its linear layers and prompts."
        ),
    ]
    for kind, members in of_kind.items():
        tasks = list(dict.fromkeys(task for family in members for task in family.heads))
        rows = (
            (f"`{family.model_type}`", *(classes(family, task) for task in tasks))
            for family in members
        )
        lines += [f"### {TITLES[kind]}", ""]
        lines += [*table(("model_type", *(f"`{task}`" for task in tasks)), rows), ""]
    lines += [
        "## Values that are refused, and presets",
        "",
        *paragraph(
            "A config with a value that the blocks do not compute raises a `ValueError` that names "
            "it. So does an activation other than "
            f"{names_of(THEIR_ACTIVATIONS)}. "
            "Presets are the bundled names that `from_preset` takes; "
            "`keras-transformer info PRESET` says more of each."
        ),
        *table(
            ("model_type", "refused", "presets"),
            (
                (
                    f"`{family.model_type}`",
                    "; ".join(
                        f"`{name}` other than `{json.dumps(value)}`"
                        for name, value in family.required.items()
                    ),
                    names_of(presets.pop(family.model_type, [])),
                )
                for family in everything
            ),
        ),
        "",
    ]
    if presets:
        rows = ((f"`{family}`", names_of(names)) for family, names in sorted(presets.items()))
        lines += [
            "Presets of architectures without checkpoints in that format:",
            "",
            *table(("architecture", "presets"), rows),
            "",
        ]
    lines += [
        "## Folders of KerasHub",
        "",
        *paragraph(
            "A local folder that KerasHub's `save_to_preset` wrote loads too, for these backbones "
            "and with the heads of these tasks, and `kt.from_keras_hub` and `kt.to_keras_hub` take "
            "such models in memory there and back. Export writes the format of Hugging Face."
        ),
        *table(
            ("KerasHub's backbone", "model_type", "tasks"),
            (
                (f"`{name}`", names_of(family.model_types), names_of(family.heads))
                for name, family in KERAS_HUB.items()
            ),
        ),
        "",
        *paragraph(
            "The other transformers of KerasHub 0.32, and the `model_type` under which their "
            "published checkpoints load in Hugging Face's format, or why none does:"
        ),
        *table(
            ("KerasHub's backbone", "loads as", "why not"),
            (
                *((f"`{name}`", names_of(types), "") for name, types in PUBLISHED_FORM.items()),
                *((f"`{name}`", "", why) for name, why in NOT_COMPUTED.items()),
            ),
        ),
        "",
        "## The 100 most loaded types",
        "",
        *paragraph(
            "Model types of Transformers, the most loaded first. The order is an estimate: the hub "
            "counts downloads of repositories, not of types. It follows the [statistics of the "
            "hub's 50 most downloaded owners]"
            "(https://huggingface.co/blog/lbourdois/huggingface-models-stats) of October 2025 "
            "(encoders of texts first, small models before large ones) and the best-known "
            "repositories of each type."
        ),
        *table(("model_type", "covered", "name, or why not"), rows_of_loaded_types()),
        "",
        "## What is not covered, and why",
        "",
        *table(("what", "why"), ((row.what, row.why) for row in NOT_COVERED)),
    ]
    return "\n".join(lines) + "\n"


def paragraph(text: str) -> list[str]:
    """The lines of a paragraph, and an empty one."""
    return [*textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False), ""]


def classes(family: Family, task: str) -> str:
    """The classes of the Transformers library that have the head of a task."""
    return names_of(family.classes(task) if task in family.heads else ())


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """The lines of a Markdown table."""
    for row in (head, ("---",) * len(head), *rows):
        yield re.sub(r"\|  (?=\|)", "| ", f"| {' | '.join(row)} |")


def presets_by_family() -> dict[str, list[str]]:
    """The names of the bundled presets, by the family that their metadata names."""
    found: dict[str, list[str]] = {}
    for name in list_presets():
        metadata = load_config(name, load_weights=False)[2]
        found.setdefault(metadata["family"], []).append(name)
    return found


def main() -> int:
    """Writes the page, or with `--check` says whether it is current."""
    return write_or_check(__doc__, PAGE, page(), "make_families.py")


if __name__ == "__main__":
    sys.exit(main())
