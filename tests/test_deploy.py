"""The files in deploy/: they are well-formed, and their commands are commands of the package."""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commands import parsed

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"


def services() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    document: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    return dict(document["services"])


def test_services_run_roles_without_privileges() -> None:
    for name, service in services().items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        if "entrypoint" not in service:
            parsed(["federate", *service["command"]])
    (loop,) = services()["keys"]["command"]
    for name in ("ada", "bob", "eve", "helper"):
        assert name in loop
        assert name in services()
    parsed(["federate", "key", "ada", "--folder", "nodes/ada"])


def test_the_image_is_not_the_superusers() -> None:
    lines = (DEPLOY / "Dockerfile").read_text("utf-8").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    known = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "ENTRYPOINT", "CMD"}
    assert {step for step, _ in steps} <= known
    assert [rest for step, rest in steps if step == "USER"] == ["codedfedl"]
    assert ["ENTRYPOINT", '["codedfedl", "federate"]'] in steps
    for step, rest in steps:  # what is copied from the repository is there
        if step == "COPY" and not rest.startswith("--from"):
            assert all((DEPLOY.parent / name).exists() for name in rest.split()[:-1])


@pytest.mark.parametrize("path", sorted(DEPLOY.glob("*.service")), ids=lambda path: path.stem)
def test_units_start_commands_that_exist(path: Path) -> None:
    text = path.read_text("utf-8")
    sections = re.findall(r"^\[(\w+)\]$", text, re.MULTILINE)
    assert sections == ["Unit", "Service", "Install"]
    (start,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    program, *words = shlex.split(start)
    assert program == "/opt/codedfedl/bin/codedfedl"
    parsed(words)
    assert "Restart=always" in text
    if (systemd := shutil.which("systemd-analyze")) is not None:
        command = [systemd, "verify", "--man=no", str(path)]
        said = subprocess.run(command, check=False, capture_output=True, text=True).stderr
        assert all("is not executable" in line for line in said.splitlines()), said


def test_alerts_are_on_metrics_that_there_are() -> None:
    yaml = pytest.importorskip("yaml")
    live = (DEPLOY.parent / "src/codedfedl/report/live.py").read_text("utf-8")
    (group,) = yaml.safe_load((DEPLOY / "alerts.yml").read_text("utf-8"))["groups"]
    names = [
        name for rule in group["rules"] for name in re.findall(r"codedfedl_(\w+)", rule["expr"])
    ]
    assert len(names) >= len(group["rules"])
    for name in names:
        assert f'("{name}"' in live or f'"{name}",' in live, name


@pytest.mark.engine
@pytest.mark.long
def test_the_services_commands_make_a_federation(tmp_path: Path) -> None:
    """What compose.yaml starts, without Docker: each service's command, in its working folder."""
    from codedfedl.data import load_dataset
    from codedfedl.federate.flower.programs import free_port
    from tests.engine import BIN
    from tests.waiting import eventually

    known, fleet, dataset = services(), tmp_path / "fleet", load_dataset("digits")
    environment = os.environ | {"HOME": str(tmp_path), "PATH": f"{BIN}:{os.environ['PATH']}"}

    def federate(*words: object, folder: Path = fleet) -> None:
        command = [str(BIN / "codedfedl"), "federate", *map(str, words)]
        subprocess.run(command, cwd=folder, env=environment, check=True, timeout=300)

    words = [word.replace("server", "127.0.0.1") for word in known["init"]["command"]]
    federate(*words, "--port", free_port(), folder=tmp_path)
    (loop,) = known["keys"]["command"]
    subprocess.run(["sh", "-c", loop.replace("$$", "$")], cwd=fleet, env=environment, check=True)
    settings = (fleet / "federation.toml").read_text("utf-8").replace("rounds = 20", "rounds = 2")
    (fleet / "federation.toml").write_text(settings, "utf-8")
    names, running = ("ada", "bob", "eve"), list[subprocess.Popen[bytes]]()
    for j, name in enumerate(names):
        part = slice(j * 400, (j + 1) * 400)
        path = fleet / f"nodes/{name}/{name}.npz"
        np.savez(path, inputs=dataset.inputs[part], labels=dataset.labels[part])
    try:
        for name in ("server", "helper", *names):
            command = [str(BIN / "codedfedl"), "federate", *known[name]["command"]]
            running.append(subprocess.Popen(command, cwd=fleet, env=environment))
        federate("register", *(f"nodes/{name}/{name}.pub" for name in names))
        federate("register", "nodes/helper/helper.pub", "--role", "helper")
        federate("run")
        done = fleet / "run/model.npz"
        eventually(done.is_file, 900, "the federation did not end")
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(120)


def _docker(*words: str) -> str:
    command = ["docker", *words]
    done = subprocess.run(command, cwd=DEPLOY.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.engine
@pytest.mark.long
def test_the_image_is_built_and_the_services_start() -> None:
    """Its server becomes healthy, and nodes with keys connect; the volume goes with it."""
    from tests.waiting import eventually

    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "compose", "ls"], check=False, capture_output=True).returncode
    ):
        pytest.skip("needs Docker with compose, and a daemon that runs")
    compose = ("compose", "--project-name", "codedfedl-test", "-f", "deploy/compose.yaml")
    try:
        _docker(*compose, "build")
        _docker(*compose, "run", "--rm", "init")
        _docker(*compose, "run", "--rm", "keys")
        _docker(*compose, "up", "--detach", "--wait", "server")
        _docker(*compose, "up", "--detach", "helper")
        inside = (*compose, "exec", "-T", "server", "codedfedl", "federate")
        _docker(*inside, "register", "nodes/helper/helper.pub", "--role", "helper")

        def is_connected() -> bool:
            (helper,) = json.loads(_docker(*inside, "nodes", "--json"))["nodes"]
            return bool(helper["connected"])

        eventually(is_connected, 120, "the helper did not connect")
    finally:
        _docker(*compose, "down", "--volumes", "--rmi", "local")
