"""Chat templates of published models, and a tokenizer with their special tokens.

The templates of `LIBRARY` are read from the library TRL. Each of `OWN` is written here, and gives
the same texts as the published one for the conversations of the tests.
"""

import functools
import importlib.util
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from keras_transformer.tokenizers import Tokenizer
from keras_transformer.tokenizers.chat_templates import TEMPLATES
from tests.tokenizers.folders import LLAMA3_WORDS

MISTRAL_V03 = """\
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}{%- set messages = messages[1:] %}
{%- endif %}
{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}
{{- bos_token }}
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {%- if tools and m == users[-1] %}
            {{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST] ' }}
        {%- if loop.last and system is defined %}{{- system + '\n\n' }}{%- endif %}
        {{- m.content + '[/INST]' }}
    {%- elif m.tool_calls %}
        {{- '[TOOL_CALLS] ' + m.tool_calls | map(attribute='function') | list | tojson }}
        {{- eos_token }}
    {%- elif m.role == 'assistant' %}
        {{- ' ' + m.content | trim + eos_token }}
    {%- else %}
        {{- '[TOOL_RESULTS] {"content": ' + m.content + '}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}"""
TEKKEN = """\
{{- bos_token }}
{%- for m in messages %}
    {%- if m.role == 'system' %}{{- '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}
    {%- elif m.role == 'user' %}{{- '[INST]' + m.content + '[/INST]' }}
    {%- else %}{{- m.content + eos_token }}{%- endif %}
{%- endfor %}"""
PHI4 = """\
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant<|im_sep|>' }}{%- endif %}"""
DEEPSEEK_V3 = """\
{%- set given = messages | selectattr('role', 'equalto', 'system') | list %}
{{- bos_token }}{%- for m in given %}{{- m.content }}{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'user' %}{{- '<｜User｜>' + m.content }}
    {%- elif m.role == 'assistant' %}
        {{- '<｜Assistant｜>' + m.content + '<｜end▁of▁sentence｜>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<｜Assistant｜>' }}{%- endif %}"""
OLMO2 = """\
{{- bos_token }}
{%- for m in messages %}
    {{- '<|' + m.role + '|>\n' + m.content }}
    {%- if m.role == 'assistant' %}{{- eos_token }}{%- endif %}
    {%- if m.role != 'assistant' or not loop.last %}{{- '\n' }}{%- endif %}
    {%- if loop.last and add_generation_prompt %}{{- '<|assistant|>\n' }}{%- endif %}
{%- endfor %}"""
GRANITE = """\
{%- if messages[0].role != 'system' %}
    {{- '<|start_of_role|>system<|end_of_role|>You are Granite.<|end_of_text|>\n' }}
{%- endif %}
{%- for m in messages %}
    {{- '<|start_of_role|>' + m.role + '<|end_of_role|>' + m.content + '<|end_of_text|>\n' }}
    {%- if loop.last and add_generation_prompt %}
        {{- '<|start_of_role|>assistant<|end_of_role|>' }}
    {%- endif %}
{%- endfor %}"""
SMOLLM3 = """\
{{- '<|im_start|>system\n## Metadata\n\nReasoning Mode: /think\n\n' }}
{%- for m in messages %}
    {%- if m.role == 'user' %}{{- '<|im_start|>user\n' + m.content + '<|im_end|>\n' }}
    {%- elif m.role == 'assistant' %}
        {%- generation %}
        {{- '<|im_start|>assistant\n' + m.content.lstrip('\n') + '<|im_end|>\n' }}
        {%- endgeneration %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
OWN = {
    "mistral v0.3": MISTRAL_V03,
    "mistral tekken": TEKKEN,
    "phi 4": PHI4,
    "deepseek v3": DEEPSEEK_V3,
    "olmo 2": OLMO2,
    "granite": GRANITE,
    "smollm 3": SMOLLM3,
    "zephyr, tinyllama": TEMPLATES["zephyr"].text,
    "chatml": TEMPLATES["chatml"].text,
    "alpaca": TEMPLATES["alpaca"].text,
}
LIBRARY = {
    "llama 3": "llama3",
    "llama 3.1": "llama3_1",
    "qwen 2.5": "qwen2_5",
    "qwen 3": "qwen3",
    "gemma 2": "gemma",
    "gemma 3": "gemma3",
    "phi 3": "phi3",
    "gpt-oss": "gptoss",
    "deepseek r1": "deepseek_r1_distill",
}
_TOKENS = """\
<s> </s> <|im_start|> <|im_end|> <|im_sep|> <|end|> <|user|> <|assistant|> <|system|> <｜User｜>
<｜Assistant｜> <｜end▁of▁sentence｜> <|start_header_id|> <|end_header_id|> <|eot_id|>
<start_of_turn> <end_of_turn> <|start|> <|message|> <|channel|> <|return|> <|call|>
<|start_of_role|> <|end_of_role|> <|end_of_text|> [INST] [/INST] [TOOL_CALLS] [AVAILABLE_TOOLS]
[/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [SYSTEM_PROMPT] [/SYSTEM_PROMPT]"""
SPECIAL = _TOKENS.split()


def text_of(name):
    """Return the template of a model by the name it has here, or of a file of TRL."""
    if name in OWN:
        return OWN[name]
    folder = Path(importlib.util.find_spec("trl").origin).parent / "chat_templates"
    return (folder / f"{LIBRARY.get(name, name)}.jinja").read_text(encoding="utf-8")


@functools.cache
def backend():
    """A tokenizer of bytes, some of them merged, with the special tokens of all templates."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("y", "e"), ("ye", "s"), ("Ġ", "yes"), ("Ċ", "Ċ"), ("i", "s"), ("Ġ", "is")]
    words = [*alphabet, *map("".join, merges)]
    vocabulary = {word: i for i, word in enumerate(words)}
    model = models.BPE(vocab=vocabulary, merges=merges)
    found = tokenizers.Tokenizer(model)
    words = pre_tokenizers.Split(tokenizers.Regex(LLAMA3_WORDS), "isolated")
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    found.pre_tokenizer = pre_tokenizers.Sequence([words, in_bytes])
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return found


def tokenizer(name):
    """Return a tokenizer with a model's template."""
    return Tokenizer(backend(), start="<s>", end="</s>", chat_template=text_of(name))
