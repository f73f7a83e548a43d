// Server-sent events from bytes, for fetch() streams (EventSource cannot POST).

/**
 * Collects bytes and hands out the `data` of every finished event.
 * Chunks may end anywhere: inside a character, between CR and LF, in the middle of an event.
 */
export class EventParser {
  #decoder = new TextDecoder("utf-8");
  #rest = "";
  #data = [];

  /** @param {Uint8Array} bytes @returns {string[]} the data of each event they completed */
  push(bytes) {
    return this.#read(this.#decoder.decode(bytes, { stream: true }), false);
  }

  /** The stream has ended. A line without its end is read; an event without its blank line is dropped, as the standard has it. */
  end() {
    return this.#read(this.#decoder.decode(), true);
  }

  #read(text, last) {
    this.#rest += text;
    const events = [];
    // A CR at the very end may be the first half of CRLF: wait for what follows.
    const line = last ? /\r\n|\n|\r/ : /\r\n|\n|\r(?!$)/;
    for (let found = line.exec(this.#rest); found; found = line.exec(this.#rest)) {
      this.#line(this.#rest.slice(0, found.index), events);
      this.#rest = this.#rest.slice(found.index + found[0].length);
    }
    return events;
  }

  #line(line, events) {
    if (line === "") {
      if (this.#data.length) events.push(this.#data.join("\n"));
      this.#data = [];
    } else if (line === "data" || line.startsWith("data:")) {
      this.#data.push(line.slice(5).replace(/^ /, ""));
    } // Comments (":") and other fields (event, id, retry) carry nothing we use.
  }
}
