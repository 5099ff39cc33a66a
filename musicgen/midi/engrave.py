"""Verovio in a process of its own, since damaged scores crash it: python engrave.py FORMAT EXPAND.

It reads a score and writes, in JSON, MEI without ornaments, and the events of it.
"""

import base64
import json
import os
import re
import sys
from contextlib import suppress
from xml.etree import ElementTree

import verovio

MAX_MEMORY, MAX_CPU = 2**32, 120  # bytes, and seconds: a sonata takes seven
_NAMESPACE = ' xmlns="http://www.music-encoding.org/ns/mei"'


def engrave(data: bytes, form: str, expand: str) -> tuple[str, list[dict]]:
    """Return the MEI of a score, and when its notes, rests and bars begin and end.

    Grace notes and arpeggios are left out: verovio would play the notes at them late.

    Args:
        form: verovio's name of the format.
        expand: its option, `expandAlways` or `expandNever`, for repeats.
    """
    toolkit = verovio.toolkit()
    toolkit.setOptions({expand: True, "breaks": "none"})
    toolkit.setInputFrom("xml" if form == "abc" else form)
    if data[:2] == b"PK":
        loaded = toolkit.loadZipDataBase64(base64.b64encode(data).decode())
    else:
        loaded = toolkit.loadData(_abc_to_xml(_text(data)) if form == "abc" else _text(data))
    assert loaded, "damaged"
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


def _text(data: bytes) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    with suppress(UnicodeDecodeError):
        return data.decode("utf-8-sig")
    return data.decode("latin-1")


def _abc_to_xml(text: str) -> str:
    """Return MusicXML by music21, since verovio reads no tuplets of ABC."""
    from music21 import converter
    from music21.musicxml.m21ToXml import GeneralObjectExporter
    from music21.stream.makeNotation import makeTupletBrackets

    text = text.replace("|]", "|")  # which it does not count: below two lines it makes no bars
    text = re.sub(r"\[([KLMV]:[^]]*)\]", r"\n\1\n", text)  # it reads changes in lines alone
    if not re.search("^[LM]:", text, re.M):
        text = text.replace("\nK:", "\nL:1/8\nK:", 1)  # as the standard has it
    tune = converter.parse(_voices_joined(text), format="abc")
    for bar in (bars := tune.recurse().getElementsByClass("Measure")):
        makeTupletBrackets(bar, inPlace=True)
    exporter = GeneralObjectExporter(tune)
    exporter.makeNotation = not bars  # it fills incomplete ones
    return exporter.parse().decode()


def _voices_joined(text: str) -> str:
    """Return the first tune of ABC, each voice in one piece: music21 does not join its lines."""
    voices, voice = {"": ""}, ""  # without a name: the head of the tune
    for line in re.split(r"\n\s*\n(?=X:)", text)[0].splitlines():
        if field := re.match(r"V:\s*(\S+)", line):
            voice = field[1] if "\nK:" in voices[""] else ""
        elif line.strip():
            voices[voice] = voices.get(voice, "") + f"{line}\n"
    return "".join(f"V:{i}\n{own}" if i else own for i, own in enumerate(voices.values()))


if __name__ == "__main__":
    with suppress(ImportError, ValueError):  # where the system has no such limits
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU, MAX_CPU))
    verovio.enableLog(verovio.LOG_OFF)
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # its parser of **kern prints notes of its own
    json.dump(engrave(sys.stdin.buffer.read(), *sys.argv[1:]), output)
