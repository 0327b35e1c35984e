"""Image to text: captioning, visual question answering, text recognition."""

import keras

from keras_transformer.models.backbone import Backbone
from keras_transformer.models.runtime.read_write_lock import reads
from keras_transformer.processors.processor import Processor
from keras_transformer.tasks.media.source_to_text import (
    SourceTextHead,
    SourceToText,
    check_template,
    in_template,
)
from keras_transformer.tasks.media.sources import PictureProcessor
from keras_transformer.tokenizers import Tokenizer


class CaptionHead(SourceTextHead):
    """The head of `ImageToText`: logits of the next token of a text about an image."""

    beside = ("question", "prompt")
    learned = ("answer", "caption", "captions", "text", "sentence")


@keras.saving.register_keras_serializable(package="keras_transformer")
class ImageToText(SourceToText):
    """A model that reads an image and writes text: a caption, or an answer.

    Trains on images and texts, `fit(images, captions)`, or on images, questions and answers,
    `fit((images, questions), answers)`. Compiled with Adam (1e-4), token cross-entropy, perplexity
    and accuracy; `compile` changes this, and takes the default `sampler`.

    Args:
        backbone: a `Seq2Seq` whose encoder has an image `stem`. The decoder attends to the
            encoder's states or, with a `placeholder_id`, gets them in its prompt in the place of
            placeholder tokens. Or a `Seq2Seq` whose `source` has the image stem: the encoder then
            reads the question and attends to the image, and the decoder attends to the encoder
            (BLIP).
        processor: `processors.ImageProcessor`, or None if the task only takes arrays and ids.
        tokenizer: `Tokenizer`, or None if the task only takes arrays and ids.
        start_id: int, the id that the decoder starts from. Defaults to the tokenizer's start id,
            else to its padding id; a model with placeholders may have no start id.
        end_ids: list of int, ids that each end a text. Defaults to the tokenizer's end id.
        template: str, a text around each prompt, with `"{prompt}"` in its place, such as
            `"USER: <image> {prompt} ASSISTANT:"`. A prompt that already contains the placeholder
            is used as is. Defaults to the prompt alone.
        name: str.

    Call arguments:
        inputs: dict with `encoder_images`, float `(batch, height, width, channels)`,
            `decoder_token_ids`, `decoder_padding_mask` and optionally `decoder_prefix_mask`, as for
            `Seq2Seq`. With a `source`: `source_images` instead, and also `encoder_token_ids` and
            `encoder_padding_mask`.

    Returns:
        Logits, float `(batch, target_length, vocabulary_size)`.

    Raises:
        ValueError: if the backbone reads no images, or the template has no place for the prompt.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    tokenizer = kt.Tokenizer.train(["a dark square", "a bright square"] * 4, vocabulary_size=300)
    config = kt.TransformerConfig(
        kind="seq2seq", vocabulary_size=tokenizer.vocabulary_size, hidden_dim=32, num_layers=2,
        num_heads=2, intermediate_dim=64, position="learned", max_sequence_length=32,
        encoder={
            "vocabulary_size": 0,
            "stem": {"kind": "patches", "image_size": [16, 16], "patch_size": 4},
        },
    )
    captioner = kt.ImageToText(
        kt.models.Seq2Seq(config), kt.ImageProcessor(size=16), tokenizer
    )
    images = [np.full((16, 16, 3), value, "uint8") for value in (10, 240)]
    captioner.fit(images, ["a dark square", "a bright square"], epochs=1, verbose=0)
    assert isinstance(captioner.caption(images[0], max_new_tokens=5), str)
    ```

    Source: Vinyals et al. 2015, "Show and Tell", section 3, with the encoder of Dosovitskiy et al.
    2020 and the decoder of Vaswani et al. 2017; with placeholders: Liu et al. 2023, "Visual
    Instruction Tuning".
    """

    alias = "image_to_text"
    head_class = CaptionHead
    processor_class = PictureProcessor
    stem_example = "{'kind': 'patches', 'image_size': [224, 224], 'patch_size': 16}"
    task_options = (*SourceToText.task_options, "template")

    def __init__(
        self,
        backbone: Backbone,
        processor: Processor | None = None,
        tokenizer: Tokenizer | None = None,
        start_id: int | None = None,
        end_ids: list[int] | None = None,
        template: str | None = None,
        name: str | None = None,
    ):
        super().__init__(backbone, processor, tokenizer, start_id, end_ids, name=name)
        self.template = check_template(template)

    def prompt_rows(self, prompts, count, **options):
        if prompts is None and self.template is not None and self.tokenizer is not None:
            prompts = ""
        return super().prompt_rows(prompts, count, **options)

    def _encoded_prompts(self, prompts, count):
        place = self.backbone.config.placeholder_id
        token = None if place is None else self.tokenizer.id_to_token(place)
        texts = self._prompt_texts(prompts, count)
        return self.generator.format.encode(in_template(self.template, texts, token))

    @reads
    def caption(self, images, **options):
        """Write a caption for each image.

        Args:
            images: a list of images that `ImageProcessor` can read, or one image.
            **options: as for `generate`.

        Returns:
            A string for each image; a single string if one image is given.
        """
        return self.generate(images, **options)

    @reads
    def answer(self, images, questions, **options):
        """Answer a question about each image.

        Args:
            images: a list of images that `ImageProcessor` can read, or one image.
            questions: a string for each image, or one for all.
            **options: as for `generate`.

        Returns:
            A string for each image; a single string if one image is given.
        """
        return self.generate(images, questions, **options)
