"""`codedfedl plan`: from a fleet's delays to loads, a deadline and parity."""

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from codedfedl.cli.charged_plan import charged_plans, charged_view
from codedfedl.cli.cold_plan import plan_feature_map, plan_from_cold
from codedfedl.cli.options import grouped
from codedfedl.cli.output import json_number, print_json, progress, results, wrote
from codedfedl.errors import InputError
from codedfedl.fleet.costs import Setup
from codedfedl.fleet.delays import DelaysWithPoints
from codedfedl.fleet.devices import Fleet, Workload, read_fleet
from codedfedl.fleet.maximum import expected_maximum
from codedfedl.fleet.measured import MeasuredDelays, is_measured, read_measured
from codedfedl.fleet.paper import paper_fleet
from codedfedl.io.files import FIGURE_SUFFIXES, TABLE_SUFFIXES, check_destination
from codedfedl.io.tables import column_names
from codedfedl.planning.plan import Plan, Server, cheapest_plan, plan
from codedfedl.report.tables import plan_view

__all__ = ["plan_command"]

PARITY, WORK = "How much parity (one of these)", "What a device file's clients compute"

Clients = Fleet | DelaysWithPoints[MeasuredDelays]


@dataclass(frozen=True)
class ParityOptions:
    """How much parity: given, or chosen by one of several plans."""

    redundancy: Annotated[
        float | None,
        typer.Option(
            help="Parity rows as a fraction of all points, in (0, 1); 0.1 if nothing else is said.",
            rich_help_panel=PARITY,
        ),
    ] = None
    rows: Annotated[int | None, typer.Option(help="Parity rows.", rich_help_panel=PARITY)] = None
    server_rate: Annotated[
        float | None,
        typer.Option(
            help="Choose the rows: the server as one more node, at this many rows per second.",
            rich_help_panel=PARITY,
        ),
    ] = None
    max_rows: Annotated[
        int | None,
        typer.Option(
            help="The most rows that the server may hold; as many as there are points if not said.",
            rich_help_panel=PARITY,
        ),
    ] = None
    server_alpha: Annotated[float, typer.Option(help="The server's α.", rich_help_panel=PARITY)] = (
        2.0
    )
    rounds: Annotated[
        int | None,
        typer.Option(
            help="Choose the rows: least total time of set-up and this many rounds; and what the "
            "paper's rule for the deadline costs.",
            rich_help_panel=PARITY,
        ),
    ] = None
    excess: Annotated[
        float | None,
        typer.Option(
            help="Plan a cold start with coded-newton instead: wanted relative excess of the "
            "objective over its optimum, such as 0.2.",
            rich_help_panel=PARITY,
        ),
    ] = None

    within: Annotated[
        float | None,
        typer.Option(
            help="Choose the feature map of a cold start: the most telling one that is trained in "
            "so many hours, to --excess (0.2 if not given).",
            rich_help_panel=PARITY,
        ),
    ] = None

    @property
    def others(self) -> dict[str, Any]:
        """The options that say how many rows there are, but --rounds."""
        return {
            "--redundancy": self.redundancy,
            "--rows": self.rows,
            "--server-rate": self.server_rate,
        }

    def server(self, clients: Fleet) -> Server | None:
        """Return the server as one more node, where its rate is given."""
        if self.server_rate is not None:
            most = clients.total_points if self.max_rows is None else self.max_rows
            return Server(self.server_rate, most, self.server_alpha)
        if self.max_rows is not None:
            raise InputError(
                f"--max-rows is {self.max_rows} without a server: say --server-rate too"
            )
        return None

    def plan(self, clients: Clients, server: Server | None) -> Plan:
        """Plan with rows that are given, or that suit the server."""
        redundancy = self.redundancy
        if redundancy is None and self.rows is None and server is None:
            redundancy = 0.1
        return plan(clients, redundancy, parity_rows=self.rows, server=server)


@dataclass(frozen=True)
class WorkOptions:
    """What clients have and compute, as far as a file does not say."""

    points: Annotated[
        float | None,
        typer.Option(
            help="Points per round of every client, where the file has no such column.",
            rich_help_panel=WORK,
        ),
    ] = None
    features: Annotated[
        int, typer.Option(help="Features of the model (q).", rich_help_panel=WORK)
    ] = 2000
    labels: Annotated[int, typer.Option(help="Label columns (c).", rich_help_panel=WORK)] = 10
    bits: Annotated[int, typer.Option(help="Bits a number.", rich_help_panel=WORK)] = 32
    packet_overhead: Annotated[
        float, typer.Option(help="Share that the protocol adds to a packet.", rich_help_panel=WORK)
    ] = 0.1
    inputs: Annotated[
        int,
        typer.Option(
            help="Numbers in a raw point, for --rounds and --excess.", rich_help_panel=WORK
        ),
    ] = 784
    image: Annotated[
        str | None,
        typer.Option(
            help="HEIGHT,WIDTH,CHANNELS of a point that is an image, for --within.",
            rich_help_panel=WORK,
        ),
    ] = None
    batches: Annotated[
        int, typer.Option(help="Mini-batches, for --rounds and --excess.", rich_help_panel=WORK)
    ] = 5

    step: Annotated[
        float,
        typer.Option(help="Step size of gradient descent, for --rounds.", rich_help_panel=WORK),
    ] = 6.0

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """Return the image's shape, or refuse what is none."""
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

    @property
    def workload(self) -> Workload:
        """What a point and a packet cost."""
        return Workload(self.features, self.labels, self.bits, self.packet_overhead)


@dataclass(frozen=True)
class OutputOptions:
    """Where the plan goes."""

    out: Annotated[Path | None, typer.Option(help="Write a row per client (.parquet or .csv).")] = (
        None
    )
    figure: Annotated[Path | None, typer.Option(help="Draw the plan (.png, .svg or .pdf).")] = None
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False

    def check(self, fleet: str) -> None:
        """Refuse files that could not be written, and the fleet file itself."""
        if self.out is not None:
            check_destination(self.out, TABLE_SUFFIXES)
            if self.out.resolve() == Path(fleet).resolve():
                raise InputError(f"--out {self.out} is the fleet file itself: choose another")
        if self.figure is not None:
            check_destination(self.figure, FIGURE_SUFFIXES)

    def show(self, clients: Clients, chosen: Plan, more: dict[str, Any] | None = None) -> None:
        """Write, draw and print a plan, in JSON with something more."""
        with progress("planning"):
            waiting = expected_maximum(clients, clients.points)
        if self.out is not None:
            chosen.write(self.out)
            wrote(self.out)
        if self.figure is not None:
            from codedfedl.report.figures import plan_figure, save_figure

            save_figure(plan_figure(chosen, clients), self.figure)
            wrote(self.figure)
        if self.as_json:
            gain = waiting / chosen.deadline if chosen.deadline else inf
            extra = {"wait_for_all_s": json_number(waiting), "gain": json_number(gain)}
            print_json(chosen.document() | extra | (more or {}))
        else:
            results.print(plan_view(chosen, waiting))


@grouped
def plan_command(
    fleet: Annotated[
        str, typer.Argument(help="A fleet or device file (.csv, .parquet), or 'paper'.")
    ],
    parity: ParityOptions,
    work: WorkOptions,
    *,
    seed: Annotated[int, typer.Option(help="Of the paper's fleet.")] = 0,
    output: OutputOptions,
) -> None:
    """Choose how long each round waits and how much each client does.

    FLEET has the columns client, points, rate (points per second), alpha, packet_time (seconds)
    and erasure, and may have packet_time_up, erasure_up, overhead (seconds a round) and
    availability. `codedfedl fit` makes such a file, or one of measured delays (client, points,
    per_point, fixed), which can be planned as well. A device file has client, mac_rate, bit_rate,
    alpha and erasure instead, and may have points.

    Examples: `codedfedl plan paper`, `codedfedl plan my.csv --redundancy 0.2 --figure plan.png`,
    `codedfedl plan my.csv --server-rate 1000 --json`, `codedfedl plan paper --excess 0.2`.
    """
    output.check(fleet)
    if _is_measured(fleet):
        output.show(*_measured_plan(fleet, parity, work))
        return
    clients = _read(fleet, work, seed)
    if parity.within is not None:
        _plan_feature_map(clients, parity, work, output)
    elif parity.excess is not None:
        _plan_cold_start(clients, parity, work, output)
    elif parity.rounds is not None:
        _plan_for_rounds(clients, parity, work, output)
    else:
        server = parity.server(clients)
        with progress("planning"):
            chosen = parity.plan(clients, server)
        output.show(clients, chosen)


def _measured_plan(name: str, parity: ParityOptions, work: WorkOptions) -> tuple[Clients, Plan]:
    """Plan with delays as they were measured, which say nothing about other work."""
    needs_a_fleet = {"--server-rate": parity.server_rate, "--rounds": parity.rounds}
    needs_a_fleet |= {"--within": parity.within}
    _refuse(f"the measured delays of {name}", needs_a_fleet | {"--excess": parity.excess})
    _refuse_points(name, work.points)
    measured = read_measured(name)
    return measured, parity.plan(measured, None)


def _plan_cold_start(
    clients: Fleet, parity: ParityOptions, work: WorkOptions, output: OutputOptions
) -> None:
    """Plan set-up and rounds of a cold start, and print them."""
    assert parity.excess is not None
    files = {"--out": output.out, "--figure": output.figure}
    _refuse("--excess", parity.others | {"--rounds": parity.rounds} | files)
    document = plan_from_cold(
        clients, work.workload, work.inputs, work.batches, parity.excess, quiet=output.as_json
    )
    if output.as_json:
        print_json(document)


def _plan_feature_map(
    clients: Fleet, parity: ParityOptions, work: WorkOptions, output: OutputOptions
) -> None:
    """Choose a feature map for a cold start within some hours, and print it."""
    hours, excess = parity.within, 0.2 if parity.excess is None else parity.excess
    assert hours is not None
    if not 0 < hours < inf:
        raise InputError(f"--within is {hours:g}: must be finite and above 0 hours")
    files = {"--out": output.out, "--figure": output.figure}
    _refuse("--within", parity.others | {"--rounds": parity.rounds} | files)
    with progress("planning"):
        document = plan_feature_map(
            clients, work.workload, work.inputs, work.shape, work.batches, excess, hours,
            quiet=output.as_json,
        )  # fmt: skip
    if output.as_json:
        print_json(document)


def _plan_for_rounds(
    clients: Fleet, parity: ParityOptions, work: WorkOptions, output: OutputOptions
) -> None:
    """Plan for the least time with the set-up and all rounds; show what the paper's rule costs."""
    assert parity.rounds is not None
    parity.server(clients)  # refuses --max-rows alone
    _refuse("--rounds", parity.others)
    setup, workload = Setup(work.inputs, work.batches), work.workload
    with progress("planning"):
        chosen, _ = cheapest_plan(
            clients, parity.rounds, lambda rows: setup.seconds(clients, workload, rows)
        )
        charged = charged_plans(
            clients, workload, work.inputs, work.batches, parity.rounds, work.step
        )
    output.show(clients, chosen, {"charged": charged})
    if not output.as_json:
        results.print(charged_view(charged, parity.rounds))


def _is_measured(name: str) -> bool:
    return name != "paper" and is_measured(name)


def _refuse_points(name: str, points: float | None) -> None:
    if points is not None and "points" in column_names(name):
        raise InputError(f"{name} has its own column 'points': leave --points out")


def _read(name: str, work: WorkOptions, seed: int) -> Fleet:
    if name == "paper":
        return paper_fleet(400 if work.points is None else work.points, work.workload, seed=seed)
    _refuse_points(name, work.points)
    return read_fleet(name, work.workload, work.points)


def _refuse(chosen: str, others: dict[str, Any]) -> None:
    for name, value in others.items():
        if value is not None:
            raise InputError(f"{name} and {chosen} do not go together: leave one out")
