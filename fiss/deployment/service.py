"""A systemd unit in each kit: the side starts with its machine, is stopped whole, and leaves no orphan."""

import os
import sys
from pathlib import Path

from fiss.runs.folder import write_atomically

UNIT = "fiss.service"
TEXT = """\
# To install on this machine (adapt User):
#   sudo cp {kit}/{unit} /etc/systemd/system/{name}.service
#   sudo systemctl daemon-reload && sudo systemctl enable --now {name}
# Written for this place and this Python: after moving the kit, `fiss federation upgrade KIT` writes it anew.
[Unit]
Description=fiss federation, {what}
Wants=network-online.target
After=network-online.target

[Service]
Type=simple
User={user}
WorkingDirectory={kit}
Environment=PATH={python}:/usr/local/bin:/usr/bin:/bin
# A mark of an earlier stop, or of a process that was killed, must not stop this one.
ExecStartPre=/bin/rm -f {kit}/shutdown.fl {kit}/daemon_pid.fl {kit}/pid.fl
ExecStart=/bin/bash {kit}/startup/sub_start.sh
ExecStop=/bin/sh -c 'touch {kit}/shutdown.fl; while kill -0 ${{MAINPID}} 2>/dev/null; do sleep 1; done'
KillMode=control-group
TimeoutStopSec=60
Restart=on-failure
RestartSec=10
NoNewPrivileges=true
UMask=0077

[Install]
WantedBy=multi-user.target
"""


def write_unit(kit: Path) -> Path:
    """The unit of a server's or a site's kit, as it lies now; gives the file."""
    is_server = (kit / "startup" / "fed_server.json").is_file()
    path = kit / UNIT
    text = TEXT.format(
        kit=kit.absolute(),
        unit=UNIT,
        name=f"fiss-{kit.name}",
        what=f"the server {kit.name}" if is_server else f"the site {kit.name}",
        user=os.environ.get("USER") or "fiss",
        python=Path(sys.executable).parent,
    )
    write_atomically(path, text.encode())
    return path
