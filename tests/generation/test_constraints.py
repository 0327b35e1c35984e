"""Token automata: what they allow is exactly what Python's `re` matches."""

import re
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.generation.constraints.byte_automaton import compile_regex, compile_strings
from keras_transformer.generation.constraints.constraints import Constraints, TokenAutomaton
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.tokenizers.pieces import token_bytes
from tests.thorough import many

pytestmark = pytest.mark.backend_independent

BYTES = [bytes([byte]) for byte in range(256)]
WORDS = [*(b"yes", b"no", b"may", b"be", b"0", b"12", b"2024", b"-", b"ab", b"aa", b"aba"), None]
VOCABULARY = [*BYTES, *WORDS, b"", "é".encode(), "日本".encode(), "日".encode()[1:], b"\xff\xfe"]
JSON = r'\{"name": "([^"\\\x00-\x1f]|\\["\\/bfnrt])*", "city": "([^"\\\x00-\x1f])*"\}'
PATTERNS = [
    *(r"(yes|no|maybe)", r"\d{4}-\d{2}-\d{2}", JSON, "", "a*", "(ab|aba)*", "a{2,3}?", "a{2,}b"),
    *("^ab$", "^a|b$", r"\Aa\Z", "[^a]", ".", "(?s).", "(?i)éß", "(?i:a)B", r"[\w-]+", r"\W\S\D"),
    *(
        "(a|b)*a(a|b){3}",
        "(a*)*b",
        "(|a)+",
        "é?日?",
        "[é-日]{0,2}",
        "🙂|[🙃-🙏]",
        "(?a:\\d)",
        "[ab]|",
    ),
    *("(?x) a b # c", "(a?){3}", "((a|b)?c){2}", "(?P<name>a)b", "[^\\n]", "(a(b(c)?)?)?", "\\."),
    *("x{0}", "[]]", "[a\\]]", "(?-i:a)", "\\x41\\u0042\\101", "\\t| "),
]
texts = st.text('abcyesnomb0129-é日本🙂🙃ßÉA. \n\t"\\{}:,#x]B', max_size=8)


def run(automaton, classes):
    """Return the state after some columns of the table, -1 if there is no such state."""
    state = 0
    for each in classes:
        state = automaton.transitions[state, each]
        if state < 0:
            return -1
    return state


def accepts(automaton, ids):
    state = run(automaton, (automaton.token_classes[i] for i in ids))
    return state >= 0 and bool(automaton.accepting[state])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_bytes_are_accepted_as_by_re(pattern):
    automaton = compile_regex(pattern)

    @settings(max_examples=many(150, short=60), deadline=None)
    @given(texts | st.from_regex(pattern, fullmatch=True) | st.text(max_size=3))
    def check(text):
        state = run(automaton, text.encode())
        accepted = state >= 0 and bool(automaton.accepting[state])
        assert accepted == bool(re.fullmatch(pattern, text))

    check()


@settings(max_examples=many(300), deadline=None)
@given(data=st.data())
def test_generated_patterns(data):
    atoms = st.sampled_from(["a", "b", "é", ".", "[ab]", "[^a]", "日", "ab"])
    pattern = data.draw(
        st.recursive(
            atoms,
            lambda inner: (
                st.builds("{}{}".format, inner, inner)
                | st.builds("({}|{})".format, inner, inner)
                | st.builds(
                    "({}){}".format, inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}"])
                )
            ),
            max_leaves=6,
        )
    )
    automaton = TokenAutomaton.from_regex(pattern, VOCABULARY)
    text = data.draw(st.text("abé日c\n", max_size=6))
    assert accepts(automaton, text.encode()) == bool(re.fullmatch(pattern, text))


@pytest.mark.parametrize("pattern", ["(yes|no|maybe)", "(ab|aba)*", "[^b]*", "(?i)日本|é.", JSON])
def test_tokens_do_what_their_bytes_do(pattern):
    automaton = TokenAutomaton.from_regex(pattern, VOCABULARY)
    bytes_only = TokenAutomaton.from_regex(pattern, BYTES)
    rng = np.random.default_rng(0)
    spelled = [i for i, token in enumerate(VOCABULARY) if token]
    for _ in range(many(500)):
        # A walk along what is allowed, and one step that may not be.
        ids, state = [], 0
        for _ in range(rng.integers(0, 6)):
            allowed = np.flatnonzero(automaton.transitions[state, automaton.token_classes] >= 0)
            if not len(allowed):
                break
            ids.append(rng.choice(allowed))
            state = automaton.transitions[state, automaton.token_classes[ids[-1]]]
        ids.append(rng.choice(spelled))
        text = b"".join(VOCABULARY[i] for i in ids)
        assert accepts(automaton, ids) == accepts(bytes_only, text)
        one = run(automaton, automaton.token_classes[ids])
        two = run(bytes_only, bytes_only.token_classes[list(text)])
        assert (one >= 0) == (two >= 0)


def test_the_table():
    automaton = TokenAutomaton.from_regex("(yes|no|maybe)", VOCABULARY)
    assert automaton.transitions.dtype == automaton.token_classes.dtype == np.int32
    assert automaton.accepting.dtype == bool
    assert automaton.token_classes.shape == (len(VOCABULARY),)
    # No two classes are alike, and from an end nothing goes on.
    columns = automaton.transitions.T
    assert len(np.unique(columns, axis=0)) == len(columns) < 20
    (end,) = np.flatnonzero(automaton.accepting)
    assert (automaton.transitions[end] == -1).all()
    never = [i for i, token in enumerate(VOCABULARY) if not token]
    assert (automaton.transitions[:, automaton.token_classes[never]] == -1).all()


def test_no_dead_ends():
    # "ya" begins a match, but no token has the rest of it.
    automaton = TokenAutomaton.from_regex("yes|yak|b", [b"y", b"es", b"ya", b"b", b"q"])
    allowed = automaton.transitions[0, automaton.token_classes] >= 0
    assert allowed.tolist() == [True, False, False, True, False]
    assert accepts(automaton, [0, 1])


def test_choices():
    choices = ["yes", "yes sir", "né", "日本"]
    automaton = TokenAutomaton.from_choices(choices, VOCABULARY)
    for text in [*choices, "ye", "yes ", "n", "", "yes sirs", "日"]:
        assert accepts(automaton, list(text.encode())) == (text in choices)
    assert accepts(automaton, [VOCABULARY.index(b"yes")])
    same = compile_strings(["abc", "xbc", "bc"])
    assert len(same.accepting) == 4  # what ends alike is there once


def test_of_a_tokenizer():
    texts = ["the answer is yes", "the answer is no", "maybe é 日本"] * 3
    tokenizer = Tokenizer.train(texts, vocabulary_size=400)
    automaton = TokenAutomaton.from_choices([" yes", " é 日本!"], token_bytes(tokenizer))
    for text, right in [("yes", True), ("é 日本!", True), ("no", False), ("é", False)]:
        assert accepts(automaton, tokenizer.encode(text, special_tokens=False)) is right
    assert not accepts(automaton, tokenizer.encode("yes"))  # with its end


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a(b", r"'a\(b' is invalid at position 1: missing \)"),
        ("*a", "position 0: nothing to repeat"),
        ("a{3,2}", "position 2: min repeat greater than max repeat"),
        ("[z-a]", "position 1: bad character range z-a"),
        (r"(a)\1", "back-reference"),
        ("(?=a)b", "look-ahead"),
        ("a(?<!a)b", "negative look-ahead or look-behind"),
        ("a++", "possessive"),
        ("(?>a)b", "atomic"),
        ("a^b", r"`\^`, `\$` or"),
        (r"\bfoo", "inside of the pattern"),
        ("a{99999999999}", "repetition number is too large"),
        ("(" * 3000 + ")" * 3000, "nests too deeply"),
        ("((a{100}){100}){100}", "repeat less"),
        ("(a|b)*a(a|b){20}", "20,000 states"),
        ("(a?){20000}", "20,000 states|repeat less"),
        (5, "must be a string"),
        ("[^\\s\\S]", "no text matches"),
        ("é", "no token begins with the byte 0xc3"),
        ("q|r", "no token begins with 'q', 'r'"),
        ("ac", "cannot spell the pattern 'ac'"),
    ],
)
def test_what_is_refused(pattern, message):
    start = time.perf_counter()
    with pytest.raises(ValueError, match=message):
        TokenAutomaton.from_regex(pattern, [b"a", b"b", None])
    assert time.perf_counter() - start < 20


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([], "empty"),
        ("yes", "must be a list"),
        (None, "must be a list"),
        (["a", ""], "at least one character"),
        (["a", 5], "received 5"),
        (["\ud800"], "not valid Unicode"),
        (["no", "q"], "cannot spell any of the 2 choices: no token begins with 'n', 'q'"),
    ],
)
def test_choices_that_are_refused(choices, message):
    for make in (TokenAutomaton.from_choices, lambda c, v: Constraints(v).choices(c)):
        with pytest.raises(ValueError, match=message):
            make(choices, [b"a", b"b"])


def test_compiled_once():
    constraints = Constraints(VOCABULARY)
    assert constraints.regex("a|b") is constraints.regex("a|b")
    assert constraints.choices(["a", "b"]) is constraints.choices(("a", "b"))
    assert constraints.regex("a|b") is not Constraints(VOCABULARY).regex("a|b")
    assert accepts(constraints.choices({"a"}), [97])


def test_a_large_vocabulary_is_quick():
    rng = np.random.default_rng(0)
    words = {
        bytes(rng.integers(97, 123, rng.integers(1, 12)).astype("uint8")) for _ in range(50_000)
    }
    vocabulary = [*BYTES, *sorted(words)]
    start = time.perf_counter()
    automaton = TokenAutomaton.from_regex(JSON, vocabulary)
    assert time.perf_counter() - start < 10  # half a second on one slow core
    assert automaton.transitions.size < 10_000
    with pytest.raises(ValueError, match="constraint is too large"):
        TokenAutomaton.from_choices([word.decode() for word in sorted(words)[:9000]], vocabulary)


def test_a_text_does_not_begin_within_a_word():
    """`##a` at the start of a text is shown as it is; behind a word it is its letters."""
    vocabulary = [b" a", b"a", b"b", b" b", None]  # those without a space are ##a and ##b
    pattern = Constraints(vocabulary, never_first=[1, 2]).regex(" ?a?b", optional_space=False)
    allowed = pattern.transitions[0, pattern.token_classes] >= 0
    assert allowed.tolist() == [True, False, False, True, False]
    (after,) = pattern.transitions[[0], pattern.token_classes[[0]]]
    allowed = pattern.transitions[after, pattern.token_classes] >= 0
    assert allowed.tolist() == [False, False, True, False, False]
    with pytest.raises(ValueError, match="allowed texts only within a word"):
        Constraints(vocabulary, never_first=[1, 2]).choices(["a"])
