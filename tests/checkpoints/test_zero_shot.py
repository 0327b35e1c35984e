"""`ImageEmbedder` of folders that Transformers wrote, against its pipeline, vectors, loss."""

import numpy as np
import pytest

import keras_transformer as kt
from tests.checkpoints import families
from tests.tokenizers.folders import clip
from tests.tokenizers.piece_folders import siglip

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LABELS = ["a cat", "dogs, two!", "The Park"]
TEXTS = ["Two young women are talking.", "a cat", "It's one of the BEST films!", "a man"]
_SIZE = {"clip": {"shortest_edge": 20}, "siglip": {"height": 20, "width": 20}}


def pictures():
    random = np.random.default_rng(0)
    return [random.integers(0, 256, (16 + i, 30, 3)).astype("uint8") for i in range(4)]


@pytest.fixture(scope="module", params=["clip", "siglip"])
def folder(request, tmp_path_factory):
    """A checkpoint with its image processor and tokenizer, as Transformers saves them."""
    name, place = request.param, tmp_path_factory.mktemp("theirs")
    {"clip": clip, "siglip": siglip}[name](place)
    prefix = families.CONFIGS[name][0]
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    words = {"vocab_size": len(tokenizer), "max_position_embeddings": 64}
    words |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = families.CONFIGS[name][1][0]
    text = {**config["text_config"], **words, "bos_token_id": tokenizer.bos_token_id}
    reference = families.make(name, 0, "Model", text_config=text)
    crop = {"crop_size": {"height": 20, "width": 20}} if name == "clip" else {}
    images = getattr(transformers, f"{prefix}ImageProcessor")(size=_SIZE[name], **crop)
    reference.save_pretrained(place)
    getattr(transformers, f"{prefix}Processor")(images, tokenizer).save_pretrained(place)
    return place


def their_inputs(folder, images, texts):
    processor = transformers.AutoProcessor.from_pretrained(folder)
    padding = {"padding": "max_length", "max_length": 64} if _is_siglip(folder) else {}
    options = {"padding": True, "truncation": True, "return_tensors": "pt", **padding}
    return processor(images=images, text=texts, **options)


def _is_siglip(folder):
    return transformers.AutoConfig.from_pretrained(folder).model_type == "siglip"


def pipeline(folder):
    return transformers.pipeline("zero-shot-image-classification", model=str(folder))


def test_the_pipeline(folder):
    from PIL import Image

    ours, theirs = kt.ImageEmbedder.from_preset(folder), pipeline(folder)
    images = pictures()
    template = "This is a photo of {}."
    found = ours.classify(images, LABELS, template=template, top_k=3)
    expected = theirs(
        [Image.fromarray(image) for image in images],
        candidate_labels=LABELS,
        hypothesis_template=template,
    )
    for row, other in zip(found, expected, strict=True):
        assert dict(row).keys() == set(LABELS)
        shares = {each["label"]: each["score"] for each in other}
        assert dict(row) == pytest.approx(shares, abs=2e-5)


def test_vectors_and_loss(folder):
    ours, images = kt.ImageEmbedder.from_preset(folder), pictures()
    model = transformers.AutoModel.from_pretrained(folder)
    inputs = their_inputs(folder, images, TEXTS)
    with torch.no_grad():
        expected = model(**inputs, return_loss=True)
    for found, vectors in (
        (ours.encode(images), expected.image_embeds),
        (ours.encode_texts(TEXTS), expected.text_embeds),
    ):
        assert np.abs(found - vectors.numpy()).max() <= 2e-5
    logits = ours.similarity(ours.encode(images), ours.encode_texts(TEXTS))
    assert np.abs(logits - expected.logits_per_image.numpy()).max() <= 1e-4
    loss = ours.evaluate((images, TEXTS), verbose=0, return_dict=True)["loss"]
    assert loss == pytest.approx(float(expected.loss), rel=1e-4)


@pytest.mark.one_backend
def test_export_is_the_way_back(folder, tmp_path):
    from PIL import Image

    ours = kt.ImageEmbedder.from_preset(folder)
    kt.export_to_huggingface(ours, tmp_path)
    images = [Image.fromarray(image) for image in pictures()]
    options = {"candidate_labels": LABELS, "hypothesis_template": "a photo of a {}."}
    with_theirs, with_ours = (pipeline(place)(images, **options) for place in (folder, tmp_path))
    for row, other in zip(with_theirs, with_ours, strict=True):
        shares = ({each["label"]: each["score"] for each in one} for one in (row, other))
        assert next(shares) == pytest.approx(next(shares), abs=1e-6)
    again = kt.ImageEmbedder.from_preset(tmp_path)
    assert again.tokenizer.encode(TEXTS[2]) == ours.tokenizer.encode(TEXTS[2])
    assert again.processor.source.values() == ours.processor.source.values()
    np.testing.assert_allclose(again.encode(images), ours.encode(images), atol=1e-6)
