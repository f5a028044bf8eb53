from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from codedfedl import InputError
from codedfedl.io.files import TABLE_SUFFIXES, check_destination
from codedfedl.io.tables import column_names, read_table, write_table


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_what_is_written_is_read_to_the_last_bit(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"table{suffix}"
    values = np.array([1 / 3, 1e-300, 2.0**53, 0.1])
    write_table(path, {"client": ["a", "b", "7", "ü"], "value": values})
    table = read_table(path, ["client", "value"])
    assert table["value"].tolist() == values.tolist()
    assert table["client"].tolist() == ["a", "b", "7", "ü"]
    assert column_names(path) == ["client", "value"]


def test_names_that_are_all_integers_become_integers(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "client,x\n3,1\n12,2\n")
    assert read_table(path, ["client", "x"])["client"].dtype == np.int64
    path = write(tmp_path / "t.csv", "client,x\n03,1\n12,2\n")
    assert read_table(path, ["client", "x"])["client"].tolist() == ["03", "12"]


def test_parquet_keeps_facts_about_the_table(tmp_path: Path) -> None:
    write_table(tmp_path / "t.parquet", {"x": [1]}, {"deadline_s": 2.5})
    assert pyarrow.parquet.read_schema(tmp_path / "t.parquet").metadata[b"deadline_s"] == b"2.5"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("client,x\na,1\nb,two\n", "line 3: x is 'two': write a number"),
        ("client,x\na,1\nb,\n", "line 3: x is empty: write a number"),
        ("client,y\na,1\n", "unknown column 'y'"),
        ("client,xx\na,1\n", "unknown column 'xx': did you mean 'x'"),
        ("client\na\n", "lacks the column 'x'"),
        ("client,x,x\na,1,2\n", "the column 'x' twice"),
        ("client,x\n", "no rows"),
        ("", "cannot read"),
        ("client,x\na,1,2\n", "cannot read"),
    ],
)
def test_bad_csv(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_table(write(tmp_path / "t.csv", text), ["client", "x"])


def test_spaces_around_numbers_are_no_mistake(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "client,x\na, 1.5\nb,2 \n")
    assert read_table(path, ["client", "x"])["x"].tolist() == [1.5, 2.0]


def test_blank_lines_count(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "client,x\n\na,1_000\n\nb,1 000\n")
    with pytest.raises(InputError, match="line 5: x is '1 000'"):
        read_table(path, ["client", "x"])


def test_every_client_needs_a_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 3: client is empty"):
        read_table(write(tmp_path / "t.csv", 'client,x\na,1\n"",2\n'), ["client", "x"])
    pyarrow.parquet.write_table(
        pyarrow.table({"client": [[1]], "x": [1.0]}), tmp_path / "t.parquet"
    )
    with pytest.raises(InputError, match="client holds list"):
        read_table(tmp_path / "t.parquet", ["client", "x"])


def test_bad_parquet(tmp_path: Path) -> None:
    write_table(tmp_path / "t.parquet", {"client": ["a", "b"], "x": ["1", "oops"]})
    with pytest.raises(InputError, match="row 2: x is 'oops'"):
        read_table(tmp_path / "t.parquet", ["client", "x"])
    (tmp_path / "t.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(InputError, match="cannot read"):
        read_table(tmp_path / "t.parquet", ["client", "x"])


def test_missing_and_unknown_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_table(tmp_path / "none.csv", ["x"])
    with pytest.raises(InputError, match=r"must end in \.csv or \.parquet"):
        read_table(tmp_path / "t.xlsx", ["x"])


@pytest.mark.parametrize(
    ("name", "message"),
    [("t.txt", "must end in"), ("no/t.csv", "does not exist; create it"), ("d.csv", "is a folder")],
)
def test_destinations_that_cannot_be_written(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(InputError, match=message):
        check_destination(tmp_path / name, TABLE_SUFFIXES)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "old")
    with pytest.raises(ValueError, match="length"):
        write_table(path, {"a": [1], "b": [1, 2]})
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("start", ["", "\ufeff"], ids=["plain", "byte-order mark"])
@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("client,x\na,1.5\nb,2\n", [1.5, 2]),
        ("client;x\na;1,5\nb;-2,25e3\n", [1.5, -2250]),
        ("client;x\na;1.5\nb;2\n", [1.5, 2]),
        ("client\tx\na\t1,5\nb\t,5\n", [1.5, 0.5]),
        ('client;"x"\n"a, the first";1,5\nb;2\n', [1.5, 2]),
    ],
)
def test_files_of_spreadsheets(tmp_path: Path, start: str, text: str, values: list[float]) -> None:
    path = write(tmp_path / "t.csv", start + text)
    assert column_names(path) == ["client", "x"]
    table = read_table(path, ["client", "x"])
    assert table["x"].tolist() == values
    assert table["client"].tolist()[1] == "b"


@pytest.mark.parametrize(
    ("text", "encoding", "message"),
    [
        ("client;x\na;1.234,5\n", "utf-8", "x is '1.234,5': write a number with a point"),
        ('client,x\na,"1,5"\n', "utf-8", "x is '1,5': write a number with a point, such as 1.5"),
        ("client;x\na;1\n", "utf-16", "it is UTF-16; save it as CSV in UTF-8"),
        ("client;x\nä;1\n", "latin-1", "it is not UTF-8; save it as UTF-8"),
    ],
)
def test_what_a_spreadsheet_wrote_otherwise_is_named(
    tmp_path: Path, text: str, encoding: str, message: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text, encoding)
    with pytest.raises(InputError, match=message):
        read_table(path, ["client", "x"])
