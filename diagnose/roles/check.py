"""What speaks against an alignment: known shapes, formats, widths and windows in names, times no device can reach.

A count that fits is not enough: any contradiction means that the model, or the reading, is wrong, and then no
kernel gets a cost from its role.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

from diagnose.costs.op import OpCost
from diagnose.devices import Roofs
from diagnose.roles.kinds import weight_math, widths
from diagnose.roles.work import Work

MIN_KNOWN_AGREE = 0.9
"""Share of the products with recorded shapes whose shape must be the role's."""
SPREAD = 15.0
"""Products of one step reach shares of their roofs within this factor of each other, where each runs for several
kernel floors: a kernel that unpacks weights may take ten times its roof beside one that sits on it, hardly more."""
FLOORS = 6.0
ABOVE_PEAK = 1.1
MAX_SPLIT = 32
"""Blocks may share a tile's sum (split K) this many ways."""
WINDOW_SLOWER = 1.5
"""A windowed layer's attention reads no more than a full one's; slower than this many times says the layers are off."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A kernel with its layer and role, and what is known of it."""

    layer: int
    role: str
    name: str
    dur_ns: float
    known: tuple[int, int, int] | None = None
    blocks: int = 0
    cost: OpCost | None = None


def shapes(placed: Sequence[Placed], work: Work) -> str | None:
    """Recorded product shapes against the roles'."""
    known = [p for p in placed if p.known is not None and work.gemm(p.layer, p.role) is not None]
    wrong = []
    for p in known:
        g = work.gemm(p.layer, p.role)
        assert p.known is not None and g is not None
        if {p.known[1], p.known[2]} != {g.n, g.k} and p.known[0] not in (g.n, g.k):
            wrong.append((p, g))
    if known and len(wrong) > (1 - MIN_KNOWN_AGREE) * len(known):
        p, g = wrong[0]
        assert p.known is not None
        return f"a recorded product is {p.known[2]} -> {p.known[1]} where {p.role} of {work.model.name} is {g.k} -> {g.n}"
    return None


def formats(placed: Sequence[Placed], work: Work) -> str | None:
    """Weight formats in kernel names against the config's quantisation."""
    seen: set[tuple[str, str]] = set()
    for p in placed:
        if work.gemm(p.layer, p.role) is None and p.role != "experts":
            continue
        if (p.role, p.name) in seen or p.role in ("k_up", "v_up", "head"):
            continue
        seen.add((p.role, p.name))
        said = weight_math(p.name)
        if said is None:
            continue
        role = "experts_down" if p.role == "experts" else p.role
        bits = work.weight_bits(p.layer, role)
        stored = "16-bit" if bits is None else f"{bits:g}-bit"
        fits = {"16": bits is None, "packed": bits is not None and bits <= 8, "fp4": bits == 4, "fp8": bits == 8,
                "int8": bits == 8}[said]  # fmt: skip
        if said == "fp8" and bits == 4:
            fits = work.weight_bits(p.layer, role, activations=True) == 8
        if not fits:
            return f"the kernels of {p.role} multiply {said if said != '16' else '16-bit'} weights, the config stores {stored} ones"
    return None


def names(placed: Sequence[Placed], work: Work) -> str | None:
    """Widths and windows in names against the model's."""
    model = work.model
    for name, role, layer in {(p.name, p.role, p.layer) for p in placed}:
        plan, said = model.plan[layer], widths(name)
        heads, kv = max(1, plan.heads // work.tp), max(1, plan.kv_heads // work.tp)
        if role == "attention" and plan.attention != "mla":
            if said.head_dim is not None and said.head_dim not in (plan.head_dim, plan.v_head_dim):
                return f"attention kernels have heads of {said.head_dim}, {model.name} of {plan.head_dim}"
            if said.group is not None and said.group != heads // kv:
                return f"attention kernels have {said.group} query heads a KV head, {model.name} has {heads // kv}"
            if "Sliding" in name and plan.window is None:
                return f"layer {layer} runs a sliding-window kernel, {model.name} has no window there"
        if role == "kv_write" and said.kv_row_bytes is not None and plan.attention != "mla":
            row = kv * plan.head_dim
            if said.kv_row_bytes not in (row, 2 * row):  # keys of 8 or 16 bits
                return f"cache writes move {said.kv_row_bytes} B a token and layer, {model.name} has {kv} x {plan.head_dim} keys"
        if role == "activation" and not model.gated_mlp and re.search(r"_and_mul|swiglu|geglu", name, re.I):
            return f"the layers run a gated activation, the MLP of {model.name} has no gate"
        if (
            role == "norm"
            and said.norm_block is not None
            and not said.norm_block / 4 < model.hidden <= said.norm_block
        ):
            return f"norm kernels hold rows of up to {said.norm_block}, {model.name} is {model.hidden} wide"
    return None


_TENSILE = re.compile(r"^Cijk_\w*?_MT(\d+)x(\d+)x\d+_\w*_SK0_")


def tiles(placed: Sequence[Placed], work: Work, rows: int) -> str | None:
    """Tensile kernels launch one block a tile of their result, and name the tile: the grid tells the result's size."""
    for p in placed:
        g, tile = work.gemm(p.layer, p.role), _TENSILE.match(p.name)
        if g is None or tile is None or not p.blocks or p.role in ("k_up", "v_up", "head"):
            continue
        a, b = int(tile.group(1)), int(tile.group(2))
        fits = (ceil(g.n / a) * ceil(rows / b), ceil(rows / a) * ceil(g.n / b))
        if not any(p.blocks % f == 0 and p.blocks <= MAX_SPLIT * f for f in fits):
            return f"{p.role} runs {p.blocks} blocks of {a}x{b}, {rows} x {g.n} of {work.model.name} needs {fits[0]}"
    return None


def collectives(count: int, work: Work, layers: int, pp: int) -> str | None:
    """Ranks that share a layer must talk in it, and only they do."""
    if work.tp > 1 and not count:
        return f"no collectives in the step, {work.tp} ranks would need two a layer"
    if work.tp == 1 and work.ep == 1 and pp == 1 and count >= layers:
        return f"{count} collectives in a step of {layers} layers: give the --tp (or --ep) it ran with"
    return None


def windows(placed: Sequence[Placed], work: Work) -> str | None:
    """Layers with and without a window must not share the times or swap the kernels of each other."""
    times: dict[bool, list[float]] = defaultdict(list)
    kernels: dict[bool, set[str]] = defaultdict(set)
    for p in placed:
        if p.role == "attention":
            windowed = work.model.plan[p.layer].window is not None
            times[windowed].append(p.dur_ns)
            kernels[windowed].add(p.name)
    if len(times) < 2:
        return None
    both = kernels[True] & kernels[False]
    if both and both != kernels[True] | kernels[False]:
        return "the attention kernels alternate otherwise than the layers' windows"
    if median(times[True]) > WINDOW_SLOWER * median(times[False]):
        return "layers with a window would attend longer than layers without one"
    return None


def rates(placed: Sequence[Placed], roofs: Roofs | None) -> str | None:
    """Products against what the device can do, each role by its median time."""
    if roofs is None:
        return None
    by_role: dict[tuple[str, OpCost], list[float]] = defaultdict(list)
    for p in placed:
        if p.cost is not None and p.cost.flops and p.role not in ("attention", "merge"):
            by_role[p.role, p.cost].append(p.dur_ns)
    shares: dict[str, float] = {}
    for (role, cost), times in by_role.items():
        if cost.m is None and not role.startswith("experts"):
            continue
        time = median(times)
        if time < FLOORS * roofs.kernel_floor_ns:
            continue
        ideal = roofs.ideal_ns(
            cost.flops, cost.bytes_min, cost.dtype, m=cost.m, n=cost.n, k=cost.k, batch=cost.batch or 1
        )
        if ideal is None:
            continue
        peak = roofs.spec.peak_compute.get(cost.dtype or "")
        bandwidth = roofs.spec.peak_bandwidth
        least = max(cost.flops / peak if peak else 0.0, cost.low / bandwidth if bandwidth else 0.0) * 1e9
        if least > ABOVE_PEAK * time and not roofs.l2_resident(cost.bytes_min):
            return f"{role} would run {least / time:.1f} x faster than the datasheet's peak"
        shares[role] = ideal.ns / time
    if len(shares) >= 2 and max(shares.values()) > SPREAD * min(shares.values()):
        fast, slow = max(shares, key=shares.__getitem__), min(shares, key=shares.__getitem__)
        return (
            f"{fast} would reach {shares[fast] / shares[slow]:.0f} x the share of its roof that {slow} does"
        )
    return None
