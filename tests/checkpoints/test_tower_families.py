"""The towers of CLIP and SigLIP by themselves: of texts, with a projection, with classes, of both.

Towers of images are compared beside the other families of images, in `test_image_families`.
"""

import re
import warnings

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import load_backbone
from keras_transformer.checkpoints.presets.listing import resolve_preset
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.tasks.base.task import UNUSED
from tests.checkpoints import families
from tests.checkpoints.conftest import assert_same_values
from tests.checkpoints.family_duals import CONFIGS, TEXTS
from tests.checkpoints.test_families import _gradients, assert_gradients, saved

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CASES = [(name, i) for name, (_, configs) in TEXTS.items() for i in range(len(configs))]
ENDS = np.array([8, 5, 3, 6])
CLASSIFIERS = [(name, i) for name, (_, configs) in CONFIGS.items() for i in range(len(configs))]


def texts():
    """Ids that end at different places, and their mask."""
    ids = np.random.default_rng(3).integers(3, 57, (4, 9))
    ids[np.arange(4), ENDS] = 59
    return ids, np.arange(9) <= ENDS[:, None]


def images(channels=3):
    """Images, as ours takes them and as theirs."""
    values = np.random.default_rng(4).normal(size=(3, 20, 20, channels)).astype("float32")
    return {"images": values}, torch.tensor(np.moveaxis(values, -1, 1).copy())


def vectors_of(backbone, states, ids):
    ends = backbone.config.vector_pooling == "end"
    return (
        backbone.pool(states, keras.ops.convert_to_tensor(ids)) if ends else backbone.pool(states)
    )


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "{}-{}".format(*case))
def both(request, tmp_path_factory):
    reference = families.make(*request.param, "Model")
    return reference, load_backbone(saved(reference, tmp_path_factory.mktemp("theirs")))


@pytest.mark.each_backend
def test_same_states_and_vectors_of_texts(both):
    reference, backbone = both
    ids, mask = texts()
    with torch.no_grad():
        expected = reference(torch.tensor(ids), attention_mask=torch.tensor(mask).long())
    states = backbone({"token_ids": ids, "padding_mask": mask})
    difference = to_numpy(states) - expected.last_hidden_state.numpy()
    assert np.abs(difference)[mask].max() <= 2e-5
    found = to_numpy(vectors_of(backbone, states, ids))
    assert np.abs(found - expected.pooler_output.numpy()).max() <= 2e-5


@pytest.mark.parametrize("model_type", TEXTS)
def test_same_gradients_of_texts(tmp_path, model_type):
    reference = families.make(model_type, 0, "Model")
    backbone = load_backbone(saved(reference, tmp_path / "theirs"))
    ids, _ = texts()
    (reference(torch.tensor(ids)).pooler_output ** 2).mean().backward()

    def loss():
        found = vectors_of(backbone, backbone({"token_ids": ids}), ids)
        return keras.ops.mean(keras.ops.square(found))

    assert_gradients(_gradients(backbone, loss), reference, tmp_path / "gradients")


@pytest.mark.one_backend
def test_export_of_texts_is_the_way_back(tmp_path, both):
    reference, backbone = both
    kt.export_to_huggingface(backbone, tmp_path / "theirs")
    again, info = type(reference).from_pretrained(tmp_path / "theirs", output_loading_info=True)
    assert not any(info.values()), info
    ids = torch.tensor(texts()[0])
    with torch.no_grad():
        difference = again.eval()(ids).pooler_output - reference(ids).pooler_output
    assert difference.abs().max() <= 1e-6
    backbone.save_to_preset(tmp_path / "ours")
    backbone.save(tmp_path / "model.keras")
    for back in (
        load_backbone(tmp_path / "theirs"),
        kt.Backbone.from_preset(tmp_path / "ours"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert back.config == backbone.config
        assert_same_values(back, backbone)


@pytest.mark.parametrize(
    ("model_type", "name"),
    [
        ("clip_vision_model", "CLIPVisionModelWithProjection"),
        ("clip_text_model", "CLIPTextModelWithProjection"),
    ],
)
def test_vectors_with_a_projection(tmp_path, model_type, name):
    config = families.CONFIGS[model_type][1][0] | {"projection_dim": 7}
    config = getattr(transformers, f"{families.CONFIGS[model_type][0]}Config")(**config)
    torch.manual_seed(5)
    reference = getattr(transformers, name)(config).eval()
    saved(reference, tmp_path / "theirs")
    backbone = load_backbone(tmp_path / "theirs")
    assert backbone.config.vector_width == 7
    if "Vision" in name:
        ours, theirs = images()
        task = kt.ImageEmbedder(backbone, normalize=False)
    else:
        theirs = torch.tensor(texts()[0])
        ours = {"token_ids": texts()[0]}
        task = kt.TextEmbedder(backbone, normalize=False)
    assert task.pooling == "pooler"
    with torch.no_grad():
        expected = reference(theirs)[0].numpy()
    assert expected.shape[1] == 7
    assert np.abs(task.predict(ours, verbose=0) - expected).max() <= 2e-5

    kt.export_to_huggingface(backbone, tmp_path / "ours")
    again, info = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        assert np.abs(again.eval()(theirs)[0].numpy() - expected).max() <= 1e-6


@pytest.fixture(scope="module", params=CLASSIFIERS, ids=lambda case: "{}-{}".format(*case))
def with_classes(request, tmp_path_factory):
    """Their classifier on a tower of images, and the folder of it."""
    reference = families.make(*request.param, "ForImageClassification", num_labels=4)
    folder = tmp_path_factory.mktemp("theirs")
    kt.ImageProcessor(size=20).save(folder)
    return reference, saved(reference, folder)


def test_same_logits_and_gradients_of_classes(tmp_path, with_classes):
    folder = with_classes[1]
    reference = type(with_classes[0]).from_pretrained(folder).eval()  # Its weights are changed.
    classifier = kt.ImageClassifier.from_preset(folder)
    assert classifier.pooling == "mean" and classifier.num_classes == 4
    ours, theirs = images(reference.config.vision_config.num_channels)
    logits = reference(theirs).logits
    assert np.abs(to_numpy(classifier(ours)) - logits.detach().numpy()).max() <= 1e-4

    (logits**2).mean().backward()

    def loss():
        return keras.ops.mean(keras.ops.square(classifier(ours)))

    found = _gradients(classifier.backbone, loss)
    with torch.no_grad():
        for parameter in reference.parameters():
            grad = parameter.grad
            parameter.grad = torch.zeros_like(parameter) if grad is None else grad
    assert_gradients(found, reference, tmp_path / "gradients")


@pytest.mark.one_backend
def test_export_of_classes_is_the_way_back(tmp_path, with_classes):
    reference, folder = with_classes
    classifier = kt.ImageClassifier.from_preset(folder)
    kt.export_to_huggingface(classifier, tmp_path / "ours")
    again, info = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    assert again.config.architectures == [type(reference).__name__]
    _, theirs = images(reference.config.vision_config.num_channels)
    with torch.no_grad():
        assert (again.eval()(theirs)[0] - reference(theirs)[0]).abs().max() <= 1e-6
    # Without its head it is a tower alone.
    kt.export_to_huggingface(classifier.backbone, tmp_path / "alone")
    name = type(reference).__name__.replace("ForImageClassification", "VisionModel")
    tower, info = getattr(transformers, name).from_pretrained(
        tmp_path / "alone", output_loading_info=True
    )
    assert not any(info.values()), info
    with torch.no_grad():
        expected = reference.vision_model(theirs).pooler_output
        assert (tower.eval()(theirs).pooler_output - expected).abs().max() <= 1e-6
    other = kt.ImageClassifier(classifier.backbone, num_classes=4, pooling="pooler")
    with pytest.raises(ValueError, match="cannot express pooling='pooler' for ImageClassifier"):
        kt.export_to_huggingface(other, tmp_path / "other")


@pytest.fixture(scope="module", params=CONFIGS)
def of_two(request, tmp_path_factory):
    """A model of images and texts, in their format and in ours."""
    reference = families.make(request.param, 0, "Model")
    folder = tmp_path_factory.mktemp("both")
    kt.ImageProcessor(size=20).save(folder / "theirs")
    saved(reference, folder / "theirs")
    kt.ImageEmbedder(load_backbone(folder / "theirs")).save_to_preset(folder / "ours")
    return reference, folder


@pytest.mark.parametrize("kind", ["theirs", "ours"])
def test_a_classifier_of_the_images_of_two_sides(tmp_path, of_two, kind):
    """As Transformers makes one of the same folder."""
    reference, folder = of_two
    classifier = kt.ImageClassifier.from_preset(folder / kind, num_classes=5, pooling="mean")
    name = type(reference).__name__.replace("Model", "ForImageClassification")
    theirs = getattr(transformers, name).from_pretrained(folder / "theirs", num_labels=5).eval()
    with torch.no_grad():
        theirs.classifier.weight.copy_(torch.tensor(to_numpy(classifier.head["output/kernel"]).T))
        theirs.classifier.bias.copy_(torch.tensor(to_numpy(classifier.head["output/bias"])))
        expected = theirs(images()[1]).logits.numpy()
    assert np.abs(to_numpy(classifier(images()[0])) - expected).max() <= 1e-4
    assert (classifier.processor is None) == (kind == "ours")
    kt.export_to_huggingface(classifier, tmp_path)
    assert kt.ImageClassifier.from_preset(tmp_path).backbone.config == classifier.backbone.config


def test_a_tower_learns_classes(of_two):
    """Without a warning of the vector, which the mean of the patches does not go through."""
    classifier = kt.ImageClassifier.from_preset(of_two[1] / "theirs", labels=["dark", "bright"])
    pictures = [np.full((20, 20, 3), 20 + 200 * (i % 2), "uint8") for i in range(8)]
    labels = ["dark", "bright"] * 4
    classifier.compile(keras.optimizers.Adam(1e-2))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        history = classifier.fit(pictures, labels, epochs=6, verbose=0).history
    # Warnings of this pattern are not shown.
    gradients = [str(w.message) for w in said if "Gradients" in str(w.message)]
    assert all(re.match(UNUSED, message) for message in gradients), gradients
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert classifier.predict(pictures, verbose=0).argmax(1).tolist() == [0, 1] * 4


@pytest.mark.parametrize("kind", ["theirs", "ours"])
def test_the_images_of_two_sides(of_two, kind):
    reference, folder = of_two
    tower = kt.models.Encoder.from_preset(folder / kind)
    with torch.no_grad():
        expected = reference.vision_model(images()[1])
    states = tower(images()[0])
    assert np.abs(to_numpy(states) - expected.last_hidden_state.numpy()).max() <= 2e-5
    assert np.abs(to_numpy(tower.pool(states)) - expected.pooler_output.numpy()).max() <= 2e-5


@pytest.mark.parametrize("kind", ["theirs", "ours"])
def test_the_texts_of_two_sides(of_two, kind):
    reference, folder = of_two
    ids = texts()[0]
    if reference.config.model_type == "siglip":
        with pytest.raises(ValueError, match="is of kind 'dual', but TextEmbedder needs"):
            kt.TextEmbedder.from_preset(folder / kind)
        return
    embedder = kt.TextEmbedder.from_preset(folder / kind, normalize=False)
    assert isinstance(embedder.backbone, kt.models.Decoder)
    with torch.no_grad():
        expected = reference.text_model(torch.tensor(ids)).pooler_output.numpy()
    assert np.abs(embedder.predict({"token_ids": ids}, verbose=0) - expected).max() <= 2e-5


@pytest.mark.one_backend
def test_what_a_tower_cannot_do_is_refused(tmp_path):
    clip = saved(families.make("clip_text_model", 0, "Model"), tmp_path / "clip")
    with pytest.raises(ValueError, match="embeds texts.*Its task is TextEmbedder"):
        kt.CausalLM.from_preset(clip)
    with pytest.raises(ValueError, match="sentence-transformers has no pooling='pooler'"):
        kt.export_to_huggingface(kt.TextEmbedder.from_preset(clip), tmp_path / "exported")
    siglip = saved(families.make("siglip_text_model", 0, "Model"), tmp_path / "siglip")
    with pytest.raises(ValueError, match="reads a text at its last place.*pooling='mean'"):
        kt.TextEmbedder.from_preset(siglip)
    assert kt.TextEmbedder.from_preset(siglip, pooling="mean").width == 12
    dual = saved(families.make("clip", 0, "Model"), tmp_path / "dual")
    with pytest.raises(ValueError, match="is of kind 'dual', but CausalLM needs 'decoder'"):
        kt.CausalLM.from_preset(dual)
    with pytest.raises(ValueError, match="needs the `token_ids` of the states"):
        load_backbone(clip).pool(np.zeros((1, 3, 12), "float32"))


@pytest.mark.backend_independent
def test_bundled_models_of_two_sides_make_classifiers_as_transformers_does():
    for name in ("clip_vit_base_patch32", "siglip_base_patch16_224"):
        assert resolve_preset(name).task_options("ImageClassifier") == {"pooling": "mean"}
