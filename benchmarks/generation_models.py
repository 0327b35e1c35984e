"""Make the models of `generation.py` once: random checkpoints of GPT-2, Llama and Marian.

Every contender reads the same random weights: Transformers, KerasHub and this project from a
folder in Hugging Face's format, CTranslate2 from that folder after conversion.
"""

import json
import pathlib
import shutil
import sys

import numpy as np

PRECISIONS_OF_CTRANSLATE2 = ("float32", "int8")
VOCABULARY = {"gpt2": 50_257, "llama": 128_256, "marian": 32_000}
SHORT_VOCABULARY = 500


def vocabulary(model: str, short: bool) -> int:
    return SHORT_VOCABULARY if short else VOCABULARY[model]


def words(model: str, short: bool) -> list[str]:
    """Return a word for every id, since CTranslate2 takes and returns words."""
    size = vocabulary(model, short)
    special = {
        "gpt2": {size - 1: "<|endoftext|>"},
        "marian": {0: "</s>", 1: "<unk>", size - 1: "<pad>"},
    }[model]
    return [special.get(i, f"t{i}") for i in range(size)]


def folder_of(root: pathlib.Path, model: str, short: bool, kind: str = "huggingface"):
    return root / f"{model}-{'tiny' if short else 'large'}-{kind}"


def prompts(model: str, rows: int, length: int, short: bool) -> list[list[int]]:
    """Draw random ids other than special tokens; Marian's sources end with its end token."""
    size = vocabulary(model, short)
    ids = np.random.default_rng(0).integers(10, size - 10, (rows, length))
    if model == "marian":
        ids[:, -1] = 0
    return ids.tolist()


def make_missing(root: pathlib.Path, model: str, short: bool, converted: bool) -> None:
    """Make the missing folders of a model, including the ones for CTranslate2 if requested."""
    kinds = [f"ctranslate2-{p}" for p in PRECISIONS_OF_CTRANSLATE2] if converted else []
    for kind in ("huggingface", *kinds):
        folder = folder_of(root, model, short, kind)
        if folder.is_dir():
            continue
        print(f"making {folder}", file=sys.stderr, flush=True)
        scratch = folder.with_name(folder.name + ".part")
        shutil.rmtree(scratch, ignore_errors=True)
        if kind == "huggingface":
            makers = {"gpt2": _make_gpt2, "llama": _make_llama, "marian": _make_marian}
            makers[model](scratch, short)
        else:
            from ctranslate2.converters import TransformersConverter

            source = str(folder_of(root, model, short))
            TransformersConverter(source).convert(
                str(scratch), quantization=kind.removeprefix("ctranslate2-")
            )
        scratch.rename(folder)


def _make_gpt2(folder: pathlib.Path, short: bool) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    # The defaults are the sizes of the smallest published model, 124 million parameters.
    size = {"n_embd": 64, "n_layer": 2, "n_head": 2} if short else {}
    last = vocabulary("gpt2", short) - 1
    config = GPT2Config(vocab_size=last + 1, bos_token_id=last, eos_token_id=last, **size)
    GPT2LMHeadModel(config).save_pretrained(folder)
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokens = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    _write_tokenizer(folder, "gpt2", short, {"tokenizer_class": "GPT2Tokenizer", **tokens})


def _make_llama(folder: pathlib.Path, short: bool) -> None:
    """Write the shape of Llama 3.2 1B in bfloat16, drawn on the GPU if there is one."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    width = 64 if short else 2048
    config = LlamaConfig(
        vocab_size=vocabulary("llama", short),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=2 if short else 16,
        num_attention_heads=width // 64 if not short else 4,
        num_key_value_heads=8 if not short else 2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
    )
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        LlamaForCausalLM._from_config(config, dtype=torch.bfloat16).save_pretrained(folder)


def _make_marian(folder: pathlib.Path, short: bool) -> None:
    import sentencepiece
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    width, layers, heads = (64, 2, 2) if short else (512, 6, 8)
    size = vocabulary("marian", short)
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {
            "layers": layers,
            "attention_heads": heads,
            "ffn_dim": 4 * width,
        }.items()
    }
    config = MarianConfig(
        vocab_size=size,
        d_model=width,
        **sides,
        max_position_embeddings=512,
        activation_function="relu",
        scale_embedding=True,
        eos_token_id=0,
        pad_token_id=size - 1,
        decoder_start_token_id=size - 1,
        forced_eos_token_id=None,
    )
    model = MarianMTModel(config)
    model.generation_config.forced_eos_token_id = model.generation_config.bad_words_ids = None
    model.save_pretrained(folder)
    # The tokenizer is needed only by the converter, which does not start without one.
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(f"word{i} and word{i * 7 % 991} again" for i in range(4000)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(folder / "pieces"), vocab_size=300, minloglevel=2
    )
    for side in ("source", "target"):
        shutil.copy(folder / "pieces.model", folder / f"{side}.spm")
    tokens = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"}
    languages = {"source_lang": "en", "target_lang": "de", "separate_vocabs": False}
    _write_tokenizer(
        folder, "marian", short, {"tokenizer_class": "MarianTokenizer", **tokens, **languages}
    )


def _write_tokenizer(folder: pathlib.Path, model: str, short: bool, config: dict) -> None:
    ids = {word: i for i, word in enumerate(words(model, short))}
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
