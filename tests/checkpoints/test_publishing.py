"""Saving over a preset: whole for a reader, whoever is killed; nothing stale, nothing lost."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from keras_transformer.checkpoints.presets import publishing
from keras_transformer.checkpoints.presets.listing import read_preset, resolve_preset
from keras_transformer.checkpoints.presets.preset import Preset
from keras_transformer.checkpoints.presets.publishing import (
    PARTS,
    TOKENIZER_PARTS,
    atomic_directory,
)
from tests.checkpoints.savers import CASES, NEW, OLD, OTHERS, RACE_NAMES, files_in, write
from tests.thorough import many

pytestmark = pytest.mark.backend_independent
SAVERS = Path(__file__).with_name("savers.py")
ROOT = Path(__file__).parents[2]
needs_posix = pytest.mark.skipif(os.name != "posix", reason="needs fork and locks")
needs_exchange = pytest.mark.skipif(
    publishing.exchanging() is None, reason="the system exchanges no folders"
)


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, str(SAVERS), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def save(folder, files=NEW, **options):
    with atomic_directory(folder, **options) as scratch:
        write(scratch, files)


def in_place(monkeypatch):
    monkeypatch.setattr(publishing, "exchanging", lambda: None)


@needs_posix
@needs_exchange
def test_a_save_killed_at_every_instant():
    """The program asserts: after each kill all of one preset; after the next save no left-over."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # where to sync is free
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        process = start("kill", folder, *CASES)
        points = [int(line) for line in process.communicate(timeout=600)[0].split()]
    assert process.returncode == 0
    assert len(points) == len(CASES) and min(points) > 20, points


@needs_posix
@pytest.mark.parametrize("case", ["preset", "no exchange"])
def test_two_savers_and_a_reader(tmp_path, case):
    folder = tmp_path / "preset"
    savers = [start("save", folder, case, many(1), number) for number in range(2)]
    versions, loads = [], 0

    def read(source):
        found = [json.loads(source.file(name).read_text()) for name in RACE_NAMES]
        return {values["version"] for values in found}

    while any(process.poll() is None for process in savers):
        if folder.exists():
            version, *others = read_preset(folder, read)
            assert not others, (version, others)
            versions.append(version)
            loads += 1
    assert [process.returncode for process in savers] == [0, 0]
    assert loads > 10 and len(set(versions)) > 3
    assert os.listdir(tmp_path) == ["preset"] and sorted(os.listdir(folder)) == sorted(RACE_NAMES)


def test_what_changes_while_it_is_read_is_read_again(tmp_path):
    old = {"format": "keras_transformer", "format_version": 1, "version": 2}
    save(tmp_path, {"config.json": old})
    seen = []

    def read(source):
        seen.append(source.config["version"])
        if len(seen) == 1:
            save(tmp_path, {"config.json": {**old, "version": 9}})
            raise KeyError("what a mixture looks like")
        return seen[-1]

    assert read_preset(tmp_path, read) == 9 and seen == [2, 9]


def test_a_reader_gives_up_and_says_why(tmp_path):
    save(tmp_path)
    with pytest.raises(OSError, match="was saved again while it was read, 10 times"):
        read_preset(tmp_path, lambda source: save(tmp_path))
    source = resolve_preset(tmp_path)
    save(tmp_path)
    with pytest.raises(OSError, match="Load it again"):
        read_preset(source, lambda source: None)


@pytest.mark.parametrize("exchange", [True, False])
def test_nothing_stale_and_nothing_of_others_lost(tmp_path, monkeypatch, exchange):
    if not exchange:
        in_place(monkeypatch)
    folder = tmp_path / "preset"
    write(folder, {**OLD, **OTHERS})
    save(folder)
    assert files_in(folder) == {**NEW, **OTHERS}
    shutil.rmtree(folder)
    write(folder, OLD)
    save(folder)
    assert files_in(folder) == NEW and os.listdir(tmp_path) == ["preset"]


@pytest.mark.parametrize("exchange", [True, False])
def test_a_tokenizer_alone_replaces_the_tokenizer_alone(tmp_path, monkeypatch, exchange):
    if not exchange:
        in_place(monkeypatch)
    write(tmp_path, OLD)
    save(tmp_path, {"tokenizer.json": {"version": 2}}, replaced=TOKENIZER_PARTS)
    gone = ("chat_template.jinja", "assets/tokenizer/vocabulary.txt")
    kept = {name: value for name, value in OLD.items() if name not in gone}
    assert files_in(tmp_path) == {**kept, "tokenizer.json": {"version": 2}}


def test_every_file_that_is_read_belongs_to_a_preset():
    from keras_transformer.checkpoints.keras_hub import families, hdf5, tokenizers
    from keras_transformer.checkpoints.presets import hub
    from keras_transformer.checkpoints.presets import listing as presets

    named = {*presets._FILES, *hub.WEIGHT_FILES, families.TASK_FILE, tokenizers.ASSETS}
    named |= {hdf5.WEIGHTS_FILE, hdf5.INDEX_FILE, hdf5.TASK_WEIGHTS_FILE, "modules.json"}
    named |= {tokenizers.TOKENIZER_FILE, tokenizers.PREPROCESSOR_FILE}
    whole = {name: name.split("/")[0] for name in named}  # of a folder, all that is in it
    parts = {n for n in named if {n, whole[n]} & {*PARTS} or publishing._is_part(n)}
    assert parts == named


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
@pytest.mark.parametrize("exchange", [True, False])
def test_permissions_stay(tmp_path, monkeypatch, exchange):
    if not exchange:
        in_place(monkeypatch)
    folder = tmp_path / "preset"
    write(folder, OLD)
    folder.chmod(0o750)
    (folder / "config.json").chmod(0o600)
    owner = (1234, 1234) if os.getuid() == 0 else (os.getuid(), os.getgid())
    os.chown(folder, *owner)
    save(folder)
    found = folder.stat()
    assert stat.S_IMODE(found.st_mode) == 0o750 and (found.st_uid, found.st_gid) == owner
    assert stat.S_IMODE((folder / "config.json").stat().st_mode) == 0o600


def test_a_link_to_the_folder_stays_a_link(tmp_path):
    write(tmp_path / "real", OLD)
    (tmp_path / "link").symlink_to("real")
    save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and files_in(tmp_path / "real") == NEW
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


def test_saved_that_is_a_link_is_not_followed(tmp_path):
    write(tmp_path / "elsewhere", NEW)
    write(tmp_path / "preset", OLD)
    (tmp_path / "preset" / ".saved").symlink_to(tmp_path / "elsewhere")
    assert resolve_preset(tmp_path / "preset").config["version"] == 1


def test_the_current_folder_stays_one(tmp_path, monkeypatch):
    write(tmp_path, OLD)
    monkeypatch.chdir(tmp_path)
    save(".")
    assert files_in(Path.cwd()) == NEW


def test_a_failure_names_the_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=f"{tmp_path}/file/preset could not be written: "):
        save(tmp_path / "file" / "preset")
    write(tmp_path / "preset", OLD)

    refused = pytest.raises(OSError, match="preset could not be written: No space.*Free some")
    with refused, atomic_directory(tmp_path / "preset"):
        raise OSError(28, "No space left on device", "/a/temporary/name")
    assert files_in(tmp_path / "preset") == OLD


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mounts of Linux")
def test_a_mount_point_and_a_full_disk(tmp_path):
    folder = tmp_path / "preset"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("may not mount a file system")
    try:
        save(folder, OLD)
        save(folder, NEW)
        assert files_in(folder) == NEW
        with pytest.raises(OSError, match="preset could not be written: No space left") as info:
            save(folder, {**NEW, "model.safetensors": "x" * 300_000})
        assert info.value.errno == 28
        assert files_in(folder) == NEW and not [n for n in os.listdir(folder) if n[0] == "."]
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_source_of_the_package_is_not_watched():
    source = resolve_preset("minilm_l6_en")
    assert source.stamp is None and source.is_current
    assert isinstance(source, Preset)
