"""Presets from the Hugging Face hub, downloaded by `huggingface_hub` into its cache."""

import contextlib
import dataclasses
import errno
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

SCHEME = "hf://"
# Configs, texts and tokenizers; the weights are downloaded only when needed.
DESCRIPTION_FILES = ("*.json", "*.txt", "*.model", "*.spm", "*.jinja", "README.md")
WEIGHT_FILES = (
    "model.safetensors", "model-*.safetensors", "model.safetensors.index.json",
    "[1-9]_Dense/model.safetensors",
)  # fmt: skip
_NAME = re.compile(r"[\w.-]+/[\w.-]+(@\w[\w./-]*)?", re.ASCII)
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True)
class HubName:
    """A repository of the hub with a revision (branch, tag or commit)."""

    repository: str
    revision: str = "main"

    @classmethod
    def parse(cls, name: str) -> "HubName":
        """Parse `hf://org/name` or `hf://org/name@revision`."""
        rest = name.removeprefix(SCHEME)
        if not _NAME.fullmatch(rest) or ".." in rest:
            raise ValueError(
                f"{name!r} is not the name of a model on the hub. Expected "
                "'hf://org/name' or 'hf://org/name@revision'."
            )
        repository, _, revision = rest.partition("@")
        return cls(repository, revision or "main")

    def __str__(self) -> str:
        return f"{SCHEME}{self.repository}@{self.revision}"

    def download(self, patterns: tuple[str, ...]) -> Path:
        """Return the folder with the files that match the patterns, downloaded if necessary."""
        from huggingface_hub import errors

        try:
            with self._checked_content(), _bounded_waits():
                return Path(self._snapshot(patterns))
        except _Damaged as error:
            raise ConnectionError(
                f"{error} of {self} arrived damaged: the SHA-256 differs from the one on the hub. "
                "It was removed from the cache. Try again; if it happens again, look for a proxy "
                "that changes the content, or give a local folder."
            ) from None
        except errors.HFValidationError as error:
            raise ValueError(f"{self} cannot be a model on the hub: {error}") from error
        except errors.GatedRepoError as error:
            raise PermissionError(
                f"{self} is gated. Accept its terms at https://huggingface.co/{self.repository}, "
                "then log in with `hf auth login` or set HF_TOKEN."
            ) from error
        except errors.RevisionNotFoundError as error:
            raise FileNotFoundError(
                f"{SCHEME}{self.repository} has no revision {self.revision!r}. Name a branch, a "
                "tag or a full commit hash, or leave '@revision' out."
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise FileNotFoundError(
                f"There is no model {self.repository!r} on the hub, or it is private. Check the "
                "spelling; for a private one log in with `hf auth login` or set HF_TOKEN."
            ) from error
        except Exception as error:  # the exceptions of HTTP libraries differ between releases
            raise self._failure(error) from error

    def files(self) -> list[str]:
        """Return the names of all files in the repository; empty if the hub does not answer."""
        import huggingface_hub

        try:
            with _bounded_waits():
                return huggingface_hub.list_repo_files(self.repository, revision=self.revision)
        except Exception:  # only called to add details to another error
            return []

    def cached(self, name: str) -> Path | None:
        """Return the snapshot's folder in the cache if it contains the file. Does not download."""
        import huggingface_hub

        path = huggingface_hub.try_to_load_from_cache(self.repository, name, revision=self.revision)
        return Path(path).parent if isinstance(path, str) else None

    def _snapshot(self, patterns: tuple[str, ...]) -> str:
        """Download, retrying after connection resets, on which `huggingface_hub` gives up."""
        import huggingface_hub

        for tries_left in (2, 1, 0):
            try:
                return huggingface_hub.snapshot_download(
                    self.repository, revision=self.revision, allow_patterns=list(patterns)
                )
            except Exception as error:
                reset = any(type(each).__name__ == "ReadError" for each in _causes(error))
                if not (reset and tries_left):
                    raise
        raise AssertionError  # for type checkers: the last try returned or raised

    @contextlib.contextmanager
    def _checked_content(self) -> Iterator[None]:
        """Check files that are added to the cache inside the block against their checksums."""
        # Only files in large file storage can be checked, since the cache names them by their
        # SHA-256. Without links (Windows) the names are lost.
        from huggingface_hub import constants

        cache = Path(constants.HF_HUB_CACHE, f"models--{self.repository.replace('/', '--')}")
        before = set((cache / "blobs").glob("*"))
        try:
            yield
        finally:  # also if another file failed: the next call trusts what is there
            damaged = []
            for blob in set((cache / "blobs").glob("*")) - before:
                if _SHA256.fullmatch(blob.name) and _sha256(blob) != blob.name:
                    links = [
                        p for p in (cache / "snapshots").rglob("*") if p.resolve() == blob.resolve()
                    ]
                    damaged += [path.name for path in links] or [blob.name]
                    for path in (*links, blob):
                        path.unlink(missing_ok=True)
            if damaged:
                raise _Damaged(", ".join(sorted(damaged)))

    def _failure(self, error: Exception) -> OSError:
        """Return the error to raise for a failed download: its cause and what to do."""
        from huggingface_hub import constants

        chain = list(_causes(error))
        status = next(filter(None, map(_status, chain)), None)
        if status in (401, 403):
            return PermissionError(
                f"The hub refuses access to {self} (HTTP {status}). Log in with `hf auth login`, "
                "or check the token in HF_TOKEN."
            )
        if status == 404:
            return FileNotFoundError(
                f"The hub lists a file of {self} that it does not have ({error}). Try another "
                "revision, or tell the model's owner."
            )
        if isinstance(error, OSError) and (error.filename or error.errno == errno.ENOSPC):
            return OSError(
                f"Could not keep {self} in the cache {constants.HF_HUB_CACHE}: {error}. Free some "
                "space, or name another folder in HF_HOME."
            )
        whole = f"Could not download {self}, and it is not complete in the cache"
        if constants.HF_HUB_OFFLINE:
            return ConnectionError(
                f"{whole} {constants.HF_HUB_CACHE}: HF_HUB_OFFLINE is set. Unset it, or run once "
                "where there is a network; or give a local folder."
            )
        kept = "Completed downloads are kept."
        if status == 429:
            return ConnectionError(
                f"{whole}: the hub got too many requests (HTTP 429). Wait some minutes and try "
                f"again; with a token in HF_TOKEN more are allowed. {kept}"
            )
        if status is not None:
            return ConnectionError(
                f"{whole}: the hub answers with HTTP {status} ({error}). Try again later; "
                f"https://status.huggingface.co shows its status. {kept}"
            )
        if any("Timeout" in type(each).__name__ for each in chain):
            return ConnectionError(
                f"{whole}: the hub did not answer in time. Try again; on a slow network allow more "
                "seconds in HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT (now "
                f"{constants.HF_HUB_ETAG_TIMEOUT} and {constants.HF_HUB_DOWNLOAD_TIMEOUT}). {kept}"
            )
        return ConnectionError(
            f"{whole} ({type(error).__name__}: {error}). Check the network (and HF_ENDPOINT) and "
            f"try again. {kept} Or give a local folder."
        )


class _Damaged(Exception):
    """Names of files whose content does not match their checksum."""


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _bounded_waits() -> Iterator[None]:
    """Limit the waiting time of every request to the settings of `huggingface_hub`."""
    # `huggingface_hub` requests a repository's commit and file list without a time limit, so a
    # silent server would block the program forever, and repeats other requests for a minute each.
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    longest = max(constants.HF_HUB_ETAG_TIMEOUT, constants.HF_HUB_DOWNLOAD_TIMEOUT)

    def bound(request):
        asked = request.extensions.get("timeout") or {}
        request.extensions["timeout"] = {
            kind: min(asked.get(kind) or longest, longest)
            for kind in ("connect", "read", "write", "pool")
        }

    hooks = get_session().event_hooks["request"]
    hooks.append(bound)
    try:
        yield
    finally:
        hooks.remove(bound)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and the errors that caused it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _status(error: BaseException) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)
