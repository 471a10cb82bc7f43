"use strict";
// Names come from files that may be hostile. They reach the page only as text, never as markup.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

// A row has its values in the order in which rows.rs writes them.
const tensors = data.tensors.map(([name, dtype, size, numel, bytes, storage, offset, stride, dimNames, range, runs, sharers,
  notes, min, max, mean, std, zeros, nans, infinities, hist], index) => ({ index, name, dtype: data.dtypes[dtype].name, size,
  numel, bytes, storage, offset, stride, dimNames, range: range ?? [0, 0], runs, sharers, notes, min, max, mean, std, zeros,
  nans, infinities, hist }));

/* Text */

const HIDDEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;
const shown = (name) => name.replace(HIDDEN, (c) => `\\u{${c.codePointAt(0).toString(16)}}`) || '""';
const count = (number) => number.toLocaleString("en");
const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
const sizes = (size) => `[${size.join(", ")}]`;

function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) { number /= 1024; unit += 1; }
  return `${unit ? number.toFixed(2) : number} ${units[unit]}`;
}

function decimal(number) {
  if (number === null || number === undefined) return "";
  const size = Math.abs(number);
  if (Number.isInteger(number) && size < 1e7) return String(number);
  return size >= 1e6 || size < 1e-3 ? number.toExponential(2) : String(Number(number.toPrecision(4)));
}

// Makes an element. `text` is its text; names that begin with "on" are listeners; all others are attributes.
function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

const link = (text, onclick) => el("button", { class: "link", type: "button", text, onclick });

/* Totals and warnings */

function drawHead() {
  byId("title").textContent = shown(data.name);
  document.title = `${shown(data.name)} · stridemap`;
  byId("path").textContent = shown(data.path);
  byId("kind").textContent = data.kind;
  for (const [term, value] of data.totals) {
    byId("totals").append(el("div", {}, el("dt", { text: term }),
      el("dd", { text: term.includes("ytes") ? bytes(value) : count(value) })));
  }
  for (const dtype of data.dtypes) {
    byId("dtypes").append(el("span", {}, el("b", { text: dtype.name }),
      ` ${plural(dtype.tensor_count, "tensor")}, ${bytes(dtype.nbytes)}`));
  }
  for (const { text, note } of data.warnings) {
    const item = el("li", { text });
    if (note) item.append(link("Show", () => show({ note })));
    byId("warnings").append(item);
  }
  byId("notes").textContent = data.notes.map(shown).join(" ");
}

/* Modules */

const MAX_DEPTH = 64;
const MAX_PARTS = 200;
const MAX_TILES = 120;

const NONE = new Map();

function modules() {
  const root = { name: shown(data.name), bytes: 0, count: 0, parts: new Map() };
  for (const tensor of tensors) {
    const words = tensor.name.split(".");
    if (words.length > MAX_DEPTH) words.splice(MAX_DEPTH - 1, Infinity, words.slice(MAX_DEPTH - 1).join("."));
    let node = root;
    root.bytes += tensor.bytes;
    root.count += 1;
    for (const name of words) {
      let part = node.parts.get(name);
      if (!part) {
        part = { name, bytes: 0, count: 0, parts: NONE, parent: node, tensor: undefined };
        if (node.parts === NONE) node.parts = new Map();
        node.parts.set(name, part);
      }
      part.bytes += tensor.bytes;
      part.count += 1;
      node = part;
    }
    node.tensor = tensor;
  }
  return root;
}

// Returns the names from the top to a module, joined by dots.
const path = (node) => (node.parent?.parent ? `${path(node.parent)}.${node.name}` : node.name);

function drawBranch(node) {
  const label = [el("span", { class: "name", text: shown(node.name), title: shown(path(node)) }),
    el("span", { class: "bytes", text: bytes(node.bytes) })];
  if (!node.parts.size) {
    const leaf = el("div", { class: "leaf" }, el("button", { class: "link name", type: "button", text: shown(node.name),
      title: shown(path(node)), onclick: () => open(node.tensor) }), label[1]);
    return leaf;
  }
  const branch = el("details", {}, el("summary", {}, ...label));
  branch.addEventListener("toggle", () => {
    if (!branch.open || branch.childElementCount > 1) return;
    const parts = node.tensor ? [{ ...node, name: "(tensor)", bytes: node.tensor.bytes, parts: NONE }] : [];
    parts.push(...node.parts.values());
    const more = (from) => {
      branch.append(...parts.slice(from, from + MAX_PARTS).map(drawBranch));
      const rest = parts.length - from - MAX_PARTS;
      if (rest <= 0) return;
      const button = el("button", { class: "link more", type: "button", text: `Show ${count(Math.min(rest, MAX_PARTS))} more of ${count(rest)}`,
        onclick: () => { button.remove(); more(from + MAX_PARTS); } });
      branch.append(button);
    };
    more(0);
  });
  return branch;
}

// Divides a rectangle into parts of these areas, in rows that keep the parts close to squares.
function squares(items, x, y, width, height) {
  const placed = [];
  let rest = items, total = items.reduce((sum, item) => sum + item.area, 0);
  while (rest.length && total > 0) {
    const side = Math.min(width, height), scale = width * height / total;
    const worst = (row, sum) => Math.max(...row.map(({ area }) =>
      Math.max(side * side * area / (sum * sum * scale), sum * sum * scale / (side * side * area))));
    let length = 1, sum = rest[0].area;
    while (length < rest.length && worst(rest.slice(0, length + 1), sum + rest[length].area) <= worst(rest.slice(0, length), sum)) {
      sum += rest[length].area;
      length += 1;
    }
    const depth = sum * scale / side;
    let at = 0;
    for (const item of rest.slice(0, length)) {
      const extent = item.area / sum * side;
      placed.push({ item, box: width >= height ? [x, y + at, depth, extent] : [x + at, y, extent, depth] });
      at += extent;
    }
    if (width >= height) { x += depth; width -= depth; } else { y += depth; height -= depth; }
    total -= sum;
    rest = rest.slice(length);
  }
  return placed;
}

function position(node, [left, top, width, height]) {
  Object.assign(node.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
  return node;
}

// Follows the modules that have nearly all bytes of the module above, and returns the last one.
function widest(node) {
  const part = [...node.parts.values()].find((part) => part.bytes > node.bytes * 0.85);
  return part?.parts.size ? widest(part) : node;
}

// Returns the parts of a module. If they are too many to draw, neighbors form groups.
function grouped(node) {
  const parts = [...node.parts.values()], length = Math.ceil(parts.length / MAX_TILES);
  if (length <= 1) return parts;
  return Array.from({ length: Math.ceil(parts.length / length) }, (_, index) => {
    const members = parts.slice(index * length, (index + 1) * length);
    const sum = (key) => members.reduce((total, part) => total + part[key], 0);
    return { name: `${members[0].name} … ${members.at(-1).name}`, bytes: sum("bytes"), count: sum("count"),
      parts: new Map(members.map((part) => [part.name, part])), parent: node, isGroup: true };
  });
}

let drawnModule;

function drawTreemap(node) {
  drawnModule = node;
  const crumbs = [];
  for (let part = node; part; part = part.parent) crumbs.unshift(part);
  byId("crumbs").replaceChildren(...crumbs.flatMap((part, depth) =>
    [depth ? "› " : "", part === node ? el("b", { text: shown(part.name) }) : link(shown(part.name), () => drawTreemap(part))]),
    ` ${bytes(node.bytes)}, ${plural(node.count, "tensor")} `,
    node.parent && !node.isGroup ? link("Show in table", () => show({ search: `${path(node)}.*` })) : "");
  const items = grouped(node).filter((part) => part.bytes > 0).sort((a, b) => b.bytes - a.bytes).map((part) => ({ part, area: part.bytes }));
  const place = byId("treemap");
  place.replaceChildren(...squares(items, 0, 0, place.clientWidth, place.clientHeight).map(({ item, box }) => {
    const label = shown(item.part.name);
    const select = () => {
      if (item.part.parts.size) drawTreemap(widest(item.part)); else open(item.part.tensor);
    };
    const tile = el("button", { class: "tile", type: "button", title: `${label}: ${bytes(item.area)}`, onclick: select });
    if (box[2] > 34 && box[3] > 22) tile.append(el("span", { class: "name", text: label }));
    if (box[2] > 60 && box[3] > 42) tile.append(el("span", { class: "bytes", text: bytes(item.area) }));
    if (!tile.childElementCount) tile.setAttribute("aria-label", label);
    else if (item.part.parts.size && box[2] > 60 && box[3] > 70) {
      const inner = grouped(item.part).filter((part) => part.bytes > 0).sort((a, b) => b.bytes - a.bytes);
      const areas = inner.map((part) => ({ area: part.bytes }));
      tile.append(...squares(areas, 5, 42, box[2] - 12, box[3] - 49).map((part) => position(el("i", {}), part.box)));
    }
    return position(tile, box);
  }));
}

/* The table of tensors: only the rows in view exist */

const ROW = 36;
const MARGIN = 8;
const PRINTED_ROWS = 500;
// Browsers limit the height of an element. One scrolled pixel of a longer table stands for several.
const MAX_HEIGHT = 10_000_000;
const NOTES = { nan: "NaN", infinite: "infinity", zero: "all zero", constant: "constant", shared: "shared bytes", duplicate: "duplicate", empty: "empty" };
const BAD = ["nan", "infinite", "zero", "duplicate"];
const TITLES = [["name", "Name", "index"], ["dtype", "Dtype", "dtype"], ["size", "Size", "numel"], ["bytes", "Bytes", "bytes"],
  ["hist", "Distribution"], ["mean", "Mean", "mean"], ["std", "Std", "std"], ["min", "Min", "min"], ["max", "Max", "max"], ["notes", "Notes"]];
const NUMBERS = ["bytes", "mean", "std", "min", "max"];

const view = { rows: tensors, key: "index", descending: false, focus: 0, hit: new Set() };

const SVG = "http://www.w3.org/2000/svg";

function histogram(digits, width, height) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  const step = width / digits.length;
  path.setAttribute("d", [...digits].map((digit, i) => {
    const bar = parseInt(digit, 36) / 35 * (height - 1);
    return bar ? `M${(i * step).toFixed(2)} ${height}v${(-bar - 0.6).toFixed(2)}h${(step * 0.86).toFixed(2)}V${height}z` : "";
  }).join(""));
  svg.append(path);
  return svg;
}

// Returns how many pixels of the table one scrolled pixel stands for.
function scale() {
  const table = byId("table"), missing = view.rows.length * ROW - MAX_HEIGHT;
  return missing > 0 ? 1 + missing / (table.scrollHeight - table.clientHeight) : 1;
}

function drawRow(position, shift) {
  const tensor = view.rows[position];
  const row = el("div", { class: view.hit.has(tensor.index) ? "row hit" : "row", role: "row", "aria-rowindex": position + 2,
    tabindex: position === view.focus ? 0 : -1, "data-position": position });
  const texts = { name: shown(tensor.name), dtype: tensor.dtype, size: sizes(tensor.size), bytes: bytes(tensor.bytes) };
  for (const [column] of TITLES) {
    const cell = el("div", { class: `cell c-${column}${NUMBERS.includes(column) ? " number" : ""}`, role: "gridcell" });
    if (column === "hist") {
      if (tensor.hist) cell.append(histogram(tensor.hist, 104, 24));
    } else if (column === "notes") {
      for (const note of tensor.notes ?? []) cell.append(el("span", { class: BAD.includes(note) ? "badge bad" : "badge", text: NOTES[note] }));
    } else {
      cell.textContent = texts[column] ?? decimal(tensor[column]);
      if (column === "name") {
        // The end of a name says more than its beginning, so it is never cut off.
        const end = Math.max(0, texts.name.length - (innerWidth < 600 ? 12 : 20));
        cell.classList.add("name");
        cell.title = texts.name;
        cell.replaceChildren(el("span", { text: texts.name.slice(0, end) }), el("span", { text: texts.name.slice(end) }));
      }
      if (column === "size") cell.title = texts.size;
    }
    row.append(cell);
  }
  row.style.transform = `translateY(${position * ROW - shift}px)`;
  return row;
}

function drawRows(from, to) {
  const table = byId("table"), top = table.scrollTop * scale(), shift = top - table.scrollTop;
  from ??= Math.max(0, Math.floor(top / ROW) - MARGIN);
  to ??= Math.ceil((top + table.clientHeight) / ROW) + MARGIN;
  const hadFocus = byId("body").contains(document.activeElement);
  const rows = [];
  for (let position = from; position < Math.min(to, view.rows.length); position += 1) rows.push(drawRow(position, shift));
  byId("body").replaceChildren(...rows);
  if (hadFocus) byId("body").querySelector('[tabindex="0"]')?.focus({ preventScroll: true });
}

function filterAndSort() {
  const text = byId("search").value.trim().toLowerCase();
  const dtype = byId("dtype").value, note = byId("note").value;
  const glob = text.includes("*") && new RegExp(`^${text.split("*").map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join(".*")}$`, "su");
  const matches = (name) => (glob ? glob.test(name) : name.includes(text));
  view.rows = tensors.filter((tensor) => (!text || matches(tensor.name.toLowerCase()))
    && (!dtype || tensor.dtype === dtype) && (!note || tensor.notes?.includes(note)));
  const { key, descending } = view;
  const order = (a, b) => (a[key] < b[key] ? -1 : a[key] > b[key] ? 1 : 0);
  // Tensors without a number come last in both directions.
  const missing = (tensor) => (tensor[key] ?? null) === null;
  view.rows.sort((a, b) => missing(a) - missing(b) || (descending ? order(b, a) : order(a, b)) || a.index - b.index);
  view.focus = 0;
  byId("table").scrollTop = 0;
  byId("table").setAttribute("aria-rowcount", view.rows.length + 1);
  byId("body").style.height = `${Math.min(view.rows.length * ROW, MAX_HEIGHT)}px`;
  byId("count").textContent = view.rows.length === tensors.length ? plural(tensors.length, "tensor")
    : `${count(view.rows.length)} of ${plural(tensors.length, "tensor")}`;
  drawRows();
}

function show({ search = "", note = "" }) {
  byId("search").value = search;
  byId("note").value = note;
  byId("dtype").value = "";
  filterAndSort();
  byId("tensors").scrollIntoView();
}

function sortBy(key) {
  const first = !["index", "dtype"].includes(key);
  view.descending = view.key === key ? !view.descending : first;
  view.key = key;
  for (const head of byId("head").children) {
    if (head.dataset.key === key) head.setAttribute("aria-sort", view.descending ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
  filterAndSort();
}

function moveFocus(position) {
  view.focus = Math.max(0, Math.min(position, view.rows.length - 1));
  const table = byId("table"), top = view.focus * ROW, bottom = top + 2 * ROW + 2 - table.clientHeight;
  const pixels = scale(), scrolled = table.scrollTop * pixels;
  if (top < scrolled) table.scrollTop = Math.floor(top / pixels);
  else if (bottom > scrolled) table.scrollTop = Math.ceil(bottom / pixels);
  drawRows();
  byId("body").querySelector('[tabindex="0"]')?.focus({ preventScroll: true });
}

function drawTable() {
  for (const [column, title, key] of TITLES) {
    const head = el("div", { class: `cell c-${column}${NUMBERS.includes(column) ? " number" : ""}`, role: "columnheader" });
    if (key) {
      head.dataset.key = key;
      head.append(el("button", { type: "button", text: title, onclick: () => sortBy(key) }));
      if (key === view.key) head.setAttribute("aria-sort", "ascending");
    } else head.textContent = title;
    byId("head").append(head);
  }
  byId("dtype").append(el("option", { value: "", text: "All dtypes" }), ...data.dtypes.map(({ name }) => el("option", { value: name, text: name })));
  byId("note").append(el("option", { value: "", text: "All tensors" }), ...Object.entries(NOTES).map(([note, text]) => el("option", { value: note, text })));
  for (const id of ["search", "dtype", "note"]) byId(id).addEventListener("input", filterAndSort);
  byId("table").addEventListener("scroll", () => drawRows());
  byId("body").addEventListener("click", (event) => {
    const row = event.target.closest(".row");
    if (row) { view.focus = Number(row.dataset.position); open(view.rows[view.focus]); }
  });
  byId("body").addEventListener("keydown", (event) => {
    const page = Math.floor(byId("table").clientHeight / ROW) - 2;
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (step !== undefined) moveFocus(view.focus + step);
    else if (event.key === "Enter" || event.key === " ") open(view.rows[view.focus]);
    else return;
    event.preventDefault();
  });
  filterAndSort();
}

/* One tensor */

// The colors of `plot`.
function color(byte, isSigned) {
  if (byte === 255) return [255, 0, 255];
  const mix = (a, b, part) => a.map((from, i) => from + (b[i] - from) * part);
  const part = byte / 254;
  if (!isSigned) return mix([247, 247, 247], [8, 48, 107], part);
  return part < 0.5 ? mix([33, 102, 172], [247, 247, 247], part * 2) : mix([247, 247, 247], [178, 24, 43], part * 2 - 1);
}

function heatMap({ rows, columns, low, high, is_signed, block, cells }) {
  const canvas = el("canvas", { width: columns, height: rows, role: "img", "aria-label": "Heat map" });
  canvas.style.aspectRatio = `${columns} / ${Math.max(rows, columns / 12)}`;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  cells.match(/../g).forEach((code, i) => image.data.set([...color(parseInt(code, 16), is_signed), 255], i * 4));
  context.putImageData(image, 0, 0);
  const limits = is_signed ? `±${decimal(high)}: the 99th percentile of the magnitudes that are drawn` : `${decimal(low)} to ${decimal(high)}: the 1st and the 99th percentile of what is drawn`;
  const rule = block[0] * block[1] === 1 ? "" : `Each block shows the mean of up to ${count(block[0])} × ${count(block[1])} elements, or NaN if it has one. `;
  return el("figure", {}, canvas, el("figcaption", { text: `${rule}Scale ${limits}. NaN is magenta.` }));
}

function facts(pairs) {
  return el("dl", { class: "facts" }, ...pairs.filter(([, value]) => value !== "" && value !== undefined && value !== null)
    .flatMap(([term, value]) => [el("dt", { text: term }), el("dd", { text: value })]));
}

function open(tensor) {
  const storage = data.storages[tensor.storage];
  const left = el("div", {}, el("h3", { text: "Header" }), facts([
    ["dtype", tensor.dtype], ["size", sizes(tensor.size)], ["dim names", tensor.dimNames?.map((name) => shown(name ?? "None")).join(", ")],
    ["stride", tensor.stride ? sizes(tensor.stride) : "row-major"], ["offset", `${count(tensor.offset)} elements`],
    ["elements", count(tensor.numel)], ["bytes", `${count(tensor.bytes)} (${bytes(tensor.bytes)})`],
    ["storage", storage && `${storage.id}, ${storage.kind}, bytes ${count(tensor.range[0])} to ${count(tensor.range[1])}`]]));
  left.append(el("h3", { text: "Statistics" }), tensor.zeros === null
    ? el("p", { class: "hint", text: "The elements were not read." })
    : facts([["min", decimal(tensor.min)], ["max", decimal(tensor.max)], ["mean", decimal(tensor.mean)], ["std", decimal(tensor.std)],
      ["zeros", count(tensor.zeros)], ["NaN", count(tensor.nans)], ["infinities", count(tensor.infinities)]]));
  const sharers = tensor.sharers ?? [];
  if (sharers.length) {
    left.append(el("h3", { text: `Shares bytes with ${plural(sharers.length, "tensor")}` }),
      ...sharers.slice(0, 20).map((index) => el("div", {}, link(shown(tensors[index].name), () => open(tensors[index])))));
  }
  const right = el("div", {});
  if (tensor.hist) {
    right.append(el("h3", { text: "Distribution" }), el("figure", {}, histogram(tensor.hist, 320, 110),
      el("figcaption", { text: `${decimal(tensor.min)} to ${decimal(tensor.max)}, in ${tensor.hist.length} bins` })));
  }
  const heat = data.heat_maps[tensor.index];
  if (heat) right.append(el("h3", { text: "Heat map" }), heatMap(heat));
  const dialog = byId("detail");
  dialog.replaceChildren(el("h2", { id: "detail-title", class: "name", text: shown(tensor.name) }),
    el("button", { class: "close", type: "button", text: "Close", onclick: () => dialog.close() }), el("div", { class: "detail" }, left, right));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

/* Storages */

const LANE = 16;
const MAX_LANES = 10;
const MAX_LISTED = 12;

// Puts tensors into lanes, so that tensors whose ranges overlap are in different lanes. Returns the first lanes.
function lanes(members) {
  const placed = [[]], ends = [0];
  for (const tensor of members) {
    let lane = ends.findIndex((end) => end <= tensor.range[0]);
    if (lane < 0) lane = placed.push([]) - 1;
    ends[lane] = tensor.range[1];
    placed[lane].push(tensor);
  }
  return placed.slice(0, MAX_LANES);
}

const runs = (tensor) => tensor.runs ?? [tensor.range];

// Returns the ranges of bytes that several of these tensors have, in ascending order.
function sharedRanges(list) {
  const ends = list.flatMap((tensor) => runs(tensor).flatMap(([from, to]) => [[from, 1], [to, -1]]));
  ends.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const found = [];
  let depth = 0;
  for (const [byte, step] of ends) {
    depth += step;
    if (depth === 2 && step > 0) found.push([byte, byte]);
    else if (depth === 1 && step < 0) found.at(-1)[1] = byte;
  }
  return found;
}

// Returns the parts of `ranges` that are also in `others`. Both are in ascending order.
function common(ranges, others) {
  const found = [];
  let first = 0;
  for (const [from, to] of ranges) {
    while (first < others.length && others[first][1] <= from) first += 1;
    for (let i = first; i < others.length && others[i][0] < to; i += 1) {
      found.push([Math.max(from, others[i][0]), Math.min(to, others[i][1])]);
    }
  }
  return found;
}

function drawStorage(storage, members) {
  const placed = lanes(members);
  const canvas = el("canvas", { tabindex: 0, role: "img",
    "aria-label": `Storage ${storage.id}. Use the arrow keys to move from tensor to tensor, and Enter to open one.` });
  const under = el("div", { class: "under", "aria-live": "polite", text: "Point at a bar, or use the arrow keys on it, to see the tensors of the same bytes." });
  const usage = [["reachable", storage.reachable_bytes], ["padding", storage.padding_bytes], ["unreachable", storage.unreachable_bytes]];
  const box = el("div", { class: "map", "data-storage": storage.id }, el("div", { class: "map-head" }, el("b", { class: "name", text: storage.id }), el("span", { text: storage.kind }),
    el("span", { text: bytes(storage.size_bytes) }), el("span", { text: plural(members.length, "tensor") }),
    ...usage.filter(([, value]) => value > 0).map(([what, value]) => el("span", { text: `${bytes(value)} ${what}` })),
    el("span", { class: "path", text: shown(storage.file) })), canvas, under);
  const sharing = members.filter((tensor) => tensor.sharers), shared = sharedRanges(sharing);
  let hit = new Set(), current = -1;
  const paint = () => {
    const width = canvas.clientWidth, scale = window.devicePixelRatio || 1, height = (placed.length + 1) * LANE + 4;
    Object.assign(canvas, { width: width * scale, height: height * scale });
    const context = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    context.scale(scale, scale);
    const isSparse = members.length < width / 4;
    const fill = (name, list, lane) => {
      context.fillStyle = style.getPropertyValue(name);
      let done = -1;
      for (const tensor of list) {
        for (const [from, to] of runs(tensor)) {
          // Fills whole pixels, and skips those that are drawn already.
          const x = Math.max(done, Math.floor(from / storage.size_bytes * width));
          const end = Math.ceil(to / storage.size_bytes * width);
          if (end <= x) continue;
          done = end;
          context.fillRect(x, lane * LANE + (lane ? 4 : 0), end - x - (lane && isSparse && end - x > 3 ? 1 : 0), LANE - (lane ? 3 : 0));
        }
      }
    };
    fill("--none", [{ range: [0, storage.size_bytes] }], 0);
    fill("--one", members, 0);
    fill("--many", [{ runs: shared }], 0);
    fill("--hit", hit, 0);
    placed.forEach((list, lane) => {
      fill("--one", list, lane + 1);
      fill("--many", [{ runs: common(list.filter((tensor) => tensor.sharers).flatMap(runs), shared) }], lane + 1);
      fill("--hit", list.filter((tensor) => hit.has(tensor)), lane + 1);
    });
  };
  const highlight = (found, text) => {
    hit = new Set(found);
    view.hit = new Set(found.map((tensor) => tensor.index));
    under.replaceChildren(text, ...found.slice(0, MAX_LISTED).map((tensor) => link(shown(tensor.name), () => open(tensor))),
      found.length > MAX_LISTED ? `and ${count(found.length - MAX_LISTED)} more` : "");
    paint();
    drawRows();
  };
  const at = (event) => {
    const pixel = storage.size_bytes / canvas.clientWidth;
    const first = Math.floor(event.offsetX * pixel), end = Math.max(first + 1, Math.floor((event.offsetX + 1) * pixel));
    const lane = Math.floor((event.offsetY - 4) / LANE);
    const touched = members.filter((tensor) => runs(tensor).some(([from, to]) => from < end && to > first));
    // On the bar of a tensor, returns this tensor and the tensors that share its bytes.
    const own = lane > 0 && touched.find((tensor) => placed[lane - 1]?.includes(tensor));
    return own ? [own, ...(own.sharers ?? []).map((index) => tensors[index])] : touched;
  };
  canvas.addEventListener("pointermove", (event) => {
    const byte = Math.floor(event.offsetX / canvas.clientWidth * storage.size_bytes);
    highlight(at(event), `Byte ${count(byte)}: `);
  });
  canvas.addEventListener("click", (event) => { const [first] = at(event); if (first) open(first); });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step && members.length) {
      current = (current + step + members.length) % members.length;
      const tensor = members[current];
      highlight([tensor, ...(tensor.sharers ?? []).map((index) => tensors[index])], `Bytes ${count(tensor.range[0])} to ${count(tensor.range[1])}: `);
    } else if (event.key === "Enter" && members[current]) open(members[current]);
    else return;
    event.preventDefault();
  });
  canvas.style.height = `${(placed.length + 1) * LANE + 4}px`;
  box.paint = paint;
  return box;
}

const MAX_STORAGES = 20;
const paintAll = () => document.querySelectorAll(".map").forEach((map) => map.paint());
// Storages are drawn when they come into view.
const seen = new IntersectionObserver((entries) => entries.filter((entry) => entry.isIntersecting)
  .forEach(({ target }) => { seen.unobserve(target); target.paint(); }), { rootMargin: "200px" });

function drawStorages() {
  const members = data.storages.map(() => []);
  for (const tensor of tensors) members[tensor.storage]?.push(tensor);
  for (const list of members) list.sort((a, b) => a.range[0] - b.range[0] || b.range[1] - a.range[1]);
  // Storages with shared or unreachable bytes come before all others; within both groups, the largest come first.
  const rank = (index) => [members[index].some((tensor) => tensor.sharers) || data.storages[index].unreachable_bytes > 0 ? 0 : 1, -data.storages[index].size_bytes];
  const ranks = data.storages.map((_, index) => rank(index));
  const order = data.storages.map((_, index) => index).sort((a, b) => ranks[a][0] - ranks[b][0] || ranks[a][1] - ranks[b][1]);
  const more = (from) => {
    const boxes = order.slice(from, from + MAX_STORAGES).map((index) => drawStorage(data.storages[index], members[index]));
    byId("maps").append(...boxes);
    boxes.forEach((box) => seen.observe(box));
    const rest = order.length - from - MAX_STORAGES;
    if (rest <= 0) return;
    const button = el("button", { class: "link", type: "button", text: `Show ${count(Math.min(rest, MAX_STORAGES))} more of ${count(rest)} storages`,
      onclick: () => { button.remove(); more(from + MAX_STORAGES); } });
    byId("maps").append(button);
  };
  more(0);
}

/* Attributes */

const MAX_ATTRIBUTES = 1000;

function drawAttributes() {
  const scopes = new Map();
  for (const [scope, key, value] of data.attributes.slice(0, MAX_ATTRIBUTES)) {
    if (!scopes.has(scope)) scopes.set(scope, []);
    scopes.get(scope).push([key, value]);
  }
  for (const [scope, pairs] of scopes) {
    if (scope) byId("attribute-list").append(el("h3", { text: `Of ${shown(scope)}` }));
    byId("attribute-list").append(el("dl", { class: "attributes" }, ...pairs.map(([key, value]) =>
      el("div", {}, el("dt", { text: shown(key) }), el("dd", { text: value })))));
  }
  if (!scopes.size) byId("attribute-list").append(el("p", { class: "hint", text: "There are no attributes." }));
  const rest = data.attributes.length - MAX_ATTRIBUTES;
  if (rest > 0) byId("attribute-list").append(el("p", { class: "hint", text: `and ${count(rest)} more` }));
}

drawHead();
const root = modules();
byId("tree").append(drawBranch(root));
byId("tree").firstElementChild.open = true;
drawTreemap(widest(root));
drawTable();
drawStorages();
drawAttributes();

addEventListener("resize", () => { drawTreemap(drawnModule); drawRows(); paintAll(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paintAll);
addEventListener("beforeprint", () => { drawRows(0, PRINTED_ROWS); paintAll(); });
addEventListener("afterprint", () => drawRows());
document.documentElement.dataset.ready = "true";
