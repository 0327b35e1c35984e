"""A model in one GGUF file or several, whose first file has the metadata of all."""

import dataclasses
import os
import re
from pathlib import Path

from keras_transformer.checkpoints.gguf.header import MOST_ENTRIES, Header, read_header

# What `llama-gguf-split` and the package gguf name the files: the number of a part counts from 1.
_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.gguf)", re.ASCII | re.IGNORECASE | re.DOTALL)
_COUNT, _NUMBER, _TENSORS = "split.count", "split.no", "split.tensors.count"


def read_model(path: str | os.PathLike) -> Header:
    """Read the header of a model: of one GGUF file, or of all files of which it is the first.

    Raises:
        FileNotFoundError: if the file, or another part of the model, is missing. The message names
            the missing file.
        ImportError: if the package `gguf` is not installed.
        ValueError: if a file is not a whole GGUF file, is not the first of several, or the parts do
            not belong together.
    """
    first = read_header(path)
    count = first.whole(_COUNT) or 1
    if count == 1:
        return first
    named = _NAME.fullmatch(first.path.name)
    if named is None:
        raise ValueError(
            f"{first.path} is one of {count:,} files of a model. Give it back its name, such as "
            f"'model-00001-of-{count:05}.gguf', beside the others, and name the first one."
        )
    if int(named[3]) != count:
        raise ValueError(
            f"The name of {first.path} says that it is one of {int(named[3]):,} files, but the "
            f"file says {count:,}. Download it again."
        )
    if first.whole(_NUMBER) or int(named[2]) != 1:
        raise ValueError(
            f"{first.path} is a later part of a model in {count:,} files. Name the first one, "
            f"{_part(first.path, named, 1, count).name!r}, which finds the others beside it."
        )
    tensors, paths = dict(first.tensors), [first.path]
    for number in range(2, count + 1):
        other = _read_part(_part(first.path, named, number, count), number, count)
        twice = next((name for name in other.tensors if name in tensors), None)
        if twice is not None:
            raise ValueError(f"{other.path} and an earlier part both have the tensor {twice!r}.")
        tensors |= other.tensors
        paths.append(other.path)
        if len(tensors) > MOST_ENTRIES:
            raise ValueError(
                f"The files of {first.path} have more than {MOST_ENTRIES:,} tensors, which is the "
                "maximum."
            )
    declared = first.whole(_TENSORS)
    if declared is not None and declared != len(tensors):
        raise ValueError(
            f"{first.path} declares {declared:,} tensors in {count:,} files, but they have "
            f"{len(tensors):,}. Download them again, all from the same place."
        )
    return dataclasses.replace(first, tensors=tensors, parts=tuple(paths))


def _part(first: Path, named: re.Match, number: int, count: int) -> Path:
    return first.with_name(f"{named[1]}-{number:05}-of-{count:05}{named[4]}")


def _read_part(path: Path, number: int, count: int) -> Header:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: part {number} of the {count:,} files of a model. Download it to "
            "the folder of the first one."
        )
    header = read_header(path)
    said = header.whole(_NUMBER), header.whole(_COUNT)
    if said != (number - 1, count):
        which = "not a part" if None in said else f"part {said[0] + 1:,} of {said[1]:,}"
        raise ValueError(
            f"{path} should be part {number:,} of {count:,}, but says that it is {which}. Download "
            "it again, from the same place as the first one."
        )
    return header
