"""The addresses of the live page, and what each answers."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from jinja2 import Environment, StrictUndefined, Template
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from orchestrator.client.worker_logs import LogReader
from orchestrator.core.errors import UNAVAILABLE, OrchestratorError
from orchestrator.core.files.regular_files import open_below
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import plain, storable
from orchestrator.features.live_page import job_details
from orchestrator.features.live_page.access import AccessRules, Guard, is_of_another_site
from orchestrator.features.live_page.board import to_json
from orchestrator.features.live_page.feed import (
    HEARTBEAT_S,
    LONGEST_PROBLEM,
    LOOK_EVERY_S,
    Feed,
    FirstLook,
)
from orchestrator.features.live_page.first_state import first_state
from orchestrator.features.live_page.folder_source import FolderSource
from orchestrator.features.live_page.job_row import FIELDS, safe_text
from orchestrator.features.live_page.opened_file import OpenedFileResponse
from orchestrator.features.live_page.run_source import RunSource, page_kind
from orchestrator.report.thumbnails import thumbnail

JAVASCRIPT = "text/javascript"
ASSETS = {
    "page.css": "text/css",
    "icon.svg": "image/svg+xml",
    "live.js": JAVASCRIPT,
    "stream.js": JAVASCRIPT,
    "table.js": JAVASCRIPT,
    "jobs.js": JAVASCRIPT,
    "runs.js": JAVASCRIPT,
    "charts.js": JAVASCRIPT,
    "panel.js": JAVASCRIPT,
    "overview.js": JAVASCRIPT,
}
"""Files beside this one that the page consists of, all of them our own."""
MEDIA = {"preview.png": "image/png", "video.mp4": "video/mp4"}
THIS = "this"
"""Names the run directory that was given, in addresses."""
LONGEST_KEY = 80
"""Characters that are shown of the name of an experiment in an address."""
LOG_LINES = 500
CHUNKS_AT_ONCE = 16
LOG_SIGNS = "\n\r\t"
"""Control characters of a log that stay."""
MOST_FEEDS = 50
THUMBNAIL_HEIGHT = 144
GZIP_LEVEL = 5
GZIP = {"content-encoding": "gzip"}
BY_ENCODING = {"vary": "accept-encoding"}
NOT_KEPT = {"cache-control": "no-store"}
EVENTS = {**NOT_KEPT, "x-accel-buffering": "no"}


class LivePages:
    """The application for one run directory, a folder of them, or (None) all of this user on this
    machine.
    """

    def __init__(self, root: Path | None, rules: AccessRules) -> None:
        self._root = root
        self._rules = rules
        self._folder = FolderSource(root)
        self._folder_feed = Feed(lambda: self._folder)
        self._runs: dict[Path, Feed] = {}

    def application(self) -> Guard:
        api = "/api/{key}"
        routes = [
            Route("/", self._page),
            Route("/run/{key}", self._page),
            Route("/assets/{name}", self._asset),
            Route("/api/runs/events", self._runs_events),
            Route(f"{api}/events", self._events),
            Route(f"{api}/jobs/{{job}}", self._job),
            Route(f"{api}/jobs/{{job}}/log", self._log),
            Route(f"{api}/jobs/{{job}}/thumbnail.jpg", self._thumbnail),
            Route(f"{api}/jobs/{{job}}/{{name}}", self._media),
        ]
        handlers = dict.fromkeys(UNAVAILABLE, _unavailable)
        pages = Starlette(routes=routes, exception_handlers=handlers)
        pages.router.redirect_slashes = False  # an address behind a proxy's path is not known here
        return Guard(pages, self._rules)

    async def _is_of_one_run(self) -> bool:
        """Whether the page is that of a run directory, which there may not be yet."""
        return self._root is not None and await asyncio.to_thread(page_kind, self._root) == "run"

    # -- pages

    async def _page(self, request: Request) -> Response:
        is_of_one_run = await self._is_of_one_run()
        key = request.path_params.get("key") or (THIS if is_of_one_run else "")
        values = {
            "key": key,
            "up": "../" if request.path_params else "./",
            "fields": " ".join(FIELDS),
            "token": int(self._rules.token is not None),
            "folder": int(bool(key) and not is_of_one_run),
            "version": _version(),
        }
        look = None
        problem = ""
        try:
            look = await self._first_look(request, key)
        except HTTPException as error:  # which the stream answers, too
            problem = error.detail
        text = await asyncio.to_thread(_page_text, look, {**values, "problem": problem})
        return await _text_response(request, text, "text/html", NOT_KEPT)

    async def _first_look(self, request: Request, key: str) -> FirstLook | None:
        """What the page has from the beginning; None where it is data that may not be shown yet, or
        there is none.

        :raises HTTPException: as :meth:`_run_dir`.
        """
        if self._rules.token is not None or is_of_another_site(request.headers):
            return None
        feed = self._feed(await self._run_dir(key)) if key else self._folder_feed
        return None if feed.problem else await feed.first_look()

    async def _asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in ASSETS:
            raise _nothing_here()
        asset = await asyncio.to_thread(_asset, name, takes_gzip=_takes_gzip(request))
        if _browser_has(request, asset.headers["etag"]):
            return Response(status_code=304, headers=asset.headers)
        return Response(asset.content, media_type=ASSETS[name], headers=asset.headers)

    # -- events

    async def _runs_events(self, request: Request) -> Response:
        return _stream(self._folder_feed, request)

    async def _events(self, request: Request) -> Response:
        run_dir = await self._run_dir(request.path_params["key"])
        return _stream(self._feed(run_dir), request)

    def _feed(self, run_dir: Path) -> Feed:
        if run_dir not in self._runs:
            self._forget_idle()
            self._runs[run_dir] = Feed(partial(RunSource, run_dir))
        return self._runs[run_dir]

    def _forget_idle(self) -> None:
        if len(self._runs) >= MOST_FEEDS:
            self._runs = {path: feed for path, feed in self._runs.items() if feed.has_viewers}

    async def _log(self, request: Request) -> Response:
        run_dir = await self._run_dir(request.path_params["key"])
        row = await asyncio.to_thread(job_details.row, run_dir, request.path_params["job"])
        if row is None:
            raise _nothing_here()
        try:
            attempt = int(request.query_params.get("attempt") or row["attempts"])
            rank = int(request.query_params.get("rank") or 0)
        except ValueError:
            return PlainTextResponse("attempt and rank are numbers\n", status_code=400)
        if not (1 <= attempt <= row["attempts"] and 0 <= rank < row["ranks"]):
            raise _nothing_here()
        path = RunPaths(run_dir).job(row["job_id"]).attempt(attempt - 1).log_of(rank)
        return StreamingResponse(
            _log_events(path, run_dir), media_type="text/event-stream", headers=EVENTS
        )

    # -- single jobs

    async def _job(self, request: Request) -> Response:
        run_dir = await self._run_dir(request.path_params["key"])
        facts = await asyncio.to_thread(job_details.details, run_dir, request.path_params["job"])
        if facts is None:
            raise _nothing_here()
        return Response(to_json(facts), media_type="application/json", headers=NOT_KEPT)

    async def _media(self, request: Request) -> Response:
        run_dir = await self._run_dir(request.path_params["key"])
        name = request.path_params["name"]
        if name not in MEDIA:
            raise _nothing_here()
        file = await asyncio.to_thread(_open_file, run_dir, request.path_params["job"], name)
        if file is None:
            raise _nothing_here()
        return OpenedFileResponse(file, media_type=MEDIA[name], headers=NOT_KEPT)

    async def _thumbnail(self, request: Request) -> Response:
        run_dir = await self._run_dir(request.path_params["key"])
        content = await asyncio.to_thread(_small, run_dir, request.path_params["job"])
        if content is None:
            raise _nothing_here()
        return Response(content, media_type="image/jpeg", headers=NOT_KEPT)

    async def _run_dir(self, key: str) -> Path:
        """The run directory that an address names so.

        :raises HTTPException: it names none.
        """
        if key == THIS:
            if self._root is None or not await self._is_of_one_run():
                raise _nothing_here()
            return self._root
        run_dir = await asyncio.to_thread(self._folder.run_dir, key)
        if run_dir is None:
            name = safe_text(key, LONGEST_KEY)
            why = "its run directory was removed, renamed or moved, or the address is wrong"
            raise HTTPException(404, f'There is no experiment "{name}" here: {why}.\n')
        return run_dir


async def _text_response(
    request: Request, text: str, media_type: str, headers: Mapping[str, str]
) -> Response:
    """Compressed for who takes it so: a page with many jobs then has a tenth of its size."""
    content = text.encode()
    headers = {**headers, **BY_ENCODING}
    if _takes_gzip(request):
        content = await asyncio.to_thread(gzip.compress, content, GZIP_LEVEL, mtime=0)
        headers |= GZIP
    return Response(content, media_type=media_type, headers=headers)


def _takes_gzip(request: Request) -> bool:
    """Whether the browser names gzip, and does not refuse it with a weight of 0 (RFC 9110, 12.5.3)."""
    for one in request.headers.get("accept-encoding", "").lower().split(","):
        coding, _, weight = one.replace(" ", "").replace("\t", "").partition(";")
        if coding == "gzip":
            return not re.fullmatch(r"q=0(\.0*)?", weight)
    return False


def _browser_has(request: Request, etag: str) -> bool:
    """Whether the browser has the content with that tag. A proxy that compresses makes weak ones."""
    given = request.headers.get("if-none-match", "").split(",")
    return any(one.strip().removeprefix("W/") in (etag, "*") for one in given)


def _stream(feed: Feed, request: Request) -> Response:
    """Events that go on after what the page has, if it says which board it has, and in which
    version.
    """
    if feed.problem:
        return PlainTextResponse(f"{feed.problem}\n", status_code=503)
    known = request.query_params
    try:
        version = int(known.get("version", 0))
    except ValueError:
        return PlainTextResponse("version is a number\n", status_code=400)
    messages = feed.messages(known.get("board", ""), version)
    return StreamingResponse(messages, media_type="text/event-stream", headers=EVENTS)


async def _log_events(path: Path, run_dir: Path) -> AsyncIterator[str]:
    """The end of a log, and what is written to it."""
    reader = LogReader(path, LOG_LINES, below=run_dir)
    quiet_s = 0.0
    problem = ""
    while True:
        try:
            texts = await asyncio.to_thread(list, islice(reader.new_text(), CHUNKS_AT_ONCE))
            problem = ""
        except OrchestratorError as error:
            texts = [] if str(error) == problem else [f"{error}\n"]
            problem = str(error)
        for text in texts:
            yield f"data: {json.dumps(plain(text, keep=LOG_SIGNS))}\n\n"
        quiet_s = 0.0 if texts else quiet_s + LOOK_EVERY_S
        if quiet_s >= HEARTBEAT_S:
            quiet_s = 0.0
            yield ": alive\n\n"
        await asyncio.sleep(LOOK_EVERY_S)


def _nothing_here() -> HTTPException:
    """To be raised; Starlette answers with it."""
    return HTTPException(404, "There is nothing here.\n")


async def _unavailable(_request: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{safe_text(str(error), LONGEST_PROBLEM)}\n", status_code=503)


def _file_of(run_dir: Path, job: str, name: str) -> Path | None:
    """None where the ledger does not know such a job."""
    row = job_details.row(run_dir, job)
    return None if row is None else RunPaths(run_dir).job(row["job_id"]).root / name


def _open_file(run_dir: Path, job: str, name: str) -> BinaryIO | None:
    path = _file_of(run_dir, job, name)
    try:
        return None if path is None else open_below(run_dir, path)
    except OSError:  # it is not there, is no regular file, or a link leads out
        return None


def _small(run_dir: Path, job: str) -> bytes | None:
    path = _file_of(run_dir, job, "preview.png")
    try:
        return None if path is None else _thumbnail_of(run_dir, path, path.stat().st_mtime_ns)
    except OSError:  # there is none
        return None


@lru_cache(maxsize=2_000)
def _thumbnail_of(run_dir: Path, path: Path, _written: int) -> bytes | None:
    with open_below(run_dir, path) as file:
        return thumbnail(file, THUMBNAIL_HEIGHT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """A file that the page consists of, as it is sent."""

    content: bytes
    headers: Mapping[str, str]


@lru_cache
def _asset(name: str, *, takes_gzip: bool) -> Asset:
    """Compressed once. A browser asks each time whether it has changed, by its ``etag``."""
    content = _asset_text(name).encode()
    digest = hashlib.sha256(content).hexdigest()[:16]
    headers = {"cache-control": "no-cache", **BY_ENCODING}
    if not takes_gzip:
        return Asset(content=content, headers={**headers, "etag": f'"{digest}"'})
    return Asset(
        content=gzip.compress(content, mtime=0),
        headers={**headers, **GZIP, "etag": f'"{digest}-gzip"'},
    )


@lru_cache
def _asset_text(name: str) -> str:
    return (
        resources.files("orchestrator.features.live_page")
        .joinpath("assets", name)
        .read_text(encoding="utf-8")
    )


@lru_cache
def _page_template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_asset_text("page.html"))


def _page_text(look: FirstLook | None, values: Mapping[str, object]) -> str:
    first = None if look is None else first_state(look)
    return storable(_page_template().render(values, first=first))


@lru_cache
def _version() -> str:
    """Differs when an asset has changed."""
    return hashlib.sha256("".join(map(_asset_text, ASSETS)).encode()).hexdigest()[:10]
