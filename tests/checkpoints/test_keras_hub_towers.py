"""Towers of images and texts of KerasHub, to ours and back, against KerasHub itself."""

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints.test_keras_hub import (
    _no_drawing,  # noqa: F401
    difference,
    hub,  # noqa: F401
    randomize,
    run,
)
from tests.checkpoints.test_keras_hub_images import assert_same_weights

pytestmark = [
    pytest.mark.one_backend,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Layer '(self|cross)_attention':UserWarning"),
]

IMAGES = {
    "patch_size": 4, "hidden_dim": 8, "num_layers": 2, "num_heads": 2, "intermediate_dim": 12,
    "image_shape": (8, 8, 3),
}  # fmt: skip
TEXTS = {
    "vocabulary_size": 30, "embedding_dim": 12, "hidden_dim": 12, "num_layers": 3, "num_heads": 3,
    "intermediate_dim": 10, "max_sequence_length": 7,
}  # fmt: skip
KINDS = {"CLIP": "clip", "MetaCLIP2": "metaclip_2", "SigLIP": "siglip"}
PIXELS = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("float32")


def make(hub, name, images=(), texts=()):  # noqa: F811
    """A model there with weights of its own, and the positions that loaded weights have."""
    width = {"projection_dim": 6} if name != "SigLIP" else {}
    inner = {"projection_dim": 8} if name == "SigLIP" else {}
    towers = (
        getattr(hub.models, f"{name}VisionEncoder")(**{**IMAGES, **dict(images)}),
        getattr(hub.models, f"{name}TextEncoder")(**{**TEXTS, **inner, **dict(texts)}),
    )
    model = randomize(getattr(hub.models, f"{name}Backbone")(*towers, **width))
    for variable in model.weights:
        if variable.path.endswith("/position_ids"):
            variable.assign(np.arange(variable.shape[1])[None])
    return model


def make_texts(name):
    """Ids with an end at several places, as each of the classes finds it."""
    ids = np.random.default_rng(1).integers(3, 29, (3, 7)).astype("int32")
    end = {"CLIP": 29, "MetaCLIP2": 2}.get(name)
    if end is not None:
        for row, place in enumerate((3, 6, 1)):
            ids[row, place:] = end
    return ids


@pytest.mark.parametrize("name", KINDS)
def test_towers_there_and_back(hub, tmp_path, name):  # noqa: F811
    theirs, ids = make(hub, name), make_texts(name)
    ours = kt.from_keras_hub(theirs)
    assert type(ours) is kt.models.DualEncoder and ours.family == KINDS[name]
    both = {"images": PIXELS, "token_ids": ids}
    expected = run(theirs, both)["vision_logits"]
    embedder = kt.ImageEmbedder(ours)
    assert difference(run(embedder, both), expected) <= 1e-4
    vectors = to_numpy(theirs.get_vision_embeddings(PIXELS))
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    assert difference(run(embedder, {"images": PIXELS}), vectors / lengths) <= 2e-5
    vectors = to_numpy(theirs.get_text_embeddings(ids))
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    assert difference(run(embedder, {"token_ids": ids}), vectors / lengths) <= 2e-5
    back = kt.to_keras_hub(ours)
    assert type(back) is type(theirs)
    assert_same_weights(back, theirs)
    assert difference(run(back, both)["vision_logits"], expected) <= 1e-6
    theirs.save_to_preset(tmp_path)
    again = kt.ImageEmbedder.from_preset(tmp_path)
    assert difference(run(again, both), expected) <= 1e-4


WORDS = ["a man rides a bike .", "two dogs run , naïvely", "it's 10 o'clock"]
PROBES = ("A man RIDES,  a bike!", "naïvely: x É", "it's 19 dogs", "")


def clip_tokenizer(hub):  # noqa: F811
    """All bytes, each also as the end of a word, and some longer pieces."""
    trained = kt.Tokenizer.train(WORDS, vocabulary_size=260)
    letters = sorted(each for each in trained.get_vocabulary() if len(each) == 1)
    tokens = [*letters, *(f"{each}</w>" for each in letters), "ri", "do", "an</w>", "man</w>"]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    merges = ["r i", "d o", "a n</w>", "m an</w>"]
    return hub.models.CLIPTokenizer(vocabulary=vocabulary, merges=merges)


def piece_tokenizer(hub, name, folder, **options):  # noqa: F811
    pieces = pytest.importorskip("sentencepiece")
    pieces.SentencePieceTrainer.train(
        sentence_iterator=iter(WORDS * 9), model_prefix=str(folder / "spm"), vocab_size=60,
        hard_vocab_limit=False, minloglevel=2, **options,
    )  # fmt: skip
    proto = (folder / "spm.model").read_bytes()
    return getattr(hub.models, f"{name}Tokenizer")(proto=proto)


def preprocessor_of(hub, name, folder):  # noqa: F811
    if name == "CLIP":
        return hub.models.CLIPPreprocessor(clip_tokenizer(hub), sequence_length=40)
    if name == "SigLIP":
        tokenizer = piece_tokenizer(hub, name, folder, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
        return hub.models.SigLIPPreprocessor(tokenizer, sequence_length=40)
    tokenizer = piece_tokenizer(hub, name, folder, unk_id=0, bos_id=1, eos_id=2)
    return hub.models.MetaCLIP2CausalLMPreprocessor(tokenizer, sequence_length=40)


@pytest.mark.backend_independent
@pytest.mark.parametrize("name", KINDS)
def test_texts_of_towers(hub, tmp_path, name):  # noqa: F811
    """The tokenizer alone, and as the preprocessor of the preset uses it."""
    theirs = preprocessor_of(hub, name, tmp_path)
    theirs.tokenizer.save_to_preset(tmp_path / "alone")
    alone = kt.Tokenizer.from_preset(tmp_path / "alone")
    for text in PROBES[:3]:
        found = alone.encode(text, special_tokens=False)
        assert found == [int(i) for i in np.ravel(theirs.tokenizer(text))], text
    theirs.save_to_preset(tmp_path / "whole")
    ours = kt.Tokenizer.from_preset(tmp_path / "whole")
    images = np.zeros((4, 4, 3)) if name == "SigLIP" else None
    for text in PROBES:
        batch = theirs({"images": images, "prompts": text})
        real = to_numpy(batch["padding_mask"]).astype(bool)
        assert ours.encode(text) == to_numpy(batch["token_ids"])[real].tolist(), text


@pytest.mark.parametrize("name", KINDS)
def test_images_and_texts_of_a_preset(hub, tmp_path, name):  # noqa: F811
    """A folder with all parts gives a task for images and texts."""
    preprocessor = preprocessor_of(hub, name, tmp_path)
    size = preprocessor.tokenizer.vocabulary_size()
    theirs = make(hub, name, (), {"vocabulary_size": size, "max_sequence_length": 40})
    preprocessor.image_converter = getattr(hub.layers, f"{name}ImageConverter")(
        image_size=(8, 8), scale=[1 / 70, 1 / 80, 1 / 90], offset=[-1.5, -1.2, -1.0]
    )
    theirs.save_to_preset(tmp_path / "preset")
    preprocessor.save_to_preset(tmp_path / "preset")
    ours = kt.ImageEmbedder.from_preset(tmp_path / "preset")
    images = np.random.default_rng(1).integers(0, 256, (2, 8, 8, 3)).astype("uint8")
    batch = preprocessor({"images": images.astype("float32"), "prompts": WORDS[:2]})
    arrays = {each: to_numpy(batch[each]) for each in ("images", "token_ids")}
    expected = run(theirs, arrays)["vision_logits"]
    vectors = ours.encode(list(images)), ours.encode_texts(WORDS[:2])
    assert difference(ours.similarity(*vectors), expected) <= 1e-4
    assert ours.classify(images[0], ["man", "dog"])[0] in ("man", "dog")


def test_towers_that_are_refused(hub):  # noqa: F811
    cases = [
        (
            "CLIP",
            {"intermediate_activation": "relu"},
            {},
            "intermediate_activation='relu' of vision",
        ),
        ("CLIP", {}, {"intermediate_output_index": 1}, "intermediate_output_index of text_encoder"),
        ("SigLIP", {"layer_norm_epsilon": 1e-5}, {}, "layer_norm_epsilon=1e-05 of vision_encoder"),
    ]
    for name, images, texts, message in cases:
        if "intermediate_output_index" in texts:  # which there the model itself cannot take
            model = make(hub, name)
            model.text_encoder.intermediate_output_index = 1
        else:
            model = make(hub, name, images, texts)
        with pytest.raises(ValueError, match=message):
            kt.from_keras_hub(model)
    fresh = hub.models.CLIPBackbone(
        hub.models.CLIPVisionEncoder(**IMAGES), hub.models.CLIPTextEncoder(**TEXTS), 6
    )
    assert not to_numpy(next(v for v in fresh.weights if v.path.endswith("position_ids"))).any()
    with pytest.raises(ValueError, match="clip_vision_embedding/vars/1.*its values differ"):
        kt.from_keras_hub(fresh)
    ours = kt.from_keras_hub(make(hub, "CLIP"))
    stem = {**ours.config.side("encoder").flat["stem"], "image_size": (8, 12)}
    values = {**ours.config.flat, "encoder": {**ours.config.flat["encoder"], "stem": stem}}
    wide = kt.models.DualEncoder(kt.TransformerConfig.from_dict(values))
    with pytest.raises(ValueError, match="CLIPBackbone: .*vision_encoder must be squares"):
        kt.to_keras_hub(wide)


VIDEOS = {
    "num_frames": 3, "patch_size": 4, "hidden_dim": 8, "intermediate_dim": 32, "num_heads": 2,
    "num_spatial_layers": 2, "num_temporal_layers": 1, "num_auxiliary_layers": 2,
    "image_shape": (8, 12, 3), "attention_logit_soft_cap": 2.0,
}  # fmt: skip
FRAMES = np.random.default_rng(0).normal(size=(2, 3, 8, 12, 3)).astype("float32")


def test_videos_there_and_back(hub, tmp_path):  # noqa: F811
    theirs = randomize(hub.models.VideoPrismBackbone(**{**VIDEOS, "intermediate_dim": 20}))
    ours = kt.from_keras_hub(theirs)
    assert ours.family == "videoprism_vision_model"
    expected = to_numpy(run(theirs, FRAMES)).reshape(2, 18, 8)
    assert difference(run(ours, {"videos": FRAMES}), expected) <= 2e-5
    back = kt.to_keras_hub(ours)
    assert type(back) is type(theirs)
    for mine, its in zip(back.weights, theirs.weights, strict=True):
        # Weights of norms are one less here.
        assert np.allclose(to_numpy(mine), to_numpy(its), rtol=0, atol=1e-7), its.path
    kt.export_to_huggingface(ours, tmp_path)
    again = kt.Backbone.from_preset(tmp_path)
    assert difference(run(again, {"videos": FRAMES}), expected) <= 2e-5
    assert type(kt.to_keras_hub(again)) is type(theirs)


@pytest.mark.parametrize("last", [2, 0])
def test_videos_and_texts_there_and_back(hub, tmp_path, last):  # noqa: F811
    sizes = {"vocabulary_size": 30, "num_text_layers": 3, "num_auxiliary_layers": last}
    theirs = randomize(hub.models.VideoPrismBackbone(**{**VIDEOS, **sizes}))
    ours = kt.from_keras_hub(theirs)
    assert type(ours) is kt.models.DualEncoder and ours.family == "videoprism"
    mask = np.arange(7) < np.array([[7], [4]])
    ids = np.where(mask, np.random.default_rng(1).integers(1, 30, (2, 7)), 0).astype("int32")
    batch = {"token_ids": ids, "padding_mask": mask.astype("int32")}
    expected = run(theirs, {"pixel_values": FRAMES, **batch})
    embedder = kt.VideoEmbedder(ours)
    for name, inputs in (("vision", {"videos": FRAMES}), ("text", {**batch, "padding_mask": mask})):
        vectors = to_numpy(expected[f"{name}_embeddings"])
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        assert difference(run(embedder, inputs), vectors / lengths) <= 2e-5, name
    back = kt.to_keras_hub(ours)
    for mine, its in zip(back.weights, theirs.weights, strict=True):
        assert np.allclose(to_numpy(mine), to_numpy(its), rtol=0, atol=1e-7), its.path
    theirs.save_to_preset(tmp_path)
    again = kt.VideoEmbedder.from_preset(tmp_path)
    found = run(again, {"videos": FRAMES})
    assert difference(found, run(embedder, {"videos": FRAMES})) <= 1e-6


def test_videos_that_are_refused(hub):  # noqa: F811
    sizes = {"vocabulary_size": 30, "num_text_layers": 1, "intermediate_dim": 20}
    with pytest.raises(ValueError, match="intermediate_dim=20 must be four times hidden_dim=8"):
        kt.from_keras_hub(hub.models.VideoPrismBackbone(**{**VIDEOS, **sizes}))


def test_a_preset_of_videos_and_texts(hub, tmp_path):  # noqa: F811
    tokenizer = piece_tokenizer(hub, "VideoPrism", tmp_path, pad_id=0, unk_id=1, bos_id=-1)
    sizes = {"vocabulary_size": tokenizer.vocabulary_size(), "num_text_layers": 1}
    theirs = randomize(hub.models.VideoPrismBackbone(**{**VIDEOS, **sizes}))
    converter = hub.layers.VideoPrismImageConverter(
        image_size=(8, 12), scale=1 / 70, offset=-1.5, crop_to_aspect_ratio=False
    )
    for part in (theirs, tokenizer, converter):
        part.save_to_preset(tmp_path / "preset")
    ours = kt.VideoEmbedder.from_preset(tmp_path / "preset")
    videos = np.random.default_rng(1).integers(0, 256, (2, 3, 8, 12, 3)).astype("uint8")
    ids = np.ravel(tokenizer("two dogs run"))[None].astype("int32")
    pixels = to_numpy(converter(videos.reshape(6, 8, 12, 3).astype("float32")))
    batch = {"token_ids": ids, "padding_mask": np.ones_like(ids)}
    expected = run(theirs, {"pixel_values": pixels.reshape(FRAMES.shape), **batch})
    pairs = {"vision": ours.encode(list(videos)), "text": ours.encode_texts(["two dogs run"])}
    for name, found in pairs.items():
        vectors = to_numpy(expected[f"{name}_embeddings"])[: len(found)]
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        assert difference(found, vectors / lengths) <= 2e-5, name
