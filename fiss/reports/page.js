"use strict";
// The figures of the page: drawn from the block of JSON above, again whenever methods, classes or the task are chosen.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = selector => document.querySelector(selector);
const chosen = { methods: new Set(data.methods.map(m => m.label)), classes: new Set(), task: data.tasks - 1 };
const MARKS = [  // ten shapes about the origin: methods differ in shape as well as in colour
  "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0", "M-4,-4h8v8h-8z", "M0,-5L5,0 0,5 -5,0z", "M0,-5L5,4H-5z", "M0,5L5,-4H-5z",
  "M-5,0L4,-5V5z", "M5,0L-4,-5V5z", "M0,-5L5,-1 3,5H-3L-5,-1z", "M-5,-2H-2V-5H2V-2H5V2H2V5H-2V2H-5z", "M-3,-5H3L5,0 3,5H-3L-5,0z",
];
const MEASURES = { miou: "all classes", old: "old classes (task 0: the first)", new: "newest classes", background: "background" };
const CELLS = {
  iou: "IoU, %", lost: "points of IoU since the class was known best", to_background: "its pixels called background, %",
  from_background: "the background's pixels called so, %",
};

function make(name, attributes = {}, ...inside) {
  const drawn = ["svg", "path", "line", "polyline", "text", "g", "rect", "title"].includes(name);
  const made = drawn ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inside);
  return made;
}
const known = value => value !== null && value !== undefined;
const shown = value => known(value) ? value.toFixed(1) : "–";
const methods = () => data.methods.filter(m => chosen.methods.has(m.label));
const colour = method => `m${data.methods.indexOf(method) % 10}`;
const mark = (method, x, y) => make("path", { class: `mark ${colour(method)}`, d: MARKS[data.methods.indexOf(method) % 10], transform: `translate(${x},${y})` });
const mean = values => { const there = values.filter(known); return there.length ? there.reduce((a, b) => a + b) / there.length : null; };

// ---- the note beside the pointer
const tip = make("div", { id: "tip", role: "status", hidden: "" });
document.body.append(tip);
function tell(event, title, rows) {
  tip.replaceChildren(make("b", {}, title), ...rows.map(([name, value]) => make("div", {}, make("span", {}, name), " ", value)));
  tip.hidden = false;
  const across = tip.offsetWidth, down = tip.offsetHeight, { clientX: x, clientY: y } = event;
  tip.style.left = `${Math.max(4, x + 16 + across > innerWidth ? x - across - 16 : x + 16)}px`;
  tip.style.top = `${Math.max(4, y + 16 + down > innerHeight ? y - down - 16 : y + 16)}px`;
}
function hovered(place, on) {
  place.addEventListener("pointermove", on);
  place.addEventListener("pointerdown", on);
  place.addEventListener("pointerleave", () => { tip.hidden = true; });
}

// ---- what is chosen
function controls() {
  for (const method of data.methods) {
    const box = make("input", { type: "checkbox" });
    box.checked = true;
    box.addEventListener("change", () => { box.checked ? chosen.methods.add(method.label) : chosen.methods.delete(method.label); draw(); });
    $("#methods").append(make("label", {}, box, make("svg", { viewBox: "-6 -6 12 12" }, mark(method, 0, 0)), method.label));
  }
  const slider = $("#task");
  slider.max = slider.value = chosen.task;
  slider.addEventListener("input", () => { chosen.task = +slider.value; draw(); });
  $("#when").hidden = data.tasks < 2;
  for (const [place, names] of [["#measure", MEASURES], ["#cell", CELLS]]) {
    for (const [value, name] of Object.entries(names)) $(place).append(make("option", { value }, name));
    $(place).addEventListener("change", draw);
  }
  $("#all").addEventListener("click", () => { chosen.classes.clear(); draw(); });
}
function toTask(task) {
  $("#task").value = chosen.task = Math.min(data.tasks - 1, Math.max(0, task));
  draw();
}

// ---- pictures
const palette = new Map(data.pictures.flatMap(group => group.legend.map(([name, hex]) => [hex, name])));
const loaded = new Map();
function decoded(address) {
  if (!loaded.has(address)) {
    const image = new Image();
    image.src = address;
    loaded.set(address, image.decode().then(() => image));
  }
  return loaded.get(address);
}
async function paint(canvas, address, dim) {
  canvas.wanted = address;
  const image = await decoded(address);
  if (canvas.wanted !== address) return;
  [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.drawImage(image, 0, 0);
  canvas.pixels = pen.getImageData(0, 0, canvas.width, canvas.height);
  if (!dim || !chosen.classes.size) return;
  const faded = new ImageData(new Uint8ClampedArray(canvas.pixels.data), canvas.width);
  for (let i = 0; i < faded.data.length; i += 4) if (!chosen.classes.has(palette.get(hex(faded.data, i)))) faded.data[i + 3] = 45;
  pen.putImageData(faded, 0, 0);
}
const hex = (bytes, i) => "#" + [0, 1, 2].map(k => bytes[i + k].toString(16).padStart(2, "0")).join("");
function at(canvas, across, down) {
  if (!canvas.pixels) return "–";
  const x = Math.min(canvas.width - 1, Math.floor(across * canvas.width)), y = Math.min(canvas.height - 1, Math.floor(down * canvas.height));
  return palette.get(hex(canvas.pixels.data, 4 * (y * canvas.width + x))) || "–";
}
function tile(row, title, address, dim) {
  if (!row.tiles.has(title)) {
    const canvas = make("canvas", { role: "img" }), figure = make("figure", {}, canvas, make("figcaption", {}, title));
    row.tiles.set(title, { canvas, figure });
    hovered(canvas, event => {
      const box = canvas.getBoundingClientRect(), place = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
      const there = [...row.tiles].filter(([name, own]) => name !== "image" && own.figure.isConnected);
      tell(event, "at this point", there.map(([name, own]) => [name, at(own.canvas, ...place)]));
    });
  }
  const { canvas, figure } = row.tiles.get(title);
  canvas.setAttribute("aria-label", dim ? `${title}, segmented` : title);
  paint(canvas, address, dim);
  return figure;
}
function pictures() {
  for (const group of data.pictures) {
    group.place ||= $("#pictures").appendChild(make("div"));
    for (const row of group.rows) {
      row.tiles ||= new Map();
      row.place ||= group.place.appendChild(make("div", { class: "tiles" }));
      const seen = m => row.seen[m.label]?.[chosen.task - (m.joint ? data.tasks - m.tasks : 0)];  // joint: after the last task
      const first = [tile(row, "image", row.image), tile(row, "truth", row.truth, true)];
      row.place.replaceChildren(...first, ...methods().filter(seen).map(m => tile(row, m.label, seen(m), true)));
    }
    group.names ||= group.place.appendChild(make("p", { class: "legend" }));
    group.names.replaceChildren(...group.legend.map(([name, hex]) => {
      const button = make("button", { type: "button", "aria-pressed": chosen.classes.has(name) }, make("i", { style: `background: ${hex}` }), name);
      button.addEventListener("click", () => choose(name));
      return button;
    }));
  }
}
function choose(name) {
  chosen.classes.has(name) ? chosen.classes.delete(name) : chosen.classes.add(name);
  draw();
}

// ---- curves and the plane of old and new
function value(method, measure, task) {
  if (chosen.classes.size) return mean([...chosen.classes].map(name => method.iou[name]?.[task]));
  return method[measure][task];
}
function axes(place, across, name, from, ticks) {
  const width = Math.max(240, place.clientWidth), height = Math.min(380, Math.max(230, width * .55)), box = { left: 44, right: width - 14, top: 12, below: height - 40 };
  const x = v => box.left + (v - from) / Math.max(1e-9, across - from) * (box.right - box.left), y = v => box.below - v / 100 * (box.below - box.top);
  const drawn = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name, style: `height:${height}px` });
  for (const v of [0, 20, 40, 60, 80, 100])
    drawn.append(make("line", { class: "rule", x1: box.left, x2: box.right, y1: y(v), y2: y(v) }), make("text", { x: box.left - 6, y: y(v) + 4, "text-anchor": "end" }, v));
  for (const v of ticks) drawn.append(make("text", { x: x(v), y: box.below + 17, "text-anchor": "middle" }, v));
  drawn.append(make("text", { x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, name));
  place.replaceChildren(drawn);
  return { drawn, x, y, box, width };
}
function curves() {
  const place = $("#curves"), measure = $("#measure").value, tasks = [...Array(data.tasks).keys()];
  $("#measure").hidden = chosen.classes.size > 0;
  $("#which").textContent = chosen.classes.size ? `IoU of ${[...chosen.classes].join(", ")}` : "mIoU of";
  $("#all").hidden = !chosen.classes.size;
  const { drawn, x, y, box, width } = axes(place, Math.max(1, data.tasks - 1), "task", 0, tasks);
  drawn.append(make("line", { class: "now", x1: x(chosen.task), x2: x(chosen.task), y1: box.top, y2: box.below }));
  for (const method of methods()) {
    const points = tasks.map(t => [t, value(method, measure, t)]).filter(([, v]) => known(v)).map(([t, v]) => [x(t), y(Math.max(0, v))]);
    drawn.append(make("polyline", { class: `line ${colour(method)}`, points: points.join(" ") }), ...points.map(p => mark(method, ...p)));
  }
  const nearest = event => {
    const across = drawn.getBoundingClientRect();
    return Math.min(data.tasks - 1, Math.max(0, Math.round(((event.clientX - across.left) / across.width * width - box.left) / (box.right - box.left) * Math.max(1, data.tasks - 1))));
  };
  drawn.classList.add("drag");
  hovered(drawn, event => {
    const task = nearest(event), rows = methods().map(m => [m.label, value(m, measure, task)]).sort((a, b) => (b[1] ?? -1) - (a[1] ?? -1));
    tell(event, `after task ${task}`, rows.map(([name, v]) => [name, shown(v)]));
    if (event.buttons && task !== chosen.task) toTask(task);
  });
}
function plane() {
  const pairs = methods().map(m => [m, m.old[chosen.task], m.new[chosen.task]]).filter(([, old, now]) => known(old) && known(now));
  $("#trade").hidden = data.tasks < 2;
  if ($("#trade").hidden) return;
  const { drawn, x, y, box } = axes($("#plane"), 100, `old classes after task ${chosen.task}, mIoU % (up: the newest)`, 0, [0, 20, 40, 60, 80, 100]);
  for (const [method, old, now] of pairs) {
    const right = x(old) > box.right - 90, one = make("g", {}, mark(method, x(old), y(now)), make("text", { x: x(old) + (right ? -9 : 9), y: y(now) + 4, "text-anchor": right ? "end" : "start" }, method.label));
    hovered(one, event => tell(event, method.label, [["old", shown(old)], ["newest", shown(now)]]));
    drawn.append(one);
  }
}

// ---- every class
function cell(method, kind, name) {
  const own = kind === "lost" ? method.iou[name] : method[kind][name], now = own?.[chosen.task];
  if (kind !== "lost" || !known(now)) return now;
  const before = own.slice(0, chosen.task).filter(known);
  return before.length ? now - Math.max(...before) : null;
}
function classes() {
  const kind = $("#cell").value, head = make("tr", {}, make("th", {}, "class"), ...methods().map(m => make("th", {}, m.label)));
  const rows = data.classes.map(name => {
    const button = make("button", { type: "button", "aria-pressed": chosen.classes.has(name) }, name);
    button.addEventListener("click", () => choose(name));
    return make("tr", {}, make("th", { scope: "row" }, button), ...methods().map(method => {
      const v = cell(method, kind, name), made = make("td", { class: kind === "lost" && v < 0 ? "shade lost" : "shade" }, known(v) ? v.toFixed(0) : "");
      if (known(v)) made.style.setProperty("--v", Math.min(1, Math.abs(v) / (kind === "lost" ? 80 : 100)).toFixed(2));
      const past = (method.iou[name] || []).map((one, t) => [`after task ${t}`, shown(one)]).filter(([, text]) => text !== "–");
      hovered(made, event => tell(event, `${name}, ${method.label}: IoU`, past));
      return made;
    }));
  });
  $("#classes").replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
}

function draw() {
  $("#shown").textContent = `after task ${chosen.task}`;
  pictures();
  curves();
  plane();
  classes();
}
controls();
draw();
addEventListener("resize", () => { curves(); plane(); });
for (const one of document.querySelectorAll("details")) one.addEventListener("toggle", () => { curves(); plane(); });
