"""What a server and the run that it began last are doing, for `federate status` and `nodes`."""

from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from codedfedl.errors import InputError
from codedfedl.federate.deploy.registry import REGISTRY, Registry
from codedfedl.federate.flower.superlink import Superlink, last_run, running
from codedfedl.runs.directory import RunDirectory


def server_status(home: Path) -> dict[str, Any]:
    """Return whether a server runs, how many of its nodes are connected, and its last run."""
    nodes, last = nodes_of(home), last_run(home)
    run: dict[str, Any] | None = None
    if last is not None:
        directory = RunDirectory(last[1])
        status = directory.status.read()
        run = {"number": last[0], "out": str(last[1]), "alive": directory.is_alive}
        run |= {"state": None, "text": "starting"} if status is None else status.facts
    return {
        "running": _server(home) is not None,
        "connected": sum(node["connected"] for node in nodes),
        "nodes": len(nodes),
        "run": run,
    }


def nodes_of(home: Path) -> list[dict[str, Any]]:
    """Return every node that a server admits, or that takes part in its last run."""
    last, server = last_run(home), _server(home)
    online = {} if server is None else server.nodes()
    greetings, answers = ({}, {}) if last is None else _heard(RunDirectory(last[1]))
    numbers = {name: facts["node"] for name, facts in greetings.items()}
    entries = Registry(home / REGISTRY).entries()
    numbers |= {entry.name: entry.node for entry in entries if not entry.revoked}
    return [
        {
            "name": name,
            "connected": online.get(number) is not None,
            "since": online.get(number),
            "last_answer": answers.get(name),
            "version": greetings.get(name, {}).get("version"),
            "epsilon_left": greetings.get(name, {}).get("epsilon_left"),
        }
        for name, number in sorted(numbers.items())
    ]


def _server(home: Path) -> Superlink | None:
    with suppress(InputError):
        return running(home)
    return None


def _heard(directory: RunDirectory) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return what each node of a run said of itself, and when it answered last, by its name."""
    greetings: dict[str, dict[str, Any]] = {}
    answers: dict[str, str] = {}
    for event in directory.events():
        if event["event"] == "greeting":
            greetings[event["name"]] = event
        elif event["event"] == "exchange":
            began = datetime.fromisoformat(event["time"]) - timedelta(seconds=event["seconds"])
            for name, seconds in event["arrived"].items():
                moment = began + timedelta(seconds=seconds)
                answers[name] = moment.isoformat(timespec="seconds")
    return greetings, answers
