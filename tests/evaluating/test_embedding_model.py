"""Scores of MTEB against sentence-transformers' on the same weights, on tasks of local texts."""

import json

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.evaluating import EmbeddingModel
from tests.evaluating.conftest import TASKS

mteb = pytest.importorskip("mteb", reason="needs mteb, of the extra `mteb`")
import datasets  # noqa: E402
from mteb.abstasks.retrieval import AbsTaskRetrieval  # noqa: E402
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData  # noqa: E402
from mteb.abstasks.sts import AbsTaskSTS  # noqa: E402
from mteb.abstasks.task_metadata import TaskMetadata  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

ROWS = [json.loads(line) for line in (TASKS / "sonnet_lines.jsonl").read_text().splitlines()]
LINES = [row["choices"][row["answer"]] for row in ROWS]


def metadata(kind, name, score):
    return TaskMetadata(
        type=kind, name=name, main_score=score, description="Lines of Shakespeare's sonnets.",
        reference="https://example.org", dataset={"path": "local", "revision": "1"},
        category="t2t", eval_splits=["test"], eval_langs=["eng-Latn"], date=("1609-01-01",) * 2,
        dialect=[], domains=[], task_subtypes=[], license="cc0-1.0", modalities=["text"],
        annotations_creators="derived", sample_creation="found", bibtex_citation="",
    )  # fmt: skip


class SonnetSimilarity(AbsTaskSTS):
    """Lines with two words changed places are nearer than neighbouring lines."""

    metadata = metadata("STS", "SonnetSimilarity", "cosine_spearman")
    min_score, max_score = 0, 1

    def load_data(self, num_proc=None, **kwargs):
        moved = [row["choices"][row["answer"] - 1] for row in ROWS]
        seconds = [*moved[:12], *LINES[13:], LINES[0]]
        columns = {"sentence1": LINES, "sentence2": seconds, "score": [1.0] * 12 + [0.0] * 12}
        self.dataset = datasets.DatasetDict(test=datasets.Dataset.from_dict(columns))
        self.data_loaded = True


class SonnetNextLine(AbsTaskRetrieval):
    """The line after a line."""

    metadata = metadata("Retrieval", "SonnetNextLine", "ndcg_at_10")

    def load_data(self, num_proc=None, **kwargs):
        queries = [{"id": f"q{i}", "text": line} for i, line in enumerate(LINES[::2])]
        corpus = [{"id": f"d{i}", "text": x, "title": ""} for i, x in enumerate(LINES[1::2])]
        self.dataset = {
            "default": {
                "test": RetrievalSplitData(
                    queries=datasets.Dataset.from_list(queries),
                    corpus=datasets.Dataset.from_list(corpus),
                    relevant_docs={f"q{i}": {f"d{i}": 1} for i in range(12)},
                    top_ranked=None,
                )
            }
        }
        self.data_loaded = True


@pytest.fixture(scope="module")
def ours():
    prompts = {"query": "a line of a sonnet: ", "STS": "a verse: "}
    return kt.TextEmbedder.from_preset("minilm_l6_en", prompts=prompts)


@pytest.fixture(scope="module")
def theirs(minilm_folder, ours):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(
        str(minilm_folder), device="cpu", prompts=dict(ours.prompts)
    )
    from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper

    return SentenceTransformerEncoderWrapper(model)


def test_scores_as_sentence_transformers_gets_them(ours, theirs):
    tasks = [SonnetSimilarity(), SonnetNextLine()]
    found = kt.evaluate(ours, tasks, verbose=False)
    fresh = [SonnetSimilarity(), SonnetNextLine()]
    expected = mteb.evaluate(
        theirs, fresh, cache=None, co2_tracker=False, show_progress_bar=False
    ).task_results
    assert found.harness == f"mteb {mteb.__version__}"
    assert [row.metric for row in found.rows] == ["cosine_spearman", "ndcg_at_10"]
    assert set(found.numbers) == {"SonnetSimilarity", "SonnetNextLine"}
    for row, result in zip(found.rows, expected, strict=True):
        (values,) = result.scores["test"]
        assert row.value == pytest.approx(values["main_score"], abs=1e-4)
        kept = found.results[result.task_name]["scores"]["test"][0]
        numbers = {
            name: x for name, x in values.items() if isinstance(x, float) and x == x
        }  # not NaN
        assert {name: kept[name] for name in numbers} == pytest.approx(numbers, abs=1e-4)
    assert all(0 < row.value < 1 for row in found.rows)


def test_prompts_and_vectors(ours, theirs):
    batches = [{"text": LINES[:3]}, {"text": LINES[3:5]}]
    model = EmbeddingModel(ours)
    for task, kind in (
        (SonnetSimilarity, None),
        (SonnetNextLine, mteb.types.PromptType.query),
        (SonnetNextLine, mteb.types.PromptType.document),
    ):
        options = {"task_metadata": task.metadata, "hf_split": "test", "hf_subset": "default"}
        loader = DataLoader(datasets.Dataset.from_dict({"text": LINES[:5]}), batch_size=3)
        expected = theirs.encode(loader, prompt_type=kind, show_progress_bar=False, **options)
        found = model.encode(batches, prompt_type=kind, **options)
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.one_backend
def test_errors(ours):
    with pytest.raises(ValueError, match="`limit`"):
        kt.evaluate(ours, [SonnetSimilarity()], limit=3)
    with pytest.raises(ValueError, match="no task 'STSBenchmrk'"):
        kt.evaluate(ours, ["STSBenchmrk"])
    with pytest.raises(ValueError, match="names or tasks of MTEB"):
        kt.evaluate(ours, [3])
    with pytest.raises(ValueError, match="MTEB needs a TextEmbedder"):
        EmbeddingModel(kt.TextEmbedder(ours.backbone))
    classifier = kt.TextClassifier(ours.backbone, ours.tokenizer, num_classes=2)
    with pytest.raises(ValueError, match="scores a CausalLM with lm-eval and a TextEmbedder"):
        kt.evaluate(classifier, ["STSBenchmark"])
