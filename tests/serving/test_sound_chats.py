"""Conversations with recordings by OpenAI's client: each answer is what the task gives alone."""

import base64
import io

import numpy as np
import openai
import pytest

import keras_transformer as kt
from keras_transformer.serving import ServedTask, make_api
from tests.serving.conftest import started
from tests.serving.test_hostile import TARGETS, Refusing, files
from tests.serving.test_vision_chats import as_client, limited
from tests.tasks import vision_chats
from tests.tasks.test_gemma4_sound import recording, wav
from tests.tasks.vision_chats import user

pytest.importorskip("torch")
soundfile = pytest.importorskip("soundfile")
pytestmark = pytest.mark.one_backend


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gemma4")
    vision_chats.gemma4(folder, sound=vision_chats.OF_SOUND, num_frames=3)
    return kt.ImageToText.from_preset(folder)


@pytest.fixture(scope="module")
def client(task):
    with started(make_api({"llava": ServedTask(task)})) as port:
        yield openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


def coded(content):
    return base64.b64encode(content).decode()


def part_of(content, kind="wav"):
    return {"type": "input_audio", "input_audio": {"data": coded(content), "format": kind}}


def asked(client, *parts):
    message = as_client(*(part for part in parts if not isinstance(part, dict)))
    content = iter(message["content"])
    message["content"] = [part if isinstance(part, dict) else next(content) for part in parts]
    found = client.chat.completions.create(
        model="llava", messages=[message], max_tokens=5, temperature=0
    )
    return found.choices[0].message.content


def test_answers_are_those_of_the_task(client, task):
    """Beside images, in any order, and with the sound of files of several kinds."""
    a, *_ = vision_chats.pictures()
    heard, other = recording(7777), recording(4000, 2)
    soundfile.write(file := io.BytesIO(), other, 16_000, format="flac")
    flac = file.getvalue()
    for parts in (
        [heard, "which ?"],
        ["a ", flac, a, " b ", heard, flac, " ?"],
    ):
        theirs = [
            part_of(wav(p)) if p is heard else part_of(p, "flac") if p is flac else p for p in parts
        ]
        mine = [
            {"type": "audio", "audio": wav(p) if p is heard else p}
            if isinstance(p, bytes) or p is heard
            else p
            for p in parts
        ]
        assert asked(client, *theirs) == task.chat([user(*mine)], max_new_tokens=5)


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"type": "input_audio"}, "input_audio.data must be the bytes of a file in base64"),
        ({"type": "input_audio", "input_audio": {"data": "???"}}, "must be the bytes of a file"),
        (part_of(b"nothing"), "cannot be read as audio"),
        (part_of(wav(np.zeros(0))), "has no samples|is empty"),
        (part_of(wav(recording(100))), "is too short"),
        (part_of(wav(np.zeros(481_000))), "this model hears at most 30.0"),
        (part_of(wav(np.array([0.5, np.nan] * 200))), "samples that are NaN"),
        (part_of(wav(recording(400), 200)), "Is its rate correct"),
        ({"type": "audio", "audio": "/etc/hosts"}, "neither a text nor an `image_url`"),
        ({"type": "text", "text": "hear <|audio|>"}, "stands for a recording"),
    ],
)
def test_what_is_wrong_is_said(client, part, told):
    with pytest.raises(openai.BadRequestError, match=told):
        asked(client, part, "which ?")


def posted(api, *contents):
    messages = [{"role": "user", "content": list(map(part_of, contents))}]
    given = {"model": "llava", "messages": messages, "max_tokens": 1}
    return api.post("/v1/chat/completions", json=given)


def test_samples_of_a_request_are_bounded_before_they_are_decoded(task):
    """All of its recordings together; and the states that they take."""
    one, other = wav(recording(3000)), wav(recording(2000, 1), 8000)  # 4,000 samples
    with limited(task, samples=7000) as api:
        assert posted(api, one, other).status_code == 200
        refused = posted(api, one, other, one)
        assert refused.status_code == 413
        assert "10,000 samples at 16,000 Hz; the recordings of a request may have" in refused.text
        assert posted(api, wav(recording(7001))).status_code == 413
    with limited(task, tokens=20) as api:
        refused = posted(api, *[one] * 5)
    assert refused.status_code == 400 and "0 images and 5 recordings take 25. " in refused.text


def test_recordings_of_all_requests_hold_bounded_memory(task):
    content = wav(recording(3000))
    with limited(task, held_bytes=60_000) as api:
        for _ in range(3):  # an answered request holds nothing
            assert posted(api, content).status_code == 200
        assert posted(api, content, wav(recording(6000))).status_code == 429


def test_no_recording_opens_a_file_or_a_connection(task):
    with limited(task) as api:
        assert posted(api, wav(recording(400))).status_code == 200
        with Refusing()():
            contents = (*files(), *(target.encode() for target in TARGETS))
            statuses = {posted(api, content).status_code for content in contents}
    assert statuses <= {200, 400}


def test_a_model_of_images_hears_nothing(tmp_path):
    vision_chats.gemma4(tmp_path)
    with limited(kt.ImageToText.from_preset(tmp_path)) as api:
        refused = posted(api, wav(recording(400)))
    assert refused.status_code == 400 and "reads images, and hears no sound" in refused.text


def test_a_model_of_images_of_one_size_and_sound(tmp_path):
    """Its answers are those of the task; each image and recording takes its places."""
    vision_chats.gemma3n(tmp_path)
    task, heard = kt.ImageToText.from_preset(tmp_path), recording(7777)
    image, *_ = vision_chats.pictures(1)
    with started(make_api({"llava": ServedTask(task)})) as port:
        url = f"http://127.0.0.1:{port}/v1"
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
        for mine, theirs in (
            ([{"type": "audio", "audio": wav(heard)}], [part_of(wav(heard))]),
            ([image, {"type": "audio", "audio": wav(heard)}], [image, part_of(wav(heard))]),
            ([image, "a ", image], [image, "a ", image]),
        ):
            answer = asked(client, *theirs, "which ?")
            assert answer == task.chat([user(*mine, "which ?")], max_new_tokens=5)
        alone = kt.models.Seq2Seq(task.backbone.config.of_sound)
        sounds = kt.ImageProcessor(sounds=task.processor.source.sounds)
    with limited(task, tokens=50) as api:
        refused = posted(api, *[wav(heard)] * 3)
    assert refused.status_code == 400 and "0 images and 3 recordings take 60. " in refused.text
    hearing = kt.ImageToText(alone, sounds, task.tokenizer)
    with started(make_api({"llava": ServedTask(hearing)})) as port:
        url = f"http://127.0.0.1:{port}/v1"
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
        with pytest.raises(openai.BadRequestError, match="hears recordings, and sees no images"):
            asked(client, image, "which ?")
