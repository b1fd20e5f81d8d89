"""Every shipped rule, and the user's own."""

import importlib.util
import sys
from importlib.metadata import entry_points
from pathlib import Path

from diagnose.errors import UsageError
from diagnose.rules import (
    communication,
    compute,
    copies,
    hbm,
    host_input,
    host_sync,
    imbalance,
    kernel_inefficiency,
    kv_capacity,
    launch_gaps,
    power,
    scheduling_gaps,
)
from diagnose.rules.base import Rule
from diagnose.rules.experiments import BY_ID

_MODULES = (
    compute,
    hbm,
    kernel_inefficiency,
    launch_gaps,
    host_sync,
    scheduling_gaps,
    host_input,
    copies,
    communication,
    imbalance,
    power,
    kv_capacity,
)


def _check(rule: object, origin: str) -> Rule:
    if not isinstance(rule, Rule):
        raise TypeError(f"{origin} has no RULE of type Rule")
    unknown = [e for e in rule.experiments if e not in BY_ID]
    if not rule.experiments or unknown:
        raise ValueError(
            f"{origin}: a rule needs an experiment known to diagnose.rules.experiments, got {list(rule.experiments)}"
        )
    return rule


def shipped() -> list[Rule]:
    """The rules of this package, each with its module's docstring as documentation."""
    from dataclasses import replace

    return [_check(replace(m.RULE, doc=(m.__doc__ or "").strip()), m.__name__) for m in _MODULES]


def load(folder: Path | None = None) -> tuple[list[Rule], list[str]]:
    """Shipped rules, rules of installed packages (entry point `diagnose.rules`) and those of `folder`.

    Returns the rules and one line for each that is broken; the rest run. UsageError when `folder` is no folder.
    """
    rules, broken = shipped(), []
    for point in entry_points(group="diagnose.rules"):
        try:
            rules.append(_check(point.load(), point.name))
        except Exception as error:  # a stranger's module may raise anything
            broken.append(f"rule {point.name} from an installed package is broken and was left out: {error}")
    if folder is not None:
        if not folder.is_dir():
            raise UsageError(f"--rules {folder} is not a folder of rule files")
        for path in sorted(folder.glob("*.py")):
            try:
                rules.append(_from_file(path))
            except Exception as error:
                broken.append(
                    f"rule file {path.name} is broken and was left out: {type(error).__name__}: {error}"
                )
    seen: dict[str, Rule] = {}
    for rule in rules:
        if rule.id in seen:
            broken.append(f"rule {rule.id} is defined twice; the first was kept")
        seen.setdefault(rule.id, rule)
    return list(seen.values()), broken


def _from_file(path: Path) -> Rule:
    from dataclasses import replace

    name = f"diagnose_user_rule_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("not importable")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    rule = _check(getattr(module, "RULE", None), path.name)
    sql = path.with_name(rule.sql)
    text = sql.read_text(encoding="utf-8") if rule.sql.endswith(".sql") else rule.sql
    return replace(rule, sql=text, doc=(module.__doc__ or "").strip())
