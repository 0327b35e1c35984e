"""Folders of small random models in each scheme of quantization, with the weights they stand for.

What packs is the package of the scheme, where there is one. GPTQ and AWQ are packed here, a number
at a time, by their published formats:
https://github.com/AutoGPTQ/AutoGPTQ/blob/main/auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py and
https://github.com/casper-hansen/AutoAWQ/blob/main/awq/modules/linear/gemm.py.
"""

import json

import numpy as np
import safetensors.torch
import torch
import transformers

_SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
GROUP = 16
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the output in each place of a word, the lowest bits first


def made(kind="Qwen2", **values):
    """A model of Transformers with random weights and biases."""
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(**(_SIZES | values))
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.2)
    return model


EXPERTS = {
    "Qwen3Moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "head_dim": 8,
    },
    "DeepseekV3": {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "n_group": 1,
        "topk_group": 1,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 32,
        "v_head_dim": 16,
        "first_k_dense_replace": 1,
    },
}


def words(numbers, bits):
    """Rows of numbers as rows of 32-bit words, one number after the other."""
    rows = []
    for row in np.asarray(numbers).tolist():
        bits_of_row = sum(number << (bits * place) for place, number in enumerate(row))
        count = -(-len(row) * bits // 32)
        rows.append([(bits_of_row >> (32 * i)) & 0xFFFFFFFF for i in range(count)])
    return torch.from_numpy(np.array(rows, "uint32").view("int32"))


def awq_words(numbers):
    return words(
        [
            [row[i + o] for i in range(0, len(row), 8) for o in _AWQ_ORDER]
            for row in numbers.tolist()
        ],
        4,
    )


def rounded(weight, bits, symmetric, groups):
    """Numbers (outputs, inputs), scales and zeros (outputs, groups) of a matrix."""
    weight, count = weight.double().numpy(), groups.max() + 1
    scales, zeros = np.zeros((2, len(weight), count))
    for g in range(count):
        part = weight[:, groups == g]
        if symmetric:
            scales[:, g], zeros[:, g] = np.abs(part).max(1) * 2 / (2**bits - 1), 2 ** (bits - 1)
        else:
            low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
            scales[:, g] = (high - low) / (2**bits - 1)
            # Version 1 of GPTQ cannot say 0.
            zeros[:, g] = np.clip(np.round(-low / scales[:, g]), 1, 2**bits - 1)
    scales = scales.astype("float16")
    numbers = np.round(weight / scales[:, groups].astype(float)) + zeros[:, groups]
    return np.clip(numbers, 0, 2**bits - 1).astype(int), scales, zeros.astype(int)


def _gptq(module, bits=4, symmetric=True, ordered=True, version=1):
    groups = np.arange(module.weight.shape[1]) // GROUP
    if not ordered:
        groups = np.random.default_rng(0).permutation(groups)
    numbers, scales, zeros = rounded(module.weight.detach(), bits, symmetric, groups)
    module.weight.data = torch.from_numpy(
        ((numbers - zeros[:, groups]) * scales[:, groups].astype("float32")).astype("float32")
    )
    return {
        "qweight": words(numbers, bits).T.contiguous(),
        "qzeros": words((zeros - (version == 1)).T, bits),
        "scales": torch.from_numpy(scales.T.copy()),
        "g_idx": torch.from_numpy(groups.astype("int32")),
    }


def _awq(module):
    groups = np.arange(module.weight.shape[1]) // GROUP
    numbers, scales, zeros = rounded(module.weight.detach(), 4, False, groups)
    module.weight.data = torch.from_numpy(
        ((numbers - zeros[:, groups]) * scales[:, groups].astype("float32")).astype("float32")
    )
    return {
        "qweight": awq_words(numbers.T),
        "qzeros": awq_words(zeros.T),
        "scales": torch.from_numpy(scales.T.copy()),
    }


def _float8(module, block=None):
    weight = module.weight.detach()
    if block is None:
        scale = weight.abs().amax(1, keepdim=True) / 448
        whole = scale
    else:
        height, width = block
        grid = weight.reshape(weight.shape[0] // height, height, weight.shape[1] // width, width)
        scale = grid.abs().amax((1, 3)) / 448
        whole = scale.repeat_interleave(height, 0).repeat_interleave(width, 1)
    numbers = (weight / whole).to(torch.float8_e4m3fn)
    module.weight.data = numbers.float() * whole
    return {"weight": numbers, "weight_scale" if block is None else "weight_scale_inv": scale}


def _compressed(module, scheme):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization.utils import calculate_qparams

    weight, args = module.weight.detach(), scheme.weights
    by = {
        "tensor": weight.reshape(1, -1),
        "channel": weight[:, None],
        "group": weight.reshape(len(weight), -1, args.group_size or 1),
        "block": None,
    }[args.strategy]
    if by is None:
        height, width = args.block_structure
        by = weight.reshape(len(weight) // height, height, -1, width).swapaxes(1, 2).flatten(2)
    scale, zero = calculate_qparams(by.amin(-1), by.amax(-1), args)
    if args.strategy == "tensor":
        scale, zero = scale.reshape(1), zero.reshape(1)
    packer = BaseCompressor.get_value_from_registry(scheme.format)
    given = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
    stored = packer.compress(given, scheme)
    module.weight.data = packer.decompress(dict(stored), scheme)["weight"].float()
    return stored


def _compressed_scheme(form, **weights):
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights), format=form)


_COMPRESSED = {
    "fp8_tensor": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
    "fp8_channel": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "fp8_block": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [16, 16]},
    ),
    "w8a16": ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
    "w4a16": (
        "pack-quantized",
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP},
    ),
    "w4a16_asymmetric": (
        "pack-quantized",
        {
            "num_bits": 4,
            "type": "int",
            "strategy": "group",
            "group_size": GROUP,
            "symmetric": False,
        },
    ),
    "w3a16": ("pack-quantized", {"num_bits": 3, "type": "int", "strategy": "channel"}),
}
_GPTQ = {
    "gptq_2": {"bits": 2, "symmetric": False},
    "gptq_3": {"bits": 3, "symmetric": False},
    "gptq_4": {"bits": 4},
    "gptq_4_act_order": {"bits": 4, "symmetric": False, "ordered": False},
    "gptq_4_v2": {"bits": 4, "symmetric": False, "version": 2},
    "gptq_8": {"bits": 8},
}
PACKED = [*_GPTQ, "awq", "fp8", "fbgemm_fp8", *_COMPRESSED]
BITSANDBYTES = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "nf4_double": {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
    },
    "fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "int8": {"load_in_8bit": True},
}
NAMES = [*PACKED, *BITSANDBYTES, "mxfp4"]


def _scheme(name):
    """The function that packs a matrix, and the config."""
    if name in _GPTQ:
        values = {"symmetric": True, "ordered": True, "version": 1} | _GPTQ[name]
        config = {
            "quant_method": "gptq",
            "bits": values["bits"],
            "group_size": GROUP,
            "desc_act": not values["ordered"],
            "sym": values["symmetric"],
            "checkpoint_format": "gptq" if values["version"] == 1 else "gptq_v2",
        }
        return lambda module: _gptq(module, **values), config
    if name == "awq":
        config = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}
        return _awq, config | {"zero_point": True}
    if name == "fp8":
        config = {"quant_method": "fp8", "weight_block_size": [16, 32], "fmt": "e4m3"}
        return lambda module: _float8(module, (16, 32)), config | {"activation_scheme": "dynamic"}
    if name == "fbgemm_fp8":
        return _float8, {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}
    form, weights = _COMPRESSED[name]
    scheme = _compressed_scheme(form, **weights)
    config = {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": json.loads(scheme.model_dump_json())},
    }
    return lambda module: _compressed(module, scheme), config


def write(folder, name, model=None):
    """Write a folder of a scheme. Returns a model of Transformers with the same weights."""
    if name in BITSANDBYTES:
        return _write_bitsandbytes(folder, name, model)
    if name == "mxfp4":
        return _write_mxfp4(folder)
    model = made() if model is None else model
    model.save_pretrained(folder)
    pack, config = _scheme(name)
    plain = folder.parent / f"{folder.name}_plain"
    model.save_pretrained(plain)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    unpacked = dict(tensors)
    for path in unpacked:
        if path.endswith("_proj.weight") or ".experts." in path:
            module = torch.nn.Linear(1, 1, bias=False, device="meta")
            module.weight = torch.nn.Parameter(tensors.pop(path))
            parts = pack(module)
            tensors |= {path.removesuffix("weight") + end: part for end, part in parts.items()}
            unpacked[path] = module.weight.detach()
    save(folder, tensors, config)
    save(plain, unpacked, None)
    return type(model).from_pretrained(plain, attn_implementation="eager").eval()


def save(folder, tensors, config):
    """Replace the tensors of a folder, and its quantization_config."""
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    values = json.loads((folder / "config.json").read_text())
    values = {name: value for name, value in values.items() if name != "quantization_config"}
    if config is not None:
        values["quantization_config"] = config
    (folder / "config.json").write_text(json.dumps(values))


def _write_bitsandbytes(folder, name, model):
    plain = folder.parent / f"{folder.name}_plain"
    # Its products on a CPU are wrong if a block of 64 numbers spans two outputs.
    (made(hidden_size=64) if model is None else model).save_pretrained(plain)
    config = transformers.BitsAndBytesConfig(**BITSANDBYTES[name])
    packed = transformers.AutoModelForCausalLM.from_pretrained(plain, quantization_config=config)
    packed.save_pretrained(folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder).dequantize().float().eval()


def _write_mxfp4(folder):
    sizes = {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
        "attn_implementation": "eager",
    }
    model = made("GptOss", **sizes)
    model.save_pretrained(folder)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    drawn = np.random.default_rng(2)
    for path, weight in list(tensors.items()):
        if path.endswith(("gate_up_proj", "down_proj")):
            experts, inputs, outputs = weight.shape
            shape = (experts, outputs, inputs // 32, 16)
            del tensors[path]
            tensors[f"{path}_blocks"] = torch.from_numpy(drawn.integers(0, 256, shape, "uint8"))
            tensors[f"{path}_scales"] = torch.from_numpy(
                drawn.integers(122, 126, shape[:-1], "uint8")
            )
    save(folder, tensors, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    config = transformers.Mxfp4Config(dequantize=True)
    read = transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=config)
    return read.float().eval()
