"""The benchmarks, once each at tiny sizes: that they work, not how fast anything is."""

import io
import json
import runpy
import sys
from pathlib import Path

import pytest
from ports import free_port
from rich.console import Console

from fiss.errors import UserError

pytestmark = pytest.mark.benchmark

FOLDER = Path(__file__).parents[2] / "benchmarks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "common")


@pytest.fixture
def benchmark(monkeypatch, tmp_path, capsys):
    """`python benchmarks/NAME.py --tiny --out ... WORDS` in this process; gives what it printed."""
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])

    def run(name, *words):
        arguments = [f"{name}.py", "--tiny", "--out", str(tmp_path / "results.json"), *words]
        monkeypatch.setattr(sys, "argv", arguments)
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.network if n == "network" else ()) for n in NAMES])
def test_benchmarks_run_and_leave_results(name, benchmark, tmp_path):
    out = benchmark(name, *(["--port", str(free_port())] if name == "network" else []))
    assert "tiny" in out
    assert '"command": "python benchmarks/' + name in (tmp_path / "results.json").read_text()


def test_one_run_of_many_clients_is_a_line_that_can_be_read(benchmark):
    """What `clients.py` starts in a process of its own where memory is measured."""
    row = json.loads(benchmark("clients", "--one", "10", "selected").splitlines()[-1])
    assert (row["clients"], row["probed"]) == (10, "selected")


def test_what_was_measured_is_kept_when_a_benchmark_is_cut_off(benchmark, tmp_path):
    """Results are written after every row: a method that cannot run takes none of those before it along."""
    with pytest.raises(UserError, match="nonsense"):
        benchmark("step", "--methods", "finetune", "nonsense")
    (table,) = json.loads((tmp_path / "results.json").read_text()).values()
    assert [row["step"] for row in table["rows"]] == ["bare", "finetune"]


def test_every_recorded_table_fits_a_terminal_of_a_hundred_columns(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    show = runpy.run_path(str(FOLDER / "common.py"))["table_of"]
    tables = [
        (name, record["rows"])
        for file in sorted((FOLDER / "results").glob("*.json"))
        for name, record in json.loads(file.read_text()).items()
    ]
    assert max(len({key for row in rows for key in row}) for _, rows in tables) == 10
    for name, rows in tables:
        console = Console(width=100, file=io.StringIO())
        console.print(show(name, rows))
        lines = console.file.getvalue().splitlines()
        assert not any("…" in line for line in lines), name
        assert len(lines) >= len(rows) + 2
