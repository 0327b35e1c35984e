"""Conversations with any number of images, against Transformers on the same weights."""

import base64
import io

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.data import as_conversations
from keras_transformer.generation import Rules
from keras_transformer.processors.image_files import image_size
from keras_transformer.tasks.images import image_conversations
from tests.compiled import outputs_of
from tests.tasks import vision_chats
from tests.tasks.vision_chats import conversations, user

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llava")
    model, processor = vision_chats.llava(folder)
    return model, processor, kt.ImageToText.from_preset(folder)


def theirs_of(processor, conversation, **options):
    """The inputs that Transformers makes of a conversation."""
    options = {"add_generation_prompt": True, **options}
    return processor.apply_chat_template(
        conversation, tokenize=True, return_dict=True, return_tensors="pt", **options
    )


def arrays_of(task, some):
    """The arrays of conversations as one batch, and their mask."""
    images, rows, _ = task.asked(some, None)
    length = max(map(len, rows))
    ids, mask = np.zeros((len(rows), length), "int32"), np.zeros((len(rows), length), "bool")
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, True
    return {"decoder_token_ids": ids, "decoder_padding_mask": mask, **task.arrays_of(images)}, mask


@pytest.mark.each_backend
def test_same_logits_in_one_batch(both):
    model, processor, task = both
    arrays, mask = arrays_of(task, conversations())
    # Three pictures, one of them given as two equal arrays, in eight places.
    assert len({image.tobytes() for image in arrays["encoder_images"]} - {b""}) <= 4
    found = outputs_of(task, arrays)
    for i, conversation in enumerate(conversations()):
        theirs = theirs_of(processor, conversation)
        assert theirs["input_ids"][0].tolist() == arrays["decoder_token_ids"][i][mask[i]].tolist()
        with torch.no_grad():
            expected = model(**theirs).logits[0].numpy()
        assert np.abs(found[i][mask[i]] - expected).max() <= 1e-4


@pytest.mark.each_backend
def test_gemma3(tmp_path):
    """Its pixels, ids and logits in one batch, its way back, and answers."""
    model, processor = vision_chats.gemma3(tmp_path / "theirs")
    task = kt.ImageToText.from_preset(tmp_path / "theirs")
    arrays, mask = arrays_of(task, conversations())
    found = outputs_of(task, arrays)
    for i, conversation in enumerate(conversations()):
        theirs = theirs_of(processor, conversation)
        assert theirs["input_ids"][0].tolist() == arrays["decoder_token_ids"][i][mask[i]].tolist()
        if "pixel_values" in theirs:
            own = task.arrays_of(task.asked(conversation, None)[0])
            which = own["decoder_placed_states"][0, ::4] // 4
            pixels = own["encoder_images"][which[which >= 0]]
            theirs_pixels = np.moveaxis(theirs["pixel_values"].numpy(), 1, -1)
            assert np.abs(pixels - theirs_pixels).max() <= 1e-5
        with torch.no_grad():
            expected = model(**theirs).logits[0].numpy()
        assert np.abs(found[i][mask[i]] - expected).max() <= 1e-4
    kt.export_to_huggingface(task, tmp_path / "ours")
    again = type(model).from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        assert np.abs(again(**theirs).logits[0].numpy() - expected).max() <= 1e-5
    back = kt.ImageToText.from_preset(tmp_path / "ours")
    assert back.task_values() == task.task_values() and back.backbone.config == task.backbone.config
    assert back.asked(conversations(), None)[1] == task.asked(conversations(), None)[1]


@pytest.mark.each_backend
def test_answers_are_those_of_each_row_alone(both):
    model, processor, task = both
    task.end_ids, ends = (), task.end_ids
    options = {"max_new_tokens": 6, "rules": Rules(bad_words=[[4]])}  # no image tokens
    try:
        found = task.generate(conversations(), return_details=True, **options)
        for conversation, completion in zip(conversations(), found, strict=True):
            assert task.chat(conversation, **options) == completion.text
            theirs = theirs_of(processor, conversation)
            ids = model.generate(
                **theirs, max_new_tokens=6, do_sample=False, eos_token_id=[], bad_words_ids=[[4]]
            )
            assert ids[0, theirs["input_ids"].shape[1] :].tolist() == completion.token_ids
            scores = torch.log_softmax(model(**theirs).logits[0, -1], -1)[completion.token_ids[0]]
            assert abs(scores.item() - completion.log_probabilities[0]) <= 1e-4
    finally:
        task.end_ids = ends


@pytest.mark.one_backend
def test_pictures_in_every_form(both, tmp_path):
    from PIL import Image

    *_, task = both
    picture = vision_chats.pictures(1)[0]
    image = Image.fromarray(picture)
    image.save(tmp_path / "a.png")
    image.save(file := io.BytesIO(), "png")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    parts = [
        {"type": "image", "image": picture},
        {"type": "image", "image": image},
        {"type": "image", "path": str(tmp_path / "a.png")},
        {"type": "image", "image": file.getvalue()},
        {"type": "image", "base64": url.split(",")[1]},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    text = {"type": "text", "text": "which ?"}
    some = [[{"role": "user", "content": [part, text]}] for part in parts]
    pixels = [task.arrays_of(task.asked(one, None)[0])["encoder_images"] for one in some]
    assert all(np.array_equal(pixels[0], each) for each in pixels)


@pytest.mark.one_backend
def test_an_image_is_encoded_once(both):
    *_, task = both
    images, _, _ = task.asked(conversations(), None)
    assert [len(row.images) for row in images] == [0, 1, 2, 5]
    arrays = task.arrays_of(images)
    assert len(arrays["encoder_images"]) == 3  # on this backend not rounded
    assert "encoder_images" not in task.arrays_of(images[:1])


@pytest.mark.one_backend
def test_the_order_is_that_of_the_template(tmp_path):
    _, processor = vision_chats.llava(tmp_path, vision_chats.TEMPLATE)
    task = kt.ImageToText.from_preset(tmp_path)
    for conversation in conversations():
        ids = theirs_of(processor, conversation)["input_ids"][0].tolist()
        assert task.asked(conversation, None)[1] == [ids]


@pytest.mark.one_backend
def test_templates_of_strings(both):
    """A template that knows no parts gets the image's token in the text."""
    *_, task = both
    template = (
        "{% for m in messages %}{{ m.role }} : {{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}assistant : {% endif %}"
    )
    tokenizer = task.tokenizer.with_chat_template(template)
    task = kt.ImageToText(task.backbone, task.processor.source, tokenizer)
    _, (row,), _ = task.asked([user("a ", vision_chats.pictures()[0], " b")], None)
    words = tokenizer.decode_whole(row).split()
    assert words.count("<image>") == 16
    assert [word for word in words if word != "<image>"] == [
        "<s>",
        "user",
        ":",
        "a",
        "b",
        "</s>",
        "assistant",
        ":",
    ]


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("see <image> ?", "messages.0.: the text has '<image>', which stands for an image"),
        ([{"type": "text", "text": "a <image>"}], "part 0: the text has '<image>'"),
        ([{"type": "image"}], "is an image without its picture"),
        ([{"type": "image", "url": "https://a/b.png"}], "is a URL, .*nothing is fetched"),
        ([{"type": "image", "path": "file:///b.png"}], "is a URL, .*nothing is fetched"),
        ([{"type": "video", "video": "a"}], "must be a text, .*or an image"),
        (3, "must be a string or a list of parts"),
    ],
)
def test_wrong_messages_are_refused(both, content, message):
    *_, task = both
    with pytest.raises(ValueError, match=message):
        task.chat([{"role": "user", "content": content}])


@pytest.mark.one_backend
def test_numbers_that_differ_are_refused(both):
    *_, task = both
    template = "{% for m in messages %}{{ m.content[0].type }}{{ '<image>' }}{% endfor %} 'a'"
    alone = kt.ImageToText(
        task.backbone,
        task.processor.source,
        task.tokenizer.with_chat_template(template.replace("m.content[0].type", "'user'")),
    )
    with pytest.raises(ValueError, match="has 0 images, and its chat template writes 1"):
        alone.chat([user("a")])
    a, b = vision_chats.pictures(2)
    rows = [{"messages": [user(a, "?")], "images": [b]}]
    with pytest.raises(ValueError, match="0 parts .* without a picture, and there are 1 'images'"):
        task.make_dataset(rows)
    arrays, _ = arrays_of(task, conversations())
    arrays["decoder_placed_states"][1] = -1
    with pytest.raises(ValueError, match="16 placeholders.*has 0 states"):
        task(arrays)
    with pytest.raises(ValueError, match="leave out `prompts`"):
        task.generate(conversations(), "what ?")


def answered():
    """Conversations that end with answers, of which one has two."""
    said = {"role": "assistant", "content": [{"type": "text", "text": "the second"}]}
    return [[*conversation, said] for conversation in conversations()]


def parts_of(task):
    """The values of the image tower and of the rest, by path."""
    found = {v.path: to_numpy(v) for v in task.backbone.weights}
    tower = {path: x for path, x in found.items() if "/encoder" in path or "input_" in path}
    return tower, {path: x for path, x in found.items() if path not in tower}


@pytest.mark.each_backend
def test_the_loss_is_that_of_the_answers(both):
    model, processor, task = both
    total, count = 0.0, 0
    for conversation in answered():
        theirs = theirs_of(
            processor, conversation, add_generation_prompt=False, return_assistant_tokens_mask=True
        )
        mask = torch.as_tensor(theirs.pop("assistant_masks")).bool()
        with torch.no_grad():
            logits = model(**theirs).logits[0, :-1]
        targets = theirs["input_ids"][0, 1:][mask[0, 1:]]
        total -= torch.log_softmax(logits, -1)[mask[0, 1:]].gather(1, targets[:, None]).sum().item()
        count += len(targets)
    found = task.evaluate(answered(), batch_size=4, verbose=0, return_dict=True)
    assert abs(found["loss"] - total / count) <= 1e-4


@pytest.mark.each_backend
def test_fit_trains_all_but_the_image_tower(tmp_path):
    vision_chats.llava(tmp_path)
    task = kt.ImageToText.from_preset(tmp_path)
    tower, rest = parts_of(task)
    history = task.fit(answered(), epochs=2, batch_size=2, seed=0, verbose=0)
    assert history.history["loss"][1] < history.history["loss"][0]
    after, learned = parts_of(task)
    assert tower and all(np.array_equal(tower[path], after[path]) for path in tower)
    assert any(
        not np.array_equal(rest[path], learned[path]) for path in rest if "projector" in path
    )
    assert any(not np.array_equal(rest[path], learned[path]) for path in rest if "decoder" in path)
    task.fit(answered(), image_tower="trained", verbose=0)
    trained, _ = parts_of(task)
    assert any(not np.array_equal(tower[path], trained[path]) for path in tower)


@pytest.mark.one_backend
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_adapters_of_one_side(tmp_path, side):
    vision_chats.llava(tmp_path)
    task = kt.ImageToText.from_preset(tmp_path)
    task.enable_lora(rank=2, targets=[f"{side}/query", f"{side}/value"])
    paths = [v.path for v in task.trainable_variables]
    layers = len(task.backbone.stacks[side == "decoder"].blocks)
    assert len(paths) == 4 * layers and all(f"/{side}/" in path for path in paths)
    before = [to_numpy(v) for v in task.trainable_variables]
    task.fit(answered(), verbose=0)
    assert any(
        not np.array_equal(to_numpy(v), old)
        for v, old in zip(task.trainable_variables, before, strict=True)
    )
    with pytest.raises(ValueError, match="leave out `image_tower`"):
        task.fit(answered(), image_tower="frozen")


@pytest.mark.one_backend
def test_images_are_read_batch_by_batch(both, monkeypatch):
    *_, task = both
    read = []
    kind = type(task.processor.source)
    monkeypatch.setattr(kind, "pixels", lambda *x, one=kind.pixels: read.append(1) or one(*x))
    dataset = task.make_dataset(answered(), batch_size=1)
    assert not read
    counts = [len(dataset[i][0]["encoder_images"]) for i in range(4)]
    assert sorted(counts) == [1, 1, 2, 3] and len(read) == 6  # one is blank


@pytest.mark.one_backend
def test_rows_that_are_cut(both):
    *_, task = both
    with pytest.warns(UserWarning, match="longer than max_length=48 and were cut"):
        dataset = task.make_dataset(answered(), max_length=48, batch_size=4)
    for inputs, targets, weights in (dataset[i] for i in range(len(dataset))):
        assert np.isfinite(outputs_of(task, inputs)).all()
        assert (weights[targets == 4] == 0).all()


@pytest.mark.one_backend
def test_show_example(both, capsys, monkeypatch):
    *_, task = both
    opened = []
    monkeypatch.setattr(
        image_conversations, "image_size", lambda x: opened.append(x) or image_size(x)
    )
    task.show_example(answered()[2])
    assert len(opened) == 2  # each once, and not for each of its states
    shown = capsys.readouterr().out
    assert "[image 1: 30 x 27 pixels]" in shown and "[image 2: 30 x 24 pixels]" in shown
    assert "« the first </s>»" in shown and "<image>" not in shown


@pytest.mark.one_backend
def test_tables_with_a_column_of_images(both):
    datasets = pytest.importorskip("datasets")
    from PIL import Image

    *_, task = both
    a, b, _ = vision_chats.pictures()
    parts = [{"type": "image", "text": None}, {"type": "text", "text": "which ?"}]
    messages = [
        {"role": "user", "content": [parts[0], *parts]},
        {"role": "assistant", "content": [{"type": "text", "text": "the first"}]},
    ]
    images = [Image.fromarray(a), Image.fromarray(b)]
    table = datasets.Dataset.from_list([{"messages": messages, "images": images}] * 2)
    held = as_conversations(table)[1].images
    assert [set(image) for image in held] == [{"bytes", "path"}] * 2  # files, decoded by batch
    assert task.fit(table, verbose=0).history["loss"][0] > 0
    inputs, *_ = task.make_dataset(list(table))[0]
    assert len(inputs["encoder_images"]) >= 2
