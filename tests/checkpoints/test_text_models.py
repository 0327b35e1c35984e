"""The text models in folders of models of images and texts, against the Transformers library."""

import json
import logging

import numpy as np
import pytest
from safetensors.numpy import save_file

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import Checkpoint, to_numpy
from tests.checkpoints import families
from tests.checkpoints.test_families import saved

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

_IMAGES = {
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "head_dim": 4,
    "image_size": 16,
    "patch_size": 4,
}


# The name of their classes, by the `model_type` of the text model.
_WHOLE = {
    "ministral3": "Mistral3",
    "mistral": "Mistral3",
    "llama4_text": "Llama4",
    "gemma4_text": "Gemma4",
    "qwen3_5_text": "Qwen3_5",
    "qwen3_5_moe_text": "Qwen3_5Moe",
}
# What their images are in other words.
_OTHER_IMAGES = {"depth": 1, "num_heads": 2, "out_hidden_size": 12, "num_position_embeddings": 16}


def made(text_type, number, tied):
    """A model of images and texts of random weights, with a text model of another family."""
    text = {**families.CONFIGS[text_type][1][number], "model_type": text_type}
    name = _WHOLE[text_type]
    images, options = _IMAGES, {"image_token_index": 60}
    if name.startswith("Qwen"):
        images = {"hidden_size": 8, "intermediate_size": 12, **_OTHER_IMAGES}
        options = dict.fromkeys(("image_token_id", "video_token_id"), 60)
    if name == "Gemma4":
        options = {"image_token_id": 60, "video_token_id": 60, "audio_token_id": 60}
        images = {**_IMAGES, "num_key_value_heads": 2}
    config = getattr(transformers, f"{name}Config")(
        text_config=text, vision_config=images, tie_word_embeddings=tied, **options
    )
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = 0.3 * torch.randn(parameter.shape, generator=random)
            parameter.copy_(noise + ("norm" in name))
    return model


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("text_type", "number", "tied"),
    [
        ("ministral3", 0, False),
        ("mistral", 1, True),
        ("llama4_text", 0, False),
        ("gemma4_text", 0, True),
        ("qwen3_5_text", 0, False),
        ("qwen3_5_moe_text", 0, True),
    ],
)
def test_text_models_of_folders(tmp_path, caplog, text_type, number, tied):
    reference = made(text_type, number, tied)
    folder = saved(reference, tmp_path / "theirs")
    with caplog.at_level(logging.WARNING, logger="keras_transformer"):
        lm = kt.CausalLM.from_preset(folder)
    assert "Only its text model is loaded" in caplog.text
    config = lm.backbone.config
    assert lm.backbone.family == text_type and config.tie_embeddings == tied
    assert (config.rotary_query_growth is not None) == (text_type == "ministral3")
    ids, mask = families.batch(words=59)
    given = {"input_ids": torch.tensor(ids).long(), "attention_mask": torch.tensor(mask).long()}
    with torch.no_grad():
        expected = reference(**given).logits.numpy()
    found = to_numpy(lm.predict({"token_ids": ids, "padding_mask": mask}, verbose=0))
    assert np.abs(found - expected)[mask].max() <= 1e-4
    kt.export_to_huggingface(lm, tmp_path / "ours")
    kind = transformers.AutoModelForCausalLM
    again, info = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    assert again.config.model_type == text_type
    with torch.no_grad():
        assert np.abs(again(**given).logits.numpy() - expected)[mask].max() <= 1e-5
    whole = {"mistral": "mistral3", "ministral3": "mistral3", "gemma4_text": "gemma4"}
    if text_type in whole:  # its images are read too
        assert kt.ImageToText.from_preset(folder).backbone.family == whole[text_type]
        return
    # Qwen3.5's images are read too, but a head has fewer features here than its axes need.
    with pytest.raises(ValueError, match="ImageToText|images|position_axes"):
        kt.ImageToText.from_preset(folder)


@pytest.mark.one_backend
def test_text_model_of_a_folder_with_sound(tmp_path):
    """Gemma 3n, whose encoder of images is of another package: its texts by their names."""
    reference = families.make("gemma3n_text", 0, "LanguageModel")
    config = {"model_type": "gemma3n", "text_config": reference.config.to_dict()}
    tensors = {n: v.contiguous().numpy() for n, v in reference.state_dict().items()}
    tensors = {n.replace("model.", "model.language_model.", 1): v for n, v in tensors.items()}
    del tensors["lm_head.weight"]  # tied
    others = {f"model.{name}.weight": np.ones(3, "float32") for name in ("vision", "audio_tower")}
    save_file(tensors | others, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    lm = kt.CausalLM.from_preset(tmp_path)
    ids, mask = families.batch(words=59)
    given = {"input_ids": torch.tensor(ids).long(), "attention_mask": torch.tensor(mask).long()}
    with torch.no_grad():
        expected = reference(**given).logits.numpy()
    found = to_numpy(lm.predict({"token_ids": ids, "padding_mask": mask}, verbose=0))
    assert np.abs(found - expected)[mask].max() <= 1e-4


@pytest.mark.backend_independent
def test_text_models_that_are_not_known(tmp_path):
    for text, message in (
        ({"model_type": "mamba"}, "'mamba' are not supported"),
        ({"model_type": "bert"}, "has model_type 'bert', not a language model"),
        ([1], "text_config must be an object"),
    ):
        values = {"model_type": "mistral3", "text_config": text}
        (tmp_path / "config.json").write_text(json.dumps(values))
        with pytest.raises(ValueError, match=message):
            kt.CausalLM.from_preset(tmp_path, load_weights=False)


@pytest.mark.backend_independent
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_experts_in_one_tensor(tmp_path, dtype):
    """Published Qwen3.5 has the gates and linear branches of all experts in one tensor."""
    random = np.random.default_rng(0)
    name = "model.layers.0.mlp.experts."
    both, output = (random.normal(size=s).astype(dtype) for s in ((3, 8, 5), (3, 5, 4)))
    others = {  # gpt-oss and Llama 4 have no transposed ones
        "a.mlp.experts.gate_up_proj": random.normal(size=(3, 5, 8)).astype(dtype),
        "a.mlp.experts.down_proj": random.normal(size=(3, 4, 5)).astype(dtype),
    }
    tensors = {f"{name}gate_up_proj": both, f"{name}down_proj": output, **others}
    save_file(tensors, tmp_path / "model.safetensors")
    found = Checkpoint(tmp_path)
    expected = {"gate_proj": both[:, :4], "up_proj": both[:, 4:], "down_proj": output}
    assert set(found) == {*(f"{name}*.{part}.weight" for part in expected), *others}
    for part, array in expected.items():
        assert np.array_equal(found.read(f"{name}*.{part}.weight"), array.astype("float32"))
