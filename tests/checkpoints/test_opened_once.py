"""A preset is opened once and handed along; what lower floors know of tasks, the tasks state."""

import ast
from pathlib import Path

import pytest

import keras_transformer as kt
from keras_transformer import tasks
from keras_transformer.checkpoints.heads import TASKS
from keras_transformer.checkpoints.presets import listing as presets
from keras_transformer.checkpoints.presets import preset
from tests.checkpoints.conftest import small_backbone
from tests.tasks import audio, images, series, videos

pytestmark = pytest.mark.backend_independent
PACKAGE = Path(kt.__file__).parent
# What must be importable without presets, families and tasks.
LOWER = (
    *("support", "config", "distribution", "layers", "models", "tokenizers"),
    *("data", "generation", "training"),
)


def counted(monkeypatch, module, name):
    """The first arguments that a function is called with from here on."""
    seen, function = [], getattr(module, name)

    def call(first, *rest, **options):
        seen.append(first)
        return function(first, *rest, **options)

    monkeypatch.setattr(module, name, call)
    return seen


@pytest.mark.parametrize("with_tokenizer", [False, True])
def test_a_task_finds_its_preset_once_and_reads_its_config_once(
    tmp_path, monkeypatch, with_tokenizer
):
    tokenizer = None
    if with_tokenizer:
        tokenizer = kt.Tokenizer.train(["a b a b"] * 2, vocabulary_size=300)
    backbone = small_backbone(vocabulary_size=300)
    made = kt.TextClassifier(backbone, tokenizer, labels=["bad", "good"])
    made.save_to_preset(tmp_path)
    found = counted(monkeypatch, presets, "_find")
    read = counted(monkeypatch, preset, "read_json")
    loaded = kt.Task.from_preset(tmp_path)
    assert type(loaded) is kt.TextClassifier and (loaded.tokenizer is None) != with_tokenizer
    assert found == [tmp_path]
    assert [path.name for path in read] == ["config.json"]


OPTIONS = {
    "TextClassifier": [{"num_classes": 3}, {"num_classes": 2, "hidden_activation": "tanh"}],
    "TokenClassifier": [{"num_classes": 4}],
    "ImageClassifier": [{"num_classes": 4}, {"num_classes": 2, "pooling": "attention"}],
    "AudioClassifier": [
        {"num_classes": 4},
        {"num_classes": 2, "output_norm": True},
        {"num_classes": 2, "projection_dim": 7},
    ],
    "VideoClassifier": [{"num_classes": 4}, {"num_classes": 2, "output_norm": True}],
    "CTCSpeechToText": [{"vocabulary_size": 9}],
    "DepthEstimator": [{}, {"max_depth": 10.0}],
    "ImageSegmenter": [{"num_classes": 3}],
    "ObjectDetector": [{"num_classes": 3}, {"num_classes": 1, "class_layers": 1}],
    "PageEmbedder": [{"vector_dim": 8}],
    "PromptedSegmenter": [{"decoder": {"width": 16, "num_heads": 2, "mask_channels": 4}}],
    "SequenceClassifier": [{"num_classes": 3}],
    "SequenceLabeler": [{"num_classes": 3}],
    "Forecaster": [
        {"horizon": 5, "pooling": "mean"},
        {"horizon": 2, "quantiles": [0.1, 0.9]},
        {"horizon": 3, "residual": True},
    ],
}
# Of tasks that read no tokens.
BACKBONES = {
    "ImageClassifier": lambda: kt.models.Encoder(images.patches()),
    "AudioClassifier": lambda: kt.models.Encoder(audio.frames()),
    "VideoClassifier": lambda: kt.models.Encoder(videos.config()),
    "ImageEmbedder": lambda: kt.models.Encoder(images.patches()),
    "AudioEmbedder": lambda: kt.models.Encoder(audio.frames()),
    "VideoEmbedder": lambda: kt.models.Encoder(videos.config()),
    "DepthEstimator": lambda: kt.models.Encoder(images.patches()),
    "ImageSegmenter": lambda: kt.models.Encoder(images.patches()),
    "ObjectDetector": lambda: kt.models.Encoder(images.patches(num_detection_tokens=2)),
    "PromptedSegmenter": lambda: kt.models.Encoder(images.patches(class_token=False)),
    "CTCSpeechToText": lambda: kt.models.Encoder(audio.waveform()),
    "Forecaster": lambda: kt.models.Encoder(series.config()),
    "ImageToText": lambda: kt.models.Seq2Seq(images.captions()),
    "PageEmbedder": lambda: kt.models.Seq2Seq(images.placed()),
    "SpeechToText": lambda: kt.models.Seq2Seq(audio.transcripts()),
}


@pytest.mark.parametrize(
    "name", [n for n in tasks.__all__ if issubclass(getattr(tasks, n), kt.Task)]
)
def test_a_task_class_states_the_shapes_of_its_head(name):
    if name == "Task":
        assert name not in TASKS  # it has no head, and no preset names it
        return
    task_class = TASKS[name]
    assert task_class is getattr(tasks, name) and task_class.alias
    for kind in task_class.backbone_kinds:
        backbone = BACKBONES.get(name, lambda kind=kind: small_backbone(kind))()
        for options in OPTIONS.get(name, [{}]):
            made = task_class(backbone, **options)
            shapes = {path: tuple(variable.shape) for path, variable in made.head.items()}
            assert task_class.head_shapes(backbone.config, made.task_values()) == shapes


def test_no_lower_floor_imports_checkpoints_or_tasks():
    files = [file for name in LOWER for file in sorted((PACKAGE / name).rglob("*.py"))]
    assert len(files) > 60
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            imported = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            higher = ("keras_transformer.checkpoints", "keras_transformer.tasks")
            assert not [each for each in imported if each.startswith(higher)], file
