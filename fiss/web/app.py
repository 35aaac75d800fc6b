"""The page's server: what it shows, to whom, and how news reach it.

Whoever has the token, from the address that was printed, gets a cookie; a request without it sees nothing. Names other
than this machine's are refused (another site's page could otherwise ask for ours under its own name), the page loads
nothing from elsewhere, and what changes anything is a POST with the token besides the cookie.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any
from urllib.parse import quote

from jinja2 import Template
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fiss.config.config import to_toml
from fiss.errors import UserError
from fiss.progress import Progress
from fiss.reports import report
from fiss.reports.comparison import compare
from fiss.web.control import act
from fiss.web.metrics import TYPE, metrics
from fiss.web.pictures import LARGEST_FILE, Segmenting, Strips
from fiss.web.shelf import Shelf
from fiss.web.watch import Place, WatchedRun

OWN = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
OWN += "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
REPORT = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
REPORT += "frame-ancestors 'self'; sandbox allow-scripts; script-src 'sha256-"
REPORT += base64.b64encode(sha256(report.script().encode()).digest()).decode() + "'"
"""The report's own script, in a frame of no origin."""
HEADERS = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", OWN.encode()),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
EVERY = 1.0
"""Seconds between two readings of the logs, while somebody watches."""
SILENCE = 15.0
"""Seconds after which a line without news is sent, so that a connection that is gone is noticed."""
MOST_COMPARED = 40


@dataclass
class Site:
    """What the server serves."""

    shelf: Shelf
    token: str
    """Empty: everybody who reaches it may read."""
    port: int
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]")
    """Names under which it may be asked for; * for all."""
    control: bool = False
    every: float = EVERY
    strips: Strips = field(default_factory=Strips)
    segmenting: Segmenting = field(default_factory=Segmenting)
    drawing: Lock = field(default_factory=Lock)

    def run(self, request: Request) -> WatchedRun:
        """The run that an address names."""
        return self.shelf.find(request.path_params["id"])


class Guard:
    """In front of everything: the Host, the token, and the headers of every answer."""

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self.app, self.site = app, site
        self.cookie = f"fiss-{site.port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is allowed."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        answer = self._refused(request)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in message["headers"]}
                more = [pair for pair in HEADERS if pair[0] not in names]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        await (answer or self.app)(scope, receive, guarded)

    def _refused(self, request: Request) -> Response | None:
        site = self.site
        name = request.headers.get("host", "").removesuffix(f":{site.port}")
        if "*" not in site.hosts and name not in site.hosts:
            return PlainTextResponse(f"This is not {name}.", 421)
        if not site.token:
            return (
                None if request.method in ("GET", "HEAD") or _from_page(request) else PlainTextResponse("Refused.", 403)
            )
        given = request.query_params.get("token", "")
        if given and request.url.path == "/" and request.method == "GET" and self._is_token(given):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(self.cookie, site.token, httponly=True, samesite="strict", path="/")
            return answer
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not any(map(self._is_token, (request.cookies.get(self.cookie, ""), bearer))):
            return PlainTextResponse("Open the address that `fiss web` printed; it ends in ?token=...", 401)
        if request.method not in ("GET", "HEAD") and not (
            _from_page(request) and self._is_token(request.headers.get("x-fiss-token", ""))
        ):
            return PlainTextResponse("Refused.", 403)
        return None

    def _is_token(self, given: str) -> bool:
        return compare_digest(given.encode(), self.site.token.encode())


def _from_page(request: Request) -> bool:
    """Whether a request that changes something comes from our own page: other sites cannot set this header."""
    origin = request.headers.get("origin")
    own = origin is None or origin.split("://")[-1] == request.headers.get("host")
    return own and "x-fiss-token" in request.headers


Answer = Callable[[Request], Awaitable[Response]]


def _plain_errors(answer: Answer) -> Answer:
    """What a person can put right is said to them."""

    async def answered(request: Request) -> Response:
        try:
            return await answer(request)
        except UserError as error:
            return JSONResponse({"error": str(error)}, 400)
        except (OSError, RuntimeError) as error:  # a file that vanished, a model that does not fit the memory
            return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 500)

    return answered


def make_app(site: Site) -> ASGIApp:
    """The whole server."""
    kinds = {"page.css": "text/css", "drawing.js": "text/javascript", "page.js": "text/javascript"}
    texts = {name: files("fiss.web").joinpath(name).read_text(encoding="utf-8") for name in kinds}

    async def page(request: Request) -> Response:
        text = files("fiss.web").joinpath("page.html").read_text(encoding="utf-8")
        return HTMLResponse(Template(text, autoescape=True).render(token=site.token or "none", control=site.control))

    async def static(request: Request) -> Response:
        name = request.url.path[1:]
        return Response(texts[name], media_type=kinds[name])

    async def events(request: Request) -> Response:
        found = site.shelf.get(request.query_params.get("run", ""))
        return StreamingResponse(news(site, found), media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def measured(request: Request) -> Response:
        await run_in_threadpool(site.shelf.refresh, True)
        return Response(metrics(site.shelf.runs.values()), media_type=TYPE)

    async def config(request: Request) -> Response:
        shown = report.without_secrets(site.run(request).config)
        return PlainTextResponse(to_toml(shown))

    async def strip(request: Request) -> Response:
        path = site.run(request).path
        try:
            return JSONResponse({"columns": await run_in_threadpool(site.strips.of, path)})
        except UserError as error:  # there are no images here, or no model yet: nothing is wrong with the question
            return JSONResponse({"note": str(error)})

    async def segment(request: Request) -> Response:
        run, name = site.run(request), request.query_params.get("model", "")
        if name not in run.now.get("models", ()):
            raise UserError(f"This run has no model {name} any more.")
        data = await _body(request)
        return JSONResponse(
            await run_in_threadpool(site.segmenting, run.path / "weights" / f"{name}.safetensors", data)
        )

    async def compared(request: Request) -> Response:
        runs = _named(site, request)
        view = runs[0].config.evaluation.views[0]
        found = await run_in_threadpool(compare, [run.path for run in runs], view)
        return JSONResponse({"title": found.title, "head": found.head, "rows": found.rows, "notes": found.notes})

    async def figures(request: Request) -> Response:
        paths = [run.path for run in _named(site, request)]
        text = await run_in_threadpool(_report, site, paths)
        return HTMLResponse(text, headers={"content-security-policy": REPORT})

    async def control(request: Request) -> Response:
        run = site.run(request)
        if not site.control:
            raise UserError("Read only: start it with `fiss web --control`.")
        if run.federation is None:
            raise UserError("A simulated run is stopped where it runs, and `fiss resume` goes on with it.")
        try:
            values = json.loads(await _body(request))
        except ValueError as error:
            raise UserError("Expected JSON.") from error
        if not isinstance(values, dict):
            raise UserError("Expected keys and values.")
        answer = await run_in_threadpool(act, run.federation, request.path_params["action"], values)
        return JSONResponse({"answer": answer})

    def get(path: str, answer: Answer) -> Route:
        return Route(path, _plain_errors(answer), methods=["GET"])

    def post(path: str, answer: Answer) -> Route:
        return Route(path, _plain_errors(answer), methods=["POST"])

    routes = [
        *(get(f"/{name}", static) for name in kinds),
        *(get(path, one) for path, one in (("/", page), ("/events", events), ("/metrics", measured))),
        *(get(path, one) for path, one in (("/compare", compared), ("/report", figures))),
        *(get("/runs/{id}/" + name, one) for name, one in (("config", config), ("strip", strip))),
        post("/runs/{id}/segment", segment),
        post("/runs/{id}/{action}", control),
    ]
    return Guard(Starlette(routes=routes), site)


async def news(site: Site, run: WatchedRun | None) -> AsyncIterator[str]:
    """Server-sent events: the list of runs, and one of them; first all of it, then what is new."""
    shown: dict[str, Any] = {}
    await run_in_threadpool(site.shelf.refresh, True)
    place, quiet = Place(), 0.0
    while True:
        found: dict[str, Any] = {}
        if run is not None:
            new, place = run.news(place)
            found |= {"run": {"id": run.id, **new}} if new else {}
        summaries = {own.id: own.summary() for own in site.shelf.runs.values()}
        if changed := [one for key, one in summaries.items() if shown.get(key) != one]:
            found["runs"] = changed
        if gone := [key for key in shown if key not in summaries]:
            found["gone"] = gone
        shown = summaries
        if found:
            quiet = 0.0
            yield f"data: {json.dumps(found, separators=(',', ':'))}\n\n"
        elif quiet >= SILENCE:
            quiet = 0.0
            yield ": nothing new\n\n"
        await asyncio.sleep(site.every)
        quiet += site.every
        await run_in_threadpool(site.shelf.refresh)


async def _body(request: Request) -> bytes:
    """What was sent, refused as soon as it is too long."""
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > LARGEST_FILE:
            raise UserError(f"More than {LARGEST_FILE // 1_000_000} MB are not taken.")
    return bytes(found)


def _named(site: Site, request: Request) -> list[WatchedRun]:
    runs = [site.shelf.find(key) for key in request.query_params.getlist("run")]
    if not 1 <= len(runs) <= MOST_COMPARED:
        raise UserError(f"Name between 1 and {MOST_COMPARED} runs.")
    return runs


def _report(site: Site, paths: Iterable[Path]) -> str:
    """The page of `fiss report`; one at a time."""
    with site.drawing, TemporaryDirectory(prefix="fiss-web-") as place:
        page = Path(place) / "report.html"
        report.write(list(paths), page, Progress())
        return page.read_text(encoding="utf-8")


def address(site: Site, host: str) -> str:
    """What to open."""
    token = f"?token={quote(site.token)}" if site.token else ""
    return f"http://{host}:{site.port}/{token}"
