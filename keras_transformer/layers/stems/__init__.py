"""Stems, which turn token ids or other inputs into states for the blocks."""

from keras_transformer.layers.stems.folded_frames import FoldedFrameStem
from keras_transformer.layers.stems.frames import FrameStem
from keras_transformer.layers.stems.hgnet import HGNetStem
from keras_transformer.layers.stems.images import ConvolutionStem, PatchStem
from keras_transformer.layers.stems.mobilenet import MobileNetV5Stem
from keras_transformer.layers.stems.patch_sequences import PatchSequenceStem
from keras_transformer.layers.stems.queries import QueryStem
from keras_transformer.layers.stems.resnet import ResNetStem
from keras_transformer.layers.stems.series import SeriesStem
from keras_transformer.layers.stems.stem import Embedded, Input, PositionedStem, Stem, TokenStem
from keras_transformer.layers.stems.subsampled_frames import ConvolvedFrameStem, SubsampledFrameStem
from keras_transformer.layers.stems.tubes import TubeStem
from keras_transformer.layers.stems.waveform import WaveformStem

# Stem classes by their kind in a config, see `config.STEMS`.
STEMS: dict[str, type[PositionedStem]] = {
    "patches": PatchStem,
    "patch_sequence": PatchSequenceStem,
    "convolutions": ConvolutionStem,
    "tubes": TubeStem,
    "frames": FrameStem,
    "series": SeriesStem,
    "waveform": WaveformStem,
    "resnet": ResNetStem,
    "hgnet": HGNetStem,
    "queries": QueryStem,
    "subsampled_frames": SubsampledFrameStem,
    "convolved_frames": ConvolvedFrameStem,
    "folded_frames": FoldedFrameStem,
    "mobilenet_v5": MobileNetV5Stem,
}

__all__ = [
    "STEMS",
    "ConvolutionStem",
    "ConvolvedFrameStem",
    "Embedded",
    "FoldedFrameStem",
    "FrameStem",
    "Input",
    "MobileNetV5Stem",
    "PatchSequenceStem",
    "PatchStem",
    "SeriesStem",
    "Stem",
    "SubsampledFrameStem",
    "TokenStem",
    "TubeStem",
    "WaveformStem",
]
