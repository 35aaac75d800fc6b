"""What a person sees while the work goes on: bars that move on a terminal or in a notebook, plain lines elsewhere."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from time import monotonic
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table

from fiss.progress import Progress
from fiss.runs.records import ScoreRecord
from fiss.simulation.sweep import JobStatus


def shown(progress: Progress | bool | None) -> AbstractContextManager[Progress]:
    """Where the work is told: the caller's own; True: a display; False: nowhere; None: a display where a person would
    see it, on a terminal or in a notebook."""
    if isinstance(progress, Progress):
        return nullcontext(progress)
    console = Console()
    watched = console.is_terminal or console.is_jupyter
    return Display(console) if progress or (progress is None and watched) else nullcontext(Progress())


class Display(Progress):
    """Listens to a run and shows it; used as a context."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
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
        self.rounds = self.steps = self.done = self.earlier = self.images = 0
        self.began = self.client_began = monotonic()
        self.loss = ""
        self.board: Live | None = None

    def __enter__(self) -> "Display":
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()
        if self.board is not None:
            self.board.stop()

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
        self.where = f"task {task}  round {round}/{self.rounds}"

    def client(self, client: int, steps: int) -> None:
        """A client begins to train."""
        self.client_began = monotonic()
        self.client_name, self.loss = f"client {client}", ""
        self.images = 0
        self.client_steps = steps

    def step(self, images: int, losses: Mapping[str, float] | None) -> None:
        """One step of training."""
        self.done += 1
        self.client_steps -= 1
        self.images += images
        if losses:
            named = [f"{name} {value:.3f}" if len(losses) > 1 else f"{value:.3f}" for name, value in losses.items()]
            self.loss = f"loss {' '.join(named)}"
        speed = self.images / max(monotonic() - self.client_began, 1e-9)
        text = "  ".join(part for part in (self.client_name, self.loss, f"{speed:.0f} img/s", self._left()) if part)
        if self.overall is not None and (losses or self.client_steps == 0):
            self.bars.update(self.overall, completed=self.done, description=self.where, text=text)
        if self.client_steps == 0 and not self.live:
            self.console.print(f"{self.where}  {text}".strip(), highlight=False)

    def scored(self, record: ScoreRecord) -> None:
        """One line per evaluation."""
        means = ("miou", "old", "new", "forgetting")
        parts = [f"{key} {value:.1f}" for key in means if (value := getattr(record, key)) is not None]
        if (seen := record.transitions) is not None:
            parts.append(f"transitions seen {seen.seen} of {seen.true}, false {seen.false}")
        rounds = f"/{self.rounds}" if self.rounds else ""
        self.console.print(
            f"[bold]task {record.task}  round {record.round}{rounds}[/]  {record.view}: {'  '.join(parts)}",
            highlight=False,
        )

    def jobs(self, board: Sequence[JobStatus]) -> None:
        """The table of a sweep's runs, instead of bars."""
        if self.live and self.board is None:
            self.bars.stop()
            self.board = Live(console=self.console, auto_refresh=False)
            self.board.start()
        if self.board is not None:
            self.board.update(sweep_table(board), refresh=True)

    def ended(self, job: JobStatus) -> None:
        """A line for each, where there is no such table."""
        if self.board is None:
            scores = "  ".join("-" if v is None else f"{v:.1f}" for v in job.miou)
            text = f"{job.state}: {job.job.folder.name}  {scores}  {job.detail}"
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _left(self) -> str:
        if self.overall is None:  # sums of a first task that was taken over are counted before the first round
            return ""
        per_step = (monotonic() - self.began) / max(self.done - self.earlier, 1)
        seconds = int(per_step * max(self.steps - self.done, 0))
        hours, minutes = divmod(seconds // 60, 60)
        return f"{hours}:{minutes:02d}:{seconds % 60:02d} left" if hours else f"{minutes}:{seconds % 60:02d} left"


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
