"""`codedfedl fleet`: a device file from public traces."""

from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from codedfedl.cli.options import Json
from codedfedl.cli.output import check_outputs, progress, show, wrote

_QUANTITIES = ("mac_rate", "bit_rate", "bit_rate_up", "availability")


@dataclass(frozen=True)
class TraceOptions:
    """Traces (one or more).

    Attributes
    ----------
    capacity
        FedScale's client_device_capacity: processors and links.
    availability
        FedScale's client_behave_trace: how often clients are away.
    down
        A mahimahi packet trace of downlinks.
    up
        A mahimahi packet trace of uplinks.
    """

    capacity: Path | None = None
    availability: Path | None = None
    down: Path | None = None
    up: Path | None = None


def fleet_command(
    *,
    out: Path,
    traces: TraceOptions,
    clients: int = 30,
    mac_rate: float = 1e9,
    alpha: float = 2.0,
    erasure: float = 0.0,
    transfer: float = 1.0,
    seed: int = 0,
    as_json: Json = False,
) -> None:
    """Draw a fleet of real devices from public traces: FedScale's, and mahimahi's.

    Pickles are read as data: nothing in them is run. Quantities that are not in the traces are
    drawn as in the built-in fleet 'phones'.

    Examples: `codedfedl fleet --capacity client_device_capacity --clients 100 --out devices.csv`,
    then `codedfedl plan devices.csv --points 60`; or `codedfedl fleet --down LTE.down --up LTE.up
    --out devices.csv`.

    Parameters
    ----------
    out
        Write the device file (.csv or .parquet).
    clients
        Number of clients.
    mac_rate
        Multiply-accumulates per second of --capacity's median device.
    alpha
        α of every client, which is not in the traces.
    erasure
        Share of packets lost beyond the losses in the traces.
    transfer
        Megabytes of the transfers that measure a packet trace.
    seed
        Seed of the draw.
    """
    from codedfedl.fleet.traces import TraceFiles, traced_devices

    files = asdict(traces)
    check_outputs({path: "one of the traces" for path in files.values() if path}, out=out)
    with progress("reading traces"):
        devices = traced_devices(
            TraceFiles(**files),
            clients,
            mac_rate=mac_rate,
            alpha=alpha,
            erasure=erasure,
            transfer=1e6 * transfer,
            seed=seed,
        )
    devices.write(out)
    wrote(out)
    spreads = {name: _spread(getattr(devices, name).tolist()) for name in _QUANTITIES}
    rows = [{f"{clients} clients": name, **spread} for name, spread in spreads.items()]
    show(as_json, {"devices": str(out), "clients": clients, **spreads}, rows)


def _spread(values: list[float]) -> dict[str, float]:
    return {"smallest": min(values), "median": median(values), "largest": max(values)}
