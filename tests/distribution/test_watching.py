"""The others name the process that died, hangs or is slow."""

import re
import socket
from pathlib import Path

import pytest

import keras_transformer as kt

pytestmark = pytest.mark.one_backend
ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("watch_worker.py")
FAULTS = {
    "killed": r"RuntimeError: Process 2 \(pid \d+ on .*\) has been silent for .*, since step \d",
    "raises": r"RuntimeError: Process 2 \(pid \d+ on .*\) ended with ValueError: a row without",
    "memory": r"RuntimeError: Process 2 \(pid \d+ on .*\) ended with RuntimeError: not enough",
    "fewer": r"ValueError: The 3 processes of this run do not agree:\n  run.data.batches: "
    r"10 in processes 0 \(.*\), 1 \(.*\), 5 in process 2 \(",
    "hangs": r"Process 2 \(.*\) has been in step 5 for \d+ s, while this process waits in step "
    r"6. It is at .*watch_worker.py:\d+ in on_train_batch_end. .*start all of them again",
    "slow": r"Process 2 \(.*\) needs [01].\d\d s between two steps, most need 0.\d\d s: look at",
}


# Each starts three processes: one of them in every run of the tests.
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=() if fault == "killed" else pytest.mark.thorough)
        for fault in FAULTS
    ],
)
def test_all_others_name_the_process(forks, tmp_path, fault):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder, errors = tmp_path / "run", [tmp_path / f"{rank}.txt" for rank in range(3)]
    processes = [
        forks.start(WORKER, rank, 3, port, folder, fault, cwd=ROOT, stderr=errors[rank])
        for rank in range(3)
    ]
    codes = [process.wait() for process in processes]
    assert all(codes) == (fault in ("killed", "raises", "memory", "fewer"))
    for file in errors[:2]:
        assert re.search(FAULTS[fault], file.read_text()), file.read_text()[-3000:]


def test_one_process_and_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match="a row"), kt.distribution.ProcessWatch(tmp_path):
        raise ValueError("a row")
    with pytest.raises(ValueError, match="`seconds` must be a number of at least 1"):
        kt.distribution.ProcessWatch(tmp_path, 0)
