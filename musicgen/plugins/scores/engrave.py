"""Verovio in a process of its own, since damaged scores crash it: python engrave.py FORMAT EXPAND.

It reads a score in MEI or Humdrum, and writes, in JSON, MEI without ornaments and its events.
"""

import json
import os
import re
import sys
from contextlib import suppress
from typing import Any
from xml.etree import ElementTree

import verovio

MAX_MEMORY, MAX_CPU = 2**31, 60  # bytes, and seconds: a sonata takes seven
_NAMESPACE = ' xmlns="http://www.music-encoding.org/ns/mei"'


def engrave(text: str, form: str, expand: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the MEI of a score, and when its notes, rests and bars begin and end.

    Grace notes and arpeggios are left out: verovio would play the notes at them late.

    Args:
        form: verovio's name of the format.
        expand: its option, `expandAlways` or `expandNever`, for repeats.
    """
    toolkit = verovio.toolkit()
    toolkit.setOptions({expand: True, "breaks": "none"})
    toolkit.setInputFrom(form)
    assert toolkit.loadData(text), "damaged"
    # Of **kern with several records of staves verovio makes two attributes of one name.
    mei = toolkit.getMEI().replace('symbol="bracket" symbol=', "symbol=")
    root = ElementTree.fromstring(mei.replace(_NAMESPACE, "", 1))
    for parent in list(root.iter()):
        if parent.tag == "mSpace":  # verovio gives it no time
            parent.tag = "mRest"
        for child in list(parent):
            if child.get("grace") or child.tag in ("graceGrp", "arpeg"):
                parent.remove(child)
        if parent.tag == "scoreDef" and form == "humdrum" and "*MM" not in text:
            parent.attrib.pop("midi.bpm", None)  # which verovio guesses
    toolkit.setOptions({"expandAlways": False, "expandNever": True})  # it is done
    toolkit.setInputFrom("mei")
    toolkit.loadData(plain := ElementTree.tostring(root, "unicode"))
    return plain, toolkit.renderToTimemap({"includeMeasures": True, "includeRests": True})


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


if __name__ == "__main__":
    with suppress(ImportError, ValueError):  # where the system has no such limits
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU, MAX_CPU))
    verovio.enableLog(verovio.LOG_OFF)
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # its parser of **kern prints notes of its own
    music, name, repeats = sys.stdin.buffer.read().decode(), sys.argv[1], sys.argv[2]
    music = expand_sections(music, repeats) if name == "humdrum" else music
    json.dump(engrave(music, name, repeats), output)
