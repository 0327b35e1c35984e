"""Child process that compiles the constraints of requests.

It imports only modules of the package that do not need Keras; see `bounded_child`.
"""

import importlib.util
import io
import json
import os
import sys
import types


def prepare():
    """Import everything that compiling needs, and return the function that answers requests."""
    if hasattr(os, "nice"):
        os.nice(10)  # the model has priority
    root = os.path.abspath(__file__)
    for _ in range(4):
        root = os.path.dirname(root)
    # Packages as bare folders: their `__init__` would import Keras.
    for name in ("keras_transformer", "keras_transformer.generation"):
        package = types.ModuleType(name)
        package.__path__ = [os.path.join(root, *name.split("."))]
        sys.modules[name] = package
    import numpy as np

    from keras_transformer.generation.constraints.token_automaton import compile_constraint

    vocabulary = []

    def answer(request):
        asked, _, data = request.partition(b"\n")
        asked = json.loads(asked)
        if asked["kind"] == "vocabulary":
            vocabulary[:] = _tokens(asked["lengths"], data)
            return "ready", b""
        try:
            made = compile_constraint(
                asked["kind"], asked["value"], asked["options"], vocabulary, asked["never_first"]
            )
        except (ValueError, ImportError) as error:
            return "wrong", str(error).encode("utf-8", "backslashreplace")
        if made.transitions.size > asked["most"]:
            states, classes = made.transitions.shape
            message = f"The constraint has {states:,} states with {classes:,} kinds of tokens"
            return "wrong", f"{message}, more than the server allows.".encode()
        written = io.BytesIO()
        np.savez(written, made.transitions, made.token_classes, made.accepting)
        return "automaton", written.getvalue()

    vocabulary[:] = [bytes([byte]) for byte in range(256)]
    has_schemas = importlib.util.find_spec("jsonschema") is not None
    for schema in _FIRST if has_schemas else ():
        value = json.dumps(schema)
        sample = {"kind": "json_schema", "value": value, "options": [False], "never_first": []}
        kind, data = answer(json.dumps({**sample, "most": 2**20}).encode())
        assert kind == "automaton", data
    return answer


def _tokens(lengths, data):
    """Split concatenated bytes into tokens; a length of -1 stands for None."""
    tokens, begin = [], 0
    for length in lengths:
        tokens.append(None if length < 0 else data[begin : begin + length])
        begin += max(length, 0)
    return tokens


# Schemas that make the compiler import and read all files that it ever needs.
_FIRST = [
    {"$schema": uri, "enum": [1, "a"], "pattern": "(?i)[^a]|a"}
    for uri in (
        "http://json-schema.org/draft-03/schema#",
        "http://json-schema.org/draft-04/schema#",
        "http://json-schema.org/draft-06/schema#",
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    )
]
