"""Verovio in a process of its own, since damaged scores crash it; see `Engraver`.

Each line that it reads is the name of a function, `engrave` or `draw`, and its arguments, in JSON.
For each it writes a line with what the function returns.
"""

import ctypes
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from copy import deepcopy
from fractions import Fraction
from itertools import count
from math import ceil
from typing import Any, TextIO
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import verovio

MAX_MEMORY = 2**31  # bytes
MAX_CPU = 60  # seconds of a score: a sonata takes seven
_ID = "{http://www.w3.org/XML/1998/namespace}id"
_LONGEST_CHAIN = 8  # of copies of copies
_EVENTS = ("note", "chord", "rest", "space")
_BAR_REPEATS = {"mRpt": 1, "mRpt2": 2}
_LENGTHS = {"breve": Fraction(8), "long": Fraction(16)}  # in quarters
_DRAWING = {  # a system is a page, as high as it needs
    **{"systemMaxPerPage": 1, "pageHeight": 60_000, "adjustPageHeight": True},
    **{"pageMarginLeft": 40} | {f"pageMargin{side}": 0 for side in ("Right", "Top", "Bottom")},
    **{"header": "none", "footer": "none", "breaks": "auto", "breaksNoWidow": True},
    **{"smuflTextFont": "none", "svgRemoveXlink": True, "svgFormatRaw": True},
}
_NAMESPACE = ' xmlns="http://www.music-encoding.org/ns/mei"'


def engrave(text: str, form: str, expand: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the MEI of a score, and when its notes, rests and bars begin and end.

    Grace notes and arpeggios are left out: verovio would play the notes at them late; and so is
    what the source has crossed out.

    Args:
        form: verovio's name of the format.
        expand: its option, `expandAlways` or `expandNever`, for repeats.
    """
    text = expand_sections(text, expand) if form == "humdrum" else text
    toolkit = verovio.toolkit()
    toolkit.setOptions({expand: True, "breaks": "none"})
    toolkit.setInputFrom(form)
    assert toolkit.loadData(text), "damaged"
    # Of **kern with several records of staves verovio makes two attributes of one name.
    mei = toolkit.getMEI().replace('symbol="bracket" symbol=', "symbol=")
    root = ElementTree.fromstring(mei.replace(_NAMESPACE, "", 1))
    for parent in list(root.iter()):
        for child in list(parent):
            if child.get("grace") or child.tag in ("graceGrp", "arpeg", "del"):
                parent.remove(child)
        if parent.tag == "scoreDef" and form == "humdrum" and "*MM" not in text:
            parent.attrib.pop("midi.bpm", None)  # which verovio guesses
    write_out_signs(root)
    for element in root.iter("mSpace"):  # verovio gives it no time
        element.tag = "mRest"
    toolkit.setOptions({"expandAlways": False, "expandNever": True})  # it is done
    toolkit.setInputFrom("mei")
    toolkit.loadData(plain := ElementTree.tostring(root, "unicode"))
    return plain, toolkit.renderToTimemap({"includeMeasures": True, "includeRests": True})


def draw(text: str, widths: list[int]) -> list[list[str]]:
    """Return the systems of a score in MusicXML as SVG, broken to each of some widths.

    Args:
        widths: in pixels, of which a staff is 72 high.
    """
    toolkit = verovio.toolkit()
    toolkit.setOptions(_DRAWING)
    toolkit.setInputFrom("xml")
    assert toolkit.loadData(text), "damaged"
    drawings = []
    for width in widths:
        toolkit.setOptions({"pageWidth": width})
        toolkit.redoLayout()
        pages = range(1, toolkit.getPageCount() + 1)
        drawings.append([toolkit.renderToSVG(page) for page in pages])
    return drawings


def write_out_signs(root: Element) -> None:
    """Replace the signs of MEI that stand for notes, where that is clear.

    Verovio gives copies and repeated beats and bars the time of one note or none, and notes in
    tuplets that of the nearest tuplet.
    """
    names = count(1)
    for _ in range(_LONGEST_CHAIN):
        _write_copies(root, names)
    _Repeats(names).write(root)
    _multiply_tuplets(root, Fraction(1))


def _copy(element: Element, names: Iterator[int]) -> tuple[Element, dict[str, str]]:
    """Return a copy of an element, and its new names by the old ones."""
    copy, renamed = deepcopy(element), dict[str, str]()
    for each in copy.iter():
        if name := each.get(_ID):
            renamed[name] = f"{name}-copy{next(names)}"
            each.set(_ID, renamed[name])
    return copy, renamed


def _write_copies(root: Element, names: Iterator[int]) -> None:
    """Give elements that are copies of others the contents of these."""
    sources = {element.get(_ID, ""): element for element in root.iter()}
    for element in [each for each in root.iter() if "copyof" in each.attrib]:
        source = sources.get(element.attrib.pop("copyof").removeprefix("#"))
        if source is None or any(each is element for each in source.iter()):
            continue
        copy, _ = _copy(source, names)
        own = dict(element.attrib)
        element[:] = list(copy)
        element.text = copy.text
        element.attrib |= copy.attrib | own


def _multiply_tuplets(element: Element, outer: Fraction) -> None:
    """Give a tuplet inside others the proportion of all, since verovio counts the nearest alone."""
    proportion = _proportion(element) if element.tag == "tuplet" else None
    if proportion is not None:
        outer *= proportion
        element.attrib |= {"num": str(outer.denominator), "numbase": str(outer.numerator)}
    for child in element:
        _multiply_tuplets(child, outer)


def _proportion(tuplet: Element) -> Fraction | None:
    """Return by how much a tuplet shortens its notes; None if it does not say."""
    num, base = tuplet.get("num", ""), tuplet.get("numbase", "")
    is_plain = num.isdecimal() and base.isdecimal() and int(num) and int(base)
    return Fraction(int(base), int(num)) if is_plain else None


class _Repeats:
    """Writes out repeated beats and bars, bar by bar.

    Attributes:
        staves: bars of each staff: the staff and its bar.
        waiting: the next bars of each staff that a sign stands for, and how far back their source.
    """

    def __init__(self, names: Iterator[int]) -> None:
        self.names = names
        self.metre = Fraction(4), Fraction(1)  # a bar and a beat, in quarters
        self.staves = dict[str, list[tuple[Element, Element]]]()
        self.waiting = dict[str, tuple[int, int]]()

    def write(self, root: Element) -> None:
        for element in list(root.iter()):
            prefix = "" if element.tag == "meterSig" else "meter."
            beats, unit = element.get(f"{prefix}count", ""), element.get(f"{prefix}unit", "")
            if beats.isdecimal() and unit.isdecimal() and int(unit):
                beat = Fraction(4, int(unit))
                self.metre = int(beats) * beat, beat
            if element.tag == "measure":
                for staff in element.findall("staff"):
                    self._write_staff(staff, element)

    def _write_staff(self, staff: Element, bar: Element) -> None:
        for layer in staff.findall("layer"):
            self._write_beats(layer)
        name = staff.get("n", "")
        bars = self.staves.setdefault(name, [])
        left, back = self.waiting.get(name, (0, 0))
        signs = [each for each in staff.iter() if each.tag in (*_BAR_REPEATS, "multiRpt")]
        if signs:
            number = signs[0].get("num", "")
            back = _BAR_REPEATS.get(signs[0].tag, int(number[:3]) if number.isdecimal() else 1)
            left = back
        is_empty = not any(each.tag in ("note", "mRest") for each in staff.iter())
        if left and is_empty and 0 < back <= len(bars):
            self._repeat(bars[-back], staff, bar)
        self.waiting[name] = max(0, left - 1), back
        bars.append((staff, bar))

    def _repeat(self, source: tuple[Element, Element], staff: Element, bar: Element) -> None:
        """Copy the layers of a staff, and the ties between their notes."""
        copy, renamed = _copy(source[0], self.names)
        staff[:] = list(copy)
        for tie in source[1].findall("tie"):
            ends = [tie.get(key, "").removeprefix("#") for key in ("startid", "endid")]
            if all(end in renamed for end in ends):
                start, end = (f"#{renamed[each]}" for each in ends)
                bar.append(Element("tie", {"startid": start, "endid": end}))

    def _write_beats(self, layer: Element) -> None:
        """Replace signs of a repeated beat or half a bar by the events that fill it before."""
        lengths = {"beatRpt": self.metre[1], "halfmRpt": self.metre[0] / 2}
        for sign in [each for each in layer if each.tag in lengths]:
            at = list(layer).index(sign)
            found, left = list[Element](), lengths[sign.tag]
            for event, length, proportion in reversed(_events(layer[:at], Fraction(1))):
                if left <= 0:
                    break
                copy, _ = _copy(event, self.names)
                scale = {"num": str(proportion.denominator), "numbase": str(proportion.numerator)}
                tuplet = Element("tuplet", scale)
                tuplet.append(copy)
                found.insert(0, tuplet)
                left -= length
            if left == 0:
                layer[at : at + 1] = found


def _events(
    elements: list[Element], proportion: Fraction
) -> list[tuple[Element, Fraction, Fraction]]:
    """Return the events inside elements, their lengths in quarters, and how these are scaled."""
    found = list[tuple[Element, Fraction, Fraction]]()
    for element in elements:
        if element.tag in _EVENTS:
            length = element.get("dur", "4")
            quarters = _LENGTHS.get(length, Fraction(4, int(length) if length.isdecimal() else 4))
            dots = min(4, int(element.get("dots", "0")))
            found.append((element, quarters * (2 - Fraction(1, 2**dots)) * proportion, proportion))
        else:
            inner = (_proportion(element) if element.tag == "tuplet" else None) or 1
            found += _events(list(element), proportion * inner)
    return found


def expand_sections(text: str, expand: str) -> str:
    """Return **kern with its sections in the order of its list, such as `*>[A,A,B]`.

    Verovio knows no such lists. Without repeats it is that of `*>norep[A,B]`, if there is one.
    """
    lines = text.splitlines()
    lists = dict(re.findall(r"^\*>(\w*)\[([^\]\t]*)\]", text, re.M))
    order = lists.get("" if expand == "expandAlways" else "norep")
    labels = [i for i, line in enumerate(lines) if re.match(r"\*>[A-Za-z]\w*(\t|$)", line)]
    if order is None or not labels or len(order) > 1000:
        return text
    last = next((i for i, line in enumerate(lines) if line.startswith("*-")), len(lines))
    sections = dict[str, list[str]]()
    for start, end in zip(labels, [*labels[1:], last], strict=True):
        sections[re.split(r"\s", lines[start][2:])[0]] = lines[start + 1 : end]
    chosen = [line for name in order.split(",") for line in sections.get(name.strip(), [])]
    return "\n".join([*lines[: labels[0]], *chosen, *lines[last:]]) + "\n"


def limit_process() -> None:
    """Limit the memory of this process, and let it end with its parent, where the system can."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    with suppress(ImportError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))


def limit_time() -> None:
    """Limit the time that this process takes from now on, where the system can."""
    with suppress(ImportError, ValueError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (ceil(time.process_time()) + MAX_CPU, most))


def serve(requests: Iterable[bytes], output: TextIO) -> None:
    """Engrave or draw scores, and write a line for each."""
    functions: dict[str, Callable[..., Any]] = {"engrave": engrave, "draw": draw}
    for request in requests:
        limit_time()
        name, *arguments = json.loads(request)
        output.write(json.dumps(functions[name](*arguments)) + "\n")
        output.flush()


if __name__ == "__main__":
    limit_process()
    verovio.enableLog(verovio.LOG_OFF)
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # its parser of **kern prints notes of its own
    serve(sys.stdin.buffer, replies)
