"""Export of models to runtimes that do not need this package, and the table of formats."""

from keras_transformer.exporting.formats import FORMATS, Format
from keras_transformer.exporting.run import export
from keras_transformer.support.registry import bind

__all__ = ["FORMATS", "Format", "export"]


bind(export=export)


def __dir__() -> list[str]:
    return __all__
