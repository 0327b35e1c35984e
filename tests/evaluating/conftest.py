import json
import os
from pathlib import Path

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import export_to_huggingface, presets_folder

# Nothing is looked for in the network.
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
TASKS = Path(__file__).parents[2] / "examples" / "evaluation_tasks"


def _tokenizer(folder, begins):
    """The bundled tokenizer of plays; texts begin with a start token if `begins`."""
    source = presets_folder() / "gpt_tiny_shakespeare"
    described = json.loads((source / "tokenizer.json").read_text())
    if begins:
        start = {"SpecialToken": {"id": "<s>", "type_id": 0}}
        text = {"Sequence": {"id": "A", "type_id": 0}}
        described["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [start, text],
            "pair": [start, text, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        }
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(described))
    (folder / "tokenizer_config.json").write_text((source / "tokenizer_config.json").read_text())
    return kt.Tokenizer.from_files(folder)


@pytest.fixture(scope="session")
def writers(tmp_path_factory):
    """Two tiny models with random weights, and the folders with them in Hugging Face's format."""
    found = {}
    for name, begins in (("plain", False), ("begins", True)):
        place = tmp_path_factory.mktemp(name)
        tokenizer = _tokenizer(place / "tokenizer", begins)
        tokenizer.chat_template = (
            "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant:{% endif %}"
        )
        config = kt.TransformerConfig(
            kind="decoder", vocabulary_size=tokenizer.vocabulary_size, hidden_dim=32, num_layers=2,
            num_heads=2, intermediate_dim=48, max_sequence_length=64, position="rotary",
            normalization="rms_norm", activation="silu", gated=True, use_bias=False,
            normalize_first=True, tie_embeddings=False, final_normalization=True,
        )  # fmt: skip
        backbone = kt.models.Decoder(config)
        # The same on each backend, and so large that some tokens are far likelier.
        draw = np.random.default_rng(7)
        for weight in backbone.weights:
            if weight.path.endswith(("embeddings", "kernel")):
                weight.assign(draw.normal(0, 0.15, weight.shape))
        task = kt.CausalLM(backbone, tokenizer)
        export_to_huggingface(task, place / "theirs", family="llama")
        found[name] = task, place / "theirs"
    return found
