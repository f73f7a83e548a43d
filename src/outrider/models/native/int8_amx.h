/* Products of gemm_int8.h with AMX, of many rows.
 *
 * A block's sums leave the tiles through memory, to be scaled and added up, which takes about as long as the products. So it is
 * done between those: the tile unit is busy for 16 cycles with each, and meanwhile some rows of the block before the last are
 * added up and some weights asked for. A tile is stored right before it is begun anew: sooner, the next product would wait for
 * it. The blocks of all pairs a thread takes follow one another so; only after the last one nothing is left to overlap with. */
#ifndef OUTRIDER_INT8_AMX_H
#define OUTRIDER_INT8_AMX_H

#define INT8_MANY_ROWS
#define MANY_ORDER BY_ROWS
INLINE int takes_many(const Model *m, int rows) { return m->shape.kernels == KERNELS_AMX && rows > 8; }
#define TILES_INT8 ALSO("amx-tile,amx-int8")

enum {
    AT_ONCE = 2 * ROW_TILE, /* rows */
    ROW_BYTES = 4 * PANEL_PAIR, /* of sums */
    STEP_LINES = STEP * PANEL / 64,
    AHEAD = 512, /* inputs whose weights are asked for before they are needed */
};

#define PLACE(TILE) ((TILE) / 2 * ROW_TILE * PANEL_PAIR + (TILE) % 2 * PANEL) /* of its sums */

/* A block of inputs of up to 32 rows, or of what rounding left of them, and of the weights of a pair. */
typedef struct {
    const int8_t *inputs, *weights;
    const float *units;     /* scales of the rows */
    const uint16_t *scales; /* of the first panel's columns */
    int fresh, left;        /* weights come from memory; inputs from the block's first to the end */
    int size, rows;
    int first, rest, last;  /* of those of its rows and its pair; what rounding left */
    int row, pair;          /* what it is of */
} Task;

/* A thread's tasks in a row. */
typedef struct {
    const Matrix *w;
    Epilogue epilogue;
    int activation;
    float *y;
    int y_stride;
    int depth, two;    /* of the inputs; more than one tile of rows */
    unsigned turn;
    Task tasks[2];     /* the last, and the one before it, of turn `turn % 2` */
    _Alignas(64) int32_t sums[2][AT_ONCE * PANEL_PAIR]; /* theirs */
    _Alignas(64) float totals[AT_ONCE * PANEL_PAIR];
} Flow;

/* Tiles 0-3 sum a block of up to 32 rows x 32 columns, 4 and 5 hold their inputs, 6 and 7 the weights of two panels. Up to 16
 * rows have tiles 0 and 1 in one turn, 2 and 3 in the next. */
TILES_INT8 static void begin_tiles(int rows) {
    const uint8_t top = rows < ROW_TILE ? (uint8_t)rows : ROW_TILE, low = rows > ROW_TILE ? (uint8_t)(rows - ROW_TILE) : top;
    volatile TileConfig config = {
        .palette = 1,
        .bytes_per_row = {64, 64, 64, 64, STEP, STEP, 64, 64},
        .rows = {top, top, low, low, top, low, STEP / 4, STEP / 4},
    };
    _tile_loadconfig((const void *)&config);
}

/* What is yet to be added up of a task. */
typedef struct {
    Floats left, right; /* scales of the columns */
    const float *units;
    const int32_t *sums;
    float *totals;
    int rows, first, rest;
} Due;

INLINE Due due_of(Flow *f, const Task *t, const int32_t *sums) {
    const uint16_t *right = t->scales + BLOCKS(f->depth) * PANEL;
    return (Due){bf16_at(t->scales), bf16_at(right), t->units, sums, f->totals, t->rows, t->first, t->rest};
}

INLINE void add_row(const Due *d, int row, int first) {
    float *to = d->totals + row * PANEL_PAIR;
    const int32_t *sums = d->sums + row * PANEL_PAIR;
    const Floats unit = splatted(d->units[row]);
    keep(to, fused_floats(floats_of(ints_at(sums)), d->left * unit, first ? ZERO_FLOATS : floats_at(to)));
    keep(to + PANEL, fused_floats(floats_of(ints_at(sums + PANEL)), d->right * unit, first ? ZERO_FLOATS : floats_at(to + PANEL)));
}

/* Four rows of it, if as many as one are left: what is behind the last row is not looked at. */
INLINE void add_four(Due *d) {
    if (d->rows <= 0) return;
    if (d->rest) {
        for (int r = 0; r < 4 && r < d->rows; r++)
            if (d->units[r] != 0.0f) add_row(d, r, 0);
    } else if (d->first) {
        UNROLL for (int r = 0; r < 4; r++) add_row(d, r, 1);
    } else {
        UNROLL for (int r = 0; r < 4; r++) add_row(d, r, 0);
    }
    d->units += 4;
    d->sums += 4 * PANEL_PAIR;
    d->totals += 4 * PANEL_PAIR;
    d->rows -= 4;
}

/* What becomes of a pair's totals, after its last task. */
INLINE void complete(Flow *f, const Task *t) {
    if (t->last)
        finish(f->w, t->pair, f->totals, t->rows, FP32, f->epilogue, f->activation, f->y + (int64_t)t->row * f->y_stride,
               f->y_stride);
}

INLINE void ask_for(const int8_t *next, int64_t panel, int lines) {
    UNROLL for (int i = 0; i < lines; i++) {
        _mm_prefetch((const char *)next + 64 * i, _MM_HINT_T1);
        _mm_prefetch((const char *)next + panel + 64 * i, _MM_HINT_T1);
    }
}

/* The next task. */
TILES_INT8 INLINE void multiply(Flow *f, Task task, int two) {
    const int depth = f->depth;
    const int64_t panel = (int64_t)f->w->depth * PANEL;
    const int turn = (int)(f->turn++ % 2), half = task.size < BLOCK;
    const Task before = f->tasks[turn];
    Due due = due_of(f, &before, f->sums[turn]);
    int32_t *sums = f->sums[!turn]; /* of the last task, which are in the tiles yet */
/* Weights to ask for at a step: behind the end of these panels, those of the next pair. */
#define NEXT(K) (task.weights + ((K) + AHEAD) * PANEL + ((K) + AHEAD < task.left ? 0 : panel))
#define MEANWHILE(PART, PARTS)                                                                               \
    if (task.fresh) ask_for(next + (PART) * 64 * STEP_LINES / (PARTS), panel, STEP_LINES / (PARTS)); \
    add_four(&due);                                                                                  \
    if (half) add_four(&due);
#define BEGUN(TILE)                                           \
    if (k == 0) {                                             \
        _tile_stored(TILE, sums + PLACE(TILE), ROW_BYTES);    \
        _tile_zero(TILE);                                     \
    }
#define TASK_OF_16(LEFT, RIGHT, OLD_LEFT, OLD_RIGHT)          \
    for (int k = 0; k < task.size; k += STEP) {               \
        const int8_t *next = NEXT(k);                         \
        _tile_loadd(4, task.inputs + k, depth);               \
        _tile_stream_loadd(6, task.weights + k * PANEL, 64);  \
        if (k == 0) _tile_zero(LEFT);                         \
        _tile_dpbssd(LEFT, 4, 6);                             \
        MEANWHILE(0, 2)                                       \
        _tile_stream_loadd(7, task.weights + panel + k * PANEL, 64); \
        if (k == 0) _tile_zero(RIGHT);                        \
        _tile_dpbssd(RIGHT, 4, 7);                            \
        if (k == 0) {                                         \
            _tile_stored(OLD_LEFT, sums, ROW_BYTES);                 \
            _tile_stored(OLD_RIGHT, sums + PANEL, ROW_BYTES);    \
        }                                                     \
        MEANWHILE(1, 2)                                       \
    }
    if (two) {
        for (int k = 0; k < task.size; k += STEP) {
            const int8_t *next = NEXT(k);
            _tile_loadd(4, task.inputs + k, depth);
            _tile_stream_loadd(6, task.weights + k * PANEL, 64);
            BEGUN(0)
            _tile_dpbssd(0, 4, 6);
            MEANWHILE(0, 4)
            _tile_stream_loadd(7, task.weights + panel + k * PANEL, 64);
            BEGUN(1)
            _tile_dpbssd(1, 4, 7);
            MEANWHILE(1, 4)
            _tile_loadd(5, task.inputs + (int64_t)ROW_TILE * depth + k, depth);
            BEGUN(2)
            _tile_dpbssd(2, 5, 6);
            MEANWHILE(2, 4)
            BEGUN(3)
            _tile_dpbssd(3, 5, 7);
            MEANWHILE(3, 4)
        }
    } else if (turn) {
        TASK_OF_16(2, 3, 0, 1)
    } else {
        TASK_OF_16(0, 1, 2, 3)
    }
#undef NEXT
#undef MEANWHILE
#undef BEGUN
#undef TASK_OF_16
    complete(f, &before);
    f->tasks[turn] = task;
}

/* After the last task. */
TILES_INT8 static void drain(Flow *f) {
    const int turn = (int)(f->turn % 2);
    for (int i = 0; i < 2; i++) {
        const int which = i ? !turn : turn;
        int32_t *sums = f->sums[which];
        if (i && (f->two || turn)) {
            _tile_stored(0, sums, ROW_BYTES);
            _tile_stored(1, sums + PANEL, ROW_BYTES);
        }
        if (i && (f->two || !turn)) {
            int32_t *low = f->two ? sums + PLACE(2) : sums;
            _tile_stored(2, low, ROW_BYTES);
            _tile_stored(3, low + PANEL, ROW_BYTES);
        }
        Due due = due_of(f, &f->tasks[which], sums);
        while (due.rows > 0) add_four(&due);
        complete(f, &f->tasks[which]);
    }
}

/* Whether a block of any of these rows is taken in two. */
INLINE int any_fine(const float *units, int rows) {
    int fine = 0;
    for (int r = 0; r < rows; r++) fine |= units[r] != 0.0f;
    return fine;
}

/* The tasks of `count` rows of x and a pair. `fresh`: its weights come from memory. */
TILES_INT8 INLINE void flow_pair(Flow *f, Lines x, int row, int count, int pair, int two, int fresh) {
    const Panel panel = panel_of(f->w, 2 * pair);
    const Lines some = lines_at(x, row);
    for (int start = 0, block = 0; start < x.depth; start += BLOCK, block++) {
        const float *rests = some.fine.scales + block * x.rows;
        const int fine = any_fine(rests, count), end = start + BLOCK >= x.depth;
        Task task = {
            .inputs = some.coarse.values + start,
            .weights = panel.weights + start * PANEL,
            .units = some.coarse.scales + block * x.rows,
            .scales = panel.scales + block * PANEL,
            .fresh = fresh,
            .left = x.depth - start,
            .size = block_size(x.depth, start),
            .rows = count,
            .first = block == 0,
            .last = end && !fine,
            .row = row,
            .pair = pair,
        };
        multiply(f, task, two);
        if (!fine) continue;
        task.inputs = some.fine.values + start;
        task.units = rests;
        task.fresh = 0;
        task.first = 0;
        task.rest = 1;
        task.last = end;
        multiply(f, task, two);
    }
}

/* The pairs of `share`, of as many rows as takes_many says. Rows padded to ROW_TILE must be readable. */
TILES_INT8 static void many_int8(const Model *m, const Matrix *w, Lines x, int rows, Epilogue epilogue, void *y, int y_stride,
                                 Share *share) {
    const int two = rows > ROW_TILE;
    Flow flow __attribute__((aligned(64)));
    flow.w = w, flow.epilogue = epilogue, flow.activation = m->shape.activation;
    flow.y = y, flow.y_stride = y_stride, flow.depth = x.depth, flow.two = two;
    flow.turn = 0;
    flow.tasks[0] = flow.tasks[1] = (Task){.scales = w->scales};
    begin_tiles(rows_at_once(rows, AT_ONCE));
    for (int pair; (pair = pool_next(share)) >= 0;)
        for (int r = 0, count; r < rows; r += count) {
            count = rows_at_once(rows - r, AT_ONCE);
            if (two)
                flow_pair(&flow, x, r, count, pair, 1, r == 0);
            else
                flow_pair(&flow, x, r, count, pair, 0, 1);
        }
    drain(&flow);
}

#endif
