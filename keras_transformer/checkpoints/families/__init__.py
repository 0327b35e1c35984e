"""The published families. A new one is a file here, and its name in the list below."""

from collections.abc import Mapping
from typing import Any

from keras_transformer.checkpoints.families.bert import BERT
from keras_transformer.checkpoints.families.family import Family

FAMILIES = {family.model_type: family for family in (BERT,)}


def get_family(values: Mapping[str, Any]) -> Family:
    """The family of a published config.

    Args:
        values: The content of a `config.json` in Hugging Face format.

    Returns:
        The family that its `model_type` names.

    Raises:
        ValueError: If there is none of that name. The message lists those that are known.

    Example:
    ```python
    from keras_transformer.checkpoints.families import get_family

    assert get_family({"model_type": "bert"}).architecture == "BertModel"
    ```
    """
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(
            f"Checkpoints of model_type {model_type!r} are not supported. Supported are: "
            f"{', '.join(sorted(FAMILIES))}."
        )
    return FAMILIES[model_type]
