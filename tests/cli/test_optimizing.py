"""`keras-transformer optimize`."""

import pytest

pytestmark = pytest.mark.one_backend


@pytest.mark.parametrize("preset", ["classifier", "lm"])
def test_it_prints_what_was_measured(run, folder, preset):
    sizes = ("--batch-size", "2", "--length", "4", "--new-tokens", "2", "--rounds", "1")
    code, out, _ = run("optimize", folder / preset, *sizes, "--modes", "int8", "bfloat16")
    assert code == 0
    table = out[out.rindex("predict 2" if preset == "classifier" else "generate 2") :].splitlines()
    assert [line.split()[0] for line in table[2:]] == ["float32", "bfloat16", "int8"]
    assert sum("<- taken" in line for line in table) == 1


def test_an_unknown_mode(run, folder):
    code, out, errors = run("optimize", folder / "lm", "--modes", "int9")
    assert (code, out) == (2, "")
    assert "must be one of" in errors and "'int9'" in errors
