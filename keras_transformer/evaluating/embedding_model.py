"""A text embedder with the interface of the encoders of MTEB."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ScoringFunction
from mteb.types import PromptType

from keras_transformer.tasks import TextEmbedder


class EmbeddingModel(AbsEncoder):
    """A `TextEmbedder` with the interface by which MTEB asks for vectors.

    The prompt before a text is the one of the embedder's `prompts` that is named, in this order, as
    the task and the kind of text (`"NFCorpus-query"`), the task, the type of task and the kind of
    text, the type of task (`"STS"`), or the kind of text (`"query"`, `"document"`); otherwise the
    `default_prompt_name`.

    Args:
        task: a `TextEmbedder` with a tokenizer.
        name: str, the name under which MTEB keeps the results, such as `"my_org/my_model"`.

    Raises:
        ValueError: if the task is not a `TextEmbedder` with a tokenizer.

    Example:
    ```python
    import keras_transformer as kt
    import mteb
    from keras_transformer.evaluating import EmbeddingModel

    model = EmbeddingModel(kt.TextEmbedder.from_preset("minilm_l6_en"))
    assert isinstance(model, mteb.EncoderProtocol)
    ```

    Source: Muennighoff et al. 2023, "MTEB: Massive Text Embedding Benchmark".
    """

    def __init__(self, task: TextEmbedder, name: str = "keras_transformer/text_embedder"):
        if not isinstance(task, TextEmbedder) or task.tokenizer is None:
            raise ValueError(
                f"MTEB needs a TextEmbedder with a tokenizer, received {type(task).__name__}."
            )
        if task.interaction is not None:
            raise ValueError(
                f"MTEB needs one vector for each text, and pooling={task.pooling!r} gives one for "
                "each token. Score queries and documents with `similarity`."
            )
        self.model = task
        # Vectors of `normalize=False` are compared by their angle too, as in sentence-transformers.
        self.mteb_model_meta = ModelMeta.create_empty(
            overwrites={
                "name": name,
                "embed_dim": task.width,
                "n_parameters": task.count_params(),
                "similarity_fn_name": ScoringFunction.COSINE,
            }
        )
        self.model_prompts = dict(task.prompts)

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **kwargs: Any,
    ) -> np.ndarray:
        """Return the vectors of texts.

        Args:
            inputs: batches, dicts with `text`, a list of strings.
            task_metadata: what MTEB knows about the task; its name and type choose the prompt.
            hf_split: str, not used.
            hf_subset: str, not used.
            prompt_type: whether the texts are queries or documents.
            **kwargs: `batch_size`; other options of MTEB are not used.

        Returns:
            Float `(texts, width)`.
        """
        texts = [text for batch in inputs for text in batch["text"]]
        prompt = self.get_prompt_name(task_metadata, prompt_type)
        return self.model.encode(texts, prompt, batch_size=kwargs.get("batch_size"))
