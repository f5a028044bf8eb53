"""Rounds as event files of TensorBoard: a folder for each series, without TensorFlow."""

import re
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from codedfedl.errors import InputError
from codedfedl.tracking import Series, listed


class TensorBoard:
    """Writes event files to a folder, by default ``tensorboard`` in the run directory."""

    def __init__(self, folder: str | None = None, out: Path | None = None) -> None:
        if folder is None and out is None:
            raise InputError("TensorBoard needs a folder: name one")
        self._folder = Path(folder) if folder is not None else Path(str(out)) / "tensorboard"
        self._writers: dict[Series, EventFileWriter] = {}

    def log(self, series: Series, round_: int, values: Mapping[str, float]) -> None:
        """Write the values as scalars."""
        writer = self._writers.get(series) or self._begin(series)
        scalars = [Summary.Value(tag=name, simple_value=v) for name, v in values.items()]
        writer.add_event(_event(Summary(value=scalars), round_))

    def finish(self, report: Path | None) -> None:
        """Say where the report is, and close the files."""
        for writer in self._writers.values():
            if report is not None:
                writer.add_event(_event(_text("report", f"`{report.resolve()}`"), 0))
            writer.close()

    def _begin(self, series: Series) -> EventFileWriter:
        name = re.sub(r"[^\w.%=,-]+", "-", series.name).strip("-")
        writer = EventFileWriter(str(self._folder / series.run / name))
        settings = {**series.settings, "seed": series.seed}
        writer.add_event(_event(_text("configuration", listed(settings)), 0))
        self._writers[series] = writer
        return writer


def _event(summary: Summary, step: int) -> Event:
    return Event(wall_time=time.time(), step=step, summary=summary)


def _text(tag: str, text: str) -> Summary:
    """Return Markdown, as TensorBoard's page of texts reads it."""
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode()], tensor_shape=shape)
    return Summary(value=[Summary.Value(tag=tag, metadata=metadata, tensor=tensor)])
