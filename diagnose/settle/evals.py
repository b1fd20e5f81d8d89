"""Quality beside speed: results of lm-evaluation-harness on both sides, task by task with standard errors."""

import json
from pathlib import Path
from typing import Any

from diagnose.errors import InputError
from diagnose.settle.judge import holm
from diagnose.settle.student import p_value

NOT_MEASURED = "quality was not measured; evaluate it (lm-evaluation-harness on both sides, then --eval BEFORE.json AFTER.json)"
MAX_BYTES = 64 << 20


def read_eval(path: Path) -> dict[str, Any]:
    """A results file of lm-evaluation-harness. InputError when it is none."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(
                f"{path}: larger than 64 MiB; give the results file of lm-evaluation-harness, not its samples"
            )
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}; give the results file of lm-evaluation-harness"
        ) from None
    except (ValueError, RecursionError):
        raise InputError(
            f"{path} is no JSON; give the results file of lm-evaluation-harness (results_*.json)"
        ) from None
    if not isinstance(data, dict) or not isinstance(data.get("results"), dict):
        raise InputError(
            f"{path} holds no `results`; give the results file of lm-evaluation-harness (results_*.json)"
        )
    return data


def scores(data: dict[str, Any]) -> dict[tuple[str, str], tuple[float, float | None, bool]]:
    """(task, metric) -> (value, standard error, higher is better). Keys are spelt `acc,none` and `acc_stderr,none`."""
    out = {}
    better = data.get("higher_is_better") or {}
    for task, row in data["results"].items():
        if not isinstance(row, dict):
            continue
        for key, value in row.items():
            name, _, variant = key.partition(",")
            if name.endswith("_stderr") or not isinstance(value, int | float) or isinstance(value, bool):
                continue
            # Counts and the task's own name are listed among the metrics; they are no scores.
            if name in ("alias", "sample_len") or f"{name}_stderr" not in {k.partition(",")[0] for k in row}:
                continue
            error = row.get(f"{name}_stderr,{variant}" if variant else f"{name}_stderr")
            stderr = float(error) if isinstance(error, int | float) and not isinstance(error, bool) else None
            ask = better.get(task) if isinstance(better.get(task), dict) else {}
            label = f"{name} ({variant})" if variant not in ("", "none") else name
            out[task, label] = (
                float(value),
                stderr,
                bool((ask or {}).get(name, "perplexity" not in name and name != "bits_per_byte")),
            )
    return out


def quality(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Task deltas: {tasks: [{task, metric, before, after, change, stderr, verdict, ...}], verdict, message}.

    The error of a difference is the root of both squared errors: the same questions were asked on both sides, so this
    errs on the wide side. Tasks of another version or number of shots are named and not judged. Holm over all tasks.
    """
    left, right = scores(before), scores(after)
    rows: list[dict[str, Any]] = []
    for key in [k for k in left if k in right]:
        (a, ea, higher), (b, eb, _) = left[key], right[key]
        task, metric = key
        differs = _differs(before, after, task)
        stderr = (ea**2 + eb**2) ** 0.5 if ea is not None and eb is not None else None
        rows.append({
            "task": task, "metric": metric, "before": a, "after": b, "change": b - a, "stderr": stderr, "higher_is_better": higher,
            "verdict": "withheld" if differs else "inconclusive", "reason": differs,
        })  # fmt: skip
    able = [r for r in rows if r["verdict"] != "withheld" and r["stderr"]]
    for row, beyond in zip(able, holm([p_value(r["change"] / r["stderr"], 1e6) for r in able]), strict=True):
        if beyond:
            row["verdict"] = "improved" if (row["change"] > 0) == row["higher_is_better"] else "regressed"
        else:
            row["verdict"] = "no_change" if row["change"] == 0 else "inconclusive"
            row["reason"] = None if row["change"] == 0 else "within the standard error of both evaluations"
    alone = sorted({k[0] for k in left} ^ {k[0] for k in right})
    return {
        "tasks": rows,
        "only_on_one_side": alone,
        "message": _message(rows),
        "source": "lm-evaluation-harness",
    }


def _differs(before: dict[str, Any], after: dict[str, Any], task: str) -> str | None:
    for key, what in (("versions", "task version"), ("n-shot", "number of shots")):
        a, b = (d.get(key, {}).get(task) if isinstance(d.get(key), dict) else None for d in (before, after))
        if a is not None and b is not None and a != b:
            return f"{what} differs: {a} before, {b} after"
    return None


def _message(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "the two evaluations share no task; " + NOT_MEASURED
    worse = [r for r in rows if r["verdict"] == "regressed"]
    better = [r for r in rows if r["verdict"] == "improved"]
    if not worse and not better:
        widest = max((1.96 * r["stderr"] for r in rows if r["stderr"]), default=None)
        bound = f"; changes up to {widest:.3g} would not show" if widest else ""
        return f"no score moved beyond its standard error in {len(rows)} comparisons{bound}"
    text = []
    for word, found in (("worse", worse), ("better", better)):
        if found:
            listed = ", ".join(
                f"{r['task']} {r['metric']} {r['before']:.4g} → {r['after']:.4g} (± {1.96 * r['stderr']:.2g})"
                for r in found[:4]
            )
            text.append(f"{word}: {listed}")
    return "; ".join(text)
