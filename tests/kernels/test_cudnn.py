"""JAX programs for a GPU, lowered without having one: cuDNN's fused attention."""

import re

import keras
import numpy as np
import pytest

from keras_transformer.kernels import attention
from keras_transformer.kernels.device import Device
from keras_transformer.layers import MultiHeadAttention

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="programs of JAX")
LENGTH = 96
_CALLS = ("Softmax", "SoftmaxBackward", "ScaleBiasSoftmax", "ScaleBiasSoftmaxBackward")


@pytest.fixture
def cuda(monkeypatch):
    """JAX takes the machine for one with a GPU: nothing runs, all is lowered."""
    cudnn = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(attention, "device", lambda: Device("jax", "cuda", 80 * 2**30))


def lowered(dtype="bfloat16", mask=None, head_dim=64, **options):
    """The program of a layer's gradient, as text."""
    import jax
    from jax import numpy as jnp

    layer = MultiHeadAttention(4, head_dim, dtype=dtype, **options)
    layer.build((2, LENGTH, 32))
    values = [variable.value for variable in layer.variables]

    def loss(values, x):
        mapping = list(zip(layer.variables, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return jnp.sum(layer(x, mask=mask).astype("float32"))

    x = jnp.ones((2, LENGTH, 32), dtype)
    allow = jax.export.DisabledSafetyCheck.custom_call
    allowed = [allow(f"__cudnn$fmha{name}") for name in _CALLS]
    program = jax.export.export(
        jax.jit(jax.grad(loss)), platforms=["cuda"], disabled_checks=allowed
    )
    return program(values, x).mlir_module()


def calls(text):
    return set(re.findall(r"__cudnn\$fmha(\w+)", text))


def pairs_of_heads(text):
    """Tensors of a number for each head and pair of tokens."""
    return re.findall(rf"tensor<2x4x{LENGTH}x{LENGTH}x\w+>", text)


def test_causal_attention(cuda):
    text = lowered(causal=True)
    assert calls(text) == {"Softmax", "SoftmaxBackward"} and not pairs_of_heads(text)


@pytest.mark.parametrize("causal", [False, True])
def test_padding(cuda, causal):
    mask = np.arange(LENGTH)[None] < np.array([[LENGTH - 9], [LENGTH]])
    text = lowered(causal=causal, mask=mask)
    assert calls(text) == {"ScaleBiasSoftmax", "ScaleBiasSoftmaxBackward"}
    assert not pairs_of_heads(text)


@pytest.mark.parametrize("options", [{"dtype": "float32"}, {"head_dim": 132}])
def test_what_it_has_not_goes_to_xla(cuda, options):
    assert not calls(lowered(causal=True, **options))
