"""Tables of `accuracy.py`: everything printed is computed from its rows."""

from collections import Counter, defaultdict
from typing import Any

Row = dict[str, Any]

PROMISED = {
    "first-limit accuracy, sufficient evidence": (0.95, "at least"),
    "wrong at confidence >= 0.9": (0.02, "at most"),
    "expected calibration error": (0.05, "at most"),
    "interval coverage": (0.90, "at least"),
    "median interval width": (0.25, "at most"),
    "runner-up interval fails": (0.80, "at least"),
    "inconclusive or right, evidence withheld": (0.95, "at least"),
}


def right(row: Row) -> bool:
    """The verdict names the limit, or one of them where several bind."""
    return row["verdict"] in row["limits"]


def report(rows: list[Row], show: bool = False) -> tuple[str, list[str]]:
    """All tables as text, and the names of promised figures that are missed."""
    out: list[str] = []
    failed = [r for r in rows if "error" in r]
    rows = [r for r in rows if "error" not in r]
    scored = [r for r in rows if not r["borderline"]]
    enough = [r for r in scored if r["sufficient"]]
    withheld = [r for r in scored if not r["sufficient"]]
    out.append(f"{len(rows)} variants diagnosed, {len(failed)} failed, {len(rows) - len(scored)} too near the edge to score; "
               f"{sum(r['cpu_s'] for r in rows) / max(1, len(rows)):.2f} CPU s a diagnosis")  # fmt: skip
    for r in failed[:20]:
        out.append(f"  failed: {r['scenario']} {r['seed']}: {r['error']}")
    figures: dict[str, float | None] = {}
    figures["first-limit accuracy, sufficient evidence"] = _share(enough, right)
    claimed = [r for r in scored if r["verdict"] != "inconclusive"]
    sure = [r for r in claimed if (r["confidence"] or 0) >= 0.9]
    figures["wrong at confidence >= 0.9"] = _share(sure, lambda r: not right(r))
    figures["inconclusive or right, evidence withheld"] = _share(
        withheld, lambda r: r["verdict"] == "inconclusive" or right(r)
    )
    out += _confusion(enough)
    out += _by_scenario(scored)
    out.append(f"abstained: {_text(_share(enough, lambda r: r['verdict'] == 'inconclusive'))} with sufficient evidence, "
               f"{_text(_share(withheld, lambda r: r['verdict'] == 'inconclusive'))} of {len(withheld)} where it was withheld")  # fmt: skip
    lines, figures["expected calibration error"] = _reliability(claimed)
    out += lines
    lines, intervals = _intervals(rows)
    out += lines
    figures |= intervals
    out += _rules(rows)
    if show:
        out += [
            _wrong(r) for r in scored if not right(r) and (r["sufficient"] or r["verdict"] != "inconclusive")
        ]
    out.append("\npromised figures")
    missed = []
    for name, (limit, side) in PROMISED.items():
        value = figures.get(name)
        ok = value is None or (value >= limit if side == "at least" else value <= limit)
        missed += [] if ok else [name]
        out.append(f"  {'ok  ' if ok else 'MISS'} {name}: {_text(value)} ({side} {limit:.0%})")
    return "\n".join(out), missed


def calibration(rows: list[Row], seeds: str) -> dict[str, Any]:
    """The maps of `rules/calibration.json`: one for verdicts from kernel traces, one for those from serving evidence."""
    kinds = {"trace": [r for r in rows if r.get("objective") == "step_time"],
             "serving": [r for r in rows if r.get("objective") != "step_time"]}  # fmt: skip
    return {"source": f"simulated runs with computed truth, {seeds}"} | {
        kind: _monotone(mine) for kind, mine in kinds.items()
    }


def _monotone(rows: list[Row]) -> dict[str, Any]:
    """Monotone map from stated confidence to the share of right claims (pool adjacent violators), for one set of seeds.

    Each pool is [least stated, most stated, share right, claims]. Shares are shrunk by one imagined right and one wrong claim,
    so that a short run of luck never becomes certainty. Between pools confidence is meant to be interpolated.
    """
    claims = sorted(
        (r["confidence"], right(r))
        for r in rows
        if "error" not in r
        and not r["borderline"]
        and r["verdict"] != "inconclusive"
        and r["confidence"] is not None
    )
    pools: list[Pool] = []
    for confidence, good in claims:
        pools.append((confidence, confidence, float(good), 1))
        while len(pools) > 1 and pools[-2][2] / pools[-2][3] >= pools[-1][2] / pools[-1][3]:
            pools[-2:] = [_together(*pools[-2:])]
    large: list[Pool] = []
    for pool in pools:
        large[-1:] = [_together(large[-1], pool)] if large and large[-1][3] < 15 else [*large[-1:], pool]
    # Shrinking small pools more can turn their order around: such neighbours are one pool.
    rising: list[Pool] = []
    for pool in large:
        while rising and _shrunk(rising[-1]) >= _shrunk(pool):
            pool = _together(rising.pop(), pool)
        rising.append(pool)
    return {
        "claims": len(claims),
        "pools": [[round(p[0], 4), round(p[1], 4), round(_shrunk(p), 4), p[3]] for p in rising],
    }


Pool = tuple[float, float, float, int]  # least and most stated confidence, right claims, claims


def _together(a: Pool, b: Pool) -> Pool:
    return (a[0], b[1], a[2] + b[2], a[3] + b[3])


def _shrunk(pool: Pool) -> float:
    return (pool[2] + 1) / (pool[3] + 2)


def _share(rows: list[Row], test: Any) -> float | None:
    return sum(1 for r in rows if test(r)) / len(rows) if rows else None


def _text(value: float | None) -> str:
    return "none" if value is None else f"{value:.1%}"


def _confusion(rows: list[Row]) -> list[str]:
    """One matrix an objective: the true limit against the verdict, where the evidence suffices."""
    out: list[str] = []
    for objective in sorted({r["objective"] for r in rows}):
        mine = [r for r in rows if r["objective"] == objective]
        table: dict[str, Counter[str]] = defaultdict(Counter)
        for r in mine:
            table[r["verdict"] if right(r) else r["limits"][0]][r["verdict"]] += 1
        columns = sorted({v for c in table.values() for v in c})
        out.append(
            f"\nobjective {objective}: {_text(_share(mine, right))} of {len(mine)} right (rows: truth, columns: verdict)"
        )
        out.append(" " * 22 + "".join(f"{c[:10]:>11}" for c in columns))
        for truth in sorted(table):
            out.append(f"  {truth:20}" + "".join(f"{table[truth][c] or '.':>11}" for c in columns))
    return out


def _by_scenario(rows: list[Row]) -> list[str]:
    out = ["\nby scenario: right / inconclusive / wrong (where the evidence suffices | withheld)"]
    for name in sorted({r["scenario"] for r in rows}):
        cells = []
        for sufficient in (True, False):
            mine = [r for r in rows if r["scenario"] == name and r["sufficient"] is sufficient]
            good = sum(1 for r in mine if right(r))
            none = sum(1 for r in mine if r["verdict"] == "inconclusive")
            cells.append(f"{good:3}/{none:3}/{len(mine) - good - none:3}" if mine else "     -     ")
        out.append(f"  {name:28}" + "  |  ".join(cells))
    return out


def _rules(rows: list[Row]) -> list[str]:
    """How often each rule fired, was refuted, or could not be assessed: every rule needs all three somewhere."""
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for r in rows:
        for h in r["hypotheses"]:
            seen[h.get("rule") or h["id"].split("@")[0]][h["status"]] += 1
    out = ["\nrules: supported / possible / refuted / not assessed"]
    for rule in sorted(seen):
        c = seen[rule]
        cells = (c["supported"], c["possible"], c["refuted"], c["not_assessed"])
        missing = [
            name
            for name, n in (("fires", cells[0] + cells[1]), ("refuted", cells[2]), ("not assessed", cells[3]))
            if not n
        ]
        out.append(
            f"  {rule:28}"
            + " / ".join(f"{n:4}" for n in cells)
            + (f"   never {', '.join(missing)}" if missing else "")
        )
    return out


def _reliability(rows: list[Row]) -> tuple[list[str], float | None]:
    """Claims by stated confidence: how many were right."""
    out = ["\nreliability: confidence, claims, right"]
    error = 0.0
    for low in range(0, 10):
        mine = [
            r
            for r in rows
            if r["confidence"] is not None and low / 10 <= r["confidence"] < (low + 1) / 10 + (low == 9)
        ]
        if not mine:
            continue
        mean = sum(r["confidence"] for r in mine) / len(mine)
        share = _share(mine, right) or 0.0
        error += len(mine) / len(rows) * abs(mean - share)
        out.append(
            f"  {low / 10:.1f}-{(low + 1) / 10:.1f}  mean {mean:.3f}  {len(mine):5}  {share:.3f}  {'#' * round(40 * share)}"
        )
    return out, error if rows else None


def _intervals(rows: list[Row]) -> tuple[list[str], dict[str, float | None]]:
    """Predictions of the first hypothesis where it is right; the runner-up's interval for the same change."""
    pairs = [
        (r, x) for r in rows if right(r) for x in r["experiments"] if x["first"] and x["limit"] in r["limits"]
    ]
    out = ["\nexperiments of right verdicts: change, count, inside, median width, runner-up fails"]
    groups: dict[str, list[Row]] = defaultdict(list)
    for _, x in pairs:
        groups[x["change"]].append(x)
        groups["all"].append(x)
    figures: dict[str, float | None] = {
        "interval coverage": None,
        "median interval width": None,
        "runner-up interval fails": None,
    }
    for change in sorted(groups, key=lambda c: (c == "all", c)):
        mine = groups[change]
        inside = _share(mine, lambda x: x["low"] <= x["ratio"] <= x["high"])
        widths = sorted((x["high"] - x["low"]) / max(0.02, (x["high"] + x["low"]) / 2) for x in mine)
        others = [x for x in mine if x["other_low"] is not None]
        fails = _share(others, lambda x: not x["other_low"] <= x["ratio"] <= x["other_high"])
        out.append(
            f"  {change:20} {len(mine):5} {_text(inside):>7} {widths[len(widths) // 2]:7.2f} {_text(fails):>7}"
        )
        if change == "all":
            figures |= {
                "interval coverage": inside,
                "median interval width": widths[len(widths) // 2],
                "runner-up interval fails": fails,
            }
    return out, figures


def _wrong(r: Row) -> str:
    gains = sorted(r["gains"].items(), key=lambda kv: -kv[1])[:3]
    total = sum(r["attribution"].values()) or 1
    where = {k: round(v / total, 2) for k, v in sorted(r["attribution"].items(), key=lambda kv: -kv[1])[:5]}
    return (f"\nWRONG {r['scenario']} seed {r['seed']} ({r['objective']}): said {r['verdict']} at {r['confidence']}, runner-up "
            f"{r['runner_up']}; truth {r['limits']} {gains} sufficient={r['sufficient']} {r['why'][:3]} from {r['evidence']}\n  time: {where}\n  {r['summary'][:260]}")  # fmt: skip
