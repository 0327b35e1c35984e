"""MobileNetV5 of timm in PyTorch, by its names; and numbers that timm itself computed.

timm is not among the packages of the tests: it needs torchvision, with which Transformers takes
other classes of its own. The class here has the names and shapes of timm's `MobileNetV5Encoder`, so
that Transformers' Gemma 3n is whole. With timm 1.0.31 and torchvision in an environment of their
own, `python -m tests.checkpoints.mobilenet_v5` writes what timm computes to `mobilenet_v5.json`,
with which the tests compare both this class and the stem of this library.
"""

import copy
import json
import zlib
from pathlib import Path

import numpy as np

VALUES = Path(__file__).with_name("mobilenet_v5.json")
# The blocks of `mobilenetv5_300m_enc`, in timm's notation.
_PAIR = ("mqa_h{}_v{}_d{}_c{}", "uir_a0_k0_s1_e2_c{}")
# Each kind of block, stride and kernel, and factors that differ.
SMALL = (
    ("er_k3_s2_e4_c16", "er_k3_s1_e2_c16"),
    ("uir_a3_k5_s2_e3_c24", "uir_a5_k0_s1_e4_c24"),
    ("uir_a5_k5_s2_e2_c32", "uir_a0_k0_s1_e1_c32", "mqa_h3_v2_d8_c32", "uir_a0_k0_s1_e2_c32"),
    ("uir_a5_k3_s2_e2_c48", "mqa_h4_v1_d16_c48", "uir_a0_k0_s1_e2_c48"),
)


def _pairs(count, heads, stride, width, features):
    attention = _PAIR[0].format(heads, stride, width, features)
    return (attention, _PAIR[1].format(features)) * count


USUAL = (
    ("er_k3_s2_e4_c128", "er_k3_s1_e4_c128", "er_k3_s1_e4_c128"),
    (
        "uir_a3_k5_s2_e6_c256", "uir_a5_k0_s1_e4_c256", "uir_a3_k0_s1_e4_c256",
        "uir_a5_k0_s1_e4_c256", "uir_a3_k0_s1_e4_c256",
    ),
    (
        "uir_a5_k5_s2_e6_c640", *("uir_a5_k0_s1_e4_c640",) * 7, "uir_a0_k0_s1_e1_c640",
        *_pairs(14, 12, 2, 64, 640),
    ),
    ("uir_a5_k5_s2_e6_c1280", *_pairs(19, 16, 1, 96, 1280)),
)  # fmt: skip


def block_args(stages):
    """Return blocks as timm's `decode_arch_def` does, the values of its `block_args`."""
    return [[_decoded(block) for block in stage] for stage in stages]


def _decoded(block):
    kind, *values = block.split("_")
    given = {each[0]: int(each[1:]) for each in values}
    shared = {
        "block_type": kind, "out_chs": given["c"], "stride": given.get("s", 1),
        "act_layer": None, "noskip": False,
    }  # fmt: skip
    if kind == "mqa":
        heads = {"num_heads": given["h"], "kv_stride": given["v"], "dw_kernel_size": 3}
        return {**shared, **heads, "key_dim": given["d"], "value_dim": given["d"]}
    shared |= {"exp_ratio": float(given["e"]), "se_ratio": 0.0}
    if kind == "er":
        own = {"exp_kernel_size": given["k"], "pw_kernel_size": 1, "force_in_chs": 0}
        return {**shared, **own}
    sizes = {"start": given["a"], "mid": given["k"], "end": 0}
    return {**shared, **{f"dw_kernel_size_{name}": size for name, size in sizes.items()}}


def small_args(size=64, grid=2):
    """Return the `model_args` of a small network, for images of this height and width."""
    return {
        "block_args": block_args(SMALL), "stem_size": 8, "msfa_output_resolution": grid,
        "pretrained_cfg_overlay": {"input_size": [3, size, size]},
    }  # fmt: skip


def noise(name, shape):
    """Return normal values that a name and a shape determine, float32."""
    random = np.random.RandomState(zlib.crc32(name.encode()))
    return random.standard_normal(shape).astype("float32")


def weights(name, shape):
    """Return values for a parameter of the tower, of about the size of trained ones."""
    if len(shape) > 1:
        return noise(name, shape) * np.float32(np.prod(shape[1:]) ** -0.5)
    return 0.3 * noise(name, shape) + np.float32(not name.endswith("bias"))


def fill(network):
    """Set the parameters of a tower to `weights` of their names."""
    import torch

    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(torch.from_numpy(weights(name, tuple(parameter.shape))))
    return network.eval()


def pictures(count=2, size=64):
    """Return images as the tower reads them, float32 `(count, size, size, 3)` from 0 to 1."""
    random = np.random.RandomState(7)
    return random.random_sample((count, size, size, 3)).astype("float32")


def encoder(block_args=None, stem_size=64, msfa_output_resolution=16, pretrained_cfg_overlay=None):
    """Return timm's `MobileNetV5Encoder` of these arguments, in evaluation."""
    import torch
    from torch import nn
    from torch.nn import functional

    stages = globals()["block_args"](USUAL) if block_args is None else block_args

    def gelu(x):
        return functional.gelu(x, approximate="tanh")

    class Convolution(nn.Conv2d):
        """With TensorFlow's padding."""

        def forward(self, x):
            (size, _), (step, _) = self.kernel_size, self.stride
            needed = [max((-(-n // step) - 1) * step + size - n, 0) for n in x.shape[:1:-1]]
            around = [n for each in needed for n in (each // 2, each - each // 2)]
            return super().forward(functional.pad(x, around))

    def convolution(inputs, outputs, size, step=1, groups=1, bias=False):
        return Convolution(inputs, outputs, size, step, groups=groups, bias=bias)

    class Norm(nn.Module):
        def __init__(self, features):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(features))

        def forward(self, x):
            x = x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6)
            return x * self.weight[:, None, None]

    class Unit(nn.Module):
        def __init__(self, *sizes, activated=False, **options):
            super().__init__()
            self.conv, self.bn = convolution(*sizes, **options), Norm(sizes[1])
            self.activated = activated

        def forward(self, x):
            x = self.bn(self.conv(x))
            return gelu(x) if self.activated else x

    class Scale(nn.Module):
        def __init__(self, features):
            super().__init__()
            self.gamma = nn.Parameter(torch.full((features,), 1e-5))

        def forward(self, x):
            return x * self.gamma[:, None, None]

    class Edge(nn.Module):
        def __init__(self, inputs, given):
            super().__init__()
            inner, outputs = int(inputs * given["exp_ratio"]), given["out_chs"]
            size = given["exp_kernel_size"]
            self.conv_exp = convolution(inputs, inner, size, given["stride"])
            self.bn1, self.conv_pwl = Norm(inner), convolution(inner, outputs, 1)
            self.bn2 = Norm(outputs)
            self.adds = given["stride"] == 1 and inputs == outputs

        def forward(self, x):
            found = self.bn2(self.conv_pwl(gelu(self.bn1(self.conv_exp(x)))))
            return found + x if self.adds else found

    class Inverted(nn.Module):
        def __init__(self, inputs, given, scaled=True):
            super().__init__()
            inner, outputs = int(inputs * given["exp_ratio"]), given["out_chs"]
            first, middle = given["dw_kernel_size_start"], given["dw_kernel_size_mid"]
            step, plain = given["stride"], nn.Identity()
            self.dw_start = Unit(inputs, inputs, first, groups=inputs) if first else plain
            self.pw_exp = Unit(inputs, inner, 1, activated=True)
            options = {"groups": inner, "activated": True}
            self.dw_mid = Unit(inner, inner, middle, step, **options) if middle else plain
            self.pw_proj = Unit(inner, outputs, 1)
            self.layer_scale = Scale(outputs) if scaled else plain
            self.adds = step == 1 and inputs == outputs and scaled

        def forward(self, x):
            found = self.pw_proj(self.dw_mid(self.pw_exp(self.dw_start(x))))
            found = self.layer_scale(found)
            return found + x if self.adds else found

    class Attention(nn.Module):
        def __init__(self, inputs, given):
            super().__init__()
            self.heads, width = given["num_heads"], given["key_dim"]
            self.norm, self.attn = Norm(inputs), nn.Module()
            self.attn.query = nn.Sequential()
            self.attn.query.add_module("proj", convolution(inputs, self.heads * width, 1))
            for name in ("key", "value"):
                read = nn.Sequential()
                if given["kv_stride"] > 1:
                    step = given["kv_stride"]
                    down = convolution(inputs, inputs, 3, step, groups=inputs)
                    read.add_module("down_conv", down)
                    read.add_module("norm", Norm(inputs))
                read.add_module("proj", convolution(inputs, width, 1))
                setattr(self.attn, name, read)
            self.attn.output = nn.Sequential()
            self.attn.output.add_module("proj", convolution(self.heads * width, inputs, 1))
            self.layer_scale = Scale(inputs)

        def forward(self, x):
            rows, columns = x.shape[2:]
            read, attn = self.norm(x), self.attn
            queries = attn.query(read).unflatten(1, (self.heads, -1)).flatten(3)
            keys, values = (each(read).flatten(2)[:, None] for each in (attn.key, attn.value))
            scores = queries.transpose(2, 3) @ keys * keys.shape[2] ** -0.5
            found = values @ scores.softmax(-1).transpose(2, 3)
            found = found.flatten(1, 2).unflatten(2, (rows, columns))
            return x + self.layer_scale(attn.output(found))

    class Fusion(nn.Module):
        def __init__(self, inputs):
            super().__init__()
            given = {"exp_ratio": 2.0, "out_chs": 2048, "stride": 1}
            given |= {"dw_kernel_size_start": 0, "dw_kernel_size_mid": 0}
            self.ffn, self.norm = Inverted(inputs, given, scaled=False), Norm(2048)

        def forward(self, fine, coarse):
            coarse = functional.interpolate(coarse, size=fine.shape[2:], mode="nearest")
            x = self.ffn(torch.cat([fine, coarse], dim=1))
            size = x.shape[2] // msfa_output_resolution
            return self.norm(functional.avg_pool2d(x, size))

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv_stem = Unit(3, stem_size, 3, 2, bias=True, activated=True)
            kinds, features = {"er": Edge, "uir": Inverted, "mqa": Attention}, stem_size
            self.blocks = nn.Sequential()
            for stage in stages:
                made = nn.Sequential()
                for each in stage:
                    made.append(kinds[each["block_type"]](features, each))
                    features = each["out_chs"]
                self.blocks.append(made)
            self.msfa = Fusion(features + stages[-2][-1]["out_chs"])

        def forward(self, x):
            x, maps = self.conv_stem(x), []
            for stage in self.blocks:
                x = stage(x)
                maps.append(x)
            return self.msfa(*maps[-2:])

    return Encoder().eval()


def register():
    """Let Transformers make Gemma 3n with the class here in place of timm's."""
    import transformers
    from transformers.modeling_outputs import BaseModelOutputWithPooling
    from transformers.models.gemma3n.configuration_gemma3n import Gemma3nVisionConfig

    class Tower(transformers.PreTrainedModel):
        config_class = Gemma3nVisionConfig

        def __init__(self, config):
            super().__init__(config)
            self.timm_model = encoder(**copy.deepcopy(config.model_args or {}))
            self.post_init()

        def forward(self, pixel_values, do_pooling=False, return_dict=True, **kwargs):
            return BaseModelOutputWithPooling(last_hidden_state=self.timm_model(pixel_values))

    transformers.AutoModel.register(Gemma3nVisionConfig, Tower, exist_ok=True)


def sample(states):
    """Return what is kept of states `(images, places, 2048)`: every 31st number, and lengths."""
    lengths = np.sqrt((states.astype("float64") ** 2).mean(-1))
    return np.concatenate([states[..., ::31], lengths[..., None]], axis=-1)


def main():
    """Write what timm computes, and what Transformers computes with it."""
    import tempfile

    import timm
    import torch

    from tests.tasks import test_gemma3n_images, vision_chats

    network = fill(timm.create_model("mobilenetv5_300m_enc", **small_args()))
    images = torch.from_numpy(pictures()).permute(0, 3, 1, 2)
    with torch.no_grad():
        states = network(images).flatten(2).transpose(1, 2).numpy()
    with tempfile.TemporaryDirectory() as folder:
        model, processor = vision_chats.gemma3n(Path(folder), timm=True)
    assert type(model.model.vision_tower).__name__ == "TimmWrapperModel"
    logits = [
        test_gemma3n_images.expected_logits(model, processor, conversation)[-2:]
        for conversation in test_gemma3n_images.conversations()
    ]
    found = {"states": sample(states), "logits": np.stack(logits)}
    rounded = {name: np.round(each.astype("float64"), 6).tolist() for name, each in found.items()}
    VALUES.write_text(json.dumps({"timm": timm.__version__, **rounded}) + "\n")


if __name__ == "__main__":
    main()
