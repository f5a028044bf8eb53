"""`codedfedl plan`: from a fleet's delays to loads, a deadline and parity."""

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codedfedl.cli.options import Json
from codedfedl.cli.output import View, check_outputs, json_number, progress, say, show, wrote
from codedfedl.errors import InputError

if TYPE_CHECKING:
    from codedfedl.fleet.costs import Server
    from codedfedl.fleet.delays import DelayModel
    from codedfedl.fleet.devices import Fleet, Workload
    from codedfedl.planning.plan import Plan


@dataclass(frozen=True)
class ParityOptions:
    """How much parity (one of these).

    Attributes
    ----------
    redundancy
        Parity rows as a fraction of all points, in (0, 1); by default 0.1.
    rows
        Parity rows.
    server_rate
        Choose the rows: treat the server as a node with this many rows per second.
    max_rows
        Maximum number of rows at the server; by default the number of points.
    server_alpha
        The server's α.
    rounds
        Choose the rows: minimise the total time of set-up and this many rounds; also shows what the
        paper's deadline rule costs.
    excess
        Plan a cold start with coded-newton instead: target relative excess of the objective over
        its optimum, such as 0.2.
    within
        Choose the feature map of a cold start: the most accurate one trained within this many
        hours, to --excess (by default 0.2).
    """

    redundancy: float | None = None
    rows: int | None = None
    server_rate: float | None = None
    max_rows: int | None = None
    server_alpha: float = 2.0
    rounds: int | None = None
    excess: float | None = None
    within: float | None = None

    def server(self, clients: "Fleet") -> "Server | None":
        """Return the server as one more node, where its rate is given."""
        from codedfedl.fleet.costs import Server

        if self.server_rate is not None:
            most = clients.total_points if self.max_rows is None else self.max_rows
            return Server(self.server_rate, most, self.server_alpha)
        if self.max_rows is not None:
            raise InputError(
                f"--max-rows is {self.max_rows} without a server: give --server-rate too"
            )
        return None

    def refuse(self, chosen: str, *names: str, **others: Any) -> None:
        """Refuse options beside the one that chooses the plan."""
        for name, value in {name: getattr(self, name) for name in names}.items() | others.items():
            if value is not None:
                option = f"--{name.replace('_', '-')}"
                raise InputError(f"{option} and {chosen} do not go together: leave one out")


@dataclass(frozen=True)
class WorkOptions:
    """Work of the clients in a device file.

    Attributes
    ----------
    clients
        Clients of a built-in fleet: 30 by default.
    points
        Points per round of every client, if the file has no such column.
    features
        Features of the model (q).
    labels
        Label columns (c).
    bits
        Bits per value.
    packet_overhead
        Protocol overhead, as a share of a packet.
    inputs
        Values in a raw point, for --rounds and --excess.
    image
        HEIGHT,WIDTH,CHANNELS of the images, for --within.
    batches
        Mini-batches, for --rounds and --excess.
    step
        Step size of gradient descent, for --rounds.
    """

    clients: int | None = None
    points: float | None = None
    features: int = 2000
    labels: int = 10
    bits: int = 32
    packet_overhead: float = 0.1
    inputs: int = 784
    image: str | None = None
    batches: int = 5
    step: float = 6.0

    @property
    def workload(self) -> "Workload":
        """What a point and a packet cost."""
        from codedfedl.fleet.devices import Workload

        return Workload(self.features, self.labels, self.bits, self.packet_overhead)

    def fleet(self, name: str, seed: int) -> "Fleet":
        """Return a built-in fleet, or that of a file."""
        from codedfedl.fleet.built_in import BUILT_IN, built_in_fleet
        from codedfedl.fleet.devices import read_fleet

        if name in BUILT_IN:
            return built_in_fleet(name, self.clients, self.points, self.workload, seed)
        if self.clients is not None:
            raise InputError(f"--clients is {self.clients}, but {name} has its own: leave it out")
        self.refuse_points(name)
        return read_fleet(name, self.workload, self.points)

    def refuse_points(self, name: str) -> None:
        """Refuse points for a file that has its own."""
        if self.points is None:
            return
        from codedfedl.io.tables import column_names

        if "points" in column_names(name):
            raise InputError(f"{name} has its own column 'points': leave --points out")

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """The image's shape; raises `InputError` if it is invalid."""
        if self.image is None:
            return None
        try:
            height, width, channels = map(int, self.image.split(","))
        except ValueError:
            height = width = channels = 0
        if min(height, width, channels) < 1 or height * width * channels != self.inputs:
            raise InputError(
                f"--image is {self.image!r}: must be HEIGHT,WIDTH,CHANNELS with a product of "
                f"{self.inputs}, as --inputs says; such as 28,28,1"
            )
        return height, width, channels


@dataclass(frozen=True)
class OutputOptions:
    """Where the plan goes.

    Attributes
    ----------
    out
        Write a row per client (.parquet or .csv).
    figure
        Plot the plan (.png, .svg or .pdf).
    """

    out: Path | None = None
    figure: Path | None = None
    as_json: Json = False


def plan_command(
    fleet: str, *, parity: ParityOptions, work: WorkOptions, seed: int = 0, output: OutputOptions
) -> None:
    """Choose how long each round waits and how much each client does.

    FLEET has the columns client, points, rate (points per second), alpha, packet_time (seconds)
    and erasure, and may have packet_time_up, erasure_up, overhead (seconds per round) and
    availability. `codedfedl fit` writes such a file, or one of measured delays (client, points,
    per_point, fixed), which also works here. A device file has client, mac_rate, bit_rate, alpha
    and erasure instead, and may have points.

    Examples: `codedfedl plan paper`, `codedfedl plan my.csv --redundancy 0.2 --figure plan.png`,
    `codedfedl plan my.csv --server-rate 1000 --json`, `codedfedl plan paper --excess 0.2`.

    Parameters
    ----------
    fleet
        A fleet or device file (.csv, .parquet), 'paper', 'phones', or a delay model of your own, as
        module:model.
    seed
        Seed of a built-in fleet.
    """
    from codedfedl.fleet.built_in import BUILT_IN, check_fleet_name, own_delays
    from codedfedl.fleet.measured import is_measured, read_measured

    check_outputs({Path(fleet): "the fleet file itself"}, out=output.out, figure=output.figure)
    delays, kind = own_delays(fleet), "delay model"
    if delays is None:
        check_fleet_name(fleet)
        if fleet not in BUILT_IN and is_measured(fleet):
            work.refuse_points(fleet)
            delays, kind = read_measured(fleet), "measured delays of"
    if delays is not None:
        parity.refuse(f"the {kind} {fleet}", "server_rate", "rounds", "within", "excess")
        _show(delays, _plan(parity, delays, None), output)
        return
    clients = work.fleet(fleet, seed)
    if parity.within is not None or parity.excess is not None:
        _plan_cold_start(clients, parity, work, output)
    elif parity.rounds is not None:
        from codedfedl.cli.charged_plans import charged_views, plan_for_rounds

        parity.server(clients)  # refuses --max-rows alone
        parity.refuse("--rounds", "redundancy", "rows", "server_rate")
        with progress("planning"):
            chosen, charged = plan_for_rounds(clients, work, parity.rounds)
        views = charged_views(charged, parity.rounds)
        _show(clients, chosen, output, {"charged": charged}, *views)
    else:
        server = parity.server(clients)
        with progress("planning"):
            chosen = _plan(parity, clients, server)
        _show(clients, chosen, output)


def _plan(parity: ParityOptions, clients: "DelayModel", server: "Server | None") -> "Plan":
    """Plan with a given number of parity rows, or with the number that suits the server."""
    from codedfedl.planning.plan import plan

    redundancy = parity.redundancy
    if redundancy is None and parity.rows is None and server is None:
        redundancy = 0.1
    return plan(clients, redundancy, parity_rows=parity.rows, server=server)


def _plan_cold_start(
    clients: "Fleet", parity: ParityOptions, work: WorkOptions, output: OutputOptions
) -> None:
    """Plan set-up and rounds of a cold start, or choose its feature map."""
    from codedfedl.cli.charged_plans import plan_cold_start, plan_feature_map

    chosen = "--excess" if parity.within is None else "--within"
    if parity.within is not None and not 0 < parity.within < inf:
        raise InputError(f"--within is {parity.within:g}: must be finite and above 0 hours")
    others = ("redundancy", "rows", "server_rate", "rounds")
    parity.refuse(chosen, *others, out=output.out, figure=output.figure)
    excess = 0.2 if parity.excess is None else parity.excess
    image = None if parity.within is None else work.image_shape
    with progress("planning"):
        if parity.within is None:
            document, views = plan_cold_start(clients, work, excess)
        else:
            document, views = plan_feature_map(clients, work, image, excess, parity.within)
    show(output.as_json, document, *views)


def _show(
    clients: "DelayModel",
    chosen: "Plan",
    output: OutputOptions,
    more: dict[str, Any] | None = None,
    *views: View,
) -> None:
    """Write, draw and print a plan; in JSON with more fields, and for people with more views."""
    from codedfedl.fleet.maximum import expected_maximum
    from codedfedl.report.fleet_tables import plan_views

    with progress("planning"):
        waiting = expected_maximum(clients, chosen.points)
    if chosen.parity_rows >= chosen.total_points:
        say(
            f"note: {chosen.parity_rows:,} parity rows stand for all {chosen.total_points:,} "
            "points, so nobody is waited for and the clients process nothing: ask for less parity"
        )
    if output.out is not None:
        chosen.write(output.out)
        wrote(output.out)
    if output.figure is not None:
        from codedfedl.report.figures import save_figure
        from codedfedl.report.fleet_figures import plan_figure

        save_figure(plan_figure(chosen, clients), output.figure)
        wrote(output.figure)
    gain = waiting / chosen.deadline if chosen.deadline else inf
    extra = {"wait_for_all_s": json_number(waiting), "gain": json_number(gain)}
    document = chosen.document() | extra | (more or {})
    show(output.as_json, document, *plan_views(chosen, waiting), *views)
