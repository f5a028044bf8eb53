"""Files that somebody crafted: each ends in one line and exit code 2, and takes little memory."""

import json
import zipfile
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from rich.panel import Panel
from rich.text import Text

from codedfedl.cli.output import Printing
from codedfedl.errors import InputError
from codedfedl.io.archives import read_arrays
from codedfedl.learning.features import RandomFourier
from codedfedl.models import Model, load_model, save_model
from codedfedl.runs.documents import parse_value
from tests.conftest import Run

INPUTS, FEATURES = 4, 8


def refused(run: Run, *words: object) -> str:
    """Return the line of a command that refuses its input."""
    code, out, err = run(*words)
    lines = [line for line in err.splitlines() if line.startswith("codedfedl: ")]
    assert (code, len(lines), out) == (2, 1, ""), err
    assert "bug" not in err
    assert len(lines[0]) < 1500
    return lines[0]


# Models.


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.npz"
    weights = np.ones((FEATURES, 2))
    known = RandomFourier(FEATURES, 1.0, 0)
    classes, ones = np.array(["a", "b"]), np.ones(INPUTS)
    columns = ("p", "q", "r", "s")
    save_model(Model(known, weights, INPUTS, classes, columns, ("label",), 0 * ones, ones), path)
    np.savez(tmp_path / "points.npz", inputs=np.ones((3, INPUTS)))
    assert len(load_model(path).predict(np.ones((3, INPUTS)))) == 3
    return path


def _members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _with(path: Path, **arrays: Any) -> None:
    """Write a model again with other arrays; None leaves one out, and bytes stay as they are."""
    members = _members(path)
    for name, array in arrays.items():
        members.pop(f"{name}.npy", None)
        if array is not None:
            members[f"{name}.npy"] = array if isinstance(array, bytes) else _npy(array)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def _npy(array: Any) -> bytes:
    file = BytesIO()
    np.save(file, np.asarray(array), allow_pickle=True)
    return file.getvalue()


def _claiming(shape: tuple[int, ...], kind: str = "<f4", data: bytes = b"\0" * 64) -> bytes:
    """Return an array's file whose header claims any shape."""
    file = BytesIO()
    header = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + data


def _facts(path: Path, **changes: Any) -> None:
    facts = json.loads(str(np.load(path)["facts"]))
    features = {**facts["features"], **changes.pop("features", {})}
    given = {key: value for key, value in (facts | changes).items() if value != "gone"}
    _with(path, facts=json.dumps({"features": features} | given | {"features": features}))


MODELS: dict[str, Any] = {
    "no facts": {"facts": None},
    "no weights": {"weights": None},
    "no format": {"format": None},
    "format of words": {"format": "one"},
    "format of a list": {"format": [1, 1]},
    "kind of numbers": {"kind": 3},
    "facts are a list": {"facts": "[1]"},
    "facts are deep": {"facts": "[" * 100_000},
    "facts are numbers": {"facts": np.ones(3)},
    "facts have huge numbers": {"facts": '{"inputs": 1e999}'},
    "card is no JSON": {"card": "{"},
    "card is a list": {"card": "[]"},
    "weights are objects": {"weights": np.array([[None]])},
    "weights are words": {"weights": np.full((FEATURES, 2), "x")},
    "weights are complex": {"weights": np.ones((FEATURES, 2), complex)},
    "weights are records": {"weights": np.zeros((FEATURES, 2), [("a", "f4")])},
    "weights are NaN": {"weights": np.full((FEATURES, 2), np.nan)},
    "weights have no outputs": {"weights": np.ones((FEATURES, 0))},
    "weights are one number": {"weights": np.float64(1)},
    "weights have three axes": {"weights": np.ones((FEATURES, 2, 1))},
    "weights claim more": {"weights": _claiming((2**40, 2))},
    "weights claim two negative sides": {"weights": _claiming((-4, -4))},
    "weights claim less": {"weights": _claiming((2, 2))},
    "weights have no header": {"weights": b"\x93NUMPY\x01\x00\xff\xff{"},
    "weights have a deep header": {"weights": _claiming((1,), kind="<f4")[:10] + b"(" * 118},
    "weights are empty": {"weights": b""},
    "classes are objects": {"classes": np.array([None, 1])},
    "classes are dates": {"classes": np.array(["2020-01-01"] * 2, "M8[D]")},
    "classes are too many": {"classes": np.array(["a"] * 3)},
    "classes are a table": {"classes": np.array([["a", "b"]])},
    "low is a table": {"low": np.ones((INPUTS, 2))},
    "low is short": {"low": np.ones(INPUTS - 1)},
    "low is words": {"low": np.full(INPUTS, "x")},
    "span is zero": {"span": np.zeros(INPUTS)},
    "span is NaN": {"span": np.full(INPUTS, np.nan)},
    "center is long": {"center": np.ones(INPUTS + 1)},
    "scale is objects": {"scale": np.array([None, None])},
    "offset is a number": {"offset": np.float64(2)},
}
FACTS: dict[str, dict[str, Any]] = {
    "inputs is gone": {"inputs": "gone"},
    "inputs is negative": {"inputs": -4},
    "inputs is a fraction": {"inputs": 4.5},
    "inputs is true": {"inputs": True},
    "inputs is huge": {"inputs": 10**30},
    "columns is a word": {"columns": "pqrs"},
    "columns are numbers": {"columns": [1, 2, 3, 4]},
    "columns are too few": {"columns": ["p"]},
    "labels is null": {"labels": None},
    "temperature is zero": {"temperature": 0},
    "temperature is a word": {"temperature": "warm"},
    "temperature is NaN": {"temperature": float("nan")},
    "map is unknown": {"features": {"kind": "fourrier"}},
    "map is a list": {"features": {"kind": ["fourier"]}},
    "components are negative": {"features": {"kind": "fourier", "n_components": -8}},
    "components are huge": {"features": {"kind": "fourier", "n_components": 10**12}},
    "components are a word": {"features": {"kind": "fourier", "n_components": "8"}},
    "sigma is zero": {"features": {"sigma": 0}},
    "sigma is infinite": {"features": {"sigma": float("inf")}},
    "sigma is a list": {"features": {"sigma": [1.0]}},
    "seed is negative": {"features": {"seed": -1}},
    "seed is huge": {"features": {"seed": 2**32}},
    "seed is a fraction": {"features": {"seed": 0.5}},
    "tiles are null": {"features": {"tiles": None}},
    "tiles are unknown": {"features": {"tiles": {"side": 3}}},
    "tiles are words": {"features": {"kind": "patches", "tiles": {"patch": "3"}}},
    "image has two sides": {"features": {"kind": "patches", "tiles": {"image": [2, 2]}}},
    "image is negative": {"features": {"kind": "patches", "tiles": {"image": [-2, -2, 1]}}},
    "encoder without its name": {"features": {"kind": "encoder"}},
    "encoder of numbers": {
        "features": {"kind": "encoder", "source": 3, "text": 0, "normalise": 1, "digest": 2}
    },
}


@pytest.mark.parametrize("what", MODELS)
def test_models_with_other_arrays_are_refused(what: str, model: Path, run: Run) -> None:
    _with(model, **MODELS[what])
    assert str(model) in refused(run, "predict", model, model.with_name("points.npz"))


@pytest.mark.parametrize("what", FACTS)
def test_models_with_other_facts_are_refused(what: str, model: Path, run: Run) -> None:
    _facts(model, **FACTS[what])
    assert str(model) in refused(run, "predict", model, model.with_name("points.npz"))


def test_an_extra_member_is_never_unpacked(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand bytes of zeros take one in the file: a small one may hold gigabytes."""
    with zipfile.ZipFile(model, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("extra.npy", bytes(1 << 24))
    opened = []
    real = zipfile.ZipFile.open

    def watched(self: zipfile.ZipFile, name: Any, *more: Any, **named: Any) -> Any:
        opened.append(getattr(name, "filename", name))
        return real(self, name, *more, **named)

    monkeypatch.setattr(zipfile.ZipFile, "open", watched)
    assert load_model(model).inputs == INPUTS
    assert "weights.npy" in opened
    assert "extra.npy" not in opened


@pytest.mark.parametrize("name", ["weights", "facts"])
def test_a_member_larger_than_the_memory_is_not_unpacked(
    name: str, model: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codedfedl.io.files.memory", lambda: 1e6)
    _with(model, **{name: np.zeros(10**6)})
    line = refused(run, "predict", model, model.with_name("points.npz"))
    assert "more than half of the 1,000,000 that there are: split it" in line


def test_a_member_that_inflates_to_more_than_it_declares_is_refused(model: Path) -> None:
    content = bytearray(model.read_bytes())
    members = zipfile.ZipFile(model).infolist()
    weights = next(info for info in members if info.filename == "weights.npy")
    declared = weights.file_size.to_bytes(4, "little")
    central = content.rindex(declared)
    content[central : central + 4] = (weights.file_size - 8).to_bytes(4, "little")
    model.write_bytes(bytes(content))
    with pytest.raises(InputError, match="model.npz"):
        load_model(model)


def test_an_array_that_claims_more_than_it_has_is_refused_before_it_has_memory(
    tmp_path: Path,
) -> None:
    content = BytesIO()
    np.lib.format.write_array_header_1_0(
        content, {"descr": "<f8", "fortran_order": False, "shape": (2**33,)}
    )
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("weights.npy", content.getvalue() + bytes(8))
    with pytest.raises(InputError, match=r"claims the shape \(8589934592,\) .* and has 8"):
        read_arrays(tmp_path / "a.npz")


def test_only_named_arrays_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", one=np.ones(3), other=np.ones(2))
    assert list(read_arrays(tmp_path / "a.npz", ["other", "third"])) == ["other"]
    with pytest.raises(InputError, match=r"have 144 bytes where 100 are the most"):
        read_arrays(tmp_path / "a.npz", ["other"], most_bytes=100)


# Experiments.

HUGE = "9" * 5000
TOMLS = {
    "empty": "",
    "binary": "\x00\x01\x02",
    "lists in lists": "a = " + "[" * 100_000,
    "tables in tables": "a = " + "{b = " * 400 + "1" + "}" * 400,
    "tables nine deep": "[data.a.b.c.d.e.f.g.h]\ni = 1",
    "a key of many parts": ".".join("a" * 200_000) + " = 1",
    "a quoted key of many parts": ".".join(['","'] * 100_000) + " = 1",
    "a hidden key of many parts": 'x = {y = """ " """, ' + "a." * 200_000 + 'b = 1, z = """ " """}',
    "a header of many parts": "[" + ".".join("a" * 200_000) + "]",
    "a hundred thousand keys": "\n".join(f"k{i} = 1" for i in range(100_000)),
    "a hundred thousand keys of a scheme": '[[schemes]]\nname = "coded"\n'
    + "\n".join(f"k{i} = 1" for i in range(80_000)),
    "twenty thousand schemes": "[[schemes]]\nname = 'coded'\nredundancy = 0.1\n" * 20_000,
    "a million keys": "\n".join(f"k{i} = 1" for i in range(1_000_000)),
    "a long key": "a" * 1_000_000 + " = 1",
    "a long value": "training.epochs = '" + "a" * 1_000_000 + "'",
    "a number of 5000 digits": f"training.epochs = {HUGE}",
    "a number of 65 bits": f"training.epochs = {2**64}",
    "a key twice": "title = 'a'\ntitle = 'b'",
    "a table twice": "[data]\nname = 'digits'\n[data]\nlabel = 'x'",
    "a date": "seeds = [2020-01-01]",
    "an impossible date": "title = 2020-13-45",
    "schemes are a word": "schemes = 'coded'",
    "schemes are a table": "[schemes]\nname = 'coded'",
    "a scheme without a name": "[[schemes]]\nredundancy = 0.1",
    "a scheme of numbers": "[[schemes]]\nname = 3",
    "a setting of a table": "[[schemes]]\nname = 'coded'\nredundancy = {a = 1}",
    "the fleet is a number": "fleet = 3",
    "the grid is a number": "grid = 3",
    "a grid of numbers as schemes": "grid.scheme = [1, 2]",
    "a grid without values": "grid.redundancy = []",
    "a grid of tables": "grid.redundancy = [{a = 1}]",
    "dotted and quoted": '"data.name" = "digits"',
    "batches are negative": "data.batches = -1",
    "batches are a fraction": "data.batches = 1.5",
    "epochs are far too many": "training.epochs = 1000000000000",
    "decay in the past": "training.decay_epochs = [-1]",
    "a step of infinity": "training.step = inf",
    "a ridge of infinity": "training.ridge = inf",
    "a target of nan": "training.target = nan",
    "a sigma that overflows": "features.sigma = 1e308",
    "a seed of 62 bits": "seeds = [4611686018427387904]",
    "a seed below zero": "seeds = [-1]",
    "a deadline below zero": "[[schemes]]\nname = 'coded'\ndeadline = -1.0",
    "a deadline of nan": "[[schemes]]\nname = 'partial'\ndeadline = nan",
    "rounds below zero": "[[schemes]]\nname = 'coded-newton'\nrounds = -3",
    "rounds and a half": "[[schemes]]\nname = 'coded-newton'\nrounds = 2.5",
    "hours of nan": "[[schemes]]\nname = 'coded-newton'\nhours = nan",
    "steps of nan": "[[schemes]]\nname = 'fedavg'\nlocal_steps = nan",
    "steps are true": "[[schemes]]\nname = 'fedavg'\nlocal_steps = true",
    "sampling is a number": "[[schemes]]\nname = 'private'\nsampling = -1",
    "a deadline below zero in the grid": "grid.deadline = [1.0, -1.0]\n[[schemes]]\nname = 'coded'",
}


@pytest.mark.parametrize("what", TOMLS)
@pytest.mark.parametrize("command", ["simulate", "report"])
def test_experiments_are_refused_before_any_work(
    command: str, what: str, tmp_path: Path, run: Run
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(TOMLS[what], "utf-8")
    out = tmp_path / "out"
    words = ["report", tmp_path] if command == "report" else ["simulate", path, "--out", out]
    refused(run, *words)
    assert not (out / "config.toml").exists()


@pytest.mark.parametrize("text", ["[" * 5000, HUGE, str(2**70)])
def test_what_no_parser_takes_is_a_word(text: str) -> None:
    assert parse_value(text) == text


def test_a_long_list_of_numbers_is_not_taken_for_a_key() -> None:
    assert parse_value(f"[{', '.join(['0.5'] * 200)}]") == [0.5] * 200
    assert parse_value('"' + "a." * 200 + '"') == "a." * 200


# Names that a terminal would obey.

OBEYED = "\x1b]0;owned\x07\x1b[2Jphone\x9b31m\u202e!"
SHOWN = r"\x1b]0;"


def shown(run: Run, *words: object) -> str:
    """Return what a command prints, in which nothing is left to obey."""
    _, out, err = run(*words)
    assert not any(mark in out + err for mark in OBEYED if not mark.isprintable())
    return out + err


def _traces(path: Path, name: str = OBEYED) -> Path:
    rows = [{"client": name, "load": load, "total": load / 10 + 0.1} for load in (10, 20, 30, 40)]
    columns = {key: [row[key] for row in rows * 5] for key in rows[0]}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def test_fit_and_plan_show_names_and_obey_none(tmp_path: Path, run: Run) -> None:
    traces, fleet = _traces(tmp_path / "times.parquet"), tmp_path / "fleet.parquet"
    assert SHOWN in shown(run, "fit", traces, "--out", fleet)
    assert SHOWN in shown(run, "plan", fleet)
    assert json.loads(run("plan", fleet, "--json")[1])["clients"][0]["client"] == OBEYED


def test_errors_show_what_is_in_the_file_and_obey_none_of_it(tmp_path: Path, run: Run) -> None:
    fleet = tmp_path / "fleet.csv"
    header = "client,points,rate,alpha,packet_time,erasure"
    fleet.write_text(f"{header}\na,\x1b[2J,1,1,1,0\n")
    assert r"points is '\x1b[2J'" in shown(run, "plan", fleet)
    fleet.write_text(f"{header},\x1b[31mcost\na,1,1,1,1,0,1\n")
    assert r"\x1b[31mcost" in shown(run, "plan", fleet)
    arrays: dict[str, Any] = {"\x1b[2J": np.ones(2)}
    np.savez(tmp_path / "other.npz", **arrays)
    assert r"it holds \x1b[2J" in shown(run, "predict", tmp_path / "other.npz", "digits")


def test_reports_show_labels_and_obey_none(tmp_path: Path, run: Run) -> None:
    chosen = ("fleet.clients=2", "features.n_components=8", 'schemes=[{name="uncoded"}]')
    options = [option for word in chosen for option in ("--set", word)]
    assert run("simulate", "demo", *options, "--out", tmp_path / "run")[0] == 0
    for table in ("rounds", "clients", "settings", "timeline"):
        path = tmp_path / "run" / f"{table}.parquet"
        columns = pyarrow.parquet.read_table(path).to_pydict()
        columns["setting"] = [OBEYED] * len(columns["setting"])
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    cells = tmp_path / "run" / "cells.json"
    cells.write_text(
        cells.read_text("utf-8").replace('"label": "uncoded"', f'"label": {json.dumps(OBEYED)}')
    )
    text = shown(run, "report", tmp_path / "run")
    assert SHOWN in text


def test_predictions_show_classes_and_obey_none(model: Path, run: Run) -> None:
    _with(model, classes=np.array([OBEYED, "b"]))
    text = shown(run, "predict", model, model.with_name("points.npz"))
    assert "phone" in text


@pytest.mark.parametrize("renderable", [f"{OBEYED}\x00", Text(OBEYED), Panel(OBEYED)])
def test_a_console_obeys_nothing_that_it_is_given(renderable: Any) -> None:
    file = StringIO()
    console = Printing(file=file, width=100, force_terminal=True)
    console.print(renderable)
    printed = file.getvalue()
    assert r"\x1b[2Jphone" in printed
    assert not any(mark in printed for mark in ("\x1b]", "\x1b[2J", "\x9b", "\u202e", "\x00"))
