"""Report phrases that are not plain English in docstrings, comments, messages and pages.

    python .ci/english.py                         everything
    python .ci/english.py keras_transformer/cli   a folder or a file

Prints `file:line: name of the rule: the words`, then the number of matches in each folder. Exits
with status 1 if anything is found.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACES = (
    *("keras_transformer", "tests", "examples", "benchmarks", "docs"),
    *("README.md", "CHANGELOG.md"),
)
START = r"(?:^|(?<=[.!?:;] ))"  # start of a sentence in a paragraph joined to one line

# Name of the rule -> (kinds of text that it holds for, the pattern).
DOCSTRING, COMMENT, MESSAGE, PAGE = "docstring", "comment", "message", "page"
EVERYWHERE = (DOCSTRING, COMMENT, MESSAGE, PAGE)
RULES = {
    "begins without a noun": ((DOCSTRING,), r"\A(?:Of|What|Whose|(?:Those|That)(?= of\b))\b"),
    "a pronoun for a subject": (EVERYWHERE, START + r"(?:Those|That|those|that) of\b"),
    "None for": (EVERYWHERE, r"\bNone for\b"),
    "is none": (EVERYWHERE, r"\b(?:is|are|was|were|be) none\b"),
    "is no, for is not a": (
        EVERYWHERE,
        r"\b(?:[Ww]hat|that) (?:is|are) no\b(?! \w+er\b| more\b| less\b)",
    ),
    "likewise": (EVERYWHERE, r"\b[Ll]ikewise\b"),
    "so many, for this many": (EVERYWHERE, r"\b[Ss]o (?:many|much)\b(?! that\b)"),
    "of what": (EVERYWHERE, START + r"[Oo]f what\b"),
    "for what": (EVERYWHERE, START + r"[Ff]or what\b"),
    "ValueError for": (EVERYWHERE, r"\b[A-Z][A-Za-z]*Error for\b"),
}

# (end of a path, words of a paragraph) of correct text that a rule matches, each with its reason.
# At most 20 lines.
ALLOWED: tuple[tuple[str, str], ...] = ()


def paragraphs(lines):
    """Yield `(line number, text)` of each paragraph, list item or section entry of `lines`.

    `lines` are pairs of a line number and a text. Fenced code blocks are left out, and each
    paragraph is joined to one line, without backticks.
    """
    found, fenced = [], False
    for number, line in lines:
        text = line.strip()
        fence = text.startswith(("```", "~~~"))
        fenced ^= fence
        starts = re.match(r"([-*+>|#]|\d+\.) |[a-z_*]+: |[A-Z][a-z]+:$", text)
        if fence or fenced or not text or starts:
            if found:
                yield found
            found = []
        if text and not fence and not fenced:
            found.append((number, re.sub(r"^(?:[-*+>|#]|\d+\.) ", "", text).replace("`", "")))
    if found:
        yield found


def texts(path):
    """Yield `(kind, numbered lines)` of each docstring, comment and message, or of a page."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield PAGE, list(enumerate(source.splitlines(), 1))
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            text = getattr(getattr(first, "value", None), "value", None)
            if isinstance(first, ast.Expr) and isinstance(text, str):
                yield DOCSTRING, list(enumerate(text.splitlines(), first.lineno))
        elif isinstance(node, ast.Raise) or is_warning(node):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield MESSAGE, [(part.lineno, part.value)]
    block, column = [], 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row = token.start[0]
            if block and token.start != (block[-1][0] + 1, column):
                yield COMMENT, block
                block = []
            column = token.start[1]
            block.append((row, token.string.lstrip("#")))
    if block:
        yield COMMENT, block


def is_warning(node):
    """Return True if an AST node is a call that warns or logs."""
    names = {"warn", "warning", "info", "error", "debug"}
    return isinstance(node, ast.Call) and getattr(node.func, "attr", None) in names


def faults(path):
    """Yield `(line number, rule, text)` of each match of a rule in a file."""
    for kind, lines in texts(path):
        for position, paragraph in enumerate(paragraphs(lines)):
            text = " ".join(line for _, line in paragraph)
            if any(str(path).endswith(end) and words in text for end, words in ALLOWED):
                continue
            for rule, (kinds, pattern) in RULES.items():
                first_only = pattern.startswith(r"\A")
                if kind not in kinds or (first_only and position):
                    continue
                for match in re.finditer(pattern, text):
                    yield line_at(paragraph, match.start()), rule, excerpt(text, match)


def line_at(paragraph, place):
    """Return the line number of a character of a joined paragraph."""
    for number, line in paragraph:
        place -= len(line) + 1
        if place < 0:
            return number
    return paragraph[-1][0]


def excerpt(text, match):
    """Return the match with some of the words after it."""
    return text[match.start() : match.end() + 50]


def files(places):
    """Return the Python and Markdown files among `places`, and in the folders among them."""
    found = []
    for place in map(Path, places):
        if not place.exists():
            raise SystemExit(f"{place} does not exist")
        inside = sorted(place.rglob("*")) if place.is_dir() else [place]
        found += [path for path in inside if path.suffix in (".py", ".md")]
    return found


def main(places):
    """Print what is found in `places`. Return the exit status."""
    counts = Counter()
    for path in files(places or [ROOT / place for place in PLACES]):
        shown = path.resolve()
        shown = shown.relative_to(ROOT) if shown.is_relative_to(ROOT) else path
        counts.setdefault(str(shown.parent), 0)
        for number, rule, text in sorted(faults(path)):
            print(f"{shown}:{number}: {rule}: {text}")
            counts[str(shown.parent)] += 1
    for folder, count in sorted(counts.items()):
        print(f"{count:6}  {folder}")
    print(f"{counts.total():6}  in all")
    return 1 if counts.total() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
