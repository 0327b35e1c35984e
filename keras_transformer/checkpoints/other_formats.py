"""Other formats of models that users may have, and how to convert them to presets."""

from collections.abc import Iterable, Mapping
from typing import Any

FAMILIES_PAGE = "docs/families.md lists what is supported."
ADAPTER_CONFIG = "adapter_config.json"
MERGE_WITH_PEFT = (
    "Merge it into its model with PEFT: `peft.AutoPeftModelForCausalLM.from_pretrained(folder)"
    ".merge_and_unload().save_pretrained(new_folder)`, or the class of its task, and use the new "
    "folder."
)


def is_keras_hub(values: Mapping[str, Any]) -> bool:
    """Whether the content of a `config.json` is KerasHub's."""
    return "registered_name" in values and not {"model_type", "format"} & set(values)


def what_it_is(names: Iterable[str]) -> str:
    """Return a sentence about files of other formats, to append to an error."""
    names = list(names)
    if ADAPTER_CONFIG in names:
        return (
            " It is a PEFT adapter: additional weights, without the model itself. Load the model "
            f"that it was trained for, then `task.load_adapter(folder)`. {MERGE_WITH_PEFT}"
        )
    # The first part of several is the one to name.
    gguf = min((name for name in names if name.lower().endswith(".gguf")), default=None)
    if gguf:
        return (
            f" {gguf} is a GGUF file, which is a preset of its own: give the path of the file "
            "itself to `from_preset`, after downloading it if it is on the hub."
        )
    if any(name.endswith((".keras", ".h5")) for name in names):
        return " A Keras file is loaded by `keras.models.load_model`."
    return shards_of_training(names)


def shards_of_training(names: Iterable[str]) -> str:
    """Return a sentence about the files of DeepSpeed or FSDP, or an empty one without them."""
    names = [name.rstrip("/").rpartition("/")[2] for name in names]

    def first(*beginnings: str, end: str = "") -> str | None:
        return next((n for n in names if n.startswith(beginnings) and n.endswith(end)), None)

    found = first("zero_pp_rank_", "bf16_zero_pp_rank_", "global_step", "zero_to_fp32.py")
    if found:
        return (
            f" {found} is from a checkpoint of DeepSpeed, whose weights are divided among the "
            "processes of a training. Join them by the script that DeepSpeed wrote beside them: "
            "`python zero_to_fp32.py . new_folder --safe_serialization`, and copy config.json and "
            "the tokenizer's files to the new folder."
        )
    if first("pytorch_model_fsdp", end=".bin"):
        return (
            " pytorch_model_fsdp.bin has the whole weights of a training with FSDP, in a file that "
            "can run code when loaded. Convert it once where you trust the source: "
            "`model.load_state_dict(torch.load(file, weights_only=True))` in a model of "
            "Transformers with this config, then `model.save_pretrained(new_folder)`."
        )
    found = first("pytorch_model_fsdp_") or first("", end=".distcp")
    if found:
        return (
            f" {found} is from a training with FSDP, whose weights are divided among its "
            "processes. Join them: `accelerate merge-weights folder_of_the_shards new_folder`, "
            "which writes model.safetensors, and copy config.json and the tokenizer's files to "
            "the new folder."
        )
    return ""
