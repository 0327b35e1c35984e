"""`evaluate_texts`: the numbers of other packages for what a task writes."""

import importlib.metadata
import json

import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer

import keras_transformer as kt
from keras_transformer.checkpoints import presets_folder
from keras_transformer.evaluating import evaluate_texts
from keras_transformer.training import ROUGE

pytestmark = pytest.mark.one_backend

SOURCES = ["a man rides a bike .", "two dogs run in the snow .", "a woman sings ."]
REFERENCES = ["ein mann fährt ein fahrrad .", "Zwei hunde rennen .", "eine frau singt ."]
RECORDINGS = presets_folder().parent / "examples" / "data" / "audio"


@pytest.fixture(scope="module")
def translator():
    return kt.Seq2SeqLM.from_preset("transformer_tiny_en_de")


def test_the_numbers_of_the_packages(translator, capsys):
    names = ["rouge1", "rouge2", "rougeL", "rougeLsum", "bleu", "chrf", "chrf++", "exact_match"]
    scores = evaluate_texts(translator, SOURCES, REFERENCES, metrics=names, batch_size=2)
    texts = scores.results["texts"]
    assert texts == translator.generate(SOURCES) and scores.results["references"] == REFERENCES
    found = scores.numbers["texts"]
    scorer = RougeScorer(names[:4])
    each = [scorer.score(r, t) for r, t in zip(REFERENCES, texts, strict=True)]
    for kind in names[:4]:
        mean = sum(one[kind].fmeasure for one in each) / len(each)
        assert found[kind] == pytest.approx(mean, abs=1e-12)
    theirs = {
        "bleu": sacrebleu.corpus_bleu(texts, [REFERENCES]),
        "chrf": sacrebleu.corpus_chrf(texts, [REFERENCES]),
        "chrf++": sacrebleu.corpus_chrf(texts, [REFERENCES], word_order=2),
    }
    for name, their in theirs.items():
        assert found[name] == pytest.approx(their.score, abs=1e-12)
    same = [r == t for r, t in zip(REFERENCES, texts, strict=True)]
    assert found["exact_match"] == sum(same) / 3
    assert f"sacrebleu {sacrebleu.__version__}" in scores.harness
    assert importlib.metadata.version("rouge-score") in scores.harness
    assert "tok:13a" in scores.settings["bleu"] and "nw:2" in scores.settings["chrf++"]
    assert str(scores) in capsys.readouterr().out


def test_a_file(translator, tmp_path):
    several = [REFERENCES[0], [REFERENCES[1], "zwei hunde laufen im schnee ."], REFERENCES[2]]
    rows = [{"en": a, "de": b} for a, b in zip(SOURCES, several, strict=True)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    records = kt.data.read(tmp_path / "pairs.jsonl", x="en", y="de")
    metrics = {"stems": ROUGE("rouge1", stemmer=True)}
    found = evaluate_texts(translator, records, metrics=metrics, verbose=False, max_new_tokens=5)
    again = evaluate_texts(translator, SOURCES, several, metrics=metrics, verbose=False,
                           max_new_tokens=5)  # fmt: skip
    assert found.numbers["pairs.jsonl"] == again.numbers["texts"]
    assert found.rows[0].metric == "stems" and found.settings["max_new_tokens"] == 5
    with pytest.raises(ValueError, match="same number of references"):
        evaluate_texts(translator, records, metrics=["chrf"])
    with pytest.raises(ValueError, match="y the references"):
        evaluate_texts(translator, kt.data.read(tmp_path / "pairs.jsonl", x="en"), metrics=["wer"])


def test_recordings(tmp_path):
    """Paths in a file are relative to it. Of two words one is misheard, one is not there."""
    names = ("seven_jackson.wav", "three_one_four_one_five.wav", "three_theo.wav")
    rows = zip(names, ("Seven!", "three one four one five", "three three"), strict=True)
    for name in names:
        (tmp_path / name).symlink_to(RECORDINGS / name)
    (tmp_path / "digits.csv").write_text("file,words\n" + "".join(f"{a},{b}\n" for a, b in rows))
    records = kt.data.read(tmp_path / "digits.csv", x="file", y="words")
    scores = evaluate_texts(
        "speech_digits_to_text", records, metrics=["wer", "cer"],
        ignore=("case", "punctuation"), verbose=False,
    )  # fmt: skip
    assert scores.results["texts"] == ["seven", "six one four one five", "three"]
    assert scores.numbers["digits.csv"] == {"wer": 2 / 8, "cer": (5 + 6) / 39}
    assert not any(row.higher_is_better for row in scores.rows)


def test_questions_about_images():
    task = kt.ImageToText.from_preset("vqa_shapes")
    shapes = sorted((RECORDINGS.parent / "shapes").glob("*.png"))[:2]
    questions = ["What color is the circle?"] * len(shapes)
    scores = evaluate_texts(task, (shapes, questions), ["red", "blue"], metrics=["exact_match"],
                            verbose=False)  # fmt: skip
    assert scores.results["texts"] == task.generate(shapes, questions)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"references": REFERENCES[:2]}, "Received 3 sources and 2 references"),
        ({"references": None}, "Give `references`"),
        ({"references": [1, 2, 3]}, r"`references\[0\]`"),
        ({"metrics": "wer"}, "`metrics` must be a list"),
        ({"metrics": []}, "`metrics` is empty"),
        ({"metrics": ["rouge0"]}, r"`metrics\[0\]` must be one of 'bleu'"),
        ({"metrics": {"wer": "wer"}}, r"`metrics\['wer'\]`"),
        ({"metrics": ["bleu"], "ignore": ["case"]}, "`ignore` only applies"),
        ({"sources": "a man"}, "`sources`"),
        ({"model": 5}, "tasks that write texts"),
    ],
)
def test_errors(translator, given, told):
    usual = {"model": translator, "sources": SOURCES, "references": REFERENCES, "metrics": ["wer"]}
    with pytest.raises(ValueError, match=told):
        evaluate_texts(**{**usual, **given})


def test_a_task_that_writes_nothing():
    with pytest.raises(ValueError, match=r"tasks that write texts.*TextEmbedder"):
        evaluate_texts("minilm_l6_en", SOURCES, REFERENCES, metrics=["wer"])
