"""Image to text: captioning, visual question answering, text recognition."""

import keras
import numpy as np

from keras_transformer.data import BucketedDataset
from keras_transformer.data.conversations import conversation_columns
from keras_transformer.data.pictured import is_messages
from keras_transformer.data.record_objects import column_names
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.runtime.read_write_lock import changes, reads
from keras_transformer.processors.processor import Processor
from keras_transformer.support.checking import check_choice, check_int
from keras_transformer.support.foreign_names import refuse
from keras_transformer.tasks.data.conversation_rows import refuse_train_on
from keras_transformer.tasks.images.image_conversations import (
    ImageConversations,
    check_markup,
    start_of,
)
from keras_transformer.tasks.images.row_images import (
    RowImages,
    image_arrays,
    repeated,
    states_of,
)
from keras_transformer.tasks.media.source_to_text import (
    SourceTextHead,
    SourceToText,
    check_template,
    in_template,
)
from keras_transformer.tasks.media.sources import PictureProcessor, SourceRows, holds_chats
from keras_transformer.tokenizers import ImageMarkup, Tokenizer
from keras_transformer.training import lora


class CaptionHead(SourceTextHead):
    """The head of `ImageToText`: logits of the next token of a text about an image."""

    beside = ("question", "prompt")
    learned = ("answer", "caption", "captions", "text", "sentence")


@keras.saving.register_keras_serializable(package="keras_transformer")
class ImageToText(SourceToText):
    """A model that reads an image and writes text: a caption, or an answer.

    Trains on images and texts, `fit(images, captions)`, or on images, questions and answers,
    `fit((images, questions), answers)`. A model with placeholders also takes conversations with
    any number of images, `fit(conversations)`, `chat(messages)` and `generate(conversations)`: see
    `make_dataset`. Compiled with Adam (1e-4), token cross-entropy, perplexity
    and accuracy; `compile` changes this, and takes the default `sampler`.

    Args:
        backbone: a `Seq2Seq` whose encoder has an image `stem`. The decoder attends to the
            encoder's states or, with a `placeholder_id`, gets them in its prompt in the place of
            placeholder tokens; such an encoder may also read recordings in place of images. Or a
            `Seq2Seq` whose `source` has the image stem: the encoder then reads the question, and
            attends to the image (BLIP) or gets its states in the place of placeholder tokens
            (BLIP-2 with T5), and the decoder attends to the encoder.
        processor: `processors.ImageProcessor`, or None if the task only takes arrays and ids.
        tokenizer: `Tokenizer`, or None if the task only takes arrays and ids.
        start_id: int, the id that the decoder starts from. Defaults to the tokenizer's start id,
            else to its padding id; a model with placeholders may have no start id.
        end_ids: list of int, ids that each end a text. Defaults to the tokenizer's end id.
        template: str, a text around each prompt, with `"{prompt}"` in its place, such as
            `"USER: <image> {prompt} ASSISTANT:"`. A placeholder may be written as `"{image}"`. A
            prompt that already contains the placeholder is used as is. Defaults to the prompt
            alone.
        image_token: str, the token that the chat template writes for an image in a conversation.
            Defaults to the placeholder's.
        image_text: str, what replaces this token, with `"{image}"` in place of the placeholders,
            such as `"<start_of_image>{image}<end_of_image>"`. Defaults to the placeholders alone.
        name: str.

    Call arguments:
        inputs: dict with `encoder_images`, float `(batch, height, width, channels)`, or for images
            of any size `encoder_patches` and `encoder_patch_positions`, see
            `layers.stems.PatchSequenceStem`; `decoder_token_ids`, `decoder_padding_mask` and
            optionally `decoder_prefix_mask`, as for `Seq2Seq`. With a `source`: `source_images`
            instead, and also `encoder_token_ids` and `encoder_padding_mask`. With several images in
            a row, or images of any size, also `decoder_placed_states`, and `decoder_placed_offsets`
            if `Seq2Seq` takes them.

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
    task_options = (*SourceToText.task_options, "template", "image_token", "image_text")

    def __init__(
        self,
        backbone: Backbone,
        processor: Processor | None = None,
        tokenizer: Tokenizer | None = None,
        start_id: int | None = None,
        end_ids: list[int] | None = None,
        template: str | None = None,
        image_token: str | None = None,
        image_text: str | None = None,
        name: str | None = None,
    ):
        check_markup(image_token, image_text)
        super().__init__(backbone, processor, tokenizer, start_id, end_ids, name=name)
        self.template = check_template(template)
        self.image_token, self.image_text = image_token, image_text

    @classmethod
    def takes_backbone(cls, backbone) -> bool:
        return super().takes_backbone(backbone) or backbone.config.hearing_side == "encoder"

    @property
    def takes_conversations(self) -> bool:
        """Whether the task takes conversations with images, bool."""
        places, tokenizer = self.backbone.placeholder_tokens, self.tokenizer
        return (
            places is not None
            and places.side == "decoder"
            and not places.apart
            and tokenizer is not None
            and tokenizer.chat_template is not None
        )

    @property
    def source_inputs(self):
        names = super().source_inputs
        of_rows = ("placed_states", "placed_offsets", "mixed_states", "mixed_weights")
        taken = {each.name for each in self.backbone.input_arrays}
        places = self.backbone.placeholder_tokens
        side = "decoder" if places is None else places.side
        own = tuple(n for each in of_rows if (n := f"{side}_{each}") in taken)
        return (*names, *own, *sorted(name for name in taken if name.startswith("sound_")))

    def arrays_of(self, sources, places=None, learns=False):
        if len(sources) and isinstance(sources[0], RowImages):
            return image_arrays(self.backbone, self._require_processor().source, sources, places)
        return super().arrays_of(sources, places, learns)

    def asked(self, sources, prompts, **options):
        if not holds_chats(sources):
            return super().asked(sources, prompts, **options)
        if prompts is not None or options:
            raise ValueError(
                "A conversation holds its question: leave out `prompts`, and give the question as "
                "a message of the role 'user'."
            )
        alone = is_messages(sources)
        images, rows = ImageConversations(self).prompts([sources] if alone else sources)
        return images, rows, alone

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Batch images and their texts, or conversations with images.

        Args:
            x: images, or a tuple of images and prompts, such as questions; conversations, in any
                form of `data.as_conversations`, whose messages hold images as
                `data.pictured` says; or prompts that are lists of messages.
            y: the texts to generate, one for each image, or the answers to the prompts. It is left
                out for conversations.
            sample_weight: one number for each image or conversation; or for each image an array
                with one number for each token of its text, including the end.
            **options: as in `Task.make_dataset`; and for conversations `train_on`, as for
                `CausalLM.make_dataset`.

        Raises:
            ValueError: if the data is invalid, the numbers of images and of parts that stand for
                them differ, or a text holds the token that stands for an image.

        Example:
        ```python
        import numpy as np
        import keras_transformer as kt

        tokenizer = kt.Tokenizer.train(
            ["which is dark?", "the first"] * 4, vocabulary_size=300, special_tokens=["<image>"]
        ).with_chat_template("zephyr")
        config = kt.TransformerConfig(
            kind="seq2seq", vocabulary_size=tokenizer.vocabulary_size, hidden_dim=16, num_layers=1,
            num_heads=2, intermediate_dim=32, position="rotary", normalize_first=True,
            placeholder_id=tokenizer.token_to_id("<image>"), projector="mlp",
            encoder={
                "vocabulary_size": 0, "position": "learned",
                "stem": {"kind": "patches", "image_size": [8, 8], "patch_size": 4},
            },
        )
        task = kt.ImageToText(kt.models.Seq2Seq(config), kt.ImageProcessor(size=8), tokenizer)
        pictures = [{"type": "image", "image": np.full((8, 8), v, "uint8")} for v in (9, 240)]
        asked = {"role": "user", "content": [*pictures, {"type": "text", "text": "which is dark?"}]}
        inputs, targets, weights = task.make_dataset(
            [[asked, {"role": "assistant", "content": "the first"}]]
        )[0]
        assert inputs["encoder_images"].shape == (2, 8, 8, 3)
        assert tokenizer.decode_whole(targets[weights > 0]).split() == ["the", "first</s>"]
        ```
        """
        train_on = options.pop("train_on", None)
        if self._holds_conversations(x):
            x = [x] if is_messages(x) else x
            return ImageConversations(self).dataset(x, y, sample_weight, train_on, **options)
        refuse_train_on(train_on)
        return super().make_dataset(x, y, sample_weight, **options)

    def prompted(self, sources, prompts, **options):
        processor = self._require_processor()
        places = self.backbone.placeholder_tokens
        if self.backbone.config.hearing_side == "encoder":
            raise ValueError(
                "This model sees no images: give conversations with recordings, as `chat` takes "
                "them."
            )
        alike = places is None or places.count is not None
        if processor.source.tiling is None and alike:
            return super().prompted(sources, prompts, **options)
        refuse(f"{type(self).__name__}.generate", options)
        states = states_of(self.backbone)
        layouts = [
            processor.source.layouts([image], states, [f"x[{i}]"])[0]
            for i, image in enumerate(sources)
        ]
        token = self.tokenizer.id_to_token(places.token)
        asked = "" if prompts is None else prompts
        texts = self._in_template(self._prompt_texts(asked, len(sources)), token)
        for place, text in enumerate(texts):
            if text.count(token) > 1:
                raise ValueError(
                    f"`prompts[{place}]` has {token!r} {text.count(token)} times, and an image "
                    "goes there once: a conversation, as `chat` takes it, may have several images."
                )
        markup = ImageMarkup(token, token, self.image_text or "{image}")
        written = [
            markup.written(text if token in text else f"{token}{text}", [layout.text])
            for text, layout in zip(texts, layouts, strict=True)
        ]
        rows, start = [], start_of(self.tokenizer)
        for ids, layout in zip(self.generator.format.encode(written), layouts, strict=True):
            runs = [len(run) for run in layout.runs]
            rows.append([*start, *repeated(ids, places.token, runs)])
        pairs = zip(sources, layouts, strict=True)
        return [RowImages.whole([image], [layout]) for image, layout in pairs], rows

    def prompt_rows(self, prompts, count, **options):
        if prompts is None and self.template is not None and self.tokenizer is not None:
            prompts = ""
        return super().prompt_rows(prompts, count, **options)

    def _encoded_prompts(self, prompts, count):
        place = self.backbone.config.placeholder_id
        token = None if place is None else self.tokenizer.id_to_token(place)
        texts = self._prompt_texts(prompts, count)
        return self.generator.format.encode(self._in_template(texts, token))

    def _in_template(self, texts: list[str], token: str | None) -> list[str]:
        template = self.template
        if template is not None and token is not None:
            template = template.replace("{image}", token)
        return in_template(template, texts, token)

    def _holds_conversations(self, x) -> bool:
        names = column_names(x)
        if names is not None:  # a table
            return conversation_columns(names) is not None
        return holds_chats(x)

    @changes
    def fit(self, x=None, y=None, *args, image_tower: str | None = None, **options):
        """Train as `Task.fit` does, also on conversations with images.

        Args:
            x: as for `make_dataset`, or a data set.
            y: as for `make_dataset`.
            *args: as for `Task.fit`.
            image_tower: `"frozen"`, which is the default for conversations: the weights of the
                encoders of images and of sound stay as they are, and the projectors and the decoder
                learn; or
                `"trained"`, which is the default for other data unless it is frozen already. It
                lasts until another value is given. Adapters of `enable_lora` decide by themselves
                what is trained: targets such as `"encoder/query"` are those of the image encoder.
            **options: as for `Task.fit`, and `train_on` for conversations, see `make_dataset`.

        Returns:
            A `keras.callbacks.History`.

        Raises:
            ValueError: as `Task.fit` and `make_dataset`.

        Source: which parts learn: Liu et al. 2023, "Visual Instruction Tuning", section 4.2.
        """
        check_choice("image_tower", image_tower, ("frozen", "trained"), none=True)
        adapted = lora.is_adapted(self.backbone)
        if adapted and image_tower is not None:
            raise ValueError(
                "The task has adapters, which alone are trained: leave out `image_tower`. Targets "
                "of `enable_lora` such as 'encoder/query' train the image encoder."
            )
        if image_tower is None and not adapted and self._holds_conversations(x):
            image_tower = "frozen"
        if image_tower is not None:
            first = next(iter(self.backbone.sides))
            towers = [self.backbone.sides[n] for n in self.backbone.sides if n in (first, "sound_")]
            tower = [v for pair in towers for layer in pair for v in layer.variables]
            if lora.set_trainable(self.backbone, tower, image_tower == "trained"):
                lora.forget_compiled(self)
        return super().fit(x, y, *args, **options)

    def show_example(self, row, train_on: str | None = None, max_length: int | None = None) -> None:
        """Print a conversation as `fit` sees it, with the tokens that the loss counts.

        Each image is shown with its size in pixels, `[image 1: 640 x 480 pixels]`, and each video
        also with the number of its frames.

        Args:
            row: a conversation, in any form of `data.as_conversations`; or a tuple of a prompt and
                its answer.
            train_on: as for `fit`.
            max_length: as for `fit`.

        Raises:
            ValueError: as `fit`, if the row is invalid.
        """
        ImageConversations(self).shown(row, train_on=train_on, max_length=max_length).show()

    def chat(self, messages: list[dict], **options):
        """Answer a conversation with any number of images, videos and recordings.

        Args:
            messages: list of dicts with `role` and `content`, a string or a list of parts:
                `{"type": "text", "text": str}` and `{"type": "image", "image": image}`, or in
                OpenAI's form `{"type": "image_url", "image_url": {"url": "data:..."}}`. An image is
                whatever `ImageProcessor` reads. Models whose processor has `videos` also take
                `{"type": "video", "video": video}`, see `processors.Video`; and those that hear,
                whose processor has `sounds`, `{"type": "audio", "audio": recording}`, see
                `processors.Sound`.
            **options: as for `generate`, e.g. `max_new_tokens`, `sampler`, `stream`.

        Returns:
            The text of the answer, or whatever `generate` returns with these options. `generate`
            also takes a list of conversations, and encodes an image that is in several of them
            once for each batch.

        Raises:
            ValueError: if the model has no chat template or takes one image for each text, a
                message is invalid, a text holds the token that stands for an image, a video or a
                recording, or a recording is too long, too short or damaged.
            ImportError: if jinja2 is not installed.
        """
        if not is_messages(messages):
            raise ValueError(
                "`messages` must be a conversation, a list of dicts with 'role' and 'content'. For "
                "several conversations, call `generate`."
            )
        return self.generate(messages, **options)

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
    def read(self, images, num_refinements: int | None = None, batch_size: int = 8):
        """Read the text in each image.

        The text is written from left to right. A model with a `query_stream`, such as PARSeq, then
        predicts each token once more, given those on both sides of it; this encodes the images a
        second time.

        Args:
            images: a list of images that `ImageProcessor` can read, or one image.
            num_refinements: int, how often all tokens are predicted once more. Defaults to 1 for
                models with a `query_stream`, as published, and to 0 for others.
            batch_size: int, the number of images computed together.

        Returns:
            A string for each image; a single string if one image is given.

        Raises:
            ValueError: if an image cannot be read, a model cannot refine a text, or an argument is
                out of range.
        """
        streamed = self.backbone.config.decoder.has_query_stream
        given = int(streamed) if num_refinements is None else num_refinements
        count = check_int("num_refinements", given, at_least=0, at_most=16)
        if count and not streamed:
            raise ValueError(
                "`num_refinements` needs a model whose decoder has a `query_stream` (PARSeq): "
                "others predict a token from those before it alone."
            )
        sources, starts, alone = self.asked(images, None)
        options = {"max_new_tokens": None, "sampler": "greedy", "batch_size": batch_size}
        rows = self.generator.completed(starts, options, SourceRows.by_name(self, sources))
        for _ in range(count):
            rows = self._refined(sources, rows, batch_size)
        texts = self.tokenizer.decode_batch(rows)
        return texts[0] if alone else texts

    def _refined(self, sources, rows: list[list[int]], batch_size: int) -> list[list[int]]:
        """Return the ids of texts, each predicted from all others of its text."""
        width = self.backbone.config.max_sequence_length
        rows = [row[: width - 1] for row in rows]
        lengths = np.array([[1 + len(row)] for row in rows], "int32")
        whole = [[self.start_id, *row] + [self.pad_id] * (width - 1 - len(row)) for row in rows]

        def make_batch(arrays, masks):
            inputs = self.arrays_of([sources[i] for i in arrays["row"]], arrays["row"])
            ids = inputs["decoder_token_ids"] = arrays["inputs"]
            places = np.broadcast_to(np.arange(width, dtype="int32"), ids.shape)
            inputs["decoder_padding_mask"] = places < arrays["lengths"]
            # All tokens but the one that is predicted.
            inputs["decoder_prefix"] = np.full_like(places, width)
            inputs["decoder_prefix_start"] = np.minimum(places + 2, width)
            return (inputs,)

        options = {"values": {"lengths": lengths}, **self.to_predict(batch_size)}
        dataset = self._bucketed({"inputs": whole}, make_batch, **options)
        ends, refined = list(self.end_ids), []
        for ids in self._row_outputs(dataset, lambda logits: np.argmax(logits, axis=-1)):
            stops = np.flatnonzero(np.isin(ids, ends))
            refined.append(ids[: stops[0] if len(stops) else None].tolist())
        return refined

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
