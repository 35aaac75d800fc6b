"use strict";
// The page: hears what is new (server-sent events), keeps it, and draws what has changed, at most once a frame.
// A round's short keys are explained in watch.py.

const $ = (query, within = document) => within.querySelector(query);
const token = $("meta[name=fiss-token]").content, mayControl = document.body.classList.contains("control");
const SIGNS = { there: "●", working: "▶", late: "◷", gone: "○", refused: "✕", unknown: "?" };
const DASHES = ["", "6 3", "2 3", "8 3 2 3", "12 4", "3 6", "1 2"];
const KEPT = 400;  // points of a line that are drawn
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

// What is drawn

function draw() {
  const now = dirty;
  dirty = new Set();
  if (now.has("runs")) drawRuns();
  if (!run) return;
  const any = (...what) => what.some(one => now.has(one));
  if (any("runs", "now")) drawAbout();
  if (any("rounds", "scores", "now")) { drawFacts(); }
  if (any("rounds", "now")) { drawSites(); }
  if (any("rounds", "scores")) drawClasses();
  if (any("rounds")) { drawLosses(); drawSeconds(); drawCalendar(); }
  if (any("scores")) drawScores();
  if (any("lines")) drawLog();
  if (any("pictures")) askForPictures();
}

function drawRuns() {
  const list = $("#runs");
  $("#none").hidden = runs.size > 0;
  for (const [id, one] of runs) {
    let item = document.getElementById("run-" + id);
    if (!item) {
      item = make("li");
      item.id = "run-" + id;
      const box = make("input"), link = make("a");
      box.type = "checkbox";
      box.ariaLabel = "mark " + one.name + " for comparison";
      box.onchange = () => { box.checked ? marked.add(id) : marked.delete(id); $("#compare").disabled = !marked.size; };
      link.href = "#run=" + id;
      link.append(make("b"), make("small"));
      item.append(box, link);
      list.append(item);
    }
    item.className = run && run.id === id ? "chosen" : "";
    set($("b", item), one.name);
    const words = [one.federation ? "federation" : one.method, `round ${one.round}${one.finished ? ", finished" : ""}`];
    if (one.miou !== null && one.miou !== undefined) words.push("mIoU " + one.miou.toFixed(1));
    const small = $("small", item), text = words.join(" · ");
    if (small.dataset.text !== text + one.warnings) {
      small.dataset.text = text + one.warnings;
      small.replaceChildren(text, ...(one.warnings ? [" · ", make("span", `⚠ ${one.warnings}`, "warned")] : []));
    }
  }
  for (const item of [...list.children]) if (!runs.has(item.id.slice(4))) item.remove();
}

function drawAbout() {
  const one = runs.get(run.id), now = run.now;
  if (!one) return;
  set($("#name"), one.name);
  document.title = one.name + " – fiss";
  const doing = now.doing ? `round ${now.round + 1}: ${now.waiting} sites ${now.doing}` : one.finished ? "finished" : "";
  const watched = !one.federation || now.supervised || one.finished ? "" : "fiss federation run is not at work";
  set($("#about"), [one.method, `seed ${one.seed}`, doing, now.stopping ? "ends after this round" : "", watched, one.path].filter(Boolean).join(" · "));
  const warnings = now.warnings || [], list = $("#warnings ul");
  $("#warnings").hidden = !warnings.length;
  if (list.dataset.text !== warnings.join("\n")) {
    list.dataset.text = warnings.join("\n");
    list.replaceChildren(...warnings.map(text => make("li", text)));
  }
  $("#control").hidden = !mayControl || !one.federation;
}

function fact(name, value, more = "") {
  let item = document.getElementById("fact-" + name);
  if (!item) {
    item = make("div");
    item.id = "fact-" + name;
    item.append(make("dt", name), make("dd"));
    $("dd", item).append(make("span"), make("small"));
    $("#facts").append(item);
  }
  set($("dd span", item), value);
  set($("dd small", item), more);
}

function drawFacts() {
  const last = run.rounds[run.rounds.length - 1], score = run.scores[run.scores.length - 1];
  const states = Object.values(run.now.sites), recent = run.rounds.slice(-10);
  fact("rounds", run.now.next ?? run.rounds.length, last && last.k ? `task ${last.k}` : "");
  fact("mIoU, %", score ? number(score.miou) : "–", score ? `after round ${score.round + 1}` + (score.forgetting === undefined ? "" : `, ${score.forgetting < 0 ? "gained" : "forgot"} ${number(Math.abs(score.forgetting))}`) : "not scored yet");
  fact("classes", run.classes.size, run.grown.length ? `last new ones in round ${run.grown[run.grown.length - 1] + 1}` : "");
  if (states.length) {
    const there = states.filter(state => state === "there" || state === "working").length;
    const counted = Object.entries(SIGNS).map(([state, sign]) => [states.filter(one => one === state).length, sign, state]);
    fact("sites there", `${there} of ${states.length}`, counted.filter(([n]) => n).map(([n, sign, state]) => `${sign} ${n} ${state}`).join("  "));
  } else fact("clients", run.sites.length, "that have trained");
  fact("last transition", run.moved ? `round ${run.moved.r + 1}` : "none yet", run.moved ? run.moved.p.map(site => run.sites[site]).slice(0, 4).join(", ") : "");
  fact("seconds of a round", recent.length ? number(recent.reduce((sum, one) => sum + one.s, 0) / recent.length) : "–", last && last.v ? `${last.v.toFixed(0)} images/s` : "");
  if (run.sent) fact("to and from sites", `${size(run.sent)} ↓`, `${size(run.received)} ↑`);
}

function drawSites() {
  const names = Object.keys(run.now.sites), body = $("#sites tbody");
  $("#sites").hidden = !names.length;
  const certificates = run.now.certificates || {}, bare = !Object.keys(certificates).length;
  for (const cell of $("#sites").querySelectorAll("th:nth-child(5), td:nth-child(5)")) cell.hidden = bare;
  for (const name of names) {
    let row = run.rows.get(name);
    if (!row) {
      row = body.insertRow();
      run.rows.set(name, row);
      for (let i = 0; i < 6; i++) row.insertCell();
      set(row.cells[0], name);
      row.cells[4].hidden = bare;
      if (mayControl) {
        const button = make("button", "Stop");
        button.onclick = () => control("stop-site", `Stop the site ${name}?`, { site: name });
        row.cells[5].append(button);
      }
    }
    const state = run.now.sites[name], site = run.index.get(name);
    if (row.dataset.state !== state) {
      row.dataset.state = state;
      set(row.cells[1], `${SIGNS[state] || ""} ${state}`);
      row.cells[1].className = "words state " + state;
      if (["late", "gone", "refused"].includes(state)) body.prepend(row);  // what is wrong comes first
    }
    set(row.cells[2], run.last[site] === undefined ? "–" : run.last[site] + 1);
    set(row.cells[3], run.held[site] ?? "–");
    set(row.cells[4], certificates[name] || "");
  }
}

function drawClasses() {
  $("#classes").hidden = !run.classes.size;
  const view = run.scores.length ? run.scores[0].view : "", own = run.scores.filter(score => score.view === view);
  let shown = own.filter((score, i) => score.ends || i === own.length - 1 || own[i + 1].task !== score.task).slice(-10);
  const head = make("tr");
  head.append(make("th", "class"), make("th", "since round", "words"), make("th", "brought by", "words"), ...shown.map(score => make("th", `round ${score.round + 1}`)));
  const rows = [...run.classes].map(([name, came]) => {
    const row = make("tr"), sites = came.sites.length > 3 ? `${came.sites.slice(0, 3).join(", ")} and ${came.sites.length - 3} more` : came.sites.join(", ");
    row.append(make("td", name), make("td", came.round + 1), make("td", sites || "–", "words"), ...shown.map(score => heat(score.iou[name])));
    return row;
  });
  $("#classes table").replaceChildren(head, ...rows);
}

function heat(value) {
  const cell = make("td", value === undefined ? "" : value.toFixed(0));
  if (value !== undefined) {  // from dark blue over grey to yellow, as matplotlib's cividis
    const [a, b, t] = value < 50 ? [[0, 34, 78], [124, 123, 120], value / 50] : [[124, 123, 120], [254, 232, 56], value / 50 - 1];
    cell.style.background = `rgb(${a.map((from, i) => Math.round(from + (b[i] - from) * t)).join(",")})`;
    cell.style.color = value < 55 ? "#fff" : "#111";
  }
  return cell;
}

function drawScores() {
  const view = run.scores.length ? run.scores[0].view : "", own = run.scores.filter(score => score.view === view);
  const line = (key, name) => ({ name, points: own.filter(score => score[key] !== undefined).map(score => [score.round + 1, score[key]]) });
  chart($("#scores"), [line("miou", "mIoU, all classes"), line("old", "old classes"), line("new", "newest classes")], [0, 100]);
}

function drawLosses() {
  const terms = new Map();
  for (const round of run.rounds) for (const [name, value] of Object.entries(round.l || {})) {
    if (!terms.has(name)) terms.set(name, []);
    terms.get(name).push([round.r + 1, value]);
  }
  chart($("#losses"), [...terms].map(([name, points]) => ({ name, points })));
}

const drawSeconds = () => chart($("#seconds"), [{ name: "seconds", points: run.rounds.map(round => [round.r + 1, round.s]) }]);

function svg(tag, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== "") made.textContent = text;
  return made;
}

function thinned(points) {  // the lowest and the highest of every few
  if (points.length <= KEPT) return points;
  const found = [], step = Math.ceil(2 * points.length / KEPT);
  for (let i = 0; i < points.length; i += step) {
    const part = points.slice(i, i + step), low = part.reduce((a, b) => b[1] < a[1] ? b : a), high = part.reduce((a, b) => b[1] > a[1] ? b : a);
    found.push(...(low[0] < high[0] ? [low, high] : low === high ? [low] : [high, low]));
  }
  return found;
}

function even(low, high) {  // whole steps of 1, 2 or 5 times a power of ten
  const rough = Math.max(high - low, 1e-9) / 5, power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].find(one => one * power >= rough) * power;
  const first = Math.floor(low / step + 1e-9), last = Math.max(first + 1, Math.ceil(high / step - 1e-9));
  return [first * step, last * step, Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step)];
}

function decades(low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high) + 1e-9);
  return [10 ** first, 10 ** last, Array.from({ length: last - first + 1 }, (_, i) => 10 ** (first + i))];
}

function chart(place, lines, limits) {
  const width = Math.max(place.clientWidth, 260), height = 240, left = 44, right = 10, top = 8, below = 26;
  lines = lines.filter(line => line.points.length);
  if (!lines.length) { place.replaceChildren(make("p", "nothing yet", "quiet")); return; }
  const all = lines.map(line => thinned(line.points)), xs = all.flat().map(point => point[0]), ys = all.flat().map(point => point[1]);
  const from = Math.min(...xs), to = Math.max(...xs, from + 1), least = Math.min(...ys), most = Math.max(...ys);
  const log = !limits && least > 0 && most / least > 30;  // terms of very different size
  const [low, high, ticks] = log ? decades(least, most) : even(...(limits || [Math.min(0, least), most]));
  const x = value => left + (value - from) / (to - from) * (width - left - right), up = log ? Math.log10 : value => value;
  const y = value => top + (up(high) - up(value)) / (up(high) - up(low)) * (height - top - below);
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": lines.map(line => line.name).join(", ") + " by round" });
  for (const value of ticks) drawn.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
    svg("text", { x: left - 5, y: y(value) + 4, "text-anchor": "end" }, String(+value.toPrecision(3))));
  const marks = even(from, to)[2].filter(value => value >= from && value <= to && Number.isInteger(value));
  for (const value of marks) drawn.append(svg("text", { x: x(value), y: height - 8, "text-anchor": "middle" }, value));
  for (const round of run.grown.slice(1)) if (round + 1 > from) drawn.append(svg("line", { class: "grown", x1: x(round + .5), x2: x(round + .5), y1: top, y2: height - below }));
  const legend = make("div", "", "legend");
  all.forEach((points, i) => {
    const looks = { class: "s" + i % 7, "stroke-dasharray": DASHES[i % 7] };
    drawn.append(svg("polyline", { ...looks, points: points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ") }));
    if (points.length <= 30) for (const [a, b] of points) drawn.append(svg("circle", { class: "dot s" + i % 7, cx: x(a), cy: y(b), r: 2.5 }));
    const item = make("span"), sample = svg("svg", { viewBox: "0 0 28 10" });
    sample.append(svg("line", { ...looks, x1: 0, x2: 28, y1: 5, y2: 5, "stroke-width": 2 }));
    const last = lines[i].points[lines[i].points.length - 1][1];
    item.append(sample, ` ${lines[i].name} ${last >= 100 ? last.toFixed(0) : last.toPrecision(3)}`);
    legend.append(item);
  });
  place.replaceChildren(legend, drawn);
}

function drawCalendar() {
  const canvas = $("#calendar"), width = canvas.clientWidth, count = run.sites.length, tall = count > 40 ? 7 : 14, left = count > 40 ? 4 : 90;
  const cell = Math.min(24, Math.max(7, Math.floor((width - left) / Math.max(1, run.rounds.length))));
  const shown = run.rounds.slice(-Math.floor((width - left) / cell)), scale = devicePixelRatio || 1;
  canvas.height = (count * tall + 20) * scale;
  canvas.width = width * scale;
  canvas.style.height = `${count * tall + 20}px`;
  const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement), colour = name => style.getPropertyValue(name);
  const [trained, moved, lost, refused, quiet] = ["--s5", "--s6", "--s3", "--s4", "--quiet"].map(colour);
  pen.scale(scale, scale);
  pen.font = "11px system-ui, sans-serif";
  pen.fillStyle = quiet;
  if (count <= 40) run.sites.forEach((name, i) => pen.fillText(name.slice(0, 14), 0, i * tall + 11));
  shown.forEach((round, i) => {
    const at = left + i * cell, box = (site, colour) => { pen.fillStyle = colour; pen.fillRect(at, site * tall + 1, cell - 1, tall - 2); };
    for (const site of round.t || []) box(site, trained);
    for (const site of Object.keys(round.m || {})) box(site, lost);
    for (const site of Object.keys(round.f || {})) box(site, refused);
    pen.fillStyle = moved;
    for (const site of round.p || []) { pen.beginPath(); pen.arc(at + cell / 2 - .5, site * tall + tall / 2, 2.5, 0, 7); pen.fill(); }
    if (round.c && round.r) { pen.strokeStyle = lost; pen.setLineDash([4, 3]); pen.beginPath(); pen.moveTo(at - .5, 0); pen.lineTo(at - .5, count * tall); pen.stroke(); }
    pen.fillStyle = quiet;
    if (i % 10 === 0) pen.fillText(round.r + 1, at, count * tall + 14);
  });
}

function drawLog() {
  const place = $("#log pre"), below = place.scrollTop + place.clientHeight >= place.scrollHeight - 4;
  $("#log").hidden = !run.lines.length;
  set(place, run.lines.join("\n"));
  if (below) place.scrollTop = place.scrollHeight;
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
