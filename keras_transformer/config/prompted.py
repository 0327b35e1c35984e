"""Values and weights of the layers that decode masks from the states of an image and prompts."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_transformer.config.feed_forward import ACTIVATIONS
from keras_transformer.config.fusion import convolution
from keras_transformer.config.options import check_values
from keras_transformer.config.side import MOST_LAYERS
from keras_transformer.support.checking import check_choice, check_int, check_number

# Rows and columns of mask logits for each row and column of patches.
SCALE = 4
# Trained vectors of points: of the background and of the object, and of the corners of a box.
POINT_KINDS = 4
# Narrowing of the states where masks are as large as they get.
NARROWING = 8


@dataclasses.dataclass(frozen=True)
class PromptedMasks:
    """Values of the neck of an image encoder, the prompt encoder and the mask decoder (SAM).

    Args:
        width: int, features of the image's states behind the neck, and of prompts.
        mask_channels: int, features of a mask prompt before it becomes states.
        num_layers: int, number of layers of the two-way transformer.
        num_heads: int, its number of heads.
        intermediate_dim: int, the inner width of its feed-forward layers.
        downsampling: int, the factor by which heads of the attention between prompts and image are
            narrower.
        num_masks: int, masks of an ambiguous prompt, besides the one of an unambiguous prompt.
        score_dim, score_layers: int, inner width and number of linear layers that score masks.
        activation: str, of the feed-forward layers of the transformer.
        prompt_activation: str, of mask prompts.
        epsilon: float, of the norms.

    Raises:
        ValueError: if a value is out of range.

    Source: Kirillov et al. 2023, "Segment Anything", section 3 and appendix A.
    """

    width: int = 256
    mask_channels: int = 16
    num_layers: int = 2
    num_heads: int = 8
    intermediate_dim: int = 2048
    downsampling: int = 2
    num_masks: int = 3
    score_dim: int = 256
    score_layers: int = 3
    activation: str = "relu"
    prompt_activation: str = "gelu"
    epsilon: float = 1e-6

    def __post_init__(self):
        for name in ("width", "mask_channels", "num_heads", "intermediate_dim", "score_dim"):
            check_int(name, getattr(self, name), 1, 2**16)
        check_int("num_layers", self.num_layers, 1, MOST_LAYERS)
        check_int("downsampling", self.downsampling, 1, 2**10)
        check_int("num_masks", self.num_masks, 1, 2**8)
        check_int("score_layers", self.score_layers, 2, 2**8)
        check_number("epsilon", self.epsilon, above=0)
        for name in ("activation", "prompt_activation"):
            check_choice(name, getattr(self, name), ACTIVATIONS)
        if self.width % NARROWING or self.mask_channels % SCALE:
            raise ValueError(
                f"`width` must be a multiple of {NARROWING} and `mask_channels` of {SCALE}, "
                f"received {self.width} and {self.mask_channels}."
            )
        if self.width % (self.num_heads * self.downsampling):
            raise ValueError(
                "`width` must be a multiple of `num_heads` times `downsampling`, received "
                f"{self.width}, {self.num_heads} and {self.downsampling}."
            )

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> "PromptedMasks":
        """Return the values of a mapping; those that are missing are the published ones.

        Raises:
            ValueError: if a value is unknown or out of range.
        """
        return cls(**check_values("`decoder`", given, cls))

    def values(self) -> dict[str, Any]:
        """Return the values as a dict for files."""
        return dataclasses.asdict(self)

    def shapes(self, hidden_dim: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all variables for states of `hidden_dim` features."""
        width, quarter, last = self.width, self.width // 4, self.width // NARROWING
        made = {
            **convolution("neck/convolution_1", 1, hidden_dim, width, bias=False),
            **_norm("neck/norm_1", width),
            **convolution("neck/convolution_2", 3, width, width, bias=False),
            **_norm("neck/norm_2", width),
        }
        name, channels = "prompt_encoder", self.mask_channels
        made |= {
            f"{name}/frequencies": (2, width // 2),
            **{f"{name}/point_{i}": (1, width) for i in range(POINT_KINDS)},
            f"{name}/no_point": (1, width),
            f"{name}/no_mask": (1, width),
            **convolution(f"{name}/mask_1", 2, 1, channels // 4),
            **_norm(f"{name}/mask_norm_1", channels // 4),
            **convolution(f"{name}/mask_2", 2, channels // 4, channels),
            **_norm(f"{name}/mask_norm_2", channels),
            **convolution(f"{name}/mask_3", 1, channels, width),
        }
        name = "mask_decoder"
        made |= {f"{name}/score_token": (1, width), f"{name}/tokens": (self.num_masks + 1, width)}
        for i in range(self.num_layers):
            layer = f"{name}/layer_{i}"
            made |= self._attention(f"{layer}/self_attention", width)
            made |= self._attention(f"{layer}/tokens_to_image", width // self.downsampling)
            made |= self._attention(f"{layer}/image_to_tokens", width // self.downsampling)
            made |= convolution(f"{layer}/intermediate", 0, width, self.intermediate_dim)
            made |= convolution(f"{layer}/output", 0, self.intermediate_dim, width)
            for norm in ("self_attention", "tokens_to_image", "feed_forward", "image_to_tokens"):
                made |= _norm(f"{layer}/{norm}_norm", width)
        made |= {
            **self._attention(f"{name}/tokens_to_image", width // self.downsampling),
            **_norm(f"{name}/tokens_to_image_norm", width),
            f"{name}/upscale_1/kernel": (2, 2, quarter, width),
            f"{name}/upscale_1/bias": (quarter,),
            **_norm(f"{name}/upscale_norm", quarter),
            f"{name}/upscale_2/kernel": (2, 2, last, quarter),
            f"{name}/upscale_2/bias": (last,),
        }
        for i in range(self.num_masks + 1):
            made |= linear_layers(f"{name}/mask_{i}", [width, width, width, last])
        inner = [self.score_dim] * (self.score_layers - 1)
        return made | linear_layers(f"{name}/scores", [width, *inner, self.num_masks + 1])

    def _attention(self, name: str, inner: int) -> dict[str, tuple[int, ...]]:
        made = {}
        for part in ("query", "key", "value"):
            made |= convolution(f"{name}/{part}", 0, self.width, inner)
        return made | convolution(f"{name}/output", 0, inner, self.width)


def linear_layers(name: str, widths: list[int]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the variables of linear layers between these widths."""
    made = {}
    names = names_of_linear(len(widths) - 1)
    for own, before, after in zip(names, widths, widths[1:], strict=False):
        made |= convolution(f"{name}/{own}", 0, before, after)
    return made


def names_of_linear(count: int) -> list[str]:
    """Return the names of this many linear layers behind each other."""
    return ["input", *(f"hidden_{i}" for i in range(count - 2)), "output"]


def _norm(name: str, features: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/gamma": (features,), f"{name}/beta": (features,)}
