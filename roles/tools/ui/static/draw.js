"use strict";
// Tiles of nodes on a canvas, and the chart of the last hour: thousands of nodes are drawn in a few milliseconds.

const TIERS = ["system", "prod", "mid", "batch"];
const SIGNS = [["hot", "!"], ["squeezed", "≈"], ["overbooked", "×"], ["no metrics", "?"], ["stale", "?"], ["cordoned", "−"], ["abnormal", "−"]];

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

function sign(marks) {
  for (const [mark, text] of SIGNS) if (marks.some((one) => one.startsWith(mark))) return text;
  return "";
}

// The grid: as large as the tiles can be with all of them on about one screen.
function layout(count, width, height) {
  let size = 64;
  while (size > 9 && Math.ceil(count / Math.max(1, Math.floor(width / size))) * size > height) size -= 1;
  const columns = Math.max(1, Math.floor(width / size));
  return { size, columns, rows: Math.ceil(count / columns) };
}

function drawTiles(canvas, nodes, current) {
  const width = canvas.clientWidth || 800;
  const grid = layout(nodes.length, width, Math.max(260, window.innerHeight * 0.5));
  const scale = window.devicePixelRatio || 1;
  const height = Math.max(grid.size, grid.rows * grid.size);
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.height = height + "px";
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const paint = Object.fromEntries([...TIERS, "offered", "tile", "alarm", "fg", "bg"].map((name) => [name, colour(name)]));
  const gap = grid.size > 20 ? 3 : 1;
  const inner = grid.size - gap;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.font = "bold " + Math.max(9, Math.round(inner * 0.55)) + "px sans-serif";
  nodes.forEach((node, index) => {
    const x = (index % grid.columns) * grid.size;
    const y = Math.floor(index / grid.columns) * grid.size;
    pen.fillStyle = paint.tile;
    pen.fillRect(x, y, inner, inner);
    let level = y + inner;
    const cpu = node.cpu || 1;
    for (const tier of TIERS) {
      const part = Math.min(level - y, (inner * node[tier]) / cpu);
      pen.fillStyle = paint[tier];
      pen.fillRect(x, level - part, inner, part);
      level -= part;
    }
    const free = Math.min(level - y, (inner * Math.max(0, node.offered - node.batch)) / cpu);
    pen.fillStyle = paint.offered;
    pen.fillRect(x, level - free, inner, free);
    const text = sign(node.marks);
    if (text) {
      const alarm = text === "!" || text === "≈";
      pen.strokeStyle = alarm ? paint.alarm : paint.fg;
      pen.lineWidth = alarm ? 2 : 1;
      pen.strokeRect(x + 1, y + 1, inner - 2, inner - 2);
      if (inner >= 11) {
        pen.lineWidth = 3;
        pen.strokeStyle = paint.bg;
        pen.strokeText(text, x + inner / 2, y + inner / 2);
        pen.fillStyle = paint.fg;
        pen.fillText(text, x + inner / 2, y + inner / 2);
      }
    }
    if (index === current) {
      pen.strokeStyle = paint.bg;
      pen.lineWidth = 5;
      pen.strokeRect(x + 1.5, y + 1.5, inner - 3, inner - 3);
      pen.strokeStyle = paint.fg;
      pen.lineWidth = 2.5;
      pen.strokeRect(x + 1.5, y + 1.5, inner - 3, inner - 3);
    }
  });
  return grid;
}

const SVG = "http://www.w3.org/2000/svg";

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function drawHistory(where, points) {
  where.replaceChildren();
  if (points.length < 2) {
    where.append(Object.assign(document.createElement("p"), { className: "none", textContent: "History is kept while this page's command runs." }));
    return;
  }
  const [width, height, left, bottom] = [640, 190, 44, 20];
  const first = points[0].time, span = Math.max(1, points[points.length - 1].time - first);
  const most = Math.max(1000, ...points.map((one) => Math.max(one.used, one.cpu * 0.1, one.batch + one.offered, one.requested)));
  const x = (time) => left + ((time - first) / span) * (width - left - 90);
  const y = (milli) => 8 + (1 - milli / most) * (height - bottom - 8);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  const last = points[points.length - 1];
  const minutes = Math.round(span / 60);
  svg.setAttribute("aria-label", `Over the last ${minutes} minutes: use now ${cores(last.used)} CPUs, batch ${cores(last.batch)}, offered ${cores(last.offered)}`);
  for (const part of [0, 0.5, 1]) {
    svg.append(shape("line", { x1: left, x2: width - 90, y1: y(most * part), y2: y(most * part), stroke: colour("line") }));
    svg.append(shape("text", { x: left - 6, y: y(most * part) + 4, "text-anchor": "end" }, cores(most * part)));
  }
  const labels = [];
  for (const [name, title, dash] of [["used", "all use", ""], ["prod", "prod", ""], ["batch", "batch", ""], ["offered", "offered", "6 3"], ["requested", "requested", "2 3"]]) {
    const paint = name === "used" ? colour("fg") : name === "offered" || name === "requested" ? colour("batch") : colour(name);
    const path = points.map((one) => `${x(one.time).toFixed(1)},${y(one[name]).toFixed(1)}`).join(" ");
    svg.append(shape("polyline", { points: path, fill: "none", stroke: paint, "stroke-width": 1.8, "stroke-dasharray": dash }));
    labels.push([y(last[name]), title]);
  }
  labels.sort((a, b) => a[0] - b[0]);
  let floor = 0;
  for (const label of labels) floor = label[0] = Math.max(label[0] + 4, floor + 12);
  let ceiling = height - bottom + 4;
  for (const label of [...labels].reverse()) ceiling = (label[0] = Math.min(label[0], ceiling)) - 12;
  for (const [at, title] of labels) svg.append(shape("text", { x: width - 86, y: at }, title));
  svg.append(shape("text", { x: left, y: height - 4 }, minutes ? `${minutes} min ago` : `${Math.round(span)} s ago`));
  svg.append(shape("text", { x: width - 90, y: height - 4, "text-anchor": "end" }, "now"));
  where.append(svg);
}

function cores(milli) {
  return (milli / 1000).toFixed(milli >= 99500 ? 0 : 1).replace(/\.0$/, "");
}
