"""Upload of a task to the Hugging Face hub, with a card that says how to load it."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_transformer.checkpoints.exporting import choose_family, export_to_huggingface
from keras_transformer.checkpoints.exporting import published_task as published_task_of
from keras_transformer.checkpoints.presets.hub import SCHEME, HubName
from keras_transformer.checkpoints.presets.publishing import CARD_FILE
from keras_transformer.checkpoints.presets.saving import check_metadata, preset_card, save_preset
from keras_transformer.support.checking import check_choice, check_flag, check_text, shorten
from keras_transformer.support.files import write_text

FORMATS = ("keras_transformer", "huggingface")
_COMMIT = "Upload with keras_transformer"


def push_to_hub(
    task: Any,
    repository: str,
    format: str = "keras_transformer",
    *,
    private: bool | None = None,
    token: str | None = None,
    dtype: str | None = None,
    message: str = _COMMIT,
    card: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> str:
    """Upload a task as one commit. See `Task.push_to_hub`."""
    import huggingface_hub

    if not isinstance(repository, str):
        raise ValueError(f"`repository` must be 'org/name', received {shorten(repository)}.")
    hub = HubName.parse(SCHEME + repository.removeprefix(SCHEME))
    check_choice("format", format, FORMATS)
    if private is not None:
        check_flag("private", private)
    check_text("message", message)
    check_metadata(metadata)
    if card is not None:
        check_text("card", card)
    api = huggingface_hub.HfApi(token=token)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, hub.repository.split("/")[1])
        _write(task, folder, format, hub, dtype, card, metadata)
        try:
            api.create_repo(hub.repository, private=private, exist_ok=True)
            if hub.revision != "main":
                api.create_branch(hub.repository, branch=hub.revision, exist_ok=True)
            done = api.upload_folder(
                repo_id=hub.repository,
                folder_path=folder,
                commit_message=message,
                revision=hub.revision,
            )
        except Exception as error:  # the exceptions of HTTP libraries differ between releases
            raise _failure(hub, error) from error
    return done.commit_url


def _write(task, folder: Path, format: str, hub: HubName, dtype, card, metadata) -> None:
    values = {"name": type(task).__name__, **task.task_values()}
    if format == "huggingface":
        export_to_huggingface(task, folder, dtype=dtype)
    else:
        save_preset(
            folder,
            backbone=task.backbone,
            tokenizer=task.processor,
            task=values,
            head_variables=task.head,
            dtype=dtype,
            metadata=metadata,
        )
    if card is None:
        told = {**(metadata or {}), "parameters": task.count_params()}
        described = {"backbone": task.backbone.config.flat, "task": values, "metadata": told}
        card = preset_card(
            hub.repository.split("/")[1], described, source=f"{SCHEME}{hub.repository}"
        )
        card += _elsewhere(task, format, hub)
    write_text(folder / CARD_FILE, card)


def _elsewhere(task, format: str, hub: HubName) -> str:
    """Return the parts of a card on other libraries that run the model."""
    source = f"{SCHEME}{hub.repository}"
    text = f"""
## ONNX Runtime

```
keras-transformer export --preset {source} --format onnx model
```
"""
    _, head = published_task_of(task)
    try:
        _, config = choose_family(task.backbone, head, None)
    except ValueError:  # no published architecture computes the same
        return text
    if format == "huggingface":
        model = config.get("architectures", ["AutoModel"])[0]
        load = f'model = transformers.{model}.from_pretrained("{hub.repository}")'
    else:
        load = (
            "import keras_transformer\n\n"
            f'task = keras_transformer.{type(task).__name__}.from_preset("{source}")\n'
            'keras_transformer.checkpoints.export_to_huggingface(task, "model")\n'
            'model = transformers.AutoModel.from_pretrained("model")'
        )
    return f"\n## Transformers\n\nThe architecture is `{config['model_type']}`.\n\n```python\n" + (
        f"import transformers\n{load}\n```\n{text}"
    )


def _failure(hub: HubName, error: Exception) -> Exception:
    """Return the error to raise for a failed upload: its cause and what to do."""
    import huggingface_hub.errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403) or type(error).__name__ == "LocalTokenNotFoundError":
        return PermissionError(
            f"The hub does not let you write {hub.repository}"
            f"{f' (HTTP {status})' if status else ''}. Log in with `hf auth login`, or give a "
            "token that may write, as `token` or in HF_TOKEN."
        )
    if isinstance(error, huggingface_hub.errors.HFValidationError):
        return ValueError(f"{hub} cannot be a model on the hub: {error}")
    if status is not None and 400 <= status < 500:
        return ValueError(f"The hub refuses {hub.repository} (HTTP {status}): {error}")
    return ConnectionError(
        f"Could not upload {hub.repository} ({type(error).__name__}: {error}). Nothing was "
        "committed. Check the network (and HF_ENDPOINT) and try again."
    )
