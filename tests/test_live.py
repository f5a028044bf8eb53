"""A federation watched while it runs: its journal from outside, the page's server, the commands."""

import fcntl
import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codedfedl.cli import following
from codedfedl.errors import InputError
from codedfedl.io.connections import own_or_superuser
from codedfedl.report.html import render_report
from codedfedl.report.live import LivePage, LiveView, metrics_text
from codedfedl.report.reading import RunTables
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.journal import Journal
from codedfedl.runs.watching import look
from tests.conftest import Run
from tests.growing import (
    DEADLINE,
    ROUNDS,
    SETUPS,
    SLOW_SECONDS,
    GrowingRun,
    after_every_look,
    finished_run,
    samples,
)

SLOW_NAME = "node-003"
OTHERS = ["node-000", "node-001", "node-002"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return finished_run(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def growing(finished: RunDirectory, tmp_path: Path) -> Iterator[GrowingRun]:
    run = GrowingRun(finished, tmp_path / "run")
    yield run
    run.lock.close()


class TestLook:
    def test_it_sees_every_exchange_as_it_comes(self, growing: GrowingRun) -> None:
        assert look(growing.directory).records == []
        counts = []
        while growing.grow():
            sight = look(growing.directory)
            counts.append(len(sight.records))
            assert sight.status is not None
            assert sight.status.round == max(0, len(sight.records) - SETUPS)
        assert counts == list(range(1, SETUPS + ROUNDS + 1))
        assert [one.round for one in sight.named()] == [0] * SETUPS + list(range(1, ROUNDS + 1))
        for one in sight.named(SETUPS):
            assert list(one.arrived) == OTHERS
            assert one.late == [SLOW_NAME]

    def test_a_file_that_is_being_written_is_not_there_yet(self, growing: GrowingRun) -> None:
        """Half a file, on a disk that shows it: it and what follows count when it is whole."""
        growing.grow()
        whole = growing.paths[1].read_bytes()
        place = growing.exchanges / growing.paths[1].name
        for part in (0, 10, len(whole) // 2, len(whole) - 1):
            place.write_bytes(whole[:part])
            assert len(look(growing.directory).records) == 1
        place.write_bytes(whole)
        assert len(look(growing.directory).records) == 2

    def test_rounds_that_somebody_removes_are_gone(self, growing: GrowingRun) -> None:
        growing.finish()
        assert len(look(growing.directory).records) == SETUPS + ROUNDS
        (growing.exchanges / growing.paths[-1].name).unlink()
        assert len(look(growing.directory).records) == SETUPS + ROUNDS - 1

    def test_it_leaves_the_directory_as_it_is(self, growing: GrowingRun) -> None:
        for _ in range(3):
            growing.grow()
        before = files_of(growing.directory.path)
        view = LiveView(growing.directory)
        view.page()
        view.state()
        view.metrics()
        assert files_of(growing.directory.path) == before

    def test_a_directory_that_does_not_exist_yet(self, tmp_path: Path) -> None:
        sight = look(RunDirectory(tmp_path / "run"))
        assert (sight.status, sight.members, sight.records) == (None, None, [])
        page, _ = LiveView(RunDirectory(tmp_path / "run")).page()
        assert "waiting for the server" in page

    def test_it_knows_how_long_late_answers_took(self, finished: RunDirectory) -> None:
        conduct = look(finished).conduct
        (seconds,) = set(np.round(conduct.answer_seconds[3], 6))
        assert seconds == SLOW_SECONDS + 0.05  # and what the transport itself takes
        assert conduct.suggested == 11.0


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in found}


class TestReport:
    def test_tables_from_the_journal_are_those_of_the_end(self, growing: GrowingRun) -> None:
        """Every row that does not need what only the server knows is the same."""
        growing.finish()
        ended = RunTables(growing.directory)
        tables = {name: getattr(ended, name) for name in ("rounds", "timeline", "refusals")}
        growing.status.running("round 5")
        running = RunTables(growing.directory)
        for name, columns in tables.items():
            again = getattr(running, name)
            assert set(again) == set(columns)
            for key, values in columns.items():
                np.testing.assert_array_equal(again[key], values, f"{name}.{key}")

    def test_a_report_of_a_run_in_progress_says_so(self, growing: GrowingRun, run: Run) -> None:
        growing.set_up()
        code, _, err = run("report", growing.directory.path)
        assert code == 2
        assert "the run is not finished: it is running after round 0 of 4" in err
        growing.grow()
        code, _, err = run("report", growing.directory.path)
        assert code == 0
        assert "is running after round 1 of 4 (exchange 2 is finished), last updated" in err
        page = (growing.directory.path / "report.html").read_text("utf-8")
        assert re.search(r'class="state"><b>Running</b>.*exchange 2 is finished', page)
        assert "coded-newton on 4 real clients" in page
        growing.finish()
        assert run("report", growing.directory.path)[0] == 0
        assert 'class="state"' not in (growing.directory.path / "report.html").read_text("utf-8")

    def test_a_run_that_failed_is_reported_as_far_as_it_came(
        self, growing: GrowingRun, run: Run
    ) -> None:
        growing.set_up()
        growing.grow()
        growing.status.failed("accuracy <fell>")
        assert run("report", growing.directory.path)[0] == 0
        page = (growing.directory.path / "report.html").read_text("utf-8")
        assert '<b>Failed</b><span class="text">accuracy &lt;fell&gt;</span>' in page

    def test_the_page_names_who_is_late_and_what_the_deadline_should_be(
        self, finished: RunDirectory
    ) -> None:
        page = render_report(finished)
        assert f"Deadline {DEADLINE:g} s: 12 of 16 expected answers met it" in page
        assert "Suggested: 11 s" in page
        row = page[page.index(f'<td class="left">{SLOW_NAME}</td>') :]
        assert row[: row.index("</tr>")].count("×") == ROUNDS
        assert "fetch(" not in page  # a report asks nobody


class TestEvents:
    def test_every_line_is_a_document(self, finished: RunDirectory) -> None:
        lines = (finished.path / "events.jsonl").read_text("ascii").splitlines()
        events = [json.loads(line) for line in lines]
        assert [e["time"] for e in events] == sorted(e["time"] for e in events)
        rounds = [e for e in events if e["event"] == "exchange"]
        assert [e["round"] for e in rounds] == [0] * SETUPS + list(range(1, ROUNDS + 1))
        records = Journal(finished.path).records()
        for event, record in zip(rounds[SETUPS:], records[SETUPS:], strict=True):
            assert list(event["arrived"]) == OTHERS
            assert event["late"] == [SLOW_NAME]
            assert event["seconds"] == pytest.approx(record.seconds, abs=1e-3)
            assert event["metric"] == pytest.approx(record.metric)
        texts = [e["text"] for e in events if e["event"] == "message"]
        log = finished.log.read_text("utf-8")
        assert texts
        assert all(text in log for text in texts)
        assert any(re.match(r"advice: 12 of 16 .* try federation.deadline = 11", t) for t in texts)

    def test_strange_words_stay_in_their_line(self, tmp_path: Path) -> None:
        directory = RunDirectory(tmp_path)
        directory.event("message", text='a\n{"event": "exchange"}\ud800')
        (line,) = (tmp_path / "events.jsonl").read_text("ascii").splitlines()
        assert json.loads(line)["event"] == "message"


class TestMetrics:
    def test_they_count_what_is_in_the_journal(self, growing: GrowingRun) -> None:
        growing.set_up()
        for _ in range(3):
            growing.grow()
        found = samples(metrics_text(look(growing.directory)))
        assert found["codedfedl_state", 'state="running"'] == 1
        assert found["codedfedl_state", 'state="done"'] == 0
        assert found["codedfedl_rounds_total", ""] == 3
        assert found["codedfedl_rounds_planned", ""] == ROUNDS
        assert found["codedfedl_metric", 'name="accuracy"'] == 0.5
        assert found["codedfedl_deadline_seconds", ""] == DEADLINE
        assert found["codedfedl_suggested_deadline_seconds", ""] == 11
        assert found["codedfedl_answers_total", f'client="{SLOW_NAME}",outcome="late"'] == 3
        assert found["codedfedl_answers_total", 'client="node-000",outcome="arrived"'] == 3
        assert found["codedfedl_answer_seconds", 'client="node-001"'] == pytest.approx(3.05)

    def test_before_the_first_word_there_is_a_state(self, tmp_path: Path) -> None:
        found = samples(metrics_text(look(RunDirectory(tmp_path / "run"))))
        assert found["codedfedl_state", 'state="running"'] == 1
        assert found["codedfedl_rounds_total", ""] == 0

    def test_names_are_escaped(self, finished: RunDirectory) -> None:
        sight = look(finished)
        assert sight.members is not None
        odd = replace(sight.members, names=['a"b', "c\\d", "e\nf", "g"])
        text = metrics_text(replace(sight, members=odd))
        samples(text)
        assert r'client="a\"b"' in text
        assert r'client="c\\d"' in text
        assert r'client="e\nf"' in text


@pytest.fixture
def served(growing: GrowingRun) -> Iterator[LivePage]:
    growing.set_up()
    growing.grow()
    with LivePage(growing.directory, 0) as page:
        yield page
        page._asked = -np.inf  # nobody to wait for


def get(
    page: LivePage, path: str = "/", method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], str]:
    port = int(page.address.rstrip("/").rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, {k.lower(): v for k, v in answer.getheaders()}, text


class TestServer:
    def test_page_state_and_metrics(self, served: LivePage, growing: GrowingRun) -> None:
        status, headers, page = get(served)
        assert status == 200
        assert headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "coded-newton on 4 real clients" in page
        state = json.loads(get(served, "/state")[2])
        assert (state["state"], state["round"], state["rounds"]) == ("running", 1, ROUNDS)
        assert state["last"]["late"] == [SLOW_NAME]
        assert f'data-page="{state["page"]}"' in page
        assert samples(get(served, "/metrics")[2])["codedfedl_rounds_total", ""] == 1
        growing.finish()
        state = json.loads(get(served, "/state")[2])
        assert (state["state"], state["round"]) == ("done", ROUNDS)
        assert f'data-page="{state["page"]}"' in get(served)[2]

    def test_a_page_is_sent_once(self, served: LivePage, growing: GrowingRun) -> None:
        _, headers, _ = get(served)
        tag = headers["etag"]
        assert get(served, **{"If-None-Match": tag})[0] == 304
        growing.grow()
        assert get(served, **{"If-None-Match": tag})[0] == 200

    @pytest.mark.parametrize(
        "path",
        ["/config.toml", "/../config.toml", "/state/", "/?x", "*"],
    )
    def test_there_is_nothing_else(self, served: LivePage, path: str) -> None:
        assert get(served, path)[0] == 404

    def test_a_head_has_no_body(self, served: LivePage) -> None:
        status, headers, text = get(served, method="HEAD")
        assert (status, text) == (200, "")
        assert int(headers["content-length"]) > 0

    def test_health_is_that_of_the_run(self, served: LivePage, tmp_path: Path) -> None:
        """A process must work on it: one whose server was killed still says that it runs."""
        assert get(served, "/health")[::2] == (200, "ok\n")
        shutil.copytree(served.view.directory.path, tmp_path / "copy")
        with LivePage(RunDirectory(tmp_path / "copy"), 0) as page:
            assert get(page, "/health")[0] == 503

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT"])
    def test_it_only_answers_get(self, served: LivePage, method: str) -> None:
        assert get(served, method=method)[0] == 501

    @pytest.mark.parametrize(
        ("host", "status"),
        [
            ("127.0.0.1", 200),
            ("localhost:1", 200),  # as through a tunnel
            ("evil.example", 403),
            ("evil.example:80", 403),
            ("127.0.0.1.evil.example", 403),
            ("localhost.evil.example:80", 403),
            ("evil.example:80:127.0.0.1", 403),
            ("evil.example:127.0.0.1", 403),
            (":127.0.0.1", 403),
            ("evil.example@127.0.0.1", 403),
            ("127.0.0.1:80:80", 403),
            ("127.0.0.1:", 403),
            ("127.0.0.1:\xb2", 403),  # a superscript is a digit to str.isdigit
            ("127.0.0.1:123456", 403),
            ("127.0.0.1 evil.example", 403),
            ("[::1]", 403),
            ("", 403),
        ],
    )
    def test_other_names_of_this_machine_are_refused(
        self, served: LivePage, host: str, status: int
    ) -> None:
        """A site of an attacker can point its own name here, and must not read the page then."""
        for path in ("/", "/state", "/metrics"):
            assert get(served, path, Host=host)[0] == status

    def test_a_second_host_is_refused(self, served: LivePage) -> None:
        """Whoever stands between might go by the other one."""
        names = b"Host: 127.0.0.1\r\nHost: evil.example\r\n"
        port = int(served.address.rstrip("/").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as link:
            link.sendall(b"GET /state HTTP/1.1\r\n%s\r\n" % names)
            assert link.recv(100).split()[1] == b"403"

    def test_other_users_are_refused(self, growing: GrowingRun) -> None:
        with LivePage(growing.directory, 0, lambda _client, _server: False) as page:
            assert get(page)[0] == 403

    def test_this_user_is_admitted(self, growing: GrowingRun) -> None:
        with LivePage(growing.directory, 0, own_or_superuser) as page:
            assert get(page)[0] == 200
            page._asked = -np.inf

    def test_it_listens_on_loopback_alone(self, served: LivePage) -> None:
        assert served._server.socket.getsockname()[0] == "127.0.0.1"

    def test_a_damaged_run_is_an_answer(self, served: LivePage, growing: GrowingRun) -> None:
        (growing.directory.path / "status.json").write_text("{")
        status, _, text = get(served, "/state")
        assert status == 503
        assert "status.json" in text


class TestCommands:
    def test_a_port_in_use_is_named_before_any_work(self, run: Run, tmp_path: Path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            out = tmp_path / "run"
            code, _, err = run("federate", "local", "--serve", port, "--out", out)
        assert code == 2
        assert f"--serve {port}: the port is in use" in err
        assert "choose another" in err
        assert not out.exists()

    def test_a_port_out_of_range(self, run: Run, tmp_path: Path) -> None:
        out = tmp_path / "run"
        code, _, err = run("federate", "local", "--serve", 70000, "--out", out)
        assert code == 2
        assert "70000" in err
        assert "65535" in err
        assert not out.exists()
        with pytest.raises(InputError, match="from 1 to 65535"):
            LivePage(RunDirectory(out), -1)

    def test_every_round_is_shown_once_and_with_names(
        self, growing: GrowingRun, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A round is there before, and another comes after every look."""
        growing.set_up()
        growing.grow()
        after_every_look(monkeypatch, growing.grow_or_finish)
        code, _, err = run("federate", "follow", growing.directory.path)
        assert code == 0
        shown = re.findall(r"round (\d) of 4: .* 3 arrived \((.*?)\), 1 late \((.*?)\)", err)
        assert shown == [(str(k + 1), ", ".join(OTHERS), SLOW_NAME) for k in range(ROUNDS)]
        assert "advice: 12 of 16 answers met the deadline of 6 s" in err
        assert (growing.directory.path / "report.html").is_file()

    def test_a_status_that_lags_behind_is_no_news(
        self, growing: GrowingRun, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A server writes the journal first, and its status after."""
        sentences = [one.sentence(ROUNDS) for one in look(growing.source).named()]
        growing.grow()

        def grow() -> None:
            more = growing.grow()
            before = max(0, len(list(growing.exchanges.glob("[0-9]*.npz"))) - 2)
            growing.status.running(sentences[before])
            if not more:
                growing.finish()

        after_every_look(monkeypatch, grow)
        _, _, err = run("federate", "follow", growing.directory.path)
        for sentence in sentences:
            assert err.count(sentence) == 1

    def test_following_what_does_not_run(
        self, growing: GrowingRun, run: Run, tmp_path: Path
    ) -> None:
        code, _, err = run("federate", "follow", tmp_path / "none")
        assert code == 2
        assert "is not the directory of a run in progress" in err
        growing.finish()
        code, _, err = run("federate", "follow", growing.directory.path)
        assert code == 2
        assert "is done after round 4 of 4" in err

    def test_a_failure_ends_it_with_the_reason(
        self, growing: GrowingRun, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reason = "no parity from ada: look at its log"
        after_every_look(monkeypatch, lambda: growing.status.failed(reason))
        code, _, err = run("federate", "follow", growing.directory.path)
        assert code == 2
        assert "no parity from ada: look at its log" in err

    def test_a_dead_server_is_told_with_the_remedy(
        self, growing: GrowingRun, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The kernel gives the lock of a killed process back."""
        growing.set_up()
        looks = iter(range(3))

        def live_and_die() -> None:
            growing.grow() if next(looks, 2) < 2 else growing.lock.close()

        after_every_look(monkeypatch, live_and_die)
        path = growing.directory.path
        code, _, err = run("federate", "follow", path)
        assert code == 2
        assert f"the server of {path} is dead" in err
        assert "running after round 2 of 4" in err
        assert f"federate run {path}/config.toml --out {path}" in err
        assert "round 2 of 4: " in err  # what it did before is shown

    def test_a_killed_process_is_a_dead_server(self, growing: GrowingRun, run: Run) -> None:
        growing.lock.close()
        path = growing.directory.path
        program = (
            "import sys, time\n"
            "from codedfedl.runs.directory import RunDirectory\n"
            "directory = RunDirectory(sys.argv[1])\n"
            "with directory.opened(directory.experiment()) as status:\n"
            "    status.running('asking')\n"
            "    print('asking', flush=True)\n"
            "    time.sleep(600)\n"
        )
        server = subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE)
        with server:
            assert server.stdout is not None
            assert server.stdout.readline() == b"asking\n"
            assert growing.directory.is_worked_on
            server.kill()
        code, _, err = run("federate", "follow", path)
        assert code == 2
        assert f"the server of {path} is dead" in err

    def test_a_server_that_is_about_to_start_is_not_dead(
        self, growing: GrowingRun, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Between the announcement of a run and its server's first step nobody has the lock."""
        growing.lock.close()
        growing.status.running("starting")
        looks = iter(range(5))

        def start_late() -> None:
            if next(looks, None) is None:
                growing.finish()

        after_every_look(monkeypatch, start_late)
        code, _, err = run("federate", "follow", growing.directory.path)
        assert code == 0
        assert "is dead" not in err
        growing.status.running("starting")
        monkeypatch.setattr(following, "START_SECONDS", 0.0)
        code, _, err = run("federate", "follow", growing.directory.path)
        assert code == 2
        assert "is dead" in err


def test_a_glance_at_the_lock_keeps_no_server_out(growing: GrowingRun) -> None:
    """A follower has the lock for an instant when it looks, perhaps when a server takes it."""
    fcntl.flock(growing.lock, fcntl.LOCK_SH)
    threading.Timer(0.05, growing.lock.close).start()
    growing.directory.announce("round 1")
    assert not growing.directory.is_worked_on


def test_the_state_is_plain_json(finished: RunDirectory) -> None:
    state: dict[str, Any] = json.loads(json.dumps(LiveView(finished).state(), allow_nan=False))
    assert state["suggested_deadline_s"] == 11.0
    assert set(state["last"]["arrived"]) == set(OTHERS)
