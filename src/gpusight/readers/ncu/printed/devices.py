"""The GPUs that a printed file tells of, by their attributes where it has them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.readers.ncu.session import device_row
from gpusight.readers.ncu.values import known_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusight.readers.ncu.printed.collected import Collected

_INTEGER = re.compile(r"\d{1,18}")
_DURATION = "gpu__time_duration.sum"
_ATTRIBUTE = "device__attribute_"
_SM_COUNT = ("multiprocessor_count", "launch__sm_count")
_MAJOR, _MINOR = "compute_capability_major", "compute_capability_minor"
_OF_LAUNCH = {
    "duration_ns": _DURATION,
    "device": f"{_ATTRIBUTE}device_index",
    "compute_major": f"{_ATTRIBUTE}{_MAJOR}",
    "compute_minor": f"{_ATTRIBUTE}{_MINOR}",
}
"""Columns of `profiles` that counters fill where the launch's own lines do not."""


def with_counters(profiles: pl.DataFrame, counters: pl.DataFrame) -> pl.DataFrame:
    """Fill in what only the counters say of launches: duration, GPU and compute capability."""
    profiles = profiles.with_columns(duration_ns=pl.lit(None, pl.Float64))
    for column, metric in _OF_LAUNCH.items():
        said = _chosen(counters, metric.__eq__).select("launch", said="value")
        rows = profiles.join(said, on="launch", how="left", maintain_order="left")
        own = rows.get_column(column)
        filled = pl.coalesce(column, pl.col("said").cast(own.dtype, strict=False)).alias(column)
        profiles = rows.with_columns(filled).drop("said")
    return profiles.with_columns(known_duration(pl.col("duration_ns")))


def device_rows(profiles: pl.DataFrame, counters: pl.DataFrame, into: Collected) -> pl.DataFrame:
    """Describe the GPUs by what the file says of them: attributes, or only the capability."""
    facts: dict[int, dict[str, Any]] = {n: _numbered(a) for n, a in into.devices.items()}
    known = profiles.with_columns(pl.col("device").fill_null(0)).with_row_index("row")
    first = known.unique("device", keep="first", maintain_order=True)
    columns = ("device", "row", "launch", "compute_major", "compute_minor")
    for device, row, launch, major, minor in first.select(columns).iter_rows():
        own = facts.setdefault(device, {})
        own |= {_MAJOR: major, _MINOR: minor} if major is not None else {}
        own |= _attributes(counters.filter(pl.col("launch") == launch))
        own.setdefault("display_name", into.launches.rows[row].get("device_name"))
    rows = [device_row(n, own) for n, own in sorted(facts.items()) if any(own.values())]
    return pl.DataFrame(rows, infer_schema_length=None)


def _numbered(attributes: dict[str, str]) -> dict[str, Any]:
    return {k: int(text) if _INTEGER.fullmatch(text) else text for k, text in attributes.items()}


def _attributes(counters: pl.DataFrame) -> dict[str, Any]:
    rows = _chosen(counters, lambda metric: metric.startswith(_ATTRIBUTE))
    found = {
        metric.removeprefix(_ATTRIBUTE): text if value is None else value
        for metric, value, text in rows.select("metric", "value", "text").iter_rows()
    }
    attribute, metric = _SM_COUNT
    sms = _chosen(counters, metric.__eq__).get_column("value")
    return found if attribute in found or sms.is_empty() else {**found, attribute: sms.item(0)}


def _chosen(counters: pl.DataFrame, is_wanted: Callable[[str], bool]) -> pl.DataFrame:
    """Give the rows of some metrics."""
    metrics = counters.get_column("metric")
    assert isinstance(metrics.dtype, pl.Enum)
    names = [name for name in metrics.dtype.categories if is_wanted(name)]
    return counters.filter(metrics.is_in(names))
