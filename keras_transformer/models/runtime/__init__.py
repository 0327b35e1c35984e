"""How a model runs: steps, their programs, state that survives an interrupt, locks."""
