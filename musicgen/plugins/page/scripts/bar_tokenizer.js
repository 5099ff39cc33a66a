// REMI and Songs, as in musicgen/tokenization: bars of positions, each with chord, tempo and notes, or
// of parts that have such positions.

/** Compare arrays of numbers by the first that differ. */
function compare(a, b) {
  const i = a.findIndex((value, j) => value !== b[j]);
  return i < 0 ? 0 : a[i] - b[i];
}

class BarTokenizer {
  /** @param tables what musicgen/plugins/page/tables.py makes of the tokenizer */
  constructor(tables) {
    Object.assign(this, tables); // families, bar_lengths, timeSignatures, durations, tracks, …
    this.pad = tables.size - 1;
    this.eos = this.families.EOS[0];
    this.barTokens = this.families.Bar;
    this.startTokens = [this.families.Bar[0]];
    this.hasParts = this.count("Part") > 0;
  }

  /** Return the number of tokens of a family. */
  count(family) {
    const [first, stop] = this.families[family] ?? [0, 0];
    return stop - first;
  }

  /** Return the family of a token. */
  family(token) {
    return Object.keys(this.families).find((name) => within(token, this.families[name]));
  }

  /** Return the index of a token in its family. */
  rank(token) {
    return token - this.families[this.family(token)]?.[0];
  }

  grammar() {
    return new BarGrammar(this);
  }

  // Bars

  /** Return the index of a time signature: the same, else one with equal bars, else the first. */
  findTimeSignature([numerator, denominator]) {
    const same = this.timeSignatures.findIndex(([n, d]) => n === numerator && d === denominator);
    if (same >= 0) return same;
    return Math.max(
      0,
      this.timeSignatures.findIndex(([n, d]) => n * denominator === numerator * d),
    );
  }

  /** Return a score in whole bars of the tokens, with its `chords`: [tick, index] of each. */
  inBars(score) {
    const chords = this.chords ? chordEvents(score, this) : [];
    const barSteps = (signature) => this.bar_lengths[this.findTimeSignature(signature)];
    return inWholeBars({ ...score, chords }, this.stepsPerBeat, barSteps);
  }

  /** Return the grid steps in a bar of a score, in its first time signature. */
  barLength(score) {
    return this.bar_lengths[this.findTimeSignature(firstTimeSignature(score))];
  }

  /** Return the first grid step and the time signature of each bar, and where the last one ends. */
  bars(score, chords) {
    const bars = [];
    let [start, signature] = [0, this.findTimeSignature(CONSTANTS.timeSignature)];
    const fill = (until) => {
      while (start < until && bars.length < this.max_bars) {
        bars.push([start, signature]);
        start += this.bar_lengths[signature];
      }
    };
    for (const [tick, ...next] of score.signatures) {
      fill(toGrid(tick, this.stepsPerBeat, score.ticksPerBeat));
      signature = this.findTimeSignature(next);
    }
    const end = lastTick(score, chords) + 1;
    fill(toGrid(end, this.stepsPerBeat, score.ticksPerBeat) + 1);
    return { bars, end: start };
  }

  /** Return the indices of the tokens that begin a bar. */
  barsIn(tokens) {
    return tokens.flatMap((token, i) =>
      token !== null && within(token, this.barTokens) ? [i] : [],
    );
  }

  /** Return the grid step at which each bar begins. */
  barStarts(tokens) {
    const times = this.times(tokens);
    return tokens.length ? this.barsIn(tokens).map((i) => times[i]) : [0];
  }

  /** Return the grid step of each token: that of its Bar, Part or the last Beat. */
  times(tokens) {
    let [start, end, time] = [0, 0, 0];
    return tokens.map((token) => {
      if (within(token, this.families.Bar)) {
        [start, time] = [end, end];
        end += this.bar_lengths[token - this.families.Bar[0]];
      } else if (within(token, this.families.Part)) {
        time = start;
      } else if (within(token, this.families.Beat)) {
        time = start + token - this.families.Beat[0];
      }
      return time;
    });
  }

  /** Return the tokens from a bar on, which begins with what is in force; see bars.py. */
  fromBar(tokens, bar) {
    const { families, header } = this;
    const first = this.barsIn(tokens)[bar];
    const opening = first + (within(tokens[first + 1], families.Left ?? [0, 0]) ? 2 : 1);
    const [before, begin, rest] = [
      tokens.slice(0, first),
      tokens.slice(first, opening),
      tokens.slice(opening),
    ];
    const fixed = { Part: families.Part[1] - 1, Beat: families.Beat[0] };
    const isOf = (token, name) =>
      name in fixed ? token === fixed[name] : within(token, families[name]);
    const end = rest.findIndex((token) => !header.some((name) => isOf(token, name)));
    const [known, inForce] = [[...before, ...rest.slice(0, end)], []];
    for (const name of header.toReversed()) {
      if (!(name in fixed))
        inForce.unshift(...known.filter((token) => isOf(token, name)).slice(-1));
      else if (inForce.length || rest.slice(0, end).includes(fixed[name]))
        inForce.unshift(fixed[name]);
    }
    return [...begin, ...inForce, ...rest.slice(end)];
  }

  // Encoding

  /** Return the index of the part that plays each track, or null; see instruments.py. */
  findTracks(tracks) {
    let found = tracks.map((track) => this.#partsFor(track));
    const pitched = this.tracks.flatMap(({ isDrum }, i) => (isDrum ? [] : [[i]]));
    if (found.every((parts) => !parts.length) && tracks.length === pitched.length) found = pitched;
    const certain = new Set(found.filter((parts) => parts.length === 1).flat());
    const seen = new Map();
    return tracks.map(({ program }, i) => {
      const left = found[i].filter((part) => !certain.has(part));
      const parts = left.length ? left : found[i];
      const key = `${program} ${parts}`;
      const number = seen.get(key) ?? 0;
      seen.set(key, number + 1);
      return parts[Math.min(number, parts.length - 1)] ?? null;
    });
  }

  /** Return the indices of the parts that can play a track. */
  #partsFor({ name, program, isDrum }) {
    if (isDrum) return this.drums;
    const text = name.toLowerCase();
    const wordStarts = [...text.matchAll(/(?<![\p{L}\p{N}_])[\p{L}\p{N}_]/gu)].map(
      ({ index }) => index,
    );
    const found = this.words.flatMap(([word, part]) => {
      const starts = wordStarts.filter((start) => text.startsWith(word, start));
      return starts.map((start) => [start + word.length, word.length, part]);
    });
    const [end, length] = found.sort(compare).at(-1) ?? [];
    const last = found.filter((each) => each[0] === end && each[1] === length);
    const parts = [...new Set(last.map((each) => each[2]))];
    const isBass = parts.some((part) => this.basses.includes(part));
    const isSung = isBass && this.choirPrograms.includes(program);
    return parts.length && !isSung ? parts : this.programs[program];
  }

  /** Return the notes of a score that the vocabulary has, as removeOverlaps does. */
  notesOf(score, isInside) {
    const step = (tick, unit = 1) => toGrid(tick, unit * this.stepsPerBeat, score.ticksPerBeat);
    const { unit } = this;
    const parts = this.findTracks(score.tracks);
    const notesOfTrack = (track, i) => {
      const part = parts[i];
      const family = track.isDrum ? "Drum" : "Pitch";
      const tokenOf = (pitch) => pitch + this.families[family][0] - this.lowest[family];
      const isKnown = (pitch) => part !== null && within(tokenOf(pitch), this.families[family]);
      return track.notes
        .filter(([onset, , pitch]) => isInside([step(onset)]) && isKnown(pitch))
        .map(([onset, length, pitch, velocity]) => {
          const rounded = unit > 1 ? step(length, unit) : step(onset + length) - step(onset);
          const duration = this.durations.values[track.isDrum ? 0 : binOf(rounded, this.durations)];
          return { line: 128 * part + pitch, onset: unit * step(onset), duration, velocity };
        });
    };
    return removeOverlaps(score.tracks.flatMap(notesOfTrack));
  }

  /**
   * Return the tokens of a whole piece in whole bars, end token included.
   *
   * @param chords [tick, index] of each
   */
  encode(score, chords = this.chords ? chordEvents(score, this) : []) {
    const { bars, end } = this.bars(score, chords);
    const step = (tick) => toGrid(tick, this.stepsPerBeat, score.ticksPerBeat);
    const isInside = ([time]) => time >= 0 && time < end;
    const barOf = (time) => bars.findLastIndex(([start]) => start <= time);
    // Keys and tempi of tokens with parts are of whole bars.
    const timeOfChange = (time) => (this.hasParts ? bars[barOf(time)][0] : time);
    const changes = (values) => {
      const inside = values.map(([tick, value]) => [step(tick), value]).filter(isInside);
      return findChanges(inside.map(([time, value]) => [timeOfChange(time), value]));
    };
    const notes = this.notesOf(score, isInside);
    const events = this.#noteEvents(notes);
    const atSteps = chords.map(([tick, chord]) => [step(tick), chord]);
    const newChords = findChanges(atSteps.filter(isInside));
    events.push(...this.#chordEvents(newChords));
    if (this.tempi) {
      const tempi = changes(score.tempos.map(([tick, bpm]) => [tick, binOf(bpm, this.tempi)]));
      events.push(...this.#tempoEvents(tempi));
    }
    // The first key is of the beginning.
    const keys = this.count("Key") ? changes(keysOf(score, this)) : [];
    if (keys.length) keys[0] = [0, keys[0][1]];
    else if (this.count("Key") && events.length) {
      keys.push([0, keyIndex(findKey(score, this) ?? { fifths: 0 }, this)]);
    }
    events.push(...this.#keyEvents(keys));
    const numBars = 1 + greatest(events.map(({ time }) => barOf(time)));
    if (this.count("Left") && events.length) {
      const known = { notes, keys, chords: newChords, barOf, numBars };
      const left = leftOf(score, this, known);
      events.push(...this.#leftEvents(left.map(([bar, rank]) => [bars[bar][0], rank])));
    }
    return this.#tokensOf(
      events.map((event) => ({ bar: barOf(event.time), ...event })),
      bars,
    );
  }

  // An event has a grid step, its place in the bar (a part's, or before all parts), its rank among the
  // events of that time, and its tokens.

  #noteEvents(notes) {
    return notes.map(({ line, onset, duration, velocity }) => {
      const [part, pitch] = [Math.floor(line / 128), line % 128];
      const { isDrum } = this.tracks[part];
      const family = isDrum ? "Drum" : "Pitch";
      const tokens = [pitch - this.lowest[family] + this.families[family][0]];
      if (this.velocities)
        tokens.push(this.families.Velocity[0] + binOf(velocity, this.velocities));
      if (!isDrum) {
        const rank = this.durations.values.findLastIndex((each) => each <= duration);
        tokens.push(this.families.Duration[0] + rank);
      }
      return { time: onset / this.unit, place: this.places[part], rank: pitch, tokens };
    });
  }

  #chordEvents(chords) {
    const place = this.places.at(-1);
    return chords.map(([time, chord]) => ({
      time,
      place,
      rank: -2,
      tokens: [this.families.Chord[0] + chord],
    }));
  }

  #tempoEvents(tempi) {
    const place = this.hasParts ? -2 : 0;
    return tempi.map(([time, tempo]) => ({
      time,
      place,
      rank: -1,
      tokens: [this.families.Tempo[0] + tempo],
    }));
  }

  #keyEvents(keys) {
    return keys.map(([time, key]) => {
      return { time, place: -3, rank: 0, tokens: [this.families.Key[0] + key] };
    });
  }

  #leftEvents(left) {
    return left.map(([time, rank]) => {
      return { time, place: -4, rank: 0, tokens: [this.families.Left[0] + rank] };
    });
  }

  #tokensOf(events, bars) {
    const { families, places } = this;
    const order = ({ bar, place, time, rank }) => [bar, place, time, rank];
    const sorted = events.toSorted((a, b) =>
      compare([...order(a), ...a.tokens], [...order(b), ...b.tokens]),
    );
    const tokens = [];
    let [lastBar, lastPlace, lastTime] = [-1];
    for (const { bar, place, time, tokens: ids } of sorted) {
      while (lastBar < bar) {
        lastBar++;
        tokens.push(families.Bar[0] + bars[lastBar][1]);
        lastPlace = lastTime = undefined;
      }
      const isInPart = place >= -1;
      if (isInPart && this.hasParts && place !== lastPlace) {
        tokens.push(families.Part[0] + places.indexOf(place));
        lastTime = undefined;
      }
      if (isInPart && time !== lastTime) tokens.push(families.Beat[0] + time - bars[bar][0]);
      tokens.push(...ids);
      [lastPlace, lastTime] = [place, time];
    }
    return [...tokens, this.eos];
  }

  // Decoding

  /** Return the score of the tokens before the first end token, with a track for each part. */
  decode(tokens) {
    const end = tokens.indexOf(this.eos);
    if (end >= 0) tokens = tokens.slice(0, end);
    const { ticksPerBeat } = CONSTANTS;
    const step = ticksPerBeat / this.stepsPerBeat;
    const tracks = this.tracks.map((track) => ({ ...track, notes: [] }));
    const [tempos, markers, signatures, keys] = [[], [], [], []];
    let track = tracks[0];
    this.times(tokens).forEach((time, i) => {
      const [family, rank, tick] = [this.family(tokens[i]), this.rank(tokens[i]), time * step];
      if (family === "Bar") signatures.push([tick, rank]);
      else if (family === "Key") keys.push([tick, ...keyAt(rank, this)]);
      else if (family === "Tempo") tempos.push([tick, this.tempi.values[rank]]);
      else if (family === "Chord") markers.push([tick, this.chordNames[rank]]);
      else if (family === "Part") track = tracks[rank];
      else if (family === "Drum" || family === "Pitch") {
        const note = this.#noteAt(tokens, i);
        if (note)
          track.notes.push([tick, (note.length * step) / this.unit, note.pitch, note.velocity]);
      }
    });
    return {
      ticksPerBeat,
      tracks,
      tempos,
      signatures: this.#signaturesOf(signatures),
      markers,
      keys,
    };
  }

  /** Return the note of a Pitch or Drum; null if its duration is still to come. */
  #noteAt(tokens, i) {
    const family = this.family(tokens[i]);
    const duration = tokens[i + (this.velocities ? 2 : 1)];
    if (family === "Pitch" && this.family(duration) !== "Duration") return null;
    return {
      length: family === "Drum" ? this.unit : this.durations.values[this.rank(duration)],
      pitch: this.lowest[family] + this.rank(tokens[i]),
      velocity: this.velocities
        ? this.velocities.values[this.rank(tokens[i + 1])]
        : CONSTANTS.velocity,
    };
  }

  /** Return the changes of the time signature, without a first one that is the default. */
  #signaturesOf(bars) {
    const changes = findChanges(bars).map(([tick, index]) => [tick, ...this.timeSignatures[index]]);
    const isDefault = changes.length && !compare(changes[0].slice(1), CONSTANTS.timeSignature);
    return isDefault ? changes.slice(1) : changes;
  }

  // A melody that is kept

  /**
   * Return the conditioning tokens of the first part of a piece, with null in each bar where others are
   * to be written until the next token, a bar; where they end; the kept part; and the target parts. The
   * only part of a piece is the melody, and becomes the first part.
   */
  withMelodyAhead(tokens) {
    const score = this.decode(tokens);
    const parts = [...score.tracks.keys()].filter((part) => score.tracks[part].notes.length);
    const [melody, ...others] = parts;
    const kept = others.length ? melody : 0;
    const melodyNotes = score.tracks[melody].notes;
    const tracks = score.tracks.map((track, part) => ({
      ...track,
      notes: part === kept ? melodyNotes : [],
    }));
    const melodyTokens = this.encode({ ...score, tracks }, []).slice(0, -1);
    const melodyBars = splitBars(this, melodyTokens);
    const whole = others.length ? score : { ...score, tracks };
    const wholeBars = splitBars(this, this.encode(whole, []).slice(0, -1));
    const bars = this.barsIn(tokens).map((i) => tokens[i]);
    const conditioning = bars.flatMap((bar, i) => {
      return [...withHeader(this, melodyBars[i] ?? [bar], wholeBars[i]), null];
    });
    const endTime = bars.reduce((sum, bar) => sum + this.bar_lengths[bar - this.barTokens[0]], 0);
    const isSong = this.tracks.some(({ name }) => name.toLowerCase() === CONSTANTS.tune);
    const ensemble = [...score.tracks.keys()].filter((part) => part !== kept);
    const targets = others.length ? others : isSong ? [1] : ensemble;
    return { conditioning: [...conditioning, bars.at(-1)], endTime, kept, targets };
  }

  /** Return the tokens of a piece: its bars so far, then the melody of the conditioning tokens. */
  withMelody(tokens, conditioning) {
    const done = this.barsIn(tokens);
    const next = this.barsIn(conditioning)[done.length - 1];
    const rest = conditioning.slice(next).filter((token) => token !== null);
    return [...tokens.slice(0, done.at(-1)), ...rest].slice(0, -1);
  }
}
