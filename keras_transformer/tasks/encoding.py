"""From texts, in memory or in files, to rows of token ids."""

from collections.abc import Callable

from keras_transformer.data import Records, TokenRows
from keras_transformer.data.token_store import Stored, fingerprint, tokenize
from keras_transformer.tasks.inputs import text_rows
from keras_transformer.tasks.task import Task


def text_columns(x, name: str = "x") -> Records | tuple[list[str]]:
    """One list of texts in a tuple; or `Records`, which must have one column, and no `y`."""
    if not isinstance(x, Records):
        return (text_rows(x, name),)
    if len(x.columns) > 1:
        raise ValueError(f"One column of texts is needed, without a `y`: received {x}.")
    return x


def encode_rows(
    task: Task,
    texts: Records | tuple[list[str], ...],
    encode: Callable,
    with_labels: bool = False,
    check_label: Callable | None = None,
    **recipe,
) -> Stored:
    """Texts as rows of ids, by column: those in memory at once, records through the disk.

    Args:
        task: the `Task` whose texts they are.
        texts: lists of texts; or `Records` with as many columns.
        encode: function of the lists and of `place(row)`, for errors, to a dict of name to lists
            of ids.
        with_labels: bool, whether the `y` of records holds labels and not texts.
        check_label: as of `tokenize`.
        **recipe: what the ids depend on beside the texts, the tokenizer and the task's class, as
            values for JSON.

    Returns:
        `Stored`; for lists without labels.
    """
    if not isinstance(texts, Records):
        encoded = encode(texts, lambda index: f"`x[{index}]`")
        return Stored({n: TokenRows.of(rows, n) for n, rows in encoded.items()}, None, None)
    tokenizer = task._require_tokenizer()
    size = tokenizer.vocabulary_size
    dtype = "uint8" if size <= 2**8 else "uint16" if size <= 2**16 else "int32"
    # What it names is seen from what it gives for no texts.
    names = encode(([],) * (len(texts.columns) - with_labels), str)
    dtypes = {name: "uint8" if name == "segment_ids" else dtype for name in names}
    recipe |= {"task": type(task).__name__, "tokenizer": fingerprint(tokenizer)}
    return tokenize(texts, encode, recipe, dtypes, with_labels, check_label)
