
// Texts on the page come from senders and brokers too: they are only ever set as text.
const SPANS = [[300, 5], [900, 3], [1800, 3], [3600, 4]], HOUR_S = 3600;
const REASONS = {/* reasons */};
const GAP_S = 12.5, MOST_TOPICS = 25, MOST_TOPIC = 249, ASK_DISCARDS_MS = 5000, QUIET_MS = 5000, MOST_VERDICTS = 25;
const id = name => document.getElementById(name);
let status, flow, points = [], discards, askedAt = 0, askedFor = -1, heardAt = 0, witness, askedWitness;

// -- words ---------------------------------------------------------------------------------------------

const whole = n => Math.round(n).toLocaleString("en");
function short(n) {
  if (n === null || n === undefined) return "–";
  if (Math.abs(n) < 10 && n % 1) return n.toFixed(1);
  if (Math.abs(n) < 10000) return whole(n);
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(n) >= size) return (n / size).toFixed(Math.abs(n) >= 100 * size ? 0 : 1) + " " + unit;
}
const mark = n => short(n).replace(".0 ", " ");
const rate = n => n === null || n === undefined ? "–" : short(n) + "/s";
function bytes(n) {
  if (!n) return "0";
  const at = Math.min(5, Math.floor(Math.log2(n) / 10)), value = n / 1024 ** at;
  return value.toFixed(value < 100 ? 1 : 0).replace(".0", "") + " " + ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"][at];
}
function time(seconds) {
  if (seconds < 120) return Math.round(seconds) + " s";
  if (seconds < 7200) return Math.round(seconds / 60) + " min";
  return seconds < 172800 ? (seconds / 3600).toFixed(1) + " h" : Math.round(seconds / 86400) + " d";
}
const brief = s => s === null ? "–" : s < 1 ? Number((1000 * s).toPrecision(2)) + " ms" : time(s);
const moment = text => text.slice(0, 19) + "Z";
const clipped = text => text.length > MOST_TOPIC ? text.slice(0, MOST_TOPIC - 1) + "…" : text;
const called = one => clipped(one.topic ?? (one.topic_base64 ? "base64 " + one.topic_base64 : "–"));

// Rows of one key as one, with the sums of these fields.
function summed(rows, key, fields) {
  const found = new Map();
  for (const one of rows) {
    const sum = found.get(key(one));
    // No figure and no figure is none.
    if (sum) for (const name of fields) sum[name] = sum[name] === null ? one[name] : sum[name] + one[name];
    else found.set(key(one), {...one});
  }
  return [...found.values()];
}

// -- parts ---------------------------------------------------------------------------------------------

function make(kind, cls, ...inside) {
  const node = document.createElement(kind);
  if (cls) node.className = cls;
  node.append(...inside.map(one => one instanceof Node ? one : String(one)));
  return node;
}
const fill = (name, ...nodes) => id(name).replaceChildren(...nodes);
function table(name, texts, heads, rows, nothing) {
  if (!rows.length) return fill(name, make("tbody", "", make("tr", "", make("td", "dim", nothing))));
  const cells = (kind, row) => row.map((one, at) => make(kind, texts.includes(heads[at]) ? "" : "number", one));
  const titles = cells("th", heads);
  titles.forEach(title => { title.scope = "col"; });
  fill(name, make("thead", "", make("tr", "", ...titles)),
    make("tbody", "", ...rows.map(row => make("tr", "", ...cells("td", row)))));
}

// -- what each part shows ------------------------------------------------------------------------------

// Unchanged text is not written again: a screen reader would read it out each second.
function judge(kind, words) {
  const pill = id("verdict");
  pill.className = "pill " + kind;
  if (pill.textContent !== words) pill.textContent = words;
}

// A user with the pages of many hosts open sees which of them is unwell.
function entitle(bad, words) { document.title = (bad ? "! " : "") + id("host").textContent + " bruce: " + words; }

function showVerdict() {
  const wrong = status.unhealthy;
  judge(wrong.length ? "bad" : "good",
    !wrong.length ? "all is well" : wrong.length + (wrong.length > 1 ? " things are wrong" : " thing is wrong"));
  fill("wrong", ...wrong.map(one => make("li", "", one.sentence)));
  id("wrong").hidden = !wrong.length;
  id("awaited").textContent = status.awaited ?? "";
  id("awaited").hidden = !status.awaited;
  id("spool").textContent = status.spool.directory;
  id("release").textContent = "release " + flow.release + (flow.started === null ? "" : ", up since " + moment(flow.started)
    + " (" + time((Date.parse(status.taken) - Date.parse(flow.started)) / 1000) + ")");
  id("taken").textContent = moment(status.taken);
  entitle(wrong.length, short(status.backlog) + " waiting");
}

function showFlow() {
  const names = {datagram: "datagrams", stream: "streams", tcp: "TCP", kafka: "Kafka clients", ack: "with acknowledgement"};
  const open = new Map(status.inputs.map(one => [one.input, one.connections?.open]));
  fill("inputs", ...flow.inputs.map(one =>
    make("div", "row", make("span", "dot" + (one.messages_per_second ? "" : " idle")),
      make("span", "name", names[one.input] ?? one.input),
      make("span", "dim", open.get(one.input) ? short(open.get(one.input)) + " connected" : ""),
      make("b", "", rate(one.messages_per_second)))),
    make("div", "dim", short(status.received) + " received in all"),
    make("div", "dim", short(Object.values(status.discarded).reduce((a, b) => a + b, 0)) + " discarded"));
  // Messages with acknowledgement go on as datagrams, and are among them.
  const into = flow.inputs.filter(one => one.input !== "ack").reduce((sum, one) =>
    one.messages_per_second === null ? sum : (sum ?? 0) + one.messages_per_second, null);
  for (const [name, n] of [["in", into], ["out", flow.out_per_second]]) {
    id(name).className = "arrow" + (n ? " moving" : "");
    id(name).firstChild.textContent = rate(n);
  }
  id("backlog").textContent = short(status.backlog);
  const room = status.room, share = room?.capacity_bytes ? room.waiting_bytes / room.capacity_bytes : 0;
  id("used").style.transform = "scaleX(" + Math.min(1, share) + ")";
  // Segments are taken whole: there may be no room before all bytes are.
  const full = status.full.some(one => one.topic === null);
  id("used").parentNode.className = "meter" + (full || share > .9 ? " bad" : "");
  id("room").textContent = !room ? "" : bytes(room.waiting_bytes) + " of " + bytes(room.capacity_bytes ?? 0)
    + " used by undelivered messages";
  id("full").textContent = full ? "no room for more" : !room ? "" : room.hours_until_full === null ? "not filling up"
    : "full in " + time(3600 * room.hours_until_full) + " at this rate";
  id("oldest").textContent = status.oldest ? "oldest waits for " + time(status.oldest.age_seconds) : "";
  showBrokers();
}

function showBrokers() {
  const out = new Map(flow.brokers.map(one => [one.id, one.out_per_second]));
  const rows = [...status.brokers].sort((a, b) => a.id - b.id).map(one => {
    const well = one.state === "healthy";
    return make("div", "row broker", make("span", "dot" + (well ? "" : " bad")),
      make("span", "name", "broker " + one.id), well ? make("span", "dim", [one.in_flight ? short(one.in_flight) + " in flight" : "",
        one.round_trip.median === null ? "" : "round trip " + brief(one.round_trip.median)].filter(Boolean).join(", "))
        : make("span", "state", one.state.replace("_", " ")),
      one.throttle.p99 ? make("span", "state", "throttled " + brief(one.throttle.p99)) : "",
      make("b", "", rate(out.get(one.id))));
  });
  if (status.lent) rows.push(make("div", "dim", "a job on " + status.lent.host + " delivers"));
  if (!rows.length) rows.push(make("div", "dim", "none is known yet"));
  rows.push(make("div", "dim", short(status.delivered) + " delivered in all"));
  const took = flow.latency;
  rows.push(make("div", "dim", took.median === null ? "nothing was acknowledged in the last minute"
    : "acknowledged after " + brief(took.median) + ", 99 % within " + brief(took.p99)));
  fill("brokers", ...rows);
}

function showMarks() {
  const levels = ["accepted", "written", "synced", "delivered"];
  fill("marks", ...levels.map((level, at) => {
    const mark = status.watermarks[level], before = at ? status.watermarks[levels[at - 1]] : mark;
    const behind = make("span", "dim", before > mark ? short(before - mark) + " behind" : "");
    return make("div", "", make("span", "dim", level), make("b", "", whole(mark)), behind);
  }));
}

function workerState(one) {
  if (!one.alive) return "not running";
  if (one.silent_seconds === null) return "runs";
  return (one.waits_for_disk ? "waits for the disk: " : "does nothing: ") + Math.round(one.silent_seconds) + " s";
}

function showTables() {
  id("estimated").textContent = status.topics_estimated ? "backlogs are estimated" : "";
  const all = summed(flow.topics, called, ["in_per_second", "out_per_second", "backlog"]);
  const topics = all.slice(0, MOST_TOPICS).map(one => [called(one), rate(one.in_per_second),
    rate(one.out_per_second), whole(one.backlog)]);
  const rest = all.length - topics.length;
  if (rest > 0) topics.push([rest + " more", "", "", ""]);
  table("topics", ["topic"], ["topic", "in", "out", "waiting"], topics, "nothing comes or waits");
  table("workers", ["worker", "state"], ["worker", "state", "pid", "restarts"],
    status.workers.map(one => [one.role, make("span", one.alive && one.silent_seconds === null ? "" : "state", workerState(one)),
      one.pid, whole(one.restarts)]), "no daemon is running");
  fill("stages", ...flow.stages.map(one => {
    const bar = make("i", "");
    bar.style.transform = "scaleX(" + Math.min(1, one.busy ?? 0) + ")";
    return make("div", "", make("div", "row", one.stage,
      make("span", "dim", one.busy === null ? "–" : Math.round(100 * one.busy) + " %")),
      make("div", "meter", bar));
  }));
}

function showDiscards() {
  if (!discards) return;
  table("discards", ["reason", "topic"], ["reason", "topic", "messages", "dead letters"],
    summed(discards.discards, one => one.reason + " " + called(one), ["messages", "dead_lettered"]).map(one => [make("span", "", one.reason, make("span", "dim why", REASONS[one.reason] ?? "")),
      called(one), whole(one.messages), whole(one.dead_lettered)]),
    "nothing was ever discarded");
  id("samples").hidden = !discards.samples.length;
  id("samples").lastChild.replaceChildren(...discards.samples.map(one => make("div", "",
    make("span", "dim", [one.reason, called(one), one.time ? moment(one.time) : ""].filter(Boolean).join(", ")),
    make("code", "", one.data?.replace(/[\x00-\x1f\x7f]/g, "·") ?? "base64 " + one.data_base64))));
}

function tierLine(one) {
  const skipped = one.skipped ? whole(one.skipped) + " deleted unread" : "";
  return make("div", "row", make("span", "dot" + (one.error ? " bad" : "")), make("span", "name", one.tier),
    make("span", one.error ? "state" : "dim", one.error ?? ""),
    make("span", "dim", [skipped, short(one.records) + " read", short(one.lag) + " behind"].filter(Boolean).join(", ")));
}

function verdictRow(tier, one) {
  return [make("span", "", tier.tier, make("span", "dim why", one.host + " " + one.spool.slice(0, 8))),
    make("span", one.missing + one.altered_blocks ? "state" : "", one.verdict), whole(one.judged), whole(one.duplicated)];
}

function showWitness() {
  id("witness").hidden = !status.witness;
  if (!status.witness) return;
  id("witness-problem").textContent = status.witness.problem ?? "";
  id("witness-problem").hidden = !status.witness.problem;
  fill("tiers", ...status.witness.tiers.map(tierLine));
  if (!witness) return;
  const wrong = one => one.missing + one.altered_blocks;
  const rows = witness.tiers.flatMap(tier => tier.spools.map(one => [tier, one]))
    .sort(([, a], [, b]) => wrong(b) - wrong(a) || b.late - a.late);
  const shown = rows.slice(0, MOST_VERDICTS).map(([tier, one]) => verdictRow(tier, one));
  if (rows.length > shown.length) shown.push([rows.length - shown.length + " more", "", "", ""]);
  table("verdicts", ["tier, spool", "verdict"], ["tier, spool", "verdict", "judged", "twice"], shown, "no spool is known yet");
}

// -- charts --------------------------------------------------------------------------------------------

const CHARTS = [
  {name: "rates", series: [["received", 1], ["delivered", 2], ["discarded", 3]], say: rate},
  {name: "waiting", series: [["waiting", 4]], say: whole, area: true},
];

function drawn(kind, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function nice(n) {
  const size = 10 ** Math.floor(Math.log10(Math.max(n, 1)));
  return size * [1, 2, 3, 4, 6, 8, 10].find(step => step * size >= n);
}

// The hour is long for who has just started bruce: no more of it than there is.
function spanned() {
  const age = points.length ? Date.now() / 1000 - points[0][0] : 0;
  return SPANS.find(([span]) => age <= span) ?? SPANS.at(-1);
}

function runs() {
  const found = [];
  for (const point of points) {
    const last = found.at(-1);
    if (last && point[0] - last.at(-1)[0] < GAP_S) last.push(point);
    else found.push([point]);
  }
  return found;
}

function draw(chart) {
  const svg = id(chart.name), width = svg.clientWidth, height = svg.clientHeight;
  const left = 46, right = width - 6, top = 8, bottom = height - 20, now = Date.now() / 1000;
  const [span, steps] = spanned(), most = nice(Math.max(1, ...points.flatMap(point => chart.series.map(([, at]) => point[at]))));
  const x = t => right - (now - t) / span * (right - left), y = n => bottom - n / most * (bottom - top);
  const nodes = [0, .5, 1].flatMap(part => [
    drawn("line", {class: "grid", x1: left, x2: right, y1: y(part * most), y2: y(part * most)}),
    drawn("text", {x: left - 6, y: y(part * most) + 4, "text-anchor": "end"}, mark(part * most))]);
  for (let at = 0; at <= steps; at += width < 500 ? steps : 1)
    nodes.push(drawn("text", {x: x(now - at / steps * span), y: height - 5,
      "text-anchor": at === 0 ? "end" : at === steps ? "start" : "middle"},
      at ? at / steps * span / 60 + " min ago" : "now"));
  for (const [name, at] of chart.series)
    for (const run of runs()) {
      const line = run.map(point => x(point[0]).toFixed(1) + "," + y(point[at]).toFixed(1)).join(" ");
      if (chart.area) nodes.push(drawn("polygon", {class: name,
        points: [x(run[0][0]) + "," + bottom, line, x(run.at(-1)[0]) + "," + bottom].join(" ")}));
      nodes.push(drawn("polyline", {class: name, points: line}));
    }
  const chosen = chart.at === undefined ? points.at(-1) : nearest(now - (right - chart.at) / (right - left) * span);
  if (chosen && chart.at !== undefined)
    nodes.push(drawn("line", {class: "cursor", x1: x(chosen[0]), x2: x(chosen[0]), y1: top, y2: bottom}));
  svg.replaceChildren(...nodes);
  fill(chart.name + "-legend", ...chart.series.map(([name, at]) => make("span", name, make("i", ""), name + " ",
    make("b", "", chosen ? chart.say(chosen[at]) : "–"))),
    make("span", "dim", chosen && chart.at !== undefined ? moment(new Date(1000 * chosen[0]).toISOString()) : ""));
}

const nearest = t => points.reduce((best, one) =>
  !best || Math.abs(one[0] - t) < Math.abs(best[0] - t) ? one : best, undefined);

for (const chart of CHARTS) {
  const point = event => { chart.at = event.offsetX; draw(chart); };
  id(chart.name).addEventListener("pointermove", point);
  id(chart.name).addEventListener("pointerdown", point);
  const leave = () => { chart.at = undefined; draw(chart); };
  id(chart.name).addEventListener("pointerleave", leave);
  id(chart.name).addEventListener("blur", leave);
  id(chart.name).addEventListener("keydown", event => {
    const step = {ArrowLeft: -8, ArrowRight: 8}[event.key], width = id(chart.name).clientWidth;
    if (!step) return;
    event.preventDefault();
    chart.at = Math.min(width, Math.max(0, (chart.at ?? width) + step));
    draw(chart);
  });
}

// -- what comes ----------------------------------------------------------------------------------------

async function askDiscards() {
  const total = Object.values(status.discarded).reduce((a, b) => a + b, 0);
  if (total === askedFor || Date.now() - askedAt < ASK_DISCARDS_MS) return;
  askedAt = Date.now();
  const answer = await fetch("api/v1/discards").catch(() => null);
  if (!answer?.ok) return;
  discards = await answer.json();
  askedFor = total;
  showDiscards();
}

async function askWitness() {
  const written = status.witness && status.witness.written + status.witness.problem;
  if (!written || written === askedWitness) return;
  askedWitness = written;
  const answer = await fetch("api/v1/witness").catch(() => null);
  if (!answer?.ok) askedWitness = undefined;
  else witness = await answer.json();
  showWitness();
}

function lose(words) {
  document.body.className = "lost";
  entitle(true, words);
  judge("bad", words);
}

function listen() {
  const stream = new EventSource("api/v1/stream");
  stream.addEventListener("status", event => { status = JSON.parse(event.data); });
  stream.addEventListener("flow", event => { flow = JSON.parse(event.data); });
  stream.addEventListener("history", event => {
    const news = JSON.parse(event.data).points, from = news[0]?.[0] ?? Infinity;
    points = points.filter(one => one[0] < from - 1 && one[0] > Date.now() / 1000 - HOUR_S).concat(news);
    heardAt = Date.now();
    document.body.className = "";
    showVerdict(); showFlow(); showMarks(); showWitness(); showTables(); CHARTS.forEach(draw);
    askDiscards(); askWitness();
  });
  stream.addEventListener("failure", event => { heardAt = Date.now(); lose(JSON.parse(event.data).error); });
  stream.addEventListener("error", () => {
    lose("no connection to bruce");
    // A browser tries again by itself, unless it was turned away.
    if (stream.readyState === EventSource.CLOSED) setTimeout(listen, QUIET_MS);
  });
}

// A host that is cut off says nothing at all.
setInterval(() => { if (heardAt && Date.now() - heardAt > QUIET_MS) lose("nothing heard for "
  + time((Date.now() - heardAt) / 1000)); }, 1000);
addEventListener("resize", () => CHARTS.forEach(draw));
listen();
