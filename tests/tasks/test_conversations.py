"""Conversations in `fit`: the same loss as in Transformers, in all forms of tables."""

import functools
import json
import sys
import types

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.tokenizers.chat_templates import tokenizer

datasets = pytest.importorskip("datasets")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


CHATS = [
    [user("Is it?"), assistant("yes")],
    [
        {"role": "system", "content": "Be brief."},
        user("a"),
        assistant("b"),
        user("c"),
        assistant("d"),
    ],
    [user("And this one, which is longer?"), assistant("It is.")],
]
PROMPTS, ANSWERS = ["Is it?", "And this one?"], ["yes", "It is."]
PAIRS = [[user(q), assistant(a)] for q, a in zip(PROMPTS, ANSWERS, strict=True)]


def model(words, **values):
    config = kt.TransformerConfig(
        kind="decoder", vocabulary_size=words.vocabulary_size, hidden_dim=16, num_layers=1,
        num_heads=2, intermediate_dim=24, position="rotary", **values,
    )  # fmt: skip
    return kt.CausalLM(kt.models.Decoder(config), words)


@functools.cache
def task():
    return model(tokenizer("llama 3"))


def batch_of(task, *data, **options):
    """The inputs, targets and weights of all rows in their order, as nested lists."""
    dataset = task.make_dataset(*data, batch_size=100, max_buckets=1, **options)
    x, y, weights = (keras.tree.map_structure(np.asarray, part) for part in dataset[0])
    order = np.argsort(dataset.order)
    return [part[order].tolist() for part in (x["token_ids"], y, weights)]


# The loss


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A random Llama of Transformers, and the same here."""
    folder = tmp_path_factory.mktemp("llama")
    words = tokenizer("llama 3")
    config = transformers.LlamaConfig(
        vocab_size=words.vocabulary_size, hidden_size=16, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=24, max_position_embeddings=256,
        attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(parameter + 0.2 * torch.randn(parameter.shape))
    theirs.save_pretrained(folder)
    words.save(folder)
    return theirs, kt.CausalLM.from_preset(folder)


def loss_of(theirs, rows, masks):
    """The loss of Transformers, whose labels are -100 where a token does not count."""
    length = max(map(len, rows))
    ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    attended = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
    counted = torch.tensor([mask + [0] * (length - len(mask)) for mask in masks]).bool()
    with torch.no_grad():
        labels = torch.where(counted, ids, -100)
        return float(theirs(input_ids=ids, attention_mask=attended, labels=labels).loss)


@pytest.mark.each_backend
@pytest.mark.parametrize("train_on", ["assistant", "completion", "all"])
def test_loss_of_a_step(both, train_on):
    theirs, ours = both
    words = tokenizer("llama3_training")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words._backend, bos_token="<s>", eos_token="</s>"
    )
    rows, masks = [], []
    for chat in CHATS:
        found = fast.apply_chat_template(
            chat, chat_template=words.chat_template, return_dict=True,
            return_assistant_tokens_mask=True,
        )  # fmt: skip
        mask = found["assistant_masks"]
        if train_on == "completion":
            prompt = fast.apply_chat_template(
                chat[:-1], chat_template=words.chat_template, add_generation_prompt=True
            )["input_ids"]
            mask = [0] * len(prompt) + mask[len(prompt) :]
        rows.append(found["input_ids"])
        masks.append(mask if train_on != "all" else [1] * len(mask))
    expected = loss_of(theirs, rows, masks)
    how = {"train_on": train_on, "verbose": 0, "return_dict": True}
    assert ours.evaluate(CHATS, **how)["loss"] == pytest.approx(expected, rel=1e-5)
    if train_on == "assistant":
        packed = ours.evaluate(CHATS, pack_length=256, **how)
        assert packed["loss"] == pytest.approx(expected, rel=1e-5)
        ours.optimizer.learning_rate = 0.0
        history = ours.fit(CHATS, batch_size=3, verbose=0, validation_data=CHATS).history
        assert history["loss"] == pytest.approx([expected], rel=1e-5)
        assert history["val_loss"] == pytest.approx([expected], rel=1e-5)
        assert ours.train_on_batch(CHATS)[0] == pytest.approx(expected, rel=1e-5)


# Forms of data


@pytest.mark.one_backend
def test_all_forms_give_the_same_rows(tmp_path):
    lm = task()
    expected = batch_of(lm, CHATS)
    rows = [{"messages": chat} for chat in CHATS]
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps({**row, "tools": None}) + "\n" for row in rows))
    table = datasets.Dataset.from_list(rows)
    shared = [
        {"conversations": [{"from": m["role"], "value": m["content"]} for m in chat]}
        for chat in CHATS
    ]
    read = functools.partial(kt.data.read, cache=tmp_path / "cache")
    for data in (
        rows,
        shared,
        kt.data.as_conversations(table),
        read(path, x="messages"),
        read(path, x=("messages", "tools")),
        read(rows, x="messages"),
        read(table, x="messages"),
    ):
        assert batch_of(lm, data) == expected
    stream = type(lm).processor_class.stream
    assert batch_of(lm, stream(lm, table)) == expected
    assert batch_of(lm, stream(lm, table.to_pandas())) == expected
    prompts = [{"prompt": q, "completion": a} for q, a in zip(PROMPTS, ANSWERS, strict=True)]
    asked = [{"question": q, "answer": a} for q, a in zip(PROMPTS, ANSWERS, strict=True)]
    alpaca = [
        {"instruction": q, "input": "", "output": a} for q, a in zip(PROMPTS, ANSWERS, strict=True)
    ]
    expected = batch_of(lm, PAIRS)
    assert batch_of(lm, PROMPTS, ANSWERS) == expected
    assert batch_of(lm, [[m] for m, _ in PAIRS], [[m] for _, m in PAIRS]) == expected
    assert batch_of(lm, prompts) == batch_of(lm, alpaca) == expected
    assert batch_of(lm, read(asked, x="question", y="answer")) == expected


@pytest.mark.one_backend
def test_fit_takes_tables_and_streams(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # of `data.read`
    lm = model(tokenizer("llama 3"))
    table = datasets.Dataset.from_list([{"messages": chat} for chat in CHATS] * 2)
    losses = []
    for data, size in (
        (table, None),
        (table.to_pandas(), None),
        (table.to_iterable_dataset(), 2),
        ((row for row in table), 2),
    ):
        losses += lm.fit(data, batch_size=size, verbose=0, shuffle=False).history["loss"]
    assert losses == sorted(losses, reverse=True)
    lm.fit(table, validation_data=(PROMPTS, ANSWERS), verbose=0)
    lm.fit(CHATS, validation_split=0.4, verbose=0, pack_length=256)
    with pytest.raises(ValueError, match="give one of its data sets"):
        lm.fit({"train": table}, verbose=0)


@pytest.mark.one_backend
def test_prompts_of_several_messages_do_not_count():
    """As in TRL, a completion counts, and an answer within its prompt does not."""
    lm = task()
    whole = CHATS[1]
    row = {"prompt": whole[:3], "completion": whole[3:]}
    with pytest.raises(ValueError, match="no message of the assistant"):
        lm.make_dataset([{"prompt": whole, "completion": [user("x")]}])
    row = {"prompt": whole[:-1], "completion": whole[-1:]}
    assert batch_of(lm, [row]) == batch_of(lm, [whole], train_on="completion")
    assert batch_of(lm, [whole[:-1]], ["d"]) == batch_of(lm, [row])


def test_rows_that_are_cut():
    lm = task()
    _, _, weights = batch_of(lm, CHATS)
    first = [row.index(1.0) for row in weights]  # the target that begins the first answer
    most = first[1] + 1
    assert first[0] < most < first[2] + 1
    with pytest.warns(UserWarning, match=f"2 of 3 conversations are longer than max_length={most}.*"
                      "1 had no counted token left") as caught:  # fmt: skip
        ids, targets, weights = batch_of(lm, CHATS, max_length=most)
    assert caught[0].filename == __file__
    assert len(ids) == 2 and weights[1] == [0.0] * (most - 1) + [1.0] + [0.0] * (
        len(weights[1]) - most
    )
    assert lm.tokenizer.decode([targets[1][most - 1]]) == "b"
    with pytest.warns(UserWarning, match="were left out"):
        given = batch_of(lm, CHATS, None, [2.0, 3.0, 4.0], max_length=most)
    assert [max(row) for row in given[2]] == [2.0, 3.0]
    with pytest.raises(ValueError, match="None of the 3 conversations has a token.*max_length=3"):
        lm.make_dataset(CHATS, max_length=3)


def test_packed_conversations_are_apart():
    lm = task()
    alone = batch_of(lm, CHATS)
    x, y, weights = lm.make_dataset(CHATS, pack_length=256)[0]
    assert np.unique(x["pack_ids"]).tolist() == [-1, 0, 1, 2]
    found = {tuple(y[x["pack_ids"] == i][weights[x["pack_ids"] == i] > 0]) for i in range(3)}
    _, targets, counts = map(np.asarray, alone)
    assert found == {tuple(row[count > 0]) for row, count in zip(targets, counts, strict=True)}


# Without a template, and mistakes


@pytest.mark.one_backend
def test_a_base_model(tmp_path):
    words = kt.Tokenizer.train(["two and two is four ."] * 4, vocabulary_size=300)
    lm = model(words)
    ids, targets, weights = batch_of(lm, ["two and two"], [" is four"])
    expected = words.encode("two and two is four")
    last = len(expected) - 1
    assert [ids[0][0], *targets[0][:last]] == expected and expected[-1] == words.end_id
    prompt = len(words.encode("two and two", special_tokens=False))
    assert weights[0][:last] == [0.0] * (prompt - 1) + [1.0] * (len(expected) - prompt)
    with pytest.raises(ValueError, match="`x\\[0\\]` is a conversation.*with_chat_template"):
        lm.fit(CHATS)
    with pytest.raises(ValueError, match="is a conversation"):
        lm.fit([{"instruction": "a", "output": "b"}])
    lm = kt.CausalLM(lm.backbone, words.with_chat_template("zephyr"))
    lm.fit(CHATS, verbose=0)
    assert isinstance(lm.chat(CHATS[0][:1], max_new_tokens=2), str)
    lm.save_to_preset(tmp_path / "chat")
    again = kt.CausalLM.from_preset(tmp_path / "chat")
    assert batch_of(again, CHATS) == batch_of(lm, CHATS)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ((CHATS[0],), {}, "`x[0]` is a message: a conversation is a list of messages"),
        ((["a"],), {"train_on": "assistant"}, "train_on='assistant' is for conversations"),
        ((CHATS,), {"train_on": "answers"}, "`train_on` must be"),
        ((["a"], ["b", "c"]), {}, "1 prompts and 2 answers"),
        ((["a"], [3]), {}, "`y[0]` must be a string or a list of messages"),
        (([[user("a")]],), {}, "`x[0]`: There is no message of the assistant"),
        (([{"question": "a"}],), {}, "`x[0]` has the keys ['question']: a row has 'messages'"),
        (([*CHATS, ["b"]],), {}, "`x[3]`, message 0, must be a dict with 'role'"),
        (([*CHATS, "b"],), {}, "`x[3]` must be a conversation"),
        (([{"prompt": "a", "completion": None}],), {}, "`x[0]`, the answer must be a list of mess"),
        (([{"conversations": [{"from": "him", "value": "a"}]}],), {}, "is from 'him'"),
        (([{"messages": CHATS[0], "tools": "[{"}],), {}, "'tools' is not valid JSON"),
        ((CHATS, None, [1.0]), {}, "`sample_weight` must be one number a conversation, 3 in all"),
    ],
)
@pytest.mark.backend_independent
def test_mistakes(data, options, message):
    with pytest.raises(ValueError) as caught:
        task().make_dataset(*data, **options)
    assert message in str(caught.value)


@pytest.mark.backend_independent
def test_mistakes_in_files(tmp_path):
    lm = task()
    path = tmp_path / "rows.jsonl"
    read = functools.partial(kt.data.read, path, cache=tmp_path)
    path.write_text('{"messages": [{"role": "user"}], "a": "b", "c": "d"}\n')
    with pytest.raises(ValueError, match="rows.jsonl, line 1: messages\\[0\\]: 'content' must be"):
        lm.make_dataset(read(x="messages"))
    with pytest.raises(ValueError, match="not known to hold conversations.*x='question'"):
        lm.make_dataset(read(x=("a", "c")))
    with pytest.raises(ValueError, match="must be a column or a tuple of two"):
        read(x=("a", "c", "messages"))


# What a row looks like


@pytest.mark.backend_independent
def test_show_example(capsys, monkeypatch):
    lm = task()

    def shown(row, **options):
        lm.show_example(row, **options)
        return capsys.readouterr().out

    assert shown(CHATS[0]) == shown({"messages": CHATS[0]}) == shown((PROMPTS[0], ANSWERS[0]))
    head = "<|start_header_id|>{}<|end_header_id|>\n\n".format
    begin = f"<s>{head('user')}Is it?<|eot_id|>{head('assistant')}"
    assert shown(CHATS[0]).endswith(f"between « and »:\n{begin}«yes<|eot_id|>»\n")
    number = len(lm.tokenizer.encode_chat(CHATS[0], add_generation_prompt=False))
    assert shown(CHATS[0]).startswith(f"{number} tokens, of which the loss counts 2, ")
    assert "«d<|eot_id|>»" in shown(CHATS[1]) and "«b<|eot_id|>»" in shown(CHATS[1])
    assert "«b" not in shown(CHATS[1], train_on="completion")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert "\x1b[1;32myes<|eot_id|>\x1b[0m" in shown(CHATS[0])
    assert "\\x1b[7m" in shown([user("\x1b[7m"), assistant("yes")])


@pytest.mark.backend_independent
def test_show_example_in_a_notebook(monkeypatch):
    shown = []
    shell = types.SimpleNamespace(kernel=None)
    notebook = types.ModuleType("IPython")
    notebook.get_ipython, notebook.display = lambda: shell, types.ModuleType("display")
    notebook.display.display = shown.append
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", notebook.display)
    task().show_example([user("<b>"), assistant("yes")])
    html = shown[0]._repr_html_()
    assert "&lt;b&gt;" in html and 'font-weight:bold">yes&lt;|eot_id|&gt;</span>' in html
