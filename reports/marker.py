"""How a report of this tool is recognised, so that only an earlier report is ever overwritten without
asking."""

import base64
import gzip
import re
from pathlib import Path

from diagnose.errors import InputError

# The first line of the Markdown, the second of the page: an HTML comment, which both formats hide.
MARKER = "<!-- diagnose-report/1 -->"
DATA_ID = "diagnosis"

_HEAD = 4096
_JSON_START = re.compile(rb'\s*\{\s*"schema"\s*:\s*"diagnose(-compare)?/\d+"')
_DATA = re.compile(
    rb'<script type="application/json" id="'
    + DATA_ID.encode()
    + rb'"( data-encoding="gzip\+base64")?>(.*?)</script>',
    re.DOTALL,
)


def is_own_report(path: Path | str) -> bool:
    """True when the file is a page, Markdown or JSON that this tool wrote; False for anything else, also when
    absent.

    Reads the first 4 KiB only. A trace never starts with either marker, whatever its name.
    """
    try:
        with Path(path).open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return False
    marker = MARKER.encode()
    if head.startswith((marker, b"<!doctype html>\n" + marker)):
        return True
    return _JSON_START.match(head) is not None


def embedded_json(page: bytes) -> bytes:
    """The contract's JSON out of a page of ours: the same object `--json` writes (`<` is written `\\u003c`).

    Raises InputError when the bytes are not such a page or were cut.
    """
    found = _DATA.search(page)
    if found is None:
        raise InputError("this HTML file holds no diagnosis; give the page `diagnose` wrote, or its JSON")
    body = found.group(2).strip()
    if found.group(1):
        return gzip.decompress(base64.b64decode(body))
    return body
