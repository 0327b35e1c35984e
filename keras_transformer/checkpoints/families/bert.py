"""BERT: Devlin et al. 2018, https://arxiv.org/abs/1810.04805.

Also what is BERT with other training: MiniLM, sentence-transformers models, BERT in any language.
"""

from keras_transformer.checkpoints.families.encoders import (
    BERT_FIELDS,
    BERT_REQUIRED,
    ENCODER,
    bert_embeddings,
    bert_layers,
    encoder_heads,
    masked_lm,
)
from keras_transformer.checkpoints.families.family import Family
from keras_transformer.checkpoints.weights import Names, dense

BERT = Family(
    model_type="bert",
    architecture="BertModel",
    fields=BERT_FIELDS,
    constants=ENCODER,
    required=BERT_REQUIRED,
    weights=(
        *bert_embeddings("cls.predictions.decoder.weight"),
        *bert_layers(),
        *dense("pooler", "pooler.dense"),
    ),
    heads=encoder_heads(
        "Bert",
        masked_lm(
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            ("cls.predictions.bias", "cls.predictions.decoder.bias"),
        ),
        also_masked=("BertForPreTraining",),
    ),
    names=Names(
        prefixes=("bert.",),
        suffixes={".gamma": ".weight", ".beta": ".bias"},
        # A buffer of older releases; and the heads that do not make a backbone.
        ignored=("embeddings.position_ids", "cls.*", "classifier.*", "qa_outputs.*"),
    ),
    pooler="pooler.dense.weight",
)
