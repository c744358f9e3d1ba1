"use strict";
// The page: asks for what changed every two seconds and shows it. Text from the cluster becomes text nodes, never markup.

const $ = (id) => document.getElementById(id);
const POLL = 2000;
let revision = 0;
let columns = [];
let nodes = new Map();
let shown = [];
let grid = { columns: 1, size: 1 };
let current = 0;

function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function ago(time, now) {
  if (!time) return "";
  const seconds = Math.max(0, now - time);
  if (seconds < 120) return Math.round(seconds) + " s";
  if (seconds < 7200) return Math.round(seconds / 60) + " min";
  return seconds < 172800 ? Math.round(seconds / 3600) + " h" : Math.round(seconds / 86400) + " d";
}

const gib = (bytes) => (bytes / 2 ** 30).toFixed(1).replace(/\.0$/, "") + " GiB";
const percent = (part, whole) => (whole ? Math.round((100 * part) / whole) + " %" : "–");

// --- nodes ---

function pressure(node) {
  const text = sign(node.marks);
  return (text ? 10 - " −?×≈!".indexOf(text) : 20) - node.used / (node.cpu || 1);
}

const ORDERS = {
  pressure: (a, b) => pressure(a) - pressure(b) || (a.name < b.name ? -1 : 1),
  used: (a, b) => b.used / (b.cpu || 1) - a.used / (a.cpu || 1) || (a.name < b.name ? -1 : 1),
  batch: (a, b) => b.batch / (b.cpu || 1) - a.batch / (a.cpu || 1) || (a.name < b.name ? -1 : 1),
  name: (a, b) => (a.name < b.name ? -1 : 1),
};

function arrange() {
  const at = shown[current] && shown[current].name;
  const wanted = $("find").value.trim().toLowerCase();
  shown = [...nodes.values()].filter((node) => node.name.toLowerCase().includes(wanted)).sort(ORDERS[$("order").value]);
  const found = shown.findIndex((node) => node.name === at);
  current = found >= 0 ? found : Math.min(current, Math.max(0, shown.length - 1));
  $("shown").textContent = shown.length === nodes.size ? `${nodes.size}` : `${shown.length} of ${nodes.size}`;
  paint();
}

function paint() {
  grid = drawTiles($("tiles"), shown, document.activeElement === $("tiles") ? current : -1);
}

function describe(node) {
  const limit = node.allowance === null ? "" : `, best effort may use ${cores(node.allowance)}`;
  const marks = node.marks.length ? `; ${node.marks.join(", ")}` : "";
  return `${node.name}: ${cores(node.used)} of ${cores(node.cpu)} CPUs used (prod ${cores(node.prod)}, batch ${cores(node.batch)}), `
    + `batch-cpu ${cores(node.requested)} requested of ${cores(node.offered)} offered${limit}, memory ${percent(node.memoryUsed, node.memory)}, ${node.pods} pods${marks}`;
}

function select(index) {
  if (!shown.length) return;
  current = Math.min(Math.max(index, 0), shown.length - 1);
  $("current").textContent = describe(shown[current]);
  paint();
}

function atPointer(event) {
  const box = $("tiles").getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left) / grid.size);
  const index = Math.floor((event.clientY - box.top) / grid.size) * grid.columns + column;
  return column < grid.columns && index >= 0 && index < shown.length ? index : -1;
}

$("tiles").addEventListener("mousemove", (event) => {
  const index = atPointer(event);
  if (index >= 0) $("current").textContent = describe(shown[index]);
});
$("tiles").addEventListener("click", (event) => {
  const index = atPointer(event);
  if (index < 0) return;
  select(index);
  explain("Node", "", shown[index].name);
});
$("tiles").addEventListener("keydown", (event) => {
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: grid.columns, ArrowUp: -grid.columns, Home: -1e9, End: 1e9, PageDown: 5 * grid.columns, PageUp: -5 * grid.columns };
  if (event.key in steps) {
    event.preventDefault();
    select(current + steps[event.key]);
  } else if ((event.key === "Enter" || event.key === " ") && shown.length) {
    event.preventDefault();
    explain("Node", "", shown[current].name);
  }
});
$("tiles").addEventListener("focus", () => select(current));
$("tiles").addEventListener("blur", paint);
$("find").addEventListener("input", arrange);
$("order").addEventListener("change", arrange);
$("tools").addEventListener("submit", (event) => {
  event.preventDefault();
  if (shown.length) $("tiles").focus();
});
window.addEventListener("resize", paint);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);

// --- the rest of the page ---

function showSum() {
  const sum = { cpu: 0, used: 0, prod: 0, mid: 0, batch: 0, system: 0, offered: 0, requested: 0, memory: 0, memoryUsed: 0, pods: 0 };
  let marked = 0;
  for (const node of nodes.values()) {
    for (const key of Object.keys(sum)) sum[key] += node[key];
    if (node.marks.length) marked += 1;
  }
  const parts = TIERS.map((tier) => [tier, sum[tier]]).concat([["offered", Math.max(0, sum.offered - sum.batch)]]);
  const bars = $("bar");
  if (bars.children.length !== parts.length) bars.replaceChildren(...parts.map(([name]) => element("span", { className: name })));
  parts.forEach(([name, value], index) => {
    bars.children[index].style.width = (sum.cpu ? (100 * value) / sum.cpu : 0) + "%";
    bars.children[index].title = `${name} ${cores(value)}`;
  });
  bars.setAttribute("aria-label", `${cores(sum.used)} of ${cores(sum.cpu)} CPUs used; ` + parts.map(([name, value]) => `${name} ${cores(value)}`).join(", "));
  const rows = [
    ["used", `${cores(sum.used)} of ${cores(sum.cpu)} CPUs (${percent(sum.used, sum.cpu)})`],
    ["prod", cores(sum.prod)], ["mid", cores(sum.mid)], ["batch", cores(sum.batch)], ["system", cores(sum.system)],
    ["offered to batch", cores(sum.offered)], ["requested of it", `${cores(sum.requested)} (${percent(sum.requested, sum.offered)})`],
    ["memory", `${gib(sum.memoryUsed)} of ${gib(sum.memory)}`], ["pods", sum.pods], ["nodes that stand out", marked],
  ];
  $("figures").replaceChildren(...rows.map(([name, value]) => element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: value }))));
}

function link(text, kind, namespace, name) {
  const made = element("button", { type: "button", className: "link", textContent: text });
  made.addEventListener("click", () => explain(kind, namespace, name));
  return made;
}

// A table is drawn anew only when it changed, so that focus and scrolling stay.
const drawn = new Map();
function rows(id, list, make, none) {
  const text = JSON.stringify([list, none]);
  if (drawn.get(id) === text) return;
  const body = $(id);
  if (drawn.has(id) && body.contains(document.activeElement)) return;
  drawn.set(id, text);
  body.replaceChildren(...(list.length ? list.map(make) : [element("tr", {}, element("td", { colSpan: 4, className: "none", textContent: none }))]));
}

const EXPLAINED = ["Pod", "Node", "PodGroup"];

let hidden = new Set();
/** Why a part is empty that this user may not read; "" where it is empty. */
const unread = (kind) => hidden.has(kind) ? "Cannot be read: the reason stands above." : "";

let waiting = new Set();

function showPending(pending) {
  waiting = new Set(pending.pods.map((pod) => `${pod.namespace}/${pod.name}`));
  $("pendcount").textContent = pending.count > pending.pods.length ? `${pending.count}, the oldest ${pending.pods.length} of them` : `${pending.count}`;
  $("reasons").replaceChildren(...Object.entries(pending.reasons).map(([name, count]) => element("li", { textContent: `${count} × ${name}` })));
  rows("pending", pending.pods, (pod) => element("tr", {},
    element("td", {}, link(`${pod.namespace}/${pod.name}`, "Pod", pod.namespace, pod.name), pod.qos ? ` ${pod.qos}` : "", pod.gang ? ` gang ${pod.gang}` : ""),
    element("td", { className: "t", textContent: pod.since ? new Date(pod.since * 1000).toLocaleTimeString() : "" }),
    element("td", { textContent: pod.message ? `${pod.reason}: ${pod.message}` : pod.reason })), unread("pods") || "No pod waits.");
}

let decisions = [];
function showFeed() {
  const about = $("about").value;
  rows("feed", decisions.filter((one) => !about || one.kind === about), (one) => {
    const whom = one.namespace ? `${one.namespace}/${one.name}` : one.name;
    return element("tr", {},
      element("td", { className: "t", textContent: new Date(one.time * 1000).toLocaleTimeString() }),
      element("td", { className: "t", textContent: one.role }),
      element("td", {}, EXPLAINED.includes(one.kind) ? link(whom, one.kind, one.namespace, one.name) : `${one.kind} ${whom}`),
      element("td", { textContent: [one.verdict + (one.rule ? ` by ${one.rule}` : ""), one.message].filter(Boolean).join(": ") }));
  }, "No decision is known yet.");
}
$("about").addEventListener("change", () => { drawn.delete("feed"); showFeed(); });

function showQuotas(quotas) {
  const text = JSON.stringify([quotas, unread("elasticquotas")]);
  if (drawn.get("quotas") === text) return;
  drawn.set("quotas", text);
  $("quotas").replaceChildren(...(quotas.length ? quotas.map((quota) => {
    const used = quota.used.cpu || 0, most = quota.max.cpu, least = quota.min.cpu || 0;
    const whole = most || Math.max(used, least) || 1;
    const meter = element("div", { className: "meter" });
    const fill = element("i"), mark = element("b", { title: `min ${least}` });
    fill.style.width = Math.min(100, (100 * used) / whole) + "%";
    mark.style.left = Math.min(100, (100 * least) / whole) + "%";
    meter.append(fill, mark);
    const said = `${used}${most === undefined ? " CPUs, no limit" : ` of ${most} CPUs`}, min ${least}`;
    const line = element("div", { className: "q" }, element("span", { textContent: quota.name }), meter, element("span", { textContent: said }));
    const item = element("li", {}, line);
    item.style.paddingLeft = quota.depth * 1.2 + "rem";
    item.setAttribute("role", "treeitem");
    item.setAttribute("aria-level", quota.depth + 1);
    item.setAttribute("aria-label", `${quota.name}: ${said}`);
    return item;
  }) : [element("li", { className: "none", textContent: unread("elasticquotas") || "There are no quotas." })]));
}

async function explain(kind, namespace, name) {
  const title = $("why-title"), body = $("why-body");
  title.textContent = `${kind} ${namespace ? namespace + "/" : ""}${name}`;
  body.replaceChildren(element("p", { className: "none", textContent: "asking …" }));
  if (!$("why").open) $("why").showModal();
  let told;
  try {
    const answer = await fetch(`/api/why?kind=${encodeURIComponent(kind)}&namespace=${encodeURIComponent(namespace)}&name=${encodeURIComponent(name)}`);
    if (!answer.ok) throw new Error(await answer.text());
    told = await answer.json();
  } catch (error) {
    body.replaceChildren(element("p", { textContent: String(error.message || error) }));
    return;
  }
  const parts = [element("p", {}, element("strong", { textContent: told.summary }))];
  for (const section of told.sections) {
    if (section.title) parts.push(element("h3", { textContent: section.title }));
    for (const line of section.lines) parts.push(element("p", { textContent: line }));
    for (const table of section.tables) {
      const head = element("tr", {}, ...table.headings.map((text) => element("th", { scope: "col", textContent: text })));
      const lines = table.rows.map((cells) => element("tr", {}, ...cells.map((text) => element("td", { textContent: text }))));
      parts.push(element("table", {}, element("thead", {}, head), element("tbody", {}, ...lines)));
    }
  }
  for (const problem of told.problems) parts.push(element("p", { className: "none", textContent: `Could not be asked: ${problem}` }));
  if (kind === "Pod" && waiting.has(`${namespace}/${name}`)) parts.push(helpFor(namespace, name));
  body.replaceChildren(...parts);
}

// --- costs, replay, help ---

let costs = null;
let costAsked = 0;
const money = (amount) => (Math.abs(amount) >= 1 || !amount ? amount.toFixed(2) : amount.toFixed(4));

async function showCosts() {
  if (Date.now() - costAsked < 10000) return;
  costAsked = Date.now();
  const answer = await fetch("/api/cost");
  if (!answer.ok) { $("costsum").textContent = await answer.text(); return; }
  costs = await answer.json();
  listCosts();
}

function listCosts() {
  if (!costs) return;
  const by = $("costby").value;
  const paid = costs.by[by].reduce((sum, row) => sum + row.cost, 0);
  $("costsum").textContent = `${money(costs.nodesCost)} ${costs.currency}, ${money(paid)} paid, ${money(costs.idle)} idle`;
  rows("costs", costs.by[by], (row) => element("tr", {},
    element("td", { textContent: row[by] || "–" }), element("td", { textContent: money(row.cost) }),
    element("td", { textContent: money(row.cpu.credit + row.memory.credit) }),
    element("td", { textContent: `${row.cpu.requested.toFixed(1)}, ${row.measuredShare ? row.cpu.used.toFixed(1) : "–"}, ${row.cpu.reclaimed.toFixed(1)}` })),
    "Nothing runs.");
}
$("costby").addEventListener("change", listCosts);

async function study(path, meanwhile) {
  $("replayed").hidden = false;
  $("replayed").textContent = meanwhile;
  const answer = await fetch(path);
  $("replayed").textContent = answer.ok ? (await answer.json()).text : await answer.text();
}
$("replay").addEventListener("click", () => study("/api/replay", "making them again …"));
$("test").addEventListener("click", () => study("/api/test", "running cases …"));

function helpFor(namespace, name) {
  const made = element("p"), button = element("button", { type: "button", className: "link", textContent: "What would help?" });
  button.addEventListener("click", async () => {
    made.textContent = "asking …";
    const answer = await fetch(`/api/help?namespace=${encodeURIComponent(namespace)}&name=${encodeURIComponent(name)}`);
    made.textContent = answer.ok ? (await answer.json()).join(" ") : await answer.text();
  });
  made.append(button);
  return made;
}

// --- asking ---

async function ask() {
  let state;
  try {
    const answer = await fetch(`/api/state?since=${revision}`);
    if (!answer.ok) throw new Error(await answer.text());
    state = await answer.json();
  } catch (error) {
    $("state").textContent = `not connected: ${error.message || error}`;
    return;
  }
  columns = state.columns;
  for (const row of state.nodes) {
    const node = {};
    columns.forEach((name, index) => { node[name] = row[index]; });
    nodes.set(node.name, node);
  }
  for (const name of state.gone) nodes.delete(name);
  const changed = state.nodes.length || state.gone.length || revision === 0;
  revision = state.revision;
  if (nodes.size !== state.count) revision = 0; // something was missed: everything anew
  if (revision === 0) nodes = new Map([...nodes].filter(([name]) => state.nodes.some((row) => row[0] === name)));
  $("server").textContent = state.server;
  $("state").textContent = state.ready ? `${state.count} nodes, ${new Date(state.time * 1000).toLocaleTimeString()}` : `reading the cluster … ${state.count} nodes`;
  $("problems").hidden = !state.problems.length;
  $("problems").replaceChildren(...state.problems.map((problem) => element("li", { textContent: problem })));
  if (changed) { showSum(); arrange(); }
  hidden = new Set(state.unread);
  showPending(state.pending);
  decisions = state.decisions;
  showFeed();
  showQuotas(state.quotas);
  drawHistory($("history"), state.history);
  $("cost").hidden = !state.offered.cost;
  $("replay").hidden = !state.offered.replay;
  $("test").hidden = !state.offered.test;
  if (state.offered.cost && state.ready) showCosts();
  document.body.dataset.ready = state.ready ? "true" : "false";
}

async function forever() {
  for (;;) {
    if (!document.hidden) await ask();
    await new Promise((resolve) => setTimeout(resolve, document.body.dataset.ready === "true" ? POLL : 300));
  }
}
forever();
