"""Fitting a fleet. Seeds are fixed; the odds of a false alarm are those before they were fixed."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from codedfedl import (
    Fleet,
    InputError,
    MeasuredDelays,
    expected_maximum,
    plan,
)
from codedfedl.fitting.clients import FEWEST_TO_JUDGE
from codedfedl.fitting.estimates import MissingReplies, fit_link, fit_work
from codedfedl.fitting.fit import Fit, fit
from codedfedl.fitting.traces import Traces, read_traces
from codedfedl.fleet.measured import MixedDelays, read_measured, rows_by_client
from codedfedl.report.fleet_figures import fit_figure
from tests.conftest import Run

Floats = npt.NDArray[np.float64]
TRUTH = {"rate": 50.0, "alpha": 4.0, "overhead": 2.0}
LOADS = (100.0, 200.0, 400.0)
CLIENTS = 400


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("COLUMNS", "160")
    return Run(monkeypatch, capsys)


def work(rng: np.random.Generator, load: Floats, alpha: float = 4.0) -> Floats:
    return load / 50 * (1 + rng.exponential(1 / alpha, len(load)))


def totals(rng: np.random.Generator, n: int, clients: int = CLIENTS, overhead: float = 2) -> Traces:
    load = rng.choice(LOADS, clients * n)
    return Traces(np.repeat(np.arange(clients), n), load, total=overhead + work(rng, load))


def computed(rng: np.random.Generator, n: int, clients: int = CLIENTS) -> Traces:
    load = np.full(clients * n, 100.0)
    compute = work(rng, load)
    return Traces(np.repeat(np.arange(clients), n), load, compute=compute, total=compute + 2)


def radio(rng: np.random.Generator, n: int, clients: int = CLIENTS) -> Traces:
    load = rng.choice(LOADS, clients * n)
    down, up = 3 * rng.geometric(0.8, len(load)), 2 * rng.geometric(0.9, len(load))
    parts = {"down": down, "compute": work(rng, load), "up": up}
    return Traces(np.repeat(np.arange(clients), n), load, **parts, total=sum(parts.values()) + 2.0)


def impatient(
    rng: np.random.Generator, n: int, clients: int, waited: float, availability: float = 0.8
) -> Traces:
    load = rng.choice((50.0, 100.0), clients * n)
    seconds = 2 + work(rng, load, alpha=2)
    gone = (rng.random(len(load)) >= availability) | (seconds > waited)
    who = np.repeat(np.arange(clients), n)
    return Traces(who, load, total=np.where(gone, np.inf, seconds), waited=waited)


def flower(rng: np.random.Generator, n: int, clients: int) -> Traces:
    """Compute times from the client; totals from the server, with three to six seconds beside."""
    load = rng.choice(LOADS, clients * n)
    compute = work(rng, load)
    total = compute + 3 + rng.uniform(0, 3, len(load))
    return Traces(np.repeat(np.arange(clients), n), load, compute=compute, total=total)


def covered(found: Fit, name: str, truth: float) -> float:
    low, high = found.intervals[name].T
    return float(((low <= truth) & (truth <= high)).mean())


def check_false_alarms(found: Fit) -> None:
    """At most 14 of 400 at 1% each (odds 6e-5), and 16 to 44% below 0.3 (odds under 1e-8)."""
    assert (~found.fits).sum() <= 14
    assert 0.16 < (found.p_value < 0.3).mean() < 0.44


class TestIntervals:
    """Of 400 intervals that each hold the truth with 95%, 91% to 99% do: odds 3e-4 of a miss."""

    @pytest.mark.parametrize(
        ("make", "n", "truth"),
        [
            (totals, 6, TRUTH),
            (totals, 30, TRUTH),
            (computed, 3, {"rate": 50, "alpha": 4}),
            (computed, 20, {"rate": 50, "alpha": 4}),
            (radio, 20, TRUTH),
        ],
    )
    @pytest.mark.slow
    def test_hold_the_truth(
        self,
        make: Callable[[np.random.Generator, int], Traces],
        n: int,
        truth: dict[str, float],
    ) -> None:
        found = fit(make(np.random.default_rng(11), n))
        for name, value in truth.items():
            assert 0.91 <= covered(found, name, value) <= 0.99, name
        if make is radio:
            self.check_link(found)
        if n >= FEWEST_TO_JUDGE:
            check_false_alarms(found)

    @staticmethod
    def check_link(found: Fit) -> None:
        """Exact intervals of whole counts hold it more often than they promise, never less."""
        for name, value in {"erasure": 0.2, "erasure_up": 0.1}.items():
            assert covered(found, name, value) >= 0.94
        assert np.allclose(found.fleet.packet_time, 3)
        assert np.allclose(found.fleet.packet_time_up, 2)
        assert found.fleet.erasure.mean() == pytest.approx(0.2, abs=0.016)  # 5 standard errors
        assert found.intervals["erasure"][:, 1].max() < 0.7

    @pytest.mark.slow
    def test_with_a_truth_on_the_boundary(self) -> None:
        """No overhead at all: its interval begins at 0, and the others are still right."""
        found = fit(totals(np.random.default_rng(13), 15, overhead=0))
        assert covered(found, "overhead", 0.0) >= 0.93
        assert 0.91 <= covered(found, "rate", 50) <= 0.99

    @pytest.mark.slow
    def test_shrink_like_one_over_n_for_the_rate(self) -> None:
        """The smallest of n times tells the rate: an error of order 1/n, not 1/√n."""
        sizes = [12, 24, 48, 96]
        widths = []
        for n in sizes:
            found = fit(computed(np.random.default_rng(14), n, 60))
            widths.append(np.median(np.diff(1 / found.intervals["rate"])))
        order = np.polyfit(np.log(sizes), np.log(np.abs(widths)), 1)[0]
        assert -1.1 < order < -0.9

    def test_estimates_are_right_on_average(self) -> None:
        """1/μ and 1/(αμ) have no bias at one load; 5 standard errors, odds 6e-7."""
        fleet = fit(computed(np.random.default_rng(15), 5)).fleet
        for values, truth in ((1 / fleet.rate, 0.02), (1 / fleet.rate / fleet.alpha, 0.005)):
            error = values.std(ddof=1) / np.sqrt(CLIENTS)
            assert abs(values.mean() - truth) < 5 * error


class TestLateOrAbsent:
    @pytest.mark.slow
    def test_late_replies_are_not_counted_as_absence(self) -> None:
        """Five seconds cut off a third of the slower replies. Intervals: 90% of 200, odds 1e-3."""
        found = fit(impatient(np.random.default_rng(21), 60, 200, waited=5))
        came = 1 - found.never_came / found.n
        assert came.mean() < 0.68
        error = found.fleet.availability.std() / np.sqrt(200)
        assert found.fleet.availability.mean() == pytest.approx(0.8, abs=5 * error + 0.02)
        assert np.median(found.fleet.alpha) == pytest.approx(2, rel=0.1)
        for name, value in {"rate": 50, "alpha": 2, "overhead": 2, "availability": 0.8}.items():
            assert covered(found, name, value) >= 0.90, name
        assert any("were late, not absent" in note for note in found.notes)
        assert (~found.fits).sum() <= 8  # of 200 at 1%: odds 2e-4

    @pytest.mark.slow
    def test_after_a_long_wait_it_is_absence(self) -> None:
        found = fit(impatient(np.random.default_rng(22), 60, 200, waited=500))
        assert np.allclose(found.fleet.availability, 1 - found.never_came / found.n)
        assert 0.9 <= covered(found, "availability", 0.8) < 1

    def test_without_waited_it_is_absence_and_said(self) -> None:
        total = [3.0, 3.5, np.inf, np.nan]
        found = fit(Traces(["a"] * 4, [100, 100, 100, 200], total=total))
        assert found.fleet.availability.tolist() == [0.5]
        assert found.never_came.tolist() == [2]
        assert "add 'waited'" in " ".join(found.notes)

    def test_never_answered(self) -> None:
        traces = Traces(["a", "b", "b"], 100, total=[np.inf, 3, 4])
        found = fit(traces)
        assert found.fleet.availability.tolist() == [0, 1]
        assert "client a: never answered" in found.warnings[0]
        assert found.intervals["availability"][0].tolist() == [0, pytest.approx(0.975)]
        assert plan(found.fleet, 0.6).loads[0] == 0
        assert plan(found.measured, 0.6).loads[0] == 0
        json.dumps(found.document(), allow_nan=False)


class TestGoodnessOfFit:
    def test_false_alarms_with_few_replies(self) -> None:
        """With more, `TestIntervals` looks at the same."""
        check_false_alarms(fit(totals(np.random.default_rng(31), FEWEST_TO_JUDGE)))

    def test_sees_the_jitter_of_a_real_federation(self) -> None:
        """Seconds that the model takes to be constant vary by three."""
        found = fit(flower(np.random.default_rng(32), 100, 40))
        assert (~found.fits).mean() > 0.95
        assert "do not follow the model" in found.warnings[0]

    def test_forgives_jitter_that_does_not_matter(self) -> None:
        rng = np.random.default_rng(33)
        traces = computed(rng, 50, 100)
        jitter = rng.uniform(0, 1e-3, len(traces))
        found = fit(Traces(traces.client, 100, compute=traces.compute, total=traces.total + jitter))
        assert (~found.fits).sum() <= 6  # of 100 at 1%: odds 1e-4
        assert found.fleet.overhead == pytest.approx(2.0005, abs=2e-4)

    def test_the_same_every_time(self) -> None:
        traces = flower(np.random.default_rng(34), 20, 3)
        assert fit(traces).document() == fit(traces).document()

    def test_does_not_depend_on_the_unit_of_time(self) -> None:
        traces = totals(np.random.default_rng(35), 20, 4)
        slower = fit(Traces(traces.client, traces.load, total=1000 * traces.total))
        found = fit(traces)
        assert slower.p_value == pytest.approx(found.p_value, abs=0.003)
        assert slower.fleet.rate == pytest.approx(found.fleet.rate / 1000)
        assert slower.fleet.alpha == pytest.approx(found.fleet.alpha)


class TestWhatCannotBeToldApart:
    def one_load(self, n: int = 30) -> Traces:
        rng = np.random.default_rng(41)
        return Traces(["a"] * n, 100, total=2 + work(rng, np.full(n, 100.0)))

    def test_totals_at_one_load_are_overhead(self) -> None:
        found = fit(self.one_load())
        assert found.fleet.overhead[0] == pytest.approx(4, rel=0.02)
        assert "measure at two or more loads" in " ".join(found.notes)
        assert found.intervals["rate"][0, 1] == np.inf
        for name, value in TRUTH.items():
            assert covered(found, name, value) == 1
        assert found.document()["clients"][0]["rate_interval"][1] is None
        times, model = self.one_load().total, found.fleet
        assert model.mean(100)[0] == pytest.approx(times.mean(), rel=1e-3)
        assert model.mean(50)[0] > 0.85 * times.mean()  # less work is not promised to be fast

    def test_they_are_compute_where_more_is_planned(self) -> None:
        found = fit(self.one_load(), points=1000)
        assert found.fleet.overhead[0] == 0
        assert found.fleet.rate[0] == pytest.approx(25, rel=0.02)
        assert "more points are planned" in " ".join(found.notes)
        assert covered(found, "overhead", 2) == 1

    def test_retransmissions_under_tcp(self) -> None:
        found = fit(flower(np.random.default_rng(42), 20, 2))
        assert found.fleet.erasure.tolist() == [0, 0]
        assert np.isnan(found.intervals["erasure"]).all()
        assert "every client: retransmissions are hidden" in " ".join(found.notes)

    def test_seconds_of_a_link_that_are_no_multiples(self) -> None:
        rng = np.random.default_rng(43)
        down = rng.uniform(3, 6, 20)
        found = fit(Traces(["a"] * 20, 100, down=down, compute=work(rng, np.full(20, 100.0)), up=1))
        assert found.fleet.packet_time[0] == pytest.approx(down.mean())
        assert found.fleet.erasure[0] == 0
        assert found.fleet.packet_time_up[0] == 1
        assert "the seconds down are not multiples" in " ".join(found.notes)
        assert "seconds up" not in " ".join(found.notes)

    def test_retries_and_columns_that_are_of_no_use(self) -> None:
        found = fit(
            Traces(
                ["a"] * 3, [1, 2, 3], total=[4, 5, 6], compute=[1, 2, np.nan], retries_up=[0, 1, 0]
            )
        )
        notes = " ".join(found.notes)
        assert "compute is not used" in notes
        assert "retries_up are not usable without the seconds up" in notes


class TestFewMeasurements:
    @pytest.mark.parametrize("n", [1, 2, 3])
    @pytest.mark.parametrize("loads", [(100.0,), LOADS])
    @pytest.mark.parametrize("separate", [False, True])
    def test_give_a_fleet_and_say_so(
        self, n: int, loads: tuple[float, ...], separate: bool
    ) -> None:
        load = np.resize(loads, n)
        compute = work(np.random.default_rng(n), load)
        traces = Traces(["a"] * n, load, total=compute + 2, compute=compute if separate else None)
        found = fit(traces)
        assert found.fits.all()
        assert np.isnan(found.p_value).all()
        assert "fewer than 8 replies" in " ".join(found.notes)
        mean = found.fleet.mean(load[:, None])[:, 0]
        assert mean.mean() == pytest.approx(traces.seconds.mean(), rel=0.35)
        for name in ("rate", "alpha", "overhead"):
            low, high = found.intervals[name][0]
            assert low <= getattr(found.fleet, name)[0] <= high
        assert plan(found.fleet, 0.1).deadline > 0
        assert plan(found.measured, 0.1).deadline > 0

    def test_one_measurement_tells_no_spread(self) -> None:
        found = fit(Traces(["a"], 100, compute=[3.0], total=[4.0]))
        assert found.fleet.alpha[0] == pytest.approx(2)
        assert found.fleet.mean(100)[0] == pytest.approx(4)
        assert found.intervals["alpha"].tolist() == [[0, np.inf]]
        assert "alpha is assumed to be 2" in " ".join(found.notes)

    def test_times_that_are_all_the_same(self) -> None:
        found = fit(Traces(["a"] * 5, 100, compute=3.0, total=3.0))
        assert found.fleet.alpha[0] == 1e4
        assert found.fleet.mean(100)[0] == pytest.approx(3, rel=1e-3)


class TestEstimates:
    def test_times_that_are_almost_nothing_beside_others(self) -> None:
        """Some draws are near 0: a line through them is not corrected for ever by its rounding."""
        load = [100, 200, 200, 400, 400]
        milliseconds = [0.12308400073379744, 4.719800001112162, 43.99994599953061]
        milliseconds += [23.761971000567428, 35.36658899975009]
        total = [4.20128398199995, 3.666677632001665, 3.77350192799895]
        total += [2.9309871189998375, 3.42881639]
        compute = [each / 1000 for each in milliseconds]
        traces = Traces(["a"] * 5, load, compute=compute, total=total)
        assert fit(traces).fleet.overhead == pytest.approx(3.58, rel=0.01)

    def test_the_line_against_all_lines_through_two_points(self) -> None:
        """The highest line at the harmonic mean load that has no point below it."""
        rng = np.random.default_rng(51)
        nothing = MissingReplies(np.empty(0), np.empty(0), np.empty(0))
        for _ in range(200):
            load = rng.integers(1, 20, 7).astype(float)
            if len(np.unique(load)) == 1:
                continue
            seconds = rng.uniform(1, 30, 7)
            middle = 1 / np.mean(1 / load)
            found = fit_work(load, seconds[None], nothing, "line", bounded=False)
            candidates = []
            for i in range(7):
                for j in range(7):
                    if load[i] < load[j]:
                        slope = (seconds[j] - seconds[i]) / (load[j] - load[i])
                        line = seconds[i] + slope * (load - load[i])
                        if (line <= seconds + 1e-9).all():
                            candidates.append(seconds[i] + slope * (middle - load[i]))
            assert found.at(np.array([middle]))[0, 0] == pytest.approx(max(candidates))

    def test_an_exponential_that_is_cut_off_at_one_time(self) -> None:
        """Without absence, θ is the time at risk over the replies (Type I censoring)."""
        rng = np.random.default_rng(52)
        times = rng.exponential(1, 4000)
        came = times < 1.0
        late = int((~came).sum())
        missing = MissingReplies(np.ones(late), np.full(late, 2.0), np.ones(late))
        found = fit_work(np.ones(int(came.sum())), 1 + times[None, came], missing, "per point")
        at_risk = np.minimum(times, 1.0).sum() / came.sum()
        assert found.spread[0] * found.availability[0] == pytest.approx(at_risk, rel=0.12)
        assert found.availability[0] == pytest.approx(1, abs=0.12)

    def test_a_link_with_known_retries(self) -> None:
        link = fit_link(np.array([2.0, 4.0, 2.0, 6.0]), np.array([0.0, 1.0, 0.0, 2.0]))
        assert (link.packet_time, link.erasure, link.hidden) == (2.0, 3 / 7, False)
        same = fit_link(np.array([2.0, 4.0, 2.0, 6.0]), None)
        assert (same.packet_time, same.erasure, same.hidden) == (2.0, 3 / 7, False)

    def test_a_link_that_loses_nothing(self) -> None:
        link = fit_link(np.full(10, 2.0), np.zeros(10))
        assert link.erasure_interval.tolist() == [0, pytest.approx(1 - 0.025 ** (1 / 10))]


class TestFallback:
    @pytest.fixture
    def found(self) -> Fit:
        rng = np.random.default_rng(61)
        load = rng.choice(LOADS, 120)
        compute = work(rng, load)
        beside = np.where(np.arange(120) < 60, 2.0, 3 + rng.uniform(0, 3, 120))
        who = np.repeat(["steady", "jittery"], 60)
        return fit(Traces(who, load, compute=compute, total=compute + beside), points=300)

    def test_mixes_the_two_models(self, found: Fit) -> None:
        model = found.delays
        assert isinstance(model, MixedDelays)
        assert found.fits.tolist() == [True, False]
        for t in (3.0, 8.0, 11.0):
            formula = found.fleet.cdf(300, t)
            measured = found.measured.cdf(300, t)
            assert model.cdf(300, t).tolist() == [formula[0], measured[1]]
            assert model.take(np.array([1])).cdf([300], t).tolist() == [measured[1]]
        grid = model.cdf(np.full((4, 1, 2), 300), np.arange(5.0)[:, None])
        assert grid.shape == (4, 5, 2)
        assert model.client.tolist() == ["steady", "jittery"]

    def test_is_planned_and_sampled(self, found: Fit) -> None:
        chosen = plan(found.delays, 0.2)
        assert chosen.expected_return >= 480
        rng = np.random.default_rng(62)
        drawn = found.delays.sample(chosen.loads, 20_000, rng)
        share = (drawn <= chosen.deadline).mean(0)  # 5 standard errors
        assert share == pytest.approx(chosen.return_probabilities, abs=5 * 0.5 / np.sqrt(20_000))
        assert expected_maximum(found.delays, [300, 300]) > 8

    def test_repeats_what_was_measured(self, found: Fit) -> None:
        traces, model = found.traces, found.measured
        for j, which in enumerate(rows_by_client(traces.client)[1]):
            seconds = model.fixed[j] + model.per_point[j] * traces.load[which]
            assert seconds == pytest.approx(traces.seconds[which])

    def test_other_points(self, found: Fit) -> None:
        for model in (found.fleet, found.measured, found.delays):
            assert plan(model, 0.2).points.tolist() == [300, 300]
            assert plan(model, 0.2, points=[10, 20]).points.tolist() == [10, 20]
            assert plan(model, 0.2, points=7).points.tolist() == [7, 7]
            with pytest.raises(InputError, match="points of client jittery is -1"):
                plan(model, 0.2, points=[10, -1])

    def test_how_often_a_reply_comes(self, found: Fit) -> None:
        lost = [found.measured.fixed[0], np.where(np.arange(60) < 15, np.inf, 1.0)]
        measured = MeasuredDelays(list(found.measured.per_point), lost)
        assert measured.availability.tolist() == [1, 0.75]
        mixed = MixedDelays(found.fleet, measured, found.fits)
        assert mixed.availability.tolist() == [found.fleet.availability[0], 0.75]

    @pytest.mark.parametrize("suffix", [".csv", ".parquet"])
    def test_files_keep_measured_delays(self, tmp_path: Path, suffix: str) -> None:
        model = MeasuredDelays([[1.0, np.inf], [0.5]], [[0.1, np.inf], [2]], ["b", "a"], [10, 20])
        model.write(tmp_path / f"delays{suffix}")
        again = read_measured(tmp_path / f"delays{suffix}")
        assert again.points is not None
        assert again.points.tolist() == [10, 20]
        assert again.client.tolist() == ["b", "a"]
        for name in ("per_point", "fixed"):
            np.testing.assert_array_equal(getattr(again, name), getattr(model, name))

    def test_points_of_a_file_contradict(self, tmp_path: Path) -> None:
        path = tmp_path / "delays.csv"
        path.write_text("client,points,per_point,fixed\na,10,1,1\na,20,1,1\n")
        with pytest.raises(InputError, match="points of client a are 10 and 20: write the same"):
            read_measured(path)

    def test_two_models_of_other_clients(self, found: Fit) -> None:
        one = found.measured.take(slice(1))
        with pytest.raises(InputError, match="same clients"):
            MixedDelays(found.fleet, one, found.fits)


class TestPoints:
    TRACES = Traces(["b", "a", "b"], [100.5, 200, 50], total=[3, 4, 5])

    def test_in_every_form(self) -> None:
        assert fit(self.TRACES).fleet.points.tolist() == [101, 200]
        assert fit(self.TRACES).fleet.client.tolist() == ["b", "a"]
        assert fit(self.TRACES, 40).fleet.points.tolist() == [40, 40]
        assert fit(self.TRACES, [1, 2]).fleet.points.tolist() == [1, 2]
        assert fit(self.TRACES, {"a": 1, "b": 2}).fleet.points.tolist() == [2, 1]

    @pytest.mark.parametrize(
        ("points", "message"),
        [
            ({"a": 1}, "points of client b are not given: add them"),
            ({"a": 1, "b": 2, "c": 3}, "points are given for c, which was never measured: remove"),
            ([1, 2, 3], "points has shape"),
            (-1, "points of client b is -1"),
            (0.5, "must be a whole number"),
        ],
    )
    def test_wrong(self, points: object, message: str) -> None:
        with pytest.raises(InputError, match=message):
            fit(self.TRACES, points)  # type: ignore[arg-type]


class TestTraces:
    @pytest.mark.parametrize("suffix", [".csv", ".parquet"])
    def test_files_keep_everything(self, tmp_path: Path, suffix: str) -> None:
        traces = Traces(
            ["a, b", "c", "c"],
            [10, 20, 30],
            down=[1 / 3, np.nan, 1],
            compute=[2, np.nan, 1],
            up=[1, np.nan, 1],
            total=[np.nan, np.inf, 4],
            retries_down=[0, np.nan, 2],
            waited=[np.nan, 9, 9],
        )
        traces.write(tmp_path / f"times{suffix}")
        again = read_traces(tmp_path / f"times{suffix}")
        for name in Traces.__dataclass_fields__:
            one, other = getattr(traces, name), getattr(again, name)
            assert np.array_equal(one, other, equal_nan=name != "client"), name
        assert again.seconds.tolist() == [pytest.approx(10 / 3), np.inf, 4]

    def test_all_without_a_total(self, tmp_path: Path) -> None:
        Traces([1, 2], 10, down=1, compute=2, up=3).write(tmp_path / "times.parquet")
        assert read_traces(tmp_path / "times.parquet").seconds.tolist() == [6, 6]

    def test_columns_are_frozen_copies(self) -> None:
        total = np.array([1.0, 2.0])
        traces = Traces([0, 1], 10, total=total)
        total[0] = 9
        assert traces.total[0] == 1
        with pytest.raises(ValueError, match="read-only"):
            traces.total[0] = 9

    @pytest.mark.parametrize(
        ("column", "value", "message"),
        [
            ("load", [10, 0], "row 1 .*: load is 0: must be finite and above 0"),
            ("load", [10, np.nan], "row 1 .*: load is empty"),
            (
                "total",
                [0, 9],
                "row 0 .*: total is 0: must be above 0; write inf or nothing",
            ),
            ("total", [9, -2], "row 1 .*: total is -2"),
            ("compute", [1, 0], "row 1 .*: compute is 0"),
            (
                "down",
                [-1, 1],
                "row 0 .*: down is -1: must be finite and at least 0",
            ),
            ("up", [np.inf, 1], "row 0 .*: up is inf"),
            (
                "retries_up",
                [0.5, 1],
                "row 0 .*: retries_up is 0.5: must be a whole number from 0",
            ),
            ("retries_down", [0, -1], "row 1 .*: retries_down is -1"),
            ("waited", [5, 0], "row 1 .*: waited is 0"),
            (
                "down",
                [1, 50],
                "row 1 .*: total is below the sum of down, compute and up",
            ),
            ("total", [9, np.inf], "row 1 .*: total is inf beside other times"),
            (
                "total",
                [9, np.nan],
                "row 1 .*: total is empty: give it, or all of",
            ),
            ("total", None, "there is no 'total': give it, or all of 'down', 'compute' and 'up'"),
            ("load", [10, 20, 30], r"load has shape \(3,\) where there are 2 measurements"),
            ("load", ["few", "many"], "load is not numeric"),
            ("client", [], r"client has shape \(0,\): give one name per measurement"),
        ],
    )
    def test_bad_values(self, column: str, value: object, message: str) -> None:
        good = {"client": ["a", "b"], "load": [10, 20], "total": [9, 9], "compute": [1, 2]}
        with pytest.raises(InputError, match=message):
            Traces(**good | {column: value})  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("client,load,total\na,10,3\nb,10,fast\n", "line 3: total is 'fast': write a number"),
            ("client,load,total\na,,3\n", "times.csv, line 2: load is empty"),
            ("client,load,total\n,10,3\n", "times.csv, line 2: client is empty: give it a name"),
            ("client,load,total\n", "has a header and no rows"),
            ("client,total\na,3\n", "lacks the column 'load'"),
            ("client,load,totl\na,1,3\n", "unknown column 'totl': did you mean 'total'"),
            ("client,load\na,1\n", "there is no 'total'"),
        ],
    )
    def test_bad_files(self, run: Run, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "times.csv"
        path.write_text(text)
        code, printed, err = run("fit", path, "--out", tmp_path / "fleet.csv")
        assert (code, printed) == (2, "")
        assert message in err
        assert err.count("\n") == 1
        assert not (tmp_path / "fleet.csv").exists()


def test_points_are_kept_and_other_columns_ignored(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "times.csv"
    rows = [f"a,{load},{load / 10 + k},70,full\n" for k, load in enumerate((10, 20, 10, 20))]
    path.write_text("client,load,total,points,battery\n" + "".join(rows))
    assert fit(read_traces(path)).fleet.points.tolist() == [70]
    assert "the column 'battery' is ignored" in caplog.text
    assert fit(read_traces(path), points=9).fleet.points.tolist() == [9]
    path.write_text("client,load,total,points\n\na,10,3,70\na,10,3,80\n")
    assert "points of client a are 70 and 80" in run("fit", path)[2]
    path.write_text("client,load,total\n\na,10,3\na,-1,3\n")
    assert "line 4: load is -1" in run("fit", path)[2]


class TestCommand:
    @pytest.fixture
    def times(self, tmp_path: Path) -> Path:
        rng = np.random.default_rng(71)
        load = np.tile([100.0, 200.0, 400.0], 27)[:80]
        compute = work(rng, load)
        beside = np.where(np.arange(80) < 40, 2, 3 + rng.uniform(0, 3, 80))
        total = np.where(np.arange(80) % 40 == 7, np.inf, compute + beside)
        compute = np.where(np.isinf(total), np.nan, compute)
        who = np.repeat(["[/steady]", "$jittery$"], 40)
        Traces(who, load, compute=compute, total=total).write(tmp_path / "times.csv")
        return tmp_path / "times.csv"

    def test_json_contract(self, run: Run, times: Path, tmp_path: Path) -> None:
        out = tmp_path / "fleet.parquet"
        code, printed, err = run("fit", times, "--points", 300, "--out", out, "--json")
        document = json.loads(printed)
        assert code == 0
        assert document["fleet"] == str(out)
        steady, jittery = document["clients"]
        assert steady["client"] == "[/steady]"
        assert (steady["measurements"], steady["never_came"], steady["points"]) == (40, 1, 300)
        assert steady["rate_interval"][0] < steady["rate"] < steady["rate_interval"][1]
        assert steady["erasure_interval"] is None
        assert (steady["fits"], jittery["fits"]) == (True, False)
        assert jittery["p_value"] < 0.01
        assert "note: every client: retransmissions are hidden" in err
        assert "warning: client $jittery$: its times do not follow" in err
        assert Fleet.read(out).rate.tolist() == [c["rate"] for c in document["clients"]]
        assert json.loads(run("fit", times, "--json")[1])["fleet"] is None

    def test_table_figure_and_both_plans(self, run: Run, times: Path, tmp_path: Path) -> None:
        fleet, delays, figure = (tmp_path / name for name in ("f.csv", "d.csv", "f.png"))
        code, out, err = run("fit", times, "--out", fleet, "--measured", delays, "--figure", figure)
        assert code == 0
        assert "[/steady]" in out
        assert "39/40" in out
        assert "no, p = 0.00" in out
        assert err.count("wrote") == 3
        assert figure.read_bytes().startswith(b"\x89PNG")
        chosen = {}
        for path in (fleet, delays):
            code, printed, _ = run("plan", path, "--redundancy", 0.2, "--json")
            assert code == 0
            chosen[path] = json.loads(printed)
        assert chosen[delays]["points"] == 800
        assert chosen[delays]["wait_for_all_s"] is None  # some never came back
        ratio = chosen[delays]["deadline_s"] / chosen[fleet]["deadline_s"]
        assert 0.7 < ratio < 1.4
        assert run("plan", delays, "--figure", figure, "--out", tmp_path / "p.csv")[0] == 0

    @pytest.mark.parametrize(
        ("option", "value"), [("--server-rate", 5), ("--rounds", 5), ("--excess", 0.2)]
    )
    def test_measured_delays_are_no_fleet(
        self, run: Run, tmp_path: Path, option: str, value: float
    ) -> None:
        path = tmp_path / "delays.csv"
        path.write_text("client,points,per_point,fixed\na,10,1,1\na,10,2,1\n")
        code, _, err = run("plan", path, option, value)
        assert code == 2
        assert f"{option} and the measured delays of {path} do not go together" in err
        assert run("plan", path, "--points", 5)[0] == 2

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--out", "times.csv"], "--out times.csv is the file of measured times itself"),
            (["--out", "f.csv", "--measured", "f.csv"], "--measured f.csv is --out's file too"),
            (["--out", "f.txt"], "must end in .csv or .parquet"),
            (["--figure", "f.csv"], "must end in .png"),
            (["--points", -1], "points of client [/steady] is -1"),
        ],
    )
    def test_bad_arguments(
        self,
        run: Run,
        times: Path,
        monkeypatch: pytest.MonkeyPatch,
        arguments: list[object],
        message: str,
    ) -> None:
        monkeypatch.chdir(times.parent)
        before = times.read_bytes()
        code, printed, err = run("fit", "times.csv", *arguments)
        assert (code, printed) == (2, "")
        assert message in err
        assert times.read_bytes() == before
        assert {path.name for path in times.parent.iterdir()} == {"times.csv"}


class TestFigure:
    def test_a_panel_per_client_and_colours(self) -> None:
        rng = np.random.default_rng(81)
        steady, jittery = totals(rng, 60, 1), flower(rng, 60, 1)
        who = np.repeat(["steady", "jittery", "gone"], [60, 60, 1])
        total = np.concatenate([steady.total, jittery.total, [np.inf]])
        compute = np.concatenate([np.full(60, np.nan), jittery.compute, [np.nan]])
        load = np.concatenate([steady.load, jittery.load, [100]])
        found = fit(Traces(who, load, total=total, compute=compute))
        panels = fit_figure(found).axes
        assert [ax.get_title(loc="left") for ax in panels] == ["steady", "jittery", "gone"]
        colours = [ax.lines[1].get_color() for ax in panels[:2]]
        assert colours[0] != colours[1]
        heights = np.asarray(panels[0].lines[0].get_ydata(), dtype=float)
        assert (heights[0], heights[-1]) == (0, 1)
        fitted = np.asarray(panels[0].lines[1].get_ydata(), dtype=float)
        assert np.abs(np.diff(fitted)).max() < 0.2
        assert fitted[-1] > 0.95

    def test_many_clients_are_those_that_fit_worst(self) -> None:
        found = fit(totals(np.random.default_rng(82), 10, 40))
        figure = fit_figure(found)
        shown = {int(ax.get_title(loc="left")) for ax in figure.axes}
        assert shown == set(np.argsort(found.p_value, kind="stable")[:16].tolist())
        assert "the 16 of 40 clients that fit worst" in figure.get_suptitle()
