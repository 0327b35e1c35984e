"""The sub-commands for encoders: classify, embed, fill-mask, recognize, answer."""

import argparse
import pathlib

import keras_transformer as kt
from keras_transformer.cli.command import Option, option, positive
from keras_transformer.cli.lines import (
    Asking,
    asking,
    decoded,
    embedder_of,
    load,
    one_line,
    pairs,
    show_texts,
)
from keras_transformer.support.files import read_file


def _top_k(default: int) -> Option:
    text = "the number of most likely results to print (default %(default)s)"
    return option("--top-k", text, type=positive, default=default, metavar="K")


@asking(
    "classify",
    """\
classify texts, images, recordings or videos

Prints the most likely label of each text and its probability; with tsv or json all labels, the most
likely first. With a preset that classifies images, audio or videos, each TEXT is the path of a
file. With --labels the preset is a model of images and texts, such as CLIP, which accepts any
labels. Without --labels it must be a trained and saved classifier, as written by
TextClassifier.save_to_preset:

  import keras_transformer as kt
  classifier = kt.TextClassifier.from_preset("minilm_l6_en", labels=["negative", "positive"])
  classifier.fit(texts, labels, epochs=3)
  classifier.save_to_preset("my_classifier")

examples:
  keras-transformer classify --preset my_classifier "What a film!" "I want my money back."
  keras-transformer classify --preset vit_base_patch16_224 photo.jpg
  keras-transformer classify --preset clip_vit_base_patch32 --labels "cat,dog" photo.jpg
  keras-transformer classify --preset spoken_digits seven.wav
  keras-transformer classify --preset my_classifier < reviews.txt
  keras-transformer classify --preset my_classifier --format tsv < reviews.txt | cut -f 1
""",
    option("--pairs", "each text is a pair, separated by a tab", action="store_true"),
    option(
        "--labels",
        "labels of images, videos or recordings, separated by commas",
        metavar="LABELS",
    ),
    option(
        "--template", 'the text of a label (default "a photo of a {}." for images, "a video of '
        '{}." for videos, "This is a sound of {}." for recordings)', metavar="TEXT",
    ),
    found="classes",
)  # fmt: skip
def _classify(options: argparse.Namespace) -> Asking:
    if options.labels is None:
        also = ("ImageClassifier", "AudioClassifier", "VideoClassifier", "SequenceClassifier")
        task = load("TextClassifier", options.preset, trained=True, also=also)
        names = task.label_names
    else:
        names = [label.strip() for label in options.labels.split(",") if label.strip()]
        if not names:
            raise ValueError('--labels has no label: give some, as in --labels "cat,dog".')
        name = embedder_of(options.preset)
        task = load("ImageEmbedder" if name == "TextEmbedder" else name, options.preset)
    given = {"batch_size": options.batch_size, "top_k": len(names)}
    if options.labels is not None:
        given |= {"labels": names}
        given |= {} if options.template is None else {"template": options.template}
    width = max(map(len, names))

    def find(texts):
        x = pairs(texts, "two texts") if options.pairs else texts
        found = task.classify(x, **given)
        return [[{"label": label, "probability": share} for label, share in row] for row in found]

    def show(text, rows):
        return f"{one_line(rows[0]['label']):<{width}}  {rows[0]['probability']:.3f}  {text}"

    find.takes_files = not isinstance(task, kt.TextClassifier)
    if find.takes_files and options.pairs:
        by_class = options.labels is None
        unit = task.head.row_unit if by_class else task.processor_class.source_class.unit
        raise ValueError(f"--pairs is for texts, but the preset classifies {unit}s.")
    return find, show


@asking(
    "embed",
    """\
print the vectors of texts, images, videos or recordings

Prints a vector for each text; or, with a preset of images, videos or recordings, for each of
these, whose path is given as TEXT. If a model's vectors have length 1, as with minilm_l6_en, the
dot product of two of them measures their similarity. With --as-texts a model that embeds texts too,
such as CLIP and CLAP, embeds the TEXTs themselves.

examples:
  keras-transformer embed --preset minilm_l6_en "a cat" "a kitten" "a car"
  keras-transformer embed --preset minilm_l6_en --format tsv < texts.txt > vectors.tsv
  keras-transformer embed --preset dinov2_small --format json cat.jpg dog.jpg
  keras-transformer embed --preset clip_vit_base_patch32 --as-texts "a photo of a cat."
""",
    option(
        "--as-texts",
        "embed texts with a model of images, videos or recordings, and texts",
        action="store_true",
    ),
)
def _embed(options: argparse.Namespace) -> Asking:
    name = embedder_of(options.preset)
    if options.as_texts and name == "TextEmbedder":
        raise ValueError(
            "--as-texts is for models of images and texts; this preset reads only texts."
        )
    task = load(name, options.preset)
    if getattr(task, "interaction", None) is not None:
        raise ValueError(f"{options.preset} has a vector for each token, none for a text.")
    encode = task.encode_texts if options.as_texts else task.encode

    def find(texts):
        vectors = encode(texts, batch_size=options.batch_size)
        return [[{"vector": [float(f"{x:.7g}") for x in vector]}] for vector in vectors.tolist()]

    def show(text, rows):
        return " ".join(f"{x:.4f}" for x in rows[0]["vector"])

    find.takes_files = name != "TextEmbedder" and not options.as_texts
    return find, show


@asking(
    "fill-mask",
    """\
print the most likely words in place of a mask

Prints the most likely tokens in place of the mask of each text, with their probabilities. Write the
mask as the model does: [MASK] for BERT, <mask> for RoBERTa.

examples:
  keras-transformer fill-mask --preset bert_base_en_uncased "Paris is the [MASK] of France."
  keras-transformer fill-mask --preset roberta_base_en --top-k 3 --format json < masked.txt
""",
    _top_k(5),
    found="fillings",
)
def _fill_mask(options: argparse.Namespace) -> Asking:
    task = load("MaskedLM", options.preset, trained=True)

    def find(texts):
        found = task.fill_mask(texts, top_k=options.top_k, batch_size=options.batch_size)
        # A text with several masks has a list for each.
        masks = [each if isinstance(each[0], list) else [each] for each in found]
        return [
            [
                {"mask": number, "token": f.token, "score": f.score, "text": f.text}
                for number, fillings in enumerate(each, 1)
                for f in fillings
            ]
            for each in masks
        ]

    def show(text, rows):
        return "\t".join(f"{row['token'].strip()} {row['score']:.3f}" for row in rows)

    return find, show


@asking(
    "recognize",
    """\
print the named entities in texts

Prints the entities of each text with their labels; with tsv or json also their positions, in
characters from 0, and the model's confidence. A text without entities gives an empty line.

examples:
  keras-transformer recognize --preset bert_base_en_ner "Ada Lovelace lived in London."
  keras-transformer recognize --preset bert_base_en_ner --format json < news.txt
""",
    found="entities",
)
def _recognize(options: argparse.Namespace) -> Asking:
    task = load("TokenClassifier", options.preset, trained=True, also=("SequenceLabeler",))

    def find(texts):
        found = task.recognize(texts, batch_size=options.batch_size)
        return [[entity._asdict() for entity in entities] for entities in found]

    def show(text, rows):
        return "\t".join(one_line(f"{row['label']} {row['text']}") for row in rows)

    return find, show


@asking(
    "answer",
    """\
answer questions with spans of a text

Answers each question with a span of its context. With --context or --context-file each text is a
question; without them each text is a question, a tab, and its context.

examples:
  keras-transformer answer --preset distilbert_base_en_cased_squad --context-file story.txt \\
      "Who rides a bike?" "Where?"
  keras-transformer answer --preset my_answerer --top-k 3 --format json < pairs.tsv
""",
    option("--context", "the text that contains all answers", metavar="TEXT"),
    option("--context-file", "a file with that text", metavar="FILE"),
    _top_k(1),
    option(
        "--allow-no-answer", "print an empty answer if that is more likely", action="store_true"
    ),
    found="answers",
)
def _answer(options: argparse.Namespace) -> Asking:
    context = options.context
    if options.context_file is not None:
        if context is not None:
            raise ValueError("Give either --context or --context-file, not both.")
        content = read_file(pathlib.Path(options.context_file), 2**24)
        context = decoded(content, options.context_file)
    task = load("QuestionAnswerer", options.preset, trained=True)

    def find(texts):
        questions, contexts = texts, [context] * len(texts)
        if context is None:
            what = "a question and its context (or give --context or --context-file)"
            questions, contexts = pairs(texts, what)
        found = task.answer(
            questions, contexts, top_k=options.top_k, allow_no_answer=options.allow_no_answer,
            batch_size=options.batch_size,
        )  # fmt: skip
        found = [each if isinstance(each, list) else [each] for each in found]
        return [[answer._asdict() for answer in answers] for answers in found]

    return find, show_texts


COMMANDS = (_classify, _embed, _fill_mask, _recognize, _answer)
