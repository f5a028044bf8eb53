"""Mistakes in settings and own schemes are errors with a remedy, not failed assertions."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from codedfedl import Ask, Everyone, Inbox, Info, InputError, Scheme, State
from codedfedl.core.client import Gradient
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.masked import masked
from codedfedl.runs.directory import RunDirectory
from codedfedl.schemes import SCHEMES, make_scheme, settings_of
from codedfedl.simulation.assignments import Arrivals
from codedfedl.simulation.checkpoint import restore, snapshot
from codedfedl.simulation.engine import Setting
from codedfedl.simulation.experiment import simulate
from tests.virtual import experiment_of, play, simulation_of


@dataclass(frozen=True)
class Plain(Scheme):
    """Waiting for all."""

    info: ClassVar[Info] = Info("plain")

    def ask(self, state: State) -> Any:
        return None if state.finished else Ask(Gradient(state.task.batch(state.round)), Everyone())

    def receive(self, state: State, inbox: Inbox) -> Any:
        return state.descended(inbox.total(), inbox.points)


@dataclass(frozen=True)
class Mute(Plain):
    """Its first ask is none."""

    info: ClassVar[Info] = Info("mute")

    def ask(self, state: State) -> Any:
        return "gradients, please"


@dataclass(frozen=True)
class Forgetful(Plain):
    """It forgets to return its state."""

    info: ClassVar[Info] = Info("forgetful")

    def receive(self, state: State, inbox: Inbox) -> Any:
        super().receive(state, inbox)


@dataclass(frozen=True)
class Boastful(Plain):
    """It claims a guarantee that it does not account for."""

    info: ClassVar[Info] = Info("boastful", frozenset({Disclosure.DP}))


@dataclass(frozen=True)
class Noisy(Plain):
    """It asks for noise on gradients."""

    info: ClassVar[Info] = Info("noisy")
    integers: bool = False
    sigma: float = 1e3

    def ask(self, state: State) -> Any:
        ask = super().ask(state)
        if ask is None or not self.integers:
            return None if ask is None else replace(ask, noise=self.sigma)
        return replace(ask, noise=self.sigma, work=masked(ask.work, state.task))

    def receive(self, state: State, inbox: Inbox) -> Any:
        return replace(state, model=state.model + 0, round=state.round + 1)


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (Mute, "scheme 'mute' returned 'gradients, please': return an Ask, or None"),
        (Forgetful, "scheme 'forgetful' returned None from receive: return a State"),
        (Boastful, "Boastful' discloses 'dp' alone and states no account: return one"),
        (Noisy, "gradient is asked for with noise, .* not in integers .*: ask for it as Masked"),
    ],
)
def test_schemes_that_break_the_rules(scheme: type[Scheme], message: str, tmp_path: Path) -> None:
    experiment = experiment_of([{"name": f"tests.test_user_errors:{scheme.__name__}"}])
    with pytest.raises(InputError, match=message):
        simulate(experiment, RunDirectory(tmp_path / "run"))


def test_noise_on_integers_is_added() -> None:
    """Its sample deviation of 400 numbers is off by a fifth with probability below 1e-7."""
    schemes = {"quiet": Noisy(integers=True, sigma=0.0), "noisy": Noisy(integers=True)}
    simulation, sums = simulation_of(schemes), dict[str, Any]()

    def listen(setting: Setting, exchange: Arrivals, inbox: Inbox) -> None:
        if exchange.round == 0:
            sums[setting.label] = np.asarray(inbox.total())

    simulation.listener = listen
    play(simulation)
    noise = (sums["noisy"] - sums["quiet"]).astype(np.int32)
    assert noise.size == 400
    assert 800 < noise.std() < 1200


def test_a_scheme_that_now_ends_sooner_is_not_resumed() -> None:
    """A state with a memory is brought back by playing its rounds again."""
    scheme = make_scheme("uncoded", {"optimiser": "nesterov"})
    first = simulation_of({"it": scheme})
    play(first)
    short: dict[str, Any] = {"training": {"epochs": 1, "step": 2.0, "target": 0.5}}
    later = simulation_of({"it": scheme}, **short)
    with pytest.raises(InputError, match="it: the checkpoint has 6 rounds, .* ends after 2"):
        restore(later, snapshot(first, 0), 0)


WRONG: list[Any] = ["x", 1.5, True, float("nan"), [1]]


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_settings_of_a_wrong_kind(name: str) -> None:
    """Whatever a setting is annotated with, something else is refused by name and value."""
    for setting in settings_of(name):
        refused = 0
        for value in WRONG:
            try:
                make_scheme(name, {setting: value})
            except InputError as error:
                refused += f"{name}.{setting} is {value!r}: must be" in str(error)
        assert refused >= 3, setting


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "coded", "deadline": "x"}, "coded.deadline is 'x': must be a number"),
        ({"name": "fedavg", "local_steps": 1.5}, "fedavg.local_steps is 1.5: must be a whole numb"),
        ({"name": "private", "hours": None}, "private.hours is None: must be a number"),
        ({"name": "private", "sampling": 1}, "private.sampling is 1: must be true or false"),
        ({"name": "uncoded", "optimiser": 3}, "uncoded.optimiser is 3: must be a word"),
    ],
)
def test_the_words_of_it(settings: dict[str, Any], message: str) -> None:
    name = settings.pop("name")
    with pytest.raises(InputError, match=message):
        make_scheme(name, settings)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("coded", {"redundancy": np.float64(0.2), "deadline": 3}),
        ("fednova", {"local_steps": np.int64(2)}),
        ("private", {"epsilon": float("inf"), "rounds": None}),
    ],
)
def test_what_fits_is_taken(name: str, settings: dict[str, Any]) -> None:
    scheme = make_scheme(name, settings)
    assert all(getattr(scheme, key) == value for key, value in settings.items())
