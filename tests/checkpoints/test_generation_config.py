"""How Transformers generates with what is exported, and what is said of folders of other kinds."""

import json

import keras
import numpy as np
import pytest
import torch
import transformers

import keras_transformer as kt
from keras_transformer.checkpoints import load_config
from keras_transformer.generation import published
from tests.checkpoints.conftest import small_backbone
from tests.checkpoints.families import CONFIGS, class_name
from tests.thorough import a_part

pytestmark = pytest.mark.one_backend

# Values that change what is generated: the end, the beams, what may come twice.
SAID = {"num_beams": 2, "no_repeat_ngram_size": 3, "length_penalty": 2.0, "max_length": 12}
PROMPT = [5, 6, 7, 8]
PRESETS = {"bart": "bart_base_en", "marian": "opus_mt_en_de", "llama": "llama3_2_1b"}


def theirs(family, folder, in_config=False, said=SAID):
    """A random checkpoint of theirs that says how it generates, in a file or in its config."""
    prefix, configs = CONFIGS[family]
    name = class_name(family, "LanguageModel")
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, f"{prefix}Config")(**configs[0]))
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.5)
    model.generation_config.update(**said)
    model.save_pretrained(folder)
    if in_config:
        path = folder / "generation_config.json"
        values = json.loads(path.read_text()) | json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(values))
        path.unlink()
    return type(model)


@pytest.mark.parametrize(
    ("family", "in_config"), [("bart", False), ("bart", True), ("marian", False)]
)
def test_an_export_generates_there_as_the_original_does(tmp_path, family, in_config):
    model_class = theirs(family, tmp_path / "theirs", in_config)
    task = kt.Seq2SeqLM.from_preset(tmp_path / "theirs")
    if not in_config:
        task.save_to_preset(tmp_path / "ours")
        task = kt.Seq2SeqLM.from_preset(tmp_path / "ours")
    kt.export_to_huggingface(task, tmp_path / "export")
    found = []
    for folder in ("theirs", "export"):
        model = model_class.from_pretrained(tmp_path / folder).eval()
        found.append(model.generate(torch.tensor([PROMPT])).tolist())
        kept = model.generation_config.to_dict()
        assert SAID.items() <= kept.items() and kept["forced_eos_token_id"] == 2
    assert found[0] == found[1]
    assert len(found[0][0]) == 12 and found[0][0][-1] == 2  # The end is forced at the limit.


_RULES = {
    "no_repeat_ngram_size": 2, "repetition_penalty": 1.3, "bad_words_ids": [[9], [5, 6]],
    "suppress_tokens": [11, 12], "max_new_tokens": 14,
}  # fmt: skip
_FORCED = {"forced_bos_token_id": 7, "min_length": 9, "renormalize_logits": True}


@pytest.mark.parametrize(
    ("family", "said"),
    a_part(
        [
            ("bart", {**SAID, "no_repeat_ngram_size": 2}),
            ("bart", {**_RULES, **_FORCED, "num_beams": 3, "early_stopping": True}),
            ("marian", {**_FORCED, "num_beams": 3, "bad_words_ids": [[1]], "max_length": 16}),
            ("llama", {**_RULES, "min_new_tokens": 6}),
            ("llama", {"max_length": 9}),
            ("llama", {"guidance_scale": 4.0, "max_new_tokens": 9}),
            (
                "llama",
                {
                    "sequence_bias": [[[9], 6.0], [[5, 6], -3.0], [[9, 9], -20.0]],
                    "exponential_decay_length_penalty": [3, 1.5],
                    "max_new_tokens": 14,
                },
            ),
            (
                "bart",
                {
                    "sequence_bias": [[[9], 6.0], [[9, 9], -20.0]],
                    "max_new_tokens": 9,
                    "exponential_decay_length_penalty": [2, 1.5],
                },
            ),
        ],
        2,
    ),
)
def test_a_checkpoint_says_how_it_generates(tmp_path, family, said):
    model_class = theirs(family, tmp_path, said=said)
    model = model_class.from_pretrained(tmp_path).eval()
    task_class = kt.CausalLM if family == "llama" else kt.Seq2SeqLM
    task = task_class.from_preset(tmp_path)
    found = model.generate(torch.tensor([PROMPT]))[0].tolist()
    found = found[len(PROMPT) if family == "llama" else 1 :]
    ended = [*(i for i, token in enumerate(found) if token in task.end_ids), len(found)]
    assert task.generate(PROMPT) == found[: ended[0]]
    task.save(tmp_path / "task.keras")
    assert keras.models.load_model(tmp_path / "task.keras").generate(PROMPT) == found[: ended[0]]


def test_what_is_given_wins(tmp_path):
    theirs("bart", tmp_path, said={**_RULES, "num_beams": 3, "forced_bos_token_id": 7})
    task = kt.Seq2SeqLM.from_preset(tmp_path, end_ids=[])
    assert task.sampler == kt.generation.BeamSearch(num_beams=3)
    greedy = task.generate(PROMPT, sampler="greedy", rules=kt.generation.Rules(), max_new_tokens=6)
    task.compile(sampler="greedy")
    assert task.generate(PROMPT, max_length=6, rules=kt.generation.Rules()) == greedy
    assert greedy[0] == 7 and greedy[-1] == 2 and len(greedy) == 6
    task.backbone.generation_config = None
    rules = kt.generation.Rules(forced_prefix=[7], forced_end=2)
    assert task.generate(PROMPT, max_new_tokens=6, rules=rules) == greedy
    assert len(task.generate(PROMPT[:1], max_new_tokens=20)) == 20


@pytest.mark.parametrize(
    ("said", "sampler"),
    [
        ({}, kt.generation.Greedy()),
        ({"temperature": 0.5, "top_k": 3}, kt.generation.Greedy()),
        ({"do_sample": True}, kt.generation.Random(top_k=50)),
        (
            {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 0, "min_p": 0.1},
            kt.generation.Random(temperature=0.6, top_p=0.9, min_p=0.1),
        ),
        (
            {"do_sample": True, "top_k": 0, "epsilon_cutoff": 3e-4, "eta_cutoff": 1e-3},
            kt.generation.Random(epsilon_cutoff=3e-4, eta_cutoff=1e-3),
        ),
        (
            {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
            kt.generation.BeamSearch(num_beams=4, num_groups=2, diversity_penalty=0.5),
        ),
    ],
)
def test_samplers_of_checkpoints(said, sampler):
    assert published.sampler_of(said) == sampler


def test_values_that_are_not_heeded_are_named(tmp_path, caplog):
    said = {"encoder_no_repeat_ngram_size": 2, "num_beams": 2, "do_sample": True}
    said |= {"min_length": 5, "suppress_tokens": [2], "eos_token_id": 2, "guidance_scale": 1.0}
    theirs("bart", tmp_path)
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps(said))
    with caplog.at_level("WARNING", "keras_transformer"):
        task = kt.Seq2SeqLM.from_preset(tmp_path)
    assert "encoder_no_repeat_ngram_size=2, do_sample=True, suppress_tokens=[2]." in caplog.text
    assert published.unsupported_generation_values({"min_length": 5}, continues=True) == {
        "min_length": 5
    }
    guided = {"guidance_scale": 1.5}
    assert published.unsupported_generation_values(guided, continues=True) == {}
    assert published.unsupported_generation_values(guided, continues=False, guided=False) == guided
    for wrong, argument in (
        ({"do_sample": True, "temperature": 0.0}, "sampler"),
        ({"num_beams": "two"}, "sampler"),
        ({"bad_words_ids": 3}, "rules"),
        ({"max_length": -1}, "max_new_tokens"),
        ({"guidance_scale": "two"}, "guidance_scale"),
    ):
        task.backbone.generation_config = wrong
        ((name, value),) = list(wrong.items())[-1:]
        message = rf"generation config has .*'{name}': {value!r}.*Give `generate` a `{argument}` of"
        with pytest.raises(ValueError, match=message):
            task.generate(PROMPT)
    task.backbone.generation_config = guided
    with pytest.raises(ValueError, match="=1.5 of the checkpoint.* needs `negative_prompts` here"):
        task.generate(PROMPT)
    task = kt.CausalLM(small_backbone("decoder"))
    task.backbone.generation_config = {"max_length": 4}
    with pytest.raises(ValueError, match="max_length=4 of the checkpoint's generation config lea"):
        task.generate(PROMPT)


@pytest.mark.parametrize("family", PRESETS)
def test_what_was_made_here_generates_the_same_there(tmp_path, family):
    """With ids of its own, which are not those that the classes of theirs have by default."""
    kind = "decoder" if family == "llama" else "seq2seq"
    config = load_config(PRESETS[family], load_weights=False)[0].replace(
        vocabulary_size=40, num_layers=2, hidden_dim=16, num_heads=2, intermediate_dim=24,
        max_sequence_length=32, head_dim=8,
        **({"num_decoder_layers": 2} if kind == "seq2seq" else {}),
        **({"num_key_value_heads": 1} if family == "llama" else {}),
    )  # fmt: skip
    backbone = kt.models.build_backbone(config)
    random = np.random.default_rng(3)
    for weight in backbone.weights:
        weight.assign(random.normal(0, 0.4, weight.shape).astype("float32"))
    start = {"start_id": 39} if kind == "seq2seq" else {}
    task_class = kt.Seq2SeqLM if start else kt.CausalLM
    endless = task_class(backbone, end_ids=[], **start).generate(PROMPT, max_new_tokens=10)
    end = endless[4]
    task = task_class(backbone, end_ids=[end], **start)
    ours = task.generate(PROMPT, max_new_tokens=10)
    assert ours == endless[: endless.index(end)]
    kt.export_to_huggingface(task, tmp_path / "theirs", family=family)
    auto = "AutoModelForSeq2SeqLM" if start else "AutoModelForCausalLM"
    model = getattr(transformers, auto).from_pretrained(tmp_path / "theirs").eval()
    there = model.generate(torch.tensor([PROMPT]), max_new_tokens=10, do_sample=False)[0].tolist()
    there = there[1 if start else len(PROMPT) :]
    assert there == [*ours, end]


LLAMA = '{"model_type": "llama"}'


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"adapter_config.json": "{}", "adapter_model.safetensors": ""}, "PEFT adapter.*Merge"),
        ({"adapter_config.json": "{}", "tokenizer.json": "{}"}, "no config.json.* PEFT adapter"),
        ({"tiny.Q4_K_M.gguf": ""}, r"tiny\.Q4_K_M\.gguf is a GGUF file.*the path of"),
        ({"config.json": '{"model_type": "llama"}', "a.gguf": ""}, "no weights.* GGUF file"),
        ({"config.json": '{"model_type": "mamba"}'}, "'mamba' are not supp.*docs/families.md"),
        ({"config.json": LLAMA, "zero_pp_rank_0_mp_rank_00_optim_states.pt": ""},
         r"zero_pp_rank_0_mp.* DeepSpeed.*zero_to_fp32\.py \. new_folder --safe_serialization"),
        ({"config.json": LLAMA, "zero_to_fp32.py": "", "latest": ""}, "DeepSpeed"),
        ({"config.json": LLAMA, "__0_0.distcp": ""}, "with FSDP.*accelerate merge-weights"),
        ({"config.json": LLAMA, "pytorch_model_fsdp_0": None}, "with FSDP.*accelerate merge-we"),
        ({"config.json": LLAMA, "pytorch_model_fsdp.bin": ""}, "weights_only=True.*save_pretrain"),
        ({"__0_0.distcp": "", ".metadata": ""}, "is not a preset.*with FSDP"),
    ],
)  # fmt: skip
def test_folders_of_other_kinds_are_named_for_what_they_are(tmp_path, files, message):
    for name, text in files.items():
        if text is None:
            (tmp_path / name).mkdir()
        else:
            (tmp_path / name).write_text(text)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        kt.Backbone.from_preset(tmp_path)


def test_a_file_is_no_preset(tmp_path):
    (tmp_path / "a.keras").write_text("")
    with pytest.raises(
        ValueError, match=r"A preset is a folder or a GGUF file\. .*keras\.models\.load_model"
    ):
        kt.CausalLM.from_preset(str(tmp_path / "a.keras"))
    with pytest.raises(FileNotFoundError, match="There is no directory"):
        kt.CausalLM.from_preset(tmp_path / "a.keras")
