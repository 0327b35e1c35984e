"""Output of a first `fit` on a terminal, in a process of its own."""

PROGRAM = """
import warnings

# Behind the filter of the package, as an option of the command line is.
warnings.filterwarnings("error", "Gradients do not exist", UserWarning, append=True)
import keras_transformer as kt

small = {"load_weights": False, "num_layers": 1}
lm = kt.MaskedLM.from_preset("minilm_l6_en", **small)
assert lm.backbone.pooler is not None
lm.fit(["two dogs run .", "a man"] * 2, verbose=0)

classifier = kt.TextClassifier.from_preset("minilm_l6_en", labels=["a", "b", "c"], **small)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("default")
    classifier.fit(["x", "y"], ["a", "b"], verbose=0)
places = [warning.filename for warning in said if "no example of 1 of" in str(warning.message)]
assert places == ["<string>"], places
"""


def test_it_does_not_ask_for_a_loss_and_warns_of_the_line_of_the_user(forks):
    result = forks.run("-c", PROGRAM)
    assert result.returncode == 0, result.stderr
