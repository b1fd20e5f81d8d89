"""Several engines behind one address whose router deals requests out unevenly: each serves its own share of the clients."""

import json
from dataclasses import replace
from pathlib import Path

from sim.evidence import EPOCH, bench, scrape
from sim.serving import Serve, Served, relieved, serve
from sim.serving_truth import RELIEFS
from sim.truth import Truth, rank_gains


def run_engines(s: Serve, shares: tuple[float, ...]) -> list[Served]:
    """Every engine under its share of the clients and of the requests."""
    whole = sum(shares)
    return [
        serve(
            replace(
                relieved(
                    s,
                    load_concurrency=max(1, round(s.load.concurrency * share / whole)),
                    load_requests=max(8, round(s.load.requests * share / whole)),
                ),
                seed=s.seed * 10 + i,
            )
        )
        for i, share in enumerate(shares)
    ]


def rate(s: Serve, shares: tuple[float, ...]) -> float:
    """Output tokens a second of all engines together."""
    return sum(r.steady_throughput for r in run_engines(s, shares))


def engines_truth(s: Serve, shares: tuple[float, ...]) -> Truth:
    """The limit of throughput: each relief on every engine, and the load dealt out evenly."""
    base = rate(s, shares)
    causes = {
        cause: 1 - base / rate(relief(s), shares) for cause, (_, relief) in RELIEFS.items() if relief(s) != s
    }
    causes["engines"] = 1 - base / rate(s, (1.0,) * len(shares))
    gains: dict[str, float] = {}
    for cause, gain in causes.items():
        limit = "imbalance" if cause == "engines" else RELIEFS[cause][0]
        gains[limit] = max(gains.get(limit, 0.0), gain)
    limits, runner_up = rank_gains(gains)
    return Truth("throughput", base, "tok/s", gains, limits, runner_up)


def write_engines(
    runs: list[Served], s: Serve, kinds: frozenset[str], folder: Path, scrapes: int = 6
) -> dict[str, list[Path]]:
    """Scrapes with every engine's label, the clients' result over all, the model's config."""
    out: dict[str, list[Path]] = {}
    if "metrics" in kinds:
        # while all of them are loaded: the engine with the least to do is done first
        until = min(r.duration_s for r in runs)
        pages = []
        for i in range(scrapes):
            at = until * (0.25 + 0.5 * i / (scrapes - 1))
            text = "".join(scrape(r, at).replace('engine="0"', f'engine="{n}"') for n, r in enumerate(runs))
            pages.append(f"# scraped_at {EPOCH + at:.3f}\n{text}")
        (folder / "metrics.prom").write_text("".join(pages))
        out["metrics"] = [folder / "metrics.prom"]
    if "bench" in kinds:
        everyone = [q for r in runs for q in r.requests]
        whole = Served(s, everyone, [], runs[0].blocks, [])
        (folder / "bench.json").write_text(json.dumps(bench(whole)))
        out["bench"] = [folder / "bench.json"]
    if "config" in kinds:
        (folder / "config.json").write_text(json.dumps(s.arch.config(), indent=1))
        out["config"] = [folder / "config.json"]
    return out
