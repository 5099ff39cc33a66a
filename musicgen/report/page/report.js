"use strict";

// The page of a report: its pieces, the control bar and the keyboard.

/** One piece on the page, with its piano roll. */
class Card extends Piece {
  constructor(element) {
    super(new Score(JSON.parse(element.querySelector("script").textContent)));
    this.element = element;
    this.title = element.querySelector("h2").textContent;
    this.button = element.querySelector(".play");
    this.staves = null; // until they are unpacked
    this.roll = new Roll(element.querySelector(".roll"), this.score, (track) => this.audible(track));
    for (const entry of element.querySelectorAll("[data-track]")) {
      const notes = this.score.notes.filter(({ track }) => track === Number(entry.dataset.track));
      entry.querySelector(".swatch").classList.toggle("kept", notes.every(({ kept }) => kept));
    }
  }
}

/** The control bar and the buttons of the cards. */
class View {
  constructor(cards, controls) {
    this.cards = cards;
    this.controls = controls;
    this.player = new Player(cards[0], Number(controls.volume.value), this);
    this.selected(null);
    this.show();
  }

  selected(previous) {
    const { element } = this.player.card;
    previous?.element.removeAttribute("aria-current");
    previous?.staves?.mark(0);
    element.setAttribute("aria-current", "true");
  }

  moved() {
    this.player.card.roll.reveal();
    this.player.card.staves?.reveal();
  }

  played() {
    this.player.card.roll.follow(this.previousTick);
  }

  show() {
    const { now, loop, jump } = this.controls;
    const { card, playing } = this.player;
    const { score, title, roll, staves } = card;
    this.previousTick = roll.cursorTick;
    showPosition(this.player, roll, this.controls, score.duration);
    if (staves?.mark(score.barAt(roll.cursorTick)) && playing) staves.reveal();
    if (now.textContent !== title) {
      now.textContent = title;
      now.href = `#${card.element.id}`;
    }
    const what = score.hasGap ? "gap" : "continuation";
    loop.textContent = score.promptEnd > 0 || score.hasGap ? `Loop ${what}` : "Loop";
    jump.title = `Jump to the ${what} (C)`;
    jump.setAttribute("aria-label", `Jump to the ${what}`);
    loop.disabled = card.loopSpan === null;
    jump.disabled = !score.promptEnd;
    for (const each of this.cards) {
      const active = playing && each === card;
      each.button.classList.toggle("playing", active);
      each.button.setAttribute("aria-label", `${active ? "Pause" : "Play"} ${each.title}`);
    }
  }
}

function connect() {
  const elements = [...document.querySelectorAll(".piece")];
  if (!elements.length) return null;
  const controls = findControls();
  const cards = elements.map((element) => new Card(element));
  const view = new View(cards, controls);
  const { player } = view;
  document.getElementById("player").hidden = false;

  connectControls(player, controls);
  controls.jump.addEventListener("click", () => player.jump());
  controls.loop.addEventListener("click", () => {
    player.setLooping(!player.looping);
    controls.loop.setAttribute("aria-pressed", player.looping);
  });
  for (const card of cards) connectCard(card, player);
  document.addEventListener("keydown", (event) => pressKey(event, cards, player));
  addStaves(cards, view);
  return player;
}

/** Move the player to a place in a piece, in seconds. */
function move(player, card, seconds, plays = player.playing) {
  player.select(card);
  player.seek(seconds);
  if (plays && !player.playing) player.play();
}

async function addStaves(cards, view) {
  const { glyphs, pieces } = (await unpackStaves()) ?? { glyphs: {}, pieces: {} };
  if (Object.keys(pieces).length) addGlyphs(glyphs);
  for (const [index, systems] of Object.entries(pieces)) {
    const card = cards[index];
    const choose = (bar) => move(view.player, card, card.score.secondsAt(card.score.bars[bar - 1]));
    card.staves = new Staves(card.element.querySelector(".staves"), systems, choose);
  }
  view.show();
}

function connectCard(card, player) {
  const { element, roll, score } = card;
  card.button.disabled = !score.notes.length;
  card.button.addEventListener("click", () => player.toggle(card));
  element.querySelector(".jump")?.addEventListener("click", () => move(player, card, score.promptSeconds, true));
  roll.element.addEventListener("click", (event) => move(player, card, score.secondsAt(roll.tickOfPointer(event))));
  for (const button of element.querySelectorAll(".mute, .solo")) {
    button.addEventListener("click", () => {
      const track = button.closest("li").dataset.track;
      const name = button.className;
      const pressed = (card.switches[track][name] = !card.switches[track][name]);
      button.setAttribute("aria-pressed", pressed);
      roll.redraw();
      if (card === player.card) player.refreshChannels();
    });
  }
}

function pressKey(event, cards, player) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  // On controls and in scrolling elements, the space and arrow keys keep their usual meaning.
  const control = event.target.closest("button, a, input, summary");
  const scrolls = event.target.closest("input, .roll, .contents");
  const element = event.target.closest(".piece");
  const neighbour = (step) => {
    const next = cards[cards.indexOf(player.card) + step];
    if (!next) return;
    player.select(next);
    next.element.scrollIntoView({ block: "nearest" });
  };
  const actions = {
    " ": () => player.toggle(cards.find((card) => card.element === element)),
    c: () => player.jump(),
    n: () => neighbour(1),
    p: () => neighbour(-1),
    ArrowLeft: () => player.skipBars(-1),
    ArrowRight: () => player.skipBars(1),
  };
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const taken = key === " " ? control || event.repeat : key.startsWith("Arrow") && scrolls;
  if (taken || !Object.hasOwn(actions, key)) return;
  event.preventDefault();
  actions[key]();
}

const player = connect();
