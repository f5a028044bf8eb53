from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from codedfedl import (
    Fleet,
    InputError,
    MeasuredDelays,
    Plan,
    Server,
    Training,
    Workload,
    best_loads,
    cheapest_plan,
    paper_devices,
    paper_fleet,
    plan,
)
from tests.strategies import fleets

COLUMNS = ("points", "rate", "alpha", "packet_time", "erasure", "overhead", "availability")


def changed(fleet: Fleet, **columns: object) -> Fleet:
    return Fleet(**{name: getattr(fleet, name) for name in COLUMNS} | columns)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("redundancy", "seconds"), [(0.1, 2100), (0.2, 950), (0.3, 470)])
def test_the_papers_fleet(seed: int, redundancy: float, seconds: float) -> None:
    found = plan(paper_fleet(seed=seed), redundancy)
    assert found.deadline == pytest.approx(seconds, rel=0.01)
    assert found.parity_rows == 12_000 * redundancy


@given(fleet=fleets(), redundancy=st.floats(0.01, 0.99))
def test_promises_hold_for_the_whole_loads(fleet: Fleet, redundancy: float) -> None:
    found = plan(fleet, redundancy)
    assert found.loads.dtype == np.int64
    assert found.expected_return >= found.total_points - found.parity_rows
    asked = found.loads > 0
    again = fleet.cdf(found.loads, found.deadline)
    np.testing.assert_allclose(
        found.return_probabilities[asked], again[asked], rtol=1e-9, atol=1e-13
    )
    assert (found.return_probabilities[~asked] == 0).all()
    np.testing.assert_allclose(found.weights**2, 1 - found.return_probabilities, atol=1e-15)


class TestMetamorphic:
    @settings(max_examples=30)
    @given(fleet=fleets(), redundancy=st.floats(0.05, 0.9), scale=st.floats(1e-3, 1e3))
    def test_scaling_time_scales_the_deadline(
        self, fleet: Fleet, redundancy: float, scale: float
    ) -> None:
        slower = changed(
            fleet,
            rate=fleet.rate / scale,
            packet_time=fleet.packet_time * scale,
            overhead=fleet.overhead * scale,
        )
        expected = plan(fleet, redundancy).deadline * scale
        assert plan(slower, redundancy).deadline == pytest.approx(expected, rel=1e-6)

    @settings(max_examples=30)
    @given(fleet=fleets(), redundancy=st.floats(0.05, 0.9), seed=st.integers(0, 99))
    def test_permuting_clients_permutes_the_plan(
        self, fleet: Fleet, redundancy: float, seed: int
    ) -> None:
        order = np.random.default_rng(seed).permutation(len(fleet))
        one, other = plan(fleet, redundancy), plan(fleet.take(order), redundancy)
        target = one.total_points - one.parity_rows
        at_other = best_loads(fleet, other.deadline).expected_return
        # Where the return is flat at the target, the order of a sum may decide which time meets it.
        assume(at_other > target * (1 + 1e-13) or other.deadline == one.deadline)
        assert other.deadline == pytest.approx(one.deadline, rel=1e-6)
        assert other.client.tolist() == one.client[order].tolist()
        returned = one.loads * one.return_probabilities
        np.testing.assert_allclose(
            other.loads * other.return_probabilities, returned[order], rtol=1e-4, atol=1e-6
        )

    @settings(max_examples=30)
    @given(fleet=fleets(), low=st.floats(0.05, 0.9), more=st.floats(0, 1))
    def test_more_redundancy_never_waits_longer(
        self, fleet: Fleet, low: float, more: float
    ) -> None:
        high = low + more * (0.95 - low)
        assert plan(fleet, high).deadline <= plan(fleet, low).deadline * (1 + 1e-6)

    @settings(max_examples=30)
    @given(fleet=fleets(), redundancy=st.floats(0.05, 0.9), faster=st.floats(1, 100))
    def test_a_faster_client_never_hurts(
        self, fleet: Fleet, redundancy: float, faster: float
    ) -> None:
        first = np.where(np.arange(len(fleet)) == 0, faster, 1.0)
        slow = plan(fleet, redundancy).deadline * (1 + 1e-6)
        for better in (
            changed(fleet, rate=fleet.rate * first),
            changed(fleet, packet_time=fleet.packet_time / first),
            changed(fleet, erasure=fleet.erasure / first),
        ):
            assert plan(better, redundancy).deadline <= slow


class TestRedundancy:
    def test_fractions_become_rows_without_rounding_errors(self) -> None:
        fleet = Fleet(points=[100], rate=1, alpha=1, packet_time=1, erasure=0)
        assert plan(fleet, 0.07).parity_rows == 7  # 0.07 * 100 is a little above 7 in floats
        assert plan(fleet, 0.071).parity_rows == 8

    def test_fraction_and_rows_agree(self) -> None:
        fleet = paper_fleet()
        assert plan(fleet, parity_rows=1200).deadline == plan(fleet, 0.1).deadline

    def test_parity_for_every_point_needs_nobody(self) -> None:
        single = Fleet(points=[1], rate=1, alpha=1, packet_time=1, erasure=0)
        found = plan(single, 0.5)
        assert (found.deadline, found.parity_rows, found.loads.tolist()) == (0.0, 1, [0])

    @pytest.mark.parametrize("redundancy", [0.0, 1.0, -0.1, 1.5, np.nan, np.inf])
    def test_outside_the_interval(self, redundancy: float) -> None:
        with pytest.raises(InputError, match=r"redundancy is .*: must lie between 0 and 1"):
            plan(paper_fleet(), redundancy)

    @pytest.mark.parametrize("rows", [0, -5, 12_001, 1.5])
    def test_impossible_rows(self, rows: int) -> None:
        with pytest.raises(InputError, match=r"parity_rows is .* from 1 to m = 12000"):
            plan(paper_fleet(), parity_rows=rows)

    def test_one_way_to_say_it(self) -> None:
        with pytest.raises(InputError, match="give one of"):
            plan(paper_fleet(), 0.1, parity_rows=3)
        with pytest.raises(InputError, match="give one of"):
            plan(paper_fleet())

    def test_unreachable_target(self) -> None:
        fleet = changed(paper_fleet(), availability=0.85)
        with pytest.raises(
            InputError, match=r"10200 of 12000 return however long.*raise the redundancy"
        ):
            plan(fleet, 0.1)
        assert plan(fleet, 0.2).expected_return >= 9600


class TestServerAsANode:
    def total(self, found: Plan) -> float:
        return found.expected_return + found.parity_rows * found.server_return_probability

    def test_clients_and_server_return_all_points_together(self) -> None:
        fleet = paper_fleet()
        found = plan(fleet, server=Server(rate=1.0, max_rows=3000))
        assert self.total(found) == pytest.approx(fleet.total_points, rel=1e-6)
        assert self.total(found) >= fleet.total_points
        assert 0.5 < found.server_return_probability < 1

    def test_a_fast_server_takes_all_that_it_may(self) -> None:
        found = plan(paper_fleet(), server=Server(rate=1e9, max_rows=1200))
        assert found.parity_rows == 1200
        assert found.server_return_probability == pytest.approx(1)
        assert found.deadline == pytest.approx(plan(paper_fleet(), 0.1).deadline, rel=1e-6)

    @pytest.mark.parametrize("field", ["rate", "max_rows", "alpha"])
    @pytest.mark.parametrize("value", [0, -1, np.nan, np.inf])
    def test_bad_server(self, field: str, value: float) -> None:
        with pytest.raises(InputError, match=f"the server's {field} is"):
            Server(**{"rate": 1.0, "max_rows": 10, "alpha": 2.0} | {field: value})  # type: ignore[arg-type]

    def test_rows_beyond_the_points_stand_for_nothing(self) -> None:
        found = plan(paper_fleet(), server=Server(rate=1e9, max_rows=20_000))
        assert found.parity_rows <= 12_000

    def test_too_few_rows_for_absent_clients(self) -> None:
        fleet = changed(paper_fleet(), availability=0.5)
        with pytest.raises(InputError, match="max_rows is 100: too few"):
            plan(fleet, server=Server(rate=1e9, max_rows=100))
        with pytest.raises(InputError, match="must be a whole number"):
            Server(rate=1.0, max_rows=1.5)  # type: ignore[arg-type]

    def test_needs_a_fleet(self) -> None:
        measured = MeasuredDelays([[1.0]], [[1.0]])
        with pytest.raises(InputError, match="server needs a Fleet"):
            plan(measured, points=10, server=Server(rate=1, max_rows=3))


class TestCheapest:
    TRAINING = Training(Workload(200, 2), 16 * 200, 2, rounds=300, step=1.0, mixing=0)

    @pytest.mark.parametrize("rounds", [1, 30, 300, 10_000])
    def test_against_every_number_of_rows(self, rounds: int) -> None:
        fleet = paper_devices(clients=6).fleet(Workload(features=200, labels=2), points=15)
        training = replace(self.TRAINING, rounds=rounds)

        def total(rows: int) -> float:
            seconds = training.setup_seconds(fleet, rows)
            return rounds * plan(fleet, parity_rows=rows).deadline + seconds

        chosen = cheapest_plan(fleet, training)
        best = min(total(rows) for rows in range(1, fleet.total_points + 1))
        assert chosen.seconds == pytest.approx(total(chosen.plan.parity_rows), rel=1e-9)
        assert chosen.seconds <= best * 1.01

    def test_absent_clients_leave_a_choice(self) -> None:
        single = Fleet(points=[1], rate=1, alpha=2, packet_time=1, erasure=0, availability=0.5)
        assert cheapest_plan(single, self.TRAINING).plan.parity_rows == 1

    def test_rounds_must_be_positive(self) -> None:
        with pytest.raises(InputError, match="rounds is 0"):
            replace(self.TRAINING, rounds=0)


def test_measured_delays_are_planned_like_any_other() -> None:
    rng = np.random.default_rng(0)
    measured = MeasuredDelays(
        [rng.uniform(0.1, 1, 30) for _ in range(4)], [rng.uniform(1, 2, 30)] * 4
    )
    found = plan(measured, redundancy=0.1, points=50)
    assert found.expected_return >= 180
    knowing = MeasuredDelays(list(measured.per_point), list(measured.fixed), points=50)
    assert plan(knowing, redundancy=0.1).document() == found.document()


def test_points_come_from_the_fleet_or_beside_the_delays() -> None:
    """A plan takes delays and points, in whichever form they are given."""
    fleet = paper_fleet()
    expected = plan(fleet, 0.1).document()
    devices = paper_devices()
    for delays in (fleet, devices.parameters(Workload())):
        assert plan(delays, 0.1, points=400).document() == expected
    assert plan(fleet, 0.1).document() == expected
    half = plan(fleet, 0.1, points=200)
    assert half.total_points == 6000
    assert half.document() == plan(paper_fleet(200), 0.1).document()
    with pytest.raises(InputError, match="points are not given"):
        plan(devices.parameters(Workload()), 0.1)
    with pytest.raises(InputError, match="points of client 2 is -1"):
        plan(fleet, 0.1, points=[5, 5, -1] + [5] * 27)
    with pytest.raises(InputError, match=r"points has shape \(2,\) where there are 30 clients"):
        plan(fleet, 0.1, points=[5, 5])


@settings(max_examples=20)
@given(fleet=fleets())
def test_document_and_file_hold_the_plan(
    tmp_path_factory: pytest.TempPathFactory, fleet: Fleet
) -> None:
    found = plan(fleet, 0.3)
    document = found.document()
    assert document["deadline_s"] == found.deadline
    assert [row["load"] for row in document["clients"]] == found.loads.tolist()
    path: Path = tmp_path_factory.mktemp("plan") / "plan.parquet"
    found.write(path)
    table = pyarrow.parquet.read_table(path)
    assert table["load"].to_pylist() == found.loads.tolist()
    assert float(table.schema.metadata[b"deadline_s"]) == found.deadline
