"""Which feature map for a wanted time."""

import json

import numpy as np
import pytest

from codedfedl import paper_fleet
from codedfedl.errors import InputError
from codedfedl.fleet.built_in import paper_devices
from codedfedl.fleet.devices import Workload
from codedfedl.planning.hours import MapCost, best_map, for_features, plan_maps
from tests.conftest import Run

WORK = Workload(2000, 10)


def test_the_same_devices_with_another_model() -> None:
    devices = paper_devices(seed=3)
    expected = devices.fleet(Workload(500, 10), 400)
    found = for_features(devices.fleet(WORK, 400), WORK, 500)
    for name in ("rate", "packet_time", "packet_time_up", "points", "erasure"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-12)


def test_the_last_that_is_done_in_time() -> None:
    maps = [MapCost("structured", q, 20 * q) for q in (200, 500, 1000)]
    fleet = paper_fleet(80, WORK)
    plans = plan_maps(fleet, WORK, fleet.points * 5, maps, 0.2, 10)
    hours = [one.hours for one in plans]
    assert hours == sorted(hours)
    assert best_map(plans, hours[1] * 1.01).map.features == 500
    with pytest.raises(InputError, match="no feature map is trained within 1e-06 h: the soonest"):
        best_map(plans, 1e-6)


def test_the_command(run: Run) -> None:
    code, out, _ = run("plan", "paper", "--within", 1, "--image", "28,28,1", "--json")
    assert code == 0
    document = json.loads(out)
    chosen = document["chosen"]
    assert (chosen["kind"], chosen["n_components"], chosen["stride"]) == ("patches", 972, 1)
    assert chosen["predicted_hours"] <= 1
    later = document["maps"][document["maps"].index(chosen) + 1 :]
    assert all(one["predicted_hours"] > 1 for one in later)
    _, out, _ = run("plan", "paper", "--within", 1)  # no image
    assert 'kind = "structured"\nn_components = 4000' in out


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (["--within", -1], "--within is -1"),
        (["--within", 1, "--image", "28,28"], "--image is '28,28': must be HEIGHT,WIDTH"),
        (["--within", 1, "--image", "20,28,1"], "product of 784"),
        (["--within", 1, "--rounds", 5], "leave one out"),
        (["--within", 1, "--redundancy", 0.1], "leave one out"),
    ],
)
def test_bad_input(run: Run, options: list[object], match: str) -> None:
    code, _, err = run("plan", "paper", *options)
    assert code == 2
    assert match in err
