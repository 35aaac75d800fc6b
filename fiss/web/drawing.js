"use strict";
// What the page shows: what has changed is drawn, at most once a frame. page.js has the names that both use.

const SIGNS = { there: "●", working: "▶", late: "◷", gone: "○", refused: "✕", removed: "⊘", unknown: "?" };
const DASHES = ["", "6 3", "2 3", "8 3 2 3", "12 4", "3 6", "1 2"];
const KEPT = 400;  // points of a line that are drawn

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
  const doing = now.doing ? `round ${now.round}: ${now.waiting} sites ${now.doing}` : one.finished ? "finished" : "";
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
  fact("mIoU, %", score ? number(score.miou) : "–", score ? `after round ${score.round}` + (score.forgetting === undefined ? "" : `, ${score.forgetting < 0 ? "gained" : "forgot"} ${number(Math.abs(score.forgetting))}`) : "not scored yet");
  fact("classes", run.classes.size, run.grown.length ? `last new ones in round ${run.grown[run.grown.length - 1]}` : "");
  if (states.length) {
    const there = states.filter(state => state === "there" || state === "working").length;
    const counted = Object.entries(SIGNS).map(([state, sign]) => [states.filter(one => one === state).length, sign, state]);
    fact("sites there", `${there} of ${states.filter(state => state !== "removed").length}`, counted.filter(([n]) => n).map(([n, sign, state]) => `${sign} ${n} ${state}`).join("  "));
  } else fact("clients", run.sites.length, "that have trained");
  fact("last transition", run.moved ? `round ${run.moved.r}` : "none yet", run.moved ? run.moved.p.map(site => run.sites[site]).slice(0, 4).join(", ") : "");
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
      if (state === "removed") { body.append(row); row.cells[5].replaceChildren(); }
    }
    set(row.cells[2], run.last[site] === undefined ? "–" : run.last[site]);
    set(row.cells[3], run.held[site] ?? "–");
    set(row.cells[4], certificates[name] || "");
  }
}

function drawClasses() {
  $("#classes").hidden = !run.classes.size;
  const view = run.scores.length ? run.scores[0].view : "", own = run.scores.filter(score => score.view === view);
  let shown = own.filter((score, i) => score.ends || i === own.length - 1 || own[i + 1].task !== score.task).slice(-10);
  const head = make("tr");
  head.append(make("th", "class"), make("th", "since round", "words"), make("th", "brought by", "words"), ...shown.map(score => make("th", `round ${score.round}`)));
  const rows = [...run.classes].map(([name, came]) => {
    const row = make("tr"), sites = came.sites.length > 3 ? `${came.sites.slice(0, 3).join(", ")} and ${came.sites.length - 3} more` : came.sites.join(", ");
    row.append(make("td", name), make("td", came.round), make("td", sites || "–", "words"), ...shown.map(score => heat(score.iou[name])));
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
  const line = (key, name) => ({ name, points: own.filter(score => score[key] !== undefined).map(score => [score.round, score[key]]) });
  chart($("#scores"), [line("miou", "mIoU, all classes"), line("old", "old classes"), line("new", "newest classes")], [0, 100]);
}

function drawLosses() {
  const terms = new Map();
  for (const round of run.rounds) for (const [name, value] of Object.entries(round.l || {})) {
    if (!terms.has(name)) terms.set(name, []);
    terms.get(name).push([round.r, value]);
  }
  chart($("#losses"), [...terms].map(([name, points]) => ({ name, points })));
}

const drawSeconds = () => chart($("#seconds"), [{ name: "seconds", points: run.rounds.map(round => [round.r, round.s]) }]);

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
  for (const round of run.grown.slice(1)) if (round > from) drawn.append(svg("line", { class: "grown", x1: x(round - .5), x2: x(round - .5), y1: top, y2: height - below }));
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
    if (round.c && round.r > 1) { pen.strokeStyle = lost; pen.setLineDash([4, 3]); pen.beginPath(); pen.moveTo(at - .5, 0); pen.lineTo(at - .5, count * tall); pen.stroke(); }
    pen.fillStyle = quiet;
    if (i % 10 === 0) pen.fillText(round.r, at, count * tall + 14);
  });
}

function drawLog() {
  const place = $("#log pre"), below = place.scrollTop + place.clientHeight >= place.scrollHeight - 4;
  $("#log").hidden = !run.lines.length;
  set(place, run.lines.join("\n"));
  if (below) place.scrollTop = place.scrollHeight;
}
