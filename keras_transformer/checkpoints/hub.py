"""Presets from the Hugging Face hub, through `huggingface_hub` into its cache."""

import dataclasses
import re
from pathlib import Path

SCHEME = "hf://"
# Values, texts and tokenizers; the weights only when they are asked for.
DESCRIPTION_FILES = ("*.json", "*.txt", "*.model", "README.md")
WEIGHT_FILES = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")
_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", re.ASCII)


@dataclasses.dataclass(frozen=True)
class HubName:
    """A repository of the hub and a revision of it (branch, tag or commit).

    Example:
    ```python
    from keras_transformer.checkpoints.hub import HubName

    name = HubName.parse("hf://google-bert/bert-base-uncased@main")
    assert (name.repository, name.revision) == ("google-bert/bert-base-uncased", "main")
    ```
    """

    repository: str
    revision: str = "main"

    @classmethod
    def parse(cls, name: str) -> "HubName":
        """Reads `hf://org/name` or `hf://org/name@revision`.

        Raises:
            ValueError: If the name is of another form.
        """
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
        """Downloads the files of some patterns, or finds them in the cache.

        Args:
            patterns: Which files, as in `huggingface_hub.snapshot_download`.

        Returns:
            The folder of the snapshot in the cache.

        Raises:
            FileNotFoundError: If there is no such repository or revision.
            PermissionError: If the repository needs an account or an agreement.
            ConnectionError: If the hub cannot be reached and the files are not cached.
        """
        import huggingface_hub
        from huggingface_hub import errors

        try:
            folder = huggingface_hub.snapshot_download(
                self.repository, revision=self.revision, allow_patterns=list(patterns)
            )
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
        except Exception as error:  # what an HTTP library raises differs between releases
            if _status(error) in (401, 403):
                raise PermissionError(
                    f"The hub refuses access to {self} (HTTP {_status(error)}). Log in with "
                    "`hf auth login`, or check the token in HF_TOKEN."
                ) from error
            raise ConnectionError(
                f"Could not download {self}, and it is not whole in the cache "
                f"({type(error).__name__}: {error}). Check the network (and HF_HUB_OFFLINE, "
                "HF_ENDPOINT) and try again; what was downloaded is kept. Or give a local folder."
            ) from error
        return Path(folder)

    def cached(self, name: str) -> Path | None:
        """The folder of the snapshot in the cache if the file `name` is in it. No download."""
        import huggingface_hub

        path = huggingface_hub.try_to_load_from_cache(self.repository, name, revision=self.revision)
        return Path(path).parent if isinstance(path, str) else None


def _status(error: Exception) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)
