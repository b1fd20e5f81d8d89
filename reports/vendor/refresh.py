"""Write the vendored JavaScript bundle and its checksum anew: `python reports/vendor/refresh.py` (needs vl-convert-python).

`bundle.js` is what `vl_convert.javascript_bundle()` gives: Vega, Vega-Lite and vega-embed with their dependencies, all
under BSD-3-Clause, MIT or ISC licences (the LICENSE files beside it). The page inlines it; nothing is loaded at run time.
"""

import hashlib
import importlib.metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent


def bundle() -> str:
    """The bundle of the installed vl-convert; it must be safe to inline in a script element as it is."""
    import vl_convert

    text: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]
    for forbidden in ("</script", "<!--", "\r", "\0"):
        if forbidden in text:
            raise SystemExit(f"the bundle holds {forbidden!r}, which cannot be inlined; keep the previous version")
    return text


def main() -> None:
    """Write `bundle.js` and `bundle.js.sha256`."""
    import vl_convert

    data = bundle().encode()
    (HERE / "bundle.js").write_bytes(data)
    package = importlib.metadata.version("vl-convert-python")
    versions = (
        f"vl-convert-python {package}, vega {vl_convert.get_vega_version()}, "
        f"vega-lite {vl_convert.get_vegalite_versions()[-1]}, vega-embed {vl_convert.get_vega_embed_version()}"
    )
    digest = hashlib.sha256(data).hexdigest()
    (HERE / "bundle.js.sha256").write_text(f"{digest}  bundle.js\n# {versions}\n")
    print(f"bundle.js: {len(data):,} bytes, {versions}")


if __name__ == "__main__":
    main()
