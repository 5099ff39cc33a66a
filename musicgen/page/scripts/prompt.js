// Prompts: the beginning of a piece in bars, as musicgen/generation/prompts.py cuts it.

const MAX_EMPTY_BARS = 64;

/**
 * Return the first bars of a score, from the first that has a note: tokens, the musical time at which
 * the continuation begins, the steps in its last bar, and the tempi and metre that tokens lack.
 *
 * @param maxBars bars to keep at most
 */
function makePrompt(tokenizer, score, maxBars) {
  const barLength = tokenizer.barLength(score);
  const encoded = tokenizer.encode(score);
  const grid = tokenizer.decode(encoded);
  if (!allNotes(grid).length) {
    throw new UserError("no note that this model's vocabulary can represent; give another piece");
  }
  const step = TICKS_PER_BEAT / tokenizer.stepsPerBeat;
  const bars = tokenizer.barStarts(encoded, barLength);
  const onsets = allNotes(grid).map(([onset]) => onset / step);
  const barAt = (time) => bars.findLastIndex((start) => start <= time);
  const [first, final] = [barAt(least(onsets)), barAt(greatest(onsets))];
  const last = Math.min(first + maxBars - 1, final);
  let lastBar = barLength;
  if (last + 1 < bars.length) lastBar = bars[last + 1] - bars[last];
  else if (tokenizer.barTokens) {
    lastBar = tokenizer.bar_lengths[encoded.findLast((token) => within(token, tokenizer.barTokens)) - tokenizer.barTokens[0]];
  }
  const startTime = bars[first];
  const endTime = bars[last] - startTime + lastBar;
  let tokens = first ? tokenizer.fromBar(encoded, first, barLength) : encoded;
  const cut = tokenizer.times(tokens).findIndex((time) => time >= endTime);
  tokens = cut < 0 ? tokens : tokens.slice(0, cut);
  tokens = tokens.filter((token) => token !== tokenizer.eos);
  const startTick = Math.round((startTime * score.ticksPerBeat) / tokenizer.stepsPerBeat);
  const prompt = { tokens, endTime, barLength: lastBar, numBars: last - first + 1, allBars: final - first + 1 };
  return { ...prompt, frame: frameOf(score, startTick) };
}

/** Return a score without its silences of more than 64 bars, as musicgen/tokenization/whole_bars.py has it. */
function withoutLongGaps(score) {
  const notes = allNotes(score).sort((a, b) => a[0] - b[0]);
  const lines = barsOf(score, 2 ** 16).map(([start]) => start);
  const gaps = [];
  let end = 0;
  for (const [onset, duration] of notes) {
    if (onset - end > MAX_EMPTY_BARS * score.ticksPerBeat) {
      const first = lines.findIndex((line) => line >= end);
      const last = lines.findLastIndex((line) => line <= onset);
      if (last - first > MAX_EMPTY_BARS) gaps.push([lines[first], lines[last]]);
    }
    end = Math.max(end, onset + duration);
  }
  const move = (tick) => gaps.reduce((now, [first, last]) => now - Math.max(0, Math.min(tick, last) - first), tick);
  const moved = (events) => events.map(([tick, ...rest]) => [move(tick), ...rest]);
  const tracks = score.tracks.map((track) => ({ ...track, notes: moved(track.notes) }));
  const [tempos, signatures, keys, markers] = [score.tempos, score.signatures, score.keys, score.markers].map(moved);
  return { ...score, tracks, tempos, signatures, keys, markers };
}

/** Return the tempi, the metres and the key of a score from a tick on, in ticks of decoded scores. */
function frameOf(score, start) {
  const from = (events) => {
    const before = events.filter(([tick]) => tick <= start).slice(-1);
    const scale = (tick) => Math.floor((Math.max(0, tick - start) * TICKS_PER_BEAT) / score.ticksPerBeat);
    return [...before, ...events.filter(([tick]) => tick > start)].map(([tick, ...rest]) => [scale(tick), ...rest]);
  };
  const keys = score.keys?.slice(0, 1).map(([, fifths]) => [0, fifths]);
  return { tempos: from(score.tempos), signatures: from(score.signatures).slice(0, 1), keys };
}

/** Return a decoded score with the tempi, metres and key of a frame where it has none. */
function withFrame(score, frame) {
  const tempos = score.tempos.length ? score.tempos : frame.tempos;
  const signatures = score.signatures.length ? score.signatures : frame.signatures;
  return { ...score, tempos, signatures, keys: score.keys?.length ? score.keys : frame.keys };
}

/** Return a piece with notes that somebody played after it, in ticks of decoded scores. */
function joinNotes(base, tokenizer, notes, bpm) {
  const tracks = base.tracks.map((track, i) => (i === tokenizer.played ? { ...track, notes: [...track.notes, ...notes] } : track));
  const tempos = base.tempos.length ? base.tempos : [[0, bpm]];
  const score = { ...base, tracks, tempos };
  if (!base.markers.length) return score;
  // The chords of the piece stay; those of what was played are recognised.
  const first = notes[0][0];
  const found = recogniseChords(score, tokenizer.recognition).map(([tick, chord]) => [tick, tokenizer.chordNames[chord]]);
  const now = [first, latestAt(found, first)[1]];
  const markers = [...base.markers.filter(([tick]) => tick < first), now, ...found.filter(([tick]) => tick > first)];
  return { ...score, markers };
}

/**
 * Return the prompt of all music before a musical time, at which the continuation begins. Until then,
 * voices without bars hold their last notes: they would stay silent after a rest.
 */
function livePrompt(tokenizer, score, at) {
  const whole = makePrompt(tokenizer, score, Infinity);
  const cut = tokenizer.times(whole.tokens).findIndex((time) => time >= at);
  const tokens = cut < 0 ? whole.tokens : whole.tokens.slice(0, cut);
  while (!tokenizer.barTokens && tokens.length <= NUM_VOICES * at) tokens.push(tokens.at(-NUM_VOICES));
  return { ...whole, tokens, endTime: at };
}
