"""The server: Flower's FedAvg. `paced` around the grid is all that pacing adds."""

import json
import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from network import network, read

from codedfedl.pacing.flower import paced

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and write down the accuracy after every round."""
    config = context.run_config
    wait, out, nodes = str(config["wait"]), Path(str(config["out"])), int(config["nodes"])
    model, test = network(), read(str(config["test"]))
    images, labels = test.tensors
    while len(list(grid.get_node_ids())) < nodes:
        time.sleep(0.5)
    began, rows = time.monotonic(), []

    def evaluate(number: int, arrays: ArrayRecord) -> None:
        seconds = time.monotonic() - began
        model.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            right = (model(images).argmax(1) == labels).float().mean()
        rows.append({"round": number, "seconds": seconds, "accuracy": float(right)})
        out.with_suffix(".json").write_text(json.dumps(rows), "utf-8")

    strategy = FedAvg(fraction_evaluate=0.0)
    if wait == "paced":
        grid = paced(grid, strategy=strategy, out=out)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=int(config["rounds"]),
        timeout=3600.0 if wait in ("all", "paced") else float(wait),
        evaluate_fn=evaluate,
    )
