"""Fleets from public traces, and pickles that are read without being run."""

import os
import pickle
import pickletools
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codedfedl import InputError, Workload, plan, read_fleet
from codedfedl.fleet.built_in import phone_devices
from codedfedl.fleet.traces import (
    PacketTrace,
    TraceFiles,
    read_availabilities,
    read_capacities,
    read_packet_trace,
    traced_devices,
)
from codedfedl.io.pickles import read_plain_pickle
from tests.conftest import Run

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**100), 2**100)
    | st.floats(allow_nan=False)
    | st.text(max_size=20),
    lambda inside: (
        st.lists(inside, max_size=5)
        | st.dictionaries(st.integers() | st.text(max_size=5), inside, max_size=5)
        | st.tuples(inside, inside)
    ),
    max_leaves=20,
)


def stored(folder: Path, content: bytes, name: str = "trace") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


class TestPickles:
    @settings(max_examples=200)
    @given(value=PLAIN, protocol=st.sampled_from([2, 3, 4, 5]))
    def test_plain_data_are_what_python_reads(
        self, value: Any, protocol: int, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        folder = tmp_path_factory.mktemp("plain")
        found = read_plain_pickle(stored(folder, pickle.dumps(value, protocol)))
        assert found == value
        assert repr(found) == repr(value)  # 1 is not True, and 1.0 is not 1

    @pytest.mark.parametrize("protocol", [3, 4, 5])
    @pytest.mark.parametrize("kind", ["f4", "f8", "i2", "i8", "u1"])
    def test_numbers_of_numpy(self, kind: str, protocol: int, tmp_path: Path) -> None:
        value = {1: {"a": np.dtype(kind).type(7), "b": np.dtype(kind).type(9)}}
        found = read_plain_pickle(stored(tmp_path, pickle.dumps(value, protocol)))
        assert found == {1: {"a": 7, "b": 9}}
        assert type(found[1]["a"]) in (int, float)

    def test_big_endian_numbers_are_refused(self, tmp_path: Path) -> None:
        value = pickle.dumps(np.array([7.0]).astype(">f8")[0], 3)
        big = value.replace(b"X\x01\x00\x00\x00<", b"X\x01\x00\x00\x00>")
        assert big != value
        with pytest.raises(InputError, match="asks for BUILD"):
            read_plain_pickle(stored(tmp_path, big))

    @pytest.mark.parametrize("protocol", range(6))
    @pytest.mark.parametrize(
        ("function", "argument"),
        [
            (os.system, lambda path: f"touch {path}"),
            (os.mkdir, str),
            (subprocess.check_call, lambda path: ["touch", str(path)]),
        ],
    )
    def test_nothing_is_run(
        self, function: Any, argument: Any, protocol: int, tmp_path: Path
    ) -> None:
        mischief = tmp_path / "mischief"

        class Evil:
            def __reduce__(self) -> tuple[Any, Any]:
                return function, (argument(mischief),)

        content = pickle.dumps({1: {"computation": Evil(), "communication": 1.0}}, protocol)
        # Protocols 0 and 1 write text instructions, which are refused before the name is reached.
        asked = function.__name__ if protocol > 1 else "asks for"
        with pytest.raises(InputError, match=f"{asked}.*could run code"):
            read_capacities(stored(tmp_path, content))
        assert not mischief.exists()
        pickle.loads(content)
        assert mischief.exists()  # so it would have happened

    def test_every_other_instruction_is_refused_by_name(self, tmp_path: Path) -> None:
        read = {
            *("PROTO", "FRAME", "MARK", "STOP", "POP", "NONE", "NEWTRUE", "NEWFALSE", "BININT"),
            *("BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE"),
            *("SHORT_BINSTRING", "BINSTRING", "SHORT_BINBYTES", "EMPTY_DICT", "EMPTY_LIST"),
            *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPEND", "APPENDS"),
            *("SETITEM", "SETITEMS", "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET"),
            *("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"),
        }
        others = [op for op in pickletools.opcodes if op.name not in read]
        assert {"INST", "OBJ", "NEWOBJ", "EXT1", "PERSID"} <= {op.name for op in others}
        for op in others:
            with pytest.raises(InputError, match=rf"asks for {op.name} at byte 2.*could run code"):
                read_plain_pickle(stored(tmp_path, b"\x80\x03" + op.code.encode("latin-1")))

    def test_a_call_of_what_is_allowed_makes_numbers_alone(self, tmp_path: Path) -> None:
        for call in (b"cnumpy\ndtype\nX\x01\x00\x00\x00O\x85R.", b"X\x02\x00\x00\x00f8)R."):
            with pytest.raises(InputError, match="asks for REDUCE"):
                read_plain_pickle(stored(tmp_path, b"\x80\x03" + call))

    def test_a_part_of_a_pickle(self, tmp_path: Path) -> None:
        whole = pickle.dumps({1: {"a": 1.5, "b": [1, 300, 70_000], "c": "é"}}, 4)
        for size in range(len(whole)):
            with pytest.raises(InputError, match="not a whole pickle"):
                read_plain_pickle(stored(tmp_path, whole[:size]))

    @settings(max_examples=500)
    @given(noise=st.binary(max_size=60))
    def test_noise_is_refused_or_plain(
        self, noise: bytes, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        with suppress(InputError):
            found = read_plain_pickle(stored(tmp_path_factory.getbasetemp(), noise, "noise"))
            assert type(found) in (dict, list, tuple, int, float, str, bytes, bool, type(None))

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="cannot read .*No such file"):
            read_plain_pickle(tmp_path / "none")


CAPACITIES = {
    17: {"computation": np.float64(20.0), "communication": np.float64(8000.0)},
    "x": {"computation": 40.0, "communication": 1000},
    3: {"computation": 80, "communication": 500.0},
}


class TestFedScale:
    def test_capacities(self, tmp_path: Path) -> None:
        found = read_capacities(stored(tmp_path, pickle.dumps(CAPACITIES, 3)))
        assert found.client == ["17", "x", "3"]
        np.testing.assert_allclose(found.sample_seconds, [0.02, 0.04, 0.08])
        np.testing.assert_allclose(found.bit_rate, [8e6, 1e6, 5e5])

    @pytest.mark.parametrize(
        ("entry", "message"),
        [
            ({"computation": 0, "communication": 1}, "computation of client 5 is .*above 0"),
            ({"computation": 1, "communication": "fast"}, "communication .* is 'fast': must be"),
            ({"computation": 1}, "communication of client 5 is None: must be a number"),
            ({"computation": 10**400, "communication": 1}, "computation of client 5 is a int"),
            ({"computation": float("nan"), "communication": 1}, "computation .* is nan"),
            ([1, 2], "client 5 is a list: must be a dictionary"),
        ],
    )
    def test_bad_capacities(self, entry: Any, message: str, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=message):
            read_capacities(stored(tmp_path, pickle.dumps({5: entry})))

    def test_not_a_trace(self, tmp_path: Path) -> None:
        values: list[Any] = [[], {}, 3, "x"]
        for value in values:
            with pytest.raises(InputError, match="give one of FedScale's traces"):
                read_capacities(stored(tmp_path, pickle.dumps(value)))

    def test_availability_is_the_share_of_seconds(self, tmp_path: Path) -> None:
        """Against asking at every half second, as FedScale's simulator would."""
        rng = np.random.default_rng(0)
        traces = {}
        for client in range(20):
            times = rng.integers(0, 240, (6, 2))
            traces[client] = {
                "duration": 9,
                "active": times.min(1).tolist(),
                "inactive": times.max(1).tolist(),
                "finish_time": 200,
                "model": "phone",
            }
        traces[20] = {"active": [], "inactive": [], "finish_time": 10}
        traces[21] = {"active": [5], "inactive": [3], "finish_time": 10}  # never
        traces[22] = {"active": [5, 7], "inactive": [5, 8], "finish_time": 10}  # 0 s, then 1 s
        found = read_availabilities(stored(tmp_path, pickle.dumps(traces)))
        moments = np.arange(0.5, 200)
        for client in range(20):
            trace = traces[client]
            pairs = zip(trace["active"], trace["inactive"], strict=True)
            on = np.any([(since <= moments) & (moments <= until) for since, until in pairs], axis=0)
            assert found[client] == pytest.approx(on.mean(), abs=1e-12)
        assert found[20] == found[21] == 0
        assert found[22] == 0.1

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"finish_time": 0}, "finish_time of client 1 is"),
            ({"active": "now"}, "active of client 1 is 'now': must be a list of seconds"),
            ({"inactive": [1, 2]}, "has 1 times in active and 2 in inactive"),
            ({"active": [[]]}, "active of client 1 is a list"),
        ],
    )
    def test_bad_availabilities(self, change: Any, message: str, tmp_path: Path) -> None:
        trace = {"active": [0], "inactive": [5], "finish_time": 10} | change
        with pytest.raises(InputError, match=message):
            read_availabilities(stored(tmp_path, pickle.dumps({1: trace})))


class TestPackets:
    def test_against_a_link_played_packet_by_packet(self) -> None:
        trace = PacketTrace(np.array([0.0, 0.002, 0.002, 0.009, 0.020]))
        rng = np.random.default_rng(1)
        starts = rng.random(50) * 0.06
        laps = np.concatenate([trace.moments + lap * trace.seconds for lap in range(20)])
        for packets in (1, 2, 7, 23):
            found = trace.transfer_seconds(packets * 12_000, starts)
            naive = [laps[laps > start][packets - 1] - start for start in starts]
            np.testing.assert_allclose(found, naive, atol=1e-12)
        assert trace.transfer_seconds(1, starts).tolist() == (
            trace.transfer_seconds(12_000, starts).tolist()
        )

    def test_long_transfers_have_the_mean_rate(self, tmp_path: Path) -> None:
        moments = np.sort(np.random.default_rng(2).integers(1, 10_000, 4000))
        path = stored(tmp_path, "\n".join(map(str, moments)).encode())
        trace = read_packet_trace(path)
        assert trace.bit_rate == pytest.approx(4000 * 12_000 / moments[-1] * 1e3)
        rates = trace.transfer_rates(1e3 * 4000 * 12_000, 5, np.random.default_rng(0))
        np.testing.assert_allclose(rates, trace.bit_rate, rtol=2e-3)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("1\n2\nx\n", "line 3 is 'x': must be a whole number of milliseconds"),
            ("1\n\n2\n", "line 2 is ''"),
            ("-1\n", "line 1 is '-1'"),
            ("1.5\n", "line 1 is '1.5'"),
            ("9" * 400, "line 1 is '9999"),
            ("5\n4\n", "line 2 is earlier than the line before"),
            ("0\n0\n", "lasts no time"),
            ("", "lasts no time"),
        ],
    )
    def test_bad_traces(self, text: str, message: str, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=message):
            read_packet_trace(stored(tmp_path, text.encode()))


class TestFleets:
    def files(self, folder: Path) -> dict[str, Path]:
        rng = np.random.default_rng(0)
        on = {k: {"active": [0], "inactive": [k + 1], "finish_time": 10} for k in range(9)}
        packets = np.sort(rng.integers(1, 60_000, 40_000))
        return {
            "capacity": stored(folder, pickle.dumps(CAPACITIES), "capacity"),
            "availability": stored(folder, pickle.dumps(on), "availability"),
            "up": stored(folder, "\n".join(map(str, packets)).encode(), "up"),
        }

    def test_every_client_is_one_of_the_trace(self, tmp_path: Path) -> None:
        files = self.files(tmp_path)
        found = traced_devices(TraceFiles(capacity=files["capacity"]), 3, mac_rate=2e9, seed=5)
        by_name = dict(zip(found.client.tolist(), found.mac_rate.tolist(), strict=True))
        assert by_name == pytest.approx({"17": 4e9, "x": 2e9, "3": 1e9})
        rates = dict(zip(found.client.tolist(), found.bit_rate.tolist(), strict=True))
        assert rates == pytest.approx({"17": 8e6, "x": 1e6, "3": 5e5})
        np.testing.assert_array_equal(found.bit_rate, found.bit_rate_up)
        assert not found.erasure.any()

    def test_what_no_trace_says_is_a_phone(self, tmp_path: Path) -> None:
        files = self.files(tmp_path)
        found = traced_devices(TraceFiles(availability=files["availability"]), 40, seed=2)
        phones = phone_devices(40, seed=2)
        for name in ("mac_rate", "bit_rate", "bit_rate_up"):
            np.testing.assert_array_equal(getattr(found, name), getattr(phones, name))
        assert set(found.availability.round(9)) <= {k / 10 for k in range(1, 10)}
        assert len(set(found.availability)) > 3

    def test_the_command_makes_a_file_to_plan_with(self, tmp_path: Path, run: Run) -> None:
        files, out = self.files(tmp_path), tmp_path / "devices.csv"
        options = [word for name, path in files.items() for word in (f"--{name}", str(path))]
        code, said, _ = run("fleet", *options, "--clients", "3", "--out", str(out))
        assert code == 0
        assert "availability" in said
        fleet = read_fleet(out, Workload(), points=50)
        assert sorted(fleet.client.tolist()) == ["17", "3", "x"]
        assert (fleet.availability < 1).all()
        mean = 40_000 * 12_000 / 60  # both ways: the uplink's trace serves the downlink too
        np.testing.assert_allclose(Workload().packet_bits / fleet.packet_time, mean, rtol=0.1)
        assert plan(fleet, redundancy=0.9).deadline > 0

    def test_phones_that_are_mostly_away_need_the_redundancy_that_the_error_names(
        self, tmp_path: Path
    ) -> None:
        """As in FedScale's trace, in which some phones are reachable for a second of six days."""
        seconds = [518_400 // 4, 1, 0, 518_400 // 2]
        entries = {
            k: {"active": [9], "inactive": [9 + s], "finish_time": 518_400}
            for k, s in enumerate(seconds)
        }
        path = stored(tmp_path, pickle.dumps(entries, 3))
        devices = traced_devices(TraceFiles(availability=path), 40, seed=1)
        fleet = devices.fleet(Workload(), points=50)
        with pytest.raises(InputError, match="redundancy above") as refused:
            plan(fleet, redundancy=0.1)
        (least,) = re.findall(r"redundancy above ([\d.]+)", str(refused.value))
        assert float(least) == pytest.approx(1 - fleet.availability.mean(), abs=1e-3)
        found = plan(fleet, redundancy=float(least) + 0.01)
        assert not found.loads[fleet.availability == 0].any()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ([], "no trace is given"),
            (["--capacity", "capacity", "--clients", "4"], "clients is 4, and .* has 3: ask for"),
            (["--capacity", "capacity", "--mac-rate", "0"], "mac_rate is 0"),
            (["--up", "up", "--transfer", "0"], "transfer is 0"),
            (["--up", "devices.csv"], "is one of the traces"),
            (["--capacity", "nowhere"], "cannot read nowhere"),
        ],
    )
    def test_errors(
        self,
        options: list[str],
        message: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        run: Run,
    ) -> None:
        self.files(tmp_path)
        monkeypatch.chdir(tmp_path)
        code, _, error = run("fleet", "--out", "devices.csv", *options)
        assert code == 2
        assert re.search(message, error)
        assert not Path("devices.csv").exists()
