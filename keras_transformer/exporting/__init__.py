"""Models out of Python: `export`, and the table of formats that it writes."""

from keras_transformer.exporting.formats import FORMATS, Format
from keras_transformer.exporting.run import export
from keras_transformer.registry import bind

__all__ = ["FORMATS", "Format", "export"]


bind(export=export)


def __dir__() -> list[str]:
    return __all__
