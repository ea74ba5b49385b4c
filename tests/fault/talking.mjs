// An executor by Node's standard library alone, made after docs/executors.md. It runs the job `talk` of
// tests/acceptance/talking.py: node talking.mjs APP ADMINS HEARTBEAT_S ADDRESS

import { createHmac, randomUUID, timingSafeEqual } from "node:crypto";
import { existsSync } from "node:fs";
import { createServer } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";

const [app, admins, heartbeat, address] = process.argv.slice(2);
const token = process.env.REGISTRY_TOKEN;
const registration = { registryGroup: "EXECUTOR", registryKey: app, registryValue: address, instance: randomUUID() };
const runs = new Map(); // by historyId: never twice
let draining = false;

async function talk(run) {
  console.log(`begins ${run.call.historyId}`);
  let said = 0;
  while (!existsSync(run.call.payload.until) && run.cancelled === null) {
    said += 1;
    run.report("logs", { level: "info", message: `line ${said}`, at: new Date().toISOString() });
    run.report("status", { status: "RUNNING", progress: { lines: said } });
    await sleep(run.call.payload.pause * 1000);
  }
  return { lines: said };
}

const jobs = { talk };

class Run {
  constructor(call) {
    Object.assign(this, { call, callbacks: [...call.callbacks], waiting: [], seq: 0, lastLogSeq: 0 });
    Object.assign(this, { cancelled: null, over: false });
    this.send();
    this.execute();
  }

  report(kind, fields) {
    this.seq += 1;
    if (kind === "logs") this.lastLogSeq = this.seq;
    const who = { jobId: this.call.jobId, historyId: this.call.historyId, workerId: address };
    this.waiting.push([kind, { ...who, seq: this.seq, lastLogSeq: this.lastLogSeq, ...fields }]);
  }

  async execute() {
    this.report("status", { status: "RUNNING" });
    while (this.waiting.length > 0) await sleep(5); // it begins only once RUNNING was answered
    const result = this.cancelled === null ? await jobs[this.call.handler](this) : null;
    const error = { type: "Cancelled", message: this.cancelled, retryable: false };
    this.report("status", this.cancelled === null ? { status: "SUCCEEDED", result } : { status: "CANCELLED", error });
    while (this.waiting.length > 0) await sleep(5);
    this.over = true;
  }

  async send() {
    while (!this.over) {
      let lines = this.waiting.findIndex(([kind]) => kind !== "logs");
      lines = Math.min(lines < 0 ? this.waiting.length : lines, 100);
      if (this.waiting.length === 0) await sleep(5);
      else if (await this.isTaken(lines)) this.waiting.splice(0, lines || 1);
      else await sleep(200);
    }
  }

  async isTaken(lines) {
    const [[kind, first]] = this.waiting;
    const body = lines > 0 ? this.waiting.slice(0, lines).map(([, line]) => line) : first;
    const [status, answer] = await postToOne(this.callbacks, `/${kind}`, body, this.call.token);
    if ([401, 403, 404, 410].includes(status)) this.cancelled ??= "no node knows the attempt";
    this.cancelled ??= answer.cancel ?? null;
    const unreadable = [400, 413, 415, 422].includes(status);
    if (unreadable && first.status === "SUCCEEDED") {
      const error = { type: "BadResult", message: "no node can read the result", retryable: false };
      Object.assign(first, { status: "FAILED", result: null, error });
      return false; // this is sent in its place
    }
    return (status >= 200 && status < 300) || unreadable || [401, 403, 404, 410].includes(status);
  }
}

async function postToOne(urls, path, body, bearer) {
  let last = [0, {}];
  for (const url of [...urls]) {
    last = await post(url + path, body, bearer);
    if (last[0] >= 200 && last[0] < 300) {
      urls.unshift(...urls.splice(urls.indexOf(url), 1)); // the one that answered last comes first
      break;
    }
  }
  return last;
}

async function post(url, body, bearer) {
  const headers = { "Content-Type": "application/json", ...(bearer ? { Authorization: `Bearer ${bearer}` } : {}) };
  try {
    const signal = AbortSignal.timeout(3000);
    const answer = await fetch(url, { method: "POST", headers, body: JSON.stringify(body), signal });
    const text = await answer.text();
    return [answer.status, text.startsWith("{") ? JSON.parse(text) : {}];
  } catch {
    return [0, {}];
  }
}

const inFlight = () => [...runs.values()].filter((run) => !run.over);

async function sendHeartbeat(path = "/api/registry") {
  const fields = { state: draining ? "DRAINING" : "UP", runs: inFlight().map((run) => run.call.historyId) };
  await postToOne(urls, path, { ...registration, ...fields }, token);
}

function isSigned(request, body) {
  const [, at, given] = /^t=(\d+),v1=([0-9a-f]{64})$/.exec(request.headers["x-orchestrix-signature"] ?? "") ?? [];
  if (given === undefined || Math.abs(Date.now() / 1000 - Number(at)) > 60) return false;
  const made = createHmac("sha256", token).update(`${at}.`).update(body).digest();
  return timingSafeEqual(made, Buffer.from(given, "hex"));
}

function answer(request, body) {
  if (request.method === "GET") {
    return request.url === "/health" || runs.has(request.url.replace("/runs/", "")) ? 200 : 404;
  }
  if (!isSigned(request, body)) return 401;
  const call = JSON.parse(body);
  const run = runs.get(call.historyId);
  if (request.url === "/cancel") {
    if (run !== undefined) run.cancelled ??= call.reason;
    return 200;
  }
  if (request.url !== "/run") return 404;
  if (run === undefined) {
    if (!(call.handler in jobs)) return 422;
    if (draining) return 503;
    runs.set(call.historyId, new Run(call));
  }
  return 200;
}

const server = createServer(async (request, response) => {
  const parts = [];
  for await (const part of request) parts.push(part);
  response.writeHead(answer(request, Buffer.concat(parts)), { Connection: "close" }).end();
});
const urls = admins.split(",");

async function stop() {
  draining = true;
  await sendHeartbeat();
  while (inFlight().length > 0) await sleep(20);
  clearInterval(beating);
  await sendHeartbeat("/api/registryRemove");
  process.exit(0);
}

process.once("SIGTERM", stop);
await new Promise((resolve) => server.listen(Number(new URL(address).port), "127.0.0.1", resolve));
await sendHeartbeat();
const beating = setInterval(sendHeartbeat, Number(heartbeat) * 1000, "/api/registry");
console.log("ready");
