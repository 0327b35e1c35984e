"""`keras-transformer explain`."""

import numpy as np
import pytest
from PIL import Image

import keras_transformer as kt
from tests.tasks import images

pytestmark = pytest.mark.one_backend


def test_a_table_a_page_and_a_picture(run, folder, tmp_path):
    page, picture = tmp_path / "page.html", tmp_path / "heads.png"
    code, out, errors = run(
        "explain", folder / "classifier", "a man rides", "--html", page, "--plot", picture,
        "--saliency", "integrated_gradients", "--target", "warm",
    )  # fmt: skip
    assert (code, errors) == (0, "")
    task = kt.TextClassifier.from_preset(folder / "classifier")
    expected = task.explain("a man rides", saliency="integrated_gradients", target="warm")
    assert out == f"{expected}\n" and "the logit of 'warm'" in out
    assert page.read_text("utf-8") == expected.to_html()
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_translation_in_the_form_of_the_preset(run, folder):
    code, out, _ = run("explain", folder / "words", "A man.", "--output", "Two dogs.")
    assert code == 0 and "'two dogs .'" in out and "Cross-attention" in out
    code, out, _ = run("explain", folder / "lm", "a man", "--output", "rides", "--target", "3",
                       "--saliency", "gradient_x_input", "--position", "-1")  # fmt: skip
    assert code == 0 and "attributions of the logit of" in out


def test_an_image(run, tmp_path):
    images.classifier().save_to_preset(tmp_path / "images")
    Image.fromarray(np.zeros((12, 16, 3), "uint8")).save(tmp_path / "image.png")
    code, out, _ = run("explain", tmp_path / "images", tmp_path / "image.png")
    assert code == 0 and "0,1" in out


def test_a_pair(run, folder):
    code, out, _ = run("explain", folder / "answerer", "who rides ?", "--pair", "a man rides .")
    assert code == 0 and out.startswith("QuestionAnswerer")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["classifier", "a", "--output", "b"], "--output is for models that generate"),
        (["words", "a", "--pair", "b"], "--pair is for models that read two texts"),
        (["classifier", "a", "--target", "1"], "are for attributions"),
        (["lm", "a", "--plot", "x.png", "--picture", "heads", "--head", "1"], "--head is for"),
        (["lm", "a", "--plot", "x.png", "--picture", "layers", "--layer", "1"], "--layer is for"),
        (["lm", "a", "--layer", "x"], "must be an integer, received 'x'"),
    ],
)
def test_mistakes(run, folder, arguments, said):
    preset, *rest = arguments
    code, _, errors = run("explain", folder / preset, *rest)
    assert code == 2 and said in errors
