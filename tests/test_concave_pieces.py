import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codedfedl import Fleet, best_loads, expected_return
from codedfedl.fleet.built_in import FIGURE_1_SECONDS, figure_1_client
from codedfedl.planning import theorem
from codedfedl.planning.concave_pieces import Ranges, SymmetricClients, peak_share, piece_peaks
from tests.strategies import fleets, times


class TestClosedForm:
    @given(log_alpha=st.floats(-6, 6))
    def test_is_a_root_for_any_alpha(self, log_alpha: float) -> None:
        alpha = 10**log_alpha
        share = peak_share(np.array([alpha]))[0]
        v = alpha / share
        # v − log(1+v) with its digits kept for small v, where it is v²/2 − v³/3 + …
        left = v - np.log1p(v) if v > 1e-2 else sum((-v) ** k / k for k in range(2, 12))
        assert left == pytest.approx(alpha, rel=1e-10)
        assert 0 < share < 1

    @given(fleet=fleets(max_clients=1, max_points=10**6), t=times())
    def test_gives_the_best_load_of_lossless_links(self, fleet: Fleet, t: float) -> None:
        lossless = Fleet(
            points=fleet.points,
            rate=fleet.rate,
            alpha=fleet.alpha,
            packet_time=fleet.packet_time,
            erasure=0,
        )
        spare = np.maximum(t - 2 * fleet.packet_time, 0)
        closed = np.minimum(fleet.rate * peak_share(fleet.alpha) * spare, fleet.points)
        found = best_loads(lossless, t, whole=False).loads
        np.testing.assert_allclose(found, closed, rtol=1e-6)


@given(fleet=fleets(always_there=False), t=times())
def test_best_whole_load_against_every_load(fleet: Fleet, t: float) -> None:
    found = best_loads(fleet, t)
    returned = found.loads * found.return_probabilities
    clients = theorem.clients_of(fleet)
    best = [theorem.expected_return(c, t, theorem.best_load(c, t)) for c in clients]
    np.testing.assert_allclose(returned, best, rtol=1e-7, atol=1e-10)
    assert (found.loads == np.floor(found.loads)).all()
    assert (found.loads <= fleet.points).all()


@given(fleet=fleets(max_clients=3, max_points=10**5), t=times())
def test_best_continuous_load_against_a_grid(fleet: Fleet, t: float) -> None:
    model = fleet
    found = best_loads(model, t, whole=False)
    grid = np.linspace(0, 1, 4001)[:, None] * np.minimum(fleet.points, fleet.rate * t)
    on_grid = expected_return(model, grid, t).max(0)
    returned = found.loads * found.return_probabilities
    assert (returned >= on_grid * (1 - 1e-9) - 1e-12).all()


@given(fleet=fleets(max_clients=1, max_points=2000, max_erasure=0.8), t=times())
def test_continuous_optimum_is_on_the_best_piece(fleet: Fleet, t: float) -> None:
    """Solving every piece for itself finds no more than branch and bound."""
    peaks = piece_peaks(fleet, t)
    if not len(peaks):
        return
    model = fleet
    best = expected_return(model, peaks[:, None], t).max()
    found = best_loads(model, t, whole=False)
    assert found.expected_return == pytest.approx(best, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("points", [10**6, 11])
def test_bounds_hold_on_every_range_of_pieces(points: int) -> None:
    """Jensen's, and the tangent anywhere in the range; with all points and below a cap."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        client = Fleet(
            points=[points],
            rate=1,
            alpha=10 ** rng.uniform(-3, 3),
            packet_time=1,
            erasure=rng.uniform(0, 0.95),
        )
        t = rng.uniform(4, 30)
        first = int(rng.integers(2, int(t) + 1))
        final = int(rng.integers(first, int(t) + 1))
        columns = (np.array([float(value)]) for value in (t, int(t), first, final))
        clients = SymmetricClients.of(client, client.points)
        ranges = Ranges(clients, np.array([0]), *columns)
        low, high = (end[0] for end in ranges.interval())
        if low >= high:
            continue
        loads = np.linspace(low, high, 500)
        inside = expected_return(client, loads[:, None], t).max()
        at = ranges.bounds()[1], np.array([rng.uniform(low + 1e-9, high)])
        for bound in (ranges.bounds()[0], *map(ranges.tangent_bounds, at)):
            assert inside <= bound[0] * (1 + 1e-12)


def test_pieces_are_concave_and_slopes_jump_up_between_them() -> None:
    client, t = figure_1_client(), FIGURE_1_SECONDS
    model = client
    edges = 2 * (t - np.sqrt(3) * np.arange(5, 1, -1))
    for low, high in zip([0.0, *edges[:-1]], edges, strict=True):
        loads = np.linspace(low + 1e-9, high - 1e-9, 400)
        returned = expected_return(model, loads[:, None], t)[:, 0]
        assert (np.diff(returned, 2) < 1e-12).all()
    for edge in edges[:-1]:
        left, at, right = expected_return(model, (edge + np.array([-1e-5, 0, 1e-5]))[:, None], t)
        assert (right - at) - (at - left) > 0


def test_figure_1_has_an_optimum_inside_every_piece() -> None:
    client, t = figure_1_client(), FIGURE_1_SECONDS
    edges = 2 * (t - np.sqrt(3) * np.arange(2, 7))
    peaks = piece_peaks(client, t)
    assert len(peaks) == 4
    assert (peaks < edges[:-1]).all()
    assert (peaks > np.maximum(edges[1:], 0)).all()
    for load in peaks:
        around = expected_return(client, load + np.array([[-1e-3], [0], [1e-3]]), t)
        assert around.argmax() == 1


@pytest.mark.parametrize("t", [3.0, 7.3, 20.0])
def test_pieces_much_shorter_than_a_point(t: float) -> None:
    """Most pieces have no whole load; one client has no point."""
    fleet = Fleet(
        points=[60, 60, 0, 60],
        rate=[1, 10, 1, 0.3],
        alpha=[0.5, 4, 2, 50],
        packet_time=[0.01, 0.02, 0.01, 0.03],
        erasure=[0.99, 0.97, 0.5, 0.98],
    )
    found = best_loads(fleet, t)
    clients = theorem.clients_of(fleet)
    best = [theorem.best_load(client, t) for client in clients]
    returned = [theorem.expected_return(c, t, load) for c, load in zip(clients, best, strict=True)]
    np.testing.assert_allclose(found.loads * found.return_probabilities, returned, rtol=1e-9)
