"""GGUF files of T5 and of its encoder alone, against the Transformers library and SentencePiece."""

import io

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import load_backbone
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints import families
from tests.tokenizers.nasty import SENTENCES

gguf = pytest.importorskip("gguf")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
sentencepiece = pytest.importorskip("sentencepiece")
sentencepiece_model_pb2 = pytest.importorskip("sentencepiece.sentencepiece_model_pb2")

SIZES = {
    "vocab_size": 64,
    "d_model": 16,
    "d_kv": 6,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "layer_norm_epsilon": 1e-5,
}
OLD = {"num_decoder_layers": 3, "feed_forward_proj": "relu"}
NEW = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


def made(values, name="T5ForConditionalGeneration"):
    model = getattr(transformers, name)(transformers.T5Config(**{**SIZES, **values})).eval()
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=random))
            parameter.add_("layer_norm" in path)
        if hasattr(model, "lm_head") and not model.config.scale_decoder_outputs:
            weight = 0.3 * torch.randn(model.lm_head.weight.shape, generator=random)
            model.lm_head.weight = torch.nn.Parameter(weight)
    model.set_input_embeddings(model.shared)  # of both sides
    return model


def written(path, model, vocabulary=None, change=None):
    """Write a model as llama.cpp's converter does."""
    config, encoder = model.config, "Encoder" in type(model).__name__
    architecture = "t5encoder" if encoder else "t5"
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(512)
    writer.add_embedding_length(config.d_model)
    writer.add_feed_forward_length(config.d_ff)
    writer.add_block_count(config.num_layers)
    if not encoder:
        writer.add_decoder_block_count(config.num_decoder_layers)
        writer.add_decoder_start_token_id(0)
    writer.add_head_count(config.num_heads)
    writer.add_key_length(config.d_kv)
    writer.add_value_length(config.d_kv)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_relative_attn_buckets_count(config.relative_attention_num_buckets)
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    writer.add_vocab_size(config.vocab_size)
    writer.add_eos_token_id(1)
    for further in (vocabulary, change):
        if further is not None:
            further(writer)
    kind = next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    table = gguf.get_tensor_name_map(kind, config.num_hidden_layers + 1)
    for name, tensor in model.state_dict().items():
        tied = name == "lm_head.weight" and config.scale_decoder_outputs
        if "embed_tokens" not in name and not tied:
            known = table.get_name(name.removesuffix(".weight"))
            writer.add_tensor(f"{known}.weight", tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("values", [OLD, NEW])
def test_a_model(tmp_path, values):
    reference = made(values)

    def unused(writer):  # as early checkpoints have it
        writer.add_tensor("dec.blk.0.cross_attn_rel_b.weight", np.ones((8, 3), "f4"))

    path = written(tmp_path / "model.gguf", reference, change=unused if values is OLD else None)
    lm = kt.Seq2SeqLM.from_preset(path)
    ids, mask = families.batch(words=59)
    inputs = {"encoder_token_ids": ids, "encoder_padding_mask": mask}
    inputs |= {"decoder_token_ids": ids[:, :5], "decoder_padding_mask": np.ones((3, 5), bool)}
    with torch.no_grad():
        expected = reference(
            input_ids=torch.tensor(ids).long(),
            attention_mask=torch.tensor(mask).long(),
            decoder_input_ids=torch.tensor(ids[:, :5]).long(),
        ).logits.numpy()
    assert np.abs(to_numpy(lm.predict(inputs, verbose=0)) - expected).max() <= 1e-4
    assert (lm.start_id, tuple(lm.end_ids), lm.backbone.family) == (0, (1,), "t5")


def test_an_encoder_alone(tmp_path):
    reference = made(NEW, "T5EncoderModel")
    encoder = load_backbone(written(tmp_path / "model.gguf", reference))
    ids, mask = families.batch(words=59)
    with torch.no_grad():
        expected = reference(
            input_ids=torch.tensor(ids).long(), attention_mask=torch.tensor(mask).long()
        ).last_hidden_state.numpy()
    found = to_numpy(encoder({"token_ids": ids, "padding_mask": mask}))
    assert np.abs(found - expected)[mask].max() <= 2e-5
    assert encoder.config.kind == "encoder"


def vocabulary_of(data, rows):
    """Return a function that writes a SentencePiece model as the vocabulary of a file."""
    proto = sentencepiece.SentencePieceProcessor(model_proto=data)
    tokens = [proto.id_to_piece(i) for i in range(len(proto))]
    kinds = {"is_unknown": 2, "is_control": 3, "is_unused": 5, "is_byte": 6}
    types = [
        next((t for n, t in kinds.items() if getattr(proto, n)(i)), 1) for i in range(len(proto))
    ]
    rest = [f"[PAD{i}]" for i in range(len(tokens), rows)]

    def write(writer):
        writer.add_tokenizer_model("t5")
        writer.add_tokenizer_pre("default")
        writer.add_token_list([*tokens, *rest])
        writer.add_token_scores(
            [*(proto.get_score(i) for i in range(len(proto))), *[-1e4] * len(rest)]
        )
        writer.add_token_types([*types, *[5] * len(rest)])
        writer.add_add_space_prefix(True)
        writer.add_remove_extra_whitespaces(True)
        rules = sentencepiece_model_pb2.ModelProto.FromString(data).normalizer_spec
        writer.add_precompiled_charsmap(rules.precompiled_charsmap)
        writer.add_unk_token_id(2)
        writer.add_pad_token_id(0)
        writer.add_add_bos_token(False)
        writer.add_add_eos_token(True)

    return proto, write


@pytest.mark.backend_independent
def test_a_tokenizer(tmp_path):
    stored = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=stored, vocab_size=200, pad_id=0, eos_id=1,
        unk_id=2, bos_id=-1, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    proto, vocabulary = vocabulary_of(stored.getvalue(), 230)
    reference = made({**NEW, "vocab_size": 230})
    tokenizer = kt.Tokenizer.from_preset(written(tmp_path / "model.gguf", reference, vocabulary))
    for text in [*SENTENCES, "Naïve  ﬁne ①", " two  spaces "]:
        assert tokenizer.encode(text) == [*proto.encode(text), 1], text
    assert tokenizer.decode(tokenizer.encode(SENTENCES[0])) == SENTENCES[0]
    assert (tokenizer.pad_id, tokenizer.end_id, tokenizer.unknown_id) == (0, 1, 2)
    assert tokenizer.vocabulary_size == len(proto)
