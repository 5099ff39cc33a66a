// Starts the page: its worker from the text in the page, then the controls.

/** Return the worker with the model, both of which are in the page. */
async function startWorker() {
  const bytes = await unpackWeights(byId("weights").textContent);
  const source = new Blob([byId("worker").textContent], { type: "text/javascript" });
  const worker = new Worker(URL.createObjectURL(source));
  const { tables, step, sampling } = CONTENT;
  worker.postMessage({ kind: "start", tables, step, sampling, bytes }, [bytes]);
  byId("weights").remove();
  return worker;
}

function connectPage(page) {
  const { player, roll } = page;
  const on = (id, name, action) => byId(id)?.addEventListener(name, action);
  on("continue", "click", () => page.continue());
  on("accompany", "click", () => page.accompany());
  on("retake", "click", () => page.retake());
  on("save", "click", () => page.send("save"));
  for (const name of ["pointerenter", "pointerdown"]) on("save", name, () => page.prepareDrag());
  on("save", "dragstart", (event) => page.drag(event));
  on("undo", "click", () => page.undo());
  on("clear", "click", () => page.clear());
  on("metronome", "click", ({ target }) => {
    page.metronome.toggle();
    target.setAttribute("aria-pressed", page.metronome.isOn);
  });
  on("tempo", "change", () => page.setTempo());
  on("file-bars", "change", () => page.begin());
  on("file", "change", ({ target }) => {
    if (target.files[0]) page.open(target.files[0]);
    target.value = "";
  });
  on("answer", "click", ({ target }) => {
    page.live.stop();
    page.recorder = null;
    target.setAttribute("aria-pressed", !page.isLive);
    if (!page.isLive && page.composing) page.continue();
    page.say(page.isLive ? "Play something, then pause for a beat." : "");
    page.show();
  });
  const showTemperature = () => (byId("temperature-shown").textContent = byId("temperature").value);
  on("temperature", "input", showTemperature);
  showTemperature();
  connectControls(player, findControls());
  roll.element.addEventListener("click", (event) =>
    player.seek(page.piece.score.secondsAt(roll.tickOfPointer(event))),
  );
  for (const name of ["dragenter", "dragover"]) {
    addEventListener(name, (event) => {
      event.preventDefault();
      document.body.classList.add("dropping");
    });
  }
  addEventListener(
    "dragleave",
    ({ relatedTarget }) => relatedTarget ?? document.body.classList.remove("dropping"),
  );
  addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    const [file] = event.dataTransfer.files;
    if (file) page.open(file);
  });
  for (const each of document.querySelectorAll(".accompany"))
    each.hidden = !CONTENT.tables.accompany;
  for (const each of document.querySelectorAll(".rewriting:not(#takes)"))
    each.hidden = !CONTENT.tables.rewrites;
  for (const id of ["continue", "answer"]) byId(id).disabled = false;
}

function connectKeys(page) {
  const keyboard = new Keyboard(byId("piano"), page);
  byId("lower").addEventListener("click", () => keyboard.moveOctave(-1));
  byId("higher").addEventListener("click", () => keyboard.moveOctave(1));
  byId("midi").addEventListener(
    "click",
    async () => (byId("midi-status").textContent = await keyboard.connectMidi()),
  );
  const actions = {
    " ": () => page.player.toggle(),
    z: () => keyboard.moveOctave(-1),
    x: () => keyboard.moveOctave(1),
    arrowleft: () => page.player.skipBars(-1),
    arrowright: () => page.player.skipBars(1),
  };
  const isText = ({ target }) => target.closest("input:not([type=range], [type=checkbox])");
  const pressed = (event) => {
    const isUndo = (event.ctrlKey || event.metaKey) && !event.shiftKey && event.key === "z";
    if (isUndo && event.type === "keydown" && !isText(event)) {
      event.preventDefault();
      return page.undo();
    }
    if (
      event.ctrlKey ||
      event.altKey ||
      event.metaKey ||
      isText(event)
    )
      return;
    const key = event.key.toLowerCase();
    if (keyboard.computerKey(event)) return event.preventDefault();
    const taken =
      event.target.closest("button, input, summary") ||
      (key.startsWith("arrow") && event.target.closest(".roll"));
    if (event.type === "keyup" || taken || !Object.hasOwn(actions, key)) return;
    event.preventDefault();
    actions[key]();
  };
  addEventListener("keydown", pressed);
  addEventListener("keyup", pressed);
}

const CONTENT = JSON.parse(byId("content").textContent);
let page;
if (window.DecompressionStream) {
  startWorker().then((worker) => {
    page = new Page(worker);
    connectPage(page);
    connectKeys(page);
  });
} else
  byId("summary").textContent =
    "This browser is too old for this page: it has no DecompressionStream to unpack the model with.";
