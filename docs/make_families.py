"""Writes docs/families.md from the code: `python docs/make_families.py`, `--check` to compare."""

import argparse
import contextlib
import dataclasses
import importlib
import json
import pkgutil
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from keras_transformer import TransformerConfig, list_presets
from keras_transformer.checkpoints import families, load_config
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.families.deberta_v2 import RELATIVE_SCORES
from keras_transformer.checkpoints.families.family import ACTIVATIONS as THEIR_ACTIVATIONS
from keras_transformer.checkpoints.families.family import Family
from keras_transformer.checkpoints.families.shared import SWITCHED_WINDOW
from keras_transformer.checkpoints.keras_hub.families import KERAS_HUB
from keras_transformer.config import KINDS, ROTARY_SCALINGS

PAGE = Path(__file__).with_name("families.md")
TITLES = {"encoder": "Encoders", "decoder": "Decoders", "seq2seq": "Encoder-decoders"}

# "Name: Authors year", then where the paper is, as the families' modules start.
PAPER = re.compile(
    r'(?P<name>[A-Z][\w-]*): (?P<authors>[A-Z][^,:"]* \d{4})'
    r'(?:, (?P<url>https://[^\s,;]+)|, "(?P<title>[^"]+)")?'
)
ACTIVATIONS = {"gelu_tanh": "gelu (tanh form)", "relu_squared": "squared relu"}
NORMALIZATIONS = {
    "layer_norm": "LayerNorm",
    "layer_norm_no_bias": "LayerNorm without bias",
    "rms_norm": "RMSNorm",
    "rms_norm_plus_one": "RMSNorm by 1 + weight",
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


NOT_COVERED = (
    NotCovered(
        "The convolution of DeBERTa v2 (its sizes xlarge and xxlarge)",
        "The block has none. DeBERTa v3 has none either.",
        ({"model_type": "deberta-v2", "conv_kernel_size": 3},),
    ),
    NotCovered(
        "DeepSeek-V3",
        "Keys and values of a common small projection, and experts chosen by groups, are no config "
        "values.",
        ({"model_type": "deepseek_v3"},),
    ),
    NotCovered(
        "OPT-350m; Falcon-RW; StableLM 2 12B; Cohere before `cohere2`",
        "A decoder here has no narrower embeddings; the ALiBi of Falcon-RW is rounded to bfloat16; "
        "norms of queries and keys that each head has of its own are no config value.",
        (
            {"model_type": "opt", "hidden_size": 1024, "word_embed_proj_dim": 512},
            {"model_type": "falcon", "alibi": True},
            {"model_type": "stablelm", "qk_layernorm": True},
            {"model_type": "cohere"},
        ),
    ),
    NotCovered(
        "Images for Gemma 3 (`gemma3`), both directions of attention in Gemma 1 and 2",
        "The text model alone is covered (`gemma3_text`), as a decoder, and as an encoder whose "
        "tokens see both sides (EmbeddingGemma).",
        ({"model_type": "gemma3"}, {"model_type": "gemma", "use_bidirectional_attention": True}),
    ),
    NotCovered(
        "Heads of T5Gemma for classes; the encoders of T5Gemma and LongT5 alone",
        "The backbone of a T5Gemma loads, and the head is left out.",
    ),
    NotCovered(
        "Next sentence (BERT), order of sentences (ALBERT), replaced tokens (ELECTRA, DeBERTa v3)",
        "There is no such task here. The backbone loads, the head is left out.",
    ),
    NotCovered(
        "Pickled weights (`pytorch_model.bin`)",
        "A pickle can run code. Transformers' `save_pretrained` writes safetensors.",
    ),
    NotCovered(
        "GGUF; weights quantized by GPTQ, AWQ or bitsandbytes",
        "Tensors are read as they are stored, float32, float16 or bfloat16, and nothing unpacks "
        "others.",
    ),
)


def page() -> str:
    """The text of docs/families.md."""
    of_kind = {
        kind: [f for f in FAMILIES.values() if f.constants["kind"] == kind] for kind in KINDS
    }
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
                (f"`{name}`", f"`{family.model_type}`", names_of(family.heads))
                for name, family in KERAS_HUB.items()
            ),
        ),
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


def paper(family: Family) -> str:
    """The paper of a family, from the docstrings of the modules that have it.

    Raises:
        ValueError: If the docstring does not name one.
    """
    modules = [
        module
        for module in map(
            importlib.import_module,
            (
                f"{families.__name__}.{found.name}"
                for found in pkgutil.iter_modules(families.__path__)
            ),
        )
        if any(value is family for value in vars(module).values())
    ]
    papers = [found for module in modules for found in PAPER.finditer(module.__doc__ or "")]
    if not papers:
        raise ValueError(
            f"The docstring of {modules[0].__name__} must start with 'Name: Authors year, URL'."
        )
    mine = _letters(family.model_type)
    best = max(papers, key=lambda found: (_fit(found, mine), -found.start()))
    text = best["authors"]
    if not _fit(best, mine):
        text = f"as {best['name']}: {text}"
    if best["title"]:
        return f"{text}, {best['title']}"
    return f"[{text}]({best['url'].rstrip('.')})" if best["url"] else text


def _fit(found: re.Match, mine: str) -> int:
    """How well the name of a paper fits a model_type: as many letters as are its start or end."""
    name = _letters(found["name"])
    return len(name) * (mine.startswith(name) or mine.endswith(name))


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def defaults(family: Family) -> TransformerConfig:
    """The config of a family when a published config says nothing."""
    return family.config({})


def positions(family: Family) -> str:
    """The positions of a family, in words."""
    config = defaults(family)
    beside = config.relative_bias and config.position != "relative"
    buckets = f"; relative, {config.relative_num_buckets} buckets" if beside else ""
    if config.disentangled or RELATIVE_SCORES in family.conversions:
        buckets += "; relative in the scores, if the config has them"
    return absolute_positions(family) + buckets


def absolute_positions(family: Family) -> str:
    """The value `position` of a family, in words."""
    config = defaults(family)
    if config.position == "learned":
        if config.position_padding_id is not None:
            return "learned, counted without padding, from row `pad_token_id + 1`"
        return (
            f"learned, from row {config.position_offset}" if config.position_offset else "learned"
        )
    if config.position == "relative":
        return f"relative, {config.relative_num_buckets} buckets"
    if config.position == "sinusoidal":
        return "sinusoidal" if config.sinusoidal_interleaved else "sinusoidal, sines first"
    if config.position != "rotary":
        return config.position
    share = ""
    if config.rotary_dim is not None:
        share = f" on {config.rotary_dim / config.head_dim:.0%} of a head"
    share += "" if config.rotary_truncate else ", not rounded"
    share += ", of neighbouring features" if config.rotary_interleaved else ""
    stretched = scalings(family)
    return f"rotary{share}" + (f"; scaling {', '.join(stretched)}" if stretched else "")


def scalings(family: Family) -> list[str]:
    """The kinds of rotary scaling that a family reads."""
    read = []
    config = defaults(family)
    rotated = config.head_dim if config.rotary_dim is None else config.rotary_dim
    ones = [1.0] * (rotated // 2)
    for kind in ROTARY_SCALINGS:
        options = {
            "rope_type": kind,
            "factor": 2.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "short_factor": ones,
            "long_factor": ones,
        }
        with contextlib.suppress(ValueError):  # of one that the family refuses
            if family.config({"rope_scaling": options}).rotary_scaling == kind:
                read.append(kind)
    return read


def normalization(family: Family) -> str:
    """What is normalized, and where, in words."""
    config = defaults(family)
    place = "first" if config.normalize_first else "last"
    if config.normalize_output:
        outputs = "on the output of each sub-layer"
        place = f"first, {outputs}" if config.normalize_first else outputs
    parts = [f"{NORMALIZATIONS[config.normalization]} {place}"]
    if config.embedding_normalization:
        parts.append("on the embeddings")
    if not all(config.attention_normalization for config in config.sides[0].layers):
        parts.append("none at some attentions")
    if config.query_key_norm:
        across = " across heads" if config.query_key_norm_across_heads else ""
        parts.append(f"on queries and keys{across}")
    if config.final_normalization != config.normalize_first:
        parts.append("at the end" if config.final_normalization else "none at the end")
    return ", ".join(parts)


def pattern_words(config: TransformerConfig) -> list[str]:
    """Which tokens see which, in words, of a side."""
    words = []
    if config.global_projection:
        words.append("a window, and tokens that see all by projections of their own")
    elif config.global_block_size is not None:
        words.append("a window, and sums of groups of tokens")
    elif config.window is not None:
        words.append("a window, if the config has one")
    if config.window_dilation > 1:
        words.append("dilated")
    if config.global_tokens:
        words.append("first tokens that see all")
    if config.block_size is not None:
        words.append("blocks of tokens" + (", some at random" if config.random_blocks else ""))
    return words


def special(family: Family) -> list[str]:
    """What else tells a family from the original Transformer, in words."""
    config = defaults(family)
    read = {field.ours for field in family.fields.values()}
    read |= {name for conversion in family.conversions for name in conversion.read({})}
    activation = ACTIVATIONS.get(config.activation, config.activation)
    parts = [f"gated {activation}" if config.gated else activation]
    if config.gate_limit is not None:
        parts.append("cut gates")
    if config.num_experts:
        experts = f"{config.num_experts} experts, {config.experts_per_token} a token"
        experts += " and a shared one" if config.shared_expert_dim else ""
        weights = "together" if config.normalize_expert_weights else "of all"
        biased = ", with a bias" if config.router_bias else ""
        parts.append(f"{experts}, weights by softmax {weights}{biased}")
    if config.attention_sinks:
        parts.append("attention to nothing")
    biases = (config.use_bias, config.attention_bias, config.attention_output_bias)
    if not any(biases):
        words = "no biases"
    elif biases == (False, True, False):
        words = "biases on query, key and value only"
    else:
        words = "" if all(biases) else "some biases"
    if {"use_bias", "attention_bias", "attention_output_bias"} & read:
        words = f"{words or 'biases'} unless the config says otherwise"
    parts.append(words)
    if "num_key_value_heads" in read:
        parts.append("grouped key and value heads")
    if config.parallel_residual or "parallel_residual" in read:
        norm = " behind one norm" if config.share_normalization else ""
        norm += " or two" if norm and "share_normalization" in read else ""
        other = ", unless the config says otherwise"
        other = other if config.parallel_residual else ", if the config says so"
        other = "" if "parallel_residual" in family.constants else other
        parts.append(f"attention and feed-forward side by side{norm}{other}")
    if config.embedding_projection:
        parts.append("narrower embeddings, projected")
    if config.num_layer_groups * config.layers_per_group < config.num_layers:
        parts.append("layers share their weights")
    if config.segment_vocabulary_size:
        parts.append("token types")
    parts += pattern_words(config.sides[0])
    if SWITCHED_WINDOW in family.conversions:
        parts.append("a window, if the config has one")
    varied = dict.fromkeys(name for own in config.layer_pattern or () for name in own)
    if varied:
        parts.append(f"layers that differ by turns in {names_of(varied)}")
    if config.encoder or config.decoder or config.share_embeddings is False:
        parts.append("sides that differ")
    if config.attention_soft_cap or config.logit_soft_cap:
        parts.append("caps on scores or logits")
    if config.score_scale or "query_pre_attn_scalar" in family.published_config(config):
        parts.append("a factor of the scores, if the config has one")
    if config.score != "scaled_dot":
        parts.append("scores not scaled")
    if config.scale_embedding or "scale_embedding" in read:
        always = family.constants.get("scale_embedding", False)
        parts.append("scaled embeddings" + ("" if always else ", if the config says so"))
    factors = {
        "the embeddings": "embedding_scale",
        "what sub-layers give": "residual_scale",
        "the logits": "logit_scale",
    }
    named = [words for words, name in factors.items() if name in read]
    if named:
        parts.append(f"factors of {', '.join(named)}")
    if config.scale_logits:
        parts.append("scaled logits; in version 1.1 gated gelu instead, and logits as they are")
    if "use_bidirectional_attention" in {*family.published_config(config)} - {*family.required}:
        parts.append("an encoder, if the config says so (EmbeddingGemma)")
    if family.pooler:
        parts.append("a pooler, if the weights have one")
    if family.output_bias:
        parts.append("a bias on the logits, if the weights have one")
    return [part for part in parts if part]


def presets_by_family() -> dict[str, list[str]]:
    """The names of the bundled presets, by the family that their metadata names."""
    found: dict[str, list[str]] = {}
    for name in list_presets():
        metadata = load_config(name, load_weights=False)[2]
        found.setdefault(metadata["family"], []).append(name)
    return found


def names_of(names: Iterable[str]) -> str:
    """Names as code."""
    return ", ".join(f"`{name}`" for name in names)


def main() -> int:
    """Writes the page, or with `--check` says whether it is what the code makes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare; exit code 1 if not")
    options = parser.parse_args()
    text = page()
    if not options.check:
        PAGE.write_text(text, encoding="utf-8")
        print(f"wrote {PAGE}")
        return 0
    current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text
    state = "current" if current else "not what the code makes: run python docs/make_families.py"
    print(f"{PAGE} is {state}")
    return 0 if current else 1


if __name__ == "__main__":
    sys.exit(main())
