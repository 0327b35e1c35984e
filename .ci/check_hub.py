"""Compare the bundled presets with the published models that they point to.

    python .ci/check_hub.py                 all of them
    python .ci/check_hub.py bert_base_en    some

Each preset names a commit of a repository on the Hugging Face hub. For that commit and the newest
one this reads the config and the header of the weights (names, shapes and dtypes; not the
weights) and prints what changed. Exits with status 1 if the pinned commit does not load any more.
"""

import json
import sys

import huggingface_hub
from huggingface_hub.utils import tqdm

import keras_transformer as kt
from keras_transformer.checkpoints.presets.hub import SCHEME, HubName


def tensors(api: huggingface_hub.HfApi, repository: str, revision: str) -> dict[str, str]:
    """Return the shape and dtype of each tensor by name."""
    found = api.get_safetensors_metadata(repository, revision=revision)
    return {
        name: f"{info.dtype} {info.shape}"
        for file in found.files_metadata.values()
        for name, info in file.tensors.items()
    }


def config(hub: HubName) -> dict:
    """Return the values of the published config, as this package reads them."""
    described, _, _ = kt.checkpoints.load_config(str(hub), load_weights=False)
    return described.flat


def differences(before: dict, after: dict) -> list[str]:
    """Return a line for each entry of two dicts that is not the same."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return [f"{name}: {before.get(name, 'none')} -> {after.get(name, 'none')}" for name in names]


def check(api: huggingface_hub.HfApi, name: str, pointer: str) -> tuple[str, list[str]]:
    """Return "broken", "changed", "moved" or "same", and the reasons."""
    pinned = HubName.parse(pointer)
    try:
        bundled, _, _ = kt.checkpoints.load_config(name, load_weights=False)
        wrong = differences(bundled.flat, config(pinned))
        held = tensors(api, pinned.repository, pinned.revision)
    except Exception as error:
        return "broken", [f"{type(error).__name__}: {error}"]
    if wrong:
        return "broken", [f"the preset is not the published config: {line}" for line in wrong]
    newest = HubName(pinned.repository, api.model_info(pinned.repository, revision="main").sha)
    if newest.revision == pinned.revision:
        return "same", []
    try:
        lines = differences(config(pinned), config(newest))
        lines += differences(held, tensors(api, newest.repository, newest.revision))
    except Exception as error:
        return "changed", [f"the newest commit does not load: {error}"]
    return ("changed" if lines else "moved"), [f"newest commit {newest.revision}", *lines[:20]]


def main(names: list[str]) -> int:
    """Check presets and print those that are not the same. Return the exit code."""
    api, counts = huggingface_hub.HfApi(), dict.fromkeys(("same", "moved", "changed", "broken"), 0)
    pointers = {}
    for name in names or kt.list_presets():
        path = kt.checkpoints.presets_folder() / name / "config.json"
        weights = json.loads(path.read_text(encoding="utf-8")).get("weights") or {}
        if str(weights.get("hub", "")).startswith(SCHEME):
            pointers[name] = weights["hub"]
    for name, pointer in tqdm(pointers.items(), unit="preset", disable=not sys.stderr.isatty()):
        state, reasons = check(api, name, pointer)
        counts[state] += 1
        if state != "same":
            print(f"{state:8} {name} ({pointer})")
            print("".join(f"         {reason}\n" for reason in reasons), end="")
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    return int(counts["broken"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
