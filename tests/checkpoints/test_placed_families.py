"""Decoders with states of images among their own, against the Transformers library."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.config.outputs import OF_SQUARES
from keras_transformer.generation import BeamSearch, Rules
from keras_transformer.tasks.text.generating import GenerationCall
from tests.checkpoints import families
from tests.checkpoints.conftest import assert_same_values
from tests.checkpoints.family_placed import CONFIGS
from tests.checkpoints.test_families import _gradients, assert_gradients, saved
from tests.compiled import outputs_of

torch = pytest.importorskip("torch")

# Those that only read images cut into tiles are in `tests/tasks/test_tiled_images.py`.
OF_IMAGES = [name for name in CONFIGS if name not in ("llava_next", "llava_onevision")]
CASES = [(name, i) for name in OF_IMAGES for i in range(len(CONFIGS[name][1]))]
# Those with a T5, whose encoder has the states, are in `test_placed_in_encoders.py`.
CASES = [case for case in CASES if case not in (("blip-2", 2), ("blip-2", 3))]
# Behind the layers whose states are read, and so not in ours.
UNREAD = ("post_layernorm",)


def name_of(case):
    return "{}-{}".format(*case)


@pytest.fixture(scope="module", params=CASES, ids=name_of)
def both(request, tmp_path_factory):
    reference = families.make(*request.param, "LanguageModel")
    folder = saved(reference, tmp_path_factory.mktemp("theirs"))
    return reference, kt.ImageToText.from_preset(folder)


def rows_of(task, lengths=(5, 3), seed=3):
    """Return images, and prompts with these numbers of tokens beside the placeholders."""
    config, random = task.backbone.config, np.random.default_rng(seed)
    stem = config.side("encoder").stem
    shape = (len(lengths), *stem.image_size, stem.num_channels)
    images = random.normal(size=shape).astype("float32")
    rows = []
    for place, length in enumerate(lengths):
        ids = random.integers(5, 59, length).tolist()
        inside = (
            getattr(config.projector, "type", None) in OF_SQUARES
            or config.placeholder_visibility == "causal"
        )
        at = 2 if place == 0 and inside else 0
        rows.append([*ids[:at], *[config.placeholder_id] * config.num_placeholders, *ids[at:]])
    return images, rows


def ours_of(task, images, rows, behind=()):
    """Arrays of prompts and what follows on them, padded, as ours takes them, and their mask."""
    behind = behind or [[]] * len(rows)
    wholes = [[*row, *more] for row, more in zip(rows, behind, strict=True)]
    length = max(map(len, wholes))
    ids = np.zeros((len(rows), length), "int32")
    mask, prefix = np.zeros_like(ids, "bool"), np.zeros_like(ids, "bool")
    for i, whole in enumerate(wholes):
        ids[i, : len(whole)], mask[i, : len(whole)] = whole, True
        prefix[i, : len(rows[i])] = True
    inputs = {"encoder_images": images, "decoder_token_ids": ids, "decoder_padding_mask": mask}
    if task.backbone.config.placeholder_visibility == "prompt":
        inputs["decoder_prefix_mask"] = prefix
    return inputs, mask


def count_placed(config):
    """The placeholders of a GIT."""
    return FAMILIES["git"].config(config.to_dict()).num_placeholders


def theirs_of(reference, image, row, behind=()):
    """The same of one row alone, as theirs takes it."""
    given = {
        "pixel_values": torch.tensor(np.moveaxis(image, -1, 0)[None].copy()),
        "input_ids": torch.tensor([[*row, *behind]]),
    }
    if reference.config.model_type in ("idefics3", "smolvlm"):  # images of each row
        given["pixel_values"] = given["pixel_values"][None]
    if reference.config.model_type == "git":  # whose images stand in front by themselves
        given["input_ids"] = given["input_ids"][:, count_placed(reference.config) :]
    if reference.config.model_type == "paligemma":
        given["token_type_ids"] = torch.tensor([[0] * len(row) + [1] * len(behind)])
        given["attention_mask"] = torch.ones_like(given["input_ids"])
    if reference.config.model_type == "gemma3":
        given["token_type_ids"] = (given["input_ids"] == reference.config.image_token_id).int()
    return given


def logits_of(reference, images, rows, behind=()):
    """Theirs, of each row alone."""
    behind = behind or [[]] * len(rows)
    with torch.no_grad():
        given = (theirs_of(reference, *each) for each in zip(images, rows, behind, strict=True))
        return [reference(**each).logits[0].numpy() for each in given]


def test_same_logits(both):
    """Compare a batch with padding, each row with theirs alone."""
    reference, task = both
    images, rows = rows_of(task)
    behind = [[7, 8, 9], [10]]
    ours, mask = ours_of(task, images, rows, behind)
    found = outputs_of(task, ours)
    for i, expected in enumerate(logits_of(reference, images, rows, behind)):
        assert np.abs(found[i][mask[i]] - expected).max() <= 1e-4


def written(task, images, rows, **options):
    """New ids of each row, none of which is a placeholder: theirs would count it."""
    rules = Rules(bad_words=[[task.backbone.config.placeholder_id]])
    further = {"encoder_images": images}
    call = GenerationCall(task, rows, further=further, rules=rules, max_new_tokens=8, **options)
    return [first.token_ids for first, *_ in call.completions()]


@pytest.mark.one_backend
def test_greedy_decoding_is_the_same(both):
    """Through the cache, prompts of several lengths in a batch and each alone."""
    reference, task = both
    images, rows = rows_of(task, lengths=(5, 3, 9))
    task.end_ids, ends = (), task.end_ids
    try:
        for sampler in ("greedy", BeamSearch(2)):
            found = written(task, images, rows, sampler=sampler, batch_size=2)
            for i in range(3):
                alone = written(task, images[i : i + 1], rows[i : i + 1], sampler=sampler)
                assert alone == found[i : i + 1]
            if sampler != "greedy":
                continue
            for image, row, new in zip(images, rows, found, strict=True):
                logits = logits_of(reference, [image], [row], [new[:-1]])[0][-8:]
                logits[:, task.backbone.config.placeholder_id] = -np.inf
                assert logits.argmax(-1).tolist() == new
    finally:
        task.end_ids = ends


@pytest.mark.parametrize("case", [(name, 0) for name in OF_IMAGES], ids=name_of)
def test_same_gradients(tmp_path, case):
    reference = families.make(*case, "LanguageModel")
    task = kt.ImageToText.from_preset(saved(reference, tmp_path / "theirs"))
    backbone = task.backbone
    images, rows = rows_of(task, lengths=(5,))
    ours, _ = ours_of(task, images, rows, [[7, 8]])
    outputs = reference(**theirs_of(reference, images[0], rows[0], [7, 8])).logits
    (outputs**2).mean().backward()
    found = _gradients(
        backbone, lambda: keras.ops.mean(keras.ops.square(backbone.logits(backbone(ours))))
    )
    assert_gradients(found, reference, tmp_path / "gradients")


@pytest.mark.one_backend
def test_export_is_the_way_back(both, tmp_path):
    reference, task = both
    kt.export_to_huggingface(task, tmp_path)
    again, info = type(reference).from_pretrained(tmp_path, output_loading_info=True)
    info["missing_keys"] = {n for n in info["missing_keys"] if not any(u in n for u in UNREAD)}
    heads = [n for n in info["missing_keys"] if ".head." not in n]  # SigLIP's, of one vector
    assert not heads and not any(v for k, v in info.items() if k != "missing_keys"), info
    images, rows = rows_of(task)
    for mine, expected in zip(
        logits_of(again.eval(), images, rows), logits_of(reference, images, rows), strict=True
    ):
        assert np.abs(mine - expected).max() <= 1e-6
    back = kt.ImageToText.from_preset(tmp_path)
    assert back.backbone.config == task.backbone.config
    assert back.task_values() == task.task_values()
    assert_same_values(back.backbone, task.backbone)


@pytest.mark.one_backend
def test_presets_and_keras_files(both, tmp_path):
    _, task = both
    images, rows = rows_of(task)
    ours, mask = ours_of(task, images, rows)
    expected = outputs_of(task, ours)
    task.save_to_preset(tmp_path / "preset")
    task.save(tmp_path / "model.keras")
    for again in (
        kt.Task.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert again.task_values() == task.task_values()
        assert np.abs(outputs_of(again, ours) - expected)[mask].max() <= 1e-6


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vision_config": 3}, "vision_config must be an object"),
        ({"text_config": 3}, "text_config must be an object"),
        ({"vision_config": {"model_type": "odd"}}, "The image tower 'odd' is not supported"),
        (
            {"text_config": {"model_type": "odd"}},
            "The text model 'odd' is not supported, only 'llam",
        ),
        ({"vision_feature_layer": [-2, -5]}, "vision_feature_layer must be a number"),
        ({"vision_feature_layer": 99}, "vision_feature_layer=99 is not one of the 24 image"),
        ({"vision_feature_select_strategy": "some"}, "select_strategy='some' is not supported"),
        ({"projector_hidden_act": "loud"}, "projector_hidden_act='loud' is not supported"),
        ({"image_token_index": 32001}, "must be the id of a token or .*at most 32000"),
    ],
)
def test_wrong_values_of_llava_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES["llava"].config(values)


_OF_PIXTRAL = {"model_type": "pixtral"}


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("model_type", "values", "message"),
    [
        ("mistral3", {"vision_config": {"model_type": "clip_vision_model"}}, "only Pixtral's"),
        ("mistral3", {"vision_config": {"patch_size": [14, 16]}}, "must be a square"),
        ("mistral3", {"vision_config": {"patch_size": []}}, "must be a square"),
        ("mistral3", {"vision_config": {"hidden_size": 1000}}, "must be a multiple of 4 times"),
        ("mistral3", {"vision_config": {"hidden_act": ["silu"]}}, "hidden_act=.* not supported"),
        (
            "mistral3",
            {"vision_config": {"rope_parameters": {"rope_type": "yarn"}}},
            "'yarn' of the image tower is not supported, only 'axial'",
        ),
        ("mistral3", {"vision_feature_layer": [-1, -2]}, "vision_feature_layer must be a number"),
        ("mistral3", {"projector_hidden_act": "loud"}, "projector_hidden_act='loud' is not"),
        ("mistral3", {"text_config": {"model_type": "odd"}}, "only 'mistral', 'ministral3'"),
        ("mistral3", {"spatial_merge_size": 0}, "projector_pool"),
        (
            "llava",
            {"vision_config": _OF_PIXTRAL, "vision_feature_select_strategy": "default"},
            "'default' is not supported, only 'full'",
        ),
        ("llava_next", {"vision_config": _OF_PIXTRAL}, "The image tower 'pixtral' is not"),
    ],
)
def test_wrong_values_of_images_of_any_size_are_refused(model_type, values, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES[model_type].config(values)
