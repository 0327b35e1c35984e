"""`keras-transformer profile`."""

import gzip
import json
import re
from pathlib import Path

import pytest

from keras_transformer.kernels.profiling import Operation
from keras_transformer.optimizing.profiling import Profile

SIZES = ("--batch-size", "2", "--length", "4", "--steps", "2")


def profiled(run, *arguments, trace):
    """The lines of the table, and the trace."""
    code, out, errors = run("profile", *arguments, *SIZES, "--trace", trace)
    assert code == 0, errors
    head, rate, _, titles, *lines, _, last = out.splitlines()
    assert titles.split()[-1] == "operation" and re.match(r"[\d.e+]+ (step|token)s/s, ", rate)
    assert 1 <= len(lines) <= 10
    times = [float(line.split()[0]) for line in lines]
    assert times == sorted(times, reverse=True)
    assert 0 < sum(float(line.split()[1][:-1]) for line in lines) < 101
    file = Path(last.removeprefix("trace: "))
    assert trace in file.parents
    return head, lines, file


def test_a_fit(run, folder, tmp_path, backend):
    head, lines, file = profiled(run, folder / "classifier", trace=tmp_path)
    assert head.endswith(f"fit: {backend} on cpu, 2 rows")
    if backend == "torch":
        counts = {line.split()[-1]: float(line.split()[2]) for line in lines}
        assert counts.get("aten::mm", 1) >= 1
        assert json.loads(file.read_text())["traceEvents"]
    elif backend == "jax":
        assert json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    else:
        assert file.name.endswith(".xplane.pb") and file.stat().st_size


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "what, preset",
    [("predict", "masked"), ("encode", "embedder"), ("generate", "lm")],
)
def test_other_work(run, folder, tmp_path, what, preset):
    head, _, _ = profiled(run, folder / preset, "--what", what, trace=tmp_path / "new")
    assert f", {what}: " in head


@pytest.mark.one_backend
@pytest.mark.parametrize("preset", ["tagger", "answerer", "masked", "embedder", "lm", "plain"])
def test_each_task_learns_from_random_data(folder, preset):
    import keras_transformer as kt
    from keras_transformer.optimizing.profiling import steps_of

    task = kt.Task.from_preset(folder / preset, load_weights=False)
    steps_of(task, "fit", 2, 4, 1)(1)
    assert int(task.optimizer.iterations) == 1


@pytest.mark.one_backend
def test_errors_come_first(run, folder, tmp_path):
    def error(*arguments, trace=tmp_path):
        code, out, errors = run("profile", *arguments, "--trace", trace)
        assert (code, out) == (2, "")
        return errors

    assert "minilm_l6_en" in error("minilm_l6")
    assert "512" in error("minilm_l6_en", "--length", "513")
    assert "does not generate" in error(folder / "tagger", "--what", "generate")
    assert "invalid choice" in error(folder / "lm", "--what", "train")
    file = tmp_path / "file"
    file.write_text("")
    assert "is a file" in error(folder / "lm", trace=file)
    assert "could not be made" in error(folder / "lm", trace=file / "below")


@pytest.mark.one_backend
def test_tasks_that_have_no_such_work(folder):
    import keras_transformer as kt
    from keras_transformer.optimizing.profiling import steps_of
    from tests.tasks import series

    with pytest.raises(ValueError, match="`profile` has data for TextClassifier, .*, received a F"):
        steps_of(series.forecaster(), "fit", 2, 4, 1)
    embedder = kt.TextEmbedder.from_preset(folder / "embedder")
    with pytest.raises(ValueError, match="`encode` needs a TextEmbedder with a tokenizer"):
        steps_of(kt.TextEmbedder(embedder.backbone), "encode", 2, 4, 1)


@pytest.mark.backend_independent
def test_launches_and_waits_are_of_a_step():
    operations = [Operation("gemm", 0.03, 60), Operation("copy", 0.01, 10)]
    seen = Profile("fit", "torch on cuda", 10, 0.005, 8, operations, 45.0, 0.0, Path("t.json"))
    assert str(seen).splitlines()[1:5] == [
        "200 steps/s, 5 ms a step, 45 launches a step, 0 waits of the host a step",
        "",
        " ms a step   share     calls  operation",
        "     3.000   75.0%         6  gemm",
    ]


@pytest.mark.backend_independent
def test_time_of_operations_within_others_counts_once():
    from keras_transformer.kernels.profiling import _of_planes

    loop = [("while", 0.0, 100.0, {"hlo_op": "while"}), ("dot", 10.0, 30.0, {"hlo_op": "dot"}),
            ("dot", 50.0, 20.0, {"hlo_op": "dot"}), ("python", 0.0, 900.0, {})]  # fmt: skip
    seen = _of_planes(Path("t"), [("/host:CPU", "thread", loop)])
    found = {(o.name, round(o.seconds * 1e9), o.count) for o in seen.operations}
    assert found == {("while", 50, 1), ("dot", 50, 2)}
    assert (seen.launches, seen.waits) == (None, None)
    stream = ("/device:GPU:0", "Stream #13(Compute)", [("gemm", 0.0, 5.0, {"hlo_op": "dot.1"})])
    host = ("/host:CPU", "driver", [("cuStreamSynchronize", 0.0, 5.0, {}), *loop])
    seen = _of_planes(Path("t"), [host, stream])
    assert seen.operations == [Operation("dot.1", 5e-9, 1)]
    assert (seen.launches, seen.waits) == (1, 1)
