"""ColPali: Faysse et al. 2024, https://arxiv.org/abs/2407.01449.

A PaliGemma that finds pages of documents: a layer makes a vector of each state, of a page or of a
query, and late interaction compares them.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.placed import nested
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.families.vision.paligemma import PALIGEMMA
from keras_transformer.checkpoints.weights.tables import layers
from keras_transformer.config import TransformerConfig

# The output matrix of the language model, which computes no vector.
_OUTPUT = "token_embedding/reverse_embeddings"


def _read_dim(values: Values) -> dict[str, Any]:
    return {"vector_dim": number(values, "embedding_dim", 128)}


_DIM = Conversion(_read_dim, lambda task: {"embedding_dim": task.get("vector_dim", 128)})


def retriever(family: Family, model_type: str, architecture: str, **values: Any) -> Family:
    """Return the family of retrievers of pages that wrap the models of a family.

    Args:
        family: the family of the models in `vlm_config`.
        model_type: the value in `config.json`.
        architecture: the name of the class there, which has the head.
        **values: the templates of `PageEmbedder`.
    """
    (conversion,) = family.conversions

    def read(values: Values) -> dict[str, Any]:
        inner = nested(values, "vlm_config")
        kind = inner.get("model_type", family.model_type)
        if kind != family.model_type:
            raise ValueError(
                f"The model {kind!r} in vlm_config is not supported, only {family.model_type!r}."
            )
        return {**conversion.read(inner), "tie_embeddings": True}

    def write(config: TransformerConfig) -> dict[str, Any]:
        return {"vlm_config": {"model_type": family.model_type, **conversion.write(config)}}

    return Family(
        model_type=model_type,
        architecture=architecture,
        bare=False,
        fields={},
        constants={"kind": "seq2seq"},
        conversions=(Conversion(read, write),),
        weights=tuple(line for line in family.weights if line.ours != _OUTPUT),
        heads={
            "PageEmbedder": PublishedHead(
                architectures=(architecture,),
                weights=layers({"projection": "embedding_proj_layer"}),
                values=values,
                options=(_DIM,),
            )
        },
        names=dataclasses.replace(
            family.names,
            prefixes=("vlm.",),
            ignored=(*family.names.ignored, "language_model.lm_head.weight", "lm_head.weight"),
        ),
    )


COLPALI = retriever(
    PALIGEMMA,
    "colpali",
    "ColPaliForRetrieval",
    page_template="{image}<bos>Describe the image.\n",
    query_template="<bos>Question: {query}" + "<pad>" * 10 + "\n",
)
