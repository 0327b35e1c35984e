"""A student's start and learning, and a teacher that stays unchanged."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.training import Distiller, distillation_loss, smaller

pytestmark = pytest.mark.one_backend

TEXTS = ["a man rides a bike .", "two dogs run on the grass .", "nobody is here ."] * 2
WORDS = {
    "bpe": kt.Tokenizer.train(TEXTS, vocabulary_size=300),
    "wordpiece": kt.Tokenizer.train(TEXTS, kind="wordpiece", vocabulary_size=60),
}
TASKS = {
    "classifier": (kt.TextClassifier, "encoder", "wordpiece", {"num_classes": 3}),
    "masked": (kt.MaskedLM, "encoder", "wordpiece", {}),
    "causal": (kt.CausalLM, "decoder", "bpe", {}),
    "seq2seq": (kt.Seq2SeqLM, "seq2seq", "bpe", {}),
}
EACH_BACKEND = ("classifier", "seq2seq")  # one head of each kind of outputs


def make(name, num_layers=4, hidden_dim=16, dropout=0.1, **options):
    task, kind, text, more = TASKS[name]
    config = kt.TransformerConfig(
        kind=kind, vocabulary_size=WORDS[text].vocabulary_size, hidden_dim=hidden_dim,
        num_layers=num_layers, num_heads=2, intermediate_dim=24, dropout=dropout,
    )  # fmt: skip
    made = task(kt.models.build_backbone(config), WORDS[text], **{**more, **options})
    random = np.random.default_rng(num_layers)
    for variable in made.weights:
        if variable.name not in ("gamma", "scale"):
            variable.assign(random.normal(size=variable.shape, scale=0.3))
    return made


def data(task, **options):
    if isinstance(task, kt.TextClassifier):
        return task.make_dataset(TEXTS, np.arange(6) % 3, **options)
    return task.make_dataset((TEXTS, TEXTS) if isinstance(task, kt.Seq2SeqLM) else TEXTS, **options)


def values(task):
    return [np.array(ops.convert_to_numpy(variable)) for variable in task.weights]


@pytest.mark.each_backend
@pytest.mark.parametrize("weighted", [False, True])
def test_the_divergence_is_that_of_torch(weighted):
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    teacher, student = random.normal(size=(2, 4, 5, 7), scale=3).astype("float32")
    weights = random.integers(0, 2, (4, 5)).astype("float32") if weighted else None
    found = float(distillation_loss(teacher, student, 2.0, weights))
    soft = [torch.nn.functional.log_softmax(torch.tensor(x) / 2, -1) for x in (student, teacher)]
    each = torch.nn.functional.kl_div(*soft, log_target=True, reduction="none").sum(-1).numpy()
    expected = 4 * np.average(each, weights=weights)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "layers, fewer, expected",
    [(12, 6, [0, 2, 4, 7, 9, 11]), (6, 3, [0, 2, 5]), (4, 1, [0]), (3, 3, [0, 1, 2])],
)
def test_a_student_begins_with_layers_of_its_teacher(layers, fewer, expected):
    """Six of twelve are those of the published DistilBERT."""
    teacher = make("classifier", num_layers=layers)
    student = smaller(teacher, fewer)
    assert type(student) is kt.TextClassifier and student.num_classes == 3
    assert len(student.backbone.encoder.blocks) == fewer
    theirs = {v.path: ops.convert_to_numpy(v) for v in teacher.weights}
    for variable in student.weights:
        path = variable.path
        for mine, place in reversed(list(enumerate(expected))):
            if f"layer_{mine}/" in path:
                path = path.replace(f"layer_{mine}/", f"layer_{place}/")
                break
        np.testing.assert_array_equal(ops.convert_to_numpy(variable), theirs[path])
    assert student.weights[0] is not teacher.weights[0]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.each_backend] if name in EACH_BACKEND else [])
        for name in TASKS
    ],
)
def test_the_student_learns_and_the_teacher_stays(name, tmp_path):
    teacher = make(name, num_layers=2)
    student = smaller(teacher, num_layers=1)
    before = values(teacher)
    weights = {"soft": 5.0, "hard": 0.05, "cosine": 1.0}
    distiller = Distiller(student, teacher, 2.0, *weights.values())
    distiller.compile(keras.optimizers.Adam(0.01))
    batches = data(student, max_buckets=1)
    first = distiller.evaluate(batches, verbose=0, return_dict=True)
    parts = {part: first[f"{part}_loss"] for part in weights}
    total = sum(weights[part] * value for part, value in parts.items())
    assert first["loss"] == pytest.approx(total, rel=1e-4)
    # Each part by itself, on the one batch that there is.
    x, y, *counted = batches[0]
    logits, theirs = (task.predict_on_batch(x) for task in (student, teacher))
    expected = float(distillation_loss(theirs, logits, 2.0, *counted))
    assert parts["soft"] == pytest.approx(expected, rel=1e-3)
    assert parts["hard"] == pytest.approx(float(student.loss(y, logits, *counted)), rel=1e-4)
    if name == "seq2seq":
        pair = [np.asarray(ops.convert_to_numpy(task.backbone(x))) for task in (student, teacher)]
        norms = np.prod([np.linalg.norm(states, axis=-1) for states in pair], axis=0)
        distances = 1 - (pair[0] * pair[1]).sum(-1) / norms
        found = distances[x["decoder_padding_mask"]].mean()
        assert parts["cosine"] == pytest.approx(found, rel=1e-3)

    history = distiller.fit(batches, epochs=12, verbose=0).history
    last = distiller.evaluate(batches, verbose=0, return_dict=True)
    assert last["soft_loss"] < 0.7 * first["soft_loss"] and len(history["soft_loss"]) == 12
    assert last["cosine_loss"] < first["cosine_loss"]
    for variable, old in zip(values(teacher), before, strict=True):
        np.testing.assert_array_equal(variable, old)
    assert all(variable.trainable for variable in teacher.weights)
    if name == "causal":
        student.save_to_preset(tmp_path)
        loaded = type(student).from_preset(tmp_path)
        expected = student.predict_on_batch(x)
        np.testing.assert_allclose(loaded.predict_on_batch(x), expected, rtol=0, atol=1e-4)


def test_models_of_other_widths():
    teacher, student = make("classifier"), make("classifier", num_layers=1, hidden_dim=8)
    distiller = Distiller(student, teacher)
    found = distiller.evaluate(data(student), verbose=0, return_dict=True)
    assert found["cosine_loss"] == 0 and found["soft_loss"] > 0
    with pytest.raises(ValueError, match="models of the same `hidden_dim`, received 8 and 16"):
        Distiller(student, teacher, cosine_weight=1.0)


def test_an_encoder_decoder_keeps_its_encoder():
    """As Shleifer and Rush 2020 shrink BART."""
    student = smaller(make("seq2seq"), num_layers=4, num_decoder_layers=2)
    assert [len(stack.blocks) for stack in student.backbone.stacks] == [4, 2]


def test_bad_values():
    teacher = make("classifier")
    student = smaller(teacher, 1)

    def check(message, function, *args, **kwargs):
        with pytest.raises(ValueError, match=message):
            function(*args, **kwargs)

    check(
        "received a student of type TextClassifier and a MaskedLM",
        Distiller,
        student,
        make("masked"),
    )
    check("and itself as teacher", Distiller, student, student)
    check(
        "predicts 3 classes or tokens, the teacher 2",
        Distiller,
        student,
        make("classifier", num_classes=2),
    )
    check("`temperature` must be a number above 0", Distiller, student, teacher, temperature=0)
    check(
        "`hard_weight` must be a number of at least 0", Distiller, student, teacher, hard_weight=-1
    )
    none = {"soft_weight": 0, "hard_weight": 0, "cosine_weight": 0}
    check("One of the weights must be above 0", Distiller, student, teacher, **none)
    arrays = {"token_ids": np.array([[2, 5]]), "labels": np.array([0])}
    check("takes no 'labels'", Distiller(student, teacher).fit, arrays, np.array([0]))
    check("Distiller takes batches", Distiller(student, teacher).fit, TEXTS, [0] * 6)
    for value in (0, 5, 2.0, True):
        check("`num_layers` must be an integer from 1 to 4, received", smaller, teacher, value)
    check("has no `num_decoder_layers`", smaller, teacher, 2, 2)
    teacher.enable_lora(1)
    check("The teacher has adapters", smaller, teacher, 2)
