"""Every client is in one part of every round, wherever that is shown."""

import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
from hypothesis import example, given, settings
from hypothesis import strategies as st

from codedfedl.cli.federate_local import local_results
from codedfedl.core.record import PARTS
from codedfedl.federate.server.session import federate
from codedfedl.federate.transport import Answered
from codedfedl.report.arrivals import client_marks
from codedfedl.report.live import LiveView
from codedfedl.report.story import Story
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.watching import NamedRound, look
from tests.loopback import FIRST_NODE, Loopback, Script, experiment_of, far, transport_of

KINDS = ("honest", "late", "silent", "problem", "malformed", "liar", "killed")
SCHEMES: dict[str, dict[str, Any]] = {
    "coded": {"name": "coded", "redundancy": 0.2},
    "uncoded": {"name": "uncoded"},
    "coded-newton": {"name": "coded-newton", "setup_deadline": 2.0, "mixing": 10},
    "greedy": {"name": "greedy", "drop": 0.5},
    "fedbuff": {"name": "fedbuff", "buffer": 2},
    "dsag": {"name": "dsag", "drop": 0.5},
}
TIFL = {"name": "tifl", "tiers": 2}  # asks two of four clients
CLIENTS, ROUNDS = 4, 3


def misbehaving(experiment: Experiment, folder: Path, table: list[list[str]]) -> Loopback:
    """Return nodes of which each behaves in each round as a table says."""

    def kind(client: int, facts: dict[str, Any]) -> str:
        asked = facts.get("round", -1)
        return table[client][asked] if asked >= 0 else "honest"

    def delay(client: int, question: str, facts: dict[str, Any]) -> float:
        if kind(client, facts) == "killed":
            grid.online.discard(FIRST_NODE + client)
        return {"late": 1.0, "silent": np.inf, "killed": np.inf}.get(kind(client, facts), 0.0)

    def change(client: int, question: str, answer: Answered) -> Answered:
        facts, arrays = answer
        behaviour = kind(client, facts) if arrays else "honest"
        if behaviour == "problem":
            return {"problem": "the disk is full"}, {}
        if behaviour == "malformed":
            return {**facts, "points": "many"}, arrays
        if behaviour == "liar":
            return facts, {name: far(array) for name, array in arrays.items()}
        return answer

    grid = transport_of(experiment, folder, Script(delay, change))
    return grid


def shown_parts(directory: RunDirectory) -> dict[str, list[list[int]]]:
    """Return how many clients are in each part of each round, everywhere that this is shown."""
    sight, story = look(directory), Story(directory)
    table = pyarrow.parquet.read_table(directory.path / "rounds.parquet").to_pylist()
    lines = (directory.path / "events.jsonl").read_text("utf-8").splitlines()
    events = [event for line in lines if (event := json.loads(line))["event"] == "exchange"]
    logged = [
        {part: int(count) for count, part in re.findall(r"(\d+) (\w+)(?= \(|,|;|$)", line)}
        for line in directory.log.read_text("utf-8").splitlines()
        if re.search(r"Z? ?round \d+ of \d+: .* s of ", line)
    ]
    marks = client_marks(story.conduct)
    return {
        "journal": [_numbers(r.counts()) for r in sight.records if not r.is_setup],
        "parquet": [_numbers(row) for row in table if row["round"]],
        "json": [_numbers(row) for row in local_results(directory, {})["rounds"]],
        "report": [
            [sum(client["marks"][k]["kind"] == part for client in marks) for part in PARTS]
            for k in range(ROUNDS)
        ],
        "names": [
            [len(getattr(NamedRound.of(r, story.client_names), part)) for part in PARTS]
            for r in story.records
            if not r.is_setup
        ],
        "events": [[len(event[part]) for part in PARTS] for event in events if event["round"]],
        "log": [[line.get(part, 0) for part in PARTS] for line in logged],
        "live page": [[len(LiveView(directory).state()["last"][part]) for part in PARTS]],
    }


def _numbers(row: Mapping[str, Any]) -> list[int]:
    return [row[part] for part in PARTS]


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    scheme=st.sampled_from(sorted(SCHEMES)),
    table=st.lists(
        st.lists(st.sampled_from(KINDS), min_size=ROUNDS, max_size=ROUNDS),
        min_size=CLIENTS - 1,
        max_size=CLIENTS - 1,
    ),
)
@example(scheme="tifl", table=[["honest"] * 3] * 3)
@example(scheme="greedy", table=[["honest"] * 3, ["liar"] * 3, ["killed"] * 3])
@example(scheme="fedbuff", table=[["late"] * 3, ["malformed"] * 3, ["silent"] * 3])
@example(scheme="coded", table=[["problem"] * 3, ["malformed"] * 3, ["late"] * 3])
@example(scheme="coded-newton", table=[["late", "liar", "late"], ["malformed"] * 3, ["killed"] * 3])
def test_the_parts_of_a_round_add_up(scheme: str, table: list[list[str]]) -> None:
    """Client 0 is honest; of the others anything may come. Late ones may turn out to be gone."""
    with tempfile.TemporaryDirectory() as folder:
        experiment = experiment_of(CLIENTS, ROUNDS, (SCHEMES | {"tifl": TIFL})[scheme])
        grid = misbehaving(experiment, Path(folder) / "nodes", [["honest"] * ROUNDS, *table])
        directory = RunDirectory(Path(folder) / "run")
        with directory.logged() as say:
            federate(grid, experiment, directory, say)
        shown = shown_parts(directory)
        for where, rounds in shown.items():
            assert [sum(parts) for parts in rounds] == [CLIENTS] * len(rounds), where
        assert all(len(shown[where]) == ROUNDS for where in shown if where != "live page")
        for where in ("parquet", "json", "report", "names"):
            assert shown[where] == shown["journal"], where
        assert shown["log"] == shown["events"]
        assert shown["live page"] == shown["events"][-1:]
