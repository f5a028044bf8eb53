"""The files in deploy/: they are well-formed, and their commands are commands of the package."""

import re
import shlex
from pathlib import Path
from typing import Any

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
