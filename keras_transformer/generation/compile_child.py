"""The work of the process that compiles the constraints of requests.

`bounded_child` imports it, with the modules of this package that need no Keras.
"""

import importlib.util
import io
import json
import os
import sys
import types


def prepare():
    """Return what answers requests, with all imported that compiling imports late."""
    if hasattr(os, "nice"):
        os.nice(10)  # others wait for the model
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    # The packages as folders alone: what they import first needs Keras.
    for name in ("keras_transformer", "keras_transformer.generation"):
        package = types.ModuleType(name)
        package.__path__ = [os.path.join(root, *name.split("."))]
        sys.modules[name] = package
    import numpy as np

    from keras_transformer.generation.token_automaton import compile_constraint

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
            return "wrong", f"{message}, more than are served.".encode()
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
    """Return the tokens whose bytes are in a row; a length of -1 is that of None."""
    tokens, begin = [], 0
    for length in lengths:
        tokens.append(None if length < 0 else data[begin : begin + length])
        begin += max(length, 0)
    return tokens


# Schemas whose compiling imports and reads what compiling ever does.
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
