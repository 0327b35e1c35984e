"""BLIP for questions, of three sides, against the Transformers library."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import load_backbone
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints.conftest import assert_same_values
from tests.checkpoints.family_writers import OF_IMAGES
from tests.checkpoints.test_families import _gradients, assert_gradients, saved

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SYMBOLS = [chr(ord("A") + i) for i in range(56)]  # Behind 5 special tokens, of 61.
QUESTIONS = ["DOG", "A", "WHATISIT"]
_FIRST = OF_IMAGES["blip"][1][0]
CONFIGS = [
    _FIRST,
    {
        "vision_config": {**_FIRST["vision_config"], "num_hidden_layers": 1, "hidden_act": "relu"},
        "text_config": {**_FIRST["text_config"], "num_attention_heads": 2, "hidden_act": "silu"},
    },
]


def make(number, seed=0):
    """Their model, all of whose weights differ; the answers of some rows end by themselves."""
    config = transformers.BlipConfig(**CONFIGS[number])
    torch.manual_seed(seed)
    reference = transformers.BlipForQuestionAnswering(config).eval()
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            offset = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
            parameter.copy_(offset + 0.3 * torch.randn(parameter.shape))
    return reference


@pytest.fixture(scope="module", params=[0, 1])
def both(request, tmp_path_factory):
    """Their model, and our task of its folder, with a processor and a tokenizer."""
    reference = make(request.param)
    folder = saved(reference, tmp_path_factory.mktemp("theirs"))
    kt.Tokenizer.of_symbols(SYMBOLS).save_to_preset(folder)
    kt.ImageProcessor(size=20, resample=3, family="DeiT").save(folder)
    return reference, kt.ImageToText.from_preset(folder)


def inputs(reference, length=6):
    """As ours takes them and as theirs."""
    size, random = reference.config.vision_config.image_size, np.random.default_rng(3)
    images = random.normal(size=(3, size, size, 3)).astype("float32")
    questions, answers = (random.integers(5, 61, (3, n)).astype("int32") for n in (length, 4))
    mask = np.arange(length) < np.array([[6], [3], [5]])
    ours = {
        "source_images": images,
        "encoder_token_ids": questions,
        "encoder_padding_mask": mask,
        "decoder_token_ids": answers,
    }
    theirs = {
        "pixel_values": torch.tensor(np.moveaxis(images, -1, 1).copy()),
        "input_ids": torch.tensor(questions.astype("int64")),
        "attention_mask": torch.tensor(mask.astype("int64")),
        "decoder_input_ids": torch.tensor(answers.astype("int64")),
    }
    return ours, theirs


def logits_of(reference, theirs):
    """Theirs, which `forward` computes and does not give, of each question without padding.

    Their decoder attends to the padding of questions: what it writes depends on the batch.
    """
    kept = []
    hook = reference.text_decoder.register_forward_hook(lambda *given: kept.append(given[2].logits))
    for i, length in enumerate(theirs["attention_mask"].sum(1).tolist()):
        alone = {name: array[i : i + 1] for name, array in theirs.items()}
        alone |= {name: alone[name][:, :length] for name in ("input_ids", "attention_mask")}
        reference(**alone)
    hook.remove()
    return torch.cat(kept)


def pictures(count=3):
    random = np.random.default_rng(5)
    return [random.integers(0, 256, (25, 30 + i, 3)).astype("uint8") for i in range(count)]


def test_same_logits(both):
    reference, task = both
    ours, theirs = inputs(reference)
    with torch.no_grad():
        expected = logits_of(reference, theirs).numpy()
    assert np.abs(to_numpy(task(ours)) - expected).max() <= 1e-4
    assert task.start_id == 3 and task.end_ids == (2,)
    # Which token is padding changes nothing.
    ids, mask = ours["encoder_token_ids"], ours["encoder_padding_mask"]
    other = to_numpy(task({**ours, "encoder_token_ids": np.where(mask, ids, 7)}))
    assert np.abs(other - expected).max() <= 1e-4


def test_the_same_answers(both):
    """Token for token what their greedy search writes, of each question by itself."""
    reference, task = both
    images = pictures()
    found = task.answer(images, QUESTIONS, max_new_tokens=7, batch_size=2, return_details=True)
    pixels = torch.tensor(np.moveaxis(task.processor.source(images), -1, 1).copy())
    for i, question in enumerate(QUESTIONS):
        ids = torch.tensor([task.tokenizer.encode(question)])
        with torch.no_grad():
            row = reference.generate(
                ids, pixels[i : i + 1], max_new_tokens=7, do_sample=False, num_beams=1
            )[0].tolist()
        end = row.index(2) if 2 in row else len(row)
        assert found[i].token_ids == row[1:end]
        alone = task.answer(images[i], question, max_new_tokens=7, return_details=True)
        assert alone.token_ids == found[i].token_ids
        assert np.allclose(alone.log_probabilities, found[i].log_probabilities, atol=1e-4)


def test_the_same_beams(both):
    reference, task = both
    images = pictures()
    sampler = kt.generation.BeamSearch(3)
    found = task.answer(images, QUESTIONS, max_new_tokens=5, sampler=sampler, return_details=True)
    pixels = torch.tensor(np.moveaxis(task.processor.source(images), -1, 1).copy())
    for i, question in enumerate(QUESTIONS):
        ids = torch.tensor([task.tokenizer.encode(question)])
        with torch.no_grad():
            row = reference.generate(
                ids, pixels[i : i + 1], max_new_tokens=5, do_sample=False, num_beams=3
            )[0].tolist()
        end = row.index(2) if 2 in row[1:] else len(row)
        assert found[i].token_ids == row[1:end]


@pytest.mark.parametrize("number", [0, 1])
def test_same_gradients(number, tmp_path):
    """Compare gradients of a sum of squares, read like weights, as a checkpoint of their own."""
    reference = make(number)
    backbone = load_backbone(saved(reference, tmp_path / "theirs"))
    ours, theirs = inputs(reference)
    (logits_of(reference, theirs) ** 2).mean().backward()

    def loss():
        return keras.ops.mean(keras.ops.square(backbone.logits(backbone(ours))))

    found = _gradients(backbone, loss)
    assert_gradients(found, reference, tmp_path / "gradients")


@pytest.mark.one_backend
def test_export_is_the_way_back(both, tmp_path):
    reference, task = both
    kt.export_to_huggingface(task, tmp_path / "theirs")
    again, info = type(reference).from_pretrained(tmp_path / "theirs", output_loading_info=True)
    assert not any(info.values()), info
    assert again.config.architectures == ["BlipForQuestionAnswering"]
    _, theirs = inputs(reference)
    with torch.no_grad():
        difference = logits_of(again.eval(), theirs) - logits_of(reference, theirs)
    assert difference.abs().max() <= 1e-6
    task.save_to_preset(tmp_path / "ours")
    task.save(tmp_path / "model.keras")
    for back in (
        kt.ImageToText.from_preset(tmp_path / "theirs"),
        kt.ImageToText.from_preset(tmp_path / "ours"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert back.backbone.config == task.backbone.config
        assert back.task_values() == task.task_values()
        assert_same_values(back.backbone, task.backbone)


@pytest.mark.backend_independent
def test_other_classes_are_refused():
    named = {"architectures": ["BlipForImageTextRetrieval"]}
    with pytest.raises(ValueError, match="only 'BlipForConditionalGeneration' and 'BlipForQ"):
        FAMILIES["blip"].config(named)


@pytest.mark.one_backend
def test_what_questions_need_is_said(both):
    task = both[1]
    with pytest.raises(ValueError, match="reads a text beside each image"):
        task.generate(pictures(1))
    with pytest.raises(ValueError, match="Its task is ImageToText"):
        kt.Seq2SeqLM(task.backbone)
    with pytest.raises(
        ValueError, match="has two sides, but this model has source, encoder, decoder"
    ):
        kt.export_to_huggingface(task, "never", family="vision-encoder-decoder")
