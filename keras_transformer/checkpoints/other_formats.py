"""What people have that is not a preset, and how to make one of it."""

from collections.abc import Iterable

FAMILIES_PAGE = "docs/families.md lists what is supported."


def what_it_is(names: Iterable[str]) -> str:
    """A sentence on files that are no preset, to stand behind an error."""
    names = list(names)
    if "adapter_config.json" in names:
        return (
            " It is a PEFT adapter: what was learned beside a model, without the model. Merge the "
            "two where PEFT is installed: `peft.AutoPeftModelForCausalLM.from_pretrained(folder)"
            ".merge_and_unload().save_pretrained(new_folder)`, or the class of its task, and take "
            "the new folder."
        )
    gguf = next((name for name in names if name.lower().endswith(".gguf")), None)
    if gguf:
        return (
            f" {gguf} is a GGUF file, quantized weights for llama.cpp, which are not read. Take "
            "the model that it was made from, which is named on its page of the hub; or convert "
            "it: `transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name)"
            ".save_pretrained(new_folder)`."
        )
    if any(name.endswith((".keras", ".h5")) for name in names):
        return " A file of Keras is loaded by `keras.models.load_model`."
    return ""
