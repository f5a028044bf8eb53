"""The frameworks among the peers, each as its own users would write it, at its best."""

import itertools
import os
import resource
import time
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.peers import STEP, Play, Sizes, timed

_WORKERS: dict[int, float] = {}  # peak memory in GiB of Ray's workers, by process


def fedjax_loop(sizes: Sizes, rounds: int, evaluates: bool) -> Play:
    """Let fedjax compute each client's gradient, and add them up; data are on the device."""
    fedjax: Any = import_module("fedjax")
    jax: Any = import_module("jax")
    numpy = jax.numpy
    x, y, test, labels = map(numpy.asarray, sizes.data())
    clients = [(j, [{"x": x[j], "y": y[j]}], None) for j in range(sizes.clients)]
    fedjax.set_for_each_client_backend("jit")
    each = fedjax.for_each_client(
        lambda model, _: (model, numpy.zeros_like(model)),
        lambda state, batch: (state[0], batch["x"].T @ (batch["x"] @ state[0] - batch["y"])),
        lambda _, state: state[1],
    )
    accuracy_of = jax.jit(lambda model: ((test @ model).argmax(1) == labels).mean())

    def play() -> Any:
        model, accuracy = numpy.zeros(sizes.shape), np.nan
        for _ in range(rounds):
            model = model - STEP * sum(gradient for _, gradient in each(model, clients))
            if evaluates:
                accuracy = float(accuracy_of(model))
        model.block_until_ready()
        return accuracy

    return timed(play)


def _pfl_model(sizes: Sizes) -> Any:
    """Return linear regression as pfl-research wants it."""
    torch: Any = import_module("torch")

    class Linear(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = torch.nn.Parameter(torch.zeros(sizes.shape))

        def loss(self, features: Any, targets: Any, **_: Any) -> Any:
            return ((features @ self.model - targets) ** 2).sum() / 2

        @torch.no_grad()  # type: ignore[untyped-decorator]
        def metrics(self, features: Any, targets: Any, **_: Any) -> dict[str, Any]:
            right = ((features @ self.model).argmax(1) == targets.argmax(1)).sum()
            value = import_module("pfl.metrics").Weighted(float(right), len(targets))
            return {"accuracy": value}

    return Linear()


def pfl_loop(sizes: Sizes, rounds: int, evaluates: bool) -> Play:
    """Let pfl-research average one local step of every client."""
    torch: Any = import_module("torch")
    data, algorithm = import_module("pfl.data.dataset"), import_module("pfl.algorithm.base")
    federated, averaging = import_module("pfl.data"), import_module("pfl.algorithm")
    hyperparam, simulate = import_module("pfl.hyperparam"), import_module("pfl.aggregate.simulate")
    models = import_module("pfl.model.pytorch")
    callback = import_module("pfl.callback.central_evaluation")
    x, y, test, labels = map(torch.from_numpy, sizes.data())
    tested = [test, torch.nn.functional.one_hot(labels, sizes.labels)]
    linear, turns = _pfl_model(sizes), itertools.cycle(range(sizes.clients))
    training = federated.FederatedDataset(lambda j: data.Dataset([x[j], y[j]]), lambda: next(turns))
    local = hyperparam.NNTrainHyperParams(
        local_learning_rate=STEP * sizes.clients,
        local_max_grad_norm=None,
        local_num_epochs=1,
        local_batch_size=None,
    )
    every = algorithm.NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=rounds + 1,
        train_cohort_size=sizes.clients,
        val_cohort_size=None,
    )
    whole = hyperparam.NNEvalHyperParams(local_batch_size=sizes.tests)
    central = callback.CentralEvaluationCallback(data.Dataset(tested), whole)

    def play() -> float:
        model = averaging.FederatedAveraging().run(
            algorithm_params=every,
            backend=simulate.SimulatedBackend(training_data=training, val_data=None),
            model=models.PyTorchModel(
                linear,
                local_optimizer_create=torch.optim.SGD,
                central_optimizer=torch.optim.SGD(linear.parameters(), lr=1.0),
            ),
            model_train_params=local,
            model_eval_params=whole,
            callbacks=[central] if evaluates else [],
            send_metrics_to_platform=False,
        )
        if not evaluates:
            return np.nan
        return float(model.pytorch_model.metrics(*tested)["accuracy"].overall_value)

    return timed(play)


def flower_simulation(sizes: Sizes, rounds: int, evaluates: bool) -> Play:
    """Let Flower's simulation, on Ray, ask every client for its gradient.

    The first round, in which workers start and make their data, is not timed.
    """
    flwr: Any = import_module("flwr.app")
    serverapp, simulation = import_module("flwr.serverapp"), import_module("flwr.simulation")
    _, _, test, labels = sizes.data()
    server, found = serverapp.ServerApp(), []

    @server.main()  # type: ignore[untyped-decorator]
    def train(grid: Any, context: Any) -> None:
        model, accuracy, began = np.zeros(sizes.shape, np.float32), np.nan, 0.0
        while len(nodes := list(grid.get_node_ids())) < sizes.clients:
            time.sleep(0.01)
        for k in range(rounds + 1):
            began = time.perf_counter() if k == 1 else began
            content = flwr.RecordDict({"model": flwr.ArrayRecord(numpy_ndarrays=[model])})
            total = np.zeros_like(model)
            for reply in grid.send_and_receive(
                [flwr.Message(content, node, "train") for node in nodes]
            ):
                total += reply.content["gradient"].to_numpy_ndarrays()[0]
                memory = reply.content["memory"]
                _WORKERS[int(memory["pid"])] = float(memory["gib"])
            model = model - STEP * total if k else model
            if evaluates and k:
                accuracy = float(((test @ model).argmax(1) == labels).mean())
        found.append((accuracy, time.perf_counter() - began))

    cores = len(os.sched_getaffinity(0))
    backend = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": cores, "object_store_memory": 200 * 2**20},
    }

    def play() -> tuple[float, float]:
        simulation.run_simulation(
            server, _flower_client(sizes), sizes.clients, backend_config=backend
        )
        ((accuracy, seconds),) = found
        return accuracy, seconds

    return play


@cache
def _shards(sizes: Sizes) -> tuple[Any, Any]:
    """Return everybody's points and targets, which a worker makes once."""
    x, y, _, _ = sizes.data()
    return x, y


def _flower_client(sizes: Sizes) -> Any:
    """Return the app of a client, which Ray's workers run."""
    flwr: Any = import_module("flwr.app")
    app = import_module("flwr.clientapp").ClientApp()

    @app.train()  # type: ignore[untyped-decorator]
    def gradient(message: Any, context: Any) -> Any:
        j = int(context.node_config["partition-id"])
        features, targets = (part[j] for part in _shards(sizes))
        (model,) = message.content["model"].to_numpy_ndarrays()
        total = features.T @ (features @ model - targets)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        memory = flwr.MetricRecord({"pid": os.getpid(), "gib": peak})
        record = flwr.ArrayRecord(numpy_ndarrays=[total])
        content = flwr.RecordDict({"gradient": record, "memory": memory})
        return flwr.Message(content, reply_to=message)

    return app


def workers_gib() -> float:
    """Return the peak memory of Ray's workers, without its own processes."""
    return sum(_WORKERS.values())
