"""Every family against the Transformers library: outputs, gradients, and the way back."""

import fnmatch
import re

import keras
import numpy as np
import pytest

from keras_transformer import TransformerConfig, export_to_huggingface
from keras_transformer.checkpoints import backbone_variables, load_backbone
from keras_transformer.checkpoints.families import FAMILIES, get_family
from keras_transformer.checkpoints.safetensors_io import to_numpy
from tests.checkpoints import families
from tests.checkpoints.conftest import assert_same_values

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


# What published configs of two families say.
_SAID = {
    name: FAMILIES[name].published_config(FAMILIES[name].config({})) for name in ("bert", "llama")
}
_RELATIVE = {
    "model_type": "deberta-v2",
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "norm_rel_ebd": "layer_norm",
}

# Numbers of configs, beside the first, whose values are others in kind.
_FURTHER = [("stablelm", 3), ("falcon", 4), ("falcon", 6), ("opt", 3), ("deberta-v2", 4)]


def saved(model, folder):
    """The folder, with the model in it."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model.save_pretrained(folder)
    return folder


def kind_of(model_type):
    return FAMILIES[model_type].constants["kind"]


def whole(model_type, number, **values):
    """Their model: the bare one of an encoder, the language model of the other kinds."""
    suffix = "Model" if kind_of(model_type) == "encoder" else "LanguageModel"
    return families.make(model_type, number, suffix, **values)


def loaded(folder, model_type, number):
    """Their model, and our backbone of its files."""
    reference = whole(model_type, number)
    return reference, load_backbone(saved(reference, folder))


def inputs_of(reference):
    """One batch with padding, as our backbone takes it and as theirs does; the real positions."""
    pad_id = getattr(reference.config, "pad_token_id", None) or 0
    ids, mask = families.batch(pad_id)
    theirs = {"input_ids": ids, "attention_mask": mask}
    if not reference.config.is_encoder_decoder:
        ours = {"token_ids": ids, "padding_mask": mask}
    else:
        target_ids, target_mask = families.batch(pad_id, length=7, seed=2)
        theirs |= {"decoder_input_ids": target_ids, "decoder_attention_mask": target_mask}
        ours = {
            "encoder_token_ids": ids,
            "encoder_padding_mask": mask,
            "decoder_token_ids": target_ids,
            "decoder_padding_mask": target_mask,
        }
        mask = target_mask
    return ours, {k: torch.tensor(v).long() for k, v in theirs.items()}, mask


def outputs_of(backbone, inputs):
    """What the reference's first output is: states of an encoder, else logits."""
    states = backbone(inputs)
    return states if backbone.config.kind == "encoder" else backbone.logits(states)


def cases_of_backends():
    """All cases; on each backend the first of a family, and each that says what none before did."""
    known = set()
    for model_type, number in families.cases():
        config = FAMILIES[model_type].config(families.CONFIGS[model_type][1][number])
        new = set(_said(config.kind, config.to_dict())) - known
        known |= new
        marks = [] if new or number == 0 else [pytest.mark.one_backend]
        yield pytest.param((model_type, number), id=_name((model_type, number)), marks=marks)


def _name(case):
    return "{}-{}".format(*case)


def _said(path, value):
    """The options of a config: each word and each bool for itself, of numbers that there is one."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _said(f"{path}.{name}", each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _said(path, each)
    else:
        yield path, value if isinstance(value, bool | str | None) else type(value)


@pytest.fixture(scope="module")
def both(request, tmp_path_factory):
    """Their model of a case and our backbone of its files: for all its tests, unchanged."""
    return loaded(tmp_path_factory.mktemp("theirs"), *request.param)


@pytest.mark.parametrize("both", [*cases_of_backends()], indirect=True)
def test_same_outputs(both):
    reference, backbone = both
    ours, theirs, mask = inputs_of(reference)
    with torch.no_grad():
        expected = reference(**theirs)[0].numpy()
    difference = np.abs(to_numpy(outputs_of(backbone, ours)) - expected)[mask].max()
    assert difference <= (2e-5 if backbone.config.kind == "encoder" else 1e-4)


@pytest.mark.one_backend
@pytest.mark.parametrize("both", families.cases(), indirect=True, ids=_name)
def test_export_is_the_way_back(tmp_path, both):
    """Transformers loads what we write, all of it, and so do we."""
    reference, backbone = both
    model_type = reference.config.model_type
    export_to_huggingface(backbone, tmp_path / "ours")
    again, info = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    if model_type == "pegasus":  # the sines and cosines, which it computes
        info["missing_keys"] = {n for n in info["missing_keys"] if "embed_positions" not in n}
    assert not any(info.values()), info
    assert again.config.model_type == model_type
    _, theirs, mask = inputs_of(reference)
    with torch.no_grad():
        difference = again.eval()(**theirs)[0] - reference(**theirs)[0]
    assert np.abs(difference.numpy())[mask].max() <= 1e-6
    back = load_backbone(tmp_path / "ours")
    assert back.config == backbone.config
    assert_same_values(back, backbone)


_WITH_GRADIENTS = [
    "bert",
    "albert",
    "mpnet",
    "modernbert",
    "deberta-v2",
    "gpt2",
    "llama",
    "gemma2",
    "phi3",
    "olmo2",
    "bloom",
    "gptj",
    "falcon",
    "cohere",
    "cohere2",
    "granite",
    "t5",
    "t5gemma",
    "bart",
    "mbart",
    "pegasus",
]


@pytest.mark.parametrize(
    ("model_type", "number"), [*((name, 0) for name in _WITH_GRADIENTS), *_FURTHER]
)
def test_same_gradients(tmp_path, model_type, number):
    """The gradients of a sum of squares, of every weight, by the names of the weight table."""
    reference, backbone, gradients = _both_gradients(tmp_path, model_type, number)
    names = dict(reference.named_parameters())
    family = get_family({"model_type": model_type})
    canonical = {family.names.canonical(name): parameter for name, parameter in names.items()}
    from keras_transformer.checkpoints.weights import expand

    compared = set()
    for line in expand(family.weights, backbone.config):
        pattern = fnmatch.translate(line.theirs)
        theirs = [p.grad for name, p in canonical.items() if re.fullmatch(pattern, name)]
        if line.ours not in gradients or not theirs:
            continue
        if theirs[0] is None:  # of BERT's pooler, which these outputs do not go through
            assert not np.any(gradients[line.ours])
        else:
            # Of heads that each have a tensor, in their order.
            grad = torch.stack(theirs) if "*" in line.theirs else theirs[0]
            expected = line.split(grad.numpy())
            # Of some, as a key's bias, it is zero but for rounding.
            bound = 1e-4 * np.abs(expected).max() + 2e-6
            assert np.abs(gradients[line.ours] - expected).max() <= bound, line.ours
        compared.add(line.ours)
    # The bias on the logits of a BART, and of those made like it, is a constant.
    constant = {"output_bias/bias"} if kind_of(model_type) == "seq2seq" else set()
    assert gradients.keys() - compared <= constant


@pytest.mark.parametrize("model_type", ["mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "gpt_oss"])
def test_same_gradients_of_experts(tmp_path, model_type):
    """Likewise, the gradients read as the weights are: in memory theirs are others than on disk."""
    reference, _, gradients = _both_gradients(tmp_path, model_type)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.copy_(parameter.grad)
    expected = backbone_variables(load_backbone(saved(reference, tmp_path / "gradients")))
    assert expected.keys() == gradients.keys()
    for path, variable in expected.items():
        value = to_numpy(variable)
        bound = 1e-4 * np.abs(value).max() + 2e-6
        assert np.abs(gradients[path] - value).max() <= bound, path


def _both_gradients(tmp_path, model_type, number=0):
    """Their model, with its gradients, our backbone, and ours by path."""
    reference = whole(model_type, number)
    backbone = load_backbone(saved(reference, tmp_path))
    ours, theirs, mask = inputs_of(reference)
    weight = mask[..., None].astype("float32")

    outputs = reference(**theirs)[0]
    ((outputs**2 * torch.tensor(weight)).sum() / weight.sum()).backward()
    shares = keras.ops.convert_to_tensor(weight / weight.sum())
    gradients = _gradients(
        backbone, lambda: keras.ops.sum(keras.ops.square(outputs_of(backbone, ours)) * shares)
    )
    return reference, backbone, gradients


def test_same_loss_of_balance(tmp_path):
    """Of one layer: over several Transformers takes one loss of all shares."""
    reference = whole("mixtral", 0, num_hidden_layers=1, router_aux_loss_coef=0.5)
    backbone = load_backbone(saved(reference, tmp_path))
    ours, theirs, _ = inputs_of(reference)
    with torch.no_grad():
        expected = reference(**theirs, output_router_logits=True).aux_loss.item()
    backbone(ours, training=True)
    assert float(backbone.losses[0]) == pytest.approx(0.5 * expected, rel=1e-5)


def _gradients(backbone, loss):
    """The gradient of each trained variable, by path."""
    variables = {
        path: v for path, v in backbone_variables(backbone).items() if "seed_generator" not in path
    }
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = loss()
        values = [v.value for v in variables.values()]
        found = tape.gradient(value, values, unconnected_gradients="zero")
        return {path: to_numpy(g) for path, g in zip(variables, found, strict=True)}
    if keras.backend.backend() == "torch":
        loss().backward()
        grads = {path: v.value.grad for path, v in variables.items()}
        return {path: np.zeros(1) if g is None else g.numpy() for path, g in grads.items()}
    import jax

    def of_values(values):
        with keras.StatelessScope(list(zip(variables.values(), values, strict=True))):
            return loss()

    found = jax.jit(jax.grad(of_values))([v.value for v in variables.values()])
    return {path: np.asarray(g) for path, g in zip(variables, found, strict=True)}


_GENERATING = [
    "gpt_neox",
    "llama",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi3",
    "olmo2",
    "smollm3",
    "mixtral",
    "olmoe",
    "qwen2_moe",
    "qwen3_moe",
    "gpt_oss",
    "opt",
    "bloom",
    "gptj",
    "falcon",
    "phi",
    "stablelm",
    "cohere",
    "cohere2",
    "granite",
    "t5",
    "mt5",
    "t5gemma",
    "bart",
    "mbart",
    "marian",
    "pegasus",
]


@pytest.mark.parametrize(
    ("model_type", "number"),
    [*((name, 0) for name in _GENERATING), *(x for x in _FURTHER if x[0] in _GENERATING)],
)
def test_greedy_decoding_is_the_same(tmp_path, model_type, number):
    """Through the cache, where positions, scales and norms must be those of the whole pass.

    What is greedy is the best behind all tokens before it: one pass of theirs says whether it is.
    """
    from keras_transformer import CausalLM, Seq2SeqLM

    reference = whole(model_type, number)
    reference.generation_config.eos_token_id = None
    reference.generation_config.forced_eos_token_id = None
    reference.config.eos_token_id = None
    if model_type in ("t5", "mt5"):
        reference.generation_config.decoder_start_token_id = 0
    task = Seq2SeqLM if kind_of(model_type) == "seq2seq" else CausalLM
    model = task.from_preset(saved(reference, tmp_path))
    ids = families.batch()[0][:1]
    # Past all windows, where there is no longest text.
    config = model.backbone.config
    limited = config.position in ("learned", "sinusoidal") and config.max_sequence_length < 74
    count = 8 if limited else 64
    found = model.generate(ids[0].tolist(), max_new_tokens=count)
    assert len(found) == count
    assert found == _best(reference, torch.tensor(ids).long(), torch.tensor([found]))


def _best(reference, prompt, found):
    """What they score highest behind the prompt and each of the tokens found, in one pass."""
    if reference.config.is_encoder_decoder:
        said = reference.generation_config
        start = said.decoder_start_token_id
        first = torch.tensor([[said.bos_token_id if start is None else start]])
        given = {"input_ids": prompt, "decoder_input_ids": torch.cat([first, found[:, :-1]], 1)}
    else:
        given = {"input_ids": torch.cat([prompt, found[:, :-1]], 1)}
    with torch.no_grad():
        logits = reference(**given).logits
    return logits[0, -found.shape[1] :].argmax(-1).tolist()


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "mamba"}, "'mamba' are not supported"),
        ({"model_type": "mamba"}, "docs/add_a_family.md says how to add a family"),
        (
            {**_SAID["llama"], "model_type": "jamba", "mamba_d_state": 8, "nothing": None},
            "The nearest of these is 'llama', which has no place for mamba_d_state=8. docs",
        ),
        (
            {**_SAID["bert"], "model_type": "new", "is_decoder": True},
            "nearest of these is 'bert', which has no place for is_decoder=True. docs",
        ),
        (
            {
                **_SAID["llama"],
                "model_type": "new",
                "mixed": ["x" * 2000],
                **dict.fromkeys("abcdefghi", 1),
            },
            "for mixed=.*, a=1, .*, g=1, 2 more",
        ),
        (
            {"model_type": "llama", "rope_scaling": {"type": "dynamics", "factor": 2.0}},
            "'dynamics'",
        ),
        ({"model_type": "llama", "rope_parameters": [1]}, "rope_parameters must be an object"),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "layer_types": ["chunked"] * 32},
            "layer_types has 'chunked', which is not supported",
        ),
        ({"model_type": "gemma2", "layer_types": []}, "layer_types must be a list of 26 names"),
        ({"model_type": "gemma2", "num_hidden_layers": 10**9}, "num_hidden_layers=1000000000"),
        ({"model_type": "gemma2", "query_pre_attn_scalar": 0}, "query_pre_attn_scalar must be pos"),
        ({"model_type": "gemma", "use_bidirectional_attention": True}, "use_bidirectional_att"),
        ({"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 5.0}}, "must have 'full_"),
        ({"model_type": "gemma3_text", "attn_logit_softcapping": 9.0}, "attn_logit_softcapping=9"),
        (
            {"model_type": "phi3", "rope_scaling": {"type": "longrope"}},
            "rotary_short_factors. must",
        ),
        (
            {"model_type": "phi3", "rope_scaling": {"type": "su"}},
            "rotary_short_factors. must be 48",
        ),
        ({"model_type": "phi3", "rope_scaling": {"type": "linear"}}, "rope_type='linear'"),
        (
            {"model_type": "llama", "rope_scaling": {"type": "longrope", "attention_factor": 2.0}},
            "attention_factor=2.0 of rope_parameters",
        ),
        ({"model_type": "smollm3", "no_rope_layers": [1, 0]}, "has 2 values for 36 layers"),
        ({"model_type": "opt", "word_embed_proj_dim": 0}, "`embedding_dim` must be at least 1"),
        ({"model_type": "opt", "layer_norm_elementwise_affine": False}, "elementwise_affine=False"),
        ({"model_type": "bloom", "n_embed": "64"}, "n_embed must be a number"),
        ({"model_type": "gptj", "rotary_dim": None}, "rotary_dim must be a number"),
        ({"model_type": "falcon", "num_ln_in_parallel_attn": 2}, "needs new_decoder_architecture"),
        ({"model_type": "granite", "logits_scaling": 0}, "logits_scaling must be positive"),
        ({**_RELATIVE, "conv_kernel_size": 4}, "`convolution_size` must be odd, received 4"),
        ({**_RELATIVE, "conv_kernel_size": 3, "conv_groups": 2}, "conv_groups=2 of the conv"),
        ({**_RELATIVE, "conv_kernel_size": 3, "conv_act": "x"}, "conv_act='x' of the convolution"),
        ({**_RELATIVE, "pos_att_type": "c2p"}, "pos_att_type='c2p' is not supported with relative"),
        ({**_RELATIVE, "relative_attention": False}, "with relative_attention=False, only"),
        ({**_RELATIVE, "norm_rel_ebd": "none"}, "norm_rel_ebd='none' is not supported"),
        ({**_RELATIVE, "position_buckets": 512}, "position_buckets=512 must be below 512"),
        ({"model_type": "albert", "inner_group_num": "2"}, "inner_group_num must be a number"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "add_cross_attention=True"),
        ({"model_type": "t5", "feed_forward_proj": "gated-gated-gelu"}, "feed_forward_proj"),
        (
            {"model_type": "marian", "vocab_size": 9, "decoder_vocab_size": 8},
            "`share_embeddings` needs sides of one `vocabulary_size`",
        ),
        ({"model_type": "roberta", "pad_token_id": "<pad>"}, "pad_token_id must be a number"),
        ({"model_type": "llama", "rope_theta": "10"}, "rope_theta must be a number"),
    ],
)
def test_values_that_are_not_computed_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        get_family(values).config(values)


@pytest.mark.backend_independent
@pytest.mark.parametrize("model_type", FAMILIES)
def test_published_defaults(model_type):
    """A config that says nothing is that of the library's own class."""
    published = getattr(transformers, f"{families.CONFIGS[model_type][0]}Config")()
    said = FAMILIES[model_type].config(published.to_dict())
    assert isinstance(said, TransformerConfig)
    assert FAMILIES[model_type].config({}) == said


# As configs were written before release 5.
OLDER = {
    "qwen2": {"use_sliding_window": True, "max_window_layers": 3, "rope_theta": 1e6},
    "gemma": {"rope_theta": 2e4, "hidden_act": "gelu", "hidden_activation": None},
    "gemma2": {"rope_theta": 2e4, "hidden_act": "gelu", "query_pre_attn_scalar": 224},
    "gemma3_text": {
        "sliding_window_pattern": 4,
        "rope_theta": 5e5,
        "rope_local_base_freq": 2e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "phi3": {"rope_theta": 2e4, "rope_scaling": None, "partial_rotary_factor": 0.5},
    "olmo2": {"rope_theta": 5e5, "rope_scaling": None},
    "smollm3": {"no_rope_layer_interval": 3, "use_sliding_window": True, "sliding_window": 9},
    "bloom": {"n_embed": 96, "num_hidden_layers": 3, "num_attention_heads": 6},
    "falcon": {"rope_theta": 5e5, "num_attention_heads": 64, "hidden_size": 128},
    "phi": {"rope_theta": 5e5, "partial_rotary_factor": 0.25},
    "stablelm": {"rope_theta": 5e5, "partial_rotary_factor": 0.5},
    "cohere": {"rope_theta": 5e4},
    "cohere2": {"sliding_window_pattern": 5, "rope_theta": 5e4},
    "granite": {"rope_theta": 5e5, "rope_scaling": None},
    "modernbert": {
        "global_attn_every_n_layers": 4,
        "local_attention": 64,
        "global_rope_theta": 1e5,
        "local_rope_theta": 2e4,
    },
}


@pytest.mark.backend_independent
@pytest.mark.parametrize("model_type", OLDER)
def test_older_configs(model_type):
    """They are read as the library reads them, whose own form is that of release 5."""
    older = OLDER[model_type]
    published = getattr(transformers, f"{families.CONFIGS[model_type][0]}Config")(**older)
    read = FAMILIES[model_type].config(older)
    assert read == FAMILIES[model_type].config(published.to_dict())
    assert read != FAMILIES[model_type].config({})


@pytest.mark.backend_independent
def test_configs_of_nomic_bert_from_before_the_library_had_it():
    older = {
        "n_embd": 96, "n_layer": 2, "n_head": 6, "n_inner": 40, "n_positions": 99,
        "layer_norm_epsilon": 1e-3, "activation_function": "geglu", "rotary_emb_base": 500,
    }  # fmt: skip
    now = {
        "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6,
        "intermediate_size": 40, "max_position_embeddings": 99, "layer_norm_eps": 1e-3,
        "hidden_act": "gelu", "rope_parameters": {"rope_theta": 500},
    }  # fmt: skip
    family = FAMILIES["nomic_bert"]
    assert family.config(older) == family.config(now)
    for wrong in ({"prenorm": True}, {"rotary_emb_fraction": 0.5}, {"activation_function": "relu"}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}=.* is not supported"):
            family.config({**older, **wrong})


@pytest.mark.backend_independent
def test_heads_of_narrower_states_are_not_exported():
    family = FAMILIES["opt"]
    config = family.config(families.CONFIGS["opt"][1][3])
    assert family.published_config(config, {"name": "CausalLM"})["word_embed_proj_dim"] == 7
    with pytest.raises(ValueError, match="states of 7 features, the TextClassifier has one for 12"):
        family.published_config(config, {"name": "TextClassifier", "num_classes": 2})


@pytest.mark.backend_independent
def test_export_to_a_named_family(tmp_path):
    backbone = load_backbone(saved(whole("xlm-roberta", 0), tmp_path / "theirs"))
    export_to_huggingface(backbone, tmp_path / "ours", family="roberta")
    assert load_backbone(tmp_path / "ours").family == "roberta"
    with pytest.raises(ValueError, match="cannot express position_offset=2, only 0"):
        export_to_huggingface(backbone, tmp_path / "no", family="bert")
    with pytest.raises(ValueError, match="no family 'robberta'"):
        export_to_huggingface(backbone, tmp_path / "no", family="robberta")
    assert not (tmp_path / "no").exists()
