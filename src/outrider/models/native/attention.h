/* Attention of one row over its own path. Keys are reduced in blocks of sixteen absolute positions along that path, in
 * order, whether they lie in the committed prefix or are scattered in a draft tree; so the result depends on the path alone. */
#ifndef OUTRIDER_ATTENTION_H
#define OUTRIDER_ATTENTION_H

#include <stdint.h>

#define MAX_HEAD_DIM 256

typedef struct {
    int base;            /* positions 0..base-1 lie at those cache indices */
    int length;          /* positions seen, the row's own last */
    const int32_t *path; /* cache indices of positions base..length-1 */
    int chain;           /* path[i] == base + i throughout */
} RowPath;

/* `heads` query heads sharing one key head; keys and values of that head and slot; scores: [4, capacity] scratch. */
void attend(const RowPath *row, const float *q, const void *keys, const void *values, int heads, int dim, int window,
            float scale, int bf16, float *scores, int capacity, void *out, int64_t out_at);

#endif
