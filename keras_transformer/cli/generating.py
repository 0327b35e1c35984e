"""The sub-commands of generating models: translate, generate, score."""

import argparse
import functools
from collections.abc import Callable

import numpy as np

import keras_transformer as kt
from keras_transformer.cli.command import above_0, option, positive, say
from keras_transformer.cli.lines import Asking, Rows, asking, load, pairs, show_texts
from keras_transformer.support.checking import load_json
from keras_transformer.support.files import read_file
from keras_transformer.tokenizers.languages import check_languages
from keras_transformer.tokenizers.moses import text_forms

_MAX_SCHEMA = 4 * 2**20  # bytes


def forms(preset) -> tuple[Callable, Callable]:
    """Return functions that convert ordinary text to the form a preset was trained on, and back."""
    return text_forms(kt.checkpoints.load_config(preset, load_weights=False)[2].get("text"))


def _drawing(options: argparse.Namespace) -> dict:
    """Return the sampling options that were given."""
    given = {name: getattr(options, name, None) for name in ("temperature", "top_k", "top_p")}
    return {name: value for name, value in given.items() if value is not None}


def _arguments(options: argparse.Namespace) -> dict:
    """Return the arguments of `generate` that do not depend on the model."""
    given = _drawing(options)
    if given and options.beams > 1:
        raise ValueError(
            "--beams searches, but --temperature, --top-k and --top-p sample: choose one."
        )
    if not given and options.n_best > options.beams:
        raise ValueError(
            f"--n-best {options.n_best} needs --beams {options.n_best} or more, or sampling, as "
            "with --top-p."
        )
    if given:
        sampler = kt.generation.Random(**given)
    elif options.beams > 1:
        sampler = kt.generation.BeamSearch(num_beams=options.beams)
    else:
        sampler = kt.generation.Greedy()
    return {
        "max_new_tokens": options.max_new_tokens,
        "sampler": sampler,
        "batch_size": options.batch_size,
        "num_samples": options.n_best,
        # Not always, since the details take another forward pass.
        "return_details": options.format != "text",
    }


def _rules(task, options: argparse.Namespace, choices: list[str] | None):
    """Return the rules that the generated text must follow, or None."""
    automaton = schema = None
    if options.json_schema is not None:
        try:
            schema = load_json(read_file(options.json_schema, _MAX_SCHEMA))
        except ValueError as error:
            raise ValueError(f"--json-schema {options.json_schema}: {error}") from None
    if options.regex is not None or choices or schema is not None:
        automaton = task.constraint(regex=options.regex, choices=choices, json_schema=schema)
    rules = kt.generation.Rules(
        repetition_penalty=options.repetition_penalty,
        no_repeat_ngram_size=options.no_repeat_ngram,
        automaton=automaton,
    )
    return None if rules == kt.generation.Rules() else rules


def _rows(found) -> Rows:
    """Return the results for one prompt, generated with or without details, as rows."""
    rows = []
    for each in found if isinstance(found, list) else [found]:
        if isinstance(each, str):
            rows.append({"text": each})
            continue
        score = each.log_probabilities.sum() if each.score is None else each.score
        rows.append({"text": each.text, "score": float(score), "end": each.finish_reason})
    return rows


def _writing(beams: str, length: int) -> tuple:
    """Return the options that translate and generate share."""
    return (
        option(
            "--beams", f"width of beam search; 1 takes the most likely token each time ({beams})",
            type=positive, metavar="N",
        ),
        option(
            "--n-best", "number of texts for each input, separated by tabs: the best beams, or "
            "independent samples (default %(default)s)",
            type=positive, default=1, metavar="N",
        ),
        option(
            "--max-new-tokens", "longest output, in tokens (default %(default)s)",
            type=positive, default=length, metavar="N",
        ),
        option("--regex", "a regular expression that the output matches", metavar="R"),
        option("--json-schema", "a JSON Schema that the output validates against", metavar="FILE"),
        option(
            "--choice", "the output is this text; repeat the option to allow several",
            action="append", metavar="TEXT",
        ),
        option(
            "--no-repeat-ngram", "forbid repeats of N tokens", type=positive, default=0, metavar="N"
        ),
        option(
            "--repetition-penalty", "above 1 makes repeated tokens less likely", type=float,
            default=1.0, metavar="X",
        ),
    )  # fmt: skip


@asking(
    "translate",
    """\
translate texts

Translates each text with beam search and prints one translation on each line. With tsv or json each
has the score by which the search ranks it, and why it ended: an end token, or the length limit.

Write ordinary text. For a preset trained on lowercased words with spaces around the punctuation,
such as transformer_tiny_en_de, the text is converted to that form, and the output is joined again,
but stays lowercased. That preset has only seen descriptions of images: "A man rides a bike." works,
news does not. Its --regex and --choice are lowercased too.

A model of many languages takes them as --source and --target, by the names of its tokens: deu_Latn
(NLLB), de (M2M100, MADLAD), de_DE (mBART), deu (Marian). MADLAD and Marian only take --target.

examples:
  keras-transformer translate --preset transformer_tiny_en_de "A man rides a bike."
  keras-transformer translate --preset transformer_tiny_en_de < english.txt > german.txt
  keras-transformer translate --preset transformer_tiny_en_de --n-best 3 --format json "A dog."
  keras-transformer translate --preset transformer_tiny_en_de --regex "ein hund.*" "A dog runs."
  keras-transformer translate --preset mbart50_large_multi --source de_DE --target en_XX "Ein Hund."
""",
    option("--source", "the language of the texts", metavar="LANGUAGE"),
    option("--target", "the language to translate to", metavar="LANGUAGE"),
    *_writing("default 5", 128),
    found="translations",
)
def _translate(options: argparse.Namespace) -> Asking:
    options.beams = options.beams or max(5, options.n_best)
    languages = {"source": options.source, "target": options.target}
    arguments = _arguments(options) | languages
    preset = kt.checkpoints.resolve_preset(options.preset)
    split, join = forms(preset)
    if options.source is not None or options.target is not None:  # before weights are downloaded
        check_languages(kt.Tokenizer.from_preset(preset), **languages)
    task = load("Seq2SeqLM", preset)
    arguments["rules"] = _rules(task, options, options.choice and split(options.choice))

    def find(texts):
        rows = [_rows(each) for each in task.generate(split(texts), **arguments)]
        return [[{**row, "text": join(row["text"])} for row in each] for each in rows]

    return find, show_texts


@asking(
    "generate",
    """\
continue a prompt

Continues each text with a decoder-only model, and prints it with its continuation. --stream prints
the text while it is generated.

Takes the most likely token at each step, unless --temperature, --top-k, --top-p or --beams say
otherwise. Use --seed to get the same random text again. A continuation may have several lines: use
--format json for many texts. Put a prompt of several lines in quotes: "$(cat prompt.txt)".

examples:
  keras-transformer generate --preset gpt_tiny_shakespeare "ROMEO:" --beams 4 --max-new-tokens 80
  keras-transformer generate --preset gpt_tiny_shakespeare "ROMEO:" --stream --top-p 0.9
  keras-transformer generate --preset gpt_tiny_shakespeare --format json < prompts.txt
""",
    *_writing("default: the number of --n-best", 64),
    option("--stream", "print the text while it is generated", action="store_true"),
    option(
        "--temperature", "sample; below 1 favors likely tokens", type=above_0,
        metavar="T",
    ),
    option("--top-k", "sample from the K most likely tokens", type=positive, metavar="K"),
    option(
        "--top-p", "sample from the most likely tokens with total probability P",
        type=functools.partial(above_0, most=1.0), metavar="P",
    ),
    option("--seed", "seed of sampling, to repeat a text", type=int, metavar="N"),
    option(
        "--stop", "stop before this text; repeat the option for several", action="append",
        metavar="TEXT",
    ),
    found="continuations",
)  # fmt: skip
def _generate(options: argparse.Namespace) -> Asking:
    options.beams = options.beams or (
        options.n_best if options.n_best > 1 and not _drawing(options) else 1
    )
    arguments = _arguments(options) | {"stop": options.stop, "seed": options.seed}
    if options.stream and (options.n_best > 1 or options.format != "text"):
        raise ValueError(
            "--stream prints one text while it is generated: leave out --n-best and --format."
        )
    task = load("CausalLM", options.preset)
    arguments["rules"] = _rules(task, options, options.choice)

    def find(texts):
        return [_rows(each) for each in task.generate(texts, **arguments)]

    def show(text, rows):
        return "\n".join(text + row["text"] for row in rows)

    def stream(text, rows):
        say(text, end="", flush=True)
        for piece in task.generate(text, stream=True, **arguments):
            say(piece, end="", flush=True)
        return ""

    return (lambda texts: [[]] * len(texts), stream) if options.stream else (find, show)


@asking(
    "score",
    """\
print how likely texts are to a model

Prints the natural logarithm of each text's probability; with tsv or json also the number of scored
tokens, and the perplexity. For a translation model each text is a source, a tab, and the target to
score.

examples:
  keras-transformer score --preset gpt_tiny_shakespeare "To be, or not to be" "Be to or to not"
  paste english.txt german.txt | keras-transformer score --preset opus_mt_en_de --format tsv
""",
)
def _score(options: argparse.Namespace) -> Asking:
    source = kt.checkpoints.resolve_preset(options.preset)
    paired = kt.checkpoints.load_config(source, load_weights=False)[0].kind == "seq2seq"
    split, _ = forms(source)
    task = load("Seq2SeqLM" if paired else "CausalLM", source)

    def find(texts):
        given = pairs(texts, "a source and its target") if paired else (texts,)
        found = task.score(*map(split, given), per_token=True)
        return [[_likelihood(scores.astype("float64"))] for scores in found]

    def show(text, rows):
        return f"{rows[0]['log_probability']:10.3f}  {text}"

    return find, show


def _likelihood(scores: np.ndarray) -> dict:
    return {
        "log_probability": float(scores.sum()),
        "tokens": len(scores),
        "perplexity": float(np.exp(-scores.mean())),
    }


COMMANDS = (_translate, _generate, _score)
