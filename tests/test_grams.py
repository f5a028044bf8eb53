"""How many Gram matrices a simulation computes and keeps, and sums that are fused with parity."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codedfedl.core.client import Gradient
from codedfedl.core.protocol import Ask, Inbox, Info, Scheme, State
from codedfedl.core.waiting import Everyone
from codedfedl.learning.learner import LeastSquares
from codedfedl.learning.least_squares import Quadratic
from codedfedl.schemes.coded import Coded
from codedfedl.schemes.coded_state import CodedState
from codedfedl.schemes.tifl import TiFL
from codedfedl.schemes.uncoded import Uncoded
from codedfedl.simulation.client_data import Batch, SimulatedClient
from codedfedl.simulation.engine import Simulation
from codedfedl.simulation.fast import FastSums, Question
from codedfedl.simulation.quadratics import MIN_GRAMS, Grams
from tests.virtual import play, simulation_of

LONG: dict[str, Any] = {"training": {"epochs": 60, "step": 2.0, "ridge": 9e-6, "target": 0.5}}


@dataclass(frozen=True)
class Sampled(Scheme):
    """A random number of points of each client, drawn afresh in every round."""

    info: ClassVar[Info] = Info("sampled")

    def ask(self, state: State) -> Ask | None:
        if state.finished:
            return None
        batch = state.task.batch(state.round)
        drawn = np.random.default_rng(state.round).integers(0, state.task.points[batch] + 1)
        return Ask(Gradient(batch), Everyone(), drawn)

    def receive(self, state: State, inbox: Inbox) -> State:
        return state.descended(inbox.total(), inbox.points)


@dataclass(frozen=True)
class Few(Sampled):
    """One client in turn: the same loads come back after many others."""

    info: ClassVar[Info] = Info("few")
    distinct: int = 40

    def ask(self, state: State) -> Ask | None:
        if state.finished:
            return None
        batch = state.task.batch(state.round)
        loads = state.task.points[batch] - state.round % self.distinct % 5
        loads[0] -= state.round % self.distinct
        return Ask(Gradient(batch), Everyone(), loads)


class TestGrams:
    def test_loads_that_never_come_back_have_none(self) -> None:
        simulation = simulation_of({"sampled": Sampled()}, **LONG)
        assert len(play(simulation)["sampled"].rounds) == 120
        grams = fast_of(simulation).grams
        assert (grams.computed, len(grams)) == (0, 0)

    def test_nor_those_that_come_back_after_too_many_others(self) -> None:
        simulation = simulation_of({"few": Few()}, **LONG)
        play(simulation)
        assert fast_of(simulation).grams.computed == 0

    def test_steady_loads_have_one_for_each_mini_batch(self) -> None:
        schemes = {"coded": Coded(0.2), "more": Coded(0.3), "all": Uncoded()}
        simulation = simulation_of(schemes, **LONG)
        play(simulation)
        assert fast_of(simulation).grams.computed == 2 * 2  # all points: kept with the mini-batch
        assert len(fast_of(simulation).grams) == 2 * 2

    def test_tiers_share_theirs(self) -> None:
        simulation = simulation_of({"one": TiFL(3), "other": TiFL(3)}, **LONG)
        play(simulation)
        assert fast_of(simulation).grams.computed == 3 * 2

    @pytest.mark.parametrize("settings", [1, 50])
    def test_the_least_recently_used_make_room(self, settings: int) -> None:
        rng = np.random.default_rng(0)
        batches = [
            Batch(rng.normal(size=(400, 3)), rng.normal(size=(400, 1)), np.array([0, 200, 400]))
            for _ in range(2)
        ]
        grams = Grams(batches, settings)
        most = max(MIN_GRAMS, 2 * settings)
        first = np.array([7, 200])
        for k in range(150):
            grams.of(0, np.array([k, 100]), None)
            grams.of(1, first, None)
        assert len(grams) == most
        assert grams.computed == 151
        grams.of(0, np.array([0, 100]), None)
        assert grams.computed == 152


def fast_of(simulation: Simulation) -> FastSums:
    assert simulation.fast is not None
    return simulation.fast


def _batch(rng: np.random.Generator) -> Batch:
    return Batch(rng.normal(size=(12, 5)), rng.normal(size=(12, 2)), np.array([0, 4, 9, 12]))


@given(
    seed=st.integers(0, 2**32 - 1), steady=st.booleans(), full=st.booleans(), asked=st.booleans()
)
def test_what_a_scheme_adds_changes_no_result(
    seed: int, steady: bool, full: bool, asked: bool
) -> None:
    """Whatever is added, at whichever model, and whichever of the sums is read."""
    rng = np.random.default_rng(seed)
    batch = _batch(rng)
    own = Quadratic.of(rng.normal(size=(6, 5)), rng.normal(size=(6, 2)))
    model, later = rng.normal(size=(2, 5, 2))
    loads = batch.held if full else rng.integers(0, [5, 6, 4])
    arrived = (rng.random(3) < 0.6) & (loads > 0)
    ask = Ask(Gradient(0), Everyone(), loads)
    (inbox,) = FastSums([batch]).gradients(
        [Question("a", ask, loads, arrived, model, LeastSquares(5, 2), steady=steady)]
    )
    clients = (SimulatedClient([batch], j, 0) for j in np.flatnonzero(arrived).tolist())
    answers = [Gradient(0).answer(c, int(loads[c.client]), model).arrays for c in clients]
    total = sum((answer["gradient"] for answer in answers), start=np.zeros((5, 2)))
    at = model if asked else later
    np.testing.assert_allclose(inbox.plus(own, at), total + own.gradient(at), atol=1e-10)
    np.testing.assert_allclose(inbox.total(), total, atol=1e-10)
    assert inbox.total("model") == 0.0
    assert list(inbox.sums) == ["gradient"]
    assert len(inbox.sums) == 1
    assert inbox.points == loads[arrived].sum()


@dataclass(frozen=True)
class AtOldModel(Coded):
    """It adds the parity's gradient at the first model, wherever the clients' is."""

    info: ClassVar[Info] = replace(Coded.info, name="at-old-model")

    def receive(self, state: CodedState, inbox: Inbox) -> CodedState:
        if not state.parity:
            return super().receive(state, inbox)
        batch = state.task.batch(state.round)
        total = inbox.plus(state.parity[batch], 0 * state.model)
        return state.descended(total, float(state.task.points[batch].sum()))


@dataclass(frozen=True)
class Apart(Coded):
    """The paper's scheme, where the parity's gradient is a product of its own."""

    name: ClassVar[str] = "apart"

    def receive(self, state: CodedState, inbox: Inbox) -> CodedState:
        return super().receive(state, Inbox(inbox.arrived, inbox.points, dict(inbox.sums)))


def test_parity_in_the_same_product_or_in_one_of_its_own() -> None:
    schemes = {"fused": Coded(), "apart": Apart()}
    settings = play(simulation_of(schemes, **LONG))
    fused, apart = (np.asarray(settings[name].state.model) for name in schemes)
    assert np.abs(apart).max() > 0.01
    np.testing.assert_allclose(fused, apart, atol=2e-5 * float(np.abs(apart).max()))


@pytest.mark.parametrize("scheme", [AtOldModel(), Coded(), Sampled(), Uncoded(), TiFL(3)], ids=str)
def test_the_fast_path_gives_what_the_clients_give(scheme: Scheme) -> None:
    """Every answer by itself, and every test point scored."""
    fast, plain = (
        play(simulation_of({"a": scheme}, fast=fast, **LONG))["a"] for fast in (True, False)
    )
    model = np.asarray(plain.state.model)
    assert np.abs(model).max() > 0.01
    np.testing.assert_allclose(fast.state.model, model, atol=2e-5 * float(np.abs(model).max()))
    assert [r.seconds for r in fast.records] == [r.seconds for r in plain.records]
