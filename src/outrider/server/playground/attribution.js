// Which characters of a streamed text came from which token.

const BROKEN = "\uFFFD";

/**
 * Follows the text one token behind. The server may hold text back (half a character, the start of a stop string) or
 * drop it for good, but never reorders it. Token texts are for display: half a character is U+FFFD in them.
 * Invariant: the texts handed out, joined, are the content taken, whatever the tokens say.
 */
export class Attribution {
  #pending = []; // {token, text}: what has not been shown of each token
  #last = null;
  #started = false;

  /** @returns {{token: object|null, text: string}[]} `content` in pieces, each with the token it came from */
  take(tokens, content) {
    for (const token of tokens) this.#pending.push({ token, text: token.text ?? "" });
    const pieces = [];
    let rest = content;
    while (rest) {
      const first = this.#pending[0];
      if (!first) {
        pieces.push({ token: this.#last, text: rest });
        break;
      }
      const size = this.#share(first, rest);
      if (size) {
        pieces.push({ token: first.token, text: rest.slice(0, size) });
        rest = rest.slice(size);
        this.#started = true;
      }
    }
    return pieces;
  }

  /** How much of `rest` belongs to the first pending token, which is dropped or shortened. */
  #share(first, rest) {
    // The very first space of an answer may have been stripped.
    if (!this.#started && !rest.startsWith(" ")) first.text = first.text.replace(/^ /, "");
    if (first.text.includes(BROKEN)) return this.#broken(first, rest);
    if (rest.startsWith(first.text)) {
      this.#drop();
      return first.text.length;
    }
    if (first.text.startsWith(rest)) {
      first.text = first.text.slice(rest.length);
      return rest.length;
    }
    this.#drop();
    return Math.min(first.text.length, rest.length);
  }

  /** A character of several tokens belongs to the last of them. */
  #broken(first, rest) {
    const whole = first.text.slice(0, first.text.indexOf(BROKEN));
    if (whole && rest.startsWith(whole)) {
      first.text = first.text.slice(whole.length);
      return whole.length;
    }
    const next = this.#pending[1];
    this.#drop();
    if (next?.text.startsWith(BROKEN)) return 0;
    const until = next?.text ? rest.indexOf(next.text, 1) : -1;
    return until < 0 ? rest.length : until;
  }

  #drop() {
    this.#last = this.#pending.shift().token;
  }
}
