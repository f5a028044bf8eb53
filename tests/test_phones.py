"""Phones: a fleet of any size from measured figures."""

import json
from pathlib import Path

import numpy as np
import pytest

from codedfedl import Workload, phone_devices, phone_fleet
from codedfedl.errors import InputError
from codedfedl.fleet.built_in import built_in_fleet
from tests.conftest import Run


def test_processors_and_links_are_as_measured() -> None:
    """Of 400,000 drawn phones: every limit is six standard errors or more, odds below 1e-8."""
    phones = phone_devices(400_000)
    assert np.median(phones.mac_rate) == pytest.approx(1e9, rel=0.02)
    low, high = np.quantile(phones.mac_rate, [0.05, 0.95]) / 1e9 * 1548
    assert low == pytest.approx(213, rel=0.03)
    assert high == pytest.approx(3689, rel=0.03)
    wifi = phones.bit_rate_up[phones.bit_rate_up > 40e6]  # hardly any LTE is as fast
    assert 0.05 < len(wifi) / 400_000 < 0.2
    logs = np.log([phones.bit_rate, phones.bit_rate_up])
    assert np.median(phones.bit_rate / phones.bit_rate_up) == pytest.approx(5172 / 3103, rel=0.02)
    assert logs[1].std() > logs[0].std()


def test_more_phones_begin_with_the_same() -> None:
    few, many = phone_devices(7, seed=3), phone_devices(70, seed=3)
    for name in ("mac_rate", "bit_rate", "bit_rate_up"):
        np.testing.assert_array_equal(getattr(few, name), getattr(many, name)[:7])
    assert (phone_devices(7, seed=4).mac_rate != few.mac_rate).all()


def test_points_are_a_public_federations_or_given() -> None:
    """The quartiles of 100,000 drawn sizes: 6% are nine standard errors, odds below 1e-18."""
    drawn = phone_fleet(100_000).points
    np.testing.assert_allclose(np.quantile(drawn, [0.25, 0.5, 0.75]), [38, 60, 126], rtol=0.06)
    assert (drawn == np.floor(drawn)).all()
    assert drawn.min() >= 25
    assert (built_in_fleet("phones", 5, 40, Workload(), 0).points == 40).all()
    assert len(built_in_fleet("paper", 7, None, Workload(), 0)) == 7


@pytest.mark.parametrize(("clients", "seed"), [(0, 0), (2.5, 0), (3, -1)])
def test_bad_numbers(clients: float, seed: int) -> None:
    with pytest.raises(InputError, match="must be"):
        phone_devices(clients, seed=seed)  # type: ignore[arg-type]


def test_planned_and_simulated(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("plan", "phones", "--clients", 8, "--json")
    assert code == 0
    assert len(json.loads(out)["clients"]) == 8
    path = tmp_path / "e.toml"
    path.write_text(
        '[data]\nname = "digits"\n[fleet]\nname = "phones"\nclients = 6\n'
        '[features]\nn_components = 40\n[[schemes]]\nname = "uncoded"\n[training]\nepochs = 3\n'
    )
    code, out, err = run("simulate", path, "--out", tmp_path / "run", "--json")
    assert code == 0, err
    assert json.loads(out)["rows"][0]["total_hours"] is not None
    code, _, err = run("simulate", path, "--set", "fleet.k1=0.9", "--out", tmp_path / "other")
    assert code == 2
    assert "fleet.k1 is 0.9, but the fleet is phones" in err


def test_a_files_clients_are_its_own(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "fleet.csv"
    path.write_text("client,points,rate,alpha,packet_time,erasure\na,40,2,2,3,0.1\n")
    code, _, err = run("plan", path, "--clients", 3)
    assert code == 2
    assert "--clients is 3, but" in err
