"""The HTML page is self-contained, safe with any text, and complete."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest

from musicgen.files import write_text
from musicgen.midi.score import TEMPO, Marker, Score, Track, notes_from
from musicgen.report import Kept, ReportPiece, render_report
from musicgen.report.html import score_payload

HOSTILE = """</script><script>a(1)</script><img src=x onerror=a(2)>'"&amp;$title {x} <!--"""


class Page(HTMLParser):
    """Elements with their attributes, texts of scripts and of everything else."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.scripts: list[tuple[dict, str]] = []
        self.styles: list[str] = []
        self.text: list[str] = []
        self.open = ("", {})
        self.feed(text)
        self.close()
        texts = [text for given, text in self.scripts if given.get("type") == "application/json"]
        self.payloads = [json.loads(text) for text in texts]

    def handle_starttag(self, tag, attrs):
        self.open = (tag, dict(attrs))
        self.elements.append(self.open)

    def handle_endtag(self, tag):
        self.open = ("", {})

    def handle_data(self, data):
        if self.open[0] == "script":
            self.scripts.append((self.open[1], data))
        elif self.open[0] == "style":
            self.styles.append(data)
        elif data.strip():
            self.text.append(data.strip())

    def named(self, tag: str, **attributes: str) -> list[dict]:
        """The attributes of the elements of a tag that have these."""
        return [a for name, a in self.elements if name == tag and a.items() >= attributes.items()]

    def downloads(self) -> list[str]:
        return [a["href"] for a in self.named("a") if "download" in a]


LEAD = [(0, 480, 60, 90), (1_920, 480, 64, 70)]
DRUMS = [(0, 1, 36, 100), (2_000, 1, 38, 100), (2_100, 1, 42, 9)]


def score(**changes) -> Score:
    tracks = [Track("Lead", 0, False, notes_from(LEAD)), Track("", 0, True, notes_from(DRUMS))]
    return Score(**({"tracks": tracks} | changes))


def piece(title="song.mid", **fields):
    given = {"score": score(), "prompt_end": 1_920, "midi_file": "song.mid", "metadata": {}}
    return ReportPiece(title, **given | fields)


def page(*pieces, title="Title", metadata=None, notices=()) -> Page:
    return Page(render_report(title=title, pieces=pieces, metadata=metadata or {}, notices=notices))


def test_page_loads_nothing_and_allows_only_the_inlined_style_and_script():
    text = render_report(title="t", pieces=[piece(), piece("b")], metadata={"a": 1})
    assert not re.search(r"https?:|//[a-z0-9-]+\.[a-z]|@import|url\(", text, re.IGNORECASE)
    parsed = Page(text)
    links = {"link": {"data:,"}, "a": {"song.mid", "#piece-0", "#piece-1"}}
    for tag, attributes in parsed.elements:
        assert not attributes.keys() & {"src", "srcset"}
        assert "href" not in attributes or attributes["href"] in links[tag]
    [policy] = [m["content"] for m in parsed.named("meta") if "http-equiv" in m]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    [script] = [text for attributes, text in parsed.scripts if not attributes]
    for text in (script, parsed.styles[0]):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_html_in_text_is_escaped():
    music = score(tracks=[Track(HOSTILE, 0, False)], markers=[Marker(0, HOSTILE)])
    both = {"metadata": {HOSTILE: HOSTILE}, "notices": [HOSTILE]}
    texts = {"midi_file": HOSTILE, "measures": {HOSTILE: HOSTILE}, **both}
    parsed = page(*[piece(HOSTILE, score=music, **texts)] * 2, title=HOSTILE, **both)
    assert len(parsed.scripts) == 3
    assert not parsed.named("img")
    assert parsed.payloads[0]["markers"] == [[0, HOSTILE]]
    assert not any(name.startswith("on") for _, a in parsed.elements for name in a)
    # Title, heading, notice, label and value (5); table: the measure, two links and values (5);
    # each piece: heading, notice, legend, measure, its value, label, value (14).
    assert parsed.text.count(HOSTILE) == 24
    assert not [text for text in parsed.text if HOSTILE in text and text != HOSTILE]


@pytest.mark.parametrize(
    "name",
    ["My Song (1).mid", "Señor.mid", "a,b&c.mid", "javascript:alert(1)", "50%#1?.mid", "d/e.mid"],
)
def test_links_are_quoted_paths(name):
    [link] = page(piece(midi_file=name)).downloads()
    assert not {*":?#"} & {*link}
    assert unquote(link) == name


def test_names_with_invalid_unicode(tmp_path):
    name = b"caf\xe9.mid".decode("utf-8", "surrogateescape")
    page = render_report(title=name, pieces=[piece(name, midi_file=name)], metadata={})
    write_text(tmp_path / "r.html", page)
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert 'href="caf%E9.mid"' in text
    assert "caf?.mid" in text


def test_pieces_keep_their_order_and_ids():
    parsed = page(*(piece(f"{i}.mid", midi_file=f"{i}.mid") for i in range(5)))
    assert [a["id"] for a in parsed.named("article")] == [f"piece-{i}" for i in range(5)]
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [a["href"] for a in parsed.named("a") if "href" in a]
    assert links == [f"#piece-{i}" for i in range(5)] + [f"{i}.mid" for i in range(5)]
    assert len(parsed.payloads) == 5
    assert parsed.payloads[0]["promptEnd"] == 1_920
    assert "2 bars, 5 notes" in parsed.text
    assert parsed.named("nav")  # the table of several pieces
    assert not page(piece()).named("nav")


def test_metadata_values_are_readable():
    values = {
        **{1234567890123: "1234567890123", 0.9: "0.9", 0.123456: "0.1235", None: "n/a"},
        **{np.float32(12345.678): "12346", np.int64(7): "7", float("nan"): "n/a"},
        **{1.5e-7: "1.5e-07", float("inf"): "inf", True: "True", ("drums", 8): "[drums,8]"},
    }
    pieces = 2 * [piece(measures={"like the original": 0.99712})]
    text = page(*pieces, metadata={f"value {i}": x for i, x in enumerate(values)}).text
    assert [text[text.index(f"value {i}") + 1] for i in range(11)] == [*values.values()]
    assert text.count("1.00") == 4  # in the table, and of each piece


def test_empty_music_and_no_pieces():
    silent = Score(tracks=[Track("Empty")])
    parsed = page(piece(score=Score()), piece(score=silent, midi_file=None), piece(score=silent))
    assert "0 bars, 0 notes" in parsed.text
    assert [len(p["tracks"]) for p in parsed.payloads] == [0, 1, 1]
    assert page().named("article") == []


def test_every_control_has_an_accessible_name():
    parsed = page(piece(), piece())
    for tag, attributes in parsed.elements:
        if tag in ("button", "input", "canvas") and attributes.get("id") not in ("loop", "volume"):
            assert attributes.get("aria-label"), attributes  # loop and volume have visible text


@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
def test_script_decodes_the_score(tmp_path: Path):
    """Run the page's decoder in node: notes, seconds and bars are those of the Score."""
    music = score(tempos=np.array([(0, 60.0), (1_920, 120.0)], TEMPO))
    given = Score(tracks=[Track("", 0, True, notes_from(DRUMS[2:] + LEAD))])
    parsed = page(piece(score=music, kept=Kept(given)))
    assert "3 notes, 1 of them kept" in parsed.text
    [script] = [text for attributes, text in parsed.scripts if not attributes]
    gap = score_payload(music, 0, kept=Kept(given, 1_920))
    # Without pieces, the script only defines its classes.
    (tmp_path / "page.js").write_text(
        "const document = { querySelectorAll: () => [] };\n"
        + script
        + f"\nconst score = new Score({json.dumps(parsed.payloads[0])});"
        + "console.log(JSON.stringify({ notes: score.notes, end: score.duration,"
        + f" gaps: [score, new Score({json.dumps(gap)})].map((each) => each.hasGap),"
        + " kinds: [36, 38, 42, 46, 45, 49, 54].map(drumKind),"
        + " bars: [0, 1919, 1920, 9999].map((tick) => score.barAt(tick)),"
        + " ticks: [0, 1, 4, 4.5].map((time) => score.tickAt(time)) }));"
    )
    run = subprocess.run(
        ["node", str(tmp_path / "page.js")], capture_output=True, text=True, check=True, timeout=30
    )
    result = json.loads(run.stdout)
    columns = ("track", "onset", "pitch", "velocity", "drum", "kept")
    assert [tuple(note[name] for name in columns) for note in result["notes"]] == [
        (0, 0, 60, 90, False, True),
        (1, 0, 36, 100, True, True),
        (0, 1_920, 64, 70, False, False),
        (1, 2_000, 38, 100, True, False),
        (1, 2_100, 42, 9, True, True),  # but not the lead's, which are of another track
    ]
    # One second a beat in the first bar, half a second after it.
    assert [n["start"] for n in result["notes"][:3]] == pytest.approx([0, 0, 4])
    assert result["notes"][2]["stop"] == pytest.approx(4.5)
    assert result["end"] == pytest.approx(4.5)
    assert result["ticks"] == pytest.approx([0, 480, 1_920, 2_400])
    assert result["bars"] == [1, 1, 2, 2]
    assert result["gaps"] == [False, True]
    assert result["kinds"] == ["kick", "snare", "hat", "openHat", "tom", "cymbal", "percussion"]
