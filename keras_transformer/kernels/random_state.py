"""States of random generators that are not variables of a model."""

import numpy as np

from keras_transformer.kernels.device import on

# The names of their states begin with this.
GENERATORS = "torch/"


class RandomGenerators:
    """PyTorch's generators, of which a run saves the states. Other backends draw by variables.

    Each epoch has a seed, so that only within an epoch are states needed.

    Args:
        seed: int, that of the first epoch. Defaults to PyTorch's present seed.
        kept: states, as `states` returned them.
    """

    def __init__(self, seed: int | None = None, kept: dict[str, np.ndarray] | None = None):
        self.seed, self._kept, self._torch = seed, kept or {}, None
        if on("torch"):
            import torch

            self._torch = torch
            self.seed = torch.initial_seed() % 2**31 if seed is None else seed

    def begin(self, epoch: int, resumed: bool) -> None:
        """Seed the generators for an epoch, or set the kept states in an epoch that is resumed."""
        torch = self._torch
        if torch is not None:
            torch.manual_seed(self.seed + epoch)
        if torch is None or not resumed:
            return
        torch.set_rng_state(torch.from_numpy(self._kept[f"{GENERATORS}cpu"]))
        for i in range(torch.cuda.device_count()):
            if (name := f"{GENERATORS}cuda/{i}") in self._kept:
                torch.cuda.set_rng_state(torch.from_numpy(self._kept[name]), i)

    def states(self) -> dict[str, np.ndarray]:
        """Return the state of each generator, uint8 `(bytes,)`, by name."""
        torch = self._torch
        if torch is None:
            return {}
        states = {f"{GENERATORS}cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            of_gpus = enumerate(torch.cuda.get_rng_state_all())
            states |= {f"{GENERATORS}cuda/{i}": state for i, state in of_gpus}
        return {name: state.cpu().numpy() for name, state in states.items()}
