"""Cost of the tests: processor time for each test, by itself and by the processes it ends.

Wall time says little on a machine that does other work too. The ten files that take most are
printed at the end, and the seconds of each file are kept in pytest's cache, where
`tests/changed.py` reads them. On JAX the programs that were compiled are counted as well.

For a checkout where nothing ran yet there is `seconds.json`, of the files that take long: by it the
longest start first. `python -m tests.timing` writes it from what pytest's cache has.
"""

import collections
import json
import os
import resource
from pathlib import Path

import pytest

KEY = "seconds"
KNOWN = Path(__file__).with_name("seconds.json")
BACKENDS = ("jax", "tensorflow", "torch")
LONG = 10.0  # seconds on a backend: shorter files are not in it
UNKNOWN = 6.0  # the seconds of a file that never ran here


def seconds_of_files(config, backend: str) -> dict[str, float]:
    """Return the seconds that each file took when it last ran here, or elsewhere."""
    cache = getattr(config, "cache", None)
    known = json.loads(KNOWN.read_text()).get(backend, {}) if KNOWN.is_file() else {}
    return {**known, **(cache.get(f"{KEY}/{backend}", {}) if cache else {})}


class Costs:
    """Measures each test where it runs, and adds up where the results are printed."""

    def __init__(self, config, backend, forks=None):
        self.config, self.backend, self.forks = config, backend, forks
        self.compiled = [0, 0.0, 0]
        self.before = None
        self.outside = self.processes = 0
        self.tests: dict[str, list] = {}
        if backend == "jax" and not getattr(config.option, "numprocesses", None):
            import jax

            jax.monitoring.register_event_duration_secs_listener(self._heard)
            jax.monitoring.register_event_listener(self._cached)

    def _heard(self, event, seconds, **_):
        if event.endswith("/backend_compile_duration"):
            self.compiled[0] += 1
            self.compiled[1] += seconds

    def _cached(self, event, **_):
        if event.endswith("/cache_hits"):
            self.compiled[2] += 1

    def now(self):
        return [self.seconds(), *self.compiled]

    def seconds(self):
        """Seconds of this process, of ended ones, and of forks, which are not its children."""
        own, ended = (
            resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        seconds = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
        return seconds + (self.forks.seconds if self.forks else 0)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        self.before = self.now()
        yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self):
        result = yield
        after = self.now()
        result.get_result().cost = [y - x for x, y in zip(self.before, after, strict=True)]
        self.before = after

    def pytest_runtest_logreport(self, report):
        if not hasattr(report, "cost"):
            return
        total = self.tests.setdefault(report.nodeid, [0] * 4)
        for i, value in enumerate(report.cost):
            total[i] += value

    def pytest_sessionfinish(self):
        inside = sum(cost[0] for cost in self.tests.values())
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["outside"] = self.seconds() - inside
            return
        if not self.processes:
            self.outside, self.processes = self.seconds() - inside, 1
        if path := os.environ.get("TEST_COSTS"):
            Path(path).write_text(json.dumps(self.tests))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.outside += getattr(node, "workeroutput", {}).get("outside", 0)
        self.processes += 1

    def pytest_terminal_summary(self, terminalreporter):
        files = collections.defaultdict(lambda: [0] * 5)
        for test, cost in self.tests.items():
            entry = files[test.partition("::")[0]]
            for i, value in enumerate([*cost, 1]):
                entry[i] += value
        if not files:
            return
        option = self.config.option
        parts = option.keyword or option.markexpr or any("::" in name for name in self.config.args)
        # A run of what changed leaves out examples of a file.
        parts = parts or self.config.pluginmanager.has_plugin("short")
        if (cache := getattr(self.config, "cache", None)) and not parts:
            kept = {name: round(cost[0], 2) for name, cost in files.items()}
            known = seconds_of_files(self.config, self.backend)
            cache.set(f"{KEY}/{self.backend}", {**known, **kept})
        total = [sum(column) for column in zip(*files.values(), strict=True)]
        write = terminalreporter.write_line
        terminalreporter.section("processor time, the ten slowest files")
        for name, cost in sorted(files.items(), key=lambda entry: -entry[1][0])[:10]:
            write(_line(cost, name))
        write(_line(total, f"all {len(files)} files"))
        write(
            f"{self.outside:7.1f} s  imports, collection and reports in {self.processes} processes"
        )


def _line(cost, name):
    seconds, count, compiling, found, tests = cost
    programs = f", {count} programs in {compiling:.1f} s, {found} from the cache" if count else ""
    return f"{seconds:7.1f} s  {name}, {tests} tests{programs}"


def main():
    """Writes the seconds of long files, as they were measured here."""
    folder = Path(__file__).parents[1] / ".pytest_cache" / "v" / KEY
    found = {backend: json.loads((folder / backend).read_text()) for backend in BACKENDS}
    long = {
        backend: {name: round(cost) for name, cost in sorted(files.items()) if cost >= LONG}
        for backend, files in found.items()
    }
    KNOWN.write_text(json.dumps(long, indent=1) + "\n")


if __name__ == "__main__":
    main()
