"""What `--device KEY|FILE.toml` names."""

from pathlib import Path

from diagnose.devices.catalog import by_key
from diagnose.devices.device_file import load_device_file
from diagnose.devices.roofs import Roofs


def resolve(arg: str) -> Roofs:
    """The roofs of a catalog key, or of a device file: anything that ends in .toml or is a file.

    Raises UsageError for an unknown key, InputError for a bad file.
    """
    if arg.lower().endswith(".toml") or Path(arg).is_file():
        return Roofs.of(load_device_file(Path(arg)))
    return Roofs(by_key(arg))
