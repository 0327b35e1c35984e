"""Every family against the Transformers library: outputs, gradients, and the way back."""

import fnmatch
import re

import keras
import numpy as np
import pytest

from keras_transformer import export_to_huggingface
from keras_transformer.checkpoints import backbone_variables, load_backbone
from keras_transformer.checkpoints.families import FAMILIES, get_family
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints import families
from tests.checkpoints.conftest import assert_reads_back
from tests.thorough import a_part

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


# Numbers of configs, beside the first, whose values are others in kind.
_FURTHER = [
    ("gemma4_text", 1),
    ("stablelm", 3),
    ("falcon", 4),
    ("falcon", 6),
    ("opt", 3),
    ("deberta-v2", 4),
]


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
    if reference.config.model_type in families.WITHOUT_MASK:
        ids, mask = ids[:1], mask[:1]
        theirs = {"input_ids": ids}
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
    """Return the counterpart of the reference's first output: an encoder's states, else logits."""
    states = backbone(inputs)
    return states if backbone.config.kind == "encoder" else backbone.logits(states)


def cases(mark):
    """All cases: with the mark the first of a family, by turns each that says something new."""
    known = set()
    for model_type, number in families.cases():
        config = FAMILIES[model_type].config(families.CONFIGS[model_type][1][number])
        new = set(_said(config.kind, config.flat)) - known
        known |= new
        marks = [mark] if number == 0 else [] if new else [pytest.mark.thorough]
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


@pytest.mark.parametrize("both", [*cases(pytest.mark.each_backend)], indirect=True)
def test_same_outputs(both):
    reference, backbone = both
    ours, theirs, mask = inputs_of(reference)
    with torch.no_grad():
        expected = reference(**theirs)[0].numpy()
    difference = np.abs(to_numpy(outputs_of(backbone, ours)) - expected)[mask].max()
    assert difference <= (2e-5 if backbone.config.kind == "encoder" else 1e-4)


@pytest.mark.parametrize("both", [*cases(pytest.mark.one_backend)], indirect=True)
def test_export_is_the_way_back(tmp_path, both):
    """Transformers loads what we write, all of it, and so do we."""
    reference, backbone = both
    model_type = reference.config.model_type
    export_to_huggingface(backbone, tmp_path / "ours")
    again, info = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    if model_type == "pegasus":  # the sines and cosines, which it computes
        info["missing_keys"] = {n for n in info["missing_keys"] if "embed_positions" not in n}
    if model_type == "esm":  # the head of contacts, which has no place here
        info["missing_keys"] = {n for n in info["missing_keys"] if "contact_head." not in n}
    if model_type == "t5gemma2":  # the image tower, which it always has
        images = ("model.encoder.vision_tower.", "model.encoder.multi_modal_projector.")
        info["missing_keys"] = {n for n in info["missing_keys"] if not n.startswith(images)}
    if model_type == "encoder-decoder":  # a pooler that it does not read
        info["missing_keys"] = {n for n in info["missing_keys"] if "encoder.pooler." not in n}
    assert not any(info.values()), info
    assert again.config.model_type == model_type
    _, theirs, mask = inputs_of(reference)
    with torch.no_grad():
        difference = again.eval()(**theirs)[0] - reference(**theirs)[0]
    assert np.abs(difference.numpy())[mask].max() <= 1e-6
    assert_reads_back(tmp_path / "ours", backbone)


@pytest.mark.parametrize(
    ("model_type", "number"),
    [
        ("t5", 1),
        ("umt5", 0),
        ("switch_transformers", 0),
        *(("longt5", i) for i in range(3)),
        *(("t5gemma", i) for i in range(4)),
    ],
)
def test_encoders_alone(tmp_path, model_type, number):
    """The same states, and the way back."""
    own = {"is_encoder_decoder": False} if model_type == "t5gemma" else {}
    reference = families.make(model_type, number, "EncoderModel", **own)
    backbone = load_backbone(saved(reference, tmp_path / "theirs"))
    assert backbone.config.kind == "encoder" and backbone.config.num_decoder_layers is None
    ids, mask = families.batch(0)
    theirs = {"input_ids": torch.tensor(ids).long(), "attention_mask": torch.tensor(mask).long()}
    with torch.no_grad():
        expected = reference(**theirs)[0].numpy()
    found = to_numpy(backbone({"token_ids": ids, "padding_mask": mask}))
    assert np.abs(found - expected)[mask].max() <= 2e-5
    export_to_huggingface(backbone, tmp_path / "ours")
    again, info = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    assert again.config.architectures == [type(reference).__name__]
    with torch.no_grad():
        assert np.abs(again.eval()(**theirs)[0].numpy() - expected)[mask].max() <= 1e-6
    assert_reads_back(tmp_path / "ours", backbone)


_WITH_GRADIENTS = [
    "bert",
    "albert",
    "mpnet",
    "modernbert",
    "deberta-v2",
    "xlnet",
    "gpt2",
    "llama",
    "bamba",
    "mamba2",
    "gemma2",
    "phi3",
    "olmo2",
    "bloom",
    "gptj",
    "falcon",
    "cohere",
    "cohere2",
    "granite",
    "codegen",
    "nemotron",
    "ministral3",
    "gemma3n_text",
    "gemma4_text",
    "falcon_h1",
    "hunyuan_v1_dense",
    "nanochat",
    "lfm2",
    "recurrent_gemma",
    "t5",
    "umt5",
    "t5gemma",
    "bart",
    "mbart",
    "pegasus",
    "pegasus_x",
    "encoder-decoder",
]


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("model_type", "number"), [*((name, 0) for name in _WITH_GRADIENTS), *_FURTHER]
)
def test_same_gradients(tmp_path, model_type, number):
    """The gradients of a sum of squares, of every weight, by the names of the weight table."""
    reference, backbone, gradients = _both_gradients(tmp_path, model_type, number)
    names = dict(reference.named_parameters())
    family = get_family({"model_type": model_type})
    canonical = {family.names.canonical(name): parameter for name, parameter in names.items()}
    compared = set()
    for line in family.lines(backbone.config):
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
    untrained = {path for path, v in backbone_variables(backbone).items() if not v.trainable}
    assert gradients.keys() - compared <= constant | untrained


# Models of which files hold other tensors than memory: experts, and convolutions side by side.
_WRITTEN_OTHERWISE = [
    "mixtral",
    "kimi_linear",
    "phimoe",
    "olmoe",
    "qwen2_moe",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5_moe_text",
    "olmo_hybrid",
    "gpt_oss",
    "granitemoehybrid",
    "llama4_text",
    "nemotron_h",
    "lfm2_moe",
    "deepseek_v2",
    "deepseek_v3",
    "t5gemma2",
]


@pytest.mark.one_backend
@pytest.mark.parametrize("model_type", _WRITTEN_OTHERWISE)
def test_same_gradients_read_like_weights(tmp_path, model_type):
    """Compare gradients read like weights, whose layout in memory differs from the file's."""
    reference, _, gradients = _both_gradients(tmp_path, model_type)
    with torch.no_grad():
        for parameter in reference.parameters():
            if parameter.grad is not None:  # of an image tower, which these texts do not need
                parameter.copy_(parameter.grad)
    expected = backbone_variables(load_backbone(saved(reference, tmp_path / "gradients")))
    assert expected.keys() == gradients.keys()
    for path, variable in expected.items():
        if not variable.trainable:  # a buffer of theirs, which has no gradient
            continue
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
    """Compare one layer: over several, Transformers takes one loss of all shares."""
    reference = whole("mixtral", 0, num_hidden_layers=1, router_aux_loss_coef=0.5)
    backbone = load_backbone(saved(reference, tmp_path))
    ours, theirs, _ = inputs_of(reference)
    with torch.no_grad():
        expected = reference(**theirs, output_router_logits=True).aux_loss.item()
    backbone(ours, training=True)
    assert float(backbone.losses[0]) == pytest.approx(0.5 * expected, rel=1e-5)


def _gradients(backbone, loss):
    """The gradient of each trained variable, by path."""
    return gradients_of(backbone_variables(backbone), loss)


def gradients_of(variables, loss):
    """The gradient of a loss by each of the variables, by path."""
    return value_and_gradients_of(variables, loss)[1]


def value_and_gradients_of(variables, loss):
    """The value of a loss, and its gradient by each of the variables, by path."""
    variables = {path: v for path, v in variables.items() if "seed_generator" not in path}
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = loss()
        values = [v.value for v in variables.values()]
        found = tape.gradient(value, values, unconnected_gradients="zero")
        return float(value), {path: to_numpy(g) for path, g in zip(variables, found, strict=True)}
    if keras.backend.backend() == "torch":
        value = loss()
        value.backward()
        grads = {path: v.value.grad for path, v in variables.items()}
        found = {path: np.zeros(1) if g is None else to_numpy(g) for path, g in grads.items()}
        return float(value.detach()), found
    import jax

    def of_values(values):
        with keras.StatelessScope(list(zip(variables.values(), values, strict=True))):
            return loss()

    value, found = jax.jit(jax.value_and_grad(of_values))([v.value for v in variables.values()])
    return float(value), {path: np.asarray(g) for path, g in zip(variables, found, strict=True)}


def assert_gradients(found, reference, folder):
    """Holds gradients by path against theirs, which are read as the weights of a checkpoint."""
    with torch.no_grad():
        for parameter in reference.parameters():
            grad = parameter.grad
            parameter.copy_(torch.zeros_like(parameter) if grad is None else grad)
    for path, variable in backbone_variables(load_backbone(saved(reference, folder))).items():
        value = to_numpy(variable)
        bound = 1e-4 * np.abs(value).max() + 2e-6
        assert np.abs(found[path] - value).max() <= bound, path


_GENERATING = [
    "gpt_neox",
    "llama",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi3",
    "olmo2",
    "olmo3",
    "exaone4",
    "glm",
    "glm4",
    "ernie4_5",
    "ministral3",
    "llama4_text",
    "gemma3n_text",
    "gemma4_text",
    "hunyuan_v1_dense",
    "nanochat",
    "lfm2",
    "olmo_hybrid",
    "bamba",
    "falcon_h1",
    "mamba2",
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "smollm3",
    "mixtral",
    "olmoe",
    "qwen2_moe",
    "qwen3_moe",
    "gpt_oss",
    "deepseek_v2",
    "deepseek_v3",
    "glm4_moe",
    "glm4_moe_lite",
    "opt",
    "bloom",
    "gptj",
    "falcon",
    "phi",
    "stablelm",
    "cohere",
    "cohere2",
    "granite",
    "starcoder2",
    "gpt_bigcode",
    "xglm",
    "gpt_neo",
    "codegen",
    "mpt",
    "helium",
    "arcee",
    "seed_oss",
    "nemotron",
    "persimmon",
    "granitemoe",
    "granitemoehybrid",
    "nemotron_h",
    "lfm2_moe",
    "recurrent_gemma",
    "ernie4_5_moe",
    "biogpt",
    "granitemoeshared",
    "phimoe",
    "kimi_linear",
    "ministral",
    "modernbert-decoder",
    "t5",
    "mt5",
    "umt5",
    "switch_transformers",
    "t5gemma",
    "t5gemma2",
    "bart",
    "mbart",
    "m2m_100",
    "plbart",
    "blenderbot",
    "marian",
    "pegasus",
    "pegasus_x",
    "encoder-decoder",
]


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("model_type", "number"),
    a_part([*((name, 0) for name in _GENERATING), *(x for x in _FURTHER if x[0] in _GENERATING)]),
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
    if model_type in ("t5", "mt5", "umt5", "switch_transformers"):
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
    """Return their best tokens after the prompt and each of the tokens found, in one pass."""
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
