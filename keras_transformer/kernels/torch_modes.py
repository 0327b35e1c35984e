"""Whether PyTorch computes what is called now, or writes it down; and how it computes within."""

import contextlib
from collections.abc import Iterator

import torch
from torch._C._functorch import peek_interpreter_stack
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils._python_dispatch import _get_current_dispatch_mode


def computes_now() -> bool:
    """Whether operations give values now, and are not written down, or within `torch.func`."""
    return not (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or peek_interpreter_stack() is not None
        or _get_current_dispatch_mode() is not None
    )


@contextlib.contextmanager
def not_traced() -> Iterator[None]:
    """Within, tensors have numbers and no operation is written down, also while one traces."""
    with disable_proxy_modes_tracing(), unset_fake_temporarily():
        yield
