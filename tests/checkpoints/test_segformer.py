"""SegFormer against the Transformers library: states, maps, classes, pixels, both ways."""

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints.family_dense import SEGFORMER, segformer
from tests.checkpoints.test_dense_families import shaken

torch = pytest.importorskip("torch")


def expected_of(reference, images):
    """The outputs of Transformers' model for images, laid out as ours."""
    outputs = reference(images)[0]
    if type(reference).__name__ == "SegformerModel":
        return outputs.flatten(2).transpose(1, 2)
    if outputs.ndim == 4:  # in the size of the images, as Transformers' loss has them
        outputs = torch.nn.functional.interpolate(outputs, size=images.shape[2:], mode="bilinear")
        outputs = outputs.permute(0, 2, 3, 1)
    return outputs


@pytest.mark.each_backend
@pytest.mark.parametrize("name", ["Model", "ForSemanticSegmentation", "ForImageClassification"])
def test_same_outputs(tmp_path, name):
    """For images whose sides are no multiples of the patches', and the way back."""
    reference = shaken(segformer(name, hidden_act="gelu" if name == "Model" else "relu"))
    reference.save_pretrained(tmp_path / "theirs")
    kt.ImageProcessor(size=32, family="Segformer").save(tmp_path / "theirs")
    load = kt.Backbone if name == "Model" else kt.Task
    ours = load.from_preset(tmp_path / "theirs")
    pixels = np.random.default_rng(0).normal(size=(2, 37, 50, 3)).astype("float32")
    pixels[1] += np.linspace(-3, 3, 50, dtype="float32")[:, None]
    theirs = torch.tensor(np.moveaxis(pixels, -1, 1).copy())
    with torch.no_grad():
        expected = expected_of(reference, theirs).numpy()
    found = to_numpy(ours({"images": pixels}))
    assert found.shape == expected.shape and np.ptp(expected, axis=0).max() > 1e-3
    assert np.abs(found - expected).max() <= 2e-5

    kt.export_to_huggingface(ours, tmp_path / "ours")
    again, info = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values())
    with torch.no_grad():
        assert np.abs(expected_of(again.eval(), theirs).numpy() - expected).max() <= 1e-5
    back = load.from_preset(tmp_path / "ours")
    if name != "Model":
        assert back.task_values() == ours.task_values()
        ours, back = ours.backbone, back.backbone
    assert back.config == ours.config


@pytest.mark.one_backend
@pytest.mark.parametrize("values", [{}, {"size": {"height": 20, "width": 30}, "resample": 3}])
def test_same_pixels(values):
    from transformers.models.segformer.image_processing_pil_segformer import (
        SegformerImageProcessorPil,
    )

    theirs = SegformerImageProcessorPil(**values)
    ours = kt.ImageProcessor.from_values(
        {"image_processor_type": "SegformerImageProcessor"} | values
    )
    assert kt.ImageProcessor.from_values(ours.values()).values() == ours.values()
    random = np.random.default_rng(0)
    for size in ((37, 53, 3), (1, 41, 3), (12, 8)):  # the last one is grey
        image = random.integers(0, 256, size).astype("uint8")
        rgb = image if image.ndim == 3 else np.stack([image] * 3, axis=-1)
        options = {"input_data_format": "channels_last", "return_tensors": "np"}
        expected = theirs(rgb, **options)["pixel_values"]
        assert np.abs(np.moveaxis(ours([image]), -1, 1) - expected).max() <= 1e-5


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"depths": [1, 2]}, "depths must be 3 numbers of at least 1"),
        ({"depths": 5}, "a list of whole numbers, received 5"),
        ({"strides": [4, 0, 2]}, "strides must be 3 numbers of at least 1"),
        ({"depths": [1, 2, 10**6]}, "depths must sum to at most"),
        ({"num_encoder_blocks": 99}, "num_encoder_blocks must be from 1 to"),
        ({"patch_sizes": [7, 4, 3]}, "`kernel_size` must be odd"),
        ({"num_attention_heads": [1, 5, 4]}, "divisible by `num_heads`"),
        ({"reshape_last_stage": False}, "reshape_last_stage=False is not supported"),
        ({"hidden_act": "snake"}, "hidden_act='snake' is not supported"),
        ({"decoder_hidden_size": 0}, "`features` must be"),
    ],
)
def test_wrong_values_are_refused(values, message):
    family = FAMILIES["segformer"]
    given = {**SEGFORMER, "architectures": ["SegformerForSemanticSegmentation"], **values}
    with pytest.raises(ValueError, match=message):
        kt.ImageSegmenter.head_values(family.config(given), family.task(given))
