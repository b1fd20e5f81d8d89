"""Roofs as rows, for `diagnose roofs` and the result's `devices[].roofs`."""

from diagnose.devices.roofs import Roofs
from diagnose.devices.spec import DeviceSpec


def roof_rows(roofs: Roofs) -> list[dict[str, str | float | None]]:
    """One dictionary a roof with the fields of `contract.RoofRow`."""
    return roofs.rows()


def roofs_table(spec: DeviceSpec) -> list[dict[str, str | float | None]]:
    """The roofs of a catalogued device."""
    return Roofs(spec).rows()
