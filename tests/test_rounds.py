"""The rounds of a federation: whose answer counts, for which question, and who is to blame."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codedfedl.core.client import BlockParity, Embedded, Gradient, LocalModel, Parity
from codedfedl.core.protocol import Ask, Reply, Task
from codedfedl.core.record import ARRIVED, LATE, REFUSED, Record
from codedfedl.core.waiting import Next
from codedfedl.core.work import Work
from codedfedl.errors import InputError
from codedfedl.federate.server.checks import NormBounds, RefusedError, checked_answer
from codedfedl.federate.server.evidence import Evidence
from codedfedl.federate.server.rounds import Recalled
from codedfedl.federate.server.session import federate
from codedfedl.federate.transport import Answered, Arrival
from codedfedl.fleet.devices import Workload
from codedfedl.learning.codes import GAUSSIAN
from codedfedl.learning.least_squares import ParityRows
from codedfedl.learning.optimisers import Schedule
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.exchange import Exchange, StoredAnswers
from codedfedl.runs.journal import Journal
from codedfedl.simulation.replay import replay
from tests.loopback import Loopback, Script, experiment_of, parity_of, transport_of
from tests.malformed import spoilt

FEDBUFF = {"name": "fedbuff", "buffer": 2}
DSAG = {"name": "dsag", "drop": 0.5}
NEWTON = {"name": "coded-newton", "setup_deadline": 2.0, "mixing": 10}


def run(
    experiment: Experiment, tmp_path: Path, script: Script | None = None
) -> tuple[Loopback, list[Exchange], list[str]]:
    grid = transport_of(experiment, tmp_path / "nodes", script)
    said: list[str] = []
    federate(grid, experiment, RunDirectory(tmp_path / "run"), said.append)
    return grid, list(Journal(tmp_path / "run").exchanges()), said


# An answer is to its own question, however old.


@pytest.mark.parametrize("scheme", [FEDBUFF, DSAG], ids=["fedbuff", "dsag"])
def test_an_answer_of_thirty_rounds_ago_counts(scheme: dict[str, Any], tmp_path: Path) -> None:
    """Rounds take 0.05 s and questions live for 16 s: client 3 answers its first after 2 s."""

    def delay(client: int, question: str, facts: dict[str, Any]) -> float:
        return 2.0 if client == 3 and facts.get("round", -1) >= 0 else 0.0

    experiment = experiment_of(4, 60, scheme)
    _, exchanges, said = run(experiment, tmp_path, Script(delay=delay))
    ages = [
        exchange.record.round - reply.round
        for exchange in exchanges
        for reply in exchange.replies
        if reply.client == 3
    ]
    assert max(ages) > 30
    assert not [refusal for exchange in exchanges for refusal in exchange.record.refusals]
    assert not any(line.startswith("refused") for line in said)
    assert replay(RunDirectory(tmp_path / "run")).same
    run(experiment_of(4, 61, scheme), tmp_path, Script(delay=delay))  # resumed, from the journal


def _exchange(
    round_: int, replies: list[tuple[int, int]], busy: tuple[int, ...] = ()
) -> tuple[Exchange, Ask, Any, int]:
    """Return a round of three clients, and the arguments beside it: who answers which round."""
    fresh = {client for client, asked in replies if asked == round_}
    record = Record(
        round=round_,
        deadline=1.0,
        seconds=0.1,
        loads=np.full(3, 5),
        outcome=np.array([ARRIVED if j in fresh else LATE for j in range(3)], dtype=np.int8),
        arrival_times=np.zeros(3),
        busy=busy,
        late_answers=tuple((j, 0.3) for j, asked in replies if asked != round_),
    )
    answers = tuple(Reply(client, asked, 5, {}) for client, asked in replies)
    ask = Ask(Embedded(), Next(1), keep_late=True)
    return Exchange(record, replies=answers), ask, np.full(2, round_), round_


def test_a_journal_gives_old_answers_the_models_that_they_are_for() -> None:
    """What is kept is bounded by the questions that are open, whatever the number of rounds."""
    recalled = Recalled(["a", "b", "c"], Path("journal"))
    recalled.with_models(*_exchange(0, [(0, 0), (1, 0)]))
    for round_ in range(1, 50):
        found = recalled.with_models(*_exchange(round_, [(0, round_), (1, round_)], busy=(2,)))
        assert [reply.model[0] for reply in found.replies] == [round_, round_]
        assert len(recalled) == 1
    found = recalled.with_models(*_exchange(50, [(0, 50), (1, 50), (2, 0)], busy=(2,)))
    assert [reply.model[0] for reply in found.replies] == [50, 50, 0]
    assert len(recalled) == 0


def test_an_answer_to_no_question_of_the_journal_is_an_error() -> None:
    recalled = Recalled(["a", "b", "c"], Path("journal"))
    recalled.with_models(*_exchange(0, [(0, 0), (1, 0), (2, 0)]))
    with pytest.raises(InputError, match="c answers round 1, which it was not asked for"):
        recalled.with_models(*_exchange(1, [(2, 0)]))


def test_parity_that_was_not_written_to_the_end_is_none(tmp_path: Path) -> None:
    """A kill may leave the arrays without the file that says that they are complete."""
    run(experiment_of(3, 1), tmp_path)
    journal = Journal(tmp_path / "run")
    assert journal.stored.parity(1) is not None
    (journal.stored.folder / "1" / "points").unlink()
    assert Journal(tmp_path / "run").stored.parity(1) is None


def test_judging_a_round_reads_each_clients_parity_a_few_times() -> None:
    """Not the parity of all for each of them, and what is common to all rounds but once."""
    clients, read = 30, Counter[str]()
    parity = ParityRows(np.ones((3, 6), dtype=np.float32), np.ones((3, 3), dtype=np.float32))

    class Counting(StoredAnswers):
        def parity(self, client: int, batch: int = 0) -> ParityRows:
            read["parity"] += 1
            return parity

    class Points(dict[int, int]):
        def __getitem__(self, client: int) -> int:
            read["points"] += 1
            return 9

    stored = Counting(Path())
    stored.points = Points()
    evidence = Evidence(replace(TASK, points=np.full((1, clients), 9)), stored)
    evidence.setup = BlockParity(GAUSSIAN, 3)
    for rounds in (1, 2):
        for client in range(clients):
            assert evidence.expects(Embedded(), client, 9, np.zeros((6, 3))) is not None
        assert read["parity"] == (2 + rounds) * clients  # two of them once: curvature and shares
        assert read["points"] == (1 + rounds) * clients


# Who is to blame.


def test_a_defect_of_ours_is_not_blamed_on_the_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the run: its traceback is in the log, the status says so, and nobody is refused."""

    def broken(*_: Any) -> None:
        raise AttributeError("no such thing")

    monkeypatch.setattr(NormBounds, "check_gradient", broken)
    experiment, directory = experiment_of(), RunDirectory(tmp_path / "run")
    grid = transport_of(experiment, tmp_path / "nodes")
    with pytest.raises(AttributeError), directory.logged() as say:
        federate(grid, experiment, directory, say)
    status = directory.status.read()
    assert status is not None
    assert (status.state, status.error) == (
        "failed",
        "this is a bug: AttributeError: no such thing",
    )
    log = directory.log.read_text("utf-8")
    assert "Traceback" in log
    assert "raise AttributeError" in log
    assert "refused" not in log


def test_a_full_disk_is_not_blamed_on_a_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(StoredAnswers, "keep", full)
    with pytest.raises(OSError, match="No space left"):
        run(experiment_of(), tmp_path)


@pytest.mark.parametrize(
    ("scheme", "kind"), [({"name": "uncoded"}, "gradient"), (NEWTON, "embedded")]
)
def test_every_malformed_answer_is_refused(
    scheme: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    """Four of five clients send 120 malformed answers: all are refused, and the run goes on."""
    rng = np.random.default_rng(0)

    def change(client: int, question: str, answer: Answered) -> Answered:
        return spoilt(rng, answer) if client and question == kind else answer

    experiment = experiment_of(5, 30, scheme)
    _, exchanges, _ = run(experiment, tmp_path, Script(change=change))
    rounds = [e.record for e in exchanges if not e.record.is_setup]
    assert [record.outcome.tolist() for record in rounds] == [[ARRIVED] + [REFUSED] * 4] * 30
    assert all(len(record.refusals) == 4 for record in rounds)


def test_parity_without_rows_is_refused(tmp_path: Path) -> None:
    """Of fewer points than a row mixes, a client with nothing to send may claim to send parity."""

    def change(client: int, question: str, answer: Answered) -> Answered:
        rogue = client == 1 and question == "block_parity"
        return ({**answer[0], "points": 1}, {}) if rogue else answer

    _, exchanges, _ = run(experiment_of(3, 2, NEWTON), tmp_path, Script(change=change))
    [(client, why)] = parity_of(exchanges).record.refusals
    assert (client, why) == (1, "sends nothing for 1 points")


TASK = Task(
    workload=Workload(6, 3),
    feature_macs=1,
    points=np.array([[9, 12]]),
    epochs=1,
    schedule=Schedule(1.0),
    ridge=0.0,
)
WORKS: tuple[Work, ...] = (
    Gradient(0),
    LocalModel(0, 1, 0.1, 0.0),
    Embedded(),
    BlockParity(GAUSSIAN, 3),
    Parity([4], np.array([[4, 4]]), np.array([[0.5, 0.5]])),
)


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.kind)
def test_the_form_of_an_answer_is_checked_for_every_work(work: Work) -> None:
    """An honest form is taken; of 3000 malformed ones each is refused, and none is an error."""
    rng, load = np.random.default_rng(1), 9
    shapes = work.shapes(TASK, load)
    assert shapes is not None
    arrays = {name: rng.random(shape, dtype=np.float32) for name, shape in shapes.items()}
    honest: Answered = {"round": 2, "points": load, "seconds": 0.1}, arrays
    checked_answer(Arrival(0, 0, "answer", 1.0, *honest), work, TASK, 2, load)
    for _ in range(3000):
        arrival = Arrival(0, 0, "answer", 1.0, *spoilt(rng, honest))
        with pytest.raises(RefusedError) as refused:
            checked_answer(arrival, work, TASK, 2, load)
        assert len(str(refused.value)) <= 200


def test_without_bounds_on_features_the_first_gradient_is_taken() -> None:
    """The first model is 0, and ∞ · 0 is no bound; with bounds, the same gradient is too long."""
    gradient, model = np.full((3, 2), 1e6, dtype=np.float32), np.zeros((3, 2))
    NormBounds.of(np.inf, classes=True).check_gradient(gradient, model, 5)
    with pytest.raises(RefusedError, match="longer than 5 points"):
        NormBounds.of(2.0, classes=True).check_gradient(gradient, model, 5)


# What is advised.


@pytest.mark.parametrize(
    "scheme", [{"name": "greedy", "drop": 0.25}, FEDBUFF, DSAG], ids=["greedy", "fedbuff", "dsag"]
)
def test_a_healthy_client_that_is_not_waited_for_is_left_in_peace(
    scheme: dict[str, Any], tmp_path: Path
) -> None:
    """Client 3 takes 0.1 s more than the others, and rounds end without it: nothing is wrong."""

    def delay(client: int, question: str, facts: dict[str, Any]) -> float:
        return 0.1 if client == 3 and facts.get("round", -1) >= 0 else 0.0

    _, exchanges, said = run(experiment_of(4, 12, scheme), tmp_path, Script(delay=delay))
    assert sum(e.record.outcome[3] == LATE for e in exchanges) > 6
    assert not [line for line in said if line.startswith(("advice", "warning"))]
