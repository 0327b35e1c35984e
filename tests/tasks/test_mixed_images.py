"""Images among the tokens of a prompt: as Transformers' processors and models, fit, wrong input."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.generation import Rules
from tests.tasks import images, mixed

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# Of several lengths.
PROMPTS = {
    "llava": [
        "USER : <image> what is it ? ASSISTANT :",
        "<image> how ?",
        "USER : <image>\nw1 w2 w3 what is it ? ASSISTANT :",
    ],
    "paligemma": ["what is it ?", "how", "w1 w2 w3 is it a dark square ?"],
    "git": ["what is it ?", "how", "w1 w2 w3 is it a dark square ?"],
}


@pytest.fixture(scope="module", params=PROMPTS)
def both(request, tmp_path_factory):
    transformers.logging.set_verbosity_error()
    folder = tmp_path_factory.mktemp(request.param)
    model, processor = mixed.saved(request.param, folder)
    return request.param, model, processor, kt.ImageToText.from_preset(folder)


def pictures():
    random = np.random.default_rng(0)
    return [random.integers(0, 255, (30, 25 + 5 * i, 3)).astype("uint8") for i in range(3)]


def theirs_of(name, processor, image, prompt):
    """Return the output of their processor for one image and one prompt."""
    if name == "git":
        ids = [1, *processor.tokenizer(prompt, add_special_tokens=False).input_ids]
        given = processor(images=image, return_tensors="pt")
        return {"pixel_values": given.pixel_values, "input_ids": torch.tensor([ids])}
    given = processor(images=image, text=prompt, return_tensors="pt")
    return {key: value for key, value in given.items() if key != "labels"}


def test_prompts_and_pixels_are_those_of_their_processor(both):
    name, _, processor, task = both
    rows = task.prompt_rows(PROMPTS[name], 3)
    pixels = task.arrays_of(pictures())["encoder_images"]
    count = task.backbone.config.num_placeholders
    for i, image in enumerate(pictures()):
        theirs = theirs_of(name, processor, image, PROMPTS[name][i])
        ids = theirs["input_ids"][0].tolist()
        assert rows[i] == ([0] * count + ids if name == "git" else ids)
        expected = np.moveaxis(theirs["pixel_values"][0].numpy(), 0, -1)
        assert np.abs(pixels[i] - expected).max() <= 1e-5


def test_greedy_texts_are_those_of_their_generate(both):
    """A batch of prompts of several lengths, as each of theirs alone."""
    name, model, processor, task = both
    token = task.backbone.config.placeholder_id
    options = {"max_new_tokens": 6, "sampler": "greedy", "rules": Rules(bad_words=[[token]])}
    found = task.answer(pictures(), PROMPTS[name], return_details=True, **options)
    for i, image in enumerate(pictures()):
        theirs = theirs_of(name, processor, image, PROMPTS[name][i])
        with torch.no_grad():
            ids = model.generate(
                **theirs, max_new_tokens=6, do_sample=False, bad_words_ids=[[token]],
                pad_token_id=0, eos_token_id=2,
            )[0, theirs["input_ids"].shape[1] :].tolist()  # fmt: skip
        expected = ids[: ids.index(2)] if 2 in ids else ids
        assert found[i].token_ids == expected
        alone = task.answer(image, PROMPTS[name][i], return_details=True, **options)
        assert alone.token_ids == expected and alone.text == found[i].text
        assert np.abs(alone.log_probabilities - found[i].log_probabilities).max() <= 1e-4


def test_what_is_learned_is_what_theirs_learns(both):
    """The loss of suffixes behind prompts: what is behind the prompt, and sees it."""
    name, model, processor, task = both
    answers = ["a dark square", "bright", "w4 w5"]
    inputs, targets, weights = task.make_dataset((pictures(), PROMPTS[name]), answers)[0]
    logits = to_numpy(task(inputs)).astype("float64")
    logits -= logits.max(-1, keepdims=True)
    losses = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(
        logits, targets[..., None].astype("int64"), -1
    )[..., 0]  # fmt: skip
    for i, image in enumerate(pictures()):
        theirs = theirs_of(name, processor, image, PROMPTS[name][i])
        prompt = theirs["input_ids"]
        suffix = processor.tokenizer(answers[i], add_special_tokens=False).input_ids
        ids = torch.cat([prompt, torch.tensor([[*suffix, 2]])], 1)
        labels = torch.cat([torch.full_like(prompt, -100), ids[:, prompt.shape[1] :]], 1)
        theirs |= {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
        if name == "paligemma":
            theirs["token_type_ids"] = (labels != -100).long()
        with torch.no_grad():
            expected = model(**theirs).loss.item()
        row = next(
            r for r in range(3)
            if targets[r][weights[r] > 0].tolist() == [*suffix, 2]
        )  # fmt: skip
        mine = (losses[row] * weights[row]).sum() / weights[row].sum()
        assert mine == pytest.approx(expected, abs=1e-4)


def small(visibility="prompt", position="rotary", **options):
    """A task of one's own, whose placeholder is the padding of its tokenizer."""
    texts = ["a dark square", "a bright square", "what is it ?", "how bright ?"]
    tokenizer = kt.Tokenizer.train(texts * 4, vocabulary_size=290)
    config = images.captions()
    values = {
        **config.stated(), "placeholder_id": tokenizer.pad_id, "position": position,
        "placeholder_visibility": visibility, "projector": "mlp", "share_embeddings": None,
    }  # fmt: skip
    values["encoder"] = {**values["encoder"], "position": "learned"}
    backbone = kt.models.Seq2Seq(kt.TransformerConfig.from_dict(values))
    processor = kt.ImageProcessor(size=(12, 16))
    return kt.ImageToText(backbone, processor, tokenizer, **options)


@pytest.mark.parametrize(
    ("visibility", "position"), [("prompt", "rotary"), ("states", "learned"), ("causal", "rotary")]
)
def test_it_learns(visibility, position, tmp_path):
    keras.utils.set_random_seed(0)
    made = small(visibility, position, template="{prompt} ?")
    made.compile(keras.optimizers.Adam(1e-2))
    x, labels = images.pictures(16)
    questions = [["what is it", "how bright"][i // 2 % 2] for i in range(16)]
    said = [
        f"a {label} square" if question.startswith("what") else label
        for label, question in zip(labels, questions, strict=True)
    ]
    made.fit((x, questions), said, epochs=30, batch_size=8, seed=1, verbose=0)
    results = made.evaluate((x, questions), said, verbose=0, return_dict=True)
    assert results["accuracy"] == 1
    assert made.answer(x, questions, batch_size=3) == said
    made.save_to_preset(tmp_path)
    again = kt.Task.from_preset(tmp_path)
    assert again.template == "{prompt} ?" and again.answer(x[:2], "how bright") == said[2:4]
    scores = made.score(x[:3], said[:3], questions[:3])
    assert (scores > -3).all()


@pytest.mark.one_backend
def test_wrong_prompts(both):
    name, _, _, task = both
    x = pictures()[:2]
    if name == "llava":
        count = task.backbone.config.num_placeholders
        message = rf"`prompts\[1\]` has 3 placeholders .* give one, .* all {count} states"
        with pytest.raises(ValueError, match=message):
            task.answer(x, ["<image> how ?", "<image> <image> <image> how ?"])
        whole = " ".join(["<image>"] * count)
        assert task.prompt_rows([f"{whole} how ?"], 1) == task.prompt_rows(["<image> how ?"], 1)
        assert task.prompt_rows(["how ?"], 1)[0][:3] == [1, 5, 6]  # in the template
        assert task.prompt_rows(None, 1)[0].count(4) == count
    with pytest.raises(ValueError, match="Received 2 images and 1 prompts"):
        task.answer(x, ["how ?"])
    with pytest.raises(ValueError, match=r"`template` must contain '\{prompt\}' where the prompt"):
        kt.ImageToText(task.backbone, template="Describe it.")


@pytest.mark.one_backend
def test_wrong_arrays():
    made = small()
    config = made.backbone.config
    count, token = config.num_placeholders, config.placeholder_id
    ids = np.array([[token] * count + [9, 9], [token] * (count - 1) + [9, 9, 9]], "int32")
    inputs = {"encoder_images": np.zeros((2, 12, 16, 3), "float32"), "decoder_token_ids": ids}
    message = rf"`decoder_token_ids\[1\]` has {count - 1} placeholders, .* makes {count} states"
    with pytest.raises(ValueError, match=message):
        made.backbone(inputs)
    ids[1] = ids[0]
    with pytest.raises(ValueError, match="give `decoder_prefix_mask`, bool like the ids"):
        made.backbone(inputs)
    inputs["decoder_prefix_mask"] = ids == token
    assert made.backbone(inputs).shape == (2, count + 2, config.hidden_dim)
    wide = {**inputs, "encoder_images": np.zeros((2, 24, 16, 3), "float32")}
    with pytest.raises(ValueError, match=f"and {count} are placed: the images of this model have"):
        made.backbone(wide)
