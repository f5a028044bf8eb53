"""Optimisers against exact solutions and plain textbook loops, on random quadratics."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codedfedl import InputError
from codedfedl.learning.optimisers import OPTIMISERS, Chain, Step, optimiser
from codedfedl.learning.transforms import Adaptive, Trace


class Bowl:
    """½⟨β, Hβ⟩ − ⟨b, β⟩ with eigenvalues from 1 down to 1/condition."""

    def __init__(self, seed: int, size: int = 30, columns: int = 3, condition: float = 1e3) -> None:
        rng = np.random.default_rng(seed)
        basis, _ = np.linalg.qr(rng.standard_normal((size, size)))
        self.hessian = (basis * np.geomspace(1, 1 / condition, size)) @ basis.T
        self.moment = rng.standard_normal((size, columns))
        self.minimum = np.linalg.solve(self.hessian, self.moment)

    def gradient(self, model: np.ndarray) -> np.ndarray:
        return np.asarray(self.hessian @ model - self.moment)

    def excess(self, model: np.ndarray) -> float:
        off = model - self.minimum
        return float((off * (self.hessian @ off)).sum() / 2)

    def walk(self, name: str, steps: int, size: float = 1.0) -> list[Step]:
        chosen, memory = OPTIMISERS[name], None
        asked, found = np.zeros_like(self.moment, dtype=np.float32), []
        for _ in range(steps):
            made = chosen.step(asked, self.gradient(asked), size, memory)
            asked, memory = made.question, made.memory
            found.append(made)
        return found


@settings(max_examples=15)
@given(seed=st.integers(0, 999), columns=st.integers(1, 4))
def test_block_cg_is_the_minimum_over_the_krylov_space(seed: int, columns: int) -> None:
    """After r answers, against least squares on span(b, Hb, …, H^(r−2)b), before the last step."""
    bowl = Bowl(seed, columns=columns)
    for r, made in enumerate(bowl.walk("block-cg", 5), start=1):
        blocks = [bowl.moment]
        for _ in range(r - 2):
            blocks.append(bowl.hessian @ blocks[-1])
        basis, _ = np.linalg.qr(np.hstack(blocks))
        inner = basis.T @ bowl.hessian @ basis
        best = basis @ np.linalg.solve(inner, basis.T @ bowl.moment) if r > 1 else 0 * bowl.moment
        lowered = bowl.excess(0 * bowl.moment) - bowl.excess(best)
        assert made.memory.lowered == pytest.approx(lowered if r > 1 else 0.0, rel=1e-3)
        assert bowl.excess(made.model) <= bowl.excess(best) * 1.001  # the step costs nothing


def test_block_cg_ends_with_the_exact_solution_and_says_so() -> None:
    bowl = Bowl(1, size=24, columns=3, condition=100.0)
    *_, last = bowl.walk("block-cg", 11)  # 24 directions are all there are
    np.testing.assert_allclose(last.model, bowl.minimum, atol=2e-3 * np.abs(bowl.minimum).max())
    assert OPTIMISERS["block-cg"].settled(last.memory)
    first = bowl.walk("block-cg", 2)[-1]
    assert not OPTIMISERS["block-cg"].settled(first.memory)


def test_deflation_survives_columns_that_depend_on_one_another() -> None:
    bowl = Bowl(2)
    bowl.moment = bowl.moment[:, :1] @ np.ones((1, 3))
    bowl.minimum = np.linalg.solve(bowl.hessian, bowl.moment)
    made = bowl.walk("block-cg", 12)[-1]
    assert made.memory.directions.shape[1] <= 12  # one new direction a step, not three
    bowl.moment = bowl.moment[:, :1]
    alone = bowl.walk("block-cg", 12)[-1]
    assert made.memory.lowered == pytest.approx(3 * alone.memory.lowered, rel=1e-3)


def test_nesterov_is_the_textbook_loop() -> None:
    bowl = Bowl(3)
    found = bowl.walk("nesterov", 40, size=0.9)
    x = y = np.zeros_like(bowl.moment)
    for k in range(40):
        below, x = x, y - 0.9 * bowl.gradient(y)
        y = x + k / (k + 3) * (x - below)
    np.testing.assert_allclose(found[-1].model, x, atol=1e-4)


def test_nesterov_shortens_a_step_that_is_too_long() -> None:
    """From twice what is stable; plain descent grows without bound on it."""
    bowl = Bowl(4)
    at_zero = bowl.excess(0 * bowl.moment)
    assert bowl.excess(bowl.walk("nesterov", 60, size=4.0)[-1].model) < 0.2 * at_zero
    assert bowl.excess(bowl.walk("gd", 60, size=4.0)[-1].model) > at_zero


@pytest.mark.parametrize(
    ("name", "same", "message"),
    [
        ("newton", True, "uncoded.optimiser is 'newton'"),
        ("block-cg", False, "needs everybody's answer in every round: use nesterov"),
    ],
)
def test_what_a_scheme_cannot_have(name: str, same: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        optimiser("uncoded", name, same_points=same)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "yogi"])
def test_server_optimisers_are_the_textbook_loops(name: str) -> None:
    """A number at a time, in float64, from the equations of their papers."""
    bowl = Bowl(5, size=4, columns=2)
    walk = bowl.walk(name, 25, size=0.05)
    asked = [0 * bowl.moment, *(step.question for step in walk[:-1])]
    for place in np.ndindex(*bowl.moment.shape):
        gradients: list[float] = []
        x = m = v = 0.0
        for t, here in enumerate(asked, start=1):
            gradients.append(g := float(bowl.gradient(here)[place]))
            if name == "sgd":
                x -= 0.05 * g
            elif name == "momentum":
                x -= 0.05 * sum(0.9 ** (t - 1 - s) * past for s, past in enumerate(gradients))
            else:
                m = 0.9 * m + 0.1 * g
                toward = g**2 - v
                v += 0.001 * (toward if name == "adam" else np.sign(toward) * g**2)
                x -= 0.05 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)) ** 0.5 + 1e-8)
        assert walk[-1].model[place] == pytest.approx(x, rel=1e-4, abs=1e-6)


def test_the_rule_of_fed_adam_corrects_nothing() -> None:
    chain = Chain((Adaptive(square_decay=0.99, floor=1e-3, corrected=False),))
    made = chain.step(np.zeros(1), np.array([0.5]), 1.0, None).model
    assert made[0] == pytest.approx(-0.05 / ((0.01 * 0.25) ** 0.5 + 1e-3))


@given(st.lists(st.floats(-9, 9), min_size=1, max_size=5))
def test_transforms_of_a_chain_follow_one_another(numbers: list[float]) -> None:
    scale = Adaptive(decay=0.0, square_decay=0.0, floor=1.0, corrected=False)  # g/(|g| + 1)
    gradient, chain = np.array(numbers), Chain((Trace(0.5), scale))
    first = chain.step(0 * gradient, gradient, 1.0, None)
    second = chain.step(first.question, gradient, 1.0, first.memory)
    expected = gradient / (abs(gradient) + 1) + 1.5 * gradient / (1.5 * abs(gradient) + 1)
    np.testing.assert_allclose(second.model, -expected, atol=1e-12)


def test_transforms_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match="decay is 1: must be at least 0 and below 1"):
        Trace(1.0)
    with pytest.raises(InputError, match="square_decay is 2"):
        Adaptive(square_decay=2)
    with pytest.raises(InputError, match="floor is 0: must be above 0"):
        Adaptive(floor=0)
