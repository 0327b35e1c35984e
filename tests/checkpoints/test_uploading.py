"""push_to_hub: what arrives on a hub, what the card says, and what is said when it is refused."""

import json
import os
import subprocess
import sys
import tempfile

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.checkpoints.hub_server import FakeHubToWrite

pytestmark = pytest.mark.one_backend

# In a process of its own: `huggingface_hub` reads the address when it is imported.
PROGRAM = """
import json, sys
import keras_transformer as kt

told = {}
for name, given in json.load(sys.stdin).items():
    task = kt.CausalLM.from_preset(given.pop("preset"))
    try:
        told[name] = task.push_to_hub(**given)
    except Exception as error:
        told[name] = f"{type(error).__name__}: {error}"
print("\\n" + json.dumps(told))
"""
FACTS = {
    "license": "mit", "languages": ["en", "no"], "description": "Says yes.",
    "data": "three sentences", "scores": {"perplexity": 7.5},
}  # fmt: skip


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    tokenizer = kt.Tokenizer.train(["yes and no"] * 2, vocabulary_size=300)
    sizes = {"hidden_dim": 16, "num_layers": 1, "num_heads": 2, "intermediate_dim": 32}
    config = kt.TransformerConfig(
        kind="decoder", vocabulary_size=tokenizer.vocabulary_size, position="rotary",
        normalization="rms_norm", normalize_first=True, use_bias=False, gated=True,
        activation="silu", **sizes,
    )  # fmt: skip
    keras.utils.set_random_seed(0)
    folder = tmp_path_factory.mktemp("presets") / "yes"
    kt.CausalLM(kt.models.Decoder(config), tokenizer).save_to_preset(folder)
    return str(folder)


@pytest.fixture(scope="module")
def pushed(preset, tmp_path_factory):
    """A hub after several uploads, and what each call returned or raised."""
    hub = FakeHubToWrite(token="hf_right")
    calls = {
        "preset": {"repository": "me/yes", "metadata": FACTS},
        "again": {"repository": "hf://me/yes@half", "dtype": "float16", "message": "Half"},
        "huggingface": {"repository": "me/llama", "format": "huggingface", "metadata": FACTS},
        "own card": {"repository": "me/card", "card": "# Mine\n"},
        "token": {"repository": "me/yes", "token": "hf_wrong"},
        "name": {"repository": "../yes"},
        "name of the hub": {"repository": "me/yes--no"},
        "languages": {"repository": "me/yes", "metadata": {"languages": "en"}},
        "scores": {"repository": "me/a", "format": "huggingface", "metadata": {"scores": 7.5}},
        "metadata": {"repository": "me/a", "format": "huggingface", "metadata": 5},
        "text": {"repository": "me/a", "format": "huggingface", "card": 5},
        "format": {"repository": "me/yes", "format": "onnx"},
    }
    given = {name: {"token": "hf_right", "preset": preset, **call} for name, call in calls.items()}
    with hub.running() as address:
        environment = os.environ | {
            "HF_ENDPOINT": address, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(tmp_path_factory.mktemp("home")),
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], input=json.dumps(given), env=environment, text=True,
            capture_output=True, timeout=300,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return hub, json.loads(done.stdout.splitlines()[-1])


def files(hub, name, branch, folder):
    folder.mkdir()
    for path, content in hub.repositories[name][branch].items():
        (folder / path).write_bytes(content)
    return folder


def test_what_arrives_loads_again(pushed, preset, tmp_path):
    hub, told = pushed
    ids = np.array([[5, 9, 200, 31]])
    expected = kt.CausalLM.from_preset(preset).predict({"token_ids": ids}, verbose=0)
    for name, branch, bound in (
        ("me/yes", "main", 0),
        ("me/yes", "half", 1e-2),
        ("me/llama", "main", 1e-6),
    ):
        folder = files(hub, name, branch, tmp_path / f"{name}-{branch}".replace("/", "-"))
        found = kt.CausalLM.from_preset(folder)
        assert np.abs(found.predict({"token_ids": ids}, verbose=0) - expected).max() <= bound
        assert found.tokenizer.encode("yes") == kt.Tokenizer.from_preset(preset).encode("yes")
    assert told["preset"].startswith("http://127.0.0.1") and "/me/yes/commit/" in told["preset"]
    assert hub.messages == ["Upload with keras_transformer", "Half", *hub.messages[:1] * 2]
    config = json.loads(hub.repositories["me/llama"]["main"]["config.json"])
    assert config["model_type"] == "llama"


def test_the_card(pushed):
    hub, _ = pushed
    card = hub.repositories["me/yes"]["main"]["README.md"].decode()
    assert card.startswith(
        '---\nlibrary_name: keras_transformer\nlicense: mit\nlanguage: [en, "no"]\n---\n'
    )
    assert "Says yes." in card and "| trained on | three sentences |" in card
    assert "| perplexity | 7.5 |" in card
    assert 'keras_transformer.CausalLM.from_preset("hf://me/yes")' in card
    assert "export_to_huggingface(task" in card and "The architecture is `llama`" in card
    assert "keras-transformer export --preset hf://me/yes --format onnx" in card
    card = hub.repositories["me/llama"]["main"]["README.md"].decode()
    assert 'transformers.LlamaForCausalLM.from_pretrained("me/llama")' in card
    assert hub.repositories["me/card"]["main"]["README.md"] == b"# Mine\n"


def test_no_token_and_no_place_on_this_machine_is_uploaded(pushed, preset):
    hub, _ = pushed
    private = [
        text.encode() for text in ("hf_right", os.path.dirname(preset), tempfile.gettempdir())
    ]
    written = [x for branches in hub.repositories.values() for x in branches.values()]
    assert len(written) == 4
    assert not [name for files in written for name, content in files.items()
                for text in private if text in content]  # fmt: skip


def test_what_is_refused(pushed):
    hub, told = pushed
    assert told["token"].startswith(
        "PermissionError: The hub does not let you write me/yes (HTTP 401)"
    )
    assert told["name"].startswith(
        "ValueError: 'hf://../yes' is not the name of a model on the hub"
    )
    assert told["name of the hub"].startswith("ValueError: hf://me/yes--no@main cannot be a model")
    for name in ("languages", "scores"):
        assert told[name].startswith(f"ValueError: `metadata[{name!r}]` must be a ")
    assert told["metadata"].startswith("ValueError: `metadata` must be a dict")
    assert told["text"].startswith("ValueError: `card` ")
    assert "me/a" not in hub.repositories and "hf_" not in "".join(told.values())
    assert told["format"].startswith("ValueError: `format` must be one of 'keras_transformer'")
