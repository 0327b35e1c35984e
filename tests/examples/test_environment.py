import ast
import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.backend_independent
EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(path for path in EXAMPLES.glob("*.py") if "from runs import" in path.read_text())


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_what_backends_read_at_import_is_set_before(path):
    imports = [
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    readers = ("keras", "keras_transformer")  # imported in a function, they are not in this list
    after = [number for number, name in enumerate(imports) if name.split(".")[0] in readers]
    assert imports.index("runs") < min(after, default=len(imports))


@pytest.mark.parametrize(
    ("content", "said"), [(b"caf\xe9", "can't decode"), (None, "No such file")]
)
def test_a_file_that_is_no_text_is_one_line(tmp_path, content, said):
    path = tmp_path / "a.txt"
    if content is not None:
        path.write_bytes(content)
    program = f"import runs; runs.start(lambda _: runs.read_text({str(path)!r}))"
    out = subprocess.run(
        [sys.executable, "-c", program], cwd=EXAMPLES, capture_output=True, text=True
    )
    assert out.returncode == 1 and f"{path} is no text in UTF-8" in out.stderr
    assert said in out.stderr and "Traceback" not in out.stderr


@pytest.mark.parametrize("given", [None, "0"])
def test_what_the_user_set_stays(given):
    names = ("TF_CPP_MIN_LOG_LEVEL", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    if given is not None:
        environment |= dict.fromkeys(names, given)
    program = f"import os, runs; print(*[os.environ[name] for name in {names}])"
    run = [sys.executable, "-c", program]
    out = subprocess.run(run, cwd=EXAMPLES, env=environment, capture_output=True, check=True)
    assert out.stdout.decode().split() == (["2", "PASSIVE"] if given is None else [given] * 2)
