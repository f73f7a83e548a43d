/* What the lookup's parts share; texts.py mirrors `Rules` and `Ask` field by field. */
#ifndef OUTRIDER_LOOKUP_H
#define OUTRIDER_LOOKUP_H

#include <stdint.h>

typedef struct Rolling Rolling;
typedef struct Text Text;

/* How much is trusted and looked at: the constants of suffix_search.py, which has them from there alone. */
typedef struct {
    const double *own_trust, *history_trust; /* [longest + 1][most + 1] */
    double least;
    int32_t longest, most;
    int32_t contexts, fanout, weighed;
} Rules;

/* One request of a step. */
typedef struct {
    Text *text;
    const Rolling *history;
    double floor;
    int32_t fresh; /* tokens that have joined it since it was last asked for */
    int32_t nodes, depth, tree;
} Ask;

/* Where the requests of a step are, and where what is found goes: sizes of the drafts, then their nodes, one draft
   behind the other. */
typedef struct {
    Ask *asks;
    int32_t *sizes, *tokens, *parents;
    double *confidence;
} Room;

#endif
