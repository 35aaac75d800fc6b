"""Writes fiss/published.json from the full record of the paper's tables and the authors' logs: python
tests/support/make_published.py RESULTS.json"""

import json
import sys
from pathlib import Path
from typing import Any

NAMES = {
    "Finetuning": "finetune",
    "LwF": "lwf",
    "ILT": "ilt",
    "MiB": "mib",
    "PLOP": "plop",
    "RCIL": "rcil",
    "FBL": "fbl",
    "FBL_wo_APL": "fbl-without-pseudo-labels",
    "FBL_wo_FSC": "fbl-without-compensation",
    "FBL_wo_FRC": "fbl-without-relation",
}
"""The methods' names there and here."""


def extract(record: dict[str, Any]) -> dict[str, Any]:
    """What `fiss table` shows, by preset."""
    published: dict[str, Any] = {"about": {k: record["meta"][k] for k in ("paper", "repo", "miou_definition", "seeds")}}
    for data, settings in (("voc", ("15-1", "4-4", "8-2")), ("ade", ("100-10",))):
        for setting in settings:
            paper = record["paper"][data][setting]
            made: dict[str, Any] = {"paper": {}, "logs": {}}
            for key, table in paper.items():
                rows = {NAMES[name]: row for name, row in table["methods"].items()}
                made["paper"][key] = {"table": table["table"], "methods": rows}
            logs = record["author_logs"].get(data, {}).get(setting, {"methods": {}})
            for name, log in logs["methods"].items():
                made["logs"][NAMES[name]] = {
                    "task_wise_miou": log["task_wise_miou"],
                    "iou_per_class": log["final_iou_per_class"],
                    "miou": log["final_miou"],
                    "hours": log["run_hours"],
                }
            published[f"{data}-{setting}"] = made
    rcil = record["disagreements"]["paper_vs_logs"][0]
    inside = record["disagreements"]["paper_internal"]
    unpublished = record["disagreements"]["unpublished_in_logs"][0]
    published["voc-15-1"]["notes"] = [
        f"RCIL: the paper prints {rcil['paper_miou']}, the log {rcil['log_miou']} ({rcil['note']}).",
        f"In the logs only: {unpublished['note']}.",
        f"{inside[1]['where']}: {inside[1]['note']}.",
    ]
    published["voc-4-4"]["notes"] = [f"{inside[2]['where']}: {inside[2]['note']}."]
    published["voc-8-2"]["notes"] = []
    published["ade-100-10"]["notes"] = [
        f"{inside[0]['where']}: {inside[0]['note']}.",
        "No log of ADE20k is published; these numbers exist in the paper only.",
    ]
    return published


if __name__ == "__main__":
    found = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    target = Path(__file__).parents[2] / "fiss" / "reports" / "published.json"
    target.write_text(json.dumps(extract(found), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
