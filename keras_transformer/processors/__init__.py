"""Processors, which convert user data, such as images, to arrays and are saved with a model."""

from keras_transformer.processors.audio import AudioProcessor
from keras_transformer.processors.audio_files import Sound, audio_folder, read_audio
from keras_transformer.processors.image import ImageProcessor
from keras_transformer.processors.image_files import image_folder, read_image
from keras_transformer.processors.object_files import read_coco, read_voc
from keras_transformer.processors.patch_counts import PatchCountProcessor
from keras_transformer.processors.patch_rows import PatchRowProcessor
from keras_transformer.processors.patch_sequences import PatchSequenceProcessor
from keras_transformer.processors.patch_videos import PatchVideoProcessor
from keras_transformer.processors.processor import Processor
from keras_transformer.processors.prompted import PromptedImageProcessor
from keras_transformer.processors.series import SeriesProcessor
from keras_transformer.processors.soft_token_sounds import SoftTokenSoundProcessor
from keras_transformer.processors.soft_token_videos import SoftTokenVideoProcessor
from keras_transformer.processors.soft_tokens import SoftTokenProcessor
from keras_transformer.processors.tiling import (
    Layout,
    Mixes,
    Resolutions,
    Splitting,
    Thumbnail,
    Tiling,
)
from keras_transformer.processors.video import VideoProcessor
from keras_transformer.processors.video_files import Video, video_folder

__all__ = [
    "AudioProcessor",
    "ImageProcessor",
    "Layout",
    "Mixes",
    "PatchCountProcessor",
    "PatchRowProcessor",
    "PatchSequenceProcessor",
    "PatchVideoProcessor",
    "Processor",
    "PromptedImageProcessor",
    "Resolutions",
    "SeriesProcessor",
    "SoftTokenProcessor",
    "SoftTokenSoundProcessor",
    "SoftTokenVideoProcessor",
    "Sound",
    "Splitting",
    "Thumbnail",
    "Tiling",
    "Video",
    "VideoProcessor",
    "audio_folder",
    "image_folder",
    "read_audio",
    "read_coco",
    "read_image",
    "read_voc",
    "video_folder",
]


def __dir__() -> list[str]:
    return __all__
