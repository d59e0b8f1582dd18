"""What `gpusight timeline` gives: its facts, and the fields of its tables."""

from __future__ import annotations

from gpusight.result import Field, Fmt

TRACK_FIELDS = (
    Field("group", "Of", Fmt.NAME, "GPU or process that it is about"),
    Field("thread", "Thread", Fmt.NAME, "Thread; null where it is about none"),
    Field("name", "Track", Fmt.NAME, "What to call it"),
    Field("events", "Events", Fmt.COUNT, "Events that begin in the excerpt or reach into it"),
    Field(
        "busy_ns",
        "Time",
        Fmt.TIME,
        "Time of the excerpt that its events take; of those within each other the outermost count",
    ),
    Field("busy_share", "Share", Fmt.SHARE, "That time as part of the excerpt"),
    Field("drawn", "Drawn", Fmt.FLAG, "Whether the picture shows it"),
    Field("lines", "Lines", Fmt.COUNT, "How deep its events lie within each other", shown=False),
    Field("kind", "Kind", Fmt.TEXT, "`ledger`, `stream`, `ranges`, `ops`, `api`, …", shown=False),
    Field("unit", "Unit", Fmt.TEXT, "Of values: `bytes`, `%` or empty; else null", shown=False),
    Field("track", "Key", Fmt.TEXT, "What `--tracks` calls it"),
)
SLICE_FIELDS = (
    Field("track", "Track", Fmt.TEXT, "Key of its track"),
    Field("line", "Line", Fmt.ID, "Line of the track, 0 the outermost"),
    Field("start_ns", "Began", Fmt.TIME, "When it began; it may be before the excerpt"),
    Field("duration_ns", "Took", Fmt.TIME, "How long it took"),
    Field("category", "Category", Fmt.TEXT, "`compute/matmul`, `idle/input`, `api/launch`, …"),
    Field("name", "Name", Fmt.NAME, "What it is called"),
)
SUM_FIELDS = (
    Field("track", "Track", Fmt.TEXT, "Key of the track"),
    Field("line", "Line", Fmt.ID, "Line of the track, 0 the outermost"),
    Field("start_ns", "From", Fmt.TIME, "When the bin begins"),
    Field("duration_ns", "Length", Fmt.TIME, "How long the bin is"),
    Field("free_ns", "Free", Fmt.TIME, "Time of the bin that no slice takes"),
    Field("busy_ns", "Time", Fmt.TIME, "Part of that in which shorter events run"),
    Field("events", "Events", Fmt.COUNT, "Shorter events that begin in it"),
    Field("category", "Category", Fmt.TEXT, "What most of the time is"),
)
POINT_FIELDS = (
    Field("track", "Track", Fmt.TEXT, "Key of the track"),
    Field("line", "Line", Fmt.ID, "Line of the track"),
    Field("start_ns", "From", Fmt.TIME, "When the bin begins"),
    Field("low", "Low", Fmt.REAL, "Lowest value in it"),
    Field("high", "High", Fmt.REAL, "Highest value in it"),
    Field("mean", "Mean", Fmt.REAL, "Mean of it"),
)
FACTS = (
    Field("what", "Shows", Fmt.TEXT, "What the excerpt is"),
    Field("start_ns", "From", Fmt.TIME, "When it begins"),
    Field("length_ns", "Length", Fmt.TIME, "How long it is"),
    Field("tracks", "Tracks", Fmt.COUNT, "Tracks on which anything happens in it"),
    Field("narrow_ns", "Alone from", Fmt.TIME, "Events shorter than this are summed up in bins"),
)
