"""Conversations with images by OpenAI's client: each answer is what the task gives alone."""

import base64
import dataclasses
import io
import struct
import zlib

import numpy as np
import openai
import pytest
from PIL import Image
from starlette.testclient import TestClient

import keras_transformer as kt
from keras_transformer.serving import API_LIMITS, ServedTask, make_api
from keras_transformer.tasks.images import row_images
from tests.serving.conftest import started
from tests.serving.test_hostile import TARGETS, Refusing, files
from tests.tasks import vision_chats
from tests.tasks.vision_chats import user

pytest.importorskip("torch")
pytestmark = pytest.mark.one_backend


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llava")
    vision_chats.llava(folder)
    return kt.ImageToText.from_preset(folder)


@pytest.fixture(scope="module")
def client(task):
    with started(make_api({"llava": ServedTask(task)})) as port:
        yield openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


def url_of(picture):
    Image.fromarray(picture).save(file := io.BytesIO(), "png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def as_client(*parts):
    """A message in OpenAI's form."""
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": url_of(part)}}
        for part in parts
    ]
    return {"role": "user", "content": content}


def asked(client, message, **options):
    options = {"max_tokens": 5, "temperature": 0, **options}
    found = client.chat.completions.create(model="llava", messages=[message], **options)
    return found if options.get("stream") else found.choices[0]


def test_answers_are_those_of_the_task(client, task):
    a, b, _ = vision_chats.pictures()
    for parts in (["which ?"], [a, "which ?"], ["a ", b, " b ", a, b, " ?"]):
        expected = task.chat([user(*parts)], max_new_tokens=5, return_details=True)
        choice = asked(client, as_client(*parts), logprobs=True)
        assert choice.message.content == expected.text
        scores = [each.logprob for each in choice.logprobs.content]
        assert scores == pytest.approx(expected.log_probabilities.tolist(), abs=1e-3)
    pieces = asked(client, as_client(a, "which ?"), stream=True)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert text == task.chat([user(a, "which ?")], max_new_tokens=5)


def test_images_that_are_cut_into_tiles(tmp_path):
    """The prompt is as long as the tiles of its images are many."""
    vision_chats.smolvlm(tmp_path)
    task = kt.ImageToText.from_preset(tmp_path)
    a, b, _ = vision_chats.pictures()
    with started(make_api({"llava": ServedTask(task)})) as port:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="n", max_retries=0)
        for parts in (["which ?"], [a, "which ?", b, a]):
            expected = task.chat([user(*parts)], max_new_tokens=5)
            assert asked(client, as_client(*parts)).message.content == expected
        with pytest.raises(openai.BadRequestError, match="cannot be read|Pillow"):
            wrong = {"type": "image_url", "image_url": {"url": "data:;base64,YWJj"}}
            asked(client, {"role": "user", "content": [wrong]})


def bomb():
    """A PNG of a few bytes that claims 100,000 x 100,000 pixels."""
    head = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    made = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + made).decode()


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"type": "image_url", "image_url": {"url": "https://a/b.png"}}, "only `data:` URLs"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/hosts"}}, "only `data:` URLs"),
        ({"type": "image_url", "image_url": {"url": "/etc/hosts"}}, "only `data:` URLs"),
        ({"type": "image_url", "image_url": {}}, "has no URL"),
        ({"type": "image", "image": "/etc/hosts"}, "neither a text nor an `image_url`"),
        ({"type": "image_url", "image_url": {"url": "data:image/png,abc"}}, "in base64"),
        ({"type": "image_url", "image_url": {"url": "data:;base64,YWJj"}}, "cannot be read|Pillow"),
        ({"type": "image_url", "image_url": {"url": bomb()}}, "is too large"),
        ({"type": "text", "text": "see <image>"}, "stands for an image"),
    ],
)
def test_what_is_wrong_is_said(client, part, told):
    with pytest.raises(openai.BadRequestError, match=told):
        asked(client, {"role": "user", "content": [part]})


def limited(task, **limits):
    limits = dataclasses.replace(API_LIMITS, **limits)
    app = make_api({"llava": ServedTask(task)}, limits)
    return TestClient(app, base_url="http://127.0.0.1")


def posted(api, *urls):
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    messages = [{"role": "user", "content": parts}]
    given = {"model": "llava", "messages": messages, "max_tokens": 1}
    return api.post("/v1/chat/completions", json=given)


def test_no_image_opens_a_file_or_a_connection(task):
    urls = [f"data:image/png;base64,{base64.b64encode(content).decode()}" for content in files()]
    with limited(task) as api:
        assert posted(api, urls[-3]).status_code == 200  # a picture; starts the template's child
        with Refusing()():
            statuses = {posted(api, url).status_code for url in (*urls, *TARGETS)}
    assert statuses == {200, 400}


def test_the_pixels_of_a_request_are_bounded_before_they_are_decoded(task):
    """All of its images together, by their headers; the verbs of a file too."""
    a, b = (url_of(np.zeros((40, side, 3), "uint8")) for side in (30, 20))
    with limited(task, pixels=40 * 50) as api:
        assert posted(api, a, b).status_code == 200
        refused = posted(api, a, b, b)
        assert refused.status_code == 413
        assert "2,800 pixels; the images of a request may have 2,000" in refused.text
        for side, expected in ((50, 200), (51, 413)):
            url = url_of(np.zeros((40, side, 3), "uint8"))
            given = {"model": "llava", "file": url.partition(",")[2], "max_new_tokens": 1}
            assert api.post("/caption", json=given).status_code == expected


def test_the_number_of_images_is_bounded_before_a_template_writes_them(task):
    url, states = url_of(np.zeros((2, 2, 3), "uint8")), task.backbone.placeholder_tokens.count
    with limited(task, tokens=4 * states) as api:
        assert posted(api, *[url] * 3).status_code == 200
        refused = posted(api, *[url] * 5)
    assert refused.status_code == 400 and "context_length_exceeded" in refused.text
    assert f"5 images take {5 * states}. " in refused.text


def test_the_images_of_all_requests_hold_bounded_memory(task):
    """A file of a few bytes can become an image that takes many."""
    url = url_of(np.zeros((2, 2, 3), "uint8"))
    held = 20 * 20 * 3
    with limited(task, held_bytes=2 * held) as api:
        for _ in range(3):  # an answered request holds nothing
            assert posted(api, url).status_code == 200
            refused = posted(api, url, url)
            assert refused.status_code == 429 and refused.headers["retry-after"]


def test_texts_are_not_completed(client):
    with pytest.raises(openai.NotFoundError, match="has no /v1/completions"):
        client.completions.create(model="llava", prompt="which")


def test_images_of_any_size(tmp_path):
    """The states of an image count before it is decoded, and it is decoded once."""
    vision_chats.qwen(tmp_path, "qwen2_5_vl")
    task = kt.ImageToText.from_preset(tmp_path)
    a, b, _ = vision_chats.pictures()
    limits = dataclasses.replace(API_LIMITS, tokens=70)
    with started(make_api({"llava": ServedTask(task)}, limits)) as port:
        url = f"http://127.0.0.1:{port}/v1"
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
        for parts in ([a, "which ?"], ["a ", b, " or ", a, " ?"]):
            expected = task.chat([user(*parts)], max_new_tokens=5)
            assert asked(client, as_client(*parts)).message.content == expected
        with pytest.raises(openai.BadRequestError, match="6 images take 72"):
            asked(client, as_client(*[a] * 6, "which ?"))
    given = {"model": "llava", "file": url_of(a).partition(",")[2], "max_new_tokens": 1}
    for tokens, expected in ((12, 200), (11, 400)):
        with limited(task, tokens=tokens) as api:
            found = api.post("/caption", json=given)
            assert found.status_code == expected, found.text
    assert "`file` takes 12 tokens, and at most 11 are read" in found.text


def test_images_and_frames_with_budgets(tmp_path):
    """The frames of a Gemma 4 are behind their times in the text."""
    vision_chats.gemma4(tmp_path, num_frames=3)
    task = kt.ImageToText.from_preset(tmp_path)
    a, b, _ = vision_chats.pictures()
    coded = ",".join(url_of(frame).partition(",")[2] for frame in (a, a[::-1]))
    video = {"type": "video_url", "video_url": {"url": f"data:video/png;base64,{coded}"}}
    with started(make_api({"llava": ServedTask(task)})) as port:
        url = f"http://127.0.0.1:{port}/v1"
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
        for parts in ([a, "which ?"], ["a ", b, " or ", a, " ?"]):
            expected = task.chat([user(*parts)], max_new_tokens=5)
            assert asked(client, as_client(*parts)).message.content == expected
        message = as_client(b, " or ")
        message["content"].append(video)
        ours = user(b, " or ", {"type": "video", "video": [a, a[::-1]]})
        expected = task.chat([ours], max_new_tokens=5)
        assert asked(client, message).message.content == expected


def test_frames_of_videos(tmp_path):
    """A video is images, whose pixels are bounded together; files are not decoded."""
    vision_chats.qwen(tmp_path, "qwen2_5_vl")
    task = kt.ImageToText.from_preset(tmp_path)
    a, b, _ = vision_chats.pictures()
    frames = [np.roll(a, i, axis=0) for i in range(3)]
    coded = ",".join(url_of(frame).partition(",")[2] for frame in frames)
    video = {"type": "video_url", "video_url": {"url": f"data:video/png;base64,{coded}"}}
    parts = [*as_client("a ", b)["content"], video, {"type": "text", "text": " ?"}]
    message = {"role": "user", "content": parts}
    with started(make_api({"llava": ServedTask(task)})) as port:
        url = f"http://127.0.0.1:{port}/v1"
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
        ours = user("a ", b, {"type": "video", "video": frames}, " ?")
        expected = task.chat([ours], max_new_tokens=5)
        assert asked(client, message).message.content == expected
        for url, told in (
            (f"data:video/mp4;base64,{coded}", "Files of videos are not decoded"),
            ("data:video/jpeg;base64,,", "must be the bytes of a file in base64"),
            ("data:video/jpeg;base64,AAAA", "messages"),
            ("https://a/b.mp4", "only `data:` URLs"),
        ):
            wrong = {"type": "video_url", "video_url": {"url": url}}
            with pytest.raises(openai.BadRequestError, match=told):
                asked(client, {"role": "user", "content": [wrong]})
    given = {"model": "llava", "messages": [message], "max_tokens": 1}
    for pixels, status in ((4 * 27 * 30, 200), (3 * 24 * 30, 413)):
        with limited(task, pixels=pixels) as api:
            assert api.post("/v1/chat/completions", json=given).status_code == status


def test_a_model_of_images_takes_no_videos(client):
    video = {"type": "video_url", "video_url": {"url": "data:video/png;base64,AAAA"}}
    with pytest.raises(openai.BadRequestError, match="'llava' reads images, and no videos"):
        asked(client, {"role": "user", "content": [video]})


def test_small_images_are_not_padded_to_a_large_one_without_bound(tmp_path, monkeypatch):
    vision_chats.qwen(tmp_path, "qwen3_vl")
    task = kt.ImageToText.from_preset(tmp_path)
    a, *_ = vision_chats.pictures()
    small = [url_of(np.full((8, 8, 3), i, "uint8")) for i in range(20)]
    monkeypatch.setattr(row_images, "MOST_PADDED", 20_000)
    with limited(task) as api:
        assert posted(api, url_of(a), *small[:3]).status_code == 200
        refused = posted(api, url_of(a), *small)
        assert posted(api, *small).status_code == 200
    assert refused.status_code == 400 and "21 images are padded to the largest" in refused.text
