"""Building blocks of the HTML pages: escaped text, values, lists, inlined files."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from numbers import Integral, Real
from string import Template
from typing import Any

Value = str | int | float | Sequence[Any] | None
Metadata = Mapping[str, Value]  # by label


def render_page(
    template: str, *, scripts: Sequence[str], styles: Sequence[str], **fields: str
) -> str:
    """Return a page from a template, with scripts and styles inlined and allowed by their hashes.

    Args:
        template: text with fields, as `string.Template` has them.
        scripts: JavaScript, in the order in which it runs.
        styles: CSS.
        fields: the other fields of the template, as HTML.
    """
    style, script = "\n".join(styles), "\n".join(scripts)
    return Template(template).substitute(
        fields,
        style=style,
        style_hash=_content_hash(style),
        script=script,
        script_hash=_content_hash(script),
    )


def metadata_list(metadata: Metadata, form: str = ".4g") -> str:
    if not metadata:
        return ""
    entries = "\n".join(
        f"<div><dt>{text(label)}</dt><dd>{format_value(value, form)}</dd></div>"
        for label, value in metadata.items()
    )
    return f'<dl class="metadata">\n{entries}\n</dl>'


def fold(summary: str, body: str, kind: str = "") -> str:
    """Return a closed `details` element; empty if the body is empty. Both parts are HTML."""
    if not body:
        return ""
    attribute = f' class="{kind}"' if kind else ""
    return f"<details{attribute}><summary>{summary}</summary>\n{body}\n</details>"


def format_value(value: Value, form: str = ".4g") -> str:
    """Return a value as text: integers in full, floats in `form`, lists as on command lines."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(format_value, value))}]"
    if isinstance(value, Real) and not isinstance(value, Integral):
        value = float(value)
        if math.isnan(value):
            return "n/a"
        return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:{form}}"
    return "n/a" if value is None else text(str(value))


def text(text: str) -> str:
    """Return text escaped for elements and quoted attributes; invalid Unicode becomes `?`."""
    return escape(text.encode("utf-8", "replace").decode())


def embedded_json(data: Any) -> str:
    """Return JSON that is safe inside a script element."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def asset(name: str) -> str:
    """Return the text of a file in `report/page/`."""
    return files("musicgen.report").joinpath("page", name).read_text(encoding="utf-8")


def _content_hash(content: str) -> str:
    """Return a Content-Security-Policy source that allows only this inline text."""
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
