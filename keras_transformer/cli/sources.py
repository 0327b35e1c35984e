"""The sub-commands that generate text from files: caption, transcribe."""

import argparse

import keras_transformer as kt
from keras_transformer.cli.command import option, positive
from keras_transformer.cli.lines import Asking, asking, load, one_line, show_texts

_MAX_NEW_TOKENS = option(
    "--max-new-tokens",
    "the most tokens to generate for a file (default: the checkpoint's limit, else 64)",
    type=positive,
    metavar="N",
)


@asking(
    "caption",
    """\
write a caption for each image, or answer a question about it

Prints a caption for each image, whose path is given as TEXT. With --question it prints the answer
to that question, with a preset that was trained to answer questions.

examples:
  keras-transformer caption --preset captions_shapes shape.png
  keras-transformer caption --preset vqa_shapes --question "What color is the circle?" shape.png
  keras-transformer caption --preset captions_shapes --format json < paths.txt
""",
    option("--question", "a question about each image", metavar="TEXT"),
    _MAX_NEW_TOKENS,
)
def _caption(options: argparse.Namespace) -> Asking:
    task = load("ImageToText", options.preset, trained=True)

    def find(paths):
        found = task.generate(
            paths, options.question, max_new_tokens=options.max_new_tokens,
            batch_size=options.batch_size,
        )  # fmt: skip
        return [[{"text": text}] for text in found]

    find.takes_files = True
    return find, show_texts


@asking(
    "transcribe",
    """\
transcribe recordings

Prints the words spoken in each recording, whose path is given as TEXT: WAV, FLAC, MP3 or Ogg, of
any length. With --timestamps each segment, or with a model like wav2vec 2.0 each word, is preceded
by its start and end in seconds; tsv and json have them in separate columns.

examples:
  keras-transformer transcribe --preset speech_digits_to_text digits.wav
  keras-transformer transcribe --preset whisper_tiny_multi --timestamps speech.wav
  keras-transformer transcribe --preset whisper_small_multi --language de --translate rede.mp3
  keras-transformer transcribe --preset wav2vec2_base_960h_en --timestamps speech.wav
  keras-transformer transcribe --preset moonshine_tiny_en speech.wav
""",
    option("--timestamps", "print segments with their start and end", action="store_true"),
    option("--language", "language of all recordings, such as en (default: detected for each)"),
    option("--translate", "translate into English", action="store_true"),
    _MAX_NEW_TOKENS,
    found="segments",
)
def _transcribe(options: argparse.Namespace) -> Asking:
    task = load("SpeechToText", options.preset, trained=True, also=("CTCSpeechToText",))
    further = {
        "language": options.language,
        "task": "translate" if options.translate else None,
        "max_new_tokens": options.max_new_tokens,
    }
    if isinstance(task, kt.CTCSpeechToText):
        if any(value is not None for value in further.values()):
            raise ValueError(
                "--language, --translate and --max-new-tokens are for models with a decoder, such "
                f"as Whisper's: {options.preset!r} has none."
            )
        further = {}

    def find(paths):
        found = task.transcribe(
            paths, timestamps=options.timestamps, batch_size=options.batch_size, **further
        )
        if not options.timestamps:
            return [[{"text": text}] for text in found]
        return [[segment._asdict() for segment in segments] for segments in found]

    def show(path, rows):
        if not options.timestamps:
            return show_texts(path, rows)
        pieces = (f"[{r['start']:.2f}-{r['end']:.2f}] {one_line(r['text'])}" for r in rows)
        return "\t".join(pieces)

    find.takes_files = True
    return find, show


COMMANDS = (_caption, _transcribe)
