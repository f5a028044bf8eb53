"""Products in panels against their naive twin, and threads that share tasks."""

import threading
import time
from functools import partial
from typing import Any

import numpy as np
import pytest

from codedfedl.learning.panels import Crew, times
from codedfedl.simulation.pool import limited

SHAPES = [
    (2000, 2000, 10),  # forty panels
    (403, 1999, 30),  # panels and a rest
    (3, 2000, 32),  # less than a panel
    (300, 2000, 90),  # cut along the sums
    (300, 2000, 500),  # too many columns for a panel
    (5000, 64, 1),  # a vector
    (7, 5, 3),
    (0, 5, 3),
    (7, 0, 3),
]
MUCH = 10**9


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
class TestProducts:
    def test_product_is_that_of_the_twin(self, shape: tuple[int, ...], dtype: Any) -> None:
        rng = np.random.default_rng(0)
        matrix = rng.standard_normal(shape[:2]).astype(dtype)
        columns = rng.standard_normal(shape[1:]).astype(dtype)
        exact = matrix.astype(np.float64) @ columns.astype(np.float64)
        given = np.full_like(exact, np.nan, dtype=dtype)
        found = times(matrix, columns, given)
        assert found is given
        assert found.dtype == times(matrix, columns).dtype == dtype
        assert np.abs(found - exact).max(initial=0) <= 4 * shape[1] * np.finfo(dtype).eps

    def test_transposed_product_is_that_of_the_twin(
        self, shape: tuple[int, ...], dtype: Any
    ) -> None:
        rng = np.random.default_rng(1)
        matrix = rng.standard_normal((shape[1], shape[0])).astype(dtype)
        columns = rng.standard_normal(shape[1:]).astype(dtype)
        exact = matrix.T.astype(np.float64) @ columns.astype(np.float64)
        found = times(matrix.T, columns)
        assert found.dtype == dtype
        assert np.abs(found - exact).max(initial=0) <= 4 * shape[1] * np.finfo(dtype).eps


class TestCrew:
    def test_every_task_is_done_in_its_place(self) -> None:
        with limited(3, "cpu"):
            crew = Crew()
            assert crew.threads == 3
            for count in (0, 1, 2, 50):
                tasks = [partial(pow, place, 2) for place in range(count)]
                assert crew.each(tasks, MUCH) == [place**2 for place in range(count)]

    def test_much_work_is_shared_and_little_is_not(self) -> None:
        """Two tasks that wait for one another end only in two threads."""
        with limited(2, "cpu"):
            meeting, crew = threading.Barrier(2), Crew()
            places = crew.each([partial(meeting.wait, timeout=60)] * 2, MUCH)
            assert sorted(places) == [0, 1]
            here = threading.current_thread
            assert crew.each([here, here], 1000) == [here(), here()]

    def test_one_thread_does_everything_where_there_is_one(self) -> None:
        with limited(1, "cpu"):
            here = threading.current_thread
            assert Crew().each([here, here], MUCH) == [here(), here()]

    @pytest.mark.parametrize("place", [0, 1, 5])
    def test_an_error_is_raised(self, place: int) -> None:
        def fail() -> int:
            raise IndexError("mine")

        tasks = [partial(int, 1)] * 6
        tasks[place] = partial(fail)
        with limited(2, "cpu"), pytest.raises(IndexError, match="mine"):
            Crew().each(tasks, MUCH)

    def test_after_an_error_nobody_begins_another_task(self) -> None:
        def fail() -> None:
            raise IndexError("mine")

        begun: list[int] = []
        tasks = [partial(time.sleep, 0.05), partial(fail)]
        tasks += [partial(begun.append, k) for k in range(10**5)]
        with limited(2, "cpu"):
            crew = Crew()
        with pytest.raises(IndexError, match="mine"):
            crew.each(tasks, MUCH)
        assert len(begun) < 10**5

    def test_threads_ignore_what_the_caller_ignores(self) -> None:
        """A step that is too large diverges: that is a result, not a warning."""
        meeting = threading.Barrier(2)

        def overflow() -> float:
            meeting.wait(timeout=60)
            return float((np.full(2, 1e30, dtype=np.float32) * np.float32(1e30))[0])

        with limited(2, "cpu"), np.errstate(over="ignore"):
            assert Crew().each([overflow, overflow], MUCH) == [np.inf, np.inf]

    def test_each_thread_has_one_of_the_librarys(self) -> None:
        with limited(2, "cpu"):
            crew = Crew()

            def threads() -> list[int]:
                return [one["num_threads"] for one in crew._library.info()]

            assert {one for found in crew.each([threads] * 4, MUCH) for one in found} == {1}
            assert set(threads()) == {2}
