"""Which device ran the trace, and how fast it can go: the catalog, device files and roofs."""

from diagnose.devices.catalog import by_key, catalog_keys
from diagnose.devices.device_file import DeviceFile, load_device_file
from diagnose.devices.match import Match, match_device
from diagnose.devices.resolve import resolve
from diagnose.devices.roofs import Ideal, Roofs
from diagnose.devices.spec import DTYPES, DeviceSpec
from diagnose.devices.table import roof_rows, roofs_table

__all__ = [
    "DTYPES",
    "DeviceFile",
    "DeviceSpec",
    "Ideal",
    "Match",
    "Roofs",
    "by_key",
    "catalog_keys",
    "load_device_file",
    "match_device",
    "resolve",
    "roof_rows",
    "roofs_table",
]
