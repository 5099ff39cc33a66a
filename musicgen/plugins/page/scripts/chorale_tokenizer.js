// Chorale, as in musicgen/tokenization/chorale.py: four voices in sixteenths, one token a voice.

/** Return the frame and the voice of a token, by its index after the first token of a piece. */
function placeOf(index) {
  const { numVoices } = CONSTANTS;
  return [Math.floor(index / numVoices), index % numVoices];
}

class ChoraleTokenizer {
  /** @param tables what musicgen/plugins/page/tables.py makes of the tokenizer */
  constructor(tables) {
    Object.assign(this, tables); // families, tracks, pitches, lead, leading, and those of the grammar
    this.pad = tables.size - 1;
    this.eos = this.families.EOS[0];
    this.bos = this.families.BOS[0];
    this.barTokens = null;
    this.startTokens = [this.bos];
    this.opening = this.hasModes ? 2 : 1; // tokens before those of voices
  }

  /** Return the score itself, as tokens have no bars. */
  inBars(score) {
    return score;
  }

  /** Return the grid steps in a bar of a score, in its first time signature. */
  barLength(score) {
    const [numerator, denominator] = firstTimeSignature(score);
    return Math.max(1, Math.floor((4 * this.stepsPerBeat * numerator) / denominator));
  }

  grammar() {
    return new ChoraleGrammar(this);
  }

  /** Return the tokens of a whole piece, end token included. */
  encode(score) {
    const frames = this.framesOf(score);
    return this.tokensOf(frames, this.#keyOf(score.keys, frames));
  }

  /** Return the tokens of a whole piece of frames, in which voices have a pitch or silence. */
  tokensOf(frames, key) {
    const tokens = frames.flat().map((pitch) => this.#token(pitch, "Pitch"));
    return [this.bos, ...key, ...tokens, this.eos];
  }

  /** Return the token of the key, as an array that is empty if the vocabulary has no keys. */
  #keyOf(keys, frames) {
    if (!this.hasModes) return [];
    const sung = {
      tracks: this.#tracksOf(frames),
      keys: keys.slice(0, 1).map(([, ...key]) => [0, ...key]),
    };
    const [given] = keysOf(sung, this);
    const key = given?.[1] ?? keyIndex(findKey(sung, this) ?? { fifths: 0 }, this);
    return [this.families.Key[0] + key];
  }

  #token(pitch, family) {
    if (pitch === CONSTANTS.silence) return this.families.Silence[0];
    return this.families[family][0] + pitch - this.pitches.start;
  }

  /** Return the frames of a score until its last note ends. */
  framesOf(score) {
    const tracks = score.tracks
      .filter(({ isDrum }) => !isDrum)
      .map(({ name, notes }) => ({ name, notes: this.#framedNotes(notes, score.ticksPerBeat) }))
      .filter(({ notes }) => notes.length);
    const voices = voicesOfTracks(
      tracks,
      this.tracks.map(({ name }) => name),
    );
    if (voices) tracks.forEach(({ notes }, i) => notes.forEach((note) => (note.voice = voices[i])));
    else leadVoices(tracks.flatMap(({ notes }) => notes));
    const sung = tracks.flatMap(({ notes }) => notes).filter(({ voice }) => voice >= 0);
    const notes = oneAtATime(sung);
    const length = greatest(notes.map(({ end }) => end));
    const { numVoices, silence } = CONSTANTS;
    const frames = Array.from({ length }, () => Array(numVoices).fill(silence));
    for (const { voice, pitch, onset, end } of notes) {
      for (let frame = onset; frame < end; frame++) frames[frame][voice] = pitch;
    }
    return frames;
  }

  /** Return the notes that the vocabulary and the longest piece have: { pitch, onset, end } in frames. */
  #framedNotes(notes, ticksPerBeat) {
    const step = (tick) => toGrid(tick, this.stepsPerBeat, ticksPerBeat);
    const { start, size } = this.pitches;
    const framed = notes.map(([onset, duration, pitch]) => {
      const end = step(onset) + Math.max(step(duration), 1);
      return { pitch, onset: step(onset), end: Math.min(end, this.max_frames) };
    });
    return framed.filter(({ pitch, onset }) => {
      const isKnown = pitch >= start && pitch < start + size;
      return isKnown && onset >= 0 && onset < this.max_frames;
    });
  }

  /** Return the complete frames of tokens; those of `Lead_*` in musical order, silent where to come. */
  frames(tokens) {
    const { Pitch, Ahead, Silence, Empty, EOS } = this.families;
    const { numVoices, silence } = CONSTANTS;
    const end = tokens.findIndex((token) => within(token, EOS));
    const pitches = (end < 0 ? tokens : tokens.slice(0, end)).flatMap((token) => {
      if (within(token, Silence) || within(token, Empty)) return [silence];
      const family = [Pitch, Ahead].find((ids) => within(token, ids));
      return family ? [token - family[0] + this.pitches.start] : [];
    });
    const frames = [];
    for (let i = 0; i + numVoices <= pitches.length; i += numVoices)
      frames.push(pitches.slice(i, i + numVoices));
    const { leading, delay } = this.order(tokens[0]);
    const pitchAt = (frame, voice) =>
      frames[leading[voice] ? frame : frame + delay]?.[voice] ?? silence;
    return frames.map((pitches, frame) => pitches.map((_, voice) => pitchAt(frame, voice)));
  }

  /** Return the score of tokens: a track for each voice; no tempo. */
  decode(tokens) {
    const tracks = this.#tracksOf(this.frames(tokens));
    const { ticksPerBeat } = CONSTANTS;
    const key = tokens.filter((token) => within(token, this.families.Key)).slice(0, 1);
    const keys = key.map((token) => [0, ...keyAt(token - this.families.Key[0], this)]);
    return { ticksPerBeat, tracks, tempos: [], signatures: [], keys, markers: [] };
  }

  /** Return a track for each voice of some frames, in ticks of decoded scores. */
  #tracksOf(frames) {
    const { ticksPerBeat, silence, velocity } = CONSTANTS;
    const step = ticksPerBeat / this.stepsPerBeat;
    const tracks = this.tracks.map((track) => ({ ...track, notes: [] }));
    frames.forEach((pitches, frame) => {
      pitches.forEach((pitch, voice) => {
        if (pitch === silence) return;
        const { notes } = tracks[voice];
        if (frames[frame - 1]?.[voice] === pitch) notes.at(-1)[1] += step;
        else notes.push([frame * step, step, pitch, velocity]);
      });
    });
    return tracks;
  }

  /** Return which voices lead after a first token, and by how many frames the others are behind. */
  order(header) {
    if (!within(header, this.families.Lead)) {
      return { leading: Array(CONSTANTS.numVoices).fill(true), delay: 0 };
    }
    return { leading: this.leading[header - this.families.Lead[0]], delay: this.lead };
  }

  /** Return the frame of a token by its index. */
  timeOf(header, index, isEnd) {
    const [frame, voice] = placeOf(Math.max(index - 1, 0));
    const { leading, delay } = this.order(header);
    return Math.max(0, frame - (isEnd || !leading[voice] ? delay : 0));
  }

  /** Return the frame of each token. */
  times(tokens) {
    let index = -1;
    return tokens.map((token) => {
      if (!within(token, this.families.Key)) index++;
      return this.timeOf(tokens[0], index, token === this.eos);
    });
  }

  /** Return the frame at which each bar of a score begins. */
  barStarts(tokens, score) {
    const bars = barsOf(score, this.max_frames);
    return bars.map(([tick]) => toGrid(tick, this.stepsPerBeat, score.ticksPerBeat));
  }

  /** Return the tokens from a bar on, which begins with a frame. */
  fromBar(tokens, bar, frame) {
    const { opening } = this;
    const first = opening + CONSTANTS.numVoices * frame;
    return [...tokens.slice(0, opening), ...tokens.slice(first)];
  }

  /**
   * Return conditioning tokens, in which the highest voice, or the only one, stands ahead of the others,
   * which are null: they are to be written; where they end; and the kept part. The melody has no note
   * after its last one.
   */
  withMelodyAhead(tokens) {
    const melody = melodyOf(this.frames(tokens));
    const soprano = this.leading.findIndex((leads) => leads.every((each, i) => each === (i === 0)));
    const conditioning = [this.families.Lead[0] + soprano, ...tokens.slice(1, this.opening)];
    const [empty] = this.families.Empty;
    for (let frame = 0; frame < melody.length + this.lead; frame++) {
      const first = frame < melody.length ? this.#token(melody[frame], "Ahead") : empty;
      const others = Array(CONSTANTS.numVoices - 1).fill(frame < this.lead ? empty : null);
      conditioning.push(first, ...others);
    }
    return { conditioning, endTime: melody.length, kept: 0 };
  }

  /** Return the tokens of a piece of some frames: its tokens so far, then the melody. */
  withMelody(tokens, conditioning, numFrames) {
    const whole = conditioning.map((known, i) => tokens[i] ?? known ?? this.families.Silence[0]);
    const frames = this.frames(whole).slice(0, numFrames);
    return this.tokensOf(frames, conditioning.slice(1, this.opening)).slice(0, -1);
  }
}
