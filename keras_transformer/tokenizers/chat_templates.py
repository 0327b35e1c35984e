"""Chat templates by name, for base models that come without one."""

from typing import NamedTuple


class NamedTemplate(NamedTuple):
    """A chat template, and the tokens of the vocabulary that it needs.

    Args:
        text: str, the template.
        tokens: tokens that it writes, of which the last ends a message. Without any, the
            tokenizer's end token ends a message.
    """

    text: str
    tokens: tuple[str, ...] = ()


# The formats of OpenAI's ChatML, of the model Zephyr, and of Stanford's Alpaca.
TEMPLATES = {
    "chatml": NamedTemplate(
        "{% for message in messages %}"
        "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        ("<|im_start|>", "<|im_end|>"),
    ),
    "zephyr": NamedTemplate(
        "{% for message in messages %}"
        "{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + '\\n' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
    ),
    "alpaca": NamedTemplate(
        "{% for message in messages %}"
        "{% if message['role'] == 'user' %}"
        "{{ '### Instruction:\\n' + message['content'] + '\\n\\n' }}"
        "{% elif message['role'] == 'assistant' %}"
        "{{ '### Response:\\n' + message['content'] + eos_token + '\\n\\n' }}"
        "{% elif message['role'] == 'system' %}"
        "{{ message['content'] + '\\n\\n' }}"
        "{% else %}"
        "{{ raise_exception('The roles are system, user and assistant.') }}"
        "{% endif %}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '### Response:\\n' }}{% endif %}"
    ),
}
