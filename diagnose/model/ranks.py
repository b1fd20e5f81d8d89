"""Collectives matched over ranks: what of each is transfer, what is waiting, and for which rank.

A rank here is one device of one store. The shortest duration of a matched collective is its transfer: the
rank that came last did not wait. Everything longer on the others is waiting, charged to that last rank.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field

from diagnose.model.bounds import write_families
from diagnose.model.ranks_align import NATURAL_NS, TOLERANCE_NS, Alignment, align
from diagnose.store import Store
from diagnose.store.sqlfile import read_sql

# Among candidates for the same communicator, one that scatters this much more than the best belongs to
# another.
_SAME_GROUP = 4.0
_ABSOLUTE_NS = 10**18  # an origin beyond this (2001) is on a clock that all hosts share
_P2P = re.compile(r"(?i)nccl:?(send|recv)(?: (\d+)(->|<-)(\d+))?")


@dataclass(frozen=True, slots=True)
class Member:
    """One rank: a device of a store. `label` is how it is named to a person."""

    store: int
    device: int
    rank: int
    label: str


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective kernel of a member, in the store's own time."""

    member: int
    kernel_id: int
    start_ns: int
    end_ns: int
    key: str

    @property
    def dur_ns(self) -> int:
        """Duration in ns."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Group:
    """One collective over its ranks. `late` is the member that came last."""

    key: str
    parts: tuple[Collective, ...]

    @property
    def transfer_ns(self) -> int:
        """The shortest duration: what the transfer took once every rank was there."""
        return min(part.dur_ns for part in self.parts)

    @property
    def late(self) -> int:
        """The member that waited least, hence came last."""
        return min(self.parts, key=lambda part: (part.dur_ns, part.member)).member


@dataclass(slots=True)
class Matching:
    """Members, matched groups in order of time, and by member the clocks.

    `skew_ns` is a member's clock minus the first member's, for clocks that name the same epoch; `shift_ns` is
    what to subtract from a member's store times to have the first member's; `spread_ns` is the median
    distance of the differences from the skew; `total` counts collectives, matched or not. A member is in none
    of them when no collective ties it to the first; `ambiguous` members fit at several shifts, the likeliest
    of which was taken.
    """

    members: list[Member]
    groups: list[Group]
    total: dict[int, int]
    skew_ns: dict[int, float] = field(default_factory=dict)
    shift_ns: dict[int, float] = field(default_factory=dict)
    spread_ns: dict[int, float] = field(default_factory=dict)
    ambiguous: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Clocks:
    """What is known of the members' clocks: origins, and alignments found so far by pair of members."""

    members: list[Member]
    origins: list[int]
    links: dict[tuple[int, int], tuple[int, float, float]] = field(default_factory=dict)

    def common(self, a: int, b: int) -> bool:
        """Whether two members' times are against one clock (to within a step, not to the microsecond)."""
        first, second = self.members[a].store, self.members[b].store
        return first == second or min(self.origins[first], self.origins[second]) > _ABSOLUTE_NS

    def offset(self, a: int, b: int) -> int:
        """What to add to the first member's times to have them against the second's 0."""
        origins = self.origins
        return origins[self.members[a].store] - origins[self.members[b].store] if self.common(a, b) else 0

    def prior(self, a: int, b: int) -> float | None:
        """Skew of b against a, directly or through one other member."""
        if (a, b) in self.links:
            return self.links[a, b][1]
        for c in range(len(self.members)):
            if (a, c) in self.links and (c, b) in self.links and self.common(a, c) == self.common(c, b):
                return self.links[a, c][1] + self.links[c, b][1]
        return None

    def learn(self, a: int, b: int, found: Alignment) -> None:
        """Keep the alignment with the most pairs."""
        if len(found.pairs) > self.links.get((a, b), (0, 0.0, 0.0))[0]:
            self.links[a, b] = (len(found.pairs), found.skew_ns, found.spread_ns)
            self.links[b, a] = (len(found.pairs), -found.skew_ns, found.spread_ns)

    def align(self, first: list[Collective], second: list[Collective]) -> Alignment | None:
        """Pair the ends of two members' sequences of one operation; None when they are not of the same
        collectives."""
        a, b = first[0].member, second[0].member
        offset = self.offset(a, b)
        found = align(
            [c.end_ns + offset for c in first],
            [c.end_ns for c in second],
            self.prior(a, b),
            self.common(a, b),
        )
        return found if found is not None and found.spread_ns <= TOLERANCE_NS else None


def match_collectives(stores: list[Store], ranks: list[int] | None = None) -> Matching | None:
    """Match the collectives of all ranks and write `collective` into every store; None with a single rank.

    Stores must be linked (`diagnose.model.link`); call it before the attribution is labelled. `ranks` gives
    the rank of each store, else `source.rank`, else the order. Writes `collective(kernel_id, group_id,
    transfer_ns, wait_ns, late_rank, late_device, ranks)`: the last `transfer_ns` of a kernel are the
    transfer, what is before is waiting.
    """
    members = _members(stores, ranks)
    if len(members) < 2:
        return None
    clocks = _Clocks(members, [int(s.scalar("SELECT min(origin_ns) FROM source") or 0) for s in stores])
    found = [_collectives(stores[m.store], index, m) for index, m in enumerate(members)]
    matching = Matching(members, [], {i: len(c) for i, c in enumerate(found)})
    by_key: dict[str, dict[int, list[Collective]]] = defaultdict(dict)
    for index, collectives in enumerate(found):
        for collective in collectives:
            by_key[collective.key].setdefault(index, []).append(collective)
    _name_peers(by_key, clocks)
    # The longest sequences first: they pin the skew down for the short ones.
    for key in sorted(by_key, key=lambda k: (-sum(map(len, by_key[k].values())), k)):
        matching.groups += _cluster(key, by_key[key], clocks, matching.ambiguous)
    _set_clocks(matching, clocks)
    matching.groups.sort(key=lambda g: min(p.end_ns - matching.shift_ns.get(p.member, 0.0) for p in g.parts))
    _write(stores, matching)
    return matching


def _members(stores: list[Store], ranks: list[int] | None) -> list[Member]:
    members = []
    for index, store in enumerate(stores):
        devices = [d for (d,) in store.rows("SELECT DISTINCT device_id FROM activity ORDER BY 1")]
        own = ranks[index] if ranks else store.scalar("SELECT any_value(rank) FROM source")
        rank = index if own is None else int(own)
        for device in devices:
            if len(stores) == 1:
                label = f"device {device}"
            else:
                label = f"rank {rank}" if len(devices) == 1 else f"rank {rank} device {device}"
            members.append(Member(index, device, rank, label))
    return members


def _collectives(store: Store, index: int, member: Member) -> list[Collective]:
    """The collective kernels of a member by end, each with the key that must agree over ranks."""
    if "name_family" not in store.names():
        write_families(store)
    rows = store.dicts(
        f"SELECT * FROM ({read_sql('diagnose.model', 'ranks_collectives.sql').rstrip().rstrip(';')}) "
        f"WHERE device_id = ?",
        member.device,
    )
    rows.sort(key=lambda r: (r["start_ns"] + r["dur_ns"], r["kernel_id"]))
    return [
        Collective(index, r["kernel_id"], r["start_ns"], r["start_ns"] + r["dur_ns"], _key(r, member.rank))
        for r in rows
    ]


def _key(row: dict[str, object], rank: int) -> str:
    """Communicator, operation and size, as far as the trace says; peers instead for a send or receive."""
    operation = str(row["collective"] or "").lower()
    group = str(row["group_ranks"] or row["group_name"] or "")
    within = _P2P.match(str(row["within"] or ""))
    kind = "send" if operation.startswith("send") else "recv" if operation.startswith("recv") else ""
    if not operation and within:
        kind = within[1].lower()
    if kind:
        source, target = row["src_rank"], row["dst_rank"]
        if within and within[2]:
            here, there = int(within[2]), int(within[4])
            source, target = (here, there) if kind == "send" else (there, here)
        source = rank if kind == "send" and source is None else source
        target = rank if kind == "recv" and target is None else target
        if source is not None and target is not None:
            return f"p2p {source}->{target} {group}"
        return f"{kind} of {rank}"
    # Uneven exchanges have a size of their own on every rank.
    size = (
        ""
        if "all_to_all" in operation or "alltoall" in operation
        else f"{row['elements'] or row['grid']} {row['dtype'] or ''}"
    )
    return f"{operation or row['name']} {size} {group}"


def _cluster(
    key: str, sequences: dict[int, list[Collective]], clocks: _Clocks, ambiguous: set[int]
) -> list[Group]:
    """Groups of one operation. Members that do not fit the reference form communicators of their own."""
    groups: list[Group] = []
    left = dict(sequences)
    while len(left) > 1:
        reference = min(left, key=lambda m: (-len(left[m]), m))
        mine = left.pop(reference)
        tried = {m: clocks.align(mine, other) for m, other in left.items()}
        good = {m: a for m, a in tried.items() if a is not None}
        best = min((a.spread_ns for a in good.values()), default=0.0)
        rows: dict[int, list[Collective]] = defaultdict(list)
        for member, alignment in good.items():
            if alignment.spread_ns > max(NATURAL_NS, _SAME_GROUP * best):
                continue
            other = left.pop(member)
            if not alignment.unique and clocks.prior(reference, member) is None:
                ambiguous.add(member)
            clocks.learn(reference, member, alignment)
            for i, j in alignment.pairs:
                rows[i].append(other[j])
        groups += [Group(key, (mine[i], *others)) for i, others in sorted(rows.items())]
    return groups


def _name_peers(by_key: dict[str, dict[int, list[Collective]]], clocks: _Clocks) -> None:
    """Sends and receives whose peers the trace does not name: each receive goes with the send that ends with
    it."""
    sends = {
        m: (key, c) for key, parts in by_key.items() if key.startswith("send of ") for m, c in parts.items()
    }
    for key in sorted(k for k in by_key if k.startswith("recv of ")):
        ((member, received),) = by_key[key].items()
        rated = [
            (alignment.spread_ns, sender)
            for sender, (_, sent) in sorted(sends.items())
            if sender != member and (alignment := clocks.align(sent, received)) is not None
        ]
        if rated:
            sender = min(rated)[1]
            send_key, sent = sends.pop(sender)
            del by_key[send_key], by_key[key]
            source, target = clocks.members[sender].rank, clocks.members[member].rank
            by_key[f"p2p {source}->{target} "] = {sender: sent, member: received}


def _set_clocks(matching: Matching, clocks: _Clocks) -> None:
    """Skew of every member's clock against the first's, over the chains with most matched collectives."""
    matching.skew_ns[0] = matching.shift_ns[0] = matching.spread_ns[0] = 0.0
    todo = set(range(1, len(matching.members)))
    while todo:
        chains = [
            (clocks.links[a, b], -a, -b) for a in matching.shift_ns for b in todo if (a, b) in clocks.links
        ]
        if not chains:
            break
        (_, skew, spread), a, b = max(chains)
        a, b = -a, -b
        matching.shift_ns[b] = matching.shift_ns[a] + clocks.offset(a, b) + skew
        matching.spread_ns[b] = spread
        if a in matching.skew_ns and clocks.common(a, b):
            matching.skew_ns[b] = matching.skew_ns[a] + skew
        todo.remove(b)


def _write(stores: list[Store], matching: Matching) -> None:
    columns: dict[int, list[tuple[int, int, int, int, int, int, int]]] = defaultdict(list)
    for group_id, group in enumerate(matching.groups):
        late = matching.members[group.late]
        for part in group.parts:
            columns[matching.members[part.member].store].append(
                (part.kernel_id, group_id, group.transfer_ns, part.dur_ns - group.transfer_ns, late.rank,
                    late.device,
                 len(group.parts))
            )  # fmt: skip
    names = ("kernel_id", "group_id", "transfer_ns", "wait_ns", "late_rank", "late_device", "ranks")
    types = ("BIGINT", "BIGINT", "BIGINT", "BIGINT", "INTEGER", "INTEGER", "INTEGER")
    for index, store in enumerate(stores):
        store.con.execute("DROP TABLE IF EXISTS collective")
        rows = columns[index]
        store.insert_columns(
            "collective",
            {name: [row[i] for row in rows] for i, name in enumerate(names)},
            dict(zip(names, types, strict=True)),
        )
