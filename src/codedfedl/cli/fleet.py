"""`codedfedl fleet`: a device file from public traces."""

from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from codedfedl.cli.options import Json
from codedfedl.cli.output import print_json, progress, results, wrote
from codedfedl.errors import InputError
from codedfedl.io.files import TABLE_SUFFIXES, check_destination

__all__ = ["fleet_command"]

_TRACES = "Traces (one or more)"
_WORDS = ("smallest", "median", "largest")


def fleet_command(
    out: Annotated[Path, typer.Option(help="Write the device file (.csv or .parquet).")],
    capacity: Annotated[
        Path | None,
        typer.Option(
            help="FedScale's client_device_capacity: processors and links.", rich_help_panel=_TRACES
        ),
    ] = None,
    availability: Annotated[
        Path | None,
        typer.Option(
            help="FedScale's client_behave_trace: how often clients are away.",
            rich_help_panel=_TRACES,
        ),
    ] = None,
    down: Annotated[
        Path | None,
        typer.Option(help="A mahimahi packet trace of downlinks.", rich_help_panel=_TRACES),
    ] = None,
    up: Annotated[
        Path | None,
        typer.Option(help="A mahimahi packet trace of uplinks.", rich_help_panel=_TRACES),
    ] = None,
    *,
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 30,
    mac_rate: Annotated[
        float,
        typer.Option(help="Multiply-accumulates per second of --capacity's median device."),
    ] = 1e9,
    alpha: Annotated[float, typer.Option(help="α of every client: no trace says it.")] = 2.0,
    erasure: Annotated[
        float, typer.Option(help="Share of packets lost beyond the losses in the traces.")
    ] = 0.0,
    transfer: Annotated[
        float, typer.Option(help="Megabytes of the transfers that measure a packet trace.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    as_json: Json = False,
) -> None:
    """Draw a fleet of real devices from public traces: FedScale's, and mahimahi's.

    Pickles are read as data: nothing in them is run. What no trace says is drawn as in the
    built-in fleet 'phones'.

    Examples: `codedfedl fleet --capacity client_device_capacity --clients 100 --out devices.csv`,
    then `codedfedl plan devices.csv --points 60`; or `codedfedl fleet --down LTE.down --up LTE.up
    --out devices.csv`.
    """
    from codedfedl.fleet.traces import TraceFiles, traced_devices

    check_destination(out, TABLE_SUFFIXES)
    given = [path for path in (capacity, availability, down, up) if path is not None]
    if out.resolve() in [path.resolve() for path in given]:
        raise InputError(f"--out {out} is one of the traces: choose another")
    files = TraceFiles(capacity, availability, down, up)
    with progress("reading traces"):
        devices = traced_devices(
            files,
            clients,
            mac_rate=mac_rate,
            alpha=alpha,
            erasure=erasure,
            transfer=1e6 * transfer,
            seed=seed,
        )
    devices.write(out)
    wrote(out)
    quantities = ("mac_rate", "bit_rate", "bit_rate_up", "availability")
    spreads = {name: _spread(getattr(devices, name).tolist()) for name in quantities}
    if as_json:
        print_json({"devices": str(out), "clients": clients, **spreads})
        return
    results.print(f"{f'{clients} clients':<14}" + "".join(f"{word:>10}" for word in _WORDS))
    for name, spread in spreads.items():
        results.print(f"{name:<14}" + "".join(f"{value:>10.3g}" for value in spread.values()))


def _spread(values: list[float]) -> dict[str, float]:
    return dict(zip(_WORDS, (min(values), median(values), max(values)), strict=True))
