"""Sweeps, as people ask for them: with bars, and a page for each preset; and the page at the end of every run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fiss.config.config import Config
from fiss.progress import Progress
from fiss.reports.display import shown
from fiss.simulation.sweep import Sweep
from fiss.simulation.sweep import sweep as play


def sweep(
    what: str | Path | Config | Sequence[str | Path | Config],
    methods: Sequence[str] = ("paper",),
    seeds: Sequence[int] = (),
    *,
    jobs: int = 1,
    share: bool = False,
    settings: Mapping[str, Any] | None = None,
    out: str | Path = "runs/sweep",
    progress: Progress | bool | None = None,
) -> Sweep:
    """Many runs: methods times seeds, the first task shared, what is done skipped, a report for each preset.

    Args:
        what: Presets, config files or configs, one or several.
        methods: Names of methods, ablations (fbl-without-pod), joint; paper, ablations and all stand for several.
        seeds: None: the preset's.
        jobs: Runs at a time.
        share: RCIL too takes the common first task over, split.
        settings: Keys of the config and their values, for all runs.
        out: Where the run folders go; give it again to go on.
        progress: As for `fiss.run`.

    Returns:
        The runs, and the jobs that failed.

    Example:
        >>> done = fiss.sweep("shapes", ["finetune", "fbl"], seeds=[1, 2])
        >>> fiss.compare(done.runs)
    """
    several = [what] if not isinstance(what, Sequence) or isinstance(what, str) else what
    with shown(progress) as display:
        done = play(several, methods, seeds, Path(out), jobs, share, settings or {}, display)
        for name, own in done.by_preset.items():
            write_page([run.path for run in own], Path(out) / f"{name}.html", display)
    return done


def write_page(runs: Sequence[Path], out: Path, progress: Progress) -> None:
    """The page about runs that have just ended; they are not lost because it cannot be drawn."""
    try:
        from fiss.reports import report

        report.write(runs, out, progress)
    except Exception as error:  # whatever it is, the runs themselves are done and safe
        progress.notice(f"no report: {type(error).__name__}: {error}")
