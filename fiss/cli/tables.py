"""Tables that people read at the command line: scores, data, presets, methods, what a run leaves behind."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import fiss
from fiss.config.section import in_words, meanings

if TYPE_CHECKING:
    from fiss.deployment.supervisor import FederationStatus
    from fiss.runs.records import ScoreRecord

CAPTION = "percent; miou, old and first classes count the background; new and forgetting do not"


def listed(title: str, head: Iterable[str], rows: Iterable[Sequence[str]], right: int = 99, **more: Any) -> Table:
    """A table of strings, which are no markup; columns from number `right` on hold numbers."""
    table = Table(title=title, title_justify="left", caption_justify="left", **more)
    for i, name in enumerate(head):
        table.add_column(name, justify="right" if i >= right else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def score_table(records: Sequence[ScoreRecord], title: str) -> Table:
    """Task by task: the means, and the IoU of every class."""
    from fiss.monitors.accuracy import Seen

    several = len({record.view for record in records}) > 1
    heads = (f"task {record.task}" + (f"\n{record.view}" if several else "") for record in records)
    table = listed(title, ("", *heads), (), 1, caption=CAPTION)

    def row(name: str, values: Iterable[float | None], style: str = "") -> None:
        table.add_row(escape(name), *("-" if v is None else f"{v:.1f}" for v in values), style=style)

    for key in ("miou", "miou_foreground", "old", "new", "base", "forgetting"):
        name = "first classes" if key == "base" else key.replace("_", ", ")  # --base is a run
        row(name, [getattr(r, key) for r in records], "bold" if key == "miou" else "")
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
    rows = []
    for record in records:
        shares = sorted(record["shares"].items(), key=lambda item: -item[1])
        text = ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares if share >= 0.0005)
        unsure = f"; unsure {100 * record['unsure']:.1f} %" if "unsure" in record else ""
        rows.append((Path(record["image"]).name, text + unsure))
    return listed(escape(title), ("image", "what is in it"), rows)


def extension_table(done: fiss.Extended) -> Table:
    """What each class had and has on the held-out images."""
    from fiss.metrics import mean

    before, after = done.before, done.after
    assert before is not None
    assert after is not None
    old = [name for name in after.iou if name not in done.new]

    def row(name: str, had: float | None, has: float | None, kept: float | None = None) -> tuple[str, ...]:
        return name, *("-" if v is None else f"{v:.1f}" for v in (had, has, kept))

    rows = [row(name, before.iou.get(name), after.iou[name], done.kept.get(name)) for name in after.iou]
    means = [
        [mean(score.iou.get(name) for name in names) for score in (before, after)]
        for names in (old[1:], done.new, after.iou)
    ]
    rows += [row(name, *pair) for name, pair in zip(("mean, old", "mean, new", "mean, all"), means, strict=True)]
    head = ("class", "before", "after", "kept")
    caption = "IoU on held-out images, percent; kept: pixels without a label that are still called the same"
    return listed(f"{after.images} held-out images", head, rows, 1, caption=caption)


def certificate_table(certificate: Mapping[str, Any]) -> Table:
    """What a certificate says, for people."""
    from fiss.data.dataset import shortened

    removed, files = certificate["removed"], certificate["files"]
    images = f"{len(removed['images'])} images: {shortened(removed['images'])}" if removed["images"] else "all of it"
    rows = [
        ("removed", f"{removed['site']}; {images}"),
        ("cells less", f"{removed['cells']:,}"),
        ("classes that went with it", ", ".join(removed["classes"]) or "none"),
        *((name.replace("_", " "), f"{file['path']}\n{file['sha256']}") for name, file in files.items()),
        ("holds", "\n".join(certificate["claims"])),
        ("not undone", "\n".join(certificate["not_undone"])),
    ]
    return listed(str(certificate["what"]), ("", str(certificate["written"])), rows, show_lines=True)


def show_comparison(comparison: fiss.Comparison, caption: str) -> None:
    """Print a table of strings, and what is to be said about it."""
    console = Console()
    table = listed(comparison.title, comparison.head, comparison.rows, 1, caption=caption)
    widths = _whole_words([comparison.head, *comparison.rows], console.width - 3 * len(comparison.head) - 1)
    for column, width in zip(table.columns, widths, strict=True):
        column.overflow, column.width = "fold", width
    console.print(table)
    for note in comparison.notes:
        console.print(f"[yellow]note:[/] {escape(note)}", highlight=False, soft_wrap=True)


def _whole_words(lines: Sequence[Sequence[str]], room: int) -> list[int] | list[None]:
    """Widths of columns in which no word is broken, where so much room is enough; else nobody says how wide."""
    columns = list(zip(*lines, strict=True))
    whole = [max(map(len, column)) for column in columns]
    widths = [max((len(word) for text in column for word in text.split()), default=0) for column in columns]
    if sum(widths) > room:
        return [None] * len(widths)
    for _ in range(min(room, sum(whole)) - sum(widths)):
        narrow = min((i for i in range(len(widths)) if widths[i] < whole[i]), key=lambda i: widths[i])
        widths[narrow] += 1
    return widths


def data_table(found: fiss.DataCheck) -> Table:
    """Images and pixels per class in both splits, and how much is ignored."""
    dataset, rows = found.dataset, []
    splits, classes = f"{len(dataset.train.stems)} training and {len(dataset.val.stems)}", len(dataset.classes)
    for i, name in enumerate(("background", *dataset.classes)):
        cells = []
        for index in (found.train, found.val):
            shows, pixels, ignored = index.presence[:, i], index.pixels.sum(1), index.summary.ignored
            share = 100 * index.pixels[:, i].sum() / max(pixels.sum(), 1)
            left_out = 100 * ignored[shows].sum() / max((pixels + ignored)[shows].sum(), 1)
            cells += [f"{int(shows.sum()):,}", f"{share:.2f}", f"{left_out:.1f}"]
        rows.append((str(i), name, *cells))
    head = [f"{split} {what}" for split in ("train", "val") for what in ("images", "pixels %", "ignored %")]
    caption = "pixels: of all that are labelled; ignored: of all in the images that show the class"
    title = f"{dataset.name}: {splits} validation images, {classes} class{'es' * (classes > 1)}"
    table = listed(title, ("id", "class", *head), rows, 2, caption=caption)
    table.columns[0].justify = "right"
    return table


def finding_lines(found: fiss.DataCheck, every: bool) -> Iterator[str]:
    """What is wrong and what is suspicious, each with what to do about it."""
    for problem in found.problems if every else map(str, found.findings):
        yield f"[red]problem:[/] {escape(problem)}"
    for suspicion in found.suspicions:
        yield f"[yellow]suspicious:[/] {escape(str(suspicion))}"
    if not found.problems:
        yield "[green]no problems[/]" + (f", {len(found.suspicions)} suspicious" if found.suspicions else "")


def preset_table() -> Table:
    """What can be run."""
    return listed("fiss run PRESET", ("preset", "what it is"), fiss.list_presets().items())


def method_table() -> Table:
    """How not to forget: which there are, and which to take."""
    which = (
        "Which one? analytic for data of your own: later classes are added without training, and nothing is forgotten. "
        "fbl, mib, plop, rcil where the network itself has to go on learning; finetune to see what is forgotten; and "
        "--joint, not in this list, for the upper bound. `fiss methods NAME` shows the fields of one."
    )
    return listed(
        "fiss run PRESET --method METHOD", ("method", "what it is"), fiss.list_methods().items(), caption=which
    )


def field_table(name: str) -> Table:
    """What can be set about a method."""
    from fiss.config.listing import method_fields

    if name in fiss.list_methods():
        found, parts = method_fields(name)
        rows = [(key, takes, plainly(has), text) for key, (takes, has, text) in found.items()]
    else:
        from fiss.methods import find

        method = find(name)
        texts, hints, parts = meanings(type(method)), get_type_hints(type(method)), tuple(method.ablations)
        rows = [
            (field.name, in_words(hints[field.name]), plainly(getattr(method, field.name)), texts.get(field.name, ""))
            for field in fields(method)
        ]
    title = f"{name}: {fiss.list_methods().get(name) or method.__doc__}"
    caption = f"parts to take out: --ablate {', '.join(parts)}" if parts else None
    head = ("method.FIELD", "takes", "has", "what it is")
    return listed(title, head, rows, caption=caption, show_lines=True)


def plainly(value: object) -> str:
    """A value as one writes it after --set."""
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(plainly, value)) if isinstance(value, tuple) else str(value)


def monitor_table() -> Table:
    """How sites can notice new classes."""
    from fiss.monitors.rules import MonitorSpec

    parts = (part.partition(": ") for part in meanings(MonitorSpec)["name"].rstrip(".").split("; "))
    rows = [(name, text or "no site ever reports a new class") for name, _, text in parts]
    return listed("fiss run PRESET --monitor MONITOR", ("monitor", "a site reports new classes when"), rows)


def closing(run: fiss.Run) -> Iterator[Table | str]:
    """The scores of a run, and what to do next."""
    yield score_table(run.folder.ends(), run.path.name)
    path = shlex.quote(str(run.path))
    yield f"{escape(str(run.path))}/report.html  [dim]all of it on one page, for a browser[/]"
    yield from next_commands(
        (f"fiss predict {path} IMAGE...", "segments images with the last model"),
        (f"fiss run {path}/config.toml --method NAME", "the same with another method (`fiss methods`)"),
        (f"fiss compare {path} RUN...", "puts runs side by side"),
    )


def proposal_lines(made: fiss.Proposal, out: Path, runs: bool) -> Iterator[Table | str]:
    """What is proposed and why, how long it takes, and what to do next."""
    from fiss.config.config import flat, to_dict

    values = flat(to_dict(made.config))
    rows = [(key, plainly(values.get(key, "")), why) for key, why in made.reasons.items()]
    yield listed(f"{made.config.data.root} on this machine ({made.machine})", ("key", "proposed", "because"), rows)
    minutes = max(1, round(made.seconds / 60))
    yield f"{escape(str(out))}  [dim]the whole config, to be changed as you like[/]"
    yield f"It will take about {minutes} minute{'s' * (minutes > 1)} here, from a few timed steps."
    if not runs:
        yield from next_commands((f"fiss run {shlex.quote(str(out))}", "runs it"))


def next_commands(*lines: tuple[str, str]) -> Iterator[str]:
    """What one may do next."""
    width = max(len(command) for command, _ in lines)
    yield "next:"
    for command, what in lines:
        yield f"  {escape(command):{width}}  [dim]{what}[/]"


def federation_table(status: FederationStatus, values: Mapping[str, Any]) -> Table:
    """Where a federation stands: what the server's folder says, and the same as plain values."""
    from fiss.deployment.supervisor import describe_round

    last, connected = status.rounds[-1] if status.rounds else None, status.connected
    table = _about(str(status.folder), values["warnings"])
    stopping = ", ending after this round" if status.stopping else ""
    table.add_row("rounds finished", f"{len(status.rounds)}{stopping}")
    if values["waiting"]:
        table.add_row("now", escape(f"{values['doing']}; waiting for {', '.join(values['waiting'])}"))
    table.add_row("classes", escape(", ".join(values["classes"])) or "none yet")
    for name, site in values["sites"].items():
        parts = ["not reached" if connected is None else "connected" if name in connected else "not connected"]
        parts = [] if site["state"] == "removed" else parts
        parts += [site["state"]] if site["state"] not in ("there", "unknown") else []
        parts += ["in the present job" if name in status.job.sites and name not in status.job.missing else ""]
        took = site["last_round"]
        parts += [f"last took part in round {took}, {_share(site)}" if took else "has not taken part"]
        table.add_row(name, ", ".join(part for part in parts if part))
    moved = values["last_transition"]
    table.add_row("last transition", f"round {moved['round']}: {', '.join(moved['sites'])}" if moved else "none yet")
    if last:
        table.add_row("last round", escape(describe_round(last)))
    if score := status.score:
        ious = ", ".join(f"{name} {value:.1f}" for name, value in score.iou.items() if value is not None)
        miou = "-" if score.miou is None else f"{score.miou:.1f}"
        table.add_row(f"mIoU after round {score.round}", escape(f"{miou}: {ious}"))
    if connected is None:
        table.add_row("server", f"{status.project.server}:{status.project.port} does not answer")
    return table


def site_table(values: Mapping[str, Any]) -> Table:
    """A site, as it sees itself."""
    table = _about(values["site"], values["warnings"])
    table.add_row("now", values["doing"])
    table.add_row("certificate", f"until {values['certificate']}" if values["certificate"] else "none")
    if values["rounds"]:
        losses = ", ".join(f"{name} {value:.3f}" for name, value in values["losses"].items())
        table.add_row("last round", f"{values['round']}")
        table.add_row("trained in", f"{values['trained']} of {values['rounds']} rounds; last {values['images']} images")
        table.add_row("losses", escape(losses) or "none")
        table.add_row("its classes", escape(", ".join(values["classes"])) or "none")
        table.add_row("the federation's", escape(", ".join(values["known"])) or "none yet")
        table.add_row("teacher", values["teacher"] or "none")
        table.add_row("GPU", escape(values["device"]))
    for number, line in enumerate(values["log"][-5:]):
        table.add_row("" if number else "log", escape(line))
    return table


def _about(title: str, warnings: Iterable[str]) -> Table:
    table = Table(title=title, show_header=False, title_justify="left")
    for text in warnings:
        table.add_row("[red]warning[/]", escape(text))
    return table


def _share(site: Mapping[str, Any]) -> str:
    return f"{site['images']} images, {100 * site['share']:.0f} % of them all"
