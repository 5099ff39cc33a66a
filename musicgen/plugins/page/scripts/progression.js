// What somebody asks for in words: chords, as musicgen/tokenization/chords.py reads them, the
// key of a new piece, and a form.

const [RETURN, CONTRAST] = [3, -6]; // nats, as in musicgen/generation/decoder.py
const CHORDS_EXPECTED =
  "expected chords such as C, Bb, F#m, Am7, G7 or N.C., one a bar, or bars such as C Am | F | % |";

/** Return the index of a printed chord symbol, as chord_marker in midi/key.py reads it. */
function parseChord(symbol, { chordIndices }) {
  const plain = symbol
    .replace(/[♯♭−△]/g, (sign) => ({ "♯": "#", "♭": "b", "−": "-", "△": "Δ" })[sign])
    .replace(/^\((.*?)\)?$/, "$1");
  if (CONSTANTS.noChords.includes(plain)) return chordIndices.N_N;
  const [, root, ending] = /^([A-G][#b]?)(.*?)(?:\/[A-G][#b]?)?$/.exec(plain) ?? [];
  const isOf = ([, spelling]) =>
    new RegExp(`^(?:${spelling})$`).test(ending.replace(/[(),]/g, ""));
  const quality = root && Object.entries(CONSTANTS.chordSpellings).find(isOf)?.[0];
  const index = chordIndices[quality === undefined ? chordName(symbol) : `${root}_${quality}`];
  if (index === undefined) throw new UserError(`chords=${symbol}: ${CHORDS_EXPECTED}`);
  return index;
}

/** Return the chords of each bar, as indices; null without any text. */
function parseProgression(text, tables) {
  if (!text.trim()) return null;
  const bars = [];
  let last = [];
  for (const bar of text.includes("|") ? text.split("|") : text.split(/[\s,]+/)) {
    const symbols = bar.split(/[\s,]+/).filter((symbol) => symbol);
    if (symbols.length === 1 && symbols[0] === "%" && bars.length) {
      bars.push(bars.at(-1));
      continue;
    }
    const chords = symbols.flatMap((symbol) => {
      if (symbol !== "/" || !last.length) last = [parseChord(symbol, tables)];
      return last;
    });
    if (chords.length) bars.push(chords);
  }
  if (!bars.length) throw new UserError(`chords=${text}: ${CHORDS_EXPECTED}`);
  return bars;
}

/** Return [time, chord] where the chord changes; the bars begin again when they end. */
function scheduleChords(bars, lines) {
  const changes = lines.slice(0, -1).flatMap((line, number) => {
    const chords = bars[number % bars.length];
    const length = lines[number + 1] - line;
    return chords.map((chord, i) => [line + Math.floor((i * length) / chords.length), chord]);
  });
  return findChanges(changes);
}

/** Return the key signature, as scores have it, of a key such as Eb or F#m; none without any text. */
function keySignatures(text) {
  const name = text.trim();
  if (!name) return [];
  if (!Object.hasOwn(CONSTANTS.keys, name))
    throw new UserError(`key=${name}: expected a key such as C, Eb, F#m, or -7 to 7 fifths`);
  return [[0, CONSTANTS.keys[name], name.endsWith("m")]];
}

/**
 * Return the nats added to copies in each bar of a form, by lag in bars, as form_biases does in
 * musicgen/generation/decoder.py; null without a form.
 */
function formBiases(text, sectionBars, numLags) {
  const form = text.trim();
  if (!form) return null;
  if (!/^\p{L}{1,100}$/u.test(form))
    throw new UserError(`form=${form}: expected a letter for each section, up to 100, as AABA`);
  const letters = [...form].flatMap((letter) => Array(sectionBars).fill(letter));
  const number = letters.length;
  return letters.map((letter, bar) =>
    Array.from({ length: numLags }, (_, lag) => {
      const earlier = letters[(((bar - lag) % number) + number) % number];
      if (earlier !== letter) return CONTRAST;
      return lag > 0 && lag % sectionBars === 0 ? RETURN : 0;
    }),
  );
}
