"""The folder of a federation that never was: as many sites and rounds as wanted."""

import json
import random

from federated import config

from fiss.config.config import to_toml

ASKED = 3
"""Sites that train in a round; all are probed."""
CLASSES = [f"class {i}" for i in range(12)]


class Simulated:
    """Its records, round after round."""

    def __init__(self, folder, sites, rounds):
        self.folder, self.run = folder, folder / "run"
        self.names = [f"site-{i:03d}" for i in range(sites)]
        self.draws, self.done = random.Random(3), 0
        (self.run / "weights").mkdir(parents=True)
        (self.run / "config.toml").write_text(to_toml(config()))
        (folder / "federation.toml").write_text(to_toml(config()))
        people = [{"type": "server", "name": "s", "fed_learn_port": 1}]
        people += [{"type": "client", "name": name} for name in self.names]
        (folder / "project.yml").write_text(json.dumps({"participants": people}))
        (self.run / "sites.json").write_text(json.dumps(self.names))
        lines = [self._next() for _ in range(rounds)]
        for number, name in enumerate(("rounds.jsonl", "scores.jsonl")):
            (self.run / name).write_text("".join(line[number] for line in lines))
        self._commit()

    def play(self, **more):
        """One more round; gives the bytes that were appended."""
        lines = self._next(**more)
        for name, line in zip(("rounds.jsonl", "scores.jsonl"), lines, strict=True):
            with (self.run / name).open("a") as file:
                file.write(line)
        self._commit()
        return sum(map(len, lines))

    def _next(self, **more):
        trained = self.draws.sample(self.names, min(ASKED, len(self.names)))
        known = CLASSES[: min(12, 3 + 3 * (self.done // 3))]
        new = known if not self.done else known[-3:] if self.done % 3 == 0 and self.done <= 9 else []
        fading = 1 / (1 + self.done / 20)
        line = {
            "round": self.done + 1, "task": min(self.done // 3, 3), "clients": len(self.names), "selected": trained,
            "probes": [{"client": name, "transition": bool(new) and name in trained, "missing": 0}
                for name in self.names],
            "classes": len(known), "class_names": known,
            "replies": [{"client": name, "images": 20 + len(name), "steps": 9, "samples": 60,
                "losses": {"compensation": fading + self.draws.random() / 9, "pod": 14 * fading},
                "report": {}, "transition": False} for name in trained],
            "refused": {}, "missing": {}, "brought": dict.fromkeys(new, trained[:1]) or None, "sent": 9_400_000,
            "received": 3_100_000, "seconds": 10 + self.draws.random(), "images_per_second": 17.0, **more,
        }  # fmt: skip
        iou = {"background": 90.0} | {name: 60 * (1 - fading) + 5 * i % 20 for i, name in enumerate(known)}
        miou = sum(iou.values()) / len(iou)
        score = {"round": self.done + 1, "task": line["task"], "view": "published", "miou": miou, "old": miou - 3,
            "new": miou + 2, "forgetting": 4.0, "iou": iou}  # fmt: skip
        self.done += 1
        return [json.dumps({k: v for k, v in record.items() if v is not None}) + "\n" for record in (line, score)]

    def _commit(self):
        state = {
            "format": 2,
            "next_round": self.done,
            "finished": False,
            "config": "x",
            "weights": f"round-{self.done}",
        }
        state["lengths"] = {name: (self.run / name).stat().st_size for name in ("rounds.jsonl", "scores.jsonl")}
        (self.run / "state.json").write_text(json.dumps(state, indent=1))
