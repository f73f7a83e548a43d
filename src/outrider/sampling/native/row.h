/* Choose a token of one row: the largest of score + G, score = (logit - max) / T, G Gumbel noise, without computing G
 * for most tokens. Included once per type of logits (REAL) and instruction set.
 *
 * The filter. A token can beat the best total B so far only if G >= B - score. With w = 1 - u,
 *     G = -log(-log u) <= -log w     (because -log u >= 1 - u),
 * so it needs -log2 w >= (B - score) / ln 2, where w = (k' + 1/2) / 2^32 and k' = 2^32 - 1 - k. Let j = k' >> 1, so
 * that k' + 1/2 > 2j. Read as an integer, the bits of the float j are at most 2^23 (127 + log2 j) (the chord of a concave
 * function). Hence a token that can win has
 *     bits(j) <= 2^23 (158 + (score - B) / ln 2),
 * which costs one conversion, one multiply-add and one comparison. Rounding: G lies in (-3.14, 22.88) and the likeliest
 * token scores 0, so B >= -3.14 and only scores above -26.1 can win; for these every float here is below 2^31 with a
 * relative error of at most 4 * 2^-24, 1e-4 of a unit of log2 in all. SLACK is a hundred times that.
 *
 * The total of a token that passes is computed in fp64 with the C library's logarithm. It and the reference's (PyTorch)
 * are good to a few units in the last place, together well within 1e-13, so a winner that leads by MARGIN is the
 * reference's winner. Any other case, and any row with NaN or without a finite maximum, is UNCLEAR: the caller then asks
 * the reference itself.
 *
 * Truncations. Tokens are kept by value: an upper set. So the winner among all is the winner among the kept if it is
 * kept itself, and otherwise the winner among the kept lies above it: choose again there. Whether a token is kept asks
 * only for the number (top-k) or mass (top-p) of the tokens above it: no sort.
 */

#define BLOCK 256
#define SLACK 0.015625
#define MARGIN 1e-9
#define UNIT 8388608.0 /* 2^23 */
#define SHARE_ERROR 2e-4

#define MOST_BLOCKS 4096

/* The largest logit of the row, and of each block. 0 if there is a NaN or no finite maximum. */
static int NAME(maxima)(const REAL *z, int count, REAL *blocks, REAL *max) {
    REAL most = -INFINITY;
    int strange = 0;
    for (int start = 0, b = 0; start < count; start += BLOCK, b++) {
        const int size = count - start < BLOCK ? count - start : BLOCK;
        REAL m[BLOCK / 4];
        for (int l = 0; l < BLOCK / 4; l++) m[l] = -INFINITY;
        if (size == BLOCK)
            for (int i = 0; i < BLOCK; i += BLOCK / 4)
                for (int l = 0; l < BLOCK / 4; l++) m[l] = z[start + i + l] > m[l] ? z[start + i + l] : m[l];
        else
            for (int i = 0; i < size; i++) m[0] = z[start + i] > m[0] ? z[start + i] : m[0];
        for (int i = 0; i < size; i++) strange |= z[start + i] != z[start + i];
        for (int width = BLOCK / 8; width; width /= 2)
            for (int l = 0; l < width; l++) m[l] = m[l] > m[l + width] ? m[l] : m[l + width];
        blocks[b] = m[0];
        most = m[0] > most ? m[0] : most;
    }
    *max = most;
    return !strange && most > -INFINITY && most < INFINITY;
}

/* The first token with the largest logit. */
static int32_t NAME(place)(const Ask *ask, const REAL *blocks, REAL max) {
    const REAL *z = ask->logits;
    int b = 0, i = 0;
    while (blocks[b] != max) b++;
    for (i = b * BLOCK; z[i] != max;) i++;
    return i;
}

/* Score + G of one token. */
static double NAME(total)(const Ask *ask, REAL max, int32_t token) {
    const double u = ((double)uniform((uint32_t)token, ask->low, ask->high) + 0.5) * 0x1p-32;
    return ((double)((const REAL *)ask->logits)[token] - (double)max) / ask->temperature - log(-log(u));
}

/* What the filter adds to let pass all that may beat `best`. */
static float NAME(offset)(double best) { return (float)(UNIT * (158.0 - best / M_LN2 + SLACK)); }

/* The winner among tokens with logits above `cut`, or UNCLEAR. */
static int32_t NAME(winner)(const Ask *ask, const REAL *blocks, REAL max, REAL cut) {
    const REAL *z = ask->logits;
    const uint32_t low = ask->low, high = ask->high;
    const float slope = (float)(UNIT / (M_LN2 * ask->temperature));
    double best = -INFINITY, second = -INFINITY;
    int32_t token = UNCLEAR;
    float offset = NAME(offset)(NAME(total)(ask, max, NAME(place)(ask, blocks, max)));
    for (int start = 0, b = 0; start < ask->count; start += BLOCK, b++) {
        if (!(blocks[b] > cut) || (float)(blocks[b] - max) * slope + offset < 0) continue;
        const int size = ask->count - start < BLOCK ? ask->count - start : BLOCK;
        float room[BLOCK]; /* what the filter leaves: >= 0 passes */
        int passed = 0;
        for (int i = 0; i < size; i++) {
            const int32_t j = (int32_t)((~uniform((uint32_t)(start + i), low, high)) >> 1);
            room[i] = (float)(z[start + i] - max) * slope - (float)as_bits((float)j);
            passed |= (room[i] + offset >= 0) & (z[start + i] > cut);
        }
        if (!passed) continue;
        for (int i = 0; i < size; i++) {
            if (!(room[i] + offset >= 0 && z[start + i] > cut)) continue;
            const double total = NAME(total)(ask, max, start + i);
            if (total > best) {
                second = best;
                best = total;
                token = start + i;
                offset = NAME(offset)(best);
            } else if (total > second)
                second = total;
        }
    }
    return best - second > MARGIN ? token : UNCLEAR;
}

/* Whether the truncations keep a token: 1, 0 or UNCLEAR. */
static int NAME(kept)(const Ask *ask, REAL max, int32_t token) {
    const REAL *z = ask->logits, here = z[token];
    const double score = ((double)here - (double)max) / ask->temperature;
    if (score < ask->least - MARGIN) return 0;
    if (score < ask->least + MARGIN) return UNCLEAR;
    if (here == max || (ask->top_p == 1 && !ask->top_k)) return 1;
    /* Above by any difference, and by one that no rounding takes away. */
    const REAL clearly = (REAL)((double)here + 1e-6 * (ask->temperature - ((double)here - (double)max)));
    if (ask->top_k) {
        int32_t above = 0, clear = 0;
        for (int i = 0; i < ask->count; i++) {
            above += z[i] > here;
            clear += z[i] > clearly;
        }
        return above < ask->top_k ? 1 : clear >= ask->top_k ? 0 : UNCLEAR;
    }
    const float inverse = (float)(1 / ask->temperature);
    double all = 0, above = 0, clear = 0;
    for (int start = 0; start < ask->count; start += BLOCK) {
        const int size = ask->count - start < BLOCK ? ask->count - start : BLOCK;
        float mass[3][BLOCK]; /* of all, of those above, of those clearly above */
        for (int i = 0; i < size; i++) {
            const REAL x = z[start + i];
            mass[0][i] = exponential((float)(x - max) * inverse);
            mass[1][i] = x > here ? mass[0][i] : 0;
            mass[2][i] = x > clearly ? mass[0][i] : 0;
        }
        for (int part = 0; part < 3; part++) {
            for (int i = size; i < BLOCK; i++) mass[part][i] = 0;
            for (int width = BLOCK / 2; width; width /= 2)
                for (int l = 0; l < width; l++) mass[part][l] += mass[part][l + width];
        }
        all += mass[0][0];
        above += mass[1][0];
        clear += mass[2][0];
    }
    if (above < (ask->top_p - SHARE_ERROR) * all) return 1;
    return clear > (ask->top_p + SHARE_ERROR) * all ? 0 : UNCLEAR;
}

static int32_t NAME(sample)(const Ask *ask) {
    REAL blocks[MOST_BLOCKS], max;
    if (ask->count > BLOCK * MOST_BLOCKS || !NAME(maxima)(ask->logits, ask->count, blocks, &max)) return UNCLEAR;
    if (ask->temperature == 0) return NAME(place)(ask, blocks, max);
    REAL cut = -INFINITY;
    for (;;) {
        const int32_t token = NAME(winner)(ask, blocks, max, cut);
        if (token == UNCLEAR) return UNCLEAR;
        const int keep = NAME(kept)(ask, max, token);
        if (keep) return keep == 1 ? token : UNCLEAR;
        cut = ((const REAL *)ask->logits)[token];
    }
}
