"""The store: tables in memory or in Parquet, the folder that goes away, the schema's own documentation."""

import os
import re
import stat

import duckdb
import pytest

from diagnose.ingest.raw import RAW
from diagnose.store import BY_NAME, TABLES, Store


@pytest.mark.parametrize("large", [False, True])
def test_save_and_drop(large):
    with Store() as store:
        store.large = large
        store.save("t", "SELECT range AS a FROM range(1000)")
        store.save("t", "SELECT a * 2 AS a FROM t")  # a table may be made from its own earlier rows
        assert store.scalar("SELECT sum(a) FROM t") == 999 * 1000
        assert store.count("t") == 1000
        store.drop("t")
        with pytest.raises(duckdb.CatalogException):
            store.count("t")
        assert not list(store.folder.iterdir())
        store.drop("t")  # what is not there needs no dropping


def test_the_folder_is_private_and_goes_away():
    with Store() as store:
        folder = store.folder
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        store.large = True
        store.save("t", "SELECT 1 AS a")
        assert list(folder.iterdir())
    assert not folder.exists()


def test_insert_leaves_unknown_columns_null():
    with Store() as store:
        store.insert("device", [{"device_id": 0, "name": "x"}, {"device_id": 1, "active": True}])
        assert store.rows("SELECT device_id, name, active, sm_count FROM device ORDER BY 1") == [
            (0, "x", None, None),
            (1, None, True, None),
        ]


def test_every_table_of_the_schema_can_be_asked():
    with Store() as store:
        store.ensure_tables()
        for table in TABLES:
            assert store.count(table.name) == 0
            assert [row[0] for row in store.rows(f'DESCRIBE "{table.name}"')] == [
                c.name for c in table.columns
            ]


def test_the_schema_documents_itself():
    """Names are unique, every column has a meaning, and a column in nanoseconds or bytes says so in its unit."""
    assert len(BY_NAME) == len(TABLES)
    for table in (*TABLES, *RAW):
        names = [c.name for c in table.columns]
        assert len(set(names)) == len(names), table.name
        for column in table.columns:
            assert len(column.doc) > 2 and re.fullmatch(r"[a-z][a-z0-9_]*", column.name), (
                table.name,
                column.name,
            )
            if column.name.endswith("_ns"):
                assert column.unit == "ns", (table.name, column.name)
            if column.unit == "ns":
                assert column.name.endswith("_ns"), (table.name, column.name)


def test_nothing_is_fetched_from_outside():
    with Store() as store:
        settings = dict(
            store.rows("SELECT name, value FROM duckdb_settings() WHERE name LIKE 'auto%known_extensions'")
        )
        assert settings == {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
