"""Outputs: where they go, what they may replace, and that the three views carry the same object."""

import json
import os

import jsonschema
import pytest

from diagnose.reports.json import json_schema
from diagnose.reports.marker import embedded_json


def test_default_name_summary_and_wrote_line(cli, sample):
    code, out, err = cli(sample)
    assert code == 0
    page = sample.parent / "run.diagnosis.html"
    assert page.exists()
    assert err == f"Wrote {page}\n"
    assert 0 < out.count("\n") <= 25
    assert "launch overhead" in out


def test_json_on_stdout_is_the_embedded_object_and_valid(cli, sample):
    code, out, _ = cli(sample, "--json", "-")
    assert code == 0
    d = json.loads(out)
    jsonschema.validate(d, json_schema())
    page = (sample.parent / "run.diagnosis.html").read_bytes()
    assert json.loads(embedded_json(page)) == d
    assert d["schema"] == "diagnose/1"
    assert sum(d["attribution_ns"].values()) == sum(x["window"]["wall_ns"] for x in d["devices"])


def test_markdown_and_no_html(cli, sample):
    code, out, _ = cli(sample, "--markdown", "-", "--no-html")
    assert code == 0
    assert out.startswith("<!-- diagnose-report/1 -->")
    assert not (sample.parent / "run.diagnosis.html").exists()


def test_own_report_is_replaced_a_strangers_file_is_not(cli, sample):
    page = sample.parent / "run.diagnosis.html"
    assert cli(sample)[0] == 0
    first = page.read_bytes()
    assert cli(sample)[0] == 0
    assert page.read_bytes() == first
    page.write_text("<html>mine</html>")
    code, out, err = cli(sample)
    assert (code, out) == (2, "")
    assert "--force" in err
    assert page.read_text() == "<html>mine</html>"
    assert cli(sample, "--force")[0] == 0
    assert page.read_bytes() == first


def test_an_input_is_never_an_output(cli, sample):
    before = sample.read_bytes()
    for option in ("-o", "--json", "--markdown"):
        code, _, err = cli(sample, option, sample, "--force")
        assert code == 2
        assert "input" in err
    assert sample.read_bytes() == before


def test_outputs_are_checked_before_the_work(cli, sample):
    code, _, err = cli(sample, "-o", sample.parent / "no" / "x.html")
    assert code == 2
    assert "does not exist" in err
    assert cli(sample, "--json", "-", "--markdown", "-")[0] == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_read_only_folder_writes_to_the_current_one(cli, sample, tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    sample.parent.chmod(0o555)
    try:
        assert cli(sample)[0] == 0
    finally:
        sample.parent.chmod(0o755)
    assert (here / "run.diagnosis.html").exists()


def test_a_run_folder_is_searched_by_content(cli, sample, tmp_path):
    folder = tmp_path / "deploy"
    folder.mkdir()
    sample.rename(folder / "capture.bin")
    (folder / "notes.txt").write_text("nothing of interest\n")
    code, out, _ = cli(folder, "--json", "-", "--no-html")
    assert code == 0
    d = json.loads(out)
    assert d["verdict"]["limit"] == "launch_overhead"
    assert any("notes.txt" in n["message"] for n in d["data_quality"])


def test_nothing_private_reaches_the_output(cli, plain, tmp_path):
    """Host, user, environment and command line in a trace's metadata stay there."""
    trace = json.loads(plain.read_text())
    trace["hostname"], trace["username"] = "secret-host-17", "secret-user-9"
    trace["env"] = {"HF_TOKEN": "hf_secretsecret"}
    trace["cmdline"] = "python serve.py --api-key sk-secret"
    path = tmp_path / "private.json"
    path.write_text(json.dumps(trace))
    code, out, _ = cli(path, "--json", "-")
    page = (tmp_path / "private.diagnosis.html").read_text()
    assert code == 0
    for secret in ("secret-host-17", "secret-user-9", "hf_secret", "sk-secret", str(tmp_path)):
        assert secret not in out
        assert secret not in page
