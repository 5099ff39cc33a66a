// Keys to play on: on the screen, of the computer, and of a MIDI keyboard.

const COMPUTER_KEYS = "awsedftgyhujkolp;"; // from C, black keys in the row above
const KEY_VELOCITY = 90; // of the keys on the screen and of the computer

class Keyboard {
  /**
   * @param element where the keys are put
   * @param listener press(pitch, velocity) and release(pitch)
   */
  constructor(element, listener) {
    Object.assign(this, { element, listener });
    this.down = new Map(); // what holds each pitch: a pointer, a key or MIDI
    this.octave = 4;
    this.show();
    element.addEventListener("pointerdown", (event) => this.#pointer(event));
    element.addEventListener("pointermove", (event) => event.buttons && this.#pointer(event));
    for (const name of ["pointerup", "pointercancel", "pointerleave"]) {
      element.addEventListener(name, ({ pointerId }) => this.#releaseOf(pointerId));
    }
    new ResizeObserver(() => this.show()).observe(element.parentElement);
    addEventListener("blur", () => [...this.down.keys()].forEach((pitch) => this.release(pitch)));
  }

  /** Draw as many octaves as there is room for, around the one of the computer's keys. */
  show() {
    const octaves = Math.max(
      1,
      Math.min(4, Math.floor(this.element.parentElement.clientWidth / 190)),
    );
    const lowest = 12 * (this.octave + 1 - Math.floor((octaves - 1) / 2));
    if (this.shown === `${lowest} ${octaves}`) return;
    this.shown = `${lowest} ${octaves}`;
    this.element.replaceChildren(
      ...Array.from({ length: 12 * octaves + 1 }, (_, i) => this.#key(lowest + i)),
    );
  }

  #key(pitch) {
    const key = document.createElement("div");
    const isBlack = BLACK_KEYS.has(pitch % 12);
    key.className = isBlack ? "key black" : "key";
    key.dataset.pitch = pitch;
    const letter = COMPUTER_KEYS[pitch - 12 * (this.octave + 1)];
    key.textContent = pitch % 12 === 0 ? `C${pitch / 12 - 1}` : "";
    if (letter && pitch % 12) {
      key.textContent = letter.toUpperCase();
      key.classList.add("letter");
    }
    return key;
  }

  moveOctave(step) {
    this.octave = Math.max(1, Math.min(7, this.octave + step));
    this.show();
  }

  press(pitch, velocity, holder) {
    if (this.down.has(pitch) || pitch > 127) return;
    this.down.set(pitch, holder);
    this.#mark(pitch, true);
    this.listener.press(pitch, velocity);
  }

  release(pitch) {
    if (!this.down.delete(pitch)) return;
    this.#mark(pitch, false);
    this.listener.release(pitch);
  }

  #mark(pitch, on) {
    this.element.querySelector(`[data-pitch="${pitch}"]`)?.classList.toggle("down", on);
  }

  #releaseOf(holder) {
    for (const [pitch, by] of this.down) if (by === holder) this.release(pitch);
  }

  /** Press the key below a pointer, and let go of the one it comes from. */
  #pointer(event) {
    event.preventDefault();
    event.target.releasePointerCapture?.(event.pointerId);
    const found = document.elementFromPoint(event.clientX, event.clientY)?.closest(".key");
    const pitch = found && this.element.contains(found) ? Number(found.dataset.pitch) : null;
    if (this.down.get(pitch) === event.pointerId) return;
    this.#releaseOf(event.pointerId);
    if (pitch !== null) this.press(pitch, KEY_VELOCITY, event.pointerId);
  }

  /** Play with the computer's keys; return whether the key was one of them. */
  computerKey(event) {
    const number = COMPUTER_KEYS.indexOf(event.key.toLowerCase());
    if (number < 0 || event.key.length !== 1) return false;
    const pitch = 12 * (this.octave + 1) + number;
    if (event.type === "keydown" && !event.repeat) this.press(pitch, KEY_VELOCITY, event.code);
    if (event.type === "keyup") this.#releaseOf(event.code);
    return true;
  }

  /** Listen to MIDI keyboards; return a line on what there is. */
  async connectMidi() {
    if (!navigator.requestMIDIAccess)
      return "This browser has no Web MIDI: a MIDI keyboard cannot be used here, Chrome and Edge can.";
    let access;
    try {
      access = await navigator.requestMIDIAccess();
    } catch {
      return "The browser does not let this page use MIDI keyboards.";
    }
    const connect = () => {
      for (const input of access.inputs.values())
        input.onmidimessage = ({ data }) => this.#midi(data);
    };
    access.onstatechange = connect;
    connect();
    const names = [...access.inputs.values()].map((input) => input.name);
    return names.length
      ? `Listening to ${names.join(", ")}.`
      : "No MIDI keyboard is connected; plug one in, and play.";
  }

  #midi([status, pitch, velocity]) {
    const kind = status >> 4;
    if (kind === 9 && velocity > 0) {
      this.release(pitch);
      this.press(pitch, velocity, "midi");
    } else if (kind === 8 || kind === 9) this.release(pitch);
  }
}
