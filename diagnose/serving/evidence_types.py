"""What the parsers of metrics, logs and benchmarks return: rows of serving, request and engine_config."""

import json
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sample:
    """One row of `serving`. `ts` is seconds, epoch or relative; None where the source has no time."""

    metric: str
    value: float
    origin: str
    ts: float | None = None
    labels: tuple[tuple[str, str], ...] = ()

    def label(self, name: str) -> str | None:
        """The value of a label, None when absent."""
        return next((v for k, v in self.labels if k == name), None)

    def labels_json(self) -> str:
        """Labels as the JSON text the table holds."""
        return json.dumps(dict(self.labels), sort_keys=True)


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One request of a benchmark. Milliseconds and tokens; None where the source does not say."""

    ttft_ms: float | None
    itl_ms: float | None
    e2e_ms: float | None
    prompt_tokens: int | None
    output_tokens: int | None
    start_s: float | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of `engine_config`."""

    key: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True)
class EvidenceNote:
    """A data-quality note: severity is info, warning or error."""

    code: str
    severity: str
    message: str


@dataclass
class Evidence:
    """Everything read from one or more sources."""

    samples: list[Sample] = field(default_factory=list)
    requests: list[RequestRow] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    notes: list[EvidenceNote] = field(default_factory=list)
    engines: list[str] = field(default_factory=list)

    def extend(self, other: "Evidence") -> None:
        """Append another source's rows."""
        self.samples += other.samples
        self.requests += other.requests
        self.settings += other.settings
        self.notes += other.notes
        self.engines += [e for e in other.engines if e not in self.engines]

    def add(
        self, metric: str, value: float | None, origin: str, ts: float | None = None, **labels: str
    ) -> None:
        """Append a sample unless its value is unknown."""
        if value is not None:
            self.samples.append(Sample(metric, float(value), origin, ts, tuple(sorted(labels.items()))))

    def set(self, key: str, value: object, origin: str) -> None:
        """Record a setting; the last value of a key from one origin wins."""
        if value is None:
            return
        text = str(value)
        self.settings = [s for s in self.settings if not (s.key == key and s.origin == origin)]
        self.settings.append(Setting(key, text, origin))

    def note(self, code: str, message: str, severity: str = "info") -> None:
        """Append a note once."""
        row = EvidenceNote(code, severity, message)
        if row not in self.notes:
            self.notes.append(row)

    def setting(self, key: str) -> str | None:
        """A setting's value, the user's first, then the log's, a settings file's, the metrics', the benchmark's."""
        rank = {"user": 0, "log": 1, "settings": 2, "metrics": 3, "bench": 4, "model": 5}
        found = sorted((s for s in self.settings if s.key == key), key=lambda s: rank.get(s.origin, 9))
        return found[0].value if found else None

    def values(self, metric: str, origin: str | None = None) -> list[float]:
        """All values of a metric in order of time, without those labelled as statistics."""
        rows = [s for s in self.samples if s.metric == metric and (origin is None or s.origin == origin)]
        rows = [s for s in rows if s.label("stat") is None]
        return [s.value for s in sorted(rows, key=lambda s: s.ts or 0.0)]

    def stat(self, metric: str, stat: str, origin: str | None = None) -> float | None:
        """A statistic (mean, p50, ...) of a metric as a source states it."""
        for s in self.samples:
            if s.metric == metric and s.label("stat") == stat and (origin is None or s.origin == origin):
                return s.value
        return None

    def stat_value(self, metric: str, origin: str | None = None) -> float | None:
        """The single value of a metric stated once for the run, None when absent."""
        rows = [s for s in self.samples if s.metric == metric and (origin is None or s.origin == origin)]
        return rows[0].value if rows else None
