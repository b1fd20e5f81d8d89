"""Device files: units, precedence over the catalog, and one clear line for everything that can be wrong."""

import pytest

from diagnose.devices import Roofs, resolve
from diagnose.devices.device_file import load_device_file
from diagnose.errors import InputError

GOOD = """
[device]
name = "NVIDIA H100 80GB HBM3"
sm_count = 132
memory_bytes = 85018279936
[[roof]]
resource = "hbm"
peak = 3352.0
sustained = [[16e6, 2000.0], [128e6, 3000.0]]
provenance = "measured"
[[roof]]
resource = "compute"
dtype = "bf16"
sustained = 700
provenance = "measured"
[[roof]]
resource = "kernel_floor"
sustained = 1.5
provenance = "measured"
[[roof]]
resource = "link_h2d"
sustained = 25.0
"""


def write(tmp_path, text):
    path = tmp_path / "device.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_points_are_rates_with_the_floor_and_win_over_the_catalog(tmp_path):
    roofs = resolve(str(write(tmp_path, GOOD)))
    assert roofs.spec.key == "h100-sxm"
    assert roofs.spec.peak_bandwidth == 3352e9
    assert roofs.kernel_floor_ns == 1500
    # at a point: size over rate; 16e6 B / 2000e9 B/s = 8 µs, 128e6 / 3000e9 = 42.67 µs
    assert roofs.memory_ns(16e6) == pytest.approx(8000)
    assert roofs.memory_ns(128e6) == pytest.approx(128e6 / 3000e9 * 1e9)
    # beyond the last point its rate holds; below the first a line from the floor: 1.5 + (8 - 1.5) / 2
    assert roofs.memory_ns(1.28e9) == pytest.approx(1.28e9 / 3000e9 * 1e9)
    assert roofs.memory_ns(8e6) == pytest.approx(1500 + 6500 / 2)
    # half way in log: the geometric mean of the rates
    middle = (16e6 * 128e6) ** 0.5
    assert roofs.memory_ns(middle) == pytest.approx(middle / (2000e9 * 3000e9) ** 0.5 * 1e9)
    # a single number is a rate beyond the floor
    assert roofs.compute_ns(7e9, "bf16") == pytest.approx(1500 + 7e9 / 700e12 * 1e9)
    assert roofs.ridge("bf16") == pytest.approx(700e12 / 3000e9)
    assert roofs.link_rate("h2d") == 25e9
    # what the file leaves out comes from the catalog
    assert roofs.compute_ns(1e12, "fp8") is not None
    assert roofs.ideal_ns(7e9, 1e6, "bf16").provenance == "measured"
    assert {r["resource"] for r in roofs.rows() if r["provenance"] == "measured"} >= {"hbm", "compute"}


def test_cpu_file_gives_roofs_to_the_host(tmp_path):
    text = """
[device]
name = "cpu"
[[roof]]
resource = "hbm"
peak = 40.0
sustained = [[1e6, 90.0], [1e8, 20.0]]
provenance = "measured"
[[roof]]
resource = "compute"
dtype = "fp32"
sustained = 0.2
provenance = "measured"
[[roof]]
resource = "kernel_floor"
sustained = 3.0
provenance = "measured"
"""
    roofs = resolve(str(write(tmp_path, text)))
    assert roofs.spec.is_cpu
    # 2 x 64 x 1024 x 1024 FLOP at 0.2 TFLOP/s = 671 µs, plus the floor
    flops = 2 * 64 * 1024 * 1024
    ideal = roofs.ideal_ns(flops, 4.5e6, "fp32", m=64, n=1024, k=1024)
    assert ideal.compute_ns == pytest.approx(3000 + flops / 0.2e12 * 1e9)
    assert ideal.resource == "compute"
    assert roofs.plateau_bandwidth == 20e9


def test_base_fills_an_unknown_name(tmp_path):
    file = load_device_file(write(tmp_path, '[device]\nname = "H800 in a cloud"\nbase = "h100-sxm"\n'))
    assert file.spec.name == "H800 in a cloud"
    assert file.spec.peak_compute["bf16"] == 989.4e12
    unknown = load_device_file(write(tmp_path, '[device]\nname = "H800 in a cloud"\n'))
    assert unknown.spec.key == "file"
    assert Roofs.of(unknown).rows() == []


HEAD = '[device]\nname = "x"\n'
BAD = [
    ("", "no [device]"),
    ("[device]\n", "name is missing"),
    ("[device\n", "not valid TOML"),
    (HEAD + "colour = 1\n", "unknown key 'colour'"),
    (HEAD + "sm_count = 0\n", "sm_count"),
    (HEAD + "sm_count = true\n", "sm_count"),
    (HEAD + "memory_bytes = 1.5\n", "memory_bytes"),
    (HEAD + 'base = "h100"\n', "h100-sxm"),
    (HEAD + "[roof]\n", "[[roof]]"),
    (HEAD + "[[roof]]\npeak = 1\n", "resource must be one of"),
    (HEAD + '[[roof]]\nresource = "hbm"\n', "neither peak nor sustained"),
    (HEAD + '[[roof]]\nresource = "hbm"\npeak = -1\n', "peak must be a number above 0"),
    (HEAD + '[[roof]]\nresource = "hbm"\npeak = nan\n', "peak must be a number above 0"),
    (HEAD + '[[roof]]\nresource = "hbm"\npeak = "fast"\n', "peak must be a number above 0"),
    (HEAD + '[[roof]]\nresource = "hbm"\ndtype = "bf16"\npeak = 1\n', "dtype belongs to compute"),
    (HEAD + '[[roof]]\nresource = "compute"\npeak = 1\n', "dtype of a compute roof"),
    (HEAD + '[[roof]]\nresource = "hbm"\nsustained = []\n', "empty list"),
    (HEAD + '[[roof]]\nresource = "hbm"\nsustained = [1, 2]\n', "[size, rate] pairs"),
    (HEAD + '[[roof]]\nresource = "hbm"\nsustained = [[2e6, 1.0], [1e6, 2.0]]\n', "must ascend"),
    (HEAD + '[[roof]]\nresource = "launch"\nsustained = [[1.0, 1.0], [2.0, 2.0]]\n', "one number"),
    (HEAD + '[[roof]]\nresource = "hbm"\npeak = 1\nprovenance = "guessed"\n', "provenance must be"),
    (HEAD + '[[roof]]\nresource = "hbm"\npeak = 1\n' * 2, "a second roof for hbm"),
]


@pytest.mark.parametrize(("text", "says"), BAD)
def test_one_clear_line_for_each_mistake(tmp_path, text, says):
    path = write(tmp_path, text)
    with pytest.raises(InputError) as error:
        load_device_file(path)
    message = str(error.value)
    assert says in message
    assert str(path) in message
    assert "\n" not in message


def test_unreadable_files(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        resolve(str(tmp_path / "absent.toml"))
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        load_device_file(binary)
    large = tmp_path / "large.toml"
    large.write_text("#" * (1 << 20) + "\n#")
    with pytest.raises(InputError, match="too large"):
        load_device_file(large)
