"""What many nodes cost the server: Flower's own SuperLink code and data base, and our transport.

All in this process, without HTTP, TLS, the gate and the nodes: processor seconds of one round in
which every node answers with a gradient of 500 features and 10 labels, and how many threads wait.
`python -m benchmarks.superlink`
"""

import argparse
import logging
import tempfile
import threading
import time
import warnings
from pathlib import Path

from tests.own_superlink import OwnSuperLink, numbers

from codedfedl.federate.flower.messaging import FlowerTransport


def measure(nodes: int, folder: Path) -> tuple[float, int, int]:
    """Play a round; return processor seconds, the threads that wait, and the looks for answers."""
    link = OwnSuperLink(folder / "link.db", nodes)
    transport, before = FlowerTransport(link.grid), threading.active_count()
    began = time.process_time()
    asked = transport.ask(
        "work",
        {j: (node, {}) for j, node in enumerate(link.nodes)},
        {"model": numbers(0)},
        900.0,
    )
    time.sleep(0.5)  # until the threads that sent the messages are gone
    threads = threading.active_count() - before
    for j in range(nodes):
        link.upload(link.answer(j, numbers(j)))
    arrived = list(transport.gather(asked, transport.now() + 900.0))
    if sum(arrival.status == "answer" for arrival in arrived) < nodes:
        raise SystemExit("some nodes did not answer")
    return time.process_time() - began, threads, link.requests["PullMessages"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 30, 100])
    logging.disable()
    warnings.simplefilter("ignore")
    print("nodes  processor seconds a round  a node  threads that wait  looks for answers")
    for nodes in parser.parse_args().nodes:
        with tempfile.TemporaryDirectory() as folder:
            spent, threads, looks = measure(nodes, Path(folder))
        print(
            f"{nodes:5}  {spent:25.2f}  {spent / nodes:6.3f}  {threads:17}  {looks:17}", flush=True
        )


if __name__ == "__main__":
    main()
