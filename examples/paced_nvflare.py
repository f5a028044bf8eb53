"""Pace an NVIDIA FLARE job, in its simulator: three sites, the third ten times slower.

python examples/paced_nvflare.py
"""

import sys
import tempfile
import time
from math import inf

import numpy as np

from codedfedl.pacing.flower.batches import TimedBatches

TARGETS = {"site-1": 0.0, "site-2": 1.0, "site-3": 5.0}  # the mean is 2


def client() -> None:
    """Move a step towards the site's own target for every batch."""
    import nvflare.client as flare

    flare.init()
    name = flare.get_site_name()
    while flare.is_running():
        asked = flare.receive()
        ((key, array),) = asked.params.items()
        batches = TimedBatches(range(10), (asked.meta or {}).get("window", inf))
        for _ in batches:
            array = array + 0.02 * (TARGETS[name] - array)
            time.sleep(0.5 if name == "site-3" else 0.05)
        meta = {"NUM_STEPS_CURRENT_ROUND": 10, **batches.metrics}
        flare.send(flare.FLModel(params={key: array}, params_type="FULL", meta=meta))


def main() -> None:
    """Run twelve rounds."""
    from nvflare.app_common.np.np_model_persistor import NPModelPersistor
    from nvflare.job_config.api import FedJob
    from nvflare.job_config.script_runner import FrameworkType, ScriptRunner

    from codedfedl.pacing.nvflare import PacedFedAvg

    job = FedJob(name="paced")
    job.to_server(NPModelPersistor(model=np.zeros((1, 2)).tolist()), id="persistor")
    job.to_server(PacedFedAvg(num_rounds=12, num_clients=3))
    for site in TARGETS:
        script = ScriptRunner(script=__file__, script_args="client", framework=FrameworkType.NUMPY)
        job.to(script, site)
    with tempfile.TemporaryDirectory() as folder:
        job.simulator_run(folder, clients=list(TARGETS))
        print(np.load(f"{folder}/server/simulate_job/models/server.npy"))


if __name__ == "__main__":
    client() if "client" in sys.argv[1:] else main()
