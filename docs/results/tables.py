"""The tables of the pages, out of the records: every function gives one as Markdown."""

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import mean, stdev

import folders
import heldout
import teeth as dental

from fiss.reports import paper

HERE = Path(__file__).parent
SETTINGS = ("15-1", "4-4", "8-2")
SEED = 2023
"""As published."""
SIX = {"training.later_epochs": 0}
"""The published six local epochs; the small presets of 4-4 and 8-2 have two in later tasks."""
BASELINES = ("lwf", "ilt", "mib", "plop", "rcil")
NAMES = {
    "finetune": "finetune",
    "lwf": "LwF",
    "ilt": "ILT",
    "mib": "MiB",
    "plop": "PLOP",
    "rcil": "RCIL",
    "fbl": "**FBL**",
    "analytic": "**closed form** (ours), the first task trained",
    "mib-100": "MiB, distillation 100",
    "fbl-reference": "FBL as the published code computes",
    "fbl-paper": "FBL as its equations are written",
    "fbl-without-pseudo-labels": "FBL without adaptive pseudo labels",
    "fbl-without-compensation": "FBL without compensation",
    "fbl-without-relation": "FBL without relation consistency",
    "fbl-without-pod": "FBL without POD",
    "joint": "joint training, the upper bound",
}
FROZEN = {
    "resnet50": "closed form (ours), nothing trained: ResNet-50",
    "vit-s": "closed form (ours), nothing trained: ViT-S",
}
"""By network."""
MARK = " †"
"""Behind what was computed before the faults in FBL and PLOP were mended."""
Run = dict


def load(name: str) -> dict:
    """One record."""
    return json.loads((HERE / name).read_text())


@cache
def runs() -> tuple[Run, ...]:
    """Every recorded run on Pascal VOC; of two with the same config the one made after the faults were mended."""
    found: dict[str, Run] = {}
    for path in sorted(HERE.glob("voc*.json")):
        record = load(path.name)
        for run in record["runs"]:
            key = json.dumps([run[k] for k in ("preset", "method", "changed", "seed")], sort_keys=True)
            if key not in found or not record.get("before mended faults"):
                found[key] = {**run, "miou": finer(run), "old": bool(record.get("before mended faults"))}
    return tuple(found.values())


def finer(run: Run) -> list[float]:
    """mIoU after each task from the classes' IoU, whose mean is known to more places than its record."""
    means = [average(iou, iou) for iou in run["iou"]]
    assert all(abs(a - b) < 0.02 for a, b in zip(means, run["miou"], strict=True)), run["method"]
    return means


def of(setting: str, seed: int | None = SEED) -> list[Run]:
    """The finished runs of a setting, as the tables order them."""
    order = list(NAMES)
    own = [r for r in runs() if r["preset"] == f"voc-{setting}-small" and r["finished"]]
    own = [r for r in own if seed in (None, r["seed"]) and "tasks.split" not in r["changed"]]
    return sorted(own, key=lambda r: (order.index(r["method"]) if r["method"] in order else 99, len(r["changed"])))


def run_of(setting: str, method: str, changed: Mapping[str, object] | None = None) -> Run | None:
    """The run of a method; the closed form's with the fewest settings changed."""
    if method in FROZEN:  # epochs are nothing to it
        return next((r for r in of(setting) if r.get("network") == method), None)
    own = [r for r in of(setting) if r["method"] == method]
    if method == "analytic" and not changed:
        own = [r for r in own if not any(key.startswith("model.") for key in r["changed"])]
        return own[0] if own else None
    return next((r for r in own if r["changed"] == (changed or {})), None)


def called(run: Run) -> str:
    """A row's name: the method, what was changed, and the mark."""
    if run.get("network"):
        return FROZEN[run["network"]]
    more = f", `{' '.join(heldout.settings(run['changed']))}`" if run["changed"] else ""
    more = ", six epochs" if run["changed"] == SIX else more
    return NAMES.get(run["method"], run["method"]) + more + (MARK if run.get("old") else "")


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def number(value: float | None, places: int = 1) -> str:
    """A number, or nothing."""
    return "" if value is None else f"{round(value, places) + 0:.{places}f}"


def spread(values: Sequence[float]) -> str:
    """Mean and deviation."""
    return number(mean(values)) + (f" ± {stdev(values):.1f}" if len(values) > 1 else "") if values else ""


def theirs(setting: str, method: str) -> float | None:
    """What is published of a method after the last task: the paper's table, else its ablation, else the logs."""
    published = paper.published()[f"voc-{setting}"]
    for table in (published["paper"].get("final"), published["paper"].get("ablation_final")):
        if table and method in table["methods"] and "miou" in table["methods"][method]:
            return table["methods"][method]["miou"]
    log = (published["logs"] or {}).get(method)
    return log["task_wise_miou"][-1] if log else None


def pair(ours: float | None, published: float | None) -> str:
    """Ours / published."""
    if published is None:
        return number(ours) or "not run"
    return f"{number(ours) or '-'} / {number(published)}"


def bold(rows: Sequence[list[str]], columns: Iterable[int], among: Callable[[int], bool]) -> None:
    """The largest number of a column."""
    for column in columns:
        values = {i: float(row[column]) for i, row in enumerate(rows) if row[column] and among(i)}
        for i in (i for i, value in values.items() if value == max(values.values())):
            rows[i][column] = f"**{rows[i][column]}**"


def main() -> str:
    """All methods at the end of the three settings, ours / published."""
    columns = [(s, {}) for s in SETTINGS] + [("8-2", SIX)]
    rows = []
    first = [run_of(s, "fbl", changed) for s, changed in columns]
    logs = [paper.published()[f"voc-{s}"]["logs"]["fbl"]["task_wise_miou"][0] for s, _ in columns]
    rows.append(["*after the first task*", *(pair(r and r["miou"][0], p) for r, p in zip(first, logs, strict=True))])
    for method in ("finetune", *BASELINES, "fbl", "analytic", *FROZEN, "joint"):
        found = [run_of(s, method, changed) for s, changed in columns]
        old = any(run and run["old"] for run in found)
        cells = [pair(r and r["miou"][-1], theirs(s, method)) for r, (s, _) in zip(found, columns, strict=True)]
        rows.append([{**NAMES, **FROZEN}[method] + (MARK if old else ""), *cells])
    return markdown(["mIoU after the last task, ours / published", *SETTINGS, "8-2, six local epochs"], rows)


def short() -> str:
    """The README's: the best baseline alone."""
    rows = []
    for label, methods in (
        ("finetune", ("finetune",)),
        ("best baseline", BASELINES),
        ("FBL", ("fbl",)),
        *(
            [("closed form, the first task trained", ("analytic",))]
            if any(run_of(s, "analytic") for s in SETTINGS)
            else ()
        ),
        ("closed form on a frozen ResNet-50", ("resnet50",)),
        ("closed form on a frozen ViT-S", ("vit-s",)),
        ("joint training, the upper bound", ("joint",)),
    ):
        cells, old = [], False
        for setting in SETTINGS:
            found = [run for m in methods if (run := run_of(setting, m))]
            best = max(found, key=lambda run: run["miou"][-1], default=None)
            there = {m: value for m in methods if (value := theirs(setting, m)) is not None}
            more = ""
            if len(methods) > 1:
                names = {NAMES[best["method"]]} if best else set()
                names |= {NAMES[max(there, key=lambda m: there[m])]} if there else set()
                more = f" ({', '.join(sorted(names))})"
            cells.append(pair(best and best["miou"][-1], max(there.values(), default=None)) + more)
            old |= bool(best and best["old"])
        rows.append([label + (MARK if old else ""), *cells])
    return markdown(["ours / published", *SETTINGS], rows)


def tasks(setting: str) -> str:
    """Every run after each task, and what is published after the last."""
    own = [run for run in of(setting) if run["changed"] != SIX]
    last = max(len(run["miou"]) for run in own)
    rows = []
    for run in own:
        scores = [number(value) for value in run["miou"]]
        scores = [""] * (last - 1) + scores if run["method"] == "joint" else scores
        published = theirs(setting, run["method"]) if not run["changed"] else None
        rows.append([called(run), *scores, number(published)])
    bold(rows, range(2, last + 1), lambda i: own[i]["method"] != "joint")
    head = ["mIoU after task", *map(str, range(last)), f"published, after task {last - 1}"]
    return markdown(head, rows)


def six() -> str:
    """8-2 with the published number of local epochs."""
    own = [run for run in of("8-2") if run["changed"] == SIX]
    rows = [[called(r), *map(number, r["miou"]), number(theirs("8-2", r["method"]))] for r in own]
    bold(rows, range(2, 8), lambda _: True)
    return markdown(["mIoU after task", *map(str, range(7)), "published, after task 6"], rows)


def entered(run: Run) -> list[list[str]]:
    """The classes of each task."""
    known: set[str] = {"background"}
    found = []
    for iou in run["iou"]:
        found.append([name for name in iou if name not in known])
        known |= iou.keys()
    return found


def average(iou: Mapping[str, float | None], names: Iterable[str]) -> float | None:
    """The mean of some classes."""
    there = [value for name in names if (value := iou.get(name)) is not None]
    return mean(there) if there else None


def ends(setting: str) -> str:
    """What the last model knows: background, first classes, later ones, and what was lost."""
    rows = []
    for run in (r for r in of(setting) if len(r["iou"]) > 1):
        last, groups = run["iou"][-1], entered(run)
        later = [name for group in groups[1:] for name in group]
        came = [average(run["iou"][t], group) for t, group in enumerate(groups) if t]
        lost = [
            max(iou[name] for iou in run["iou"][:-1] if iou.get(name) is not None) - last[name]
            for group in groups[:-1]
            for name in group
            if last.get(name) is not None
        ]
        values = [last["background"], average(last, groups[0]), average(last, later), mean(came), mean(lost)]
        rows.append([called(run), *map(number, values)])
    head = ["IoU at the end", "background", "first classes", "later classes", "later classes when they came", "lost"]
    return markdown(head, rows)


def new(setting: str) -> str:
    """The mean IoU of each task's classes when that task ends."""
    rows = []
    for run in (r for r in of(setting) if len(r["iou"]) > 1):
        values = [average(run["iou"][t], group) for t, group in enumerate(entered(run)) if t]
        rows.append([called(run), *map(number, values)])
    count = max(len(row) for row in rows) - 1
    return markdown(["IoU of the new classes of task", *map(str, range(1, count + 1))], rows)


def background(setting: str) -> str:
    """The background's IoU over the tasks, and the share of it whose pseudo label was accepted."""
    rows = []
    for run in (r for r in of(setting) if len(r["iou"]) > 1):
        shares = [task.get("background") for task in run["pseudo labels accepted"] or ()]
        name = called(run)
        values = [number(iou["background"], 0) for iou in run["iou"]]
        rows.append([name, *values, ", ".join(number(share, 2) or "-" for share in shares)])
    count = max(len(row) for row in rows) - 2
    return markdown(["IoU of the background after task", *map(str, range(count)), "accepted of it, from task 1"], rows)


def taken(setting: str) -> str:
    """What the last model calls the background's pixels, where it was scored."""
    rows = []
    for run in (r for r in of(setting) if len(r["iou"]) > 1 and r["background taken for"][-1]):
        shares = sorted(run["background taken for"][-1].items(), key=lambda item: -item[1])[:3]
        cells = [f"{name}, {number(share, 0)} %" for name, share in shares]
        rows.append([called(run), *cells])
    return markdown(["background pixels taken for", "most often", "then", "then"], rows)


def seeds(setting: str) -> str:
    """Methods that were run with several seeds, after the last task."""
    found: dict[str, dict[int, Run]] = defaultdict(dict)
    for run in of(setting, None):
        if not run["changed"]:
            found[called(run)][run["seed"]] = run
    found = {name: own for name, own in found.items() if len(own) > 1}
    if not found:
        return "One seed was run."
    every = sorted({seed for own in found.values() for seed in own})
    rows = []
    for name, own in found.items():
        cells = [number(own[seed]["miou"][-1]) if seed in own else "" for seed in every]
        rows.append([name, *cells, spread([run["miou"][-1] for run in own.values()])])
    bold(rows, range(1, len(every) + 1), lambda _: True)
    return markdown(["mIoU after the last task, by seed", *map(str, every), "mean"], rows)


def closed() -> str:
    """The closed form in every setting and variant that is recorded."""
    own = [(s, run) for s in SETTINGS for run in of(s, None) if run["method"] == "analytic"]
    if not own:
        return "No run of the closed form on Pascal VOC is recorded yet."
    last = max(len(run["miou"]) for _, run in own)
    rows = []
    for setting, run in own:
        scores = [number(value) for value in run["miou"]]
        scores += [""] * (last - len(scores))
        rows.append([setting, called(run), str(run["seed"]), *scores, str(run["seconds"])])
    return markdown(["", "mIoU after task", "seed", *map(str, range(last)), "seconds"], rows)


def ceiling() -> str:
    """What frozen networks reach with all labels at once, beside the three settings."""
    rows = []
    for network, together in load("voc-frozen.json")["all labels at once"].items():
        found = [run_of(setting, network) for setting in SETTINGS]
        rows.append([FROZEN[network], *(number(run and run["miou"][-1]) for run in found), number(together)])
    return markdown(["mIoU at the end", *SETTINGS, "all labels of all images at once"], rows)


BESIDE = {"": "", "image": "their mean over the image", "around": "their mean over nine cells"}


def frozen() -> str:
    """The features that were tried on held-out training images."""
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for row in load("voc-frozen.json")["choice"]:
        fields = {key: row[key] for key in ("maps", "random", "projection") if key in row}
        name = " ".join(f"`{key}={value}`" for key, value in fields.items()).replace("'", "")
        key = (row["network"], name, BESIDE[row["beside"]], str(row["features"]))
        rows.setdefault(key, {})[row["tasks"]] = number(row["miou"])
    head = ["network", "features", "beside them", "dimensions", "all at once", "4-4"]
    return markdown(head, ([*key, found.get("all", ""), found.get("4-4", "")] for key, found in rows.items()))


def made(setting: str) -> str:
    """Which program made which run."""
    rows = []
    for run in of(setting, None):
        first = "own" if run["own first task"] else "shared"
        how = "compiled" if run["compiled"] else "not compiled"
        rows.append([called(run), str(run["seed"]), ", ".join(run["commits"]), how, first, str(run["seconds"])])
    return markdown(["run", "seed", "commit", "", "first task", "seconds"], rows)


def first_task() -> str:
    """The first task of 4-4 by how a client's learning rate falls."""
    record, monitored = load("voc.json")["first tasks"], load("monitors.json")["runs"]
    told = [run_of("4-4", "finetune"), *(r for r in record if r["monitor"] == "told")]
    probed = [r for r in record if r["monitor"] == "oracle"]
    everyone = [r for r in monitored if r["preset"] == "voc-4-4-small" and r["world"] == "synchronous"]
    rows = []
    for name, own in (
        ("from where it last stopped, as published", told),
        ("from the first round it is chosen in (`--monitor oracle`)", probed),
        ("for all together (`--monitor oracle --set monitor.probed=all`)", everyone),
    ):
        by_seed = {run["seed"]: run["miou"][0] for run in own if run and run.get("monitor", "told") != "never"}
        cells = [number(by_seed.get(seed)) or "not run" for seed in (2023, 2024, 2025)]
        rows.append([name, *cells, number(mean(by_seed.values())) if len(by_seed) == 3 else ""])
    return markdown(["mIoU after the first task: a client's rate falls", "2023", "2024", "2025", "mean"], rows)


def cut_off() -> str:
    """The run that the clock stopped."""
    (run,) = load("voc.json")["cut off"]
    two, log = run_of("4-4", "fbl"), paper.published()["voc-4-4"]["logs"]["fbl"]["task_wise_miou"]
    count = len(run["miou"])
    rows = [
        ["FBL, six local epochs" + MARK, *map(number, run["miou"])],
        ["FBL, two local epochs" + (MARK if two["old"] else ""), *map(number, two["miou"][:count])],
        ["FBL, published", *map(number, log[:count])],
    ]
    return markdown(["mIoU after task", *map(str, range(count))], rows)


def published(setting: str) -> str:
    """Every published table, ours beside it."""
    preset = f"voc-{setting}-small"
    chosen = [r for r in of(setting) if not r["changed"] or r is run_of(setting, "analytic")]
    with tempfile.TemporaryDirectory() as out:
        made = paper.tables(preset, [folders.write(run, Path(out)) for run in chosen], "published")
    parts = []
    for table in made:
        parts += [f"**{table.title}**", markdown(table.head, table.rows)]
        if notes := [note.removeprefix("published: ") for note in table.notes]:
            parts.append(markdown(["what is to be known of the published numbers"], ([note] for note in notes)))
    return "\n\n".join(parts)


def choice() -> str:
    """The variants on held-out training images, by group; the best of each is bold."""
    record = load("heldout.json")
    groups: dict[str, list[tuple[float, str, list[float]]]] = defaultdict(list)
    for run in (r for r in record["runs"] if r["finished"] and r["method"] != "finetune"):
        changes = {key: value for key, value in run["changed"].items() if key != "tasks.split"}
        name = called({**run, "changed": changes, "old": record.get("before mended faults")}).replace("**", "")
        group = heldout.group((run["method"], changes))
        groups[group].append((mean(run["miou"][1:]), name, run["miou"]))
    rows = []
    for found in groups.values():
        best = max(found)[0]
        for value, name, scores in found:
            cells = [number(value)] if value < best else [f"**{number(value)}**"]
            rows.append([name, *map(number, scores), *cells])
    return markdown(["mIoU after task", "0", "1", "2", "3", "mean of 1 to 3"], rows)


def shapes(which: str) -> str:
    """A table of the built-in data set: mean and deviation over three seeds."""
    record = load("shapes.json")["tables"][which]
    tasks_ = ("task 0", "task 1", "task 2", "old", "new", "forgetting")
    old = MARK if record["before mended faults"] else ""
    rows = []
    for row in record["rows"]:
        cells = [f"{row[key][0]:.1f} ± {row[key][1]:.1f}" if row[key] else "" for key in tasks_]
        state = f", {row['state']}" if row["method"] != "analytic" and "state" in row else ""
        rows.append([NAMES.get(row["method"], row["method"]).replace("**", "") + state + old, *cells])
    return markdown([f"mIoU, {record['runs']} seeds", *tasks_], rows)


def asked() -> str:
    """The share of pseudo labels asked for and accepted, in the same runs."""
    rows = []
    for row in load("shapes.json")["tables"]["mended"]["rows"]:
        if given := row.get("asked and accepted"):
            name = f"{NAMES.get(row['method'], row['method'])}, {row['state']}".replace("**", "")
            rows.append([name, *(f"{value} %" for value in given[:2]), f"{given[2]:+d} to {given[3]:+d}"])
    return markdown(["", "asked", "accepted", "points between them, by client and epoch"], rows)


def level() -> str:
    """How often the monitor `features` fires."""
    rows = []
    for row in load("level.json")["rows"]:
        cells = [f"{a:.3f} ({b:.3f})" if i == 0 else f"{a:.2f} ({b:.2f})" for i, (a, b) in enumerate(row["fired"])]
        rows.append([row["data"], f"{row['before']}, {row['after']}", *cells])
    shares = ("nothing new", "10 % new", "30 % new", "50 % new", "100 % new")
    return markdown(["data, network", "images before, after", *shares], rows)


NOT_YET = "Not recorded yet."


def teeth() -> str:
    """X-rays at four practices, in four steps, and how far the teeth of each step fall until the end."""
    if not (HERE / "teeth.json").is_file():
        return NOT_YET
    record, steps = load("teeth.json"), list(dental.STEPS)[:-1]
    rows = [
        [run["name"], *(number(dental.fall(run, k)) for k in range(1, len(steps) + 1))]
        for run in record["runs"]
        if run["finished"] and len(run["miou"]) > 1
    ]
    fall = markdown(["falls by", *steps], rows)
    return "\n".join([*dental.table(record), "", fall, "", "![mIoU of the teeth after each step](teeth.svg)"])


def photo_means(way: str) -> list[list[float | None]]:
    """After every step: mIoU, mean IoU of the first classes without background, and of the later ones."""
    steps = load("photos.json")["ways"][way]
    first = [name for name in steps[0]["iou"] if name != "background"]
    found = []
    for step in steps:
        iou = step["iou"]
        later = [name for name in iou if name not in (*first, "background")]
        found.append([average(iou, names) for names in (iou, first, later)])
    return found


def photos() -> str:
    """A photo model that learns five more classes, in both ways."""
    if not (HERE / "photos.json").is_file():
        return NOT_YET
    ways = load("photos.json")["ways"]
    head = ["after", "photos", *(f"{what}, {way}" for what in ("mIoU", "first fifteen", "later") for way in ways)]
    rows = []
    for k, step in enumerate(ways["alone"]):
        scores = [number(photo_means(way)[k][part]) for part in range(3) for way in ways]
        ledger = number(step.get("ledger megabytes"))
        seconds = [str(round(step[key])) for key in ("seconds", "processor")]
        rows.append([step["step"], str(step["images"]), *scores, *seconds, ledger])
    table = markdown([*head, "seconds", "processor, s", "ledger, MB"], rows)
    return f"{table}\n\n![IoU of the photo model after each class](photos.svg)"


def accuracy() -> str:
    """Precision, recall and delay of each monitor: as it ran on shapes, replayed over the oracle's runs on VOC."""
    record = load("monitors.json")
    names = list(dict.fromkeys(r["monitor"] for r in record["replayed"]))
    worlds = [(p, w) for p in ("shapes", "voc-4-4-small") for w in ("synchronous", "asynchronous")]
    rows = []
    for name in names:
        cells = []
        for preset, world in worlds:
            own = [
                r["transitions"]
                for r in record["runs"]
                if (r["preset"], r["world"], r["monitor"]) == (preset, world, name)
            ]
            if own and sum(t["seen"] for t in own):
                seen, false, missed = (sum(t[key] for t in own) for key in ("seen", "false", "missed"))
                delay = sum(t["delay_probes"] * t["seen"] for t in own if t["seen"]) / seen
                cells.append(f"{seen / (seen + false):.2f}, {seen / (seen + missed):.2f}, {number(delay)}")
                continue
            again = next(
                (r for r in record["replayed"] if (r["preset"], r["world"], r["monitor"]) == (preset, world, name)),
                None,
            )
            if again is None:
                cells.append("")
            elif again["precision"] is None:
                cells.append("never fired")
            else:
                cells.append(f"{again['precision']:.2f}, {again['recall']:.2f}, {number(again['delay'])} (replayed)")
        rows.append([name, *cells])
    heads = [f"{'VOC' if 'voc' in preset else preset}, {world}" for preset, world in worlds]
    return markdown(["precision, recall, delay in probes", *heads], rows)


def monitored() -> str:
    """mIoU at the end of whole runs with each monitor."""
    record = load("monitors.json")["runs"]
    rows = []
    for preset in ("shapes", "voc-4-4-small"):
        own = [r for r in record if r["preset"] == preset]
        for name in dict.fromkeys(r["monitor"] for r in own):
            cells = []
            for world in ("synchronous", "asynchronous"):
                last = [r["miou"][-1] for r in own if (r["monitor"], r["world"]) == (name, world)]
                cells += [spread(last), str(len(last) or "")]
            rows.append(["VOC" if "voc" in preset else preset, name, *cells])
    return markdown(["", "monitor", "synchronous", "runs", "asynchronous", "runs"], rows)


def examples(what: str) -> dict[str, list[float | None]]:
    """For a chart: the two worked examples, where they are recorded."""
    if not (HERE / f"{what}.json").is_file():
        return {}
    if what == "teeth":
        return {run["name"]: run["miou"] for run in load("teeth.json")["runs"] if len(run["miou"]) > 1}
    parts = {"all": 0, "first fifteen": 1}
    return {
        f"{part}, {way}": [m[k] for m in photo_means(way)] for part, k in parts.items() for way in ("alone", "drawn")
    }


def curves(setting: str, what: str) -> dict[str, list[float | None]]:
    """For a chart: the paper's methods and the closed form over the tasks."""
    found = {}
    short = {"analytic": "closed form", "resnet50": "frozen ResNet-50", "vit-s": "frozen ViT-S"}
    for method in ("finetune", *BASELINES, "fbl", "analytic", *FROZEN):
        run = run_of(setting, method)
        if run:
            values = run["miou"] if what == "tasks" else [iou["background"] for iou in run["iou"]]
            found[short.get(method, NAMES.get(method, method)).replace("**", "")] = values
    return found
