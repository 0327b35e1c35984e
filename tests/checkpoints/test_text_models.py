"""The text models in folders of models of images and texts, against the Transformers library."""

import json
import logging

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
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


def made(text_type, number, tied):
    """A Mistral 3 of random weights, with a text model of another family."""
    text = {**families.CONFIGS[text_type][1][number], "model_type": text_type}
    config = transformers.Mistral3Config(
        text_config=text, vision_config=_IMAGES, image_token_index=60, tie_word_embeddings=tied
    )
    model = transformers.Mistral3ForConditionalGeneration(config).eval()
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = 0.3 * torch.randn(parameter.shape, generator=random)
            parameter.copy_(noise + ("norm" in name))
    return model


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("text_type", "number", "tied"), [("ministral3", 0, False), ("mistral", 1, True)]
)
def test_text_models_of_mistral3(tmp_path, caplog, text_type, number, tied):
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
    with pytest.raises(ValueError, match="ImageToText|images"):
        kt.ImageToText.from_preset(folder)


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
