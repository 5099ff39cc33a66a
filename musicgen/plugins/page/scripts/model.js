// The model: a compiled step over typed arrays, fed with tokens; it can go back to earlier ones.

const ARRAYS = { f: Float32Array, d: Float64Array, i: Int32Array, b: Uint8Array };
const SNAPSHOT_BYTES = 48e6;
const SNAPSHOT_TOKENS = 16; // between two snapshots

/** Return the numbers of half precision in some bytes. */
function fromHalf(bytes, first, size) {
  const halves = new Uint16Array(bytes, first, size);
  return Float32Array.from(halves, (half) => {
    const [exponent, fraction] = [(half >> 10) & 31, half & 1023];
    const value = exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24;
    return half >> 15 ? -value : value;
  });
}

/** Return the array of a buffer: its type and size, and of a constant how and where it is stored. */
function arrayOf([type, size, stored, first], bytes) {
  const Kind = ARRAYS[type];
  if (stored === "h") return fromHalf(bytes, first, size);
  return stored
    ? new Kind(bytes.slice(first, first + size * Kind.BYTES_PER_ELEMENT))
    : new Kind(size);
}

class Model {
  /**
   * @param step what musicgen/plugins/page/compile.py compiles: buffers, inputs, states, coordinates
   * @param compile its function, from the arrays to the step
   * @param bytes its constants
   */
  constructor({ buffers, inputs, states, coordinates }, compile, bytes, tokenizer) {
    this.arrays = buffers.map((buffer) => arrayOf(buffer, bytes));
    this.step = compile(this.arrays);
    const array = (name) => this.arrays[inputs[name]];
    [this.token, this.positions, this.logits] = ["tokens", "positions", "logits"].map(array);
    this.copyTemperature = array("copy.temperature"); // undefined without a copy head
    this.temperature = 1;
    this.lagBias = array("copy.lag_bias"); // nats added to copies, by lag in bars
    this.usualBias = this.lagBias?.slice();
    this.form = null; // of each of its bars, nats that are added besides
    this.states = states.map((number) => this.arrays[number]);
    Object.assign(this, { tokenizer, coordinates });
    const bytesPerState = this.states.reduce((sum, array) => sum + array.byteLength, 0);
    this.maxSnapshots = Math.max(2, Math.floor(SNAPSHOT_BYTES / bytesPerState));
    this.empty = [...this.states, this.logits].map((array) => array.slice());
    this.reset(0);
  }

  /** Forget all tokens. */
  reset(barLength, gapEnd) {
    this.tokens = [];
    this.snapshots = [];
    Object.assign(this, { barLength, gapEnd });
    const places = new Coordinates(this.tokenizer, this.coordinates, barLength, gapEnd);
    this.#restore({ copies: this.empty, grammar: this.tokenizer.grammar(), places });
  }

  /** Return the temperature of a copy head, and the params that sampleToken gets with it. */
  split(params) {
    const { temperature } = params;
    if (this.copyTemperature && temperature > 0)
      return [temperature, { ...params, temperature: 1 }];
    return [1, params];
  }

  /**
   * Go back to the longest beginning of `tokens` that the model has read; return its length, from
   * which on they must be fed.
   *
   * @param temperature that of a copy head, for the logits after the tokens
   * @param gapEnd grid step at which the future of a gap begins
   */
  rewind(tokens, barLength, temperature = this.temperature, gapEnd = undefined) {
    if (barLength !== this.barLength || gapEnd !== this.gapEnd) this.reset(barLength, gapEnd);
    const shorter = Math.min(tokens.length, this.tokens.length);
    let same = 0;
    while (same < shorter && tokens[same] === this.tokens[same]) same++;
    // The last token is read again where its logits are not those that the model has now.
    const hasOtherLogits = same < this.tokens.length || temperature !== this.temperature;
    if (hasOtherLogits) same = Math.min(same, tokens.length - 1);
    this.temperature = temperature;
    if (same === this.tokens.length) return same;
    this.snapshots = this.snapshots.filter((each) => each.length <= same);
    const snapshot = this.snapshots.at(-1);
    if (!snapshot) {
      this.reset(barLength, gapEnd);
      return 0;
    }
    this.place = snapshot;
    return snapshot.length;
  }

  /** What the model has read, to go back to it later. */
  get place() {
    return this.#snapshot();
  }

  set place(snapshot) {
    this.snapshots = this.snapshots.filter((each) => each.length <= snapshot.length);
    this.tokens.length = snapshot.length;
    this.#restore(snapshot);
  }

  /** Read one more token; the logits of the next are then in `logits`. */
  feed(token) {
    this.grammar.advance(token);
    this.token[0] = token;
    this.positions.set(this.places.next(token, this.grammar));
    this.copyTemperature?.fill(this.temperature);
    if (this.lagBias) this.#biasCopies();
    this.step();
    this.tokens.push(token);
    if (this.tokens.length % SNAPSHOT_TOKENS) return;
    const old = this.snapshots.length < this.maxSnapshots ? undefined : this.snapshots.shift();
    this.snapshots.push(this.#snapshot(old));
  }

  #biasCopies() {
    const bar = this.positions[this.coordinates.indexOf("bar")];
    const added = this.form?.[bar % this.form.length];
    this.usualBias.forEach((nats, lag) => (this.lagBias[lag] = nats + (added?.[lag] ?? 0)));
  }

  /** Return a snapshot, in the memory of an old one if there is one. */
  #snapshot(old) {
    const copies = [...this.states, this.logits].map((array, i) => {
      if (!old) return array.slice();
      old.copies[i].set(array);
      return old.copies[i];
    });
    return {
      length: this.tokens.length,
      copies,
      grammar: this.grammar.copy(),
      places: this.places.copy(),
    };
  }

  #restore({ copies, grammar, places }) {
    [...this.states, this.logits].forEach((array, i) => array.set(copies[i]));
    [this.grammar, this.places] = [grammar.copy(), places.copy()];
  }
}
