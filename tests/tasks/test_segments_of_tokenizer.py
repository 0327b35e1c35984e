"""A template whose segments the model has no embeddings for."""

import pytest
import tokenizers
from tokenizers import models, processors

import keras_transformer as kt

pytestmark = pytest.mark.one_backend


def tokenizer(segment):
    backend = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "x": 2}, "[UNK]"))
    backend.post_processor = processors.Sequence(
        [
            processors.TemplateProcessing(
                single=f"x:{segment} $A:0", pair="$A:0 $B:1", special_tokens=[("x", 2)]
            )
        ]
    )
    return kt.Tokenizer(backend, pad="[UNK]")


def encoder(segments):
    return kt.models.Encoder(
        kt.TransformerConfig(
            kind="encoder", vocabulary_size=3, hidden_dim=8, num_layers=1, num_heads=2,
            intermediate_dim=8, max_sequence_length=8, segment_vocabulary_size=segments,
        )
    )  # fmt: skip


def test_segments_beyond_the_embeddings_are_refused():
    assert tokenizer(0).segment_count == 2 and tokenizer(3).segment_count == 4
    with pytest.raises(ValueError, match="has 4 segments, but the model has .* of only 2"):
        kt.TextClassifier(encoder(2), tokenizer(3), num_classes=2)
    for segments, segment in ((2, 1), (4, 3), (0, 3)):  # without embeddings none is looked up
        task = kt.TextClassifier(encoder(segments), tokenizer(segment), num_classes=2)
        assert task.tokenizer.segment_count == max(2, segment + 1)
