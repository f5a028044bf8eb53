"""Peers side by side: rounds of federated gradient descent in our simulator and in others.

Run with `python -m benchmarks.peers`. 30 clients with 400 points of 2,000 features and ten labels
each: a round is everybody's gradient and a step. Every peer has a process and the same threads.
One whose packages are not there is left out: `pip install jax fedjax
pfl torch==2.13.0 'flwr[simulation]'`. What is
compiled or multiplied once is charged, spread over the rounds; imports and data are not.
"""

import itertools
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

Sizes = tuple[int, int, int, int]  # clients, points of each, features, labels
Play = Callable[[], object]

FULL: Sizes = (30, 400, 2000, 10)
TINY: Sizes = (4, 2, 3, 2)
SETTINGS, STEP = 10, 1e-3


def shards(sizes: Sizes) -> tuple[Any, Any]:
    """Return points and targets, (clients, points, features) and (clients, points, labels)."""
    clients, points, features, labels = sizes
    rng = np.random.default_rng(0)
    x = rng.standard_normal((clients, points, features), dtype=np.float32) / features**0.5
    y = np.eye(labels, dtype=np.float32)[rng.integers(0, labels, (clients, points))]
    return x, y


def _loop(x: Any, y: Any, model: Any, rounds: int) -> Play:
    """Return a loop over rounds and clients, on arrays of any kind."""

    def play() -> None:
        nonlocal model
        for _ in range(rounds):
            total = model * 0
            for features, targets in zip(x, y, strict=True):
                total += features.T @ (features @ model - targets)
            model = model - STEP * total

    return play


def numpy_loop(sizes: Sizes, rounds: int) -> Play:
    x, y = shards(sizes)
    return _loop(x, y, np.zeros(sizes[2:], np.float32), rounds)


def pytorch_loop(sizes: Sizes, rounds: int) -> Play:
    torch: Any = import_module("torch")
    x, y = map(torch.from_numpy, shards(sizes))
    return _loop(x, y, torch.zeros(sizes[2:]), rounds)


def jax_scan(sizes: Sizes, rounds: int) -> Play:
    """Compile all rounds into one program."""
    jax: Any = import_module("jax")
    x, y = map(jax.numpy.asarray, shards(sizes))

    def one(model: Any, _: None) -> tuple[Any, None]:
        total = jax.vmap(lambda a, b: a.T @ (a @ model - b))(x, y).sum(0)
        return model - STEP * total, None

    scan = jax.jit(lambda start: jax.lax.scan(one, start, None, length=rounds)[0])
    return lambda: scan(jax.numpy.zeros(sizes[2:])).block_until_ready()


def fedjax_loop(sizes: Sizes, rounds: int) -> Play:
    """Let the framework compute each client's gradient, and add them up."""
    fedjax: Any = import_module("fedjax")
    numpy: Any = import_module("jax").numpy
    x, y = shards(sizes)
    clients = [(j, [{"x": x[j], "y": y[j]}], None) for j in range(sizes[0])]
    each = fedjax.for_each_client(
        lambda model, _: (model, numpy.zeros_like(model)),
        lambda state, batch: (state[0], batch["x"].T @ (batch["x"] @ state[0] - batch["y"])),
        lambda _, state: state[1],
    )

    def play() -> None:
        model = numpy.zeros(sizes[2:])
        for _ in range(rounds):
            model = model - STEP * sum(gradient for _, gradient in each(model, clients))
        model.block_until_ready()

    return play


def pfl_loop(sizes: Sizes, rounds: int) -> Play:
    """Let pfl-research average one local step of every client."""
    torch: Any = import_module("torch")
    data, algorithm = import_module("pfl.data.dataset"), import_module("pfl.algorithm.base")
    federated, averaging = import_module("pfl.data"), import_module("pfl.algorithm")
    hyperparam, simulate = import_module("pfl.hyperparam"), import_module("pfl.aggregate.simulate")
    models = import_module("pfl.model.pytorch")
    x, y = map(torch.from_numpy, shards(sizes))
    clients, points = sizes[:2]

    class Linear(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = torch.nn.Parameter(torch.zeros(sizes[2:]))

        def loss(self, features: Any, targets: Any) -> Any:
            return ((features @ self.model - targets) ** 2).sum() / 2

        def metrics(self, features: Any, targets: Any) -> dict[str, Any]:
            return {}

    linear = Linear()
    turns = itertools.cycle(range(clients))
    training = federated.FederatedDataset(lambda j: data.Dataset([x[j], y[j]]), lambda: next(turns))
    arguments = {"local_num_epochs": 1, "local_batch_size": None}
    local = hyperparam.NNTrainHyperParams(
        local_learning_rate=STEP * clients, local_max_grad_norm=None, **arguments
    )
    every = algorithm.NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=rounds + 1,
        train_cohort_size=clients,
        val_cohort_size=None,
    )

    def play() -> None:
        averaging.FederatedAveraging().run(
            algorithm_params=every,
            backend=simulate.SimulatedBackend(training_data=training, val_data=None),
            model=models.PyTorchModel(
                linear,
                local_optimizer_create=torch.optim.SGD,
                central_optimizer=torch.optim.SGD(linear.parameters(), lr=1.0),
            ),
            model_train_params=local,
            model_eval_params=hyperparam.NNEvalHyperParams(local_batch_size=points),
            send_metrics_to_platform=False,
        )

    return play


def flower_simulation(sizes: Sizes, rounds: int) -> Play:
    """Let Flower's simulation, on Ray, ask every client for its gradient."""
    flwr: Any = import_module("flwr")
    clientapp, serverapp = import_module("flwr.clientapp"), import_module("flwr.serverapp")
    simulation: Any = import_module("flwr.simulation")
    app = clientapp.ClientApp()

    @app.train()  # type: ignore[untyped-decorator]
    def gradient(message: Any, context: Any) -> Any:
        if not _SHARDS:  # a worker of Ray makes the data once
            _SHARDS.append(shards(sizes))
        j = int(context.node_config["partition-id"])
        features, targets = (part[j] for part in _SHARDS[0])
        (model,) = message.content["model"].to_numpy_ndarrays()
        total = features.T @ (features @ model - targets)
        record = flwr.app.ArrayRecord(numpy_ndarrays=[total])
        return flwr.app.Message(flwr.app.RecordDict({"gradient": record}), reply_to=message)

    server = serverapp.ServerApp()

    @server.main()  # type: ignore[untyped-decorator]
    def train(grid: Any, context: Any) -> None:
        model = np.zeros(sizes[2:], np.float32)
        while len(nodes := list(grid.get_node_ids())) < sizes[0]:
            time.sleep(0.01)
        for _ in range(rounds):
            record = flwr.app.ArrayRecord(numpy_ndarrays=[model])
            content = flwr.app.RecordDict({"model": record})
            asks = [flwr.app.Message(content, node, "train") for node in nodes]
            for reply in grid.send_and_receive(asks):
                model -= STEP * reply.content["gradient"].to_numpy_ndarrays()[0]

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    return lambda: simulation.run_simulation(server, app, sizes[0], backend_config=resources)


_SHARDS: list[Any] = []


def ours(sizes: Sizes, rounds: int, settings: int = 1) -> Play:
    """Play `uncoded`, or a sweep of settings on the same data, without test accuracy."""
    from codedfedl import Experiment
    from codedfedl.data.dataset import Dataset
    from codedfedl.learning.features import Identity
    from codedfedl.simulation.engine import Simulation, entries
    from codedfedl.simulation.run import prepare

    x, y = shards(sizes)
    points, labels = x.reshape(-1, sizes[2]), y.reshape(-1, sizes[3]).argmax(1)
    data = Dataset("made", points, labels, points[:10], labels[:10], classes=sizes[3])
    schemes = [{"name": "uncoded"}, *({"name": "greedy", "drop": d / 30} for d in range(1, 10))]
    experiment = Experiment.model_validate(
        {
            "data": {"name": "digits", "partition": "iid", "batches": 1},
            "fleet": {"clients": sizes[0]},
            "training": {"epochs": rounds, "step": 1.0, "decay_epochs": []},
            "schemes": schemes[:settings],
        }
    )
    problem, task, fleet = prepare(experiment, data, 0, Identity(), "cpu")

    def play() -> None:
        simulation = Simulation(problem, entries(task, fleet, experiment.build_schemes()), 0)
        simulation._measure = lambda settings: None  # type: ignore[method-assign]
        assert sum(1 for _ in simulation.run()) == rounds

    return play


def ours_in_a_sweep(sizes: Sizes, rounds: int) -> Play:
    return ours(sizes, rounds, SETTINGS)


PEERS: dict[str, tuple[str, Callable[[Sizes, int], Play], int]] = {
    "codedfedl, uncoded": ("codedfedl", ours, 1),
    "codedfedl, ten settings": ("codedfedl", ours_in_a_sweep, SETTINGS),
    "JAX scan": ("jax", jax_scan, 1),
    "NumPy loop": ("numpy", numpy_loop, 1),
    "PyTorch loop": ("torch", pytorch_loop, 1),
    "fedjax": ("fedjax", fedjax_loop, 1),
    "pfl-research": ("pfl", pfl_loop, 1),
    "Flower's simulation": ("ray", flower_simulation, 1),
}


def seconds_of(play: Play) -> float:
    began = time.perf_counter()
    play()
    return time.perf_counter() - began


def measure(name: str, rounds: int) -> dict[str, float]:
    """Measure a peer in this process."""
    _, prepare, settings = PEERS[name]
    seconds = seconds_of(prepare(FULL, rounds))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    seconds_of(prepare(TINY, rounds))  # warm up
    tiny = seconds_of(prepare(TINY, rounds))
    return {
        "rounds_per_second": rounds * settings / seconds,
        "overhead_ms": 1e3 * tiny / rounds / settings,
        "peak_gib": peak,
    }


def main(rounds: int = 500) -> None:
    print(f"{' × '.join(map(str, FULL))}, {rounds} rounds, per setting")
    print("                            rounds/s  on tiny data, ms  peak, GiB")
    for name, (package, _, _) in PEERS.items():
        if find_spec(package) is None:
            print(f"  {name:24}  not installed")
            continue
        command = [sys.executable, "-m", "benchmarks.peers", str(rounds), name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        print(
            f"  {name:24}  {found['rounds_per_second']:8.1f}  {found['overhead_ms']:16.3f}"
            f"  {found['peak_gib']:9.2f}"
        )


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(json.dumps(measure(sys.argv[2], int(sys.argv[1]))))
    else:
        main(*(int(argument) for argument in sys.argv[1:]))
