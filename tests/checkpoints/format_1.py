"""The config of a saved preset by keywords, as format 1 had it, for tests that change one value."""

import json


def in_format_1(folder):
    """Write the `config.json` of a folder in format 1, and return its values."""
    from keras_transformer import TransformerConfig

    path = folder / "config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    config = TransformerConfig.from_dict(values["backbone"])
    values |= {"format_version": 1, "backbone": config.stated()}
    path.write_text(json.dumps(values), encoding="utf-8")
    return values
