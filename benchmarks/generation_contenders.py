"""The contenders of `generation.py`: functions that generate with one library each.

A name consists of the library, the precision unless it is float32, and the backend, if any:
`keras_transformer-int8-jax`, `ctranslate2-int8`, `transformers`, `keras_hub-torch`.
"""

import dataclasses
import os
import pathlib
import sys
from collections.abc import Callable

import numpy as np
from generation_models import folder_of, vocabulary, words
from harness import has_gpu, use_threads_of_torch

PRECISIONS = ("bfloat16", "int8")


@dataclasses.dataclass(frozen=True)
class Setting:
    """Settings by which a contender is made."""

    model: str  # "gpt2", "llama" or "marian"
    root: pathlib.Path  # parent of the folders of models
    packed: bool = False  # a second copy of the weights in oneDNN's order
    precision: str = "float32"
    short: bool = False
    device: str = "cpu"

    @property
    def folder(self) -> str:
        return str(folder_of(self.root, self.model, self.short))

    @property
    def last_id(self) -> int:
        """Return the id that Marian's decoder starts with, which is also its padding."""
        return vocabulary(self.model, self.short) - 1


@dataclasses.dataclass(frozen=True)
class Contender:
    """A library with a model loaded.

    Fields:
        generate: function of prompts, number of new tokens and number of beams to rows of new ids.
        logits: function of prompts to GPT-2's logits at all places, or Marian's at the first.
        model: the library's own object.
    """

    generate: Callable
    logits: Callable | None = None
    model: object = None


def precision_of(name: str) -> str:
    return next((p for p in PRECISIONS if p in name.split("-")), "float32")


def make(name: str, setting: Setting) -> Contender:
    """Make the contender of a name. Its `generate` ends the process if a token is missing."""
    makers = {
        "keras_transformer": ours,
        "transformers": transformers,
        "ctranslate2": ctranslate2,
        "keras_hub": keras_hub,
    }
    packed = "packed" in name.split("-")
    setting = dataclasses.replace(setting, precision=precision_of(name), packed=packed)
    contender = makers[name.split("-")[0]](setting)

    def generate(prompts, new, beams=1):
        rows = contender.generate(prompts, new, beams)
        lengths = sorted({len(row) for row in rows})
        if len(rows) != len(prompts) or lengths != [new]:
            sys.exit(
                f"{name} made {len(rows)} rows of {lengths} tokens for {len(prompts)} prompts "
                f"and {new} new tokens: its speed cannot be compared."
            )
        return rows

    return dataclasses.replace(contender, generate=generate)


def use_device(setting: Setting) -> None:
    """Set PyTorch's threads; on a GPU, check that the backend has one."""
    import keras

    backend = keras.backend.backend()
    if backend == "torch":
        use_threads_of_torch()
    if setting.device == "gpu" and not setting.short and not has_gpu(backend):
        sys.exit(f"{backend} finds no GPU. Leave out --device gpu, or install it with CUDA.")


def ours(setting: Setting) -> Contender:
    import keras_transformer as kt

    use_device(setting)
    dtype = "bfloat16" if setting.precision == "bfloat16" else "float32"
    backbone = kt.Backbone.from_preset(setting.folder, dtype=dtype)
    if setting.precision == "int8":
        backbone.quantize("int8")
    # No end ids, so that a row continues to its last token.
    if setting.model == "marian":
        lm = kt.Seq2SeqLM(backbone, start_id=setting.last_id, end_ids=[])
    else:
        lm = kt.CausalLM(backbone, end_ids=[])
    lm.compile(pack_weights=setting.packed)

    def generate(prompts, new, beams):
        sampler = "greedy" if beams == 1 else kt.generation.BeamSearch(num_beams=beams)
        return lm.generate(prompts, max_new_tokens=new, sampler=sampler, batch_size=len(prompts))

    def logits(prompts):
        import keras

        ids = np.array(prompts, "int32")
        inputs = {"token_ids": ids}
        if setting.model == "marian":
            start = np.full((len(ids), 1), setting.last_id, "int32")
            inputs = {"encoder_token_ids": ids, "decoder_token_ids": start}
        return keras.ops.convert_to_numpy(keras.ops.cast(lm(inputs), "float32"))

    return Contender(generate, logits, lm)


def transformers(setting: Setting) -> Contender:
    import torch
    from transformers import AutoModelForCausalLM, MarianMTModel

    use_threads_of_torch()
    on_gpu = setting.device == "gpu" and has_gpu("torch")
    if setting.device == "gpu" and not on_gpu and not setting.short:
        sys.exit("PyTorch finds no GPU. Leave out --device gpu, or install it with CUDA.")
    device = "cuda" if on_gpu else "cpu"
    maker = MarianMTModel if setting.model == "marian" else AutoModelForCausalLM
    model = maker.from_pretrained(setting.folder, dtype=setting.precision).eval().to(device)
    pad, seq2seq = setting.last_id, setting.model == "marian"
    model.generation_config.pad_token_id = pad
    if not seq2seq:
        model.generation_config.eos_token_id = None

    def generate(prompts, new, beams):
        ids = torch.tensor(prompts, device=device)
        whole = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            num_beams=beams,
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
        )
        rows = whole[:, 1 if seq2seq else ids.shape[1] :].tolist()
        return [row[: row.index(pad)] if seq2seq and pad in row else row for row in rows]

    def logits(prompts):
        ids = torch.tensor(prompts, device=device)
        start = torch.full((len(prompts), 1), pad, device=device)
        with torch.inference_mode():
            outputs = model(ids, decoder_input_ids=start) if seq2seq else model(ids)
        return outputs.logits.float().cpu().numpy()

    return Contender(generate, logits, model)


def ctranslate2(setting: Setting) -> Contender:
    import ctranslate2

    kind = f"ctranslate2-{setting.precision}"
    folder = str(folder_of(setting.root, setting.model, setting.short, kind))
    names = words(setting.model, setting.short)
    ids = {name: i for i, name in enumerate(names)}
    gpt2 = setting.model == "gpt2"
    maker = ctranslate2.Generator if gpt2 else ctranslate2.Translator
    # By default it might compute in a faster type than the stored one.
    model = maker(
        folder, device="cpu", intra_threads=os.cpu_count() or 1, compute_type=setting.precision
    )

    def generate(prompts, new, beams):
        rows = [[names[i] for i in row] for row in prompts]
        if gpt2:
            results = model.generate_batch(
                rows,
                max_length=new,
                min_length=new,
                sampling_topk=1,
                beam_size=beams,
                include_prompt_in_result=False,
            )
            return [[ids[word] for word in result.sequences[0]] for result in results]
        results = model.translate_batch(
            rows, beam_size=beams, max_decoding_length=new, min_decoding_length=new
        )
        return [[ids[word] for word in result.hypotheses[0]] for result in results]

    return Contender(generate, None, model)


def keras_hub(setting: Setting) -> Contender:
    import keras_hub

    use_device(setting)
    backbone = keras_hub.models.GPT2Backbone.from_preset(setting.folder)
    model = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
    model.compile(sampler="greedy")

    def generate(prompts, new, beams):
        length = len(prompts[0])
        inputs = {
            "token_ids": np.pad(np.array(prompts, "int32"), ((0, 0), (0, new))),
            "padding_mask": np.arange(length + new)[None].repeat(len(prompts), 0) < length,
        }
        outputs = model.generate(inputs, stop_token_ids=None)
        tokens, mask = (np.asarray(outputs[name]) for name in ("token_ids", "padding_mask"))
        return [row[keep][length:].tolist() for row, keep in zip(tokens, mask, strict=True)]

    return Contender(generate, None, model)
