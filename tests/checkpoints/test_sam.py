"""SAM against the Transformers library: states, masks, scores, gradients, pixels, both ways."""

import dataclasses
import math

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import load_config
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.config.structure import variable_shapes
from keras_transformer.tasks.images.prompted_segmenter import enlarged
from tests.checkpoints.family_sam import VALUES, sam
from tests.compiled import outputs_of

torch = pytest.importorskip("torch")

POINTS = np.array([[[[10, 20], [30, 40]], [[50, 60], [5, 6]]]] * 2, "float32")
LABELS = np.array([[[1, 0], [1, 1]]] * 2)
BOXES = np.array([[[5, 6, 50, 60], [10, 3, 70, 33]]] * 2, "float32")
NAMES = {"points": "input_points", "labels": "input_labels", "boxes": "input_boxes"}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sam")
    reference = sam()
    reference.save_pretrained(folder / "theirs")
    kt.processors.PromptedImageProcessor(size=80).save(folder / "theirs")
    return reference, kt.Task.from_preset(folder / "theirs"), folder


def inputs_of(images, points=None, labels=None, boxes=None, mask=None, padding=2):
    """Our inputs of two prompts on each image, with tokens of padding behind them."""
    places, kinds, shape = [], [], images.shape[0]
    if points is not None:
        places.append(points)
        kinds.append(labels)
    if boxes is not None:
        places.append(boxes.reshape(shape, 2, 2, 2))
        kinds.append(np.tile([2, 3], (shape, 2, 1)))
    else:
        places.append(np.zeros((shape, 2, 1, 2)))
        kinds.append(np.full((shape, 2, 1), -1))
    places.append(np.full((shape, 2, padding, 2), 7.0))
    kinds.append(np.full((shape, 2, padding), -10))
    made = {
        "images": images,
        "points": np.concatenate(places, axis=2).astype("float32"),
        "point_labels": np.concatenate(kinds, axis=2).astype("int32"),
    }
    if mask is not None:
        made["mask_prompts"] = np.tile(mask, (1, 2, 1, 1))
        made["has_mask"] = np.ones((shape, 2), bool)
    return made


def pixels_of(images):
    return torch.tensor(np.moveaxis(images, -1, 1).copy())


@pytest.mark.each_backend
def test_same_states_masks_and_scores(both):
    reference, task, _ = both
    assert type(task) is kt.PromptedSegmenter
    random = np.random.default_rng(0)
    images = random.normal(size=(2, 80, 80, 3)).astype("float32")
    with torch.no_grad():
        expected = reference.get_image_embeddings(pixels_of(images)).numpy()
    states = np.asarray(task.predict_on_batch({"images": images}))
    assert expected.std() > 0.1
    assert np.abs(np.moveaxis(states, -1, 1) - expected).max() <= 2e-5

    mask = random.normal(size=(2, 1, 20, 20)).astype("float32")
    for given in (
        {"points": POINTS, "labels": LABELS},
        {"boxes": BOXES},
        {"points": POINTS, "labels": LABELS, "boxes": BOXES, "mask": mask},
    ):
        theirs = {NAMES[name]: torch.tensor(x) for name, x in given.items() if name in NAMES}
        if "mask" in given:
            theirs["input_masks"] = torch.tensor(mask)
        inputs = inputs_of(images, **given)
        inputs["image_states"] = states
        del inputs["images"]
        found = {n: np.asarray(x) for n, x in task.predict_on_batch(inputs).items()}
        for multimask, chosen in ((True, slice(1, None)), (False, slice(0, 1))):
            with torch.no_grad():
                outputs = reference(
                    image_embeddings=torch.tensor(expected), multimask_output=multimask, **theirs
                )
            for name, value in (("masks", outputs.pred_masks), ("iou_scores", outputs.iou_scores)):
                assert value.std() > 1e-3
                assert np.abs(found[name][:, :, chosen] - value.numpy()).max() <= 1e-4


@pytest.mark.each_backend
def test_same_gradients(both):
    """Gradients of kernels, tables of distances and trained vectors, through both attentions."""
    reference, task, _ = both
    images = np.random.default_rng(1).normal(size=(1, 80, 80, 3)).astype("float32")
    given = {"points": POINTS[:1], "labels": LABELS[:1]}
    outputs = reference(
        pixel_values=pixels_of(images),
        **{NAMES[name]: torch.tensor(x) for name, x in given.items()},
    )
    (outputs.pred_masks.square().sum() + outputs.iou_scores.sum()).backward()
    vision, decoder = reference.vision_encoder, reference.mask_decoder
    expected = {
        "layer_0/self_attention/relative/rows": vision.layers[0].attn.rel_pos_h.grad,
        "layer_1/self_attention/relative/columns": vision.layers[1].attn.rel_pos_w.grad,
        "position_embedding/embeddings": vision.pos_embed.grad[0].reshape(25, -1),
        "neck/convolution_1/kernel": vision.neck.conv1.weight.grad[..., 0, 0].T,
        "mask_decoder/tokens": decoder.mask_tokens.weight.grad,
        "prompt_encoder/point_1": reference.prompt_encoder.point_embed[1].weight.grad,
    }
    variables = {name: next(v for v in task.weights if v.path.endswith(name)) for name in expected}
    task.freeze(layers=0, embeddings=False)
    inputs = inputs_of(images, **given)

    def loss(inputs):
        found = task(inputs)
        return keras.ops.sum(keras.ops.square(found["masks"][:, :, 1:])) + keras.ops.sum(
            found["iou_scores"][:, :, 1:]
        )

    found = gradients(loss, inputs, variables)
    for name, gradient in expected.items():
        scale = gradient.abs().max()
        assert scale > 1e-4, name
        assert np.abs(found[name] - gradient.numpy()).max() <= 1e-4 * max(1, scale), name


def gradients(loss, inputs, variables):
    """The gradients of `loss(inputs)` as arrays, by the names of the variables."""
    backend, values = keras.backend.backend(), list(variables.values())
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = loss(inputs)
        found = tape.gradient(value, [v.value for v in values])
    elif backend == "torch":
        parameters = [v.value for v in values]
        found = torch.autograd.grad(loss(inputs), parameters)
    else:
        import jax

        def of(arrays):
            with keras.StatelessScope(state_mapping=list(zip(values, arrays, strict=True))):
                return loss(inputs)

        found = jax.jit(jax.grad(of))([v.value for v in values])
    return {name: to_numpy(g) for name, g in zip(variables, found, strict=True)}


@pytest.mark.one_backend
def test_the_way_back(both):
    reference, task, folder = both
    kt.export_to_huggingface(task, folder / "ours")
    again, info = type(reference).from_pretrained(folder / "ours", output_loading_info=True)
    assert not (info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"])
    given = {"pixel_values": torch.ones(1, 3, 80, 80), "input_boxes": torch.tensor(BOXES[:1])}
    with torch.no_grad():
        both_masks = [model(**given).pred_masks for model in (again.eval(), reference)]
    assert torch.equal(*both_masks)
    back = kt.Task.from_preset(folder / "ours")
    assert back.task_values() == task.task_values()
    assert back.backbone.config == task.backbone.config
    assert back.processor.values() == task.processor.values()


@pytest.mark.one_backend
def test_same_states_some_queries_at_a_time(both, monkeypatch):
    """As in models of the published size, whose biases of all places would be gigabytes."""
    from keras_transformer.layers.attention import grid_windows

    _, task, _ = both
    images = np.random.default_rng(2).normal(size=(2, 80, 80, 3)).astype("float32")
    whole = outputs_of(task, {"images": images})
    counted = []
    monkeypatch.setattr(grid_windows, "_LONG", 1)
    kind = grid_windows.DecomposedScores
    some = kind._of_places
    monkeypatch.setattr(kind, "_of_places", lambda *x: counted.append(1) or some(*x))
    assert np.abs(outputs_of(task, {"images": images}) - whole).max() <= 1e-5
    assert counted


@pytest.mark.one_backend
def test_same_pixels_and_places():
    from transformers import SamProcessor
    from transformers.models.sam.image_processing_pil_sam import SamImageProcessorPil

    theirs = SamImageProcessorPil(
        size={"longest_edge": 64}, pad_size={"height": 64, "width": 64}, image_mean=[0.4, 0.5, 0.6]
    )
    ours = kt.processors.PromptedImageProcessor(size=64, mean=[0.4, 0.5, 0.6])
    read = kt.ImageProcessor.from_values(ours.values())
    assert type(read) is type(ours) and read.values() == ours.values()
    saved = {"image_processor_type": "SamImageProcessor", **theirs.to_dict()}
    assert kt.ImageProcessor.from_values(saved).values() == ours.values()
    random = np.random.default_rng(0)
    for size in ((37, 53), (90, 41), (64, 64), (7, 200)):
        image = random.integers(0, 256, (*size, 3)).astype("uint8")
        made = theirs(image, return_tensors="np")
        assert np.abs(np.moveaxis(ours([image]), -1, 1) - made["pixel_values"]).max() <= 1e-5
        assert ours.resized_size(size) == tuple(made["reshaped_input_sizes"][0])
        places = random.uniform(0, min(size), (2, 2))
        expected = SamProcessor._normalize_coordinates(
            type("", (), {"image_processor": theirs})(), 64, places, size
        )
        assert np.abs(ours.places(places, size) - expected).max() <= 1e-5

        low = random.normal(size=(1, 3, 16, 16)).astype("float32")
        given = (torch.tensor(low)[None][0][None], [size], [ours.resized_size(size)])
        whole = theirs.post_process_masks(*given, binarize=False)[0][0].numpy()
        found = np.stack(
            [enlarged(mask, 64, ours.resized_size(size), size, threshold=None) for mask in low[0]]
        )
        assert found.shape == whole.shape == (3, *size)
        assert np.abs(found - whole).max() <= 1e-4


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": {"longest_edge": 64}, "pad_size": {"height": 80, "width": 64}}, "a square of it"),
        ({"size": {"height": 64, "width": 64}}, "only a longest edge"),
        ({"size": {"longest_edge": [64]}, "pad_size": {}}, "`size` must be"),
        ({"do_pad": False}, "do_pad=False is not supported"),
        ({"image_std": [0, 1, 1]}, "`std` must be above 0"),
    ],
)
def test_wrong_values_of_the_processor_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        kt.ImageProcessor.from_values({"image_processor_type": "SamImageProcessor", **values})


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("part", "values", "message"),
    [
        ("vision_config", {"output_channels": 24}, "output_channels=24 is not supported"),
        ("vision_config", {"image_size": [80, 96]}, "only squares"),
        ("vision_config", {"num_pos_feats": 9}, "num_pos_feats=9"),
        ("vision_config", {"global_attn_indexes": 5}, "a list of whole numbers"),
        ("vision_config", {"window_size": -1}, "`size` must be"),
        ("prompt_encoder_config", {"image_size": 64}, "image_size=64"),
        ("prompt_encoder_config", {"num_point_embeddings": 3}, "num_point_embeddings=3"),
        ("mask_decoder_config", {"iou_head_depth": 40}, "16 or more"),
        ("mask_decoder_config", {"num_attention_heads": 3}, "multiple of `num_heads`"),
        ("mask_decoder_config", {"hidden_act": "unheard"}, "hidden_act='unheard'"),
    ],
)
def test_wrong_values_are_refused(part, values, message):
    family, given = FAMILIES["sam"], {**VALUES, part: {**VALUES[part], **values}}
    with pytest.raises(ValueError, match=message):
        kt.PromptedSegmenter.head_values(family.config(given), family.task(given))


@pytest.mark.backend_independent
@pytest.mark.parametrize(("name", "layers"), [("base", 12), ("large", 24), ("huge", 32)])
def test_parameters_of_the_published_models(name, layers):
    """Counted in the library's own model of the preset's config, without memory."""
    import transformers

    family = FAMILIES["sam"]
    values, task, _ = load_config(f"sam_vit_{name}", load_weights=False)
    assert values.encoder.num_layers == layers
    theirs = family.published_config(values, task)
    with torch.device("meta"):
        model = transformers.SamModel(transformers.SamConfig(**theirs))
    expected = sum(parameter.numel() for parameter in model.parameters())
    head = kt.PromptedSegmenter.head_shapes(values, task)
    ours = sum(map(math.prod, variable_shapes(values).values())) + sum(
        map(math.prod, head.values())
    )
    # The paper has 91, 308 and 636 million in the image encoders; the cards 93.7, 312 and 641.
    assert ours == expected
    assert round(ours / 1e6, 1) == {"base": 93.7, "large": 312.3, "huge": 641.1}[name]


@pytest.mark.backend_independent
def test_configs_of_windows_and_grids():
    config = FAMILIES["sam"].config(VALUES)
    side = config.encoder
    attention = side.block.mixer
    assert [block.mixer.pattern is None for block in side.blocks] == [False, True, False]
    for wrong in (
        {"score_bias": attention.score_bias.replace(rows=4)},
        {"score_bias": None, "pattern": attention.pattern.replace(columns=7)},
    ):
        mixer = dataclasses.replace(attention, **wrong) if len(wrong) > 1 else None
        with pytest.raises(ValueError, match=r"one grid|needs a stem of as many patches"):
            mixer = mixer or attention.replace(**wrong)
            side.replace(block=side.block.replace(mixer=mixer), layers=())
    assert kt.TransformerConfig.from_dict(config.to_dict()) == config
