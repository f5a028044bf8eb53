"""The plan of a federation: how long each round waits, who does how much, and how much parity.

Clients may turn out to be slower or faster than planned when parity is made already (`replanned`).
Parity was weighted for the loads ℓ_j and return probabilities π_j of the plan: in expectation over
the code, its gradient is that of all points, less π_j times that of the ℓ_j points that client j
processes. Whatever the delays are, a round is unbiased if the answers bring just that:

    E[Σ_j 1{T_j ≤ t}·w_j·g_j] = Σ_j π′_j·w_j·g_j = Σ_j π_j·g_j   with  w_j = π_j / π′_j

where g_j is the gradient over the same ℓ_j points and π′_j = P(T_j ≤ t) by the delays as they are.
So deadline and weights follow the delays, and the loads do not: of a smaller load the points left
out would count only 1 − π_j in parity and nowhere else; and a node refuses sums over almost the
same points, whose difference would show the few in which they differ.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.errors import InputError
from codedfedl.fleet.costs import Server
from codedfedl.fleet.delays import DelayModel, points_of
from codedfedl.io.notebook import drawn, html_table
from codedfedl.planning.allocation import Allocation, best_loads, minimum_deadline

if TYPE_CHECKING:
    from codedfedl.report.figures import Picture


LARGEST_WEIGHT = 10.0
"""A client that answers this many times less often than planned is not weighted any further."""

_MAX_DEADLINE_RATIO = 64.0  # of a new deadline to the planned one
_DEADLINE_TOLERANCE = 1e-3  # relative


@dataclass(frozen=True, eq=False)
class Plan:
    """Deadline, loads and parity of every round; all predictions are for these whole loads.

    Attributes
    ----------
    client, points
        The fleet's own, shape (n,).
    deadline : float, seconds
        How long the server waits (t*).
    loads : array of shape (n,)
        Points per round that each client processes (ℓ*_j).
    return_probabilities : array of shape (n,)
        P(T_j ≤ deadline); 0 for a client that is not asked.
    parity_rows : int
        Rows of parity data at the server (u).
    server_return_probability : float
        Probability that the coded gradient is done by the deadline; `coded` divides it by this.
    """

    client: npt.NDArray[Any]
    points: FloatArray
    deadline: float
    loads: IntArray
    return_probabilities: FloatArray
    parity_rows: int
    server_return_probability: float = 1.0

    @property
    def total_points(self) -> int:
        """Points per round over all clients (m)."""
        return int(self.points.sum())

    @property
    def redundancy(self) -> float:
        """Parity rows per point, u/m."""
        return self.parity_rows / self.total_points

    @property
    def expected_return(self) -> float:
        """Points whose gradient arrives by the deadline, in expectation: at least m − u."""
        return float(self.loads @ self.return_probabilities)

    @property
    def weights(self) -> FloatArray:
        """√P(no return) for the points that a client processes, 1 for all others (section 3.4)."""
        return np.sqrt(1 - self.return_probabilities)

    def document(self) -> dict[str, Any]:
        """Return the plan as plain numbers and lists, for JSON."""
        columns = self.columns()
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        return self.facts() | {"clients": [dict(zip(columns, row, strict=True)) for row in rows]}

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return who does how much, a row per client."""
        return {
            "client": self.client,
            "points": self.points.astype(np.int64),
            "load": self.loads,
            "return_probability": self.return_probabilities,
        }

    def facts(self) -> dict[str, float]:
        """Return the facts for the fleet as a whole."""
        return {
            "deadline_s": self.deadline,
            "points": self.total_points,
            "parity_rows": self.parity_rows,
            "redundancy": self.redundancy,
            "expected_return": self.expected_return,
            "server_return_probability": self.server_return_probability,
        }

    def write(self, path: str | Path) -> None:
        """Write a row per client to CSV or Parquet; Parquet also stores the deadline and u."""
        from codedfedl.io.tables import write_table

        write_table(path, self.columns() | {"weight": self.weights}, self.facts())

    def plot(self, fleet: DelayModel | None = None) -> "Picture":
        """Draw who does how much and who answers in time.

        Parameters
        ----------
        fleet
            The fleet of the plan: what returns against the waiting time is drawn too.
        """
        return drawn("fleet_figures:plan_figure", self, fleet)

    def _repr_html_(self) -> str:
        columns: dict[str, Any] = self.columns()
        columns["answers in time"] = [f"{p:.1%}" for p in columns.pop("return_probability")]
        title = f"Deadline {self.deadline:,.4g} s, {self.parity_rows:,} rows of parity"
        share = self.expected_return / self.total_points
        note = f"Expected return: {self.expected_return:,.1f} points a round ({share:.1%})."
        return html_table(columns, title, note)


def plan(
    delays: DelayModel,
    redundancy: float | None = None,
    *,
    points: npt.ArrayLike | None = None,
    parity_rows: int | None = None,
    server: Server | None = None,
    deadline: float | None = None,
) -> Plan:
    """Choose loads and the smallest deadline for a fleet (section 3.3).

    Give exactly one of `redundancy`, `parity_rows` and `server`: it sets the parity.

    Parameters
    ----------
    delays
        A `Fleet`; or any other delay model, such as `MeasuredDelays`.
    redundancy
        Parity rows as a fraction of all points, in (0, 1): u = ⌈redundancy·m⌉.
    points : array of shape (n,), optional
        Points per round of each client, or one number for all; by default the model's own.
    parity_rows
        u itself, from 1 to m.
    server
        Choose u with the server as an additional node (last remark of section 3.3): the deadline
        is the smallest at which clients and server together return m points in expectation.
    deadline
        Wait this many seconds, whatever returns; the loads are the best for it. The weights
        keep the gradient unbiased.

    Examples
    --------
    >>> from codedfedl.fleet.devices import Fleet
    >>> fleet = Fleet(points=[400, 400], rate=[2, 20], alpha=2, packet_time=3, erasure=0.1)
    >>> p = plan(fleet, redundancy=0.1)
    >>> p.parity_rows, p.loads.tolist(), round(p.deadline)
    (80, [400, 400], 368)
    """
    held = points_of(delays, points)
    if sum(option is not None for option in (redundancy, parity_rows, server)) != 1:
        raise InputError("give one of redundancy, parity_rows and server: each sets the parity")
    if server is not None:
        if deadline is not None:
            raise InputError("deadline and server both set the deadline: give one of them")
        return _plan_with_server(delays, held, server)
    total = int(held.sum())
    rows = rows_of(redundancy, total) if redundancy is not None else parity_rows
    if rows is None or rows != int(rows) or not 1 <= rows <= total:
        raise InputError(f"parity_rows is {rows}: must be a whole number from 1 to m = {total}")
    if deadline is None:
        return _as_plan(delays, held, _allocate(delays, held, total - int(rows)), int(rows))
    if not 0 < deadline < np.inf:
        raise InputError(f"deadline is {deadline:g}: must be finite and above 0")
    return _as_plan(delays, held, best_loads(delays, deadline, points=held), int(rows))


def rows_of(redundancy: float, total: int) -> int:
    """Return u = ⌈redundancy·m⌉ for a number of points m."""
    if not 0 < redundancy < 1:
        raise InputError(
            f"redundancy is {redundancy:g}: must lie between 0 and 1, both excluded; "
            "0.1 means one parity row for ten points"
        )
    return ceil(Fraction(str(redundancy)) * total)  # 0.07 of 100 points is 7 rows, not 8


def _allocate(model: DelayModel, points: FloatArray, target: int) -> Allocation:
    if target == 0:  # the parity stands for every point: nobody needs to be waited for
        nothing = np.zeros(len(points))
        return Allocation(0.0, nothing, nothing, 0.0)
    return minimum_deadline(model, target, points=points)


def _plan_with_server(model: DelayModel, points: FloatArray, server: Server) -> Plan:
    if (parameters := model.parameters) is None:
        raise InputError("server needs a Fleet: measured delays have no node for it")
    nodes, total = server.beside(parameters), int(points.sum())
    held = np.append(points, min(server.max_rows, total))  # more would stand for nothing
    if held @ nodes.availability <= total:
        raise InputError(
            f"the server's max_rows is {server.max_rows}: too few for clients who return "
            f"{points @ model.availability:g} of {total} points; raise it"
        )
    most = int(held[-1])
    plain = _as_plan(model, points, _allocate(model, points, total - most), most)
    if server.return_probability(most, plain.deadline) == 1:  # so fast that it takes no time
        return plain
    best = minimum_deadline(nodes, total, points=held)
    clients = Allocation(best.t, best.loads[:-1], best.return_probabilities[:-1], 0.0)
    sure = float(best.return_probabilities[-1])
    return _as_plan(model, points, clients, int(best.loads[-1]), sure)


def _as_plan(
    model: DelayModel,
    points: FloatArray,
    best: Allocation,
    rows: int,
    server_return_probability: float = 1.0,
) -> Plan:
    return Plan(
        client=model.client,
        points=points,
        deadline=float(best.t),
        loads=best.loads.astype(np.int64),
        return_probabilities=best.return_probabilities,
        parity_rows=rows,
        server_return_probability=server_return_probability,
    )


def replanned(
    chosen: Plan,
    delays: DelayModel,
    *,
    deadline: float | None = None,
    longest: float = np.inf,
) -> Plan:
    """Return the plan for other delays, with the same loads and parity.

    Parameters
    ----------
    deadline
        Seconds; by default the first by which as many points return as were planned, in
        expectation.
    longest
        Seconds, of a deadline that is not given: of clients that never answered it is not known
        how slow they are. The weights are right for any deadline.
    """
    if deadline is None:
        deadline = min(_deadline(chosen, delays), longest)
    chances = np.where(chosen.loads > 0, delays.cdf(chosen.loads, deadline), 0.0)
    return replace(chosen, deadline=deadline, return_probabilities=chances)


def _deadline(chosen: Plan, delays: DelayModel) -> float:
    def returned(seconds: float) -> float:
        return float(chosen.loads @ delays.cdf(chosen.loads, seconds))

    low, high = chosen.deadline / _MAX_DEADLINE_RATIO, chosen.deadline * _MAX_DEADLINE_RATIO
    enough = min(chosen.expected_return, (1 - _DEADLINE_TOLERANCE) * returned(high))
    while high > (1 + _DEADLINE_TOLERANCE) * low:
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if returned(middle) >= enough else (middle, high)
    return high


def answer_weights(made: Plan, now: Plan) -> FloatArray:
    """Return w_j = π_j/π′_j for parity made for one plan and rounds of another, shape (n,)."""
    planned, actual = made.return_probabilities, now.return_probabilities
    return planned / np.maximum(actual, np.maximum(planned, 1e-12) / LARGEST_WEIGHT)
