"""Staves of a score as SVG: verovio engraves them, and new notes and bars have names in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from itertools import compress
from typing import NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from musicgen.errors import UserError
from musicgen.midi.score import Score
from musicgen.plugins.scores.engraver import engraver
from musicgen.plugins.scores.write_musicxml import musicxml_tree
from musicgen.plugins.scores.written_time import written_onsets

_MARGIN = 180  # of a bar's background above and below its staves: the space between two lines
_NEW, _BAR = "new", "bar-"  # how ids of notes and measures begin
_COLOURED = {"note", "chord", "beam", "tuplet"}  # classes that are new if all their notes are
_STYLED = {"tempo", "reh", "mNum", "dir", "tie"}  # other classes that staves.css knows
# Characters of verovio's own font that other fonts have: accidentals, a quarter note, its dot.
_DOT = "\uecb7"
_CHARACTERS = {"\uea64": "♭", "\uea65": "♮", "\uea66": "♯", "\ueca5": "♩", _DOT: "."}
_SVG = "{http://www.w3.org/2000/svg}"


class Staves(NamedTuple):
    """Staves that were broken to a width.

    Attributes:
        systems: an `svg` element each, as text without its namespace. Its bars are of class
            `measure`, with their index in `data-bar` and a `rect` of class `bar` behind them. Of
            class `new` is what belongs to new notes alone, and bars with no others are `all-new`.
            Signs are elements `use` of `#glyph-` and a key of `glyphs`.
        glyphs: the `d` of the path of each sign.
    """

    systems: list[str]
    glyphs: dict[str, str]


def check_engraver() -> None:
    """Raise `UserError` if verovio is missing."""
    if find_spec("verovio") is None:
        raise UserError("staves need verovio; run: pip install -e '.[scores]'")


def draw_staves(
    score: Score, is_new: Sequence[NDArray[np.bool_]], widths: Sequence[int]
) -> list[Staves]:
    """Engrave a score at each of some widths.

    Args:
        is_new: for each track, which of its notes are new.
        widths: of the page, in 72nds of the height of a staff.

    Raises:
        UserError: verovio is missing, or cannot engrave this score.
    """
    check_engraver()
    text = ElementTree.tostring(_named(score, is_new), "unicode")
    try:
        drawings = engraver().draw(text, widths)
    except ValueError as error:
        raise UserError(f"verovio cannot engrave it: {error}") from None
    return [_slim(drawing) for drawing in drawings]


def _named(score: Score, is_new: Sequence[NDArray[np.bool_]]) -> Element:
    """Return a score as MusicXML, with ids for its bars and notes, and tempi without fractions."""
    root, parts = musicxml_tree(score)
    new = [own for own, track in zip(is_new, score.tracks, strict=True) if len(track.notes)]
    for number, (part, own) in enumerate(zip(parts, new, strict=False)):  # music without notes
        onsets = written_onsets(part.track.notes, score.ticks_per_beat)
        pitches = part.track.notes["pitch"].tolist()
        marked = set(compress(zip(onsets, pitches, strict=True), own))
        for index, (head, value, pitch) in enumerate(part.heads):
            is_marked = value.sound is not None and (value.sound.onset, pitch) in marked
            head.set("id", f"{_NEW if is_marked else 'old'}-{number}-{index}")
    for part_element in root.iter("part"):
        for index, measure in enumerate(part_element):
            measure.set("id", f"{_BAR}{index}")
    for tempo in root.iter("per-minute"):
        tempo.text = f"{float(tempo.text or 0):.0f}"
    return root


def _slim(drawing: Sequence[str]) -> Staves:
    """Return systems that verovio drew with what a page needs: about a third of it."""
    systems, glyphs = list[str](), dict[str, str]()
    for text in drawing:
        root = ElementTree.fromstring(text)
        for symbol in root.findall(f"{_SVG}defs/{_SVG}g"):
            glyphs[_code(symbol.get("id", ""))] = symbol[0].get("d", "")
        inner = next(root.iter(f"{_SVG}svg"))[-1]
        system = Element("svg", {"viewBox": inner.get("viewBox", ""), "aria-hidden": "true"})
        system.extend(_join_paths(each for child in inner for each in _slimmed(child)))
        systems.append(ElementTree.tostring(system, "unicode"))
    return Staves(systems, glyphs)


def _code(reference: str) -> str:
    """Return the code of a glyph in a reference such as `#E050-abc`."""
    return reference.lstrip("#").partition("-")[0]


def _slimmed(element: Element) -> Iterator[Element]:
    """Yield what replaces an element: groups that need no name are replaced by their contents."""
    tag, kinds = element.tag.removeprefix(_SVG), element.get("class", "").split()
    if "placeholder" in kinds:
        return
    if tag == "text":
        yield _text(element)
    elif tag == "use":
        place = re.findall(r"-?[\d.]+", element.get("transform", ""))
        move = f"translate({place[0]} {place[1]})scale({place[2]} -{place[3]})"
        yield Element(
            "use", {"href": f"#glyph-{_code(element.get('href', ''))}", "transform": move}
        )
    elif tag != "g":
        yield Element(tag, {k: v for k, v in element.attrib.items() if k not in ("class", "id")})
    else:
        inner = _join_paths(each for child in element for each in _slimmed(child))
        yield from _group(element, kinds, inner)


def _join_paths(elements: Iterable[Element]) -> list[Element]:
    """Return elements with paths of one kind that follow each other, such as a staff's, as one."""
    joined = list[Element]()
    for each in elements:
        last = joined[-1] if joined else None
        if last is not None and last.tag == each.tag == "path" and _style(last) == _style(each):
            last.set("d", f"{last.get('d')}{each.get('d')}")
        else:
            joined.append(each)
    return joined


def _style(path: Element) -> dict[str, str]:
    return {name: value for name, value in path.attrib.items() if name != "d"}


def _text(element: Element) -> Element:
    """Return a text in one line and one size."""
    parts = [each for each in element.iter(f"{_SVG}tspan") if (each.text or "").strip("\n ")]
    sizes = [each.get("font-size", "").removesuffix("px") for each in parts]
    kept = {k: v for k, v in element.attrib.items() if k in ("x", "y", "text-anchor")}
    plain = [
        size for size, each in zip(sizes, parts, strict=True) if "font-family" not in each.attrib
    ]
    text = Element("text", kept | {"font-size": (plain or sizes or ["0"])[0]})
    characters = "".join(each.text or "" for each in parts).replace(f" {_DOT}", _DOT)
    text.text = "".join(_CHARACTERS.get(each, each) for each in characters)
    return text


def _group(element: Element, kinds: Sequence[str], inner: Sequence[Element]) -> Iterator[Element]:
    """Yield a group with its name, or its contents if it needs none."""
    names, attributes = [kind for kind in kinds if kind in _STYLED], dict[str, str]()
    if _COLOURED.intersection(kinds) and _is_new(element):
        names = [_NEW]
    if "measure" in kinds:
        names = ["measure", "all-new"] if _is_new(element) else ["measure"]
        attributes["data-bar"] = element.get("id", "").removeprefix(_BAR)
        inner = [_background(element), *inner]
    if not names:
        yield from inner
        return
    group = Element("g", {"class": " ".join(names)} | attributes)
    group.extend(inner)
    yield group


def _is_new(element: Element) -> bool:
    """Return whether all notes in an element are new, and there are any."""
    notes = [each.get("id", "") for each in element.iter(f"{_SVG}g") if each.get("class") == "note"]
    return bool(notes) and all(name.startswith(_NEW) for name in notes)


def _background(measure: Element) -> Element:
    """Return a rectangle behind the staves of a bar, by the lines of these."""
    lines = [each.get("d", "") for each in measure.findall(f"{_SVG}g[@class='staff']/{_SVG}path")]
    places = [[int(place) for place in re.findall(r"-?\d+", line)] for line in lines]
    left, right = min(line[0] for line in places), max(line[2] for line in places)
    top, bottom = min(line[1] for line in places), max(line[3] for line in places)
    box = left, top - _MARGIN, right - left, bottom - top + 2 * _MARGIN
    names = "x", "y", "width", "height"
    return Element("rect", {"class": "bar"} | dict(zip(names, map(str, box), strict=True)))
