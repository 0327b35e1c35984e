"""Generate text with an exported model, using only ONNX Runtime, OpenVINO or LiteRT.

    keras-transformer export --preset gpt_tiny_shakespeare lm
    python examples/decode_exported.py lm "ROMEO:" --max_new_tokens 40

It needs numpy, tokenizers and the runtime, but neither Keras nor keras_transformer. Read it, and
copy what you need. Rows of different lengths are padded: prompts on the side given by --padding,
sources on the right. Padding is 0 in the attention mask, and positions do not count it.
"""

import argparse
import functools
import json
import pathlib

import numpy as np
import tokenizers


class OnnxRuntime:
    """Graphs of a folder exported as ONNX, which take and return arrays by name."""

    def __init__(self, folder):
        import onnxruntime

        self.sessions = {
            path.stem: onnxruntime.InferenceSession(str(path))
            for path in pathlib.Path(folder).glob("*.onnx")
        }

    def __call__(self, graph, arrays):
        session = self.sessions[graph]
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, arrays), strict=True))


@functools.cache
def openvino_core():
    """Return the core of this process: deleting one of several would free their signal stack."""
    import openvino

    return openvino.Core()


class OpenVino:
    """Reader of a folder that was exported for OpenVINO."""

    def __init__(self, folder):
        # Without this hint OpenVINO may compute in bfloat16.
        hint = {"INFERENCE_PRECISION_HINT": "f32"}
        self.models = {
            path.stem: openvino_core().compile_model(str(path), "CPU", hint)
            for path in pathlib.Path(folder).glob("*.xml")
        }

    def __call__(self, graph, arrays):
        outputs = self.models[graph](arrays)
        return {output.any_name: np.array(array) for output, array in outputs.items()}


class LiteRt:
    """Reader of a folder that was exported for LiteRT."""

    def __init__(self, folder):
        from ai_edge_litert.interpreter import Interpreter

        self.interpreter = Interpreter(str(pathlib.Path(folder, "model.tflite")))
        self.runners = {}

    def __call__(self, graph, arrays):
        if graph not in self.runners:
            self.runners[graph] = self.interpreter.get_signature_runner(graph)
        outputs = self.runners[graph](**arrays)
        return {name: np.array(array) for name, array in outputs.items()}


RUNTIMES = {"onnx": OnnxRuntime, "openvino": OpenVino, "litert": LiteRt}
VERSION = 1  # of `export.json` that this program can read


class Model:
    """A decoder, or an encoder-decoder, that was exported with its cache."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        self.values = json.loads((folder / "export.json").read_text())
        check_values(self.values)
        self.run = RUNTIMES[self.values["format"]](folder)
        self.pad_id = self.values["pad_id"] or 0
        self.end_ids = self.values["end_ids"]
        file = folder / "tokenizer.json"
        self.tokenizer = tokenizers.Tokenizer.from_file(str(file)) if file.is_file() else None

    def write(self, texts, max_new_tokens=64, padding="left"):
        """Return the continuation of each text, or its translation."""
        rows = [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]
        if self.values["kind"] == "decoder":  # A prompt with an end token would not be continued.
            rows = [row[:-1] if row[-1] in self.end_ids else row for row in rows]
        return [self.tokenizer.decode(row) for row in self.greedy(rows, max_new_tokens, padding)]

    def greedy(self, rows, max_new_tokens, padding="left"):
        """Return the greedy continuation of each list of ids, without the end token."""
        # An encoder counts positions from the first column, so its padding is on the right.
        ids, mask = self.padded(rows, padding if self.values["kind"] == "decoder" else "right")
        self.check(ids.shape[1], max_new_tokens)
        begin = self.begin_decoder if self.values["kind"] == "decoder" else self.begin_seq2seq
        logits, step = begin(ids, mask)
        written = [[] for _ in rows]
        done = np.zeros(len(rows), bool)
        for _ in range(max_new_tokens):
            tokens = logits.argmax(-1)
            done |= np.isin(tokens, self.end_ids)
            for row, token in zip(np.flatnonzero(~done), tokens[~done], strict=True):
                written[row].append(int(token))
            if done.all():
                break
            logits = step(tokens[:, None])
        return written

    def padded(self, rows, padding):
        """Pad rows, and return ids and mask, int64 `(rows, length of the longest)`."""
        length = max(map(len, rows))
        ids = np.full((len(rows), length), self.pad_id, "int64")
        mask = np.zeros_like(ids)
        for place, row in enumerate(rows):
            columns = slice(length - len(row), None) if padding == "left" else slice(len(row))
            ids[place, columns], mask[place, columns] = row, 1
        return ids, mask

    def check(self, length, max_new_tokens):
        """Raise ValueError if there are more tokens than the model has positions for."""
        most = self.values["max_length"]
        of_prompt = length if self.values["kind"] == "decoder" else 0
        if max(length, of_prompt + max_new_tokens) > most:
            raise ValueError(
                f"The model takes {most} tokens, and {length} of a prompt and {max_new_tokens} new "
                "ones are asked for: shorten the prompt, or ask for fewer."
            )

    def begin_decoder(self, ids, mask):
        """Return the logits after the prompts, and a function from tokens to the next logits."""
        past = {
            f"past_key_values.{i}.{part}": np.zeros((len(ids), heads, 0, width), "float32")
            for i, (heads, width, *_) in enumerate(self.values["cache_layers"])
            for part in ("key", "value")
        }
        positions = np.maximum(mask.cumsum(1) - 1, 0)
        last = mask.shape[1] - 1 - mask[:, ::-1].argmax(1)  # the last real token of each row
        arrays = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, **past}
        outputs = self.run("model", arrays)

        def step(tokens):
            nonlocal mask, outputs
            mask = np.concatenate([mask, np.ones_like(tokens)], axis=1)
            positions = mask.sum(1, keepdims=True) - 1
            arrays = {"input_ids": tokens, "attention_mask": mask, "position_ids": positions}
            outputs = self.run("model", arrays | as_past(outputs))
            return outputs["logits"][:, -1]

        return outputs["logits"][np.arange(len(ids)), last], step

    def begin_seq2seq(self, ids, mask):
        """Begin a translation: encode the source and give the decoder its first token."""
        sources = {"input_ids": ids, "attention_mask": mask}
        states = self.run("encoder_model", sources)["last_hidden_state"]
        seen = {"encoder_attention_mask": mask}
        start = np.full((len(ids), 1), self.values["start_id"], "int64")
        arrays = {"input_ids": start, **seen, "encoder_hidden_states": states}
        outputs = self.run("decoder_model", arrays)
        past = as_past(outputs)

        def step(tokens):
            nonlocal past  # The keys and values of the source do not change.
            outputs = self.run("decoder_with_past_model", {"input_ids": tokens, **seen, **past})
            past = past | as_past(outputs)
            return outputs["logits"][:, -1]

        return outputs["logits"][:, -1], step


def check_values(values):
    """Raise ValueError if this program cannot read the folder."""
    version, name = values.get("version"), values.get("format")
    if version != VERSION:
        raise ValueError(
            f"The folder is of version {version} of exports, and this program reads {VERSION}: "
            "export the model again, or take the program of that version."
        )
    if name not in RUNTIMES:
        raise ValueError(f"The folder is of format {name!r}, and this program runs {[*RUNTIMES]}.")
    if values["kind"] == "encoder":
        raise ValueError("The model is an encoder, which writes no text.")


def as_past(outputs):
    """Return the cache from the outputs of a graph, under the names of its inputs."""
    return {
        name.replace("present", "past_key_values"): array
        for name, array in outputs.items()
        if name.startswith("present")
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", help="what kt.export wrote, as onnx, openvino or litert")
    parser.add_argument("texts", nargs="+", help="prompts, or texts to translate")
    parser.add_argument("--max_new_tokens", type=int, default=64)
    parser.add_argument("--padding", choices=["left", "right"], default="left")
    options = parser.parse_args()
    model = Model(options.folder)
    for text in model.write(options.texts, options.max_new_tokens, options.padding):
        print(text)


if __name__ == "__main__":
    main()
