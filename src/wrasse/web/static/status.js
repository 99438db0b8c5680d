// Keeps the status page live. The server makes the HTML; this file changes only what differs, marks it for a moment,
// says aloud what matters, and shows when the connection is lost. Without it the page is read once, like any other.
"use strict";

const QUIET_MAX = 15000; // ms without a word, keep-alives included, after which the process counts as gone
const POLL = 3000;
const TRY_STREAM = 30000;

const body = document.body;
const main = document.getElementById("main");
const live = document.getElementById("live");
const told = document.getElementById("told");
let offset = 0; // the server's clock minus ours
let heard = performance.now();
let source = null;
let polling = 0;
let news = [];

// Times.

function duration(seconds) {
  const step = [86400, 3600, 60, 1].find((unit) => seconds >= unit) || 1;
  let left = Math.floor(seconds);
  left -= left % { 86400: 3600, 3600: 60, 60: 1, 1: 1 }[step];
  let text = "";
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]]) {
    if (left >= length) text += Math.floor(left / length) + unit;
    left %= length;
  }
  return text || "0s";
}

function ago(time) {
  const away = Date.now() + offset - Date.parse(time.dateTime);
  if ("lasting" in time.dataset) return duration(Math.max(away, 0) / 1000);
  if (Math.abs(away) < 1000) return "now";
  return away > 0 ? duration(away / 1000) + " ago" : "in " + duration(-away / 1000);
}

function showTimes() {
  for (const time of document.querySelectorAll("time")) {
    const text = ago(time);
    if (time.textContent !== text) time.textContent = text;
  }
}

// Changes.

function mark(node) {
  const element = node.nodeType === Node.TEXT_NODE ? node.parentElement : node;
  const place = element.closest(".tile, td, li, tr");
  for (const each of place ? [place] : element.querySelectorAll("tbody tr")) {
    each.classList.remove("changed");
    void each.offsetWidth; // so that the mark begins anew
    each.classList.add("changed");
  }
  const tells = element.closest("[data-tell]");
  if (tells) news.push(tells);
}

function sameKind(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName;
}

function attributes(old, fresh) {
  const marked = old.classList.contains("changed");
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (marked) old.classList.add("changed");
}

function morph(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) {
      old.data = fresh.data;
      mark(old);
    }
    return;
  }
  attributes(old, fresh);
  if (old.nodeName === "TIME") return; // its text is ours
  children(old, fresh);
}

function children(old, fresh) {
  const keyed = new Map();
  for (const child of old.children) if (child.dataset && "key" in child.dataset) keyed.set(child.dataset.key, child);
  let next = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const key = child.dataset && child.dataset.key;
    const known = key === undefined ? next : keyed.get(key);
    const fits = known && sameKind(known, child) && (key !== undefined || !(known.dataset && "key" in known.dataset));
    if (fits) {
      if (known === next) next = next.nextSibling;
      else old.insertBefore(known, next);
      morph(known, child);
    } else {
      const added = old.insertBefore(document.importNode(child, true), next);
      if (added.textContent.trim()) mark(added);
    }
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
}

function show(frame) {
  if (frame.version !== body.dataset.version) return location.reload(); // this file may be of an older one
  const fresh = document.createElement("template");
  fresh.innerHTML = frame.main;
  news = [];
  clock(frame.at);
  children(main, fresh.content);
  showTimes();
  const words = new Set(news.map((each) => each.dataset.tell + ": " + each.textContent.trim()));
  if (words.size) told.textContent = [...words].join("; ");
}

function clock(at) {
  offset = Date.parse(at) - Date.now();
}

// The connection.

function connected(text, css) {
  heard = performance.now();
  body.classList.remove("lost");
  say(text, css);
}

function lost() {
  if (body.classList.contains("lost")) return;
  body.classList.add("lost");
  const since = new Date().toLocaleTimeString();
  say("connection lost at " + since + ", trying again", "bad");
}

function say(text, css) {
  if (live.textContent === text) return;
  live.textContent = text;
  live.className = "state " + css;
}

function stream() {
  if (!window.EventSource) return poll();
  source = new EventSource("/events");
  source.addEventListener("snapshot", (event) => {
    connected("live", "good");
    show(JSON.parse(event.data));
  });
  source.addEventListener("keepalive", (event) => {
    connected("live", "good");
    clock(JSON.parse(event.data));
  });
  source.onerror = () => {
    // The browser tries again by itself, except where it was refused: too many pages are open.
    if (source && source.readyState === EventSource.CLOSED) poll();
    else lost();
  };
}

function poll() {
  stop();
  const since = performance.now();
  const ask = async () => {
    try {
      const answer = await fetch("/events?once", { cache: "no-store", signal: AbortSignal.timeout(QUIET_MAX) });
      if (!answer.ok) throw new Error(answer.statusText);
      const frame = await answer.json();
      if (!polling) return;
      connected("every " + POLL / 1000 + " s", "warn");
      show(frame);
    } catch {
      if (polling) lost();
    }
    if (!polling) return;
    if (performance.now() - since > TRY_STREAM) {
      stop();
      stream();
    } else polling = setTimeout(ask, POLL);
  };
  polling = setTimeout(ask, 0);
}

function stop() {
  if (source) source.close();
  clearTimeout(polling);
  source = null;
  polling = 0;
}

// A hidden page gives its connection back: browsers allow six to one address, for all tabs together.
function attend() {
  stop();
  heard = performance.now();
  if (!document.hidden) stream();
}

clock(body.dataset.at);
document.addEventListener("visibilitychange", attend);
addEventListener("pagehide", stop);
addEventListener("pageshow", (event) => event.persisted && attend());
body.addEventListener("animationend", (event) => event.target.classList.remove("changed"));
setInterval(() => {
  showTimes();
  if (source && performance.now() - heard > QUIET_MAX) lost();
}, 1000);
attend();
