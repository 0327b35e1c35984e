"""Each example runs as a user starts it, on real data and with small settings.

They are forks of a process that has imported the package.
"""

import csv
import json
import re
import signal
import subprocess
import urllib.request
from pathlib import Path

import keras
import pytest
import yaml

import keras_transformer as kt
from tests.examples.conftest import shares

pytestmark = pytest.mark.one_backend


@pytest.fixture(scope="module")
def presets(tmp_path_factory):
    """A folder with one model of each kind; they know nothing, but are fast."""
    keras.utils.set_random_seed(0)  # the same whatever other tests drew before
    folder = tmp_path_factory.mktemp("presets")
    tokenizer = kt.Tokenizer.train(["a man rides a bike ."] * 2, vocabulary_size=300)
    sizes = {"hidden_dim": 16, "num_layers": 1, "num_heads": 2, "intermediate_dim": 32}
    sizes["vocabulary_size"] = tokenizer.vocabulary_size
    encoder = kt.models.Encoder(kt.TransformerConfig(kind="encoder", **sizes))
    kt.TextEmbedder(encoder, tokenizer).save_to_preset(folder / "encoder")
    backbone = kt.models.Seq2Seq(kt.TransformerConfig(kind="seq2seq", **sizes))
    kt.Seq2SeqLM(backbone, tokenizer).save_to_preset(folder / "translator")
    backbone = kt.models.Decoder(kt.TransformerConfig(kind="decoder", **sizes))
    kt.CausalLM(backbone, tokenizer).save_to_preset(folder / "decoder")
    return folder


@pytest.mark.each_backend
def test_demo(run, presets):
    reviews = ["I loved it.", "It was dull."]
    kinds = {"encoder": "encoder", "translator": "translator", "writer": "decoder"}
    models = [f"--{flag}={presets / kind}" for flag, kind in kinds.items()]
    printed = run("demo", *models, "--epochs=1", *reviews)
    (reached,) = shares(re.search(r"right on (.*) of the 250 held-out sentences", printed)[1])
    assert 0.3 < reached < 0.9
    # One line an epoch, nothing written over where there is no terminal, and lines that fit one.
    assert len(re.findall(r"^  epoch 1 of 1  loss .* accuracy [\d.]+%$", printed, re.M)) == 1
    assert printed.count("epoch") == 1 and "\r" not in printed
    for review in reviews:
        assert re.search(rf"  (negative|positive)  +[\d.]+%  {re.escape(review)}\n", printed)
    assert len(re.findall(r"\n  (?:A|Two) .*\.\n    ", printed)) == 4
    assert "  O Romeo," in printed
    assert re.search(r"Done in \d+ s on \w+: .*, 4 translations, one scene\.\n$", printed)


def test_demo_says_a_wrong_preset_before_it_trains(run):
    printed = run("demo", "--translator=transformer_tiny_en_dee", code=1)
    assert "There is no preset 'transformer_tiny_en_dee'" in printed
    assert "Classify" not in printed


def test_classification(run, presets, tmp_path):
    preset = f"--preset={presets / 'encoder'}"
    printed = run("classification", preset, "--train_size=64", "--output=classifier")
    table = printed[printed.index("SST-2, 872 dev sentences") :]
    scratch, tuned = (
        shares(re.search(rf"  {n} +.*", table)[0])[0] for n in ("from scratch", "fine-tuned")
    )
    gain = re.search(r"  gain +([+-][\d.]+)%", table)
    assert 0.4 < scratch < 0.7
    assert 0.4 < tuned < 0.7
    assert float(gain[1]) / 100 == pytest.approx(tuned - scratch, abs=2e-3)
    classifier = kt.TextClassifier.from_preset(tmp_path / "classifier")
    assert classifier.classify(["what a film"])[0][0] in ("negative", "positive")


@pytest.mark.thorough
def test_classification_by_the_mean_of_weights(run, presets, shared_data, tmp_path):
    flags = ["--train_size=256", "--epochs=1", "--learning_rate=0.01", "--adversarial_norm=0.1"]
    flags += ["--runs=3", "--soup", "--pooling=mean", "--noscratch"]
    preset = f"--preset={presets / 'encoder'}"
    printed = run("classification", preset, *flags, "--output=classifier")
    runs = [shares(line)[0] for line in re.findall(r"seed \d: .*", printed)]
    (best,) = shares(re.search(r"3 seeds: best [\d.]+%", printed)[0])
    (together,) = shares(re.search(r"those that help: .*", printed)[0])
    assert len(runs) == 3 and len(set(runs)) > 1
    assert together >= best == max(runs)
    classifier = kt.TextClassifier.from_preset(tmp_path / "classifier")
    assert classifier.pooling == "mean"
    dev = kt.data.read(shared_data / "sst2" / "dev.tsv", x=0, y=1)
    found = classifier.evaluate(dev, verbose=0)[1]
    assert found == pytest.approx(together, abs=2e-3)


def test_language_model(run, tmp_path):
    sizes = ["--train_size=30000", "--epochs=2", "--window=32", "--layers=1", "--width=64"]
    flags = [*sizes, "--vocabulary_size=300", "--work_dir=work", "--output=model"]
    printed = run("language_model", *flags)
    assert "Before the training:" in printed
    assert printed.count("ROMEO:\n  O") == 2
    losses = re.search(
        r"before ([\d.]+) +after ([\d.]+) +average of 10 checkpoints ([\d.]+)", printed
    )
    before, after, average = map(float, losses.groups())
    assert max(after, average) < before - 0.3
    # A vocabulary of mostly bytes: about one nat of five and a half to a character.
    assert 4 < before < 6

    lm = kt.CausalLM.from_preset(tmp_path / "model")
    assert lm.generate("ROMEO:", max_new_tokens=2)
    saved = json.loads((tmp_path / "model" / "config.json").read_text())["metadata"]
    assert saved["validation_nats_per_character"] == average

    again = run("language_model", *flags)  # All is done: nothing is trained again.
    assert "Epoch 1/2" not in again and f"checkpoints {average:.3f}" in again
    printed = run("language_model", *flags, "--dropout=0.3", code=1)
    assert "was started with --dropout=0.1" in printed


def test_generate(run, presets):
    options = [f"--preset={presets / 'decoder'}", "--prompt=a man", "--max_new_tokens=8"]
    printed = run("generate", *options, "--temperature=0")
    text = kt.CausalLM.from_preset(presets / "decoder").generate("a man", max_new_tokens=8)
    assert f"a man{text}\n[" in printed
    count, seconds, first = re.search(
        r"\[(\d+) tokens in ([\d.]+) s, .* ([\d.]+) s", printed
    ).groups()
    assert int(count) > 0 and float(first) <= float(seconds) + 0.1
    drawn = [run("generate", *options, "--seed=3").split("\na man")[1] for _ in range(2)]
    drawn = [text[: text.rindex("\n[")] for text in drawn]
    assert drawn[0] == drawn[1]


def test_translate_file(start, run, tmp_path):
    """Killed after its first part, it goes on, and gives what one run gives."""
    lines = ["a man rides a bike .", "", "two dogs run .", "a woman sings .", "a red car ."]
    # As some editors write it, with a mark at the start and line ends of Windows.
    (tmp_path / "in.txt").write_text("\r\n".join(lines) + "\r\n", encoding="utf-8-sig", newline="")
    options = ["--input=in.txt", "--part=1", "--beams=2", "--max_new_tokens=12"]
    process = start("translate_file", *options, "--output=killed.txt")
    journal = tmp_path / "killed.txt.part"
    while process.poll() is None:
        if journal.is_file() and journal.read_text(encoding="utf-8").count("\n[") >= 1:
            process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL and not (tmp_path / "killed.txt").exists()
    done = journal.read_text(encoding="utf-8").count("\n[")
    printed = run("translate_file", *options, "--output=killed.txt")
    assert f"{done} of 5 lines are done already" in printed
    run("translate_file", *options, "--output=whole.txt")
    whole = (tmp_path / "whole.txt").read_text(encoding="utf-8")
    assert (tmp_path / "killed.txt").read_text(encoding="utf-8") == whole
    translated = whole.split("\n")
    assert len(translated) == 6 and translated[1] == "" and "mann" in translated[0]
    assert not journal.exists()
    journal.write_text("of another run\n", encoding="utf-8")
    refused = run("translate_file", *options, "--output=killed.txt", code=1)
    assert "is of another input, model or setting. Remove it" in refused


def test_custom_model(run):
    printed = run("custom_model", "--train_size=300", "--epochs=1")
    assert 0.4 < shares(re.search(r"accuracy on 872 dev sentences: .*", printed)[0])[0] <= 1
    assert len(re.findall(r"  positive with +[\d.]+%  ", printed)) == 3


def test_semantic_search(run, presets):
    flags = [f"--preset={presets / 'encoder'}", "--cache=vectors", "--top_k=3"]
    sentence = "A little girl climbing into a wooden playhouse."  # the third of Multi30k
    printed = run("semantic_search", *flags, "--size=60", sentence, "two dogs")
    assert "60 sentences in " in printed
    assert f"\n{sentence}\n   1.000  {sentence}\n" in printed
    cosines = [float(cosine) for cosine in re.findall(r"\n +(-?\d\.\d{3})  ", printed)]
    assert cosines == [*sorted(cosines[:3], reverse=True), *sorted(cosines[3:], reverse=True)]
    assert len(cosines) == 6

    again = run("semantic_search", *flags, "--size=60", sentence, "two dogs")
    assert "The vectors of 60 sentences are read from vectors." in again
    assert neighbours(again) == neighbours(printed)
    other = run("semantic_search", *flags, "--size=50", sentence)
    assert "holds the vectors of other sentences" in other


def neighbours(printed):
    return re.findall(r"\n +-?\d\.\d{3}  .*", printed)


def test_semantic_search_in_a_file(run, presets, tmp_path):
    lines = ["The rent is due on Monday.", "", "  Our cat sleeps.  ", "The stock fell again."]
    (tmp_path / "notes.txt").write_text("\n".join(lines), encoding="utf-8")
    flags = [f"--preset={presets / 'encoder'}", "--file=notes.txt"]
    printed = run("semantic_search", *flags, "Our cat sleeps.")
    assert "\nOur cat sleeps.\n   1.000  Our cat sleeps.\n" in printed
    assert len(neighbours(printed)) == 3


def test_train_embedder(run, presets, tmp_path):
    flags = ["--train_size=40", "--batch_size=20", "--held_out=val"]
    preset = f"--preset={presets / 'encoder'}"
    printed = run("train_embedder", preset, *flags, "--matryoshka_dims=8", "--output=embedder")
    assert "Multi30k, de to en, 1,014 images of val; 40 pairs, 1 epoch(s) in " in printed
    rows = re.findall(r"\n  (before|after|after, 8 numbers) +([\d.]+)% +([\d.]+)", printed)
    assert [name for name, *_ in rows] == ["before", "after", "after, 8 numbers"]
    assert all(0 <= float(recall) < 30 and 0 < float(mrr) < 0.4 for _, recall, mrr in rows)
    vectors = kt.TextEmbedder.from_preset(tmp_path / "embedder").predict(["a dog"], verbose=0)
    assert vectors.shape == (1, 16)


def test_long_documents(run, tmp_path):
    sizes = ["--train_size=40", "--short_size=80", "--test_size=20", "--layers=1", "--width=32"]
    small = [*sizes, "--shortest=200", "--longest=300", "--window=9", "--batch_size=20"]
    printed = run("long_documents", *small, "--output=listops")
    rows = re.findall(r"\n  (window, 8 on each side|full) +([\d.]+)% +([\d,]+) +([\d,]+)", printed)
    assert [name for name, *_ in rows] == ["window, 8 on each side", "full"]
    assert all(0 <= float(accuracy) <= 60 for _, accuracy, *_ in rows)
    assert "20 test texts, 40 to train on" in printed and "Longformer" in printed
    classifier = kt.TextClassifier.from_preset(tmp_path / "listops")
    assert classifier.predict(["[MAX 2 9 ]"], verbose=0).shape == (1, 10)


# On the others the thorough run starts it; what it calls is tested there in `tests/distribution`.
@pytest.mark.thorough
def test_train_distributed(run, backend, tmp_path):
    """Two devices, or processes: the curve of one device."""
    sizes = ["--steps=3", "--batch_size=8", "--hidden_dim=16", "--num_layers=1"]
    flags = ["--data=2"] if backend == "tensorflow" else ["--model=2", "--data=1"]
    printed = run("train_distributed", *flags, *sizes, "--output=model")
    assert "They are the same." in printed
    rows = re.findall(r"  step \d+ +([\d.]+) +([\d.]+)\n", printed)
    assert len(rows) == 3 and float(rows[2][0]) < float(rows[0][0])
    one, share = (
        int(number.replace(",", ""))
        for number in re.search(r"bytes a device +([\d,]+) +([\d,]+)\n", printed).groups()
    )
    assert share == one if backend == "tensorflow" else one / 2 <= share < one * 0.55
    assert kt.CausalLM.from_preset(tmp_path / "model").generate("ROMEO:", max_new_tokens=1)


@pytest.mark.thorough
@pytest.mark.one_backend("jax")
def test_train_distributed_says_what_does_not_go(run):
    printed = run("train_distributed", "--data=3", "--processes=2", code=1)
    assert "--processes=2 must divide the 3 devices" in printed


def test_named_entities(run, presets, tmp_path):
    text = "I met Romeo in Verona."
    sizes = ("--train_size=64", "--test_size=40", "--epochs=1")
    encoder = f"--encoder={presets / 'encoder'}"
    printed = run("named_entities", encoder, *sizes, "--output=recognizer", text)
    table = printed[printed.index("precision") :]
    names = {
        row: int(re.search(rf"  {row} +(\d+) +[\d.]+% +[\d.]+% +[\d.]+%\n", table)[1])
        for row in ("all", "persons", "places", "seen in the training", "never seen")
    }
    assert names["all"] == names["persons"] + names["places"]
    assert names["all"] == names["seen in the training"] + names["never seen"]
    assert names["never seen"] > 0

    recognizer = kt.TokenClassifier.from_preset(tmp_path / "recognizer")
    assert recognizer.labels == ["O", "B-person", "I-person", "B-place", "I-place"]
    printed = run("named_entities", "--preset=recognizer", text)
    found = re.findall(r"\n +(\d+)-(\d+) +(\S+) +[\d.]+%  (.*)", printed)
    assert [(int(start), int(end), label, name) for start, end, label, name in found] == [
        (entity.start, entity.end, entity.label, entity.text)
        for entity in recognizer.recognize(text)
    ]


def test_question_answering(run, presets):
    sizes = ("--train_size=48", "--test_size=8", "--epochs=1")
    encoder = f"--encoder={presets / 'encoder'}"
    printed = run("question_answering", encoder, *sizes, "--output=answerer")
    assert printed.count("  -> ") == 6 and printed.count("Who says") == 4
    assert printed.count("  What does ") == 4
    for title in (r'Who says "\.\.\."\?', r"What does \.\.\. say first\?"):
        before, after = shares(re.search(rf"  {title} +[\d.]+% +[\d.]+%", printed)[0])
        assert {before, after} <= {0, 0.25, 0.5, 0.75, 1}

    asked = ["question_answering", "--preset=answerer"]
    printed = run(*asked, "--question=Who sailed?")
    assert "Fitz Roy" in printed and printed.count("  -> ") == 1
    context = "ROMEO: Courage, man. MERCUTIO: No."
    printed = run(*asked, "--question=Who says no?", f"--context={context}")
    assert re.search(r"  Who says no\?\n  -> (.+?)  \([\d.]+%\)\n", printed)[1] in context


@pytest.mark.backend_independent
def test_question_answering_says_what_is_missing(run):
    printed = run("question_answering", "--question=Who sailed?", code=1)
    assert "--question needs a --preset" in printed
    printed = run("question_answering", "--preset=answerer", "--context=Anna sailed.", code=1)
    assert "--context needs a --question" in printed


@pytest.mark.thorough
def test_translation_killed_and_started_again(start, run, tmp_path):
    flags = [
        "--train_pairs=150",
        "--eval_pairs=3",
        "--vocabulary_size=400",
        "--batch_tokens=8192",
        "--warmup_steps=4",
        "--epochs=3",
        "--bleu_every=3",
        "--work_dir=work",
        "--output=translator",
    ]
    process = start("translation", *flags)
    for line in process.stdout:
        if line.startswith("Epoch 2/3"):
            process.kill()
            break
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert [row["epoch"] for row in log(tmp_path)] == ["0"]
    assert not (tmp_path / "translator").exists()

    printed = run("translation", *flags)
    assert "Epoch 1/3" not in printed
    assert "Epoch 2/3\n" in printed
    assert [row["epoch"] for row in log(tmp_path)] == ["0", "1", "2"]
    assert all(float(row["tokens_per_second"]) > 0 for row in log(tmp_path))
    checkpoints = sorted(path.name for path in (tmp_path / "work" / "checkpoints").iterdir())
    assert len(checkpoints) == 3
    assert re.search(
        r"test_2016, beam 5: BLEU [\d.]+ \(nrefs:1\|case:mixed\|eff:no\|tok:none", printed
    )
    assert len(re.findall(r"\n  source     .*\n  reference  .*\n  model  ", printed)) >= 6

    recipe = json.loads((tmp_path / "translator" / "recipe.json").read_text())
    assert (recipe["source"], recipe["target"], recipe["epochs"]) == ("en", "de", 3)
    translator = kt.Seq2SeqLM.from_preset(tmp_path / "translator")
    assert isinstance(translator.generate("a man .", max_new_tokens=2), str)

    printed = run("translation", *flags, "--dropout=0.1", code=1)
    assert "was started with --dropout=0.3" in printed


def log(folder):
    with open(folder / "work" / "log.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.thorough
def test_assistant(start, tmp_path, shared_data):
    """The mechanics of each stage: so small a decoder learns nothing in a few steps."""
    text = (Path(shared_data) / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8")
    (tmp_path / "plays.txt").write_text(text[:100_000], encoding="utf-8")
    process = start(
        "assistant", "--size=nano", "--text=plays.txt", "--output=made", "--serve", "--port=0"
    )
    printed = ""
    for line in process.stdout:
        printed += line
        if line.startswith("Serving "):
            break
    address = re.search(r"Serving preset on (\S+)", printed)
    assert address, printed + (tmp_path / "stderr.txt").read_text()
    asked = [{"role": "user", "content": "Say water twice."}]
    request = urllib.request.Request(
        f"{address[1]}/api/preset/chat",
        json.dumps({"messages": asked, "temperature": 0, "max_new_tokens": 8}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        (said,) = json.load(answer)["texts"]
    process.kill()
    process.communicate()
    assert "of which the loss counts" in printed and "assistant  " in printed
    report = (tmp_path / "made" / "report.md").read_text(encoding="utf-8")
    assert report in printed
    assert "| | reads | answers | is brief | is reinforced |" in report
    for name in ("bits a byte of text", "facts", "sums", "repeating", "words", "minutes"):
        (row,) = re.findall(rf"^\| {name} \|(.*)\|$", report, re.M)
        assert len([cell for cell in row.split("|") if cell.strip()]) == 4
    made = kt.CausalLM.from_preset(tmp_path / "made" / "preset")
    exported = kt.CausalLM.from_preset(tmp_path / "made" / "huggingface")
    assert said == made.chat(asked, max_new_tokens=8, sampler="greedy")
    chat = made.tokenizer.encode_chat(asked)
    assert chat == exported.tokenizer.encode_chat(asked)
    scores = [lm.score([chat])[0] for lm in (made, exported)]
    assert abs(scores[0] - scores[1]) <= 0.01 * abs(scores[0])  # float16 and float32


@pytest.mark.thorough
def test_reinforce_arithmetic(run, tmp_path):
    """The mechanics: so small a decoder learns little in a few steps."""
    flags = ["--size=tiny", "--every=2", "--supervised=0.01", "--work_dir=work"]
    printed = run("reinforce_arithmetic", *flags)
    steps = re.findall(r"step +(\d+)  accuracy [\d.]+%", printed)
    assert steps == ["0", "2", "4"]
    assert re.search(r"seed 0: [\d.]+% to [\d.]+% of 200 held-out problems", printed)
    assert re.search(r"% of the \d+ of them without a learned twin", printed)
    assert (tmp_path / "reinforce_arithmetic.png").stat().st_size > 1000
    with (tmp_path / "work" / "seed_0" / "curve.csv").open(newline="") as file:
        assert [row["step"] for row in csv.DictReader(file)] == steps
    again = run("reinforce_arithmetic", *flags)  # all is done
    assert "step" not in again and "seed 0:" in again
    printed = run("reinforce_arithmetic", *flags[1:], code=1)
    assert "was started with --size=tiny" in printed


@pytest.mark.backend_independent
def test_files_of_clusters():
    """They set what the script reads, and are well formed."""
    folder = Path(__file__).parents[2] / "examples" / "clusters"
    subprocess.run(["bash", "-n", folder / "slurm.sh"], check=True)
    (worker,) = yaml.safe_load((folder / "jobset.yaml").read_text())["spec"]["replicatedJobs"]
    pod = worker["template"]["spec"]["template"]["spec"]["containers"][0]
    sets = {each["name"] for each in pod["env"]} | {"RANK"}
    assert sets == {"KERAS_BACKEND", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    assert "export RANK=$JOB_COMPLETION_INDEX" in pod["args"][0]
    script = (folder / "slurm.sh").read_text()
    assert all(f"{name}=" in script for name in sets)
