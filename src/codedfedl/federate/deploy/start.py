"""The files that a federation begins with: one for its server, and a folder for every node."""

import shutil
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from codedfedl.federate.deploy.keys import VALID_DAYS, check_name, make_keys
from codedfedl.federate.job import HELPER
from codedfedl.io.files import make_folder
from codedfedl.io.toml import read_toml

FEDERATION = "federation.toml"
"""The server's file."""


def begin(
    folder: Path, hosts: Sequence[str], nodes: Sequence[str], port: int, days: float = VALID_DAYS
) -> list[Path]:
    """Write certificates, the server's file, and what every node is given; keep files as they are.

    Certificates are renewed where the folder has some.

    Returns
    -------
    list
        The folders for the nodes and the helper.
    """
    for name in nodes:
        check_name(name)
    keys = make_keys(folder / "keys", hosts, [], days=days)
    clients = max(2, len([name for name in nodes if name != HELPER]))
    file = folder / FEDERATION
    _write(file, FEDERATION, title=folder.resolve().name, port=port, clients=clients)
    if "server" not in read_toml(file):  # such as one of federate split
        with file.open("a", encoding="utf-8") as text:
            text.write(f'\n[server]\nport = {port}\nkeys = "keys"\n')
    given = [folder / "nodes" / name for name in nodes or ["NAME"]]
    for path in given:
        make_folder(path)
        shutil.copyfile(keys.authority, path / "ca.crt")
        name = f"{HELPER if path.name == HELPER else 'node'}.toml"
        _write(path / name, name, name=path.name, superlink=f"{hosts[0]}:{port}")
    return given


def _write(path: Path, template: str, **values: Any) -> None:
    """Fill in a template, where there is no such file yet."""
    if not path.exists():
        text = (files(__package__) / template).read_text("utf-8")
        path.write_text(Template(text).substitute(values), "utf-8")
