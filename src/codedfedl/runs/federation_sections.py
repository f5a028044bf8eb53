"""The tables of an experiment that say how real clients meet: their keys, bounds and defaults."""

from pydantic import Field, PositiveInt

from codedfedl.runs.sections import MAX_ROUNDS, Section


class ServerConfig(Section):
    """A federation's server; relative paths begin at the folder of the file that names them.

    Attributes
    ----------
    host, port
        Address and port that nodes connect to.
    keys
        The folder with ca.crt, server.pem and server.key; without it, on loopback only, all is
        plaintext.
    home
        The server's folder: its data base, its registry, and what only it may read.
    database
        The SuperLink's, by default in `home`.
    out
        The run directory.
    """

    host: str = "0.0.0.0"
    port: int = Field(8000, ge=1, le=65535)
    keys: str | None = None
    home: str = "home"
    database: str | None = None
    out: str = "run"


DEFAULT_QUORUM = 2
"""Nodes without which a run pauses, where it has as many."""


class FederationConfig(Section):
    """Settings of a federation of real clients.

    Attributes
    ----------
    clients
        Number of nodes that must be ready before the federation starts.
    rounds
        Number of rounds.
    deadline : seconds
        Deadline of a round, by default planned; if a scheme waits for all, the longest wait.
    test
        Test data at the server, a name or a file; without it there is no accuracy.
    ready_timeout, probe_timeout, setup_timeout : seconds
        The longest wait for the nodes, for a probe, and for features and parity.
    in_flight : megabytes
        How much parity may be in transit at a time: the engine's database is slow with more.
    probes
        Messages used to measure each node before planning.
    quorum
        How many nodes must be there, or the run pauses; by default two, or the only one.
    patience : seconds
        How long a run pauses at most: then it ends, and can be continued.
    availability
        Upper limit on the assumed share of rounds in which a node takes part.
    margin
        Safety factor on the measured times when the deadline is planned.
    tolerance
        Largest deviation of a gradient from the client's own parity, in expected errors.
    without
        Names of nodes to leave out from now on.
    scale
        Whether the nodes agree on means and spreads of their columns, by sums, and scale with them.
    points
        Number of points of a node, by its name: they count in full, and a node that reports
        another number is refused.
    classes
        Number of label columns; by default the largest number that nodes report.
    heaviest
        How many times the median a node's unstated points count at most; a node with more label
        columns than that is refused.
    fall
        How far accuracy or R² on the test points may fall below its best before the run stops.
    """

    clients: int = Field(ge=1)
    rounds: int = Field(10, ge=1, le=MAX_ROUNDS)
    deadline: float | None = Field(None, gt=0)
    test: str | None = None
    ready_timeout: float = Field(180.0, gt=0)
    probe_timeout: float = Field(120.0, gt=0)
    setup_timeout: float = Field(3600.0, gt=0)
    in_flight: float = Field(200.0, gt=0)
    probes: int = Field(5, ge=1)
    quorum: PositiveInt | None = None
    patience: float = Field(3600.0, ge=0)
    availability: float = Field(0.95, gt=0, le=1)
    margin: float = Field(1.5, ge=1)
    tolerance: float = Field(6.0, gt=0)
    without: list[str] = Field([])
    scale: bool = False
    points: dict[str, PositiveInt] = Field({})
    classes: PositiveInt | None = None
    heaviest: float = Field(5.0, ge=1)
    fall: float = Field(0.1, gt=0)
