"""Shared code of scripts that write a page, or compare it with what they would write."""

import argparse
from pathlib import Path


def write_or_check(about: str | None, path: Path, text: str, script: str) -> int:
    """Writes a page, or with `--check` says whether it is current; the exit code."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--check", action="store_true", help="only compare; exit code 1 if not")
    if not parser.parse_args().check:
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
        return 0
    current = path.is_file() and path.read_text(encoding="utf-8") == text
    state = (
        "current"
        if current
        else f"not what the code makes, so not current: run python docs/{script}"
    )
    print(f"{path} is {state}")
    return 0 if current else 1
