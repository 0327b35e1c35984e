"""MobileNetV5 of the package timm, `mobilenetv5_300m_enc`: its published values and tensors.

A network of other sizes is published as the arguments of timm's class, in `model_args`.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import Values
from keras_transformer.checkpoints.families.base.placed import nested
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.weights.tables import WeightLine
from keras_transformer.config import (
    Attention,
    Block,
    MobileNetStage,
    MobileNetV5StemConfig,
    Norm,
    Side,
    TransformerConfig,
)
from keras_transformer.support.checking import shorten

ARCHITECTURE = "mobilenetv5_300m_enc"
_WIDTH = 2048  # of the states, which timm does not change
_USUAL = MobileNetV5StemConfig()
_BY_NAME = {"edge_residual": "er", "inverted_bottleneck": "uir"}
# timm rounds features to multiples of this number.
_DIVISOR = 8


def read_network(values: Values) -> Side:
    """Return the side of a published `vision_config`.

    Raises:
        ValueError: if its architecture is another, or a value is out of range or not supported.
    """
    architecture = values.get("architecture", ARCHITECTURE)
    if architecture != ARCHITECTURE:
        raise ValueError(
            f"architecture={shorten(architecture)} of the image tower is not supported, only "
            f"{ARCHITECTURE!r}: each network of the package timm would need a stem of its own."
        )
    width = number(values, "hidden_size", _WIDTH)
    if width != _WIDTH:
        raise ValueError(
            f"hidden_size={width} of the image tower must be {_WIDTH}, the width of the states of "
            f"{ARCHITECTURE}."
        )
    epsilon = number(values, "rms_norm_eps", 1e-6, float)
    if epsilon != 1e-6:
        raise ValueError(f"rms_norm_eps={epsilon} of the image tower is not supported, only 1e-06.")
    given = nested(values, "model_args")
    known = ("block_args", "stem_size", "msfa_output_resolution", "pretrained_cfg_overlay")
    for name in given:
        if name not in known:
            raise ValueError(
                f"model_args of the image tower has {shorten(name)}, which is not supported, only "
                f"{', '.join(known)}."
            )
    stages = _USUAL.stages
    if "block_args" in given:
        stages = _read_stages(given["block_args"])
    grid = number(given, "msfa_output_resolution", _USUAL.state_grid[0])
    overlay = nested(given, "pretrained_cfg_overlay")
    size = overlay.get("input_size", [3, *_USUAL.image_size])
    three = isinstance(size, (list, tuple)) and len(size) == 3 and size[0] == 3
    if not three or overlay.keys() - {"input_size"}:
        raise ValueError(
            "pretrained_cfg_overlay of the image tower must have input_size alone, three numbers, "
            f"the first of them 3, received {shorten(overlay)}."
        )
    filters = number(given, "stem_size", _USUAL.filters)
    if any(n % _DIVISOR for n in (filters, *(stage.dim for stage in stages))):
        raise ValueError(
            f"The features of the image tower must be multiples of {_DIVISOR}, to which timm "
            f"rounds them, received stem_size={filters} and "
            f"out_chs={[stage.dim for stage in stages]}."
        )
    stem = MobileNetV5StemConfig(
        image_size=size[1:], filters=filters, stages=stages, state_grid=(grid, grid)
    )
    block = Block(mixer=Attention(num_heads=1), norm=Norm(type="rms_norm", epsilon=epsilon))
    return Side(input=stem, hidden_dim=width, num_layers=0, block=block)


def write_network(side: Side | None) -> dict[str, Any]:
    """Return the published values of a side. Raises ValueError if it is not a MobileNetV5."""
    stem = None if side is None else side.input
    theirs: dict[str, Any] = {}
    if isinstance(stem, MobileNetV5StemConfig):
        own = {
            "block_args": [_block_args(stage) for stage in stem.stages],
            "stem_size": stem.filters,
            "msfa_output_resolution": stem.state_grid[0],
            "pretrained_cfg_overlay": {"input_size": [3, *stem.image_size]},
        }
        theirs = {
            "architecture": ARCHITECTURE,
            "do_pooling": False,
            "hidden_size": side.hidden_dim,
            "rms_norm_eps": side.block.norm.epsilon,
            "model_args": None if stem == _USUAL else own,
        }
    if not theirs or read_network(theirs) != side:
        raise ValueError(f"an image tower there is a {ARCHITECTURE} of timm.")
    return theirs


def _block_args(stage: MobileNetStage) -> list[dict[str, Any]]:
    """Return timm's arguments of the blocks of a stage."""
    shared = {"out_chs": stage.dim, "stride": 1, "act_layer": None, "noskip": False}
    bottleneck = {"block_type": "uir", "se_ratio": 0.0, "dw_kernel_size_end": 0}
    found: list[dict[str, Any]] = []
    for size, factor in zip(stage.kernel_sizes, stage.expansions, strict=True):
        own = {**shared, "exp_ratio": float(factor), "stride": 1 if found else 2}
        if stage.block == "edge_residual":
            own |= {"block_type": "er", "se_ratio": 0.0, "exp_kernel_size": size}
            own |= {"pw_kernel_size": 1, "force_in_chs": 0}
        else:
            middle = 0 if found else stage.halving_size
            own |= {**bottleneck, "dw_kernel_size_start": size, "dw_kernel_size_mid": middle}
        found.append(own)
    for _ in range(stage.attentions):
        heads = {"num_heads": stage.num_heads, "kv_stride": stage.key_stride, "dw_kernel_size": 3}
        width = {"key_dim": stage.head_dim, "value_dim": stage.head_dim}
        found.append({**shared, "block_type": "mqa", **heads, **width})
        sizes = {"dw_kernel_size_start": 0, "dw_kernel_size_mid": 0}
        factor = {"exp_ratio": float(stage.pair_expansion)}
        found.append({**shared, **bottleneck, **sizes, **factor})
    return found


def _read_stages(given: Any) -> list[MobileNetStage]:
    """Return the stages of timm's `block_args`. Raises ValueError if they are others."""
    lists = isinstance(given, (list, tuple)) and all(isinstance(x, (list, tuple)) for x in given)
    if not lists or not all(isinstance(each, dict) for blocks in given for each in blocks):
        raise ValueError(
            "block_args of the image tower must be a list of stages, each a list of the arguments "
            f"of blocks, received {shorten(given)}."
        )
    return [_read_stage(list(blocks), place) for place, blocks in enumerate(given)]


def _read_stage(blocks: list[dict[str, Any]], place: int) -> MobileNetStage:
    """Return the stage of blocks, if its own blocks are these; otherwise raise ValueError."""
    pairs = [i for i, each in enumerate(blocks) if each.get("block_type") == "mqa"]
    plain = blocks[: len(blocks) - 2 * len(pairs)]
    values: dict[str, Any] = {"attentions": len(pairs)}
    edge = bool(plain) and plain[0].get("block_type") == "er"
    name = "exp_kernel_size" if edge else "dw_kernel_size_start"
    values["block"] = "edge_residual" if edge else "inverted_bottleneck"
    values["kernel_sizes"] = [number(each, name, 0) for each in plain]
    values["expansions"] = [int(number(each, "exp_ratio", 1.0, float)) for each in plain]
    if plain:
        values["dim"] = number(plain[0], "out_chs", 0)
    if plain and not edge:
        values["halving_size"] = number(plain[0], "dw_kernel_size_mid", 3)
    if pairs and pairs[0] + 1 < len(blocks):
        first, second = blocks[pairs[0] : pairs[0] + 2]
        values["num_heads"] = number(first, "num_heads", 1)
        values["head_dim"] = number(first, "key_dim", 64)
        values["key_stride"] = number(first, "kv_stride", 1)
        values["pair_expansion"] = int(number(second, "exp_ratio", 1.0, float))
    stage = MobileNetStage.from_dict(values)
    own = _block_args(stage)
    alike = len(own) == len(blocks) and all(
        {**mine, **theirs} == mine for mine, theirs in zip(own, blocks, strict=True)
    )
    if not alike:
        raise ValueError(
            f"block_args[{place}] of the image tower is not supported: a stage is edge residuals "
            "('er') or inverted bottlenecks ('uir'), of which the first has the stride 2, and "
            "then pairs of attention ('mqa') and a bottleneck without kernels of its own."
        )
    return stage


# Layers of a block there, by what the names of ours end with.
_EDGE = {"expansion": ("conv_exp", "bn1"), "projection": ("conv_pwl", "bn2")}
_INVERTED = {
    "depthwise": ("dw_start.conv", "dw_start.bn"),
    "expansion": ("pw_exp.conv", "pw_exp.bn"),
    "halving": ("dw_mid.conv", "dw_mid.bn"),
    "projection": ("pw_proj.conv", "pw_proj.bn"),
}
_ATTENTION = {
    **{name: (f"attn.{name}.proj", "") for name in ("query", "key", "value", "output")},
    **{
        f"{name}_reduction": (f"attn.{name}.down_conv", f"attn.{name}.norm")
        for name in ("key", "value")
    },
}
_OURS, _FUSION = "encoder/input_", "msfa.ffn."


def network_lines(config: TransformerConfig, folder: str) -> tuple[WeightLine, ...]:
    """Return the lines of a MobileNetV5, whose names begin with `folder`.

    Another stem of the config's encoder has no lines.
    """
    stem = config.encoder and config.encoder.input
    if not isinstance(stem, MobileNetV5StemConfig):
        return ()
    lines = [
        WeightLine(f"{_OURS}convolution/bias", f"{folder}conv_stem.conv.bias"),
        WeightLine(f"{_OURS}norm/scale", f"{folder}msfa.norm.weight"),
    ]

    def add(ours: str, convolution: str, norm: str, depthwise: bool = False) -> None:
        """Add the lines of a convolution, and of its norm if it has one."""
        kind = {"depthwise": True} if depthwise else {"convolution": True}
        lines.append(WeightLine(f"{ours}/kernel", f"{folder}{convolution}.weight", **kind))
        if norm:
            lines.append(WeightLine(f"{ours}_norm/scale", f"{folder}{norm}.weight"))

    add(f"{_OURS}convolution", "conv_stem.conv", "conv_stem.bn")
    for i, (stage, blocks) in enumerate(zip(stem.stages, stem.blocks_of_stages, strict=True)):
        plain = _EDGE if stage.block == "edge_residual" else _INVERTED
        for j, block in enumerate(blocks):
            ours, theirs = f"encoder/{block.name}", f"blocks.{i}.{j}."
            pair = j >= len(stage.kernel_sizes)
            names = _ATTENTION if block.stage is not None else _INVERTED if pair else plain
            for each in block.convolutions:
                convolution, norm = names[each.name.removeprefix(f"{block.name}_")]
                norm = norm and theirs + norm
                add(f"encoder/{each.name}", theirs + convolution, norm, each.depthwise)
            if block.stage is not None:
                lines.append(WeightLine(f"{ours}_norm/scale", f"{folder}{theirs}norm.weight"))
            if block.scaled:
                lines.append(WeightLine(f"{ours}_scale", f"{folder}{theirs}layer_scale.gamma"))
    add(f"{_OURS}fusion_expansion", f"{_FUSION}pw_exp.conv", f"{_FUSION}pw_exp.bn")
    add(f"{_OURS}projection", f"{_FUSION}pw_proj.conv", f"{_FUSION}pw_proj.bn")
    return tuple(lines)
