"""The whole paper in plain loops: CodedFedL on the embedded digits, an equation at a time.

Only the data, the paper's devices and the random streams come from the library, so that a test can
prove that the engine computes the same model. Run it: `python examples/pseudocode.py`.
"""

from math import ceil, exp, sqrt

import numpy as np

from codedfedl import Workload, paper_devices
from codedfedl.data import load_dataset, mini_batches, partition
from codedfedl.random import stream

CLIENTS, BATCHES, EPOCHS, REDUNDANCY, SEED = 6, 2, 4, 0.1, 0
Q, SIGMA, STEP, RIDGE = 100, 2.0, 2.0, 9e-6


def embed(points, seed):
    """Section 3.1: random Fourier features."""
    random = np.random.RandomState(seed)
    omega = random.normal(size=(points.shape[1], Q)) / SIGMA
    delta = random.uniform(0, 2 * np.pi, size=Q)
    return sqrt(2 / Q) * np.cos(points @ omega + delta)


def probability(client, load, t):
    """Appendix A.1: P(T ≤ t), term by term."""
    mu, alpha, tau, p = client
    total = 0.0
    for nu in range(2, 60):
        spare = t - load / mu - tau * nu
        if spare > 0:
            h = (nu - 1) * (1 - p) ** 2 * p ** (nu - 2)
            total += h * (1 - exp(-alpha * mu / load * spare))
    return total


def best_load(client, points, t):
    """Section 3.3, step 1: the load with the largest expected return."""
    return max(range(1, points + 1), key=lambda load: load * probability(client, load, t))


def minimum_deadline(clients, points, target):
    """Section 3.3, step 2: binary search for the smallest waiting time."""

    def expected_return(t):
        loads = [best_load(client, held, t) for client, held in zip(clients, points)]
        return sum(load * probability(client, load, t) for client, load in zip(clients, loads))

    low, high = 0.0, 1.0
    while expected_return(high) < target:
        low, high = high, 2 * high
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if expected_return(middle) < target else (low, middle)
    return high


def draw_delays(clients, rounds):
    """Section 2.2: what chance decides in every round, for every client."""
    rng, shape = stream(SEED, "delays"), (rounds, len(clients))
    erasure = np.array([p for _, _, _, p in clients])
    slowness = rng.standard_exponential(shape)
    return slowness, rng.geometric(1 - erasure, shape), rng.geometric(1 - erasure, shape)


def train():
    """Return the model after all epochs, and its accuracy on the test points."""
    data = load_dataset("digits")
    workload = Workload(features=Q, labels=10)
    devices = paper_devices(CLIENTS, seed=SEED).parameters(workload)
    clients = list(zip(devices.rate, devices.alpha, devices.packet_time, devices.erasure))
    shards = partition(data.labels, CLIENTS, "sorted", seed=SEED)

    # Set-up: plans, features and composite parity for every mini-batch.
    batches = []
    for b, parts in enumerate(mini_batches(shards, BATCHES)):
        points = [len(part) for part in parts]
        m = sum(points)
        u = ceil(REDUNDANCY * m)
        deadline = minimum_deadline(clients, points, m - u)
        parity_x, parity_y = np.zeros((u, Q)), np.zeros((u, 10))
        local = []
        for j, part in enumerate(parts):
            x, y = embed(data.inputs[part], SEED), data.targets[part]
            load = best_load(clients[j], points[j], deadline)
            p_return = probability(clients[j], load, deadline)
            w = np.ones(points[j])  # section 3.4: never processed, so never returned
            w[:load] = sqrt(1 - p_return)
            code = stream(SEED, "code", b, j)  # the client's secret
            g = code.standard_normal((u, points[j]), dtype=np.float32) / sqrt(u)
            parity_x += g @ (w[:, None] * x)  # section 3.2
            parity_y += g @ (w[:, None] * y)
            local.append((x[:load], y[:load], load))
        batches.append((m, deadline, local, parity_x, parity_y))

    # Training: section 3.5.
    slowness, down, up = draw_delays(clients, EPOCHS * BATCHES)
    model = np.zeros((Q, 10))
    for r in range(EPOCHS * BATCHES):
        m, deadline, local, parity_x, parity_y = batches[r % BATCHES]
        g_c = parity_x.T @ (parity_x @ model - parity_y)
        g_u = np.zeros_like(model)
        for j, (x, y, load) in enumerate(local):
            mu, alpha, tau, _ = clients[j]
            compute = load / mu * (1 + slowness[r, j] / alpha)
            if compute + tau * (down[r, j] + up[r, j]) <= deadline:
                g_u += x.T @ (x @ model - y)
        g_m = (g_c + g_u) / m
        model = model - STEP * (g_m + RIDGE * model)

    predicted = (embed(data.test_inputs, SEED) @ model).argmax(axis=1)
    return model, (predicted == data.test_labels).mean()


if __name__ == "__main__":
    print(f"accuracy {train()[1]:.1%}")
