/* Threads that run one function together and meet at barriers.
 *
 * A pass has some 250 barriers a few microseconds of work apart, so waiting spins first; but only briefly, then it yields:
 * on a machine that is busy with something else, spinning for a thread that is not running costs whole time slices.
 */
#ifndef OUTRIDER_POOL_H
#define OUTRIDER_POOL_H

typedef void (*PoolJob)(const void *argument, int thread, int threads);

/* Run job on `threads` threads, the caller's own included as thread 0; returns when all are done. One caller at a time. */
void pool_run(PoolJob job, const void *argument, int threads);

/* Wait until all threads of the running job are here. */
void pool_barrier(void);

#endif
