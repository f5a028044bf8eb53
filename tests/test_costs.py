import numpy as np
import pytest

from codedfedl import InputError, Setup, Workload, paper_devices, paper_fleet


def hours_at_the_slowest(alpha: float) -> tuple[float, float]:
    """Embedding and encoding at 10% on the paper's fleet, with the exponential part at its mean."""
    workload = Workload()
    fleet = paper_devices(alpha=alpha).fleet(workload, 400)
    embedding = Setup().embedding(fleet, workload).mean_seconds(fleet, workload)
    parity = Setup().parity(fleet, workload, 1200)
    parity_compute = parity.macs / workload.point_macs / fleet.rate * (1 + 1 / alpha)
    return float(embedding.max()) / 3600, float(parity_compute.max()) / 3600


def test_deterministic_parts_on_the_papers_fleet() -> None:
    """784·2000 MACs for 2000 points, and 5·1200·400·2010 MACs, at 4,754 MAC/s."""
    embedding, encoding = hours_at_the_slowest(alpha=1e12)
    slowest = 3.072e6 * 0.8**29
    assert embedding == pytest.approx(784 * 2000 * 2000 / slowest / 3600)
    assert encoding == pytest.approx(5 * 1200 * 400 * 2010 / slowest / 3600)
    assert (round(embedding), round(encoding)) == (183, 282)


def test_the_exponential_part_makes_each_half_as_long_again() -> None:
    sure, random = hours_at_the_slowest(1e12), hours_at_the_slowest(2.0)
    np.testing.assert_allclose(random, 1.5 * np.array(sure))


def test_parity_upload_counts_bits_and_retransmissions() -> None:
    fleet, workload = paper_fleet(), Workload()
    parity = Setup().parity(fleet, workload, 1200)
    assert parity.bits_up[0] == pytest.approx(5 * 1200 * 2010 * 32 * 1.1)
    slowest = 216e3 * 0.95**29
    upload = parity.bits_up / workload.packet_bits * fleet.packet_time_up
    assert upload.max() == pytest.approx(parity.bits_up[0] / slowest)
    assert upload.max() / 3600 == pytest.approx(2.4, abs=0.05)


def test_seconds_is_the_slowest_clients_sum() -> None:
    fleet, workload = paper_fleet(), Workload()
    steps = [Setup().embedding(fleet, workload), Setup().parity(fleet, workload, 7)]
    together = sum(step.mean_seconds(fleet, workload) for step in steps)
    assert Setup().seconds(fleet, workload, 7) == np.max(together)


@pytest.mark.parametrize("field", ["inputs", "batches"])
def test_bad_setup(field: str) -> None:
    with pytest.raises(InputError, match=f"{field} is 0"):
        Setup(**{field: 0})
