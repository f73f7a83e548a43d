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

/* Some work in parts, shared out: every thread takes neighbouring ones of its own, in order, and then those of threads that
 * are behind. No two cores are equally fast for long, and at the next barrier all would wait for the slowest.
 *
 * All threads of a job begin the same shares in the same order. What a part gives must not depend on who does it. */
typedef struct {
    int parts, thread, threads;
    unsigned number; /* of the job's shares, from 1 on */
    int ahead;       /* parts are taken of the thread so many further on */
    int next, end;   /* taken and not yet done */
} Share;

Share pool_share(int parts, int thread, int threads);

/* Take some parts; 0: all are taken, though others may not have done theirs yet. */
int pool_take(Share *share);

/* The next part for this thread, or -1. */
static inline int pool_next(Share *share) { return share->next < share->end || pool_take(share) ? share->next++ : -1; }

#endif
