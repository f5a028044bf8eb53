from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codedfedl import Devices, Fleet, InputError, Workload, read_fleet
from codedfedl.fleet.delays import DelayParameters
from codedfedl.fleet.devices import read_clients

GOOD: dict[str, Any] = {
    "points": [400, 300],
    "rate": [2.0, 20.0],
    "alpha": 2.0,
    "packet_time": [3.0, 1.0],
    "erasure": 0.1,
}


def test_scalars_stand_for_every_client_and_arrays_are_frozen() -> None:
    fleet = Fleet(**GOOD)
    assert len(fleet) == 2
    assert fleet.total_points == 700
    assert fleet.alpha.tolist() == [2.0, 2.0]
    assert fleet.packet_time_up.tolist() == [3.0, 1.0]
    assert fleet.symmetric.all()
    with pytest.raises(ValueError, match="read-only"):
        fleet.rate[0] = 1.0


def test_the_callers_arrays_stay_the_callers() -> None:
    rate = np.array([2.0, 20.0])
    fleet = Fleet(**GOOD | {"rate": rate})
    rate[0] = 5.0
    assert fleet.rate[0] == 2.0


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rate", [2.0, np.nan], "rate of client 1 is nan: must be finite and above 0"),
        ("rate", [0.0, 1.0], "rate of client 0 is 0: must be finite and above 0"),
        ("rate", [1.0, -3.0], "rate of client 1 is -3"),
        ("alpha", np.inf, r"alpha of client 0 is inf \(and 1 more\)"),
        ("packet_time", [-1.0, 1.0], "packet_time of client 0 is -1: must be finite and at least"),
        ("erasure", [0.1, 1.0], "erasure of client 1 is 1: must be at least 0 and below 1"),
        ("erasure_up", [0.1, 1.5], "erasure_up of client 1 is 1.5"),
        ("availability", [0.5, 1.1], "availability of client 1 is 1.1: must be between 0 and 1"),
        ("overhead", -1.0, "overhead of client 0 is -1"),
        ("points", [400, 2.5], "points of client 1 is 2.5: must be a whole number"),
        ("points", [400, -1], "points of client 1 is -1"),
        ("points", [0, 0], "no client has any point"),
        ("rate", [1.0, 2.0, 3.0], r"rate has shape \(3,\) where there are 2 clients"),
        ("rate", ["fast", "slow"], "rate is not numeric"),
        ("points", [], "the fleet is empty"),
        ("client", ["a", "a"], "client a is listed twice"),
        ("client", ["a", "b", "c"], r"client has shape \(3,\)"),
    ],
)
def test_bad_quantities(field: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Fleet(**GOOD | {field: value})


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_files_keep_everything(tmp_path: Path, suffix: str) -> None:
    fleet = Fleet(
        **GOOD | {"rate": [1 / 3, 2 / 7]},
        packet_time_up=[0.1, 0.2],
        erasure_up=[0.0, 0.5],
        overhead=[1.0, 0.0],
        availability=[1.0, 0.25],
        client=["phone", "sensor, old"],
    )
    path = tmp_path / f"fleet{suffix}"
    fleet.write(path)
    again = Fleet.read(path)
    for name in Fleet.__dataclass_fields__:
        assert getattr(again, name).tolist() == getattr(fleet, name).tolist()
    assert not again.symmetric.any()


def test_optional_columns_may_lack(tmp_path: Path) -> None:
    path = tmp_path / "fleet.csv"
    path.write_text("client,points,rate,alpha,packet_time,erasure\nx,10,1,2,3,0.1\n")
    fleet = read_fleet(path)
    assert fleet.availability.tolist() == [1.0]
    assert fleet.client.tolist() == ["x"]


class TestDevices:
    HEADER = "client,mac_rate,bit_rate,alpha,erasure"

    def test_become_a_fleet_with_a_workload(self) -> None:
        devices = Devices(mac_rate=[3.072e6], bit_rate=[216e3], alpha=2, erasure=0.1)
        fleet = devices.fleet(Workload(features=2000, labels=10), points=400)
        assert fleet.rate[0] == pytest.approx(3.072e6 / 40_000)
        assert fleet.packet_time[0] == pytest.approx(32 * 20_000 * 1.1 / 216e3)
        assert fleet.symmetric.all()

    def test_uplink_of_their_own(self) -> None:
        devices = Devices(mac_rate=1e6, bit_rate=2e5, alpha=2, erasure=0.1, bit_rate_up=[1e5])
        fleet = devices.parameters(Workload())
        assert fleet.packet_time_up[0] == pytest.approx(2 * fleet.packet_time[0])

    def test_file_with_points(self, tmp_path: Path) -> None:
        path = tmp_path / "devices.csv"
        path.write_text(f"{self.HEADER},points\na,4e6,1e5,2,0.1,30\nb,8e6,1e5,2,0.1,50\n")
        fleet = read_fleet(path, Workload(features=100, labels=2))
        assert fleet.points.tolist() == [30, 50]
        assert fleet.rate.tolist() == [1e4, 2e4]

    def test_file_without_points_needs_them(self, tmp_path: Path) -> None:
        path = tmp_path / "devices.csv"
        path.write_text(f"{self.HEADER}\na,4e6,1e5,2,0.1\n")
        assert read_fleet(path, points=40).total_points == 40
        with pytest.raises(InputError, match="add a column 'points', or give --points"):
            read_fleet(path)

    def test_files_are_read_without_points(self, tmp_path: Path) -> None:
        """Who runs an experiment has the points from its data."""
        path = tmp_path / "devices.csv"
        path.write_text(f"{self.HEADER},points\na,4e6,1e5,2,0.1,30\nb,8e6,1e5,2,0.1,50\n")
        devices = read_clients(path)
        assert isinstance(devices, Devices)
        assert devices.mac_rate.tolist() == [4e6, 8e6]
        for points, header in (("", ""), (",3", ",points")):
            path.write_text(f"client,rate,alpha,packet_time,erasure{header}\nx,1,2,3,0.1{points}\n")
            parameters = read_clients(path)
            assert type(parameters) is DelayParameters
            assert (parameters.client.tolist(), parameters.rate.tolist()) == (["x"], [1.0])
            assert Fleet.of(parameters, 7).points.tolist() == [7]

    def test_bad_value_names_the_client(self, tmp_path: Path) -> None:
        path = tmp_path / "devices.csv"
        path.write_text(f"{self.HEADER}\na,4e6,1e5,2,0.1\nb,0,1e5,2,0.1\n")
        with pytest.raises(InputError, match="mac_rate of client b is 0"):
            read_fleet(path, points=40)


@pytest.mark.parametrize(
    ("field", "value"),
    [("features", 0), ("labels", -1), ("bits", 1.5), ("overhead", -0.1), ("overhead", np.nan)],
)
def test_bad_workload(field: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{field} is "):
        Workload(**{field: value})  # type: ignore[arg-type]
