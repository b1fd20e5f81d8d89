"""Strings from a trace made safe to show: control characters made visible, long names shortened in the
middle."""

import re

# C0 and C1 controls, line and paragraph separators, zero-width and bidirectional controls, byte-order marks
# and lone surrogates: none may reach a terminal, a ticket or a page as they are.
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<|~$&])")
_MARKDOWN_START = re.compile(r"^(?:(?=[-+>#])|\d+(?=[.)]\s))")
# Renderers of tickets link these even where they are escaped; an invisible word joiner inside stops that.
_REFERENCE = re.compile(r"@(?=\w)|#(?=\d)|(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)
_UNIT = re.compile(
    r"(?<=\d) (?=(?:%|×|ns|µs|ms|s|min|B|kB|MB|GB|TB|GB/s|TB/s|[MGTP]?FLOP(?:/s|/B)?|tokens?|tokens/s)\b|%|×)"
)


def _visible(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def clean(value: object) -> str:
    """The text with every control or invisible character written out (`\\x1b`, `\\u202e`); None is ''."""
    return "" if value is None else _INVISIBLE.sub(_visible, str(value))


def clean_lines(value: object) -> str:
    """As `clean`, but line breaks stay: for commands to copy."""
    return "\n".join(clean(line) for line in str(value or "").splitlines())


def shorten(value: object, width: int = 72) -> str:
    """Cleaned text of at most `width` characters, the middle replaced by an ellipsis: both ends of a name
    tell most."""
    text = clean(value)
    if len(text) <= width:
        return text
    head = (width - 1) * 3 // 5
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def markdown(value: object) -> str:
    """Text for a Markdown paragraph or table cell: nothing in it can format, link, mention or break a
    table."""
    text = _MARKDOWN.sub(r"\\\1", clean(value))
    text = _MARKDOWN_START.sub(lambda m: m.group() + "\\", text)
    return _REFERENCE.sub(lambda m: m.group() + "\u2060", text)


def markdown_code(value: object, width: int | None = None, in_table: bool = False) -> str:
    """A code span that holds any text, also backticks; in a table pipes are escaped, because it splits on
    them first."""
    text = (clean(value) if width is None else shorten(value, width)) or " "
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text[0] == "`" or text[-1] == "`" else ""
    if in_table:
        text = text.replace("|", "\\|")
    return f"{fence}{pad}{text}{pad}{fence}"


def sentence(value: object) -> str:
    """Cleaned text that starts with a capital and ends with a full stop, so that sentences can be joined."""
    text = clean(value).strip()
    if not text:
        return ""
    text = text[0].upper() + text[1:]
    return text if text[-1] in ".!?:" else f"{text}."


def keep_units(text: str) -> str:
    """A no-break space between a number and its unit, so that a line never starts with `%` or `ms`."""
    return _UNIT.sub("\u00a0", text)
