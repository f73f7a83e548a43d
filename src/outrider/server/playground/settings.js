// The controls, and the request they make.
import { ApiError } from "./api.js";
import { element } from "./dom.js";

export class Settings {
  constructor(form) {
    this.form = form;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", () => this.#refresh());
    this.#refresh();
  }

  get key() {
    return this.form.elements.key.value.trim();
  }

  get seed() {
    return number(this.form.elements.seed.value);
  }

  get speculates() {
    return this.form.elements.speculate.checked && this.form.elements.max_nodes.value.trim() !== "0";
  }

  /** Offer the drafters of a model; "none" is what the Speculate box is for. */
  offer({ drafters = [], default_drafter: fallback = "" } = {}) {
    const select = this.form.elements.drafter;
    const others = drafters.filter((name) => name !== "none" && name !== fallback);
    select.replaceChildren(
      element("option", { value: "" }, fallback ? `${fallback} (default)` : "default"),
      ...others.map((name) => element("option", { value: name }, name)),
    );
    this.#refresh();
  }

  /** The body of a request; an empty field is left to the server. */
  request(messages) {
    const { system, temperature, top_p: topP, max_tokens: most, prediction } = this.form.elements;
    const opening = system.value.trim() ? [{ role: "system", content: system.value }] : [];
    return given({
      messages: [...opening, ...messages],
      temperature: number(temperature.value),
      top_p: number(topP.value),
      seed: this.seed,
      max_tokens: number(most.value),
      response_format: this.#format(),
      prediction: prediction.value.trim() ? { type: "content", content: prediction.value } : undefined,
      outrider: { speculate: this.form.elements.speculate.checked && this.speculation(), trace: true },
    });
  }

  /** How to speculate, whether or not the box is ticked (a race always has a speculative side). */
  speculation() {
    const { drafter, max_nodes: nodes } = this.form.elements;
    const asked = given({
      drafter: drafter.value || undefined,
      max_nodes: number(nodes.value),
    });
    return Object.keys(asked).length ? asked : true;
  }

  /** The form of the answer; throws words for people where the schema is no JSON. */
  #format() {
    const { schema } = this.form.elements;
    schema.removeAttribute("aria-invalid");
    if (!schema.value.trim()) return undefined;
    try {
      return { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(schema.value) } };
    } catch (error) {
      schema.setAttribute("aria-invalid", "true");
      throw new ApiError(`The JSON schema under Settings is not JSON: ${error.message}`);
    }
  }

  #refresh() {
    for (const output of this.form.querySelectorAll("output")) {
      output.value = Number(this.form.elements[output.htmlFor.value].value).toFixed(2);
    }
    const { speculate, drafter, max_nodes: nodes } = this.form.elements;
    nodes.disabled = !speculate.checked;
    drafter.disabled = !speculate.checked;
  }
}

function number(text) {
  return text.trim() === "" ? undefined : Number(text);
}

function given(fields) {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
}
