"""`read`: every format and library gives the same rows, and what is wrong is said with its line."""

import csv
import gzip
import json
import os

import pytest

import keras_transformer as kt
from keras_transformer.data import read
from keras_transformer.data.record_files import FileSource

pytestmark = pytest.mark.backend_independent

# Quotes, commas, tabs and line ends within a cell, other scripts, and enough for several chunks.
ROWS = [
    ('she said "no", twice', "bad"),
    ("Gänse und 鵞鳥 🪿", "good"),
    ("l'été , enfin", "good"),
    *((f"film number {number} of many", ("bad", "good")[number % 2]) for number in range(5000)),
]
PLAIN = [{"text": text, "label": label} for text, label in ROWS]


def rows_of(records):
    return [
        row
        for chunk in records.chunks()
        for row in zip(*chunk.columns, strict=True)
    ]  # fmt: skip


def write_csv(path, rows, **options):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, **options)
        writer.writerow(["id", "label", "text"])
        writer.writerows([number, label, text] for number, (text, label) in enumerate(rows))


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def as_file(kind, folder):
    path = folder / f"rows.{kind}"
    if kind == "csv":
        write_csv(path, ROWS)
    elif kind == "tsv":
        write_lines(path, ["label\ttext", *(f"{label}\t{text}" for text, label in ROWS)])
    elif kind == "jsonl":
        write_lines(path, map(json.dumps, PLAIN))
    elif kind == "jsonl.gz":
        with gzip.open(path, "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in PLAIN)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(PLAIN), path, row_group_size=900)
    return path


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "jsonl.gz", "parquet"])
def test_formats_give_the_same_rows(kind, tmp_path):
    records = read(as_file(kind, tmp_path), x="text", y="label")
    chunks = list(records.chunks())
    assert rows_of(records) == ROWS
    assert len(chunks) > 1 and max(len(chunk.columns[0]) for chunk in chunks) < len(ROWS)
    dones = [chunk.done for chunk in chunks]
    assert dones == sorted(dones) and 0 < dones[-1] <= records.size
    # The pair that one row is, and only the column asked for.
    assert rows_of(read(records.sources[0].path, x=("label", "text")))[1] == ROWS[1][::-1]
    assert rows_of(read(records.sources[0].path))[:3] == [(text,) for text, _ in ROWS[:3]]


def test_text_files(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes("\ufefffirst \r\n\n  \n\u2028 second\nlast".encode())
    records = read(path)
    assert rows_of(records) == [("first ",), ("\u2028 second",), ("last",)]
    (chunk,) = records.chunks()
    assert chunk.place(1) == f"{path}, line 4"


def test_several_files_and_patterns(tmp_path, monkeypatch):
    for name in "bac":
        write_lines(tmp_path / f"{name}.txt", [f"of {name}"])
    monkeypatch.chdir(tmp_path)
    assert rows_of(read("*.txt")) == [("of a",), ("of b",), ("of c",)]
    assert rows_of(read(["c.txt", "[ab].txt"])) == [("of c",), ("of a",), ("of b",)]
    places = [chunk.place(0) for chunk in read(["c.txt", "a.txt"]).chunks()]
    assert places == ["c.txt, line 1", "a.txt, line 1"]


def test_files_without_a_header(tmp_path):
    write_lines(tmp_path / "rows.tsv", ["a film\t1", '"quoted\t0'])
    assert rows_of(read(tmp_path / "rows.tsv", x=0, y=1)) == [("a film", "1"), ('"quoted', "0")]
    write_lines(tmp_path / "rows.csv", ['"a, b",1', "c,0"])
    assert rows_of(read(tmp_path / "rows.csv", x=0, y=1)) == [("a, b", "1"), ("c", "0")]
    with pytest.raises(ValueError, match="no column 2. It has: 0, 1"):
        read(tmp_path / "rows.csv", x=2)


def test_encodings(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes("text\nfine\nGänse\n".encode("latin-1"))
    assert rows_of(read(path, encoding="latin-1")) == [("fine",), ("Gänse",)]
    with pytest.raises(ValueError, match=r"rows.csv, line 3 is not utf-8: byte 0xe4 at position 1"):
        rows_of(read(path))
    with pytest.raises(ValueError, match="`encoding` .latin-99. is not known"):
        read(path, encoding="latin-99")
    with pytest.raises(ValueError, match="'utf-16' does not encode a line end as one byte"):
        read(path, encoding="utf-16")
    path.write_text("text\nfine\n", encoding="utf-16")
    with pytest.raises(ValueError, match="line 1 is not utf-8: byte 0xff at position 0"):
        read(path)
    # A letter that the end of the file cuts in two.
    path.write_bytes("text\nfine\nGän".encode()[:-2])
    with pytest.raises(ValueError, match="line 3 is not utf-8"):
        rows_of(read(path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "a"}\n{"text": "b', r"a.jsonl, line 2 is not valid JSON: .* cut\?"),
        ("a.jsonl", '{"text": "a"}\n[1]\n', "line 2 must be a JSON object, not a list"),
        ("a.json", '[\n{"text": "a"}\n]\n', "line 1 is not valid JSON: .*must be one whole object"),
        ("a.jsonl", '{"text": "a"}\n{"x": 1}\n', "line 2 has no column 'text'. It has: 'x'"),
        ("a.jsonl", '{"text": ' + "[" * 100_000 + "\n", "line 1 is not valid JSON"),
        ("a.csv", 'text,y\n"a\nb",1\nc\n', "line 4 has 1 cells, but the first line has 2"),
        ("a.csv", "text,y\na,1\nb, c,1\n", "line 3 has 3 cells, but the first line has 2"),
        ("a.csv", 'text,y\na,1\n"b,1\nc,0\n', "line 3: unexpected end of data.*quote"),
        ("a.csv", 'text,y\na,1\n"b"c,1\n', "line 3: ',' expected after '\"'"),
        ("a.csv", "text,text\na,b\n", "a.csv has 2 columns named 'text'"),
        ("a.csv", "", "a.csv has no column 'text'. It has: none"),
        ("a.csv", "sentence,label\na,1\n", "no column 'text'. It has: 'sentence', 'label'"),
        ("a.tsv", "text\ty\na\t1\nb\n", "line 3 has 1 cells, but the first line has 2"),
        ("a.csv", "text\n" + "a" * 200_000 + "\n", "line 2: field larger than field limit"),
        ("a.parquet", "no parquet", "a.parquet cannot be read after row 0"),
        ("a.csv.gz", "no gzip", "a.csv.gz, line 1 cannot be unpacked"),
        ("a.doc", "a\n", "a.doc has an unknown suffix: give `format`, one of 'text', 'csv'"),
    ],
)
def test_files_that_cannot_be_read(name, content, message, tmp_path):
    (tmp_path / name).write_text(content)
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    with pytest.raises(ValueError, match=message):
        list(read(tmp_path / name).chunks())


def test_a_compressed_file_that_was_cut(tmp_path):
    path = as_file("jsonl.gz", tmp_path)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ValueError, match=r"rows.jsonl.gz, line \d+ cannot be unpacked: .*cut\?"):
        rows_of(read(path))


def test_a_parquet_file_that_was_cut(tmp_path):
    path = as_file("parquet", tmp_path)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ValueError, match="rows.parquet cannot be read"):
        read(path)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no file .*missing.csv"):
        read(tmp_path / "missing.csv")
    with pytest.raises(FileNotFoundError, match=r"No file matches the pattern '.*\*.csv'"):
        read(tmp_path / "*.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ValueError, match="is not a file. To read a folder, name its files"):
        read(tmp_path / "folder.csv")


def test_a_file_that_vanishes(tmp_path):
    path = as_file("csv", tmp_path)
    records = read(path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="rows.csv does not exist any more"):
        rows_of(records)


@pytest.mark.parametrize("change", ["append", "replace", "vanish"])
def test_a_file_that_changes_while_it_is_read(change, tmp_path):
    path = as_file("csv", tmp_path)
    chunks = read(path).chunks()
    next(chunks)
    if change == "append":
        with open(path, "a") as file:
            file.write("9,bad,more\n")
    elif change == "replace":  # by one of the same size
        other = path.with_suffix(".new")
        other.write_bytes(path.read_bytes())
        os.replace(other, path)
    else:
        path.unlink()
    with pytest.raises((ValueError, FileNotFoundError), match="changed while|There is no file"):
        list(chunks)


def test_a_file_that_changes_between_hash_and_reading(tmp_path):
    source = FileSource(as_file("csv", tmp_path))
    source.digest(tmp_path)
    os.utime(source.path, ns=(0, 0))
    with pytest.raises(ValueError, match="changed while it was read"):
        next(source.read_rows(["text"]))


def test_what_is_no_source(tmp_path):
    with pytest.raises(ValueError, match="received 7 of type int"):
        read(7)
    with pytest.raises(ValueError, match="can be iterated over only once"):
        read(row for row in ROWS)
    with pytest.raises(ValueError, match=r"the keys \['train', 'test'\]: give one"):
        read({"train": ROWS, "test": ROWS})
    with pytest.raises(ValueError, match="empty list"):
        read([])
    with pytest.raises(ValueError, match="format='csv' is for files"):
        read(PLAIN, format="csv")
    for wrong in ({"x": ("a", "b", "c")}, {"x": ()}, {"x": None}, {"y": ["a"]}, {"x": True}):
        with pytest.raises(ValueError, match="`x` must be a column or a tuple of two"):
            read(PLAIN, **wrong)
    with pytest.raises(ValueError, match="all columns by name, or all by number"):
        read(as_file("csv", tmp_path), x=0, y="label")


# Other libraries.


def test_datasets():
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list(PLAIN)
    whole, streamed = read(data, y="label"), read(data.to_iterable_dataset(), y="label")
    assert rows_of(whole) == rows_of(streamed) == ROWS
    assert rows_of(read(data.with_format("numpy"), y="label")) == ROWS
    assert whole.fingerprint() == read(data, y="label").fingerprint() != None  # noqa: E711
    assert whole.fingerprint() != read(data.select(range(9))).fingerprint()
    assert streamed.fingerprint() is None
    with pytest.raises(ValueError, match="no column 'review'. It has: 'text', 'label'"):
        rows_of(read(data, x="review"))
    with pytest.raises(ValueError, match="give one of its data sets"):
        read(datasets.DatasetDict({"train": data}))


def test_tensorflow():
    tf = pytest.importorskip("tensorflow")
    texts, labels = zip(*ROWS[:50], strict=True)
    numbers = [int(label == "good") for label in labels]
    expected = list(zip(texts, numbers, strict=True))
    tuples = tf.data.Dataset.from_tensor_slices((list(texts), numbers))
    dicts = tuples.map(lambda text, label: {"text": text, "label": label})
    for data, columns in ((tuples, {"x": 0, "y": 1}), (dicts, {"y": "label"})):
        assert rows_of(read(data, **columns)) == expected
        assert rows_of(read(data.batch(8), **columns)) == expected
    alone = tf.data.Dataset.from_tensor_slices(list(texts))
    assert rows_of(read(alone)) == rows_of(read(alone.batch(8))) == [(text,) for text in texts]
    broken = tf.data.Dataset.from_tensor_slices([b"fine", b"\xff"])
    with pytest.raises(ValueError, match="row 1 of the .*'text' is not UTF-8"):
        rows_of(read(broken))


def test_torch():
    torch = pytest.importorskip("torch")

    class Mapped(torch.utils.data.Dataset):  # without an end that raises IndexError
        def __len__(self):
            return 50

        def __getitem__(self, index):
            return {"text": ROWS[index % 50][0], "label": torch.tensor(index)}

    class Streamed(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([(text, number) for number, (text, _) in enumerate(ROWS[:50])])

    expected = [(text, number) for number, (text, _) in enumerate(ROWS[:50])]
    loader = torch.utils.data.DataLoader
    for data, columns in ((Mapped(), {"y": "label"}), (Streamed(), {"x": 0, "y": 1})):
        assert rows_of(read(data, **columns)) == expected
        assert rows_of(read(loader(data, batch_size=8), **columns)) == expected
        assert rows_of(read(loader(data, batch_size=None), **columns)) == expected


def test_rows_of_objects_that_are_wrong():
    with pytest.raises(ValueError, match="row 1 of the list has no column 'text'. It has: 'x'"):
        rows_of(read([{"text": "a"}, {"x": "b"}]))
    with pytest.raises(ValueError, match="row 0 of the list has no column 2. It has: 0, 1"):
        rows_of(read([("a", 1)], x=2))
    with pytest.raises(ValueError, match=r"columns \['text', 'y'\] have \[2, 1\] values"):
        rows_of(read([{"text": ["a", "b"], "y": [1]}], y="y"))


# The content's hash.


def test_the_digest_is_that_of_the_content(tmp_path):
    def digest(path, **options):
        return read(path, cache=tmp_path / "cache", **options).fingerprint()

    path, copy = as_file("csv", tmp_path), tmp_path / "copy.csv"
    copy.write_bytes(path.read_bytes())
    first = digest(path)
    assert first == digest(copy) == digest(path)
    assert digest([path, copy]) not in (first, digest([copy, path, path]))
    # Another letter, the same size, and the times set back.
    times = path.stat()
    path.write_bytes(path.read_bytes().replace(b"film", b"fill", 1))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert digest(path) != first
    path.write_bytes(copy.read_bytes())
    assert digest(path) == first


def test_a_digest_is_remembered(tmp_path, monkeypatch):
    path = as_file("csv", tmp_path)
    records = read(path, cache=tmp_path / "cache")
    monkeypatch.setattr(kt.data.record_files, "_is_old", lambda stamp: True)
    first = records.fingerprint()

    def refuse(*args):
        raise AssertionError("hashed again")

    monkeypatch.setattr(kt.data.record_files.hashlib, "file_digest", refuse)
    assert read(path, cache=tmp_path / "cache").fingerprint() == first
    os.utime(path)
    with pytest.raises(AssertionError, match="hashed again"):
        records.fingerprint()


def test_without_pyarrow(tmp_path, monkeypatch):
    path = as_file("csv", tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(
        ImportError, match=r'needs pyarrow. Run `pip install "keras_transformer\[data\]"'
    ):
        read(path)
