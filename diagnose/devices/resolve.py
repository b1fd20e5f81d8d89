"""What `--device KEY|FILE.toml` names."""

from pathlib import Path

from diagnose.devices.catalog import by_key
from diagnose.devices.device_file import DeviceFile, load_device_file


def resolve(arg: str) -> DeviceFile:
    """A catalog key, or a device file: anything that ends in .toml or is a file.

    Raises UsageError for an unknown key, InputError for a bad file.
    """
    if arg.lower().endswith(".toml") or Path(arg).is_file():
        return load_device_file(Path(arg))
    return DeviceFile(spec=by_key(arg), roofs=(), path=None)
