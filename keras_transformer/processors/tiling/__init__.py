"""How images are cut into tiles, and how the tiles lie among the tokens of a text."""

from keras_transformer.processors.tiling.resolutions import Resolutions
from keras_transformer.processors.tiling.splitting import Splitting
from keras_transformer.processors.tiling.thumbnail import Thumbnail
from keras_transformer.processors.tiling.tiling import Layout, Mixes, Tiling

__all__ = ["Layout", "Mixes", "Resolutions", "Splitting", "Thumbnail", "Tiling"]
