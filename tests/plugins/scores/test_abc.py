"""Tunes in ABC notation: onsets, durations and pitches counted by hand."""

from dataclasses import replace

import pytest

from musicgen.errors import UserError
from musicgen.midi import dumps, find_music, loads, music_name, read
from musicgen.plugins.scores.printed_scores import read_score

HEAD = "X:1\nT:t\nM:4/4\nL:1/4\nK:C\n"


def read_abc(tmp_path, text, **options):
    path = tmp_path / "tune.abc"
    path.write_text(text)
    return read_score(path, **options)


def quarters(track):
    return [(n["onset"] / 480, n["duration"] / 480, int(n["pitch"])) for n in track.notes]


@pytest.mark.parametrize(
    ("music", "expected"),
    [
        ("^G G g =G|G4|]", [(0, 1, 68), (1, 1, 68), (2, 1, 80), (3, 1, 67), (4, 4, 67)]),
        ("A2 B _B-|B2 B2|]", [(0, 2, 69), (2, 1, 71), (3, 3, 70), (6, 2, 71)]),
        ("C4|Z2|D4|]", [(0, 4, 60), (12, 4, 62)]),
        ("X|z C x2|D4|", [(5, 1, 60), (8, 4, 62)]),
        ("C y D y3 E F|", [(0, 1, 60), (1, 1, 62), (2, 1, 64), (3, 1, 65)]),
        ("G4&C2D2|E4|", [(0, 4, 67), (0, 2, 60), (2, 2, 62), (4, 4, 64)]),
        ("A4-&_C4-|A4&C4|", [(0, 8, 69), (0, 8, 59)]),
        ("A4-|A4&C4-|c4&C4|", [(0, 8, 69), (4, 8, 60), (8, 4, 72)]),
        ("A>{c}B c<<d z2|", [(0, 1.5, 69), (1.5, 0.5, 71), (2, 0.25, 72), (2.25, 1.75, 74)]),
        ("(3CDE F2 (3:2:2G2A|", [(0, 2 / 3, 60), (2 / 3, 2 / 3, 62), (4 / 3, 2 / 3, 64)]),
        ("[CEG]2 [C2E]-[CE]|", [(0, 2, 60), (0, 2, 64), (0, 2, 67)]),
        ("C[r:a remark]D!trill!E{fg}F|", [(0, 1, 60), (1, 1, 62), (2, 1, 64), (3, 1, 65)]),
        ("A.-A [Bd].-[Bd]|", [(0, 2, 69), (2, 2, 71), (2, 2, 74)]),
        ("+trill+A+fermata+B c2|", [(0, 1, 69), (1, 1, 71), (2, 2, 72)]),
        (
            "CDEF|\nw: a b\n+: c d\nG4|",
            [(0, 1, 60), (1, 1, 62), (2, 1, 64), (3, 1, 65), (4, 4, 67)],
        ),
        ("%%begintext\nA bad deed\n%%endtext\nC4|", [(0, 4, 60)]),
        ("CDEF % GABc\n% CDEF\nG4|", [(0, 1, 60), (1, 1, 62), (2, 1, 64), (3, 1, 65), (4, 4, 67)]),
    ],
)
def test_notes(tmp_path, music, expected):
    found = quarters(read_abc(tmp_path, HEAD + music).tracks[0])
    key = [pytest.approx(row) for row in sorted(expected)]
    assert found[: len(key)] == key


def test_keys_metres_and_tempi_change_where_they_stand(tmp_path):
    text = (
        'X:1\nM:3/4\nL:1/8\nQ:"Lento" 3/8=40\nK:Eb\nE6|[Q:1/4=90]E4[Q:100]E2|\n'
        "M:5/8\nK:F#m\nF5|[K:D mix ^c]C5|]"
    )
    score = read_abc(tmp_path, text)
    assert score.tempos.tolist() == [(0, 60), (1440, 90), (2400, 50)]
    assert score.key_signatures == [(0, -3, False), (2880, 3, True), (4080, 1, False)]
    assert score.time_signatures == [(0, 3, 4), (2880, 5, 8)]
    assert score.notes["pitch"].tolist() == [63, 63, 63, 66, 61]


@pytest.mark.parametrize(
    "voices",
    [
        ["K:G", "V:S", "GABc|"],
        ["V:S", "V:K clef=perc", "K:G", "V:S", "GABc|", "V:K", "CCCC|"],
        ["V:S", "V:E", "K:G", "V:S", "GABc|"],
        ["K:G", "V:C transpose=-2", "GABc|", "V:S", "GABc|", "V:T", "GABc|"],
    ],
)
def test_the_key_and_the_tempo_of_the_head_are_those_of_all_voices(tmp_path, voices):
    score = read_abc(tmp_path, "\n".join(["X:1", "M:4/4", "L:1/4", "Q:1/4=90", *voices]))
    assert score.key_signatures == [(0, 1, False)]
    assert score.tempos.tolist() == [(0, 90)]


def test_keys_and_tempi_in_rare_forms(tmp_path):
    text = "X:1\nM:4/4\nL:1/8\nQ:C3=60\nK:D exp _b _e\nB2E2F2C2|[K:D exp ^f]F8|"
    score = read_abc(tmp_path, text)
    assert score.notes["pitch"].tolist() == [70, 63, 65, 60, 66]
    assert score.key_signatures == [(0, -2, False), (1920, 1, False)]
    assert score.tempos.tolist() == [(0, 90)]


def test_voices_have_names_clefs_and_words(tmp_path):
    text = (
        'X:1\nM:2/4\nL:1/4\nV:1 name="Alto flute" clef=treble-8\nV:2 nm="Song"\n'
        "%%MIDI program 73\nV:3 nm=Horn octave=1\nK:C transpose=0\n[V:1] CD|[V:2] EF|\n"
        "V:3\nGA|\nV:2\nG2|\nw: a b c\nV:1\nE2|"
    )
    tracks = read_abc(tmp_path, text).tracks
    assert [(t.name, t.program) for t in tracks] == [("Alto flute", 0), ("Song", 73), ("Horn", 0)]
    assert [quarters(t)[0] for t in tracks] == [(0, 1, 48), (0, 1, 64), (0, 1, 79)]
    sung = read_abc(tmp_path, HEAD + "CDEF|\nw: one two three four")
    assert sung.tracks[0].program == 52


@pytest.mark.parametrize(
    ("music", "expected"),
    [
        ("|:C4:|D4|]", "CCD"),
        ("C4|D4:|E4|", "CDCDE"),
        ("|:C4|1D4:|2E4||F4|", "CDCEF"),
        ("|:C4|[1,3 D4:|[2 E4:|[4 F4|]", "CDCECDCF"),
        ("|:C4::D4:|", "CCDD"),
        ("|:C4::|", "CCC"),
    ],
)
def test_repeats(tmp_path, music, expected):
    pitches = {"C": 60, "D": 62, "E": 64, "F": 65}
    twice = read_abc(tmp_path, HEAD + music, repeats=True)
    assert twice.notes["pitch"].tolist() == [pitches[step] for step in expected]
    once = read_abc(tmp_path, HEAD + music)
    assert once.notes["pitch"].tolist() == sorted({pitches[step] for step in expected})


@pytest.mark.parametrize(
    ("music", "expected"),
    [
        ("C4|D4!fine!|E4!D.C.!|]", "CDECD"),
        ('C4|D4"^Fine"|E4"_D.C. al Fine"|]', "CDECD"),
        ("C4|!segno!D4|E4!D.S.!|F4|]", "CDEDEF"),
        ("C4|+segno+D4|E4+D.S.+|F4|]", "CDEDEF"),
        ("C4|D4+fine+|E4+D.C.alfine+|]", "CDECD"),
        ('C4|SD4|E4!dacoda!|F4"^D.S. al Coda"|OG4|]', "CDEFDEG"),
        ("C4|D4O|E4!D.C.!|OF4|]", "CDECDF"),
        ("|:C4|1D4:|2E4!fine!|F4!D.C.!|]", "CDCEFCE"),
        ("C4|:D4!D.C.!:|E4!dacoda!|F4!D.C.!|!coda!|:G4:|]", "CDDCDEFCDEGG"),
        ("C4!D.S.!|D4!fine!|E4!dacoda!|", "CDE"),
    ],
)
def test_da_capo_and_dal_segno(tmp_path, music, expected):
    """Each is obeyed once; afterwards only the last endings, and no repeats, are played."""
    pitches = {"C": 60, "D": 62, "E": 64, "F": 65, "G": 67}
    played = read_abc(tmp_path, HEAD + music, repeats=True)
    assert played.notes["pitch"].tolist() == [pitches[step] for step in expected]
    assert not played.markers


@pytest.mark.parametrize(
    ("scope", "pitches"),
    [("pitch", [61, 73, 61, 60]), ("octave", [61, 72, 61, 60]), ("not", [61, 72, 60, 60])],
)
@pytest.mark.parametrize("where", ["{}" + HEAD, HEAD + "{}"])
def test_accidentals_reach_as_far_as_the_tune_says(tmp_path, scope, pitches, where):
    text = where.format(f"%%propagate-accidentals {scope}\n") + "^CcC=C|C4|"
    assert read_abc(tmp_path, text).notes["pitch"].tolist() == [*pitches, 60]
    text = where.format(f"I:propagate-accidentals {scope}\n") + "^CcC=C|C4|"
    assert read_abc(tmp_path, text).notes["pitch"].tolist() == [*pitches, 60]
    assert read_abc(tmp_path, HEAD + "^Cc_e'E|").notes["pitch"].tolist() == [61, 73, 87, 63]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("ABA", "CDECD"),
        ("A2B", "CDCDE"),
        ("(AB)2", "CDECDE"),
        ("B.(A2(B)2)2", "ECDCDEECDCDEE"),
        ("AXB0", "CD"),
    ],
)
def test_sections_are_played_in_the_order_of_the_head(tmp_path, order, expected):
    """On request, and each with its repeats: the second repeat goes back to its own section."""
    pitches = {"C": 60, "D": 62, "E": 64}
    text = HEAD.replace("K:", f"P:{order}\nK:") + "P:A\nC4|D4|\n[P:B]E4|"
    assert read_abc(tmp_path, text).notes["pitch"].tolist() == [60, 62, 64]
    played = read_abc(tmp_path, text, repeats=True).notes["pitch"].tolist()
    assert played == [pitches[step] for step in expected]
    twice = read_abc(tmp_path, text[:-1] + ":|", repeats=True).notes["pitch"].tolist()
    assert twice == [pitches[step] for step in expected.replace("E", "EE")]


def test_endless_orders_raise_one_line(tmp_path):
    for order in ("((((((A99)99)99)99)99)99)99", "A99" * 99):
        text = HEAD.replace("K:", f"P:{order}\nK:") + "P:A\n" + "C4|" * 999
        with pytest.raises(UserError, match=r"more than 20,000 (sections|bars)"):
            read_abc(tmp_path, text, repeats=True)


def test_microtones_and_macros_are_named(tmp_path):
    score = read_abc(tmp_path, HEAD + "^/C _3/2D ^F _/A|[^1/4C^E]4|")
    assert score.repairs == ["4 microtones rounded"]
    assert score.notes["pitch"].tolist() == [60, 60, 66, 69, 60, 65]
    score = read_abc(tmp_path, HEAD.replace("K:", "m: ~G2 = G/A/G\nm:~A=A/B/A\nK:") + "~G2 CD|")
    assert score.repairs == ["2 macros (m:) not played"]


@pytest.mark.parametrize(
    ("music", "onset", "signatures"),
    [
        ("CDE:|F|GABc|", 0, [(0, 4, 4)]),
        ("CD:|EF|GABc|", 0, [(0, 4, 4)]),
        ("C||D|EF|GABc|", 0, [(0, 4, 4)]),
        ("C|DEFG|ABc|", 3, [(0, 4, 4)]),  # an upbeat, as in the others
        ("C|DEF|]", 3, [(0, 4, 4)]),
        ("CD|EFG|ABcd|", 2, [(0, 4, 4), (1920, 3, 4), (3360, 4, 4)]),
    ],
)
def test_a_first_bar_in_pieces_is_no_upbeat(tmp_path, music, onset, signatures):
    score = read_abc(tmp_path, HEAD + music)
    assert score.notes["onset"].min() == 480 * onset
    assert score.time_signatures == signatures


def test_pieces_of_a_first_bar_are_none_of_an_upbeat_when_it_is_repeated(tmp_path):
    score = read_abc(tmp_path, HEAD + "CDE:|F|GABc|", repeats=True)
    assert (score.notes["onset"] / 480).tolist() == list(range(11))
    assert score.time_signatures == [(0, 3, 4), (1440, 4, 4)]


@pytest.mark.parametrize(
    ("metre", "signature", "last"),
    [("none", (4, 4), "D4"), ("3/4", (3, 4), "D3"), ("9+9/8", (18, 8), "D9")],
)
def test_endless_bars_become_bars_of_the_metre(tmp_path, metre, signature, last):
    head = HEAD.replace("4/4", metre)
    score = read_abc(tmp_path, head + "C" * 1_030 + f"|{last}|")
    assert score.repairs == ["1 bar of more than 1,020 quarters divided"]
    assert score.time_signatures == [(0, *signature), (480 * 1_030, *signature)]
    assert loads(dumps(score)).time_signatures == score.time_signatures
    read_abc(tmp_path, head + "C" * 1_020 + f"|{last}|")
    with pytest.raises(UserError, match="a time signature of 2700/2"):
        read_abc(tmp_path, HEAD.replace("4/4", "+".join(["900"] * 3) + "/2") + "CCCC|")


def test_chord_symbols_are_markers(tmp_path):
    score = read_abc(tmp_path, HEAD + '"Am7/E"A2"Bb"B"^hidden"c|"F#dim"d4|"@1,2 text"e4|')
    assert score.markers == [(0, "A_m7_E"), (960, "Bb_M_Bb"), (1920, "F#_o_F#")]


BOOK = (
    "% a book\n\nM:3/4\n\nX:1\nL:1/4\nK:C\nCDE|\n\ntext between\n\nX:7\nK:D\nF4|\n\nX:8\nT:no key\n"
)


def test_fermatas_are_markers(tmp_path):
    score = read_abc(tmp_path, HEAD + "CDE!fermata!F|HG4|+fermata+A4|")
    assert score.markers == [(1440, "Fermata"), (1920, "Fermata"), (3840, "Fermata")]


def test_each_tune_of_a_book_has_a_path(tmp_path):
    first = read_abc(tmp_path, BOOK)
    assert first.notes["pitch"].tolist() == [60, 62, 64]
    assert first.time_signatures == [(0, 3, 4)]
    assert first.repairs == ["tune 1 of 3; tune.abc/2 is the next"]
    path = tmp_path / "tune.abc"
    assert find_music(tmp_path) == [path / "1", path / "2", path / "3"]
    assert music_name(path / "1") == "tune.abc/1"
    assert replace(first, repairs=[]) == read(path / "1")
    second = read(path / "2")
    assert (second.notes["pitch"].tolist(), second.key_signatures) == ([66], [(0, 2, False)])
    with pytest.raises(UserError, match=r"tune\.abc/3: no score .*\(a tune without a key, K:\)"):
        read(path / "3")
    with pytest.raises(UserError, match=r"tune\.abc/4: there is no such tune; .* has 3 tunes$"):
        read(path / "4")
    path.write_text(HEAD + "G4|")
    assert find_music(tmp_path) == [path]
    assert read(path).notes["pitch"].tolist() == [67]


def test_tunes_have_names_in_their_order(tmp_path):
    path = tmp_path / "book.abc"
    path.write_text("\n".join(HEAD + f"{'CDEFGABcdefg'[i]}4|\n" for i in range(12)))
    found = find_music(tmp_path)
    assert found == sorted(found)
    assert [len(each.name) for each in found] == [2] * 12
    assert [read(each).notes["pitch"][0] for each in found[8:10]] == [74, 76]


def test_no_other_file_is_opened(tmp_path):
    secret = tmp_path / "secret.abc"
    secret.write_text("GGGG|")
    for line in (f"%%abc-include {secret}", f"I:abc-include {secret}"):
        score = read_abc(tmp_path, HEAD + f"{line}\nC4|")
        assert score.notes["pitch"].tolist() == [60]
    with pytest.raises(UserError, match="no note"):
        read_abc(tmp_path, HEAD.replace("M:4/4", "M:__import__('os')/4"))


def test_endless_tunes_raise_one_line(tmp_path):
    for music in (
        "Z999999999|C4|",
        "C4|" * 25_000,
        "C9999" * 600,
        "|:" + "C4|" * 15_000 + "C4:|",
    ):
        with pytest.raises(UserError, match=r"no score that can be read[^\n]*$"):
            read_abc(tmp_path, HEAD + music, repeats=True)
    for music in (
        "[" + "CEG" * 3_000 + "]|",
        "[" + "C" * 9_000 + "|",
        "[" * 200_000 + "C",
        "[K:" * 90_000 + "C",
        "{" * 200_000 + "C",
        ":" * 200_000 + "C",
        "Q:" + " " * 200_000 + "x\nC",
        "K:C " + "^" * 200_000 + "\nC",
        '"' + "m" * 200_000 + '"C',
    ):
        assert read_abc(tmp_path, HEAD + music).num_notes
