"""Whether PyTorch computes or traces, and a scope in which it computes."""

import contextlib
from collections.abc import Iterator

import torch
from torch._C._functorch import peek_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode


def is_eager() -> bool:
    """Return True if operations give values now, not in a trace or within `torch.func`."""
    return not (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or peek_interpreter_stack() is not None
        or _get_current_dispatch_mode() is not None
    )


@contextlib.contextmanager
def not_traced() -> Iterator[None]:
    """Compute tensors within the scope for real and record nothing, even during a trace."""
    with _disable_current_modes():
        yield
