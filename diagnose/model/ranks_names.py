"""Which rank each trace of a call is: what the user says, else what the trace says, else the order given."""

import re

from diagnose.errors import UsageError


def assign_ranks(names: list[str], recorded: list[int | None], pattern: str | None = None) -> list[int]:
    """Rank of each trace, by file name and the rank recorded in it (None where it records none).

    `pattern` is a regular expression whose first group, or whole match, is the rank in the file name; it wins
    over what is recorded. Traces left without a rank take the lowest free numbers in the order given.
    UsageError when the pattern is invalid or does not fit every name, or two traces are of one rank.
    """
    found = recorded if pattern is None else [_by_pattern(pattern, name) for name in names]
    seen: dict[int, str] = {}
    for name, rank in zip(names, found, strict=True):
        if rank is None:
            continue
        if rank in seen:
            raise UsageError(
                f"{seen[rank]} and {name} are both rank {rank}: give one trace a rank, or tell them apart with "
                "--rank-regex"
            )
        seen[rank] = name
    free = iter(rank for rank in range(len(names) + len(seen)) if rank not in seen)
    return [next(free) if rank is None else rank for rank in found]


def _by_pattern(pattern: str, name: str) -> int:
    try:
        match = re.search(pattern, name)
    except re.error as error:
        raise UsageError(f"--rank-regex {pattern!r} is no regular expression ({error})") from error
    text = match.group(1 if match.re.groups else 0) if match else None
    if text is None or not text.isdigit():
        raise UsageError(
            f"--rank-regex {pattern!r} finds no number in {name}: its first group must be the rank"
        )
    return int(text)
