"""Files that are not trusted, read up to a size."""

import os
from pathlib import Path


def read_bytes(path: str | os.PathLike, limit: int) -> bytes:
    """The content of a file, unless it is larger than such a file may be.

    Args:
        path: the file.
        limit: the largest size in bytes that is read.

    Returns:
        Its bytes.

    Raises:
        FileNotFoundError: if there is no such file. What has no size, a pipe or a device, is none.
        ValueError: if it is larger, before anything is read.

    Example:

    ```python
    import pathlib, tempfile
    from keras_transformer.reading import read_bytes

    path = pathlib.Path(tempfile.mkdtemp(), "vocab.txt")
    path.write_text("a b")
    assert read_bytes(path, limit=3) == b"a b"
    ```
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {str(path)!r}.")
    size = path.stat().st_size
    if size <= limit:
        with path.open("rb") as file:
            data = file.read(limit + 1)  # it may have grown since
        size = max(size, len(data))
    if size > limit:
        raise ValueError(
            f"{str(path)!r} has {size:,} bytes; a file of this kind may have {limit:,}. Is it "
            "something else?"
        )
    return data
