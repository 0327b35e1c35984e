"""Small ColPali and ColQwen2 of Transformers, with their processors."""

import json

import numpy as np

from tests.checkpoints.family_placed import OF_ANY_SIZE
from tests.tasks import mixed, vision_chats
from tests.tasks.vision_chats import tokenizer_of


def colpali(folder):
    import transformers

    images = transformers.SiglipImageProcessorPil(size={"height": 20, "width": 20})
    images.image_seq_length = 16
    tokenizer = tokenizer_of(image_token="<image>", bos_token="<bos>")
    processor = transformers.ColPaliProcessor(images, tokenizer)
    _, values = mixed.paligemma()
    values["text_config"]["vocab_size"] = len(processor.tokenizer)
    values["image_token_index"] = processor.image_token_id
    config = transformers.ColPaliConfig(
        vlm_config=transformers.PaliGemmaConfig(**values), embedding_dim=6
    )
    return _saved(transformers.ColPaliForRetrieval(config), processor, folder)


def colqwen2(folder):
    import transformers
    from tokenizers.processors import TemplateProcessing

    special = (*vision_chats._OF_QWEN, "<|endoftext|>")
    tokenizer = tokenizer_of(*special)
    tokenizer.pad_token = "<|endoftext|>"
    # As Qwen's, it begins texts with nothing.
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    images = transformers.Qwen2VLImageProcessorPil(
        patch_size=4, size={"shortest_edge": 64, "longest_edge": 1600}
    )
    processor = transformers.ColQwen2Processor(images, tokenizer)
    _, (values, *_) = OF_ANY_SIZE["qwen2_vl"]
    config = transformers.ColQwen2Config(
        vlm_config=transformers.Qwen2VLConfig(
            vision_config=values["vision_config"],
            text_config={**values["text_config"], "vocab_size": len(tokenizer)},
            image_token_id=processor.image_token_id,
        ),
        embedding_dim=6,
    )
    return _saved(transformers.ColQwen2ForRetrieval(config), processor, folder)


MAKERS = {"colpali": colpali, "colqwen2": colqwen2}


def _saved(model, processor, folder):
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.eval().named_parameters():
            norm = ("norm" in name or ".ln_q." in name) and name.endswith("weight")
            parameter.normal_(mean=float(norm), std=0.3)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    # Published folders have the images' values in a file of their own, too.
    (folder / "preprocessor_config.json").write_text(
        json.dumps(processor.image_processor.to_dict())
    )
    return model, processor


def pages():
    """Pages of several sizes, a grey one, and one that is a row of pixels."""
    from PIL import Image

    random = np.random.default_rng(0)
    shapes = [(24, 30, 3), (40, 21, 3), (27, 27), (1, 20, 3)]
    return [Image.fromarray(random.integers(0, 256, shape, dtype="uint8")) for shape in shapes]
