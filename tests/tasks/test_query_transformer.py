"""Trained queries between an image and a text, placed in a decoder or in an encoder (BLIP-2)."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import config as parts
from keras_transformer.planning import flops_per_sequence, make_plan
from tests.tasks import images, vision_chats
from tests.tasks.test_image_to_text import QUESTIONS, TEXTS, assert_answers, rows

PLACE = 290  # the next id
SIDES = ("decoder", "encoder")


def queries(count=3, layers=3):
    block = parts.Block(
        mixer=parts.Attention(num_heads=2),
        feed_forward=parts.Dense(dim=20, activation="gelu"),
    )
    every = (block, block.replace(attends_to_source=False))[: min(layers, 2)]
    stem = parts.QueryStemConfig(num_queries=count, trained="state")
    return parts.Side(
        input=stem, hidden_dim=12, num_layers=layers, block=block, layers=every, embedding_norm=True
    )


def config(side="decoder"):
    """Make a config like those of BLIP-2 with an OPT, or with a T5."""
    shared = {"max_sequence_length": 48, "position": "learned"}
    made = images.placed(placeholder_id=PLACE, placeholders_counted=True, **shared)
    if side == "decoder":
        return made.replace(queries=queries())
    both = images.captions(encoder=None, position="relative", share_embeddings=True)
    return both.replace(
        source=made.encoder,
        queries=queries(),
        placeholders=made.placeholders.replace(side="encoder"),
        projector=made.projector,
    )


def task(side, dtype=None, **options):
    tokenizer = kt.Tokenizer.train(TEXTS * 4, vocabulary_size=290)
    backbone = kt.models.Seq2Seq(config(side), dtype=dtype)
    return kt.ImageToText(backbone, kt.ImageProcessor(size=(12, 16)), tokenizer, **options)


@pytest.fixture(scope="module", params=SIDES)
def learned(request):
    keras.utils.set_random_seed(0)
    made = task(request.param)
    made.compile(keras.optimizers.Adam(1e-2))
    x, questions, answers = rows()
    made.fit((x, questions), answers, epochs=40, batch_size=8, seed=1, verbose=0)
    return made


def test_answers(learned, tmp_path):
    assert_answers(learned, tmp_path)


@pytest.mark.one_backend
def test_scores_and_captions(learned):
    x, questions, answers = rows(3)
    found = learned.answer(x[0], questions[0], return_details=True)
    scores = learned.score(x[0], answers[0], questions[0], per_token=True)
    assert np.abs(found.log_probabilities - scores[:-1]).max() <= 1e-4
    assert isinstance(learned.caption(x[0], max_new_tokens=3), str)


@pytest.mark.one_backend
@pytest.mark.parametrize("side", SIDES)
def test_adapters_and_mixed_precision(side):
    made = task(side, dtype="mixed_bfloat16")
    made.enable_lora(rank=2)
    paths = [v.path for v in made.trainable_variables]
    assert any("/queries/" in path for path in paths)
    x, questions, answers = rows(4)
    before = [np.array(v) for v in made.backbone.non_trainable_weights]
    made.fit((x, questions), answers, verbose=0, validation_data=((x, questions), answers))
    for old, new in zip(before, made.backbone.non_trainable_weights, strict=True):
        assert (old == np.array(new)).all()
    assert all(isinstance(text, str) for text in made.answer(x, questions, max_new_tokens=3))


@pytest.mark.one_backend
@pytest.mark.parametrize("side", SIDES)
def test_the_image_tower_may_be_frozen(side):
    made = task(side)
    x, questions, answers = rows(4)
    name = "source" if side == "encoder" else "encoder"

    def values():
        return {v.path: np.array(v) for v in made.backbone.variables}

    before = values()
    made.fit((x, questions), answers, image_tower="frozen", verbose=0)
    changed = {path.split("/")[1] for path, v in values().items() if (v != before[path]).any()}
    assert name not in changed and {"queries", "projector", "decoder"} <= changed


@pytest.mark.one_backend
@pytest.mark.parametrize("side", SIDES)
def test_what_each_side_computes_is_collected(side):
    made = task(side)
    x = rows(2)[0]
    ids = np.array([[PLACE] * 3 + [8, 9]] * 2, "int32")
    inputs = {**made.arrays_of(x), f"{side}_token_ids": ids}
    inputs.setdefault("decoder_token_ids", ids[:, -1:])
    _, found = made.backbone(inputs, collect=("states", "attention"))
    attended = [each.shape[-2:] for each in found["queries_cross_attention"]]
    assert attended == [(3, 13), (3, 13)]  # layers 0 and 2; 12 patches and a class token
    assert [each.shape[-2:] for each in found["queries_attention"]] == [(3, 3)] * 3
    explanation = made.explain(
        x[0], "a dark square", prompts=QUESTIONS[0], saliency="gradient_x_input"
    )
    assert explanation.attention.shape[0] == 1 and explanation.saliency is not None


@pytest.mark.one_backend
@pytest.mark.parametrize("side", SIDES)
def test_configs(side):
    made = config(side)
    names = ("encoder", "queries", "decoder")
    assert made.side_names == (names if side == "decoder" else ("source", *names[1::-1], "decoder"))
    assert made.num_placeholders == 3 and made.side("queries").stem.trained == "state"
    assert kt.TransformerConfig.from_json(made.to_json()) == made
    changed = made.replace(dropout=0.25)
    assert changed.queries.block.dropout == changed.decoder.block.dropout == 0.25
    with pytest.raises(ValueError, match="`queries` need a `placeholder_id`"):
        made.replace(projector=None, placeholders=made.placeholders)
    with pytest.raises(ValueError, match="The input of `queries` is a set of trained states"):
        made.replace(queries=made.decoder)
    block = made.decoder.block.replace(attends_to_source=False)
    with pytest.raises(ValueError, match="is for blocks of `queries`, received it in decoder"):
        made.replace(decoder=made.decoder.replace(block=block))
    with pytest.raises(ValueError, match="`queries` needs kind='seq2seq'"):
        kt.TransformerConfig(decoder=made.decoder, queries=made.queries)


@pytest.mark.one_backend
def test_placeholders_of_encoders_are_checked():
    made = config("encoder").replace(queries=None)
    assert made.num_placeholders == 13
    for values, message in (
        ({"source": None}, "needs a `source`, which reads the images"),
        ({"placeholders": made.placeholders.replace(side="decoder")}, "cannot be combined, unless"),
        ({"placeholders": made.placeholders.replace(visibility="prompt")}, "leave out `placeh"),
        ({"projector": None, "source": made.source.replace(hidden_dim=8)}, "give a `projector`"),
        ({"projector": parts.Projector(type="merged")}, "needs a stem of the kind"),
    ):
        with pytest.raises(ValueError, match=message):
            made.replace(**values)
    backbone = kt.models.Seq2Seq(made)
    ids = np.array([[PLACE] * 12 + [8]], "int32")
    given = {"encoder_token_ids": ids, "decoder_token_ids": ids[:, -1:]}
    pictures = np.zeros((1, 12, 16, 3), "float32")
    with pytest.raises(ValueError, match="has 12 placeholders, .* makes 13 states"):
        backbone({**given, "source_images": pictures})
    with pytest.raises(ValueError, match="'source_images' and 'encoder_token_ids'"):
        backbone(given)
    with pytest.raises(ValueError, match="tokens of a decoder"):
        task("encoder").chat([vision_chats.user(pictures[0].astype("uint8"), "which ?")])


@pytest.mark.one_backend
def test_plans_count_the_queries():
    """Two of three layers attend to the image: their keys, values and products are counted."""
    made = config("encoder")
    options = {"target_length": 2, "predicted_tokens": 0, "training": False}
    found = flops_per_sequence(made, 7, **options)
    places = made.source.input.num_states
    tower = flops_per_sequence(made.side("source"), places, training=False)
    texts = made.replace(source=None, queries=None, placeholders=None, projector=None)
    texts = flops_per_sequence(texts, 7, **options)
    d, f, width, n = 12, 20, made.source.hidden_dim, 3
    layer = n * (4 * d * d + 2 * d * f) + 2 * n * n * d
    attending = n * 2 * d * d + places * 2 * width * d + 2 * n * places * d
    projected = n * d * made.encoder.hidden_dim
    assert found == tower + texts + 2 * (3 * layer + 2 * attending + projected)
    for side in SIDES:
        made = config(side)
        plan = make_plan(made, batch_size=2, length=7, target_length=5)
        assert plan.parameters == kt.models.Seq2Seq(made).count_params()


@pytest.mark.one_backend
@pytest.mark.parametrize("kind", ["opt", "t5"])
def test_texts_and_pixels_are_those_of_transformers(kind, tmp_path):
    """Prompts and captions from strings and images, through both processors, token for token."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tokenizer = vision_chats.tokenizer_of()
    processor = transformers.Blip2Processor(
        transformers.BlipImageProcessor(size={"height": 20, "width": 20}), tokenizer, 3
    )
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
    roles = {"vocab_size": len(tokenizer), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    text = {
        "opt": {
            "model_type": "opt", "hidden_size": 12, "word_embed_proj_dim": 12, "ffn_dim": 20,
            "num_hidden_layers": 2, "num_attention_heads": 2,
        },
        "t5": {
            "model_type": "t5", "d_model": 12, "d_kv": 4, "d_ff": 20, "num_layers": 2,
            "num_heads": 2, "decoder_start_token_id": 0,
        },
    }[kind]  # fmt: skip
    model = transformers.Blip2ForConditionalGeneration(
        transformers.Blip2Config(
            vision_config={**sizes, "hidden_size": 16, "image_size": 20, "patch_size": 5},
            qformer_config={**sizes, "hidden_size": 12},
            text_config={**text, **roles},
            num_query_tokens=3,
            image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        )
    )
    vision_chats.with_weights(model, processor, tmp_path)
    made = kt.ImageToText.from_preset(tmp_path)
    pictures = vision_chats.pictures()
    asked = ["a : which is dark ? b :", "which ?", ""]
    expected = []
    for picture, prompt in zip(pictures, asked, strict=True):
        given = processor(images=picture, text=prompt, return_tensors="pt")
        with torch.no_grad():
            new = model.generate(**given, max_new_tokens=6, do_sample=False, num_beams=1)
        (row,) = made.prompt_rows([prompt], 1)
        assert row == given["input_ids"][0].tolist()
        pixels = np.moveaxis(given["pixel_values"].numpy(), 1, -1)
        assert np.abs(made.processor.source([picture]) - pixels).max() <= 1e-5
        ids = new[0].tolist()
        begins = given["input_ids"].shape[1] if kind == "opt" else 1
        expected.append(ids[begins:] if ids[: begins - 1] == row[:-1] or kind == "t5" else ids)
    found = made.generate(pictures, asked, max_new_tokens=6, return_details=True)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.token_ids == theirs[: theirs.index(2) if 2 in theirs else None]
