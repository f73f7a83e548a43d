/* y[rows, columns] = x[rows, depth] · W^T for few rows and weights that stream from memory once.
 *
 * W is packed in panels of 16 output columns: fp32 [panel][depth][16], bf16 [panel][depth/2][16][2] (the tile layout of
 * AMX). Two panels make a pair, the unit threads share out. Every output element is one running sum over depth in
 * increasing order, so its bits depend neither on the number of rows nor on the thread that computed it. Which kernel runs
 * depends on the CPU alone.
 */
#ifndef OUTRIDER_GEMM_H
#define OUTRIDER_GEMM_H

#include "decoder.h"

/* What becomes of a pair's 32 columns of up to 32 rows. */
typedef enum {
    PLAIN,  /* to fp32 y, bias added */
    GATED,  /* the pair is 16 gate and the matching 16 up columns: act(gate) * up, to the next product's input */
} Epilogue;

/* Prepare this thread and process; says whether AMX is used. */
int gemm_prepare(void);
void gemm_release(void);

/* The share of `thread` of `threads`. x has rows padded to 32 readable rows; y likewise writable. */
void gemm(const Matrix *w, const void *x, int rows, int bf16, Epilogue epilogue, int activation, void *y, int y_stride,
          int thread, int threads);

#endif
