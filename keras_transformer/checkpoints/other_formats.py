"""Other formats of models that users may have, and how to convert them to presets."""

from collections.abc import Iterable, Mapping
from typing import Any

FAMILIES_PAGE = "docs/families.md lists what is supported."


def is_keras_hub(values: Mapping[str, Any]) -> bool:
    """Whether the content of a `config.json` is KerasHub's."""
    return "registered_name" in values and not {"model_type", "format"} & set(values)


def what_it_is(names: Iterable[str]) -> str:
    """Return a sentence about files of other formats, to append to an error."""
    names = list(names)
    if "adapter_config.json" in names:
        return (
            " It is a PEFT adapter: additional weights, without the model itself. Merge the two "
            "with PEFT: `peft.AutoPeftModelForCausalLM.from_pretrained(folder)"
            ".merge_and_unload().save_pretrained(new_folder)`, or the class of its task, and use "
            "the new folder."
        )
    gguf = next((name for name in names if name.lower().endswith(".gguf")), None)
    if gguf:
        return (
            f" {gguf} is a GGUF file, which is a preset of its own: give the path of the file "
            "itself to `from_preset`, after downloading it if it is on the hub."
        )
    if any(name.endswith((".keras", ".h5")) for name in names):
        return " A Keras file is loaded by `keras.models.load_model`."
    return ""
