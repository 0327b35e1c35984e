"""Greedy and beam search against the Transformers library, token for token, on equal weights."""

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.generation import BeamSearch, Engine, Greedy, Rules, Settings
from keras_transformer.generation.program import negative_inputs
from tests.generation.common import engine_inputs, found_tokens, make_prompts, on_one
from tests.thorough import a_part

torch = pytest.importorskip("torch", reason="needs PyTorch, which Transformers runs on")
transformers = pytest.importorskip("transformers", reason="needs Transformers as the reference")

VOCABULARY, PAD, START, END = 40, 0, 1, 2
PROMPTS = make_prompts([4, 9, 2, 6, 1, 7], VOCABULARY)
ENDS = (END, 7, 11, 20, 21, 23)  # many, so that rows end at all
NEW = 12

_IDS = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
_LLAMA = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_LLAMA |= {"num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64}
_BART = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in {"layers": 1, "attention_heads": 4, "ffn_dim": 48}.items()
}
_BART |= {"d_model": 32, "max_position_embeddings": 32, "decoder_start_token_id": START}
_BART |= {"forced_eos_token_id": None}
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
MODELS = {
    "gpt2": ("GPT2", "LMHeadModel", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}),
    "llama": ("Llama", "ForCausalLM", _LLAMA),
    "t5": ("T5", "ForConditionalGeneration", {**_T5, "decoder_start_token_id": START}),
    "marian": ("Marian", "MTModel", _BART),
    "bart": ("Bart", "ForConditionalGeneration", _BART),
}


def randomize(model, name):
    """Weights so large that scores differ clearly."""
    generator = torch.Generator().manual_seed(0 if name == "t5" else 4)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if name == "marian" and "embed_positions" in path:
                continue
            noise = torch.randn(parameter.shape, generator=generator)
            norm = parameter.ndim == 1 and path.endswith("weight")
            scale = 0.6 if parameter.ndim == 2 else 0.1
            # Else BART and T5 repeat themselves.
            scale = 1.5 if "embed_positions" in path else scale
            scale = 3.0 if "relative_attention_bias" in path else scale
            scale = 0.3 if name == "t5" and "shared" in path else scale
            parameter.copy_(1.0 + 0.1 * noise if norm else scale * noise)
    return model.eval()


class Pair:
    """A model of the Transformers library, and an engine on its weights."""

    def __init__(self, name, folder):
        prefix, suffix, values = MODELS[name]
        config = getattr(transformers, f"{prefix}Config")
        config = config(vocab_size=VOCABULARY, **_IDS, **values)
        self.reference = randomize(getattr(transformers, prefix + suffix)(config), name)
        self.reference.generation_config.forced_eos_token_id = None
        self.reference.save_pretrained(folder)
        backbone = kt.Backbone.from_preset(str(folder))
        self.engine = Engine(backbone)
        self.seq2seq = backbone.config.kind == "seq2seq"

    def expected(self, of_each=None, count=None, **options):
        """For each prompt alone, its sequences without pads, and their scores.

        `of_each` makes further options of the place of a prompt; `count` is of how many prompts.
        """
        rows = []
        for place, prompt in enumerate(PROMPTS[:count]):
            options |= of_each(place) if of_each else {}
            found = self.reference.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=int),
                max_new_tokens=NEW,
                do_sample=False,
                return_dict_in_generate=True,
                output_scores=True,
                **{"eos_token_id": list(ENDS), "pad_token_id": PAD, **options},
            )
            skip = 1 if self.seq2seq else len(prompt)
            ends = options.get("eos_token_id", ENDS)
            tokens = [until_end(row, ends) for row in found.sequences[:, skip:].tolist()]
            scores = found.get("sequences_scores")
            rows.append((tokens, None if scores is None else scores.numpy()))
        return rows

    def found(self, sampler, end_ids=ENDS, negative=None, rules=None, **settings):
        """All prompts as one ragged batch, or as many as there are negative ones."""
        count = None if negative is None else len(negative)
        inputs = engine_inputs(self.engine.backbone, PROMPTS[:count])
        if negative is not None:
            inputs |= negative_inputs(engine_inputs(self.engine.backbone, negative))
        settings = Settings(sampler, rules, end_ids, PAD, **settings)
        return self.engine.generate(inputs, settings, NEW)


def until_end(tokens, ends):
    places = [place for place, token in enumerate(tokens) if token in ends]
    return tokens[: places[0] + 1] if places else tokens


@pytest.fixture(scope="module", params=MODELS)
def pair(request, tmp_path_factory):
    return Pair(request.param, tmp_path_factory.mktemp(request.param))


def test_greedy(pair):
    expected = [tokens for tokens, _ in pair.expected(num_beams=1)]
    assert found_tokens(pair.found(Greedy())) == expected
    assert len({len(tokens[0]) for tokens in expected}) > 1
    assert len({token for tokens in expected for token in tokens[0]}) > 5


@pytest.mark.one_backend
def test_one_end(pair):
    expected = [tokens for tokens, _ in pair.expected(num_beams=1, eos_token_id=[END])]
    assert found_tokens(pair.found(Greedy(), (END,))) == expected


# How beams end is of the search, not of the model: on each backend one way for every model, and
# the other for one.
ENDINGS = [(1.0, True), (2.0, "never"), (1.0, "never"), (2.0, False), (0.6, True)]


@pytest.mark.parametrize(
    "pair, penalty, early",
    [
        *((name, 0.6, False) for name in MODELS),
        ("llama", 1.0, True),
        *a_part(
            on_one(name, *ending)
            for name in MODELS
            for ending in ENDINGS
            if (name, *ending) != ("llama", 1.0, True)
        ),
    ],
    indirect=["pair"],
)
def test_every_beam_and_its_score(pair, penalty, early):
    options = {"num_beams": 4, "length_penalty": penalty, "early_stopping": early}
    expected = pair.expected(num_return_sequences=4, **options)
    found = pair.found(BeamSearch(4, penalty, early))
    assert found_tokens(found) == [tokens for tokens, _ in expected]
    scores = np.stack([scores for _, scores in expected])
    np.testing.assert_allclose(found.scores, scores, rtol=0, atol=1e-4)


@pytest.mark.one_backend
def test_one_end_and_four_beams(pair):
    expected = pair.expected(num_beams=4, num_return_sequences=2, eos_token_id=[END])
    found = pair.found(BeamSearch(4), (END,))
    assert [row[:2] for row in found_tokens(found)] == [tokens for tokens, _ in expected]


# Some are longer than their prompts, and some shorter.
NEGATIVE = make_prompts([3, 2, 11], VOCABULARY, seed=1)


def guidance_of(place, scale, given):
    negative = {"negative_prompt_ids": torch.tensor([NEGATIVE[place]])} if given else {}
    return {"guidance_scale": scale, "repetition_penalty": 1.3, **negative}


@pytest.mark.parametrize(
    "pair, scale, given", [("llama", 3.0, True), on_one("gpt2", 1.5, False)], indirect=["pair"]
)
def test_guided_greedy(pair, scale, given):
    """The penalty is of the guided scores, and of the prompt's tokens alone."""
    options = {"num_beams": 1, "count": 3}
    expected = pair.expected(lambda place: guidance_of(place, scale, given), **options)
    negative = NEGATIVE if given else [prompt[-1:] for prompt in PROMPTS[:3]]
    rules = Rules(repetition_penalty=1.3)
    found = pair.found(Greedy(), negative=negative, rules=rules, guidance_scale=scale)
    assert found_tokens(found) == [tokens for tokens, _ in expected]
    assert found_tokens(found) != [tokens for tokens, _ in pair.expected(**options)]


class Guide(transformers.LogitsProcessor):
    """The guidance of an encoder-decoder, which Transformers has not, without a cache."""

    def __init__(self, model, source):
        self.model, self.source = model, source

    def __call__(self, input_ids, scores):
        source = torch.tensor([self.source] * len(input_ids))
        logits = self.model(input_ids=source, decoder_input_ids=input_ids).logits
        without = logits[:, -1].log_softmax(dim=-1)
        return 1.5 * (scores.log_softmax(dim=-1) - without) + without


@pytest.mark.one_backend
@pytest.mark.parametrize("pair", ["t5"], indirect=True)
def test_guided_beams(pair):
    """Compare guided beams of an encoder-decoder, whose negative prompts are sources."""

    def guidance(place):
        guide = Guide(pair.reference, NEGATIVE[place])
        return {"logits_processor": transformers.LogitsProcessorList([guide])}

    expected = pair.expected(guidance, count=3, num_beams=4, num_return_sequences=4)
    found = pair.found(BeamSearch(4), negative=NEGATIVE, guidance_scale=1.5)
    assert found_tokens(found) == [tokens for tokens, _ in expected]
    scores = np.stack([scores for _, scores in expected])
    np.testing.assert_allclose(found.scores, scores, rtol=0, atol=1e-4)
