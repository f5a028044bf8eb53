"""The fleets that come with the package, by name."""

from pathlib import Path

from codedfedl.errors import InputError
from codedfedl.fleet.devices import Devices, Fleet, Workload
from codedfedl.fleet.paper import paper_devices
from codedfedl.fleet.phones import phone_devices, phone_fleet
from codedfedl.io.names import nearest

__all__ = ["BUILT_IN", "built_in_devices", "built_in_fleet", "check_fleet_name", "void_settings"]

BUILT_IN = ("paper", "phones")

_SETTINGS = ("clients", "k1", "k2", "alpha", "erasure")


def void_settings(name: str) -> tuple[str, ...]:
    """Return the settings of built-in fleets that do not apply to this fleet."""
    if name == "paper":
        return ()
    return ("k1", "k2") if name == "phones" else _SETTINGS  # a file says all of it itself


def built_in_devices(
    name: str, clients: int, *, k1: float, k2: float, alpha: float, erasure: float, seed: int
) -> Devices:
    """Return the devices of a built-in fleet."""
    if name == "phones":
        return phone_devices(clients, alpha=alpha, erasure=erasure, seed=seed)
    return paper_devices(clients, k1=k1, k2=k2, alpha=alpha, erasure=erasure, seed=seed)


def built_in_fleet(
    name: str, clients: int | None, points: float | None, workload: Workload, seed: int
) -> Fleet:
    """Return a built-in fleet with its own points, or with those that are given."""
    clients = 30 if clients is None else clients
    if name == "phones":
        return phone_fleet(clients, points, workload, seed=seed)
    return paper_devices(clients, seed=seed).fleet(workload, 400 if points is None else points)


def check_fleet_name(name: str) -> None:
    """Refuse a word that is neither a file nor a built-in fleet, perhaps misspelt."""
    if name not in BUILT_IN and not Path(name).suffix and not Path(name).exists():
        raise InputError(
            f"the fleet {name!r} is neither a file that ends in .csv or .parquet nor a known name: "
            f"{nearest(name, list(BUILT_IN))}"
        )
