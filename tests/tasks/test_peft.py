"""Adapters of the PEFT library: read, written, and refused by name."""

import json

import keras
import numpy as np
import peft
import pytest
import safetensors.numpy
import torch

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.training import lora
from tests.checkpoints import families

pytestmark = pytest.mark.one_backend

LM, CLASSES = "LanguageModel", "ForSequenceClassification"
CASES = {
    "llama": (
        "llama", LM,
        {
            "target_modules": ["q_proj", "k_proj", "down_proj"], "r": 3, "lora_alpha": 7,
            "rank_pattern": {"layers.1.self_attn.q_proj": 2},
            "alpha_pattern": {r"layers\.\d\.mlp.down_proj": 4},
        },
    ),
    "llama_classifier": (
        "llama", CLASSES,
        {"target_modules": "all-linear", "use_rslora": True, "r": 4, "task_type": "SEQ_CLS"},
    ),
    "gpt2": (
        "gpt2", LM,
        {"target_modules": ["c_attn", "c_proj"], "r": 2, "fan_in_fan_out": True},
    ),
    "gpt2_upper": (
        "gpt2", LM,
        {"target_modules": ["c_attn"], "layers_to_transform": [1], "fan_in_fan_out": True},
    ),
    "gpt2_dora": (
        "gpt2", LM,
        {"target_modules": ["c_attn", "c_fc"], "r": 2, "fan_in_fan_out": True, "use_dora": True},
    ),
    "llama_dora": (
        "llama", LM,
        {
            "target_modules": ["q_proj", "down_proj"], "r": 3, "lora_alpha": 7, "use_dora": True,
            "use_rslora": True,
        },
    ),
    "gpt_neox": ("gpt_neox", LM, {"target_modules": ["query_key_value"], "r": 3, "use_dora": True}),
    "bert_classifier": (
        "bert", CLASSES,
        {"target_modules": "all-linear", "r": 2, "lora_alpha": 5, "task_type": "SEQ_CLS"},
    ),
}  # fmt: skip
# The output matrix, which is the embedding, is a part of the published head.
ALL = CASES | {"bert_masked": ("bert", "ForMaskedLM", {})}


def base(case, folder):
    """A checkpoint of the Transformers library, in `folder`."""
    model_type, suffix, values = ALL[case]
    labels = {"id2label": {0: "a", 1: "b", 2: "c"}} if suffix == CLASSES else {}
    model = families.make(model_type, 0, suffix, **labels, pad_token_id=3)
    model.save_pretrained(folder)
    return model, values


def adapted(case, folder, seed=5, **further):
    """PEFT's model of a case, whose checkpoint is in `base` and whose adapter is in `adapter`."""
    model, values = base(case, folder / "base")
    theirs = peft.get_peft_model(model, peft.LoraConfig(**{**values, **further})).eval()
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=random))
    theirs.save_pretrained(folder / "adapter")
    return theirs


def again(case, folder, adapter):
    """PEFT's model of the stored checkpoint and a folder with an adapter."""
    model = families.class_of(*ALL[case][:2]).from_pretrained(folder / "base")
    return peft.PeftModel.from_pretrained(model, adapter).eval()


def logits(task):
    ids, mask = families.batch(3)
    return to_numpy(task({"token_ids": ids, "padding_mask": mask}))


def assert_same(task, theirs):
    ids, mask = families.batch(3)
    inputs = {"input_ids": torch.tensor(ids).long(), "attention_mask": torch.tensor(mask).long()}
    with torch.no_grad():
        expected = theirs(**inputs).logits.numpy()
    ours = logits(task)
    compared = mask[..., None] if ours.ndim == 3 else np.True_
    assert np.abs((ours - expected) * compared).max() <= 1e-4


def edit(folder, **values):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def edit_tensors(folder, change):
    path = folder / "adapter_model.safetensors"
    tensors = dict(safetensors.numpy.load_file(path))
    change(tensors)
    safetensors.numpy.save_file(tensors, path)


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_peft_in_both_directions(case, tmp_path):
    theirs = adapted(case, tmp_path)
    task = kt.Task.from_preset(tmp_path / "base")
    before = logits(task)
    task.load_adapter(tmp_path / "adapter")
    assert np.abs(logits(task) - before).max() > 1e-2
    assert_same(task, theirs)
    task.save_adapter(tmp_path / "back", format="peft")
    assert_same(task, again(case, tmp_path, tmp_path / "back"))
    stored = safetensors.numpy.load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    written = safetensors.numpy.load_file(tmp_path / "back" / "adapter_model.safetensors")
    for name, array in stored.items():
        np.testing.assert_array_equal(written.pop(name), array)
    assert not written
    config = json.loads((tmp_path / "back" / "adapter_config.json").read_text())
    method = task.backbone.lora_method
    assert (config["use_dora"], config["use_rslora"]) == (method == "dora", method == "rslora")
    assert (method == "dora") == CASES[case][2].get("use_dora", False)
    adapted_logits = logits(task)
    task.save_adapter(tmp_path / "own.safetensors")
    other = kt.Task.from_preset(tmp_path / "base")
    other.load_adapter(tmp_path / "own.safetensors")
    np.testing.assert_allclose(logits(other), adapted_logits, rtol=0, atol=1e-5)
    task.merge_lora()
    np.testing.assert_allclose(logits(task), adapted_logits, rtol=0, atol=1e-4)


@pytest.mark.each_backend
def test_dora_learns_as_in_peft(tmp_path):
    """The first step of SGD is the gradient, and five steps lead to the same adapter."""
    theirs = adapted("llama_dora", tmp_path)
    task = kt.Task.from_preset(tmp_path / "base")
    task.load_adapter(tmp_path / "adapter")
    task.compile(keras.optimizers.SGD(0.1), task.loss, weighted_metrics=[kt.training.Perplexity()])
    ids = families.batch(3)[0]
    targets = np.roll(ids, -1, axis=1)
    parameters = {n: p for n, p in theirs.named_parameters() if p.requires_grad}
    optimizer = torch.optim.SGD(parameters.values(), 0.1)
    for step in range(5):
        logits = theirs(input_ids=torch.tensor(ids).long()).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), torch.tensor(targets).long().flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        optimizer.step()
        with torch.no_grad():
            changes = {name: parameter - before[name] for name, parameter in parameters.items()}
        ours_before = stored_adapter(task, tmp_path / "ours")
        task.train_on_batch({"token_ids": ids}, targets)
        ours = stored_adapter(task, tmp_path / "ours")
        for name, change in changes.items():
            own = name.replace(".default", "").replace(
                "magnitude_vector.weight", "magnitude_vector"
            )
            limit = 1e-4 * float(change.abs().max())
            if step == 0:
                found = ours[own].astype("float64") - ours_before[own]
                np.testing.assert_allclose(found, change.numpy(), rtol=0, atol=limit + 1e-7)
            expected = parameters[name].detach().numpy()
            np.testing.assert_allclose(ours[own], expected, rtol=0, atol=1e-4)


def stored_adapter(task, folder):
    task.save_adapter(folder, format="peft")
    return safetensors.numpy.load_file(folder / "adapter_model.safetensors")


@pytest.mark.each_backend
@pytest.mark.parametrize(
    ("case", "targets"),
    [
        ("gpt2", ["query", "value", "intermediate"]),
        ("llama", ["query", "gate"]),
        ("bert_classifier", ["value", "output", "pooler"]),
        ("bert_masked", ["query"]),
    ],
)
def test_own_adapters_are_read_by_peft(case, targets, tmp_path):
    base(case, tmp_path / "base")
    task = kt.Task.from_preset(tmp_path / "base")
    task.enable_lora(rank=3, alpha=5, targets=targets)
    random = np.random.default_rng(0)
    for variable in task.trainable_variables:
        variable.assign(0.3 * random.normal(size=variable.shape))
    task.save_adapter(tmp_path / "adapter", format="peft")
    assert_same(task, again(case, tmp_path, tmp_path / "adapter"))
    other = kt.Task.from_preset(tmp_path / "base")
    other.load_adapter(tmp_path / "adapter")
    np.testing.assert_allclose(logits(other), logits(task), rtol=0, atol=1e-5)


def test_ranks_and_alphas_of_layers_are_kept_in_a_keras_file(tmp_path):
    adapted("llama", tmp_path)
    task = kt.Task.from_preset(tmp_path / "base")
    task.load_adapter(tmp_path / "adapter")
    task.save(tmp_path / "task.keras")
    other = kt.CausalLM.from_config(task.get_config())
    assert lora.adapter_sizes(other.backbone) == lora.adapter_sizes(task.backbone)
    sizes = set(lora.adapter_sizes(task.backbone).values())
    assert sizes == {(3, 7.0), (2, 7.0), (3, 4.0)}


def test_another_adapter_takes_the_place_of_the_first(tmp_path):
    for name, seed in (("one", 1), ("two", 2)):
        theirs = adapted("llama", tmp_path / name, seed=seed)
    task = kt.Task.from_preset(tmp_path / "two" / "base")
    task.load_adapter(tmp_path / "one" / "adapter")
    task.load_adapter(tmp_path / "two" / "adapter")
    assert_same(task, theirs)


def test_a_task_without_head_values_in_the_folder_keeps_its_own(tmp_path):
    adapted("bert_classifier", tmp_path, task_type=None, target_modules=["query"])
    task = kt.Task.from_preset(tmp_path / "base")
    head = [to_numpy(variable) for variable in task.head.values()]
    task.load_adapter(tmp_path / "adapter")
    for variable, array in zip(task.head.values(), head, strict=True):
        np.testing.assert_array_equal(to_numpy(variable), array)


MERGE = r".*Merge it into its model with PEFT: `peft\.AutoPeftModel"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"peft_type": "LOHA"}, "it has peft_type='LOHA'" + MERGE),
        ({"peft_type": None}, "it is not a config of PEFT"),
        ({"use_dora": True}, "has no magnitude vector of .*_proj', but its config has use_dora=T"),
        ({"use_dora": 1}, "use_dora must be true or false"),
        ({"bias": "all"}, "it has bias='all'" + MERGE),
        ({"lora_bias": True}, "it has lora_bias=True" + MERGE),
        ({"init_lora_weights": "pissa"}, "it has init_lora_weights='pissa'" + MERGE),
        ({"layer_replication": [[0, 2]]}, "it has layer_replication=" + MERGE),
        ({"of_the_future": 3}, "it has of_the_future=3" + MERGE),
        (
            {"alpha_pattern": {"(a+)+b": 3}},
            r"the pattern '\(a\+\)\+b' in alpha_pattern, which takes names of modules" + MERGE,
        ),
        ({"rank_pattern": {"k_proj": 5}}, "where this model and the config need"),
        ({"alpha_pattern": {"q_proj": -1}}, "lora_alpha of model.layers.0.self_attn.q_proj"),
        ({"lora_alpha": "x"}, "`?lora_alpha of model"),
        ({"use_rslora": 3}, "use_rslora must be true or false"),
        ({"rank_pattern": [1]}, "rank_pattern must be an object of module names"),
    ],
    ids=str,
)
def test_what_cannot_be_represented_is_refused_by_name(values, message, tmp_path):
    adapted("llama", tmp_path)
    edit(tmp_path / "adapter", **values)
    assert_refused(tmp_path, message)


def assert_refused(folder, message):
    task = kt.Task.from_preset(folder / "base")
    before = logits(task)
    with pytest.raises(ValueError, match=message):
        task.load_adapter(folder / "adapter")
    assert not lora.is_adapted(task.backbone)
    np.testing.assert_array_equal(logits(task), before)


Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.update({"base_model.model.lm_head.lora_A.weight": t[f"{Q}.lora_A.weight"]}),
            "an adapter of 'lm_head', which is not a linear layer here" + MERGE,
        ),
        (
            lambda t: t.update({f"{Q}.lora_magnitude_vector": np.ones(3, "float32")}),
            "has a magnitude vector of .*q_proj', but its config has use_dora=False",
        ),
        (
            lambda t: t.update({"base_model.model.model.norm.weight": np.ones(3, "float32")}),
            "all of 'model.norm.weight', which is not in this task's head" + MERGE,
        ),
        (
            lambda t: t.update({"model.norm.weight": np.ones(3, "float32")}),
            "the tensor 'model.norm.weight', whose name is not from PEFT" + MERGE,
        ),
        (lambda t: t.pop(f"{Q}.lora_B.weight"), "only one of the two matrices of .*q_proj"),
        (
            lambda t: t.update({f"{Q}.lora_A.weight": np.ones((3, 5), "float32")}),
            r"q_proj.lora_A.weight' has the shape \(3, 5\), where",
        ),
        (
            lambda t: t.update(
                {f"{Q}.lora_B.weight": np.full_like(t[f"{Q}.lora_B.weight"], np.nan)}
            ),
            "holds NaN or infinity",
        ),
        (lambda t: [t.pop(name) for name in list(t)], "holds no matrices of LoRA"),
    ],
)
def test_tensors_of_another_kind_are_refused_by_name(change, message, tmp_path):
    adapted("llama", tmp_path)
    edit_tensors(tmp_path / "adapter", change)
    assert_refused(tmp_path, message)


def test_folders_without_an_adapter(tmp_path):
    adapted("llama", tmp_path)
    task = kt.Task.from_preset(tmp_path / "base")
    with pytest.raises(ValueError, match="'hf://adapter' is not the name of a model on the hub"):
        task.load_adapter("hf://adapter")
    with pytest.raises(FileNotFoundError, match=r"adapter_config\.json is missing"):
        task.load_adapter(tmp_path / "base")
    weights = tmp_path / "adapter" / "adapter_model.safetensors"
    (tmp_path / "outside").write_bytes(weights.read_bytes())
    weights.unlink()
    with pytest.raises(FileNotFoundError, match=r"adapter_model\.safetensors is missing"):
        task.load_adapter(tmp_path / "adapter")
    (tmp_path / "adapter" / "adapter_model.bin").write_text("")
    with pytest.raises(ValueError, match=r"in adapter_model\.bin\. Only safetensors are read"):
        task.load_adapter(tmp_path / "adapter")
    weights.symlink_to(tmp_path / "outside")
    with pytest.raises(ValueError, match="outside the preset's folder"):
        task.load_adapter(tmp_path / "adapter")
    weights.unlink()
    weights.write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    with pytest.raises(ValueError, match="is not a complete safetensors file"):
        task.load_adapter(tmp_path / "adapter")
    with pytest.raises(ValueError, match="`format` must be one of 'peft'"):
        task.save_adapter(tmp_path / "x", format="pt")
