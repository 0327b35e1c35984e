"""The sub-commands that ask an encoder: classify, embed, fill-mask, recognize, answer."""

import json

import numpy as np
import pytest
from PIL import Image

import keras_transformer as kt
from tests.cli.conftest import LINES, asked
from tests.tasks import duals, images

pytestmark = pytest.mark.one_backend


def test_classify(run, folder):
    forms = ("text", "tsv", "json")
    text, columns, values = asked(run, folder, "classify", "classifier", forms=forms)
    task = kt.TextClassifier.from_preset(folder / "classifier")
    for i in (0, 2, 4):
        logits = task.predict([LINES[i]], verbose=0)[0].astype("float64")
        shares = np.exp(logits) / np.exp(logits).sum()
        found = values[i]["classes"]
        assert {row["label"]: row["probability"] for row in found} == pytest.approx(
            dict(zip(task.labels, shares, strict=True)), abs=1e-5
        )
        assert [row["probability"] for row in found] == pytest.approx(
            sorted(shares)[::-1], abs=1e-5
        )
        assert columns[i][::2] == [row["label"] for row in found]
        assert [float(cell) for cell in columns[i][1::2]] == pytest.approx(
            [row["probability"] for row in found], rel=1e-6
        )
        assert columns[i][0] == task.classify([LINES[i]])[0][0]
        assert text[i].split() == [columns[i][0], f"{shares.max():.3f}", *LINES[i].split()]
    alone = run("classify", "--preset", folder / "classifier", LINES[0], LINES[2])[1]
    assert alone.splitlines() == [text[0], text[2]]


def test_classify_pairs(run, folder):
    line = "a man\ttwo dogs"
    code, out, _ = run(
        "classify", "--preset", folder / "classifier", "--pairs", "--format", "tsv", line
    )
    task = kt.TextClassifier.from_preset(folder / "classifier")
    (label, share), *_ = task.classify((["a man"], ["two dogs"]))
    assert code == 0 and out.split("\t")[0] == label
    assert float(out.split("\t")[1]) == pytest.approx(share, rel=1e-4)
    code, _, error = run("classify", "--preset", folder / "classifier", "--pairs", "a man")
    assert code == 2 and "two texts, with one tab between them, received 'a man'" in error


def test_embed(run, folder):
    columns, values = asked(run, folder, "embed", "embedder")
    task = kt.TextEmbedder.from_preset(folder / "embedder")
    for i in (0, 2, 4):
        vector = task.predict([LINES[i]], verbose=0)[0]
        assert values[i]["vector"] == pytest.approx(vector.tolist(), abs=1e-5)
        assert [float(cell) for cell in columns[i]] == values[i]["vector"]
    assert values[1] == {"text": ""}


def test_fill_mask(run, folder):
    lines = ["a man rides a [MASK] .", "", "two [MASK] are [MASK] ."]
    columns, values = asked(run, folder, "fill-mask", "masked", "--top-k", 2, lines=lines)
    task = kt.MaskedLM.from_preset(folder / "masked")
    expected = [task.fill_mask(lines[0], top_k=2), *task.fill_mask(lines[2], top_k=2)]
    found = [row for value in values for row in value["fillings"]]
    assert [row["token"] for row in found] == [f.token for each in expected for f in each]
    assert [row["text"] for row in found] == [f.text for each in expected for f in each]
    assert [row["mask"] for row in found] == [1, 1, 1, 1, 2, 2]
    assert columns[0][1] == expected[0][0].token and len(columns[2]) == 16


def test_recognize(run, folder):
    lines = ["a man", "", "two dogs are playing"]
    task = kt.TokenClassifier.from_preset(folder / "tagger")
    _, out, _ = run(
        "recognize", "--preset", folder / "tagger", "--format", "json", stdin="\n".join(lines)
    )
    for line, row in zip(lines, out.splitlines(), strict=True):
        found = [e._asdict() for e in task.recognize(line)] if line else []
        kept = json.loads(row)["entities"]
        assert [{**e, "score": 0} for e in kept] == [{**e, "score": 0} for e in found]
        assert [e["score"] for e in kept] == pytest.approx([e["score"] for e in found], abs=1e-5)
        assert all(line[e["start"] : e["end"]] == e["text"] for e in kept)


def test_answer(run, folder, tmp_path):
    context = "a man rides a bike . two dogs\nare playing ."
    (tmp_path / "story.txt").write_text("\ufeff" + context, encoding="utf-8")
    lines = ["who rides ?", "", "who is playing ?"]
    task = kt.QuestionAnswerer.from_preset(folder / "answerer")
    expected = [task.answer(line, context, top_k=2) for line in lines if line]
    given = ("--context-file", tmp_path / "story.txt", "--top-k", 2)
    columns, values = asked(run, folder, "answer", "answerer", *given, lines=lines)
    for i, answers in ((0, expected[0]), (2, expected[1])):
        assert [a["text"] for a in values[i]["answers"]] == [a.text for a in answers]
        assert columns[i][0] == answers[0].text.replace("\n", "\\n")
    flat = context.replace("\n", " ")
    code, out, _ = run("answer", "--preset", folder / "answerer", stdin=f"{lines[0]}\t{flat}\n")
    assert (code, out) == (0, task.answer(lines[0], flat).text + "\n")
    code, _, error = run("answer", "--preset", folder / "answerer", "who ?")
    assert code == 2 and "a question and its context" in error
    (tmp_path / "wide.txt").write_bytes("a man".encode("utf-16"))
    code, _, error = run("answer", "--preset", "x", "--context-file", tmp_path / "wide.txt", "?")
    assert code == 2 and "wide.txt is not UTF-8" in error and "iconv" in error
    code, _, error = run("answer", "--preset", "x", "--context-file", "/no/file", "who ?")
    assert code == 2 and "/no/file" in error


def test_classify_images(run, folder, tmp_path):
    """Paths in the place of texts; the error for a file that is not an image names its line."""
    task = images.classifier()
    task.save_to_preset(tmp_path / "preset")
    paths = []
    for i, picture in enumerate(images.pictures(3)[0]):
        paths.append(str(tmp_path / f"{i}.png"))
        Image.fromarray(picture).save(paths[-1])
    preset = ("classify", "--preset", tmp_path / "preset")
    code, out, error = run(*preset, *paths)
    expected = task.classify(paths)
    assert code == 0 and "read as a text" not in error
    assert [line.split() for line in out.splitlines()] == [
        [label, f"{share:.3f}", path] for (label, share), path in zip(expected, paths, strict=True)
    ]
    code, _, error = run(*preset, stdin=f"{paths[0]}\n\n{tmp_path}/missing.png\n")
    assert code == 2 and "line 3 (`x`): there is no file" in error
    code, _, error = run(*preset, "--pairs", paths[0])
    assert code == 2 and "--pairs is for texts, but the preset classifies images" in error


@pytest.fixture(scope="module")
def of_pairs(tmp_path_factory):
    """A model of images and texts, its folder, and paths of images."""
    place = tmp_path_factory.mktemp("pairs")
    task = duals.embedder()
    task.save_to_preset(place / "preset")
    paths = []
    for i, picture in enumerate(images.pictures(2)[0]):
        paths.append(str(place / f"{i}.png"))
        Image.fromarray(picture).save(paths[-1])
    return task, place / "preset", paths


def test_classify_by_any_labels(run, of_pairs):
    task, preset, paths = of_pairs
    preset = ("classify", "--preset", preset)
    code, out, _ = run(*preset, "--labels", "dark, bright,", "--format", "json", *paths)
    expected = task.classify(paths, duals.LABELS, top_k=2)
    assert code == 0
    for line, row in zip(out.splitlines(), expected, strict=True):
        found = {each["label"]: each["probability"] for each in json.loads(line)["classes"]}
        assert found == pytest.approx(dict(row), abs=1e-5)
    code, out, _ = run(*preset, "--labels", "dark,bright", "--template", "{}", paths[0])
    label, share = task.classify(paths[0], duals.LABELS, template="{}")
    assert code == 0 and out.split() == [label, f"{share:.3f}", paths[0]]
    for options, message in (
        (("--labels", " ,"), "--labels has no label"),
        (("--labels", "dark,dark"), "'dark' twice"),
        (("--labels", "dark", "--template", "photo"), "must have {} where the label goes"),
        (("--labels", "dark", "--pairs"), "--pairs is for texts, but the preset classifies images"),
        ((), "is a ImageEmbedder, not a TextClassifier"),
    ):
        code, _, error = run(*preset, *options, paths[0])
        assert code == 2 and message in error


def test_embed_images_and_texts(run, of_pairs, folder):
    task, preset, paths = of_pairs
    code, out, error = run("embed", "--preset", preset, "--format", "json", *paths)
    assert code == 0 and "read as a text" not in error
    for line, vector in zip(out.splitlines(), task.encode(paths), strict=True):
        assert json.loads(line)["vector"] == pytest.approx(vector.tolist(), abs=1e-5)
    code, out, _ = run("embed", "--preset", preset, "--as-texts", "--format", "json", "a photo")
    expected = task.encode_texts("a photo").tolist()
    assert code == 0 and json.loads(out)["vector"] == pytest.approx(expected, abs=1e-5)
    code, _, error = run("embed", "--preset", folder / "embedder", "--as-texts", "a photo")
    assert code == 2 and "--as-texts is for models of images and texts" in error
