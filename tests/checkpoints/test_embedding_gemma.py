"""EmbeddingGemma: a Gemma 3 whose tokens see both sides, as Transformers computes it."""

import numpy as np
import pytest

from keras_transformer import export_to_huggingface
from keras_transformer.checkpoints import load_backbone
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints import families
from tests.checkpoints.conftest import assert_reads_back

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def made(number, folder):
    values = {"use_bidirectional_attention": True}
    model = families.make("gemma3_text", number, "Model", **values)
    model.save_pretrained(folder)
    return model


def states(model, ids, mask):
    with torch.no_grad():
        return model(torch.tensor(ids).long(), torch.tensor(mask).long())[0].numpy()


@pytest.mark.parametrize("number", range(3))
def test_both_sides_are_seen(tmp_path, number):
    """With windows that are narrower than the rows."""
    model = made(number, tmp_path)
    backbone = load_backbone(tmp_path)
    windows = {layer.window for layer in backbone.config.layers} - {None}
    assert backbone.config.kind == "encoder" and windows == {3}
    ids, mask = families.batch()
    found = to_numpy(backbone({"token_ids": ids, "padding_mask": mask}))
    expected = states(model, ids, mask)
    assert np.abs(found - expected)[mask].max() <= 2e-5


@pytest.mark.one_backend
def test_the_way_back(tmp_path):
    model = made(1, tmp_path / "theirs")
    backbone = load_backbone(tmp_path / "theirs")
    export_to_huggingface(backbone, tmp_path / "ours")
    again, info = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    ids, mask = families.batch()
    difference = states(again.eval(), ids, mask) - states(model, ids, mask)
    assert np.abs(difference)[mask].max() <= 1e-6
    assert_reads_back(tmp_path / "ours", backbone)
