"""What the values of every stem are, of which `config_stem` has the kinds."""

import dataclasses

from keras_transformer.config_checks import check_fields
from keras_transformer.weight import Weight


@dataclasses.dataclass(frozen=True, kw_only=True)
class StemConfig:
    """The values of a stem, of which `kind` says which it is. One of a config is a dict."""

    kind: str

    def __post_init__(self):
        check_fields(self)

    def check_width(self, width: int) -> None:
        """ValueError for states of a width that it cannot make."""

    @property
    def num_states(self) -> int | None:
        """How many states one input of the usual size has. None if that is for the input to say."""
        return None

    @property
    def weights(self) -> tuple[Weight, ...]:
        """The weights of its layers; their axes are of the config of the side, or of `sizes`."""
        return ()

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of axes that the config of the side does not have."""
        return {}

    @property
    def products(self) -> dict[str, int]:
        """How many times each kernel is applied to one input of the usual size."""
        return {}
