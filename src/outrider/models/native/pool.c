#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

#define MAX_THREADS 256
#define SPINS 4000    /* about 50 microseconds: longer than any wait between threads that are all running */
#define LINGER 20     /* rounds of SPINS before an idle worker goes to sleep */

static struct {
    pthread_mutex_t one_caller, mutex;
    pthread_cond_t wake;
    int workers;              /* started so far */
    unsigned born[MAX_THREADS]; /* generation a worker was started at: it joins from the next on */
    PoolJob job;
    const void *argument;
    int threads;              /* of the running job */
    atomic_uint generation;   /* of the job; changing it starts one */
    atomic_int arrived, phase; /* of the barrier */
    struct {
        _Alignas(64) atomic_ullong cursor; /* number of the share it is of, and first part not taken: 32 bits each */
        unsigned shares;                   /* begun in this job; the thread's own */
    } own[MAX_THREADS];
} pool = {.one_caller = PTHREAD_MUTEX_INITIALIZER, .mutex = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

void pool_barrier(void) {
    const int threads = pool.threads; /* before the last one comes: it may begin the next job at once */
    if (threads == 1) return;
    int phase = atomic_load_explicit(&pool.phase, memory_order_relaxed);
    if (atomic_fetch_add(&pool.arrived, 1) == threads - 1) {
        atomic_store_explicit(&pool.arrived, 0, memory_order_relaxed);
        atomic_store(&pool.phase, phase + 1);
        return;
    }
    for (int spins = 0; atomic_load(&pool.phase) == phase; spins++) {
        if (spins < SPINS)
            relax();
        else
            sched_yield();
    }
}

Share pool_share(int parts, int thread, int threads) {
    return (Share){.parts = parts, .thread = thread, .threads = threads, .number = ++pool.own[thread].shares};
}

/* A cursor of an earlier share stands for one before the first part. One of a later share says that all parts of this one are
 * taken: nobody goes on before. A quarter of what is left at a time, so that neighbours are mostly read one after the other
 * and little is left to wait for in the end. */
int pool_take(Share *s) {
    for (; s->ahead < s->threads; s->ahead++) {
        const int owner = (s->thread + s->ahead) % s->threads;
        const int first = (int)((int64_t)s->parts * owner / s->threads);
        const int last = (int)((int64_t)s->parts * (owner + 1) / s->threads);
        if (first == last) continue;
        atomic_ullong *cursor = &pool.own[owner].cursor;
        unsigned long long seen = atomic_load_explicit(cursor, memory_order_relaxed);
        while ((unsigned)(seen >> 32) <= s->number) {
            const int next = (unsigned)(seen >> 32) == s->number ? (int)(uint32_t)seen : first;
            if (next == last) break;
            const int end = next + (last - next + 3) / 4;
            if (atomic_compare_exchange_weak_explicit(cursor, &seen, (unsigned long long)s->number << 32 | (unsigned)end,
                                                      memory_order_relaxed, memory_order_relaxed)) {
                s->next = next;
                s->end = end;
                return 1;
            }
        }
    }
    return 0;
}

static void *work(void *index) {
    const int thread = (int)(long)index;
    unsigned seen = pool.born[thread];
    for (;;) {
        for (int spins = 0; spins < LINGER * SPINS && atomic_load(&pool.generation) == seen; spins++) relax();
        pthread_mutex_lock(&pool.mutex); /* so that generation and threads are of the same job */
        while (atomic_load(&pool.generation) == seen) pthread_cond_wait(&pool.wake, &pool.mutex);
        seen = atomic_load(&pool.generation);
        const int threads = pool.threads;
        pthread_mutex_unlock(&pool.mutex);
        if (thread < threads) {
            pool.job(pool.argument, thread, threads);
            pool_barrier();
        }
    }
    return 0;
}

/* A forked child has none of the threads: start over. */
static void forget(void) {
    pthread_mutex_init(&pool.one_caller, 0);
    pthread_mutex_init(&pool.mutex, 0);
    pthread_cond_init(&pool.wake, 0);
    pool.workers = 0;
    atomic_store(&pool.arrived, 0);
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(0, 0, forget); }

void pool_run(PoolJob job, const void *argument, int threads) {
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    pthread_mutex_lock(&pool.one_caller);
    while (pool.workers < threads - 1) {
        pthread_t thread;
        pool.born[pool.workers + 1] = atomic_load(&pool.generation);
        if (pthread_create(&thread, 0, work, (void *)(long)(pool.workers + 1))) {
            threads = pool.workers + 1; /* as many as the system allows */
            break;
        }
        pthread_detach(thread);
        pool.workers++;
    }
    for (int thread = 0; thread < threads; thread++) {
        atomic_store_explicit(&pool.own[thread].cursor, 0, memory_order_relaxed);
        pool.own[thread].shares = 0;
    }
    pthread_mutex_lock(&pool.mutex);
    pool.job = job;
    pool.argument = argument;
    pool.threads = threads;
    atomic_fetch_add(&pool.generation, 1);
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.mutex);
    job(argument, 0, threads);
    pool_barrier();
    pthread_mutex_unlock(&pool.one_caller);
}
