"""The verbs, help, and how the first word is read."""

import json
import subprocess
import sys

import pytest

from diagnose import __version__
from diagnose.cli.app import VERBS, command, route
from diagnose.errors import UsageError
from diagnose.store import TABLES


def test_version_is_one_line(cli):
    assert cli("--version") == (0, f"diagnose {__version__}\n", "")


def test_bare_help_lists_the_main_options(cli):
    code, out, _ = cli("--help")
    assert code == 0
    for option in ("--model", "--device", "--json", "--metrics", "--objective"):
        assert option in out
    assert "compare" in out


@pytest.mark.parametrize(
    "verb", ["query", "tables", "rules", "roofs", "kernels", "experiment", "verify", "capture", "calibrate"]
)
def test_every_verb_has_help(cli, verb):
    code, out, _ = cli(verb, "--help")
    assert code == 0
    assert out


def test_the_table_of_verbs_is_what_the_modules_register():
    assert set(command().commands) == set(VERBS)


def test_a_trace_loads_nothing_of_what_it_does_not_use(sample):
    """Start-up time: collectors, settling and serving evidence are imported when asked for."""
    code = (
        "import sys; from diagnose.cli import main; main(sys.argv[1:]); "
        "print(*[m for m in sys.modules if m.startswith('diagnose.')])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, sample, "--no-html"], capture_output=True, text=True, check=True
    )
    loaded = set(run.stdout.splitlines()[-1].split())
    assert "diagnose.pipeline" in loaded
    unused = (
        "diagnose.settle",
        "diagnose.serving.evidence",
        "diagnose.serving.model_config",
        "diagnose.collectors.torch_capture",
        "diagnose.cli.compare",
        "diagnose.reports.html",
    )
    assert not [m for m in loaded for u in unused if m == u or m.startswith(u + ".")]


def test_first_word_that_is_a_verb_wins(tmp_path, monkeypatch):
    verbs = list(command().commands)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules").write_text("{}")
    assert route(["rules"], verbs) == ["rules"]
    assert route(["./rules"], verbs) == ["trace", "./rules"]
    assert route(["--bench", "x.json"], verbs) == ["trace", "--bench", "x.json"]
    with pytest.raises(UsageError, match="tables"):
        route(["table"], verbs)


def test_query_formats(cli, sample):
    sql = "SELECT bucket, sum(ns)::BIGINT AS ns FROM phase_bucket GROUP BY 1 ORDER BY 1"
    code, out, _ = cli("query", sample, sql, "--json")
    assert code == 0
    rows = json.loads(out)
    total = cli("query", sample, "SELECT sum(end_ns - start_ns)::BIGINT AS ns FROM segment", "--json")[1]
    assert sum(r["ns"] for r in rows) == json.loads(total)[0]["ns"]
    code, out, _ = cli("query", sample, sql, "--csv")
    assert out.splitlines()[0] == "bucket,ns"
    assert len(out.splitlines()) == len(rows) + 1


@pytest.mark.parametrize(
    "sql",
    [
        "SELEC 1",
        "SELECT * FROM no_such_table",
        "SELECT * FROM read_csv('/etc/passwd')",
        "COPY (SELECT 1) TO '/tmp/diagnose_test_out.csv'",
        "INSTALL sqlite",
    ],
)
def test_a_bad_or_prying_query_is_one_line(cli, sample, sql):
    code, out, err = cli("query", sample, sql)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "root:" not in err


def test_every_public_table_answers(cli, sample):
    for table in TABLES:
        code, out, err = cli(
            "query",
            sample,
            f'SELECT {", ".join(c.name for c in table.columns)} FROM "{table.name}" LIMIT 1',
            "--json",
        )
        assert code == 0, (table.name, err)
        json.loads(out)


def test_tables_names_units(cli):
    code, out, _ = cli("tables", "kernel")
    assert code == 0
    assert "dur_ns" in out
    assert " ns " in out
    assert cli("tables", "kernal")[0] == 2


def test_roofs_lists_and_shows_one(cli):
    code, out, _ = cli("roofs")
    assert code == 0
    assert "h100-sxm" in out
    code, out, _ = cli("roofs", "h100-sxm", "--json")
    rows = json.loads(out)
    assert {r["resource"] for r in rows} >= {"hbm", "compute"}
    assert all(r["provenance"] for r in rows)


def test_kernels_groups_add_up(cli, sample):
    rows = {
        by: json.loads(cli("kernels", sample, "--by", by, "--json", "-")[1])
        for by in ("op", "name", "family", "role", "shape")
    }
    totals = {by: sum(r["time_ns"] for r in found) for by, found in rows.items()}
    assert len(set(totals.values())) == 1
    counted = json.loads(cli("query", sample, "SELECT sum(dur_ns)::BIGINT AS ns FROM kernel", "--json")[1])[
        0
    ]["ns"]
    copies = sum(r["time_ns"] for r in rows["family"] if r["family"] == "copy")
    assert totals["op"] - copies == counted
