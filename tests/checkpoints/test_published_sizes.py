"""The bundled presets of published models: sizes as published, and nothing but values."""

import json
import math
import re

import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import load_config, resolve_preset, variable_shapes
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.heads import TASKS
from keras_transformer.checkpoints.presets.hub import HubName
from tests.thorough import THOROUGH

pytestmark = pytest.mark.backend_independent

# From the papers and model cards, in millions: what anybody can look up.
SAID = {
    "albert_base_en": 12,
    "bart_base_en": 140,
    "bart_large_en": 400,
    "bigbird_base_en": 128,
    "bert_base_en_uncased": 110,
    "bert_large_en_uncased": 340,
    "deberta_v3_extra_small_en": 22 + 48,
    "deberta_v3_small_en": 44 + 98,
    "deberta_v3_base_en": 86 + 98,
    "deberta_v3_large_en": 304 + 131,
    "deberta_v3_base_multi": 86 + 190,
    # With the output matrix, which files have beside the embedding that it is.
    "blip_image_captioning_base": 247.4 - 23.4,
    "blip_image_captioning_large": 470 - 23.4,
    "blip_vqa_base": 385 - 23.4,
    "blip_vqa_capfilt_large": 385 - 23.4,
    # The image tower, the query transformer, which alone was trained, and the language model.
    "blip2_opt_2_7b": 986 + 104 + 2652,
    "blip2_opt_6_7b": 986 + 104 + 6658,
    "blip2_flan_t5_xl": 986 + 104 + 2850,
    "blip2_flan_t5_xxl": 986 + 104 + 11_135,
    "bloom_560m_multi": 559,
    "bloom_7_1b_multi": 7069,
    "bloom_176b_multi": 176_247,
    "camembert_base_fr": 110,
    "camembert_large_fr": 335,
    "codegen_350m_mono": 350,
    "clap_htsat_fused": 614 / 4,  # megabytes of float32 in its file
    "larger_clap_general": 776 / 4,
    "command_a_111b_multi": 111_000,
    "command_r7b_multi": 8030,
    # Without the head, 1.0, 1.7, 2.5 and 4.6 of what the cards say.
    "chronos_bolt_tiny": 8.65 - 1.0,
    "chronos_bolt_mini": 21.2 - 1.7,
    "chronos_bolt_small": 47.7 - 2.5,
    "chronos_bolt_base": 205 - 4.6,
    "chronos_t5_tiny": 8.4,
    "chronos_t5_mini": 20,
    "chronos_t5_small": 46,
    "chronos_t5_base": 200,
    "chronos_t5_large": 710,
    "data2vec_text_base_en": 124,
    "deepseek_v2_lite": 15_700,
    "deepseek_v3_671b": 671_000,
    "dinov3_small": 21.6,
    "dinov3_huge_plus": 840,
    "dinov3_7b": 6716,
    "depth_anything_v2_small": 24.8 - 2.7,  # with the head, 2.7, 10.6 and 29.8
    "depth_anything_v2_base": 97.5 - 10.6,
    "depth_anything_v2_large": 335.3 - 29.8,
    "distilbert_base_en_uncased": 66,
    "electra_small_en": 14,
    "ernie4_5_0_3b": 360,
    "esm2_8m": 7.5,  # with the head, 0.1
    "esm2_35m": 35,
    "esm2_150m": 150,
    "esm2_650m": 650,
    "exaone4_32b_multi": 32_000,
    "afm_4_5b": 4600,
    "bamba_9b_en": 9780,
    "biogpt_base_en": 347,
    "blenderbot_3b_en": 2700,
    "ernie4_5_21b_a3b": 21_800,
    "ettin_decoder_150m_en": 150,
    "ettin_decoder_400m_en": 400,
    "ettin_decoder_1b_en": 1000,
    "m2m_100_1_2b_multi": 1200,
    "rembert_base_multi": 576,
    "xlm_roberta_xl_multi": 3500,
    "qwen3_next_80b_a3b": 80_000,
    "umt5_small_multi": 307 - 131,  # without the output matrix that files have
    "umt5_xxl_multi": 13_000 - 1050,
    # With the output matrix, which the names leave out.
    "eurobert_210m_multi": 210 + 98.5,
    "eurobert_610m_multi": 610 + 147.8,
    "eurobert_2_1b_multi": 2100 + 295.5,
    "falcon2_11b_multi": 11_100,
    "falcon_7b_en": 6922,
    "falcon_40b_multi": 41_300,
    "falcon_180b_multi": 180_000,
    "embedding_gemma_300m": 303,
    "gemma_2b_en": 2510,
    "gemma_7b_en": 8540,
    "gemma2_2b_en": 2610,
    "gemma2_27b_en": 27_230,
    "gemma3_270m": 268,
    "gemma3n_instruct_e2b": 4460,  # without the encoders of images and sound
    "gemma3_1b": 1000,
    "git_base": 177,
    "glm4_0414_9b_chat": 9400,
    "glm4_5_air": 106_000,
    "git_large": 394,
    "gpt2_extra_large_en": 1558,
    "gpt3_175b_en": 175_000,
    "gpt_base_en": 117,
    "gpt_neo_125m_en": 125,
    "gpt_neo_1_3b_en": 1300,
    "gpt_neox_20b_en": 20_000,
    "led_base_en": 162,
    "lfm2_1_2b": 1170,
    "gptj_6b_en": 6050,
    "granite3_2b_multi": 2500,
    "granite3_8b_multi": 8100,
    "llama2_7b_en": 7_000,
    "internvl3_1b": 938,
    "internvl3_2b": 2_090,
    "internvl3_8b": 7_940,
    "llava_1_6_mistral_7b": 7_570,
    "llava_1_6_vicuna_7b": 7_060,
    "llava_onevision_qwen2_0_5b": 894,
    "llava_onevision_qwen2_7b": 8_030,
    "smolvlm_256m_en": 256,
    "smolvlm_500m_en": 507,
    "smolvlm_2_2b_en": 2_250,
    "smolvlm2_500m_en": 507,
    "llava_1_5_7b": 7_060,
    "llava_1_5_13b": 13_350,
    "longformer_base_en": 149,
    "longformer_large_en": 435,
    "longt5_local_base_en": 250,
    "longt5_tglobal_large_en": 780,
    "gpt_oss_20b": 20_910,
    "gpt_oss_120b": 116_830,
    "mbart50_large_multi": 611,
    "megatron_bert_345m_en": 345,
    "minitron_4b_en": 4190,
    "ministral3_8b_base": 8400,  # without the image tower
    "mistral_7b_en": 7_300,
    "mixtral_8x7b": 46_700,
    "mixtral_8x22b": 141_000,
    "modernbert_base_en": 149,
    "modernbert_large_en": 395,
    "mpnet_base_en": 110,
    "mpt_7b_en": 6_700,
    "mt5_small_multi": 300,
    "mt5_base_multi": 580,
    "mt5_large_multi": 1200,
    "mt5_xl_multi": 3700,
    "mt5_xxl_multi": 13_000,
    "moonshine_tiny_en": 27.1,
    "moonshine_base_en": 61.5,
    "nomic_embed_1_5_en": 137,
    "olmo2_1b_en": 1485,
    "olmo2_7b_en": 7300,
    "olmo2_13b_en": 13_700,
    "olmo2_32b_en": 32_200,
    "olmo3_7b_en": 7298,
    "olmo_hybrid_7b_en": 7430,
    "olmoe_1b_7b_en": 6_920,
    "colpali_1_2": 2920,
    "colqwen2_1_0": 2210,
    "paligemma_3b_224": 2923,
    "paligemma2_3b_224": 3030,
    "paligemma2_10b_448": 9660,
    "paligemma2_28b_224": 27_650,
    "mistral_small_3_1_24b_instruct": 24_000,
    "mistral_small_3_2_24b_instruct": 24_000,
    "opt_125m_en": 125,
    "opt_6_7b_en": 6700,
    "opt_66b_en": 66_000,
    "patchtst_granite_etth1": 0.614,
    "phi1_5_1_3b_en": 1_400,
    "phi2_2_7b_en": 2_780,
    "pegasus_large_en": 568,
    "pegasus_x_base_en": 272,
    "pegasus_x_large_en": 568,
    "persimmon_8b_en": 9_300,
    "phi3_mini_4k_instruct_en": 3800,
    "phi3_medium_4k_instruct_en": 14_000,
    "phi4_14b": 14_700,
    "pixtral_12b": 12_700,
    "plbart_base": 140,
    "pythia_1_4b_en": 1_400,
    "qwen1_5_moe_a2_7b": 14_300,
    "qwen2_57b_a14b": 57_410,
    "qwen2_vl_instruct_2b": 2210,
    "qwen2_vl_instruct_7b": 8290,
    "qwen2_vl_instruct_72b": 73_400,
    "qwen2_5_vl_instruct_3b": 3750,
    "qwen2_5_vl_instruct_7b": 8290,
    "qwen2_5_vl_instruct_32b": 33_500,
    "qwen2_5_vl_instruct_72b": 73_400,
    "qwen3_vl_instruct_2b": 2130,
    "qwen3_vl_instruct_4b": 4440,
    "qwen3_vl_instruct_8b": 8770,
    "qwen3_vl_instruct_30b_a3b": 31_100,
    "qwen3_vl_instruct_235b_a22b": 236_000,
    "qwen3_vl_instruct_32b": 33_400,
    "gemma3n_vision_instruct_e2b": 5_440,
    "gemma3n_vision_instruct_e4b": 7_850,
    "gemma4_vision_instruct_e2b": 5_100,
    "gemma4_vision_instruct_e4b": 8_000,
    "gemma4_vision_instruct_26b_a4b": 25_200 + 570,  # the texts, and the image tower
    "gemma4_vision_instruct_31b": 30_700 + 570,
    "qwen3_0_6b": 600,
    "qwen3_30b_a3b": 30_500,
    "qwen3_235b_a22b": 235_000,
    "roberta_base_en": 125,
    # Without the neck, 1.0 to 0.8, and the decoder, 4.1.
    "yolos_tiny": 6.5 - 0.17,  # with the head, 0.17, 0.63 and 2.4
    "yolos_small": 30.7 - 0.63,
    "yolos_base": 127.8 - 2.4,
    "detr_resnet_50": 41.5,
    "detr_resnet_101": 60.4,
    "table_transformer_detection": 28.8,
    "table_transformer_structure_recognition": 28.8,
    # Without the decoder and the convolutions that join maps, see test_rt_detr.py.
    "rtdetr_r18vd": 20.2 - 8.1,
    "rtdetr_r50vd": 43.0 - 18.1,
    "rtdetr_r101vd": 76.8 - 31.2,
    "rtdetr_v2_r18vd": 20.2 - 8.1,
    "rtdetr_v2_r50vd": 43.0 - 18.1,
    "rtdetr_v2_r101vd": 76.8 - 31.2,
    # Without the same parts, see test_d_fine.py.
    "dfine_nano_coco": 3.80 - 1.61,
    "dfine_small_coco": 10.35 - 7.43,
    "dfine_medium_coco": 19.64 - 12.40,
    "dfine_large_coco": 31.36 - 16.45,
    "dfine_xlarge_coco": 62.85 - 26.48,
    "sam_vit_base": 93.7 - 4.8,
    "sam_vit_large": 312.3 - 4.9,
    "sam_vit_huge": 641.1 - 5.0,
    "santacoder_1_1b": 1100,
    "segformer_b0_ade": 3.4,  # the encoders, table 1a of the paper
    "segformer_b1_ade": 13.1,
    "segformer_b2_ade": 24.2,
    "segformer_b3_ade": 44.0,
    "segformer_b4_ade": 60.8,
    "segformer_b5_ade": 81.4,
    "siglip2_base_patch16_224": 375,
    "siglip2_base_patch16_naflex": 375,
    "siglip2_so400m_patch16_naflex": 1136,
    "siglip2_so400m_patch14_384": 1136,
    "smollm3_3b_en": 3080,
    "stablelm2_1_6b_multi": 1644,
    "starcoder2_3b": 3030,
    "stablelm_3b_en": 2796,
    "swin_tiny_patch4_window7_224": 29 - 0.8,  # without the head, table 1 of the paper
    "swin_small_patch4_window7_224": 50 - 0.8,
    "swin_base_patch4_window7_224": 88 - 1.0,
    "swin_large_patch4_window7_224": 197 - 1.5,
    "swinv2_tiny_patch4_window8_256": 28 - 0.8,  # without the head, the authors' table
    "swinv2_tiny_patch4_window16_256": 28 - 0.8,
    "swinv2_small_patch4_window8_256": 50 - 0.8,
    "swinv2_base_patch4_window8_256": 88 - 1.0,
    "t5_small_multi": 60,
    "timesfm_2_5_200m": 200,
    "t5gemma_9b_9b": 20_300,
    "t5gemma2_270m_270m": 370,  # without the image tower
    "t5gemma2_1b_1b": 1700,
    "t5gemma2_4b_4b": 7000,
    "t5gemma2_270m_270m_images": 370 + 417,
    "t5gemma2_1b_1b_images": 1700 + 417,
    "t5gemma2_4b_4b_images": 7000 + 417,
    "t5_11b_multi": 11_000,
    "trocr_small_printed": 62,
    "trocr_base_handwritten": 334,
    "trocr_base_stage1": 385,
    "trocr_large_handwritten": 558,
    "trocr_large_printed": 608,
    "vit_gpt2_image_captioning": 239,
    "parakeet_ctc_0_6b_en": 2_440 / 4,  # from the bytes of the file, in float32
    "parakeet_ctc_1_1b_en": 4_250 / 4,
    "w2v_bert_2_multi": 580,
    "wav2vec2_base_960h_en": 95,
    "wavlm_base_en": 94.7,
    "wavlm_large_en": 316.6,
    "wav2vec2_large_960h_lv60_en": 317,
    "hubert_large_960h_en": 317,
    "hubert_extra_large_960h_en": 964,
    "xglm_564m_multi": 564,
    "xlnet_base_en": 117,
    "xlnet_large_en": 361,
    "xlm_roberta_base_multi": 270,
    "videomae_base_finetuned_kinetics": 87,
    "videomae_large_finetuned_kinetics": 305,
    "videomae_huge_finetuned_kinetics": 633,
    "vivit_b_16x2_kinetics400": 88.6,
}

# To the last one, as the hub counts the tensors of the files, or KerasHub those of its preset.
COUNTED = {
    "fnet_base_en": 82_861_056,
    "fnet_large_en": 236_945_408,
    "gemma3_instruct_4b": 4_300_079_472,
    "gemma3_instruct_12b": 12_187_325_040,
    "gemma3_instruct_27b": 27_432_406_640,
    "glm4_7_flash": 29_943_393_920,
    "glm4_9b_chat": 9_399_951_360,
    "granite3_1b_a400m_multi": 1_334_628_352,
    "granite4_h_tiny_multi": 6_939_037_248,
    "granite4_micro_multi": 3_402_836_480,
    "gte_base_multi": 305_369_089 - 769,  # without the weights of single tokens
    # Without five adapters of rank 4 for each matrix.
    "jina_embeddings_v3_multi": 572_310_396 - 12_946_300,
    "kimi_linear_48b_a3b": 49_122_681_728,
    "lfm2_8b_a1b": 8_339_929_856 + 22 * 32,  # biases of the choice of experts, in float32
    "mamba_codestral_7b": 7_285_403_648,
    "nanochat_d20_en": 560_988_160,
    "nanochat_d32_en": 1_879_048_192,
    "nemotron3_nano_30b_a3b": 31_577_937_344 + 23 * 128,  # and those biases
    "nemotron_nano_9b_v2": 8_888_227_328,
    "nllb_200_distilled_1_3b_multi": 1_370_638_336,
    "nllb_200_distilled_600m_multi": 615_073_792,
    "qwen3_5_0_8b": 852_985_920,
    "qwen3_5_27b": 27_356_728_560,
    "qwen3_5_4b": 4_539_265_536,
    # Without the layer for further tokens, and, of texts alone, images.
    "qwen3_5_35b_a3b": 35_951_822_704 - 844_640_768,
    "qwen3_5_35b_a3b_text": 35_951_822_704 - 844_640_768 - 446_571_248,
    "qwen3_next_80b_a3b": 79_674_391_296,
    "recurrentgemma_2b_en": 2_682_862_080,
    "seed_oss_36b": 36_151_104_512,
    "switch_base_8_en": 619_339_008,
}


# The tensors of RT-DETR and D-FINE outside of their heads, but the projection of the last map.
_ON_MAPS = ("rt_detr", "rt_detr_v2", "d_fine")
_IN_BACKBONE = re.compile(r"backbone\.|encoder\.aifi\.|encoder_input_proj\.(\d)\.")


def _in_backbone(path: str, config) -> bool:
    """Whether a tensor of RT-DETR or D-FINE is outside of its head."""
    found = _IN_BACKBONE.match(path)
    return bool(found) and found[1] in (None, str(config.stem.num_maps))


def published():
    """The presets that belong to a family, with their config and metadata."""
    for name in kt.list_presets():
        config, task, metadata = load_config(name, load_weights=False)
        if metadata.get("family") in FAMILIES:
            yield name, config, task, metadata


def test_every_published_preset_says_where_it_is_from():
    presets = list(published())
    assert len(presets) > 90
    without = {
        "clip_text_model", "clip_vision_model", "encoder-decoder", "granitemoeshared",
        "hunyuan_v1_dense", "metaclip_2_text_model", "metaclip_2_vision_model", "ministral",
        "parakeet_encoder", "patchtsmixer", "phimoe", "qwen3_5_text", "roberta-prelayernorm",
        "siglip_text_model",
        "siglip_vision_model",
        "siglip2_text_model",
        "siglip2_vision_model", "vitdet",
    }  # fmt: skip
    assert {metadata["family"] for *_, metadata in presets} == set(FAMILIES) - without
    for name, _, task, metadata in presets:
        assert metadata["license"] and metadata["description"].endswith("."), name
        assert metadata["source"].startswith("hf://"), name
        pointer = resolve_preset(name).config.get("weights")
        if pointer is not None:
            hub = HubName.parse(pointer["hub"])
            assert metadata["source"] == f"hf://{hub.repository}", name
            assert hub.revision == metadata.get("revision", "main"), name
        assert task is None or task["name"] in TASKS, name
        card = (resolve_preset(name).directory / "README.md").read_text(encoding="utf-8")
        assert f"{metadata['parameters']:,}" in card, name
        said = re.search(r"^\| memory \| ([\d.]+) ([MG])B in float32, ", card, re.M)
        if said is not None:
            memory = float(said[1]) * {"M": 1e6, "G": 1e9}[said[2]]
            assert memory == pytest.approx(4 * metadata["parameters"], rel=0.01), name


def test_the_numbers_of_parameters_that_are_said():
    for name, millions in SAID.items():
        config, _, metadata = load_config(name, load_weights=False)
        count = sum(map(math.prod, variable_shapes(config).values()))
        assert count == metadata["parameters"], name
        assert count == pytest.approx(millions * 1e6, rel=0.07), name


def test_the_numbers_of_parameters_that_are_counted_elsewhere():
    for name, expected in COUNTED.items():
        assert load_config(name, load_weights=False)[2]["parameters"] == expected, name


def test_sizes_are_those_of_the_transformers_library(monkeypatch):
    """Its own classes, of our config exported, have as many parameters; none is allocated."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.models.videomae import modeling_videomae

    from tests.checkpoints import chronos_bolt, mobilenet_v5

    # A table in plain Python, which takes seconds and has no parameters.
    monkeypatch.setattr(modeling_videomae, "get_sinusoid_encoding_table", lambda *_: torch.zeros(1))

    mobilenet_v5.register()
    presets = sorted(published(), key=lambda preset: preset[3]["parameters"])
    compared = set()
    for name, config, own, metadata in presets:
        family = FAMILIES[metadata["family"]]
        # Others of a family are larger. Where their counts are published, that is compared above.
        if metadata["family"] in compared and not THOROUGH:
            continue
        compared.add(metadata["family"])
        task = {"decoder": {"name": "CausalLM"}, "seq2seq": {"name": "Seq2SeqLM"}}
        chosen = task.get(config.kind)
        of_another = metadata["family"] == "chronos_bolt"
        if chosen is not None and chosen["name"] not in family.heads:
            chosen = own if of_another else {"name": next(iter(family.heads))}
        # The bare model, without a head.
        if metadata["family"] in ("detr", "table-transformer", *_ON_MAPS):
            chosen = None
        values = family.published_config(config, chosen)
        theirs = transformers.AutoConfig.for_model(**json.loads(json.dumps(values)))
        library = chronos_bolt if of_another else transformers
        if metadata["family"] == "depth_anything":  # it has no bare model
            theirs, values = theirs.backbone_config, {"architectures": ["Dinov2Model"]}
        if metadata["family"] == "sam":
            theirs = theirs.vision_config
        with torch.device("meta"):
            model = getattr(library, values["architectures"][0])(theirs)
        # The angles of these positions are stored there as if they were weights.
        count = sum(
            parameter.numel()
            for path, parameter in model.named_parameters()
            if not (
                metadata["family"] in ("marian", "pegasus", "roformer")
                and "embed_positions" in path
            )
            and not path.startswith("encoder.pooler.")  # of a vision-encoder-decoder, not read
            and not path.startswith(
                ("output_patch_embedding.", "contact_head.", "embedding_proj_layer.", "ctc_head.")
            )  # heads
            and not path.startswith("vision_encoder.neck.")  # SAM's, a part of the head
            and (metadata["family"] not in _ON_MAPS or _in_backbone(path, config))
            and path not in ("embeddings.mask_token", "mask_emb")  # of masked pre-training
            # Of T5Gemma 2's images, which its texts alone do not read.
            and not (
                metadata["family"] == "t5gemma2"
                and path.startswith(("model.encoder.vision_", "model.encoder.multi_modal_"))
            )
            # The lengths of weight norm, which a kernel has in itself here.
            and not path.endswith("parametrizations.weight.original0")
        )
        # Of a batch normalization, of the choice of experts, and factors of layers, which here are
        # weights.
        count += sum(
            buffer.numel()
            for path, buffer in model.named_buffers()
            if (metadata["family"] not in _ON_MAPS or _in_backbone(path, config))
            and (
                ".running_" in path
                or ".normalization." in path  # of a frozen batch norm
                or path.endswith(
                    (
                        ".e_score_correction_bias",
                        ".expert_bias",
                        ".layer_scalar",
                        "put_min",
                        "put_max",
                        ".std_bias",
                        ".std_scale",
                    )
                )
            )
        )
        pooled = any("pooler" in path for path, _ in model.named_parameters())
        if config.kind == "encoder" and pooled and not (config.pooler or config.mean_pooler):
            count -= config.hidden_dim * (config.hidden_dim + 1)
        # They always tie, or the bare model has no output matrix.
        untied = metadata["family"] in ("t5", "mt5", "longt5", "eurobert")
        if untied and not config.tie_embeddings:
            count += config.vocabulary_size * config.hidden_dim
        constants = {path for path, _ in model.named_buffers()}
        if config.output_bias and "final_logits_bias" in constants:
            count += config.vocabulary_size
        # A norm behind the layers that are read, which Pixtral's tower has not.
        if metadata["family"].startswith("llava") and not name.startswith("pixtral"):
            count -= 2 * config.side("encoder").hidden_dim
        assert count == metadata["parameters"], name


def test_presets_of_a_task():
    assert "distilbert_base_en_uncased_sst2" in kt.list_presets(task="text_classification")
    assert kt.list_presets(task="token_classification") == ["bert_base_en_ner"]
    assert kt.list_presets(task="question_answering") == ["distilbert_base_en_cased_squad"]
    assert "roberta_base_en" in kt.list_presets(task="MaskedLM")
    assert set(kt.list_presets(task="causal_lm")) >= {"gpt2_base_en", "llama3_8b_en"}
    labels = load_config("bert_base_en_ner", load_weights=False)[1]["labels"]
    assert labels[0] == "O" and "B-PER" in labels
