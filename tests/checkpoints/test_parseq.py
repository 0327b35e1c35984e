"""PARSeq from folders of KerasHub, against KerasHub itself."""

import json
import re

import keras
import numpy as np
import PIL.Image
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.keras_hub import read_images, read_tokenizer
from keras_transformer.checkpoints.keras_hub.writing import make_tokenizer
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints.test_keras_hub import hub  # noqa: F401
from tests.compiled import outputs_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Layer '(self|cross)_attention':UserWarning"),
]

LONGEST = 9
START, PAD = 95, 96
IMAGES = np.random.default_rng(0).integers(0, 256, (3, 16, 32, 3)).astype("uint8")


def make(hub, layers):  # noqa: F811
    encoder = hub.models.ViTBackbone(
        image_shape=(16, 32, 3), patch_size=(4, 8), num_layers=2, num_heads=2, hidden_dim=16,
        mlp_dim=24, use_class_token=False,
    )  # fmt: skip
    backbone = hub.models.PARSeqBackbone(
        vocabulary_size=97, max_label_length=LONGEST, image_encoder=encoder, num_decoder_heads=4,
        num_decoder_layers=layers, decoder_hidden_dim=16, decoder_mlp_dim=20,
    )  # fmt: skip
    rng = np.random.default_rng(3)
    for variable in backbone.weights:
        scale = variable.path.split("/")[-1] == "gamma"
        variable.assign(scale + 0.6 * rng.normal(size=variable.shape))
    converter = hub.layers.PARSeqImageConverter(
        image_size=(16, 32), scale=1 / 127.5, offset=-1.0, interpolation="bicubic"
    )
    preprocessor = hub.models.PARSeqCausalLMPreprocessor(
        image_converter=converter, tokenizer=hub.models.PARSeqTokenizer(), sequence_length=LONGEST
    )
    return hub.models.PARSeqCausalLM(preprocessor=preprocessor, backbone=backbone)


@pytest.fixture(scope="module", params=[1, 2])
def both(hub, request, tmp_path_factory):  # noqa: F811
    """A model of KerasHub, and the same one read from its folder."""
    folder = tmp_path_factory.mktemp("parseq")
    theirs = make(hub, request.param)
    theirs.save_to_preset(folder)
    return theirs, kt.ImageToText.from_preset(folder, dropout=0.0, attention_dropout=0.0)


def masked_logits(theirs, image, ids, seen, content, padding):
    """Logits of KerasHub's model for one image, with these masks of queries and of tokens."""
    model = theirs.backbone
    states = model.image_encoder(image[None] / np.float32(127.5) - 1)
    options = {"query_mask": seen[None], "content_mask": content[None]}
    out = model.decoder(np.array([ids]), states, padding_mask=padding[None], **options)
    return to_numpy(model.head(out))[0]


def test_states_and_logits(both):
    theirs, ours = both
    rng = np.random.default_rng(1)
    mask = np.arange(7) < np.array([[7], [5], [2]])
    ids = np.where(mask, rng.integers(0, START, mask.shape), PAD).astype("int32")
    ids[:, 0] = START
    images = IMAGES / np.float32(127.5) - 1
    inputs = {"encoder_images": images, "decoder_token_ids": ids, "decoder_padding_mask": mask}
    expected = theirs.backbone(
        {"images": images, "token_ids": ids, "padding_mask": mask.astype("int32")}
    )
    logits = outputs_of(ours, inputs)
    assert np.abs(logits[..., :START] - to_numpy(expected))[mask].max() <= 1e-4
    assert (logits[..., START:] < -1e4).all()  # the start and the padding are never written
    states = theirs.backbone.image_encoder(images)
    assert np.abs(to_numpy(ours.backbone.encode(images=images)) - to_numpy(states)).max() <= 2e-5
    assert ours.count_params() == theirs.backbone.count_params()


def test_reading_from_left_to_right(both):
    theirs, ours = both
    texts = ours.read(list(IMAGES), num_refinements=0)
    assert texts == [ours.read(image, num_refinements=0) for image in IMAGES]
    assert texts == ours.generate(list(IMAGES), batch_size=2)
    # KerasHub's stops two tokens earlier: at its `sequence_length`, which the start belongs to.
    theirs = ["".join(text) for text in theirs.generate(IMAGES)]
    assert len(set(texts)) > 1 and all(map(str.startswith, texts, theirs))


@pytest.mark.one_backend
def test_refined_texts(both):
    theirs, ours = both
    width = LONGEST + 1
    cloze, causal = 1 - np.eye(width, k=1, dtype="int32"), np.tril(np.ones((width, width), "int32"))

    def refined(text, image):
        ids = ours.tokenizer.encode(text, special_tokens=False)[: width - 1]
        row = [START, *ids] + [PAD] * (width - 1 - len(ids))
        padding = (np.arange(width) <= len(ids)).astype("int32")
        best = masked_logits(theirs, image, row, cloze, causal, padding).argmax(-1).tolist()
        return ours.tokenizer.decode(best[: best.index(0)] if 0 in best else best)

    texts = ours.read(list(IMAGES), num_refinements=0)
    once = list(map(refined, texts, IMAGES))
    assert once != texts and ours.read(list(IMAGES), batch_size=2) == once
    twice = list(map(refined, once, IMAGES))
    assert [ours.read(image, num_refinements=2) for image in IMAGES] == twice


@pytest.mark.one_backend
def test_permuted_orders(both):
    """The logits that `fit` learns from are those of the masks of the published code."""
    theirs, ours = both
    texts = ["abcdefgh", "x1z", "Q"]
    made = ours.make_dataset(list(IMAGES), texts, num_orders=6, seed=1)
    inputs, targets, weights = made[0]
    logits = outputs_of(ours, inputs)
    packs, positions = (inputs[f"decoder_{name}"] for name in ("pack_ids", "position_ids"))
    orders = {}
    for row, place in enumerate(made.order):
        text = texts[place]
        ids = [START, *ours.tokenizer.encode(text, special_tokens=False)]
        length = len(ids)
        for pack in np.unique(packs[row][packs[row] >= 0]):
            here = packs[row] == pack
            order = positions[row][here]
            rank = np.full(length + 1, 99)  # of the start, and of each target
            rank[0], rank[order + 1] = 0, np.arange(len(order)) + 1
            seen = (rank[None, :-1] < rank[1:, None]).astype("int32")
            content = (rank[None, :-1] <= rank[:-1, None]).astype("int32")
            padding = np.ones(length, "int32")
            expected = masked_logits(theirs, IMAGES[place], ids, seen, content, padding)
            assert np.abs(logits[row][here][:, :START] - expected[order]).max() <= 1e-4
            assert (targets[row][here] == np.array([*ids[1:], 0])[order]).all()
            assert weights[row][here].all() and inputs["decoder_padding_mask"][row][here].all()
            orders.setdefault(text, []).append(order.tolist())
        assert not weights[row][packs[row] < 0].any()
    assert orders["Q"] == [[0, 1]]
    assert orders["x1z"][:3] == [[0, 1, 2, 3], [3], [2, 1, 0]]
    assert len(orders["abcdefgh"]) == 7 and orders["abcdefgh"][4] == orders["abcdefgh"][3][::-1]


def test_there_and_back(both, tmp_path):
    theirs, ours = both
    back = kt.to_keras_hub(ours)
    for mine, its in zip(back.backbone.weights, theirs.backbone.weights, strict=True):
        assert np.array_equal(to_numpy(mine), to_numpy(its))
    again = kt.from_keras_hub(back)
    images = PIL.Image.fromarray(IMAGES.reshape(48, 32, 3))
    assert np.abs(again.processor.source([images]) - ours.processor.source([images])).max() <= 1e-5
    expected = ours.read(list(IMAGES))
    assert again.read(list(IMAGES)) == expected
    ours.save_to_preset(tmp_path / "own")
    ours.save(tmp_path / "own.keras")
    for loaded in (
        kt.ImageToText.from_preset(tmp_path / "own"),
        keras.models.load_model(tmp_path / "own.keras"),
    ):
        assert loaded.read(list(IMAGES)) == expected
    config = ours.backbone.config
    assert kt.TransformerConfig.from_json(config.to_json()) == config
    plan = kt.planning.make_plan(config, batch_size=2, length=8)
    assert plan.parameters == ours.count_params()


@pytest.mark.one_backend
def test_images_of_any_size(both):
    """As the published code: Pillow's bicubic interpolation to the size, and -1 to 1."""
    theirs, ours = both
    made = ours.processor.source(list(IMAGES))
    expected = to_numpy(theirs.preprocessor.image_converter(IMAGES))
    assert np.abs(made - expected).max() <= 1e-5
    image = PIL.Image.fromarray(np.random.default_rng(2).integers(0, 256, (50, 70, 3), "uint8"))
    resized = np.asarray(image.resize((32, 16), PIL.Image.Resampling.BICUBIC), "float32")
    assert np.abs(ours.processor.source([image]) - (resized / 255 - 0.5) / 0.5).max() <= 1e-5


@pytest.mark.backend_independent
@pytest.mark.parametrize("characters", [None, "abc123-", "ABC"])
def test_ids_of_characters(hub, tmp_path, characters):  # noqa: F811
    given = {} if characters is None else {"vocabulary": list(characters)}
    theirs = hub.models.PARSeqTokenizer(**given)
    theirs.save_to_preset(tmp_path)
    ours = read_tokenizer(tmp_path)
    texts = ["Hello, World", "naïve ÄB\tabc", "[E][B][P]", r"a\^]-[~!", "x y\nz", "", "東京 ab３"]
    found = ours.encode_batch(texts, special_tokens=False)
    assert found == [[int(i) for i in theirs(text)] for text in texts]
    assert (ours.end_id, ours.start_id, ours.pad_id) == (
        theirs.end_token_id, theirs.start_token_id, theirs.pad_token_id,
    )  # fmt: skip
    assert ours.decode(found[0]) == "".join(
        c for c in _cased(texts[0], theirs) if c in theirs.vocabulary
    )
    back = make_tokenizer(hub, "PARSeqTokenizer", ours)
    assert [int(i) for i in back("Abc1")] == [int(i) for i in theirs("Abc1")]
    with pytest.raises(ValueError, match="has a token for each character"):
        make_tokenizer(hub, "PARSeqTokenizer", kt.Tokenizer.of_symbols("ab"))


def _cased(text, theirs):
    return (
        text.lower() if theirs.lowercase_only else text.upper() if theirs.uppercase_only else text
    )


@pytest.mark.one_backend
def test_bad_arguments(both):
    ours, texts = both[1], ["ab", "c", "d"]
    for number in (3, 0, "6"):
        with pytest.raises(ValueError, match="`num_orders` must be"):
            ours.fit(list(IMAGES), texts, num_orders=number)
    with pytest.raises(ValueError, match="learned from left to right: give `num_orders=1`"):
        ours.fit((list(IMAGES), texts), texts)
    history = ours.fit((list(IMAGES), texts), texts, num_orders=1, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    for number in (-1, 17, 1.5):
        with pytest.raises(ValueError, match="`num_refinements` must be an integer from 0 to 16"):
            ours.read(list(IMAGES), num_refinements=number)
    others = kt.ImageToText.from_preset("captions_shapes")
    image = np.zeros((64, 64, 3), "uint8")
    assert others.read(image) == others.generate(image)
    with pytest.raises(ValueError, match="`num_refinements` needs a model whose decoder has a"):
        others.read(image, num_refinements=1)
    with pytest.raises(ValueError, match="`num_orders` needs a model whose decoder has a"):
        others.fit([image], ["a square"], num_orders=6)


ENCODER = {
    "image_shape": [8, 16, 3],
    "patch_size": [4, 8],
    "num_layers": 1,
    "num_heads": 2,
    "hidden_dim": 8,
    "mlp_dim": 12,
    "use_class_token": False,
}
DECODER = {
    "vocabulary_size": 20,
    "max_label_length": 5,
    "decoder_hidden_dim": 8,
    "num_decoder_layers": 1,
    "num_decoder_heads": 2,
    "decoder_mlp_dim": 12,
}


def serialized(name, arguments):
    return {"class_name": name, "registered_name": f"keras_hub>{name}", "config": arguments}


def write_config(folder, name="ViTBackbone", encoder=(), **decoder):
    images = serialized(name, {**ENCODER, **dict(encoder)})
    values = {**DECODER, "image_encoder": images, **decoder}
    (folder / "config.json").write_text(json.dumps(serialized("PARSeqBackbone", values)))


@pytest.mark.backend_independent
def test_bad_configs(tmp_path):
    write_config(tmp_path)
    assert kt.Backbone.from_preset(tmp_path, load_weights=False).config.logits.left_out == 2
    cases = [
        ({"name": "ResNetBackbone"}, "image_encoder must be a ViTBackbone, not 'ResNetBackbone'"),
        ({"image_encoder": 3}, "image_encoder must be a ViTBackbone"),
        ({"encoder": {"use_class_token": True}}, "use_class_token=True is not supported"),
        ({"encoder": {"image_shape": [8]}}, "image_shape must be three sizes"),
        ({"encoder": {"image_shape": [8, "x", 3]}}, "image_shape of the image encoder must be two"),
        ({"encoder": {"patch_size": [4, 5]}}, r"whole patches of 4 x 5"),
        ({"encoder": {"patch_size": [4, 2**40]}}, r"whole patches"),
        ({"encoder": {"hidden_dim": 16}}, "must be decoder_hidden_dim=8"),
        ({"encoder": {"run": "x"}}, r"unknown arguments, \['run'\]"),
        ({"vocabulary_size": 2}, "vocabulary_size=2 has no characters"),
        ({"num_decoder_layers": 10**9}, "num_layers"),
    ]
    for change, message in cases:
        write_config(tmp_path, **change)
        with pytest.raises(ValueError, match=f"config.json: .*{message}"):
            kt.Backbone.from_preset(tmp_path, load_weights=False)


@pytest.mark.backend_independent
def test_bad_images_and_characters(tmp_path):
    usual = {"image_size": [8, 16], "scale": 0.1, "offset": None, "interpolation": "bicubic"}
    cases = [
        ({"interpolation": "area"}, "interpolation='area' is not supported"),
        ({"scale": 0}, "scale must be a number, or three"),
        ({"scale": [1, 2]}, "scale must be a number, or three"),
        ({"offset": "x"}, "offset must be a number, or three"),
        ({"pad_to_aspect_ratio": True}, "pad_to_aspect_ratio=true is not supported"),
    ]
    for change, message in cases:
        values = serialized("PARSeqImageConverter", {**usual, **change})
        (tmp_path / "image_converter.json").write_text(json.dumps(values))
        with pytest.raises(ValueError, match=re.escape("image_converter.json: ") + f".*{message}"):
            read_images(tmp_path)
    values = serialized("PARSeqTokenizer", {})
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    (tmp_path / "assets" / "tokenizer").mkdir(parents=True)
    for characters in ("a\nb\na", "", "a\n \u2003b"):
        (tmp_path / "assets" / "tokenizer" / "vocabulary.txt").write_text(characters, "utf-8")
        with pytest.raises(ValueError, match=r"vocabulary.txt must have different characters"):
            read_tokenizer(tmp_path)
