"""Probes that take long: a minority's set no deadline, and honest slow clients lose little."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codedfedl.fitting.traces import MINORITY_SLOWDOWN, Traces, slow_minority, without_minority
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.exchange import Exchange
from codedfedl.simulation.replay import replay
from tests.liars import CODED, LIARS, NEWTON, lied_to
from tests.loopback import Script, rounds_of

SCHEMES = pytest.mark.parametrize("scheme", [CODED, NEWTON], ids=["coded", "coded-newton"])


def slow(seconds: float, *questions: str) -> Script:
    """Let the liars take longer for some questions."""
    return Script(lambda client, question, _: seconds * (client in LIARS and question in questions))


def played(folder: Path, scheme: dict[str, Any], script: Script | None, **more: Any) -> Any:
    return lied_to(folder, scheme, None, script, rounds=10, deadline=None, **more)


def deadlines(exchanges: list[Exchange]) -> set[float]:
    return {round(record.deadline, 2) for record in rounds_of(exchanges)}


@SCHEMES
def test_two_of_ten_do_not_set_the_deadline(scheme: dict[str, Any], tmp_path: Path) -> None:
    """Those who delay their probes and answer no round: rounds of `coded` took 179 s each."""
    honest, _ = played(tmp_path / "honest", scheme, None)
    lying = slow(119.0, "probe")
    lying.change = lambda client, question, answer: (
        ({}, {}) if client in LIARS and question in ("gradient", "embedded") else answer
    )
    exchanges, said = played(tmp_path / "lying", scheme, lying)
    assert deadlines(exchanges) == deadlines(honest) == {0.07}
    assert exchanges[-1].record.metric >= honest[-1].record.metric - 0.02
    advice = [
        sentence for sentence in said if "a planned deadline does not wait for it" in sentence
    ]
    assert [sentence.split()[1] for sentence in advice] == ["node-003", "node-007"]


@SCHEMES
@pytest.mark.parametrize("partition", ["iid", "sorted"])
def test_honest_clients_that_are_so_slow_are_in_the_parity(
    scheme: dict[str, Any], partition: str, tmp_path: Path
) -> None:
    """Rounds of `coded` that wait for them take 3 s; without them they take 0.05 s."""
    fast, _ = played(tmp_path / "fast", scheme, None, partition=partition)
    script = slow(3.0, "probe", "gradient", "embedded")
    exchanges, _ = played(tmp_path / "slow", scheme, script, partition=partition)
    assert deadlines(exchanges) == {0.07}
    assert exchanges[-1].record.metric >= fast[-1].record.metric - 0.02
    assert replay(RunDirectory(tmp_path / "slow" / "run")).same


def traces_of(seconds: Any, load: Any = 100.0, compute: Any = 0.01) -> Traces:
    """Return two probes of each client, which take so long."""
    total = np.repeat(np.asarray(seconds, dtype=float), 2)
    clients = np.repeat([f"client-{j:02d}" for j in range(len(total) // 2)], 2)
    loads, computed = (
        np.repeat(np.broadcast_to(np.asarray(value, dtype=float), len(total) // 2), 2)
        for value in (load, compute)
    )
    return Traces(clients, loads, total=total, compute=computed, waited=np.full(len(total), 120.0))


def test_a_minority_is_as_slow_as_the_slowest_of_the_others() -> None:
    traces = traces_of([1.0] * 7 + [2.0, 50.0, 100.0])
    assert slow_minority(traces) == {"client-08": 25.0, "client-09": 50.0}
    believed = without_minority(traces)
    assert believed.total.tolist() == [1.0] * 14 + [2.0] * 6
    assert believed.waited[-1] == 120 / 50
    assert without_minority(believed) is believed


@pytest.mark.parametrize(
    "traces",
    [
        traces_of([1.0] * 8 + [MINORITY_SLOWDOWN, MINORITY_SLOWDOWN]),
        traces_of(0.8 ** -np.arange(30.0)),  # the speeds of the paper's fleet
        traces_of([1.0, 1.0, 1.0, 100.0]),  # no minority is a fifth of four
        traces_of([1.0] * 7 + [100.0] * 3),  # and none is three of ten
        traces_of([1.1] * 9 + [20.1], [100.0] * 9 + [2000.0], [1.0] * 9 + [20.0]),  # more points
    ],
)
def test_slow_clients_that_are_believed(traces: Traces) -> None:
    assert slow_minority(traces) == {}
    assert without_minority(traces) is traces


def test_clients_that_never_answered_a_probe_are_left_as_they_are() -> None:
    total = [1.0] * 8 + [np.inf] * 2
    traces = Traces([f"client-{j}" for j in range(10)], np.full(10, 100.0), total=total)
    assert without_minority(traces) is traces
