"""Beam search against every sequence there is, and against the Transformers library."""

import itertools

import numpy as np
import pytest

from keras_transformer import TransformerConfig
from keras_transformer.generation import BeamSearch, Engine, Greedy
from keras_transformer.models import build_backbone
from tests.generation.common import (
    END,
    PAD,
    START,
    engine_inputs,
    make_backbone,
    make_prompts,
    uncached_logits,
)


def generate(engine, prompts, sampler, max_new_tokens, end_ids=(END,)):
    inputs = engine_inputs(engine.backbone, prompts)
    return engine.generate(inputs, sampler, max_new_tokens, end_ids, PAD).tolist()


def best_of_all(backbone, prompt, length, end_ids, penalty):
    """The best ended sequence, or of all `length`, by trying each."""
    vocabulary = range(backbone.config.vocabulary_size)
    every = [list(row) for row in itertools.product(vocabulary, repeat=length)]
    logits = uncached_logits(backbone, [prompt] * len(every), every).astype("float64")
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    scores = {}
    for row, steps in zip(every, log_probabilities, strict=True):
        ends = [place for place, token in enumerate(row) if token in end_ids]
        n = ends[0] + 1 if ends else length
        total = sum(steps[place, row[place]] for place in range(n))
        scores[(*row[:n], *[PAD] * (length - n))] = total / n**penalty
    return list(max(scores, key=scores.get))


@pytest.mark.parametrize("penalty", [0.0, 2.0])
@pytest.mark.parametrize("end_ids", [(2,), (1, 2, 3)], ids=["one end", "three ends"])
def test_with_beams_for_every_sequence_the_best_is_found(penalty, end_ids):
    """More beams than the vocabulary has tokens, and at first than there are beginnings."""
    backbone = make_backbone("decoder", vocabulary_size=4, seed=2)
    prompts = [[3, 1], [0], [1, 3, 3]]
    expected = [best_of_all(backbone, prompt, 3, end_ids, penalty) for prompt in prompts]
    found = generate(Engine(backbone), prompts, BeamSearch(64, penalty), 3, end_ids)
    assert found == expected


def test_beams_without_a_beginning_do_not_end():
    """Two tokens, one of them the end: at every step there is one open sequence, and one ends."""
    backbone = make_backbone("decoder", vocabulary_size=2, seed=3)
    expected = best_of_all(backbone, [0, 1], 4, (1,), 3.0)
    beam = BeamSearch(4, length_penalty=3.0, early_stopping=True)
    assert generate(Engine(backbone), [[0, 1]], beam, 4, (1,)) == [expected]
    # Else two steps would have been enough.
    assert expected not in ([1, PAD, PAD, PAD], [0, 1, PAD, PAD])


def test_one_beam_is_greedy():
    engine, prompts = Engine(make_backbone("decoder", seed=3)), make_prompts([4, 2, 6])
    ends = (END, 5, 9)
    one = generate(engine, prompts, BeamSearch(1), 12, ends)
    assert one == generate(engine, prompts, Greedy(), 12, ends)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"num_beams": 0}, "`num_beams` must be an integer of at least 1, received 0"),
        ({"num_beams": 2.5}, "received 2.5"),
        ({"length_penalty": "long"}, "`length_penalty` must be a number, received 'long'"),
    ],
)
def test_bad_values(values, message):
    with pytest.raises(ValueError, match=message):
        BeamSearch(**values)


# Against Transformers: the same weights, copied by hand.

VOCABULARY = 40
PROMPTS = make_prompts([4, 9, 2, 6, 1, 7], VOCABULARY)
ENDS = (END, 7, 11, 20, 21, 23)  # many, so that rows end at all


def randomize(model):
    """Weights so large that scores differ clearly."""
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            norm = parameter.ndim == 1 and name.endswith("weight")
            scale = 0.6 if parameter.ndim == 2 else 0.1
            scale = 1.5 if "embed_positions" in name else scale  # else BART repeats itself
            parameter.copy_(1.0 + 0.1 * noise if norm else scale * noise)
    return model.eval()


def copy(layer, weight, bias):
    """`weight` as Keras has it, `(in, out)`, or of a normalization."""
    layer.set_weights([weight.detach().numpy(), bias.detach().numpy()])


@pytest.fixture(scope="module")
def gpt2():
    transformers = pytest.importorskip("transformers")
    reference = randomize(
        transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=VOCABULARY,
                n_embd=32,
                n_layer=2,
                n_head=4,
                n_positions=32,
                bos_token_id=START,
                eos_token_id=END,
            )
        )
    )
    backbone = build_backbone(
        TransformerConfig(
            kind="decoder", vocabulary_size=VOCABULARY, hidden_dim=32, num_layers=2, num_heads=4,
            intermediate_dim=128, position="learned", max_sequence_length=32,
            normalize_first=True, normalization_epsilon=1e-5, activation="gelu_tanh",
        )
    )  # fmt: skip
    source, stack = reference.transformer, backbone.decoder
    backbone.token_embedding.set_weights([source.wte.weight.detach().numpy()])
    stack.position_embedding.set_weights([source.wpe.weight.detach().numpy()])
    for block, mine in zip(source.h, stack.blocks, strict=True):
        attention = mine.self_attention
        copy(mine.self_attention_norm, block.ln_1.weight, block.ln_1.bias)
        parts = (attention.query_dense, attention.key_dense, attention.value_dense)
        weights, biases = block.attn.c_attn.weight.chunk(3, dim=1), block.attn.c_attn.bias.chunk(3)
        for part, weight, bias in zip(parts, weights, biases, strict=True):
            copy(part, weight, bias)
        copy(attention.output_dense, block.attn.c_proj.weight, block.attn.c_proj.bias)
        copy(mine.feed_forward_norm, block.ln_2.weight, block.ln_2.bias)
        copy(mine.feed_forward.intermediate_dense, block.mlp.c_fc.weight, block.mlp.c_fc.bias)
        copy(mine.feed_forward.output_dense, block.mlp.c_proj.weight, block.mlp.c_proj.bias)
    copy(stack.final_norm, source.ln_f.weight, source.ln_f.bias)
    return reference, Engine(backbone)


@pytest.fixture(scope="module")
def bart():
    transformers = pytest.importorskip("transformers")
    sizes = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {"layers": 1, "attention_heads": 4, "ffn_dim": 48}.items()
    }
    reference = randomize(
        transformers.BartForConditionalGeneration(
            transformers.BartConfig(
                vocab_size=VOCABULARY, d_model=32, max_position_embeddings=32, pad_token_id=PAD,
                bos_token_id=START, eos_token_id=END, decoder_start_token_id=START,
                forced_eos_token_id=None, **sizes,
            )
        )
    )  # fmt: skip
    backbone = build_backbone(
        TransformerConfig(
            kind="seq2seq", vocabulary_size=VOCABULARY, hidden_dim=32, num_layers=1, num_heads=4,
            intermediate_dim=48, position="learned", max_sequence_length=32, activation="gelu",
            normalization_epsilon=1e-5, embedding_normalization=True,
        )
    )  # fmt: skip
    backbone.token_embedding.set_weights([reference.model.shared.weight.detach().numpy()])
    for source, stack in zip(
        (reference.model.encoder, reference.model.decoder), backbone.stacks, strict=True
    ):
        # The first two of BART's positions are never used.
        stack.position_embedding.set_weights([source.embed_positions.weight[2:].detach().numpy()])
        norm = source.layernorm_embedding
        copy(stack.embedding_norm, norm.weight, norm.bias)
        for block, mine in zip(source.layers, stack.blocks, strict=True):
            _copy_bart_block(block, mine)
    return reference, Engine(backbone)


def _copy_bart_block(block, mine):
    pairs = [
        (mine.feed_forward.intermediate_dense, block.fc1),
        (mine.feed_forward.output_dense, block.fc2),
    ]
    norms = [
        (mine.self_attention_norm, block.self_attn_layer_norm),
        (mine.feed_forward_norm, block.final_layer_norm),
    ]
    attentions = [(mine.self_attention, block.self_attn)]
    if hasattr(block, "encoder_attn"):
        attentions.append((mine.cross_attention, block.encoder_attn))
        norms.append((mine.cross_attention_norm, block.encoder_attn_layer_norm))
    for attention, theirs in attentions:
        pairs += [
            (attention.query_dense, theirs.q_proj),
            (attention.key_dense, theirs.k_proj),
            (attention.value_dense, theirs.v_proj),
            (attention.output_dense, theirs.out_proj),
        ]
    for dense, linear in pairs:
        copy(dense, linear.weight.T, linear.bias)
    for norm, theirs in norms:
        copy(norm, theirs.weight, theirs.bias)


def transformers_tokens(reference, prompts, seq2seq, **options):
    """What Transformers generates for each prompt alone, padded to 12 tokens."""
    import torch

    rows = []
    for prompt in prompts:
        tokens = reference.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=list(ENDS),
            pad_token_id=PAD, attention_mask=torch.ones(1, len(prompt), dtype=int), **options,
        )[0].tolist()  # fmt: skip
        new = tokens[1:] if seq2seq else tokens[len(prompt) :]
        rows.append(new + [PAD] * (12 - len(new)))
    return rows


@pytest.mark.parametrize("model", ["gpt2", "bart"])
def test_greedy_equals_transformers(model, request):
    reference, engine = request.getfixturevalue(model)
    expected = transformers_tokens(reference, PROMPTS, model == "bart", num_beams=1)
    assert generate(engine, PROMPTS, Greedy(), 12, ENDS) == expected
    assert len({row.index(PAD) if PAD in row else 12 for row in expected}) > 2  # of many lengths


@pytest.mark.parametrize(
    "model, penalty, early",
    [("gpt2", 0.6, False), ("gpt2", 1.0, True), ("gpt2", 2.0, False), ("bart", 1.0, False)],
)
def test_beam_search_equals_transformers(model, penalty, early, request):
    reference, engine = request.getfixturevalue(model)
    options = {"num_beams": 4, "length_penalty": penalty, "early_stopping": early}
    expected = transformers_tokens(reference, PROMPTS, model == "bart", **options)
    assert generate(engine, PROMPTS, BeamSearch(4, penalty, early), 12, ENDS) == expected
