"""Text to text: translation, and all that can be put as such."""

import keras
import numpy as np

from keras_transformer.data import BucketedDataset
from keras_transformer.models.backbone import Backbone
from keras_transformer.tasks.language_model import LanguageModel, with_end
from keras_transformer.tasks.task import text_rows
from keras_transformer.tokenizers import Tokenizer


@keras.saving.register_keras_serializable(package="keras_transformer")
class Seq2SeqLM(LanguageModel):
    """An encoder-decoder that trains on pairs of source and target and translates sources.

    Compiled with Adam (1e-4), token cross-entropy, perplexity and accuracy; `compile` changes
    that, and takes the default `sampler`.

    Args:
        backbone: a seq2seq backbone.
        tokenizer: `Tokenizer` of both sides, or None to take and return ids.
        start_id: int, the id that the decoder starts from. Defaults to the tokenizer's start,
            without one its padding.
        end_ids: list of int, any of which ends a target. Defaults to the tokenizer's end.
        name: str.

    Call arguments:
        inputs: dict, as for `Seq2Seq`.

    Returns:
        Logits, float `(batch, target_length, vocabulary_size)`.

    Example:
    ```python
    import keras_transformer as kt

    translator = kt.Seq2SeqLM.from_preset("transformer_tiny_en_de")
    german = translator.generate(["a man rides a bike ."], sampler="beam")
    assert "mann" in german[0]
    ```

    Source: Vaswani et al. 2017, section 3.
    """

    backbone_kinds = ("seq2seq",)

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer | None = None,
        start_id: int | None = None,
        end_ids: list[int] | None = None,
        name: str | None = None,
    ):
        super().__init__(backbone, tokenizer, end_ids, name=name)
        if start_id is None and tokenizer is not None:
            start_id = tokenizer.start_id
        self.start_id = self.pad_id if start_id is None else start_id
        if not isinstance(self.start_id, int):
            raise ValueError(f"`start_id` must be a token id, received {start_id!r}.")
        backbone.check_ids(start_id=np.asarray([self.start_id]))

    def make_dataset(
        self, x, y=None, sample_weight=None, shuffle: bool = False, seed: int = 0, **options
    ) -> BucketedDataset:
        """Sources and targets as batches, the decoder's input shifted by one.

        Args: as of `Task.make_dataset`; without `y`, `x` is a tuple of sources and targets.
        """
        tokenizer = self._require_tokenizer()
        if sample_weight is not None:
            raise ValueError("Seq2SeqLM weighs every target token alike: no `sample_weight`.")
        if y is None:
            if not isinstance(x, tuple) or len(x) != 2:
                raise ValueError("Seq2SeqLM needs sources and targets: give `y`, or x=(x, y).")
            x, y = x
        sources, targets = text_rows(x), text_rows(y, "y")
        if len(sources) != len(targets):
            raise ValueError(
                f"Received {len(sources)} sources and {len(targets)} targets: give one for each."
            )
        max_length = options.pop("max_length", self.backbone.config.max_sequence_length)
        encoded = tokenizer.encode_targets(targets)
        targets = with_end([row[: max_length - 1] for row in encoded], tokenizer.end_id)

        def make_batch(arrays, masks):
            batch = {
                "encoder_token_ids": arrays["sources"],
                "encoder_padding_mask": masks["sources"],
                "decoder_token_ids": arrays["inputs"],
                "decoder_padding_mask": masks["inputs"],
            }
            return batch, arrays["targets"], masks["targets"].astype("float32")

        return BucketedDataset(
            {"sources": tokenizer.encode_batch(sources, max_length=max_length)},
            make_batch,
            paired_columns={
                "inputs": [[self.start_id, *row[:-1]] for row in targets],
                "targets": targets,
            },
            pad_values=dict.fromkeys(("sources", "inputs", "targets"), self.pad_id),
            shuffle=shuffle,
            seed=seed,
            **options,
        )

    def _encode_prompts(self, texts):
        return self._require_tokenizer().encode_batch(texts)

    def _to_texts(self, prompts, continuations, return_prompt):
        if return_prompt:
            continuations = [row + ids for row, ids in zip(prompts, continuations, strict=True)]
        return self._require_tokenizer().decode_batch(continuations)

    def _engine_inputs(self, ids, mask):
        return {
            "encoder_token_ids": ids,
            "encoder_padding_mask": mask,
            "decoder_token_ids": np.full((len(ids), 1), self.start_id, "int32"),
        }

    def _check_room(self, rows, max_new_tokens):
        config = self.backbone.config
        if config.position == "learned" and max_new_tokens > config.max_sequence_length:
            raise ValueError(
                f"max_new_tokens={max_new_tokens} needs more positions than the model has, "
                f"{config.max_sequence_length}."
            )

    def task_values(self) -> dict:
        return {**super().task_values(), "start_id": self.start_id}
