"""Configs of encoders and encoder-decoders drawn at random, against the Transformers library.

What holds of the chosen ones holds of any. See `tests/thorough.py`.
"""

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import export_to_huggingface
from keras_transformer.checkpoints import backbone_variables, load_backbone
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints import families, test_families, test_heads
from tests.checkpoints.conftest import assert_reads_back
from tests.checkpoints.drawn_configs import RANGES, drawn
from tests.thorough import seeds

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.thorough
# On each backend the first of a family.
_CASES = [
    pytest.param(model_type, seed, marks=[pytest.mark.one_backend] if number else [])
    for model_type in RANGES
    for number, seed in enumerate(seeds(10))
]
_HEADS = [case for case in test_heads.CASES if case[0] in RANGES]


@pytest.fixture
def put(monkeypatch):
    """Makes a drawn config the only one of its family."""

    def put(model_type, seed):
        values = drawn(np.random.default_rng(seed), model_type)
        own = {model_type: (families.CONFIGS[model_type][0], [values])}
        monkeypatch.setattr(families, "CONFIGS", {**families.CONFIGS, **own})
        return values

    return put


def _outputs(reference, theirs):
    # Twice as exact: of two that are rounded, either may be the one that is further off. T5Gemma's
    # masks are those of float32 alone.
    exact = reference if reference.config.model_type == "t5gemma" else reference.double()
    with torch.no_grad():
        return exact(**theirs)[0].numpy()


@pytest.mark.parametrize(("model_type", "seed"), _CASES)
def test_same_outputs_there_and_back(tmp_path, put, model_type, seed):
    put(model_type, seed)
    reference, backbone = test_families.loaded(tmp_path / "theirs", model_type, 0)
    ours, theirs, mask = test_families.inputs_of(reference)
    most = 2e-5 if backbone.config.kind == "encoder" else 1e-4
    with torch.no_grad():
        rounded = reference(**theirs)[0].numpy()
    expected = _outputs(reference, theirs)
    if model_type == "t5gemma2":
        # Norms behind layers with small outputs magnify rounding. With all of it in float64 the
        # two are 20 times nearer; so ours may be 4 times as far off as theirs in float32.
        most = max(most, 4 * np.abs(rounded - expected)[mask].max())
    found = to_numpy(test_families.outputs_of(backbone, ours))
    assert np.abs(found - expected)[mask].max() <= most

    export_to_huggingface(backbone, tmp_path / "ours")
    again, info = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    not_there = ("embed_positions", "vision_tower", "multi_modal_projector")
    missing = {n for n in info.pop("missing_keys") if not any(each in n for each in not_there)}
    assert not missing and not any(info.values()), (missing, info)
    # An activation may go back by another name, which they compute in another order.
    assert np.abs(_outputs(again.eval(), theirs) - expected)[mask].max() <= most
    assert_reads_back(tmp_path / "ours", backbone)


@pytest.mark.parametrize(("model_type", "seed"), _CASES)
def test_same_gradients(tmp_path, put, model_type, seed):
    """Theirs written as weights, so that they are read as these are."""
    put(model_type, seed)
    reference, _, gradients = test_families._both_gradients(tmp_path, model_type)
    with torch.no_grad():
        for parameter in reference.parameters():
            grad = parameter.grad
            parameter.copy_(torch.zeros_like(parameter) if grad is None else grad)
    test_families.saved(reference, tmp_path / "gradients")
    expected = {
        path: to_numpy(v)
        for path, v in backbone_variables(load_backbone(tmp_path / "gradients")).items()
    }
    largest = max(np.abs(value).max() for value in expected.values())
    most = 4e-3 if model_type == "t5gemma2" else 1e-3  # rounding is magnified, as above
    for path, value in expected.items():
        if path == "output_bias/bias":  # of a BART, and of those made like it, it is a constant
            continue
        bound = most * np.abs(value).max() + 1e-6 * largest
        assert np.abs(gradients[path] - value).max() <= bound, path


@pytest.mark.parametrize(
    ("model_type", "seed"),
    [case for case in _CASES if test_families.kind_of(case.values[0]) == "seq2seq"],
)
def test_greedy_decoding_is_the_same(tmp_path, put, model_type, seed):
    put(model_type, seed)
    test_families.test_greedy_decoding_is_the_same(tmp_path, model_type, 0)


@pytest.mark.one_backend
@pytest.mark.parametrize("seed", seeds(5))
@pytest.mark.parametrize(("model_type", "task"), _HEADS)
def test_same_logits_of_heads(tmp_path, put, caplog, model_type, task, seed):
    values = put(model_type, seed)
    test_heads.test_same_logits(tmp_path / "theirs", model_type, task, 0, caplog)
    # Both sides have an embedding and nothing has a matrix for logits: no config says so.
    if FAMILIES[model_type].constants["kind"] == "seq2seq" and not values["tie_word_embeddings"]:
        return
    reference, (ids, mask) = test_heads.made(model_type, task, tmp_path / "theirs")
    expected = test_heads.logits_of(reference, ids, mask)
    export_to_huggingface(kt.Task.from_preset(tmp_path / "theirs"), tmp_path / "ours")
    again, info = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"], info
    again.config.pad_token_id = reference.config.pad_token_id
    found = test_heads.logits_of(again.eval(), ids, mask)
    np.testing.assert_allclose(found, expected, rtol=3e-5, atol=2e-5)
