// Shows /openapi.json. Everything is set as text, never as markup.
"use strict";

function make(tag, text, ...children) {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  element.append(...children);
  return element;
}

function table(heads, rows) {
  const head = make("thead", "", make("tr", "", ...heads.map((text) => make("th", text))));
  const body = make("tbody", "", ...rows.map((cells) => make("tr", "", ...cells.map((text) => make("td", text)))));
  return make("table", "", head, body);
}

function typeOf(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" | ");
  if (schema.type === "array") return `list of ${typeOf(schema.items)}`;
  return schema.format || schema.type || "any";
}

function parameterTable(parameters) {
  const rows = parameters.map((one) => [one.name, one.in, typeOf(one.schema), one.description || ""]);
  return table(["name", "in", "type", "meaning"], rows);
}

function answerTable(responses) {
  const rows = Object.entries(responses).map(([status, answer]) => {
    const kinds = Object.entries(answer.content || {});
    const shape = kinds.map(([media, body]) => `${media}: ${typeOf(body.schema)}`).join(", ");
    return [status, answer.description, shape];
  });
  return table(["status", "meaning", "body"], rows);
}

function exampleOf(api, operation) {
  const content = operation.requestBody && operation.requestBody.content["application/json"];
  if (!content) return null;
  const schema = api.components.schemas[typeOf(content.schema)];
  return JSON.stringify((schema.examples || [{}])[0], null, 2);
}

function field(name, value) {
  const input = make("input");
  input.value = value || "";
  input.name = name;
  return [make("label", name, input), input];
}

// The reader's secret; it is kept nowhere else.
const token = make("input");
token.type = "password";
token.autocomplete = "off";

// A form that sends the request; streams are left to `curl -N`.
function trial(api, path, method, operation) {
  const asked = (operation.parameters || []).filter((one) => one.in !== "header").map((one) => [one, ...field(one.name)]);
  const text = exampleOf(api, operation);
  const body = make("textarea");
  body.value = text || "";
  body.rows = 6;
  const button = make("button", "Send");
  const output = make("pre");
  output.hidden = true;
  button.addEventListener("click", async () => {
    const query = new URLSearchParams();
    let url = path;
    for (const [one, , input] of asked) {
      if (one.in === "path") url = url.replace(`{${one.name}}`, encodeURIComponent(input.value));
      else if (input.value) query.append(one.name, input.value);
    }
    if (query.size) url += `?${query}`;
    const options = { method: method.toUpperCase() };
    if (text !== null) Object.assign(options, { body: body.value, headers: { "Content-Type": "application/json" } });
    if (token.value) options.headers = { ...options.headers, Authorization: `Bearer ${token.value}` };
    output.hidden = false;
    try {
      const answer = await fetch(url, options);
      output.textContent = `${answer.status} ${answer.statusText}\n\n${await answer.text()}`;
    } catch (error) {
      output.textContent = String(error);
    }
  });
  const labels = asked.map(([, label]) => label);
  return make("details", "", make("summary", "Try it"), ...labels, ...(text === null ? [] : [body]), button, output);
}

function operationView(api, path, method, operation) {
  const head = make("summary", "", make("b", method.toUpperCase()), make("code", path), ` ${operation.summary || ""}`);
  const view = make("details", "", head);
  view.id = operation.operationId;
  if (operation.description) view.append(make("p", operation.description));
  if (operation.parameters) view.append(make("h4", "Parameters"), parameterTable(operation.parameters));
  const example = exampleOf(api, operation);
  if (example) view.append(make("h4", "Body"), make("pre", example));
  view.append(make("h4", "Answers"), answerTable(operation.responses));
  const streams = JSON.stringify(operation.responses).includes("text/event-stream");
  view.append(streams ? make("pre", `curl -N ${location.origin}${path}`) : trial(api, path, method, operation));
  return view;
}

function schemaView(name, schema) {
  const view = make("details", "", make("summary", "", make("code", name), ` ${schema.description || ""}`));
  view.append(make("pre", JSON.stringify(schema, null, 2)));
  return view;
}

async function show() {
  const api = await (await fetch("/openapi.json")).json();
  document.getElementById("about").prepend(`Version ${api.info.version}. ${api.info.description} `);
  document.getElementById("about").append(make("label", "Token, where the API wants one ", token));
  const place = document.getElementById("operations");
  for (const tag of api.tags) {
    place.append(make("h2", tag.name), make("p", tag.description));
    for (const [path, methods] of Object.entries(api.paths)) {
      for (const [method, operation] of Object.entries(methods)) {
        if (operation.tags.includes(tag.name)) place.append(operationView(api, path, method, operation));
      }
    }
  }
  const schemas = Object.entries(api.components.schemas).map(([name, schema]) => schemaView(name, schema));
  document.getElementById("schemas").append(...schemas);
}

show().catch((error) => {
  document.getElementById("about").prepend(`The description cannot be read: ${error}. `);
});
