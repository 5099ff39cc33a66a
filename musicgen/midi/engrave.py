"""Verovio in a process of its own, since damaged scores crash it: python engrave.py FORMAT REPEATS.

It reads a score and writes two lines: MEI without ornaments, and the events of it, in JSON.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import suppress
from xml.etree import ElementTree

import verovio

MAX_MEMORY, MAX_CPU = 2**32, 120  # bytes, and seconds: a sonata takes seven
_NAMESPACE = ' xmlns="http://www.music-encoding.org/ns/mei"'


def engrave(text: str, form: str, *, repeats: bool) -> tuple[str, list[dict]] | None:
    """Return the MEI of a score, and when its notes, rests and bars begin and end; None: damaged.

    Grace notes and arpeggios are left out: verovio would play the notes at them late.
    """
    if form == "abc":  # verovio reads no tuplets of it
        from music21 import converter
        from music21.musicxml.m21ToXml import GeneralObjectExporter
        from music21.stream.makeNotation import makeTupletBrackets

        text = re.sub(r"\[([KLM]:[^]]*)\]", r"\n\1\n", text)  # it reads changes in lines alone
        tunes = converter.parse(text, format="abc")
        tune = next(iter(getattr(tunes, "scores", [])), tunes)
        for bar in tune.recurse().getElementsByClass("Measure"):
            makeTupletBrackets(bar, inPlace=True)
        exporter = GeneralObjectExporter(tune)
        exporter.makeNotation = False  # which fills incomplete bars
        form, text = "xml", exporter.parse().decode()
    toolkit = verovio.toolkit()
    toolkit.setOptions({"expandAlways": repeats, "expandNever": not repeats, "breaks": "none"})
    toolkit.setInputFrom(form)
    if not toolkit.loadData(text):
        return None
    # Of **kern with several records of staves verovio makes two attributes of one name.
    mei = toolkit.getMEI().replace('symbol="bracket" symbol=', "symbol=")
    root = ElementTree.fromstring(mei.replace(_NAMESPACE, "", 1))
    for parent in list(root.iter()):
        for child in list(parent):
            if child.get("grace") or child.tag in ("graceGrp", "arpeg"):
                parent.remove(child)
    toolkit.setOptions({"expandAlways": False, "expandNever": True})  # it is done
    toolkit.setInputFrom("mei")
    toolkit.loadData(plain := ElementTree.tostring(root, "unicode"))
    return plain, toolkit.renderToTimemap({"includeMeasures": True, "includeRests": True})


if __name__ == "__main__":
    with suppress(ImportError, ValueError):  # where the system has no such limits
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU, MAX_CPU))
    verovio.enableLog(verovio.LOG_OFF)
    score = sys.stdin.buffer.read().decode()
    print(json.dumps(engrave(score, sys.argv[1], repeats=sys.argv[2] == "True")))
