"""The images and recordings of rows of ids, as arrays of a backbone that places their states."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.kernels.device import device
from keras_transformer.models.backbone import Backbone
from keras_transformer.processors import ImageProcessor, Layout, Sound, Video
from keras_transformer.processors.patch_sequences import Patches
from keras_transformer.processors.tiling.tiling import SEPARATOR
from keras_transformer.support.sizes import round_rows, round_size

# Values of the patches of a batch, a gigabyte, above which padding may not be most of them.
MOST_PADDED = 2**28


class RowImages(NamedTuple):
    """The images of a row of ids.

    Args:
        images: sequence of images, of videos, each a `Video`, and of recordings, each a `Sound`, in
            the order of their placeholders.
        layouts: the `Layout` of each image.
        states: int, number of placeholders in the row. It may be cut within an image.
    """

    images: Sequence = ()
    layouts: Sequence[Layout] = ()
    states: int = 0

    @classmethod
    def whole(cls, images: Sequence, layouts: Sequence[Layout]) -> "RowImages":
        """Return the images of a row that has all of their states."""
        return cls(images, layouts, sum(len(layout.states) for layout in layouts))

    @property
    def used(self) -> list[tuple[Any, Layout]]:
        """The images that have states in the row, and their layouts."""
        found, count = [], 0
        for image, layout in zip(self.images, self.layouts, strict=True):
            if count >= self.states:
                break
            found.append((image, layout))
            count += len(layout.states)
        return found


class PreparedImage(NamedTuple):
    """An image that has been read, resized, and cropped or cut; or a recording that has been read.

    Args:
        pixels: uint8 `(tiles, height, width, channels)`, a quarter of the memory of the model's
            input; of a video `(pairs, frames, height, width, channels)`; of a recording its
            samples, float32 `(samples,)`.
        key: what equal images share.
    """

    pixels: np.ndarray
    key: Any


def prepared(row: RowImages, processor: ImageProcessor) -> RowImages:
    """Return a row whose images are prepared. Raises ValueError if one cannot be read."""
    made = []
    for i, (image, layout) in enumerate(zip(row.images, row.layouts, strict=True), 1):
        if isinstance(image, Sound):
            pixels = processor.sounds.samples(image, f"sound {i}")
        elif isinstance(image, Video):
            pixels = processor.videos.pairs(image, f"video {i}")
        else:
            pixels = processor.tiles(image, f"image {i}", layout.grid)
        made.append(PreparedImage(pixels, _identity(image)))
    return row._replace(images=made)


def image_arrays(
    backbone: Backbone,
    processor: ImageProcessor,
    rows: Sequence[RowImages],
    places: Sequence[int] | None = None,
    least: int = 0,
    most: int | None = None,
    most_mixed: int = 0,
    least_sounds: int = 0,
) -> dict[str, np.ndarray]:
    """Return the arrays of a batch, in which each image and recording is read and encoded once.

    Args:
        backbone: the backbone.
        processor: an `ImageProcessor`.
        rows: the images of each row.
        places: numbers of the rows, for errors.
        least: int, number of tiles that the batch has in any case.
        most: int, number of states of a row that the arrays have room for. Defaults to what the
            rows need.
        most_mixed: int, number of mixed states of a row that there is room for in any case.
        least_sounds: int, number of recordings that the batch has in any case.

    Returns:
        Dict with `decoder_placed_states`, int32 `(rows, most)`, and, unless there is no image,
        `encoder_images`, float32 `(tiles, height, width, channels)`; or `encoder_placed_states` and
        `source_images` if the placeholders are the encoder's. A tile is an image, or a part of one.
        If states are mixed also `decoder_mixed_states`, int32, and `decoder_mixed_weights`,
        float32, both `(rows, mixed, 4)`. For images of any size also `decoder_placed_offsets`, the
        positions of the states, see `FeatureMerger`, and the images are `encoder_patches` and
        `encoder_patch_positions`, see `PatchSequenceStem`. Recordings are `sound_frames` and
        `sound_padding_mask`, and their states are counted after the states of all images; or
        `encoder_frames` and `encoder_padding_mask` for a model without images.
    """
    known, count = backbone.placeholder_tokens, backbone.placeholder_tokens.count
    places = range(len(rows)) if places is None else places
    if count is None:
        return _patch_arrays(backbone, processor, rows, places, least, most, least_sounds)
    first: dict[Any, int] = {}  # the first tile of each image
    tiles, total = [], 0
    heard = Recordings(backbone, processor)
    for row, place in zip(rows, places, strict=True):
        for image, layout in row.used:
            if is_sound(image):
                heard.add(image, layout, place)
                continue
            key = _identity(image), layout.grid
            if key not in first:
                first[key], total = total, total + layout.tiles
                tiles.append((image, layout, place))
    compiles = device().compiles_shapes
    arrays, wanted = {}, max(least, total)
    if wanted:
        wanted = round_rows(wanted) if compiles else wanted
        arrays[f"{known.images}_images"] = _read(backbone, processor, tiles, wanted)
    arrays |= heard.arrays(least_sounds)
    mixed = max(most_mixed, *(count_mixed(row) for row in rows))
    if mixed:
        mixed = round_rows(-(-mixed // count)) * count if compiles else mixed
        states = np.zeros((len(rows), mixed, 4), "int32")
        weights = np.zeros(states.shape, "float32")
        arrays |= {"decoder_mixed_states": states, "decoder_mixed_weights": weights}
    numbers = []
    for i, row in enumerate(rows):
        found, used = [np.zeros(0, "int32")], 0
        for image, layout in row.used:
            if is_sound(image):
                found.append(heard.states(image, wanted * count))
                continue
            before = first[_identity(image), layout.grid] * count
            own, further = layout.states, layout.tiles * count
            # A separator is behind the states of all tiles, and mixed states are behind it.
            placed = np.where(own == SEPARATOR, wanted * count, own + before)
            if layout.mixes is not None:
                behind = wanted * count + 1 + i * mixed + used - further
                placed = np.where(own >= further, own + behind, placed)
                end = used + len(layout.mixes.states)
                states[i, used:end] = layout.mixes.states + before
                weights[i, used:end] = layout.mixes.weights
                used = end
            found.append(placed)
        numbers.append(np.concatenate(found)[: row.states])
    most = max(count, *map(len, numbers)) if most is None else most
    if compiles:
        most = round_rows(-(-most // count)) * count
    made = np.full((len(rows), most), -1, "int32")
    for i, each in enumerate(numbers):
        made[i, : len(each)] = each
    return {f"{known.side}_placed_states": made, **arrays}


def count_mixed(row: RowImages) -> int:
    """Return the number of mixed states of a row."""
    return sum(len(layout.mixes.states) for _, layout in row.used if layout.mixes is not None)


def _patch_arrays(
    backbone, processor, rows, places, least: int, most: int | None, least_sounds: int
) -> dict[str, np.ndarray]:
    """Return `image_arrays` for images of any size, for videos, whose pairs are images, and sound.

    The recordings of a row are among the numbers of its images, each as it is.
    """
    stem = backbone.config.side("encoder").stem
    sees = backbone.config.hearing_side != "encoder"
    merge = processor.merge_size if sees else 1
    compiles = device().compiles_shapes
    heard = Recordings(backbone, processor)
    if sees:
        used = {
            _identity(image): layout
            for row in rows
            for image, layout in row.used
            if not is_sound(image)
        }
        check_padding(processor, list(used.values()))
    found: dict[Any, int] = {}  # the first of the images of a video
    images: list[Patches] = []
    numbers, offsets = [], []
    for row, place in zip(rows, places, strict=True):
        ahead, of_row, added = 0, [], []
        for image, layout in row.used:
            if is_sound(image):
                heard.add(image, layout, place)
                of_row.append(image)
                added.append(np.full((len(layout.states), 4), ahead, "int32"))
                continue
            key = _identity(image)
            if key not in found:
                found[key] = len(images)
                if isinstance(image, PreparedImage):
                    cut = processor if image.pixels.ndim == 4 else processor.videos.frames
                    images += [cut.patches(pixels, stem.window) for pixels in image.pixels]
                else:
                    images += processor.patches_of(image, f"x[{place}]", stem.window)
            of_row += range(found[key], found[key] + layout.tiles)
            for times in _times(layout, stem.time_steps):
                added.append(_offsets(images[found[key]].grid, times, ahead))
                ahead = int(added[-1][-1, -1])
        numbers.append(of_row)
        offsets.append(added)
    while sees and len(images) < least:  # a blank one
        images.append(processor.patches(np.zeros((processor.square,) * 2 + (3,), "uint8")))
    window = stem.window if sees else None
    of_unit = merge**2 if window is None else window**2
    units = max((-(-len(image.values) // of_unit) for image in images), default=0)
    count, most = len(images), max(1, *(row.states for row in rows)) if most is None else most
    if compiles:
        units = round_size(units) if window is None else round_rows(units)
        count, most = round_rows(count) if count else 0, round_size(most)
    length = units * of_unit
    given = heard.arrays(least_sounds)
    behind = count * (length // merge**2)  # the states of all images

    def states_of_number(n: Any) -> np.ndarray:
        if not isinstance(n, int):
            return heard.states(n, behind)
        return images[n].states + n * (length // merge**2)

    placed = np.full((len(rows), most), -1, "int32")
    moved = np.zeros((len(rows), most, 4), "int32")
    for i, (row, of_row, added) in enumerate(zip(rows, numbers, offsets, strict=True)):
        if of_row:
            states = np.concatenate(list(map(states_of_number, of_row)))
            placed[i, : row.states] = states[: row.states]
            moved[i, : row.states] = np.concatenate(added)[: row.states]
    arrays = {"decoder_placed_states": placed}
    if backbone.placeholder_tokens.axes:
        arrays["decoder_placed_offsets"] = moved
    if images:
        values = np.zeros((count, length, stem.num_values), "float32")
        positions = np.full((count, length, 2), -1, "int32")
        positions[len(images) :, 0] = 0  # a real patch, so that each image has one
        for i, image in enumerate(images):
            values[i, : len(image.values)] = image.values
            positions[i, : len(image.values)] = image.positions
        arrays |= {"encoder_patches": values, "encoder_patch_positions": positions}
    return arrays | given


class Recordings:
    """The recordings of a batch, each once, and the numbers of their states.

    Args:
        backbone: the backbone.
        processor: an `ImageProcessor`, with `sounds` if recordings are added.
    """

    def __init__(self, backbone: Backbone, processor: ImageProcessor):
        self.backbone, self.processor = backbone, processor
        self.samples: list[np.ndarray] = []
        self.found: dict[Any, tuple[int, Layout]] = {}
        self.of_each = 0

    def add(self, sound: Any, layout: Layout, place: int) -> None:
        """Read a recording, unless it has been read, of the row `place`."""
        key = _identity(sound)
        if key not in self.found:
            self.found[key] = len(self.samples), layout
            self.samples.append(_samples(self.processor, sound, f"x[{place}]"))

    def arrays(self, least: int) -> dict[str, np.ndarray]:
        """Return the inputs of the side that hears; empty without recordings.

        `least` is the number of recordings that the batch has in any case.

        Raises ValueError if most of them would be padding.
        """
        check_silence(self.processor, [layout for _, layout in self.found.values()])
        count, compiles = max(len(self.samples), least), device().compiles_shapes
        if not count:
            return {}
        count, sounds = round_rows(count) if compiles else count, self.processor.sounds
        blank = np.zeros(2 * sounds.window_length, "float32")
        self.samples += [blank] * (count - len(self.samples))
        frames = max(sounds.count_frames(len(row)) for row in self.samples)
        made = sounds.arrays(self.samples, round_size(frames) if compiles else frames)
        own = self.backbone.config.of_sound
        stride = 1 if own.projector is None else own.projector.stride
        self.of_each = -(-own.encoder.input.count_states(made["frames"].shape[1]) // stride)
        side = self.backbone.config.hearing_side
        return {f"{side}_{name}": array for name, array in made.items()}

    def states(self, sound: Any, behind: int) -> np.ndarray:
        """Return the numbers of the states of a recording.

        `behind` is the number of states of all images, which are counted first.
        """
        number, layout = self.found[_identity(sound)]
        # A further state of the model is behind those of all recordings.
        last = len(self.samples) * self.of_each
        own = layout.states
        return behind + np.where(own == SEPARATOR, last, own + number * self.of_each)


def is_sound(image: Any) -> bool:
    """Return whether an entry of `RowImages` is a recording."""
    return isinstance(image, Sound) or (isinstance(image, PreparedImage) and image.pixels.ndim == 1)


def _samples(processor, sound: Sound | PreparedImage, place: str) -> np.ndarray:
    prepared = isinstance(sound, PreparedImage)
    return sound.pixels if prepared else processor.sounds.samples(sound, place)


def check_silence(processor: ImageProcessor, layouts: Sequence[Layout]) -> None:
    """Raise ValueError if many short recordings would be padded to a long one.

    Args:
        processor: a processor with `sounds`.
        layouts: the layout of each recording of a batch.
    """
    counts = [len(each.states) for each in layouts]
    padded = len(counts) * max(counts, default=0)
    frames = padded * processor.sounds.frames_of_state if counts else 0
    values = frames * processor.sounds.num_bins if counts else 0
    if values > MOST_PADDED and padded > 4 * sum(counts):
        raise ValueError(
            f"{len(counts)} recordings are padded to the longest of them, {max(counts):,} states, "
            f"and have only {sum(counts):,} together: too much memory would hold nothing. Give "
            "fewer recordings at once."
        )


def check_padding(processor: ImageProcessor, layouts: Sequence[Layout]) -> None:
    """Raise ValueError if many small images of any size would be padded to a large one.

    Args:
        processor: a `PatchSequenceProcessor`.
        layouts: the layout of each image of a batch.
    """
    counts = [len(each.states) // each.tiles for each in layouts for _ in range(each.tiles)]
    padded = len(counts) * max(counts, default=0)
    values = padded * processor.square**2 * processor.num_frames * 3
    if values > MOST_PADDED and padded > 4 * sum(counts):
        raise ValueError(
            f"{len(counts)} images are padded to the largest of them, {max(counts):,} states, and "
            f"have only {sum(counts):,} together, where each pair of frames of a video is an "
            "image: too much memory would hold nothing. Give fewer images at once, or let the "
            "processor make them smaller, by its `max_pixels`, `longest_edge` or "
            "`max_soft_tokens`."
        )


def _times(layout: Layout, steps: int | None) -> list[np.ndarray]:
    """Return the places in time of the images of each run of a layout.

    Args:
        layout: of an image, or of a video, whose images are pairs of frames.
        steps: int, number of places in a second. None gives each pair one place.
    """
    if layout.seconds is None:  # the time of a run is that of the text before it
        return [np.zeros(1, "int64")] * layout.tiles
    numbers = np.arange(layout.tiles, dtype="float32")
    scale = 1 if steps is None else steps * np.float32(layout.seconds)
    return [(numbers * np.float32(scale)).astype("int64")]


def _offsets(grid: tuple[int, int], times: np.ndarray, ahead: int) -> np.ndarray:
    """Return what is added to the places of the states of an image for their positions.

    The first state has the position of its place on all axes. States count time, rows and columns
    from it. The token behind them follows on the largest of these positions.

    Args:
        grid: ints, rows and columns of states.
        times: int array, place in time of each image of a video; 0 for an image.
        ahead: int, what is added to the place of the first state.

    Returns:
        Int32 `(images * rows * columns, 4)`: for time, row and column, and for the tokens behind
        the image.

    Source: Wang et al. 2024, "Qwen2-VL", section 2.1, "Multimodal Rotary Position Embedding".
    """
    rows, columns = grid
    place = np.arange(len(times) * rows * columns)
    number, inside = np.divmod(place, rows * columns)
    largest = max(rows, columns, int(times[-1]) + 1)
    behind = np.full_like(place, largest - len(place))
    added = (times[number], inside // columns, inside % columns)
    added = (*(each - place for each in added), behind)
    return (ahead + np.stack(added, axis=1)).astype("int32")


def states_of(backbone: Backbone) -> tuple[int, int]:
    """Return rows and columns of the states of an image, or of a tile.

    States that do not form a grid, such as those with the one of a class token, are one row. Images
    of any size, whose states their processor counts, have `(0, 0)`.
    """
    config, count = backbone.config, backbone.placeholder_tokens.count
    if count is None:
        return 0, 0
    stem = config.side(config.placed_side).stem
    pool = 1 if config.projector is None else config.projector.pool
    rows, columns = (side // pool for side in stem.grid(stem.image_size))
    return (rows, columns) if rows * columns == count else (1, count)


def repeated(ids: Sequence[int], token: int, runs: Sequence[int]) -> list[int]:
    """Return ids in which each placeholder is repeated as often as the next number of `runs`."""
    numbers, made = iter(runs), []
    for id in ids:
        made += [id] * (next(numbers) if id == token else 1)
    return made


def _read(backbone, processor: ImageProcessor, tiles: list, wanted: int) -> np.ndarray:
    """Return the pixels of images, their layouts and places, with blank tiles up to `wanted`."""
    stem = backbone.config.side(backbone.placeholder_tokens.images).stem
    pixels = [
        image.pixels
        if isinstance(image, PreparedImage)
        else processor.tiles(image, f"x[{place}]", layout.grid)
        for image, layout, place in tiles
    ]
    shapes = {each.shape[1:] for each in pixels} or {(*stem.image_size, stem.num_channels)}
    if len(shapes) > 1:
        raise ValueError(
            f"The images have {len(shapes)} sizes, such as {sorted(shapes)[:2]}. Give the "
            "processor a `size`, or a `crop_size`."
        )
    made = np.zeros((wanted, *shapes.pop()), "float32")
    if pixels:
        given = np.concatenate(pixels)
        made[: len(given)] = processor.normalized(given)
    return made


def _identity(image: Any) -> Any:
    """Return a key that equal images share: their path, or a digest of their bytes or pixels."""
    if isinstance(image, PreparedImage):
        return image.key
    if isinstance(image, Sound):
        pair = isinstance(image.content, tuple)
        return Sound, *(map(_identity, image.content) if pair else [_identity(image.content)])
    if isinstance(image, (int, float)):  # the rate of samples
        return image
    if isinstance(image, Mapping) and image.get("array") is not None:
        return _identity(image["array"]), image.get("sampling_rate")
    if isinstance(image, Video):
        frames = image.content
        listed = isinstance(frames, (list, tuple))
        return image.fps, tuple(map(_identity, frames)) if listed else (_identity(frames),)
    if isinstance(image, Mapping):
        content = image.get("bytes")
        image = image.get("path") if content is None else content
    if isinstance(image, (str, os.PathLike)):
        return os.fspath(image)
    if isinstance(image, (bytes, bytearray, memoryview)):
        return hashlib.blake2b(image).digest()
    if isinstance(image, np.ndarray):
        content = np.ascontiguousarray(image)
        return image.shape, image.dtype.str, hashlib.blake2b(content).digest()
    return id(image)
