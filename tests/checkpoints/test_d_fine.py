"""D-FINE against the Transformers library: outputs, losses, gradients, files, pixels, back."""

import json

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import load_config
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.training import EdgeDetectionLoss
from tests.checkpoints.family_d_fine import NETWORK, VALUES, d_fine
from tests.checkpoints.on_maps import (
    assert_same_gradients,
    assert_same_outputs,
    checked_parameters,
    loss_of_a_step,
    pixels,
    random_objects,
    shaken,
    share_noise,
)
from tests.compiled import outputs_of

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.numpy")

TWO_MAPS = {
    "network": {"out_indices": [3, 4], "use_learnable_affine_block": False},
    "encoder_in_channels": [16, 24],
    "decoder_in_channels": [16, 16],
    "encode_proj_layers": [1],
    "num_feature_levels": 2,
    "feat_strides": [16, 32],
}
CONFIGS = {
    "three maps": {
        "num_denoising": 4,
        "num_queries": 12,
        "reg_scale": 8.0,
        "freeze_backbone_batch_norms": False,
    },
    # Maps that are as wide as the states of the decoder, which are not projected.
    "two maps": {
        **TWO_MAPS,
        "encoder_hidden_dim": 16,
        "encoder_attention_heads": 4,
        "encoder_layers": 2,
        "hidden_expansion": 0.5,
        "depth_mult": 0.67,
        "decoder_layers": 3,
        "eval_idx": 2,
        "decoder_n_points": 2,
        "decoder_method": "discrete",
        "decoder_offset_scale": 0.8,
        "decoder_activation_function": "gelu",
        "max_num_bins": 12,
        "up": 0.4,
        "top_prob_values": 3,
        "lqe_layers": 3,
    },
}


@pytest.mark.each_backend
@pytest.mark.parametrize("name", CONFIGS)
def test_same_outputs(tmp_path, name):
    """For images of several sizes, and the way back."""
    reference = shaken(d_fine(**CONFIGS[name]), 0.2)
    sizes = [(64, 96)]
    if name == "three maps":  # in the second one some of the places are too near to the edge
        sizes += [(32, 448)]
    task, again = assert_same_outputs(reference, tmp_path, sizes)
    tensors = reference.state_dict()
    for path, tensor in again.state_dict().items():
        assert torch.equal(tensor, tensors[path]), path
    ours, _ = pixels(64, 96)
    both = outputs_of(task, {"images": ours})
    assert np.abs(outputs_of(task, {"images": ours[1:]}) - both[1:]).max() <= 1e-4
    task.save_to_preset(tmp_path / "saved")
    saved = kt.Task.from_preset(tmp_path / "saved")
    assert saved.task_values() == task.task_values()
    assert np.array_equal(outputs_of(saved, {"images": ours}), both)
    if name == "three maps":
        config = task.backbone.config
        plan = kt.planning.make_plan(config, batch_size=2, length=config.stem.num_states)
        assert task.backbone.count_params() == plan.parameters
        shapes = kt.ObjectDetector.head_shapes(config, task.task_values())
        assert {path: tuple(v.shape) for path, v in task.head.items()} == shapes


@pytest.mark.one_backend
def test_published_config_comes_back(tmp_path):
    """Values of a file are those of the exported one."""
    reference = d_fine(**CONFIGS["two maps"])
    reference.save_pretrained(tmp_path / "theirs")
    kt.export_to_huggingface(kt.Task.from_preset(tmp_path / "theirs"), tmp_path / "ours")
    said, written = (
        type(reference.config).from_pretrained(tmp_path / each).to_dict()
        for each in ("theirs", "ours")
    )
    network = said["backbone_config"], written["backbone_config"]
    assert network[0] == {**network[1], "initializer_range": 0.02}
    differing = {key for key in said if said[key] != written.get(key)}
    assert differing <= {"backbone_config", "eval_idx", "dtype", "_name_or_path"}
    assert written["eval_idx"] == -1


@pytest.mark.one_backend
def test_distances_are_those_of_the_checkpoint(tmp_path):
    """The largest published model has others than its config says."""
    reference = shaken(d_fine(), 0.2)
    with torch.no_grad():
        reference.model.decoder.reg_scale.fill_(8.0)
    reference.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["reg_scale"] == 4.0
    ours, theirs = pixels(64, 96)
    task = kt.Task.from_preset(tmp_path)
    with torch.no_grad():
        expected = reference(theirs)
    found = outputs_of(task, {"images": ours})
    assert np.abs(found[..., :4] - expected.pred_boxes.numpy()).max() <= 1e-4
    arrays = safetensors.load_file(tmp_path / "model.safetensors")
    shares = "model.decoder.layers.0.encoder_attn.num_points_scale"
    wrong = {**arrays, shares: arrays[shares] * np.float32(0.9)}
    safetensors.save_file(wrong, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="is computed from the config and not read"):
        kt.Task.from_preset(tmp_path)


def published_loss(reference, outputs, labels):
    """The losses of Transformers, each layer's of its own outputs and distributions.

    Its function pairs the outputs of a layer with the distributions of the next one, and leaves out
    those of the last; the authors' code and the paper have them as here.
    """
    from transformers.loss.loss_d_fine import DFineLoss

    meta = outputs.denoising_meta_values
    tensors = (
        outputs.intermediate_logits,
        outputs.intermediate_reference_points.clamp(0, 1),
        outputs.intermediate_predicted_corners,
        outputs.initial_reference_points,
    )

    def of_layers(logits, boxes, corners, starts):
        first = {"logits": logits[:, 0], "pred_boxes": boxes[:, 0]}
        last = {"teacher_corners": corners[:, -1], "teacher_logits": logits[:, -1]}
        found = [
            {
                "logits": logits[:, i + 1],
                "pred_boxes": boxes[:, i + 1],
                "pred_corners": corners[:, i],
                "ref_points": starts[:, i],
                **last,
            }
            for i in range(corners.shape[1])
        ]
        return [first, *found]

    given = {}
    if meta is not None:
        parts = [torch.split(each, meta["dn_num_split"], dim=2) for each in tensors]
        noisy, tensors = zip(*parts, strict=True)
        given = {"dn_auxiliary_outputs": of_layers(*noisy), "denoising_meta_values": meta}
    *earlier, last = of_layers(*tensors)
    chosen = {"logits": outputs.enc_topk_logits, "pred_boxes": outputs.enc_topk_bboxes}
    given = {**last, "auxiliary_outputs": [*earlier, chosen], **given}
    return DFineLoss(reference.config)(given, labels)


LOSSES = {
    "without noise": {"num_denoising": 0, "counts": [2, 0]},
    # Two groups of two places of each kind, and a place that no group has.
    "noise": {"num_denoising": 5, "counts": [2, 1], "decoder_layers": 3},
    # An image without objects, in whose places queries are to find nothing.
    "one group": {"num_denoising": 2, "counts": [3, 0], "decoder_n_points": 2},
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("noise", marks=pytest.mark.each_backend),
        *(pytest.param(name, marks=pytest.mark.one_backend) for name in LOSSES if name != "noise"),
    ],
)
def test_same_losses_and_gradients(tmp_path, monkeypatch, name):
    """With the same random numbers, in the order of their queries: ours are near, then far."""
    values = dict(LOSSES[name])
    counts, wanted = values.pop("counts"), values["num_denoising"]
    reference = shaken(d_fine(**values), 0.2)
    reference.save_pretrained(tmp_path / "theirs")
    task = kt.Task.from_preset(tmp_path / "theirs")
    assert isinstance(task.loss, EdgeDetectionLoss)
    targets, labels = random_objects(counts)
    if wanted:
        share_noise(task, counts, monkeypatch)
    ours, theirs = pixels(96, 128)
    reference.requires_grad_(True).train()
    parts = published_loss(reference, reference.model(theirs, labels=labels), labels)
    expected = sum(parts.values())
    expected.backward()
    monkeypatch.undo()
    told = {path.split("_dn_")[0].split("_aux_")[0] for path, part in parts.items() if part > 1e-4}
    assert told == {"loss_vfl", "loss_bbox", "loss_giou", "loss_fgl", "loss_ddf"}

    computed = loss_of_a_step(task, ours, targets)
    # Sums over all features and places, most of which cancel each other.
    bounds = {"_affine/": 5e-4}
    value, found = assert_same_gradients(task, computed, reference, tmp_path, bounds)
    assert abs(value - float(expected.detach())) <= 1e-4 * value
    assert len(found) > 200 and "encoder/input_convolution_1_affine/scale" in found
    assert not any(path.endswith(("edges/reach", "edges/scale")) for path in found)
    # Evaluation has the loss of the last layer's boxes and classes alone.
    x, _, _ = task.step_loss().batch({"images": ours}, targets, None, training=False)
    assert x.keys() == {"images"}


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"eval_idx": 0}, "eval_idx=0 is not supported, only -1"),
        ({"eval_idx": "last"}, "eval_idx='last' is not supported"),
        ({"max_num_bins": 7}, "`bins` of the `edges` must be an even number"),
        ({"max_num_bins": 2}, "`bins` must be an integer from 4"),
        ({"max_num_bins": 10**7}, "`bins` must be"),
        ({"up": 0}, "`reach` must be"),
        ({"reg_scale": "wide"}, "reg_scale must be a number"),
        ({"top_prob_values": 10}, "`top` must be"),
        ({"lqe_layers": 9}, "`quality_layers` must be"),
        ({"lqe_hidden_dim": 0}, "`quality_dim` must be"),
        ({"decoder_n_points": [3, 2]}, "`num_points` of the `box_decoder` must have a number for"),
        ({"decoder_n_points": [3, 2, 0]}, "`num_points` must be an integer"),
        ({"decoder_n_points": []}, "`num_points` must be an integer, or one for each map"),
        ({"decoder_n_points": "four"}, "decoder_n_points must be a number"),
        ({"decoder_layers": 17}, "`num_layers` must be"),
        ({"depth_mult": 0.1}, "`join_depth` must leave at least one block"),
        ({"depth_mult": 1000}, "`join_depth` must be"),
        ({"hidden_expansion": -1}, "`expansion` must be"),
        ({"activation_function": "relu"}, "activation_function='relu' is not supported"),
        ({"decoder_method": "cubic"}, "decoder_method='cubic' is not supported"),
        ({"normalize_before": True}, "normalize_before=True is not supported"),
        ({"num_feature_levels": 4}, "num_feature_levels=4 is not supported"),
        ({"encoder_in_channels": [12, 16, 16]}, "encoder_in_channels"),
        ({"backbone_config": {"model_type": "resnet"}}, "of model_type 'resnet'"),
        ({"backbone_config": NETWORK | {"out_indices": [1, 3, 4]}}, "only the last stages"),
        ({"backbone_config": NETWORK | {"stem_channels": [3, 8]}}, "stem_channels must be three"),
        ({"backbone_config": NETWORK | {"stem_channels": [3, 7, 6]}}, "`filters` of the stem"),
        ({"backbone_config": NETWORK | {"stem_strides": [1, 1, 1, 2, 1]}}, "stem_strides"),
        ({"backbone_config": NETWORK | {"num_channels": 1}}, "num_channels=1 is not supported"),
        ({"backbone_config": NETWORK | {"stage_in_channels": [6, 8, 12, 12]}}, "stage_in_channels"),
        ({"backbone_config": NETWORK | {"stage_downsample": [True] * 4}}, "stage_downsample"),
        ({"backbone_config": NETWORK | {"stage_kernel_size": [3, 3, 4, 5]}}, "`kernel_sizes`"),
        ({"backbone_config": NETWORK | {"stage_light_block": [0, 0, 1, 1]}}, "`light` of the stem"),
        ({"backbone_config": NETWORK | {"stage_mid_channels": [4, 5, 6]}}, "`inner_widths` of the"),
        ({"backbone_config": NETWORK | {"stage_num_blocks": 3}}, "stage_num_blocks must be a list"),
        ({"backbone_config": NETWORK | {"stage_num_blocks": [999] * 4}}, "at most 1,024 blocks"),
        (
            {"backbone_config": NETWORK | {"stage_numb_of_layers": [9999] * 4}},
            "make more than 4,096 convolutions",
        ),
        ({"backbone_config": NETWORK | {"hidden_act": "gelu"}}, "hidden_act='gelu'"),
        (
            {"backbone_config": NETWORK | {"use_learnable_affine_block": "yes"}},
            "use_learnable_affine_block",
        ),
    ],
)
def test_wrong_values_are_refused(values, message):
    family = FAMILIES["d_fine"]
    given = {"backbone_config": NETWORK, **VALUES, **values}
    given["backbone_config"] = {"out_indices": [2, 3, 4], **given["backbone_config"]}
    given["architectures"] = ["DFineForObjectDetection"]
    with pytest.raises(ValueError, match=message):
        kt.ObjectDetector.head_values(family.config(given), family.task(given))


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("family", "decoder", "message"),
    [
        ("rt_detr_v2", {"gated": True}, "RT-DETR has no `box_decoder` with gated=True"),
        ("rt_detr", {"num_points": [1, 2, 3]}, "RT-DETR has as many `num_points` for each map"),
        ("d_fine", {}, "D-FINE has no `box_decoder` with join='csp'"),
        (
            "d_fine",
            {
                "join": "csp_elan",
                "project_always": False,
                "value_projection": False,
                "gated": True,
            },
            "D-FINE has no `box_decoder` without `edges`",
        ),
    ],
)
def test_other_decoders_are_not_written(family, decoder, message):
    config = load_config("rtdetr_r18vd", load_weights=False)[0]
    task = {"name": "ObjectDetector", "num_classes": 2, "labels": None, "box_decoder": decoder}
    if family == "d_fine":
        config = FAMILIES["d_fine"].config({})
    with pytest.raises(ValueError, match=message):
        FAMILIES[family].published_config(config, task)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("name", "said"), [("nano", 4), ("small", 10), ("medium", 19), ("large", 31), ("xlarge", 62)]
)
def test_presets_have_as_many_parameters(name, said):
    """As Transformers' class, and, in millions, in table 1 of the paper."""
    assert checked_parameters(f"dfine_{name}_coco") == pytest.approx(said * 1e6, rel=0.06)
