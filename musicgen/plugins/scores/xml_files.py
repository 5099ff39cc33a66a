"""Trees of XML files that strangers made, also zipped ones (.mxl)."""

import html
import re
import zipfile
from contextlib import suppress
from io import BytesIO
from typing import Any
from xml.etree import ElementTree
from xml.parsers import expat

MAX_DEPTH = 200
"""Scores nest a tenth of it; trees without end exhaust Python."""


def decode(data: bytes) -> str:
    """Return a text in UTF-8, UTF-16 or Latin-1."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    with suppress(UnicodeDecodeError):
        return data.decode("utf-8-sig")
    return data.decode("latin-1")


def unzip_score(data: bytes) -> bytes:
    """Return the score in a zipped file: the one that its container names, or its only one.

    Raises:
        ValueError: it holds no score.
    """
    with zipfile.ZipFile(BytesIO(data)) as archive:
        names = archive.namelist()
        scores = [
            name
            for name in names
            if name.lower().endswith((".xml", ".musicxml")) and not name.startswith("META-INF/")
        ]
        if "META-INF/container.xml" in names:  # which some programs write without escapes
            container = decode(archive.read("META-INF/container.xml"))
            match = re.search(r"""full-path\s*=\s*("[^"<>]*"|'[^<>]*')""", container)
            named = html.unescape(match[1][1:-1]) if match else ""
            scores = [named] if named in names else scores
        if not scores:
            raise ValueError("no score in it")
        return archive.read(scores[0])


def parse_xml(text: str) -> ElementTree.Element:
    """Return the root of an XML file; entities are not expanded, and namespaces left out.

    Raises:
        ValueError: it is damaged, or nested too deeply.
    """
    parser = expat.ParserCreate(namespace_separator=" ")
    builder = ElementTree.TreeBuilder()
    depth = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        builder.start(tag.rpartition(" ")[2], attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(tag.rpartition(" ")[2])

    def other(text: str) -> None:
        if depth and text.startswith("&"):
            builder.data(text)

    handlers: Any = parser
    handlers.StartElementHandler, handlers.EndElementHandler = start, end
    handlers.CharacterDataHandler = builder.data
    handlers.DefaultHandler = other  # with which expat expands no entities
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise ValueError(f"damaged XML: {error}") from None
    return builder.close()
