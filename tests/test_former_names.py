"""Former public names: the same objects, with a warning that says the new name."""

import pytest

import keras_transformer as kt
from keras_transformer import serving

pytestmark = pytest.mark.backend_independent

NAMES = [
    (kt.layers, "Slots", "KeyValueCache"),
    (kt.layers, "Visibility", "AttentionMask"),
    (kt.models, "BlockRun", "ForwardContext"),
    (kt.models, "KeepsState", "InterruptSafe"),
    (serving, "Served", "ServedTask"),
    (kt.data.TokenRows, "of", "from_lists"),
    (kt.generation.Cache, "spaces", "groups"),
    (kt.generation.Cache, "in_use", "live_slots"),
    (kt.generation.Cache, "keep_first", "accept"),
    (kt.generation.Cache, "continue_from", "reorder_branches"),
    (kt.generation.Constraints, "of", "from_tokenizer"),
    (kt.explanations.Explanation, "likeliest", "logit_lens"),
    (kt.TransformerConfig, "reach", "receptive_field"),
]


@pytest.mark.parametrize(("owner", "old", "new"), NAMES)
def test_a_former_name_is_the_new_one_and_warns(owner, old, new):
    with pytest.warns(DeprecationWarning, match=rf"{old}` is now `.*{new}`"):
        found = getattr(owner, old)
    assert found == getattr(owner, new)


def test_a_former_name_of_an_instance():
    with pytest.warns(DeprecationWarning, match="from_lists"):
        rows = kt.data.TokenRows.of([[3, 4], [5]])
    assert list(map(len, rows)) == [2, 1]


def test_other_names_are_unknown():
    with pytest.raises(AttributeError, match="no attribute 'Slot'.*"):
        _ = kt.layers.Slot
    with pytest.raises(AttributeError, match="no attribute 'Serve'"):
        _ = serving.Serve
