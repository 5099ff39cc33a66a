// Prompts: the beginning of a piece in bars, as musicgen/generation/prompt.py cuts it.

/**
 * Return the first bars of a score, from the first that has a note: tokens, the musical time at which
 * the continuation begins, the steps in its last bar and in its upbeat, and the tempi and time
 * signature that tokens lack.
 *
 * @param maxBars bars to keep at most
 */
function makePrompt(tokenizer, written, maxBars) {
  const barLength = tokenizer.barLength(written);
  const score = tokenizer.inBars(written);
  const encoded = tokenizer.encode(score, score.chords);
  const bars = tokenizer.barStarts(encoded, score);
  const [first, final] = barsWithNotes(tokenizer, encoded, bars);
  const upbeat = first === 0 && hasUpbeat(written) ? bars[1] : 0; // a bar that does not count
  const begin = first + (upbeat ? 1 : 0);
  const last = Math.min(begin + maxBars - 1, final);
  const lastBar = lengthOfBar(tokenizer, encoded, bars, last, barLength);
  const startTime = bars[first];
  const endTime = (bars[last + 1] ?? bars[last] + lastBar) - startTime;
  const fromFirst = first ? tokenizer.fromBar(encoded, first, startTime) : encoded;
  const kept = tokensBefore(tokenizer, fromFirst, endTime);
  const tokens = beginningOf(tokenizer, kept.filter((token) => token !== tokenizer.eos));
  const startTick = Math.round((startTime * score.ticksPerBeat) / tokenizer.stepsPerBeat);
  return {
    tokens,
    endTime,
    barLength: lastBar,
    upbeat,
    numBars: last - begin + 1,
    allBars: final - begin + 1,
    frame: frameOf(score, startTick),
    performance: findPerformance(tokenizer, score, bars, startTime, startTime + endTime),
  };
}

/** Return the prompt of a piece without music, with its key signature if it has one. */
function emptyPrompt(tokenizer, keys) {
  const { ticksPerBeat } = CONSTANTS;
  const frame = { ticksPerBeat, tracks: [], tempos: [], signatures: [], markers: [], keys };
  const encoded = keys.length ? tokenizer.encode(frame) : tokenizer.startTokens;
  const tokens = beginningOf(tokenizer, encoded.filter((token) => token !== tokenizer.eos));
  return { tokens, endTime: 0, barLength: tokenizer.barLength(frame), frame };
}

/** Return the numbers of the first and of the last bar in which a note begins. */
function barsWithNotes(tokenizer, encoded, bars) {
  const onsets = allNotes(tokenizer.decode(encoded)).map(([onset]) => onset);
  if (!onsets.length) {
    throw new UserError("no note that this model's vocabulary can represent; give another piece");
  }
  const step = CONSTANTS.ticksPerBeat / tokenizer.stepsPerBeat;
  const barAt = (tick) => bars.findLastIndex((start) => start <= tick / step);
  return [barAt(least(onsets)), barAt(greatest(onsets))];
}

/** Return the grid steps in a bar of encoded music. */
function lengthOfBar(tokenizer, encoded, bars, number, usualLength) {
  if (!tokenizer.barTokens) return usualLength;
  if (number + 1 < bars.length) return bars[number + 1] - bars[number];
  const lastBar = encoded.findLast((token) => within(token, tokenizer.barTokens));
  return tokenizer.bar_lengths[lastBar - tokenizer.barTokens[0]];
}

/** Return the first tokens of a piece, before a musical time. */
function tokensBefore(tokenizer, tokens, time) {
  const end = tokenizer.times(tokens).findIndex((each) => each >= time);
  return end < 0 ? tokens : tokens.slice(0, end);
}

/** Return a score without its long silences, as musicgen/tokenization/whole_bars.py has it. */
function withoutLongGaps(score) {
  const gaps = longGaps(score, CONSTANTS.maxEmptyBars);
  const move = (tick) => {
    const removed = gaps.map(([first, last]) => Math.max(0, Math.min(tick, last) - first));
    return tick - removed.reduce((sum, length) => sum + length, 0);
  };
  const moved = (events) => events.map(([tick, ...rest]) => [move(tick), ...rest]);
  return {
    ...score,
    tracks: score.tracks.map((track) => ({ ...track, notes: moved(track.notes) })),
    tempos: moved(score.tempos),
    signatures: moved(score.signatures),
    keys: moved(score.keys),
    markers: moved(score.markers),
  };
}

/** Return the ticks between which whole bars are silent, more than `maxBars` at a time. */
function longGaps(score, maxBars) {
  const notes = allNotes(score).sort((a, b) => a[0] - b[0]);
  const barLines = barsOf(score, 2 ** 16).map(([start]) => start);
  const gaps = [];
  let end = 0;
  for (const [onset, duration] of notes) {
    if (onset - end > maxBars * score.ticksPerBeat) {
      const first = barLines.findIndex((line) => line >= end);
      const last = barLines.findLastIndex((line) => line <= onset);
      if (last - first > maxBars) gaps.push([barLines[first], barLines[last]]);
    }
    end = Math.max(end, onset + duration);
  }
  return gaps;
}

/** Return the tempi, time signature and key of a score from a tick on, in ticks of decoded scores. */
function frameOf(score, start) {
  const scale = (tick) =>
    Math.floor((Math.max(0, tick - start) * CONSTANTS.ticksPerBeat) / score.ticksPerBeat);
  const from = (events) => {
    const before = events.filter(([tick]) => tick <= start).slice(-1);
    const after = events.filter(([tick]) => tick > start);
    return [...before, ...after].map(([tick, ...rest]) => [scale(tick), ...rest]);
  };
  const keys = score.keys.slice(0, 1).map(([, ...key]) => [0, ...key]);
  return { tempos: from(score.tempos), signatures: from(score.signatures).slice(0, 1), keys };
}

/** Return a decoded score with the tempi, time signature and key of a frame where it has none. */
function withFrame(score, frame) {
  const tempos = score.tempos.length ? score.tempos : frame.tempos;
  const signatures = score.signatures.length ? score.signatures : frame.signatures;
  return { ...score, tempos, signatures, keys: score.keys.length ? score.keys : frame.keys };
}

/** Return a piece with notes that somebody played after it, in ticks of decoded scores. */
function joinNotes(piece, tokenizer, notes, bpm) {
  const tracks = piece.tracks.map((track, i) => {
    return i === tokenizer.played ? { ...track, notes: [...track.notes, ...notes] } : track;
  });
  const tempos = piece.tempos.length ? piece.tempos : [[0, bpm]];
  const score = { ...piece, tracks, tempos };
  if (!piece.markers.length) return score;
  // The chords of the piece stay; those of what was played are recognised.
  const first = notes[0][0];
  const recognised = recogniseChords(score, tokenizer.recognition).map(([tick, chord]) => [
    tick,
    tokenizer.chordNames[chord],
  ]);
  const [before, after] = [
    piece.markers.filter(([tick]) => tick < first),
    recognised.filter(([tick]) => tick > first),
  ];
  return { ...score, markers: [...before, [first, latestAt(recognised, first)[1]], ...after] };
}

/**
 * Return the prompt of all music before a musical time, at which the continuation begins. Until then,
 * voices without bars hold their last notes: they would stay silent after a rest.
 */
function livePrompt(tokenizer, score, time) {
  const whole = makePrompt(tokenizer, score, Infinity);
  const tokens = [...tokensBefore(tokenizer, whole.tokens, time)];
  const { numVoices } = CONSTANTS;
  while (!tokenizer.barTokens && tokens.length < tokenizer.opening + numVoices * time)
    tokens.push(tokens.at(-numVoices));
  return { ...whole, tokens, endTime: time };
}
