"""The shape of tasks: few base classes, and few files that a call enters."""

import io
import zipfile

import h5py
import pytest

import keras_transformer as kt
from benchmarks.entered import MOST_FILES, calls, entered
from keras_transformer.checkpoints.heads import TASKS
from keras_transformer.models.runtime.runtime import Runtime
from tests.tasks.common import classifier

MOST_CLASSES = 4  # such as CausalLM, LanguageModel, Task, Runtime


@pytest.mark.backend_independent
@pytest.mark.parametrize("name", TASKS)
def test_a_task_has_few_base_classes(name):
    own = [c for c in TASKS[name].__mro__ if c.__module__.startswith("keras_transformer")]
    assert len(own) <= MOST_CLASSES and own[-2:] == [kt.Task, Runtime]


@pytest.mark.backend_independent
def test_a_backbone_is_a_runtime():
    for kind in (kt.models.Encoder, kt.models.Decoder, kt.models.Seq2Seq, kt.models.DualEncoder):
        own = [c for c in kind.__mro__ if c.__module__.startswith("keras_transformer")]
        assert own[-2:] == [kt.Backbone, Runtime]


@pytest.mark.one_backend
def test_a_call_enters_few_files(tmp_path):
    """The counts are an upper bound that only falls: lower it when they are below."""
    found = {name: entered(call).files for name, call in calls(tmp_path).items()}
    assert all(count <= MOST_FILES[name] for name, count in found.items()), found


@pytest.mark.one_backend
def test_files_find_a_head_by_the_attributes_of_its_task(tmp_path):
    """As in files written before there were heads: Keras finds `output_dense` in `layers`."""
    task = classifier(num_classes=3, hidden_activation="tanh")
    task.save(tmp_path / "task.keras")
    with zipfile.ZipFile(tmp_path / "task.keras") as archive:
        weights = h5py.File(io.BytesIO(archive.read("model.weights.h5")))
    assert {"hidden_dense/vars/0", "layers/dense_1/vars/0"} <= set(paths_of(weights))
    assert "head" not in weights
    assert task.get_layer("output") is task.output_dense is task.head.output_dense


def paths_of(file: h5py.File) -> list[str]:
    found: list[str] = []
    file.visit(found.append)
    return found


@pytest.mark.backend_independent
def test_a_class_that_states_what_its_head_says():
    with pytest.warns(DeprecationWarning, match="Old states takes_records.*`head_class`"):

        class Old(kt.TextClassifier):
            takes_records = False

    assert issubclass(Old.head_class, kt.TextClassifier.head_class)
    assert kt.TextClassifier.head_class.takes_records and not Old.head_class.takes_records
