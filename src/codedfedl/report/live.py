"""A federation while it runs, for others: a page on a port of this machine, metrics, trackers.

The server answers GET and HEAD alone, on loopback, under the names of loopback (so that no page of
another site can reach it by a name of its own), and has no files: `/` is the report, `/state` what
the run is doing as JSON, `/metrics` the same for Prometheus, and `/health` is 200 while it lives.
"""

import json
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from codedfedl.core.columns import ROUND_COLUMNS
from codedfedl.core.record import PARTS, metric_name
from codedfedl.errors import InputError
from codedfedl.report.html import render_report, render_waiting
from codedfedl.report.reading import RunTables
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.status import Status
from codedfedl.runs.watching import Sight, look
from codedfedl.tracking import Broadcast, Tracker, finite

_STATES = ("running", "done", "failed", "stopped")
_Labelled = list[tuple[dict[str, str], float | None]]
_VALUES = [name for name in ROUND_COLUMNS if name not in ("round", "deadline_s")]
HOST = "127.0.0.1"
_LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?", re.ASCII)
_REQUEST_SECONDS = 10.0  # A request may take so long to arrive.
_QUIET_SECONDS = 2.5  # After so long without a request no page is open, or all have the end.
_FAREWELL_SECONDS = 15.0  # Open pages have so long to fetch the last state.
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

Admits = Callable[[tuple[str, int], tuple[str, int]], bool]
"""Says whether a connection, by its two ends, may be answered."""


class LiveView:
    """What the server shows of a run: a page for every state of it, made once."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self._lock = threading.Lock()
        self._page: tuple[str, str] = "", ""
        self._facts: tuple[str, dict[str, Any]] = "", {}

    def state(self) -> dict[str, Any]:
        """Return what the run is doing; `page` changes whenever the page does."""
        sight = look(self.directory)
        status = sight.status or Status("running", "waiting for the server")
        with self._lock:
            if self._facts[0] != _tag(sight):
                self._facts = _tag(sight), _facts(sight)
            facts = self._facts[1]
        return {**status.facts, "page": _tag(sight), **facts}

    def page(self) -> tuple[str, str]:
        """Return the page and its tag."""
        sight = look(self.directory)
        with self._lock:  # figures are drawn one at a time
            tag = _tag(sight)
            if self._page[0] != tag:
                begun = any(not record.is_setup for record in sight.records)
                render = render_report if begun else render_waiting
                self._page = tag, render(self.directory, live=tag)
            return self._page[1], tag

    def metrics(self) -> str:
        """Return the state for Prometheus."""
        return metrics_text(look(self.directory))


def is_loopback_host(names: Sequence[str]) -> bool:
    """Say whether a request has one Host, and it is a loopback name, with a port at most."""
    return len(names) == 1 and _LOOPBACK.fullmatch(names[0]) is not None


def _facts(sight: Sight) -> dict[str, Any]:
    """Return what changes with the exchanges alone; of many rounds it takes most of a second."""
    last = [each.facts for each in sight.named(len(sight.happened) - 1) if each.round]
    return {
        "round": len(sight.conduct.rounds),
        "suggested_deadline_s": sight.conduct.suggested,
        "last": last[0] if last else None,
    }


def _tag(sight: Sight) -> str:
    state = "running" if sight.status is None else sight.status.state
    return f"{state}-{len(sight.records)}"


class LivePage:
    """A server of a run's page on loopback, from when it is made until it is closed.

    Parameters
    ----------
    port
        0 for any that is free.
    admits
        Refuses connections, such as those of other users; by default none.
    """

    def __init__(
        self, directory: RunDirectory, port: int, admits: Admits = lambda _client, _server: True
    ) -> None:
        self.view, self.admits = LiveView(directory), admits
        self._asked, self._open = -_QUIET_SECONDS, 0
        self._lock = threading.Lock()
        self._server = _listening(port, _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self._server.server_address[1]}/"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if not isinstance(error, KeyboardInterrupt):
                self.farewell()
        finally:
            self._server.shutdown()
            self._server.server_close()

    def farewell(self) -> None:
        """Wait until all open pages have the last state: then they do not ask again."""
        until = time.monotonic() + _FAREWELL_SECONDS
        while time.monotonic() < until:
            with self._lock:
                if not self._open and time.monotonic() - self._asked > _QUIET_SECONDS:
                    return
            time.sleep(0.1)

    def answer(self, path: str) -> tuple[str, str, str] | None:
        """Return the type, text and tag of what a path stands for; None where it is nothing."""
        if path == "/":
            with self._visit():
                text, tag = self.view.page()
                return "text/html", text, tag
        if path == "/state":
            with self._visit():
                return "application/json", json.dumps(self.view.state(), allow_nan=False), ""
        if path == "/metrics":
            return "text/plain; version=0.0.4", self.view.metrics(), ""
        if path == "/health":
            if not self.view.directory.is_alive:
                raise InputError("the run is not under way")
            return "text/plain", "ok\n", ""
        return None

    @contextmanager
    def _visit(self) -> Iterator[None]:
        """Note a browser's question: until a moment after it the page is being read."""
        with self._lock:
            self._open += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1
                self._asked = time.monotonic()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over browsers that went away in the middle of an answer."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def _listening(port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    wrong = "a port is a number from 1 to 65535, or 0 for a free one"
    if 0 <= port <= 65535:
        try:
            return _Server((HOST, port), handler)
        except PermissionError:
            wrong = "ports below 1024 are the superuser's; choose another, such as 8080"
        except OSError as error:
            wrong = (
                f"the port is in use ({error.strerror}); end the process that listens there, or "
                "choose another, or 0 for a free one"
            )
    raise InputError(f"--serve {port}: {wrong}")


def _handler(page: LivePage) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_SECONDS
        server_version, sys_version = "codedfedl", ""

        def do_GET(self) -> None:
            """Answer, by HEAD without a body."""
            names = self.headers.get_all("Host", [])
            here = self.connection.getsockname()
            if not is_loopback_host(names) or not page.admits(self.client_address, here):
                return self._send(HTTPStatus.FORBIDDEN, "text/plain", "forbidden\n")
            try:
                answer = page.answer(self.path)
            except InputError as error:
                return self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{error}\n")
            if answer is None:
                return self._send(HTTPStatus.NOT_FOUND, "text/plain", "not found\n")
            kind, text, tag = answer
            if tag and self.headers.get("If-None-Match") == f'"{tag}"':
                return self._send(HTTPStatus.NOT_MODIFIED, kind, "", tag)
            return self._send(HTTPStatus.OK, kind, text, tag)

        def _send(self, status: HTTPStatus, kind: str, text: str, tag: str = "") -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            if tag:
                self.send_header("ETag", f'"{tag}"')
            for header, value in _HEADERS.items():
                self.send_header(header, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: every open page asks once a second."""

    return Handler


def metrics_text(sight: Sight) -> str:
    """Return gauges and counters of a federation, as a scraper reads them."""
    status, members = sight.status or Status("running", ""), sight.members
    updated = datetime.fromisoformat(status.updated).timestamp() if status.updated else None
    metric = {"name": metric_name(members.classes) if members is not None else ""}
    states: _Labelled = [({"state": name}, float(name == status.state)) for name in _STATES]
    conduct, rounds = sight.conduct, sight.conduct.rounds
    seconds, deadline = (rounds[-1].seconds, rounds[-1].deadline) if rounds else (None, None)
    setup = sum(record.seconds for record in sight.records if record.is_setup)
    total = sum(record.seconds for record in rounds)
    families: list[tuple[str, str, str, float | _Labelled | None]] = [
        ("state", "gauge", "1 for the state that the run is in.", states),
        ("rounds_planned", "gauge", "Rounds planned.", status.rounds),
        ("updated_timestamp_seconds", "gauge", "When the run last said something.", updated),
        ("metric", "gauge", "Of the last model on the test points.", [(metric, status.metric)]),
        ("rounds_total", "counter", "Rounds finished.", len(rounds)),
        ("rounds_seconds_total", "counter", "Seconds spent in rounds.", total),
        ("setup_seconds", "gauge", "Seconds before the first round.", setup),
        ("round_seconds", "gauge", "Seconds of the last round.", seconds),
        ("deadline_seconds", "gauge", "Deadline of the last round.", deadline),
        (
            "suggested_deadline_seconds",
            "gauge",
            "Deadline that nine in ten answers would meet.",
            conduct.suggested,
        ),
        *_clients(sight),
    ]
    return "".join(_family(*family) for family in families)


def _clients(sight: Sight) -> list[tuple[str, str, str, _Labelled]]:
    rounds = [exchange for exchange in sight.named() if exchange.round]
    names = [] if sight.members is None else sight.members.names
    last = rounds[-1] if rounds else None
    answers: _Labelled = [
        ({"client": name, "outcome": part}, float(sum(name in getattr(r, part) for r in rounds)))
        for name in names
        for part in PARTS
    ]
    seconds: _Labelled = [({"client": n}, last.arrived.get(n)) for n in names if last]
    suspected: _Labelled = [({"client": n}, float(n in last.suspected)) for n in names if last]
    return [
        ("answers_total", "counter", "Questions in rounds, by outcome.", answers),
        ("answer_seconds", "gauge", "Seconds of the answers in the last round.", seconds),
        ("suspected", "gauge", "1 for clients whose answers are almost refused.", suspected),
    ]


def _family(name: str, kind: str, text: str, values: float | _Labelled | None) -> str:
    """Write a metric with its help and type; nothing where no value is known."""
    full = f"codedfedl_{name}"
    lines = [
        f"{full}{_labels(labels)} {value:.10g}\n"
        for labels, value in (values if isinstance(values, list) else [({}, values)])
        if value is not None and math.isfinite(value)
    ]
    return f"# HELP {full} {text}\n# TYPE {full} {kind}\n{''.join(lines)}" if lines else ""


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{','.join(pairs)}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class RoundSender:
    """Tells trackers of the rounds of a run directory that they do not know yet.

    Parameters
    ----------
    say
        Is told when a tracker fails.
    """

    def __init__(
        self, directory: RunDirectory, trackers: Iterable[Tracker], say: Callable[[str], object]
    ) -> None:
        self.directory, self._sent = directory, 0
        settings = {cell.label: cell.settings for cell in RunTables(directory).cells.values()}
        self.broadcast = Broadcast(trackers, directory.path.name, settings, say)

    def send(self) -> None:
        """Send what is new, of a federation that is not over too."""
        tables = RunTables(self.directory)
        if not self.broadcast.trackers or tables.has_no_round:
            return
        columns = tables.rounds
        for row in range(self._sent, len(columns["round"])):
            values = {name: float(columns[name][row]) for name in _VALUES}
            self.broadcast.log(
                str(columns["setting"][row]),
                int(columns["seed"][row]),
                int(columns["round"][row]),
                finite(str(columns["metric_name"][row]), values),
            )
        self._sent = len(columns["round"])
