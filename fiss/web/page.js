"use strict";
// The page: hears what is new (server-sent events), keeps it, and asks for more. drawing.js, loaded before, draws it.
// A round's short keys are explained in watch.py.

const $ = (query, within = document) => within.querySelector(query);
const token = $("meta[name=fiss-token]").content, mayControl = document.body.classList.contains("control");
const runs = new Map(), marked = new Set();
let run = null, source = null, dirty = new Set();

function make(tag, text = "", name = "") {
  const made = document.createElement(tag);
  if (text !== "") made.textContent = text;
  if (name) made.className = name;
  return made;
}
const set = (element, text) => { if (element.textContent !== String(text)) element.textContent = text; };
const number = (value, digits = 1) => value === undefined || value === null ? "–" : value.toFixed(digits);
const size = bytes => bytes < 1e6 ? `${(bytes / 1e3).toFixed(0)} kB` : bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(2)} GB`;

// What is heard

function begin(id) {
  return { id, rounds: [], scores: [], lines: [], sites: [], index: new Map(), last: [], held: [], rows: new Map(), classes: new Map(), now: { sites: {} },
    sent: 0, received: 0, moved: null, grown: [] };
}

function connect(id) {
  if (source) source.close();
  run = id ? begin(id) : null;
  source = new EventSource("/events" + (id ? "?run=" + id : ""));
  source.onopen = () => { set($("#live"), "live"); $("#live").className = ""; };
  source.onerror = () => {
    const ended = source.readyState === EventSource.CLOSED;
    set($("#live"), ended ? "ended: open the address that fiss web prints" : "connection lost, trying again");
    $("#live").className = "lost";
  };
  source.onmessage = message => hear(JSON.parse(message.data));
}

function hear(news) {
  for (const one of news.runs || []) runs.set(one.id, one);
  for (const id of news.gone || []) { runs.delete(id); marked.delete(id); }
  if (news.runs || news.gone) mark("runs");
  if (news.run && run && news.run.id === run.id) hearRun(news.run);
  if (!run && runs.size && !location.hash) choose([...runs.keys()][0]);
}

function hearRun(news) {
  if (news.anew) { run = begin(run.id); $("#sites tbody").replaceChildren(); mark("rounds", "scores", "now", "lines"); }
  for (const round of news.rounds || []) {
    for (const name of round.new || []) { run.index.set(name, run.sites.length); run.sites.push(name); }
    for (const site of round.t || []) run.last[site] = round.r;
    for (const [site, images] of Object.entries(round.h || {})) run.held[site] = images;
    run.sent += round.d || 0; run.received += round.u || 0;
    if (round.p) run.moved = round;
    arrive(round.c, round.r, round.b);
    run.rounds.push(round);
    mark("rounds");
  }
  for (const score of news.scores || []) { arrive(score.c, score.round); run.scores.push(score); mark("scores"); }
  if (news.lines) { run.lines = run.lines.concat(news.lines).slice(-200); mark("lines"); }
  if (news.now) {
    const sites = { ...run.now.sites, ...news.now.sites };
    if (news.now.model !== undefined) mark("pictures");
    run.now = { ...run.now, ...news.now, sites };
    mark("now");
  }
}

function arrive(names, round, brought = {}) {
  for (const name of names || []) run.classes.set(name, { round, sites: (brought[name] || []).map(site => run.sites[site]) });
  if (names && names.length) run.grown.push(round);
}

function mark(...what) {
  if (!dirty.size) requestAnimationFrame(draw);
  for (const one of what) dirty.add(one);
}

// What is asked for

async function ask(address, options = {}) {
  const answer = await fetch(address, { ...options, headers: { "x-fiss-token": token } });
  if (!answer.headers.get("content-type").startsWith("application/json")) return answer.text();
  const value = await answer.json();
  if (value.error) throw new Error(value.error);
  return value;
}

let asking = null;
async function askForPictures() {
  if (asking || document.hidden) return;
  const id = asking = run.id;
  set($("#strip-note"), "drawing…");
  try {
    const found = await ask(`/runs/${id}/strip`);
    if (run && run.id === id) drawStrip(found.columns || [], found.note || "");
  } catch (error) {
    if (run && run.id === id) { $("#strip").replaceChildren(); set($("#strip-note"), error.message); }
  }
  setTimeout(() => { asking = null; if (run && run.id !== id) askForPictures(); }, 2000);
}

function drawStrip(columns, note) {
  set($("#strip-note"), note);
  if (!columns.length) { $("#strip").replaceChildren(); return; }
  const table = make("table"), head = table.insertRow();
  head.append(...columns.map(([name]) => make("th", name)));
  columns[0][1].forEach((_, i) => {
    const row = table.insertRow();
    for (const [name, tiles] of columns) { const picture = make("img"); picture.src = tiles[i]; picture.alt = `image ${i + 1}: ${name}`; row.insertCell().append(picture); }
  });
  $("#strip").replaceChildren(table);
  $("#strip").scrollLeft = $("#strip").scrollWidth;
}

async function segment(file) {
  const id = run.id, place = $("#seen"), shown = make("figure"), picture = make("img");
  picture.src = URL.createObjectURL(file);
  picture.alt = "the image";
  shown.append(picture, make("figcaption", file.name));
  place.replaceChildren(shown);
  const models = run.now.models || [], tasks = models.filter(name => name.startsWith("task"));
  for (const model of run.now.finished && tasks.length ? tasks : [...tasks, ...models.filter(name => !tasks.includes(name))]) {
    if (!run || run.id !== id || !place.contains(shown)) return;
    const figure = make("figure"), caption = make("figcaption", `${model}: …`);
    figure.append(caption);
    place.append(figure);
    try {
      const found = await ask(`/runs/${id}/segment?model=${encodeURIComponent(model)}`, { method: "POST", body: file });
      const drawn = make("img");
      drawn.src = found.picture;
      drawn.alt = `${model}: ${Object.keys(found.shares).join(", ")}`;
      figure.prepend(drawn);
      set(caption, `${model}: ` + Object.entries(found.shares).slice(0, 4).map(([name, share]) => `${name} ${(100 * share).toFixed(0)} %`).join(", "));
    } catch (error) { set(caption, `${model}: ${error.message}`); }
  }
}

function control(action, question, values) {
  const dialog = $("#sure"), name = runs.get(run.id).name, id = run.id;
  set($("#question"), question);
  set($("#word"), name);
  $("#typed").value = "";
  $("#yes").disabled = true;
  $("#typed").oninput = () => { $("#yes").disabled = $("#typed").value !== name; };
  dialog.onclose = async () => {
    if (dialog.returnValue !== "yes") return;
    set($("#answer"), "…");
    try {
      set($("#answer"), (await ask(`/runs/${id}/${action}`, { method: "POST", body: JSON.stringify({ ...values, confirm: name }) })).answer);
    } catch (error) { set($("#answer"), error.message); }
  };
  dialog.returnValue = "";
  dialog.showModal();
}

function figures(button, ids) {
  const frame = make("iframe");
  frame.src = "/report?" + ids.map(id => "run=" + id).join("&");
  frame.title = "the report";
  $(".report", button.parentElement).replaceChildren(frame);
}

async function compare(ids) {
  $("#one").hidden = true;
  $("#compared").hidden = false;
  const place = $("#comparison");
  for (const report of document.querySelectorAll(".report")) report.replaceChildren();
  try {
    const found = await ask("/compare?" + ids.map(id => "run=" + id).join("&")), table = make("table"), head = table.insertRow();
    head.append(...found.head.map(text => make("th", text)));
    for (const row of found.rows) table.insertRow().append(...row.map(text => make("td", text)));
    place.replaceChildren(make("p", found.title), table);
    set($("#comparison-notes"), found.notes.join(" "));
  } catch (error) { place.replaceChildren(make("p", error.message)); }
}

function choose(id) {
  if (location.hash !== "#run=" + id) { location.hash = "run=" + id; return; }
  $("#compared").hidden = true;
  $("#one").hidden = false;
  $("#file").value = "";
  for (const place of ["#facts", "#strip", "#seen", "#sites tbody", "#answer"]) $(place).replaceChildren();
  for (const report of document.querySelectorAll(".report")) report.replaceChildren();
  $("#toml").hidden = true;
  connect(id);
  mark("runs");
}

function go() {
  const [what, value] = location.hash.slice(1).split("=");
  if (what === "run" && value) choose(value);
  else if (what === "compare" && value) { connect(null); compare(value.split(",")); }
  else connect(null);
}

onhashchange = go;
onresize = () => { if (run) mark("rounds", "scores"); };
document.onvisibilitychange = () => { if (run && !document.hidden) mark("pictures"); };
matchMedia("(prefers-color-scheme: dark)").onchange = () => { if (run) mark("rounds"); };
$("#compare").onclick = () => { location.hash = "compare=" + [...marked].join(","); };
for (const button of document.querySelectorAll(".figures"))
  button.onclick = () => figures(button, location.hash.startsWith("#compare=") ? location.hash.slice(9).split(",") : [run.id]);
$("#config").onclick = async () => { $("#toml").hidden = !$("#toml").hidden; set($("#toml"), await ask(`/runs/${run.id}/config`)); };
$("#file").onchange = event => { if (event.target.files[0]) segment(event.target.files[0]); };
$("#drop").ondragover = event => { event.preventDefault(); $("#drop").classList.add("over"); };
$("#drop").ondragleave = () => $("#drop").classList.remove("over");
$("#drop").ondrop = event => {
  event.preventDefault();
  $("#drop").classList.remove("over");
  if (event.dataTransfer.files[0]) segment(event.dataTransfer.files[0]);
};
$("#start").onclick = () => control("start", "Train until there are so many rounds?", { rounds: Number($("#rounds").value), sites: Number($("#least").value) });
$("#stop").onclick = () => control("stop", "End the training after the present round?", {});
go();
