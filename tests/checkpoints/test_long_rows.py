"""Rotary angles that depend on how long a text is: "dynamic" and "longrope"."""

import numpy as np
import pytest

from keras_transformer import CausalLM
from tests.checkpoints import families

torch = pytest.importorskip("torch")

IDS = np.random.default_rng(0).integers(5, 61, (1, 14)).astype("int32")
# As the last configs of the two families, for eight tokens.
CASES = {
    "llama": (4, {"max_position_embeddings": 8}),
    "phi3": (2, {"original_max_position_embeddings": 8}),
}


@pytest.mark.parametrize("model_type", CASES)
def test_texts_longer_than_the_original(tmp_path, model_type):
    number, values = CASES[model_type]
    families.make(model_type, number, "ForCausalLM", **values).save_pretrained(tmp_path)
    model = CausalLM.from_preset(tmp_path, end_ids=[])
    alone = {}
    for length in (5, 8, 9, 14):
        # One made anew: theirs keeps the angles of the longest text that it has seen.
        reference = families.make(model_type, number, "ForCausalLM", **values)
        with torch.no_grad():
            expected = reference(torch.tensor(IDS[:, :length]).long()).logits.numpy()
        # Behind the text there is padding, which is not counted.
        mask = np.arange(14)[None] < length
        found = model.predict({"token_ids": IDS, "padding_mask": mask}, verbose=0)[:, :length]
        assert np.abs(found - expected).max() <= 1e-4
        reference.generation_config.eos_token_id = reference.config.eos_token_id = None
        options = {"do_sample": False, "pad_token_id": 0}
        ids = torch.tensor(IDS[:, :length]).long()
        # Theirs computes Phi-3's cache anew when it has read the ninth token.
        new = 20 if length > 8 or model_type == "llama" else 9 - length
        expected = reference.generate(ids, max_new_tokens=new, min_new_tokens=new, **options)
        alone[length] = model.generate(IDS[0, :length].tolist(), max_new_tokens=new)
        assert alone[length] == expected[0, length:].tolist()
    # Prompts with the same beginning, which is not computed once for all.
    rows = [IDS[0, :length].tolist() for length in (9, 14)]
    assert model.generate(rows, max_new_tokens=20) == [alone[9], alone[14]]
