"""Small files that unpack to much, and files of the wrong bytes: refused before they are read."""

import gzip
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from codedfedl.data.idx import read_idx
from codedfedl.data.loading import load_dataset
from codedfedl.errors import InputError
from codedfedl.fleet.devices import read_fleet
from codedfedl.io.files import check_room
from codedfedl.io.tables import check_columns, column_names, load_table
from codedfedl.learning.features import load_encoder

HEADER = "client,points,rate,alpha,packet_time,erasure"
ROOM = 4e6


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of four megabytes, half of which a file may take."""
    monkeypatch.setattr("codedfedl.io.files.memory", lambda: ROOM)


@pytest.fixture
def peak() -> Iterator[Any]:
    """Measure the bytes that Python took, at most."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def test_room_is_half_of_the_memory(little_memory: None) -> None:
    check_room(Path("a"), 2_000_000)
    with pytest.raises(InputError, match="a takes 2,000,001 bytes .*: split it, or use a machine"):
        check_room(Path("a"), 2_000_001)


class TestParquet:
    def table(self, path: Path, **columns: Any) -> Path:
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
        return path

    def test_many_rows_in_few_bytes(self, little_memory: None, tmp_path: Path) -> None:
        path = self.table(tmp_path / "a.parquet", x=np.ones(1_000_000), label=np.zeros(1_000_000))
        assert path.stat().st_size < 10_000
        with pytest.raises(InputError, match=r"a\.parquet takes 16,000,000 bytes"):
            load_dataset(path)

    def test_one_long_text_in_many_rows(self, little_memory: None, tmp_path: Path) -> None:
        path = self.table(tmp_path / "a.parquet", note=["a" * 10_000] * 1000, label=[0, 1] * 500)
        assert path.stat().st_size < 20_000
        with pytest.raises(InputError, match=r"a\.parquet takes 10,0.* bytes"):
            load_table(path)

    def test_packed_pages(self, little_memory: None, tmp_path: Path) -> None:
        columns = {
            "note": ["".join(chr(97 + (i * j) % 7) for j in range(5000)) for i in range(999)]
        }
        path = tmp_path / "a.parquet"
        table = pyarrow.table(columns)
        pyarrow.parquet.write_table(table, path, compression="zstd", use_dictionary=False)
        assert path.stat().st_size < 200_000
        with pytest.raises(InputError, match=r"a\.parquet takes .* bytes"):
            load_table(path)

    def test_lists_are_refused_unread(self, tmp_path: Path) -> None:
        path = self.table(tmp_path / "a.parquet", x=[[1.0] * 1000] * 10, label=[0, 1] * 5)
        with pytest.raises(InputError, match=r"x holds list<.*>, not numbers or texts: leave"):
            load_dataset(path)

    def test_what_fits_is_read_as_it_was_written(self, tmp_path: Path) -> None:
        columns = {"word": ["a", "b", None, "a"], "x": [1.5, None, 2.0, 3.0], "n": [1, 2, 3, 4]}
        path = self.table(tmp_path / "a.parquet", **columns)
        table = load_table(path)
        assert table.to_pydict() == columns
        assert table.schema.field("word").type == pyarrow.string()

    def test_texts_that_are_not_utf8(self, tmp_path: Path) -> None:
        path = self.table(tmp_path / "a.parquet", label=["wwwwwwww", "b"] * 5, x=[1.0] * 10)
        path.write_bytes(path.read_bytes().replace(b"wwwwwwww", b"ww\xff\xfewwww"))
        with pytest.raises(InputError, match=r"a\.parquet"):
            load_dataset(path)

    def test_a_name_is_not_cut_at_a_nul(self, tmp_path: Path) -> None:
        ones = {name: [1.0, 1.0] for name in HEADER.split(",")[1:5]} | {"erasure": [0.0, 0.0]}
        path = self.table(tmp_path / "a.parquet", client=["a\0b", "a\0c"], **ones)
        with pytest.raises(InputError, match="row 1: client holds a NUL"):
            read_fleet(path)


class TestCsv:
    def test_one_long_line(self, tmp_path: Path, peak: Any) -> None:
        path = tmp_path / "a.csv"
        with path.open("wb") as file:
            for _ in range(100):
                file.write(b"1," * (1 << 19))
        with pytest.raises(InputError, match="its first line has more than 16,777,216 bytes"):
            load_dataset(path)
        assert peak() < 50e6

    def test_a_file_larger_than_the_memory(self, little_memory: None, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_text("x,label\n" + "1.5,0\n" * 300_000)
        with pytest.raises(InputError, match=r"a\.csv takes 3,600,016 bytes"):
            load_dataset(path)

    def test_very_many_columns(self, tmp_path: Path) -> None:
        """Each was once compared with each."""
        names = [f"c{place}" for place in range(200_000)]
        check_columns(Path("a.csv"), names, names[:1], names)
        with pytest.raises(InputError, match="has the column 'c7' twice"):
            check_columns(Path("a.csv"), [*names, "c7"], names[:1], names)
        path = tmp_path / "a.csv"
        path.write_text(",".join(names[:50_000]) + "\n" + ",".join("1" * 50_000) + "\n")
        with pytest.raises(
            InputError, match="has no label column 'label': known are c0, c1.* more"
        ):
            load_dataset(path)

    @pytest.mark.parametrize("place", [0, 30, 60, -1])
    def test_nul_bytes(self, place: int, tmp_path: Path) -> None:
        content = bytearray(f"{HEADER}\nphone,40,2,2,3,0.1\nsensor,60,1,1,5,0.2\n".encode())
        content[place] = 0
        (tmp_path / "a.csv").write_bytes(content)
        with pytest.raises(InputError, match=r"a\.csv"):
            read_fleet(tmp_path / "a.csv")

    @pytest.mark.parametrize("name", ["cli\xe9nt", "client"])
    def test_mixed_encodings(self, name: str, tmp_path: Path) -> None:
        rows = f"{HEADER}\nphone,40,2,2,3,0.1\n".replace("client", name).encode("latin-1")
        rows += "t\xe9l\xe9phone,40,2,2,3,0.1\n".encode("utf-8" if name != "client" else "latin-1")
        (tmp_path / "a.csv").write_bytes(rows)
        for read in (read_fleet, column_names):
            if read is column_names and name == "client":
                continue
            with pytest.raises(InputError, match="it is not UTF-8; save it as UTF-8"):
                read(tmp_path / "a.csv")

    def test_cells_that_pythons_reader_does_not_take(self, tmp_path: Path) -> None:
        """Its longest cell has 131,072 characters; it is used to name the line of another."""
        path = tmp_path / "a.csv"
        long = "a" * 140_000
        path.write_text(f"{HEADER}\n{long},40,2,2,3,0.1\nsensor,few,1,1,5,0.2\n")
        with pytest.raises(InputError, match="row 2: points is 'few': write a number"):
            read_fleet(path)


class TestIdx:
    def idx(self, shape: tuple[int, ...], more: int) -> bytes:
        return bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes() + bytes(more)

    def test_more_than_the_header_says_is_not_unpacked(self, tmp_path: Path, peak: Any) -> None:
        path = tmp_path / "a.gz"
        path.write_bytes(gzip.compress(self.idx((10,), 1 << 26)))
        tracemalloc.reset_peak()
        with pytest.raises(InputError, match="has 19 or more bytes where 18 .* something follows"):
            read_idx(path, 1)
        assert peak() < 10e6

    def test_a_header_that_claims_more_than_the_memory(self, tmp_path: Path) -> None:
        path = tmp_path / "a.gz"
        path.write_bytes(gzip.compress(self.idx((2**32 - 1, 2**20, 2**20), 100)))
        with pytest.raises(InputError, match="bytes of memory when it is read, more than half"):
            read_idx(path, 3)

    def test_a_header_that_claims_more_than_there_is(self, tmp_path: Path, peak: Any) -> None:
        (tmp_path / "a").write_bytes(self.idx((2**28, 1, 1), 100))
        with pytest.raises(InputError, match="has 116 bytes where 268435472 are needed"):
            read_idx(tmp_path / "a", 3)


@pytest.mark.extras
class TestEncoders:
    def network(self, path: Path, location: str) -> Path:
        onnx = pytest.importorskip("onnx")
        helper, kind = onnx.helper, onnx.TensorProto.FLOAT
        weights = helper.make_tensor("w", kind, [3, 2], np.ones(6, np.float32).tobytes(), raw=True)
        onnx.external_data_helper.set_external_data(weights, location)
        (path.parent / Path(location).name).write_bytes(weights.raw_data)
        weights.ClearField("raw_data")
        weights.data_location = onnx.TensorProto.EXTERNAL
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["points", "w"], ["out"])],
            "encoder",
            [helper.make_tensor_value_info("points", kind, ["n", 3])],
            [helper.make_tensor_value_info("out", kind, None)],
            [weights],
        )
        opset = [helper.make_opsetid("", 13)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=8)
        path.write_bytes(model.SerializeToString())
        return path

    @pytest.mark.parametrize(
        "location", ["../weights", "/etc/passwd", "down/../../weights", "sub/weights", "link"]
    )
    def test_weights_elsewhere_are_refused(self, location: str, tmp_path: Path) -> None:
        folder = tmp_path / "folder"
        (folder / "sub").mkdir(parents=True)
        path = self.network(folder / "net.onnx", location)
        if location == "link":
            (folder / "link").unlink()
            (tmp_path / "weights").write_bytes(bytes(24))
            (folder / "link").symlink_to(tmp_path / "weights")
        with pytest.raises(InputError, match="has weights in .*, outside its folder: export it"):
            load_encoder(str(path))

    def test_weights_beside_it_are_read(self, tmp_path: Path) -> None:
        encoder = load_encoder(str(self.network(tmp_path / "net.onnx", "weights")), normalise=False)
        np.testing.assert_array_equal(encoder.transform(np.ones((4, 3))), np.full((4, 2), 3.0))
