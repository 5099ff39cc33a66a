"""Building blocks of HTML pages: escaped text, values, lists, and embedded files."""

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
    """Return a page from a template, with embedded scripts and styles.

    The Content-Security-Policy of the page allows these by their hashes.

    Args:
        template: text with the fields of `string.Template`.
        scripts: JavaScript, in the order of execution.
        styles: CSS.
        fields: HTML for the other fields of the template, by name.
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
    """Return the HTML of a list of labels and values; "" if it is empty.

    Args:
        form: format of floats.
    """
    if not metadata:
        return ""
    entries = "\n".join(
        f"<div><dt>{text(label)}</dt><dd>{format_value(value, form)}</dd></div>"
        for label, value in metadata.items()
    )
    return f'<dl class="metadata">\n{entries}\n</dl>'


def fold(summary: str, body: str, kind: str = "") -> str:
    """Return a closed `details` element; "" if the body is empty.

    Args:
        summary, body: HTML.
        kind: class of the element.
    """
    if not body:
        return ""
    attribute = f' class="{kind}"' if kind else ""
    return f"<details{attribute}><summary>{summary}</summary>\n{body}\n</details>"


def format_value(value: Value, form: str = ".4g") -> str:
    """Return a value as escaped text: floats in the format `form`, lists as on the command line."""
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
    """Return data as JSON that is safe inside of a script element."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def asset(name: str) -> str:
    """Return the text of a file in `report/page/`."""
    return files("musicgen.report").joinpath("page", name).read_text(encoding="utf-8")


def _content_hash(content: str) -> str:
    """Return a Content-Security-Policy source that allows only this inline text."""
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
