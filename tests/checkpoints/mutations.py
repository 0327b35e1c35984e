"""Ways to break the files of a preset, for `test_hostile.py`."""

import json
import os
import pickle
import shutil
from pathlib import Path

from hypothesis import strategies as st

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
CONFIGS = (
    "config.json",
    "generation_config.json",
    "modules.json",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
)
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "spm.model",
    "tokenizer.model",
)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.sampled_from([2**31, 2**63, 2**64, -(2**63), 10**30, 10**400, -(10**4000)]),
    st.sampled_from([0.0, -0.0, 0.5, 1.0, 2.0, -1.5, 1e-320, 1e38, 1e39, 1e308, -1e308]),
    st.sampled_from(
        ["", "x", "2", "gelu", "relu", "\0", "../../etc/passwd", "/etc/passwd", "os.system",
         "__import__('os').system('true')", "lambda x: x", "\ud800", "🦊" * 500, "true", "None"]
    ),
)  # fmt: skip
json_values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["0", "1", "name", "type", "path"]), inner, max_size=3)
    ),
    max_leaves=5,
)


def paths(value, place=()):
    """The keys that lead to each part of a JSON value."""
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in parts:
        yield (*place, key)
        # A vocabulary is alike throughout, and long.
        if isinstance(part, dict | list) and len(part) < 200:
            yield from paths(part, (*place, key))


@st.composite
def changed_json(draw, value):
    """The text of a JSON value with some parts changed, removed, renamed or added."""
    value = json.loads(json.dumps(value))
    for _ in range(draw(st.integers(1, 2))):
        places = list(paths(value))
        if not places:
            break
        *parents, key = draw(st.sampled_from(places))
        holder = value
        for parent in parents:
            holder = holder[parent]
        how = draw(st.sampled_from(["set", "set", "set", "remove", "rename", "add", "number"]))
        if how == "set":
            holder[key] = draw(json_values)
        elif how == "number" and isinstance(holder[key], int | float) and abs(holder[key]) < 1e9:
            number = holder[key]
            holder[key] = draw(
                st.sampled_from([number * 2, number + 1, number - 1, -number, float(number),
                                 str(number), [number], number * 10**12])
            )  # fmt: skip
        elif how == "remove" or not isinstance(holder, dict):
            del holder[key]
        elif how == "rename":
            holder[draw(st.sampled_from(["x", f"{key} ", str(key).upper()]))] = holder.pop(key)
        else:
            holder[draw(st.sampled_from(["auto_map", "class_name", "module", "x"]))] = draw(
                json_values
            )
    return json.dumps(value)


@st.composite
def changed_text(draw, text):
    """A text that is cut, has other bytes in it, or is something else."""
    data = text.encode("utf-8", "surrogatepass")
    how = draw(st.sampled_from(["cut", "bytes", "insert", "random", "fixed"]))
    place = draw(st.integers(0, len(data)))
    if how == "cut":
        return data[:place]
    if how == "bytes":
        return data[:place] + draw(st.binary(min_size=1, max_size=4)) + data[place + 4 :]
    if how == "insert":
        inserted = [
            b"NaN",
            b"-Infinity",
            b"1e999",
            b"}",
            b"{",
            b"\xff",
            b"\0",
            b'"x":1,',
            b"[" * 50,
        ]
        return data[:place] + draw(st.sampled_from(inserted)) + data[place:]
    if how == "random":
        return draw(st.binary(max_size=200))
    return draw(
        st.sampled_from(
            [b"", b"null", b"3", b"[]", b"{}", b'"x"', b"\xef\xbb\xbf" + data, data * 2,
             text.encode("utf-16", "surrogatepass"), b"[" * 100_000, b'{"a":' * 100_000,
             b"9" * 5000, b'{"model_type": NaN}']
        )
    )  # fmt: skip


def read_safetensors(path):
    """The header and the bytes after it."""
    data = Path(path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write_safetensors(path, header, content, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(text) if length is None else length
    Path(path).write_bytes((length % 2**64).to_bytes(8, "little") + text + content)


@st.composite
def changed_safetensors(draw, header, content):
    """The header and content of a safetensors file that says something wrong of its tensors."""
    header = json.loads(json.dumps(header))
    names = sorted(set(header) - {"__metadata__"})
    name = draw(st.sampled_from(names))
    entry = header[name]
    how = draw(
        st.sampled_from(["drop", "drop", "shape", "dtype", "offsets", "name", "remove", "add",
                         "value", "cut", "longer", "length", "bytes", "twice"])
    )  # fmt: skip
    length = None
    if how == "drop":  # a file that is whole, and lacks a tensor
        first, last = entry["data_offsets"]
        del header[name]
        content = content[:first] + content[last:]
        for other in header.keys() - {"__metadata__"}:
            start, end = header[other]["data_offsets"]
            if start >= last:
                header[other]["data_offsets"] = [start - last + first, end - last + first]
    elif how == "shape":
        size = st.sampled_from([0, 1, 2, 3, 7, 2**31, 2**62, 2**64, -1, -8, 1.5, "8", None, [8]])
        entry["shape"] = draw(
            st.lists(size, max_size=3) | st.sampled_from([[*entry["shape"], 1], entry["shape"][1:]])
        )
    elif how == "dtype":
        types = ["F64", "F16", "BF16", "I64", "I32", "U8", "BOOL", "F8_E4M3", "f32", "", None, 3]
        entry["dtype"] = draw(st.sampled_from([*types, "C64", "object", "O"]))
    elif how == "offsets":
        start, end = entry["data_offsets"]
        number = st.sampled_from([start, end, 0, 1, start + 4, end - 4, len(content), 2**63, -4])
        entry["data_offsets"] = draw(st.lists(number | st.just("0"), max_size=3))
    elif how == "name":
        header[draw(st.sampled_from(["", "x", name + "x", name.upper(), "../x"]))] = header.pop(
            name
        )
    elif how == "remove":
        del header[name]
    elif how == "add":
        header["x"] = draw(
            st.sampled_from(
                [
                    {**entry},
                    {"dtype": "F32", "shape": [0], "data_offsets": [len(content)] * 2},
                    {},
                    3,
                ]
            )
        )
    elif how == "value":
        header[name] = draw(json_values)
    elif how == "cut":
        content = content[: draw(st.integers(0, len(content) - 1))]
    elif how == "longer":
        content += bytes(draw(st.integers(1, 9)))
    elif how == "length":
        text = len(json.dumps(header))
        length = draw(st.sampled_from([0, 1, text - 1, text + 1, 2**31, 2**63, 2**64 - 1, 10**8]))
    elif how == "bytes":
        text = json.dumps(header).encode()
        place = draw(st.integers(0, len(text) - 1))
        header = text[:place] + draw(st.binary(min_size=1, max_size=3)) + text[place + 1 :]
    elif how == "twice":
        text = json.dumps(header)
        other = json.dumps({name: {**entry, "shape": [1]}})[1:-1]
        header = (text[:-1] + ", " + other + "}").encode()
    return header, content, length


class Trap:
    """Object whose unpickling would make a file."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (Path(self.marker),)


def add_traps(folder, marker):
    """Puts files into a folder that make `marker` when they are unpickled or imported."""
    code = f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n"
    for name in ("pytorch_model.bin", "model.pkl", "tokenizer.pkl", "training_args.bin", "x.pt"):
        (folder / name).write_bytes(pickle.dumps(Trap(str(marker))))
    for name in ("modeling_x.py", "configuration_x.py", "tokenization_x.py", "__init__.py"):
        (folder / name).write_text(code)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {
        "AutoConfig": "configuration_x.C",
        "AutoModel": "modeling_x.M",
        "AutoTokenizer": ["tokenization_x.T", None],
    }
    config |= {"trust_remote_code": True, "custom_objects": {"x": "modeling_x.M"}}
    (folder / "config.json").write_text(json.dumps(config))


def link_out(folder, name, outside, how):
    """Moves a file out of the folder and leaves in its place a link (or what else is no file)."""
    path = folder / name
    outside.mkdir(exist_ok=True)
    target = outside / Path(name).name
    if path.exists():
        shutil.move(path, target)
    else:
        target.write_text("CANARY {}")
    path.parent.mkdir(exist_ok=True)
    if how == "link":
        path.symlink_to(target)
    elif how == "relative":
        path.symlink_to(os.path.relpath(target, path.parent))
    elif how == "chain":
        (folder / "between").symlink_to(target)
        path.symlink_to("between")
    elif how == "loop":
        path.symlink_to(path.name)
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
