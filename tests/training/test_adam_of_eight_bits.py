"""The optimizer of bitsandbytes in a loop of one's own, as docs/training.md shows it."""

import bitsandbytes
import keras
import numpy as np
import pytest
import torch

import keras_transformer as kt

pytestmark = pytest.mark.one_backend("torch")


def test_a_task_learns_with_states_of_a_quarter(tmp_path):
    keras.utils.set_random_seed(0)
    config = kt.TransformerConfig(
        kind="decoder", vocabulary_size=256, hidden_dim=32, num_layers=2, num_heads=2,
        intermediate_dim=128, dropout=0,
    )  # fmt: skip
    lm = kt.CausalLM(kt.models.Decoder(config))
    rows = torch.tensor(np.random.default_rng(0).integers(5, 250, (4, 12)), device="cpu")
    rows = rows.to(next(lm.parameters()).device)
    optimizer = bitsandbytes.optim.AdamW8bit(lm.parameters(), lr=1e-2)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        logits = lm({"token_ids": rows[:, :-1]}, training=True)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    large = [p for p in lm.parameters() if p.numel() >= 4096]  # the library's own bound
    assert len(large) >= 5
    assert all(optimizer.state[p][name].dtype == torch.uint8 for p in large
               for name in ("state1", "state2"))  # fmt: skip
    lm.save_to_preset(tmp_path / "trained")
    again = kt.CausalLM.from_preset(tmp_path / "trained")
    ids = {"token_ids": rows.cpu().numpy()}
    expected = lm.predict(ids, verbose=0)
    assert np.abs(again.predict(ids, verbose=0) - expected).max() < 1e-6
