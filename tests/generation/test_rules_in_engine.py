"""Rules through the engine: against Transformers, and that texts obey them."""

import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.generation import BeamSearch, Engine, Greedy, Rules, Settings
from keras_transformer.generation.scheduler import Scheduler
from tests.generation.automata import Automaton, follow, is_way_on, random_automaton
from tests.generation.common import END, PAD, engine_inputs, make_backbone, make_prompts, on_one
from tests.generation.tables import TableModel


@pytest.fixture(scope="module")
def decoder():
    return Engine(TableModel(seed=3))


@pytest.fixture(scope="module")
def seq2seq():
    return Engine(make_backbone("seq2seq", seed=1))


def generate(engine, prompts, settings, count=12):
    outputs = engine.generate(engine_inputs(engine.backbone, prompts), settings, count)
    return [
        [tokens[:n].tolist() for tokens, n in zip(row, ns, strict=True)]
        for row, ns in zip(outputs.tokens, outputs.counts, strict=True)
    ]


def decoder_inputs(ids, mask):
    return {"token_ids": ids, "padding_mask": mask}


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    torch, transformers = map(pytest.importorskip, ("torch", "transformers"))
    config = transformers.GPT2Config(
        vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=32, bos_token_id=1,
        eos_token_id=END,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).eval()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.copy_(0.6 * torch.randn(parameter.shape, generator=generator))
    folder = tmp_path_factory.mktemp("gpt2")
    model.save_pretrained(folder)
    return model, Engine(kt.Backbone.from_preset(str(folder)))


@pytest.mark.parametrize("sampler", [Greedy(), BeamSearch(4)], ids=["greedy", "beam"])
def test_generated_texts_equal_transformers(gpt2, sampler):
    import torch

    model, engine = gpt2
    prompts = make_prompts([4, 9, 2, 6, 1, 7], 40)
    ends = (END, 7, 11, 20)
    words = [[9], [30, 31], [5, 6], *[[token, (token * 7 + 3) % 40] for token in range(3, 40)]]
    biases = [[[7], 2.0], [[8], -4.0], *([[t, (t * 11 + 5) % 40], 3.0] for t in range(3, 40))]
    decay = (6, 1.2)
    rules = Rules(
        repetition_penalty=1.3, no_repeat_ngram_size=2, bad_words=words, min_new_tokens=5,
        sequence_bias=biases, exponential_decay_length_penalty=decay,
    )  # fmt: skip
    found = generate(engine, prompts, Settings(sampler, rules, ends))
    free = generate(engine, prompts, Settings(sampler, None, ends))
    changed = 0
    for prompt, (best, *_), (other, *_) in zip(prompts, found, free, strict=True):
        expected = model.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, num_beams=sampler.branches,
            eos_token_id=list(ends), pad_token_id=PAD, attention_mask=torch.ones(1, len(prompt)),
            repetition_penalty=1.3, no_repeat_ngram_size=2, bad_words_ids=words, min_new_tokens=5,
            sequence_bias=biases, exponential_decay_length_penalty=decay,
        )[0].tolist()  # fmt: skip
        assert best == expected[len(prompt) :]
        changed += best != other
    assert changed >= 4


def no_odd_after_even(logits, tokens, counts):
    """A token follows one that is even as it is."""
    last = ops.maximum(counts - 1, 0)[:, None, None]
    last = ops.take_along_axis(tokens, ops.broadcast_to(last, (*tokens.shape[:2], 1)), axis=2)
    odd = ops.arange(logits.shape[-1], dtype="int32")[None, None] % 2 != last % 2
    return ops.where(ops.logical_and(odd, (counts > 0)[:, None, None]), logits - 50.0, logits)


# A loop of three states, each with a third of the tokens; the text may end in one of them.
THREES = Automaton(
    np.array([[1, -1, -1], [-1, 2, -1], [-1, -1, 0]], "int32"),
    (np.arange(22) // 4 % 3).astype("int32"),
    np.array([False, True, False]),
)
EVERYTHING = Rules(
    repetition_penalty=1.2,
    presence_penalty=0.5,
    frequency_penalty=0.2,
    no_repeat_ngram_size=3,
    bad_words=[[9], [4, 8], [13, 22, 3]],
    min_new_tokens=2,
    forced_prefix=[12],
    function=no_odd_after_even,
    automaton=THREES,
)


def obeys(tokens, automaton, end_ids=(END,)):
    ended = bool(tokens) and tokens[-1] in end_ids
    state = follow(automaton, tokens[:-1] if ended else tokens)
    way_on = is_way_on(automaton, state, end_ids)
    return state >= 0 and (not ended or bool(automaton.accepting[state]) or not way_on)


@pytest.mark.parametrize("kind, sampler", [("decoder", Greedy()), ("seq2seq", BeamSearch(2))])
def test_a_batch_with_all_rules_gives_what_each_prompt_gives_alone(kind, sampler, request):
    engine = request.getfixturevalue(kind)
    prompts = make_prompts([5, 2, 8, 1, 3])
    settings = Settings(sampler, EVERYTHING, (END,))
    together = generate(engine, prompts, settings, 16)
    for prompt, row in zip(prompts, together, strict=True):
        inputs = engine_inputs(engine.backbone, [prompt, prompts[2]])  # one length to compile for
        alone = engine.generate({name: array[:1] for name, array in inputs.items()}, settings, 16)
        for tokens, n, expected in zip(alone.tokens[0], alone.counts[0], row, strict=True):
            assert tokens[:n].tolist() == expected
    assert len({tuple(row[0]) for row in together}) > 2
    for tokens in (tokens for row in together for tokens in row if tokens):
        assert tokens[0] == 12 and len(tokens) >= 3 and 9 not in tokens
        assert obeys(tokens, THREES)
        # What the function asks for, until all such tokens are banned.
        assert not any(token % 2 for token in tokens[:8])


def test_rows_that_join_a_batch_with_all_rules(decoder):
    prompts = make_prompts([5, 2, 4, 1])
    settings = Settings(BeamSearch(2), EVERYTHING, (END,))
    scheduler = Scheduler(decoder, settings, decoder_inputs, batch_size=2)
    found = {done.index: done.tokens for done in scheduler.run(prompts, [16] * 4)}
    expected = generate(decoder, prompts, settings, 16)
    assert [found[i] for i in range(4)] == [[x for x in row if x] for row in expected]


@pytest.mark.parametrize(
    "sampler, end_ids",
    [
        (Greedy(), (END,)),
        (BeamSearch(4), ()),
        on_one(Greedy(), ()),
        on_one(BeamSearch(4), (END,)),
    ],
)
def test_constrained_texts_obey_the_automaton(decoder, sampler, end_ids):
    prompts = make_prompts([3, 1, 6, 2, 5, 4])
    automaton = random_automaton(20, seed=5)
    rules = Rules(automaton=automaton, no_repeat_ngram_size=1)
    found = generate(decoder, prompts, Settings(sampler, rules, end_ids))
    for row in found:
        assert row[0]
        for tokens in filter(None, row):
            if not end_ids:  # pads behind the last possible token
                places = [follow(automaton, tokens[:n]) for n in range(len(tokens))]
                length = sum(is_way_on(automaton, place, ()) for place in places)
                assert set(tokens[length:]) <= {PAD}
                tokens = tokens[:length]
            assert obeys(tokens, automaton, end_ids)


@pytest.mark.one_backend
def test_a_beam_finds_the_only_text_there_is(decoder):
    """More beams than texts: the others hold nothing, and do not come out."""
    classes = np.full(20, 3)
    classes[[6, 9, 17]] = 0, 1, 2
    automaton = Automaton(
        np.array([[1, -1, -1, -1], [-1, 2, -1, -1], [-1, -1, 3, -1], [-1, -1, -1, -1]]),
        classes,
        np.arange(4) == 3,
    )
    # What is banned, and must be: the text again.
    rules = Rules(automaton=automaton, bad_words=[[6, 9]], forced_prefix=[6])
    beam, ends = BeamSearch(4), (END,)
    found = generate(decoder, [[3, 4], [5]], Settings(beam, rules, ends), 8)
    assert [[tokens for tokens in row if tokens] for row in found] == [[[6, 9, 17, END]]] * 2


def test_rows_of_steps_with_nothing_left_are_not_nan(decoder):
    rules = Rules(bad_words=[[token] for token in range(24)])
    prompts = make_prompts([3, 1])
    for sampler in (Greedy(), BeamSearch(3)):
        free = generate(decoder, prompts, Settings(sampler), 4)
        assert generate(decoder, prompts, Settings(sampler, rules), 4)[0][0] == free[0][0]


@pytest.mark.one_backend
def test_prompts_are_read_whole_for_rules_about_them(decoder):
    """Also where they begin with the same tokens, which could be read once for all."""
    same = make_prompts([20])[0]
    prompts = [[*same, 5], [*same, 9, 4]]

    settings = Settings(Greedy(), Rules(bad_words=[[same[-1], 5, 3]], repetition_penalty=3.0))
    texts = []
    for share in (False, True):
        scheduler = Scheduler(decoder, settings, decoder_inputs, share_prefix=share)
        done = {x.index: x.tokens[0] for x in scheduler.run(prompts, [4, 4])}
        texts.append([done[0], done[1]])
    assert texts[0] == texts[1]


def test_ids_that_the_model_does_not_have(decoder):
    for values, message in (
        (
            {"bad_words": [[3, 24]]},
            "`bad_words` has the id 24, but the model's vocabulary has only 24",
        ),
        ({"forced_prefix": [30]}, "`forced_prefix` has the id 30"),
    ):
        with pytest.raises(ValueError, match=message):
            generate(decoder, [[3]], Settings(Greedy(), Rules(**values)))
