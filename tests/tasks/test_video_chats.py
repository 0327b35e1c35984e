"""Videos in conversations of Qwen-VL models, against Transformers on the same weights."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.generation import Rules
from tests.compiled import outputs_of
from tests.tasks import vision_chats
from tests.tasks.test_vision_chats import arrays_of
from tests.tasks.vision_chats import user

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

NAMES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "qwen3_vl_moe")
TIMED = ("qwen3_vl", "qwen3_5", "qwen3_vl_moe")


def frames_of(count, height, width, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (count, height, width, 3), dtype="uint8")


def video(frames, fps=4.0):
    return {"type": "video", "video": frames, "fps": fps}


A, B = video(frames_of(5, 23, 31)), video(frames_of(9, 16, 44, 1), 3.0)
PICTURE = vision_chats.pictures(1)[0]
SAID = {"role": "assistant", "content": [{"type": "text", "text": "the first"}]}


def conversations():
    """Rows with none, one and two videos, one of them in several places, and images."""
    return [
        [user("which is dark ?")],
        [user(A, "which is dark ?")],
        [user("a : ", PICTURE, " b : ", B, " ?"), SAID, user("which ?", PICTURE)],
        [user(A, "or ", PICTURE, B, "which ?"), SAID, user({**A, "video": A["video"].copy()})],
    ]


@pytest.fixture(scope="module", params=NAMES)
def both(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs")
    model, images = vision_chats.qwen(folder, request.param)
    from tests.processors.published_videos import video_processor

    timed = request.param in TIMED
    most = 6000 if timed else 900
    videos = video_processor(
        "qwen3_vl" if timed else "qwen2_vl", patch_size=4, do_sample_frames=True, fps=2,
        size={"shortest_edge": 64, "longest_edge": most}, image_mean=[0.3, 0.4, 0.5],
    )  # fmt: skip
    videos.save_pretrained(folder)
    return model, Published(images, videos, timed), kt.ImageToText.from_preset(folder)


class Published:
    """Inputs of Transformers' models: its images, videos and tokenizer, and rows of tokens.

    The processor that joins them needs torchvision. What it writes for a video is in the source of
    `Qwen3VLProcessor.replace_video_token`; as when the models were published, this is in place of
    the tokens around a video, which Transformers 5.23 leaves there.
    """

    def __init__(self, joined, videos, timed):
        self.images, self.tokenizer = joined.image_processor, joined.tokenizer
        self.videos, self.timed = videos, timed

    def __call__(self, conversation):
        parts = [c for m in conversation for c in m["content"] if not isinstance(c, str)]
        text = self.tokenizer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=True
        )
        pictures = [c["image"] for c in parts if c["type"] == "image"]
        found = dict(self.images(pictures, return_tensors="pt")) if pictures else {}
        for rows in found.get("image_grid_thw", ()):
            text = text.replace("<|image_pad|>", "<image>" * (int(rows.prod()) // 4), 1)
        given = [c for c in parts if c["type"] == "video"]
        if given:
            made = self.videos(
                videos=[np.moveaxis(c["video"], -1, 1) for c in given],
                video_metadata=[
                    {"fps": c["fps"], "total_num_frames": len(c["video"])} for c in given
                ],
                return_metadata=True, return_tensors="pt",
            )  # fmt: skip
            seconds = []
            for (pairs, *side), about in zip(
                made["video_grid_thw"].tolist(), made.pop("video_metadata"), strict=True
            ):
                tokens = "<video>" * (side[0] * side[1] // 4)
                mark, written = "<|video_pad|>", tokens * pairs
                if self.timed:
                    mark = f"<|vision_start|>{mark}<|vision_end|>"
                    numbers = list(about.frames_indices)
                    numbers += numbers[-1:] * (len(numbers) % 2)
                    written = "".join(
                        f"<{(i + j) / 2 / about.fps:.1f} seconds><|vision_start|>{tokens}"
                        "<|vision_end|>"
                        for i, j in zip(numbers[::2], numbers[1::2], strict=True)
                    )
                seconds.append(2 / about.sampled_fps)
                text = text.replace(mark, written, 1)
            found |= made
            if not self.timed:
                found["second_per_grid_ts"] = torch.tensor(seconds)
        for name in ("image", "video"):
            text = text.replace(f"<{name}>", f"<|{name}_pad|>")
        ids = self.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        start = torch.tensor([[1]])  # ours puts it before a chat, as their joined processor does
        ids = torch.cat([start, ids], dim=1)
        kinds = torch.zeros_like(ids)
        for number, name in enumerate(("image", "video"), 1):
            kinds[ids == self.tokenizer.convert_tokens_to_ids(f"<|{name}_pad|>")] = number
        return {"input_ids": ids, "mm_token_type_ids": kinds, **found}


def options_of(model, theirs):
    """The inputs that a model takes."""
    timed = "tokens_per_second" in model.config.vision_config.to_dict()
    return {k: v for k, v in theirs.items() if k != "second_per_grid_ts" or timed}


@pytest.mark.each_backend
def test_same_logits_in_one_batch(both):
    model, published, task = both
    arrays, mask = arrays_of(task, conversations())
    found = outputs_of(task, arrays)
    image = task.backbone.config.placeholder_id
    for i, conversation in enumerate(conversations()):
        theirs = published(conversation)
        ids = theirs["input_ids"][0].clone()
        ids[theirs["mm_token_type_ids"][0] == 2] = image  # of our videos too
        assert ids.tolist() == arrays["decoder_token_ids"][i][mask[i]].tolist()
        with torch.no_grad():
            expected = model(**options_of(model, theirs)).logits[0].numpy()
        assert np.abs(found[i][mask[i]] - expected).max() <= 1e-4


def test_answers_are_those_of_each_row_alone(both):
    model, published, task = both
    image = task.backbone.config.placeholder_id
    bad = [[image], [image + 1]]
    task.end_ids, ends = (), task.end_ids
    options = {"max_new_tokens": 5, "rules": Rules(bad_words=bad)}
    try:
        found = task.generate(conversations(), return_details=True, **options)
        *_, last = conversations()
        assert task.chat(last, **options) == found[-1].text
        for conversation, completion in zip(conversations(), found, strict=True):
            ids = model.generate(
                **options_of(model, published(conversation)), max_new_tokens=5, do_sample=False,
                eos_token_id=[], pad_token_id=0, bad_words_ids=bad,
            )  # fmt: skip
            assert ids[0, -5:].tolist() == completion.token_ids
    finally:
        task.end_ids = ends


def positions_of(theirs, steps):
    """The positions of tokens, as the models were published: a text follows the largest one.

    Transformers 5.23 lets it follow the rows and columns of a video, although the answer follows
    the largest one there too.
    """
    kinds, found, place, ahead = theirs["mm_token_type_ids"][0].tolist(), [], 0, 0
    pairs, rows, columns = theirs["video_grid_thw"][0].tolist()
    seconds = theirs["second_per_grid_ts"].numpy() if steps else np.float32(1)
    times = (np.arange(pairs) * (np.float32(steps or 1) * seconds)).astype(int)
    while place < len(kinds):
        if kinds[place] == 0:
            found.append([ahead] * 3)
            place, ahead = place + 1, ahead + 1
            continue
        some = [
            [ahead + t, ahead + i, ahead + j]
            for t in times for i in range(rows // 2) for j in range(columns // 2)
        ]  # fmt: skip
        found += some
        place, ahead = place + len(some), max(map(max, some)) + 1
    return torch.tensor(found).T[:, None]


@pytest.mark.parametrize("both", ["qwen2_vl", "qwen2_5_vl"], indirect=True)
def test_texts_follow_a_long_video(both):
    model, published, task = both
    steps = model.config.vision_config.to_dict().get("tokens_per_second")
    conversation = [user(video(frames_of(24, 16, 16)), "which is dark ?")]
    theirs = published(conversation)
    assert theirs["video_grid_thw"].tolist() == [[6, 4, 4]]
    arrays, _ = arrays_of(task, [conversation])
    with torch.no_grad():
        expected = model(
            **options_of(model, theirs), position_ids=positions_of(theirs, steps)
        ).logits[0].numpy()  # fmt: skip
    assert np.abs(outputs_of(task, arrays)[0] - expected).max() <= 1e-4


def test_fit_and_shown(both, capsys):
    """Rows with and without videos in one batch; what is shown; what a batch reads once."""
    *_, task = both
    images, _, _ = task.asked(conversations(), None)
    assert [len(row.images) for row in images] == [0, 1, 3, 4]
    arrays = task.arrays_of(images)
    # The picture, and the pairs of frames of two videos: 2 and 3.
    if keras.backend.backend() == "torch":  # not rounded
        assert len(arrays["encoder_patches"]) == 6
    before = [keras.ops.convert_to_numpy(w) for w in task.backbone.projector.weights]
    rows = [[*some, SAID] for some in conversations()]
    task.fit(rows, batch_size=2, epochs=1, verbose=0, max_length=200)
    after = [keras.ops.convert_to_numpy(w) for w in task.backbone.projector.weights]
    assert any(np.abs(a - b).max() > 0 for a, b in zip(after, before, strict=True))
    # The same rows, whose videos are in a column.
    content = [{"type": "video"}, {"type": "text", "text": "which is dark ?"}]
    held = kt.processors.Video(A["video"], A["fps"])
    table = [{"messages": [{"role": "user", "content": content}, SAID], "videos": [held]}]
    batches = [task.make_dataset(x)[0] for x in (table, [rows[1]])]
    names = [name for name in batches[0][0] if name != "row"]
    assert all(np.array_equal(batches[0][0][name], batches[1][0][name]) for name in names)
    task.show_example(rows[1])
    assert "[video 1: 5 frames of 31 x 23 pixels]" in capsys.readouterr().out


@pytest.mark.one_backend
def test_export_and_presets(both, tmp_path):
    _, _, task = both
    kt.export_to_huggingface(task, tmp_path / "exported")
    task.save_to_preset(tmp_path / "preset")
    videos = task.processor.source.videos
    for folder in ("exported", "preset"):
        again = kt.ImageToText.from_preset(tmp_path / folder)
        assert again.processor.source.videos.values() == videos.values()
        assert again.asked(conversations(), None)[1] == task.asked(conversations(), None)[1]


@pytest.mark.one_backend
@pytest.mark.parametrize("both", ["qwen2_vl", "qwen3_vl"], indirect=True)
def test_what_does_not_fit_is_refused(both):
    _, _, task = both
    empty, long = np.zeros((0, 8, 8, 3), "uint8"), np.zeros((900, 8, 8, 3), "uint8")
    for parts, message in (
        (["see <|video_pad|> ?"], "the text has '<.video_pad.>', which stands for a video"),
        ([video(empty)], "`messages`: `video 1` must be of shape"),
        ([{"type": "video", "video": long}], "has 900 frames, and `max_frames` is 768"),
        ([{"type": "video"}], "is a video without its frames"),
        ([{"type": "video_url", "video_url": {"url": "https://a/b.mp4"}}], "nothing is fetched"),
        ([video(empty, 0)], "'fps'` must be a number"),
        ([{**A, "frames": 3}], "has the keys"),
    ):
        with pytest.raises(ValueError, match=message):
            task.chat([user(*parts)])
    tokenizer = task.tokenizer
    template, both_kinds = tokenizer.chat_template, [user(A, PICTURE, "which ?")]
    try:
        tokenizer.chat_template = template.replace("<|video_pad|>", "")
        with pytest.raises(ValueError, match="has 0 images and 1 videos, and its chat template"):
            task.chat([user(A)])
        with pytest.raises(ValueError, match="does not write the images and videos"):
            task.chat(both_kinds)
        tokenizer.chat_template = template.replace("m['content'] %}", "m['content'] | reverse %}")
        with pytest.raises(ValueError, match="does not write the images and videos"):
            task.chat(both_kinds)
    finally:
        tokenizer.chat_template = template
    source = kt.processors.PatchSequenceProcessor(64, 1600, patch_size=4)
    without = kt.ImageToText(task.backbone, source, tokenizer)
    with pytest.raises(ValueError, match="must be a text, .*or an image, since this model reads"):
        without.chat([user(A)])
    source.videos = kt.processors.PatchVideoProcessor(64, 1600, patch_size=8)
    with pytest.raises(ValueError, match="The videos are cut into patches of"):
        kt.ImageToText(task.backbone, source, tokenizer)
