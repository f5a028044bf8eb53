"""What the owner of a node decides, in one value: its data, and what may leave it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self, get_type_hints

from codedfedl.errors import InputError
from codedfedl.io.names import nearest
from codedfedl.io.toml import read_toml

__all__ = ["Access", "HelperConfig", "NodeConfig", "vault_of", "with_file"]


@dataclass(frozen=True)
class Access:
    """How the server is reached.

    Attributes
    ----------
    superlink
        The server's gate, as host:port.
    ca
        The authority's certificate: ca.crt of the server's keys.
    key
        The private key for the gate.
    """

    superlink: str = ""
    ca: Path | None = None
    key: Path | None = None

    def check(self) -> None:
        """Refuse another machine as the server without certificates, and missing files."""
        host, _, port = self.superlink.rpartition(":")
        if not host or not port.isdecimal():
            raise InputError(f"superlink is {self.superlink!r}: write the server's host:port")
        if (self.ca is None) != (self.key is None):
            raise InputError(
                "give both --ca and --key: a key is only safe with the server's authority"
            )
        if self.ca is None and host not in ("127.0.0.1", "localhost"):
            raise InputError(f"{host} is another machine: give --ca and --key")
        remedies = {self.ca: "get it from the operator"}
        for path in (self.ca, self.key):
            if path is not None and not path.is_file():
                remedy = remedies.get(path, "make it with codedfedl federate key, in its folder")
                raise InputError(f"{path} does not exist: {remedy}")
        if self.key is not None and self.key.stat().st_mode & 0o077:
            raise InputError(f"{self.key} can be read by others: chmod 600 {self.key}")

    @property
    def options(self) -> list[str]:
        """What follows ``codedfedl federate node`` or ``helper`` on the command line."""
        given = {"superlink": self.superlink, "ca": self.ca, "key": self.key}
        return [
            word for name, value in given.items() if value for word in (f"--{name}", str(value))
        ]


@dataclass(frozen=True)
class NodeConfig:
    """The node's data, and what it may send.

    Every field is a key of `node.toml`, an option of ``codedfedl federate node`` of the same name,
    and a key of the ``--node-config`` of a stock SuperNode.

    Attributes
    ----------
    name
        The name that the operator registered.
    data
        The node's points: a file or a folder.
    label
        The label column of a table.
    text
        The column of a table with texts.
    preparation
        The preparation.json of codedfedl federate split: how columns become inputs.
    loader
        Instead of --data: a function, as module:function.
    encoder
        The node's own encoder: an .onnx file, or module:function.
    cache
        The node's cache folder.
    least
        Refuse to answer over fewer points together.
    dataset
        A name for the node's data; by default their file or loader.
    accept : DIGEST
        Accept another job on the same data, by the digest that the node named when it refused; may
        be repeated.
    works
        Modules with custom kinds of work, separated by commas.
    helper
        The helper's masks.pub: answer only with masked sums.
    vault
        With --helper: a permanent folder for the ledger.
    epsilon_cap
        With --helper: the most ε to spend on a data set, over all runs; inf also allows sums
        without noise.
    parity
        With --helper: also send parity of the node's own points, which hides nothing.
    networks
        Also train networks, although a malicious server can read single points from their
        gradients.
    settings
        Further keys, for the loader.
    """

    name: str = ""
    data: Path | None = None
    label: str | None = None
    text: str | None = None
    preparation: Path | None = None
    loader: str | None = None
    encoder: str | None = None
    cache: Path | None = None
    least: int | None = None
    dataset: str | None = None
    accept: tuple[str, ...] = ()
    works: str | None = None
    helper: Path | None = None
    vault: Path | None = None
    epsilon_cap: float | None = None
    parity: bool = False
    networks: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.least is not None and (not isinstance(self.least, int) or self.least < 1):
            raise InputError(
                f"least is {self.least!r} in the node configuration: must be 1 or more"
            )
        if self.epsilon_cap is not None and not self.epsilon_cap >= 0:
            raise InputError(
                f"epsilon_cap is {self.epsilon_cap} in the node configuration: must be 0 or more"
            )

    @classmethod
    def read(cls, values: Mapping[str, Any], name: str) -> Self:
        """Return the configuration with which a stock SuperNode was started.

        Parameters
        ----------
        values
            The fields by name, `accept` separated by commas; other keys are the loader's.
        name
            The node's name where it is not given one.
        """
        known: dict[str, Any] = {"name": name}
        known |= {key: values[key] for key in _FIELDS if key in values}
        for key in _TEXTS & known.keys():
            known[key] = str(known[key])
        for key in _PATHS & known.keys():
            known[key] = Path(str(known[key]))
        accepted = str(known.pop("accept", "")).split(",")
        known["accept"] = tuple(digest.strip() for digest in accepted if digest.strip())
        if "epsilon_cap" in known:
            known["epsilon_cap"] = float(known["epsilon_cap"])
        settings = {key: value for key, value in values.items() if key not in _FIELDS}
        return cls(**known, settings=settings)

    def resolved(self) -> Self:
        """Return the configuration with whole paths, for processes that start in other folders."""
        given = {name: getattr(self, name) for name in _PATHS}
        paths = {name: path.resolve() for name, path in given.items() if path is not None}
        encoder = self.encoder
        if encoder is not None and encoder.endswith(".onnx"):
            encoder = str(Path(encoder).resolve())
        return replace(self, encoder=encoder, **paths)

    @property
    def values(self) -> dict[str, Any]:
        """What is given, by name, as plain values; `read` takes them, and so does a loader."""
        given = {name: getattr(self, name) for name in _FIELDS}
        given["accept"] = ",".join(self.accept) or None
        known = {k: v for k, v in given.items() if v is not None and v is not False}
        texts = {key: str(known[key]) for key in _PATHS & known.keys()}
        return {**self.settings, **known, **texts}

    @property
    def options(self) -> list[str]:
        """What follows ``codedfedl federate node`` on the command line; without `settings`."""
        options = []
        for name, value in replace(self, accept=(), settings={}).values.items():
            flag = "--" + name.replace("_", "-")
            options += [flag] if value is True else [flag, str(value)]
        return options + [word for digest in self.accept for word in ("--accept", digest)]


def vault_of(name: str) -> Path:
    """Return where a node's vault is, unless its owner chooses another folder."""
    return Path.home() / ".local" / "share" / "codedfedl" / "vaults" / name


@dataclass(frozen=True)
class HelperConfig:
    """The helper of secure sums.

    Attributes
    ----------
    name
        The name that the operator registered.
    home
        A permanent folder for its mask key and answers.
    clients
        A folder with the masks.pub of every client, as NAME.pub.
    """

    name: str = "helper"
    home: Path = Path.home() / ".local" / "share" / "codedfedl" / "helper"
    clients: Path | None = None


def with_file(path: Path | None, *given: Any) -> list[Any]:
    """Return configurations with what a file says wherever they have their defaults.

    Every key of the file is a field of one of them, and relative paths begin at its folder.
    """
    if path is None:
        return list(given)
    document = read_toml(path)
    changed = [replace(config, **_taken(document, config, path)) for config in given]
    if document:
        known = [entry.name for config in given for entry in fields(config)]
        raise InputError(f"{path}: unknown key {min(document)}: {nearest(min(document), known)}")
    return changed


def _taken(document: dict[str, Any], config: Any, path: Path) -> dict[str, Any]:
    """Take a configuration's fields out of a document; return those that have their defaults."""
    values, hints = dict[str, Any](), get_type_hints(type(config))
    for entry in fields(config):
        if entry.name not in document:
            continue
        value, hint = document.pop(entry.name), str(hints[entry.name])
        kind, wanted = next(kinds for word, *kinds in _KINDS if word in hint)
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            raise InputError(f"{path}: {entry.name} is {value!r}: write {wanted}")
        if "Path" in hint or (entry.name == "encoder" and value.endswith(".onnx")):
            whole = (path.parent / value).resolve()
            value = whole if "Path" in hint else str(whole)
        if getattr(config, entry.name) in (entry.default, {}):
            values[entry.name] = tuple(map(str, value)) if kind is list else value
    return values


_KINDS: tuple[tuple[str, Any, str], ...] = (
    ("Path", str, "a path in quotes"),
    ("tuple", list, "a list of texts"),
    ("Mapping", dict, "a table"),
    ("bool", bool, "true or false"),
    ("float", (int, float), "a number"),
    ("int", int, "a whole number"),
    ("str", str, "text in quotes"),
)
_FIELDS = [entry.name for entry in fields(NodeConfig) if entry.name != "settings"]
_TEXTS = {"name", "label", "text", "loader", "encoder", "dataset", "works"}
_PATHS = {"data", "preparation", "cache", "helper", "vault"}
