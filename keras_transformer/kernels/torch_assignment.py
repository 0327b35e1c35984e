"""`assignment.assign` as an operation of PyTorch, which tracing does not look into."""

import torch

from keras_transformer.kernels.least_cost import least_cost


@torch.library.custom_op("keras_transformer::assignment", mutates_args=())
def assignment(costs: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Compute `assignment.assign` on the host."""
    found = least_cost(costs.cpu().numpy(), real.cpu().numpy())
    return torch.from_numpy(found).to(costs.device)


@assignment.register_fake
def _(costs, real):
    return costs.new_empty(costs.shape[:2], dtype=torch.int32)
