"""Any verb after any other on one task: each result is that of a fresh task of the same weights."""

import dataclasses
import functools

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from hypothesis.strategies import sampled_from

from keras_transformer.generation import BeamSearch, Random
from tests.generation.common import on_one
from tests.tasks.common import ENGLISH, GERMAN, classifier, language_model, translator
from tests.thorough import THOROUGH, many

# Texts of other numbers and lengths, each a program where programs have shapes.
ROWS = [ENGLISH[1:2], [*ENGLISH, *ENGLISH[:3]], [ENGLISH[0] * 2, *ENGLISH[1:3]]]


def chosen(texts):
    """As many texts of the other language."""
    return [GERMAN[i % 3] for i in range(len(texts))]


def labels(texts):
    return [len(text) % 2 for text in texts]


CLASSIFIER = {
    "predict": lambda task, texts: task.predict(texts, verbose=0),
    "predict one by one": lambda task, texts: task.predict(texts, batch_size=1, verbose=0),
    "predict_on_batch": lambda task, texts: task.predict_on_batch(texts),
    "classify": lambda task, texts: task.classify(texts),
    "classify one": lambda task, texts: task.classify(texts[0]),
    "evaluate": lambda task, texts: task.evaluate(texts, labels(texts), verbose=0),
    "explain": lambda task, texts: task.explain(texts),
    "explain one": lambda task, texts: task.explain(texts[-1]),
    "explain a gradient": lambda task, texts: task.explain(
        texts[0], saliency="gradient_x_input", target=1
    ),
}
WRITER = {
    "generate": lambda task, texts: task.generate(texts, 4),
    "generate one": lambda task, texts: task.generate(texts[0], 5),
    "stream": lambda task, texts: list(task.generate(texts[0], 4, stream=True)),
    "draw": lambda task, texts: task.generate(texts, 3, sampler=Random(top_p=0.9), seed=3),
    "search": lambda task, texts: task.generate(texts, 3, sampler=BeamSearch(2)),
    "score": lambda task, texts: task.score(texts, chosen(texts)),
    "score one": lambda task, texts: task.score(texts[0], GERMAN[0], per_token=True),
    "explain": lambda task, texts: task.explain(task_inputs(task, texts[:2])),
}
LANGUAGE_MODEL = {
    **WRITER,
    "predict": lambda task, texts: task.predict(texts, verbose=0),
    "constrain": lambda task, texts: task.generate(
        texts, 4, constraint=task.constraint(choices=["never", "two dogs"])
    ),
}
TRANSLATOR = {
    **WRITER,
    "predict": lambda task, texts: task.predict((texts, chosen(texts)), verbose=0),
}


def task_inputs(task, texts):
    return texts if task.backbone.config.kind == "decoder" else (texts, chosen(texts))


KINDS = {
    "classifier": (lambda: classifier(labels=["bad", "good"]), CLASSIFIER),
    "language model": (language_model, LANGUAGE_MODEL),
    "translator": (translator, TRANSLATOR),
}


def compiled(kind):
    task = KINDS[kind][0]()
    task.compile("sgd")
    return task


@functools.cache
def of_fresh_task(kind, verb, rows):
    """The result of the verb on a task that did nothing before it."""
    return KINDS[kind][1][verb](compiled(kind), ROWS[rows])


def assert_same(found, expected, verb):
    """The same structure, texts and names, and numbers but for rounding."""
    if dataclasses.is_dataclass(expected):
        found, expected = vars(found), vars(expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), verb
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), verb
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other, verb)
    elif isinstance(expected, (np.ndarray, float)):
        np.testing.assert_allclose(found, expected, atol=2e-5, rtol=2e-4, err_msg=verb)
    else:
        assert found == expected, verb


def machine(kind):
    """Verbs of one kind of task, drawn one after the other."""
    verbs = KINDS[kind][1]

    class AnyOrder(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.task = compiled(kind)
            self.weights = self.task.get_weights()

        @rule(verb=sampled_from(sorted(verbs)), rows=sampled_from(range(len(ROWS))))
        def ask(self, verb, rows):
            assert_same(verbs[verb](self.task, ROWS[rows]), of_fresh_task(kind, verb, rows), verb)

        @rule()
        def learn_and_forget(self):
            x = task_inputs(self.task, ROWS[1])
            y = [i % 2 for i in range(len(ROWS[1]))] if kind == "classifier" else None
            self.task.fit(x, y, verbose=0)
            self.task.set_weights(self.weights)

    return AnyOrder


@pytest.mark.parametrize("kind", ["classifier", *map(on_one, ("language model", "translator"))])
def test_any_verb_after_any_other(kind):
    options = settings(
        max_examples=many(4, 2), stateful_step_count=50 if THOROUGH else 6, deadline=None
    )
    run_state_machine_as_test(machine(kind), settings=options)


def test_an_explanation_after_other_sizes_is_of_one_row():
    task = compiled("classifier")
    for verb, rows in (("predict", 1), ("classify", 2), ("explain", 0), ("explain", 2)):
        found = CLASSIFIER[verb](task, ROWS[rows])
        if verb == "explain":
            assert_same(found, of_fresh_task("classifier", verb, rows), verb)
