"""What a person sees: bars that move on a terminal, plain lines elsewhere, tables at the end."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table

from fiss.data.dataset import Dataset
from fiss.data.index import Index
from fiss.monitors.accuracy import Seen
from fiss.progress import Progress
from fiss.reports.comparison import Comparison
from fiss.runs.records import ScoreRecord
from fiss.simulation.sweep import JobStatus

CAPTION = "percent; miou, old and base count the background; new and forgetting do not"


class Display(Progress):
    """Listens to a run and shows it; used as a context."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = console.is_terminal
        self.bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}"),
            console=console,
            transient=True,
            disable=not self.live,
        )
        self.counted: TaskID | None = None
        self.overall: TaskID | None = None
        self.where = ""
        self.rounds = self.steps = self.done = self.earlier = 0
        self.images = 0
        self.began = self.client_began = monotonic()
        self.loss = ""

    def __enter__(self) -> "Display":
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def notice(self, text: str) -> None:
        """A line above the bars."""
        self.console.print(f"[yellow]note:[/] {escape(text)}", highlight=False)

    def start(self, what: str, total: int) -> None:
        """A bar for counted work."""
        self.counted = self.bars.add_task(what, total=total, text=f"{total}")

    def advance(self, done: int = 1) -> None:
        """Move that bar."""
        if self.counted is not None:
            self.bars.advance(self.counted, done)

    def finish(self) -> None:
        """Take that bar away."""
        if self.counted is not None:
            self.bars.remove_task(self.counted)
        self.counted = None

    def begin(self, rounds: int, steps: int, done: int) -> None:
        """The bar of the whole run."""
        self.rounds, self.steps, self.done, self.earlier = rounds, steps, done, done
        self.began = monotonic()
        self.overall = self.bars.add_task("", total=max(steps, 1), completed=done, text="")

    def round(self, task: int, round: int, clients: int) -> None:
        """A round begins."""
        self.where = f"task {task}  round {round + 1}/{self.rounds}"

    def client(self, client: int, steps: int) -> None:
        """A client begins to train."""
        self.client_began = monotonic()
        self.client_name = f"client {client}"
        self.images = 0
        self.client_steps = steps

    def step(self, images: int, losses: Mapping[str, float] | None) -> None:
        """One step of training."""
        self.done += 1
        self.client_steps -= 1
        self.images += images
        if losses:
            named = [f"{name} {value:.3f}" for name, value in losses.items()]
            self.loss = "loss " + (" ".join(named) if len(named) > 1 else f"{next(iter(losses.values())):.3f}")
        if self.overall is not None and (losses or self.client_steps == 0):
            text = f"{self.client_name}  {self.loss}  {self._speed():.0f} img/s  {self._left()} left"
            self.bars.update(self.overall, completed=self.done, description=self.where, text=text)
        if self.client_steps == 0 and not self.live:
            self.console.print(
                f"{self.where}  {self.client_name}  {self.loss}  {self._speed():.0f} img/s  {self._left()} left",
                highlight=False,
            )

    def scored(self, record: ScoreRecord) -> None:
        """One line per evaluation."""
        means = {"miou": record.miou, "old": record.old, "new": record.new, "forgetting": record.forgetting}
        parts = [f"{key} {value:.1f}" for key, value in means.items() if value is not None]
        if (seen := record.transitions) is not None:
            parts.append(f"transitions seen {seen.seen} of {seen.true}, false {seen.false}")
        rounds = f"/{self.rounds}" if self.rounds else ""
        self.console.print(
            f"[bold]task {record.task}  round {record.round + 1}{rounds}[/]  {record.view}: {'  '.join(parts)}",
            highlight=False,
        )

    def _speed(self) -> float:
        return self.images / max(monotonic() - self.client_began, 1e-9)

    def _left(self) -> str:
        per_step = (monotonic() - self.began) / max(self.done - self.earlier, 1)
        seconds = int(per_step * (self.steps - self.done))
        hours, minutes = divmod(seconds // 60, 60)
        return f"{hours}:{minutes:02d}:{seconds % 60:02d}" if hours else f"{minutes}:{seconds % 60:02d}"


def score_table(records: Sequence[ScoreRecord], title: str) -> Table:
    """Task by task: the means, and the IoU of every class."""
    table = Table(title=title, title_justify="left", caption=CAPTION, caption_justify="left")
    table.add_column("")
    views = {record.view for record in records}
    for record in records:
        table.add_column(f"task {record.task}" + (f"\n{record.view}" if len(views) > 1 else ""), justify="right")

    def row(name: str, values: Iterable[float | None], style: str = "") -> None:
        table.add_row(escape(name), *("-" if v is None else f"{v:.1f}" for v in values), style=style)

    for key in ("miou", "miou_foreground", "old", "new", "base", "forgetting"):
        row(key.replace("_", ", "), [getattr(r, key) for r in records], "bold" if key == "miou" else "")
    if any(record.transitions for record in records):
        seen = [record.transitions or Seen() for record in records]
        for key in ("true", "seen", "missed", "false"):
            table.add_row(f"transitions, {key}", *(str(getattr(one, key)) for one in seen))
        for key in ("precision", "recall", "delay_probes", "delay_rounds"):
            scale, values = 100 if key in ("precision", "recall") else 1, [getattr(one, key) for one in seen]
            row(f"transitions, {key.replace('_', ' in ')}", [None if v is None else scale * v for v in values])
    table.add_section()
    if records:
        for name in max((record.iou for record in records), key=len):
            row(name, [record.iou.get(name) for record in records])
    return table


def prediction_table(records: Iterable[Mapping[str, Any]], title: str) -> Table:
    """What was found in each image."""
    table = Table(title=escape(title), title_justify="left")
    for head in ("image", "what is in it"):
        table.add_column(head)
    for record in records:
        shares = sorted(record["shares"].items(), key=lambda item: -item[1])
        text = ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares if share >= 0.0005)
        table.add_row(escape(Path(record["image"]).name), escape(text))
    return table


def show(comparison: Comparison, caption: str) -> None:
    """Print a table of strings, and what is to be said about it."""
    table = Table(title=comparison.title, title_justify="left", caption=caption, caption_justify="left")
    for i, name in enumerate(comparison.head):
        table.add_column(name, justify="right" if i else "left", overflow="fold")
    for row in comparison.rows:
        table.add_row(*map(escape, row))
    console = Console()
    console.print(table)
    for note in comparison.notes:
        console.print(f"[yellow]note:[/] {escape(note)}", highlight=False, soft_wrap=True)


def sweep_table(board: Iterable[JobStatus]) -> Table:
    """Every run of a sweep: where it stands, and its mIoU after each task."""
    board = list(board)
    tasks = max((len(p.miou) for p in board), default=0)
    table = Table(title="sweep", title_justify="left")
    for head in ("run", "", *(f"task {t}" for t in range(tasks)), ""):
        table.add_column(head, justify="right" if head.startswith("task") else "left", overflow="fold")
    styles = {"finished": "green", "failed": "red", "running": "bold", "waiting": "dim"}
    for p in board:
        cells = ["-" if v is None else f"{v:.1f}" for v in p.miou]
        cells += [""] * (tasks - len(cells))
        style = styles[p.state]
        table.add_row(escape(p.job.folder.name), f"[{style}]{p.state}[/]", *cells, f"[dim]{escape(p.detail)}[/]")
    return table


def data_table(dataset: Dataset, train: Index, val: Index) -> Table:
    """Images and pixels per class in both splits."""
    table = Table(
        title=f"{dataset.name}: {len(dataset.train.stems)} training and {len(dataset.val.stems)} validation images, "
        f"{len(dataset.classes)} classes",
        title_justify="left",
    )
    table.add_column("id", justify="right")
    table.add_column("class")
    for head in ("train images", "train pixels", "val images", "val pixels"):
        table.add_column(head, justify="right")
    for i, name in enumerate(("background", *dataset.classes)):
        cells = []
        for index in (train, val):
            pixels = index.pixels[:, i]
            share = 100 * pixels.sum() / max(index.pixels.sum(), 1)
            cells += [f"{int((pixels > 0).sum()):,}", f"{share:.2f} %"]
        table.add_row(str(i), escape(name), *cells)
    return table
