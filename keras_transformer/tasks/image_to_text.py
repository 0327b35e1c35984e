"""Text of images: captions, answers to questions, lines that are read."""

import keras

from keras_transformer.models.backbone import Backbone
from keras_transformer.models.turns import reads
from keras_transformer.processors.processor import Processor
from keras_transformer.tasks.placeholders import check_template, in_template
from keras_transformer.tasks.source_to_text import SourceToText
from keras_transformer.tasks.sources import PictureProcessor
from keras_transformer.tokenizers import Tokenizer


@keras.saving.register_keras_serializable(package="keras_transformer")
class ImageToText(SourceToText):
    """A model that reads an image and writes text: a caption, or an answer.

    Trains on images and texts, `fit(images, captions)`, or on images, questions and answers,
    `fit((images, questions), answers)`. Compiled with Adam (1e-4), token cross-entropy, perplexity
    and accuracy; `compile` changes that, and takes the default `sampler`.

    Args:
        backbone: a `Seq2Seq` whose encoder has a `stem` of images. Its decoder attends to the
            encoder's states, or with a `placeholder_id` has them among those of its prompt. Or one
            whose `source` has this stem: then the encoder reads the question and attends to the
            image, and the decoder to the encoder (BLIP).
        processor: `processors.ImageProcessor`; None for a task that takes arrays and ids.
        tokenizer: `Tokenizer`, likewise.
        start_id: int, the id that the decoder starts from. Defaults to the tokenizer's start,
            without one its padding, or with placeholders none.
        end_ids: list of int, any of which ends a text. Defaults to the tokenizer's end.
        template: str, what a prompt is written into, where `"{prompt}"` stands for it, such as
            `"USER: <image> {prompt} ASSISTANT:"`. A prompt that says itself where the placeholder
            is goes as it is. Defaults to the prompt alone.
        name: str.

    Call arguments:
        inputs: dict of `encoder_images` float `(batch, height, width, channels)`,
            `decoder_token_ids`, `decoder_padding_mask` and perhaps `decoder_prefix_mask`, as for
            `Seq2Seq`; with a `source` of `source_images`, and of `encoder_token_ids` and
            `encoder_padding_mask` too.

    Returns:
        Logits, float `(batch, target_length, vocabulary_size)`.

    Raises:
        ValueError: for a backbone whose encoder reads no images, or a template without a place for
            the prompt.

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
    processor_class = PictureProcessor
    reads_arrays = ("encoder_images", "source_images")
    stem_example = "{'kind': 'patches', 'image_size': [224, 224], 'patch_size': 16}"
    source_unit = "image"
    beside = ("question", "prompt")
    learned = ("answer", "caption", "captions", "text", "sentence")
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
        return self._encode_prompts(in_template(self.template, texts, token))

    @reads
    def caption(self, images, **options):
        """A caption of each image.

        Args:
            images: a list of what `ImageProcessor` takes, or one image.
            **options: of `generate`.

        Returns:
            A string for each image; for one image a string.
        """
        return self.generate(images, **options)

    @reads
    def answer(self, images, questions, **options):
        """An answer to a question about each image.

        Args:
            images: a list of what `ImageProcessor` takes, or one image.
            questions: a string for each image, or one for all.
            **options: of `generate`.

        Returns:
            A string for each image; for one image a string.
        """
        return self.generate(images, questions, **options)
