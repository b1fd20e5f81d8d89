"""Sharing an operator's cost among the kernels that it launched, by what each of them does."""

import re

from diagnose.costs.families import family
from diagnose.costs.op import OpCost, Part


def share(
    cost: OpCost, kernels: tuple[str, ...], direct: tuple[bool, ...], mean_ns: tuple[float, ...]
) -> list[OpCost | None]:
    """The cost of each kernel of one operator call, None where nothing defensible is known.

    `direct[i]`: the operator launched kernel i itself (else a child operator without a model did);
    `mean_ns[i]` its mean duration. Helper kernels (layout changes, split-K sums, biases) take the parts that
    name them. What is left is the main work: one kernel takes all of it; several share it in proportion to
    their time, that is, at one rate.
    """
    result: list[OpCost | None] = [None] * len(kernels)
    left = dict.fromkeys(range(len(cost.parts)), 0)
    main = []
    for i, name in enumerate(kernels):
        part = _take(cost, name, left)
        if part is not None:
            result[i] = _of_part(cost, part)
        elif _accepts(cost, name, direct[i], len(kernels)):
            main.append(i)
    if not main and any(r is None for r in result):
        # The operator's work had to be done by something: kernels of an unexpected family that it launched
        # itself.
        main = [i for i, r in enumerate(result) if r is None and direct[i]]
    whole = sum(mean_ns[i] for i in main)
    for i in main:
        part_of_time = 1.0 if len(main) == 1 else (mean_ns[i] / whole if whole > 0 else 1.0 / len(main))
        result[i] = cost.scaled(part_of_time) if len(main) > 1 else cost
    return result


def _take(cost: OpCost, name: str, used: dict[int, int]) -> Part | None:
    for j, part in enumerate(cost.parts):
        if (part.count == 0 or used[j] < part.count) and re.search(part.pattern, name):
            used[j] += 1
            return part
    return None


def _of_part(cost: OpCost, part: Part) -> OpCost:
    return OpCost(
        part.flops,
        part.bytes_min,
        part.dtype or (cost.dtype if part.flops else None),
        cost.shape,
        part.role,
        bytes_high=part.bytes_high,
    )


def _accepts(cost: OpCost, name: str, direct: bool, kernels: int) -> bool:
    if not cost.families:
        return direct or kernels == 1
    kind = family(name)
    return kind in cost.families and (direct or kind != "other")
