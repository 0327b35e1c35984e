"""Encoders of texts with states of images among their own, against the Transformers library."""

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_transformer as kt
from keras_transformer.checkpoints import load_backbone
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.generation import BeamSearch
from keras_transformer.tasks.text.generating import GenerationCall
from tests.checkpoints import families
from tests.checkpoints.conftest import assert_same_values
from tests.checkpoints.test_families import _gradients, assert_gradients, saved
from tests.compiled import outputs_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CASES = [("blip-2", 2), ("blip-2", 3), ("t5gemma2_images", 0), ("t5gemma2_images", 1)]
# Texts after the placeholders, which begin at these places.
LENGTHS, STARTS = (5, 3, 8), (0, 2, 1)


def name_of(case):
    return "{}-{}".format(*case)


def make(case):
    """Their model; with other weights theirs differs by 1e-4 from itself in float64."""
    return families.make(*case, "LanguageModel", seed=3)


@pytest.fixture(scope="module", params=CASES, ids=name_of)
def both(request, tmp_path_factory):
    reference = make(request.param)
    folder = saved(reference, tmp_path_factory.mktemp("theirs"))
    return reference, kt.ImageToText.from_preset(folder, template=None)


def rows_of(config, seed=3):
    """An image and a prompt of each row."""
    random, stem = np.random.default_rng(seed), config.source.input
    shape = (len(LENGTHS), *stem.image_size, stem.num_channels)
    placed = [config.placeholder_id] * config.num_placeholders
    rows = []
    for length, start in zip(LENGTHS, STARTS, strict=True):
        ids = random.integers(7, 59, length).tolist()
        rows.append([*ids[:start], *placed, *ids[start:]])
    return random.normal(size=shape).astype("float32"), rows


def padded(rows):
    ids = np.zeros((len(rows), max(map(len, rows))), "int32")
    mask = np.zeros_like(ids, "bool")
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, True
    return ids, mask


def inputs(config):
    """As ours takes them, and as theirs takes each row alone."""
    images, rows = rows_of(config)
    ids, mask = padded(rows)
    answers = np.random.default_rng(5).integers(7, 59, (len(rows), 4)).astype("int32")
    ours = {"source_images": images, "encoder_token_ids": ids, "encoder_padding_mask": mask}
    theirs = [
        {
            "pixel_values": torch.tensor(np.moveaxis(images[i : i + 1], -1, 1).copy()),
            "input_ids": torch.tensor([row]),
            "decoder_input_ids": torch.tensor(answers[i : i + 1].astype("int64")),
        }
        for i, row in enumerate(rows)
    ]
    return {**ours, "decoder_token_ids": answers}, theirs


def states_of(reference, given):
    """States of their encoder."""
    if reference.config.model_type == "blip-2":
        given = {**given, "output_hidden_states": True}
        return reference(**given).language_model_outputs.encoder_last_hidden_state[0].numpy()
    return reference(**given).encoder_last_hidden_state[0].numpy()


def test_same_states_and_logits(both):
    reference, task = both
    ours, theirs = inputs(task.backbone.config)
    found = outputs_of(task, ours)
    collected = task.backbone(ours, collect=("states",))[-1]["encoder_states"][-1]
    mask = ours["encoder_padding_mask"]
    for i, given in enumerate(theirs):
        with torch.no_grad():
            expected, states = reference(**given).logits[0].numpy(), states_of(reference, given)
        assert np.abs(found[i] - expected).max() <= 1e-4
        assert np.abs(to_numpy(collected)[i][mask[i]] - states).max() <= 2e-5
    # Which token is padding changes nothing, not even a placeholder.
    other = np.where(mask, ours["encoder_token_ids"], task.backbone.config.placeholder_id)
    assert np.abs(outputs_of(task, {**ours, "encoder_token_ids": other}) - found).max() <= 1e-4


def test_rows_without_images(both):
    """A batch whose images are each given once: of two rows one has none, then neither."""
    reference, task = both
    config = task.backbone.config
    ours, theirs = inputs(config)
    count, text = config.num_placeholders, [9, 8, 7]
    ids, mask = padded([text, theirs[0]["input_ids"][0].tolist()])
    placed = np.stack([np.full(count, -1), np.arange(count)]).astype("int32")
    given = {
        "source_images": ours["source_images"][:1],
        "encoder_token_ids": ids,
        "encoder_padding_mask": mask,
        "encoder_placed_states": placed,
        "decoder_token_ids": ours["decoder_token_ids"][[1, 0]],
    }
    alone = {**theirs[1], "input_ids": torch.tensor([text])}
    del alone["pixel_values"]
    writer = reference.language_model if config.queries is not None else reference
    with torch.no_grad():
        without, expected = writer(**alone).logits[0], reference(**theirs[0]).logits[0]
    found = outputs_of(task, given)
    assert np.abs(found - np.stack([without, expected])).max() <= 1e-4
    neither = {name: array[:1] for name, array in given.items() if name != "source_images"}
    assert np.abs(outputs_of(task, neither)[0] - without.numpy()).max() <= 1e-4


@pytest.mark.one_backend
@pytest.mark.parametrize("beams", [1, 3])
def test_the_same_answers(both, beams):
    """Token for token what their search writes, in a batch and each alone."""
    reference, task = both
    images, rows = rows_of(task.backbone.config)
    sampler = "greedy" if beams == 1 else BeamSearch(beams)

    def written(places, **options):
        further = {"source_images": images[places]}
        given = [rows[i] for i in places]
        call = GenerationCall(
            task, given, further=further, max_new_tokens=6, sampler=sampler, **options
        )
        return [first.token_ids for first, *_ in call.completions()]

    found = written([0, 1, 2], batch_size=2)
    (end,) = task.end_ids
    for i, row in enumerate(rows):
        with torch.no_grad():
            theirs = reference.generate(
                pixel_values=torch.tensor(np.moveaxis(images[i : i + 1], -1, 1).copy()),
                input_ids=torch.tensor([row]),
                attention_mask=torch.ones(1, len(row), dtype=torch.int64),
                max_new_tokens=6,
                do_sample=False,
                num_beams=beams,
                decoder_start_token_id=task.start_id,
                eos_token_id=end,
            )[0].tolist()[1:]
        assert found[i] == theirs[: theirs.index(end) if end in theirs else None]
        assert written([i]) == [found[i]]


@pytest.mark.parametrize("case", [CASES[0], CASES[2]], ids=name_of)
def test_same_gradients(case, tmp_path):
    """Compare gradients of a sum of squares, read like weights, as a checkpoint of their own."""
    reference = make(case)
    backbone = kt.ImageToText.from_preset(saved(reference, tmp_path / "theirs")).backbone
    ours, theirs = inputs(backbone.config)
    (reference(**theirs[0]).logits ** 2).mean().backward()
    alone = {name: array[:1] for name, array in ours.items()}
    length = theirs[0]["input_ids"].shape[1]
    alone |= {n: alone[n][:, :length] for n in ("encoder_token_ids", "encoder_padding_mask")}

    def loss():
        return keras.ops.mean(keras.ops.square(backbone.logits(backbone(alone))))

    found = _gradients(backbone, loss)
    read = case[0] == "blip-2"
    assert_gradients(found, reference, tmp_path / "gradients") if read else _images_too(
        found, reference, tmp_path
    )


def _images_too(found, reference, tmp_path):
    """As `assert_gradients`, of a folder whose texts alone are a model too."""
    with torch.no_grad():
        for parameter in reference.parameters():
            gradient = parameter.grad
            parameter.copy_(torch.zeros_like(parameter) if gradient is None else gradient)
    folder = saved(reference, tmp_path / "gradients")
    expected = kt.ImageToText.from_preset(folder).backbone
    for variable in expected.variables:
        path = variable.path.split("/", 1)[1]
        wanted = to_numpy(variable)
        assert np.abs(found[path] - wanted).max() <= 1e-4 * max(1, np.abs(wanted).max()), path


@pytest.mark.one_backend
def test_export_is_the_way_back(both, tmp_path):
    reference, task = both
    kt.export_to_huggingface(task, tmp_path / "theirs")
    again, info = type(reference).from_pretrained(tmp_path / "theirs", output_loading_info=True)
    missing = [n for n in info["missing_keys"] if ".head." not in n]  # SigLIP's, of one vector
    assert not missing and not any(v for k, v in info.items() if k != "missing_keys"), info
    _, theirs = inputs(task.backbone.config)
    for given in theirs:
        with torch.no_grad():
            difference = again.eval()(**given).logits - reference(**given).logits
        assert difference.abs().max() <= 1e-6
        asked = {name: array for name, array in given.items() if name != "decoder_input_ids"}
        asked |= {"max_new_tokens": 4, "do_sample": False, "num_beams": 1}
        assert again.generate(**asked).tolist() == reference.generate(**asked).tolist()
    task.save_to_preset(tmp_path / "ours")
    task.save(tmp_path / "model.keras")
    for back in (
        kt.ImageToText.from_preset(tmp_path / "theirs", template=None),
        kt.Task.from_preset(tmp_path / "ours"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert back.backbone.config == task.backbone.config
        assert back.task_values() == task.task_values()
        assert_same_values(back.backbone, task.backbone)


@pytest.mark.one_backend
def test_older_files_have_the_embedding_three_times(tmp_path):
    """As they were written before release 5, under the names of both sides of a T5 too."""
    folder = saved(make(("blip-2", 2)), tmp_path)
    before = load_backbone(folder)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "language_model.{}.weight".format
    for side in ("encoder", "decoder"):
        tensors[name(f"{side}.embed_tokens")] = tensors[name("shared")].copy()
    tensors[name("lm_head")] = tensors[name("shared")].copy()
    save_file(tensors, tmp_path / "model.safetensors")
    assert_same_values(load_backbone(folder), before)


@pytest.mark.one_backend
def test_the_text_model_of_a_folder_with_images(tmp_path):
    """Tasks of texts leave out the tower; a folder of texts alone has none."""
    reference = make(("t5gemma2_images", 0))
    folder = saved(reference, tmp_path / "theirs")
    texts = kt.Seq2SeqLM.from_preset(folder)
    assert texts.backbone.config.source is None and load_backbone(folder).config.source is None
    with_images = kt.ImageToText.from_preset(folder).backbone
    mine = {v.path.split("/", 1)[1] for v in texts.backbone.variables}
    further = {v.path.split("/", 1)[1] for v in with_images.variables} - mine
    assert {path.split("/")[0] for path in further} == {"source", "projector"}
    kt.export_to_huggingface(texts, tmp_path / "texts")
    with pytest.raises(ValueError, match="has no image tower"):
        kt.ImageToText.from_preset(tmp_path / "texts")


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("model_type", "values", "message"),
    [
        ("blip-2", {"vision_config": 3}, "vision_config must be an object"),
        ("blip-2", {"qformer_config": 3}, "qformer_config must be an object"),
        ("blip-2", {"text_config": {"model_type": "llama"}}, "only 'opt', 't5'"),
        (
            "blip-2",
            {"text_config": {"model_type": "t5", "architectures": ["T5EncoderModel"]}},
            "must be of a whole T5",
        ),
        ("blip-2", {"qformer_config": {"cross_attention_frequency": 0}}, "must be at least 1"),
        ("blip-2", {"qformer_config": {"use_qformer_text_input": True}}, "only False"),
        ("blip-2", {"num_query_tokens": 10**9}, "num_queries"),
        ("blip-2", {"num_query_tokens": "all"}, "must be a number"),
        ("blip-2", {"image_token_index": 60_000}, "at most 50272"),
        ("blip-2", {"text_config": {"word_embed_proj_dim": 512}}, "token_projection"),
        ("t5gemma2_images", {"encoder": {"mm_tokens_per_image": 7}}, "number of squares"),
        ("t5gemma2_images", {"image_token_index": 10**6}, "at most 262208"),
    ],
)
def test_wrong_values_are_refused(model_type, values, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES[model_type].config(values)
