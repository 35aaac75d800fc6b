"""What the benchmarks share: the machine and its ceilings, timing, counting, tables, and the file of results."""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from fiss.runs.provenance import origin

RESULTS = Path(__file__).parent / "results"
Arguments = argparse.Namespace


def arguments(about: str, extra: Callable[[argparse.ArgumentParser], None] | None = None) -> Arguments:
    """The options every benchmark has: --tiny tries it out, --out says which file of results to add to."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--tiny", action="store_true", help="small sizes, once: to see that it works, not how fast")
    parser.add_argument("--out", type=Path, help="JSON to add the results to (default: results/MACHINE.json)")
    if extra is not None:
        extra(parser)
    found = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    return found


def device() -> torch.device:
    """The GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def machine() -> str:
    """A short name of the hardware."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name().lower().replace(" ", "-")
    return f"cpu-{torch.get_num_threads()}-threads"


def seconds(step: Callable[[], object], tiny: bool) -> float:
    """Median time of six calls after two to warm up; the device is waited for after each."""

    def once() -> float:
        began = time.perf_counter()
        step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - began

    for _ in range(1 if tiny else 2):
        once()
    return statistics.median(once() for _ in range(1 if tiny else 6))


def device_seconds(step: Callable[[], object], tiny: bool) -> float:
    """Median time that the GPU works on a step when it is told of it early enough, as in a training loop, where the
    processor is ahead: it first sleeps, and meanwhile the whole step is launched. On a CPU the time of a call."""
    if not torch.cuda.is_available():
        return seconds(step, tiny)
    seconds(step, tiny)
    spent = []
    for _ in range(6):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(200_000_000)  # a tenth of a second
        began.record()
        step()
        ended.record()
        torch.cuda.synchronize()
        spent.append(began.elapsed_time(ended) / 1000)
    return statistics.median(spent)


def peak_gib(step: Callable[[], object]) -> float | None:
    """Largest memory that the GPU holds during a step, GiB."""
    if not torch.cuda.is_available():
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**30


def ceilings(tiny: bool) -> dict[str, float]:
    """What this machine can do at most: bytes copied and bf16 (on a CPU fp32) multiplications per second."""
    where, size = device(), 2**20 if tiny or device().type == "cpu" else 2**28
    block = torch.empty(size * (8 if not tiny else 1), dtype=torch.uint8, device=where)
    other = torch.empty_like(block)
    copied = 2 * block.numel() / seconds(lambda: other.copy_(block), tiny)
    side, kind = (8192, torch.bfloat16) if where.type == "cuda" else (1024 if not tiny else 64, torch.float32)
    a, b = (torch.randn(side, side, device=where, dtype=kind) for _ in range(2))
    multiplied = 2 * side**3 / seconds(lambda: a @ b, tiny)
    return {"bytes_per_second": copied, "flops": multiplied}


def table_of(title: str, rows: list[dict[str, Any]]) -> Table:
    """As narrow as ten columns can be: a terminal may have 100 places."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    for column in columns:
        table.add_column(column, justify="left" if column == columns[0] else "right")
    for row in rows:
        table.add_row(*(_text(row.get(column)) for column in columns))
    return table


def report(name: str, command: str, given: Arguments, rows: list[dict[str, Any]], notes: dict[str, Any]) -> None:
    """Print a table and add it to the machine's results."""
    console = Console()
    tried = " (tiny: only to see that it works)" if given.tiny else ""
    console.print(table_of(f"{name} on {machine()}{tried}", rows))
    for key, value in notes.items():
        console.print(f"{key}: {_text(value)}")
    out = given.out or RESULTS / f"{machine()}.json"
    if given.tiny and given.out is None:
        return
    all_results = json.loads(out.read_text()) if out.is_file() else {}
    all_results[name] = {"command": command, **origin(device()), **notes, "rows": rows}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(all_results, indent=1, sort_keys=True) + "\n")


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
