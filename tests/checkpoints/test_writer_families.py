"""Text of images by families of two sides, against the Transformers library."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import load_backbone
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints import families
from tests.checkpoints.conftest import assert_same_values
from tests.checkpoints.family_writers import OF_IMAGES
from tests.checkpoints.test_families import _gradients, assert_gradients, saved

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CASES = [(name, i) for name, (_, configs) in OF_IMAGES.items() for i in range(len(configs))]
SYMBOLS = [chr(ord("A") + i) for i in range(56)]  # Behind 5 special tokens, of 61.


def waves(model):
    """The model, with waves for positions, which Transformers leaves without values on loading."""
    decoder = getattr(getattr(getattr(model, "decoder", None), "model", None), "decoder", None)
    positions = getattr(decoder, "embed_positions", None)
    if hasattr(positions, "weights"):
        width, padding = positions.embedding_dim, positions.padding_idx
        positions.weights = positions.get_embedding(40, width, padding)
    return model.eval()


def inputs(reference, length=7):
    """As ours takes them and as theirs."""
    config = getattr(reference.config, "encoder", None) or reference.config.vision_config
    random = np.random.default_rng(3)
    shape = (3, config.image_size, config.image_size, 3)
    values = random.normal(size=shape).astype("float32")
    ids = random.integers(4, 61, (3, length)).astype("int32")
    name = "decoder_input_ids" if hasattr(reference.config, "encoder") else "input_ids"
    theirs = {
        "pixel_values": torch.tensor(np.moveaxis(values, -1, 1).copy()),
        name: torch.tensor(ids.astype("int64")),
    }
    return {"encoder_images": values, "decoder_token_ids": ids}, theirs


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "{}-{}".format(*case))
def both(request, tmp_path_factory):
    """Their model, and our task of its folder, with a processor and a tokenizer."""
    reference = families.make(*request.param, "LanguageModel")
    folder = saved(reference, tmp_path_factory.mktemp("theirs"))
    kt.Tokenizer.of_symbols(SYMBOLS).save_to_preset(folder)
    kt.ImageProcessor(size=20, resample=3, family="DeiT").save(folder)
    return reference, kt.ImageToText.from_preset(folder)


def test_same_logits(both):
    reference, task = both
    ours, theirs = inputs(reference)
    with torch.no_grad():
        expected = reference(**theirs).logits.numpy()
    assert np.abs(to_numpy(task(ours)) - expected).max() <= 1e-4
    assert task.start_id == 3 and task.end_ids == (2,)


def test_the_same_texts(both):
    """Token for token what their greedy search writes, of images as their processor makes them."""
    reference, task = both
    random = np.random.default_rng(5)
    pictures = [random.integers(0, 256, (25, 30 + i, 3)).astype("uint8") for i in range(4)]
    process = transformers.DeiTImageProcessor(size=20, resample=3, do_center_crop=False)
    process.image_mean = process.image_std = [0.5] * 3
    pixels = process(pictures, return_tensors="pt").pixel_values
    found = task.generate(pictures, max_new_tokens=9, batch_size=3, return_details=True)
    with torch.no_grad():
        expected = reference.generate(
            pixel_values=pixels, max_new_tokens=9, do_sample=False, num_beams=1
        ).tolist()
    for completion, row in zip(found, expected, strict=True):
        end = row.index(2) if 2 in row else len(row)
        assert completion.token_ids == row[1:end]
        assert completion.text == "".join(SYMBOLS[i - 5] for i in row[1:end] if i >= 5)


def test_texts_behind_a_prompt(both):
    """Theirs begin with it; ours are what follows."""
    reference, task = both
    _, theirs = inputs(reference)
    ids = [3, *task.tokenizer.encode("DOG", special_tokens=False)]
    name = next(name for name in theirs if name.endswith("input_ids"))
    # BLIP takes what its tokenizer makes of a prompt, whose end it leaves out.
    last = [2] if reference.config.model_type == "blip" else []
    picture = np.random.default_rng(7).integers(0, 256, (20, 20, 3)).astype("uint8")
    pixels = np.moveaxis(task.processor.source([picture]), -1, 1).copy()
    theirs = {name: torch.tensor([ids + last]), "pixel_values": torch.tensor(pixels)}
    with torch.no_grad():
        expected = reference.generate(**theirs, max_new_tokens=6, num_beams=1)[0].tolist()
    found = task.generate(picture, "DOG", max_new_tokens=6, return_details=True)
    assert expected[: len(ids)] == ids
    end = expected.index(2) if 2 in expected else len(expected)
    assert found.token_ids == expected[len(ids) : end]


@pytest.mark.parametrize(
    "case", [CASES[0], CASES[3], CASES[5]], ids=lambda case: "{}-{}".format(*case)
)
def test_same_gradients(case, tmp_path):
    """Compare gradients of a sum of squares, read like weights, as a checkpoint of their own."""
    reference = families.make(*case, "LanguageModel")
    backbone = load_backbone(saved(reference, tmp_path / "theirs"))
    ours, theirs = inputs(reference)
    (reference(**theirs).logits ** 2).mean().backward()

    def loss():
        return keras.ops.mean(keras.ops.square(backbone.logits(backbone(ours))))

    found = _gradients(backbone, loss)
    assert_gradients(found, reference, tmp_path / "gradients")


@pytest.mark.one_backend
def test_export_is_the_way_back(both, tmp_path):
    reference, task = both
    kt.export_to_huggingface(task, tmp_path)
    again, info = type(reference).from_pretrained(tmp_path, output_loading_info=True)
    # A pooler that they make and do not read.
    info["missing_keys"] = {n for n in info["missing_keys"] if "encoder.pooler." not in n}
    assert not any(info.values()), info
    assert again.config.architectures == [type(reference).__name__]
    _, theirs = inputs(reference)
    with torch.no_grad():
        assert (waves(again)(**theirs).logits - reference(**theirs).logits).abs().max() <= 1e-6
    back = kt.ImageToText.from_preset(tmp_path)
    assert back.backbone.config == task.backbone.config
    assert back.task_values() == task.task_values()
    assert back.processor.source.values() == task.processor.source.values()
    assert_same_values(back.backbone, task.backbone)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("case", "name"), [(CASES[0], "BlipProcessor"), (CASES[3], "TrOCRProcessor")], ids=str
)
def test_folders_of_their_processors(case, name, tmp_path):
    """From an image to a text and back, by what their processor saves and by what ours does."""
    reference = families.make(*case, "LanguageModel")
    folder = saved(reference, tmp_path / "theirs")
    kt.Tokenizer.of_symbols(SYMBOLS).save_to_preset(tmp_path / "words")
    words = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "words")
    images = transformers.DeiTImageProcessor(size=20, do_center_crop=False)
    if name == "BlipProcessor":
        images = transformers.BlipImageProcessor(size={"height": 20, "width": 20})
    getattr(transformers, name)(images, words).save_pretrained(folder)
    task = kt.ImageToText.from_preset(folder)
    assert task.processor.source.size == {"height": 20, "width": 20}
    task.save_to_preset(tmp_path / "ours")
    kt.export_to_huggingface(kt.ImageToText.from_preset(tmp_path / "ours"), tmp_path / "export")

    picture = np.random.default_rng(6).integers(0, 256, (25, 31, 3)).astype("uint8")
    texts = []
    for place in (folder, tmp_path / "export"):
        processor = getattr(transformers, name).from_pretrained(place)
        pixels = processor(images=picture, return_tensors="pt").pixel_values
        model = waves(type(reference).from_pretrained(place))
        with torch.no_grad():
            ids = model.generate(pixel_values=pixels, max_new_tokens=8, num_beams=1)
        texts.append(processor.batch_decode(ids, skip_special_tokens=True)[0])
    assert texts == [task.caption(picture, max_new_tokens=8)] * 2 and texts[0]


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("model_type", "values", "message"),
    [
        ("vision-encoder-decoder", {"encoder": {"model_type": "swin"}}, "'swin' is not supported"),
        ("vision-encoder-decoder", {"encoder": [1]}, "encoder must be an object"),
        ("vision-encoder-decoder", {"decoder": {"model_type": "xglm"}}, "for the decoder, only 'b"),
        ("vision-encoder-decoder", {"decoder": {"model_type": ["bert"]}}, "is not supported for"),
        (
            "vision-encoder-decoder",
            {"decoder": {"model_type": "trocr", "cross_attention_hidden_size": 5}},
            "cross_attention_hidden_size=5 is not supported, only None or 768",
        ),
        (
            "vision-encoder-decoder",
            {"decoder": {"model_type": "gpt2", "cross_attention_hidden_size": 768}},
            "cross_attention_hidden_size=768 is not supported, only None",
        ),
        ("encoder-decoder", {"decoder": {"is_decoder": False}}, "is_decoder=False is not"),
        ("encoder-decoder", {"decoder": {"hidden_act": "loud"}}, "hidden_act='loud' is not"),
        ("blip", {"text_config": {"is_decoder": False}}, "is_decoder=False is not supported"),
        ("blip", {"vision_config": {"image_size": 0}}, "`image_size` of a stem must be"),
        ("blip", {"architectures": ["BlipForImageTextRetrieval"]}, "TextRetrieval'. is not"),
    ],
)
def test_wrong_values_are_refused(model_type, values, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES[model_type].config(values)


@pytest.mark.backend_independent
def test_ids_of_texts():
    """The decoder's config gives the ids if the other has none; small models keep large ones."""
    both = FAMILIES["vision-encoder-decoder"]
    named = {"architectures": ["VisionEncoderDecoderModel"], "eos_token_id": 50256}
    decoder = {"model_type": "gpt2", "vocab_size": 50257, "bos_token_id": 7, "eos_token_id": 8}
    assert both.task({**named, "decoder": decoder}) == {
        "name": "ImageToText", "start_id": 7, "end_ids": [50256],
    }  # fmt: skip
    decoder |= {"vocab_size": 100, "decoder_start_token_id": 9}
    assert both.task({**named, "decoder": decoder}) == {"name": "ImageToText", "start_id": 9}
    blip = {"architectures": ["BlipForConditionalGeneration"], "eos_token_id": 2}
    found = FAMILIES["blip"].task(blip)
    assert (found["start_id"], found["end_ids"]) == (30522, [102])
    assert FAMILIES["blip"].task({**blip, "text_config": {"vocab_size": 50}}) == {
        "name": "ImageToText",
    }  # fmt: skip


@pytest.mark.backend_independent
def test_what_no_family_can_express():
    """Refuse a decoder that attends to wider states, and blocks of another kind."""
    family = FAMILIES["vision-encoder-decoder"]
    config = family.config({"decoder": {"model_type": "gpt2", "n_embd": 96}})
    assert config.projector.type == "linear"
    assert family.published_config(config)["decoder"]["n_embd"] == 96
    with pytest.raises(
        ValueError, match="gpt2 decoder attends to states of its own width, 96, not of"
    ):
        family.published_config(config.replace(projector="none"))
    with pytest.raises(ValueError, match="No family fits the decoder"):
        family.published_config(config.replace(decoder={"residual_scale": 0.5}))
    with pytest.raises(ValueError, match="has one end token"):
        FAMILIES["blip"].published_config(
            FAMILIES["blip"].config({}), {"name": "ImageToText", "end_ids": [1, 2]}
        )
