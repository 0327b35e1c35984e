"""What users of Transformers and vLLM type, and what it is here: tables of `kerashub_names`."""

# Their options that are none here.
OPTIONS = {
    "num_labels": "It is `num_classes` here, or `labels`, their names.",
    "id2label": "It is `labels` here: the names of the classes in their order.",
    "label2id": "It is `labels` here: the names of the classes in their order.",
    "problem_type": "Several right classes are `multi_label=True` here, a regression "
    "`num_classes=1`.",
    "torch_dtype": 'It is `dtype` here, such as "bfloat16".',
    "device_map": "Many devices are a `distribution` here: docs/scaling.md.",
    "trust_remote_code": "No code of a checkpoint is run.",
    "add_pooling_layer": "It is `pooler` of the config here.",
    "do_sample": 'Which token comes next is said by `sampler`: "greedy", "top_p", '
    "`kt.generation.Random(temperature=0.8, top_k=50)`.",
    **{
        name: f"It is of a sampler: `sampler=kt.generation.{sampler}({name}=...)`."
        for sampler, names in {
            "Random": (
                "temperature",
                "top_k",
                "top_p",
                "min_p",
                "typical_p",
                "epsilon_cutoff",
                "eta_cutoff",
            ),
            "BeamSearch": ("num_beams", "length_penalty", "early_stopping", "diversity_penalty"),
            "Contrastive": ("penalty_alpha",),
        }.items()
        for name in names
    },
    "num_beam_groups": "It is of a sampler: `sampler=kt.generation.BeamSearch(num_groups=...)`.",
    "prompt_lookup_num_tokens": "It is `sampler=kt.generation.Speculative()` here.",
    "num_return_sequences": "It is `num_samples` here.",
    "negative_prompt_ids": "It is `negative_prompts` here: texts or lists of ids.",
    **{
        name: f"It is of the rules: `rules=kt.generation.Rules({name}=...)`."
        for name in (
            "repetition_penalty",
            "no_repeat_ngram_size",
            "min_new_tokens",
            "sequence_bias",
            "exponential_decay_length_penalty",
        )
    },
    **{
        theirs: f"It is of the rules: `rules=kt.generation.Rules({ours}=...)`."
        for theirs, ours in {
            "bad_words_ids": "bad_words",
            "suppress_tokens": "bad_words",
            "min_length": "min_new_tokens",
            "forced_bos_token_id": "forced_prefix",
            "logits_processor": "function",
        }.items()
    },
    **dict.fromkeys(
        ("force_words_ids", "prefix_allowed_tokens_fn"),
        "What the text must be is `constraint`, of the method of this name.",
    ),
    "input_ids": "Prompts are texts or lists of ids, and come first: `generate(prompts)`.",
    "attention_mask": "Rows need no padding here, and no mask: give lists of ids of any lengths.",
    "pad_token_id": "Rows need no padding here.",
    "generation_config": "Its values are arguments of `generate`, its `sampler` and its `rules`.",
    "stop_strings": "It is `stop` here: strings and token ids.",
    "use_cache": "A cache is always used by `generate`.",
    **dict.fromkeys(
        ("return_dict_in_generate", "output_scores"), "It is `return_details=True` here."
    ),
    "return_full_text": "It is `return_prompt` here.",
    "eos_token_id": "A text also ends at the ids and strings of `stop`.",
    "output_hidden_states": 'It is `collect=("states",)` here.',
    "output_attentions": 'It is `collect=("attention",)` here.',
    "add_special_tokens": "It is `special_tokens` here.",
    "skip_special_tokens": "Special tokens are always left out of a text.",
    "padding": "Rows of ids are not padded: tasks take texts, and pad them by themselves.",
    "truncation": "It is `max_length` of `encode_batch` here.",
    "return_tensors": "Ids are lists: `numpy.array` of rows that are of one length.",
    "learning_rate": "It is of the optimizer: `compile(keras.optimizers.AdamW(...), task.loss)`.",
    "num_train_epochs": "It is `epochs` here.",
    "attn_implementation": "The fused kernel of the backend is used where there is one.",
    **dict.fromkeys(
        ("load_in_8bit", "load_in_4bit", "quantization_config"),
        'It is a method here: `quantize("int8")`.',
    ),
    "revision": 'It is of the name here: `"hf://org/name@revision"`.',
    "cache_dir": "It is the variable HF_HOME of the environment.",
    "token": "It is the variable HF_TOKEN of the environment.",
    "local_files_only": "It is the variable HF_HUB_OFFLINE=1 of the environment.",
    **{
        theirs: f"It is `{ours}` here."
        for theirs, ours in {
            "vocab_size": "vocabulary_size",
            "hidden_size": "hidden_dim",
            "num_hidden_layers": "num_layers",
            "num_attention_heads": "num_heads",
            "intermediate_size": "intermediate_dim",
            "hidden_act": "activation",
            "hidden_dropout_prob": "dropout",
            "attention_probs_dropout_prob": "attention_dropout",
            "max_position_embeddings": "max_sequence_length",
            "type_vocab_size": "segment_vocabulary_size",
            "layer_norm_eps": "normalization_epsilon",
            "rms_norm_eps": "normalization_epsilon",
            "sliding_window": "window",
            "tie_word_embeddings": "tie_embeddings",
            "rope_theta": "rotary_base",
        }.items()
    },
    "return_dict": "A call returns the last hidden states, an array.",
    "streamer": "It is `stream=True` here.",
    "assistant_model": "It is `sampler=kt.generation.Speculative(draft=...)` here.",
}

# Names of Transformers that `kt.` is asked for.
CLASSES = {
    "AutoModel": "`kt.Backbone`",
    "AutoConfig": "`kt.TransformerConfig`; of a loaded backbone, `backbone.config`",
    "AutoTokenizer": "`kt.Tokenizer`",
    "AutoModelForSequenceClassification": "`kt.TextClassifier`",
    "AutoModelForTokenClassification": "`kt.TokenClassifier`",
    "AutoModelForQuestionAnswering": "`kt.QuestionAnswerer`",
    "AutoModelForMaskedLM": "`kt.MaskedLM`",
    "AutoModelForCausalLM": "`kt.CausalLM`",
    "AutoModelForSeq2SeqLM": "`kt.Seq2SeqLM`",
    "EncoderDecoderModel": "`kt.Seq2SeqLM`",
    "VisionEncoderDecoderModel": "`kt.ImageToText`",
    "BlipForConditionalGeneration": "`kt.ImageToText`",
    "SentenceTransformer": "`kt.TextEmbedder`",
    "pipeline": "the verb of a task: `classify`, `recognize`, `answer`, `fill_mask`, `generate`",
    "Trainer": "`fit` of a task",
    "TrainingArguments": "the arguments of a task's `compile` and `fit`",
    "GenerationConfig": "the arguments of `generate`",
    "DataCollatorWithPadding": "not needed: tasks pad texts by themselves",
    "set_seed": "`keras.utils.set_random_seed`",
}
_RULES = {
    "Rules(repetition_penalty=...)": ("RepetitionPenaltyLogitsProcessor",),
    "Rules(no_repeat_ngram_size=...)": ("NoRepeatNGramLogitsProcessor",),
    "Rules(bad_words=...)": ("NoBadWordsLogitsProcessor", "SuppressTokensLogitsProcessor"),
    "Rules(bad_first=...)": ("SuppressTokensAtBeginLogitsProcessor",),
    "Rules(min_new_tokens=...)": (
        "MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor",
    ),
    "Rules(forced_prefix=...)": ("ForcedBOSTokenLogitsProcessor",),
    "Rules(forced_end=...)": ("ForcedEOSTokenLogitsProcessor",),
    "Rules(function=...)": ("LogitsProcessor", "LogitsProcessorList", "LogitsWarper"),
    "Random(temperature=...)": ("TemperatureLogitsWarper", "Temperature"),
    "Random(top_k=...)": ("TopKLogitsWarper", "TopK"),
    "Random(top_p=...)": ("TopPLogitsWarper", "TopP", "Nucleus"),
    "Random(min_p=...)": ("MinPLogitsWarper", "MinP"),
    "Random(typical_p=...)": ("TypicalLogitsWarper", "TypicalP", "Typical"),
    "Random()": ("Sample", "Sampling", "Multinomial"),
    "Greedy()": ("GreedySearch",),
    "BeamSearch(num_beams=...)": ("Beam", "BeamSearchScorer", "BeamSearchParams"),
    "Contrastive()": ("ContrastiveSearch",),
    "Speculative()": ("SpeculativeDecoding", "PromptLookup", "AssistedDecoding"),
    "Cache": ("DynamicCache", "StaticCache", "EncoderDecoderCache"),
}  # fmt: skip
# Names of how texts are generated, of `kt.` and of `kt.generation`.
GENERATION = {
    **{theirs: f"`kt.generation.{ours}`" for ours, names in _RULES.items() for theirs in names},
    **dict.fromkeys(
        ("StoppingCriteria", "StoppingCriteriaList", "StopStringCriteria", "EosTokenCriteria"),
        "`generate(..., stop=...)`: strings and token ids",
    ),
    "MaxLengthCriteria": "`generate(..., max_new_tokens=...)`",
    **dict.fromkeys(
        ("PrefixConstrainedLogitsProcessor", "GuidedDecodingParams", "StructuredOutputsParams"),
        "`generate(..., constraint=...)`: a JSON Schema, or what the method `constraint` returns",
    ),
    **dict.fromkeys(
        ("TextStreamer", "TextIteratorStreamer", "AsyncTextIteratorStreamer"),
        "`generate(..., stream=True)`",
    ),
    "SamplingParams": "the arguments of `generate`, its `sampler` and its `rules`",
    "LLM": CLASSES["AutoModelForCausalLM"],
}
# Names of samplers, as strings.
SAMPLERS = {
    "nucleus": "top_p", "sample": "random", "sampling": "random", "multinomial": "random",
    "beam_search": "beam", "greedy_search": "greedy", "contrastive_search": "contrastive",
    "assisted": "speculative", "prompt_lookup": "speculative",
}  # fmt: skip
# Options of vLLM's `SamplingParams`, which are none here.
VLLM_OPTIONS = {
    "max_tokens": "It is `max_new_tokens` here.",
    "min_tokens": "It is of the rules: `rules=kt.generation.Rules(min_new_tokens=...)`.",
    "n": "It is `num_samples` here.",
    **{
        name: f"It is of the rules: `rules=kt.generation.Rules({name}=...)`."
        for name in ("presence_penalty", "frequency_penalty")
    },
    **dict.fromkeys(("logprobs", "prompt_logprobs"), "It is `return_details=True` here."),
    **dict.fromkeys(
        ("guided_decoding", "structured_outputs", "guided_json", "response_format"),
        "It is `constraint` here: a JSON Schema, or what the method of this name returns.",
    ),
    "sampling_params": "Its values are arguments of `generate`, its `sampler` and its `rules`.",
}
# Ends of the names of their classes, one class for each architecture.
ENDS = {
    "LMHeadModel": CLASSES["AutoModelForCausalLM"],
    "ForConditionalGeneration": CLASSES["AutoModelForSeq2SeqLM"],
    "TokenizerFast": CLASSES["AutoTokenizer"],
    **{name.removeprefix("AutoModel").removeprefix("Auto") or "Model": ours
       for name, ours in CLASSES.items() if name.startswith("Auto")},
}  # fmt: skip
