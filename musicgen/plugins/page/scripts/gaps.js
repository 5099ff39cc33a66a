// Bars and parts that are written anew, as in musicgen/tokenization/gaps.py and part_orders.py: up to
// eight bars that follow come first, then all bars before; in each bar the parts that stay come first.

/** Return the tokens of each of some whole bars. */
function splitBars(tokenizer, tokens) {
  const lines = tokenizer.barsIn(tokens);
  return lines.map((line, i) => tokens.slice(line, lines[i + 1]));
}

/** Return the grid steps of the bar lines of a piece up to a musical time, also of bars without tokens. */
function barLines(tokenizer, tokens, until) {
  const lines = tokenizer.barStarts(tokens);
  const length = tokenizer.bar_lengths[tokenizer.rank(lastBarToken(tokenizer, tokens))];
  while (lines.at(-1) < until || lines.length <= tokenizer.barsIn(tokens).length)
    lines.push(lines.at(-1) + length);
  return lines;
}

const lastBarToken = (tokenizer, tokens) =>
  tokens.findLast((token) => within(token, tokenizer.barTokens));

/** Return tokens of whole bars with some parts before the others in each bar. */
function withPartsAhead(tokenizer, tokens, isAhead) {
  const { families, places } = tokenizer;
  const place = ([part]) => {
    const number = part - families.Part[0];
    return places[number] + (isAhead[number] ? 0 : places.length);
  };
  return splitBars(tokenizer, tokens).flatMap((bar) => {
    const starts = [...bar.keys()].filter((i) => within(bar[i], families.Part));
    const parts = starts.map((start, i) => bar.slice(start, starts[i + 1]));
    return [...bar.slice(0, starts[0]), ...parts.toSorted((a, b) => place(a) - place(b)).flat()];
  });
}

/** Return up to eight bars from one on, between the marks of a gap; none without marks or bars. */
function futureOf(tokenizer, tokens, bar, isAhead) {
  const [future, stop] = tokenizer.families.Gap ?? [0, 0];
  if (future === stop || bar >= tokenizer.barsIn(tokens).length) return [];
  const rest = tokenizer.fromBar([...tokens, tokenizer.eos], bar).slice(0, -1);
  const bars = splitBars(tokenizer, rest).slice(0, CONSTANTS.futureBars);
  return [future, ...withPartsAhead(tokenizer, bars.flat(), isAhead), future + 1];
}

/**
 * Return the conditioning tokens of a piece some of whose parts are written anew in some bars, with
 * null where they come, until the next token, a bar; where the past and where the first new bar begin
 * among them; the grid step at which the gap ends; whether each part stays and leads; and [grid step, index] of the
 * chords that are asked for.
 *
 * @param from, to grid steps between which notes are replaced
 * @param parts those that are written
 * @param progression the chords of each of these bars; null without
 * @param keepsChords whether the chords stay, else they are written, too
 */
function gapOf(tokenizer, tokens, { from, to, parts, progression, keepsChords }) {
  const score = tokenizer.decode(tokens);
  const step = score.ticksPerBeat / tokenizer.stepsPerBeat;
  const lines = barLines(tokenizer, tokens, to);
  const first = lines.findLastIndex((line) => line <= from);
  const last = lines.findIndex((line) => line >= to); // the bar after the gap
  const [start, end] = [lines[first], lines[last]];
  const isAhead = tokenizer.places.map(
    (_, part) => !parts.includes(part) && score.tracks[part]?.notes.length > 0,
  );
  const tracks = score.tracks.map((track, part) => {
    return isAhead[part] ? track : notesIn(track, ([onset]) => onset < start * step);
  });
  const old = chordsIn(tokenizer, score).map(([tick, chord]) => [tick / step, chord]);
  const before = old.filter(([time]) => time < start);
  const inGap = progression
    ? scheduleChords(progression, lines.slice(first, last + 1))
    : old.filter(([time]) => keepsChords && time >= start && time < end);
  const known = encodeWith(tokenizer, { ...score, tracks }, [...before, ...inGap]);
  const chords = progression || keepsChords ? [...before.slice(-1), ...inGap] : [];
  const bars = splitBars(tokenizer, withPartsAhead(tokenizer, known, isAhead));
  // Keys, and where phrases end, are those of all parts.
  const after = old.filter(([time]) => time >= end);
  const whole = encodeWith(tokenizer, score, [...before, ...inGap, ...after]);
  const wholeBars = splitBars(tokenizer, whole);
  const barTokens = tokens.filter((token) => within(token, tokenizer.barTokens));
  const barToken = (bar) => barTokens[bar] ?? barTokens.at(-1);
  const conditioning = futureOf(tokenizer, encodeWith(tokenizer, score, old), last, isAhead);
  const firstPast = conditioning.length;
  let firstNew = 0;
  for (let bar = 0; bar < last; bar++) {
    if (bar === first) firstNew = conditioning.length;
    conditioning.push(...withHeader(tokenizer, bars[bar] ?? [barToken(bar)], wholeBars[bar]));
    if (bar >= first) conditioning.push(null);
  }
  conditioning.push(barToken(last));
  return { conditioning, firstPast, firstNew, end, isAhead, chords };
}

/** Return the tokens of decoded music with chords, [grid step, index] of each, without the end. */
function encodeWith(tokenizer, score, chords) {
  const step = score.ticksPerBeat / tokenizer.stepsPerBeat;
  const markers = chords.map(([time, chord]) => [time * step, tokenizer.chordNames[chord]]);
  const ticks = chords.map(([time, chord]) => [time * step, chord]);
  return tokenizer.encode({ ...score, markers }, ticks).slice(0, -1);
}

/** Return [tick, index] of the chords of decoded music. */
function chordsIn({ chordNames }, score) {
  return score.markers.map(([tick, text]) => [tick, chordNames.indexOf(text)]);
}

const notesIn = (track, test) => ({ ...track, notes: track.notes.filter(test) });

/** Return how a note of a part is written, as a key. */
const writtenAs = (part, note) => [part, ...note].join(" ");

/**
 * Return the tokens of a piece with the notes of some parts between two grid steps from others, which
 * end there, and with their chords.
 */
function withGapFilled(tokenizer, tokens, filled, { from, to, parts }) {
  const [score, other] = [tokens, filled].map((each) => tokenizer.decode(each));
  const step = score.ticksPerBeat / tokenizer.stepsPerBeat;
  const [start, end] = [from * step, to * step];
  const isInside = ([tick]) => tick >= start && tick < end;
  const tracks = score.tracks.map((track, part) => {
    if (!parts.includes(part)) return track;
    const added = notesIn(other.tracks[part], isInside).notes.map(([onset, length, ...rest]) => {
      return [onset, Math.min(length, end - onset), ...rest];
    });
    return { ...track, notes: [...track.notes.filter((note) => !isInside(note)), ...added] };
  });
  const [old, added] = [score, other].map((each) => chordsIn(tokenizer, each));
  // After the gap the piece's own chord is in force again.
  const back = old.filter(([tick]) => tick <= end).slice(-1);
  const chords = [
    ...old.filter(([tick]) => tick < start),
    ...added.filter(isInside),
    ...back.map(([, chord]) => [end, chord]),
    ...old.filter(([tick]) => tick > end),
  ];
  const times = chords.map(([tick, chord]) => [tick / step, chord]);
  const written = encodeWith(tokenizer, { ...score, tracks }, times);
  return written.length ? written : tokenizer.startTokens;
}
