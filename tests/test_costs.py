import numpy as np
import pytest

from codedfedl import InputError, Training, Workload, paper_devices, paper_fleet
from codedfedl.fleet.costs import Cost, embedding, gram, parity
from codedfedl.learning.features import Structured

WORKLOAD = Workload()
POINTS = np.full((5, 30), 400)


def hours_at_the_slowest(cost: Cost, alpha: float) -> float:
    """Compute alone, with the exponential part at its mean."""
    fleet = paper_devices(alpha=alpha).fleet(WORKLOAD, 400)
    compute = Cost(cost.macs, np.zeros(30)).mean_seconds(fleet, WORKLOAD)
    return float(compute.max()) / 3600


@pytest.mark.parametrize(
    ("cost", "hours"),
    [
        (embedding(POINTS.sum(0), 784 * 2000), 183),
        (parity(POINTS, [1200] * 5, WORKLOAD), 282),
        (parity(POINTS, [3600] * 5, WORKLOAD), 846),
        (gram(POINTS.sum(0), WORKLOAD), 236),
        (embedding(POINTS.sum(0), Structured().macs(784)), 3.82),
        (parity(POINTS, [1200] * 5, WORKLOAD, [32] * 5), 7.52),
        (Cost(POINTS.sum(0) * 2010.0, np.zeros(30)), 0.235),  # balanced, each point once
    ],
)
def test_deterministic_parts_on_the_papers_fleet(cost: Cost, hours: float) -> None:
    """Figures that were computed by hand; that of the Gram matrix without the moments."""
    assert hours_at_the_slowest(cost, alpha=1e12) == pytest.approx(hours, rel=0.012)
    assert hours_at_the_slowest(cost, alpha=2.0) == pytest.approx(1.5 * hours, rel=0.012)


def test_upload_counts_whole_packets_and_retransmissions() -> None:
    fleet = paper_fleet()
    cost = parity(POINTS, [1200] * 5, WORKLOAD)
    assert cost.bits_up[0] == pytest.approx(5 * 1200 * 2010 * 32 * 1.1)
    upload = Cost(np.zeros(30), cost.bits_up).mean_seconds(fleet, WORKLOAD)
    assert upload.max() == pytest.approx(603 * fleet.packet_time.max() / 0.9)
    assert upload.max() / 3600 == pytest.approx(2.7, abs=0.05)


def test_samples_have_the_mean() -> None:
    """Five standard deviations at each of 30 clients: false alarm below 2e-5."""
    fleet, cost = paper_fleet(), gram(POINTS.sum(0), WORKLOAD)
    rng = np.random.default_rng(0)
    drawn = np.array([sum(cost.sample_seconds(fleet, WORKLOAD, rng)) for _ in range(4000)])
    error = drawn.mean(0) - cost.mean_seconds(fleet, WORKLOAD)
    assert (np.abs(error) < 5 * drawn.std(0) / np.sqrt(4000)).all()


def test_nothing_to_send_takes_no_time() -> None:
    model = paper_fleet()
    _, upload = embedding(POINTS.sum(0), 784 * 2000).sample_seconds(
        model, WORKLOAD, np.random.default_rng(0)
    )
    assert (upload == 0).all()


def test_setup_is_the_slowest_clients_sum() -> None:
    fleet = paper_fleet()
    steps = (embedding(POINTS.sum(0), 784 * 2000), parity(POINTS, [7] * 5, WORKLOAD))
    together = sum(step.mean_seconds(fleet, WORKLOAD) for step in steps)
    training = Training(WORKLOAD, 784 * 2000, 5, rounds=1, step=1.0, mixing=0)
    assert training.setup_seconds(fleet, 7) == pytest.approx(np.max(together))


@pytest.mark.parametrize("field", ["feature_macs", "batches", "rounds"])
def test_bad_training(field: str) -> None:
    given: dict[str, int] = {"feature_macs": 100, "batches": 5, "rounds": 1} | {field: 0}
    with pytest.raises(InputError, match=f"{field} is 0"):
        Training(WORKLOAD, step=1.0, mixing=0, **given)
