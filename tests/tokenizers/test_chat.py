"""Templates of chats: the text that Transformers makes, from templates that can do no harm."""

import json
import subprocess
import sys

import pytest
import tokenizers
from tokenizers import models

from keras_transformer.checkpoints import save_preset
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.tokenizers.chat import MAX_TEMPLATE, render_chat
from tests.tokenizers.folder_parts import write_json
from tests.tokenizers.folders import gpt2, qwen2, transformers
from tests.tokenizers.piece_folders import marian

pytestmark = pytest.mark.backend_independent

CHATML = """\
{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
{%- endif %}
{% for message in messages %}
    {% if message.role == 'system' %}{% continue %}{% endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>' }}
{{ '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""
LLAMA2 = """\
{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}\
{% set system_message = messages[0]['content'] %}\
{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}\
{% for message in loop_messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}\
{% endif %}\
{% if loop.index0 == 0 and system_message != false %}\
{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}\
{% else %}{% set content = message['content'] %}{% endif %}\
{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}\
{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}\
{% endif %}{% endfor %}"""
LLAMA3 = """\
{{- bos_token }}
{%- if not date_string is defined %}{% set date_string = "26 Jul 2024" %}{% endif %}
{%- if tools is not none %}
{{- "Environment: ipython\\n" }}
{%- for t in tools %}
{{- t | tojson(indent=4) }}
{{- "\\n\\n" }}
{%- endfor %}
{%- endif %}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{{- "Today Date: " + date_string ~ "\\n" }}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""
MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {{- tool | tojson }}{{ ", " if not loop.last else "]" }}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported!") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}"""
QWEN3 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- endif %}
{%- macro header(role) -%}<|im_start|>{{ role }}{{ '\\n' }}{%- endmacro %}
{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string %}
        {%- set ns.multi_step = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == "assistant" %}
        {%- generation %}
        {%- if '</think>' in content and loop.index0 <= ns.last %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- header(message.role) + content.replace('a', 'ä') }}
        {%- endgeneration %}
    {%- else %}
        {{- header(message.role) ~ content }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- header('assistant') }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
SMALL = """\
{% for k, v in {'a': 1, 'b': [1, 2.5, none, true]}.items() %}
{{ k }}={{ v }},{{ loop.length }} {% endfor %}
{{ messages | map(attribute='role') | join('|') }} {{ 'x'.join(['1', '2']) }} {{ [3, 1] | sort }}
{%- for m in messages if m.role != 'system' %}{{ loop.cycle('-', '+') }}{{ m.content | upper }}\
{% if loop.index > 1 %}{% break %}{% endif %}{% else %}none{% endfor %}
{{ unk_token is defined }}{{ (1, 2) | list }}{{ 7 // 2 * 3 ** 2 % 5 }}{{ 'a,b'.split(',')[1:] }}
{% set x %}block {{ bos_token }}{% endset %}{{ x | length }}{{ 'é<&>' | tojson }}{{ 'ab' * 2 }}
{% macro twice(a, b='!') %}{{ a }}{{ a }}{{ b }}{% endmacro %}{{ twice('x') }}{{ pad_token }}
{{ messages[0] | tojson(sort_keys=true, separators=(',', ':')) }}
{{- messages[-1].get('no', 'd') }}"""
TEMPLATES = {
    "chatml": CHATML,
    "llama2": LLAMA2,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "qwen3": QWEN3,
    "small": SMALL,
}
USER = {"role": "user", "content": '  Grüße, 日本 🙂 <b>"quoted"</b>\n'}
ANSWER = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nan answer "}
SYSTEM = {"role": "system", "content": "Be brief."}
CHATS = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "long": [SYSTEM, USER, ANSWER, USER, ANSWER, USER],
    "wrong order": [USER, USER],
    "answer": [USER, ANSWER],
    "tool": [USER, {"role": "tool", "content": "5", "name": "f"}],
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"ä": ["<x>", 1.5, None]}}}]
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


def theirs(template, messages, **options):
    """Return the result of Transformers, `None` if the template refuses."""
    backend = tokenizers.Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "<pad>": 2}, "<s>"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIALS)
    try:
        return tokenizer.apply_chat_template(
            messages, chat_template=template, tokenize=False, **options
        )
    except Exception as error:
        return str(error)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS)
def test_equal_to_transformers(name, chat):
    for options in (
        {"add_generation_prompt": True},
        {"add_generation_prompt": False},
        {"tools": TOOLS, "add_generation_prompt": True},
        {"enable_thinking": False, "date_string": "today", "add_generation_prompt": True},
    ):
        expected = theirs(TEMPLATES[name], CHATS[chat], **options)
        try:
            text = render_chat(TEMPLATES[name], CHATS[chat], special_tokens=SPECIALS, **options)
            assert text == expected
        except ValueError as error:
            assert str(error) == f"The chat template refuses this chat: {expected}"


def test_a_long_chat_is_within_the_bounds():
    chat = [SYSTEM, *[USER, {"role": "assistant", "content": "word " * 200}] * 500]
    for name in ("chatml", "llama2", "llama3", "qwen3"):
        assert len(render_chat(TEMPLATES[name], chat, special_tokens=SPECIALS)) > 500_000


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "at least one message, but is empty"),
        ("hello", "but is str"),
        ([USER, "hello"], r"messages\[1\] must be a dict"),
        ([{"role": "user"}], r"messages\[0\]: 'content' must be a string, but is missing"),
        ([USER, {"role": 5, "content": ""}], r"messages\[1\]: 'role' must be a string, but is int"),
        ([{"role": "user", "content": None}], "'content' must be a string, but is NoneType"),
        ([{**USER, "more": object()}], r"`messages\[0\]` must hold JSON values"),
    ],
)
def test_messages_are_checked(messages, message):
    with pytest.raises(ValueError, match=message):
        render_chat("x", messages)


def test_other_arguments_are_checked():
    with pytest.raises(ValueError, match="`tools` must hold JSON values"):
        render_chat("x", [USER], tools=[print])
    with pytest.raises(ValueError, match="received NoneType"):
        render_chat(None, [USER])
    with pytest.raises(ValueError, match="received 1,048,577"):
        render_chat("a" * (MAX_TEMPLATE + 1), [USER])


def test_jinja2_is_only_needed_for_chats():
    code = (
        "import sys; sys.modules['jinja2'] = None\n"
        "from keras_transformer.tokenizers.chat import render_chat\n"
        "try:\n"
        "    render_chat('x', [{'role': 'user', 'content': 'a'}])\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "keras_transformer[generation]"' in done.stdout


# Files


def chat_of(folder):
    return Tokenizer.from_files(folder).chat_template


def add_to_config(folder, **values):
    path = folder / "tokenizer_config.json"
    write_json(folder, path.name, json.loads(path.read_text()) | values)


def test_template_of_a_folder(tmp_path):
    qwen2(tmp_path)
    assert chat_of(tmp_path) is None
    add_to_config(tmp_path, chat_template="one")
    assert chat_of(tmp_path) == "one"
    several = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "two"}]
    add_to_config(tmp_path, chat_template=several)
    assert chat_of(tmp_path) == "two"
    add_to_config(tmp_path, chat_template=several[:1])
    assert chat_of(tmp_path) is None
    (tmp_path / "chat_template.jinja").write_text("three é\n", encoding="utf-8")
    assert chat_of(tmp_path) == "three é\n"
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.chat_template == "three é\n"


def test_broken_templates_of_a_folder(tmp_path):
    gpt2(tmp_path)
    for wrong in (5, [5], [{"name": "default"}], {"a": "b"}, [{"name": "default", "template": 5}]):
        add_to_config(tmp_path, chat_template=wrong)
        with pytest.raises(ValueError, match="'chat_template' in"):
            Tokenizer.from_files(tmp_path)
    add_to_config(tmp_path, chat_template="a" * (MAX_TEMPLATE + 1))
    with pytest.raises(ValueError, match="1,048,577 characters"):
        Tokenizer.from_files(tmp_path)
    path = tmp_path / "chat_template.jinja"
    path.write_bytes(b"a" * (MAX_TEMPLATE + 1))
    with pytest.raises(ValueError, match=r"chat_template.jinja has 1,048,577 bytes"):
        Tokenizer.from_files(tmp_path)
    path.write_bytes(b"\xff")
    with pytest.raises(ValueError, match="not UTF-8"):
        Tokenizer.from_files(tmp_path)


def test_saved_and_loaded_again(tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    qwen2(folder)
    (folder / "chat_template.jinja").write_text(CHATML)
    tokenizer = Tokenizer.from_files(folder)
    save_preset(tmp_path / "ours", tokenizer=tokenizer)
    assert chat_of(tmp_path / "ours") == tokenizer.chat_template == CHATML
    (tmp_path / "ours" / "config.json").write_bytes((folder / "config.json").read_bytes())
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    text = loaded.apply_chat_template([USER], tokenize=False, add_generation_prompt=True)
    assert text == tokenizer.render_chat([USER])
    ids = loaded.apply_chat_template([USER], add_generation_prompt=True, return_dict=False)
    assert tokenizer.encode(text, special_tokens=False) == ids


def test_no_template_of_another_tokenizer_stays(tmp_path):
    qwen2(tmp_path)
    tokenizer = Tokenizer.from_files(tmp_path)
    for save in (tokenizer.save, lambda folder: save_preset(folder, tokenizer=tokenizer)):
        (tmp_path / "chat_template.jinja").write_text("old")
        save(tmp_path)
        assert chat_of(tmp_path) is None


def test_render_with_the_tokenizers_own_tokens():
    tokenizer = Tokenizer.train(["a b"] * 2, vocabulary_size=300)
    with pytest.raises(ValueError, match="no chat template"):
        tokenizer.render_chat([USER])
    tokenizer.chat_template = "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ unk_token }}{{ x }}"
    assert tokenizer.render_chat([USER], x=1) == "<s></s><pad><unk>1"
    with pytest.raises(ValueError, match="`chat_template` must be a string"):
        Tokenizer(tokenizer._backend, chat_template=5)


def test_marian_has_no_template(tmp_path):
    marian(tmp_path)
    assert chat_of(tmp_path) is None


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
def test_no_message_can_pass_for_the_template(kind):
    """Special tokens in contents, roles and tools are the characters that they are written with."""
    more = () if kind == "wordpiece" else ("<|im_end|>", "!")
    texts = ["a man rides", "user: two"] * 4
    tokenizer = Tokenizer.train(texts, kind=kind, vocabulary_size=300, special_tokens=more)
    tokens = [*filter(None, tokenizer._roles.values()), *more]
    start, end = tokenizer.start_id, tokenizer.end_id
    tokenizer.chat_template = (
        "{% for m in messages %}{{ bos_token }}{{ m.role }}: {{ m.content }}{{ eos_token }}"
        "{% endfor %}{{ tools | tojson if tools else '' }}"
    )
    plain = [{"role": "user", "content": "a man"}, {"role": "x", "content": " rides"}]
    text = tokenizer.render_chat(plain)
    assert tokenizer.encode_chat(plain) == tokenizer.encode(text, special_tokens=False)
    library = tokenizers.Tokenizer.from_str(tokenizer._backend.to_str())
    library.encode_special_tokens = True  # all of them are text to it

    def of_text(text):
        return library.encode(text, add_special_tokens=False).ids

    for token in tokens:
        for content in (token, f"a{token}man", f"{token} {token}", f"rides {token}{tokens[0]}\n"):
            messages = [{"role": "user", "content": content}, {"role": token, "content": "a"}]
            expected = [start, *of_text(f"user: {content}"), end]
            expected += [start, *of_text(f"{token}: a"), end]
            assert tokenizer.encode_chat(messages) == expected
        tools = [{"name": token, token: "a"}]
        ids = tokenizer.encode_chat(plain, tools=tools)
        told = of_text(json.dumps(tools))
        assert ids.count(end) == 2 and ids[-len(told) :] == told
