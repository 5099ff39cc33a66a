// Keys with a mode, and the bars left to the ends of phrases and of the piece, as in
// musicgen/tokenization/phrases.py and songs.py.

const [HALF, FULL, PIECE] = [0, 1, 2];

/** Return [tick, index] of the keys of a score, as with_modes in midi/key.py reads them. */
function keysOf(score, tokenizer) {
  const { keys } = score;
  const modeIsOpen = tokenizer.hasModes && !keys.some(([, , minor]) => minor);
  return keys.map(([tick, fifths, minor], i) => {
    const end = keys[i + 1]?.[0] ?? Infinity;
    const isInside = ([onset]) => onset >= tick && onset < end;
    const found = modeIsOpen ? findKey(score, tokenizer, { fifths, isInside })?.minor : minor;
    return [tick, keyIndex({ fifths, minor: found }, tokenizer)];
  });
}

/** Return the index of a key among those of the vocabulary; keys that sound the same are one. */
function keyIndex({ fifths, minor }, tokenizer) {
  const isMinor = minor && tokenizer.hasModes;
  return ((fifths - tokenizer.firstKey + 12) % 12) + (isMinor ? 12 : 0);
}

/** Return [sharps or minus flats, whether minor] of a key by its index. */
const keyAt = (index, { firstKey }) => [(index % 12) + firstKey, index >= 12];

/**
 * Return [bar, index among its tokens] of the bars that count the bars left.
 *
 * @param notes those of the vocabulary, see notesOf
 * @param keys, chords [grid step, index] where they change
 */
function leftOf(score, tokenizer, { notes, keys, chords, barOf, numBars }) {
  const phrases = phraseEnds(score, tokenizer, notes).map((time) => {
    const key = latestAt(keys, time)[1];
    const tonic = 7 * ((key % 12) + tokenizer.firstKey) - (key < 12 ? 0 : 3);
    const dominant = CONSTANTS.noteNames.at((tonic + 7) % 12);
    const chord = tokenizer.chordNames[latestAt(chords, time)?.[1]];
    return [barOf(time), ["M", "7"].some((x) => chord === `${dominant}_${x}`) ? HALF : FULL];
  });
  return barsLeft(phrases, numBars);
}

/** Return the last grid step of each phrase but the last one, ascending; see phrase_ends in Python. */
function phraseEnds(score, { tracks, durations, stepsPerBeat }, notes) {
  const partOf = ({ line }) => tracks[Math.floor(line / 128)];
  const isTune = (note) => partOf(note).name.toLowerCase() === CONSTANTS.tune;
  const counts = notes.some(isTune) ? isTune : () => true;
  const sorted = notes
    .filter((note) => counts(note) && !partOf(note).isDrum)
    .sort((a, b) => a.onset - b.onset);
  const steps = new Set();
  let until = 0; // where the notes so far end
  for (const [i, { onset, duration }] of sorted.entries()) {
    if (i && onset - until >= stepsPerBeat) steps.add(until - 1);
    until = Math.max(until, onset + durations.values.findLast((each) => each <= duration));
  }
  for (const [tick, text] of score.markers) {
    const step = toGrid(tick, stepsPerBeat, score.ticksPerBeat);
    if (text === CONSTANTS.doubleBar) steps.add(step - 1);
    if (text === CONSTANTS.fermata) steps.add(step);
  }
  return [...steps].filter((step) => step >= 0 && step < until).sort((a, b) => a - b);
}

/** Return [bar, index among its tokens] from [last bar, kind] of phrases; see bars_left in Python. */
function barsLeft(phrases, numBars) {
  const { leftCounts } = CONSTANTS;
  const left = new Map();
  const count = (last, kind, before) =>
    leftCounts.forEach((number, i) => {
      if (last - number + 1 > before) left.set(last - number + 1, leftCounts.length * kind + i);
    });
  phrases
    .filter(([bar], i) => bar !== phrases[i + 1]?.[0] && bar < numBars - 1)
    .forEach(([bar, kind], i, all) => count(bar, kind, all[i - 1]?.[0] ?? -1));
  count(numBars - 1, PIECE, -1);
  return [...left];
}

/** Return the bars that a token of the family Left counts, and the kind of their end. */
function countOf(rank) {
  const { leftCounts } = CONSTANTS;
  return [leftCounts[rank % leftCounts.length], Math.floor(rank / leftCounts.length)];
}

/** Return tokens of whole bars without counts of the bars behind them. */
function beginningOf(tokenizer, tokens) {
  const { Left = [0, 0], Bar } = tokenizer.families;
  if (Left[0] === Left[1]) return tokens;
  const numBars = tokenizer.barsIn(tokens).length;
  let bar = 0;
  return tokens.filter((token) => {
    if (within(token, Bar)) bar++;
    if (!within(token, Left)) return true;
    const [number, kind] = countOf(token - Left[0]);
    return kind !== PIECE && bar + number - 1 <= numBars;
  });
}

/**
 * Return [grid step, kind] of the ends that are planned: sections of a form are phrases, and `closes`
 * tells whether the piece ends.
 *
 * @param section grid steps of a section; 0: no form
 * @param upbeat those before the first section
 */
function plannedEnds(end, section, closes, upbeat) {
  const numSections = section ? Math.floor((end - upbeat) / section) : 0;
  const ends = Array.from({ length: numSections }, (_, i) => [upbeat + (i + 1) * section, FULL]);
  return closes ? [...ends.filter(([step]) => step < end), [end, PIECE]] : ends;
}

/** Return tokens without counts of bars up to an end of the piece, but for an end at a grid step. */
function withEnd(tokenizer, tokens, end) {
  const { Left = [0, 0], Bar } = tokenizer.families;
  const times = tokenizer.times(tokens);
  return tokens.filter((token, i) => {
    if (!within(token, Left)) return true;
    const [count, kind] = countOf(token - Left[0]);
    const barLength = tokenizer.bar_lengths[tokens[i - 1] - Bar[0]];
    return kind !== PIECE || times[i] + count * barLength === end;
  });
}

/** Return the tokens of a bar with the header of the same bar of another piece. */
function withHeader({ families }, bar, other = bar) {
  const header = (tokens) => {
    const part = tokens.findIndex((token) => within(token, families.Part));
    return part < 0 ? tokens.length : part;
  };
  return [...other.slice(0, header(other)), ...bar.slice(header(bar))];
}
