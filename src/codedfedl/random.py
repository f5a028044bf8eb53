"""Independent random streams: one for each purpose and client, all from one seed."""

import numpy as np

_PURPOSES = (
    *("fleet", "partition", "delays", "setup", "subset", "code", "order", "noise", "audit"),
    *("server", "scheme", "model", "tangent"),  # new ones come last: a stream is known by its place
)


def stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """Return the generator of a purpose, such as the code of client 3: ``stream(0, "code", 3)``.

    Streams of different purposes or keys are independent, and drawing more from one does not affect
    the others.
    """
    key = (_PURPOSES.index(purpose), *keys)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
