"""A run over its rounds: who trained, what clients measured in their own data, what their monitors saw, and what
training came to."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from fiss.monitors.accuracy import by_client, total
from fiss.reports.figures import COLOURS, figure, finish, style, svg, table
from fiss.runs.records import RoundRecord, probed

Rounds = Sequence[RoundRecord]


def calendar(label: str, rounds: Rounds) -> Markup:
    """Who was asked in which round, and where a client passed to a new task."""
    replies = [(record.round, reply) for record in rounds for reply in record.replies]
    names = sorted({reply.client for _, reply in replies if isinstance(reply.client, str)})
    rows: dict[int | str, int] = {name: row for row, name in enumerate(names)}  # clients without names: their numbers
    asked = [(round_, rows.get(reply.client, reply.client)) for round_, reply in replies if reply.images]
    moved = [(round_, rows.get(reply.client, reply.client)) for round_, reply in replies if reply.transition]
    drawn = figure(9, 2.6)
    axes = drawn.subplots()
    if asked:
        axes.plot(*zip(*asked, strict=True), "s", color="#56b4e9", markersize=7, label="trained")
    if moved:
        axes.plot(*zip(*moved, strict=True), "*", color="#000000", markersize=8, label="passed to a new task")
    _boundaries(axes, rounds)
    axes.set(xlabel="round (dashed: new classes)", ylabel="site" if names else "client")
    if names:
        axes.set_yticks(range(len(names)), names)
    else:
        axes.yaxis.get_major_locator().set_params(integer=True)
    if asked:
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return Markup("<h3>{}: rounds and transitions</h3>").format(label) + svg(drawn, "who trained in which round")


def monitored(label: str, rounds: Rounds, true: Mapping[int, Sequence[int]]) -> Markup:
    """Entropy and contradicted pixels of every client over the rounds, with its true transitions and the firings of
    its monitor; and how the monitor did."""
    drawn = figure(9, 5)
    both, probes = drawn.subplots(2, 1, sharex=True), probed(rounds)
    for axes, key, name in ((both[0], "entropy", "mean entropy, nats"), (both[1], "missed", "labels contradicted")):
        labelled = set()
        for client in sorted({probe.client for probe in probes}):
            own = [probe for probe in probes if probe.client == client]
            at = {probe.round: getattr(probe.evidence, key) for probe in own}
            axes.plot(list(at), list(at.values()), "-", color=COLOURS[client % len(COLOURS)], lw=1)
            fired = [(probe.round, at[probe.round]) for probe in own if probe.fired]
            came = [(r, at[r]) for r in true.get(client, ()) if r in at]
            for marks, mark, what in ((came, "o", "true transition"), (fired, "x", "monitor fired")):
                if marks:
                    style = {"markerfacecolor": "none", "color": "#000000" if mark == "o" else "#d55e00"}
                    axes.plot(*zip(*marks, strict=True), mark, label="" if what in labelled else what, **style)
                    labelled.add(what)
        _boundaries(axes, rounds)
        axes.set(ylabel=name)
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    both[1].set(xlabel="round (dashed: new classes)")
    parts = by_client(true, probes, rounds[-1].round)
    head = ("client", "true", "seen", "missed", "false", "delay, probes", "delay, rounds")
    rows = [
        (
            name,
            *map(str, (s.true, s.seen, s.missed, s.false)),
            *("-" if d is None else f"{d:.1f}" for d in (s.delay_probes, s.delay_rounds)),
        )
        for name, s in [*((str(client), seen) for client, seen in parts.items()), ("all", total(parts.values()))]
    ]
    title = Markup("<h3>{}: what the monitors saw</h3>").format(label)
    return title + svg(drawn, "what clients measured in every round") + table(head, rows)


def accepted(label: str, rounds: Rounds) -> Markup:
    """Accepted share of offered pixels by local epoch, all clients of a task together; nothing where none were."""
    asked: dict[int, dict[int, float]] = defaultdict(dict)
    counts: dict[int, dict[str, dict[int, list[int]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(lambda: [0, 0]))
    )
    for record in rounds:
        for line in (line for reply in record.replies for line in reply.report.get("pseudo_labels", ())):
            asked[record.task][line["epoch"]] = line["asked"]
            for name, offered in line["offered"].items():
                cell = counts[record.task][name][line["epoch"]]
                cell[0] += offered
                cell[1] += line["accepted"].get(name, 0)
    if not counts:
        return Markup()
    drawn = figure(4.2 * len(counts), 3.4)
    for axes, (task, by_class) in zip(drawn.subplots(1, len(counts), squeeze=False)[0], counts.items(), strict=True):
        often = sorted(by_class, key=lambda n: -sum(o for o, _ in by_class[n].values()))[:10]
        for number, name in enumerate(often):
            there = {epoch: 100 * a / o for epoch, (o, a) in sorted(by_class[name].items()) if o}
            axes.plot(list(there), list(there.values()), label=name, **style(number), markersize=4, linewidth=1)
        wanted = {epoch: 100 * share for epoch, share in sorted(asked[task].items())}
        axes.plot(list(wanted), list(wanted.values()), color="#888888", linewidth=4, alpha=0.4, label="asked for")
        finish(axes, f"task {task}", xlabel="local epoch", ylabel="accepted, %", ylim=(0, 105))
    return Markup("<h3>{}: accepted of the offered pixels</h3>").format(label) + svg(drawn, "accepted pseudo labels")


def losses(by_label: Mapping[str, Rounds]) -> Markup:
    """The terms of each run's loss by round, the mean over its clients."""
    rows = (len(by_label) + 2) // 3
    drawn = figure(9, 2.6 * rows)
    places = drawn.subplots(rows, 3, squeeze=False).flatten()
    for axes in places[len(by_label) :]:
        axes.set_axis_off()
    for axes, (label, rounds) in zip(places, by_label.items(), strict=False):
        terms: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for record in rounds:
            for name, value in record.losses.items():
                terms[name].append((record.round, value))
        for number, (name, points) in enumerate(terms.items()):
            axes.plot(*zip(*points, strict=True), label=name, **style(number), markersize=3)
        finish(axes, label, xlabel="round")
    return svg(drawn, "losses by round")


def _boundaries(axes: Any, rounds: Rounds) -> None:
    for record, following in pairwise(rounds):
        if record.task != following.task:
            axes.axvline(following.round - 0.5, color="#d55e00", linestyle="--", linewidth=1)
    axes.xaxis.get_major_locator().set_params(integer=True)
