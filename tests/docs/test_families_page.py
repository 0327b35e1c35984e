"""docs/families.md is what the code makes, and what it says is so."""

import importlib.util
import sys
from pathlib import Path

import pytest

from keras_transformer import list_presets
from keras_transformer.checkpoints.families import FAMILIES, get_family
from keras_transformer.config import OPTIONS

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = pytest.mark.backend_independent

# Config values without words on the page: sizes, rates, and what the page says in general.
NUMBERS = {
    "vocabulary_size",
    "hidden_dim",
    "num_layers",
    "num_heads",
    "intermediate_dim",
    "num_decoder_layers",
    "head_dim",
    "expert_dim",
    "expert_capacity_factor",
    "load_balancing_factor",
    "router_z_loss_factor",
    "normalization_epsilon",
    "max_sequence_length",
    "dropout",
    "attention_dropout",
    "tie_embeddings",
    "initializer_range",
    "rotary_base",
    "rotary_factor",
    "rotary_min_turns",
    "rotary_max_turns",
    "rotary_original_length",
    "relative_max_distance",
}


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("make_families", DOCS / "make_families.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for their module there
    sys.path.insert(0, str(DOCS))  # as for a script
    spec.loader.exec_module(module)
    sys.path.remove(str(DOCS))
    yield module
    del sys.modules[spec.name], sys.modules["family_words"], sys.modules["loaded_types"]


@pytest.fixture(scope="module")
def page(maker):
    return maker.page()


def cells(page, heading):
    """The rows of the tables below a heading: a list of cells by the first one."""
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line[1:-1].split("|") for line in section.splitlines() if line.startswith("| `")]
    return {row[0].strip(" `"): [cell.strip() for cell in row[1:]] for row in rows}


def test_page_is_current(page):
    assert (DOCS / "families.md").read_text(encoding="utf-8") == page, (
        "run python docs/make_families.py"
    )


def test_check_says_whether_it_is_current(maker, page, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(maker, "PAGE", tmp_path / "families.md")
    monkeypatch.setattr(maker, "page", lambda: page)  # made once, by itself: it takes long

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["make_families.py", *arguments])
        return maker.main()

    assert run("--check") == 1 and "not what the code makes" in capsys.readouterr().out
    assert run() == 0 and (tmp_path / "families.md").read_text(encoding="utf-8") == page
    capsys.readouterr()
    assert run("--check") == 0 and "is current" in capsys.readouterr().out
    (tmp_path / "families.md").write_text(page.replace("RMSNorm", "LayerNorm"), encoding="utf-8")
    assert run("--check") == 1


def test_a_row_for_each_family_and_a_place_for_each_preset(page):
    for heading in ("What they are", "Their tasks"):
        assert set(cells(page, heading)) == set(FAMILIES)
    rows = cells(page, "Values that are refused, and presets")
    assert set(FAMILIES) <= set(rows)
    named = [name.strip(" `") for row in rows.values() for name in row[-1].split(",") if name]
    assert sorted(named) == list_presets()
    assert "minilm_l6_en" in rows["bert"][-1] and "gpt2_base_en" in rows["gpt2"][-1]


def test_a_verdict_for_each_of_the_most_loaded_types(page):
    """Those said to be covered are families; the others are refused, with a reason."""
    rows = cells(page, "The 100 most loaded types")
    types = pytest.importorskip("transformers.models.auto.configuration_auto").CONFIG_MAPPING_NAMES
    assert len(rows) == 100 and set(rows) <= set(types)
    for name, (covered, said) in rows.items():
        assert (covered == "yes") == (name in FAMILIES), name
        if covered == "yes":
            assert said == f"`{name}`" and name in cells(page, "What they are")
        elif covered == "text alone":
            assert said.split("`")[1] in FAMILIES, name
        else:
            assert covered == "no" and said.endswith("."), name
            with pytest.raises(ValueError, match="not supported"):
                get_family({"model_type": name})


def test_a_type_has_a_family_or_a_reason(maker, monkeypatch):
    loaded = sys.modules["loaded_types"]
    for changed, message in (
        ({"bert": "No."}, "bert has a family and a reason"),
        ({"owlv2": None}, "owlv2 has no family: state"),
    ):
        monkeypatch.setattr(loaded, "LOADED_TYPES", loaded.LOADED_TYPES | changed)
        with pytest.raises(ValueError, match=message):
            loaded.rows()
        monkeypatch.undo()


def test_the_words_are_those_of_the_papers(page):
    """Compare with descriptions from the papers and the models' own pages, entered by hand."""
    rows = cells(page, "What they are")
    for name, words in {
        "bert": ("arxiv.org/abs/1810.04805", "learned", "LayerNorm last", "token types", "pooler"),
        "roberta": ("arxiv.org/abs/1907.11692", "counted without padding"),
        "camembert": ("as RoBERTa",),
        "albert": ("layers share their weights", "narrower embeddings"),
        "mpnet": ("2004.09297", "without padding", "; relative, 32 buckets", "LayerNorm last"),
        "deberta-v2": ("2006.03654", "relative in the scores", "a convolution"),
        "modernbert": ("2412.13663", "LayerNorm without bias first", "on the emb", "`window`"),
        "nomic_bert": ("2402.01613", "rotary", "gated silu", "no biases", "token types"),
        "openai-gpt": ("Radford et al. 2018", "LayerNorm last"),
        "gpt2": ("Radford et al. 2019", "Multitask", "LayerNorm first"),
        "gpt_neox": ("rotary on 25% of a head", "side by side"),
        "llama": ("RMSNorm first", "gated silu", "grouped", "linear, llama3, yarn", "no biases"),
        "mistral": ("as Llama", "window"),
        "qwen2": ("biases on query, key and value only",),
        "qwen3": ("on queries and keys",),
        "gemma": ("2403.08295", "RMSNorm by 1 + weight first", "scaled embeddings", "gelu (tanh"),
        "gemma2": ("2408.00118", "on the output of each", "by turns in `window`", "caps on"),
        "gemma3_text": (
            "2503.19786",
            "queries and keys",
            "`rotary_base`, `window`",
            "an encoder, if",
        ),
        "patchtst": (
            "2211.14730",
            "batch normalization first, none at the end",
            "pieces of series",
        ),
        "timesfm2_5": (
            "2310.10688",
            "after their rotation",
            "those before it",
            "factor of each feature",
            "up to its end",
        ),
        "patchtsmixer": ("2306.09364", "layer over the pieces", "gates by softmax", "of series"),
        "chronos_bolt": (
            "2403.07815",
            "relative",
            "`t5` in configs",
            "one beside them",
            "last token",
        ),
        "phi3": ("2404.14219", "gated silu", "no biases"),
        "olmo2": ("2501.00656", "RMSNorm on the output of each sub-layer, on queries", "across"),
        "smollm3": ("blog/smollm3", "by turns in `position`"),
        "mixtral": ("2401.04088", "8 experts, 2 a token", "softmax together"),
        "olmoe": ("2409.02060", "64 experts, 8 a token", "softmax of all", "across"),
        "qwen2_moe": ("2407.10671", "60 experts, 4 a token and a shared one"),
        "qwen3_moe": ("2505.09388", "128 experts, 8 a token", "queries and keys"),
        "gpt_oss": ("2508.10925", "cut gates", "with a bias", "to nothing", "by turns in `window`"),
        "opt": ("2205.01068", "learned, from row 2", "relu", "narrower tokens", "first"),
        "bloom": ("2211.05100", "alibi", "on the embeddings", "gelu (tanh"),
        "gptj": ("Komatsuzaki 2021", "of neighbouring", "side by side behind one norm", "bias on"),
        "falcon": ("2311.16867", "rotary", "grouped", "ALiBi in", "or two", "no biases"),
        "phi": ("2306.11644", "rotary on 50% of a head", "behind one norm", "bias on the logits"),
        "stablelm": ("2402.17834", "on 25% of a head", "side by side, if the", "norms of queries"),
        "cohere": ("Cohere 2024", "neighbouring", "norms of queries", "without bias first"),
        "cohere2": ("2504.00698", "neighbouring", "`position`, `window`", "without bias first"),
        "granite": ("granite-3.0", "factors of the embeddings, what sub-layers", "of the scores"),
        "starcoder2": ("2402.19173", "LayerNorm first", "gelu (tanh", "grouped", "a window, if"),
        "gpt_bigcode": ("2301.03988", "learned", "grouped key"),
        "xglm": ("2112.10668", "sines first, of Tensor2Tensor, from position 2", "scaled emb"),
        "gpt_neo": ("zenodo", "learned", "by turns in `window`", "not scaled", "some biases"),
        "codegen": ("2203.13474", "of neighbouring", "side by side behind one norm", "bias on"),
        "mpt": ("MosaicML 2023", "alibi", "LayerNorm without bias first", "no biases"),
        "helium": ("Kyutai 2025", "of neighbouring", "gated silu"),
        "arcee": ("Arcee 2025", "| squared relu"),
        "seed_oss": ("ByteDance 2025", "gated silu", "biases on query, key and value only"),
        "nemotron": ("2402.16819", "LayerNorm by 1 + weight", "on 50% of", "| squared relu"),
        "persimmon": ("Elsen et al. 2023", "on 50% of a head", "queries and keys", "squared relu"),
        "esm": ("2022.07.20.500902", "rotary positions in place of", "masks without an embedding"),
        "fnet": ("2105.03824", "Fourier transforms without weights", "projected embeddings"),
        "gte": ("2407.19669", "some biases, in feed-forward layers only on the output"),
        "modernbert-decoder": ("2507.11412", "a dense layer without bias and a norm before the"),
        "data2vec-text": ("2202.03555", "counted without padding"),
        "t5": ("relative, 32 buckets", "no biases", "scores not scaled", "RMSNorm first"),
        "bart": ("learned, from row 2", "on the embeddings", "bias on the logits"),
        "marian": ("arxiv.org/abs/1804.00344", "sinusoidal, sines first"),
        "encoder-decoder": ("1907.12461", "encoder of `bert`", "`gpt2`", "where their widths"),
        "vision-encoder-decoder": ("2109.10282", "patches of images", "`trocr`", "before the log"),
        "blip": (
            "2201.12086",
            "patches of images",
            "attends to the image",
            "before the logits",
            "sides that differ",
        ),
        "llava": ("2310.03744", "rotary", "two layers, in the place of tokens", "without that of"),
        "idefics3": ("2408.12637", "a layer on the joined states of squares"),
        "smolvlm": ("2504.05299", "a layer on the joined states of squares"),
        "llava_next": ("llava-next", "a trained state behind each row of patches"),
        "llava_onevision": ("2408.03326", "a trained state behind each row of patches"),
        "internvl": ("2404.16821", "two layers on the joined states", "without that of the class"),
        "paligemma": ("2407.07726", "one layer", "and see the prompt, as it them"),
        "gemma3": ("2503.19786", "the means of squares", "which see each other"),
        "clip_vision_model": ("2103.00020", "a normalized vector, pooled by first", "none at the"),
        "siglip_vision_model": ("2303.15343", "a vector, pooled by attention"),
        "git": ("2205.14100", "learned", "a layer and a norm", "which see each other"),
    }.items():
        for word in words:
            assert word in " | ".join(rows[name]), (name, word)
    assert "token types" not in " ".join(rows["distilbert"])
    refused = cells(page, "Values that are refused, and presets")
    assert "`is_decoder` other than `false`" in refused["bert"][0]


def test_the_words_know_every_config_value(maker):
    """A config value that is neither a number nor in the words would be left out unnoticed."""
    source = (DOCS / "family_words.py").read_text(encoding="utf-8")
    said = ("kind", "rotary_scaling", "embedding_dim", "output_bias", "num_key_value_heads")
    said += ("embedding_scale", "residual_scale", "logit_scale")
    # Their names for these are in `_SWITCHES`.
    said += ("alibi_scale", "alibi_rounded", "convolution_size", "convolution_activation")
    said += ("token_projection", "dropped_token_id")
    said += ("rotary_precision",)  # of the tensors
    # Of parts: of a rotation, the kind of a mixer, or a side.
    said += ("rotary_dim", "rotary_interleaved", "rotary_direction", "rotary_truncate")
    said += ("rotary_query_growth", "mixer", "causal")
    # Of the sides of a dual, whose pooling is in words.
    said += ("vector_pooling", "vector_end_id", "vector_dim", "vector_bias", "bidirectional")
    said += (
        "projector_activation",
        "projector_bias",
        "projector_pool",
        "projector_separator",
    )  # of a projector, which is in words
    # Numbers of longrope and yarn.
    said += ("rotary_short_factors", "rotary_long_factors", "rotary_attention_factor")
    unsaid = {
        name
        for name in OPTIONS
        if name not in (*said, *NUMBERS)
        and f"config.{name}" not in source
        and f'config.flat["{name}"]' not in source
    }
    assert unsaid == {"pooler"}  # `family.pooler` says it: it depends on the weights


def test_the_classes_exist(page):
    known = set(dir(pytest.importorskip("transformers")))  # without loading each of them
    known.add("ChronosBoltModelForForecasting")  # of the package chronos-forecasting
    known.add("DepthAnythingModel")  # the backbone alone, which has no class there
    for family in FAMILIES.values():
        exported = [family.classes(task)[0] for task in family.heads]
        for name in (family.architecture, *exported):
            assert name in known
            assert family.architecture == name or f"`{name}`" in page


def test_what_is_not_covered_is_refused(maker):
    refused = [values for row in maker.NOT_COVERED for values in row.refused]
    assert len(refused) > 5
    for values in refused:
        with pytest.raises(ValueError, match=r"not supported|must be equal"):
            get_family(values).config(values)


def test_a_module_must_name_its_paper(maker, monkeypatch):
    from keras_transformer.checkpoints.families.encoders import electra

    monkeypatch.setattr(electra, "__doc__", "ELECTRA, as everybody knows.")
    with pytest.raises(ValueError, match=r"s\.electra must start with 'Name: Authors year, URL'"):
        maker.paper(electra.ELECTRA)
