"""Conversations with images, videos and sound as rows of ids: placeholders, and what counts."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.data import BucketedDataset, Conversation, Records, as_conversations
from keras_transformer.data.pictured import Pictured, pictured
from keras_transformer.processors import Sound, Video
from keras_transformer.processors.image_files import image_size
from keras_transformer.processors.video_files import video_shape
from keras_transformer.support.checking import check_text
from keras_transformer.tasks.data.conversation_rows import encode_rows_of_conversations
from keras_transformer.tasks.data.labels import weighed
from keras_transformer.tasks.data.text import take_max_length, tokenizer_of
from keras_transformer.tasks.images.row_images import (
    RowImages,
    count_mixed,
    image_arrays,
    is_sound,
    repeated,
    states_of,
)
from keras_transformer.tasks.text.shown_example import ShownExample
from keras_transformer.tokenizers import ConversationTokens, ImageMarkup, Tokenizer
from keras_transformer.tokenizers.conversation_tokens import ConversationEncoder
from keras_transformer.tokenizers.image_markup import SoundText, VideoText
from keras_transformer.training import NextToken


class ImageConversations:
    """Conversations of a task, as rows of ids and their images.

    Args:
        task: an `ImageToText` with placeholders, a processor and a tokenizer.

    Raises:
        ValueError: if the task cannot take conversations.
    """

    def __init__(self, task):
        places, tokenizer = task.backbone.placeholder_tokens, tokenizer_of(task)
        if places is None or places.apart or places.side == "encoder":
            raise ValueError(
                "This model takes one image for each text, as fit((images, questions), answers): "
                "conversations need a model that puts images among the tokens of a decoder, with "
                "a `placeholder_id` and positions that count all tokens."
            )
        token = tokenizer.id_to_token(places.token)
        if token is None:
            raise ValueError(
                f"The tokenizer has no token of the id {places.token}, the `placeholder_id` of the "
                "model: give the tokenizer that belongs to it."
            )
        self.task, self.tokenizer, self.places = task, tokenizer, places
        self.states = states_of(task.backbone)
        markup = {} if task.image_text is None else {"text": task.image_text}
        self.videos = getattr(task.processor.source, "videos", None)
        if self.videos is not None and tokenizer.token_to_id(self.videos.token) is not None:
            markup |= {"video": self.videos.token, "around": self.videos.around}
        self.sounds = None
        if task.backbone.config.hearing_side is not None:
            self.sounds = getattr(task.processor.source, "sounds", None)
        if self.sounds is not None and tokenizer.token_to_id(self.sounds.token) is not None:
            markup |= {"sound": self.sounds.token}
        self.markup = ImageMarkup(token, task.image_token or token, **markup)
        self._start = start_of(tokenizer)

    def prompts(self, conversations: Sequence) -> tuple[list[RowImages], list[list[int]]]:
        """Return the images and the ids of conversations that wait for an answer."""
        place = "`conversations[{}]`".format if len(conversations) > 1 else lambda _: "`messages`"
        given = [
            row if isinstance(row, Conversation) else Conversation(list(row))
            for row in conversations
        ]
        rows = self._apart(given, place)
        images = self._images(rows, place)
        encoder = ConversationEncoder(self.tokenizer, images=self.markup)
        texts = list(map(_texts, images))
        encoded = encoder.encode_prompts([row.messages for row in rows], place, texts)
        tokens = [ConversationTokens(ids, [False] * len(ids)) for ids in encoded]
        return images, [each.ids for each in self._placed(tokens, images, place)]

    def dataset(self, x, y, sample_weight, train_on: str | None, **options) -> BucketedDataset:
        """Return the batches of `ImageToText.make_dataset`."""
        if isinstance(x, Records):
            raise ValueError(
                "Conversations with images are lists or data sets of `datasets`, whose images may "
                "be paths: read the rows of the file first, as [json.loads(line) for line in file]."
            )
        max_length = take_max_length(self.task, options, at_least=2)
        given = as_conversations(x, y)
        rows = self._apart(given, "`x[{}]`".format)
        images = self._images(rows, "`x[{}]`".format)
        texts = list(map(_texts, images))
        shown = [row._replace(messages=r.messages) for row, r in zip(given, rows, strict=True)]

        def make_encoder(_, train_on: str):
            encoder = ConversationEncoder(self.tokenizer, train_on, self.markup)

            def encode(some, place):
                given = [(*row[:3], each) for row, each in zip(some, texts, strict=True)]
                return self._placed(encoder.encode(given, place), images, place)

            return encode

        found, kept = encode_rows_of_conversations(
            self.task, shown, None, sample_weight, train_on, max_length, make_encoder
        )
        columns = (objective := NextToken()).columns(found["tokens"])
        columns["counted"] = found["counted"].without_first()
        columns |= {name: found[name] for name in ("weights",) if name in found}
        token = self.places.token
        images = [
            images[place]._replace(states=int((np.asarray(ids) == token).sum()))
            for ids, place in zip(columns["inputs"], kept, strict=True)
        ]
        most, mixed = max(row.states for row in images), max(map(count_mixed, images))
        heard = [is_sound(image) for row in images for image, _ in row.used]
        backbone, source, pad_id = self.task.backbone, self.task.processor.source, self.task.pad_id

        def make_batch(arrays, masks):
            inputs, targets, counted = objective(arrays, masks)
            counted = counted * arrays["counted"]
            inputs = {f"decoder_{name}": array for name, array in inputs.items()}
            if self.places.visibility == "prompt":
                before = np.cumsum(counted, axis=1) - counted == 0
                inputs["decoder_prefix_mask"] = masks["inputs"] & before
            # The batches have the same arrays, even those without images.
            some = [images[i] for i in arrays["row"]]
            inputs |= image_arrays(
                backbone,
                source,
                some,
                kept[arrays["row"]],
                least=int(not all(heard)),
                least_sounds=int(any(heard)),
                most=max(most, self.places.count or 1),
                most_mixed=mixed,
            )
            targets = np.where(targets == token, pad_id, targets)  # it may be no token of the model
            return inputs, targets, weighed(counted.astype("float32"), arrays)

        padded = dict.fromkeys(("inputs", "targets"), pad_id)
        return self.task._bucketed(columns, make_batch, pad_values=padded, **options)

    def shown(self, row: Any, **options) -> ShownExample:
        """Return a row of training data for `ImageToText.show_example`."""
        x, y = ([row[0]], [row[1]]) if isinstance(row, tuple) and len(row) == 2 else ([row], None)
        options = {name: value for name, value in options.items() if value is not None}
        dataset = self.task.make_dataset(x, y, **options)
        inputs, targets, weights = dataset[0]
        length = int(inputs["decoder_padding_mask"][0].sum())
        ids = [*inputs["decoder_token_ids"][0, :length].tolist(), int(targets[0, length - 1])]
        place = "`x[{}]`".format
        (pictures,) = self._images(self._apart(as_conversations(x, y), place), place)
        places = iter([i for i, id in enumerate(ids) if id == self.places.token])
        labels: dict[int, str] = {}
        for number, (image, layout) in enumerate(
            pictures._replace(states=ids.count(self.places.token)).used, 1
        ):
            if isinstance(image, Sound):
                seconds = len(self.sounds.samples(image)) / self.sounds.sampling_rate
                label = f"[recording {number}: {seconds:.1f} seconds]"
            elif isinstance(image, Video):
                count, height, width, _ = video_shape(image.content)
                label = f"[video {number}: {count} frames of {width} x {height} pixels]"
            else:
                height, width = image_size(image)
                label = f"[image {number}: {width} x {height} pixels]"
            labels |= dict.fromkeys(itertools.islice(places, len(layout.states)), label)
        counted = [False, *(weights[0, :length] > 0).tolist()]
        return ShownExample.of_tokens(self.tokenizer, ids, counted, labels)

    def _apart(self, conversations: list[Conversation], place) -> list[Pictured]:
        """Return messages and images apart. Raises ValueError, with the place, if one is wrong."""
        found = []
        for i, row in enumerate(conversations):
            try:
                found.append(pictured(row.messages, row.images))
                self._check_known(found[-1])
            except ValueError as error:
                raise ValueError(f"{place(i)}: {error}") from None
        return found

    def _check_known(self, row: Pictured) -> None:
        """Raise ValueError if a row has a video or a recording that the model cannot read."""
        if self.markup.sound is None and any(isinstance(each, Sound) for each in row.images):
            if self.task.backbone.config.hearing_side is None:
                raise ValueError("This model hears no sound: a part of a message is a recording.")
            raise ValueError(
                "The processor has no `sounds`: give one that has, see `SoftTokenSoundProcessor`."
                if self.sounds is None
                else f"The tokenizer has no {self.sounds.token!r}, which stands for a recording."
            )
        if self.markup.video is None and any(isinstance(each, Video) for each in row.images):
            why = (
                "A part of a message must be a text, {'type': 'text', ...}, or an image, since "
                "this model reads no videos: give some of the frames as images."
                if self.videos is None
                else f"The tokenizer has no {self.videos.token!r}, which stands for a video."
            )
            raise ValueError(why)
        if self.task.backbone.config.hearing_side == "encoder":
            for each in row.images:
                if not isinstance(each, Sound):
                    raise ValueError(
                        "This model sees no images: a part of a message is an image or a video."
                    )

    def _images(self, rows: list[Pictured], place) -> list[RowImages]:
        """Return the images of each row. Raises ValueError if one cannot be read or is too large.

        Only models that cut images into tiles, or read them in any size, read something of them
        here.
        """
        found = []
        for i, row in enumerate(rows):
            try:
                layouts = self.task.processor.source.layouts(row.images, self.states)
            except ValueError as error:
                raise ValueError(f"{place(i)}: {error}") from None
            found.append(RowImages.whole(row.images, layouts))
        return found

    def _placed(self, tokens, rows: list[RowImages], place) -> list[ConversationTokens]:
        """Return ids with as many placeholders for each image as it has states."""
        made = []
        for i, (each, row) in enumerate(zip(tokens, rows, strict=True)):
            runs = [len(run) for layout in row.layouts for run in layout.runs]
            count = each.ids.count(self.places.token)
            if count != len(runs):
                of = "" if len(runs) == len(row.images) else f" of {len(runs)} tokens for them"
                raise ValueError(
                    f"{place(i)} has {numbers_of(row.images)}, and its chat template writes "
                    f"{count}{of}: the template of this model does not take {_named(row.images)} "
                    "there."
                )
            start = [] if each.ids[: len(self._start)] == self._start else self._start
            ids = [*start, *repeated(each.ids, self.places.token, runs)]
            numbers = iter(runs)
            counted = [False] * len(start)
            for id, counts in zip(*each, strict=True):
                counted += [counts] * (next(numbers) if id == self.places.token else 1)
            made.append(ConversationTokens(ids, counted))
        return made


def _texts(row: RowImages) -> list[str | None]:
    """Return the text of each image, video and recording of a row."""
    return [
        _TEXTS.get(type(image), lambda text: text)(layout.text)
        for image, layout in zip(row.images, row.layouts, strict=True)
    ]


_TEXTS = {Video: lambda text: VideoText(text or "{image}"), Sound: SoundText}


def numbers_of(images: Sequence) -> str:
    """Return the numbers of images, videos and recordings as a text, such as "2 images"."""
    found = [f"{count} {name}" for name, count in _numbers(images).items()]
    return " and ".join(found)


def _named(images: Sequence) -> str:
    return " and ".join(_numbers(images))


def _numbers(images: Sequence) -> dict[str, int]:
    """Return the number of images, and of videos and recordings if there are any."""
    kinds = {Video: "videos", Sound: "recordings"}
    counts = {name: sum(type(x) is kind for x in images) for kind, name in kinds.items()}
    some = {name: count for name, count in counts.items() if count}
    return {"images": len(images) - sum(counts.values()), **some}


def start_of(tokenizer: Tokenizer) -> list[int]:
    """Return the start token if the tokenizer adds one, as Transformers does to rendered texts."""
    first = tokenizer.encode("")[:1]
    return first if first == [tokenizer.start_id] else []


def check_markup(image_token: Any, image_text: Any) -> None:
    """Raise ValueError if the options of `ImageToText` for conversations are invalid."""
    if image_token is not None:
        check_text("image_token", image_token)
    if image_text is not None and check_text("image_text", image_text).count("{image}") != 1:
        raise ValueError(
            f"`image_text` must have '{{image}}' once, where the states of the image go, received "
            f"{image_text!r}."
        )
