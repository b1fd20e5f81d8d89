"""The page: one offline HTML file that holds the verdict, every chart with its table, and the contract's JSON
once."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from diagnose.contract import Diagnosis
from diagnose.reports import evidence, kernels, serving, tables, view
from diagnose.reports.charts import (
    attribution,
    counters,
    latency,
    memory,
    other_device,
    roofline,
    timeline,
    what_if,
)
from diagnose.reports.charts.figure import Column, Figure, Table
from diagnose.reports.json import to_json
from diagnose.reports.marker import DATA_ID, MARKER
from diagnose.reports.numbers import confidence, count, sig3, time_unit
from diagnose.reports.text import clean, keep_units, sentence, shorten
from diagnose.reports.words import (
    BUCKET,
    LIMIT,
    OBJECTIVE,
    PROVENANCE,
    bucket_label,
    is_alone,
    limit_name,
    words,
)

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_HERE = Path(__file__).resolve().parent
_STATIC_KERNELS = 25
# Above this the embedded JSON is compressed, so that a trace with thousands of kernel rows stays under the
# page's 2 MB.
_PLAIN_JSON_BYTES = 400_000

_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]+(?: (?:FILE|NAME|DIR|REGEX))?)")

_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z])")
_UNSAFE_IN_SCRIPT = re.compile("[<\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

SECTIONS = (
    ("verdict", "Verdict"),
    ("time", "Time"),
    ("limits", "Limits"),
    ("hypotheses", "Hypotheses"),
    ("roofline", "Roofline"),
    ("timeline", "Timeline"),
    ("kernels", "Kernels"),
    ("latency", "Latency"),
    ("memory", "Memory, KV"),
    ("what-if", "What if"),
    ("ranks", "Ranks"),
    ("quality", "Data quality"),
    ("provenance", "Provenance"),
)

# Without a trace these are one paragraph.
_OF_A_TRACE = {"time", "limits", "roofline", "timeline", "kernels", "ranks"}

# What each section says when the result has nothing for it: what to attach.
ABSENT = {
    "roofline": "No kernel has both FLOPs and bytes, so there is no roofline. Record shapes (torch profiler: "
    "record_shapes=True), or name the model with --model for step arithmetic.",
    "timeline": "No timeline: the result holds no stretches of device time. It needs a trace.",
    "kernels": "The result holds no kernels. They need a trace.",
    "latency": "A trace alone holds no request latencies. Attach a benchmark result (--bench FILE: vllm "
    "bench serve, sglang bench_serving, aiperf, genai-perf, trtllm-bench) or engine metrics (--metrics FILE) to see TTFT, "
    "inter-token latency and throughput with their distributions.",
    "memory": "Memory and KV cache are unknown. Attach the model's config (--model FILE or NAME) and the "
    "server's start-up log (--log FILE) or its metrics (--metrics FILE) to see the budget, KV bytes per "
    "token and how full the pool ran.",
    "distribution": "Its source holds no latencies; a benchmark result (--bench FILE) or engine metrics (--metrics FILE) do.",
    "what_if": "No what-if curve. It needs decode steps in the trace with the model (--model) or serving evidence beside it; without "
    "a trace the model (--model), the device (--device), the running requests and their KV use (--log or --metrics) and the time per "
    "token (--bench).",
    "ranks": "Nothing to put side by side. Give the traces of all ranks in one call (diagnose rank0.json rank1.json …) to see "
    "them side by side and to tell transfer from waiting.",
}


def warm_up() -> None:
    """Do what no page can do without: import altair, compile the templates, hash the scripts.

    It is half of a page's cost and needs no result: call it from a thread while the trace is read.
    """
    import altair

    assert altair.__version__
    for template in (
        "report.html.j2",
        "layout.html.j2",
        "macros.html.j2",
        "kernels.html.j2",
        "serving.html.j2",
    ):
        _environment().get_template(template)
    page_parts("", "")


def to_html(d: Diagnosis) -> str:
    """The whole page. Every string of the result is escaped; the page loads nothing and runs only its two own
    scripts."""
    return _environment().get_template("report.html.j2").render(_context(d))


def json_script(value: Any) -> Markup:
    """A value as JSON that is safe inside a script element: `<` and direction controls are written as
    `\\uXXXX`."""
    from markupsafe import Markup

    text = (value if isinstance(value, bytes) else msgspec.json.encode(value)).decode()
    return Markup(_UNSAFE_IN_SCRIPT.sub(lambda m: f"\\u{ord(m.group()):04x}", text))


def prose(text: str) -> Markup:
    """A sentence for the page: options such as `--metrics FILE` as unbreakable code, numbers kept with their
    units."""
    from markupsafe import Markup, escape

    escaped = str(escape(keep_units(clean(text))))
    return Markup(_OPTION.sub(r'<code class="option">\1</code>', escaped))


def embed_json(data: bytes) -> tuple[str | Markup, str]:
    """(text, encoding) for the page's data element: plain while small, else gzip in base64."""
    if len(data) <= _PLAIN_JSON_BYTES:
        return json_script(data.rstrip(b"\n")), ""
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode(), "gzip+base64"


def page_parts(title: str, tool_version: str) -> dict[str, Any]:
    """What `layout.html.j2` needs of any page of this tool: scripts, style, policy, marker and words."""
    from markupsafe import Markup

    scripts = (_bundle(), _text("templates/page.js"))
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return {
        "title": title,
        "tool_version": tool_version,
        "marker": Markup(MARKER),
        "csp": f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        "css": Markup(_text("templates/page.css")),
        "bundle": Markup(scripts[0]),
        "app": Markup(scripts[1]),
        "hatches": [style for style in BUCKET.values() if style.hatched],
        "provenances": PROVENANCE,
        "data_id": DATA_ID,
    }


@functools.cache
def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


@functools.cache
def _bundle() -> str:
    return _text("vendor/bundle.js")


@functools.cache
def _digest(script: str) -> str:
    """The hash by which the policy admits a script; any script a name might smuggle in has none."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@functools.cache
def _environment() -> Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters: dict[str, Callable[..., Any]] = {
        "clean": clean,
        "shorten": shorten,
        "sentence": sentence,
        "slug": slug,
        "json_script": json_script,
        "units": keep_units,
        "prose": prose,
    }
    environment.filters.update(filters)
    return environment


def slug(value: object) -> str:
    """An identifier usable in a permalink."""
    return re.sub(r"[^a-z0-9]+", "-", str(value).lower()).strip("-") or "x"


def _context(d: Diagnosis) -> dict[str, Any]:
    v = d.verdict
    alone = is_alone(d)
    alone_served = not d.devices and serving.is_served(d)
    cards = view.cards(d)
    first = view.first_trial(d)
    first_card = view.card(first, alone) if first else None
    files = ", ".join(clean(s.path) for s in d.source)
    data, encoding = embed_json(to_json(d))
    # The first sentence carries the verdict; what would settle it reads better as text than as a heading.
    headline, _, after = _SENTENCE_END.sub("\n", sentence(v.summary), count=1).partition("\n")
    subject = limit_name(v.limit) if v.limit == "inconclusive" else f"limited by {limit_name(v.limit)}"
    return {
        **page_parts(f"{subject}: {shorten(files, 60)}", d.tool_version),
        "schema": d.schema,
        "sections": [x for x in SECTIONS if not alone_served or x[0] not in _OF_A_TRACE],
        "served_alone": alone_served,
        "absent": ABSENT,
        "files": files,
        "objective": OBJECTIVE.get(v.objective, words(v.objective)),
        "slowest": _slowest(d),
        "headline": headline,
        "after_headline": after,
        "limit": limit_name(v.limit),
        "confidence": confidence(v.confidence),
        "meter": 0.0 if v.confidence is None else 100 * v.confidence,
        "calibrated": v.calibrated,
        "runner_up": limit_name(v.runner_up) if v.runner_up else "",
        "next_limit": limit_name(v.next) if v.next in LIMIT else "",
        "next_sentence": "" if v.next in LIMIT else sentence(v.next),
        "by_phase": [s for s in map(sentence, v.by_phase) if s and s != sentence(v.summary)],
        "ruled_out": [sentence(s) for s in v.ruled_out],
        "could_not_tell": [sentence(s) for s in v.could_not_tell],
        "first": first_card.trial if first_card else None,
        "first_gain": ", ".join(x for x in (first_card.gain, first_card.scope) if x) if first_card else "",
        "settle_first": v.limit == "inconclusive" and bool(v.could_not_tell),
        "facts": view.facts(d),
        "outside": view.outside_text(d),
        "phases": view.phase_lines(d),
        "phase_table": _phase_table(d),
        "open_hypotheses": [c for c in cards if c.status in {"supported", "possible"}],
        "closed_hypotheses": [c for c in cards if c.status not in {"supported", "possible"}],
        **_figures(d),
        **_kernels(d),
        "throughput": _throughput(d),
        "representative": evidence.representative(d),
        "latency_sources": evidence.latency_sources(d),
        "latency_remarks": evidence.latency_remarks(d) + serving.ratio_remarks(d),
        "memory_remarks": evidence.memory_remarks(d),
        "kv": serving.kv_table(d),
        "load": serving.load_table(d),
        "batch_remarks": serving.batch_remarks(d),
        "ceiling": serving.ceiling_text(d),
        "ceiling_table": serving.ceiling_table(d),
        "quantisation": serving.quantisation_table(d),
        "quantisation_remarks": serving.quantisation_remarks(d),
        "rank_message": evidence.straggler(d),
        "rank_tables": evidence.rank_tables(d),
        "notes": view.notes(d),
        "coverage": tables.coverage_table(d),
        "unmodelled": _unmodelled(d),
        "source_table": tables.source_table(d),
        "device_rows": tables.device_table(d),
        "roof_rows": tables.roof_table(d),
        "model_table": tables.key_values("Model", d.model),
        "config_table": _config(d),
        "download_name": _download_name(d),
        "data": data,
        "data_encoding": encoding,
    }


def _slowest(d: Diagnosis) -> str:
    """Which rank the page is about, where there are several."""
    if not isinstance(d.ranks, list) or len(d.ranks) < 2:
        return ""
    rank = next((device.rank for device in d.devices if device.rank is not None), None)
    name = "" if rank is None else f" (rank {rank})"
    return f"of the slowest of {len(d.ranks)} ranks{name}; the others are side by side below and whole in the JSON"


def _download_name(d: Diagnosis) -> str:
    stem = slug(clean(d.source[0].path).split(".")[0]) if d.source else "run"
    return f"{stem[:60]}.diagnosis.json"


def _figures(d: Diagnosis) -> dict[str, Figure | list[Figure] | None]:
    return {
        "attribution": attribution.attribution_figure(d),
        "devices_figure": attribution.devices_figure(d),
        "roofline": roofline.roofline_figure(d),
        "timeline": timeline.timeline_figure(d),
        "steps": timeline.steps_figure(d),
        "counters": counters.counter_figures(d),
        "latency": latency.latency_figure(d),
        "distributions": latency.distribution_figures(d),
        "splits": latency.split_figures(d),
        "memory": memory.memory_figure(d),
        "what_if": what_if.what_if_figures(d),
        "other_devices": other_device.other_device_figures(d),
    }


def _kernels(d: Diagnosis) -> dict[str, Any]:
    return {
        "kernel_columns": kernels.columns_for(d.kernels),
        "kernel_rows": kernels.kernel_lines(d.kernels, _STATIC_KERNELS),
        "kernel_count": count(len(d.kernels)),
        "kernel_words": {"buckets": {key: bucket_label(key) for key in BUCKET}},
    }


def _phase_table(d: Diagnosis) -> Table:
    lines = view.phase_lines(d)
    columns = [Column("phase", numeric=False), *view.phase_columns(d)]
    return Table("Phases", columns, [[line.phase, *line.cells] for line in lines])


def _throughput(d: Diagnosis) -> str:
    value = (d.latency or {}).get("throughput_tok_s")
    return f"{sig3(value)} tokens/s" if isinstance(value, int | float) else ""


def _unmodelled(d: Diagnosis) -> Table | None:
    """The longest kernels without a cost model, so that the gap can be closed."""
    rows = d.coverage.unmodelled_top if d.coverage else []
    if not rows:
        return None
    unit = time_unit([row.get("time_ns") for row in rows])
    columns = [Column("name", numeric=False), Column("time", unit.name, "measured"), Column("calls")]
    return Table(
        "Longest kernels without a cost model",
        columns,
        [
            [shorten(row.get("name"), 90), unit.text(row.get("time_ns")), count(row.get("count"))]
            for row in rows
        ],
    )


def _config(d: Diagnosis) -> Table | None:
    if not d.engine_config:
        return None
    columns = [Column(label, numeric=False) for label in ("setting", "value", "origin")]
    rows = [
        [clean(row.get("key")), shorten(row.get("value"), 200), clean(row.get("origin"))]
        for row in d.engine_config
    ]
    return Table("Engine configuration", columns, rows)
