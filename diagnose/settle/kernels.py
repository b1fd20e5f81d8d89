"""The same kernel on both sides: by role, operator and shape, then by role and shape, by name, and last by role alone.

A kernel that was renamed or replaced (another GEMM backend, a fused variant) still does the same work: it is found by
its role and shape, and called the same work done differently.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from diagnose.contract import KernelRow
from diagnose.settle.roles import coarse, plain, weight_format, without_context
from diagnose.settle.side import Run, Side

COLLECTIVE = "collective"


@dataclass(slots=True)
class Calls:
    """Calls of a kernel in one run: number, total time and the standard error of the mean, in ns."""

    count: int = 0
    time_ns: int = 0
    told: int = 0
    told_variance: float = 0.0

    def add(self, row: KernelRow) -> None:
        """Count a row in. Rows are independent, so the variances of their totals add."""
        self.count += row.count
        self.time_ns += row.time_ns
        if row.se_ns is not None:
            self.told += row.count
            self.told_variance += (row.se_ns * row.count) ** 2

    def join(self, other: "Calls") -> None:
        """Count another group in."""
        self.count += other.count
        self.time_ns += other.time_ns
        self.told += other.told
        self.told_variance += other.told_variance

    @property
    def mean_ns(self) -> float:
        """Mean duration."""
        return self.time_ns / self.count

    @property
    def variance(self) -> float | None:
        """Variance of the total time: that of the calls whose spread is known, scaled to all of them; None for too few."""
        return self.told_variance * self.count / self.told if self.told >= 3 else None


@dataclass(slots=True)
class Group:
    """Kernels of one kind on one side, with their calls in each run."""

    phase: str
    role: str | None
    op: str | None
    shape: str | None
    family: str
    names: dict[str, int]
    bounds: dict[str, int]
    dtypes: dict[str, int]
    bytes: float | None
    runs: list[Calls]
    shaped: bool = False  # whether the shapes of its calls are known
    grows: bool = (
        False  # its shape holds a context length that was left out, so its work grows with the context
    )

    @property
    def word(self) -> str:
        """What it is for, in the words both sides share."""
        return coarse(self.role, self.family)

    @property
    def name(self) -> str:
        """The name that takes most of its time."""
        return max(self.names, key=lambda n: self.names[n])

    @property
    def bound(self) -> str:
        """The bound that takes most of its time."""
        return max(self.bounds, key=lambda n: self.bounds[n])

    @property
    def dtype(self) -> str | None:
        """The dtype that takes most of its time, where one is known."""
        return max(self.dtypes, key=lambda n: self.dtypes[n]) if self.dtypes else None

    @property
    def weights(self) -> str | None:
        """The dtype its weights are stored in, for products."""
        return weight_format(self.role, self.family, self.dtype, self.shape)

    @property
    def time_ns(self) -> int:
        """Time over all runs."""
        return sum(r.time_ns for r in self.runs)


@dataclass(slots=True)
class Pair:
    """The same work on both sides; `by`: role and shape ('shape'), 'name' or 'role'."""

    before: Group
    after: Group
    by: str

    @property
    def renamed(self) -> bool:
        """Whether another kernel does the work now."""
        return not set(self.before.names) & set(self.after.names)


@dataclass(slots=True)
class Matched:
    """Pairs, longest first, and what has no partner."""

    pairs: list[Pair] = field(default_factory=list)
    only_before: list[Group] = field(default_factory=list)
    only_after: list[Group] = field(default_factory=list)


def groups(side: Side) -> list[Group]:
    """Kernels of all runs of a side by phase, role, operator and shape (by name where no shape is known)."""
    found: dict[tuple[Hashable, ...], Group] = {}
    for at, run in enumerate(side.runs):
        ops = _ops(run)
        for row in run.kernels:
            if row.phase is None:
                continue
            shape = row.shape
            if shape is not None and row.phase in ("decode", "mixed"):
                shape = without_context(shape)
            op = row.op or ops.get((row.name, row.role, row.shape))
            key = (row.phase, row.role or row.family, op, shape, None if shape is not None else row.name)
            group = found.get(key)
            if group is None:
                runs = [Calls() for _ in side.runs]
                group = found[key] = Group(
                    row.phase,
                    row.role,
                    op,
                    shape,
                    row.family,
                    {},
                    {},
                    {},
                    None,
                    runs,
                    shape is not None,
                    shape != row.shape,
                )
            group.runs[at].add(row)
            for counts, value in (
                (group.names, row.name),
                (group.bounds, row.bound),
                (group.dtypes, row.dtype),
            ):
                if value is not None:
                    counts[value] = counts.get(value, 0) + row.time_ns
            if row.bytes is not None:
                group.bytes = (group.bytes or 0.0) + row.bytes
    return list(found.values())


def _ops(run: Run) -> dict[tuple[str, str | None, str | None], str]:
    """Operators of kernels that are linked to one elsewhere in the trace, where there is only one to choose."""
    known: dict[tuple[str, str | None, str | None], set[str]] = {}
    for row in run.kernels:
        if row.op is not None:
            known.setdefault((row.name, row.role, row.shape), set()).add(row.op)
    return {key: next(iter(ops)) for key, ops in known.items() if len(ops) == 1}


def match(before: Side, after: Side) -> Matched:
    """Pair the kernels of both sides, phase by phase."""
    left, right = groups(before), groups(after)
    out = Matched()
    passes: list[tuple[str, Callable[[Group], Hashable | None]]] = [
        ("shape", lambda g: (g.phase, g.role, g.op, g.shape) if g.shape is not None else None),
        ("shape", lambda g: (g.phase, g.word, plain(g.shape)) if g.shape is not None else None),
        ("name", lambda g: (g.phase, g.word, g.op, g.name)),
        ("name", lambda g: (g.phase, g.word, g.name)),
        ("role", lambda g: (g.phase, g.word)),
    ]
    for by, key in passes:
        left, right = _pass(by, key, left, right, out)
    out.pairs.sort(key=lambda p: -(p.before.time_ns + p.after.time_ns))
    out.only_before = sorted(left, key=lambda g: -g.time_ns)
    out.only_after = sorted(right, key=lambda g: -g.time_ns)
    return out


def _pass(
    by: str, key: Callable[[Group], Hashable | None], left: list[Group], right: list[Group], out: Matched
) -> tuple[list[Group], list[Group]]:
    """Merge what shares a key on each side and pair it; returns what is left over."""
    sides: tuple[dict[Hashable, list[Group]], dict[Hashable, list[Group]]] = ({}, {})
    rest: tuple[list[Group], list[Group]] = ([], [])
    for at, side in enumerate((left, right)):
        for group in side:
            k = key(group)
            if k is None:
                rest[at].append(group)
            else:
                sides[at].setdefault(k, []).append(group)
    for k, mine in sides[0].items():
        theirs = sides[1].pop(k, None)
        if theirs is None:
            rest[0].extend(mine)
        else:
            out.pairs.append(Pair(_merge(mine), _merge(theirs), by))
    for theirs in sides[1].values():
        rest[1].extend(theirs)
    return rest


def _merge(parts: list[Group]) -> Group:
    if len(parts) == 1:
        return parts[0]
    first = max(parts, key=lambda g: g.time_ns)
    runs = [Calls() for _ in first.runs]
    names: dict[str, int] = {}
    bounds: dict[str, int] = {}
    dtypes: dict[str, int] = {}
    for part in parts:
        for mine, other in zip(runs, part.runs, strict=True):
            mine.join(other)
        for total, more in ((names, part.names), (bounds, part.bounds), (dtypes, part.dtypes)):
            for k, ns in more.items():
                total[k] = total.get(k, 0) + ns
    known = [p.bytes for p in parts if p.bytes is not None]
    shapes = {p.shape for p in parts}
    ops = {p.op for p in parts}
    return Group(
        first.phase, first.role, first.op if len(ops) == 1 else None, first.shape if len(shapes) == 1 else None, first.family,
        names, bounds, dtypes, sum(known) if known else None, runs,
        all(p.shaped for p in parts), any(p.grows for p in parts),
    )  # fmt: skip
