"""Strings from a trace are made safe before anyone sees them."""

import pytest

from diagnose.contract import BUCKETS, LIMITS, OBJECTIVES
from diagnose.reports import text as t
from diagnose.reports import words


def test_controls_become_visible() -> None:
    assert t.clean("a\x1b[31mb\x00\n\u202e\u200bz") == "a\\x1b[31mb\\x00\\x0a\\u202e\\u200bz"
    assert t.clean("c\u00fcd\u4e2d") == "c\u00fcd\u4e2d"
    assert t.clean(None) == ""


def test_shorten_keeps_both_ends() -> None:
    name = "head_" + "x" * 2000 + "_tail"
    short = t.shorten(name, 40)
    assert len(short) == 40
    assert short.startswith("head_")
    assert short.endswith("_tail")
    assert "…" in short
    assert t.shorten("short", 40) == "short"


@pytest.mark.parametrize(
    ("raw", "safe"),
    [
        ("a|b", r"a\|b"),
        ("<img src=x>", r"\<img src=x>"),
        ("[x](y)", r"\[x\](y)"),
        ("*b* _i_ `c`", r"\*b\* \_i\_ \`c\`"),
        ("- item", r"\- item"),
        ("# head", r"\# head"),
        ("1. one", r"1\. one"),
        ("3.4 ms", "3.4 ms"),
        ("--metrics FILE", r"\--metrics FILE"),
        ("a\nb", r"a\\x0ab"),
    ],
)
def test_markdown_cannot_format(raw: str, safe: str) -> None:
    assert t.markdown(raw) == safe


def test_markdown_cannot_link_or_mention() -> None:
    joiner = "\u2060"
    assert t.markdown("@team #12 https://x.y www.z.y a@b") == (
        f"@{joiner}team #{joiner}12 https:{joiner}//x.y www{joiner}.z.y a@{joiner}b"
    )


def test_code_spans_hold_backticks_and_pipes() -> None:
    assert t.markdown_code("a`b``c") == "```a`b``c```"
    assert t.markdown_code("`x`") == "`` `x` ``"
    assert t.markdown_code("a|b", in_table=True) == r"`a\|b`"
    assert t.markdown_code("a|b") == "`a|b`"


def test_sentences() -> None:
    assert t.sentence("memory bandwidth: 0.4 %") == "Memory bandwidth: 0.4 %."
    assert t.sentence("Done.") == "Done."
    assert t.sentence("  ") == ""


def test_units_stay_with_their_numbers() -> None:
    assert t.keep_units("84.5 ms, 83 % of 3.0 TB/s and 5 kernels") == (
        "84.5\u00a0ms, 83\u00a0% of 3.0\u00a0TB/s and 5 kernels"
    )


def test_every_code_of_the_contract_has_words() -> None:
    assert tuple(words.BUCKET) == BUCKETS  # the same fixed order on every page
    assert tuple(words.LIMIT) == LIMITS
    assert set(words.OBJECTIVE) == set(OBJECTIVES)
    assert len({(s.color, s.hatched) for s in words.BUCKET.values()}) == len(BUCKETS)


def _luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_numbers_on_bars_have_aa_contrast() -> None:
    for style in words.BUCKET.values():
        light, dark = sorted((_luminance(style.color), _luminance(style.ink)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, style.key
