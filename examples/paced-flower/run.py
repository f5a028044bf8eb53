"""Play the app on this machine: a SuperLink and eight SuperNodes, on real sockets.

    python examples/paced-flower/run.py all
    python examples/paced-flower/run.py paced

`all` waits for every node, a number is a timeout in seconds, and several are played one after the
other. Two of the nodes are ten times slower, and each of these has a class of digits that nobody
else has; another one does not answer for a while.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

APP = Path(__file__).resolve().parent
SLOW, SILENT = (3, 7), 5


def main() -> None:
    """Play the app once for each way to wait, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wait", nargs="+", help="paced, all, or a timeout in seconds")
    parser.add_argument("--rounds", type=int, nargs="+", default=[12], help="of each")
    parser.add_argument("--data", default="mnist", help="mnist or digits")
    parser.add_argument("--examples", type=int, default=640, help="of each node")
    parser.add_argument("--pause", type=float, default=0.2, help="seconds after a batch")
    parser.add_argument("--silence", type=float, default=60.0, help="seconds in round 6")
    parser.add_argument("--equal", action="store_true", help="no node is slow or silent")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("paced-flower"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if not (options.out / "test.npz").is_file():
        deal(options.out, options.data, options.nodes, options.examples)
    rounds = options.rounds * len(options.wait) if len(options.rounds) == 1 else options.rounds
    with federation(options) as environment:
        for wait, number in zip(options.wait, rounds, strict=True):
            out = (options.out / f"{wait}-{time.strftime('%H%M%S')}").resolve()
            play(environment, options, wait, number, out)
            rows = json.loads(out.with_suffix(".json").read_text("utf-8"))
            last = np.mean([row["accuracy"] for row in rows[-3:]])
            took = f"{rows[-1]['round']} rounds in {rows[-1]['seconds']:.0f} s"
            print(f"{wait}: {took}, accuracy {100 * last:.1f}% (mean of the last three)")


def deal(folder: Path, name: str, nodes: int, examples: int) -> None:
    """Give every node two parts of the images, which are sorted by class."""
    from codedfedl.data import load_dataset

    data, rng = load_dataset(name), np.random.default_rng(0)
    examples = min(examples, len(data.labels) // nodes)
    rows = rng.choice(len(data.labels), nodes * 2 * (examples // 2), replace=False)
    rows = rows[np.argsort(data.labels[rows], kind="stable")].reshape(2 * nodes, -1)
    slow = {j: (2 * j, 2 * j + 1) for j in SLOW if j < nodes}  # neighbours: classes of their own
    others = iter(rng.permutation([k for k in range(2 * nodes) if k not in sum(slow.values(), ())]))
    for j in range(nodes):
        mine = rows[list(slow.get(j) or (next(others), next(others)))].ravel()
        write(folder / f"node-{j}.npz", data.inputs[mine], data.labels[mine])
    write(folder / "test.npz", data.test_inputs[:2000], data.test_labels[:2000])


def write(path: Path, inputs: np.ndarray, labels: np.ndarray) -> None:
    """Write images with their labels."""
    size = int(np.sqrt(inputs.shape[1]))
    images = np.asarray(inputs, np.float32).reshape(-1, 1, size, size)
    np.savez_compressed(path, inputs=images, labels=np.asarray(labels, np.int64))


@contextmanager
def federation(options: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Start a SuperLink and its nodes; end them all."""
    port, home = free_port(), (options.out / "flower").resolve()
    home.mkdir(exist_ok=True)
    address = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
    (home / "config.toml").write_text(f"{address}insecure = true\n", "utf-8")
    environment = os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds; 3 by default
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }
    with ExitStack() as stack:
        link = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
        stack.enter_context(program(link, environment, home / "superlink.log"))
        until = time.monotonic() + 60
        while not answers(port) and time.monotonic() < until:
            time.sleep(0.2)
        for j in range(options.nodes):
            slow = 10.0 if j in SLOW and not options.equal else 1.0
            silent = 6 if j == SILENT and not options.equal else -1
            config = f'data="{(options.out / f"node-{j}.npz").resolve()}"'
            config += f" pause={slow * options.pause} silent-round={silent}"
            config += f" silent-seconds={options.silence}"
            node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}"]
            node += ["--host", "127.0.0.1", "--port", str(free_port()), "--node-config", config]
            stack.enter_context(program(node, environment, home / f"node-{j}.log"))
        yield environment


@contextmanager
def program(command: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    """Run a program of Flower's."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def free_port() -> int:
    """Return a free port below the ephemeral range."""
    while True:
        with socket.socket() as listener:
            port = random.randrange(20_000, 32_000)
            if listener.connect_ex(("127.0.0.1", port)):
                return port


def answers(port: int) -> bool:
    """Say whether somebody listens."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def play(
    environment: dict[str, str], options: argparse.Namespace, wait: str, rounds: int, out: Path
) -> None:
    """Run the app, and wait until it is finished."""
    test = (options.out / "test.npz").resolve()
    config = f'wait="{wait}" rounds={rounds} nodes={options.nodes} test="{test}" out="{out}"'
    with out.with_suffix(".log").open("wb") as log:
        command = ["flwr", "run", str(APP), "here", "--stream", "--run-config", config]
        subprocess.run(command, env=environment, stdout=log, stderr=log, check=True)


if __name__ == "__main__":
    main()
