"""A run over its rounds: who trained, what clients measured in their own data, and what their monitors saw."""

import html
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from fiss.monitors.accuracy import by_client, total
from fiss.reports.figures import COLOURS, figure, svg, table
from fiss.runs.records import RoundRecord, probed

Rounds = Sequence[RoundRecord]


def calendar(label: str, rounds: Rounds) -> str:
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
    return f"<h3>{html.escape(label)}: rounds and transitions</h3>" + svg(drawn, "who trained in which round")


def monitored(label: str, rounds: Rounds, true: Mapping[int, Sequence[int]]) -> str:
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
    title = f"<h3>{html.escape(label)}: what the monitors saw</h3>"
    return title + svg(drawn, "what clients measured in every round") + table(head, rows)


def _boundaries(axes: Any, rounds: Rounds) -> None:
    for record, following in pairwise(rounds):
        if record.task != following.task:
            axes.axvline(following.round - 0.5, color="#d55e00", linestyle="--", linewidth=1)
    axes.xaxis.get_major_locator().set_params(integer=True)
