"""A federation that is treated badly, played for fewer rounds than by hand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.network, pytest.mark.long]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="a small file system needs root")
def test_everything_happens_and_no_round_is_lost(tmp_path):
    pytest.importorskip("nvflare")
    script = Path(__file__).parent / "soak.py"
    words = [str(tmp_path / "soak"), "--rounds", "16", "--sites", "4"]
    played = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, timeout=1800)
    assert played.returncode == 0, played.stdout[-2000:] + played.stderr[-2000:]
    record = json.loads((tmp_path / "soak" / "soak.json").read_text())
    happened = "\n".join(record["events"])
    for what in ("joins", "killed", "new classes", "disk of site0 is full", "moved", "removed", "left", "ended with 0"):
        assert what in happened
    assert [point["round"] for point in record["curves"]][-1] >= 15
