import numpy as np
import pytest

from codedfedl import InputError, paper_devices, paper_fleet


def test_ladders_of_the_paper() -> None:
    devices = paper_devices()
    assert np.sort(devices.mac_rate)[0] == pytest.approx(4754, rel=1e-3)
    assert np.sort(devices.bit_rate)[0] == pytest.approx(48.8e3, rel=1e-3)
    assert devices.mac_rate.max() == 3.072e6
    assert devices.bit_rate.max() == 216e3


def test_a_seed_deals_the_same_rungs_in_another_order() -> None:
    one, same, other = paper_fleet(seed=1), paper_fleet(seed=1), paper_fleet(seed=2)
    assert one.rate.tolist() == same.rate.tolist()
    assert one.rate.tolist() != other.rate.tolist()
    assert np.sort(one.rate).tolist() == np.sort(other.rate).tolist()


def test_constants_can_be_changed() -> None:
    devices = paper_devices(4, k1=0.5, k2=0.1, alpha=3, erasure=0.2, max_mac_rate=1e6)
    assert np.sort(devices.mac_rate).tolist() == pytest.approx([1e3, 1e4, 1e5, 1e6])
    assert devices.alpha.tolist() == [3.0] * 4
    with pytest.raises(InputError, match="clients is 0"):
        paper_devices(0)
