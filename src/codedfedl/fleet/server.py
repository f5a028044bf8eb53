"""The server as a node: it has no link, and its processor takes time for the coded gradient."""

from dataclasses import dataclass

import numpy as np

from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayParameters


@dataclass(frozen=True)
class Server:
    """The server as an additional node, which has no link and computes the coded gradient.

    Parameters
    ----------
    rate : points per second
        Parity rows that it processes per second.
    max_rows
        Maximum number of parity rows (the paper's u_max).
    alpha
        As for a client.
    """

    rate: float
    max_rows: int
    alpha: float = 2.0

    def __post_init__(self) -> None:
        for name in ("rate", "alpha", "max_rows"):
            value = getattr(self, name)
            if not 0 < value < np.inf:
                raise InputError(f"the server's {name} is {value:g}: must be finite and above 0")
        if self.max_rows != int(self.max_rows):
            raise InputError(f"the server's max_rows is {self.max_rows}: must be a whole number")

    def beside(self, clients: DelayParameters) -> DelayParameters:
        """Return the clients and, as one more of them, the server."""
        node = {"rate": self.rate, "alpha": self.alpha, "availability": 1.0}
        names = DelayParameters.names()[1:]
        columns = {name: np.append(getattr(clients, name), node.get(name, 0.0)) for name in names}
        return DelayParameters(**columns)

    def return_probability(self, rows: int, t: float) -> float:
        """P(T_C ≤ t) with a number of rows."""
        spare = t - rows / self.rate
        return float(-np.expm1(-self.alpha * self.rate / rows * spare)) if spare > 0 else 0.0


@dataclass(frozen=True)
class ServerWork:
    """What the server computes while it waits for the clients: a gradient on parity rows."""

    server: Server
    rows: int

    def seconds(self, slowness: float) -> float:
        """T_C = u/μ·(1 + slowness/α), the delay model of a client without a link.

        Parameters
        ----------
        slowness
            A standard exponential draw.
        """
        return self.rows / self.server.rate * (1 + slowness / self.server.alpha)
