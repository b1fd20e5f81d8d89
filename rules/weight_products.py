"""The matrix products of a phase that stream 16-bit weights, and what FP8 weights would make of each.

The gain of quantised weights depends on the matrix and on the rows: measured ratios run from 2.1 x on large matrices to
0.5 x on small ones. Each product is looked up at its own size (`diagnose.serving.quant_predict`), never by a rule of thumb.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from diagnose.store import Store
from diagnose.store.sqlfile import read_sql


@dataclass(frozen=True, slots=True)
class WeightProduct:
    """Products of one shape and bound in a phase: `ns` their time in the phase, `rows` M, `megabytes` of bf16 weights.

    `launches`: a step; `in_graph`: replayed, so that an added kernel costs the host nothing.
    """

    bound: str
    ns: float
    rows: int
    megabytes: float
    launches: float
    in_graph: bool


def weight_products(store: Store) -> dict[tuple[int, str], tuple[WeightProduct, ...]]:
    """By (device, phase)."""
    found: dict[tuple[int, str], list[WeightProduct]] = {}
    for r in store.dicts(read_sql("diagnose.rules", "weight_products.sql")):
        product = WeightProduct(
            r["bound"], r["own_ns"], r["m"], 2e-6 * r["n"] * r["k"], r["launches"], bool(r["in_graph"])
        )
        found.setdefault((r["device_id"], r["phase"]), []).append(product)
    return {key: tuple(value) for key, value in found.items()}


def quantised(
    products: Iterable[WeightProduct], bound: str, device: str, unmeasured: tuple[float, float]
) -> tuple[float, float]:
    """(low, high) factor on the time of a bound's products under FP8 weights, weighted by time.

    `unmeasured` stands for products whose size was not measured on such a device. Half of a product's deviation from the
    table is taken to be its own, half the device's and its library's: half the variance adds up, half of it in quadrature.
    """
    # Read only where a step streams weights: a call imports what it uses.
    from diagnose.serving.quant_predict import find_ratio

    middle = together = squares = total = 0.0
    for p in products:
        if p.bound != bound:
            continue
        ratio = find_ratio("fp8", device, p.rows, p.megabytes)
        low, high = (
            unmeasured if ratio is None or ratio.scope != "kernel" else (1 / ratio.high, 1 / ratio.low)
        )
        total += p.ns
        middle += p.ns * (low + high) / 2
        half = p.ns * (high - low) / 2
        together += half
        squares += half * half
    if not total:
        return unmeasured
    spread = (0.5 * together**2 + 0.5 * squares) ** 0.5
    return (middle - spread) / total, (middle + spread) / total
