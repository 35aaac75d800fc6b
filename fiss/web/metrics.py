"""What a Prometheus server asks for, in its text format (version 0.0.4)."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from fiss.deployment.status import STATES
from fiss.web.watch import WatchedRun

TYPE = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[Mapping[str, str], float]


def metrics(runs: Iterable[WatchedRun]) -> str:
    """Metrics of every run: rounds, sites by state, bytes, seconds, scores."""
    runs = list(runs)
    lines: list[str] = []

    def add(name: str, kind: str, what: str, samples: Iterable[Sample]) -> None:
        found = [f"fiss_{name}{{{_labels(labels)}}} {float(value)!r}" for labels, value in samples]
        if found:
            lines.extend((f"# HELP fiss_{name} {what}", f"# TYPE fiss_{name} {kind}", *found))

    own = [(run, {"run": run.name, "id": run.id}) for run in runs]
    add("rounds_finished", "gauge", "Rounds that count.", ((me, run.now.get("next", 0)) for run, me in own))
    add("finished", "gauge", "1 if the last round was played.", ((me, run.now.get("finished", 0)) for run, me in own))
    add("classes", "gauge", "Classes so far, without the background.", ((me, len(run.classes)) for run, me in own))
    add(
        "warnings",
        "gauge",
        "Things a person should look at.",
        ((me, len(run.now.get("warnings", ()))) for run, me in own),
    )
    add(
        "sites",
        "gauge",
        "Sites of a federation by state.",
        (
            (me | {"state": state}, Counter(run.now["sites"].values())[state])
            for run, me in own
            if "sites" in run.now
            for state in STATES
        ),
    )
    for name, what in (
        ("seconds", "Seconds that rounds took."),
        ("images", "Images seen in training, repeats counted."),
        ("refused", "Updates that were refused."),
        ("missing", "Times a site that was asked took no part."),
    ):
        add(f"{name}_total", "counter", what, ((me, getattr(run.totals, name)) for run, me in own))
    for name, what in (("sent", "Bytes to the sites."), ("received", "Bytes from the sites.")):
        real = ((me, getattr(run.totals, name)) for run, me in own if run.federation)
        add(f"{name}_bytes_total", "counter", what, real)
    last = [(run, me, run.rounds[-1]) for run, me in own if run.rounds]
    add("round_seconds", "gauge", "Seconds of the last round.", ((me, at["s"]) for _, me, at in last))
    losses = ((me | {"term": term}, value) for _, me, at in last for term, value in at.get("l", {}).items())
    add("loss", "gauge", "Losses of the last round, the mean over who trained.", losses)
    scores = [(me | {"view": score["view"]}, score) for run, me in own for score in _last_by_view(run)]
    means = ((me, score["miou"]) for me, score in scores if "miou" in score)
    add("miou_percent", "gauge", "Mean intersection over union of the last evaluation.", means)
    ious = ((me | {"class": name}, value) for me, score in scores for name, value in score["iou"].items())
    add("iou_percent", "gauge", "Intersection over union by class.", ious)
    return "\n".join([*lines, ""])


def _last_by_view(run: WatchedRun) -> list[dict[str, Any]]:
    return list({score["view"]: score for score in run.scores[-4:]}.values())


def _labels(labels: Mapping[str, str]) -> str:
    pairs = (
        (name, value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")) for name, value in labels.items()
    )
    return ",".join(f'{name}="{value}"' for name, value in pairs)
