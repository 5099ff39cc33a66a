// REMI and Songs, as in musicgen/tokenization: bars of positions, each with chord, tempo and notes, or
// of parts that have such positions.

const NO_LIMIT = 2 ** 60;
const CHOIR = [52, 53, 54]; // programs; a choir has a part named Bass
const GIVEN = ["Bar", "Key", "Tempo", "EOS"]; // families of what is not written to given parts
const VELOCITY = 80; // of notes whose tokens have none

/** Compare arrays of numbers by the first that differ. */
function compare(a, b) {
  const i = a.findIndex((value, j) => value !== b[j]);
  return i < 0 ? 0 : a[i] - b[i];
}

class BarTokenizer {
  /** @param tables what musicgen/page/document.py writes of the tokenizer */
  constructor(tables) {
    Object.assign(this, tables); // families, bar_lengths, metres, durations, velocities, tempi, tracks, …
    this.pad = tables.size - 1;
    this.eos = this.families.EOS[0];
    this.barTokens = this.families.Bar;
    this.startTokens = [this.families.Bar[0]];
    this.hasParts = this.count("Part") > 0;
  }

  count(family) {
    return this.families[family][1] - this.families[family][0];
  }

  grammar() {
    return new BarGrammar(this);
  }

  /** Return the index of a metre: the same, else one with equal bars, else the first. */
  findMetre([numerator, denominator]) {
    const same = this.metres.findIndex(([n, d]) => n === numerator && d === denominator);
    if (same >= 0) return same;
    return Math.max(0, this.metres.findIndex(([n, d]) => n * denominator === numerator * d));
  }

  /** Return the grid steps in a bar of a score, in the metre of its first note. */
  barLength(score) {
    return this.bar_lengths[this.findMetre(metreAt(score, firstOnset(score)))];
  }

  /** Return the first grid step and the metre of each bar, and where the last one ends. */
  bars(score) {
    const bars = [];
    let [start, metre] = [0, this.findMetre(COMMON_TIME)];
    const fill = (until) => {
      while (start < until && bars.length < this.max_bars) {
        bars.push([start, metre]);
        start += this.bar_lengths[metre];
      }
    };
    for (const [tick, ...signature] of score.signatures) {
      fill(toGrid(tick, this.stepsPerBeat, score.ticksPerBeat));
      metre = this.findMetre(signature);
    }
    const end = lastTick(score) + 1;
    fill(toGrid(end, this.stepsPerBeat, score.ticksPerBeat) + 1);
    return { bars, end: start };
  }

  /** Return the index of the part that plays a track, or null; see find_by_words in instruments.py. */
  findTrack({ name, program, isDrum }) {
    if (isDrum) return this.drums;
    const text = name.toLowerCase();
    const starts = [...text.matchAll(/(?<![\p{L}\p{N}_])[\p{L}\p{N}_]/gu)].map(({ index }) => index);
    const found = this.words.flatMap(([word, part]) =>
      starts.filter((at) => text.startsWith(word, at)).map((at) => [at + word.length, word.length, part]));
    const part = found.sort(compare).at(-1)?.[2];
    const isSung = this.basses.includes(part) && CHOIR.includes(program);
    return part === undefined || isSung ? this.programs[program] : part;
  }

  /** Return the notes of a score that the vocabulary has, as removeOverlaps does, and their parts. */
  notesOf(score, isInside) {
    const step = (tick, unit = 1) => toGrid(tick, unit * this.stepsPerBeat, score.ticksPerBeat);
    const { unit } = this;
    return removeOverlaps(score.tracks.flatMap((track) => {
      const part = this.findTrack(track);
      const family = track.isDrum ? "Drum" : "Pitch";
      const isKnown = (pitch) => part !== null && within(pitch + this.families[family][0] - this.lowest[family], this.families[family]);
      return track.notes
        .filter(([onset, , pitch]) => isInside([step(onset)]) && isKnown(pitch))
        .map(([onset, length, pitch, velocity]) => {
          const rounded = unit > 1 ? step(length, unit) : step(onset + length) - step(onset);
          const duration = this.durations.values[track.isDrum ? 0 : binOf(rounded, this.durations)];
          return { voice: 128 * part + pitch, onset: unit * step(onset), duration, velocity };
        });
    }));
  }

  /** Return the ids of a whole piece, end token included. */
  encode(score, hasChords = this.chords) {
    const { families, places } = this;
    const { bars, end } = this.bars(score);
    const step = (tick) => toGrid(tick, this.stepsPerBeat, score.ticksPerBeat);
    const isInside = ([at]) => at >= 0 && at < end;
    const barOf = (at) => bars.findLastIndex(([start]) => start <= at);
    // Keys and tempi of parts are of whole bars, and the first key is of the beginning.
    const changes = (values) => findChanges(values.map(([tick, value]) => [step(tick), value]).filter(isInside)
      .map(([at, value]) => [this.hasParts ? bars[barOf(at)][0] : at, value]));
    const events = []; // bar, place in it, grid step, place among what is there, ids
    const add = (at, place, rank, ...ids) => events.push([barOf(at), place, at, rank, ...ids]);
    for (const { voice, onset, duration, velocity } of this.notesOf(score, isInside)) {
      const [part, pitch] = [Math.floor(voice / 128), voice % 128];
      const { isDrum } = this.tracks[part];
      const ids = [pitch - this.lowest[isDrum ? "Drum" : "Pitch"] + families[isDrum ? "Drum" : "Pitch"][0]];
      if (this.velocities) ids.push(families.Velocity[0] + binOf(velocity, this.velocities));
      if (!isDrum) ids.push(families.Duration[0] + this.durations.values.findLastIndex((each) => each <= duration));
      add(onset / this.unit, places[part], pitch, ...ids);
    }
    const chords = hasChords ? chordEvents(score, this).map(([tick, chord]) => [step(tick), chord]).filter(isInside) : [];
    for (const [at, chord] of findChanges(chords)) add(at, places.at(-1), -2, families.Chord[0] + chord);
    const tempi = this.tempi ? score.tempos.map(([tick, bpm]) => [tick, binOf(bpm, this.tempi)]) : [];
    for (const [at, tempo] of changes(tempi)) add(at, this.hasParts ? -2 : 0, -1, families.Tempo[0] + tempo);
    if (this.count("Key") && (events.length || score.keys?.length)) {
      const keys = score.keys?.length ? score.keys : [[0, findFifths(score, this) ?? 0]];
      changes(keys).forEach(([at, fifths], i) => add(i && at, -3, 0, families.Key[0] + (fifths + 17) % 12));
    }
    const tokens = [];
    let [bar, place, time] = [-1];
    for (const [inBar, inPlace, at, , ...ids] of events.sort(compare)) {
      while (bar < inBar) {
        tokens.push(families.Bar[0] + bars[++bar][1]);
        place = time = undefined;
      }
      if (inPlace >= -1 && this.hasParts && inPlace !== place) {
        tokens.push(families.Part[0] + places.indexOf(inPlace));
        time = undefined;
      }
      if (inPlace >= -1 && at !== time) tokens.push(families.Beat[0] + at - bars[bar][0]);
      tokens.push(...ids);
      [place, time] = [inPlace, at];
    }
    return [...tokens, this.eos];
  }

  /** Return the grid step of each id: that of its Bar, Part or the last Beat. */
  times(tokens) {
    let [start, end, time] = [0, 0, 0];
    return tokens.map((token) => {
      if (within(token, this.families.Bar)) {
        [start, time] = [end, end];
        end += this.bar_lengths[token - this.families.Bar[0]];
      } else if (within(token, this.families.Part)) time = start;
      else if (within(token, this.families.Beat)) time = start + token - this.families.Beat[0];
      return time;
    });
  }

  barStarts(tokens) {
    const times = this.times(tokens);
    return tokens.length ? this.barsIn(tokens).map((at) => times[at]) : [0];
  }

  /** Return the ids from a bar on, which begins with what is in force; see with_header in bars.py. */
  fromBar(tokens, bar) {
    const { families, header } = this;
    const first = this.barsIn(tokens)[bar];
    const [before, [begin, ...rest]] = [tokens.slice(0, first), tokens.slice(first)];
    const fixed = { Part: families.Part[1] - 1, Beat: families.Beat[0] };
    const isOf = (token, name) => (name in fixed ? token === fixed[name] : within(token, families[name]));
    const end = rest.findIndex((token) => !header.some((name) => isOf(token, name)));
    const [known, kept] = [[...before, ...rest.slice(0, end)], []];
    for (const name of header.toReversed()) {
      if (!(name in fixed)) kept.unshift(...known.filter((token) => isOf(token, name)).slice(-1));
      else if (kept.length || rest.slice(0, end).includes(fixed[name])) kept.unshift(fixed[name]);
    }
    return [begin, ...kept, ...rest.slice(end)];
  }

  /** Return the score of ids up to the first end token: a track for each part, with all else there is. */
  decode(tokens) {
    const end = tokens.indexOf(this.eos);
    if (end >= 0) tokens = tokens.slice(0, end);
    const step = TICKS_PER_BEAT / this.stepsPerBeat;
    const tracks = this.tracks.map((track) => ({ ...track, notes: [] }));
    const [tempos, markers, metres, keys] = [[], [], [], []];
    let track = tracks[0];
    this.times(tokens).forEach((time, i) => {
      const [family, tick] = [this.family(tokens[i]), time * step];
      const [rank, lasting] = [this.rank(tokens[i]), i + (this.velocities ? 2 : 1)];
      if (family === "Bar") metres.push([tick, rank]);
      else if (family === "Key") keys.push([tick, rank - 5]);
      else if (family === "Tempo") tempos.push([tick, this.tempi.values[rank]]);
      else if (family === "Chord") markers.push([tick, this.chordNames[rank]]);
      else if (family === "Part") track = tracks[rank];
      else if (family === "Drum" || (family === "Pitch" && this.family(tokens[lasting]) === "Duration")) {
        const length = family === "Drum" ? this.unit : this.durations.values[this.rank(tokens[lasting])];
        const velocity = this.velocities ? this.velocities.values[this.rank(tokens[i + 1])] : VELOCITY;
        track.notes.push([tick, (length * step) / this.unit, this.lowest[family] + rank, velocity]);
      }
    });
    const signatures = findChanges(metres).map(([tick, metre]) => [tick, ...this.metres[metre]]);
    if (signatures.length && signatures[0][1] === 4 && signatures[0][2] === 4) signatures.shift(); // the default
    return { ticksPerBeat: TICKS_PER_BEAT, tracks, tempos, signatures, markers, keys };
  }

  /** Return where the bars of ids begin. */
  barsIn(tokens) {
    return tokens.flatMap((token, i) => (token !== null && within(token, this.barTokens) ? [i] : []));
  }

  /**
   * Return the ids of the first part of a piece, with null in each bar where others are to be written
   * until the next id, a bar; where they end; and the parts. The only part is the melody of the first.
   */
  withMelodyAhead(tokens) {
    const score = this.decode(tokens);
    const [melody, ...others] = [...score.tracks.keys()].filter((part) => score.tracks[part].notes.length);
    const lead = others.length ? melody : 0;
    const tracks = score.tracks.map((track, part) => ({ ...track, notes: part === lead ? score.tracks[melody].notes : [] }));
    const ids = this.encode({ ...score, tracks }, false).slice(0, -1);
    const [lines, own] = [this.barsIn(tokens).map((at) => tokens[at]), this.barsIn(ids)];
    const given = lines.flatMap((line, i) => [line, ...(i < own.length ? ids.slice(own[i] + 1, own[i + 1]) : []), null]);
    const endTime = lines.reduce((sum, line) => sum + this.bar_lengths[line - this.barTokens[0]], 0);
    return { given: [...given, lines.at(-1)], endTime, lead, written: others.length ? others : [1] };
  }

  /** Return the ids of a piece: the bars so far of the given ones, then the melody alone. */
  withMelody(tokens, given) {
    const done = this.barsIn(tokens);
    const rest = given.slice(this.barsIn(given)[done.length - 1]).filter((token) => token !== null);
    return [...tokens.slice(0, done.at(-1)), ...rest].slice(0, -1);
  }

  family(token) {
    return Object.keys(this.families).find((name) => within(token, this.families[name]));
  }

  rank(token) {
    return token - this.families[this.family(token)]?.[0];
  }
}

/** One sequence, as musicgen/tokenization/remi/grammar.py and songs/grammar.py have a batch. */
class BarGrammar extends Grammar {
  constructor(tokenizer) {
    super(tokenizer);
    const numParts = tokenizer.places.length;
    this.numBars = 0; // begun
    this.barStart = 0;
    this.barEnd = 0;
    this.part = -1;
    this.pitch = -1; // index of the last at this position
    // When each pitch of each part stops sounding, in parts of a grid step.
    this.ends = new Int32Array(numParts * tokenizer.count("Pitch"));
    this.tempo = this.chord = this.metre = this.key = -1;
    this.chordsAllowed = true;
    this.holdTempo = this.holdMetre = false;
    this.orders = [...Array(2 ** numParts).keys()]; // sets of parts that may be those that lead
    this.writes = Array(numParts).fill(true);
  }

  copy() {
    return Object.assign(Object.create(BarGrammar.prototype), this, { ends: this.ends.slice() });
  }

  afterPrompt(prompt) {
    const { families } = this.tokenizer;
    const has = (ids) => prompt.some((token) => within(token, ids));
    this.chordsAllowed = has(families.Chord) || !has(families.Pitch);
    const found = this.writes.map((_, part) => prompt.includes(families.Part[0] + part));
    this.writes = found.map((is, part) => is || !found.includes(true) || this.isChords(part));
  }

  /** The grid step up to which all parts are written. */
  get complete() {
    return this.barStart;
  }

  /** Let a part lead that is given, and others be written to it. */
  give(lead, written) {
    this.orders = [1 << lead];
    this.writes = this.writes.map((_, part) => written.includes(part) || this.isChords(part));
  }

  hold(tempo, metre) {
    [this.holdTempo, this.holdMetre] = [tempo, metre];
  }

  isChords(part) {
    return this.tokenizer.places[part] === -1;
  }

  /** Return whether a part may follow another in a bar, if those of a set lead. */
  isOrdered(leads, before, next) {
    const { places } = this.tokenizer;
    const place = (part) => places[part] - ((leads >> part) & 1) * places.length;
    return before < 0 || place(before) < place(next);
  }

  fill(mask, until) {
    const { tokenizer, time, limit } = this;
    const { families, followers, max_bars, durations, unit, hasParts } = tokenizer;
    const last = this.last === this.pad ? "" : tokenizer.family(this.last);
    const part = Math.max(this.part, 0);
    const { isDrum } = tokenizer.tracks[part] ?? {};
    const needsKey = tokenizer.count("Key") && this.key < 0 && this.numBars;
    const set = (name, test) => {
      if (!followers[last].includes(name) || (needsKey && name !== "Key")) return;
      const [first, stop] = families[name];
      const isWritten = name === "Part" || (this.writes[this.part] && !GIVEN.includes(name));
      const isFree = until === undefined || isWritten;
      for (let token = first; token < stop; token++) mask[token] = (isFree || token === until) && test(token - first) ? 1 : 0;
    };
    const mayTempo = !this.holdTempo || (this.tempo < 0 && this.ends.every((end) => end === 0));
    const isPitched = !isDrum && !this.isChords(part);
    set("Key", (rank) => rank !== this.key);
    set("Tempo", (rank) => mayTempo && rank !== this.tempo);
    set("Chord", (rank) => this.chordsAllowed && rank !== this.chord && (!hasParts || this.isChords(part)));
    const voice = part * tokenizer.count("Pitch");
    set("Pitch", (rank) => isPitched && this.ends[voice + rank] <= unit * time && rank > this.pitch);
    set("Drum", (rank) => isDrum && rank > this.pitch);
    set("Velocity", () => true);
    set("Duration", (rank) => !isDrum && durations.values[rank] <= unit * (limit - time));
    if (last === "Velocity" && !isDrum) return;
    const first = time - this.barStart + (["Bar", "Part"].includes(last) ? 0 : 1);
    set("Beat", (rank) => rank >= first && this.barStart + rank < Math.min(this.barEnd, limit));
    const mayFollow = (next) => this.orders.some((leads) => this.isOrdered(leads, this.part, next));
    set("Part", (next) => this.writes[next] && (this.chordsAllowed || !this.isChords(next)) && mayFollow(next));
    const isHeld = this.holdMetre && this.metre >= 0;
    set("Bar", (rank) => this.numBars < max_bars && (!isHeld || rank === this.metre) && this.barEnd < limit);
    set("EOS", () => true);
  }

  keepTimeTokens(mask, until) {
    const { families } = this.tokenizer;
    mask.forEach((_, token) => {
      const arrives = within(token, families.Beat) && this.barStart + token - families.Beat[0] >= until;
      if (!within(token, families.Bar) && !arrives) mask[token] = 0;
    });
  }

  move(token) {
    const { families, unit, durations, bar_lengths } = this.tokenizer;
    const [family, rank] = [this.tokenizer.family(token), this.tokenizer.rank(token)];
    if (["Bar", "Part", "Beat"].includes(family)) this.pitch = -1;
    if (family === "Bar") {
      this.barStart = this.time = this.barEnd;
      this.barEnd += bar_lengths[rank];
      this.numBars++;
      this.metre = rank;
      this.part = -1;
    } else if (family === "Part") {
      this.time = this.barStart;
      this.orders = this.orders.filter((leads) => this.isOrdered(leads, this.part, rank));
      this.part = rank;
    } else if (family === "Beat") this.time = this.barStart + rank;
    else if (family === "Pitch" || family === "Drum") this.pitch = rank;
    else if (family === "Duration" && this.pitch >= 0) {
      this.ends[Math.max(this.part, 0) * this.tokenizer.count("Pitch") + this.pitch] = unit * this.time + durations.values[rank];
    } else if (["Key", "Tempo", "Chord"].includes(family)) this[family.toLowerCase()] = rank;
  }
}
