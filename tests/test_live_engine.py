"""The live page of a real federation, read over HTTP while it runs."""

import http.client
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from codedfedl.federate.flower.programs import free_port
from codedfedl.runs.directory import RunDirectory
from tests.engine import Running
from tests.growing import samples
from tests.loopback import experiment_of
from tests.waiting import eventually

pytestmark = [pytest.mark.engine, pytest.mark.long]

CLIENTS, ROUNDS, KILLED = 3, 6, "node-002"


class Visitor:
    """Whoever looks at the page, and what was seen."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.states: list[dict[str, Any]] = []

    def get(self, path: str) -> str | None:
        """Return what is at a path; None while nobody listens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == 200
            return answer.read().decode()
        except ConnectionRefusedError:
            return None
        finally:
            connection.close()

    def sees(self, round_: int, state: str = "running") -> bool:
        """Look once, and say whether so many rounds are finished, and the run in a state."""
        text = self.get("/state")
        if text is None:
            return False
        self.states.append(json.loads(text))
        last = self.states[-1]
        assert last["state"] != "failed", last
        return bool(last["round"] >= round_ and last["state"] in (state, "done"))


def test_a_federation_is_watched_from_beginning_to_end(tmp_path: Path) -> None:
    """One node is killed when the first round is seen; nobody gives a deadline."""
    port, out = free_port(), tmp_path / "run"
    command = [sys.executable, "-m", "codedfedl", "federate", "local", "--json", "--tls"]
    command += ["--clients", str(CLIENTS), "--rounds", str(ROUNDS), "--kill", "1"]
    command += ["--scheme", "coded-newton", "--serve", str(port), "--out", str(out)]
    visitor = Visitor(port)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            eventually(lambda: visitor.get("/"), 60, "the page was not there")
            eventually(lambda: visitor.sees(1), 300, "no round was seen")
            page = str(visitor.get("/"))
            assert f"coded-newton on {CLIENTS} real clients" in page
            assert "<b>Running</b>" in page
            found = samples(str(visitor.get("/metrics")))
            assert found["codedfedl_rounds_total", ""] >= 1
            eventually(lambda: visitor.sees(ROUNDS, "done"), 300, "the end was not seen")
            final = str(visitor.get("/"))
            assert 'class="state"' not in final
            said, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, err
    document = json.loads(said)
    assert document["killed"] == [KILLED]
    (after,) = re.findall(rf"{KILLED} was killed after round (\d)", " ".join(document["advice"]))
    lines = re.findall(r"round (\d) of 6: ([\d.]+) s of ([\d.]+) s, (.*?);", err)
    assert [int(number) for number, *_ in lines] == list(range(1, ROUNDS + 1))
    for (_, took, deadline, why), row in zip(lines, document["rounds"], strict=True):
        assert float(took) == pytest.approx(row["seconds"], abs=0.01)
        assert (why == "until the deadline") == (float(took) >= 0.999 * float(deadline))
    rounds_seen = [state["round"] for state in visitor.states]
    assert rounds_seen == sorted(rounds_seen)
    assert len(set(rounds_seen)) >= ROUNDS / 2  # looked five times a second, so it saw most
    assert RunDirectory(out).log.is_file()
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    exchanges = [event for event in events if event["event"] == "exchange"]
    last = {
        event["round"]: event for event in exchanges
    }  # label counts, then parity, are the set-up
    assert list(last) == list(range(ROUNDS + 1))
    assert KILLED in last[int(after)]["arrived"]
    for count in range(int(after) + 2, ROUNDS + 1):  # it may have answered the round that had begun
        assert KILLED in (*last[count]["late"], *last[count]["dropped"])


def test_an_operator_follows_a_run_and_stops_it(tmp_path: Path) -> None:
    """`federate run --follow` shows the rounds, and `federate stop` ends it with how to go on."""
    running = Running(tmp_path, experiment_of(2, 50, {"name": "uncoded"}, deadline=30.0))
    out, federate = running.directory.path, [sys.executable, "-m", "codedfedl", "federate"]
    document = running.directory.experiment().model_dump(exclude_none=True)
    document["server"] = {"home": str(running.local.home)}
    (tmp_path / "federation.toml").write_text(tomli_w.dumps(document))
    command = [*federate, "run", str(tmp_path), "--out", str(out), "--follow"]
    with (
        running.local,
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process,
    ):
        try:
            running.wait_for_round(1, 120)
            again = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert again.returncode == 2
            assert "is being worked on by another process" in again.stderr
            subprocess.run([*federate, "stop", str(out)], check=True, timeout=60)
            _, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130
    lines = re.findall(r"round (\d+) of 50: .*; 2 arrived \((.*?)\)", err)
    assert [int(number) for number, _ in lines] == list(range(1, len(running.played()) + 1))
    assert {names for _, names in lines} == {"node-000, node-001"}
    assert "stopped: continue with codedfedl federate run" in err
