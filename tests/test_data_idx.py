import gzip
import hashlib
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from codedfedl.data import load_dataset
from codedfedl.data.idx import data_folders, download, find_files, read_idx
from codedfedl.errors import InputError

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
REAL = os.environ.get("CODEDFEDL_DATA")


def idx(values: object) -> bytes:
    array = np.asarray(values, dtype=np.uint8)
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def contents() -> dict[str, bytes]:
    images = np.arange(5 * 2 * 3).reshape(5, 2, 3) * 8
    return dict(
        zip(
            FILES,
            (idx(images), idx([0, 9, 3, 3, 1]), idx(images[:2] + 15), idx([7, 8])),
            strict=True,
        )
    )


def put(folder: Path, changes: Mapping[str, bytes] | None = None, zipped: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {**contents(), **(changes or {})}.items():
        file = f"{name}.gz" if zipped else name
        (folder / file).write_bytes(gzip.compress(content) if zipped else content)
    return folder


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files are only where a test puts them, and nothing is asked from beyond this machine."""
    monkeypatch.delenv("CODEDFEDL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


class TestReading:
    @pytest.mark.parametrize("zipped", [False, True])
    @pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
    def test_bytes_become_points_in_the_unit_interval(
        self, tmp_path: Path, zipped: bool, name: str
    ) -> None:
        put(tmp_path / name, zipped=zipped)
        data = load_dataset(name, tmp_path)
        assert data.name == name
        assert data.classes == 10
        assert data.inputs.shape == (5, 6)
        assert np.rint(data.inputs * 255).ravel().tolist() == list(range(0, 240, 8))
        assert data.test_inputs[1, 5] == np.float32(103) / np.float32(255)
        assert data.labels.tolist() == [0, 9, 3, 3, 1]
        assert data.test_labels.tolist() == [7, 8]

    @pytest.mark.parametrize(
        ("file", "content", "message"),
        [
            (FILES[0], contents()[FILES[0]][:-1], "has 45 bytes where 46 are needed: it is trunc"),
            (FILES[0], contents()[FILES[0]][:9], "has 9 bytes where 16 are needed: it is truncat"),
            (
                FILES[0],
                contents()[FILES[0]] + b"!",
                "has 47 or more bytes where 46 .* something follows",
            ),
            (FILES[0], b"", "starts with nothing where the magic number 00 00 08 03 is needed"),
            (FILES[2], b"<html>", "starts with 3c 68 74 6d where the magic number 00 00 08 03"),
            (FILES[0], b"\0\0\x0d\x03", "starts with 00 00 0d 03"),
            (FILES[0], contents()[FILES[1]], "has 1 dimensions where 3 are needed"),
            (FILES[1], contents()[FILES[0]], "has 3 dimensions where 1 are needed"),
            (FILES[1], idx([1, 2]), "has 5 images and .* has 2 labels: take both from the same"),
            (FILES[1], idx([0, 1, 12, 1, 1]), "has the label 12 at position 2: labels are 0 to 9"),
            (FILES[2], idx(np.zeros((2, 3, 3))), r"test_inputs has rows of shape \(9,\)"),
            (
                FILES[1],
                gzip.compress(contents()[FILES[1]], mtime=0)[:-9],
                "is truncated: its gzip stream has no end",
            ),
            (FILES[1], b"\x1f\x8b\x08" + b"\0" * 40, "cannot read"),
        ],
    )
    def test_bad_files(self, tmp_path: Path, file: str, content: bytes, message: str) -> None:
        put(tmp_path / "mnist", {file: content})
        with pytest.raises(InputError, match=message) as caught:
            load_dataset("mnist", tmp_path)
        assert file in str(caught.value) or "test_inputs" in str(caught.value)

    def test_no_images(self, tmp_path: Path) -> None:
        put(tmp_path, {FILES[0]: idx(np.zeros((0, 2, 3))), FILES[1]: idx([])})
        with pytest.raises(InputError, match=r"inputs has shape \(0, 6\)"):
            load_dataset("mnist", tmp_path)


class TestFinding:
    @pytest.mark.parametrize("place", ["mnist", "MNIST/raw", "."])
    @pytest.mark.parametrize("by_variable", [False, True])
    def test_known_layouts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, by_variable: bool
    ) -> None:
        put(tmp_path / "fashion-mnist", {FILES[3]: idx([0, 0])})
        put(tmp_path / "FashionMNIST" / "raw", {FILES[3]: idx([1, 1])})
        put(tmp_path / place)
        if by_variable:
            monkeypatch.setenv("CODEDFEDL_DATA", str(tmp_path))
        data = load_dataset("mnist", None if by_variable else tmp_path)
        assert data.test_labels.tolist() == [7, 8]
        fashion = load_dataset("fashion-mnist", tmp_path)
        assert fashion.test_labels.tolist() == [0, 0]

    def test_the_directory_comes_before_the_variable(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(tmp_path / "one" / "mnist", {FILES[3]: idx([1, 1])})
        put(tmp_path / "two" / "mnist", {FILES[3]: idx([2, 2])})
        monkeypatch.setenv("CODEDFEDL_DATA", str(tmp_path / "two"))
        assert load_dataset("mnist", tmp_path / "one").test_labels.tolist() == [1, 1]
        assert load_dataset("mnist").test_labels.tolist() == [2, 2]

    def test_debian_comes_last(self) -> None:
        assert list(data_folders("fashion-mnist", None)) == [
            Path("/usr/share/dataset-fashion-mnist")
        ]
        assert list(data_folders("mnist", None)) == []

    def test_a_missing_file_and_a_missing_folder(self, tmp_path: Path) -> None:
        put(tmp_path / "mnist")
        (tmp_path / "mnist" / FILES[2]).unlink()
        with pytest.raises(InputError, match=f"and lacks {FILES[2]}: add it"):
            load_dataset("mnist", tmp_path)
        put(tmp_path)
        assert load_dataset("mnist", tmp_path).classes == 10
        with pytest.raises(InputError, match=r"--data is .*no: there is no such folder"):
            load_dataset("mnist", tmp_path / "no")

    @pytest.mark.skipif(REAL is None, reason="needs the real data")
    @pytest.mark.parametrize(
        ("name", "first", "moments", "tests"),
        [
            ("mnist", [5, 0, 4, 1, 9], (0.1307, 0.3081), [980, 1135, 1032, 1010, 982]),
            ("fashion-mnist", [9, 0, 0, 3, 0], (0.2860, 0.3530), [1000] * 5),
        ],
    )
    def test_the_real_files(
        self, name: str, first: list[int], moments: tuple[float, float], tests: list[int]
    ) -> None:
        data = load_dataset(name, REAL)
        assert (data.inputs.shape, data.test_inputs.shape) == ((60000, 784), (10000, 784))
        assert data.labels[:5].tolist() == first
        assert np.bincount(data.test_labels).tolist()[:5] == tests
        mean, deviation = data.inputs.mean(dtype=np.float64), data.inputs.std(dtype=np.float64)
        assert (round(mean, 4), round(deviation, 4)) == moments  # as everyone normalises them
        assert (data.inputs.min(), data.inputs.max()) == (0, 1)

    @pytest.mark.skipif(REAL is None, reason="needs the real data")
    def test_one_data_set_is_not_taken_for_the_other(self) -> None:
        with pytest.raises(InputError, match="holds mnist, not fashion-mnist: put each"):
            load_dataset("fashion-mnist", Path(str(REAL)) / "mnist")


class Server(ThreadingHTTPServer):
    """Mirrors in one server: /good/, /broken/ (half a body), /other/ (wrong content), no other."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked: list[str] = []

    def mirror(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}/"


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Server)
        self.server.asked.append(self.path)
        mirror, file = self.path.strip("/").split("/")
        body = zipped().get(file)
        if body is None or mirror not in ("good", "broken", "other"):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if mirror == "broken" and file.startswith("t10k-images"):
            body = body[: len(body) // 2]
        self.wfile.write(body[::-1] if mirror == "other" else body)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


def zipped() -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in contents().items()}


def checksums() -> dict[str, str]:
    return {name: hashlib.md5(data).hexdigest() for name, data in zipped().items()}


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def nobody() -> str:
    """Return an address where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/"


class TestDownload:
    def test_files_arrive_whole_and_once(self, tmp_path: Path, server: Server) -> None:
        for _ in range(2):
            found = find_files("mnist", None, [server.mirror("good")], checksums())
            assert [path.name for path in found] == [f"{file}.gz" for file in FILES]
            assert len(server.asked) == 4
        assert {path.parent for path in found} == {tmp_path / "cache" / "codedfedl" / "mnist"}
        assert {path.name: path.read_bytes() for path in found[0].parent.iterdir()} == zipped()
        assert read_idx(found[1], 1).tolist() == [0, 9, 3, 3, 1]
        assert load_dataset("mnist").test_labels.tolist() == [7, 8]  # from the cache

    def test_the_next_mirror_gives_what_the_first_does_not(
        self, tmp_path: Path, server: Server, nobody: str
    ) -> None:
        mirrors = [nobody, *map(server.mirror, ("absent", "other", "broken", "good"))]
        download("mnist", tmp_path / "here", mirrors, checksums())
        assert {p.name: p.read_bytes() for p in (tmp_path / "here").iterdir()} == zipped()

    @pytest.mark.parametrize(
        ("mirror", "reason", "kept"),
        [
            ("broken", "the connection broke", 2),
            ("other", "its checksum is wrong", 0),
            ("absent", "the server answers 404", 0),
            (None, "no connection", 0),
        ],
    )
    def test_failure_leaves_no_partial_file(
        self,
        tmp_path: Path,
        server: Server,
        nobody: str,
        mirror: str | None,
        reason: str,
        kept: int,
    ) -> None:
        address = nobody if mirror is None else server.mirror(mirror)
        with pytest.raises(InputError, match=reason) as caught:
            find_files("mnist", None, [address], checksums())
        assert "into DIR/mnist and say --data DIR or CODEDFEDL_DATA=DIR" in str(caught.value)
        folder = tmp_path / "cache" / "codedfedl" / "mnist"
        left = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert len(left) == kept
        assert left.items() <= zipped().items()

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path, server: Server) -> None:
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(InputError, match=r"cannot download mnist .* --data DIR"):
            download("mnist", tmp_path / "file" / "mnist", [server.mirror("good")], checksums())

    def test_no_progress_bar_without_a_terminal(
        self,
        tmp_path: Path,
        server: Server,
        capfd: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich take anything for a terminal
        download("mnist", tmp_path, [server.mirror("good")], checksums())
        out, err = capfd.readouterr()
        assert out == ""
        assert "\x1b" not in err
        assert "%" not in err
