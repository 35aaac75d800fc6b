"""Starts the page: which port, which token, what is printed."""

import socket
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_urlsafe

import uvicorn

from fiss.errors import UserError
from fiss.web.app import Site, address, make_app
from fiss.web.shelf import Shelf

HERE = ("localhost", "127.0.0.1", "[::1]")
LEAST_TOKEN = 16
"""Letters of a token that others may try to guess."""


def serve(folders: Sequence[Path], port: int, open_: bool, control: bool, host: str, token: str | None) -> None:
    """Serve until it is interrupted."""
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder}: there is no such folder; name runs, folders of runs, or federations.")
    site_token = token_urlsafe(24) if token is None else token
    local = host in ("localhost", "127.0.0.1", "::1")
    if len(site_token) < LEAST_TOKEN and (site_token or not local or control):
        raise UserError(
            f"The token must have {LEAST_TOKEN} letters or more. None at all is possible on this machine only, and "
            "not with --control."
        )
    listening = _listen(host, port)
    port = listening.getsockname()[1]
    hosts = (*HERE, host, f"[{host}]") if host not in ("0.0.0.0", "::") else ("*",)
    site = Site(Shelf(folders), site_token, port, hosts, control)
    shown = address(site, "127.0.0.1" if local else (socket.gethostname() if "*" in hosts else host))
    runs = len(site.shelf.runs)
    print(f"{runs} run{'s' * (runs != 1)} at {shown}", flush=True)
    print("Keep the address to yourself: it has the token in it. Ctrl-C ends the page, and nothing else.", flush=True)
    if open_:
        webbrowser.open(shown)
    settings = uvicorn.Config(
        make_app(site), log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=1
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(settings).run([listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UserError(f"Port {port} of {host} is not to be had ({error.strerror}); --port names another.") from error
